//! Atomics in shared memory, and sleeping on them.
//!
//! [`Shared`] only reads: other processes write there at any time, and the map may be read-only. [`Own`] writes, too. On read-only
//! pages no more than relaxed loads of at most 8 bytes are defined (documentation of `std::sync::atomic`), so that a load that acquires
//! is one of those and a fence.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::thread::futex::{self, Flags, Timespec};

use super::RingError;
use crate::OutOfBounds;
use crate::block::Block;
use crate::mapping::Mapping;
use crate::view::{View, WriteView};

/// Alignment of a region: a cache line.
pub(super) const LINE: u64 = 64;
/// Longest sleep. A net for the races of a death, not a mechanism.
const SLICE: Duration = Duration::from_millis(250);

#[cfg(test)]
thread_local! {
    /// Tests take the net away, so that it hides no wake that is lost.
    pub(super) static NO_NET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Stores that this thread makes before it is as dead as a process that was killed; none for a thread that lives.
    pub(super) static STORES_LEFT: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Longest sleep of this thread.
fn slice() -> Duration {
    #[cfg(test)]
    if NO_NET.get() {
        return Duration::from_secs(3_600);
    }
    SLICE
}

/// Returns whether this thread stores: always, but for one that a test has die.
fn stores() -> bool {
    #[cfg(test)]
    if let Some(left) = STORES_LEFT.get() {
        STORES_LEFT.set(Some(left.saturating_sub(1)));
        return left > 0;
    }
    true
}

/// Memory that a region lies in, kept for as long as the region.
#[derive(Debug)]
enum Keep {
    Mapping(Arc<Mapping>),
    Block(Block),
}

/// A piece of memory that other processes may write.
#[derive(Debug)]
pub(super) struct Shared {
    start: NonNull<u8>,
    len: u64,
    /// Offset in the mapping; 0 in a block.
    offset: u64,
    keep: Keep,
}

/// A piece of memory that this process writes, beside others that know the same rules.
#[derive(Debug)]
pub(super) struct Own(Shared);

// SAFETY: the region is a pointer into memory that `keep` keeps, mapping and block may both be sent and shared, and every access is
// atomic or goes through views, which say what they promise.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

// === impl Shared ===

impl Shared {
    /// The `len` bytes at `offset` of a mapping.
    pub(super) fn of_mapping(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, RingError> {
        OutOfBounds::check(offset, len, mapping.bytes())?;
        if !offset.is_multiple_of(LINE) {
            return Err(RingError::Misaligned { offset });
        }
        // SAFETY: just proven to lie inside the map.
        let start = unsafe { mapping.as_ptr().add(offset as usize) };
        Ok(Self { start, len, offset, keep: Keep::Mapping(mapping) })
    }

    /// Loads a word; what was written before it was stored is seen after this.
    pub(super) fn load32(&self, at: u64) -> u32 {
        let value = self.word32(at).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// As [`Self::load32`].
    pub(super) fn load64(&self, at: u64) -> u64 {
        let value = self.word64(at).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    /// Sleeps while the word is `expected`, until the moment, for a slice of time at most. Comes back early at will.
    pub(super) fn wait(&self, at: u64, expected: u32, until: Option<Instant>) {
        let slice = slice();
        let left = until.map_or(slice, |until| until.saturating_duration_since(Instant::now()).min(slice));
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // Another value, a wake, a signal, the end of the time: the caller looks again whichever it was. Not PRIVATE: other processes
        // wake us, through maps of their own.
        let _ = futex::wait(self.word32(at), Flags::empty(), expected, Some(&timeout));
    }

    /// Wakes all who sleep on the word. Works through read-only maps, too.
    pub(super) fn wake(&self, at: u64) {
        // It cannot fail for a mapped word; nobody sleeping is no failure.
        let _ = futex::wake(self.word32(at), Flags::empty(), i32::MAX as u32);
    }

    /// Bytes to be read.
    pub(super) fn view(&self, at: u64, len: u64) -> Result<View, OutOfBounds> {
        OutOfBounds::check(at, len, self.len)?;
        match &self.keep {
            Keep::Mapping(mapping) => View::new(Arc::clone(mapping), self.offset + at, len),
            Keep::Block(block) => View::of_block(block, at, len),
        }
    }

    fn word32(&self, at: u64) -> &AtomicU32 {
        self.check(at, 4);
        // SAFETY: inside the region, which is at a line, so that `at`, a multiple of 4, is aligned. All accesses everywhere are atomic.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at as usize).cast()) }
    }

    fn word64(&self, at: u64) -> &AtomicU64 {
        self.check(at, 8);
        // SAFETY: as above, with 8.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at as usize).cast()) }
    }

    /// Offsets come from a proven shape: another one is a mistake of this crate.
    fn check(&self, at: u64, len: u64) {
        assert!(
            at.is_multiple_of(len) && OutOfBounds::check(at, len, self.len).is_ok(),
            "word {at} of {}",
            self.len
        );
    }
}

// === impl Own ===

impl Own {
    /// The `len` bytes at `offset` of a mapping made for writing.
    pub(super) fn of_mapping(mapping: Arc<Mapping>, offset: u64, len: u64) -> Result<Self, RingError> {
        if !mapping.is_writable() {
            return Err(RingError::ReadOnly);
        }
        Shared::of_mapping(mapping, offset, len).map(Self)
    }

    /// A block of this sidecar, whoever else writes it.
    pub(super) fn of_block(block: &Block, len: u64) -> Result<Self, RingError> {
        OutOfBounds::check(0, len, block.len())?;
        let start = block.start().filter(|_| !block.is_guest()).ok_or(RingError::ReadOnly)?;
        if !block.offset().is_multiple_of(LINE) {
            return Err(RingError::Misaligned { offset: block.offset() });
        }
        Ok(Self(Shared { start, len, offset: 0, keep: Keep::Block(block.clone()) }))
    }

    /// Region for reading alone.
    pub(super) fn into_shared(self) -> Shared {
        self.0
    }

    pub(super) fn store32(&self, at: u64, value: u32) {
        if stores() {
            self.word32(at).store(value, Ordering::Release);
        }
    }

    pub(super) fn store64(&self, at: u64, value: u64) {
        if stores() {
            self.word64(at).store(value, Ordering::Release);
        }
    }

    pub(super) fn add32(&self, at: u64) {
        if stores() {
            self.word32(at).fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Stores `to` where `from` is.
    pub(super) fn swap32(&self, at: u64, from: u32, to: u32) {
        if !stores() {
            return;
        }
        // Another value is one that another writer set: it stays.
        let _ = self.word32(at).compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Bytes to be written.
    pub(super) fn write_view(&self, at: u64, len: u64) -> Result<WriteView, OutOfBounds> {
        OutOfBounds::check(at, len, self.len)?;
        let refused = OutOfBounds { offset: at, len, within: 0 };
        match &self.keep {
            Keep::Mapping(mapping) => {
                WriteView::new(Arc::clone(mapping), self.offset + at, len).map_err(|_| refused)
            }
            Keep::Block(block) => WriteView::of_block(block, at, len),
        }
    }
}

impl Deref for Own {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
