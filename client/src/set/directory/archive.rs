//! Archives of tensordict, `NAME.tdz`: a zip of a directory of a set, whose tensors lie stored, where they can be mapped.
//!
//! ```text
//!   head, padding  bytes of obs.memmap, at a multiple of 64 │ head  meta.json │ …  │ list of all entries │ end
//! ```
//! Written from the beginning to the end, also into a pipe. Of archives that others made, stored entries are read, as tensordict writes
//! them.

mod pack;
mod unpack;

pub use pack::pack;
pub use unpack::unpack;

use super::PIECE_BYTES;

/// Mark of the head of an entry.
const HEAD_MARK: u32 = 0x0403_4b50;
/// Mark of an entry in the list at the end.
const LISTED_MARK: u32 = 0x0201_4b50;
/// Mark of the end.
const END_MARK: u32 = 0x0605_4b50;
/// Mark of the end in 64 bits, and of the record that says where that is.
const WIDE_END_MARK: u32 = 0x0606_4b50;
const WIDE_PLACE_MARK: u32 = 0x0706_4b50;

/// Number of the extra field with what needs 64 bits.
const WIDE_FIELD: u16 = 1;
/// Method of entries whose bytes are as they are.
const STORED: u16 = 0;
/// Bytes of the head of an entry beside its name and extra fields.
const HEAD_BYTES: u64 = 30;
/// Kind of a plain file among the rights of an entry, and the bits that say the kind.
const PLAIN_FILE: u32 = 0o100_000;
const KIND_BITS: u32 = 0o170_000;

/// Offsets and lengths of the pieces in which so many bytes are moved.
fn pieces(total: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..total)
        .step_by(PIECE_BYTES as usize)
        .map(move |offset| (offset, PIECE_BYTES.min(total - offset) as usize))
}

#[cfg(test)]
mod tests;
