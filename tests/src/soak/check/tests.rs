//! Histories in which everything is right, and for each line one in which it was broken.

use tensorlane_proto::{DType, ExchangeName, Incarnation, PeerName, Reference};

use super::*;
use crate::soak::history::{Books, What};
use crate::soak::orders::{Actor, Fault, Outcome, Verb, Who};
use crate::tensors::{dense, pattern};

const BYTES: u64 = 1000;
const STRANGER: usize = 3;

/// Writes a history call by call, a millisecond apart.
struct Story {
    events: Vec<Event>,
    calls: u64,
}

fn at(host: usize) -> Actor {
    Actor { host, seat: 0 }
}

fn reference(host: usize, life: u128, id: u64) -> String {
    let peer = char::from(b'a' + host as u8).to_string();
    let layout = dense(DType::U8, &[BYTES]).layout;
    let (exchange, peer) = (ExchangeName::new("x").unwrap(), PeerName::new(&peer).unwrap());
    Reference::new(exchange, peer, Incarnation(life), id, &layout).to_string()
}

fn stored(host: usize, id: u64) -> Outcome {
    Outcome::Stored { reference: reference(host, 1, id) }
}

/// Outcome that a get of a whole tensor shows.
fn got(tensor: u64) -> Outcome {
    let crc = crc32c::crc32c(&pattern(tensor, BYTES as usize));
    Outcome::Got { bytes: BYTES, crc, transport: "local".into(), refused: Vec::new(), moved: 0 }
}

fn came(tensor: u64, by: &str, why: &[&str]) -> Outcome {
    let Outcome::Got { bytes, crc, .. } = got(tensor) else { unreachable!() };
    let refused = why.iter().map(ToString::to_string).collect();
    Outcome::Got { bytes, crc, transport: by.into(), refused, moved: BYTES }
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: reason.into(), told: String::new() }
}

fn put(tensor: u64) -> Verb {
    Verb::Put { tensor, seed: tensor, bytes: BYTES, named: false, checksum: false }
}

fn get(tensor: u64) -> Verb {
    Verb::Get { tensor, part: None, by_name: false, deadline_ms: 8000 }
}

impl Story {
    fn new() -> Self {
        let mut story = Self { events: Vec::new(), calls: 0 };
        story.note(What::World { seed: 1, node: vec![0, 1], stranger: STRANGER, grace_ms: 3000 });
        for host in 0..=STRANGER {
            story.note(What::Born { who: Who::Sidecar(host), life: "1".into() });
        }
        story
    }

    fn note(&mut self, what: What) -> &mut Self {
        let at = self.events.last().map_or(0, |event| event.at) + 1000;
        self.events.push(Event { at, what });
        self
    }

    fn later(&mut self, milliseconds: u64) -> &mut Self {
        let at = self.events.last().map_or(0, |event| event.at) + milliseconds * 1000;
        self.events.push(Event { at, what: What::Settled });
        self
    }

    fn call(&mut self, host: usize, verb: Verb, of: Option<&str>, outcome: Outcome) -> &mut Self {
        self.calls += 1;
        let call = self.calls;
        self.note(What::Began { call, actor: at(host), verb, reference: of.map(str::to_owned) });
        self.note(What::Ended { call, outcome })
    }

    /// Host 0 puts the tensor and keeps it.
    fn with_tensor(tensor: u64) -> Self {
        let mut story = Self::new();
        story.call(0, put(tensor), None, stored(0, tensor));
        story
    }

    fn kill(&mut self, who: Who) -> &mut Self {
        self.note(What::Killing { who }).note(What::Gone { who })
    }

    fn probed(&mut self, of: &str, leases: Option<u64>) -> &mut Self {
        let asked = self.events.last().map_or(0, |event| event.at) + 1;
        self.note(What::Probed { reference: of.into(), asked, leases })
    }

    /// Asserts that exactly this line was broken, and that the last events show it.
    #[track_caller]
    fn breaks(&self, line: usize) {
        let found = check(&self.events);
        assert_eq!(found.iter().map(|one| one.line).collect::<Vec<_>>(), [line], "{found:#?}");
        let end = self.events.len();
        assert!(found[0].events.iter().any(|event| *event + 1 >= end), "{} of {end}", found[0]);
        assert!(found[0].events.iter().all(|event| (1..=end).contains(event)), "{}", found[0]);
    }

    #[track_caller]
    fn is_right(&self) {
        let found = check(&self.events);
        assert!(found.is_empty(), "{found:#?}");
    }
}

fn of(tensor: u64) -> Option<String> {
    Some(reference(0, 1, tensor))
}

#[test]
fn a_history_in_which_all_is_right_breaks_no_line() {
    let mut story = Story::with_tensor(1);
    let (of, by_tcp) = (of(1), came(1, "tcp", &["shm: other_node"]));
    story.call(0, get(1), of.as_deref(), got(1)).call(2, get(1), of.as_deref(), by_tcp.clone());
    story.call(2, Verb::Hold { tensor: 1, slot: 0, deadline_ms: 8000 }, of.as_deref(), by_tcp);
    story.call(STRANGER, get(1), of.as_deref(), failed("PEER_UNREACHABLE"));
    story.call(0, Verb::Release { tensor: 1 }, None, Outcome::Done);
    story.call(1, get(1), of.as_deref(), failed("NOT_FOUND"));
    let books = Books { total: 9, free: 9, ..Books::default() };
    story.note(What::Audited { host: 0, books, last: true });
    story.is_right();
}

#[test]
fn line_1_a_tensor_that_is_seen_before_its_seal() {
    let mut story = Story::new();
    let would_be = Outcome::Reserved { reference: reference(0, 1, 5) };
    story.call(0, Verb::Reserve { tensor: 5, seed: 5, bytes: BYTES }, None, would_be);
    let mut sealed = Story { events: story.events.clone(), calls: story.calls };
    story.call(0, get(5), of(5).as_deref(), got(5)).breaks(1);
    sealed
        .call(0, Verb::Seal { tensor: 5 }, None, stored(0, 5))
        .call(0, get(5), of(5).as_deref(), got(5))
        .is_right();
}

#[test]
fn line_1_a_leased_tensor_that_changes() {
    let mut story = Story::with_tensor(1);
    story.call(0, Verb::Hold { tensor: 1, slot: 2, deadline_ms: 9 }, of(1).as_deref(), got(1));
    let seen = |crc, live| Outcome::Seen { bytes: BYTES, crc, live };
    let Outcome::Got { crc, .. } = got(1) else { unreachable!() };
    story.call(0, Verb::Look { slot: 2 }, None, seen(crc, true)).is_right();
    story.call(0, Verb::Look { slot: 2 }, None, seen(crc ^ 1, true)).breaks(1);
}

#[test]
fn line_2_bytes_of_another_tensor_or_too_few() {
    Story::with_tensor(1).call(0, get(1), of(1).as_deref(), got(2)).breaks(2);
    let Outcome::Got { crc, transport, refused, moved, .. } = got(1) else { unreachable!() };
    let short = Outcome::Got { bytes: BYTES - 1, crc, transport, refused, moved };
    Story::with_tensor(1).call(0, get(1), of(1).as_deref(), short).breaks(2);
}

#[test]
fn line_2_a_part_is_that_part() {
    let part = Verb::Get { tensor: 1, part: Some((3, 10)), by_name: false, deadline_ms: 8000 };
    let outcome = |range: std::ops::Range<usize>| {
        let bytes = &pattern(1, BYTES as usize)[range];
        let (bytes, crc) = (bytes.len() as u64, crc32c::crc32c(bytes));
        Outcome::Got { bytes, crc, transport: "local".into(), refused: Vec::new(), moved: 0 }
    };
    Story::with_tensor(1).call(0, part, of(1).as_deref(), outcome(3..10)).is_right();
    Story::with_tensor(1).call(0, part, of(1).as_deref(), outcome(4..11)).breaks(2);
}

#[test]
fn line_2_an_error_without_a_cause() {
    for reason in
        ["PEER_UNREACHABLE", "DEADLINE_EXCEEDED", "lost", "INTERNAL", "CHECKSUM_MISMATCH", "LIMIT_EXCEEDED"]
    {
        Story::with_tensor(1).call(2, get(1), of(1).as_deref(), failed(reason)).breaks(2);
    }
    let mut story = Story::with_tensor(1);
    story.note(What::Hurt { fault: Fault::Cut(2) });
    story.call(2, get(1), of(1).as_deref(), failed("PEER_UNREACHABLE")).is_right();
    // Of another host, and after everyone has met again.
    let mut elsewhere = Story { events: story.events.clone(), calls: 9 };
    elsewhere.call(1, get(1), of(1).as_deref(), failed("PEER_UNREACHABLE")).breaks(2);
    story.note(What::Mended { fault: Fault::Cut(2) }).note(What::Settled);
    story.call(2, get(1), of(1).as_deref(), failed("PEER_UNREACHABLE")).breaks(2);
}

#[test]
fn line_2_a_call_that_is_never_answered() {
    let mut story = Story::with_tensor(1);
    story.note(What::Began { call: 99, actor: at(0), verb: get(1), reference: of(1) }).breaks(2);
}

#[test]
fn line_3_a_leased_tensor_that_is_gone() {
    Story::with_tensor(1).call(2, get(1), of(1).as_deref(), failed("NOT_FOUND")).breaks(3);
    Story::with_tensor(1).call(2, get(1), of(1).as_deref(), failed("OWNER_LOST")).breaks(3);
    let mut story = Story::with_tensor(1);
    story.kill(Who::Workload(at(0))).call(2, get(1), of(1).as_deref(), failed("NOT_FOUND")).is_right();
    let mut story = Story::with_tensor(1);
    story.kill(Who::Sidecar(0)).call(2, get(1), of(1).as_deref(), failed("OWNER_LOST")).is_right();
}

#[test]
fn what_the_dead_have_said_is_no_claim_though_it_is_written_down_later() {
    let mut story = Story::new();
    story.note(What::Began { call: 50, actor: at(0), verb: put(1), reference: None });
    story.kill(Who::Workload(at(0)));
    story.note(What::Ended { call: 50, outcome: stored(0, 1) });
    story.call(2, get(1), of(1).as_deref(), failed("NOT_FOUND")).is_right();
    story.later(7_000).probed(&reference(0, 1, 1), Some(1)).breaks(3);
}

#[test]
fn line_3_a_block_that_is_used_again_while_it_is_mapped() {
    let mut story = Story::with_tensor(1);
    story.call(0, Verb::Hold { tensor: 1, slot: 0, deadline_ms: 9 }, of(1).as_deref(), got(1));
    story.kill(Who::Sidecar(0)).note(What::Born { who: Who::Sidecar(0), life: "2".into() });
    story
        .call(0, Verb::Look { slot: 0 }, None, Outcome::Seen { bytes: BYTES, crc: 1, live: false })
        .breaks(3);
}

#[test]
fn line_3_a_lease_that_outlives_its_holder() {
    let alive = Some(1);
    let name = reference(0, 1, 1);
    let mut story = Story::with_tensor(1);
    story.later(60_000).probed(&name, alive).is_right();
    story.kill(Who::Workload(at(0))).probed(&name, alive).is_right();
    story.later(5_000).probed(&name, None).is_right();
    story.probed(&name, alive).breaks(3);
}

#[test]
fn line_3_a_reader_elsewhere_has_the_grace() {
    let name = reference(0, 1, 1);
    let mut story = Story::with_tensor(1);
    let hold = Verb::Hold { tensor: 1, slot: 0, deadline_ms: 9 };
    story.call(1, hold, of(1).as_deref(), came(1, "shm", &[]));
    if let What::Ended { outcome: Outcome::Got { moved, .. }, .. } =
        &mut story.events.last_mut().unwrap().what
    {
        *moved = 0;
    }
    story.call(0, Verb::Release { tensor: 1 }, None, Outcome::Done);
    story.later(60_000).probed(&name, Some(1)).is_right();
    story.kill(Who::Workload(at(1))).later(3_000).probed(&name, Some(1)).is_right();
    story.later(3_000).probed(&name, Some(1)).breaks(3);
}

#[test]
fn line_4_books_that_do_not_balance_or_are_not_empty_at_the_end() {
    let books = Books { total: 100, free: 40, sealed: 60, tensors: 1, ..Books::default() };
    let audit = |books, last| {
        let mut story = Story::new();
        story.note(What::Audited { host: 2, books, last });
        story
    };
    audit(books, false).is_right();
    audit(Books { free: 39, ..books }, false).breaks(4);
    audit(books, true).breaks(4);
    audit(Books { total: 100, free: 100, leases: 1, ..Books::default() }, true).breaks(4);
}

#[test]
fn line_5_a_repeat_that_makes_a_second_tensor() {
    let again = |outcome| {
        let mut story = Story::with_tensor(1);
        story.calls += 1;
        let actor = Actor { host: 0, seat: 1 };
        story.note(What::Began { call: 50, actor, verb: put(1), reference: None });
        story.note(What::Ended { call: 50, outcome });
        story
    };
    again(stored(0, 1)).is_right();
    again(stored(0, 2)).breaks(5);
    again(Outcome::Stored { reference: reference(0, 2, 2) }).is_right();
    // The first was given back, and is gone.
    let mut story = Story::with_tensor(1);
    story
        .call(0, Verb::Release { tensor: 1 }, None, Outcome::Done)
        .call(0, put(1), None, stored(0, 2))
        .is_right();
}

#[test]
fn line_6_a_stranger_that_gets_or_learns_something_and_one_that_is_read() {
    Story::with_tensor(1).call(STRANGER, get(1), of(1).as_deref(), came(1, "tcp", &["shm: x"])).breaks(6);
    for reason in ["NOT_FOUND", "OWNER_LOST", "NOT_SEALED"] {
        Story::with_tensor(1).call(STRANGER, get(1), of(1).as_deref(), failed(reason)).breaks(6);
    }
    let mut story = Story::new();
    story.call(STRANGER, put(1), None, stored(STRANGER, 1));
    let name = reference(STRANGER, 1, 1);
    story.call(0, get(1), Some(&name), failed("PEER_UNKNOWN")).is_right();
    let by_name = Verb::Get { tensor: 1, part: None, by_name: true, deadline_ms: 8000 };
    story.call(0, by_name, Some(&name), failed("NOT_FOUND")).is_right();
    story.call(0, get(1), Some(&name), came(1, "tcp", &["shm: x"])).breaks(6);
}

#[test]
fn line_7_a_call_that_fails_for_want_of_a_directory_and_members_that_stay_apart() {
    let mut story = Story::with_tensor(1);
    story.note(What::Hurt { fault: Fault::Directory(2) });
    let mut cut = Story { events: story.events.clone(), calls: 9 };
    story.call(2, get(1), of(1).as_deref(), failed("PEER_UNREACHABLE")).breaks(7);
    cut.note(What::Hurt { fault: Fault::Stop(0) });
    cut.call(2, get(1), of(1).as_deref(), failed("PEER_UNREACHABLE")).is_right();
    Story::new().note(What::Unsettled { seen: "nobody".into() }).breaks(7);
}

#[test]
fn line_8_a_worse_path_that_is_not_told() {
    let story = |outcome| {
        let mut story = Story::with_tensor(1);
        story.call(1, get(1), of(1).as_deref(), outcome);
        story
    };
    story(came(1, "tcp", &["shm: node_unproven"])).is_right();
    story(came(1, "tcp", &[])).breaks(8);
    story(came(1, "quic", &["tcp: cooldown"])).breaks(8);
    story(came(1, "unknown", &["shm: other_node"])).breaks(8);
    story(came(1, "shm", &[])).breaks(8);
    Story::with_tensor(1).call(0, get(1), of(1).as_deref(), came(1, "tcp", &["shm: off"])).breaks(8);
}
