//! The bytes of a pull at whoever serves it, read once and in order: runs of a sealed block, or a tensor that is on its way
//! here itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tensorlane_memory::{Block, BlockError};
use tensorlane_proto::selection::Runs;
use thiserror::Error;

use super::growth::{Growth, Pass, Ready};
use crate::sums::Sums;

/// Packed bytes of a selection, from where the reader left off. Keeps the block.
#[derive(Clone)]
pub struct Source(Inner);

#[derive(Clone)]
enum Inner {
    Sealed(Sealed),
    /// From byte `at` on, for whoever shows this pass.
    Growing {
        growth: Arc<Growth>,
        pass: Pass,
        at: u64,
    },
}

/// Runs of a block.
#[derive(Clone)]
struct Sealed {
    block: Block,
    runs: Runs,
    /// What is left of the run that is being read.
    run: Range<u64>,
    /// Bytes to be left out before the next is read.
    skip: u64,
    /// Checksums of the bytes, where these are all of a tensor.
    sums: Option<Arc<Sums>>,
}

/// Bytes of a run from which on it is lent.
const LENT_MIN: u64 = 16 << 10;

/// The runs are not those of the block.
#[derive(Debug, Error)]
pub(super) enum SourceError {
    /// A run lies outside of it.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// There are fewer bytes than the descriptor says.
    #[error("the runs of a selection have fewer bytes than its descriptor says")]
    Short,
    /// What was on its way here does not come.
    #[error("the tensor that was being passed on does not come any more")]
    Gone,
}

impl Source {
    /// The bytes of `runs`: offsets into the block, in packed order. They are walked only as they are sent: there may be
    /// many millions.
    ///
    /// # Errors
    /// Where the block is not sealed.
    pub fn new(block: Block, runs: Runs) -> Result<Self, BlockError> {
        block.chunk(0..0)?;
        Ok(Self(Inner::Sealed(Sealed { block, runs, run: 0..0, skip: 0, sums: None })))
    }

    /// The same with what is known of the checksums of the bytes.
    #[must_use]
    pub fn summed(mut self, sums: Arc<Sums>) -> Self {
        if let Inner::Sealed(sealed) = &mut self.0 {
            sealed.sums = Some(sums);
        }
        self
    }

    /// What is known of the checksums of the bytes, counted from the first.
    pub(super) fn sums(&self) -> Option<Arc<Sums>> {
        match &self.0 {
            Inner::Sealed(sealed) => sealed.sums.clone(),
            Inner::Growing { .. } => None,
        }
    }

    /// A tensor that is on its way here, for a reader that shows this pass.
    pub fn growing(growth: Arc<Growth>, pass: Pass) -> Self {
        Self(Inner::Growing { growth, pass, at: 0 })
    }

    /// Where the bytes are, if they are all here.
    pub(super) fn block(&self) -> Option<&Block> {
        match &self.0 {
            Inner::Sealed(sealed) => Some(&sealed.block),
            Inner::Growing { .. } => None,
        }
    }

    /// Leaves out the next `bytes` bytes.
    pub(super) fn skip(&mut self, bytes: u64) {
        match &mut self.0 {
            Inner::Sealed(sealed) => sealed.skip += bytes,
            Inner::Growing { at, .. } => *at += bytes,
        }
    }

    /// Waits until the next `length` bytes are here, until then at most.
    pub(super) fn wait(&self, length: u64, until: Instant) -> Ready {
        match &self.0 {
            Inner::Sealed(_) => Ready::Now,
            Inner::Growing { growth, pass, at } => growth.wait(&(*at..*at + length), pass, until),
        }
    }

    /// The next `length` bytes, where they lie: the block is kept for as long as any of them is. Short runs are copied
    /// together, for each of those that are not costs an allocation and a look by whoever sends them.
    pub(super) fn lend(&mut self, length: u64, to: &mut Vec<Bytes>) -> Result<(), SourceError> {
        match &mut self.0 {
            Inner::Sealed(sealed) => sealed.lend(length, to),
            Inner::Growing { growth, at, .. } => {
                to.push(copied(growth, at, length as usize)?.into());
                Ok(())
            }
        }
    }

    /// Calls `use_parts` with `head` and the next `length` bytes, in pieces as they lie.
    pub(super) fn take<R>(
        &mut self,
        length: usize,
        head: &[u8],
        use_parts: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, SourceError> {
        match &mut self.0 {
            Inner::Sealed(sealed) => sealed.take(length, head, use_parts),
            Inner::Growing { growth, at, .. } => {
                let bytes = copied(growth, at, length)?;
                let parts = [head, &bytes[..]];
                Ok(use_parts(if head.is_empty() { &parts[1..] } else { &parts }))
            }
        }
    }
}

/// The next bytes of what is on its way here.
fn copied(growth: &Growth, at: &mut u64, length: usize) -> Result<Vec<u8>, SourceError> {
    let mut bytes = vec![0; length];
    if !growth.read(*at, &mut bytes) {
        return Err(SourceError::Gone);
    }
    *at += length as u64;
    Ok(bytes)
}

impl Sealed {
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

    fn lend(&mut self, length: u64, to: &mut Vec<Bytes>) -> Result<(), SourceError> {
        self.do_skip()?;
        let mut copied = Vec::new();
        let mut left = length;
        while left > 0 {
            let range = self.next(left)?;
            let bytes = range.end - range.start;
            left -= bytes;
            if bytes < LENT_MIN {
                copied.extend_from_slice(self.block.chunk(range)?);
                continue;
            }
            if !copied.is_empty() {
                to.push(std::mem::take(&mut copied).into());
            }
            to.push(Bytes::from_owner(self.block.owned_chunk(range)?));
        }
        if !copied.is_empty() {
            to.push(copied.into());
        }
        Ok(())
    }

    fn do_skip(&mut self) -> Result<(), SourceError> {
        while self.skip > 0 {
            let skipped = self.next(self.skip)?;
            self.skip -= skipped.end - skipped.start;
        }
        Ok(())
    }

    fn take<R>(
        &mut self,
        length: usize,
        head: &[u8],
        use_parts: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, SourceError> {
        self.do_skip()?;
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
