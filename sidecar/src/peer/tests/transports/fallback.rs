//! When lanes do not come, are not taken or are not needed: what is done instead, and what is told of it.

use super::*;

/// Pulls all of tensor 7, 9 MiB, and says which ways its bytes came.
fn paths(reader: &One, owner: &One, from: &str, time: Duration) -> Vec<Path> {
    let (told, _, block) = reader.pull_until(from, None, 7, Selection::All, 9 * MIB, Instant::now() + time);
    let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
    drop(pulled.landing);
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..9 * MIB).unwrap() == owner.own_bytes(7));
    pulled.paths.as_slice().to_vec()
}

fn left_for_stream(why: FallBack) -> Vec<Path> {
    let lanes = Path { way: Taken::Lanes, bytes: 0, lanes: 0, left: Some(why) };
    vec![lanes, Path { way: Taken::Stream, bytes: 9 * MIB, lanes: 0, left: None }]
}

#[test]
fn pulls_go_on_without_lanes_where_none_comes() {
    const PATIENT: LanesConfig = LanesConfig { count: 2, patience: Duration::from_millis(100), ..NONE };
    const WAY: Way = Way { counted: "stream", name: "no lanes", lanes: PATIENT, lands: true };
    let pair = Pair::new(&WAY);
    pair.proxy.connections_max.store(1, Ordering::SeqCst);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
        // For a while nobody waits for one again.
        for why in [FallBack::NoLane, FallBack::LanesCooldown] {
            assert_eq!(paths(reader, owner, from, PATIENCE), left_for_stream(why));
        }
        let counters = reader.peers.counters();
        assert_eq!(counters.fallbacks.all(), [("lanes_cooldown", 1), ("no_lane", 1)]);
        assert_eq!(counters.closed.all(), []);
    }
    pair.assert_over();
}

#[test]
fn pulls_go_on_without_lanes_that_come_and_bring_nothing() {
    const PATIENT: LanesConfig = LanesConfig { count: 2, patience: Duration::from_millis(100), ..NONE };
    const WAY: Way = Way { counted: "stream", name: "lanes that are silent", lanes: PATIENT, lands: true };
    let pair = Pair::new(&WAY);
    // Enough for a handshake, and less than a record of a tensor's bytes.
    pair.proxy.starve_after.store(8 << 10, Ordering::SeqCst);
    pair.b.twin.add(7, sealed(&pair.b.arena, 9 * MIB, 1), 1);
    assert_eq!(paths(&pair.a, &pair.b, "b", PATIENCE), left_for_stream(FallBack::NoLane));
    assert!(pair.a.peers.counters().lanes_opened.count("read") > 0, "they did come");
    pair.assert_over();
}

#[test]
fn a_pull_whose_deadline_is_near_does_not_wait_for_lanes_until_then() {
    // Were it not for the deadline, it would wait for an hour.
    const PATIENT: LanesConfig = LanesConfig { count: 2, patience: Duration::from_secs(3600), ..NONE };
    const WAY: Way = Way { counted: "stream", name: "patient", lanes: PATIENT, lands: true };
    let pair = Pair::new(&WAY);
    pair.proxy.connections_max.store(1, Ordering::SeqCst);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
        let paths = paths(reader, owner, from, Duration::from_secs(6));
        assert_eq!(paths, left_for_stream(FallBack::NoLane));
    }
    pair.assert_over();
}

#[test]
fn a_peer_that_takes_no_lanes_is_served_without_and_that_is_told() {
    const WAY: Way = Way { counted: "stream", name: "stream", lanes: NONE, lands: true };
    let pair = Pair::new(&WAY);
    let c = Start { lanes: LanesConfig { count: 2, ..NONE }, ..Start::new("c") }.start(&pair.table);
    pair.b.twin.add(7, sealed(&pair.b.arena, 9 * MIB, 1), 1);
    assert_eq!(paths(&c, &pair.b, "b", PATIENCE), left_for_stream(FallBack::LanesNotOffered));
    assert_eq!(c.peers.counters().fallbacks.all(), [("lanes_not_offered", 1)]);
    // Whoever has none of its own misses none.
    let stream = Path { way: Taken::Stream, bytes: 9 * MIB, lanes: 0, left: None };
    assert_eq!(paths(&pair.a, &pair.b, "b", PATIENCE), [stream]);
    assert_eq!(pair.a.peers.counters().fallbacks.all(), []);
    c.peers.stop();
    pair.assert_over();
}

#[test]
fn lanes_without_work_end_and_come_back_when_there_is_some() {
    const SHORT: LanesConfig = LanesConfig { count: 2, idle: Duration::from_millis(50), ..NONE };
    const WAY: Way = Way { counted: "lanes", name: "short lanes", lanes: SHORT, lands: true };
    let pair = Pair::new(&WAY);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
        let counters = reader.peers.counters();
        for round in 1..=2 {
            let before = counters.lanes_closed.count("idle");
            assert!(reader.get(from, 7, 9 * MIB).unwrap() == owner.own_bytes(7));
            until("they had nothing to do any more", || counters.lanes_closed.count("idle") > before);
            assert!(counters.lanes_opened.count("read") >= round);
        }
        let served = owner.peers.counters();
        let opened = || served.lanes_opened.count("serve") + served.lanes_opened.count("read");
        until("the owner was told why", || served.lanes_closed.count("idle") == opened());
        assert_eq!((counters.lanes_closed.count("lost"), served.lanes_closed.count("lost")), (0, 0));
        assert_eq!(counters.fallbacks.all(), []);
    }
    pair.assert_over();
}
