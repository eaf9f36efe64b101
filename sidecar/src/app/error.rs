//! Reasons for which the sidecar does not run.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tensorlane_proto::text::variable;

use crate::config::ArenaAboveLimit;
use crate::identity::KeyFileError;
use crate::logging::LoggingError;

/// Reason for which the sidecar could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Logs that could not be started.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// A metric is there twice.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Something is insisted on that cannot be had.
    #[error(transparent)]
    Unable(#[from] crate::config::Unable),
    /// The arena would get the container killed.
    #[error(transparent)]
    Memory(#[from] ArenaAboveLimit),
    /// The arena does not start.
    #[error("arena: {0}")]
    Arena(#[from] tensorlane_memory::ArenaError),
    /// The key that others know this sidecar by.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Another sidecar has it.
    #[error("another sidecar runs with {}: end it, or give this one directories of its own (sockets.directory, state.directory, sets.root)", directory.display())]
    InUse {
        /// The directory.
        directory: std::path::PathBuf,
    },
    /// No address for metrics and health.
    #[error("admin.listen {address}: {source}{}", remedy(&address.to_string(), source, "admin.listen"))]
    AdminListen {
        /// The address.
        address: SocketAddr,
        /// Reason of the failure.
        source: io::Error,
    },
    /// No address for peers.
    #[error("peers.listen {address}: {source}{}", remedy(address, source, "peers.listen"))]
    PeersListen {
        /// As configured.
        address: String,
        /// Reason of the failure.
        source: io::Error,
    },
    /// Nobody is to know this sidecar.
    #[error("peers.listen is not set, so this sidecar is no peer of anyone: set it to HOST:PORT")]
    NoPeers,
    /// Addresses of a family that is not listened on.
    #[error(
        "peers.listen {listen} takes IPv4 alone, and the addresses that others would be told are IPv6: {addresses}. Set \
         sidecar.ipv6 of the chart to true, or peers.listen to [::]:PORT"
    )]
    OtherFamily {
        /// As configured.
        listen: String,
        /// As configured.
        addresses: String,
    },
    /// An address to listen on that is no address to connect to.
    #[error(
        "no other peer can connect to {address}: set peers.advertise to the HOST:PORT that others reach this one by"
    )]
    NowhereToConnect {
        /// As configured.
        address: String,
    },
    /// The API server cannot be asked.
    #[error(transparent)]
    Kubernetes(#[from] crate::directory::kubernetes::ClientError),
    /// Something that the start needs does not answer, and the start was told to end.
    #[error(
        "{signal} came during the start, which did not end within deadlines.drain or until a second signal: look at the \
         file systems of state.directory, sockets.directory, sets.root and peers.file, and at peers.kubeconfig and the \
         program that it names"
    )]
    StartHangs {
        /// Name of the signal.
        signal: &'static str,
    },
    /// Something hangs that was told to end.
    #[error("not everything has ended within {within:?}: {threads} still run")]
    Stuck {
        /// Time that it had.
        within: Duration,
        /// The threads, with how many there are of each.
        threads: String,
    },
    /// The system refused something else.
    #[error("{action}: {source}")]
    Io {
        /// Action that was tried, with the path or address.
        action: String,
        /// Reason of the failure.
        source: io::Error,
    },
}

/// Remedy where an address of IPv6 is to be listened on and the system has none, or where another program has the address.
/// Begins with a stop; empty where nothing is known.
pub(super) fn remedy(address: &str, source: &io::Error, setting: &str) -> String {
    match source.raw_os_error() {
        _ if source.kind() == io::ErrorKind::AddrInUse => format!(
            ". Another program listens there, such as another sidecar: end it, or set {setting} ({}) to another port",
            variable(setting)
        ),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) if address.starts_with('[') => {
            ". The system has no IPv6, or not this address: set sidecar.ipv6 of the chart to false, or listen on 0.0.0.0".to_owned()
        }
        _ => String::new(),
    }
}

pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::Io { action: action.into(), source }
}

/// Error of an action at a path that a setting names.
pub(super) fn io_at(
    action: &'static str,
    path: &Path,
    setting: &'static str,
) -> impl FnOnce(io::Error) -> RunError {
    io(format!("{action} {} ({setting})", path.display()))
}
