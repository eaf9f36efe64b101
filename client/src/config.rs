//! Settings of a client: where the sidecar is, and how patient the client is with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fmt};

use crate::client::Client;
use crate::error::Result;

/// Environment variable with the directory of the session socket; injected pods have it.
pub const SOCKETS_ENV: &str = "TENSORLANE_SOCKETS";
/// The directory where the variable is not set.
pub const SOCKETS_DEFAULT: &str = "/run/tensorlane";
/// The session socket in that directory.
pub const SESSION_SOCKET: &str = "session.sock";
/// Deadline of a call that names none.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);
/// Most time that a call waits for a sidecar that restarts. A native sidecar is back in less.
pub(crate) const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// Time that a client waits beyond the deadline that it gave the sidecar. So the sidecar's own answer, which knows
/// more, has the time to come: a lane lets go of what it is reading within 100 ms, the rest is for a busy machine.
pub(crate) const GRACE: Duration = Duration::from_millis(500);
/// Time for the welcome of a sidecar that took a connection; less if its caller has less time.
pub(crate) const WELCOME_MAX: Duration = Duration::from_secs(5);
/// The longest name of a client, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Directory of the session socket, by the value of the environment variable. An empty one is none.
pub fn sockets_directory(variable: Option<OsString>) -> PathBuf {
    let named = variable.filter(|directory| !directory.is_empty());
    named.map_or_else(|| SOCKETS_DEFAULT.into(), PathBuf::from)
}

/// Asked from time to time while a call waits, and whenever a signal came; true withdraws the call.
pub(crate) type Interrupt = Arc<dyn Fn() -> bool + Send + Sync>;

/// Options of a connection. See [`Client::options`].
#[derive(Clone)]
pub struct ClientOptions {
    pub(crate) directory: PathBuf,
    pub(crate) name: String,
    pub(crate) deadline: Duration,
    pub(crate) patience: Duration,
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) stages: bool,
}

impl ClientOptions {
    /// The session socket in `$TENSORLANE_SOCKETS`, or in `/run/tensorlane`.
    pub fn from_env() -> Self {
        Self::at(sockets_directory(env::var_os(SOCKETS_ENV)))
    }

    /// The session socket in `directory`.
    pub fn at(directory: impl AsRef<Path>) -> Self {
        Self {
            directory: directory.as_ref().to_owned(),
            name: program_name(),
            deadline: DEADLINE_DEFAULT,
            patience: Duration::ZERO,
            interrupt: None,
            stages: true,
        }
    }

    /// Name of this client in the sidecar's log; cut at 256 bytes. The program's name and process id by default.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        let end =
            (0..=name.len().min(NAME_BYTES_MAX)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        name[..end].clone_into(&mut self.name);
        self
    }

    /// Deadline of the calls that name none; 30 seconds by default. It bounds what a call waits for the sidecar: until 500 ms after
    /// it at the latest, because the sidecar ends the call at the deadline and says why, and that answer is given the time to come.
    /// Not bounded is what this process does itself, such as copying bytes, nor time in which it stood still. A put of what is too
    /// large for a request makes two calls, to reserve and to seal, and a put of many makes several: each has the whole deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Time that the first connection may wait for a sidecar that is not there yet; not at all by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A function that is asked about ten times a second while a call waits, and whenever a signal came; when it says
    /// true, the call is withdrawn. For interpreters, which handle signals themselves.
    #[must_use]
    pub fn interrupt(mut self, interrupt: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.interrupt = Some(Arc::new(interrupt));
        self
    }

    /// Sets if this process copies tensors out of the memory of GPUs that it uses, for readers who cannot map it; true by default.
    /// One thread of the client does so, with a session of its own, from the first use of a GPU on. Where no process does, such readers
    /// are refused.
    #[must_use]
    pub fn stages(mut self, stages: bool) -> Self {
        self.stages = stages;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::SidecarUnreachable`](crate::Error::SidecarUnreachable) where nobody answers, or what the sidecar has
    /// against this client.
    pub fn connect(self) -> Result<Client> {
        Client::with_options(self)
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientOptions")
            .field("directory", &self.directory)
            .field("name", &self.name)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

fn program_name() -> String {
    let program = env::args_os().next().map(PathBuf::from);
    let name =
        program.as_deref().and_then(Path::file_name).map_or("client".into(), |name| name.to_string_lossy());
    format!("{name}[{}]", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_names_no_directory() {
        assert_eq!(sockets_directory(Some("".into())), Path::new(SOCKETS_DEFAULT));
        assert_eq!(sockets_directory(None), Path::new(SOCKETS_DEFAULT));
        assert_eq!(sockets_directory(Some("/a".into())), Path::new("/a"));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let options = ClientOptions::at("/nowhere").name(&"ä".repeat(200));
        assert_eq!(options.name.len(), 256);
        assert_eq!(ClientOptions::at("/nowhere").name(&format!("x{}", "ä".repeat(200))).name.len(), 255);
    }
}
