//! Contexts: pipes whose calls return at once and end in callbacks, for programs that keep no thread for each wait.
//!
//! ```text
//!   caller             workers of one end                                   tl-pipes, one thread of the context
//!   connect ─┐
//!   write ───┼─ lane ─> writes: connects, begins ── at most 64 ──> written: waits in order ─┐
//!   finish ──┘                                                                              │  due
//!   read_descriptor ─┬─ lane ─> reads: a descriptor, then its read, then the next one ──────┼──────> callback, callback, ..
//!   read ────────────┘                                                                      │        one at a time
//!   accept ──── lane ─> accepts: listens, accepts in order ─────────────────────────────────┘
//! ```
//! An operation beyond [`OPERATIONS_MAX`] is refused by its call. Every other one ends in its callback, once: with a success, an error,
//! the close of the pipe or of the context, the drop of the last handle, or behind a callback that panicked. A callback never runs
//! inside the call that scheduled it, nor beside another one of its context. Callbacks of one end come in the order of their calls:
//! those of writes, of descriptors, of reads, and of accepts.
//!
//! - A worker is a thread that is made when it is first needed; it ends with its end. A pipe has three at most, a listener one.
//!   Where the kernel has no thread for it, the end is closed with that error.
//! - An end that is closed keeps no worker. An operation that comes later is failed by a new one, which ends at once.
//! - A panic of a worker closes its end with INTERNAL; what waits there is failed in its order. The operation in which it came has no callback.
//! - What waits is what the caller gave: messages, descriptors, allocations, callbacks. Nothing is copied to wait.

mod core;
mod dispatcher;
mod lane;
mod listener;
mod opened;
mod pipe;
mod reads;
#[cfg(test)]
mod tests;
mod writes;

use std::fmt;
use std::sync::Arc;

use self::core::Core;
pub use self::core::ENDS_MAX;
pub use self::listener::CallbackListener;
pub use self::opened::OPERATIONS_MAX;
pub use self::pipe::CallbackPipe;
pub use self::reads::{OwnedAllocation, OwnedPlace, ReadDone};
pub use self::writes::WriteDone;
use super::{ConnectOptions, ListenOptions};
use crate::channel::Timeout;
use crate::client::Client;
use crate::error::Result;
use crate::origin::Origin;

/// Owner of pipes and listeners with callbacks, and of the one thread that calls them. Dropped it is closed, and callbacks that are due
/// are called all the same.
pub struct Context {
    core: Arc<Core>,
}

impl Context {
    /// Context of a client. Its callbacks run on a thread of their own, `tl-pipes`.
    ///
    /// # Errors
    /// No thread, and [`Forked`](crate::Error::Forked) with the client of a parent process.
    pub fn new(client: &Client) -> Result<Self> {
        client.peer()?;
        Self::of(client, Origin::here())
    }

    fn of(client: &Client, origin: Origin) -> Result<Self> {
        Ok(Self { core: Core::start(client, origin)? })
    }

    /// Opens an entry point for pipes, and returns before that is done. Where it fails, every accept ends with the error:
    /// NAME_TAKEN, LIMIT_EXCEEDED, UNSUPPORTED, a closed context.
    ///
    /// # Errors
    /// [`Forked`](crate::Error::Forked) in a child of the process.
    pub fn listen(&self, name: &str, options: &ListenOptions) -> Result<CallbackListener> {
        self.core.check()?;
        Ok(CallbackListener::open(&self.core, name, options))
    }

    /// Connects to a listener as [`Client::connect_pipe`] does, and returns before that is done. Operations may be scheduled at once.
    /// Where it fails, each of them ends with the error: NOT_FOUND, LIMIT_EXCEEDED also beyond [`ENDS_MAX`], a closed context.
    ///
    /// # Errors
    /// [`Forked`](crate::Error::Forked) in a child of the process.
    pub fn connect(&self, to: &str, options: &ConnectOptions) -> Result<CallbackPipe> {
        self.core.check()?;
        Ok(CallbackPipe::connect(&self.core, to, options))
    }

    /// Closes every pipe and listener of it. What is under way ends with PIPE_CLOSED, and so does what is scheduled later. The callbacks
    /// are called behind this call.
    pub fn close(&self) {
        self.core.close();
    }

    /// Waits until the callback of every operation was called, and every finish was said. An accept that waits is such an operation, too.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED where operations are under way when the time is over; INVALID_ARGUMENT in a callback of the context, which would
    /// wait for itself; [`Forked`](crate::Error::Forked) in a child of the process.
    pub fn join(&self, timeout: Timeout) -> Result<()> {
        self.core.join(timeout)
    }

    /// Number of callbacks that panicked. The others are called all the same.
    pub fn panics(&self) -> u64 {
        self.core.panics()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}
