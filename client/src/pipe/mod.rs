//! Pipes: messages between two processes, read in three steps: descriptor, allocation, read.
//!
//! ```text
//!   listen("inbox") ── accept ──> Pipe              connect("inbox") ──> Pipe
//!     write(message) ── tensors and large payloads become sealed blocks of the writer's arena; a reservation without a copy
//!        │                └── PipeWrite: metadata, sizes, descriptors, references ──> the sidecar ──> read_descriptor
//!        │                                                                              the reader chooses an allocation
//!        └── done <── PipeEnd { read } <── read(descriptor, allocation): the bytes, as any tensor comes
//! ```
//! A write is done when the other end has read the message. It comes back always, with what is known of its delivery. Whoever waits has
//! a deadline and no thread at the sidecar. Calls wait on the caller's thread; those of a [`Context`] return at once, and end in callbacks.

mod context;
mod message;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tensorlane_proto::frame::{CHANNEL_OPTIONS_SINCE, PIPES_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

pub use self::context::{
    CallbackListener, CallbackPipe, Context, ENDS_MAX, OPERATIONS_MAX, OwnedAllocation, OwnedPlace, ReadDone,
    WriteDone,
};
pub use self::message::{Message, Payload};
pub use self::read::{Allocation, Descriptor, Incoming, Place, ReadFailed, Received, Tensor};
pub use self::write::{Delivered, WriteFailed, Writing};
use crate::channel::Timeout;
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::origin::Origin;
use crate::wait::{Cancel, Wait, later};

/// Most messages of one end that are written and not read. One more waits, where it is written by [`Pipe::write`], or is refused with
/// LIMIT_EXCEEDED and comes back.
pub const UNREAD_MAX: usize = 64;

/// An entry point of this process. Dropped it ends, and so does every pipe that was not accepted.
pub struct Listener {
    client: Client,
    connection: Arc<Connection>,
    origin: Origin,
    id: u64,
    name: String,
}

/// End of a pipe. Threads may share it. Dropped it is closed: the other end gets PIPE_CLOSED, or the end after
/// [`Pipe::finish`].
pub struct Pipe {
    end: Arc<End>,
}

/// Inside of one end, which descriptors and writes under way share.
struct End {
    client: Client,
    connection: Arc<Connection>,
    origin: Origin,
    id: u64,
    remote: Remote,
    /// Sequence of the last message that was written.
    written: Mutex<u64>,
    /// Writes that are under way, for those that wait for one to end.
    window: write::Window,
    reading: Mutex<read::Reading>,
    /// Held by whoever asks for a message: two at a time would be given the same.
    asking: Mutex<()>,
}

/// The other end of a pipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Name of the peer that it is at.
    pub peer: String,
    /// Name of its client, as that calls itself.
    pub client: String,
    /// Way that descriptors take: `local`, through the sidecar of this pod, or `tcp`, over the connection to its peer.
    pub route: String,
}

/// Options of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenOptions {
    /// Other peers that may connect, by patterns of their names: `rollout-*`. Every peer of the exchange by default, and none by an empty
    /// list. Clients of this pod always may. At most 64 patterns, of 253 bytes each.
    pub allow: Option<Vec<String>>,
}

impl ListenOptions {
    /// Takes pipes of every peer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes pipes only of other peers whose names fit one of the patterns.
    #[must_use]
    pub fn allow(self, patterns: &[&str]) -> Self {
        Self { allow: Some(patterns.iter().map(|pattern| (*pattern).to_owned()).collect()) }
    }
}

/// Options of a connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Time to wait for a listener that does not exist yet; not at all by default.
    pub wait: Option<Duration>,
}

impl ConnectOptions {
    /// Does not wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for a listener that does not exist yet.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait) }
    }
}

impl Client {
    /// Opens an entry point for pipes of this peer, to which every peer of the exchange may connect.
    ///
    /// # Errors
    /// NAME_TAKEN while somebody else has the name, LIMIT_EXCEEDED, UNSUPPORTED with an older sidecar.
    pub fn listen(&self, name: &str) -> Result<Listener> {
        self.listen_with(name, &ListenOptions::new())
    }

    /// Opens an entry point for pipes of this peer.
    ///
    /// # Errors
    /// As [`Self::listen`], and TOO_LARGE for a list beyond its bounds.
    pub fn listen_with(&self, name: &str, options: &ListenOptions) -> Result<Listener> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        check_version(&connection)?;
        if options.allow.is_some() {
            // An older sidecar would leave open what is to be closed.
            let what = "listeners that say who may connect came with";
            connection.require(CHANNEL_OPTIONS_SINCE, what, ": update the sidecar")?;
        }
        let allow = options.allow.clone().map(|patterns| v1::PeerPatterns { patterns });
        let request = v1::PipeListenRequest { name: name.to_owned(), allow };
        let reply: v1::PipeListenResponse =
            connection.call(SessionKind::PipeListen, &request, &wait, Late::Listener)?;
        let origin = connection.origin().again();
        Ok(Listener { client: self.clone(), connection, origin, id: reply.listener, name: name.to_owned() })
    }

    /// Connects to a listener of this peer by its name, or to one of any peer as `peer/name`. Messages may be written before it is
    /// accepted.
    ///
    /// # Errors
    /// NOT_FOUND without such a listener, PERMISSION_DENIED for one that does not allow this peer, LIMIT_EXCEEDED, UNSUPPORTED with an older
    /// sidecar here or there, PEER_UNREACHABLE.
    pub fn connect_pipe(&self, to: &str, options: &ConnectOptions) -> Result<Pipe> {
        let wait = self.wait(options.wait);
        let connection = self.connection(&wait)?;
        check_version(&connection)?;
        // A name may have slashes of its own, so only this peer is taken away.
        let own = connection.sidecar().peer.to_string();
        let name = to.strip_prefix(&own).and_then(|rest| rest.strip_prefix('/')).unwrap_or(to);
        let request = v1::PipeConnectRequest {
            peer: String::new(),
            name: name.to_owned(),
            wait_ms: if options.wait.is_some() { wait.deadline_ms() } else { 0 },
            deadline_ms: wait.deadline_ms(),
        };
        let reply: v1::PipeOpened = connection.call(SessionKind::PipeConnect, &request, &wait, Late::Pipe)?;
        Ok(Pipe::new(self, connection, reply))
    }
}

/// An older sidecar knows no pipes.
fn check_version(connection: &Connection) -> Result<()> {
    connection.require(PIPES_SINCE, "pipes came with", ": update the sidecar")
}

/// Patience of a call.
struct Patience<'a> {
    client: &'a Client,
    /// Time at which the caller's own deadline passes.
    until: Instant,
    wait: Wait,
}

impl<'a> Patience<'a> {
    fn of(client: &'a Client, timeout: Timeout) -> Self {
        let after = time(client, timeout);
        Self { client, until: later(after), wait: client.wait(Some(after)) }
    }

    /// Returns whether the call is to be asked again, with the time that is left: its sidecar's longest deadline was over, and not its own.
    fn goes_on(&mut self, error: &Error) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        let goes_on = error.reason() == Some(Reason::DeadlineExceeded) && !left.is_zero();
        if goes_on {
            self.wait = self.client.wait(Some(left));
        }
        goes_on
    }
}

/// Time that a caller gives a call.
fn time(client: &Client, timeout: Timeout) -> Duration {
    match timeout {
        Timeout::Default => client.deadline(),
        Timeout::Now => Duration::ZERO,
        Timeout::After(after) => after,
        Timeout::Never => Duration::MAX,
    }
}

// === impl Listener ===

impl Listener {
    /// Name under which connects find the listener.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next pipe that was connected, in the order of connects.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED where nobody connects in time, PIPE_CLOSED for a listener that has ended, a lost session.
    pub fn accept(&self, timeout: Timeout) -> Result<Pipe> {
        let mut patience = Patience::of(&self.client, timeout);
        loop {
            let wait = &patience.wait;
            let request = v1::PipeAcceptRequest { listener: self.id, deadline_ms: wait.deadline_ms() };
            let reply: Result<v1::PipeOpened> =
                self.connection.call(SessionKind::PipeAccept, &request, wait, Late::Pipe);
            match reply {
                Err(error) if patience.goes_on(&error) => {}
                reply => {
                    return reply.map(|reply| Pipe::new(&self.client, Arc::clone(&self.connection), reply));
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.origin.is_child() {
            let end = v1::PipeEndRequest { listener: self.id, ..Default::default() };
            // A session that is lost has ended it.
            let _ = self.connection.say(SessionKind::PipeEnd, &end);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("name", &self.name).finish_non_exhaustive()
    }
}

// === impl Pipe ===

impl Pipe {
    fn new(client: &Client, connection: Arc<Connection>, opened: v1::PipeOpened) -> Self {
        // A sidecar of an earlier release has no pipes but those of its pod.
        let route = if opened.route.is_empty() { "local".to_owned() } else { opened.route };
        let remote = Remote { peer: opened.peer, client: opened.client, route };
        let origin = connection.origin().again();
        let end = End {
            client: client.clone(),
            connection,
            origin,
            id: opened.pipe,
            remote,
            written: Mutex::default(),
            window: write::Window::default(),
            reading: Mutex::default(),
            asking: Mutex::default(),
        };
        Self { end: Arc::new(end) }
    }

    /// Lets `cancel` withdraw calls of this end that wait.
    #[must_use]
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        if let Some(end) = Arc::get_mut(&mut self.end) {
            end.client = end.client.with_cancel(cancel);
        }
        self
    }

    /// The other end.
    pub fn remote(&self) -> &Remote {
        &self.end.remote
    }

    /// Says that this end writes nothing more: the other one reads what is there, then gets [`Incoming::End`]. Reading goes on.
    ///
    /// # Errors
    /// A lost session.
    pub fn finish(&self) -> Result<()> {
        self.end.say(v1::PipeEndRequest { finished: true, ..Default::default() })
    }

    /// Closes this end, as dropping it does.
    pub fn close(self) {}
}

impl End {
    /// Waits until no other call asks for a message.
    fn turn(&self, wait: &Wait) -> Result<MutexGuard<'_, ()>> {
        loop {
            wait.check()?;
            if let Some(turn) = self.asking.try_lock_for(wait.slice().min(wait.left())) {
                return Ok(turn);
            }
            if wait.left().is_zero() {
                let message = "another thread waits for the next message of this pipe, and none came in time";
                return Err(Failure::new(Reason::DeadlineExceeded, message).into());
            }
        }
    }

    fn say(&self, end: v1::PipeEndRequest) -> Result<()> {
        if self.origin.is_child() {
            return Err(Error::Forked);
        }
        self.connection.say(SessionKind::PipeEnd, &v1::PipeEndRequest { pipe: self.id, ..end })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // A session that is lost has closed it.
        let _ = self.end.say(v1::PipeEndRequest { closed: true, ..Default::default() });
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").field("remote", &self.end.remote).finish_non_exhaustive()
    }
}
