//! The seals of a memfd: which ones a segment carries when, and the one question asked of the kernel about them.
//!
//! `SHRINK | GROW` come before anyone else holds a descriptor, so that nobody can truncate the file under a map.
//! `FUTURE_WRITE | SEAL` come when the writer has its map: from then on nobody, root neither, gets a new writable
//! map, writes through a descriptor, or changes the seals.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};

/// Seals that a segment carries before any descriptor of it leaves this process.
pub const BEFORE_WRITER: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Seals that a segment carries in addition before any reader gets a descriptor.
pub const BEFORE_READERS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// Everything a reader insists on.
pub const FOR_READERS: SealFlags = BEFORE_WRITER.union(BEFORE_READERS);

/// Adds seals, all of them or none.
///
/// # Errors
/// What the kernel says: `EPERM` where the descriptor is read-only or sealing is over.
pub fn add(fd: impl AsFd, seals: SealFlags) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, seals)?)
}

/// Seals of `wanted` that the descriptor's file does not carry.
///
/// # Errors
/// What the kernel says: `EINVAL` where the file cannot carry seals at all.
pub fn missing(fd: impl AsFd, wanted: SealFlags) -> io::Result<SealFlags> {
    Ok(wanted.difference(fcntl_get_seals(fd)?))
}
