//! A short, stable name for inputs: 64-bit FNV-1a. It tells a changed input from an unchanged one and defends against
//! nobody; the standard library's hash differs from one release of Rust to the next.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Takes pieces in, gives 16 hexadecimal digits out.
#[derive(Debug, Clone)]
pub(crate) struct Hash(u64);

impl Hash {
    /// Of nothing yet.
    pub(crate) fn new() -> Self {
        Self(OFFSET)
    }

    /// Adds a piece. Two pieces are not the same as one that is both.
    pub(crate) fn with(mut self, piece: impl AsRef<[u8]>) -> Self {
        let piece = piece.as_ref();
        let length = (piece.len() as u64).to_le_bytes();
        for &byte in length.iter().chain(piece) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        self
    }

    /// Adds what is in a file.
    pub(crate) fn with_file(self, path: &Path) -> Result<Self, Failure> {
        let bytes = fs::read(path).map_err(|error| Failure::file("read", path, &error))?;
        Ok(self.with(bytes))
    }

    /// The name.
    pub(crate) fn shown(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_one_piece_ends_makes_a_difference() {
        let (one, other) = (Hash::new().with("ab").with("c"), Hash::new().with("a").with("bc"));
        assert_ne!(one.shown(), other.shown());
        assert_eq!(one.shown(), Hash::new().with("ab").with("c").shown());
        assert_eq!(one.shown().len(), 16);
    }
}
