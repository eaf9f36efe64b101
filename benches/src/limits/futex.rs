//! A futex ping-pong between C processes: the least that a message to other processes and their answers cost.

use std::ffi::OsStr;
use std::iter;

use anyhow::Result;

use super::compiled::compiled;
use crate::scratch::Scratch;
use crate::worker::{At, Worker};

const SOURCE: &str = include_str!("futex_ping_pong.c");

/// C processes that share a memfd: 64 bytes there and back.
#[derive(Debug)]
pub struct FutexPingPong {
    ask: Worker,
}

impl FutexPingPong {
    /// Compiles the program and starts both processes, each on its core. Both sleep while they wait.
    ///
    /// # Errors
    /// There is no C compiler, or the program does not start.
    pub fn start(scratch: &Scratch, cores: [usize; 2]) -> Result<Self> {
        Self::with(scratch, cores, &[])
    }

    /// Starts so many processes on the second core that all answer each message, after one wake. All sleep while they wait.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_many(scratch: &Scratch, cores: [usize; 2], others: usize) -> Result<Self> {
        Self::with(scratch, cores, &[&others.to_string()])
    }

    /// Starts two processes that never sleep, each on its core: these must not be the same.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_spinning(scratch: &Scratch, cores: [usize; 2]) -> Result<Self> {
        Self::with(scratch, cores, &["1", "spin"])
    }

    fn with(scratch: &Scratch, [near, far]: [usize; 2], words: &[&str]) -> Result<Self> {
        let program = compiled(scratch, "futex_ping_pong", SOURCE)?;
        let at = At { core: Some(near), ..At::default() };
        let far = far.to_string();
        let words: Vec<&OsStr> =
            iter::once(far.as_str()).chain(words.iter().copied()).map(OsStr::new).collect();
        Ok(Self { ask: Worker::start_program(at, &program, &words, &[])? })
    }

    /// The median of `count` round trips, in microseconds.
    ///
    /// # Errors
    /// A process is gone.
    pub fn median_us(&mut self, count: usize) -> Result<f64> {
        self.ask.ask(&count)
    }
}
