//! Rows that are read or written.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::layout::{Leaf, Run, SetLayout};
use crate::failure::Failure;
use crate::layout::{Layout, Shape};
use crate::selection::{MAX_ROWS, Selection, SelectionError};
use crate::{DType, Range};

/// Rows of a set, proven to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowList {
    /// Rows at equal distances.
    Range {
        /// The first one.
        first: u64,
        /// Number of them.
        count: u64,
        /// Distance between two of them, 1 or more.
        step: u64,
    },
    /// Rows in the order of a list.
    List(Arc<[u64]>),
    /// Neighbouring rows, of which the last one of the set is followed by row 0.
    Round {
        /// The first one.
        first: u64,
        /// Number of them, not above that of the set.
        count: u64,
        /// Number of rows of the set.
        of: u64,
    },
}

impl RowList {
    /// Proves that the selected rows are there.
    ///
    /// # Errors
    /// SELECTION_OUT_OF_RANGE, TOO_LARGE for more than 1,048,576 rows.
    pub fn new(selection: &Selection, layout: &SetLayout) -> Result<Self, Failure> {
        let list = Self::of_any_length(selection, layout)?;
        list.check_length()?;
        Ok(list)
    }

    /// Proves that the selected rows are there. A range may have any number of them.
    ///
    /// # Errors
    /// SELECTION_OUT_OF_RANGE, TOO_LARGE for a list of more than 1,048,576 rows.
    pub fn of_any_length(selection: &Selection, layout: &SetLayout) -> Result<Self, Failure> {
        let rows = layout.rows();
        match selection {
            Selection::All => Ok(Self::Range { first: 0, count: rows, step: 1 }),
            Selection::Rows(list) => {
                selection.check_limits()?;
                if let Some((position, &row)) = list.iter().enumerate().find(|&(_, &row)| row >= rows) {
                    return Err(SelectionError::RowOutside { position, row, size: rows }.into());
                }
                Ok(Self::List(Arc::clone(list)))
            }
            Selection::Ranges(ranges) => {
                // As of a tensor that has one byte a row: the same rules, and the same words.
                let column = Shape::new(&[rows]).and_then(|shape| Layout::contiguous(DType::U8, shape));
                let column = column.map_err(SelectionError::Result)?;
                selection.resolve(&column)?;
                let Range { start, stop, step } = ranges.first().copied().unwrap_or(Range::FULL);
                let (first, stop) = (start.unwrap_or(0), stop.unwrap_or(rows));
                Ok(Self::Range { first, count: (stop - first).div_ceil(step), step })
            }
        }
    }

    /// Checks that the rows are no more than are copied under their locks.
    ///
    /// # Errors
    /// TOO_LARGE for more than 1,048,576 rows.
    pub fn check_length(&self) -> Result<(), Failure> {
        if self.len() > MAX_ROWS as u64 {
            let rows = usize::try_from(self.len()).unwrap_or(usize::MAX);
            return Err(SelectionError::TooManyRows { rows }.into());
        }
        Ok(())
    }

    /// The rows as a span of neighbours, which no lower row follows: first row and number. None for others.
    pub fn span(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Range { first, count, step: 1 } => Some((first, count)),
            _ => None,
        }
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        match self {
            Self::Range { count, .. } | Self::Round { count, .. } => *count,
            Self::List(list) => list.len() as u64,
        }
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first row; 0 where there is none.
    pub fn first(&self) -> u64 {
        self.row(0)
    }

    fn row(&self, at: u64) -> u64 {
        match self {
            Self::Range { first, step, .. } => first + at * step,
            Self::Round { first, of, .. } => (first + at) % of,
            Self::List(list) => usize::try_from(at).ok().and_then(|at| list.get(at)).copied().unwrap_or(0),
        }
    }

    /// Pieces of neighbouring rows that lie in one band, in order: first row and number.
    pub fn pieces<'a>(&'a self, layout: &'a SetLayout) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.cut(|first| layout.left_in_band(first))
    }

    /// Pieces of neighbouring rows, however many, in order: first row and number.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.cut(|_| u64::MAX)
    }

    /// Pieces of neighbouring rows, each of as many as `most` allows behind its first one.
    fn cut<'a>(&'a self, most: impl Fn(u64) -> u64 + 'a) -> impl Iterator<Item = (u64, u64)> + 'a {
        let (mut at, len) = (0, self.len());
        std::iter::from_fn(move || {
            let first = (at < len).then(|| self.row(at))?;
            let most = most(first).min(len - at);
            let mut count = 1;
            while count < most && self.row(at + count) == first + count {
                count += 1;
            }
            at += count;
            Some((first, count))
        })
    }

    /// Runs of bytes of a leaf, in the order of the rows.
    pub fn runs<'a>(&'a self, layout: &'a SetLayout, leaf: &'a Leaf) -> impl Iterator<Item = Run> + 'a {
        self.pieces(layout).map(move |(row, rows)| layout.run(leaf, row, rows))
    }

    /// Bands that the rows lie in.
    pub fn bands(&self, layout: &SetLayout) -> BTreeSet<u64> {
        self.pieces(layout).map(|(row, _)| layout.band(row)).collect()
    }
}
