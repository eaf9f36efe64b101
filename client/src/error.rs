//! Errors that a call can end with, and what to do about them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensorlane_proto::{Failure, Reason};
use thiserror::Error;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a call failed. A failed call leaves nothing behind at the sidecar.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The sidecar refused, with a reason that a program can act on.
    #[error("{0}")]
    Refused(Box<Failure>),
    /// Nobody answers at the session socket.
    #[error(
        "the sidecar cannot be reached at {}: {source}; start a sidecar there, or set \
         TENSORLANE_SOCKETS to the directory of the sockets of the one that runs",
        path.display()
    )]
    SidecarUnreachable {
        /// The session socket.
        path: PathBuf,
        /// Error of the kernel.
        source: Arc<io::Error>,
    },
    /// The connection ended during the call or before it, and its leases with it. Told once; the next call connects anew.
    #[error(
        "the session was lost: {why}; call again to reconnect (a put may be repeated with the same retry id); \
         tensors that are mapped stay readable"
    )]
    SessionLost {
        /// Cause that ended it.
        why: Arc<str>,
    },
    /// The sidecar broke the protocol; the connection was closed.
    #[error("the sidecar broke the protocol: {0}; use a client and a sidecar of the same release")]
    Protocol(Arc<str>),
    /// The client was made before this process was forked.
    #[error("this client belongs to the parent of a forked process; open a new Client in the child")]
    Forked,
    /// The deadline of the call passed without an answer.
    #[error(
        "no answer in {after:?}; give the call a longer deadline, or look at the sidecar's log and `tensorlane status`"
    )]
    DeadlineExceeded {
        /// Time that was waited.
        after: Duration,
    },
    /// The call was withdrawn by its caller.
    #[error("the call was withdrawn")]
    Withdrawn,
    /// The arguments cannot be right, whatever the sidecar says.
    #[error("{0}")]
    InvalidArgument(Arc<str>),
    /// The GPU, its driver, or what another process put on it, refuses.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(#[from] tensorlane_cuda::Refusal),
    /// The kernel refused memory, descriptors or threads to this process.
    #[error("{what}: {source}")]
    Resources {
        /// Request that was made of it.
        what: &'static str,
        /// Error of the kernel.
        source: Arc<io::Error>,
    },
}

impl Error {
    /// The sidecar's reason, where it was the sidecar that refused.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(failure) => Some(failure.reason),
            _ => None,
        }
    }

    /// Returns whether the same call may succeed if it is simply made again.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::SessionLost { .. } | Self::SidecarUnreachable { .. } | Self::DeadlineExceeded { .. }
        )
    }

    pub(crate) fn lost(why: impl Into<Arc<str>>) -> Self {
        Self::SessionLost { why: why.into() }
    }

    pub(crate) fn protocol(why: impl Into<Arc<str>>) -> Self {
        Self::Protocol(why.into())
    }

    pub(crate) fn invalid(why: impl Into<Arc<str>>) -> Self {
        Self::InvalidArgument(why.into())
    }

    pub(crate) fn resources(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Resources { what, source: Arc::new(source.into()) }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Refused(Box::new(failure))
    }
}
