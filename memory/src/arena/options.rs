//! Options of an arena, owners and purposes of its bytes, and reasons of its refusals.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::PAGE;
use crate::accounting::Shortage;
use crate::owned_thread::{StartThread, plainly};
use crate::segment::{Fallocate, Populate};

/// Segments are made this large where nobody asks for more: large enough that few are mapped, small enough that an
/// idle one is no loss.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// The share of the arena that only pulls may take.
pub const PULL_SHARE: f64 = 0.10;

/// The most the background populator keeps ready where nothing else is said.
pub const READY_BYTES_MAX: u64 = 1 << 30;

/// Owner of a segment, who writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A single session, which maps it for writing.
    Session(u64),
    /// The sidecar alone.
    Sidecar,
}

/// Purpose of bytes: a part of the arena is kept for pulls, else two full peers would wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Tensors put here.
    Put,
    /// Tensors that come from other peers.
    Pull,
}

/// Reason why there is no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The owner's segments have no place, and the budget allows a new one: call [`Arena::admit`](super::Arena::admit).
    #[error("a new segment has to be made")]
    Grow,
    /// Nothing fits now; something may once bytes come back.
    #[error("the arena is full: {0}")]
    Full(Shortage),
    /// More bytes than can fit, however long one waits.
    #[error("{asked} bytes can never fit: at most {most} bytes of the arena are for this purpose")]
    Never {
        /// Bytes asked for.
        asked: u64,
        /// The most that could be had in an empty arena.
        most: u64,
    },
    /// The arena was stopped.
    #[error("the arena is stopped")]
    Stopped,
}

/// Reason why an arena does not start.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Not even a page.
    #[error("an arena of {bytes} bytes holds no page of {PAGE} bytes")]
    TooSmall {
        /// Configured value.
        bytes: u64,
    },
    /// Nonsense for a share.
    #[error("the share for pulls is {share}; it must lie between 0 and 1")]
    PullShare {
        /// Configured value.
        share: f64,
    },
    /// The directory of the witnesses cannot be used.
    #[error("cannot use the witness directory {path}")]
    WitnessDir {
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// No thread or descriptor for what runs in the background.
    #[error("cannot start the arena's threads")]
    Threads(#[source] io::Error),
}

/// Options by which an arena is made.
#[derive(Clone)]
pub struct ArenaOptions {
    /// The budget, in bytes; rounded down to whole pages. Must lie below the container's memory limit.
    pub bytes: u64,
    /// The size of a segment where nobody asks for a larger block.
    pub segment_bytes: u64,
    /// The share of `bytes` that only [`Purpose::Pull`] may take.
    pub pull_share: f64,
    /// Number of populated bytes that the background populator keeps ready for new segments. Costs nothing that is not
    /// in the budget; 0 leaves populating to the callers.
    pub ready_bytes: u64,
    /// Means that gives segments their pages.
    pub populate: Arc<dyn Populate>,
    /// A private directory that outlives this process, for the witnesses; `None` makes them anonymous, and then a
    /// later incarnation does not know what is still mapped. No two living arenas may share one.
    pub witness_dir: Option<PathBuf>,
    /// Set if the sidecar goes on using a session's segment once the session has ended, the segment is empty and
    /// every witness is at its end: its bytes are free at once, where destroying 1 GiB takes a third of a second.
    /// A process that kept its map and closed its witness nevertheless could then damage what is not its own;
    /// without this it could not.
    pub take_over: bool,
    /// Called when a segment's last way out is that somebody unmaps it ([`Arena::lingering`](super::Arena::lingering)): on the
    /// arena's own thread, and under no lock of the arena.
    pub on_lingering: Arc<dyn Fn() + Send + Sync>,
    /// Starter of the arena's three threads.
    pub start_thread: StartThread,
}

impl ArenaOptions {
    /// The defaults for an arena of `bytes`.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            segment_bytes: SEGMENT_BYTES,
            pull_share: PULL_SHARE,
            ready_bytes: (bytes / 4).min(READY_BYTES_MAX),
            populate: Arc::new(Fallocate),
            witness_dir: None,
            take_over: true,
            on_lingering: Arc::new(|| {}),
            start_thread: plainly(),
        }
    }
}
