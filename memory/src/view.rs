//! Views: pieces of a mapping, with their bounds proven when they are made.
//!
//! No view is a safe `&[u8]`. The pages are shared with other processes: a block is reused once its tensor was
//! freed and released, and the process that wrote a segment in place can still write it. So views give pointers
//! and copies, and a slice only against a promise ([`View::as_slice`]). A copy that races with a writer yields
//! mixed bytes, never anything outside the view.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::block::Block;
use crate::mapping::Mapping;
use crate::{OutOfBounds, PAGE, copy};

/// Bytes of a mapping to be read.
#[derive(Debug, Clone)]
pub struct View {
    memory: Memory,
    offset: usize,
    len: usize,
}

/// Memory that a view lies in, and keeps.
#[derive(Debug, Clone)]
enum Memory {
    Mapping(Arc<Mapping>),
    /// A block of this sidecar, in its own map.
    Block {
        block: Block,
        start: NonNull<u8>,
    },
}

// SAFETY: the pointer is into the map that the block keeps; a view only copies, or gives pointers and slices against promises.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn start(&self) -> NonNull<u8> {
        match self {
            Self::Mapping(mapping) => mapping.as_ptr(),
            Self::Block { start, .. } => *start,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Mapping(mapping) => mapping.bytes(),
            Self::Block { block, .. } => block.len(),
        }
    }

    /// The block, whoever else may write it.
    fn of_block(block: &Block) -> Result<Self, OutOfBounds> {
        let none = OutOfBounds { offset: 0, len: 0, within: 0 };
        let start = block.start().filter(|_| !block.is_guest()).ok_or(none)?;
        Ok(Self::Block { block: block.clone(), start })
    }
}

impl View {
    /// The `len` bytes at `offset` of a mapping.
    ///
    /// # Errors
    /// Where they do not lie inside it.
    pub fn new(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        Self::in_memory(Memory::Mapping(mapping), offset, len)
    }

    /// The `len` bytes at `offset` of a block of this sidecar, which another process may write.
    pub(crate) fn of_block(block: &Block, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        Self::in_memory(Memory::of_block(block)?, offset, len)
    }

    fn in_memory(memory: Memory, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        let (offset, len) = bounds(&memory, offset, len)?;
        Ok(Self { memory, offset, len })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the bytes, valid for [`View::len`] while this view lives.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: the constructor proved that the offset lies inside the map (or at its end, for no bytes).
        unsafe { self.memory.start().as_ptr().add(self.offset) }
    }

    /// Offset of the bytes in their mapping.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// A view of a piece of this view.
    ///
    /// # Errors
    /// Where the piece does not lie inside.
    pub fn piece(&self, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        OutOfBounds::check(offset, len, self.len as u64)?;
        Self::in_memory(self.memory.clone(), self.offset as u64 + offset, len)
    }

    /// Copies all bytes; large views with all cores.
    ///
    /// # Errors
    /// Where the destination has another length.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<(), OutOfBounds> {
        if to.len() != self.len {
            return Err(OutOfBounds { offset: 0, len: to.len() as u64, within: self.len as u64 });
        }
        self.copy_range_to(0, to)
    }

    /// Copies as many bytes as `to` has, beginning at `offset` of this view.
    ///
    /// # Errors
    /// Where they do not lie inside.
    pub fn copy_range_to(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, to.len() as u64, self.len as u64)?;
        // SAFETY: the source range was just proven, the destination is ours alone, and a unique slice of ours
        // cannot overlap a map of which safe code has no reference.
        unsafe { copy::raw(to.as_mut_ptr(), self.as_ptr().add(offset as usize), to.len()) };
        Ok(())
    }

    /// The bytes, copied.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Copies all bytes behind those that `to` has.
    pub fn append_to(&self, to: &mut Vec<u8>) {
        to.reserve_exact(self.len);
        let before = to.len();
        // SAFETY: the vector has room for `len` bytes more, and all of them are written before its length says so.
        unsafe {
            copy::raw(to.as_mut_ptr().add(before), self.as_ptr(), self.len);
            to.set_len(before + self.len);
        }
    }

    /// Reads one byte of every page and returns their sum: what a benchmark does to prove that the pages are there.
    #[must_use]
    pub fn touch_pages(&self) -> u64 {
        let start = self.as_ptr();
        (0..self.len)
            .step_by(PAGE as usize)
            // SAFETY: every index lies below the length. Volatile, so that the read is not left out.
            .map(|at| u64::from(unsafe { start.add(at).read_volatile() }))
            .sum()
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// The caller promises that for the life of the slice nobody writes these bytes: a lease on the tensor is
    /// held (so that the block is not reused), the tensor is sealed, and the process that wrote it in place, if
    /// it was written in place, does not alter it.
    #[must_use]
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: bounds by the constructor, immutability by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

/// Reason why a mapping gives no view for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteViewError {
    /// Mapped for reading.
    #[error("the segment is mapped for reading only")]
    ReadOnly,
    /// Out of its bounds.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
}

/// Bytes of a mapping to be written. Two views of the same bytes mix what they write, and harm nothing else.
#[derive(Debug)]
pub struct WriteView {
    memory: Memory,
    offset: usize,
    len: usize,
}

impl WriteView {
    /// The `len` bytes at `offset` of a mapping made for writing.
    ///
    /// # Errors
    /// Where they do not lie inside it, or it is read-only.
    pub fn new(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, WriteViewError> {
        if !mapping.is_writable() {
            return Err(WriteViewError::ReadOnly);
        }
        let memory = Memory::Mapping(mapping);
        let (offset, len) = bounds(&memory, offset, len)?;
        Ok(Self { memory, offset, len })
    }

    /// The `len` bytes at `offset` of a block of this sidecar.
    pub(crate) fn of_block(block: &Block, offset: u64, len: u64) -> Result<Self, OutOfBounds> {
        let memory = Memory::of_block(block)?;
        let (offset, len) = bounds(&memory, offset, len)?;
        Ok(Self { memory, offset, len })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the bytes, valid for [`WriteView::len`] while this view lives.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: the constructor proved that the offset lies inside the map (or at its end, for no bytes).
        unsafe { self.memory.start().as_ptr().add(self.offset) }
    }

    /// Writes `from` at `offset`; from 4 MiB on with all cores.
    ///
    /// # Errors
    /// Where it does not fit.
    pub fn copy_from(&mut self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, from.len() as u64, self.len as u64)?;
        // SAFETY: the destination range was just proven; the source is a slice, which cannot lie in a map of
        // which safe code has no reference.
        unsafe { copy::raw(self.as_mut_ptr().add(offset as usize), from.as_ptr(), from.len()) };
        Ok(())
    }

    /// The bytes as a slice to write in place.
    ///
    /// # Safety
    /// The caller promises that for the life of the slice nobody else reads or writes these bytes: the
    /// reservation is its own, not yet sealed, and no other view of it is in use.
    #[must_use]
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: bounds by the constructor, exclusiveness by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }

    /// View of these bytes, to be read.
    #[must_use]
    pub fn as_view(&self) -> View {
        View { memory: self.memory.clone(), offset: self.offset, len: self.len }
    }
}

fn bounds(memory: &Memory, offset: u64, len: u64) -> Result<(usize, usize), OutOfBounds> {
    OutOfBounds::check(offset, len, memory.bytes())?;
    // Both lie below the length of a map, which is a usize.
    Ok((offset as usize, len as usize))
}
