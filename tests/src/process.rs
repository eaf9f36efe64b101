//! Processes that a test started, by their ids: signals, and whether they still are.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::wait::{PATIENCE, until};

/// Sends a signal to a process that the test started.
///
/// # Panics
/// Where there is no such process.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(id(pid), signal).expect("the process is there");
}

/// Stops a process that the test started, and waits until none of its threads runs: the kernel tells them all, but one that is
/// running goes on for a moment, and may answer what comes in it.
///
/// # Panics
/// Where there is no such process, or it does not stop.
pub fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    await_stopped(pid);
}

fn await_stopped(pid: u32) {
    until("the process is stopped, with all of its threads", || {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        let mut states = threads.map(|thread| {
            let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
            stat.unwrap_or_default()
        });
        // The state follows the name, which is in brackets and may hold anything.
        states.all(|text| text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    });
}

fn id(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a process id")).expect("a process id")
}

/// A process that is not a child of the test, such as the child of a workload. It is killed when this is dropped.
#[derive(Debug)]
pub struct Orphan {
    pid: u32,
    handle: OwnedFd,
}

impl Orphan {
    /// The process of that id, which must still be.
    ///
    /// # Panics
    /// Where there is none.
    pub fn adopt(pid: u32) -> Self {
        let handle = pidfd_open(id(pid), PidfdFlags::empty()).expect("the process is there");
        Self { pid, handle }
    }

    /// Id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// Where it is gone.
    pub fn signal(&self, which: Signal) {
        pidfd_send_signal(&self.handle, which).expect("the process is there");
    }

    /// Waits until it has been stopped by a signal, with all of its threads.
    ///
    /// # Panics
    /// Where it is not.
    pub fn wait_until_stopped(&self) {
        await_stopped(self.pid);
    }

    /// Returns whether it still runs.
    ///
    /// # Panics
    /// Where the kernel does not say.
    pub fn runs(&self) -> bool {
        !self.ended_within(Duration::ZERO)
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Panics
    /// Where it does not go.
    pub fn kill(&self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        assert!(self.ended_within(PATIENCE), "process {} does not end", self.pid);
    }

    fn ended_within(&self, patience: Duration) -> bool {
        let mut ready = [PollFd::new(&self.handle, PollFlags::IN)];
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
        poll(&mut ready, Some(&timeout)).expect("a process can be waited for") > 0
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}
