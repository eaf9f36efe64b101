//! The configuration: one table of settings, read from a YAML file and the environment, checked once.
//!
//! ```text
//!   file (YAML) ── flattened to dotted paths ──┐
//!   TENSORLANE_... variables ──────────────────┼──> table: default < file < variable ──> Config, or every mistake
//!   host name ─────────────────────────────────┘
//! ```
//!
//! `settings` holds the table: a new setting is one row there and one field here. Whoever has a [`Config`] has a
//! valid one; nothing else in the sidecar reads a file or a variable. Nothing here opens a socket or makes a directory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tensorlane_proto::crd::GpuMode;
use tensorlane_proto::identity::{ExchangeName, PeerName};
use tensorlane_proto::negotiate::{Encryption, Require, Transport, TransportSet};
use tensorlane_proto::text::variable;

pub mod abilities;
mod conflicts;
pub mod memory;
pub mod mistakes;
mod nearest;
pub mod print;
mod settings;
mod sources;
mod values;

pub use abilities::{Unable, check_abilities};
pub use memory::{ArenaAboveLimit, above_machine, check_memory};
pub use mistakes::{Mistake, Mistakes};
pub use sources::{FILE_BYTES_MAX, Loaded, Origin, Sources};
pub(crate) use values::host_port;

/// The exit code for a configuration that is wrong: `EX_USAGE` of sysexits.h, as other proxies have it.
pub const EXIT_BAD_CONFIG: u8 = 64;

/// Everything the sidecar can be told. Made by [`Sources::load`] alone.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The exchange that this peer belongs to.
    pub exchange: ExchangeName,
    /// The name of this peer.
    pub peer: PeerName,
    /// Rules for what routes to other peers may be, and must be.
    pub routes: Routes,
    /// Sockets at which workloads connect.
    pub sockets: Sockets,
    /// gRPC over TCP.
    pub grpc: Grpc,
    /// The memory for tensors.
    pub arena: Arena,
    /// State that outlives a restart of the container.
    pub state: State,
    /// Other peers.
    pub peers: Peers,
    /// The key that other peers know this one by.
    pub identity: IdentityConfig,
    /// Tensors on GPUs.
    pub gpu: Gpu,
    /// Trust in other pods.
    pub security: Security,
    /// Things that the sidecars of a node share.
    pub node: Node,
    /// Sets on files.
    pub sets: Sets,
    /// Metrics and health.
    pub admin: Admin,
    /// Limits to the number of everything.
    pub limits: Limits,
    /// Times after which things that nobody keeps go away.
    pub gc: Gc,
    /// Times to wait for others.
    pub deadlines: Deadlines,
    /// Logs.
    pub log: Log,
}

/// Rules for what routes to other peers may be, and must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    /// The transports between peers that may be used; absent: all that there are.
    pub transports: Option<TransportSet>,
    /// Requirement for every route, besides what a call requires.
    pub require: Require,
    /// Rule whether bulk bytes between peers are encrypted.
    pub encryption: Encryption,
    /// `tcp` or `quic`; absent: whichever is measured to be faster.
    pub prefer: Option<Transport>,
}

impl Routes {
    /// Returns whether lanes may be plain. Not where every route must be encrypted: those that others ask for, too.
    pub fn may_be_plain(&self) -> bool {
        self.encryption == Encryption::None && !self.require.encrypted
    }
}

/// Sockets at which workloads connect.
#[derive(Clone, Debug, PartialEq)]
pub struct Sockets {
    /// Directory of `session.sock` and `grpc.sock`.
    pub directory: PathBuf,
}

/// gRPC over TCP.
#[derive(Clone, Debug, PartialEq)]
pub struct Grpc {
    /// A loopback address to listen on besides the Unix socket.
    pub listen: Option<SocketAddr>,
}

/// The memory for tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Arena {
    /// Bytes that tensors may take.
    pub size: u64,
    /// Bytes of an ordinary segment.
    pub segment: u64,
    /// Bytes to keep populated ahead of use.
    pub ready: u64,
    /// Bytes that the sidecar needs beside the arena.
    pub base: u64,
}

impl Arena {
    /// Bytes that the tables of tensors, leases, names and tickets may take: a quarter of the base.
    pub fn table_bytes(&self) -> u64 {
        self.counted_base() / 4
    }

    /// Bytes that the metadata of tensors may take: an eighth of the base.
    pub fn metadata_bytes(&self) -> u64 {
        self.counted_base() / 8
    }

    /// Bytes that requests of sessions may take while they come, wait or run: an eighth of the base.
    pub fn request_bytes(&self) -> u64 {
        self.counted_base() / 8
    }

    /// Bytes that look-ups of this pod may take, and waits for names as many: an eighth of the base. What is more than 32 MiB is not used.
    pub fn waiting_bytes(&self) -> u64 {
        self.counted_base() / 8
    }

    /// Bytes that remembered requests may take, and changes of names as many: a sixteenth of the base.
    pub fn remembered_bytes(&self) -> u64 {
        self.counted_base() / 16
    }

    /// The base, or 16 MiB: who says less gives the process less than it has when nothing happens.
    fn counted_base(&self) -> u64 {
        self.base.max(16 << 20)
    }
}

/// State that outlives a restart of the container.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// A directory that only the sidecar sees.
    pub directory: PathBuf,
}

/// Other peers.
#[derive(Clone, Debug, PartialEq)]
pub struct Peers {
    /// Address at which peers connect, `host:port`; absent: no peers.
    pub listen: Option<String>,
    /// The addresses that others are told: `host:port`, or an IP address alone, for the port of `listen`.
    pub advertise: Option<Vec<String>>,
    /// The peers file.
    pub file: Option<PathBuf>,
    /// Source of the peer table.
    pub directory: PeersDirectory,
    /// The namespace of the peers' objects; absent: the one that the pod's token belongs to.
    pub namespace: Option<String>,
    /// File by which the API server is reached; absent: as pods do.
    pub kubeconfig: Option<PathBuf>,
    /// Peers that may be connected at once.
    pub max: usize,
    /// Lanes in each direction of a pair of peers; 0: none.
    pub lanes: usize,
    /// Readers of a tensor that one peer serves at a time while others can; 0: the owner serves all.
    pub fan_out: usize,
    /// The bytes from which on readers get a tensor from each other.
    pub fan_out_from: u64,
}

/// Source of the peer table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeersDirectory {
    /// Nowhere: nobody is known.
    None,
    /// The peers file.
    File,
    /// The `TensorPeer` objects of the exchange.
    Kubernetes,
}

/// The key that other peers know this one by.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentityConfig {
    /// The age at which it is changed; absent: never.
    pub rotate_every: Option<Duration>,
    /// Time for which two keys stand for this peer.
    pub overlap: Duration,
}

/// Tensors on GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Mode in which they are shared.
    pub mode: GpuMode,
}

/// Trust in other pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Security {
    /// True if copies that other pods of the node have of a third peer's tensors are mapped.
    pub neighbours: bool,
}

/// Things that the sidecars of a node share.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The directory in which they find each other; absent: they share nothing.
    pub directory: Option<PathBuf>,
}

/// Sets on files.
#[derive(Clone, Debug, PartialEq)]
pub struct Sets {
    /// Directory in which they lie; absent: there are none.
    pub root: Option<PathBuf>,
}

/// Metrics and health.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address at which they are served; absent: nowhere.
    pub listen: Option<SocketAddr>,
}

/// Limits to the number of everything.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Sessions at once.
    pub sessions: usize,
    /// Live tensors, reservations and copies included.
    pub tensors: usize,
    /// Leases of one session.
    pub leases_per_session: usize,
    /// Names.
    pub names: usize,
    /// Live tickets.
    pub tickets: usize,
    /// Requests of one session that wait or run.
    pub pending_requests: usize,
    /// Files of sets that are kept open.
    pub set_files: usize,
    /// Most bytes of the journal of a set on files.
    pub set_journal_bytes: u64,
    /// Connections that have not said who they are, at each door.
    pub strangers: usize,
    /// Lanes of all peers together.
    pub lanes: usize,
    /// Bytes of answers that wait to be read, of all connections together.
    pub unread_bytes: u64,
    /// Bytes of segments that one peer of the node may have.
    pub lent_bytes: u64,
    /// Bytes of GPU memory that one peer of the node may have leased.
    pub gpu_lent_bytes: u64,
}

/// Times after which things that nobody keeps go away.
#[derive(Clone, Debug, PartialEq)]
pub struct Gc {
    /// The life of a ticket that was not given one.
    pub ticket_ttl: Duration,
    /// Time for which the leases of a lost gRPC session or peer stay.
    pub lease_grace: Duration,
    /// Time for which a copy without a lease stays.
    pub copy_idle: Duration,
}

/// Times to wait for others.
#[derive(Clone, Debug, PartialEq)]
pub struct Deadlines {
    /// A call that does not say.
    pub default: Duration,
    /// A writer that must acknowledge its map of a new segment.
    pub map: Duration,
    /// A peer connection on which no byte moves although some should.
    pub progress: Duration,
    /// Time for what is under way when the sidecar is told to end.
    pub drain: Duration,
}

/// Logs.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// A level, and levels of single modules after commas.
    pub level: String,
    /// The shape of a line.
    pub format: LogFormat,
}

/// The shape of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object.
    Json,
    /// For people.
    Text,
}

impl Config {
    /// The defaults, changed by pairs of dotted path and text; no file and no variable is read.
    /// The peer's name is `here` unless a pair says otherwise.
    ///
    /// # Errors
    /// Every mistake in the pairs.
    pub fn of(pairs: &[(&str, &str)]) -> Result<Config, Mistakes> {
        let variables = pairs.iter().map(|(path, text)| (variable(path), (*text).to_owned())).collect();
        let sources = Sources { file: None, variables, host_name: "here".to_owned() };
        sources.load().map(|loaded| loaded.config)
    }
}

#[cfg(test)]
mod tests;
