//! Facts that a check looks at, as plain data, and how they are read.

use std::path::PathBuf;

use tensorlane_client::{PeerStatus, SESSION_SOCKET, Status};
use tensorlane_memory::limits::memory_limit;
use tensorlane_operator::quantity::Amount;

use crate::args::Connection;

/// Everything that is looked at.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// Set if this runs in a container of Kubernetes: what is to be done is said in its terms there.
    pub(super) in_kubernetes: bool,
    /// The directory of the sockets.
    pub(super) directory: PathBuf,
    /// Access to a sidecar there.
    pub(super) access: Access,
    /// The version of this command.
    pub(super) version: &'static str,
    /// Status that the sidecar says of itself.
    pub(super) status: Option<Status>,
    /// The peers as it sees them, itself included, or why it does not say.
    pub(super) peers: Result<Vec<PeerStatus>, String>,
    /// Memory, if this is the sidecar's own container: its limit, and what it needs beside the arena; bytes.
    pub(super) memory: Option<(u64, u64)>,
}

/// Access to a sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// No directory of that path.
    NoDirectory,
    /// No session socket in the directory.
    NoSocket,
    /// Failure to get an answer by the socket, in words.
    NoAnswer(String),
    /// Sidecar that answers.
    Answers,
}

/// Looks at everything.
pub(super) fn read(connection: &Connection) -> Facts {
    let directory = connection.directory();
    let nothing = |access| Facts {
        // Every container of a pod has it.
        in_kubernetes: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        directory: directory.clone(),
        access,
        version: env!("CARGO_PKG_VERSION"),
        status: None,
        peers: Ok(Vec::new()),
        memory: own_memory(),
    };
    if !directory.is_dir() {
        return nothing(Access::NoDirectory);
    }
    if !directory.join(SESSION_SOCKET).exists() {
        return nothing(Access::NoSocket);
    }
    let client = match connection.connect() {
        Ok(client) => client,
        Err(error) => return nothing(Access::NoAnswer(error.to_string())),
    };
    match client.status() {
        Ok(status) => Facts {
            status: Some(status),
            peers: client.peers().map_err(|error| error.to_string()),
            ..nothing(Access::Answers)
        },
        Err(error) => nothing(Access::NoAnswer(error.to_string())),
    }
}

/// Only the sidecar's container has the variable, and only its limit says anything about the arena.
fn own_memory() -> Option<(u64, u64)> {
    let base = std::env::var("TENSORLANE_ARENA_BASE").ok()?;
    let base = Amount::parse(&base).ok()?.units()?;
    Some((memory_limit()?.bytes, base))
}
