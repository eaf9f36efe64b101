//! The bytes of a pull at whoever serves it, read once and in order: runs of a sealed block, or a tensor that is on its way
//! here itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tensorlane_memory::{Block, BlockError, SegmentHandle};
use tensorlane_proto::selection::Runs;
use tensorlane_proto::{Failure, Reason};

use super::partial::{PartialTensor, Ready, RelayToken};
use super::row_lists::RowListPart;
use super::send_error::SourceError;
use crate::hashes::{self, Hash};
use crate::sums::Sums;

/// Packed bytes of a selection, from where the reader left off. Keeps the block.
#[derive(Clone)]
pub struct Source(Inner);

#[derive(Clone)]
enum Inner {
    Sealed(Sealed),
    /// From byte `at` on, for whoever shows this pass.
    Growing {
        growth: Arc<PartialTensor>,
        pass: RelayToken,
        at: u64,
    },
}

/// Runs of a block.
#[derive(Clone)]
struct Sealed {
    block: Block,
    runs: Runs,
    /// Rest of the run that is being read.
    run: Range<u64>,
    /// Bytes to be left out before the next is read.
    skip: u64,
    /// Checksums of the bytes, where these are all of a tensor.
    sums: Option<Arc<Sums>>,
    /// Room of the list of rows that `runs` keeps, where that is bounded.
    _list: Option<Arc<RowListPart>>,
}

/// Bytes that lie together in a segment, for the kernel to take them from its file. They are as they are for as long as the
/// source is kept.
pub(super) struct ContiguousSpan<'a> {
    /// Segment of the bytes.
    pub(super) segment: Arc<SegmentHandle>,
    /// Offset at which they begin in it.
    pub(super) offset: u64,
    /// Bytes of it, mapped.
    pub(super) bytes: &'a [u8],
}

/// Bytes of a run from which on it is lent.
const LENT_MIN: u64 = 16 << 10;

impl Source {
    /// The bytes of `runs`: offsets into the block, in packed order. They are walked only as they are sent: there may be
    /// many millions.
    ///
    /// # Errors
    /// Where the block is not sealed.
    pub fn new(block: Block, runs: Runs) -> Result<Self, BlockError> {
        block.chunk(0..0)?;
        Ok(Self(Inner::Sealed(Sealed { block, runs, run: 0..0, skip: 0, sums: None, _list: None })))
    }

    /// Source with what is known of the checksums of the bytes.
    #[must_use]
    pub fn summed(mut self, sums: Arc<Sums>) -> Self {
        if let Inner::Sealed(sealed) = &mut self.0 {
            sealed.sums = Some(sums);
        }
        self
    }

    /// Keeps the room that its list of rows has, which is given back with the last copy of this.
    pub(super) fn booked(self, part: RowListPart) -> Self {
        Self(match self.0 {
            Inner::Sealed(sealed) => Inner::Sealed(Sealed { _list: Some(Arc::new(part)), ..sealed }),
            growing @ Inner::Growing { .. } => growing,
        })
    }

    /// Known part of the checksums of the bytes, counted from the first.
    pub(super) fn sums(&self) -> Option<Arc<Sums>> {
        match &self.0 {
            Inner::Sealed(sealed) => sealed.sums.clone(),
            Inner::Growing { .. } => None,
        }
    }

    /// A tensor that is on its way here, for a reader that shows this pass.
    pub fn growing(growth: Arc<PartialTensor>, pass: RelayToken) -> Self {
        Self(Inner::Growing { growth, pass, at: 0 })
    }

    /// Block in which the bytes are, if they are all here.
    pub(super) fn block(&self) -> Option<&Block> {
        match &self.0 {
            Inner::Sealed(sealed) => Some(&sealed.block),
            Inner::Growing { .. } => None,
        }
    }

    /// Hash of the next `length` bytes.
    ///
    /// # Errors
    /// Where there are not so many.
    pub fn hash(&mut self, length: u64) -> Result<Hash, Failure> {
        let hashed = self.take(length as usize, &[], hashes::of_parts);
        hashed.map_err(|error| Failure::new(Reason::Internal, format!("the bytes cannot be hashed: {error}")))
    }

    /// Leaves out the next `bytes` bytes.
    pub fn skip(&mut self, bytes: u64) {
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

    /// The next `length` bytes, if they lie together in a segment; else none of them is taken.
    pub(super) fn lying(&mut self, length: u64) -> Result<Option<ContiguousSpan<'_>>, SourceError> {
        match &mut self.0 {
            Inner::Sealed(sealed) => sealed.lying(length),
            Inner::Growing { .. } => Ok(None),
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
fn copied(growth: &PartialTensor, at: &mut u64, length: usize) -> Result<Vec<u8>, SourceError> {
    let mut bytes = vec![0; length];
    if !growth.read(*at, &mut bytes) {
        return Err(SourceError::Gone);
    }
    *at += length as u64;
    Ok(bytes)
}

impl Sealed {
    /// Goes to the next run that has bytes, if the present one has none left.
    fn go_on(&mut self) -> Result<(), SourceError> {
        while self.run.is_empty() {
            let (offset, length) = self.runs.next().ok_or(SourceError::Short)?;
            let end = offset.checked_add(length).ok_or(SourceError::Short)?;
            self.run = offset..end;
        }
        Ok(())
    }

    /// The next bytes that lie together, at most `most`.
    fn next(&mut self, most: u64) -> Result<Range<u64>, SourceError> {
        self.go_on()?;
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

    fn lying(&mut self, length: u64) -> Result<Option<ContiguousSpan<'_>>, SourceError> {
        self.do_skip()?;
        self.go_on()?;
        let Some(segment) = self.block.segment().filter(|_| self.run.end - self.run.start >= length) else {
            return Ok(None);
        };
        let range = self.next(length)?;
        let offset = self.block.offset() + range.start;
        Ok(Some(ContiguousSpan { segment, offset, bytes: self.block.chunk(range)? }))
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

#[cfg(test)]
mod tests {
    use tensorlane_proto::dtype::DType;
    use tensorlane_proto::layout::{Layout, Shape};
    use tensorlane_proto::selection::Selection;

    use super::*;
    use crate::peer::tests::world::{arena, sealed};

    const ROW: u64 = 32 << 10;

    /// Rows of 32 KiB of a tensor of eight.
    fn rows(block: &Block, rows: &[u64]) -> Source {
        let layout = Layout::contiguous(DType::U8, Shape::new(&[8, ROW]).unwrap()).unwrap();
        let resolved = Selection::Rows(rows.into()).resolve(&layout).unwrap();
        Source::new(block.clone(), resolved.runs()).unwrap()
    }

    #[test]
    fn what_lies_together_is_the_same_in_the_file_as_in_the_map() {
        let arena = arena(8 << 20);
        let block = sealed(&arena, 8 * ROW, 1);
        let mut source = rows(&block, &[5, 2]);
        source.skip(8);
        for row in [5 * ROW + 8..6 * ROW, 2 * ROW..3 * ROW] {
            let lying = source.lying(row.end - row.start).unwrap().unwrap();
            assert_eq!(lying.bytes, block.chunk(row).unwrap());
            let mut from_file = vec![0; lying.bytes.len()];
            let read = rustix::io::pread(lying.segment.reader_fd(), &mut from_file[..], lying.offset);
            assert_eq!((read.unwrap(), &from_file[..]), (lying.bytes.len(), lying.bytes));
        }
        assert!(matches!(source.lying(1), Err(SourceError::Short)));
        arena.stop();
    }

    #[test]
    fn of_what_does_not_lie_together_nothing_is_taken() {
        let arena = arena(8 << 20);
        let block = sealed(&arena, 8 * ROW, 1);
        let mut source = rows(&block, &[5, 2]);
        assert!(source.lying(2 * ROW).unwrap().is_none());
        let all = source.take(2 * ROW as usize, &[], |parts| parts.concat()).unwrap();
        let own = |row: u64| block.chunk(row * ROW..(row + 1) * ROW).unwrap();
        assert_eq!(all, [own(5), own(2)].concat());
        arena.stop();
    }
}
