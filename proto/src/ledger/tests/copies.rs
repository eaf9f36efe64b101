//! Copies of other peers' tensors, and time.

use super::*;

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
fn what_is_only_mapped_from_its_owner_is_freed_with_its_last_lease() {
    let mut s = Scene::new();
    let event = Event::CopyIn { origin: origin(1), bytes: 10, by: A, mapped: true };
    let Answer::CopiedIn { id } = s.quietly(event) else { panic!("it is entered") };
    s.quietly(Event::Lease { by: B, id });
    assert_eq!(s.freeing(gone(A)), []);
    assert_eq!(s.freeing(release(B, id, 1)), [(id, Cause::Released)]);
    assert_eq!((s.ledger.copy_of(&origin(1)), s.ledger.totals().bytes_idle), (None, 0));
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
    let twin = Event::CopyIn { origin: origin(1), bytes: 10, by: B, mapped: false };
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

#[test]
fn a_copy_of_no_more_use_is_freed_now_or_with_its_last_lease() {
    let mut s = Scene::new();
    let idle = s.copy(1, A);
    s.quietly(release(A, idle, 1));
    assert_eq!(s.freeing(Event::EndCopy { id: idle }), [(idle, Cause::Evicted)]);
    let leased = s.copy(2, A);
    assert_eq!(s.freeing(Event::EndCopy { id: leased }), []);
    assert_eq!(s.freeing(release(A, leased, 1)), [(leased, Cause::Released)]);
    let own = s.put(None, ticketed(1, 60_000));
    assert_eq!(s.freeing(Event::EndCopy { id: own }), [], "what is no copy stays");
}
