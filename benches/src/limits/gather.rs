//! Rows gathered by a C program out of a map that is warm: the least that reading them costs.

use anyhow::Result;

use super::compiled::compiled;
use crate::scratch::Scratch;
use crate::worker::{At, Worker};

const SOURCE: &str = include_str!("gather.c");

/// A C process with a table of its own.
#[derive(Debug)]
pub struct Gather {
    ask: Worker,
}

impl Gather {
    /// Compiles the program and starts it, with a table of so many rows of so many bytes.
    ///
    /// # Errors
    /// There is no C compiler, or not so much memory.
    pub fn start(scratch: &Scratch, core: Option<usize>, rows: u64, row_bytes: u64) -> Result<Self> {
        let program = compiled(scratch, "gather", SOURCE)?;
        let (rows, row_bytes) = (rows.to_string(), row_bytes.to_string());
        let words = [rows.as_ref(), row_bytes.as_ref()];
        Ok(Self { ask: Worker::start_program(At { core, ..At::default() }, &program, &words, &[])? })
    }

    /// Gathers so many random rows; the microseconds that it took.
    ///
    /// # Errors
    /// The process is gone.
    pub fn us(&mut self, rows: usize) -> Result<f64> {
        self.ask.ask(&rows)
    }
}
