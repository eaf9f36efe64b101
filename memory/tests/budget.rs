//! The pages of all segments together never exceed the arena, whatever is asked, by how many threads, and whatever
//! the background populator does meanwhile. Alone in its binary, because it counts the descriptors of the process.
//!
//! Beyond a container's limit the kernel kills: that is why bytes are booked before they are populated and given
//! back after they are gone.
#![expect(clippy::unwrap_used, reason = "a test, whose helpers may fail it too")]

use std::collections::HashMap;
use std::os::linux::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tensorlane_memory::{Arena, ArenaOptions, Block, GrowError, NoRoom, Owner, Purpose};

const TOTAL: u64 = 96 << 20;
const ROUNDS: u64 = 500;

/// Pages, in bytes, of every segment of this process, by inode: while it has pages, its descriptor is open.
fn segments() -> HashMap<u64, u64> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let segments = entries.filter_map(|entry| {
        let name = std::fs::read_link(entry.path()).ok()?;
        let stat = std::fs::metadata(entry.path()).ok()?;
        let is_segment = name.to_string_lossy().starts_with("/memfd:tensorlane");
        is_segment.then(|| (stat.st_ino(), stat.st_blocks() * 512))
    });
    segments.collect()
}

/// Bytes that were there at one and the same instant. Looking takes time, so it looks twice: what is there both
/// times was there in between, with at least the pages of the first look, for segments only grow until they go.
fn pages() -> u64 {
    let (before, after) = (segments(), segments());
    before.iter().filter(|(inode, _)| after.contains_key(inode)).map(|(_, bytes)| bytes).sum()
}

/// Numbers that look random and are the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn churn(arena: &Arena, session: u64, peak: &AtomicU64) {
    let mut seed = session;
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..ROUNDS {
        let bytes = 1 + next(&mut seed) % (24 << 20);
        match next(&mut seed) % 6 {
            0 | 1 => match arena.allocate_or_grow(Purpose::Pull, bytes) {
                Ok(block) => blocks.push(block),
                Err(GrowError::NoRoom(_)) => {}
                Err(error) => panic!("{error}"),
            },
            2 | 3 => {
                let owner = Owner::Session(session);
                if let Err(NoRoom::Grow) = arena.allocate(owner, Purpose::Put, bytes)
                    && let Ok(grant) = arena.admit(owner, Purpose::Put, bytes)
                {
                    drop(arena.adopt(grant.populate().unwrap()).unwrap());
                }
                blocks.extend(arena.allocate(owner, Purpose::Put, bytes));
            }
            4 => drop(arena.reclaim_held(bytes)),
            _ => blocks.truncate(blocks.len() / 2),
        }
        peak.fetch_max(pages(), Ordering::Relaxed);
        let usage = arena.usage();
        assert!(usage.balances(), "{usage:?}");
    }
    drop(blocks);
    arena.session_ended(session);
}

#[test]
fn the_pages_of_all_segments_never_exceed_the_arena() {
    let options = ArenaOptions { segment_bytes: 8 << 20, ..ArenaOptions::new(TOTAL) };
    let arena = Arena::start(options, Arc::new(|| ())).unwrap();
    let (peak, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(pages(), Ordering::Relaxed);
            }
        });
        let churning: Vec<_> = (1..=3)
            .map(|session| {
                scope.spawn({
                    let (arena, peak) = (&arena, &peak);
                    move || churn(arena, session, peak)
                })
            })
            .collect();
        let done: Vec<_> = churning.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        watching.join().unwrap();
        done.into_iter().for_each(|done| done.unwrap());
    });
    let peak = peak.into_inner();
    assert!(peak <= TOTAL, "{peak} bytes of pages in an arena of {TOTAL}");
    assert!(peak > TOTAL / 2, "the test did not fill the arena: {peak}");
    arena.stop();
    drop(arena);
    assert_eq!(pages(), 0);
}
