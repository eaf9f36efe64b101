//! Walking geometry as runs of bytes.

use std::sync::Arc;

use crate::layout::Layout;

/// A strided piece of memory: runs of `run` bytes, repeated over the dimensions, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// The bytes that lie densely together; 0 if there is nothing to walk.
    run: u64,
    /// Dimensions around them: how many times, at what distance in bytes.
    dims: Vec<Dim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    count: u64,
    stride: u64,
}

impl Walk {
    /// The walk over a layout, with all that is dense folded into the run.
    pub(super) fn of(layout: &Layout) -> Walk {
        let Some(strides) = layout.strides() else {
            return Walk { run: layout.bytes(), dims: Vec::new() };
        };
        let bits = u64::from(layout.dtype().bits());
        let mut run_bits = bits;
        let mut dims: Vec<Dim> = Vec::new();
        for (&count, &stride) in layout.shape().iter().zip(strides.iter()).rev() {
            if count == 1 {
                continue;
            }
            let stride = stride.unsigned_abs() * bits;
            if dims.is_empty() && stride == run_bits {
                run_bits *= count;
            } else if let Some(inner) =
                dims.last_mut().filter(|inner| inner.stride * inner.count * 8 == stride)
            {
                inner.count *= count;
            } else {
                dims.push(Dim { count, stride: stride / 8 });
            }
        }
        dims.reverse();
        Walk { run: run_bits / 8, dims }
    }
}

/// The runs of a resolved selection: `(offset, length)` in bytes, in the order of the packed result, neighbours
/// joined. It allocates a few words for each dimension, whatever the bytes.
#[derive(Clone, Debug)]
pub struct Runs {
    walk: Walk,
    /// Place of the next run in the walk; empty when the walk is at its end and the next row begins another.
    index: Vec<u64>,
    offset: u64,
    state: State,
    rows: Rows,
    /// A run that is not yet known to be complete.
    pending: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// `offset` is the next run.
    At,
    /// Walk that is over.
    Over,
}

/// The bases from which the walk is still to be done.
#[derive(Clone, Debug)]
struct Rows {
    list: Arc<[u64]>,
    next: usize,
    stride: u64,
}

impl Runs {
    pub(super) fn of_view(offset: u64, layout: &Layout) -> Runs {
        let rows = Rows { list: Arc::from([]), next: 0, stride: 0 };
        let state = if layout.elements() == 0 { State::Over } else { State::At };
        Runs::start(Walk::of(layout), offset, state, rows)
    }

    pub(super) fn of_rows(list: Arc<[u64]>, stride: u64, row: &Walk) -> Runs {
        // Rows without bytes have no runs, however many they are.
        let next = if row.run == 0 { list.len() } else { 0 };
        Runs::start(row.clone(), 0, State::Over, Rows { list, next, stride })
    }

    fn start(walk: Walk, offset: u64, state: State, rows: Rows) -> Runs {
        let index = vec![0; walk.dims.len()];
        Runs { walk, index, offset, state, rows, pending: None }
    }

    /// The next run as the walk has it, not yet joined with its neighbours.
    fn step(&mut self) -> Option<(u64, u64)> {
        if self.state == State::Over {
            let row = *self.rows.list.get(self.rows.next)?;
            self.rows.next += 1;
            self.offset = row * self.rows.stride;
            self.state = State::At;
        }
        let run = (self.offset, self.walk.run);
        self.advance();
        Some(run)
    }

    /// Counts the index up like an odometer; at the end every wheel is back at 0.
    fn advance(&mut self) {
        for (dim, index) in self.walk.dims.iter().zip(&mut self.index).rev() {
            *index += 1;
            if *index < dim.count {
                self.offset += dim.stride;
                return;
            }
            self.offset -= dim.stride * (dim.count - 1);
            *index = 0;
        }
        self.state = State::Over;
    }
}

impl Iterator for Runs {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (start, mut length) = match self.pending.take() {
            Some(run) => run,
            None => self.step()?,
        };
        while let Some((offset, more)) = self.step() {
            if offset != start + length {
                self.pending = Some((offset, more));
                break;
            }
            length += more;
        }
        Some((start, length))
    }
}
