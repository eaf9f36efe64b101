//! A map of a segment into this process, checked before it is made. A map for reading can be given other pages under it while
//! it is being read ([`Mapping::exchange`]).
//!
//! A reader insists on the seals: without `SHRINK` a hostile sender could truncate the file and kill us with
//! SIGBUS, without `FUTURE_WRITE` and `SEAL` what we read could be rewritten by strangers.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::seals;

/// Reason why a descriptor is not mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Seals that the file must carry and does not.
    #[error("the descriptor's file lacks the seals {missing:?}; it is not a segment of a Tensorlane sidecar")]
    SealsMissing {
        /// Seals that the file does not carry.
        missing: SealFlags,
    },
    /// The file is shorter than the sender says.
    #[error("the descriptor's file has {actual} bytes where {expected} were announced")]
    Short {
        /// Announced value.
        expected: u64,
        /// Actual value.
        actual: u64,
    },
    /// Nothing to map, or more than an address can say.
    #[error("cannot map {bytes} bytes")]
    Size {
        /// Requested value.
        bytes: u64,
    },
    /// Only a map for reading takes other pages: what a writer wrote would be gone.
    #[error("the pages under a map for writing are not exchanged")]
    Writable,
    /// The kernel refused.
    #[error("cannot {step}")]
    Kernel {
        /// Step that failed.
        step: &'static str,
        /// Error from the kernel.
        #[source]
        source: io::Error,
    },
}

/// A shared map of a segment. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Closed once nothing is mapped any more.
    witness: OnceLock<Arc<OwnedFd>>,
}

// SAFETY: the map is owned by this value alone, stays where it is until drop, and no method hands out a reference
// into it: every access goes through raw pointers whose users state their own contract.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a segment for reading, only if it carries all seals a reader insists on and has at least `bytes`.
    ///
    /// # Errors
    /// What is wrong with the descriptor.
    pub fn reader(fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, MapError> {
        Self::checked(fd, bytes, seals::FOR_READERS, false)
    }

    /// Maps a segment for writing: the sidecar itself and the one session that writes it, before it is sealed.
    ///
    /// # Errors
    /// What is wrong with the descriptor.
    pub fn writer(fd: BorrowedFd<'_>, bytes: u64) -> Result<Self, MapError> {
        Self::checked(fd, bytes, seals::BEFORE_WRITER, true)
    }

    /// Puts the pages of another segment under this map, in one step: at every instant each address shows the page from before
    /// or the one from now, and no access fails. That both have the same bytes is the word of whoever gives the descriptor,
    /// as it is that nobody writes what a reader maps.
    ///
    /// A kernel that is out of memory may take the old pages away and then have no room for the record of the new ones. What it
    /// left is filled at once; where that cannot be, the process is aborted: a map with a hole in it must
    /// not live, since the next map of anybody may lie there.
    ///
    /// # Errors
    /// What is wrong with the descriptor, that this map is for writing, or that the kernel refused; what is mapped stays as it
    /// was.
    pub fn exchange(&self, fd: BorrowedFd<'_>) -> Result<(), MapError> {
        if self.writable {
            return Err(MapError::Writable);
        }
        Self::check(fd, self.bytes(), seals::FOR_READERS)?;
        let (start, flags) = (self.start.as_ptr().cast(), MapFlags::SHARED | MapFlags::FIXED);
        let refused = |source: Errno| MapError::Kernel { step: "exchange the pages", source: source.into() };
        // SAFETY: the range is exactly our map, which lives as long as `self` and begins at a page, so that nothing else is
        // mapped over. The kernel takes the old pages away and puts the new ones there under the one lock that a page fault
        // waits for: pointers into the map stay valid, of the same length and for reading. The file cannot become shorter
        // than the map (its seals and size were just checked). Nobody has a `&mut` of it: the map never was for writing. Where
        // the kernel is out of memory half-way, the range is ours still and unmapped, and is filled below or the process ends.
        match unsafe { rustix::mm::mmap(start, self.len, ProtFlags::READ, flags, fd, 0) } {
            Ok(_) => Ok(()),
            Err(Errno::NOMEM) => match self.fill(fd) {
                Ok(()) => Ok(()),
                // Something is mapped there, and that is what was: nothing was taken away.
                Err(Errno::EXIST) => Err(refused(Errno::NOMEM)),
                Err(_) => std::process::abort(),
            },
            Err(source) => Err(refused(source)),
        }
    }

    /// Maps the checked file where this map is, unless anything is mapped there (`EXIST`). What another thread maps in the hole
    /// before this looks like our old map: that one instant, on a machine without memory, cannot be told apart.
    fn fill(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let (start, flags) = (self.start.as_ptr().cast(), MapFlags::SHARED | MapFlags::FIXED_NOREPLACE);
        // SAFETY: the range is that of our map, the file is no shorter, and nothing that is mapped is mapped over.
        let mapped = unsafe { rustix::mm::mmap(start, self.len, ProtFlags::READ, flags, fd, 0) }?;
        if mapped == start {
            return Ok(());
        }
        // A kernel that does not know the flag (before 4.17) takes the address for a wish.
        // SAFETY: exactly what was just mapped, which nobody else knows.
        let _ = unsafe { rustix::mm::munmap(mapped, self.len) };
        Err(Errno::INVAL)
    }

    fn checked(fd: BorrowedFd<'_>, bytes: u64, wanted: SealFlags, writable: bool) -> Result<Self, MapError> {
        let len = Self::check(fd, bytes, wanted)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new shared map at an address of the kernel's choice overlaps nothing of ours.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }
                .map_err(|source| MapError::Kernel { step: "map the descriptor", source: source.into() })?;
        let start = NonNull::new(start.cast()).ok_or(MapError::Size { bytes })?;
        Ok(Self { start, len, writable, witness: OnceLock::new() })
    }

    /// The length of a map of `bytes`, where the descriptor's file carries the seals and has as many.
    pub(crate) fn check(fd: BorrowedFd<'_>, bytes: u64, wanted: SealFlags) -> Result<usize, MapError> {
        let kernel = |step| move |source: Errno| MapError::Kernel { step, source: source.into() };
        let missing = seals::missing(fd, wanted)
            .map_err(|source| MapError::Kernel { step: "read the seals of the descriptor", source })?;
        if !missing.is_empty() {
            return Err(MapError::SealsMissing { missing });
        }
        // After the seals: a size that can no longer change.
        let size = rustix::fs::fstat(fd).map_err(kernel("read the size of the descriptor"))?.st_size;
        let actual = u64::try_from(size).unwrap_or(0);
        if actual < bytes {
            return Err(MapError::Short { expected: bytes, actual });
        }
        let len = usize::try_from(bytes).ok().filter(|len| *len > 0 && isize::try_from(*len).is_ok());
        len.ok_or(MapError::Size { bytes })
    }

    /// Fills the page tables, so that later reads and writes do not fault. Slow (about 10 GB/s where the pages
    /// exist); run it in the background. Kernels before 5.14 cannot: then nothing happens.
    pub fn populate(&self) {
        self.populate_part(0, self.bytes());
    }

    /// As [`Mapping::populate`], of a part that begins at a page. What lies outside of the map is left out.
    pub fn populate_part(&self, offset: u64, bytes: u64) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.len - offset);
        let advice = if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: the range is within our map, or empty at its end. Populating changes no byte. An error leaves the map as it was,
        // merely slower, so it is not reported.
        let _ = unsafe { rustix::mm::madvise(self.start.as_ptr().add(offset).cast(), len, advice) };
    }

    /// Keeps a witness, which the map lets go of once nothing is mapped. Of several it keeps the first one.
    pub fn keep(&self, witness: Arc<OwnedFd>) {
        let _ = self.witness.set(witness);
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether it was mapped for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address at which the map begins. Valid for [`Mapping::bytes`] while this value lives. Other processes may write
    /// what is there at any time, so that making a reference of it needs a contract of its own.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, and nobody can hold a reference into it beyond this value.
        // It can only fail for a wrong range, which this is not.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        // The witness is dropped after this.
    }
}

#[cfg(test)]
mod tests;
