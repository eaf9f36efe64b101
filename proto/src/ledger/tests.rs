//! One sentence for each rule. Everything together is in `tests/ledger_model`.

use std::num::NonZeroU32;

use super::*;

const A: Holder = Holder::Session(SessionId(1));
const B: Holder = Holder::Session(SessionId(2));
const PEER: Holder = Holder::Peer(PeerSlot(1));

const LIMITS: Limits = Limits {
    tensors: 5,
    holders: 3,
    leases_per_holder: 4,
    names: 2,
    tickets: 2,
    retries: 3,
    copy_idle: Millis(30_000),
};

/// A ledger, and the time.
struct Scene {
    ledger: Ledger,
    now: u64,
}

impl Scene {
    fn new() -> Self {
        Self { ledger: Ledger::new(LIMITS), now: 1000 }
    }

    /// What comes of an event: the answer, and what was freed by which cause.
    fn try_to(&mut self, event: Event) -> (Result<Answer, Refusal>, Vec<(TensorId, Cause)>) {
        let mut effects = vec![];
        let answer = self.ledger.apply(Millis(self.now), event, &mut effects);
        (answer, effects.into_iter().map(|Effect::Freed { id, cause, .. }| (id, cause)).collect())
    }

    fn refused(&mut self, event: Event) -> Refusal {
        let before = self.ledger.totals();
        let (answer, freed) = self.try_to(event);
        assert_eq!(freed, []);
        assert_eq!(self.ledger.totals(), before);
        answer.unwrap_err()
    }

    /// An event that must work and free nothing.
    fn quietly(&mut self, event: Event) -> Answer {
        let (answer, freed) = self.try_to(event);
        assert_eq!(freed, []);
        answer.unwrap()
    }

    /// An event that must work; what it frees.
    fn freeing(&mut self, event: Event) -> Vec<(TensorId, Cause)> {
        let (answer, freed) = self.try_to(event);
        assert!(answer.is_ok(), "{answer:?}");
        freed
    }

    fn after(&mut self, ms: u64) -> Vec<(TensorId, Cause)> {
        self.now += ms;
        self.freeing(Event::Tick)
    }

    fn reserve(&mut self, by: impl Into<Option<Holder>>) -> TensorId {
        match self.quietly(Event::Reserve { by: by.into(), bytes: 10, retry: None }) {
            Answer::Reserved { id, again: false } => id,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, by: impl Into<Option<Holder>>, keep: Keep) -> TensorId {
        let by = by.into();
        let id = self.reserve(by);
        self.quietly(seal(by, id, keep));
        id
    }

    fn copy(&mut self, n: u64, by: Holder) -> TensorId {
        match self.quietly(Event::CopyIn { origin: origin(n), bytes: 10, by }) {
            Answer::CopiedIn { id } => id,
            other => panic!("{other:?}"),
        }
    }
}

fn seal(by: impl Into<Option<Holder>>, id: TensorId, keep: Keep) -> Event {
    Event::Seal { by: by.into(), id, keep, retry: None }
}

fn leased() -> Keep {
    Keep { lease: true, ..Keep::default() }
}

fn named(name: &str) -> Keep {
    Keep { name: Some(spec(name, None)), ..Keep::default() }
}

fn ticketed(n: u128, uses: u32) -> Keep {
    Keep { ticket: Some(ticket(n, uses)), ..Keep::default() }
}

fn ticket(n: u128, uses: u32) -> TicketSpec {
    TicketSpec { id: TicketId(n), ttl: Millis(60_000), uses: NonZeroU32::new(uses).unwrap() }
}

fn spec(name: &str, replaces: Option<TensorId>) -> NameSpec {
    NameSpec { name: text(name), replaces }
}

fn text(name: &str) -> TensorName {
    TensorName::new(name).unwrap()
}

fn origin(id: u64) -> Origin {
    Origin { peer: "other".into(), incarnation: 9, id }
}

fn release(by: Holder, id: TensorId, count: u64) -> Event {
    Event::Release { by, id, count }
}

fn gone(holder: Holder) -> Event {
    Event::HolderGone { holder }
}

fn retry(n: u8) -> Option<Retry> {
    asking(n, 0)
}

/// A retry id, used to ask for something.
fn asking(n: u8, asked: u64) -> Option<Retry> {
    Some(Retry { id: RetryId([n; 16]), asked })
}

// Reservations

#[test]
fn a_reservation_cannot_be_leased_named_or_ticketed() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.ledger.state(id), Some(State::Reserved));
    assert_eq!(s.refused(Event::Lease { by: A, id }), Refusal::NotSealed { id });
    assert_eq!(s.refused(Event::Name { id, name: spec("n", None) }), Refusal::NotSealed { id });
    assert_eq!(s.refused(Event::IssueTicket { id, spec: ticket(1, 1) }), Refusal::NotSealed { id });
}

#[test]
fn a_reservation_ends_with_its_writer() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.freeing(gone(A)), [(id, Cause::HolderGone)]);
    assert_eq!(s.ledger.state(id), None);
}

#[test]
fn an_aborted_reservation_is_gone_for_every_caller() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.freeing(Event::Abort { by: Some(A), id }), [(id, Cause::Aborted)]);
    assert_eq!(s.refused(seal(A, id, leased())), Refusal::NotFound { id });
    assert_eq!(s.refused(Event::Abort { by: Some(A), id }), Refusal::NotFound { id });
}

#[test]
fn only_who_reserved_may_seal_or_abort() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    for by in [Some(B), None] {
        assert_eq!(s.refused(seal(by, id, named("n"))), Refusal::NotYours { id });
        assert_eq!(s.refused(Event::Abort { by, id }), Refusal::NotYours { id });
    }
    let nobodys = s.reserve(None);
    assert_eq!(s.refused(seal(A, nobodys, leased())), Refusal::NotYours { id: nobodys });
}

#[test]
fn a_tensor_is_sealed_once() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    assert_eq!(s.refused(seal(A, id, leased())), Refusal::AlreadySealed { id });
    assert_eq!(s.refused(Event::Abort { by: Some(A), id }), Refusal::AlreadySealed { id });
}

#[test]
fn what_nothing_would_keep_is_not_sealed() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.refused(seal(A, id, Keep::default())), Refusal::WouldVanish { id });
    let nobodys = s.reserve(None);
    assert_eq!(s.refused(seal(None, nobodys, leased())), Refusal::NoHolder { id: nobodys });
}

#[test]
fn a_refused_seal_leaves_the_reservation_as_it_was() {
    let mut s = Scene::new();
    let first = s.put(A, named("n"));
    let id = s.reserve(A);
    let keep = Keep { ticket: Some(ticket(1, 1)), ..named("n") };
    assert_eq!(s.refused(seal(A, id, keep)), Refusal::NameTaken { name: text("n"), by: first });
    assert_eq!(s.ledger.state(id), Some(State::Reserved));
    assert_eq!(s.ledger.ticket(TicketId(1)), None);
    s.quietly(seal(A, id, leased()));
}

// Leases

#[test]
fn a_leased_tensor_survives_its_writers_death() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    s.quietly(Event::Lease { by: B, id });
    s.quietly(gone(A));
    assert_eq!(s.freeing(release(B, id, 1)), [(id, Cause::Released)]);
}

#[test]
fn leases_are_counted_for_each_holder() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    assert_eq!(s.quietly(Event::Lease { by: A, id }), Answer::Leased { held: 2 });
    assert_eq!(s.quietly(Event::Lease { by: PEER, id }), Answer::Leased { held: 1 });
    assert_eq!(s.refused(release(PEER, id, 2)), Refusal::NotHeld { id, by: PEER, held: 1, asked: 2 });
    assert_eq!(s.refused(release(B, id, u64::MAX)), Refusal::NotHeld { id, by: B, held: 0, asked: u64::MAX });
    assert_eq!(s.quietly(release(A, id, 2)), Answer::Released { held: 0 });
    assert_eq!(s.freeing(release(PEER, id, 1)), [(id, Cause::Released)]);
    assert_eq!(s.refused(release(PEER, id, 1)), Refusal::NotFound { id });
}

#[test]
fn releasing_nothing_changes_nothing() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    assert_eq!(s.quietly(release(B, id, 0)), Answer::Released { held: 0 });
    assert_eq!(s.ledger.state(id), Some(State::Sealed));
}

#[test]
fn when_a_holder_is_gone_all_it_held_goes_at_once_and_nothing_else() {
    let mut s = Scene::new();
    let (a, b, both) = (s.put(A, leased()), s.put(B, leased()), s.put(A, leased()));
    s.quietly(Event::Lease { by: B, id: both });
    let writing = s.reserve(A);
    assert_eq!(s.freeing(gone(A)), [(a, Cause::HolderGone), (writing, Cause::HolderGone)]);
    assert_eq!(s.ledger.leases_of(A).count(), 0);
    let mut left: Vec<_> = s.ledger.leases_of(B).collect();
    left.sort();
    assert_eq!(left, [(b, 1), (both, 1)]);
    s.quietly(gone(A));
}

// Peers that are away

#[test]
fn a_peer_that_comes_back_in_time_keeps_its_leases() {
    let mut s = Scene::new();
    let id = s.put(PEER, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    assert_eq!(s.ledger.next_deadline(), Some(Millis(6000)));
    assert_eq!(s.after(4999), []);
    s.quietly(Event::HolderBack { holder: PEER });
    assert_eq!(s.ledger.next_deadline(), None);
    assert_eq!(s.after(1_000_000), []);
    assert_eq!(s.freeing(release(PEER, id, 1)), [(id, Cause::Released)]);
}

#[test]
fn a_peer_that_comes_back_too_late_has_lost_them_whoever_is_told_first() {
    let mut s = Scene::new();
    let id = s.put(PEER, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    s.now = 6000;
    assert_eq!(s.freeing(Event::HolderBack { holder: PEER }), [(id, Cause::PeerLost)]);
}

#[test]
fn a_lease_that_a_peer_gets_while_it_is_away_ends_with_the_others() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    s.quietly(Event::Lease { by: PEER, id });
    s.quietly(gone(A));
    assert_eq!(s.after(5000), [(id, Cause::PeerLost)]);
}

#[test]
fn going_away_again_moves_the_end() {
    let mut s = Scene::new();
    let id = s.put(PEER, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(8000) });
    assert_eq!(s.after(6999), []);
    assert_eq!(s.after(1), [(id, Cause::PeerLost)]);
}

// Names

#[test]
fn a_name_keeps_a_tensor_when_nobody_holds_it() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    s.quietly(gone(A));
    assert_eq!(s.ledger.find("n"), Some(id));
    assert_eq!(s.freeing(Event::Unname { name: text("n") }), [(id, Cause::Unnamed)]);
    assert_eq!(s.refused(Event::Unname { name: text("n") }), Refusal::NameUnknown { name: text("n") });
}

#[test]
fn a_taken_name_is_given_only_to_who_knows_the_tensor_that_has_it() {
    let mut s = Scene::new();
    let (old, new) = (s.put(A, named("n")), s.put(A, leased()));
    let name = text("n");
    let taken = Refusal::NameTaken { name: name.clone(), by: old };
    assert_eq!(s.refused(Event::Name { id: new, name: spec("n", None) }), taken);
    let changed = Refusal::NameChanged { name, now: Some(old) };
    assert_eq!(s.refused(Event::Name { id: new, name: spec("n", Some(new)) }), changed);
    let free = Refusal::NameChanged { name: text("m"), now: None };
    assert_eq!(s.refused(Event::Name { id: new, name: spec("m", Some(old)) }), free);
    assert_eq!(s.freeing(Event::Name { id: new, name: spec("n", Some(old)) }), [(old, Cause::Replaced)]);
    assert_eq!(s.ledger.find("n"), Some(new));
}

#[test]
fn a_replaced_tensor_lives_on_while_leased() {
    let mut s = Scene::new();
    let old = s.put(A, Keep { lease: true, ..named("n") });
    let new = s.reserve(B);
    let keep = Keep { name: Some(spec("n", Some(old))), ..Keep::default() };
    s.quietly(seal(B, new, keep));
    assert_eq!(s.ledger.find("n"), Some(new));
    assert_eq!(s.freeing(release(A, old, 1)), [(old, Cause::Released)]);
}

#[test]
fn a_tensor_may_replace_itself() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    let answer = s.quietly(Event::Name { id, name: spec("n", Some(id)) });
    assert_eq!(answer, Answer::Named { replaced: Some(id) });
    assert_eq!(s.ledger.find("n"), Some(id));
    assert_eq!(s.freeing(Event::Unname { name: text("n") }), [(id, Cause::Unnamed)]);
}

#[test]
fn a_tensor_with_two_names_lives_until_both_have_ended() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    s.quietly(Event::Name { id, name: spec("m", None) });
    s.quietly(Event::Unname { name: text("n") });
    let names: Vec<_> = s.ledger.entry(id).unwrap().names().cloned().collect();
    assert_eq!(names, [text("m")]);
    assert_eq!(s.freeing(Event::Unname { name: text("m") }), [(id, Cause::Unnamed)]);
}

#[test]
fn a_list_is_in_order_and_goes_on_after_a_page() {
    let mut ledger = Ledger::new(Limits::default());
    let mut effects = vec![];
    for name in ["b", "a/2", "a/10", "a", "ab"] {
        let reserved =
            ledger.apply(Millis(0), Event::Reserve { by: None, bytes: 0, retry: None }, &mut effects);
        let Ok(Answer::Reserved { id, .. }) = reserved else { panic!("{reserved:?}") };
        ledger.apply(Millis(0), seal(None, id, named(name)), &mut effects).unwrap();
    }
    let list = |prefix, after: Option<&str>, limit| -> Vec<String> {
        let rows = ledger.list(prefix, after.map(text).as_ref(), limit);
        rows.into_iter().map(|(name, _)| name.to_string()).collect()
    };
    assert_eq!(list("", None, 9), ["a", "a/10", "a/2", "ab", "b"]);
    assert_eq!(list("a/", None, 1), ["a/10"]);
    assert_eq!(list("a/", Some("a/10"), 9), ["a/2"]);
    assert_eq!(list("a/", Some("a"), 9), ["a/10", "a/2"]);
    assert_eq!(list("a/", Some("b"), 9), [""; 0]);
}

// Tickets

#[test]
fn a_ticket_keeps_a_tensor_until_it_expires() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 1));
    assert_eq!(s.ledger.next_deadline(), Some(Millis(61_000)));
    assert_eq!(s.after(59_999), []);
    assert_eq!(s.after(1), [(id, Cause::TicketExpired)]);
    let redeem = Event::Redeem { ticket: TicketId(1), by: A, retry: None };
    assert_eq!(s.refused(redeem), Refusal::TicketUnknown);
}

#[test]
fn a_ticket_past_its_deadline_is_not_good_even_if_nobody_ticked() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 1));
    s.now = 61_000;
    let (answer, freed) = s.try_to(Event::Redeem { ticket: TicketId(1), by: A, retry: None });
    assert_eq!((answer, freed), (Err(Refusal::TicketUnknown), vec![(id, Cause::TicketExpired)]));
}

#[test]
fn the_last_use_ends_a_ticket_and_leaves_a_lease() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 2));
    for (by, left) in [(A, Some(1)), (B, None)] {
        let redeemed = s.quietly(Event::Redeem { ticket: TicketId(1), by, retry: None });
        assert_eq!(redeemed, Answer::Redeemed { id, again: false });
        assert_eq!(s.ledger.ticket(TicketId(1)).map(|ticket| ticket.uses), left);
    }
    let again = Event::Redeem { ticket: TicketId(1), by: A, retry: None };
    assert_eq!(s.refused(again), Refusal::TicketUnknown);
    s.quietly(release(A, id, 1));
    assert_eq!(s.freeing(release(B, id, 1)), [(id, Cause::Released)]);
}

#[test]
fn a_ticket_that_cannot_be_had_is_refused() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 1));
    let issue = |n, ttl| Event::IssueTicket { id, spec: TicketSpec::once(TicketId(n), Millis(ttl)) };
    assert_eq!(s.refused(issue(2, 0)), Refusal::TicketWithoutTime);
    assert_eq!(s.refused(issue(1, 5)), Refusal::TicketTaken);
    assert_eq!(s.quietly(issue(2, u64::MAX)), Answer::TicketIssued { deadline: Millis::MAX });
    let next = Some(Millis(61_000));
    assert_eq!(s.refused(issue(3, 5)), Refusal::TooManyTickets { limit: 2, next });
}

#[test]
fn a_ticket_does_not_show_itself_in_a_log() {
    assert_eq!(format!("{:?}", TicketId(0x1234_5678_9abc_def0)), "TicketId(…def0)");
}

// Copies

#[test]
fn a_copy_is_kept_while_leased_and_then_for_a_while() {
    let mut s = Scene::new();
    let id = s.copy(1, A);
    assert_eq!(s.after(1_000_000), []);
    s.quietly(release(A, id, 1));
    assert_eq!(s.ledger.next_deadline(), Some(Millis(s.now + 30_000)));
    assert_eq!(s.after(29_999), []);
    assert_eq!(s.after(1), [(id, Cause::CopyIdle)]);
    assert_eq!(s.ledger.copy_of(&origin(1)), None);
}

#[test]
fn a_copy_leased_again_is_not_idle() {
    let mut s = Scene::new();
    let id = s.copy(1, A);
    s.quietly(gone(A));
    assert_eq!(s.ledger.totals().bytes_idle, 10);
    assert_eq!(s.after(20_000), []);
    s.quietly(Event::Lease { by: B, id });
    assert_eq!((s.ledger.next_deadline(), s.ledger.totals().bytes_idle), (None, 0));
    assert_eq!(s.freeing(Event::Evict { bytes: 10 }), []);
    assert_eq!(s.after(20_000), []);
    assert_eq!(s.ledger.copy_of(&origin(1)), Some(id));
}

#[test]
fn the_copies_longest_idle_make_room_first_and_no_more_than_needed() {
    let mut s = Scene::new();
    let ids = [1, 2, 3].map(|n| s.copy(n, A));
    for at in [1, 0, 2] {
        s.quietly(release(A, ids[at], 1));
    }
    let (answer, freed) = s.try_to(Event::Evict { bytes: 11 });
    assert_eq!(answer, Ok(Answer::Evicted { tensors: 2, bytes: 20 }));
    assert_eq!(freed, [(ids[1], Cause::Evicted), (ids[0], Cause::Evicted)]);
    let (answer, _) = s.try_to(Event::Evict { bytes: u64::MAX });
    assert_eq!(answer, Ok(Answer::Evicted { tensors: 1, bytes: 10 }));
    assert_eq!(s.ledger.totals(), Totals::default());
}

#[test]
fn a_copy_has_no_name_no_ticket_and_no_twin() {
    let mut s = Scene::new();
    let id = s.copy(1, A);
    let not_owned = Refusal::NotOwned { id, origin: origin(1) };
    assert_eq!(s.refused(Event::Name { id, name: spec("n", None) }), not_owned);
    assert_eq!(s.refused(Event::IssueTicket { id, spec: ticket(1, 1) }), not_owned);
    let twin = Event::CopyIn { origin: origin(1), bytes: 10, by: B };
    assert_eq!(s.refused(twin), Refusal::CopyExists { id });
}

#[test]
fn how_late_the_ledger_is_told_the_time_makes_no_difference() {
    let ticks: [&[u64]; 2] = [&[6000, 35_999], &[35_999]];
    for ticks in ticks {
        let mut s = Scene::new();
        let id = s.copy(1, PEER);
        s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
        for &at in ticks {
            s.now = at;
            s.quietly(Event::Tick);
        }
        assert_eq!(s.after(1), [(id, Cause::CopyIdle)], "idle since 6 s, told at {ticks:?}");
    }
}

#[test]
fn time_does_not_run_backwards() {
    let mut s = Scene::new();
    s.after(1000);
    s.now = 500;
    let id = s.put(None, ticketed(1, 1));
    assert_eq!(s.ledger.next_deadline(), Some(Millis(62_000)));
    s.now = 62_000;
    assert_eq!(s.freeing(Event::Tick), [(id, Cause::TicketExpired)]);
}

// Retries

#[test]
fn a_repeated_put_gets_the_first_answers() {
    let mut s = Scene::new();
    let reserve = Event::Reserve { by: Some(A), bytes: 10, retry: retry(1) };
    let Answer::Reserved { id, again: false } = s.quietly(reserve.clone()) else { panic!("not new") };
    assert_eq!(s.quietly(reserve.clone()), Answer::Reserved { id, again: true });
    let seal = |n| Event::Seal { by: Some(A), id, keep: ticketed(n, 1), retry: retry(2) };
    let ticket = Some(TicketId(7));
    assert_eq!(s.quietly(seal(7)), Answer::Sealed { id, ticket, again: false });
    assert_eq!(
        s.quietly(seal(8)),
        Answer::Sealed { id, ticket, again: true },
        "the first ticket, not another"
    );
    assert_eq!(s.ledger.ticket(TicketId(8)), None);
    assert_eq!(s.quietly(reserve), Answer::Reserved { id, again: true });
    assert_eq!(s.ledger.totals().tensors, 1);
}

#[test]
fn a_retry_id_stands_for_one_request_of_one_holder() {
    let mut s = Scene::new();
    let reserve = |by, bytes| Event::Reserve { by: Some(by), bytes, retry: retry(1) };
    let Answer::Reserved { id, .. } = s.quietly(reserve(A, 10)) else { panic!("not reserved") };
    let mismatch = Refusal::RetryMismatch { first: "reserve" };
    assert_eq!(s.refused(reserve(A, 11)), mismatch);
    assert_eq!(s.refused(reserve(B, 10)), mismatch);
    let seal = Event::Seal { by: Some(A), id, keep: leased(), retry: retry(1) };
    assert_eq!(s.refused(seal), mismatch);
    assert_eq!(s.refused(Event::Redeem { ticket: TicketId(1), by: A, retry: retry(1) }), mismatch);
}

#[test]
fn a_retry_id_stands_for_what_was_asked_the_first_time() {
    let mut s = Scene::new();
    let reserve = |asked| Event::Reserve { by: Some(A), bytes: 10, retry: asking(1, asked) };
    let Answer::Reserved { id, .. } = s.quietly(reserve(5)) else { panic!("not reserved") };
    assert_eq!(s.refused(reserve(6)), Refusal::RetryMismatch { first: "reserve" });
    assert_eq!(s.quietly(reserve(5)), Answer::Reserved { id, again: true });
    let seal = |asked| Event::Seal { by: Some(A), id, keep: ticketed(1, 2), retry: asking(2, asked) };
    s.quietly(seal(5));
    assert_eq!(s.refused(seal(6)), Refusal::RetryMismatch { first: "seal" });
    let redeem = |asked| Event::Redeem { ticket: TicketId(1), by: B, retry: asking(3, asked) };
    s.quietly(redeem(5));
    assert_eq!(s.refused(redeem(6)), Refusal::RetryMismatch { first: "redeem" });
    assert_eq!(s.quietly(redeem(5)), Answer::Redeemed { id, again: true });
}

#[test]
fn a_repeated_redeem_does_not_use_the_ticket_twice() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 2));
    let redeem = Event::Redeem { ticket: TicketId(1), by: A, retry: retry(1) };
    assert_eq!(s.quietly(redeem.clone()), Answer::Redeemed { id, again: false });
    assert_eq!(s.quietly(redeem.clone()), Answer::Redeemed { id, again: true });
    assert_eq!(s.ledger.ticket(TicketId(1)).map(|ticket| ticket.uses), Some(1));
    s.quietly(release(A, id, 1));
    assert_eq!(s.refused(redeem), Refusal::RetryLapsed { id }, "nobody is told of a lease it does not have");
}

#[test]
fn a_retry_id_is_forgotten_with_its_tensor() {
    let mut s = Scene::new();
    let reserve = Event::Reserve { by: Some(A), bytes: 10, retry: retry(1) };
    let Answer::Reserved { id, .. } = s.quietly(reserve.clone()) else { panic!("not reserved") };
    assert!(s.ledger.recall(&RetryId([1; 16])).is_some());
    s.freeing(Event::Abort { by: Some(A), id });
    assert_eq!(s.ledger.recall(&RetryId([1; 16])), None);
    let Answer::Reserved { id: next, again: false } = s.quietly(reserve) else { panic!("not new") };
    assert_ne!(next, id);
}

#[test]
fn the_oldest_retry_id_is_forgotten_when_there_are_too_many() {
    let mut s = Scene::new();
    for n in 1..=4 {
        s.quietly(Event::Reserve { by: None, bytes: 10, retry: retry(n) });
    }
    let known = [1, 2, 3, 4].map(|n| s.ledger.recall(&RetryId([n; 16])).is_some());
    assert_eq!(known, [false, true, true, true]);
}

// Limits

#[test]
fn over_a_limit_is_a_refusal() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    for _ in 0..3 {
        s.quietly(Event::Lease { by: A, id });
    }
    let full = Refusal::TooManyLeases { by: A, limit: 4 };
    assert_eq!(s.refused(Event::Lease { by: A, id }), full);
    assert_eq!(s.refused(Event::Reserve { by: Some(A), bytes: 0, retry: None }), full);
    s.quietly(Event::Lease { by: B, id });
    s.quietly(Event::Lease { by: PEER, id });
    let stranger = Holder::Peer(PeerSlot(2));
    assert_eq!(s.refused(Event::Lease { by: stranger, id }), Refusal::TooManyHolders { limit: 3 });
    s.quietly(Event::Name { id, name: spec("a", None) });
    s.quietly(Event::Name { id, name: spec("b", None) });
    assert_eq!(s.refused(Event::Name { id, name: spec("c", None) }), Refusal::TooManyNames { limit: 2 });
    for _ in 0..4 {
        s.reserve(None);
    }
    let reserve = Event::Reserve { by: None, bytes: 0, retry: None };
    assert_eq!(s.refused(reserve), Refusal::TooManyTensors { limit: 5 });
}

#[test]
fn a_reservation_that_was_granted_can_be_sealed_with_a_lease() {
    let mut s = Scene::new();
    let ids = [(); 4].map(|()| s.reserve(A));
    for id in ids {
        s.quietly(seal(A, id, leased()));
    }
    assert_eq!(s.ledger.totals().leases, 4);
}

#[test]
fn bytes_beyond_counting_are_refused() {
    let mut s = Scene::new();
    s.quietly(Event::Reserve { by: Some(A), bytes: u64::MAX, retry: None });
    let more = Event::Reserve { by: Some(B), bytes: 1, retry: None };
    assert_eq!(s.refused(more), Refusal::TooManyBytes { bytes: 1 });
    s.quietly(Event::Reserve { by: Some(B), bytes: 0, retry: None });
}

// Questions

#[test]
fn the_largest_holders_come_first_each_tensor_counted_once() {
    let mut s = Scene::new();
    let shared = s.put(A, leased());
    s.quietly(Event::Lease { by: A, id: shared });
    s.quietly(Event::Lease { by: PEER, id: shared });
    s.reserve(B);
    s.reserve(B);
    assert_eq!(s.ledger.largest_holders(2), [(B, 20, 0), (A, 10, 2)]);
    let mut holders: Vec<_> = s.ledger.holders_of(shared).collect();
    holders.sort();
    assert_eq!(holders, [(A, 2), (PEER, 1)]);
}

#[test]
fn every_cause_has_a_label_of_its_own() {
    let labels: std::collections::BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    assert_eq!(labels.len(), Cause::ALL.len());
}

#[test]
fn the_cost_of_a_tensor_is_what_the_limit_says() {
    let slot = size_of::<slots::Tensor>() + 8;
    assert!(slot <= 150, "{slot} bytes");
}
