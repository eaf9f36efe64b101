//! The memory of Tensorlane: segments, the arena, mappings, witnesses and the passing of descriptors.
//!
//! This crate knows no protocol, no tensor and no runtime: it moves bytes and counts them. It is also the only
//! place of the workspace (but one file of `python/`) where `unsafe` is allowed, each block with its reason.
//!
//! ```text
//!   Unsealed --seal--> Sealed --reader_fd--> other processes, read-only
//!      |                  |
//!   writer_fd          Arena (extents, accounting, populated pool) --> Block --> Landing (write), Chunk (read)
//!      |                                                                |
//!   one session's Mapping / WriteView                    Mapping / View of every reader, kept until its witness ends
//! ```
//!
//! - [`segment`]: memory shared by descriptor, sealed in an order that leaves no moment of weakness.
//! - [`arena`]: a budget of bytes, segments of owners in it, blocks that return themselves.
//! - [`inherited`]: what a dead incarnation left mapped.
//! - [`mapping`], [`view`] and [`private`]: the client's side. Bytes of files go to and from views without a buffer.
//! - [`ring`]: messages of one writer for many readers.
//! - [`passing`], [`watcher`], [`fork`], [`heap`], [`limits`], [`affinity`], [`copy`], [`rename`]: what the kernel offers, made safe.

pub mod affinity;
pub mod arena;
pub mod copy;
pub mod field;
pub mod fork;
pub mod heap;
pub mod inherited;
pub mod limits;
pub mod mapping;
pub mod passing;
pub mod private;
pub mod rename;
pub mod ring;
pub mod seals;
pub mod segment;
pub mod view;
pub mod watcher;

mod accounting;
mod block;
mod extents;
mod file;
mod owned_thread;
mod scatter;
mod spread;
#[cfg(test)]
mod testing;

pub use accounting::{Room, Shortage, Usage};
pub use arena::{
    AdoptError, Arena, ArenaError, ArenaOptions, Foreign, ForeignUsage, Fresh, Grant, GrowError, ImportError,
    Lease, NoRoom, Owner, Purpose, SegmentHandle, TakenIn,
};
pub use block::{Block, BlockError, Chunk, Landing};
pub use field::{Field, FieldChunk, FieldError};
pub use mapping::{MapError, Mapping};
pub use owned_thread::StartThread;
pub use private::PrivateMap;
pub use scatter::{Scattered, scatter_runs};
pub use segment::{Fallocate, Populate, SegmentError};
pub use spread::{Incomplete, Part, PartError, Spread};
pub use view::{View, WriteView};
pub use watcher::{Watch, Watcher};

/// The size of a page, in bytes: the unit in which segments are made and charged.
pub const PAGE: u64 = 4096;

/// `bytes` rounded up to whole pages, or `None` where that overflows.
#[must_use]
pub const fn round_to_pages(bytes: u64) -> Option<u64> {
    match bytes.checked_add(PAGE - 1) {
        Some(sum) => Some(sum / PAGE * PAGE),
        None => None,
    }
}

/// A range that does not lie inside the bytes it was asked of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} do not lie inside {within} bytes")]
pub struct OutOfBounds {
    /// Offset at which the range would begin.
    pub offset: u64,
    /// Length that it would have.
    pub len: u64,
    /// Number of bytes that there are.
    pub within: u64,
}

impl OutOfBounds {
    /// Proves that `len` bytes at `offset` lie inside `within`.
    ///
    /// # Errors
    /// The three numbers, where they do not.
    pub fn check(offset: u64, len: u64, within: u64) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= within => Ok(()),
            _ => Err(Self { offset, len, within }),
        }
    }
}
