//! Layout: how many elements, in what order, in how many bytes.
//!
//! A [`Layout`] is a proof: dtype, shape, strides and byte length agree, nothing overflows, and every element lies
//! inside the bytes. Whoever has one need not check again. It knows nothing of where the bytes are.

use std::fmt;

use thiserror::Error;

use crate::dtype::DType;

mod shape;

pub use shape::{MAX_DIMS, MAX_ELEMENTS, Shape, Strides};

/// The most bytes of one tensor, stored or packed: 256 TiB. Below it all arithmetic on offsets fits `i64`, and no
/// machine of today has more; a larger count is a mistake or an attack.
pub const MAX_TENSOR_BYTES: u64 = 1 << 48;

/// Reason for which dtype, shape, strides and byte length make no tensor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// More dimensions than [`MAX_DIMS`].
    #[error("{dims} dimensions; at most {MAX_DIMS} are allowed")]
    TooManyDims {
        /// Number of dimensions that were given.
        dims: usize,
    },
    /// The sizes of the dimensions multiply to more than [`MAX_ELEMENTS`].
    #[error("the dimensions multiply to more than {MAX_ELEMENTS} elements at dimension {dim} of size {size}")]
    TooManyElements {
        /// Dimension at which the product went over.
        dim: usize,
        /// The size of that dimension.
        size: u64,
    },
    /// More bytes than [`MAX_TENSOR_BYTES`].
    #[error("{elements} elements of {dtype} are more than {MAX_TENSOR_BYTES} bytes")]
    TooManyBytes {
        /// The type of an element.
        dtype: DType,
        /// Number of elements, or the storage extent in elements if strides reach further.
        elements: u64,
    },
    /// Strides in a wrong number: one for each dimension is due, or none at all.
    #[error("{strides} strides for {dims} dimensions; give one for each, or none for row-major order")]
    StrideCount {
        /// Number of strides.
        strides: usize,
        /// Number of dimensions.
        dims: usize,
    },
    /// A stride that would reach before the first byte.
    #[error(
        "stride {stride} of dimension {dim} reaches before the first byte; stored tensors need strides >= 0"
    )]
    NegativeStride {
        /// The dimension.
        dim: usize,
        /// Stride of the dimension, in elements.
        stride: i64,
    },
    /// The strides reach beyond any tensor.
    #[error("stride {stride} of dimension {dim} reaches beyond {MAX_TENSOR_BYTES} bytes")]
    StrideTooLarge {
        /// The dimension.
        dim: usize,
        /// Stride of the dimension, in elements.
        stride: i64,
    },
    /// Elements smaller than a byte, strided other than in whole bytes.
    #[error(
        "{dtype} is smaller than a byte: only whole bytes can be strided, and rows must fill whole bytes"
    )]
    SubByteStrides {
        /// The type of an element.
        dtype: DType,
    },
    /// The byte length disagrees with dtype, shape and strides.
    #[error("{given} bytes given; {dtype} of shape {shape} needs exactly {needed}")]
    ByteLength {
        /// The type of an element.
        dtype: DType,
        /// The shape.
        shape: Shape,
        /// Bytes that they need.
        needed: u64,
        /// Bytes that were given.
        given: u64,
    },
}

/// Dtype, shape, strides and byte length that agree.
///
/// Strides that only say row-major order are dropped, so that equal layouts compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: DType,
    shape: Shape,
    strides: Option<Strides>,
    bytes: u64,
}

impl Layout {
    /// Proves that the four agree. Without strides the order is row-major and dense; without a byte length it is
    /// computed. With strides the bytes are the storage extent: one element more than the farthest offset.
    ///
    /// Strides are in elements and not negative; 0 repeats an element. Elements smaller than a byte may be strided
    /// only in whole bytes. Zero-element tensors and scalars (no dimension) are fine.
    ///
    /// # Errors
    /// A [`LayoutError`] that names the value that was wrong.
    pub fn new(
        dtype: DType,
        shape: Shape,
        strides: Option<Strides>,
        byte_length: Option<u64>,
    ) -> Result<Layout, LayoutError> {
        let packed = packed_bytes(dtype, shape.elements())?;
        let strides = match strides {
            None => None,
            Some(strides) => {
                check_strides(dtype, &shape, &strides)?;
                (!is_row_major(&shape, &strides)).then_some(strides)
            }
        };
        let bytes = match &strides {
            None => packed,
            Some(strides) => packed_bytes(dtype, extent(&shape, strides)?)?,
        };
        if let Some(strides) = strides.as_ref().filter(|_| dtype.is_sub_byte()) {
            check_sub_byte(dtype, &shape, strides)?;
        }
        match byte_length {
            Some(given) if given != bytes => {
                Err(LayoutError::ByteLength { dtype, shape, needed: bytes, given })
            }
            _ => Ok(Layout { dtype, shape, strides, bytes }),
        }
    }

    /// The dense, row-major layout of a shape.
    ///
    /// # Errors
    /// [`LayoutError::TooManyBytes`].
    pub fn contiguous(dtype: DType, shape: Shape) -> Result<Layout, LayoutError> {
        Layout::new(dtype, shape, None, None)
    }

    /// The type of an element.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes of the dimensions.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The strides in elements; `None` for dense row-major order.
    pub const fn strides(&self) -> Option<&Strides> {
        self.strides.as_ref()
    }

    /// The strides in elements, written out where the order is row-major.
    pub fn effective_strides(&self) -> Strides {
        self.strides.clone().unwrap_or_else(|| Strides::row_major(&self.shape))
    }

    /// The bytes that the tensor occupies, gaps between strided elements included.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of the elements alone, packed in row-major order.
    pub fn packed_bytes(&self) -> u64 {
        packed_bytes(self.dtype, self.shape.elements()).expect("proven when the layout was made")
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.elements()
    }

    /// Returns whether the elements lie densely in row-major order.
    pub const fn is_contiguous(&self) -> bool {
        self.strides.is_none()
    }

    /// The dense layout with the same dtype and shape: what a get of a strided tensor gives.
    pub fn packed(&self) -> Layout {
        let (dtype, shape) = (self.dtype, self.shape.clone());
        Layout { dtype, shape, strides: None, bytes: self.packed_bytes() }
    }
}

/// `f32[30522, 384]`, with strides where they are not row-major.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)?;
        match &self.strides {
            Some(strides) => write!(f, " strides {strides}"),
            None => Ok(()),
        }
    }
}

/// The bits of the elements rounded up to a byte.
fn packed_bytes(dtype: DType, elements: u64) -> Result<u64, LayoutError> {
    let bits = u128::from(elements) * u128::from(dtype.bits());
    match u64::try_from(bits.div_ceil(8)) {
        Ok(bytes) if bytes <= MAX_TENSOR_BYTES => Ok(bytes),
        _ => Err(LayoutError::TooManyBytes { dtype, elements }),
    }
}

fn check_strides(dtype: DType, shape: &Shape, strides: &Strides) -> Result<(), LayoutError> {
    let (dims, given) = (shape.rank(), strides.len());
    if dims != given {
        return Err(LayoutError::StrideCount { strides: given, dims });
    }
    let limit = i64::try_from(MAX_TENSOR_BYTES * 8 / u64::from(dtype.bits())).unwrap_or(i64::MAX);
    for (dim, &stride) in strides.iter().enumerate() {
        if stride < 0 {
            return Err(LayoutError::NegativeStride { dim, stride });
        }
        // The stride of a dimension without a second element is never walked: frameworks write anything there.
        if shape[dim] > 1 && stride > limit {
            return Err(LayoutError::StrideTooLarge { dim, stride });
        }
    }
    Ok(())
}

/// Returns whether the strides only say what row-major order says anyway. Dimensions of one element do not matter, and
/// where there is no element nothing does.
fn is_row_major(shape: &Shape, strides: &Strides) -> bool {
    if shape.elements() == 0 {
        return true;
    }
    let natural = Strides::row_major(shape);
    (0..shape.rank()).all(|dim| shape[dim] == 1 || strides[dim] == natural[dim])
}

/// Offset of the farthest element and one more, in elements.
fn extent(shape: &Shape, strides: &Strides) -> Result<u64, LayoutError> {
    let mut farthest: u64 = 0;
    for (dim, (&size, &stride)) in shape.iter().zip(strides.iter()).enumerate() {
        let reach = (size - 1).checked_mul(stride.unsigned_abs());
        farthest = reach
            .and_then(|reach| farthest.checked_add(reach))
            .filter(|&sum| sum < MAX_ELEMENTS)
            .ok_or(LayoutError::StrideTooLarge { dim, stride })?;
    }
    Ok(farthest + 1)
}

/// Elements smaller than a byte: the innermost walked dimension is dense and fills whole bytes, every other stride
/// is whole bytes. So the tensor can be walked byte by byte and never cuts one.
fn check_sub_byte(dtype: DType, shape: &Shape, strides: &Strides) -> Result<(), LayoutError> {
    let bits = u64::from(dtype.bits());
    let mut walked = (0..shape.rank()).rev().filter(|&dim| shape[dim] > 1);
    let whole = |dim: usize| (strides[dim].unsigned_abs() * bits).is_multiple_of(8);
    let inner_fits = match walked.next() {
        None => true,
        Some(dim) => strides[dim] == 1 && (shape[dim] * bits).is_multiple_of(8),
    };
    if inner_fits && walked.all(whole) { Ok(()) } else { Err(LayoutError::SubByteStrides { dtype }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(dims: &[u64]) -> Shape {
        Shape::new(dims).unwrap()
    }

    fn strided(dtype: DType, dims: &[u64], strides: &[i64]) -> Result<Layout, LayoutError> {
        Layout::new(dtype, shape(dims), Some(Strides::new(strides)), None)
    }

    #[test]
    fn a_dense_tensor_has_the_bytes_of_its_elements() {
        let layout = Layout::new(DType::F32, shape(&[30522, 384]), None, Some(30522 * 384 * 4)).unwrap();
        assert_eq!(layout.bytes(), 46_881_792);
        assert!(layout.is_contiguous());
        assert_eq!(layout.to_string(), "f32[30522, 384]");
    }

    #[test]
    fn a_byte_length_that_disagrees_is_refused_with_both_numbers() {
        let error = Layout::new(DType::F32, shape(&[2, 3]), None, Some(23)).unwrap_err();
        assert_eq!(error.to_string(), "23 bytes given; f32 of shape [2, 3] needs exactly 24");
    }

    #[test]
    fn scalars_and_tensors_without_elements_are_fine() {
        assert_eq!(Layout::contiguous(DType::F64, shape(&[])).unwrap().bytes(), 8);
        assert_eq!(Layout::contiguous(DType::F64, shape(&[3, 0, 5])).unwrap().bytes(), 0);
        assert_eq!(strided(DType::F64, &[0, 5], &[9, 7]).unwrap().bytes(), 0);
        assert_eq!(strided(DType::F64, &[], &[]).unwrap().bytes(), 8);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert!(matches!(Shape::new(&[1 << 32, 1 << 32]), Err(LayoutError::TooManyElements { dim: 1, .. })));
        // A zero elsewhere does not excuse it: the strides of the others would not fit.
        assert!(matches!(
            Shape::new(&[0, u64::MAX, u64::MAX]),
            Err(LayoutError::TooManyElements { dim: 1, .. })
        ));
        assert!(Layout::contiguous(DType::U8, shape(&[1 << 48])).is_ok());
        assert!(matches!(
            Layout::contiguous(DType::F64, shape(&[1 << 48])),
            Err(LayoutError::TooManyBytes { .. })
        ));
        assert!(matches!(Shape::new(&[1; 33]), Err(LayoutError::TooManyDims { dims: 33 })));
    }

    #[test]
    fn strides_give_the_storage_extent() {
        let transposed = strided(DType::F32, &[3, 2], &[1, 3]).unwrap();
        assert_eq!((transposed.bytes(), transposed.is_contiguous()), (24, false));
        assert_eq!(strided(DType::F32, &[3, 2], &[4, 1]).unwrap().bytes(), 4 * (2 * 4 + 1 + 1));
        assert_eq!(strided(DType::F32, &[1000], &[0]).unwrap().bytes(), 4);
        assert_eq!(strided(DType::F32, &[1000], &[0]).unwrap().packed_bytes(), 4000);
    }

    #[test]
    fn strides_that_say_row_major_are_dropped() {
        assert_eq!(
            strided(DType::F32, &[3, 1, 2], &[2, 77, 1]),
            Layout::contiguous(DType::F32, shape(&[3, 1, 2]))
        );
    }

    #[test]
    fn strides_that_leave_the_tensor_are_refused() {
        assert!(matches!(
            strided(DType::F32, &[3], &[-1]),
            Err(LayoutError::NegativeStride { dim: 0, stride: -1 })
        ));
        assert!(matches!(
            strided(DType::F32, &[3], &[i64::MAX]),
            Err(LayoutError::StrideTooLarge { dim: 0, .. })
        ));
        assert!(strided(DType::F32, &[1 << 20, 1 << 20], &[1 << 40, 1]).is_err());
        assert!(matches!(
            strided(DType::F32, &[3], &[1, 1]),
            Err(LayoutError::StrideCount { strides: 2, dims: 1 })
        ));
    }

    #[test]
    fn elements_smaller_than_a_byte_round_up_once_for_the_whole_tensor() {
        assert_eq!(Layout::contiguous(DType::F4E2M1, shape(&[3, 3])).unwrap().bytes(), 5);
        assert_eq!(Layout::contiguous(DType::F6E2M3, shape(&[5])).unwrap().bytes(), 4);
        assert_eq!(Layout::contiguous(DType::U1, shape(&[9])).unwrap().bytes(), 2);
    }

    #[test]
    fn elements_smaller_than_a_byte_are_strided_in_whole_bytes_only() {
        assert_eq!(strided(DType::I4, &[3, 4], &[8, 1]).unwrap().bytes(), 2 * 4 + 2);
        assert!(strided(DType::I4, &[3, 4], &[7, 1]).is_err());
        assert!(strided(DType::I4, &[3, 3], &[8, 1]).is_err());
        assert!(strided(DType::I4, &[4], &[2]).is_err());
    }

    proptest! {
        #[test]
        fn no_input_panics_and_every_element_of_an_accepted_layout_is_inside(
            dims in prop::collection::vec(prop_oneof![0u64..6, any::<u64>()], 0..5),
            strides in prop::collection::vec(prop_oneof![0i64..40, any::<i64>()], 0..5),
            code in 1u16..34,
            given in prop::option::of(0u64..1000),
        ) {
            let dtype = DType::from_code(code).unwrap();
            let Ok(shape) = Shape::new(&dims) else { return Ok(()) };
            let strides = (strides.len() == dims.len()).then(|| Strides::new(&strides));
            let Ok(layout) = Layout::new(dtype, shape, strides, given) else { return Ok(()) };
            let farthest: u128 = dims.iter().zip(layout.effective_strides().iter())
                .map(|(&d, &s)| if d > 1 { u128::from(d - 1) * s as u128 } else { 0 }).sum();
            if layout.elements() > 0 {
                prop_assert!((farthest + 1) * u128::from(dtype.bits()) <= u128::from(layout.bytes()) * 8);
            } else {
                prop_assert_eq!(layout.bytes(), 0);
            }
        }
    }
}
