//! Sessions over gRPC: a stream keeps one alive, an id that nobody can guess stands for it in other calls.
//!
//! ```text
//!   Session --> attached --stream ends--> away --grace--> ended: leases and reservations go back
//!                  ^                       |
//!                  '---Session with its id-'     (also while attached: the older stream ends then)
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::status::{broke_off, status};
use crate::exchange::Exchange;
use crate::metrics::Metrics;
use crate::metrics::label::{Carrier, PanicScope};
use crate::store::Program;

/// The key under which other calls carry the id.
pub(super) const KEY: &str = "tensorlane-session";
/// Time after which the id is repeated, so that a client knows that the stream lives.
const BEAT: Duration = Duration::from_secs(5);
/// The first number of a session over gRPC in the ledger. Those of the session socket count up from 1.
const FIRST: u64 = 1 << 32;

/// Secret that stands for a session in metadata: 128 random bits, as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Secret(u128);

/// All sessions over gRPC.
pub(super) struct Sessions {
    max: usize,
    grace: Duration,
    exchange: Arc<Exchange>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

struct State {
    open: HashMap<Secret, Entry>,
    next: u64,
    stopped: bool,
}

struct Entry {
    id: SessionId,
    /// Raised whenever a stream comes or goes: a grace that ran for an earlier one has no say any more.
    turn: u64,
    /// Dropped to end the stream; none while the client is away.
    stream: Option<oneshot::Sender<Infallible>>,
}

/// A stream's hold on its session.
struct Attached {
    sessions: Arc<Sessions>,
    secret: Secret,
    turn: u64,
    displaced: oneshot::Receiver<Infallible>,
}

// === impl Sessions ===

impl Sessions {
    pub(super) fn new(
        max: usize,
        grace: Duration,
        exchange: Arc<Exchange>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let state = Mutex::new(State { open: HashMap::new(), next: FIRST, stopped: false });
        Arc::new(Self { max, grace, exchange, metrics, state })
    }

    /// The holder that a call's metadata stands for; none where they have no id.
    pub(super) fn holder(&self, metadata: &MetadataMap) -> Result<Option<Holder>, Failure> {
        let Some(secret) = Secret::from_metadata(metadata)? else { return Ok(None) };
        let id = self.state.lock().open.get(&secret).map(|entry| entry.id);
        id.map(|id| Some(Holder::Session(id))).ok_or_else(unknown)
    }

    /// Begins a session, or takes up the one that the metadata name.
    pub(super) fn stream(
        self: &Arc<Self>,
        metadata: &MetadataMap,
        program: Arc<Program>,
    ) -> Result<ReceiverStream<Result<v1::SessionEvent, Status>>, Failure> {
        let attached = match Secret::from_metadata(metadata)? {
            Some(secret) => self.adopt(secret)?,
            None => self.begin(program)?,
        };
        let (events, stream) = mpsc::channel(1);
        let threads = self.exchange.threads().clone();
        tokio::spawn(threads.task("grpc-session", PanicScope::Connection, attached.keep(events)));
        Ok(ReceiverStream::new(stream))
    }

    fn begin(self: &Arc<Self>, program: Arc<Program>) -> Result<Attached, Failure> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(Failure::new(Reason::Draining, "the sidecar is ending and takes no sessions"));
        }
        if state.open.len() >= self.max {
            drop(state);
            self.metrics.session_refused();
            let why = format!("{} sessions are open already; close some, or raise limits.sessions", self.max);
            return Err(Failure::new(Reason::SessionLimit, why));
        }
        let (secret, id) = (Secret(rand::random()), SessionId(state.next));
        state.next += 1;
        // Under our lock, so that the end of the server does not come in between.
        self.exchange.store().plain_session_began(id, program);
        let (stream, displaced) = oneshot::channel();
        state.open.insert(secret, Entry { id, turn: 0, stream: Some(stream) });
        drop(state);
        self.metrics.sessions.opened.at((Carrier::Grpc,)).inc();
        self.metrics.sessions.open.at((Carrier::Grpc,)).inc();
        Ok(Attached { sessions: Arc::clone(self), secret, turn: 0, displaced })
    }

    fn adopt(self: &Arc<Self>, secret: Secret) -> Result<Attached, Failure> {
        let mut state = self.state.lock();
        let entry = state.open.get_mut(&secret).ok_or_else(unknown)?;
        let (stream, displaced) = oneshot::channel();
        entry.turn += 1;
        let turn = entry.turn;
        if entry.stream.replace(stream).is_none() {
            self.metrics.sessions.open.at((Carrier::Grpc,)).inc();
        }
        Ok(Attached { sessions: Arc::clone(self), secret, turn, displaced })
    }

    /// A stream has ended. Tells whether a grace begins with it, and which.
    fn away(&self, secret: Secret, turn: u64) -> Option<u64> {
        let mut state = self.state.lock();
        let entry = state.open.get_mut(&secret).filter(|entry| entry.turn == turn)?;
        entry.stream = None;
        entry.turn += 1;
        self.metrics.sessions.open.at((Carrier::Grpc,)).dec();
        Some(entry.turn)
    }

    /// A grace is over: if nobody came meanwhile the session ends.
    fn lapse(&self, secret: Secret, turn: u64) {
        let id = {
            let mut state = self.state.lock();
            if state.open.get(&secret).is_none_or(|entry| entry.turn != turn) {
                return;
            }
            state.open.remove(&secret).map(|entry| entry.id)
        };
        if let Some(id) = id {
            self.exchange.session_ended(id);
        }
    }

    /// Ends all sessions at once, and their streams.
    pub(super) fn stop(&self) {
        let open = {
            let mut state = self.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.open)
        };
        for entry in open.into_values() {
            if entry.stream.is_some() {
                self.metrics.sessions.open.at((Carrier::Grpc,)).dec();
            }
            self.exchange.session_ended(entry.id);
        }
    }
}

// === impl Attached ===

impl Attached {
    /// Says the id until the client, another stream, the server or a panic ends this; then waits for the client to come back.
    async fn keep(mut self, events: mpsc::Sender<Result<v1::SessionEvent, Status>>) {
        let threads = self.sessions.exchange.threads().clone();
        let scope = PanicScope::Connection;
        if threads.caught_future("session stream", scope, pin!(self.attend(&events))).await.is_none() {
            let told = events.send(Err(status(&broke_off())));
            // A client that reads nothing sees the end without it.
            let _ = tokio::time::timeout(BEAT, told).await;
        }
        drop(events);
        let Self { sessions, secret, turn, .. } = self;
        let Some(turn) = sessions.away(secret, turn) else { return };
        tokio::time::sleep(sessions.grace).await;
        // Giving back a million leases takes a while.
        let ending = threads.blocking(move || sessions.lapse(secret, turn));
        // A panic there has been counted.
        let _ = ending.await;
    }

    async fn attend(&mut self, events: &mpsc::Sender<Result<v1::SessionEvent, Status>>) {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                biased;
                _ = &mut self.displaced => break,
                () = events.closed() => break,
                _ = beat.tick() => {
                    let event = v1::SessionEvent { session_id: self.secret.to_string() };
                    // A client that reads nothing still has its stream: what it has not read says the same.
                    let _ = events.try_send(Ok(event));
                }
            }
        }
    }
}

// === impl Secret ===

impl Secret {
    fn from_metadata(metadata: &MetadataMap) -> Result<Option<Self>, Failure> {
        let Some(value) = metadata.get(KEY) else { return Ok(None) };
        let text = value.to_str().map_err(|_| unknown())?;
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(unknown());
        }
        u128::from_str_radix(text, 16).map(|secret| Some(Self(secret))).map_err(|_| unknown())
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

fn unknown() -> Failure {
    Failure::new(
        Reason::NotFound,
        format!("no session has the id in the metadata key {KEY}: it has ended, or never was; open another"),
    )
}
