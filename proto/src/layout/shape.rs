//! Sizes and strides of dimensions.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::{LayoutError, MAX_TENSOR_BYTES};

/// The most dimensions of a tensor: what numpy allows and torch never reaches. It bounds what a hostile shape costs.
pub const MAX_DIMS: usize = 32;

/// The most elements: [`MAX_TENSOR_BYTES`] of 1-bit elements.
pub const MAX_ELEMENTS: u64 = MAX_TENSOR_BYTES * 8;

/// The sizes of the dimensions, outermost first. A scalar has none.
///
/// The product of all sizes other than 0 is at most [`MAX_ELEMENTS`], so that row-major strides always fit. Cloning is
/// cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: Arc<[u64]>,
    elements: u64,
}

impl Shape {
    /// Checks the number of dimensions and the product of their sizes.
    ///
    /// # Errors
    /// [`LayoutError::TooManyDims`] or [`LayoutError::TooManyElements`].
    pub fn new(dims: &[u64]) -> Result<Shape, LayoutError> {
        Ok(Shape { elements: count_elements(dims)?, dims: dims.into() })
    }

    /// The shape of a scalar: no dimension, one element.
    pub fn scalar() -> Shape {
        Shape { dims: Arc::default(), elements: 1 }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The number of elements; 1 for a scalar.
    pub const fn elements(&self) -> u64 {
        self.elements
    }
}

/// The number of elements of these dimensions, if they make a shape.
pub(crate) fn count_elements(dims: &[u64]) -> Result<u64, LayoutError> {
    if dims.len() > MAX_DIMS {
        return Err(LayoutError::TooManyDims { dims: dims.len() });
    }
    let mut product: u64 = 1;
    for (dim, &size) in dims.iter().enumerate() {
        product = product
            .checked_mul(size.max(1))
            .filter(|&product| product <= MAX_ELEMENTS)
            .ok_or(LayoutError::TooManyElements { dim, size })?;
    }
    Ok(if dims.contains(&0) { 0 } else { product })
}

impl Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.dims
    }
}

/// `[30522, 384]`
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims)
    }
}

/// The distance between neighbours in each dimension, in elements, outermost first. Unproven until it is part of a
/// [`Layout`](super::Layout).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strides(Arc<[i64]>);

impl Strides {
    /// Strides as given; [`Layout::new`](super::Layout::new) proves them.
    pub fn new(strides: &[i64]) -> Strides {
        Strides(strides.into())
    }

    /// The strides of dense row-major order.
    pub fn row_major(shape: &Shape) -> Strides {
        let mut strides = vec![1; shape.rank()];
        let mut next: i64 = 1;
        for (dim, stride) in strides.iter_mut().enumerate().rev() {
            *stride = next;
            // Sizes of 0 count as 1, as in the product that the shape has proven to fit.
            next *= i64::try_from(shape[dim].max(1)).expect("a shape's product fits i64");
        }
        Strides(strides.into())
    }
}

impl Deref for Strides {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.0
    }
}

/// `[384, 1]`
impl fmt::Display for Strides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_major_strides_count_what_lies_behind() {
        let strides = |dims: &[u64]| Strides::row_major(&Shape::new(dims).unwrap()).to_vec();
        assert_eq!(strides(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(strides(&[2, 0, 4]), [4, 4, 1]);
        assert!(strides(&[]).is_empty());
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(Shape::new(&[]), Ok(Shape::scalar()));
        assert_eq!(Shape::scalar().elements(), 1);
    }
}
