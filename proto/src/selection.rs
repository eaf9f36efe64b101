//! Selection of a part of a tensor, and the bytes that it stands for.
//!
//! A [`Selection`] is what a caller asks for. Resolved against a [`Layout`] it becomes a proven piece of geometry:
//! ranges and steps are a *view* (an offset and strides, nothing moves), a list of rows is a *gather*. Both can be
//! walked as runs of bytes in the order of the result, lazily, so that a selection of gigabytes costs no memory.
//! Nothing here sees a byte of a tensor.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::dtype::DType;
use crate::layout::{Layout, LayoutError, MAX_DIMS};

mod resolve;
mod runs;

pub use resolve::{Resolved, RowGather, View};
pub use runs::Runs;

/// The most ranges of a selection: one for each possible dimension.
pub const MAX_RANGES: usize = MAX_DIMS;

/// The most rows of a selection. A list of that length is 8 MiB, and is all that a selection ever allocates.
pub const MAX_ROWS: usize = 1 << 20;

/// A half-open range with a step, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first index; none for the beginning.
    pub start: Option<u64>,
    /// The index behind the last; none for the end.
    pub stop: Option<u64>,
    /// The distance between indices, at least 1.
    pub step: u64,
}

impl Range {
    /// The whole dimension.
    pub const FULL: Range = Range { start: None, stop: None, step: 1 };

    /// Every index from `start` to before `stop`.
    pub const fn new(start: u64, stop: u64) -> Range {
        Range { start: Some(start), stop: Some(stop), step: 1 }
    }

    /// Every `step`th index of this range.
    pub const fn step_by(self, step: u64) -> Range {
        Range { step, ..self }
    }
}

/// `2:10:3` or `2:10`, with nothing where nothing was given.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bound: Option<u64>| bound.map_or_else(String::new, |bound| bound.to_string());
        write!(f, "{}:{}", text(self.start), text(self.stop))?;
        if self.step == 1 { Ok(()) } else { write!(f, ":{}", self.step) }
    }
}

/// The part of a tensor that is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selection {
    /// All of it.
    #[default]
    All,
    /// A range for each of the leading dimensions; dimensions without one are taken whole. At most [`MAX_RANGES`].
    Ranges(Vec<Range>),
    /// Indices into the first dimension, in any order, repeats allowed. At most [`MAX_ROWS`].
    Rows(Arc<[u64]>),
}

/// Kind of a selection: all that the choice of a route needs to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SelectionKind {
    /// All of the tensor.
    #[default]
    All,
    /// Ranges and steps: a view where the tensor is mapped.
    Ranges,
    /// A row list: packed into a new block everywhere.
    Rows,
}

/// Reason for which a selection does not fit a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectionError {
    /// More ranges than [`MAX_RANGES`].
    #[error("{ranges} ranges; at most {MAX_RANGES} are allowed, one for each dimension")]
    TooManyRanges {
        /// Number of ranges that were given.
        ranges: usize,
    },
    /// More rows than [`MAX_ROWS`].
    #[error("{rows} rows; at most {MAX_ROWS} are allowed in one selection")]
    TooManyRows {
        /// Number of rows that were given.
        rows: usize,
    },
    /// More ranges than the tensor has dimensions.
    #[error("{ranges} ranges for a tensor of {dims} dimensions")]
    MoreRangesThanDims {
        /// Number of ranges.
        ranges: usize,
        /// Number of dimensions.
        dims: usize,
    },
    /// A step of 0.
    #[error("the range {range} of dimension {dim} has step 0; the least is 1")]
    ZeroStep {
        /// The dimension.
        dim: usize,
        /// Range of that dimension.
        range: Range,
    },
    /// A range that is backwards or reaches beyond its dimension. Nothing is clamped.
    #[error("{}", outside(*dim, range, *size))]
    RangeOutside {
        /// The dimension.
        dim: usize,
        /// Range of that dimension.
        range: Range,
        /// Size of the dimension.
        size: u64,
    },
    /// A row that does not exist.
    #[error("row {row} (at position {position} of the list) is outside a first dimension of size {size}")]
    RowOutside {
        /// Position in the list.
        position: usize,
        /// The row.
        row: u64,
        /// The size of the first dimension.
        size: u64,
    },
    /// A row list for a tensor without dimensions.
    #[error("a scalar has no rows")]
    ScalarHasNoRows,
    /// A selection that would cut a byte of elements smaller than one.
    #[error("{dtype} is smaller than a byte, and this selection does not start and end at whole bytes")]
    NotByteAligned {
        /// The type of an element.
        dtype: DType,
    },
    /// The result is no tensor, because it is too large.
    #[error("the selection is too large: {0}")]
    Result(#[source] LayoutError),
}

/// Text of what is wrong with a range that is refused.
fn outside(dim: usize, range: &Range, size: u64) -> String {
    match (range.start, range.stop) {
        (Some(start), Some(stop)) if start > stop => {
            format!("the range {range} of dimension {dim} ends before it begins")
        }
        _ => format!("the range {range} is outside dimension {dim} of size {size}"),
    }
}

impl Selection {
    /// A row list. See [`Selection::Rows`].
    pub fn rows(rows: impl Into<Arc<[u64]>>) -> Selection {
        Selection::Rows(rows.into())
    }

    /// Returns the kind of the selection.
    pub const fn kind(&self) -> SelectionKind {
        match self {
            Selection::All => SelectionKind::All,
            Selection::Ranges(_) => SelectionKind::Ranges,
            Selection::Rows(_) => SelectionKind::Rows,
        }
    }

    /// Checks the counts alone, in no time. Call it before a tensor is looked up, let alone a byte moved.
    ///
    /// # Errors
    /// [`SelectionError::TooManyRanges`] or [`SelectionError::TooManyRows`].
    pub fn check_limits(&self) -> Result<(), SelectionError> {
        match self {
            Selection::Ranges(list) if list.len() > MAX_RANGES => {
                Err(SelectionError::TooManyRanges { ranges: list.len() })
            }
            Selection::Rows(list) if list.len() > MAX_ROWS => {
                Err(SelectionError::TooManyRows { rows: list.len() })
            }
            _ => Ok(()),
        }
    }

    /// Proves that the selection lies inside the tensor, and says which bytes it is.
    ///
    /// # Errors
    /// A [`SelectionError`] that names what was outside.
    pub fn resolve(&self, layout: &Layout) -> Result<Resolved, SelectionError> {
        self.check_limits()?;
        match self {
            Selection::All => Ok(Resolved::View(View::whole(layout))),
            Selection::Ranges(ranges) => View::of_ranges(ranges, layout).map(Resolved::View),
            Selection::Rows(rows) => RowGather::new(Arc::clone(rows), layout).map(Resolved::Rows),
        }
    }
}

#[cfg(test)]
mod tests;
