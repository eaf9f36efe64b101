//! Bytes of a message that comes in over a stream, part after part: where they go, and what is missing. Pure.

use bytes::Bytes;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::CHUNK_BYTES_MAX;

/// Parts of a message whose bytes are coming.
#[derive(Default)]
pub(super) struct ComingBytes {
    parts: Vec<ComingPart>,
    missing: u64,
}

/// Part of a message: how many bytes it has, and how many of them have come.
struct ComingPart {
    bytes: u64,
    came: u64,
}

/// Place of bytes that came: in which part, and where there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Landing {
    pub(super) part: usize,
    pub(super) offset: u64,
}

// === impl ComingBytes ===

impl ComingBytes {
    /// Adds a part of so many bytes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for more bytes than can be counted.
    pub(super) fn push(&mut self, bytes: u64) -> Result<(), Failure> {
        self.missing = self.missing.checked_add(bytes).ok_or_else(|| {
            Failure::new(Reason::InvalidArgument, "the parts of a message have more than 2^64 bytes")
        })?;
        self.parts.push(ComingPart { bytes, came: 0 });
        Ok(())
    }

    /// Bytes of the first part.
    pub(super) fn first(&self) -> u64 {
        self.parts.first().map_or(0, |part| part.bytes)
    }

    /// Bytes that have come, and all that will.
    pub(super) fn progress(&self) -> (u64, u64) {
        let all = self.parts.iter().map(|part| part.bytes).sum();
        (self.parts.iter().map(|part| part.came).sum(), all)
    }

    /// Returns whether all bytes have come.
    pub(super) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Takes the next bytes of a part: where they go.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a part that there is not, or more bytes than it has; TOO_LARGE for a chunk of too many.
    pub(super) fn take(&mut self, part: u32, bytes: usize) -> Result<Landing, Failure> {
        if bytes > CHUNK_BYTES_MAX {
            return Err(too_many(bytes));
        }
        let (index, count) = (part as usize, self.parts.len());
        let Some(part) = self.parts.get_mut(index) else {
            let message = format!("a chunk of part {index} of a message of {count} parts");
            return Err(Failure::new(Reason::InvalidArgument, message).with("part", index));
        };
        let (bytes, left) = (bytes as u64, part.bytes - part.came);
        if bytes > left {
            let message = format!(
                "{bytes} more bytes of part {index}, of which {} of {} have come: {left} are missing",
                part.came, part.bytes
            );
            return Err(Failure::new(Reason::InvalidArgument, message)
                .with("part", index)
                .with("missing_bytes", left));
        }
        let landing = Landing { part: index, offset: part.came };
        part.came += bytes;
        self.missing -= bytes;
        Ok(landing)
    }
}

/// Length of a part whose descriptor says `says` bytes, and its sender `given`, or 0.
///
/// # Errors
/// LAYOUT_MISMATCH where they differ.
pub(super) fn described(index: usize, given: u64, says: u64) -> Result<u64, Failure> {
    if given == 0 || given == says {
        return Ok(says);
    }
    let message = format!("part {index} is said to have {given} bytes, and its descriptor says {says}");
    Err(Failure::new(Reason::LayoutMismatch, message))
}

/// Checks the bytes that came with the beginning of a message.
///
/// # Errors
/// TOO_LARGE for more than one message of a stream may have.
pub(super) fn check_first(first: &[Bytes]) -> Result<(), Failure> {
    let here: usize = first.iter().map(Bytes::len).sum();
    if here > CHUNK_BYTES_MAX { Err(too_many(here)) } else { Ok(()) }
}

fn too_many(bytes: usize) -> Failure {
    let message =
        format!("{bytes} bytes in one message of the stream; at most {CHUNK_BYTES_MAX}: send chunks");
    Failure::new(Reason::TooLarge, message).with("bytes", bytes).with("bytes_max", CHUNK_BYTES_MAX)
}
