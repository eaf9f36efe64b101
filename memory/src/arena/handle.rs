//! A segment that the arena knows: one of its own, or one of another sidecar of the node. One of another whose owner is dead
//! may become our own under the same handle: blocks, addresses and the number stay ([`super::orphans`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::{Owner, Shared};
use crate::mapping::{MapError, Mapping};
use crate::passing;
use crate::segment::Sealed;

/// A sealed segment: what a session layer hands to readers.
#[derive(Debug)]
pub struct SegmentHandle {
    id: u32,
    owner: Owner,
    /// The sidecar writes it now, since its session is gone.
    taken_over: AtomicBool,
    /// `None` only inside drop.
    memory: Option<Memory>,
    shared: Weak<Shared>,
}

/// Memory that a handle keeps.
#[derive(Debug)]
pub(super) enum Memory {
    /// A segment of this arena.
    Own(Sealed),
    /// A segment of another one; see [`super::foreign`].
    Foreign(Lent),
}

/// Memory that another sidecar gave: unmapped first, and its witness closed last.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) mapping: Mapping,
    pub(super) fd: OwnedFd,
    pub(super) witness: OwnedFd,
    /// The pages are a copy in this arena by now, and the descriptors those of the copy.
    taken_in: AtomicBool,
    /// Held while a memory and the witness that belongs to it are handed out, and while both change.
    handing: Mutex<()>,
}

/// A dead owner's descriptors, once more: its memory closed first, and its witness last.
#[derive(Debug)]
pub(super) struct LetGo {
    _fd: OwnedFd,
    _witness: OwnedFd,
}

impl Lent {
    pub(super) fn new(mapping: Mapping, fd: OwnedFd, witness: OwnedFd) -> Self {
        Self { mapping, fd, witness, taken_in: AtomicBool::new(false), handing: Mutex::new(()) }
    }

    fn let_go(&self) -> io::Result<LetGo> {
        Ok(LetGo { _fd: self.fd.try_clone()?, _witness: self.witness.try_clone()? })
    }
}

impl SegmentHandle {
    /// Number of the segment, never used again by this arena; from 1.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Owner, who writes it: the session it was made for, or the sidecar, also after that session's end. Of a foreign
    /// segment nobody here does.
    #[must_use]
    pub fn owner(&self) -> Owner {
        if self.taken_over.load(Ordering::Acquire) { Owner::Sidecar } else { self.owner }
    }

    pub(super) fn new(id: u32, owner: Owner, sealed: Sealed, shared: Weak<Shared>) -> Self {
        Self::with(id, owner, Memory::Own(sealed), shared)
    }

    pub(super) fn foreign(id: u32, lent: Lent, shared: Weak<Shared>) -> Self {
        Self::with(id, Owner::Sidecar, Memory::Foreign(lent), shared)
    }

    fn with(id: u32, owner: Owner, memory: Memory, shared: Weak<Shared>) -> Self {
        Self { id, owner, taken_over: AtomicBool::new(false), memory: Some(memory), shared }
    }

    pub(super) fn take_over(&self) {
        self.taken_over.store(true, Ordering::Release);
    }

    /// Returns whether another sidecar owns it.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.lent().is_some_and(|lent| !lent.taken_in.load(Ordering::Acquire))
    }

    /// Returns whether it came from another sidecar, whoever has its pages now.
    pub(crate) fn is_guest(&self) -> bool {
        self.lent().is_some()
    }

    /// While this is held, memory and witness are of one and the same file.
    pub(super) fn handing(&self) -> Option<MutexGuard<'_, ()>> {
        self.lent().map(|lent| lent.handing.lock())
    }

    /// The pages of `copy` take the place of its owner's, in our map and behind our descriptors. The caller holds
    /// [`SegmentHandle::handing`], and lets go of the owner's when it does not any more: freeing them takes its time.
    pub(super) fn exchange(&self, copy: &Sealed) -> Result<Option<LetGo>, MapError> {
        let Some(lent) = self.lent() else { return Ok(None) };
        // Where there are no descriptors for it, the owner's are let go of here.
        let before = lent.let_go().ok();
        // The one step that the kernel may refuse: after it nothing goes back.
        lent.mapping.exchange(copy.reader_fd())?;
        passing::replace(&lent.fd, copy.reader_fd());
        // A witness of nothing, from here on.
        passing::replace(&lent.witness, copy.reader_fd());
        Ok(before)
    }

    /// Notes that the segment is this arena's from now on. Called under the lock of the books.
    pub(super) fn is_taken_in(&self) {
        if let Some(lent) = self.lent() {
            lent.taken_in.store(true, Ordering::Release);
        }
    }

    fn lent(&self) -> Option<&Lent> {
        match &self.memory {
            Some(Memory::Foreign(lent)) => Some(lent),
            _ => None,
        }
    }

    /// Size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapping().bytes()
    }

    /// The read-only descriptor for readers. Hand it out with a witness ([`Arena::hand_out`](super::Arena::hand_out)), never alone.
    #[must_use]
    pub fn reader_fd(&self) -> BorrowedFd<'_> {
        match self.memory() {
            Memory::Own(sealed) => sealed.reader_fd(),
            Memory::Foreign(lent) => lent.fd.as_fd(),
        }
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        match self.memory() {
            Memory::Own(sealed) => sealed.mapping(),
            Memory::Foreign(lent) => &lent.mapping,
        }
    }

    /// The witness of its owner, which goes wherever the segment goes. None of our own.
    pub(super) fn owners_witness(&self) -> Option<BorrowedFd<'_>> {
        match self.memory() {
            Memory::Own(_) => None,
            Memory::Foreign(lent) => self.is_foreign().then(|| lent.witness.as_fd()),
        }
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("only drop takes it")
    }
}

impl Drop for SegmentHandle {
    fn drop(&mut self) {
        let foreign = self.is_foreign();
        // First the memory, then the books: bytes that are given back must be gone.
        drop(self.memory.take());
        if let Some(shared) = self.shared.upgrade() {
            if foreign { shared.foreign_memory_gone(self.id) } else { shared.memory_gone(self.id) }
        }
    }
}
