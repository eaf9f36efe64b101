//! The command `tensorlane`, and what of it goes on: its lines as they come.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::sidecar::bin_dir;
use crate::wait::{PATIENCE, until};

/// The command with these words, towards the sidecar whose sockets are there.
pub fn command(sockets: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(bin_dir().join("tensorlane"));
    command.args(words).env_clear().env("TENSORLANE_SOCKETS", sockets).stdin(Stdio::null());
    command
}

/// Words of the command, which has nothing to complain of.
///
/// # Panics
/// Where it fails or complains.
pub fn says(sockets: &Path, words: &[&str]) -> String {
    let output = command(sockets, words).output().expect("the command's binary");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// A command that goes on. It ends with the test.
#[derive(Debug)]
pub struct Watch {
    child: Child,
    out: Option<ChildStdout>,
}

impl Watch {
    /// `tensorlane routes --watch`, with more words.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn routes(sockets: &Path, words: &[&str]) -> Self {
        let words = [&["routes", "--watch", "--interval", "100ms"], words].concat();
        let spawned = command(sockets, &words).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("the command's binary");
        let out = child.stdout.take();
        Self { child, out }
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Output that it writes to.
    ///
    /// # Panics
    /// Where somebody reads it already.
    pub fn out(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.out.take().expect("nobody reads it yet"))
    }

    /// Returns the lines of its output, as they come.
    ///
    /// # Panics
    /// Where somebody reads it already.
    pub fn lines(&mut self) -> Receiver<String> {
        let out = self.out();
        let (tell, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        lines
    }

    /// Returns whether it has not ended.
    ///
    /// # Panics
    /// Where the kernel does not say.
    pub fn goes_on(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// Where it does not come.
    pub fn ended(&mut self) -> ExitStatus {
        until("the watch ends", || !self.goes_on());
        self.child.wait().expect("a child of ours")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line for which something holds, and those before it.
///
/// # Panics
/// Where it does not come.
pub fn up_to(lines: &Receiver<String>, what: &str, is_it: impl Fn(&str) -> bool) -> Vec<String> {
    let (deadline, mut seen) = (Instant::now() + PATIENCE, Vec::new());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("{what} did not come after {seen:?}"));
        seen.push(line);
        if seen.last().is_some_and(|line| is_it(line)) {
            return seen;
        }
    }
}
