//! The shape inside a reference.

use super::{push_decimal, push_hex};
use crate::checksum;
use crate::layout::Shape;

/// The most dimensions that a reference spells out. More would make it long; almost no tensor has more.
pub const MAX_REFERENCE_DIMS: usize = 8;

/// Statement of a reference about the shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefShape {
    /// Up to [`MAX_REFERENCE_DIMS`] dimensions, in full.
    Dims(Shape),
    /// More: how many, and a digest to recognise them by.
    Digest {
        /// The number of dimensions.
        rank: u8,
        /// The CRC-32C of the sizes as little-endian 64-bit numbers.
        crc32c: u32,
    },
}

impl RefShape {
    /// Returns what a reference says of this shape.
    pub fn of(shape: &Shape) -> RefShape {
        if shape.rank() <= MAX_REFERENCE_DIMS {
            return RefShape::Dims(shape.clone());
        }
        let crc32c = shape.iter().fold(0, |crc, size| checksum::crc32c_append(crc, &size.to_le_bytes()));
        let rank = u8::try_from(shape.rank()).expect("a shape has at most 32 dimensions");
        RefShape::Digest { rank, crc32c }
    }

    /// Returns whether this can be said of the shape.
    pub fn matches(&self, shape: &Shape) -> bool {
        match self {
            RefShape::Dims(dims) => dims == shape,
            digest => *digest == RefShape::of(shape),
        }
    }

    pub(super) fn push(&self, text: &mut Vec<u8>) {
        match self {
            RefShape::Dims(dims) => {
                for (dim, &size) in dims.iter().enumerate() {
                    if dim > 0 {
                        text.push(b'x');
                    }
                    push_decimal(text, size);
                }
            }
            RefShape::Digest { rank, crc32c } => {
                text.push(b'r');
                push_decimal(text, u64::from(*rank));
                text.push(b'.');
                push_hex::<8>(text, u128::from(*crc32c));
            }
        }
    }
}
