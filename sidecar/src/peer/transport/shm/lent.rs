//! Memory of ours that one connection has lent: which blocks are kept for it, and how often each segment was given.
//! Plain data, behind the lock of whoever has it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use tensorlane_memory::Block;

use crate::peer::gpus::LentMemory;

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
    /// Places of these blocks, by segment and offset: how often each is kept, for a call each.
    places: HashMap<(u32, u64), u32>,
    /// Bytes of these blocks, each once.
    bytes: u64,
    /// Number of times that each segment was given since nobody there mapped it.
    given: HashMap<u32, u32>,
    /// GPU memory that the other end maps, or is about to, by its call.
    gpus: HashMap<u64, LentMemory>,
    /// Number of calls that each allocation of it is kept for, by its descriptor here.
    allocations: HashMap<i32, u32>,
    /// Bytes of these allocations, each once.
    gpu_bytes: u64,
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
        let times = self.places.entry(place(block)).or_default();
        *times += 1;
        self.bytes += if *times == 1 { block.len() } else { 0 };
        self.left(before.as_ref());
        true
    }

    /// Keeps GPU memory for a call; false where all is over.
    pub(super) fn keep_gpu(&mut self, call: u64, lent: &LentMemory) -> bool {
        if self.ended {
            return false;
        }
        self.remove_gpu(call);
        let times = self.allocations.entry(lent.memory.as_raw_fd()).or_default();
        *times += 1;
        self.gpu_bytes += if *times == 1 { lent.bytes } else { 0 };
        self.gpus.insert(call, lent.clone());
        true
    }

    /// The descriptor of the GPU memory that is kept for a call.
    pub(super) fn gpu(&self, call: u64) -> Option<Arc<OwnedFd>> {
        self.gpus.get(&call).map(|lent| Arc::clone(&lent.memory))
    }

    /// Bytes of GPU memory that is kept, each allocation once; with this one, if it is not kept yet.
    pub(super) fn gpu_bytes_with(&self, lent: Option<&LentMemory>) -> u64 {
        let new = lent.filter(|lent| !self.allocations.contains_key(&lent.memory.as_raw_fd()));
        self.gpu_bytes.saturating_add(new.map_or(0, |lent| lent.bytes))
    }

    /// Lets go of the GPU memory of a call.
    pub(super) fn remove_gpu(&mut self, call: u64) {
        let Some(lent) = self.gpus.remove(&call) else { return };
        let descriptor = lent.memory.as_raw_fd();
        if let Some(times) = self.allocations.get_mut(&descriptor) {
            *times -= 1;
            if *times == 0 {
                self.allocations.remove(&descriptor);
                self.gpu_bytes -= lent.bytes;
            }
        }
    }

    /// Takes the block of a call out.
    pub(super) fn remove(&mut self, call: u64) -> Option<Block> {
        let block = self.blocks.remove(&call);
        self.left(block.as_ref());
        block
    }

    /// A block is kept no longer.
    fn left(&mut self, block: Option<&Block>) {
        let Some(block) = block else { return };
        if let Some(times) = self.places.get_mut(&place(block)) {
            *times -= 1;
            if *times == 0 {
                self.places.remove(&place(block));
                self.bytes -= block.len();
            }
        }
    }

    /// A block of a segment; none once all is over.
    pub(super) fn block_in(&self, segment: u32) -> Option<&Block> {
        self.blocks.values().find(|block| block.segment_id() == segment).filter(|_| !self.ended)
    }

    /// Bytes of the blocks that are kept, each once; with this one, if it is not kept yet.
    pub(super) fn bytes_with(&self, block: Option<&Block>) -> u64 {
        let new = block.filter(|block| !self.places.contains_key(&place(block)));
        self.bytes + new.map_or(0, Block::len)
    }

    /// Ends it: returns all blocks.
    pub(super) fn end(&mut self) -> HashMap<u64, Block> {
        self.ended = true;
        self.places.clear();
        self.bytes = 0;
        // Nobody needs a witness of these: whoever maps them keeps them.
        (self.gpus, self.allocations, self.gpu_bytes) = (HashMap::new(), HashMap::new(), 0);
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

fn place(block: &Block) -> (u32, u64) {
    (block.segment_id(), block.offset())
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
    fn an_allocation_of_a_gpu_counts_once_for_as_long_as_a_call_keeps_it() {
        let lent_of = |bytes| {
            let memory = rustix::fs::memfd_create("gpu", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            LentMemory { memory: Arc::new(memory), bytes }
        };
        let (mut lent, first, second) = (Lent::default(), lent_of(4096), lent_of(8192));
        assert_eq!((lent.gpu_bytes_with(None), lent.gpu_bytes_with(Some(&first))), (0, 4096));
        assert!(lent.keep_gpu(1, &first) && lent.keep_gpu(2, &first) && lent.keep_gpu(3, &second));
        // A call that comes again has its memory once.
        assert!(lent.keep_gpu(3, &second));
        assert_eq!((lent.gpu_bytes_with(None), lent.gpu_bytes_with(Some(&first))), (12_288, 12_288));
        assert!(lent.gpu(1).is_some() && lent.gpu(4).is_none());
        lent.remove_gpu(1);
        lent.remove_gpu(1);
        assert_eq!(lent.gpu_bytes_with(None), 12_288);
        lent.remove_gpu(2);
        assert_eq!(lent.gpu_bytes_with(None), 8192);
        lent.end();
        assert!(lent.gpu(3).is_none() && lent.gpu_bytes_with(None) == 0 && !lent.keep_gpu(5, &first));
    }

    #[test]
    fn a_block_counts_once_for_as_long_as_a_call_keeps_it() {
        let (mut lent, arena) = (Lent::default(), arena(64 << 20));
        let (first, second) = (sealed(&arena, 4096, 1), sealed(&arena, 8192, 2));
        assert_eq!((lent.bytes_with(None), lent.bytes_with(Some(&first))), (0, 4096));
        assert!(lent.keep(1, &first) && lent.keep(2, &first) && lent.keep(3, &second));
        // A call that comes again has its block once.
        assert!(lent.keep(3, &second));
        assert_eq!((lent.bytes_with(None), lent.bytes_with(Some(&first))), (12_288, 12_288));
        drop(lent.remove(1));
        assert_eq!(lent.bytes_with(None), 12_288);
        drop((lent.remove(2), lent.remove(2)));
        assert_eq!((lent.bytes_with(None), lent.bytes_with(Some(&first))), (8192, 12_288));
        assert!(lent.block_in(second.segment_id()).is_some());
        assert_eq!(lent.end().len(), 1);
        assert!(!lent.keep(4, &first) && lent.bytes_with(None) == 0);
    }
}
