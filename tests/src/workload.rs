//! A workload as a process of its own: it is told what to do line by line, and answers with one line each.
//!
//! What it can be told stands in `bin/workload.rs`. It ends when its input does, or is killed with the test.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;

use crate::dialogue::Dialogue;
use crate::process::{Orphan, signal, stop};
use crate::sidecar::{Sidecar, bin_dir};

/// A running workload.
#[derive(Debug)]
pub struct Workload {
    child: Child,
    dialogue: Dialogue,
}

impl Workload {
    /// Starts one that has a session with the sidecar.
    pub fn start(sidecar: &Sidecar) -> Self {
        Self::start_in(sidecar, Vec::new())
    }

    /// Starts one with words in front of its command, which must become the workload by `exec`.
    ///
    /// # Panics
    /// Where it does not come to its session.
    pub fn start_in(sidecar: &Sidecar, prefix: Vec<String>) -> Self {
        let binary = bin_dir().join("workload").display().to_string();
        let mut words = prefix.into_iter().chain([binary]);
        let mut command = Command::new(words.next().expect("the binary at least"));
        command.args(words).arg(sidecar.sockets());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the workload's binary");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let dialogue = Dialogue::new(input.expect("its input"), output.expect("its output"));
        let mut workload = Self { child, dialogue };
        workload.expect("ready");
        workload
    }

    /// Has it fork. The child keeps everything that it inherited until it is killed.
    ///
    /// # Panics
    /// Where it does not.
    pub fn fork(&mut self) -> Orphan {
        let pid = self.ask("fork", "child");
        Orphan::adopt(pid.parse().expect("a process id"))
    }

    /// Has it fork a child that looks at what is held, stops itself, and when it is sent SIGCONT looks again and ends.
    /// Each time it answers `intact` or `damaged`; the first answer is taken here.
    ///
    /// # Panics
    /// Where it does not.
    pub fn fork_watching(&mut self) -> Orphan {
        self.tell("fork-watch");
        let mut pid = None;
        let mut seen = None;
        while pid.is_none() || seen.is_none() {
            let answer = self.answer();
            match answer.strip_prefix("child ") {
                Some(number) => pid = Some(number.parse().expect("a process id")),
                None => seen = Some(answer),
            }
        }
        assert_eq!(seen.as_deref(), Some("intact"), "what the child saw at first");
        Orphan::adopt(pid.expect("just seen"))
    }

    /// Kills it and waits until it is gone, but goes on listening to its children.
    ///
    /// # Panics
    /// Where it cannot be killed.
    pub fn kill_alone(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// Process id of the workload.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Stops it, with all of its threads.
    ///
    /// # Panics
    /// Where it does not stop.
    pub fn stop(&self) {
        stop(self.pid());
    }

    /// Kills it at once and waits until it is gone.
    ///
    /// # Panics
    /// Where it cannot be killed.
    pub fn kill(mut self) {
        self.kill_alone();
    }

    /// Ends it in order.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn finish(mut self) -> ExitStatus {
        self.dialogue.close();
        self.child.wait().expect("it ends when its input does")
    }
}

impl Deref for Workload {
    type Target = Dialogue;

    fn deref(&self) -> &Dialogue {
        &self.dialogue
    }
}

impl DerefMut for Workload {
    fn deref_mut(&mut self) -> &mut Dialogue {
        &mut self.dialogue
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
