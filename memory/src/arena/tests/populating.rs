//! Segments that are made ahead of use, and what happens where they cannot be made.

use std::os::fd::BorrowedFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;
use crate::segment::{Fallocate, SegmentError};

/// Populates when it is let, and fails when it is told to.
struct Twin {
    fails: AtomicBool,
    calls: AtomicU64,
    gate: Option<(Barrier, Barrier)>,
}

impl Twin {
    fn new(fails: bool, gated: bool) -> Arc<Self> {
        let gate = gated.then(|| (Barrier::new(2), Barrier::new(2)));
        Arc::new(Self { fails: AtomicBool::new(fails), calls: AtomicU64::new(0), gate })
    }
}

impl Populate for Twin {
    fn populate(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
        let first = self.calls.fetch_add(1, Ordering::SeqCst) == 0;
        if let Some((arrived, go)) = self.gate.as_ref().filter(|_| first) {
            arrived.wait();
            go.wait();
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        Fallocate.populate(fd, offset, bytes)
    }
}

#[test]
fn the_populator_keeps_segments_ready_and_they_are_taken_warm() {
    let arena = start(ArenaOptions { ready_bytes: 128 * KI, ..options(512 * KI, 64 * KI) });
    until("the pool is filled", || arena.usage().ready == 128 * KI);
    let grant = arena.admit(Owner::Session(1), Purpose::Put, 1).unwrap();
    assert!(grant.is_ready());
    drop(arena.adopt(grant.populate().unwrap()).unwrap());
    until("the pool is filled again", || arena.usage().ready == 128 * KI);
    assert_eq!((arena.usage().cold_populates, arena.usage().populated), (0, 192 * KI));
    // All but what the pool holds is asked for, then all of it: the pool makes way.
    let large = put(&arena, 2, 448 * KI).unwrap();
    let usage = arena.usage();
    assert_eq!((usage.ready, usage.free, usage.populated, usage.cold_populates), (0, 0, 512 * KI, 1));
    drop(large);
    arena.session_ended(1);
    arena.session_ended(2);
    all_is_free(&arena);
}

#[test]
fn a_grant_that_needs_what_is_being_populated_waits_until_it_is_gone() {
    let twin = Twin::new(false, true);
    let arena = start(ArenaOptions {
        ready_bytes: 64 * KI,
        populate: Arc::clone(&twin) as Arc<dyn Populate>,
        ..options(64 * KI, 64 * KI)
    });
    let (arrived, go) = twin.gate.as_ref().unwrap();
    arrived.wait();
    let grant = arena.admit(Owner::Session(1), Purpose::Put, 64 * KI).unwrap();
    let populating = std::thread::spawn(move || grant.populate());
    assert_eq!(twin.calls.load(Ordering::SeqCst), 1, "nothing is made beside it");
    go.wait();
    let fresh = populating.join().unwrap().unwrap();
    assert_eq!((arena.usage().ready, arena.usage().populated), (0, 64 * KI));
    drop(fresh);
    all_is_free(&arena);
}

#[test]
fn populating_that_fails_is_counted_tried_again_and_costs_nothing() {
    let twin = Twin::new(true, false);
    let arena = start(ArenaOptions {
        ready_bytes: 64 * KI,
        populate: Arc::clone(&twin) as Arc<dyn Populate>,
        ..options(256 * KI, 64 * KI)
    });
    let refused = arena.allocate_or_grow(Purpose::Put, 10).unwrap_err();
    assert!(matches!(refused, GrowError::Adopt(AdoptError::Segment(SegmentError::Step { .. }))));
    until("the populator failed too", || arena.usage().populate_failures >= 2);
    all_is_free(&arena);
    assert_eq!(arena.usage().populated, 0);
    twin.fails.store(false, Ordering::SeqCst);
    until("it was tried again", || arena.usage().ready == 64 * KI);
}
