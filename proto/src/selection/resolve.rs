//! From a selection to proven geometry.

use std::sync::Arc;

use super::runs::{Runs, Walk};
use super::{Range, SelectionError};
use crate::layout::{Layout, LayoutError, Shape, Strides};

/// A selection that is proven to lie inside a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// All or ranges: can be seen where the tensor lies.
    View(View),
    /// A row list: has to be packed.
    Rows(RowGather),
}

impl Resolved {
    /// The dense layout of the result.
    pub fn packed_layout(&self) -> Layout {
        match self {
            Resolved::View(view) => view.layout.packed(),
            Resolved::Rows(rows) => rows.packed.clone(),
        }
    }

    /// The bytes of the result, packed.
    pub fn bytes(&self) -> u64 {
        match self {
            Resolved::View(view) => view.bytes,
            Resolved::Rows(rows) => rows.packed.bytes(),
        }
    }

    /// The runs of bytes that make up the packed result: offset from the tensor's first byte, and length, in the
    /// order of the result. Neighbouring bytes come as one run. Lazy; independent of `self`.
    pub fn runs(&self) -> Runs {
        match self {
            Resolved::View(view) => Runs::of_view(view.offset_bytes, &view.layout),
            Resolved::Rows(rows) => Runs::of_rows(Arc::clone(&rows.rows), rows.row_stride_bytes, &rows.row),
        }
    }
}

/// A part of a tensor, seen where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Offset at which it starts, in bytes from the tensor's first byte; 0 if it is empty.
    pub offset_bytes: u64,
    /// Layout from that offset on: strided if elements are left out. `layout.bytes()` is how far it reaches.
    pub layout: Layout,
    /// The bytes of the selected elements alone.
    pub bytes: u64,
    /// True if the selected elements lie densely in row-major order.
    pub contiguous: bool,
}

impl View {
    fn new(offset_bytes: u64, layout: Layout) -> View {
        View { offset_bytes, bytes: layout.packed_bytes(), contiguous: layout.is_contiguous(), layout }
    }

    pub(super) fn whole(layout: &Layout) -> View {
        View::new(0, layout.clone())
    }

    pub(super) fn of_ranges(ranges: &[Range], layout: &Layout) -> Result<View, SelectionError> {
        let (shape, strides) = (layout.shape(), layout.effective_strides());
        if ranges.len() > shape.rank() {
            return Err(SelectionError::MoreRangesThanDims { ranges: ranges.len(), dims: shape.rank() });
        }
        let mut dims = shape.to_vec();
        let mut steps = strides.to_vec();
        let mut first: u64 = 0;
        let mut empty = shape.elements() == 0;
        for (dim, range) in ranges.iter().enumerate() {
            let (start, count) = bounds(dim, range, shape[dim])?;
            dims[dim] = count;
            if count == 0 || empty {
                empty = true;
                continue;
            }
            // With fewer than two indices left the stride is not walked, and might overflow.
            if count > 1 {
                steps[dim] *= i64::try_from(range.step).expect("a step inside a dimension fits i64");
            }
            if start > 0 {
                first += start * strides[dim].unsigned_abs();
            }
        }
        let shape = Shape::new(&dims).expect("no dimension of a selection is larger than the tensor's");
        if empty {
            let layout = Layout::contiguous(layout.dtype(), shape).map_err(SelectionError::Result)?;
            return Ok(View::new(0, layout));
        }
        let (offset_bytes, view) = place(layout, shape, &steps, first)?;
        Ok(View::new(offset_bytes, view))
    }
}

/// The first index and the number of indices of a range.
fn bounds(dim: usize, range: &Range, size: u64) -> Result<(u64, u64), SelectionError> {
    if range.step == 0 {
        return Err(SelectionError::ZeroStep { dim, range: *range });
    }
    let (start, stop) = (range.start.unwrap_or(0), range.stop.unwrap_or(size));
    if start > stop || stop > size {
        return Err(SelectionError::RangeOutside { dim, range: *range, size });
    }
    Ok((start, (stop - start).div_ceil(range.step)))
}

/// The layout of a non-empty view and the byte where it starts, unless it cuts a byte.
fn place(
    layout: &Layout,
    shape: Shape,
    strides: &[i64],
    first: u64,
) -> Result<(u64, Layout), SelectionError> {
    let (dtype, bits) = (layout.dtype(), u64::from(layout.dtype().bits()));
    let cut = || SelectionError::NotByteAligned { dtype };
    if !(first * bits).is_multiple_of(8) {
        return Err(cut());
    }
    let view = Layout::new(dtype, shape, Some(Strides::new(strides)), None).map_err(|error| match error {
        LayoutError::SubByteStrides { .. } => cut(),
        other => SelectionError::Result(other),
    })?;
    let offset = first * bits / 8;
    // A last byte that is not full may only be the last one of the tensor: else it holds others' elements.
    let ragged = !(view.elements() * bits).is_multiple_of(8);
    let at_the_end = view.is_contiguous() && offset + view.bytes() == layout.bytes();
    if ragged && !(at_the_end && layout.is_contiguous() && first + view.elements() == layout.elements()) {
        return Err(cut());
    }
    Ok((offset, view))
}

/// Rows of a tensor, in the order of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGather {
    pub(super) rows: Arc<[u64]>,
    pub(super) row_stride_bytes: u64,
    pub(super) row: Walk,
    pub(super) packed: Layout,
}

impl RowGather {
    pub(super) fn new(rows: Arc<[u64]>, layout: &Layout) -> Result<RowGather, SelectionError> {
        let dtype = layout.dtype();
        let Some((&size, inner)) = layout.shape().split_first() else {
            return Err(SelectionError::ScalarHasNoRows);
        };
        if let Some((position, &row)) = rows.iter().enumerate().find(|&(_, &row)| row >= size) {
            return Err(SelectionError::RowOutside { position, row, size });
        }
        let mut dims = vec![rows.len() as u64];
        dims.extend_from_slice(inner);
        let shape = Shape::new(&dims).map_err(SelectionError::Result)?;
        let packed = Layout::contiguous(dtype, shape).map_err(SelectionError::Result)?;
        let bits = u64::from(dtype.bits());
        let row_shape = Shape::new(inner).expect("a part of a proven shape");
        if !(row_shape.elements() * bits).is_multiple_of(8) && !rows.is_empty() {
            return Err(SelectionError::NotByteAligned { dtype });
        }
        let strides = layout.effective_strides();
        // A dimension with one row may have any stride; it is never walked.
        let row_stride_bytes = if size > 1 { strides[0].unsigned_abs() * bits / 8 } else { 0 };
        let row = Layout::new(dtype, row_shape, Some(Strides::new(&strides[1..])), None)
            .map_err(SelectionError::Result)?;
        Ok(RowGather { rows, row_stride_bytes, row: Walk::of(&row), packed })
    }

    /// The list of rows.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }
}
