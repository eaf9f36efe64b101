//! The bytes of a pull at their owner: runs of a sealed block, read once and in order.

use std::ops::Range;

use tensorlane_memory::{Block, BlockError};
use tensorlane_proto::selection::Runs;
use thiserror::Error;

/// Packed bytes of a selection, from where the reader left off. Keeps the block.
pub struct Source {
    block: Block,
    runs: Runs,
    /// What is left of the run that is being read.
    run: Range<u64>,
    /// Bytes to be left out before the next is read.
    skip: u64,
}

/// The runs are not those of the block.
#[derive(Debug, Error)]
pub(super) enum SourceError {
    /// A run lies outside of it.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// There are fewer bytes than the descriptor says.
    #[error("the runs of a selection have fewer bytes than its descriptor says")]
    Short,
}

impl Source {
    /// The bytes of `runs`: offsets into the block, in packed order. They are walked only as they are sent: there may be
    /// many millions.
    ///
    /// # Errors
    /// Where the block is not sealed.
    pub fn new(block: Block, runs: Runs) -> Result<Self, BlockError> {
        block.chunk(0..0)?;
        Ok(Self { block, runs, run: 0..0, skip: 0 })
    }

    /// Leaves out the first `bytes` bytes, which the reader has.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.skip = bytes;
    }

    /// The next bytes that lie together, at most `most`.
    fn next(&mut self, most: u64) -> Result<Range<u64>, SourceError> {
        while self.run.is_empty() {
            let (offset, length) = self.runs.next().ok_or(SourceError::Short)?;
            let end = offset.checked_add(length).ok_or(SourceError::Short)?;
            self.run = offset..end;
        }
        let end = self.run.end.min(self.run.start.saturating_add(most));
        let next = self.run.start..end;
        self.run.start = end;
        Ok(next)
    }

    /// Calls `use_parts` with `head` and the next `length` bytes, in pieces as they lie.
    pub(super) fn take<R>(
        &mut self,
        length: usize,
        head: &[u8],
        use_parts: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, SourceError> {
        while self.skip > 0 {
            let skipped = self.next(self.skip)?;
            self.skip -= skipped.end - skipped.start;
        }
        let mut ranges = Vec::with_capacity(2);
        let mut left = length as u64;
        while left > 0 {
            let range = self.next(left)?;
            left -= range.end - range.start;
            ranges.push(range);
        }
        let mut parts: Vec<&[u8]> = Vec::with_capacity(ranges.len() + 1);
        if !head.is_empty() {
            parts.push(head);
        }
        for range in ranges {
            parts.push(self.block.chunk(range)?);
        }
        Ok(use_parts(&parts))
    }
}
