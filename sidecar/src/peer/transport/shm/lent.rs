//! Memory of ours that one connection has lent: which blocks are kept for it, in which segments, and how often each was given.
//! Plain data, behind the lock of whoever has it.

use std::collections::HashMap;

use tensorlane_memory::Block;

/// Number of times that one end of a connection is given a segment while it, or a client of it, still maps it: each
/// costs a descriptor here. It asks again only after it has let go of the map itself. Beyond it tensors come another
/// way.
const GIVEN_MAX: u32 = 8;
/// Segments of which is known how often they were given, beside those that are mapped. Each costs some ten bytes; numbers of segments
/// never come again.
const GIVEN_KEPT: usize = 64;

/// Segments that the other end maps, or is about to, by its call.
#[derive(Default)]
pub(super) struct Lent {
    blocks: HashMap<u64, Block>,
    /// The segments of these blocks: the number of blocks in each, and its bytes.
    segments: HashMap<u32, (u32, u64)>,
    /// Number of times that each segment was given since nobody there mapped it.
    given: HashMap<u32, u32>,
    ended: bool,
}

// === impl Lent ===

impl Lent {
    /// Keeps a block for a call; false where all is over.
    pub(super) fn keep(&mut self, call: u64, block: &Block) -> bool {
        if self.ended {
            return false;
        }
        let before = self.blocks.insert(call, block.clone());
        if let Some(segment) = block.segment() {
            self.segments.entry(segment.id()).or_insert((0, segment.bytes())).0 += 1;
        }
        self.left(before.as_ref());
        true
    }

    /// Takes the block of a call out.
    pub(super) fn remove(&mut self, call: u64) -> Option<Block> {
        let block = self.blocks.remove(&call);
        self.left(block.as_ref());
        block
    }

    /// A block is kept no longer.
    fn left(&mut self, block: Option<&Block>) {
        let Some(segment) = block.and_then(Block::segment).map(|segment| segment.id()) else { return };
        if let Some((blocks, _)) = self.segments.get_mut(&segment) {
            *blocks -= 1;
            if *blocks == 0 {
                self.segments.remove(&segment);
            }
        }
    }

    /// A block of a segment; none once all is over.
    pub(super) fn block_in(&self, segment: u32) -> Option<&Block> {
        let named = self.segments.contains_key(&segment) && !self.ended;
        named.then(|| self.blocks.values().find(|block| block.segment_id() == segment)).flatten()
    }

    /// Returns whether blocks of a segment are kept.
    pub(super) fn has(&self, segment: u32) -> bool {
        self.segments.contains_key(&segment)
    }

    /// The segments in which blocks are kept, with their bytes.
    pub(super) fn segments(&self) -> impl Iterator<Item = (u32, u64)> {
        self.segments.iter().map(|(segment, (_, bytes))| (*segment, *bytes))
    }

    /// Ends it: returns all blocks.
    pub(super) fn end(&mut self) -> HashMap<u64, Block> {
        self.ended = true;
        self.segments.clear();
        std::mem::take(&mut self.blocks)
    }

    /// Returns whether a segment may be given once more.
    pub(super) fn may_give(&mut self, segment: u32, is_mapped: bool) -> bool {
        let given = self.given.entry(segment).or_default();
        *given = if is_mapped { *given + 1 } else { 1 };
        *given <= GIVEN_MAX
    }

    /// Forgets how often segments were given that nobody there maps: they are counted from the start again.
    pub(super) fn forget_given(&mut self, is_mapped: impl Fn(u32) -> bool) {
        if self.given.len() >= GIVEN_KEPT {
            self.given.retain(|segment, _| is_mapped(*segment));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::world::{arena, sealed};

    #[test]
    fn how_often_segments_were_given_is_remembered_of_those_that_are_mapped() {
        let mut lent = Lent::default();
        let is_mapped = |segment: u32| segment.is_multiple_of(100);
        for segment in 0..10_000 {
            lent.forget_given(is_mapped);
            assert!(lent.may_give(segment, false));
        }
        assert!(lent.given.len() <= GIVEN_KEPT + 100, "{} of 10,000", lent.given.len());
        assert!((1..GIVEN_MAX).all(|_| lent.may_give(0, true)));
        assert!(!lent.may_give(0, true), "it was given often enough");
    }

    #[test]
    fn a_segment_is_lent_for_as_long_as_a_block_of_it_is_kept() {
        let (mut lent, arena) = (Lent::default(), arena(64 << 20));
        let (first, second) = (sealed(&arena, 4096, 1), sealed(&arena, 4096, 2));
        let segment = first.segment_id();
        assert_eq!(second.segment_id(), segment);
        assert!(lent.keep(1, &first) && lent.keep(2, &second));
        // A call that comes again has its block once.
        assert!(lent.keep(2, &second));
        assert_eq!(lent.segments().count(), 1);
        drop(lent.remove(1));
        assert!(lent.has(segment) && lent.block_in(segment).is_some());
        drop((lent.remove(2), lent.remove(2)));
        assert!(!lent.has(segment) && lent.block_in(segment).is_none());
        assert!(lent.keep(3, &first));
        assert_eq!(lent.end().len(), 1);
        assert!(!lent.keep(4, &first) && lent.segments().next().is_none());
    }
}
