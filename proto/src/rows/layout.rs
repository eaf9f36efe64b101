//! The layout of a mutable set, and where its rows lie.
//!
//! Rows are cut into *bands* of a power of two of rows. A band is one piece of memory: the rows of the first leaf, then those of
//! the second, and so on, each beginning at a multiple of 64 bytes. What was never written has no band.

use std::collections::HashMap;

use crate::checksum::crc32c;
use crate::descriptor::Descriptor;
use crate::dtype::DType;
use crate::failure::{Failure, Reason};
use crate::generated as v1;
use crate::layout::{Layout, MAX_DIMS, MAX_TENSOR_BYTES, Shape};

/// Most leaves of a mutable set.
pub const SETS_LEAVES_MAX: usize = 4_096;
/// Most rows of a mutable set.
pub const SET_ROWS_MAX: u64 = 1 << 40;
/// Bytes that a band has at most, unless one row has more. The first write of a band costs as much memory.
pub const BAND_BYTES: u64 = 1 << 20;
/// Most bands of a mutable set; larger sets have larger bands.
const BANDS_MAX: u64 = 1 << 16;
/// Longest key of a leaf, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// Multiple at which the rows of a leaf begin in their band, in bytes.
const ALIGN: u64 = 64;

/// Bytes of heap that a leaf takes beside its key and its shape: itself, and its entry in the map of keys.
const LEAF_HEAP: u64 = 256;

/// Leaf of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Key of the leaf.
    pub key: String,
    /// Type of an element.
    pub dtype: DType,
    /// Sizes of the dimensions of one row.
    pub row_shape: Vec<u64>,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Offset of its first row in a band, in bytes.
    offset: u64,
}

/// A layout that is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetLayout {
    leaves: Vec<Leaf>,
    by_key: HashMap<String, usize>,
    rows: u64,
    /// Rows of a band, as a power of two.
    band_power: u32,
    band_bytes: u64,
    bytes: u64,
}

/// Bytes of neighbouring rows of a leaf that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The band.
    pub band: u64,
    /// Offset in the band, in bytes.
    pub offset: u64,
    /// Offset in all rows of the leaf, packed, in bytes.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
}

impl SetLayout {
    /// Proves a layout.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the leaf that is wrong, DTYPE_UNKNOWN, LAYOUT_MISMATCH, TOO_LARGE.
    pub fn new(leaves: &[v1::SetLeaf], rows: u64) -> Result<Self, Failure> {
        if leaves.is_empty() || leaves.len() > SETS_LEAVES_MAX {
            let what = format!("a mutable set has 1 to {SETS_LEAVES_MAX} leaves, not {}", leaves.len());
            return Err(Failure::new(Reason::InvalidArgument, what).with("leaves", leaves.len()));
        }
        if rows == 0 || rows > SET_ROWS_MAX {
            let what = format!("a mutable set has 1 to {SET_ROWS_MAX} rows, not {rows}");
            return Err(Failure::new(Reason::InvalidArgument, what).with("rows", rows));
        }
        let mut proven = leaves.iter().map(|leaf| Leaf::new(leaf, rows)).collect::<Result<Vec<_>, _>>()?;
        let mut by_key = HashMap::with_capacity(proven.len());
        for (at, leaf) in proven.iter().enumerate() {
            if by_key.insert(leaf.key.clone(), at).is_some() {
                let what = format!("two leaves have the key {:?}; give each its own", leaf.key);
                return Err(Failure::new(Reason::InvalidArgument, what).with("key", &leaf.key));
            }
        }
        let row_bytes: u64 = proven.iter().map(|leaf| leaf.row_bytes).sum();
        let bytes =
            row_bytes.checked_mul(rows).filter(|bytes| *bytes <= MAX_TENSOR_BYTES).ok_or_else(|| {
                let what = format!("{rows} rows of {row_bytes} bytes are more than {MAX_TENSOR_BYTES} bytes");
                Failure::new(Reason::TooLarge, what)
            })?;
        let fitting = (BAND_BYTES / row_bytes.max(1)).clamp(1, rows);
        let needed = rows.div_ceil(BANDS_MAX).next_power_of_two();
        let band_rows = (1 << fitting.ilog2()).max(needed);
        let mut band_bytes: u64 = 0;
        for leaf in &mut proven {
            leaf.offset = band_bytes.next_multiple_of(ALIGN);
            band_bytes = leaf.offset + leaf.row_bytes * band_rows;
        }
        Ok(Self { leaves: proven, by_key, rows, band_power: band_rows.ilog2(), band_bytes, bytes })
    }

    /// The leaves, in the order in which they were given.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// The number of rows.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of a band.
    pub const fn band_bytes(&self) -> u64 {
        self.band_bytes
    }

    /// Bytes of all rows, packed.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of heap that the layout takes, at most.
    pub fn heap_bytes(&self) -> u64 {
        let of = |leaf: &Leaf| 2 * leaf.key.len() as u64 + 8 * leaf.row_shape.len() as u64 + LEAF_HEAP;
        self.leaves.iter().map(of).sum()
    }

    /// Digest of the number of rows and of all leaves, in order. Numbers of leaves and rows mean the same in layouts that share it.
    pub fn digest(&self) -> u32 {
        let mut bytes = self.rows.to_le_bytes().to_vec();
        for Leaf { key, dtype, row_shape, .. } in &self.leaves {
            // Lengths first: no two lists of leaves are the same bytes.
            let lengths = [key.len() as u64, row_shape.len() as u64, dtype.code().into()];
            bytes.extend(lengths.iter().chain(row_shape).flat_map(|number| number.to_le_bytes()));
            bytes.extend(key.as_bytes());
        }
        crc32c(&bytes)
    }

    /// The band of a row.
    pub const fn band(&self, row: u64) -> u64 {
        row >> self.band_power
    }

    /// The number of bands, at most 65,536.
    pub const fn bands(&self) -> u64 {
        self.band(self.rows - 1) + 1
    }

    /// Rows of a band: the first one, and how many there are.
    pub fn rows_of_band(&self, band: u64) -> (u64, u64) {
        let first = band << self.band_power;
        (first, self.left_in_band(first).min(self.rows.saturating_sub(first)))
    }

    /// The leaf of a key, as its index.
    ///
    /// # Errors
    /// SET_MISMATCH with the key, and the keys that there are.
    pub fn leaf(&self, key: &str) -> Result<usize, Failure> {
        self.by_key.get(key).copied().ok_or_else(|| {
            let keys: Vec<_> = self.leaves.iter().take(8).map(|leaf| format!("{:?}", leaf.key)).collect();
            let what = format!("the set has no leaf {key:?}; it has {}", keys.join(", "));
            Failure::new(Reason::SetMismatch, what).with("key", key)
        })
    }

    /// Bytes of so many neighbouring rows of a leaf, which lie in one band.
    pub fn run(&self, leaf: &Leaf, row: u64, rows: u64) -> Run {
        let within = row & ((1 << self.band_power) - 1);
        Run {
            band: self.band(row),
            offset: leaf.offset + within * leaf.row_bytes,
            start: row * leaf.row_bytes,
            length: rows * leaf.row_bytes,
        }
    }

    /// Number of rows from this one to the end of its band.
    pub fn left_in_band(&self, row: u64) -> u64 {
        let band_rows = 1u64 << self.band_power;
        band_rows - (row & (band_rows - 1))
    }
}

impl Leaf {
    fn new(leaf: &v1::SetLeaf, rows: u64) -> Result<Self, Failure> {
        let v1::SetLeaf { key, dtype, row_shape } = leaf;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let what = format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", key.len());
            return Err(Failure::new(Reason::InvalidArgument, what).with("bytes", key.len()));
        }
        let dtype = u16::try_from(*dtype).ok().and_then(DType::from_code).ok_or_else(|| {
            let what = format!("the dtype {dtype} of {key:?} is none that this release knows");
            Failure::new(Reason::DTypeUnknown, what).with("key", key)
        })?;
        if row_shape.len() >= MAX_DIMS {
            let what = format!(
                "a row of {key:?} has {} dimensions; at most {} are allowed",
                row_shape.len(),
                MAX_DIMS - 1
            );
            return Err(Failure::new(Reason::InvalidArgument, what).with("key", key));
        }
        let about = |error: &dyn std::fmt::Display| {
            Failure::new(Reason::LayoutMismatch, format!("the leaf {key:?}: {error}")).with("key", key)
        };
        let row = Shape::new(row_shape).map_err(|error| about(&error))?;
        let bits = row.elements() * u64::from(dtype.bits());
        if !bits.is_multiple_of(8) {
            return Err(about(&format_args!("a row of {dtype} must fill whole bytes, and has {bits} bits")));
        }
        let row_bytes = bits / 8;
        if row_bytes.checked_mul(rows).is_none_or(|bytes| bytes > MAX_TENSOR_BYTES) {
            let what =
                format!("the leaf {key:?}: {rows} rows of {row_bytes} bytes are more than a tensor has");
            return Err(Failure::new(Reason::TooLarge, what).with("key", key));
        }
        Ok(Self { key: key.clone(), dtype, row_shape: row_shape.clone(), row_bytes, offset: 0 })
    }

    /// Descriptor of so many rows, packed.
    ///
    /// # Errors
    /// TOO_LARGE.
    pub fn packed(&self, rows: u64) -> Result<Descriptor, Failure> {
        let dims: Vec<u64> = std::iter::once(rows).chain(self.row_shape.iter().copied()).collect();
        let layout = Shape::new(&dims).and_then(|shape| Layout::contiguous(self.dtype, shape));
        layout.map(Descriptor::host).map_err(|error| Failure::new(Reason::TooLarge, error.to_string()))
    }

    /// Checks that a tensor is so many rows of this leaf.
    ///
    /// # Errors
    /// SET_MISMATCH with the key, what is there and what is due.
    pub fn check(&self, rows: u64, given: &Layout) -> Result<(), Failure> {
        let due = self.packed(rows)?.layout;
        if *given == due {
            return Ok(());
        }
        let what = format!("{:?} was given as {given}, and {rows} rows of it are {due}, row-major", self.key);
        Err(Failure::new(Reason::SetMismatch, what).with("key", &self.key))
    }

    /// The leaf as a message.
    pub fn message(&self) -> v1::SetLeaf {
        v1::SetLeaf {
            key: self.key.clone(),
            dtype: self.dtype.code().into(),
            row_shape: self.row_shape.clone(),
        }
    }
}
