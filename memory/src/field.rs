//! A field: a block that the sidecar goes on writing, while pieces of it are shown to others.
//!
//! ```text
//!   block ──Field::new──> field ── write, zero        alone in their range
//!                           |   ── chunk              beside other chunks and what is shown
//!                           '── show ──> Block        a piece: sealed and leased as any other, never written while it lives
//! ```
//!
//! Nothing here waits. What meets another's range is refused as busy: whoever uses a field decides who goes first.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::block::{Block, Landing};
use crate::{OutOfBounds, copy};

/// Reason why a range of a field cannot be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// Somebody reads what would be written, or writes what would be read.
    #[error("{len} bytes at {offset} of the field are in use")]
    Busy {
        /// Offset at which the range begins.
        offset: u64,
        /// Length of the range.
        len: u64,
    },
    /// Out of its bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// A block of which pieces are written and read side by side. Clones are the same field.
#[derive(Debug, Clone)]
pub struct Field(Arc<FieldInner>);

#[derive(Debug)]
struct FieldInner {
    landing: Landing,
    turns: Mutex<Turns>,
}

/// Ranges in use.
#[derive(Debug, Default)]
struct Turns {
    reading: Vec<Range<u64>>,
    writing: Vec<Range<u64>>,
}

/// Bytes of a field that nobody writes while this lives.
#[derive(Debug)]
pub struct FieldChunk<'a> {
    field: &'a FieldInner,
    range: Range<u64>,
}

/// Range that is being written.
struct Writing<'a> {
    field: &'a FieldInner,
    range: Range<u64>,
}

/// Range of a field that a block shows. Dropped, it may be written again.
struct Showing {
    field: Arc<FieldInner>,
    range: Range<u64>,
    /// Dropped behind it: whoever is told may write at once.
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

// === impl Field ===

impl Field {
    /// Takes a block that nobody writes and that is not sealed; `None` for another one. Its bytes are what they are.
    #[must_use]
    pub fn new(block: &Block) -> Option<Self> {
        Some(Self(Arc::new(FieldInner { landing: block.landing()?, turns: Mutex::default() })))
    }

    /// Bytes to read.
    ///
    /// # Errors
    /// [`FieldError::Busy`] while some of them are written; or where the range does not lie inside.
    pub fn chunk(&self, range: Range<u64>) -> Result<FieldChunk<'_>, FieldError> {
        self.0.begin_reading(&range)?;
        Ok(FieldChunk { field: &self.0, range })
    }

    /// Writes `from` at `offset`.
    ///
    /// # Errors
    /// [`FieldError::Busy`] while some of the bytes are read, written or shown; or where they do not fit.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), FieldError> {
        OutOfBounds::check(offset, from.len() as u64, self.0.landing.len())?;
        let mut writing = self.0.begin_writing(offset..offset + from.len() as u64)?;
        copy::copy_parallel(writing.bytes(), from);
        Ok(())
    }

    /// Writes zeros.
    ///
    /// # Errors
    /// As [`Field::write`].
    pub fn zero(&self, range: Range<u64>) -> Result<(), FieldError> {
        self.0.begin_writing(range)?.bytes().fill(0);
        Ok(())
    }

    /// A piece as a block of its own, which takes no further bytes. Until its last clone is dropped the piece is not written; then
    /// `keep` is dropped.
    ///
    /// # Errors
    /// As [`Field::chunk`].
    pub fn show(&self, range: Range<u64>, keep: Arc<dyn Any + Send + Sync>) -> Result<Block, FieldError> {
        self.0.begin_reading(&range)?;
        let showing = Showing { field: Arc::clone(&self.0), range: range.clone(), keep: Some(keep) };
        Ok(self.0.landing.block().shown(range, Box::new(showing)))
    }
}

// === impl FieldInner ===

impl FieldInner {
    fn begin_reading(&self, range: &Range<u64>) -> Result<(), FieldError> {
        self.landing.check(range)?;
        let mut turns = self.turns.lock();
        if turns.writing.iter().any(|other| meet(other, range)) {
            return Err(busy(range));
        }
        turns.reading.push(range.clone());
        Ok(())
    }

    fn begin_writing(&self, range: Range<u64>) -> Result<Writing<'_>, FieldError> {
        self.landing.check(&range)?;
        let mut turns = self.turns.lock();
        if turns.writing.iter().chain(&turns.reading).any(|other| meet(other, &range)) {
            return Err(busy(&range));
        }
        turns.writing.push(range.clone());
        drop(turns);
        Ok(Writing { field: self, range })
    }

    fn end_reading(&self, range: &Range<u64>) {
        end(&mut self.turns.lock().reading, range);
    }

    /// Address of a byte that lies inside; none where there are no bytes.
    fn at(&self, offset: u64) -> Option<*mut u8> {
        // SAFETY: ranges are checked against the block before they are in use.
        self.landing.start().map(|start| unsafe { start.add(offset as usize) })
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn busy(range: &Range<u64>) -> FieldError {
    FieldError::Busy { offset: range.start, len: range.end - range.start }
}

/// Takes one of those that are equal to `range`, the latest first.
fn end(ranges: &mut Vec<Range<u64>>, range: &Range<u64>) {
    if let Some(at) = ranges.iter().rposition(|other| other == range) {
        ranges.swap_remove(at);
    }
}

// === impl FieldChunk ===

impl AsRef<[u8]> for FieldChunk<'_> {
    fn as_ref(&self) -> &[u8] {
        let Some(start) = self.field.at(self.range.start) else { return &[] };
        // SAFETY: the range lies inside the block, which lives as long as the field. It is among those that are read, so that
        // nobody in this process has a `&mut` of it; no other process has a writable map of a segment of the sidecar.
        unsafe { std::slice::from_raw_parts(start, (self.range.end - self.range.start) as usize) }
    }
}

impl Drop for FieldChunk<'_> {
    fn drop(&mut self) {
        self.field.end_reading(&self.range);
    }
}

// === impl Writing ===

impl Writing<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        let Some(start) = self.field.at(self.range.start) else { return &mut [] };
        // SAFETY: the range lies inside the block. It is the only one in use that has any of its bytes until this is dropped: others
        // are refused, and pieces that are shown are among those in use. This value is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(start, (self.range.end - self.range.start) as usize) }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        end(&mut self.field.turns.lock().writing, &self.range);
    }
}

// === impl Showing ===

impl Drop for Showing {
    fn drop(&mut self) {
        self.field.end_reading(&self.range);
        drop(self.keep.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, ArenaOptions, Owner, Purpose};
    use crate::block::BlockError;
    use crate::testing::until;

    fn field(arena: &Arena) -> Field {
        let (owner, purpose) = (Owner::Sidecar, Purpose::Put);
        arena.adopt(arena.admit(owner, purpose, 1 << 16).unwrap().populate().unwrap()).unwrap();
        Field::new(&arena.allocate(owner, purpose, 1 << 16).unwrap()).unwrap()
    }

    fn arena() -> Arc<Arena> {
        let options = ArenaOptions { segment_bytes: 1 << 16, ready_bytes: 0, ..ArenaOptions::new(1 << 20) };
        Arena::start(options, Arc::new(|| ())).unwrap()
    }

    fn nobody() -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }

    #[test]
    fn what_is_shown_is_not_written_until_its_last_clone_is_gone_and_the_rest_is() {
        let arena = arena();
        let field = field(&arena);
        field.zero(0..1 << 16).unwrap();
        field.write(100, &[7; 10]).unwrap();
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(());
        let shown = field.show(100..110, Arc::clone(&keep)).unwrap();
        assert_eq!((shown.len(), shown.landing().is_none()), (10, true), "nobody writes it by itself");
        assert_eq!(shown.chunk(0..1).unwrap_err(), BlockError::NotSealed);
        shown.mark_sealed().unwrap();
        assert_eq!(shown.chunk(0..10).unwrap(), [7; 10]);
        let other = shown.clone();
        drop(shown);
        assert_eq!(field.write(109, &[1]).unwrap_err(), FieldError::Busy { offset: 109, len: 1 });
        assert_eq!(field.zero(0..101).unwrap_err(), FieldError::Busy { offset: 0, len: 101 });
        field.write(110, &[8; 4]).unwrap();
        field.write(96, &[9; 4]).unwrap();
        assert_eq!(field.chunk(96..114).unwrap().as_ref(), [[9; 4].as_slice(), &[7; 10], &[8; 4]].concat());
        assert_eq!((other.chunk(0..10).unwrap(), Arc::strong_count(&keep)), ([7; 10].as_slice(), 2));
        drop(other);
        assert_eq!(Arc::strong_count(&keep), 1);
        field.write(109, &[1]).unwrap();
    }

    #[test]
    fn a_piece_lies_where_the_field_has_it_and_keeps_its_memory() {
        let arena = arena();
        let field = field(&arena);
        let whole = field.show(0..1 << 16, nobody()).unwrap();
        let piece = field.show(4_000..5_000, nobody()).unwrap();
        assert_eq!(piece.offset(), whole.offset() + 4_000);
        assert_eq!(piece.segment_id(), whole.segment_id());
        let taken = arena.usage();
        drop((field, whole));
        assert_eq!(arena.usage(), taken, "the piece is there still");
        drop(piece);
        until("all is free", || arena.usage().free == arena.usage().total);
        arena.stop();
    }

    #[test]
    fn reads_go_beside_one_another_and_not_beside_a_write_of_their_bytes() {
        let arena = arena();
        let field = field(&arena);
        let one = field.chunk(0..64).unwrap();
        let other = field.chunk(0..64).unwrap();
        assert!(field.write(63, &[1]).is_err() && field.write(64, &[1]).is_ok());
        drop(one);
        assert!(field.write(63, &[1]).is_err(), "the other one reads still");
        drop(other);
        field.write(63, &[1]).unwrap();
        assert!(matches!(field.chunk(0..(1 << 16) + 1), Err(FieldError::OutOfBounds(_))));
        assert!(matches!(field.write(u64::MAX, &[1]), Err(FieldError::OutOfBounds(_))));
    }
}
