//! Sizes of a session's segments: small at first, ordinary for much.

use super::*;
use crate::PAGE;

const MI: u64 = 1 << 20;
const ORDINARY: u64 = 64 * MI;

/// An arena of segments that nobody writes: their pages are never made.
fn large() -> Arc<Arena> {
    start(ArenaOptions { populate: Arc::new(Nothing), ..options(1 << 30, ORDINARY) })
}

struct Nothing;

impl Populate for Nothing {
    fn populate(&self, _: std::os::fd::BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of the segments of a session, in the order in which it got them, for blocks of these sizes.
fn segments(arena: &Arena, session: u64, blocks: &[u64]) -> Vec<u64> {
    let blocks: Vec<_> = blocks.iter().map(|bytes| put(arena, session, *bytes).unwrap()).collect();
    let mut segments: Vec<_> = blocks.iter().map(|block| block.segment().unwrap()).collect();
    segments.dedup_by_key(|segment| segment.id());
    segments.iter().map(|segment| segment.bytes()).collect()
}

#[test]
fn a_session_has_little_as_long_as_it_needs_little_and_ordinary_segments_soon() {
    let arena = large();
    assert_eq!(segments(&arena, 1, &[128; 512]), [64 * KI], "cursors of so many readers");
    assert_eq!(segments(&arena, 2, &[64 * KI; 100]), [64 * KI, 256 * KI, 1280 * KI, ORDINARY]);
    assert_eq!(segments(&arena, 3, &[MI; 10]), [MI, 4 * MI, ORDINARY]);
    assert_eq!(segments(&arena, 4, &[64 * KI + 1, 1]), [64 * KI + PAGE]);
}

#[test]
fn a_large_block_has_an_ordinary_segment_or_one_of_its_own() {
    let arena = large();
    assert_eq!(segments(&arena, 1, &[ORDINARY / 16]), [ORDINARY / 16]);
    assert_eq!(segments(&arena, 2, &[ORDINARY / 16 + 1]), [ORDINARY]);
    assert_eq!(segments(&arena, 3, &[ORDINARY]), [ORDINARY]);
    assert_eq!(segments(&arena, 4, &[ORDINARY + 1]), [ORDINARY + PAGE]);
    // Those of the sidecar are everybody's.
    assert_eq!(arena.admit(Owner::Sidecar, Purpose::Put, 1).unwrap().bytes(), ORDINARY);
}

#[test]
fn many_sessions_with_little_are_no_burden() {
    let arena = large();
    let blocks: Vec<_> = (1..=200).map(|session| put(&arena, session, 128).unwrap()).collect();
    assert_eq!(arena.usage().free, (1 << 30) - 200 * 64 * KI);
    (1..=200).for_each(|session| arena.session_ended(session));
    drop(blocks);
    all_is_free(&arena);
    assert_eq!(arena.usage().populated, 0, "nothing is kept of what is made anew in no time");
}

#[test]
fn a_small_segment_of_a_session_that_ended_stays_until_its_last_block_is_gone() {
    let arena = start(options(8 * MI, MI));
    let block = put(&arena, 1, 100).unwrap();
    block.mark_sealed().unwrap();
    arena.session_ended(1);
    let usage = arena.usage();
    assert_eq!((usage.sealed, usage.retired), (128, 64 * KI - 128), "it is not the sidecar's to write");
    assert_eq!(block.chunk(0..100).unwrap(), [0; 100]);
    drop(block);
    all_is_free(&arena);
    assert_eq!(arena.usage().populated, 0);
}
