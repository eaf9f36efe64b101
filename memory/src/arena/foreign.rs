//! Segments of other sidecars of the node: mapped here, handed on to our clients, and never ours to count as arena.
//!
//! ```text
//!   owner's arena --descriptor, witness--> import --> Foreign --block--> Block (read-only; gives its lease back when dropped)
//!                                                        |
//!                                                     witness --> our clients: a carrier with the owner's witness inside
//! ```
//!
//! The owner's pages stay the owner's: they are charged to its pod and reused by its arena. What it needs to know is when
//! nobody of this pod maps them any more, also if this process dies. So its witness has to be where the map is. A client
//! takes one descriptor as a witness, and we want to know of its end too: a *carrier* does both. It is one end of a
//! socket pair in whose queue a copy of the owner's witness lies, sent and never received. The kernel closes that copy when
//! the last copy of the carrier is closed, by whatever end its holders came to, and tells us at the other end of the pair.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::handle::Lent;
use super::state::{Class, Place};
use super::{Arena, SegmentHandle, Shared};
use crate::block::Block;
use crate::mapping::{MapError, Mapping};
use crate::{OutOfBounds, passing};

/// Most bytes of other sidecars that are mapped at a time: an eighth of the addresses that a process has.
const MAPPED_MAX: u64 = 16 << 40;
/// Kind of the file system that memory files live in, of linux/magic.h.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Value that is dropped with the last handle of a foreign block: whoever made it gives the owner's lease back then. It
/// is dropped on any thread, under any lock of the caller, so it must be quick and take none of them.
pub type Lease = Box<dyn Send + Sync>;

/// Reason why a segment of another sidecar is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Not a segment that can be read safely.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The file is no memory, or not all of it is there: what is read of the rest would be charged to its reader.
    #[error("a segment of {bytes} bytes came as {what} of {size} bytes with {present} of them there")]
    Part {
        /// Announced value.
        bytes: u64,
        /// Kind of the file system.
        what: &'static str,
        /// Size of the file.
        size: u64,
        /// Bytes that have a page, or are swapped out.
        present: u64,
    },
    /// More than there are addresses for: the same pages can be given any number of times.
    #[error("a segment of {bytes} bytes came where {mapped} are mapped; at most {MAPPED_MAX} of all peers")]
    TooMuch {
        /// Announced value.
        bytes: u64,
        /// Bytes of other sidecars that are mapped.
        mapped: u64,
    },
    /// No witness, though it should be one.
    #[error("the segment came with a witness that is no pipe")]
    Witness,
    /// The kernel does not tell what it is.
    #[error("cannot look at the witness of a segment")]
    Look(#[source] io::Error),
    /// The arena stopped.
    #[error("the arena has stopped")]
    Stopped,
}

/// A segment of another sidecar. The last handle that is dropped, blocks included, unmaps it.
#[derive(Debug, Clone)]
pub struct Foreign {
    segment: Arc<SegmentHandle>,
    shared: Arc<Shared>,
}

/// Memory of others that is mapped here, in bytes. None of it is part of this arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForeignUsage {
    /// Segments that this process or one of its clients maps.
    pub mapped: u64,
    /// Tensors in them that are in use.
    pub used: u64,
    /// The part of `mapped` whose owner is gone, or was lost: pages that stay for as long as somebody here maps them.
    pub orphaned: u64,
    /// Of the orphaned, since the start: what was copied into this arena.
    pub copied: u64,
    /// Of the orphaned, since the start: what went because nobody here mapped it any more.
    pub dropped: u64,
}

impl Arena {
    /// Takes a segment in that another sidecar gave, with its witness: maps it for reading and numbers it like our own.
    ///
    /// # Errors
    /// The memory lacks the seals, is none of exactly `bytes` with every page there, there is too much of others already, or its
    /// witness is none.
    pub fn import(&self, memory: OwnedFd, witness: OwnedFd, bytes: u64) -> Result<Foreign, ImportError> {
        let mapped = self.foreign().mapped;
        if mapped.checked_add(bytes).is_none_or(|all| all > MAPPED_MAX) {
            return Err(ImportError::TooMuch { bytes, mapped });
        }
        let mapping = Mapping::reader(memory.as_fd(), bytes)?;
        // After the seals were looked at: they forbid to change the size, and to take pages away.
        check_whole(memory.as_fd(), bytes)?;
        let kind = rustix::fs::fstat(&witness).map_err(|error| ImportError::Look(error.into()))?;
        if FileType::from_raw_mode(kind.st_mode) != FileType::Fifo {
            return Err(ImportError::Witness);
        }
        let lent = Lent::new(mapping, memory, witness);
        let mut state = self.shared.state.lock();
        let Some(id) = state.next_foreign() else { return Err(ImportError::Stopped) };
        let handle = SegmentHandle::foreign(id, lent, Arc::downgrade(&self.shared));
        let segment = Arc::new(handle);
        state.import(&segment);
        drop(state);
        Ok(Foreign { segment, shared: Arc::clone(&self.shared) })
    }

    /// Memory of others that is mapped here.
    #[must_use]
    pub fn foreign(&self) -> ForeignUsage {
        self.shared.state.lock().foreign_usage()
    }

    /// A witness of a foreign segment: the carrier, with a copy of the owner's inside.
    pub(super) fn carrier(&self, segment: &Arc<SegmentHandle>, session: u64) -> io::Result<OwnedFd> {
        let inside = segment.owners_witness().ok_or(io::ErrorKind::InvalidInput)?;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        passing::send(near.as_fd(), &[IoSlice::new(&[0])], &[inside])?;
        let (shared, id) = (Arc::downgrade(&self.shared), segment.id());
        let watch = self.watcher.on_hangup(near, move || {
            if let Some(shared) = shared.upgrade() {
                shared.carrier_ended(id, session);
            }
        });
        watch?.detach();
        Ok(far)
    }
}

/// Checks that a file is memory of this size, all of which is there.
fn check_whole(memory: BorrowedFd<'_>, bytes: u64) -> Result<(), ImportError> {
    let look = |error: rustix::io::Errno| ImportError::Look(error.into());
    let file = rustix::fs::fstat(memory).map_err(look)?;
    let is_tmpfs = rustix::fs::fstatfs(memory).map_err(look)?.f_type == TMPFS_MAGIC;
    let (size, present) = (file.st_size.cast_unsigned(), file.st_blocks.cast_unsigned().saturating_mul(512));
    if is_tmpfs && size == bytes && present >= bytes {
        return Ok(());
    }
    let what = if is_tmpfs { "memory" } else { "a file of another kind" };
    Err(ImportError::Part { bytes, what, size, present })
}

impl Foreign {
    /// Number of the segment in this arena.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.segment.id()
    }

    /// Size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segment.bytes()
    }

    /// Blocks of it that live.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.shared.state.lock().foreign_blocks(self.id())
    }

    /// A tensor's bytes in it, sealed. `lease` is dropped with the last handle of the block.
    ///
    /// # Errors
    /// Where they do not lie inside.
    pub fn block(&self, offset: u64, bytes: u64, lease: Lease) -> Result<Block, OutOfBounds> {
        OutOfBounds::check(offset, bytes, self.bytes())?;
        self.shared.state.lock().foreign_taken(self.id(), bytes);
        let (segment, lease) = (Arc::clone(&self.segment), Some(lease));
        let place = Place { segment, offset, charged: bytes, is_ours: false, lease };
        Ok(Block::sealed(Arc::clone(&self.shared), place, bytes))
    }

    /// Notes that its owner is gone, or was lost: nothing new is taken from it, and its bytes count as orphaned.
    pub fn orphan(&self) {
        self.shared.state.lock().foreign_orphaned(self.id());
    }
}

impl Shared {
    /// The last handle of a block of a segment that came from elsewhere is gone.
    pub(super) fn release_foreign(&self, place: Place, class: Class) {
        let Place { segment, charged, lease, .. } = place;
        let settled = self.state.lock().foreign_given_back(segment.id(), charged, class);
        drop(lease);
        self.let_go(segment);
        self.follow(settled);
    }

    /// The last one that keeps a segment does not unmap it on its own thread.
    pub(super) fn let_go(&self, segment: Arc<SegmentHandle>) {
        if let Some(last) = Arc::into_inner(segment) {
            self.reap(Arc::new(last));
        }
    }

    /// Notes that our map and descriptor of a foreign segment are gone.
    pub(super) fn foreign_memory_gone(&self, segment: u32) {
        self.state.lock().foreign_gone(segment);
    }

    /// Nobody has a carrier of a session any more.
    pub(super) fn carrier_ended(&self, segment: u32, session: u64) {
        let pinned = self.state.lock().carrier_ended(segment, session);
        drop(pinned);
    }
}

#[cfg(test)]
mod tests;
