//! Tests of what every way of getting a tensor must do, run over all of them. A new one is a line in [`WAYS`].
//!
//! Parts of tensors are asked for here where the bytes travel. A map is always one of the whole: the view of it, or the rows that are
//! packed out of it, are made above (`exchange::acquire`), and tried in `netns_transfer` and `netns_same_node`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tensorlane_proto::frame::PEER_VERSION;
use tensorlane_proto::{Failure, Range, Reason, Selection, Transport};

use self::get::{Got, Step};
pub(super) use self::pair::Pair;
use super::proxy::Proxy;
use super::world::*;
use crate::peer::transport::shm::AT_NODE_SINCE;
use crate::peer::{FallBack, LanesConfig, Path, Way as Taken};

mod broken;
mod fallback;
mod get;
mod hurt;
mod pair;
mod steps;
mod summed;

const MIB: u64 = 1 << 20;

/// A way, and what makes two peers take it for every byte.
pub(super) struct Way {
    /// The word in the counters.
    pub(super) counted: &'static str,
    pub(super) name: &'static str,
    pub(super) lanes: LanesConfig,
    /// Bytes stay where they are and are mapped, in this version of the protocol; else they come into a landing of the reader's.
    pub(super) maps: Option<u32>,
}

impl Way {
    pub(super) fn lands(&self) -> bool {
        self.maps.is_none()
    }

    /// The points at which something is done to a get. What lands is in the middle for a while; of a map there are the few bytes
    /// that are said of it, and the segment that goes with some of them.
    fn steps(&self) -> Vec<Step> {
        let said = [0, 16, 48, 80, 96, 112, 160];
        let middle: Vec<Step> = match self.lands() {
            true => [Step::Answered(0)].into_iter().chain((0..10).map(Step::Landed)).collect(),
            false => said.into_iter().map(Step::Answered).collect(),
        };
        [Step::Asking].into_iter().chain(middle).collect()
    }
}

pub(super) const NONE: LanesConfig = LanesConfig {
    count: 0,
    from: 1,
    plain_from: 1,
    plain: false,
    most: 256,
    quic: 0,
    idle: Duration::from_secs(60),
    patience: Duration::from_secs(10),
    progress: Duration::from_secs(2),
};

/// Lanes that a machine does not break which stands still for a while, where something else is tried.
pub(super) const UNHURRIED: LanesConfig = LanesConfig { progress: Duration::from_secs(20), ..NONE };

/// All of them.
const WAYS: [Way; 7] = [
    Way { counted: "shm", name: "shared memory", lanes: NONE, maps: Some(PEER_VERSION) },
    Way {
        counted: "shm",
        name: "shared memory, asked for on the control connection",
        lanes: NONE,
        maps: Some(AT_NODE_SINCE - 1),
    },
    Way { counted: "stream", name: "stream", lanes: NONE, maps: None },
    Way { counted: "lanes", name: "one lane in TLS", lanes: LanesConfig { count: 1, ..NONE }, maps: None },
    Way { counted: "lanes", name: "three lanes in TLS", lanes: LanesConfig { count: 3, ..NONE }, maps: None },
    Way {
        counted: "lanes",
        name: "three plain lanes",
        lanes: LanesConfig { count: 3, plain: true, ..NONE },
        maps: None,
    },
    Way { counted: "quic", name: "two lanes on QUIC", lanes: LanesConfig { quic: 2, ..NONE }, maps: None },
];

/// For every way.
fn for_every(case: impl Fn(Pair)) {
    for way in &WAYS {
        case(Pair::new(way));
    }
}

/// For the ways in which bytes travel: what happens to bytes on their way happens to no other.
fn for_all_that_land(case: impl Fn(Pair)) {
    for way in WAYS.iter().filter(|way| way.lands()) {
        case(Pair::new(way));
    }
}

/// For every point of every way, in both directions. Each waits most of its time, so all ways are tried at once.
fn at_every_step(case: impl Fn(Pair, Step, bool) + Sync) {
    let case = &case;
    std::thread::scope(|scope| {
        for way in &WAYS {
            scope.spawn(move || {
                for step in way.steps() {
                    [false, true].into_iter().for_each(|turned| case(Pair::new(way), step, turned));
                }
            });
        }
    });
}

#[test]
fn one_tensor_of_any_size_comes_whole_in_both_directions() {
    for_every(|pair| {
        let sizes = [0, 1, MIB - 1, MIB, MIB + 1, 4 * MIB, 4 * MIB + 5, 17 * MIB + 123];
        for (reader, owner, from) in pair.both_ways() {
            for (id, bytes) in sizes.into_iter().enumerate() {
                owner.twin.add(id as u64, sealed(&owner.arena, bytes, bytes), 1);
                let got = pair.get(reader, from, id as u64, bytes).unwrap();
                assert!(got == owner.own_bytes(id as u64), "{}: {bytes} bytes from {from}", pair.way.name);
            }
            let counted = reader.peers.counters().pulls.count(pair.way.counted);
            // What has no bytes has nothing to bring.
            assert!(counted >= sizes.len() as u64 - 1, "{}: {counted} pulls", pair.way.name);
        }
        pair.assert_over();
    });
}

#[test]
fn many_tensors_come_at_once_both_ways_empty_ones_among_them() {
    for_every(|pair| {
        for id in 0..12 {
            for (one, seed) in [(&pair.a, 1000), (&pair.b, 2000)] {
                let bytes = if id % 4 == 0 { 0 } else { (id % 5) * MIB + id };
                one.twin.add(id, sealed(&one.arena, bytes, seed + id), 1);
            }
        }
        std::thread::scope(|scope| {
            for (reader, owner, from) in pair.both_ways() {
                let pair = &pair;
                scope.spawn(move || {
                    // Small ones among them, of which none comes and one is empty.
                    let small = reader.small(from, &[0, 99, 5]).unwrap();
                    assert!(small[0].data.is_empty() && small[1].failure.is_some(), "{}", pair.way.name);
                    assert!(small[2].data == owner.own_bytes(5), "{}", pair.way.name);
                });
                scope.spawn(move || {
                    let begun: Vec<_> = (0..12)
                        .map(|id| (id, pair.begin(reader, from, id, owner.twin.bytes_of(id))))
                        .collect();
                    for (id, get) in begun {
                        let got = get.outcome().unwrap();
                        assert!(
                            got.bytes() == owner.own_bytes(id),
                            "{}: tensor {id} from {from}",
                            pair.way.name
                        );
                    }
                });
            }
        });
        pair.assert_over();
    });
}

#[test]
fn selections_come_packed_and_nothing_else_of_the_tensor_does() {
    for_all_that_land(|pair| {
        let (rows, width) = (2048, 4096);
        pair.b.twin.add(7, sealed(&pair.b.arena, rows * width, 1), rows);
        let whole = pair.b.own_bytes(7);
        let row = |r: u64| &whole[(r * width) as usize..((r + 1) * width) as usize];
        let list: Vec<u64> = (0..rows).rev().step_by(3).collect();
        let wanted: Vec<u8> = list.iter().flat_map(|r| row(*r)).copied().collect();
        let steps = Selection::Ranges(vec![Range::new(1, rows).step_by(2), Range::new(3, width).step_by(2)]);
        let stepped: Vec<u8> = (1..rows)
            .step_by(2)
            .flat_map(|r| row(r).iter().skip(3).step_by(2).copied().collect::<Vec<u8>>())
            .collect();
        for (selection, wanted) in [(Selection::rows(list), wanted), (steps, stepped)] {
            let before = bytes_in(&pair.a);
            let bytes = wanted.len() as u64;
            let (told, _, block) = pair.a.pull("b", None, 7, selection, bytes);
            drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
            block.mark_sealed().unwrap();
            assert!(block.chunk(0..bytes).unwrap() == wanted, "{}", pair.way.name);
            assert_eq!(bytes_in(&pair.a) - before, bytes);
        }
        pair.assert_over();
    });
}

#[test]
fn what_the_owner_refuses_fails_and_the_connection_is_as_good_as_before() {
    for_every(|pair| {
        let bytes = 3 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        assert_eq!(pair.get(&pair.a, "b", 8, bytes).unwrap_err().reason, Reason::NotFound);
        assert_eq!(pair.get(&pair.a, "b", 7, bytes + 1).unwrap_err().reason, Reason::LayoutMismatch);
        assert!(pair.get(&pair.a, "b", 7, bytes).unwrap() == pair.b.own_bytes(7));
        assert_eq!(pair.a.peers.counters().closed.all(), []);
        pair.assert_over();
    });
}

#[test]
fn the_way_that_a_tensor_came_is_told_with_it() {
    for_every(|pair| {
        for (reader, owner, from) in pair.both_ways() {
            for bytes in [0, 17 * MIB + 5] {
                owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
                let before = bytes_in(reader);
                let got = pair.begin(reader, from, 7, bytes).outcome().unwrap();
                assert_told(pair.way, &got, bytes);
                let came = bytes_in(reader) - before;
                assert_eq!(came, if pair.way.lands() { bytes } else { 0 }, "{}", pair.way.name);
            }
        }
        pair.assert_over();
    });
}

fn assert_told(way: &Way, got: &Got, bytes: u64) {
    let [path] = got.paths() else {
        // A map has no ways within it.
        return assert!(!way.lands() && got.is_mapped() == (bytes > 0), "{}", way.name);
    };
    assert!(way.lands() && !got.is_mapped());
    assert_eq!((path.bytes, path.left), (bytes, None), "{}", way.name);
    let count = way.lanes.count as u32;
    match path.way {
        Taken::Lanes => assert!((1..=count).contains(&path.lanes), "{path:?}"),
        Taken::Quic => {
            assert!((1..=way.lanes.quic as u32).contains(&path.lanes), "{path:?}");
            assert_eq!(got.transport(), Transport::Quic);
        }
        Taken::Shm => panic!("{path:?}"),
        Taken::Stream => {
            let none = count == 0 && way.lanes.quic == 0;
            assert!(path.lanes == 0 && (none || bytes == 0), "{path:?}");
        }
    }
}
