//! Reasons for which bytes cannot be sent to a peer.

use std::io;

use tensorlane_memory::BlockError;
use thiserror::Error;

use super::handshake::timed_out;

/// The runs are not those of the block.
#[derive(Debug, Error)]
pub(super) enum SourceError {
    /// A run lies outside of it.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// Runs that have fewer bytes than the descriptor says.
    #[error("the runs of a selection have fewer bytes than its descriptor says")]
    Short,
    /// Bytes that were on their way here, and do not come.
    #[error("the tensor that was being passed on does not come any more")]
    Gone,
}

/// Reason for which nothing can be sent.
#[derive(Debug, Error)]
pub(super) enum SendError {
    /// The connection ended, or is about to.
    #[error("the connection is closed")]
    Closed,
    /// More frames wait than the peer can have asked for in good faith.
    #[error("too many frames wait for a peer that does not read")]
    Backlog,
    /// Nothing arrived at the other end for the whole of the progress deadline.
    #[error("no byte could be sent in time")]
    Progress,
    /// Some bytes were taken, and too few for too long.
    #[error("bytes were taken too slowly")]
    Slow,
    /// The socket failed.
    #[error(transparent)]
    Socket(io::Error),
    /// The bytes to be sent are not there: a mistake of ours.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A record could not be sealed.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

impl From<io::Error> for SendError {
    fn from(error: io::Error) -> Self {
        if timed_out(&error) { Self::Progress } else { Self::Socket(error) }
    }
}
