//! A small string that names a tensor from anywhere.
//!
//! ```text
//! tl1:EXCHANGE/PEER/INCARNATION/ID/DTYPE.SHAPE/BYTES/CRC
//! tl1:ml/trainer-0/00112233445566778899aabbccddeeff/42/f32.30522x384/46881792/9c3fd012
//! ```
//!
//! - `tl1` is the version of this form. Another version is refused by name, before anything else is read.
//! - SHAPE is the sizes joined by `x`, nothing for a scalar; beyond 8 dimensions `rRANK.DIGEST`, where DIGEST is the
//!   CRC-32C of the sizes as little-endian 64-bit numbers.
//! - BYTES is the stored byte length: with the rest enough to make room before the owner is asked.
//! - CRC is the CRC-32C of everything before the last `/`: a reference that was cut, mistyped or garbled is refused
//!   where it is read, and is not looked up. It proves no right and guards against nobody.
//!
//! There is exactly one spelling: what is read back prints the same bytes. Only `a-z`, `0-9`, `-`, `.`, `_`, `:` and
//! `/` occur, so that it needs no quotes in a shell, a URL path, YAML or JSON. A reference carries no lease: it may
//! name a tensor that is gone.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use thiserror::Error;

use crate::checksum;
use crate::dtype::DType;
use crate::failure::{Failure, Reason};
use crate::identity::{ExchangeName, Incarnation, PeerName};
use crate::layout::{Layout, MAX_TENSOR_BYTES, Shape};

mod parse;
mod shape;

pub use parse::SharedParts;
pub use shape::{MAX_REFERENCE_DIMS, RefShape};

/// The most bytes of a reference. The longest that can be made has some 800.
pub const MAX_REFERENCE_BYTES: usize = 1024;

const SCHEME: &str = "tl";
const VERSION: &str = "1";

/// A text that is no reference.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// Longer than [`MAX_REFERENCE_BYTES`].
    #[error("{bytes} bytes are no reference; at most {MAX_REFERENCE_BYTES} are allowed")]
    TooLong {
        /// Length of the text, in bytes.
        bytes: usize,
    },
    /// Not `tl` and a version in front.
    #[error("not a reference: it does not begin with \"tl1:\"")]
    NotAReference,
    /// A version that this release does not read.
    #[error("version {0:?} of references is unknown here; this release reads version 1")]
    VersionUnknown(String),
    /// The checksum is not there, or not in its form.
    #[error(
        "the reference was cut or altered: it does not end with a checksum of 8 hexadecimal digits; copy it whole, as it was handed out"
    )]
    ChecksumMissing,
    /// The checksum belongs to another text.
    #[error(
        "the reference was altered or cut: its checksum is not that of what stands before it; copy it whole, as it was handed out"
    )]
    ChecksumWrong,
    /// Too few or too many parts between the slashes.
    #[error("a reference has 7 parts between slashes; this one has {parts}")]
    PartCount {
        /// Number of parts that it has.
        parts: usize,
    },
    /// A part that is not in its form, under a checksum that matches: made by something that is not Tensorlane.
    #[error("the {part} of the reference is not well-formed: {text:?}")]
    Part {
        /// Part that is not in its form.
        part: Part,
        /// Text that stands there.
        text: String,
    },
}

/// The parts of a reference, as its errors name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The name of the exchange.
    Exchange,
    /// The name of the peer.
    Peer,
    /// The incarnation of the peer.
    Incarnation,
    /// The number of the tensor.
    Id,
    /// The type of its elements.
    DType,
    /// The shape of the tensor.
    Shape,
    /// The byte length of the tensor.
    Bytes,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Exchange => "exchange",
            Part::Peer => "peer",
            Part::Incarnation => "incarnation",
            Part::Id => "id",
            Part::DType => "dtype",
            Part::Shape => "shape",
            Part::Bytes => "byte length",
        })
    }
}

/// Names a tensor from anywhere. Made from a proven layout or by parsing; either way each part is in its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    exchange: ExchangeName,
    peer: PeerName,
    incarnation: Incarnation,
    id: u64,
    dtype: DType,
    shape: RefShape,
    bytes: u64,
}

impl Hash for Reference {
    /// Not of the names: an incarnation is of one peer, and the names are most of the bytes.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut words = [0; 34];
        words[..16].copy_from_slice(&self.incarnation.0.to_le_bytes());
        words[16..24].copy_from_slice(&self.id.to_le_bytes());
        words[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        words[32..].copy_from_slice(&self.dtype.code().to_le_bytes());
        state.write(&words);
        self.shape.hash(state);
    }
}

impl Reference {
    /// The reference of tensor `id` of a peer's incarnation, with this layout.
    pub fn new(
        exchange: ExchangeName,
        peer: PeerName,
        incarnation: Incarnation,
        id: u64,
        layout: &Layout,
    ) -> Reference {
        let (dtype, shape, bytes) = (layout.dtype(), RefShape::of(layout.shape()), layout.bytes());
        Reference { exchange, peer, incarnation, id, dtype, shape, bytes }
    }

    /// The exchange that the tensor is in.
    pub const fn exchange(&self) -> &ExchangeName {
        &self.exchange
    }

    /// The peer that owns it.
    pub const fn peer(&self) -> &PeerName {
        &self.peer
    }

    /// The life of that peer in which it was put.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the number of the tensor in that life.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The type of its elements.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape of the tensor, or what is known of it.
    pub const fn shape(&self) -> &RefShape {
        &self.shape
    }

    /// Returns the stored byte length of the tensor, at most [`MAX_TENSOR_BYTES`].
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a tensor of this layout can be the one that is meant.
    pub fn describes(&self, layout: &Layout) -> bool {
        self.dtype == layout.dtype() && self.bytes == layout.bytes() && self.shape.matches(layout.shape())
    }

    /// The refusal of a tensor of this layout, which is not what is meant.
    pub fn mismatch(&self, layout: &Layout) -> Failure {
        Failure::new(Reason::LayoutMismatch, format!("{} has {layout} for {self}", self.peer))
    }

    /// Returns whether another one says the same of what the tensor is.
    pub fn says_as(&self, other: &Reference) -> bool {
        self.dtype == other.dtype && self.bytes == other.bytes && self.shape == other.shape
    }

    /// The text, in one allocation. `to_string` gives the same.
    pub fn encode(&self) -> String {
        let (exchange, peer) = (self.exchange.as_str(), self.peer.as_str());
        let mut text = Vec::with_capacity(128 + exchange.len() + peer.len());
        for part in [SCHEME, VERSION, ":", exchange, "/", peer, "/"] {
            text.extend_from_slice(part.as_bytes());
        }
        push_hex::<32>(&mut text, self.incarnation.0);
        text.push(b'/');
        push_decimal(&mut text, self.id);
        text.push(b'/');
        text.extend_from_slice(self.dtype.name().as_bytes());
        text.push(b'.');
        self.shape.push(&mut text);
        text.push(b'/');
        push_decimal(&mut text, self.bytes);
        let checksum = checksum::crc32c(&text);
        text.push(b'/');
        push_hex::<8>(&mut text, u128::from(checksum));
        String::from_utf8(text).expect("names, digits and what stands between them are ASCII")
    }

    /// Reads a reference that may not even be text.
    ///
    /// # Errors
    /// A [`ReferenceError`]; bytes that are no ASCII are garbled.
    pub fn from_bytes(bytes: &[u8]) -> Result<Reference, ReferenceError> {
        parse::parse(bytes, &mut SharedParts::default())
    }

    /// Reads a reference of many: parts that are spelled as those of the one before are shared with it.
    ///
    /// # Errors
    /// As [`Reference::from_bytes`]; what was read before is known still.
    pub fn from_bytes_sharing(bytes: &[u8], shared: &mut SharedParts) -> Result<Reference, ReferenceError> {
        parse::parse(bytes, shared)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encode())
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Reference, ReferenceError> {
        parse::parse(text.as_bytes(), &mut SharedParts::default())
    }
}

/// Appends a number without leading zeros. The formatting machinery would take longer than all the rest.
fn push_decimal(text: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[at..]);
}

/// Appends exactly `N` lower-case hexadecimal digits.
fn push_hex<const N: usize>(text: &mut Vec<u8>, number: u128) {
    let digit = |place: usize| b"0123456789abcdef"[(number >> (4 * place)) as usize & 15];
    text.extend_from_slice(&std::array::from_fn::<u8, N, _>(|at| digit(N - 1 - at)));
}

#[cfg(test)]
mod tests;
