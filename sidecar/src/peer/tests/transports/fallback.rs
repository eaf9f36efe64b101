//! Fallback when lanes do not come, are not taken or are not needed: what is done instead, and what is told of it.

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
    let lanes = Path { way: Taken::Lanes, bytes: 0, lanes: 0, plain: 0, left: Some(why) };
    vec![lanes, Path { way: Taken::Stream, bytes: 9 * MIB, lanes: 0, plain: 0, left: None }]
}

#[test]
fn pulls_go_on_without_lanes_where_none_comes() {
    const PATIENT: LanesConfig = LanesConfig { count: 2, patience: Duration::from_millis(100), ..NONE };
    const WAY: Way = Way { counted: "stream", name: "no lanes", lanes: PATIENT, maps: None };
    let pair = Pair::new(&WAY);
    pair.proxy.connections_max.store(1, Ordering::SeqCst);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
        // For a while nobody waits for one again: for longer each time, where a busy machine lets the first while pass.
        let mut waited = 0;
        until("nobody waits for a lane", || {
            let told = paths(reader, owner, from, PATIENCE);
            let is_next = told == left_for_stream(FallBack::LanesCooldown);
            assert!(is_next || told == left_for_stream(FallBack::NoLane), "{told:?}");
            waited += u64::from(!is_next);
            is_next
        });
        assert!(waited > 0, "the first one waits");
        let counters = reader.peers.counters();
        assert_eq!(counters.fallbacks.all(), [("lanes_cooldown", 1), ("no_lane", waited)]);
        assert_eq!(counters.closed.all(), []);
    }
    pair.assert_over();
}

#[test]
fn pulls_go_on_without_lanes_that_come_and_bring_nothing() {
    const PATIENT: LanesConfig = LanesConfig { count: 2, patience: Duration::from_secs(1), ..NONE };
    const WAY: Way = Way { counted: "stream", name: "lanes that are silent", lanes: PATIENT, maps: None };
    // The first connection is spared: it must be the one that pulls are asked for on, and no attempt before it.
    let is_spared = |pair: &Pair| pair.proxy.connections.load(Ordering::SeqCst) == 1;
    let pair =
        (0..9).map(|_| Pair::new(&WAY)).find(is_spared).expect("one attempt is enough once in a while");
    // Enough for a handshake, and less than a record of a tensor's bytes.
    pair.proxy.starve_after.store(8 << 10, Ordering::SeqCst);
    pair.b.twin.add(7, sealed(&pair.b.arena, 9 * MIB, 1), 1);
    assert_eq!(paths(&pair.a, &pair.b, "b", PATIENCE), left_for_stream(FallBack::NoLane));
    until("they did come", || pair.a.peers.counters().lanes_opened.count("read") > 0);
    pair.assert_over();
}

#[test]
fn a_pull_whose_deadline_is_near_does_not_wait_for_lanes_until_then() {
    // Were it not for the deadline, it would wait for an hour.
    const PATIENT: LanesConfig = LanesConfig { count: 2, patience: Duration::from_secs(3600), ..NONE };
    const WAY: Way = Way { counted: "stream", name: "patient", lanes: PATIENT, maps: None };
    let pair = Pair::new(&WAY);
    pair.proxy.connections_max.store(1, Ordering::SeqCst);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
        let paths = paths(reader, owner, from, Duration::from_secs(40));
        assert_eq!(paths, left_for_stream(FallBack::NoLane));
    }
    pair.assert_over();
}

#[test]
fn a_peer_that_takes_no_lanes_is_served_without_and_that_is_told() {
    const WAY: Way = Way { counted: "stream", name: "stream", lanes: NONE, maps: None };
    let pair = Pair::new(&WAY);
    let c = Start { lanes: LanesConfig { count: 2, ..NONE }, ..Start::new("c") }.start(&pair.table);
    connect(&c, &pair.b);
    pair.b.twin.add(7, sealed(&pair.b.arena, 9 * MIB, 1), 1);
    assert_eq!(paths(&c, &pair.b, "b", PATIENCE), left_for_stream(FallBack::LanesNotOffered));
    assert_eq!(c.peers.counters().fallbacks.all(), [("lanes_not_offered", 1)]);
    // Whoever has none of its own misses none.
    let stream = Path { way: Taken::Stream, bytes: 9 * MIB, lanes: 0, plain: 0, left: None };
    assert_eq!(paths(&pair.a, &pair.b, "b", PATIENCE), [stream]);
    assert_eq!(pair.a.peers.counters().fallbacks.all(), []);
    c.peers.stop();
    pair.assert_over();
}

#[test]
fn lanes_without_work_end_and_come_back_when_there_is_some() {
    const SHORT: LanesConfig = LanesConfig { count: 2, idle: Duration::from_millis(500), ..UNHURRIED };
    const WAY: Way = Way { counted: "lanes", name: "short lanes", lanes: SHORT, maps: None };
    let pair = Pair::new(&WAY);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
        let (counters, served) = (reader.peers.counters(), owner.peers.counters());
        for round in 1..=2 {
            let before = counters.lanes_closed.count("idle");
            assert!(reader.get(from, 7, 9 * MIB).unwrap() == owner.own_bytes(7));
            until("they had nothing to do any more", || counters.lanes_closed.count("idle") > before);
            assert!(counters.lanes_opened.count("read") >= round);
            // Those of the next round, which come another way through the proxy, must not overtake what these say last.
            until("none is up or on its way", || reader.peers.lanes() + owner.peers.lanes() == 0);
            let opened = || served.lanes_opened.count("serve") + served.lanes_opened.count("read");
            until("the owner was told why", || served.lanes_closed.count("idle") == opened());
        }
        assert_eq!((counters.lanes_closed.count("lost"), served.lanes_closed.count("lost")), (0, 0));
        assert_eq!(counters.fallbacks.all(), []);
    }
    pair.assert_over();
}

#[test]
fn beyond_the_lanes_of_all_peers_together_a_pull_has_fewer_or_none_until_others_end() {
    const TCP: LanesConfig = LanesConfig { count: 2, ..UNHURRIED };
    for (way, lanes) in [(Taken::Lanes, TCP), (Taken::Quic, LanesConfig { quic: 2, ..UNHURRIED })] {
        let table = Arc::new(Table::default());
        let start =
            |name, most| Start { lanes: LanesConfig { most, ..lanes }, ..Start::new(name) }.start(&table);
        let (reader, owners) = (start("a", 3), ["b", "c", "d"].map(|name| (name, start(name, 256))));
        owners.iter().for_each(|(_, owner)| owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1));
        owners.iter().for_each(|(_, owner)| connect(&reader, owner));
        let [(b, first), (c, second), (d, third)] = &owners;
        let counters = reader.peers.counters();
        let all = vec![(way, None)];
        let ways = |owner: &One, from: &str| -> Vec<(Taken, Option<FallBack>)> {
            paths(&reader, owner, from, PATIENCE).iter().map(|path| (path.way, path.left)).collect()
        };
        assert_eq!(ways(first, b), all);
        until("both are up", || counters.lanes_opened.count("read") == 2);
        assert_eq!(counters.lanes_refused.all(), []);
        assert_eq!(ways(second, c), all);
        until("one was refused", || counters.lanes_refused.count("read") > 0);
        assert_eq!(counters.lanes_opened.count("read"), 3);
        // It waits for none: there can be none.
        assert_eq!(ways(third, d), [(way, Some(FallBack::LanesFull)), (Taken::Stream, None)]);
        assert_eq!(counters.fallbacks.all(), [("lanes_full", 1)]);
        first.peers.stop();
        until("its lanes have ended", || {
            counters.lanes_closed.all().iter().map(|(_, count)| count).sum::<u64>() == 2
        });
        assert_eq!(ways(third, d), all);
    }
}

#[test]
fn an_owner_with_as_many_lanes_as_it_may_have_lets_no_more_in_and_serves_on_those() {
    let table = Arc::new(Table::default());
    let lanes = LanesConfig { count: 2, ..UNHURRIED };
    let reader = Start { lanes, ..Start::new("a") }.start(&table);
    let owner = Start { lanes: LanesConfig { most: 1, ..lanes }, ..Start::new("b") }.start(&table);
    connect(&reader, &owner);
    owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
    let told = paths(&reader, &owner, "b", PATIENCE);
    assert_eq!(told, [Path { way: Taken::Lanes, bytes: 9 * MIB, lanes: 1, plain: 0, left: None }]);
    let counters = owner.peers.counters();
    until("the other one was refused", || counters.lanes_refused.count("serve") > 0);
    assert_eq!(counters.lanes_opened.all(), [("serve", 1)]);
}
