//! Bounds of what one peer may have of everything: what is beyond it is refused, or ends its connection and no other.

use super::*;
use crate::peer::CALLS_MAX;

/// Most that it may have open here.
const OPEN_MAX: u64 = 2 * CALLS_MAX as u64;

/// A peer `a` whose other ends may be silent for as long as the test takes, and two keys that its directory knows.
fn patient(unread: u64) -> (Arc<Table>, One, Identity, Identity) {
    let table = Arc::new(Table::default());
    let a = Start { progress: PATIENCE, unread, ..Start::new("a") }.start(&table);
    let (evil, good) = (keys::identity(), keys::identity());
    table.list("evil", nowhere(), evil.fingerprint);
    table.list("good", nowhere(), good.fingerprint);
    (table, a, evil, good)
}

fn ended(a: &One, why: &str) -> u64 {
    a.peers.counters().closed.count(why)
}

/// Somebody else is connected, and is answered.
fn is_answered(a: &One, good: &Identity) {
    let mut raw = Raw::dial(a, good, "good");
    raw.send(PeerKind::PullMany, 0, 1, &many(&[1]));
    assert!(raw.next_of(PeerKind::PullMany).is_some());
    assert_eq!(ended(a, "lost"), 0);
}

#[test]
fn a_peer_that_asks_for_small_tensors_and_reads_nothing_is_cut_when_a_thousand_answers_are_not_even_made() {
    let (_table, a, evil, good) = patient(1 << 30);
    a.twin.add(1, sealed(&a.arena, 64 << 10, 1), 1);
    let mut raw = greeted(&a, &evil);
    for call in 1..=CALLS_MAX as u64 + 16 {
        raw.send(PeerKind::PullMany, 0, call, &many(&[1; 60]));
    }
    until("it is cut", || ended(&a, "backlog") == 1);
    is_answered(&a, &good);
}

#[test]
fn a_peer_with_more_unanswered_inquiries_than_it_may_have_is_cut_and_nobody_works_for_it_any_more() {
    let (_table, a, evil, good) = patient(128 << 20);
    a.twin.add(1, sealed(&a.arena, 1000, 1), 1);
    a.twin.hold_inquiries.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut raw = greeted(&a, &evil);
    let asked = || a.twin.asking.lock().len();
    for call in 1..=CALLS_MAX as u64 {
        raw.send(PeerKind::Inquire, 0, call, &v1::Inquire::default());
    }
    until("all are asked", || asked() == CALLS_MAX);
    raw.send(PeerKind::Ping, 0, 0, &v1::Ping {});
    assert!(raw.next_of(PeerKind::Ping).is_some(), "so many it may have");
    raw.send(PeerKind::Inquire, 0, CALLS_MAX as u64 + 1, &v1::Inquire::default());
    assert!(raw.is_closed());
    until("it is counted", || ended(&a, "backlog") == 1);
    assert_eq!(asked(), CALLS_MAX, "the last one was not asked");
    until("nobody asks any more", || a.twin.asking.lock().iter().all(Cancel::is_cancelled));
    is_answered(&a, &good);
}

#[test]
fn a_pull_above_those_that_a_peer_may_have_open_is_refused_until_one_of_them_is_done() {
    let (_table, a, evil, good) = patient(128 << 20);
    a.twin.add(1, sealed(&a.arena, 8, 1), 1);
    let mut raw = greeted(&a, &evil);
    let pull = |raw: &mut Raw, call| {
        raw.send(PeerKind::Pull, 0, call, &v1::Pull { id: 1, bytes: 8, ..v1::Pull::default() });
        raw.next_of(PeerKind::Pull).unwrap()
    };
    for call in 1..=OPEN_MAX {
        assert_eq!(pull(&mut raw, call).0.flags, REPLY);
    }
    for call in OPEN_MAX + 1..OPEN_MAX + 3 {
        let (header, body) = pull(&mut raw, call);
        assert_eq!(header.flags, REPLY | FAILED);
        assert_eq!(v1::Failure::decode(&body[..]).unwrap().reason, "LIMIT_EXCEEDED");
    }
    assert_eq!(a.twin.leased(), OPEN_MAX as i64);
    raw.send(PeerKind::PullDone, 0, 1, &v1::PullDone { id: 1, holds: false });
    assert_eq!(pull(&mut raw, OPEN_MAX + 3).0.flags, REPLY, "one is done");
    is_answered(&a, &good);
    assert_eq!(ended(&a, "backlog"), 0);
}

/// Pulls on lanes, of which none is opened: nothing is sent, so each keeps its list.
#[test]
fn lists_of_rows_of_open_pulls_are_refused_beyond_16_mib_a_peer_until_one_of_them_is_done() {
    const ROWS: usize = 1 << 20;
    let mut bound = lanes::Bound::new();
    bound.a.twin.add(7, sealed(&bound.a.arena, 8, 1), 8);
    let pull = |bound: &mut lanes::Bound, call, rows| {
        let kind = Some(v1::selection::Kind::Rows(v1::Rows { indices: vec![1; rows] }));
        let (selection, bytes) = (Some(v1::Selection { kind }), rows as u64);
        let pull = v1::Pull { id: 7, bytes, way: 1, selection, ..v1::Pull::default() };
        bound.control.send(PeerKind::Pull, 0, call, &pull);
        let (header, body) = bound.control.next_of(PeerKind::Pull).unwrap();
        (header.flags == REPLY).then_some(()).ok_or_else(|| v1::Failure::decode(&body[..]).unwrap())
    };
    for call in [1, 2] {
        assert!(pull(&mut bound, call, ROWS).is_ok());
    }
    let refused = pull(&mut bound, 3, 1).unwrap_err();
    assert_eq!(refused.reason, "LIMIT_EXCEEDED");
    assert!(refused.message.contains("select fewer rows"), "{}", refused.message);
    assert_eq!(bound.a.twin.leased(), 2, "what is refused is not leased");
    assert_eq!(bound.a.peers.row_list_bytes().0, 16 << 20);
    bound.control.send(PeerKind::PullDone, 0, 1, &v1::PullDone { id: 7, holds: false });
    assert!(pull(&mut bound, 4, ROWS).is_ok(), "one is done");
    drop(bound.control);
    until("all are given back", || bound.a.peers.row_list_bytes().0 == 0);
}

#[test]
fn when_unread_answers_have_spent_their_budget_the_peer_with_the_most_is_cut() {
    let (_table, a, evil, good) = patient(6 << 20);
    a.twin.add(1, sealed(&a.arena, 64 << 10, 1), 1);
    let mut raw = greeted(&a, &evil);
    for call in 1..=4 {
        raw.send(PeerKind::PullMany, 0, call, &many(&[1; 60]));
    }
    until("it is cut", || ended(&a, "unread") == 1);
    is_answered(&a, &good);
    assert_eq!(ended(&a, "backlog"), 0);
}

/// The frames that wait are a part of the budget; with what the answers behind them are made of it is spent.
#[test]
fn answers_that_are_made_later_count_for_whoever_asks_for_them_and_reads_nothing() {
    let table = Arc::new(Table::default());
    let a = Start { progress: PATIENCE * 6, unread: 32 << 20, ..Start::new("a") }.start(&table);
    let (evil, good) = (keys::identity(), keys::identity());
    table.list("evil", nowhere(), evil.fingerprint);
    table.list("good", nowhere(), good.fingerprint);
    a.twin.add(1, sealed(&a.arena, 64 << 10, 1), 1);
    let mut raw = greeted(&a, &evil);
    // Some are sent, until the others are late.
    for call in 1..=16 {
        raw.send(PeerKind::PullMany, 0, call, &many(&[1; 60]));
    }
    let asked = v1::PullMany { ids: vec![1; 4096], stored: vec![64 << 10; 4096] };
    // Fewer than are too many by their number.
    for call in 17..CALLS_MAX as u64 {
        raw.send(PeerKind::PullMany, 0, call, &asked);
    }
    until("it is cut", || ended(&a, "unread") == 1);
    is_answered(&a, &good);
    assert_eq!(ended(&a, "backlog"), 0);
}

/// Two bytes for each element, at the top and two levels below: decoded they would be hundreds of MiB.
#[test]
fn a_peer_whose_messages_would_become_many_times_their_bytes_is_cut_before_they_are_decoded() {
    let empties = [0x0a_u8, 0].repeat((frame::PEER_BODY_MAX / 2 - 16) as usize);
    let within = |field: u8, body: &[u8]| {
        let mut bytes = vec![field << 3 | 2];
        prost::encoding::encode_varint(body.len() as u64, &mut bytes);
        bytes.extend_from_slice(body);
        bytes
    };
    let commit = within(3, &empties);
    for (kind, body) in [(PeerKind::Inquire, empties), (PeerKind::SetCall, commit)] {
        let (_table, a, evil, good) = patient(128 << 20);
        let mut raw = Raw::connect(&a, keys::client(&evil));
        raw.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", frame::PEER_VERSION));
        assert!(raw.next_of(PeerKind::Hello).is_some());
        let header = Header { length: body.len() as u32, kind: kind.into(), flags: 0, call: 1 };
        raw.raw(&[&header.encode()[..], &body].concat());
        assert!(raw.is_closed(), "{kind:?}");
        until("it is counted", || a.peers.counters().frames_refused.count("malformed") == 1);
        assert!(a.twin.sets.lock().is_empty());
        is_answered(&a, &good);
    }
}
