//! Neighbours that lie about their memory, that keep ours, and strangers that pass bytes between two sidecars of a node.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags};
use tensorlane_memory::{
    Arena, ArenaOptions, Block, Fallocate, ForeignUsage, Owner, Populate, Purpose, passing, seals,
};
use tensorlane_proto::negotiate::{SameNode, Transport, Why};

use super::shm::{Pair, link, met, pair, sockets, start, way_lost};
use super::world::*;
use crate::peer::link::Ended;
use crate::peer::transport::shm::Between;

const MIB: u64 = 1 << 20;

/// Populates as ever, and keeps the file of the newest segment to make a hole in it before it is sealed.
#[derive(Default)]
struct KeepsFile(Mutex<Option<OwnedFd>>);

impl Populate for KeepsFile {
    fn populate(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
        *self.0.lock() = Some(fd.try_clone_to_owned()?);
        Fallocate.populate(fd, offset, bytes)
    }
}

/// An arena with a block of 1 MiB at the start of a sealed segment of 64 MiB, the rest of which is a hole.
fn with_a_hole() -> (Arc<Arena>, Block) {
    let file = Arc::new(KeepsFile::default());
    let options = ArenaOptions {
        segment_bytes: 64 * MIB,
        ready_bytes: 0,
        pull_share: 0.0,
        populate: Arc::clone(&file) as _,
        ..ArenaOptions::new(256 * MIB)
    };
    let arena = Arena::start(options, Arc::new(|| {})).unwrap();
    let fresh = arena.admit(Owner::Sidecar, Purpose::Pull, MIB).unwrap().populate().unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file.0.lock().take().unwrap(), flags, MIB, 63 * MIB).unwrap();
    let block = arena.adopt_for(fresh, MIB).unwrap();
    let mut landing = block.landing().unwrap();
    fill(landing.chunk_mut(0..MIB).unwrap(), 1);
    drop(landing);
    block.mark_sealed().unwrap();
    (arena, block)
}

#[test]
fn memory_with_a_hole_that_a_neighbour_offers_is_refused_and_nothing_is_charged() {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let (memory, block) = with_a_hole();
    let b =
        Start { memory: Some(memory), node: Some(node.path().to_owned()), ..Start::new("b") }.start(&table);
    let a = start("a", node.path(), &table);
    met(&a, &b);
    let present = || rustix::fs::fstat(block.segment().unwrap().reader_fd()).unwrap().st_blocks * 512;
    let before = present();
    b.twin.add(7, block.clone(), 1);
    way_lost(&a.mapped("b", 7, MIB));
    assert_eq!((a.arena.foreign(), present()), (ForeignUsage::default(), before));
    until("its end is counted", || a.peers.counters().node_closed.count("segment") == 1);
    let measured = a.peers.measured(&name("b"), 0, false);
    assert!(measured.cooling.contains(Transport::Shm) && measured.unshared == Some(Why::SegmentRefused));
    assert!(a.get("b", 7, MIB).unwrap() == b.own_bytes(7), "its bytes travel");
    until("nothing is leased", || b.twin.leased() == 0);
    assert_eq!(a.peers.counters().closed.all(), []);
}

/// Deed of a stranger, with what it passes on.
#[derive(Clone, Copy)]
enum Does {
    /// Gives memory of its own, with other bytes, in the place of the owner's.
    Replaces,
    /// Alters one byte of what is said after the meeting.
    Alters,
}

/// A stranger between `a` and the socket that it calls at. Counts the descriptors that it was given.
fn stranger(does: Does, given: &Arc<AtomicUsize>) -> Between {
    let given = Arc::clone(given);
    Arc::new(move |far: UnixStream| {
        let (ours, near) = UnixStream::pair().unwrap();
        let ends = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
        for (way, (from, to)) in ends.into_iter().enumerate() {
            let given = Arc::clone(&given);
            std::thread::spawn(move || pass(&from, &to, (does, way == 1), &given));
        }
        ours
    })
}

/// Bytes of the meeting itself that the end that was called says: a nonce, a proof and a welcome.
const MEETING: usize = 65;

fn pass(from: &UnixStream, to: &UnixStream, (does, back): (Does, bool), given: &AtomicUsize) {
    let (mut byte, mut fds, mut passed) = ([0], Vec::new(), 0);
    while let Ok(1) = passing::receive(from.as_fd(), &mut byte, &mut fds) {
        given.fetch_add(fds.len(), Ordering::SeqCst);
        if matches!(does, Does::Alters) && back && passed == MEETING + 100 {
            byte[0] ^= 1;
        }
        if !fds.is_empty() && matches!(does, Does::Replaces) {
            let bytes = rustix::fs::fstat(&fds[0]).unwrap().st_size as u64;
            fds = vec![own_memory(bytes), passing::pipe().unwrap().1];
        }
        let sent: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if passing::send(to.as_fd(), &[io::IoSlice::new(&byte)], &sent).is_err() {
            break;
        }
        drop(sent);
        fds.clear();
        passed += 1;
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Sealed memory of zeros, every page there.
fn own_memory(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("own", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
    seals::add(&file, seals::FOR_READERS).unwrap();
    file
}

/// A stranger that stands where both ends see the same kernel, directory and inode, as among clones of a machine.
#[test]
fn no_byte_of_a_stranger_between_two_sidecars_is_believed() {
    for (does, end) in [(Does::Replaces, "other_file"), (Does::Alters, "forged")] {
        let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
        let given = Arc::new(AtomicUsize::new(0));
        let b = start("b", node.path(), &table);
        let between = Some(stranger(does, &given));
        let a =
            Start { between, listed: Some(nowhere()), node: Some(node.path().to_owned()), ..Start::new("a") };
        let a = a.start(&table);
        met(&a, &b);
        b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
        way_lost(&a.mapped("b", 7, MIB));
        assert_eq!(a.arena.foreign(), ForeignUsage::default());
        // The call comes another way before the end of the connection is counted.
        until(end, || a.peers.counters().node_closed.count(end) == 1);
        assert!(a.get("b", 7, MIB).unwrap() == b.own_bytes(7));
        until("nothing is leased", || b.twin.leased() == 0);
        // What the stranger keeps of the owner's keeps nothing else from it.
        assert_eq!(given.load(Ordering::SeqCst), if end == "other_file" { 2 } else { 0 });
        a.peers.stop();
        b.peers.stop();
    }
}

#[test]
fn silent_callers_at_the_nodes_socket_keep_nobody_out() {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    // Longer than the test: nobody's time may be up before.
    let patient = |name| Start {
        handshake: Duration::from_secs(60),
        node: Some(node.path().to_owned()),
        ..Start::new(name)
    };
    let b = patient("b").start(&table);
    let a = Start { listed: Some(nowhere()), ..patient("a") }.start(&table);
    let sockets = sockets(node.path());
    assert_eq!(sockets.len(), 2, "{sockets:?}");
    let call = |socket| UnixStream::connect(socket).unwrap();
    let _silent: Vec<_> = sockets.iter().flat_map(|socket| (0..32).map(move |_| call(socket))).collect();
    met(&a, &b);
    let refused = [&a, &b].map(|one| one.peers.counters().node_refused.all());
    assert!(refused.concat().iter().all(|(why, _)| *why == "too_many"), "{refused:?}");
}

#[test]
fn peers_that_the_table_has_on_different_nodes_do_not_try_to_meet() {
    let (table, node) = (Arc::new(Table::default()), tempfile::tempdir().unwrap());
    let b = start("b", node.path(), &table);
    table.place("b", "node-2");
    let a = start("a", node.path(), &table);
    table.place("a", "node-1");
    a.connect("b");
    let refused = |one: &One| one.peers.counters().node_refused.count("other_node");
    until("both know", || {
        let seen = [(&a, "b"), (&b, "a")].map(|(one, other)| one.peers.measured(&name(other), 0, false));
        seen.iter().all(|seen| seen.same_node == SameNode::Refuted)
    });
    assert!(refused(&a) + refused(&b) > 0);
    b.twin.add(7, sealed(&b.arena, MIB, 1), 1);
    way_lost(&a.mapped("b", 7, MIB));
    assert!(a.get("b", 7, MIB).unwrap() == b.own_bytes(7));
    assert_eq!(
        (a.peers.counters().node_opened.all(), b.peers.counters().node_opened.all()),
        (vec![], vec![])
    );
}

#[test]
fn a_neighbour_that_keeps_what_it_maps_and_reconnects_does_not_keep_the_owners_arena() {
    let Pair { table: _table, a, b, node: _node } = pair();
    let most = b.arena.usage().total / 4 * 3;
    let lent = || b.peers.lent().iter().map(|(peer, bytes)| (peer.to_string(), *bytes)).collect::<Vec<_>>();
    let mut kept = Vec::new();
    for round in 0..16 {
        met(&a, &b);
        // Room for it is there each time.
        b.twin.add(round, sealed(&b.arena, 16 * MIB, round), 1);
        match a.mapped("b", round, 16 * MIB) {
            Ok(map) => kept.push(map),
            lost => {
                way_lost(&lost);
                assert_eq!(a.peers.measured(&name("b"), 0, false).unshared, Some(Why::LentFull));
                assert!(a.get("b", round, 16 * MIB).unwrap() == b.own_bytes(round), "it gets bytes instead");
                break;
            }
        }
        // The tensor is gone at its owner, and the connection, too.
        b.twin.tensors.lock().clear();
        let before = b.ever_up();
        link(&a, "b").end(Ended::Moved);
        // The next one may be up before anybody looks.
        until("it is seen", || !b.shares("a") || b.ever_up() > before);
    }
    let total: u64 = kept.iter().map(Block::len).sum();
    assert_eq!((total, lent()), (most, vec![("a".to_owned(), most)]));
    b.twin.tensors.lock().clear();
    drop(sealed(&b.arena, 16 * MIB, 99));
    drop(kept);
    until("it has nothing any more", || lent().iter().all(|(_, bytes)| *bytes == 0));
}
