//! A private map of a piece of a segment: the same pages until this process writes one, which it then has alone.
//!
//! For libraries that know no read-only memory. A write through a map for reading would end the process, and a map for writing
//! would show it to everybody.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::mapping::{MapError, Mapping};
use crate::{OutOfBounds, PAGE, seals};

/// Bytes of a segment, private from the first write on. Unmapped when dropped.
///
/// Pages that were not written show the segment, so whoever maps it keeps the tensor from being freed, as with any map.
#[derive(Debug)]
pub struct PrivateMap {
    start: NonNull<u8>,
    /// Length of the whole pages.
    mapped: usize,
    /// Bytes of the first page before those that were asked for.
    lead: usize,
    bytes: usize,
}

// SAFETY: the map is owned by this value alone, stays where it is until drop, and no method hands out a reference
// into it: every access goes through raw pointers whose users state their own contract.
unsafe impl Send for PrivateMap {}
// SAFETY: as above.
unsafe impl Sync for PrivateMap {}

impl PrivateMap {
    /// Maps `bytes` at `offset` of a segment, at least one.
    ///
    /// # Errors
    /// The fault of the descriptor, that they do not lie inside it, or that the kernel refused.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<Self, MapError> {
        let end = offset.checked_add(bytes).filter(|_| bytes > 0).ok_or(MapError::Size { bytes })?;
        // The seals: without them the file could become shorter under the map.
        Mapping::check(fd, end, seals::BEFORE_WRITER)?;
        let lead = offset % PAGE;
        let mapped = usize::try_from(lead + bytes).map_err(|_| MapError::Size { bytes })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new map at an address of the kernel's choice overlaps nothing of ours.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped, protection, flags, fd, offset - lead) }
                .map_err(|source| MapError::Kernel { step: "map privately", source: source.into() })?;
        let start = NonNull::new(start.cast()).ok_or(MapError::Size { bytes })?;
        // Both are at most `mapped`.
        Ok(Self { start, mapped, lead: lead as usize, bytes: bytes as usize })
    }

    /// Fills the page tables for reading, so that reads do not fault one by one.
    pub fn populate(&self) {
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is exactly our map. Populating changes no byte. An error leaves the map as it was,
        // merely slower, so it is not reported.
        let _ = unsafe { rustix::mm::madvise(start, self.mapped, Advice::LinuxPopulateRead) };
    }

    /// Length in bytes; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Address of the bytes, valid for [`PrivateMap::len`], to read and write, while this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the lead lies inside the first page of the map.
        unsafe { self.start.as_ptr().add(self.lead) }
    }

    /// The bytes, copied.
    ///
    /// # Errors
    /// The range does not lie inside.
    pub fn copy_range_to(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, to.len() as u64, self.bytes as u64)?;
        // SAFETY: the source range was just proven, and a unique slice cannot lie in a map of which safe code has no reference.
        unsafe { crate::copy::raw(to.as_mut_ptr(), self.as_ptr().add(offset as usize), to.len()) };
        Ok(())
    }
}

impl Drop for PrivateMap {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped, and nobody can hold a reference into it beyond this value.
        // It can only fail for a wrong range, which this is not.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::*;
    use crate::View;
    use crate::segment::{Fallocate, Sealed, Unsealed};

    fn written(bytes: &[u8], at: u64) -> Sealed {
        let segment = Unsealed::create(4 * PAGE, &Fallocate).unwrap();
        assert_eq!(rustix::io::pwrite(segment.writer_fd().unwrap(), bytes, at).unwrap(), bytes.len());
        segment.seal().unwrap()
    }

    #[test]
    fn what_is_written_into_a_private_map_is_seen_in_it_alone() {
        let segment = written(b"tensor", PAGE + 3);
        let private = PrivateMap::new(segment.reader_fd(), PAGE + 3, 6).unwrap();
        let seen = || {
            let mut bytes = [0; 6];
            private.copy_range_to(0, &mut bytes).unwrap();
            bytes
        };
        private.populate();
        assert_eq!((private.len(), &seen()), (6, b"tensor"));
        // SAFETY: inside the map, which nobody else knows.
        unsafe { private.as_ptr().write(b'T') };
        assert_eq!(&seen(), b"Tensor");
        let shared = Arc::new(Mapping::reader(segment.reader_fd(), 4 * PAGE).unwrap());
        assert_eq!(View::new(shared, PAGE + 3, 6).unwrap().to_vec(), b"tensor");
    }

    #[test]
    fn what_does_not_lie_in_the_segment_is_not_mapped() {
        let segment = written(b"x", 0);
        for (offset, bytes) in [(0, 0), (0, 4 * PAGE + 1), (4 * PAGE, 1), (u64::MAX, 2)] {
            let mapped = PrivateMap::new(segment.reader_fd().as_fd(), offset, bytes);
            assert!(mapped.is_err(), "{bytes} at {offset}");
        }
    }
}
