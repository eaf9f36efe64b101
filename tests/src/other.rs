//! Another process of a test: the program of the suite once more, which runs one test of it in a role.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::Sidecar;

/// Names of the variables that say which sidecar the process talks to, and what it does.
const SOCKETS: &str = "TENSORLANE_TEST_OTHER_SOCKETS";
const ROLE: &str = "TENSORLANE_TEST_OTHER_ROLE";

/// Process that ends with the test.
pub struct Other(Child);

impl Other {
    /// Starts it with a sidecar to talk to: the test of that name of this program, which asks for its [`role`].
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(test: &str, sidecar: &Sidecar, role: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(SOCKETS, sidecar.sockets())
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it prints that line.
    ///
    /// # Panics
    /// Where it ends without.
    pub fn says(&mut self, line: &str) {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|said| said.ends_with(line)), "it ends without {line}");
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills it.
    ///
    /// # Panics
    /// Where that cannot be.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The sockets and the role of this process, where it is the other one of a test.
pub fn role() -> Option<(String, String)> {
    let var = |name| std::env::var(name).ok();
    var(SOCKETS).zip(var(ROLE))
}
