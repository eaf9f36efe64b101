//! A segment that lives in the arena.

use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Owner, Shared};
use crate::mapping::Mapping;
use crate::segment::Sealed;

/// A sealed segment in the arena: what a session layer hands to readers.
#[derive(Debug)]
pub struct SegmentHandle {
    id: u32,
    owner: Owner,
    /// The sidecar writes it now, since its session is gone.
    taken_over: AtomicBool,
    /// `None` only inside drop.
    sealed: Option<Sealed>,
    shared: Weak<Shared>,
}

impl SegmentHandle {
    /// Its number, never used again by this arena; from 1.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Who writes it: the session it was made for, or the sidecar, also after that session's end.
    #[must_use]
    pub fn owner(&self) -> Owner {
        if self.taken_over.load(Ordering::Acquire) { Owner::Sidecar } else { self.owner }
    }

    pub(super) fn new(id: u32, owner: Owner, sealed: Sealed, shared: Weak<Shared>) -> Self {
        Self { id, owner, taken_over: AtomicBool::new(false), sealed: Some(sealed), shared }
    }

    pub(super) fn take_over(&self) {
        self.taken_over.store(true, Ordering::Release);
    }

    /// Size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sealed().bytes()
    }

    /// The read-only descriptor for readers. Hand it out with a witness ([`Arena::witness`](super::Arena::witness)), never alone.
    #[must_use]
    pub fn reader_fd(&self) -> BorrowedFd<'_> {
        self.sealed().reader_fd()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        self.sealed().mapping()
    }

    fn sealed(&self) -> &Sealed {
        self.sealed.as_ref().expect("only drop takes it")
    }
}

impl Drop for SegmentHandle {
    fn drop(&mut self) {
        // First the memory, then the books: bytes that are given back must be gone.
        drop(self.sealed.take());
        if let Some(shared) = self.shared.upgrade() {
            shared.memory_gone(self.id);
        }
    }
}
