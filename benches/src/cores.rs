//! Cores on which everything runs: both ends of a round trip on different cores, for the limit as for us.

use std::{io, thread};

use anyhow::{Context, Result};
use tensorlane_memory::affinity;

/// The two cores of a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// Core on which the caller runs.
    pub near: usize,
    /// Core on which whoever answers runs.
    pub far: usize,
    /// Number of cores.
    pub count: usize,
}

impl Cores {
    /// The first and the last core that we may use. With one core alone, both are the same.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn here() -> Result<Self> {
        let cores = affinity::cores().context("cannot ask which cores may be used")?;
        let near = *cores.first().context("no core may be used")?;
        Ok(Self { near, far: *cores.last().unwrap_or(&near), count: cores.len() })
    }
}

/// Does `work` in a thread that stays on one core, or anywhere if none is named. What it starts inherits that, so that
/// this is also the way to start a process on a core.
///
/// # Errors
/// The core may not be used.
pub fn on<T: Send>(core: Option<usize>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let pinned = || core.map_or(Ok(()), affinity::pin_to_core).map(|()| work());
    thread::scope(|scope| match scope.spawn(pinned).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_started_on_a_core_stays_there() {
        let core = Cores::here().unwrap().far;
        let output =
            on(Some(core), || Command::new("cat").arg("/proc/self/status").output()).unwrap().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(list.trim(), core.to_string());
    }
}
