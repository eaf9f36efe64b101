//! Memory shared by two peers of one node. The kernel does not know that both are in one process.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorlane_memory::Block;
use tensorlane_proto::Reason;
use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::SameNode;

use super::world::*;
use crate::peer::link::Link;
use crate::peer::remote::{Carrier, Peer};
use crate::peer::{LanesConfig, MapFailed};

const MIB: u64 = 1 << 20;

/// Two peers of one node that have met; `a` dialed.
pub(super) struct Pair {
    pub(super) table: Arc<Table>,
    pub(super) a: One,
    pub(super) b: One,
    pub(super) node: tempfile::TempDir,
}

pub(super) fn start(name: &str, node: &Path, table: &Arc<Table>) -> One {
    let listed = (name == "a").then(nowhere);
    Start { listed, node: Some(node.to_owned()), ..Start::new(name) }.start(table)
}

pub(super) fn met(a: &One, b: &One) {
    until("they have met", || {
        // A connection that is made anew is dialed where somebody needs it.
        let _ = a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
        a.shares("b") && b.shares("a")
    });
}

pub(super) fn pair() -> Pair {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let b = start("b", node.path(), &table);
    let a = start("a", node.path(), &table);
    met(&a, &b);
    Pair { table, a, b, node }
}

fn bytes_of(block: &Block) -> Vec<u8> {
    block.chunk(0..block.len()).unwrap().to_vec()
}

pub(super) fn way_lost(outcome: &Result<Block, MapFailed>) {
    assert!(matches!(outcome, Err(MapFailed::Way(_))), "{outcome:?}");
}

/// The file of a peer's socket.
pub(super) fn sockets(node: &Path) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(node).unwrap().map(|file| file.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn a_map_moves_no_byte_and_takes_no_room_and_holds_the_lease_until_it_is_dropped() {
    let Pair { a, b, node: _node, .. } = pair();
    for (reader, owner, from) in [(&a, &b, "b"), (&b, &a, "a")] {
        owner.twin.add(7, sealed(&owner.arena, 3 * MIB + 5, 1), 1);
        let before = reader.arena.usage();
        let map = reader.mapped(from, 7, 3 * MIB + 5).unwrap();
        assert!(map.is_foreign() && bytes_of(&map) == owner.own_bytes(7));
        assert_eq!((reader.arena.usage(), owner.twin.leased()), (before, 1));
        assert_eq!(reader.peers.counters().bytes_in.load(Ordering::SeqCst), 0);
        let second = reader.mapped(from, 7, 3 * MIB + 5).unwrap();
        assert_eq!(second.segment_id(), map.segment_id(), "a segment is mapped once");
        drop(map);
        until("one lease is back", || owner.twin.leased() == 1);
        assert!(bytes_of(&second) == owner.own_bytes(7));
        drop(second);
        until("the lease is back", || owner.twin.leased() == 0);
    }
    a.assert_free();
    b.assert_free();
}

#[test]
fn many_are_mapped_at_once_both_ways_from_many_segments() {
    let Pair { a, b, node: _node, .. } = pair();
    for id in 0..40 {
        for (one, seed) in [(&a, 1000), (&b, 2000)] {
            // Some get a segment of their own.
            let bytes = if id % 10 == 0 { 3 * MIB } else { id * 1000 };
            one.twin.add(id, sealed(&one.arena, bytes, seed + id), 1);
        }
    }
    let length = |owner: &One, id| owner.twin.tensors.lock()[&id].0.len();
    let begun: Vec<_> = (0..40)
        .flat_map(|id| [(&a, &b, "b", id), (&b, &a, "a", id)])
        .map(|(reader, owner, from, id)| (owner, id, reader.map(from, id, length(owner, id)).0))
        .collect();
    for (owner, id, told) in begun {
        let mapped = told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert!(bytes_of(&mapped.block) == owner.own_bytes(id), "tensor {id}");
    }
    until("all leases are back", || a.twin.leased() == 0 && b.twin.leased() == 0);
    a.assert_free();
    b.assert_free();
}

#[test]
fn what_the_owner_refuses_fails_and_the_way_stays() {
    let Pair { a, b, node: _node, .. } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    for (id, bytes, reason) in [(8, MIB, Reason::NotFound), (7, MIB + 1, Reason::LayoutMismatch)] {
        match a.mapped("b", id, bytes) {
            Err(MapFailed::Owner(failure)) => assert_eq!(failure.reason, reason),
            other => panic!("{other:?}"),
        }
    }
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    until("nothing is leased", || b.twin.leased() == 0);
}

#[test]
fn a_map_that_is_cancelled_gives_its_lease_back() {
    let Pair { a, b, node: _node, .. } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    for _ in 0..50 {
        let (told, handle) = a.map("b", 7, MIB);
        handle.cancel();
        match told.recv_timeout(PATIENCE).unwrap() {
            Ok(mapped) => assert!(bytes_of(&mapped.block) == b.own_bytes(7)),
            Err(MapFailed::Owner(failure)) => assert_eq!(failure.reason, Reason::Cancelled),
            Err(MapFailed::Way(failure)) => panic!("{failure}"),
        }
    }
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    until("nothing is leased", || b.twin.leased() == 0);
    assert_eq!(a.peers.counters().closed.all(), []);
}

/// State that one knows of another.
fn known(one: &One, other: &str) -> Arc<Peer> {
    one.peers.shared.known_peer(&name(other)).unwrap()
}

/// The connection of one to another.
pub(super) fn link(one: &One, to: &str) -> Arc<Link> {
    let link = known(one, to).state.lock().link.clone();
    link.expect("they are connected")
}

#[test]
fn a_socket_that_is_lost_under_maps_fails_them_and_leaves_no_lease_and_the_connection() {
    let Pair { a, b, node: _node, .. } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let (mut lost, mut cancelled) = (0, 0);
    for round in 0..8 {
        met(&a, &b);
        let cut = if round % 2 == 0 { link(&a, "b") } else { link(&b, "a") };
        std::thread::scope(|scope| {
            let maps = scope.spawn(|| (0..400).map(|_| a.map("b", 7, MIB)).collect::<Vec<_>>());
            until("some were asked for", || b.twin.leased() > 0 || maps.is_finished());
            cut.ways.shm().unwrap().hang_up();
            for (number, (told, handle)) in maps.join().unwrap().into_iter().enumerate() {
                if number % 3 == 0 {
                    handle.cancel();
                }
                match told.recv_timeout(PATIENCE).expect("every one is told") {
                    Ok(mapped) => assert!(bytes_of(&mapped.block) == b.own_bytes(7)),
                    Err(MapFailed::Way(_)) => lost += 1,
                    Err(MapFailed::Owner(failure)) => {
                        assert_eq!(failure.reason, Reason::Cancelled, "{failure}");
                        cancelled += 1;
                    }
                }
            }
        });
        until("every lease is back", || b.twin.leased() == 0);
    }
    assert!(lost > 0, "{cancelled} were cancelled");
    assert_eq!((a.peers.counters().closed.all(), b.peers.counters().closed.all()), (vec![], vec![]));
    met(&a, &b);
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    until("the last lease is back", || b.twin.leased() == 0);
    a.assert_free();
    b.assert_free();
}

#[test]
fn a_word_that_a_map_is_over_may_overtake_it() {
    let Pair { a, b, node: _node, .. } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let link = link(&a, "b");
    let call = 1 << 40;
    link.submit(frame::encode(PeerKind::PullDone.into(), 0, call, &v1::PullDone { id: 7, holds: false }));
    let known = known(&b, "a");
    until("it is there", || known.state.lock().is_done_early(call));
    let pull = v1::Pull { id: 7, bytes: MIB, way: v1::Way::Shm.into(), ..v1::Pull::default() };
    assert!(link.ways.shm().unwrap().ask(&frame::encode(PeerKind::Pull.into(), 0, call, &pull)));
    // What follows is answered after it.
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    until("nothing is leased", || b.twin.leased() == 0);
    assert!(known.state.lock().open.is_empty());
}

#[test]
fn calls_of_a_peers_next_life_are_not_taken_for_those_that_were_over_early() {
    let Pair { table, a, b, node } = pair();
    a.twin.add(7, sealed(&a.arena, MIB, 1), 1);
    for call in 1..50 {
        let done = v1::PullDone { id: 7, holds: false };
        link(&b, "a").submit(frame::encode(PeerKind::PullDone.into(), 0, call, &done));
    }
    let known = known(&a, "b");
    until("they are there", || known.state.lock().is_done_early(49));
    b.peers.stop();
    drop(b);
    let b = Start { incarnation: 2, node: Some(node.path().to_owned()), ..Start::new("b") }.start(&table);
    met(&a, &b);
    for _ in 0..60 {
        assert!(bytes_of(&b.mapped("a", 7, MIB).unwrap()) == a.own_bytes(7));
    }
    until("nothing is leased", || a.twin.leased() == 0);
}

#[test]
fn what_was_asked_for_on_the_control_connection_is_not_answered_at_the_nodes_socket() {
    let Pair { a, b, node: _node, .. } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let expected = b.own_bytes(7);
    // Until it is let go the owner answers nothing.
    let tensors = b.twin.tensors.lock();
    std::thread::scope(|scope| {
        let getting = scope.spawn(|| a.get("b", 7, MIB));
        let asked = || known(&a, "b").state.lock().calls.keys().next().copied();
        until("it is under way", || asked().is_some());
        let flags = frame::REPLY | frame::FAILED;
        let failed = frame::encode(PeerKind::Pull.into(), flags, asked().unwrap(), &v1::Failure::default());
        assert!(link(&b, "a").ways.shm().unwrap().ask(&failed));
        until("the talk is over", || a.peers.counters().node_closed.count("protocol") == 1);
        drop(tensors);
        assert!(getting.join().unwrap().unwrap() == expected, "the question stood");
    });
    until("nothing is leased", || b.twin.leased() == 0);
    assert_eq!(a.peers.counters().closed.all(), []);
}

#[test]
fn a_frame_that_has_no_place_at_the_nodes_socket_ends_the_talk_and_not_the_connection() {
    let Pair { a, b, node: _node, .. } = pair();
    let many = frame::encode(PeerKind::PullMany.into(), 0, 9, &many(&[7]));
    let pull = |way: v1::Way| v1::Pull { id: 7, bytes: MIB, way: way.into(), ..v1::Pull::default() };
    let stream = frame::encode(PeerKind::Pull.into(), 0, 9, &pull(v1::Way::Stream));
    let nameless = frame::encode(PeerKind::Pull.into(), 0, 0, &pull(v1::Way::Shm));
    let unasked = frame::encode(PeerKind::Pull.into(), frame::REPLY, 9, &v1::PullHead::default());
    let longer = [frame::encode(PeerKind::Pull.into(), 0, 9, &pull(v1::Way::Shm)), vec![0]].concat();
    for (number, wrong) in [many, stream, nameless, unasked, longer, vec![1, 2, 3]].into_iter().enumerate() {
        met(&a, &b);
        assert!(link(&a, "b").ways.shm().unwrap().ask(&wrong));
        let protocol = || b.peers.counters().node_closed.count("protocol");
        until("the talk is over", || protocol() == number as u64 + 1);
    }
    met(&a, &b);
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    assert!(!link(&a, "b").ways.shm().unwrap().ask(&vec![0; 40_000]), "it is longer than a frame may be");
    until("nothing is leased", || b.twin.leased() == 0);
    assert_eq!((a.peers.counters().closed.all(), b.peers.counters().closed.all()), (vec![], vec![]));
}

#[test]
fn with_a_peer_that_does_not_know_of_it_nothing_is_asked_at_the_nodes_socket() {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let old = Start { version: 5, node: Some(node.path().to_owned()), ..Start::new("b") }.start(&table);
    let a = start("a", node.path(), &table);
    met(&a, &old);
    for (reader, owner, from) in [(&a, &old, "b"), (&old, &a, "a")] {
        owner.twin.add(7, sealed(&owner.arena, MIB, 1), 1);
        assert!(!link(reader, from).maps_at_node());
        assert!(bytes_of(&reader.mapped(from, 7, MIB).unwrap()) == owner.own_bytes(7));
        until("nothing is leased", || owner.twin.leased() == 0);
    }
    let closed = |one: &One| one.peers.counters().node_closed.all();
    assert_eq!((closed(&a), closed(&old)), (vec![], vec![]));
}

#[test]
fn a_copy_of_another_peers_tensor_is_mapped_where_a_neighbour_has_it() {
    let Pair { a, b, node: _node, .. } = pair();
    assert_eq!((a.peers.neighbours(), b.peers.neighbours()), (vec![b.key()], vec![a.key()]));
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let map = a.copy("b", "elsewhere", 7, MIB).recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(bytes_of(&map.block) == b.own_bytes(7));
    assert_eq!(*b.twin.lent.lock(), [name("elsewhere")], "it was asked for as that peer's");
    drop(map);
    until("nothing is leased", || b.twin.leased() == 0);
    assert!(matches!(
        a.copy("b", "elsewhere", 8, MIB).recv_timeout(PATIENCE).unwrap(),
        Err(MapFailed::Owner(_))
    ));
    a.peers.was_late(&name("b"));
    assert!(a.peers.neighbours().is_empty(), "whoever was late is not asked for a while");
    a.assert_free();
    b.assert_free();
}

#[test]
fn what_a_neighbour_is_asked_ends_with_the_connection() {
    let Pair { a, b, node: _node, .. } = pair();
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (tell, told) = std::sync::mpsc::channel();
    let inquire = v1::Inquire {
        targets: vec![v1::Target::default()],
        wait_ms: 60_000,
        copies: true,
        ..v1::Inquire::default()
    };
    a.peers.inquire(
        &name("b"),
        Some(b.key().incarnation),
        inquire,
        Instant::now() + PATIENCE,
        move |answer| {
            let _ = tell.send(answer);
        },
    );
    until("it was asked", || !b.twin.held.lock().is_empty());
    b.peers.stop();
    let failure = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(failure.reason, Reason::PeerUnreachable, "{failure}: not after the grace, at once");
    let failed = a.copy("b", "elsewhere", 7, MIB).recv_timeout(PATIENCE).unwrap();
    assert!(matches!(failed, Err(MapFailed::Owner(failure)) if failure.reason == Reason::PeerUnreachable));
}

#[test]
fn a_peer_that_does_not_know_of_copies_is_no_neighbour() {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let old = Start { version: 3, node: Some(node.path().to_owned()), ..Start::new("b") }.start(&table);
    let a = start("a", node.path(), &table);
    met(&a, &old);
    assert!(a.peers.neighbours().is_empty() && old.peers.neighbours().is_empty());
    old.twin.add(7, sealed(&old.arena, MIB, 1), 1);
    assert!(
        bytes_of(&a.mapped("b", 7, MIB).unwrap()) == old.own_bytes(7),
        "its own tensors are mapped as ever"
    );
}

#[test]
fn bytes_are_not_reused_when_the_connection_ends_before_the_map_does() {
    let Pair { table: _table, a, b, node: _node } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let map = a.mapped("b", 7, MIB).unwrap();
    let expected = b.own_bytes(7);
    let (segment, offset) = {
        let tensors = b.twin.tensors.lock();
        (tensors[&7].0.segment_id(), tensors[&7].0.offset())
    };
    a.peers.stop();
    until("the owner has seen the end", || !b.peers.is_connected(&name("a")));
    // The tensor is gone at its owner, for everyone; its bytes are not.
    b.twin.tensors.lock().clear();
    let others: Vec<Block> = (0..8).map(|seed| sealed(&b.arena, MIB, 100 + seed)).collect();
    assert!(others.iter().all(|other| (other.segment_id(), other.offset()) != (segment, offset)));
    assert!(bytes_of(&map) == expected);
    assert_eq!(a.arena.foreign().orphaned, map.segment().unwrap().bytes());
    drop((others, map));
    until("nobody maps anything of others", || a.arena.foreign().mapped == 0);
    b.assert_free();
}

#[test]
fn an_owner_that_ends_leaves_what_is_mapped_readable() {
    let Pair { table, a, b, node } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let expected = b.own_bytes(7);
    let map = a.mapped("b", 7, MIB).unwrap();
    b.peers.stop();
    let One { peers, twin, arena, .. } = b;
    twin.tensors.lock().clear();
    drop((peers, twin));
    arena.stop();
    drop(arena);
    assert!(bytes_of(&map) == expected);
    until("the reader has seen the end", || !a.shares("b"));
    let mapped = map.segment().unwrap().bytes();
    until("what is mapped is nobody's", || a.arena.foreign().orphaned == mapped);
    assert_eq!(a.arena.foreign().mapped, mapped);
    // Another life of it is another owner.
    let b = Start { incarnation: 2, node: Some(node.path().to_owned()), ..Start::new("b") }.start(&table);
    met(&a, &b);
    b.twin.add(7, sealed(&b.arena, MIB, 2), 1);
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7) && bytes_of(&map) == expected);
    drop(map);
    until("nothing of the dead is left", || a.arena.foreign().orphaned == 0);
}

#[test]
fn where_the_directory_goes_nothing_is_shared_until_it_is_back() {
    let Pair { a, b, node, table: _table } = pair();
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    let map = a.mapped("b", 7, MIB).unwrap();
    let away = node.path().with_extension("away");
    std::fs::rename(node.path(), &away).unwrap();
    until("both have seen it", || !a.shares("b") && !b.shares("a"));
    way_lost(&a.mapped("b", 7, MIB));
    assert!(a.get("b", 7, MIB).unwrap() == b.own_bytes(7), "bytes still travel");
    assert!(bytes_of(&map) == b.own_bytes(7), "what is mapped stays");
    std::fs::rename(&away, node.path()).unwrap();
    met(&a, &b);
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    drop(map);
    until("nothing is leased", || b.twin.leased() == 0);
    b.assert_free();
}

#[test]
fn peers_with_different_directories_are_on_different_nodes() {
    let (table, here, there) =
        (Arc::new(Table::default()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let b = start("b", there.path(), &table);
    let a = start("a", here.path(), &table);
    a.connect("b");
    let same_node = |one: &One, other: &str| one.peers.measured(&name(other), 0, false).same_node;
    until("both know", || same_node(&a, "b") == SameNode::Refuted && same_node(&b, "a") == SameNode::Refuted);
    for one in [&a, &b] {
        assert!(one.peers.counters().node_refused.count("other_directory") > 0);
    }
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    way_lost(&a.mapped("b", 7, MIB));
    assert!(a.get("b", 7, MIB).unwrap() == b.own_bytes(7));
}

#[test]
fn a_peer_without_a_directory_shares_nothing() {
    let (table, here) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let b = Start::new("b").start(&table);
    let a = start("a", here.path(), &table);
    a.connect("b");
    a.peers.meet(&name("b"), Instant::now() + PATIENCE).unwrap();
    assert_eq!(a.peers.measured(&name("b"), 0, false).same_node, SameNode::Unknown);
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    way_lost(&a.mapped("b", 7, MIB));
}

#[test]
fn who_calls_without_a_proof_is_refused_and_counted() {
    let Pair { a, b, node, .. } = pair();
    let refused = || {
        a.peers.counters().node_refused.count("stranger") + b.peers.counters().node_refused.count("stranger")
    };
    let mut hello = b"tl-node1".to_vec();
    hello.extend([7; 48]);
    let said: [&[u8]; 2] =
        [b"GET / HTTP/1.1\r\nHost: a-host-that-is-long-enough-for-a-hello\r\n\r\n", &hello];
    for said in said {
        for path in sockets(node.path()) {
            let before = refused();
            let mut stranger = UnixStream::connect(path).unwrap();
            stranger.write_all(said).unwrap();
            assert_eq!(stranger.read(&mut [0; 64]).unwrap_or(0), 0, "it is told nothing");
            until("it is counted", || refused() > before);
        }
    }
    // Nobody else notices.
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    assert!(bytes_of(&a.mapped("b", 7, MIB).unwrap()) == b.own_bytes(7));
    assert_eq!(a.peers.counters().closed.all(), []);
}

#[test]
fn the_files_go_with_their_sidecars_and_threads_end() {
    let Pair { a, b, node, .. } = pair();
    assert_eq!(sockets(node.path()).len(), 2);
    a.peers.stop();
    b.peers.stop();
    assert_eq!((a.peers.threads(), b.peers.threads()), (0, 0));
    drop((a, b));
    assert_eq!(sockets(node.path()), Vec::<std::path::PathBuf>::new());
}

#[test]
fn a_link_in_the_place_of_a_socket_is_not_followed() {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let b = start("b", node.path(), &table);
    let [socket] = &sockets(node.path())[..] else { panic!("one socket") };
    let aside = node.path().join("aside");
    // Faster than it looks after its file: both in one go.
    std::fs::rename(socket, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, socket).unwrap();
    let a = Start {
        lanes: LanesConfig { count: 0, ..LanesConfig::default() },
        node: Some(node.path().to_owned()),
        ..Start::new("a")
    }
    .start(&table);
    a.connect("b");
    // It is refused; and b, who finds that its own file is another one, puts a new one in its place.
    met(&a, &b);
    assert!(!std::fs::symlink_metadata(socket).unwrap().is_symlink());
}
