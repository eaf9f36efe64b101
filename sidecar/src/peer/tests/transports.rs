//! What every way of bringing bytes must do, run over all of them. A new one is a line in [`WAYS`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tensorlane_proto::frame::PEER_VERSION;
use tensorlane_proto::{Failure, Range, Reason, Selection, Transport};

use super::proxy::Proxy;
use super::world::*;
use crate::peer::transport::shm::AT_NODE_SINCE;
use crate::peer::{FallBack, LanesConfig, MapFailed, Path, Way as Taken};

mod broken;
mod fallback;
mod hurt;
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

    /// Whether a pull needs the connection: maps are asked for at the node's socket where both ends can.
    fn is_asked_on_it(&self) -> bool {
        self.maps.is_none_or(|version| version < AT_NODE_SINCE)
    }
}

pub(super) const NONE: LanesConfig = LanesConfig {
    count: 0,
    from: 1,
    plain: false,
    most: 256,
    quic: 0,
    idle: Duration::from_secs(60),
    patience: Duration::from_secs(2),
};

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

/// Two peers with a connection between them, which `a` dialed through the proxy.
pub(super) struct Pair {
    table: Arc<Table>,
    pub(super) a: One,
    pub(super) b: One,
    pub(super) proxy: Proxy,
    way: &'static Way,
    node: tempfile::TempDir,
}

impl Pair {
    pub(super) fn new(way: &'static Way) -> Self {
        let table = Arc::new(Table::default());
        let dir = tempfile::tempdir().unwrap();
        let node = || (!way.lands()).then(|| dir.path().to_owned());
        let version = way.maps.unwrap_or(PEER_VERSION);
        let b = Start { lanes: way.lanes, node: node(), version, ..Start::new("b") }.start(&table);
        let proxy = Proxy::new(b.peers.bound_address());
        table.list("b", proxy.address, b.fingerprint);
        let listed = Some(nowhere());
        let a = Start { listed, lanes: way.lanes, node: node(), version, ..Start::new("a") }.start(&table);
        until("a reached b through the proxy", || {
            let _ = a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
            a.peers.is_connected(&name("b")) && b.peers.is_connected(&name("a"))
        });
        let pair = Self { table, a, b, proxy, way, node: dir };
        until("they have met, if they are to", || way.lands() || (pair.a.shares("b") && pair.b.shares("a")));
        pair
    }

    /// All bytes of a tensor, in this way; or in the next best one, as the verbs do where it is lost.
    fn get(&self, reader: &One, from: &str, id: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        if self.way.lands() {
            return reader.get(from, id, bytes);
        }
        match reader.mapped(from, id, bytes) {
            Ok(block) => {
                assert!(block.is_foreign() || bytes == 0);
                Ok(block.chunk(0..bytes).unwrap().to_vec())
            }
            Err(MapFailed::Owner(failure)) => Err(failure),
            Err(MapFailed::Way(_)) => reader.get(from, id, bytes),
        }
    }

    /// Nothing is left of anything.
    pub(super) fn assert_over(&self) {
        let name = self.way.name;
        until(&format!("{name}: all leases have ended"), || {
            self.a.twin.leased() == 0 && self.b.twin.leased() == 0
        });
        self.a.assert_free();
        self.b.assert_free();
    }

    /// The reader, the owner and its name, in both directions.
    pub(super) fn both_ways(&self) -> [(&One, &One, &'static str); 2] {
        [(&self.a, &self.b, "b"), (&self.b, &self.a, "a")]
    }
}

/// For the ways that bring bytes.
fn for_all(case: impl Fn(Pair)) {
    for way in WAYS.iter().filter(|way| way.lands()) {
        case(Pair::new(way));
    }
}

/// For these, and for the one that brings none.
fn for_every(case: impl Fn(Pair)) {
    for way in &WAYS {
        case(Pair::new(way));
    }
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
    for_all(|pair| {
        for id in 0..12 {
            for (one, seed) in [(&pair.a, 1000), (&pair.b, 2000)] {
                let bytes = if id % 4 == 0 { 0 } else { (id % 5) * MIB + id };
                one.twin.add(id, sealed(&one.arena, bytes, seed + id), 1);
            }
        }
        std::thread::scope(|scope| {
            for (reader, owner, from) in pair.both_ways() {
                scope.spawn(move || {
                    let pulls: Vec<_> = (0..12)
                        .map(|id| {
                            (id, reader.pull(from, Some(1), id, Selection::All, owner.twin.bytes_of(id)))
                        })
                        .collect();
                    for (id, (told, _, block)) in pulls {
                        drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
                        block.mark_sealed().unwrap();
                        let same = block.chunk(0..block.len()).unwrap() == owner.own_bytes(id);
                        assert!(same, "{}: tensor {id} from {from}", pair.way.name);
                    }
                });
            }
        });
        pair.assert_over();
    });
}

#[test]
fn selections_come_packed_and_nothing_else_of_the_tensor_does() {
    for_all(|pair| {
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
fn the_way_that_the_bytes_came_is_told_with_the_pull() {
    for_all(|pair| {
        for (reader, owner, from) in pair.both_ways() {
            for bytes in [0, 17 * MIB + 5] {
                owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
                let (told, _, block) = reader.pull(from, None, 7, Selection::All, bytes);
                let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
                let [path] = pulled.paths.as_slice() else { panic!("{:?}", pulled.paths) };
                assert_eq!((path.bytes, path.left), (bytes, None), "{}", pair.way.name);
                let count = pair.way.lanes.count as u32;
                match path.way {
                    Taken::Lanes => assert!((1..=count).contains(&path.lanes), "{path:?}"),
                    Taken::Quic => {
                        assert!((1..=pair.way.lanes.quic as u32).contains(&path.lanes), "{path:?}");
                        assert_eq!(pulled.transport, Transport::Quic);
                    }
                    Taken::Shm => panic!("{path:?}"),
                    Taken::Stream => {
                        let none = count == 0 && pair.way.lanes.quic == 0;
                        assert!(path.lanes == 0 && (none || bytes == 0), "{path:?}");
                    }
                }
                drop((pulled, block));
            }
        }
        pair.assert_over();
    });
}
