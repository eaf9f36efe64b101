//! A segment: memory shared by file descriptor, populated before use and sealed in a fixed order.
//!
//! ```text
//!   create: memfd, size, populate, SHRINK|GROW, our map          seal: FUTURE_WRITE|SEAL, verified
//!   ------------------------------------------------> Unsealed ------------------------------------> Sealed
//!                                                     writer_fd (the one writer)                     reader_fd
//! ```
//!
//! That nothing reaches a reader before the seals is a matter of types: only [`Sealed`] has a `reader_fd`.
//! A failure at any step leaves nothing behind: descriptor and map go with the value.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};

use crate::mapping::{MapError, Mapping};
use crate::{round_to_pages, seals};

/// Number of bytes that are populated at once, so that a cancelled creation stops within a few milliseconds (16 MiB at
/// 3 GB/s).
pub const POPULATE_STEP: u64 = 16 << 20;

/// Gives a file its pages. The world varies here: a full machine refuses.
pub trait Populate: Send + Sync {
    /// Makes the file hold pages for `bytes` at `offset`.
    ///
    /// # Errors
    /// What the kernel says; what was populated before stays in the file, which the caller then drops.
    fn populate(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()>;
}

/// The real one: `fallocate`, about 3 GB/s where a first write by `memcpy` makes 0.4.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fallocate;

impl Populate for Fallocate {
    fn populate(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, bytes) {
                Err(rustix::io::Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }
}

/// Reason why a segment could not be made or sealed.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// A segment of no bytes, or of more than can be rounded to pages.
    #[error("a segment cannot have {bytes} bytes")]
    Size {
        /// Requested value.
        bytes: u64,
    },
    /// Failure of one of the steps of making it.
    #[error("cannot {step} for a segment of {bytes} bytes")]
    Step {
        /// Step that failed.
        step: &'static str,
        /// Size of the segment.
        bytes: u64,
        /// Error from the kernel.
        #[source]
        source: io::Error,
    },
    /// Failure to map it in this process.
    #[error("cannot map a new segment of {bytes} bytes")]
    Map {
        /// Size of the segment.
        bytes: u64,
        /// Cause.
        #[source]
        source: MapError,
    },
    /// The kernel took the seals and does not show them; the segment was destroyed.
    #[error("the segment does not carry the seals {missing:?}; it was destroyed")]
    SealsMissing {
        /// Seals that are not there.
        missing: SealFlags,
    },
    /// Somebody needed the bytes elsewhere before the segment was finished.
    #[error("populating was cancelled after {populated} of {bytes} bytes")]
    Cancelled {
        /// Bytes that were populated by then.
        populated: u64,
        /// Size of the segment.
        bytes: u64,
    },
}

/// A segment that its one writer may still map for writing, and nobody else may have.
#[derive(Debug)]
#[must_use = "a segment that is dropped is destroyed"]
pub struct Unsealed {
    // Unmapped before it is closed: while the descriptor is to be seen, the pages may be there, and not longer.
    mapping: Mapping,
    fd: OwnedFd,
}

impl Unsealed {
    /// A populated segment of `bytes`, rounded up to whole pages, mapped read-write by us.
    ///
    /// # Errors
    /// The step that failed; nothing stays.
    pub fn create(bytes: u64, populate: &dyn Populate) -> Result<Self, SegmentError> {
        Self::create_unless(bytes, populate, &AtomicBool::new(false))
    }

    /// As [`Unsealed::create`], and gives up between two steps of [`POPULATE_STEP`] once `cancelled` is set.
    ///
    /// # Errors
    /// The step that failed, or [`SegmentError::Cancelled`]; nothing stays.
    pub fn create_unless(
        bytes: u64,
        populate: &dyn Populate,
        cancelled: &AtomicBool,
    ) -> Result<Self, SegmentError> {
        let rounded = round_to_pages(bytes).filter(|rounded| *rounded > 0 && i64::try_from(*rounded).is_ok());
        let bytes = rounded.ok_or(SegmentError::Size { bytes })?;
        let step = |step| move |source: io::Error| SegmentError::Step { step, bytes, source };

        let fd = new_memfd().map_err(step("create a memfd"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(io::Error::from).map_err(step("set the size"))?;
        let mut populated = 0;
        while populated < bytes {
            if cancelled.load(Ordering::Relaxed) {
                return Err(SegmentError::Cancelled { populated, bytes });
            }
            let piece = POPULATE_STEP.min(bytes - populated);
            populate.populate(fd.as_fd(), populated, piece).map_err(step("populate the pages"))?;
            populated += piece;
        }
        // Only the owner may even try to re-open it; the seals are what refuses the attempt.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .map_err(step("restrict the mode"))?;
        seals::add(&fd, seals::BEFORE_WRITER).map_err(step("forbid a change of size"))?;
        let mapping =
            Mapping::writer(fd.as_fd(), bytes).map_err(|source| SegmentError::Map { bytes, source })?;
        Ok(Self { mapping, fd })
    }

    /// Fills the page tables of our map: some 0.3 s a GiB, which spares every later write its fault. A map that only reads can
    /// do without: the kernel fills sixteen entries at a fault. Gives up between two steps of [`POPULATE_STEP`] once `cancelled` is set.
    pub fn fill_page_tables(&self, cancelled: &AtomicBool) {
        let mut filled = 0;
        while filled < self.bytes() && !cancelled.load(Ordering::Relaxed) {
            let until = self.bytes().min(filled + POPULATE_STEP);
            self.mapping.populate_part(filled, until - filled);
            filled = until;
        }
    }

    /// Size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// Map of this process, which writes.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// A read-write descriptor for the one writer. It must have mapped it before [`Unsealed::seal`].
    ///
    /// # Errors
    /// Where no descriptor is to be had.
    pub fn writer_fd(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?)
    }

    /// Ends the time in which anyone could map it for writing. Maps that exist go on writing.
    ///
    /// # Errors
    /// The seals were refused or are not there; the segment is destroyed with the error.
    pub fn seal(self) -> Result<Sealed, SegmentError> {
        let bytes = self.bytes();
        let step = |step| move |source: io::Error| SegmentError::Step { step, bytes, source };
        seals::add(&self.fd, seals::BEFORE_READERS).map_err(step("seal"))?;
        let missing = seals::missing(&self.fd, seals::FOR_READERS).map_err(step("read the seals"))?;
        if !missing.is_empty() {
            return Err(SegmentError::SealsMissing { missing });
        }
        let reader_fd = reopen_read_only(self.fd.as_fd()).map_err(step("re-open read-only"))?;
        Ok(Sealed { mapping: self.mapping, reader_fd })
    }
}

/// A segment that nobody can map for writing any more; the maps of its writer and of this process still write.
#[derive(Debug)]
pub struct Sealed {
    mapping: Mapping,
    reader_fd: OwnedFd,
}

impl Sealed {
    /// Size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// The read-only descriptor to hand to readers.
    #[must_use]
    pub fn reader_fd(&self) -> BorrowedFd<'_> {
        self.reader_fd.as_fd()
    }

    /// Map of this process, which writes.
    #[must_use]
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

fn new_memfd() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // NOEXEC_SEAL since Linux 6.3; some machines refuse a memfd without it.
    match rustix::fs::memfd_create("tensorlane", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => Ok(rustix::fs::memfd_create("tensorlane", flags)?),
        made => Ok(made?),
    }
}

fn reopen_read_only(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests;
