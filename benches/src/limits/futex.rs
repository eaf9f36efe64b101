//! A futex ping-pong between two C processes: the least that a message to another process and its answer cost.

use anyhow::Result;

use super::compiled::compiled;
use crate::scratch::Scratch;
use crate::worker::{At, Worker};

const SOURCE: &str = include_str!("futex_ping_pong.c");

/// Two C processes that share a memfd: 64 bytes there and back, both asleep while they wait.
#[derive(Debug)]
pub struct FutexPingPong {
    ask: Worker,
}

impl FutexPingPong {
    /// Compiles the program and starts both processes, each on its core.
    ///
    /// # Errors
    /// There is no C compiler, or the program does not start.
    pub fn start(scratch: &Scratch, [near, far]: [usize; 2]) -> Result<Self> {
        let program = compiled(scratch, "futex_ping_pong", SOURCE)?;
        let at = At { core: Some(near), ..At::default() };
        let ask = Worker::start_program(at, &program, &[far.to_string().as_ref()], &[])?;
        Ok(Self { ask })
    }

    /// The median of `count` round trips, in microseconds.
    ///
    /// # Errors
    /// A process is gone.
    pub fn median_us(&mut self, count: usize) -> Result<f64> {
        self.ask.ask(&count)
    }
}
