//! A landing that several threads write at once, each its own ranges.
//!
//! ```text
//!   Landing --spread--> Spread --part(range)--> Part, one for a range at a time
//!      ^                  |  \--complete(range), copy(range)--> bytes that nobody will write again
//!      '------join--------'   when no part is out
//! ```
//! The landing lives inside the spread, so that the block cannot be sealed meanwhile. What is complete can be read while the
//! rest is still being written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Landing, OutOfBounds};

/// Reason why there is no part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Out of the block's bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// Some of it is being written already.
    #[error("bytes {start} to {end} are being written")]
    Taken {
        /// Offset at which the part that is out begins.
        start: u64,
        /// Offset of its end.
        end: u64,
    },
    /// Some of it is complete, and not written again.
    #[error("bytes {start} to {end} are complete")]
    Complete {
        /// Offset at which what is complete begins.
        start: u64,
        /// Offset of its end.
        end: u64,
    },
}

/// Bytes that were to be read are not all complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not all of the bytes are here yet")]
pub struct Incomplete;

/// A landing for several writers. Dropping it ends the writing when the last part is dropped too.
#[derive(Debug)]
#[must_use = "dropping it ends the writing"]
pub struct Spread(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    landing: Landing,
    ranges: Mutex<Ranges>,
}

/// Knowledge of the bytes. No range of either kind is empty, and no two overlap, whatever their kinds.
#[derive(Debug, Default)]
struct Ranges {
    /// Ranges that are out, by where they begin.
    out: BTreeMap<u64, u64>,
    /// Ranges that are complete, likewise; two that touch are one.
    complete: BTreeMap<u64, u64>,
}

impl Ranges {
    /// The range of one kind that overlaps with this one.
    fn overlap(all: &BTreeMap<u64, u64>, range: &Range<u64>) -> Option<(u64, u64)> {
        let last = all.range(..range.end).next_back();
        last.map(|(start, end)| (*start, *end)).filter(|(_, end)| *end > range.start)
    }

    /// Checks that no byte of a range is being written or complete.
    fn is_free(&self, range: &Range<u64>) -> Result<(), PartError> {
        if let Some((start, end)) = Self::overlap(&self.out, range) {
            return Err(PartError::Taken { start, end });
        }
        match Self::overlap(&self.complete, range) {
            Some((start, end)) => Err(PartError::Complete { start, end }),
            None => Ok(()),
        }
    }

    fn add_complete(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &until)) = self.complete.range(..start).next_back()
            && until == start
        {
            start = before;
        }
        if let Some(after) = self.complete.remove(&end) {
            end = after;
        }
        self.complete.insert(start, end);
    }

    fn is_complete(&self, range: &Range<u64>) -> bool {
        let last = self.complete.range(..=range.start).next_back();
        range.is_empty() || last.is_some_and(|(_, end)| *end >= range.end)
    }
}

/// The one writer of a range. Dropping it leaves what was written and gives the range back.
#[derive(Debug)]
pub struct Part {
    inner: Arc<Inner>,
    range: Range<u64>,
}

impl Landing {
    /// Landing for several writers.
    pub fn spread(self) -> Spread {
        Spread(Arc::new(Inner { landing: self, ranges: Mutex::default() }))
    }
}

impl Spread {
    /// The writer of a range that nobody else writes.
    ///
    /// # Errors
    /// [`PartError::Taken`] where it overlaps with one that is out, [`PartError::Complete`] with what is complete; where it
    /// does not lie inside the block.
    pub fn part(&self, range: Range<u64>) -> Result<Part, PartError> {
        self.0.landing.check(&range)?;
        if !range.is_empty() {
            let mut ranges = self.0.ranges.lock();
            ranges.is_free(&range)?;
            ranges.out.insert(range.start, range.end);
        }
        Ok(Part { inner: Arc::clone(&self.0), range })
    }

    /// A range has its bytes: from now on it can be read and nobody gets it to write, for as long as this lives.
    ///
    /// # Errors
    /// As [`Self::part`].
    pub fn complete(&self, range: Range<u64>) -> Result<(), PartError> {
        self.0.landing.check(&range)?;
        if !range.is_empty() {
            let mut ranges = self.0.ranges.lock();
            ranges.is_free(&range)?;
            ranges.add_complete(range);
        }
        Ok(())
    }

    /// Copies the bytes from `start` on, as many as fit.
    ///
    /// # Errors
    /// Where not all of them are complete.
    pub fn copy(&self, start: u64, to: &mut [u8]) -> Result<(), Incomplete> {
        let range = start..start.checked_add(to.len() as u64).ok_or(Incomplete)?;
        if !self.0.ranges.lock().is_complete(&range) {
            return Err(Incomplete);
        }
        let Some(from) = self.0.landing.start().filter(|_| !to.is_empty()) else { return Ok(()) };
        // SAFETY: only ranges that lie inside the block become complete, and its map lives as long as the landing inside
        // this spread, which is borrowed here. Nobody writes what is complete: a part of it was refused before it became so
        // (`complete` takes no range that is out) and is refused ever after (`part`), and the landing itself gives no bytes
        // while it is inside the spread, which `join` takes by value. `to` is memory of its own, borrowed uniquely.
        unsafe { std::ptr::copy_nonoverlapping(from.add(start as usize), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// The landing again.
    ///
    /// # Errors
    /// Itself, while a part is out.
    pub fn join(self) -> Result<Landing, Self> {
        Arc::try_unwrap(self.0).map(|inner| inner.landing).map_err(Spread)
    }
}

impl Part {
    /// Range of the block's bytes.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Bytes to write in place. They may hold bytes of an earlier tensor.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = (self.range.end - self.range.start) as usize;
        let Some(start) = self.inner.landing.start() else { return &mut [] };
        // SAFETY: the range was proven to lie inside the block, whose map lives as long as the landing that this part
        // keeps. No other part of it is out and nobody reads it (`Spread::part` and `Spread::complete` refuse every range
        // that overlaps with this one until this one is dropped), the landing itself gives no bytes while it is inside the spread, and this part is borrowed
        // uniquely. Chunks are refused before the seal, and the seal while the landing lives.
        unsafe { std::slice::from_raw_parts_mut(start.add(self.range.start as usize), len) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            self.inner.ranges.lock().out.remove(&self.range.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::{Arena, ArenaOptions, Block, BlockError, Purpose};

    fn block(bytes: u64) -> (Arc<Arena>, Block) {
        let options = ArenaOptions { ready_bytes: 0, ..ArenaOptions::new(1 << 20) };
        let arena = Arena::start(options, Arc::new(|| {})).unwrap();
        let block = arena.allocate_or_grow(Purpose::Put, bytes).unwrap();
        (arena, block)
    }

    #[test]
    fn threads_write_one_block_side_by_side_and_it_is_sealed_when_all_parts_are_back() {
        let (_arena, block) = block(4096);
        let spread = block.landing().unwrap().spread();
        thread::scope(|scope| {
            for number in 0..4u64 {
                let mut part = spread.part(number * 1024..(number + 1) * 1024).unwrap();
                scope.spawn(move || part.bytes_mut().fill(number as u8 + 1));
            }
        });
        assert!(block.landing().is_none() && block.mark_sealed() == Err(BlockError::Landing));
        drop(spread.join().unwrap());
        block.mark_sealed().unwrap();
        let bytes = block.chunk(0..4096).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at / 1024) as u8 + 1));
    }

    #[test]
    fn what_is_being_written_is_nobody_elses_until_it_is_given_back() {
        let (_arena, block) = block(100);
        let spread = block.landing().unwrap().spread();
        let part = spread.part(10..20).unwrap();
        for range in [10..20, 0..11, 19..30, 12..13, 0..100] {
            assert_eq!(spread.part(range).unwrap_err(), PartError::Taken { start: 10, end: 20 });
        }
        let beside = (spread.part(0..10).unwrap(), spread.part(20..100).unwrap());
        assert!(matches!(spread.part(90..101), Err(PartError::OutOfBounds(_))));
        assert!(spread.part(15..15).unwrap().bytes_mut().is_empty());
        let spread = spread.join().unwrap_err();
        drop((part, beside));
        drop(spread.part(5..30).unwrap());
        assert_eq!(spread.join().unwrap().len(), 100);
    }

    #[test]
    fn a_block_is_not_sealed_while_a_part_outlives_its_spread() {
        let (_arena, block) = block(10);
        let spread = block.landing().unwrap().spread();
        let part = spread.part(0..10).unwrap();
        drop(spread);
        assert_eq!(block.mark_sealed(), Err(BlockError::Landing));
        drop(part);
        block.mark_sealed().unwrap();
    }

    #[test]
    fn what_is_complete_is_read_while_the_rest_is_written_and_never_written_again() {
        let (_arena, block) = block(100);
        let spread = block.landing().unwrap().spread();
        let mut part = spread.part(10..30).unwrap();
        part.bytes_mut().fill(7);
        let mut read = [0; 20];
        assert_eq!(spread.copy(10, &mut read), Err(Incomplete));
        assert_eq!(spread.complete(0..11), Err(PartError::Taken { start: 10, end: 30 }));
        drop(part);
        spread.complete(10..20).unwrap();
        assert_eq!(spread.copy(10, &mut read), Err(Incomplete), "only a half of it is");
        spread.complete(20..30).unwrap();
        let other = spread.part(30..40).unwrap();
        assert_eq!(spread.copy(10, &mut read), Ok(()));
        assert_eq!(read, [7; 20]);
        for range in [0..11, 15..25, 29..30, 10..30] {
            assert_eq!(spread.part(range).unwrap_err(), PartError::Complete { start: 10, end: 30 });
        }
        assert_eq!(spread.copy(u64::MAX, &mut read), Err(Incomplete));
        assert!(matches!(spread.complete(90..101), Err(PartError::OutOfBounds(_))));
        drop(other);
        drop(spread.join().unwrap());
        block.mark_sealed().unwrap();
    }

    proptest! {
        // Each case starts an arena with its threads.
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn what_is_complete_is_exactly_what_was_said_to_be(
            said in prop::collection::vec((0u64..64, 0u64..20), 1..20),
            asks in prop::collection::vec((0u64..64, 0u64..20), 1..20),
        ) {
            let (_arena, block) = block(64);
            let spread = block.landing().unwrap().spread();
            let mut naive = [false; 64];
            for (start, length) in said {
                let range = start..(start + length).min(64);
                let span = range.start as usize..range.end as usize;
                let is_free = !naive[span.clone()].contains(&true);
                prop_assert_eq!(spread.complete(range).is_ok(), is_free);
                if is_free {
                    naive[span].fill(true);
                }
            }
            for (start, length) in asks {
                let (start, end) = (start as usize, (start + length).min(64) as usize);
                let mut read = vec![0; end - start];
                let all = naive[start..end].iter().all(|is| *is);
                prop_assert_eq!(spread.copy(start as u64, &mut read).is_ok(), all);
            }
        }

        #[test]
        fn parts_never_overlap(asks in prop::collection::vec((0u64..64, 0u64..20, any::<bool>()), 1..40)) {
            let (_arena, block) = block(64);
            let spread = block.landing().unwrap().spread();
            let mut out: Vec<Part> = Vec::new();
            for (start, length, drop_one) in asks {
                let range = start..(start + length).min(64);
                let free = out.iter().all(|part| {
                    let other = part.range();
                    range.is_empty() || other.is_empty() || range.end <= other.start || other.end <= range.start
                });
                let part = spread.part(range);
                prop_assert_eq!(part.is_ok(), free);
                out.extend(part);
                if drop_one && !out.is_empty() {
                    out.swap_remove(0);
                }
            }
        }
    }
}
