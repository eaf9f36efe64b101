//! A sidecar as a process of its own, with a private folder, ended with the test.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;
use tensorlane_client::{Client, Result};
use tensorlane_proto::Reason;
use tensorlane_sidecar::identity::KEY_FILE;

use crate::http;
use crate::process::signal;
use crate::refused::{in_time, repeated_until};
use crate::standstill::never_right;
use crate::wait::{LOOK_EVERY, PATIENCE, until};

/// Options by which a sidecar is started.
#[derive(Debug, Clone)]
pub struct SidecarOptions {
    /// Settings, as dotted paths and YAML values, on top of the folder's own.
    pub settings: Vec<(String, String)>,
    /// The network namespace that it runs in.
    pub netns: Option<String>,
    /// A folder with its identity key, for who must know its fingerprint before it starts.
    pub identity: Option<PathBuf>,
    /// Words in front of its command: limits, cgroups. It must become the sidecar by `exec`.
    pub prefix: Vec<String>,
}

/// A running sidecar.
pub struct Sidecar {
    folder: TempDir,
    options: SidecarOptions,
    child: Option<Child>,
}

// === impl SidecarOptions ===

impl Default for SidecarOptions {
    /// A small arena, no peers, no admin port.
    fn default() -> Self {
        let options = Self { settings: Vec::new(), netns: None, prefix: Vec::new(), identity: None };
        options
            .set("arena.size", "256Mi")
            .set("arena.segment", "16Mi")
            .set("arena.ready", "16Mi")
            .set("admin.listen", "off")
    }
}

impl SidecarOptions {
    /// With one more setting; a later one beats an earlier one.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl ToString) -> Self {
        self.settings.retain(|(p, _)| p != path);
        self.settings.push((path.to_owned(), value.to_string()));
        self
    }

    /// Leaves a setting at its default.
    #[must_use]
    pub fn default_of(mut self, path: &str) -> Self {
        self.settings.retain(|(p, _)| p != path);
        self
    }

    /// With the identity key of that folder.
    #[must_use]
    pub fn identity(mut self, folder: &Path) -> Self {
        self.identity = Some(folder.to_owned());
        self
    }

    /// With metrics and health on a free port: see [`Sidecar::admin`].
    #[must_use]
    pub fn admin(self) -> Self {
        self.set("admin.listen", "127.0.0.1:0")
    }

    /// With words in front of its command, which must become the sidecar by `exec`.
    #[must_use]
    pub fn prefix<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.prefix = words.into_iter().map(Into::into).collect();
        self
    }

    /// With the patience for peers that stand still for some seconds, as on a busy machine: none is left for it.
    #[must_use]
    pub fn steady(self) -> Self {
        self.set("deadlines.progress", "20s")
    }

    /// In a network namespace.
    #[must_use]
    pub fn netns(mut self, name: &str) -> Self {
        self.netns = Some(name.to_owned());
        self
    }
}

// === impl Sidecar ===

impl Sidecar {
    /// Starts one with the default options.
    pub fn start() -> Self {
        Self::with(SidecarOptions::default())
    }

    /// Starts one and waits until its sockets are there.
    ///
    /// # Panics
    /// Where it does not start; its log is in the message.
    pub fn with(options: SidecarOptions) -> Self {
        let mut sidecar = Self::prepared(options);
        sidecar.start_again();
        sidecar
    }

    /// Starts one and does not wait for it: its start may hang.
    ///
    /// # Panics
    /// Where there is no such program.
    pub fn starting(options: SidecarOptions) -> Self {
        let mut sidecar = Self::prepared(options);
        sidecar.spawn();
        sidecar
    }

    /// Starts one that is expected to end by itself, and gives its exit status and what it logged.
    ///
    /// # Panics
    /// Where it does not end.
    pub fn refused(options: SidecarOptions) -> (ExitStatus, String) {
        let mut sidecar = Self::starting(options);
        let status = sidecar.wait();
        (status, sidecar.log())
    }

    fn prepared(options: SidecarOptions) -> Self {
        let folder =
            tempfile::Builder::new().prefix("tensorlane-test-").tempdir().expect("a temporary folder");
        Self { folder, options, child: None }
    }

    /// Starts it in the same folder, with the same key and the same private state.
    ///
    /// # Panics
    /// Where it runs already or does not start.
    pub fn start_again(&mut self) {
        self.spawn();
        until("the sidecar listens", || {
            if let Some(status) = self.ended() {
                panic!("the sidecar ended with {status} at its start:\n{}", self.log());
            }
            self.session_socket().exists()
        });
    }

    fn spawn(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let log =
            File::options().create(true).append(true).open(self.folder.path().join("log")).expect("a log");
        // What a dead one left behind must not look like a new one's.
        let _ = std::fs::remove_file(self.session_socket());
        let child = self.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.expect("the sidecar's binary; build it first: cargo build --release --bins"));
    }

    /// The command that starts it.
    fn command(&self) -> Command {
        let path = self.folder.path();
        let config = path.join("config.yaml");
        if let Some(identity) = &self.options.identity {
            std::fs::create_dir_all(self.state()).expect("its private folder");
            std::fs::copy(identity.join(KEY_FILE), self.state().join(KEY_FILE)).expect("its key");
        }
        std::fs::write(&config, self.yaml()).expect("the configuration is written");
        let binary = bin_dir().join("tensorlane-sidecar").display().to_string();
        let netns = self.options.netns.iter().flat_map(|netns| ["ip", "netns", "exec", netns]);
        let mut words = netns.map(str::to_owned).chain(self.options.prefix.iter().cloned()).chain([binary]);
        let mut command = Command::new(words.next().expect("the binary at least"));
        command.args(words).arg("--config").arg(config);
        command
    }

    fn yaml(&self) -> String {
        let path = self.folder.path();
        let own = [
            ("sockets.directory".to_owned(), path.join("sockets").display().to_string()),
            ("state.directory".to_owned(), path.join("state").display().to_string()),
        ];
        let mut yaml = String::new();
        let all: Vec<_> = own.iter().chain(&self.options.settings).collect();
        let mut sections: Vec<&str> = all.iter().map(|(p, _)| p.split('.').next().unwrap_or(p)).collect();
        sections.sort_unstable();
        sections.dedup();
        for section in sections {
            for (path, value) in all.iter().filter(|(p, _)| p == section) {
                yaml.push_str(&format!("{path}: {value}\n"));
            }
            let inner: Vec<_> = all.iter().filter(|(p, _)| p.starts_with(&format!("{section}."))).collect();
            if !inner.is_empty() {
                yaml.push_str(&format!("{section}:\n"));
            }
            for (path, value) in inner {
                yaml.push_str(&format!("  {}: {value}\n", &path[section.len() + 1..]));
            }
        }
        yaml
    }

    /// The folder of its sockets: what a client connects to.
    pub fn sockets(&self) -> PathBuf {
        self.folder.path().join("sockets")
    }

    /// Private folder of the sidecar.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The whole folder, for what a test puts beside it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn session_socket(&self) -> PathBuf {
        self.sockets().join("session.sock")
    }

    /// A new session with it.
    ///
    /// # Panics
    /// Where it does not answer.
    pub fn client(&self) -> Client {
        session(self.sockets()).expect("a session")
    }

    /// A new session, where others have just ended: they count until the sidecar has noticed, which
    /// `limits.sessions` may leave no room for.
    fn client_once_there_is_room(&self) -> Client {
        let is_full = |opened: &Result<Client>| {
            opened.as_ref().is_err_and(|refused| refused.reason() == Some(Reason::SessionLimit))
        };
        let open = || session(self.sockets());
        repeated_until("there is room for a session", open, |opened| !is_full(opened)).expect("a session")
    }

    /// Log that it has written.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The last line of its log with this message.
    pub fn logged(&self, message: &str) -> Option<serde_json::Value> {
        let log = self.log();
        let mut lines = log.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
        lines.find(|line: &serde_json::Value| line["message"] == message)
    }

    /// Address at which its metrics and health are served; see [`SidecarOptions::admin`].
    ///
    /// # Panics
    /// Where it has not said so in its log.
    pub fn admin(&self) -> SocketAddr {
        let said = self.logged("metrics and health are served");
        let address = said.and_then(|line| line["address"].as_str().and_then(|text| text.parse().ok()));
        address.expect("an address in the log")
    }

    /// The sum of all series of a metric with all the `labels`, such as `kind="own"`.
    ///
    /// # Panics
    /// Where there is no such metric, or no admin port.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let (status, text) = http::get(self.admin(), "/metrics");
        assert_eq!(status, 200, "{text}");
        http::metric(&text, name, labels)
    }

    /// Process id of the sidecar.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut().and_then(|c| c.try_wait().ok().flatten())
    }

    /// Kills it at once, as the kernel would.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
    }

    /// Returns whether it was started and not ended by the test.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Panics
    /// Where it does not run, or does not end.
    pub fn terminate(&mut self) -> ExitStatus {
        signal(self.pid(), Signal::TERM);
        self.wait()
    }

    /// Waits until it has ended by itself, or because it was told to.
    ///
    /// # Panics
    /// Where it does not end, or has been waited for before.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the sidecar has ended", || {
            status = self.ended();
            status.is_some()
        });
        self.child = None;
        status.expect("just seen")
    }

    /// Checks that the books balance and that nothing is left of anything: what holds after every test, once its
    /// guards are dropped and its names taken away. Idle copies of other peers' tensors must go by themselves within the
    /// patience (`gc.copyIdle`). Clients of the test that still live may hold idle segments; without them, nobody may.
    ///
    /// # Panics
    /// Where something is left after the patience of [`until`].
    pub fn assert_all_free(&self) {
        let client = self.client_once_there_is_room();
        let mut last = String::new();
        let all_free = |last: &mut String| {
            let status = client.status().expect("a status");
            *last = format!("{status:?}");
            let arena = status.arena.unwrap_or_default();
            let sum = arena.free + arena.reserved + arena.sealed + arena.held + arena.retired;
            if arena.total != sum {
                never_right();
            }
            assert_eq!(arena.total, sum, "the arena's books balance: {arena:?}");
            let lives = [status.tensors, status.leases, status.names, status.tickets, status.waiting];
            let used = [arena.reserved, arena.sealed, arena.retired, arena.inherited];
            // The one session is that of this check, which has written nothing.
            let held = if status.sessions == 1 { arena.held } else { 0 };
            lives == [0; 5] && used == [0; 4] && held == 0
        };
        let deadline = std::time::Instant::now() + PATIENCE;
        while !all_free(&mut last) {
            assert!(std::time::Instant::now() < deadline, "something is left: {last}");
            std::thread::park_timeout(LOOK_EVERY);
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of the sidecar ---\n{}", self.log());
        }
    }
}

/// A new session at these sockets. A sidecar that stands still is late to welcome, and is asked again: see [`in_time`].
///
/// # Errors
/// Refusals, and sockets at which no sidecar is.
///
/// # Panics
/// As [`in_time`].
pub fn session(sockets: impl AsRef<Path>) -> Result<Client> {
    in_time(|| Client::connect(&sockets))
}

/// Path at which the binaries under test are: `TENSORLANE_BIN_DIR`, else beside the suite's own.
pub fn bin_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("TENSORLANE_BIN_DIR") {
        return dir.into();
    }
    let own = std::env::current_exe().expect("the suite's own path");
    own.parent().and_then(Path::parent).expect("target/PROFILE/deps/SUITE").to_owned()
}
