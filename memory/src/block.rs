//! A block: a piece of a segment given to one tensor. The last clone that is dropped returns the bytes.
//!
//! ```text
//!   writable <--> landing (one writer at a time)
//!       |
//!       '--seal--> sealed: readable through chunks, never writable again
//! ```

use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::arena::{Class, Place, SegmentHandle, Shared};
use crate::{OutOfBounds, copy};

const WRITABLE: u8 = 0;
const LANDING: u8 = 1;
const SEALED: u8 = 2;

/// Reason why something cannot be done with a block in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Reading through chunks begins with the seal.
    #[error("the block is not sealed yet")]
    NotSealed,
    /// Sealed before.
    #[error("the block is sealed already")]
    Sealed,
    /// Landing of the block, which must be dropped first.
    #[error("the block is being written")]
    Landing,
    /// Out of its bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// A handle of a block; clones are the same block.
#[derive(Debug, Clone)]
pub struct Block(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` for a block of no bytes, for a piece of a field (and inside drop).
    home: Option<Home>,
    /// Piece of a field that it shows, whose bytes are the field's in the account.
    piece: Option<Piece>,
    len: u64,
    access: AtomicU8,
    class: AtomicU8,
}

/// Bytes of another block.
struct Piece {
    whole: Block,
    range: Range<u64>,
    /// Dropped with the last handle: from then on they may be written again.
    _in_use: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Piece").field("range", &self.range).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Home {
    shared: Arc<Shared>,
    place: Place,
}

impl Block {
    pub(crate) fn new(shared: Arc<Shared>, place: Place, len: u64) -> Self {
        Self::with(Some(Home { shared, place }), len)
    }

    /// A block whose bytes are there already, and nobody's to write.
    pub(crate) fn sealed(shared: Arc<Shared>, place: Place, len: u64) -> Self {
        let block = Self::new(shared, place, len);
        block.0.access.store(SEALED, Ordering::Release);
        block
    }

    /// Returns whether it is a piece of a [`Field`](crate::Field): its bytes stay as they are for as long as it lives, and no longer.
    #[must_use]
    pub fn is_piece(&self) -> bool {
        self.0.piece.is_some()
    }

    /// A block of no bytes: in no segment, and counted nowhere.
    #[must_use]
    pub fn nothing() -> Self {
        Self::with(None, 0)
    }

    /// A block that shows a range of this one, which must lie inside, and which nobody writes until `in_use` is dropped with its last
    /// handle.
    pub(crate) fn shown(&self, range: Range<u64>, in_use: Box<dyn Any + Send + Sync>) -> Self {
        let len = range.end - range.start;
        Self::of(None, Some(Piece { whole: self.clone(), range, _in_use: in_use }), len)
    }

    fn with(home: Option<Home>, len: u64) -> Self {
        Self::of(home, None, len)
    }

    fn of(home: Option<Home>, piece: Option<Piece>, len: u64) -> Self {
        let (access, class) = (AtomicU8::new(WRITABLE), AtomicU8::new(Class::Reserved as u8));
        Self(Arc::new(Inner { home, piece, len, access, class }))
    }

    /// The number of its segment; 0 for a block of no bytes, which has none.
    #[must_use]
    pub fn segment_id(&self) -> u32 {
        self.0.place().map_or(0, |(place, _)| place.segment.id())
    }

    /// Segment that it lies in; `None` for a block of no bytes.
    #[must_use]
    pub fn segment(&self) -> Option<Arc<SegmentHandle>> {
        self.0.place().map(|(place, _)| Arc::clone(&place.segment))
    }

    /// Offset at which it begins in its segment, in bytes: a multiple of 64, and of 4096 from 2 MiB on. A piece of a field begins
    /// anywhere.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.place().map_or(0, |(place, within)| place.offset + within)
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Address at which it begins in our map, which writes unless it is a guest's; none for no bytes.
    pub(crate) fn start(&self) -> Option<NonNull<u8>> {
        self.0.start().and_then(NonNull::new)
    }

    /// Returns whether it lies in a segment of another sidecar.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.0.place().is_some_and(|(place, _)| place.segment.is_foreign())
    }

    /// Returns whether its segment came from another sidecar, whoever owns its pages by now: the same for as long as it
    /// lives.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        self.0.place().is_some_and(|(place, _)| place.segment.is_guest())
    }

    /// Returns whether it was sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.0.access.load(Ordering::Acquire) == SEALED
    }

    /// The tensor is sealed: readable from now on, never writable again, and counted so.
    ///
    /// # Errors
    /// [`BlockError::Landing`] while it is being written, [`BlockError::Sealed`] the second time.
    pub fn mark_sealed(&self) -> Result<(), BlockError> {
        match self.0.access.compare_exchange(WRITABLE, SEALED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.reclass(Class::Sealed);
                Ok(())
            }
            Err(LANDING) => Err(BlockError::Landing),
            Err(_) => Err(BlockError::Sealed),
        }
    }

    /// The tensor is gone, but a process may still map the block: counted so until the last handle is dropped.
    pub fn mark_retired(&self) {
        self.reclass(Class::Retired);
    }

    fn reclass(&self, to: Class) {
        if let Some(home) = &self.0.home {
            home.shared.reclass(&home.place, &self.0.class, to);
        }
    }

    /// The one writer of this block in this process. `None` where it is sealed, being written already, is a piece of a field, or
    /// lies in a session's segment, which only that session writes.
    #[must_use]
    pub fn landing(&self) -> Option<Landing> {
        let ours = self.0.piece.is_none() && self.0.home.as_ref().is_none_or(|home| home.place.is_ours);
        let taken = |()| {
            self.0.access.compare_exchange(WRITABLE, LANDING, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        (ours && taken(())).then(|| Landing { block: self.clone() })
    }

    /// Bytes of a sealed block, for sockets and checksums.
    ///
    /// In this process nobody writes them any more: a landing is refused from the seal on, and the block is not
    /// given to another tensor while this handle lives. One writer may remain *outside*: the process that wrote a
    /// session's segment in place keeps its map. Should it break its word and alter a sealed tensor, what we read
    /// here changes under our eyes. That is why these bytes are opaque to every consumer: they are copied,
    /// encrypted or summed, each byte read once, and nothing is ever decided by them; never parse them, never
    /// check and then use them. Whether new rows of a set are zero alone is looked at before they are copied: where they
    /// are, nothing is written, whatever they become. The same holds for a foreign block: its owner keeps the bytes while we hold its lease,
    /// and that is its word, not the kernel's.
    ///
    /// # Errors
    /// Before the seal, or where the range does not lie inside.
    pub fn chunk(&self, range: Range<u64>) -> Result<&[u8], BlockError> {
        if !self.is_sealed() {
            return Err(BlockError::NotSealed);
        }
        let len = self.0.check(&range)?;
        let Some(start) = self.0.start() else { return Ok(&[]) };
        // SAFETY: the range lies inside the block and the block inside its segment's map, which lives as long as
        // this handle. No `&mut` of it exists or can come to be: only a landing gives one, the seal was refused
        // while it lived, and none is given after; of a piece only its field, which refuses it while the piece lives.
        // Writers in other processes: see above.
        Ok(unsafe { std::slice::from_raw_parts(start.add(range.start as usize), len) })
    }

    /// As [`Block::chunk`], as a value that keeps the block: for sockets that take bytes along.
    ///
    /// # Errors
    /// As [`Block::chunk`].
    pub fn owned_chunk(&self, range: Range<u64>) -> Result<Chunk, BlockError> {
        self.chunk(range.clone())?;
        Ok(Chunk { block: self.clone(), range })
    }

    /// Copies as many bytes of a sealed block as `to` has, beginning at `offset`; many with all cores.
    ///
    /// # Errors
    /// As [`Block::chunk`].
    pub fn copy_to(&self, offset: u64, to: &mut [u8]) -> Result<(), BlockError> {
        OutOfBounds::check(offset, to.len() as u64, self.0.len)?;
        let from = self.chunk(offset..offset + to.len() as u64)?;
        copy::copy_parallel(to, from);
        Ok(())
    }
}

impl Inner {
    /// The place of its block in the arena, and its offset in that block: 0 but for a piece of a field.
    fn place(&self) -> Option<(&Place, u64)> {
        if let Some(piece) = &self.piece {
            let whole = piece.whole.0.home.as_ref()?;
            return Some((&whole.place, piece.range.start));
        }
        self.home.as_ref().map(|home| (&home.place, 0))
    }

    fn start(&self) -> Option<*mut u8> {
        let (place, within) = self.place()?;
        // SAFETY: the arena gives places inside the segment only, and a piece lies inside its block.
        Some(unsafe { place.segment.mapping().as_ptr().as_ptr().add((place.offset + within) as usize) })
    }

    /// The length of a range that lies inside.
    fn check(&self, range: &Range<u64>) -> Result<usize, OutOfBounds> {
        let len = range.end.checked_sub(range.start);
        let len = len.ok_or(OutOfBounds { offset: range.start, len: 0, within: self.len })?;
        OutOfBounds::check(range.start, len, self.len)?;
        Ok(len as usize)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(Home { shared, place }) = self.home.take() {
            shared.release(place, Class::of(self.class.load(Ordering::Acquire)));
        }
    }
}

/// A piece of a sealed block that keeps the block; see [`Block::chunk`] for what its bytes may be used for.
#[derive(Debug, Clone)]
pub struct Chunk {
    block: Block,
    range: Range<u64>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self.block.chunk(self.range.clone()).expect("a sealed block stays sealed and keeps its length")
    }
}

/// The one writer of a block that is not sealed. Dropping it leaves the block writable, and what was written in it.
#[derive(Debug)]
#[must_use = "dropping it ends the writing"]
pub struct Landing {
    block: Block,
}

impl Landing {
    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// Length of the block in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.block.len()
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Proves that a range lies inside.
    pub(crate) fn check(&self, range: &Range<u64>) -> Result<usize, OutOfBounds> {
        self.block.0.check(range)
    }

    /// Address at which it begins in our map; none for no bytes.
    pub(crate) fn start(&self) -> Option<*mut u8> {
        self.block.0.start()
    }

    /// Bytes to write in place, where a socket reads into them. They may hold bytes of an earlier tensor.
    ///
    /// # Errors
    /// Where the range does not lie inside.
    pub fn chunk_mut(&mut self, range: Range<u64>) -> Result<&mut [u8], OutOfBounds> {
        let len = self.block.0.check(&range)?;
        let Some(start) = self.block.0.start() else { return Ok(&mut []) };
        // SAFETY: the range lies inside the block and its segment's map. This landing is the only one (the state
        // says so until it is dropped), it is borrowed uniquely, chunks are refused before the seal, and the seal
        // is refused while it lives. The segment is the sidecar's: no other process has a writable map, and readers
        // in other processes are told of the block only after its seal.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.add(range.start as usize), len) })
    }

    /// Bytes as they are now, for whoever writes a block for a long time and reads it in between.
    ///
    /// # Errors
    /// Where the range does not lie inside.
    pub fn chunk(&self, range: Range<u64>) -> Result<&[u8], OutOfBounds> {
        let len = self.block.0.check(&range)?;
        let Some(start) = self.block.0.start() else { return Ok(&[]) };
        // SAFETY: the range lies inside the block and its segment's map. Only this landing writes it, and it is borrowed; no other
        // process has a writable map of a segment of the sidecar.
        Ok(unsafe { std::slice::from_raw_parts(start.add(range.start as usize), len) })
    }

    /// Writes `from` at `offset`.
    ///
    /// # Errors
    /// Where it does not fit.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, from.len() as u64, self.block.len())?;
        self.chunk_mut(offset..offset + from.len() as u64)?.copy_from_slice(from);
        Ok(())
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.block.0.access.store(WRITABLE, Ordering::Release);
    }
}
