//! A process that was started here and is ended here, by its id.

use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::undo::Undo;

/// Time that a process may take to end after SIGTERM before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that it may take when all is over anyhow.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(2);

/// A child process. Dropped, it is ended: SIGTERM, and SIGKILL if it does not listen.
#[derive(Debug)]
pub struct Process {
    what: String,
    pid: Pid,
    child: Arc<Mutex<Child>>,
    _undo: Undo,
}

impl Process {
    /// Starts `command`; `what` names it in errors.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(what: impl Into<String>, command: &mut Command) -> Result<Self> {
        let what = what.into();
        let child = command.spawn().with_context(|| format!("cannot start {what}: {command:?}"))?;
        let pid = Pid::from_child(&child);
        let child = Arc::new(Mutex::new(child));
        let ours = Arc::clone(&child);
        // The lock is held while it is ended, so that the id cannot be another process's by then.
        let undo = Undo::with(move || drop(end(&ours, pid, PATIENCE_AT_THE_END)));
        Ok(Self { what, pid, child, _undo: undo })
    }

    /// Description of the process, for messages.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Id of the process.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Takes what the child holds, such as the ends of its pipes.
    pub fn with_child<T>(&self, work: impl FnOnce(&mut Child) -> T) -> T {
        work(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Status with which it ended, if it did.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        self.with_child(Child::try_wait).with_context(|| format!("cannot wait for {}", self.what))
    }

    /// Kills it with SIGKILL, and returns the instant of the signal. It is not waited for.
    ///
    /// # Errors
    /// It is gone already.
    pub fn kill(&self) -> Result<Instant> {
        if let Some(status) = self.ended()? {
            bail!("{} ended before it was to be killed: {status}", self.what);
        }
        let now = Instant::now();
        kill_process(self.pid, Signal::KILL).with_context(|| format!("cannot kill {}", self.what))?;
        Ok(now)
    }

    /// Stops it with SIGSTOP, until what this gives is dropped.
    ///
    /// # Errors
    /// It is gone already.
    pub fn stopped(&self) -> Result<Stopped<'_>> {
        if let Some(status) = self.ended()? {
            bail!("{} ended before it was to be stopped: {status}", self.what);
        }
        kill_process(self.pid, Signal::STOP).with_context(|| format!("cannot stop {}", self.what))?;
        Ok(Stopped(self))
    }

    /// Asks it to end with SIGTERM, waits, and gives its exit status.
    ///
    /// # Errors
    /// It did not end in time (then it was killed).
    pub fn terminate(self) -> Result<ExitStatus> {
        let ended = end(&self.child, self.pid, PATIENCE)?;
        let limit = PATIENCE.as_secs();
        ended.with_context(|| format!("{} did not end within {limit} s of SIGTERM and was killed", self.what))
    }
}

/// A process that is stopped. Dropped, it goes on.
#[derive(Debug)]
pub struct Stopped<'a>(&'a Process);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // One that was ended meanwhile is collected by its owner, so the id is still its own.
        let _ = kill_process(self.0.pid, Signal::CONT);
    }
}

/// Ends a child. None where it had to be killed.
fn end(child: &Mutex<Child>, pid: Pid, patience: Duration) -> Result<Option<ExitStatus>> {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    // It is not collected yet, so the id is still its own.
    kill_process(pid, Signal::TERM)?;
    if wait(pid, patience)? {
        return Ok(Some(child.wait()?));
    }
    kill_process(pid, Signal::KILL)?;
    child.wait()?;
    Ok(None)
}

/// Waits until a process that is not collected yet has ended. False where it did not in time.
fn wait(pid: Pid, patience: Duration) -> Result<bool> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let until = Instant::now() + patience;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now()))?;
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_listens_ends_with_its_own_code() {
        // The word `ready` comes after the trap is set.
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"]);
        command.stdout(std::process::Stdio::piped());
        let process = Process::start("a shell", &mut command).unwrap();
        let mut output = process.with_child(|child| child.stdout.take()).unwrap();
        std::io::Read::read_exact(&mut output, &mut [0; 6]).unwrap();
        assert_eq!(process.terminate().unwrap().code(), Some(7));
    }

    #[test]
    fn a_process_that_does_not_listen_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]);
        command.stdout(std::process::Stdio::piped());
        let process = Process::start("a deaf shell", &mut command).unwrap();
        let mut output = process.with_child(|child| child.stdout.take()).unwrap();
        std::io::Read::read_exact(&mut output, &mut [0; 6]).unwrap();
        assert!(end(&process.child, process.pid, Duration::from_millis(50)).unwrap().is_none());
        assert!(process.kill().is_err(), "it is gone");
    }
}
