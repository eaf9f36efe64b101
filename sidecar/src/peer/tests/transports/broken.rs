//! Lanes that break in the middle of a pull: one of several, and all of them. What had landed is not sent again.

use super::super::meter::Wire;
use super::*;

const THREE: LanesConfig = LanesConfig { count: 3, ..UNHURRIED };
const WAYS: [Way; 2] = [
    Way { counted: "lanes", name: "three lanes in TLS", lanes: THREE, maps: None },
    Way {
        counted: "lanes",
        name: "three plain lanes",
        lanes: LanesConfig { plain: true, ..THREE },
        maps: None,
    },
];

const BYTES: u64 = 48 * MIB;
/// Bytes that a lane may have been asked for when it breaks: two pieces of 4 MiB at most.
const IN_FLIGHT: u64 = 8 * MIB;

/// A pair, its reader, its owner and the wire that brings the bytes, for every kind of lane in both directions.
fn for_both_ways(case: impl Fn(&Pair, (&One, &One, &'static str), &Wire)) {
    for way in &WAYS {
        for dials in [true, false] {
            let pair = Pair::new(way);
            let [there, back] = pair.both_ways();
            match dials {
                true => case(&pair, there, &pair.proxy.back),
                false => case(&pair, back, &pair.proxy.out),
            }
            pair.assert_over();
        }
    }
}

/// Gets all of tensor 7, checks its bytes, and says how they came.
fn get(reader: &One, owner: &One, from: &str) -> Vec<Path> {
    let (told, _, block) = reader.pull(from, None, 7, Selection::All, BYTES);
    let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
    drop(pulled.landing);
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..BYTES).unwrap() == owner.own_bytes(7));
    pulled.paths.as_slice().to_vec()
}

fn sent(owner: &One) -> u64 {
    owner.peers.counters().bytes_out.load(Ordering::SeqCst)
}

/// Lanes that were lost at either end.
fn lost(pair: &Pair) -> u64 {
    [&pair.a, &pair.b].iter().map(|one| one.peers.counters().lanes_closed.count("lost")).sum()
}

#[test]
fn one_lane_of_three_that_breaks_anywhere_in_a_pull_costs_what_it_was_bringing_and_nothing_else() {
    for_both_ways(|pair, (reader, owner, from), wire| {
        let name = pair.way.name;
        owner.twin.add(7, sealed(&owner.arena, BYTES, 1), 1);
        // The lanes come up.
        get(reader, owner, from);
        for (round, at) in [10, 24, 40].into_iter().enumerate() {
            // The owner counts what it sent after it has come.
            until("all that was sent is counted", || sent(owner) >= bytes_in(reader));
            let before = (bytes_in(reader), sent(owner), wire.lanes.carried());
            wire.lanes.fail_after(at * MIB);
            let paths = get(reader, owner, from);
            assert_eq!(wire.lanes.failures(), round as u64 + 1, "{name}: at {at} MiB");
            let [path] = paths.as_slice() else { panic!("{name}: {paths:?}") };
            assert_eq!((path.way, path.bytes, path.left), (Taken::Lanes, BYTES, None), "{name}");
            assert!((1..=3).contains(&path.lanes), "{name}: {path:?}");
            assert_eq!(path.plain, if pair.way.lanes.plain { BYTES } else { 0 }, "{name}");
            assert_eq!(bytes_in(reader) - before.0, BYTES, "{name}: no piece came twice");
            let sent = sent(owner) - before.1;
            assert!(sent <= BYTES + IN_FLIGHT, "{name}: {sent} bytes were sent");
            // Records, and handshakes of the lanes that come instead, are less than a fiftieth.
            let carried = wire.lanes.carried() - before.2;
            assert!(carried <= BYTES + BYTES / 50 + IN_FLIGHT, "{name}: {carried} bytes went over the wire");
            until("it was counted", || lost(pair) > round as u64);
        }
        for one in [&pair.a, &pair.b] {
            assert_eq!(one.peers.counters().fallbacks.all(), [], "{name}");
            assert_eq!(one.peers.counters().closed.all(), [], "{name}");
        }
    });
}

#[test]
fn what_came_before_all_lanes_broke_stays_and_the_rest_comes_on_the_control_stream_and_that_is_told() {
    for_both_ways(|pair, (reader, owner, from), wire| {
        let (name, at) = (pair.way.name, 40 * MIB);
        owner.twin.add(7, sealed(&owner.arena, BYTES, 1), 1);
        // The lanes come up.
        get(reader, owner, from);
        pair.proxy.break_together.store(true, Ordering::SeqCst);
        wire.lanes.fail_after(at);
        let paths = get(reader, owner, from);
        assert!(wire.lanes.failures() >= 1, "{name}");
        let [lanes, stream] = paths.as_slice() else { panic!("{name}: {paths:?}") };
        assert_eq!((lanes.way, lanes.left), (Taken::Lanes, Some(FallBack::LanesBroke)), "{name}");
        assert!((1..=at).contains(&lanes.bytes) && (1..=3).contains(&lanes.lanes), "{name}: {lanes:?}");
        assert_eq!((stream.way, stream.lanes, stream.left), (Taken::Stream, 0, None), "{name}");
        assert_eq!(lanes.bytes + stream.bytes, BYTES, "{name}: nothing comes twice: {paths:?}");
        let plain = if pair.way.lanes.plain { lanes.bytes } else { 0 };
        assert_eq!((lanes.plain, stream.plain), (plain, 0), "{name}");
        assert_eq!(reader.peers.counters().fallbacks.all(), [("lanes_broke", 1)], "{name}");
        assert_eq!(reader.peers.counters().closed.all(), [], "{name}");
    });
}
