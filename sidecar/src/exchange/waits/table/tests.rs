//! Shares, deadlines and names of the table of waits.

use std::time::Duration;

use tensorlane_proto::ledger::SessionId;

use super::*;

const BOUNDS: Bounds = Bounds { count: 3, bytes: 100, all_bytes: 200 };
const LIMITS: Limits = Limits { asking: BOUNDS, clients: BOUNDS, peers: BOUNDS };

fn key(name: &str) -> Key {
    Key { at: None, name: TensorName::new(name).unwrap() }
}

fn session(id: u64) -> Owner {
    Owner::Client(Some(Holder::Session(SessionId(id))))
}

fn peer(name: &str) -> Owner {
    Owner::Peer(name.parse().unwrap())
}

/// Wait for a name, until a second after `now`.
fn wait(table: &mut Table<u32>, owner: Owner, bytes: u64, waiter: u32) -> Result<WaitId, Failure> {
    let until = Instant::now() + Duration::from_secs(1);
    let id = table.enter(owner, bytes, until, waiter)?;
    table.wait(id, vec![key("a")], until).inspect_err(|_| {
        table.remove(id);
    })?;
    Ok(id)
}

#[test]
fn a_wait_ends_at_its_own_deadline_whoever_waits_longer() {
    let (mut table, now) = (Table::new(LIMITS), Instant::now());
    let at = |ms| now + Duration::from_millis(ms);
    let late = table.enter(session(1), 1, at(900), "late").unwrap();
    table.enter(session(2), 1, at(100), "soon").unwrap();
    assert_eq!(table.next_deadline(), Some(at(100)));
    assert_eq!(table.due(at(99)), [""; 0]);
    assert_eq!(table.due(at(100)), ["soon"]);
    assert_eq!(table.due(at(100)), [""; 0], "each is told once");
    // Who waits has another deadline than who asks.
    table.wait(late, vec![key("a")], at(300)).unwrap();
    assert_eq!(table.next_deadline(), Some(at(300)));
    assert_eq!(table.due(at(300)), ["late"]);
}

#[test]
fn a_name_that_appears_is_told_to_all_who_wait_for_it_and_to_nobody_else() {
    let (mut table, until) = (Table::new(LIMITS), Instant::now());
    let mut enter = |waiter: u32, keys: &[&str]| {
        let id = table.enter(session(u64::from(waiter)), 1, until, waiter).unwrap();
        table.wait(id, keys.iter().map(|name| key(name)).collect(), until).unwrap();
        id
    };
    let (first, both, other) = (enter(1, &["a"]), enter(2, &["a", "b"]), enter(3, &["b"]));
    assert_eq!(table.take(&key("a")), [(first, 1), (both, 2)]);
    assert_eq!(table.wanted(), [(key("b"), vec![0, 1])], "two owners wait for it");
    table.put_back(first, &key("a"));
    assert_eq!(table.take(&key("a")), [(first, 1)]);
    table.remove(both);
    table.put_back(both, &key("b"));
    assert_eq!(table.take(&key("b")), [(other, 3)], "what is removed is not told of anything");
}

#[test]
fn each_has_a_share_in_number_and_all_have_one_in_bytes() {
    let mut table = Table::new(LIMITS);
    let ids: Vec<_> = (0..3).map(|n| wait(&mut table, peer("a"), 1, n).unwrap()).collect();
    let refused = wait(&mut table, peer("a"), 1, 9).unwrap_err();
    assert_eq!(refused.reason, Reason::LimitExceeded);
    assert!(refused.message.contains("waits for names of a may take 3 at a time"), "{refused}");
    wait(&mut table, peer("b"), 100, 4).unwrap();
    let refused = wait(&mut table, peer("c"), 100, 5).unwrap_err();
    assert!(refused.message.contains("150 bytes of all together"), "{refused}");
    wait(&mut table, peer("c"), 12, 5).unwrap();
    let refused = wait(&mut table, session(1), 101, 5).unwrap_err();
    assert!(refused.message.contains("this session may take 100 bytes"), "{refused}");
    // Peers that wait keep no session out.
    wait(&mut table, session(1), 100, 6).unwrap();
    assert_eq!((table.waiting(), table.bytes()), (6, 215));
    table.remove(ids[0]);
    wait(&mut table, peer("a"), 1, 9).unwrap();
}

#[test]
fn those_who_wait_keep_nobody_out_who_only_asks() {
    let mut table = Table::new(LIMITS);
    for n in 0..3 {
        wait(&mut table, session(1), 1, n).unwrap();
    }
    let until = Instant::now();
    let asks = table.enter(session(1), 90, until, 7).unwrap();
    let refused = table.wait(asks, vec![key("a")], until).unwrap_err();
    assert!(refused.message.contains("3 at a time"), "{refused}");
    assert_eq!((table.waiting(), table.bytes()), (3, 93), "it goes on asking");
}

#[test]
fn look_ups_of_this_pod_keep_no_question_of_a_peer_out() {
    let (mut table, until) = (Table::new(LIMITS), Instant::now());
    table.enter(session(1), 100, until, 1).unwrap();
    table.enter(session(2), 50, until, 2).unwrap();
    let refused = table.enter(session(3), 13, until, 3).unwrap_err();
    assert!(refused.message.contains("150 bytes of all together"), "{refused}");
    wait(&mut table, peer("a"), 100, 4).unwrap();
    assert_eq!(table.bytes(), 250, "a question is booked once");
}

#[test]
fn owners_that_take_all_that_they_may_leave_the_last_quarter_to_those_with_little() {
    let mut table = Table::new(LIMITS);
    wait(&mut table, peer("a"), 100, 1).unwrap();
    wait(&mut table, peer("b"), 50, 2).unwrap();
    assert!(wait(&mut table, peer("b"), 1, 3).is_err() && wait(&mut table, peer("c"), 13, 3).is_err());
    for little in ["c", "d", "e", "f"] {
        wait(&mut table, peer(little), 12, 3).unwrap();
    }
    assert!(wait(&mut table, peer("g"), 3, 4).is_err());
}

#[test]
fn nothing_is_left_of_those_who_have_gone() {
    let mut table = Table::new(LIMITS);
    for round in 0..1_000 {
        let id = wait(&mut table, peer(&format!("p{round}")), 50, round).unwrap();
        assert!(table.remove(id));
        assert!(!table.remove(id));
    }
    assert_eq!((table.waiting(), table.bytes(), table.next_deadline()), (0, 0, None));
    assert!(table.entries.is_empty() && table.keys.is_empty() && table.shares.is_empty());
}
