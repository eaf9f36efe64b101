//! Pipes of which a program that maps nothing is an end: this sidecar is it in its place.
//!
//! ```text
//!   program ── stream ──> HostedPipe: writes, reads, says what was read ── table, or the line to another peer ──> any other end
//! ```
//! Such a stream is a session of its own: its tensors are leased in its name, and the table knows it as a party like any other. So the
//! drop of what it was given here ends all of it, as the end of a process does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId};

use super::allowed;
use super::asker::Asker;
use super::op::{Op, Outcome};
use super::table::Waits;
use crate::cancel::{Cancel, CancelOnDrop};
use crate::exchange::names::tensor_name;
use crate::exchange::{Caller, Exchange};
use crate::store::Program;

/// Streams have numbers from here on where sessions have theirs. Those of peers come behind them.
const FIRST: u64 = 1 << 62;

/// A stream, among those who ask about pipes.
pub(super) struct Stream {
    pub(super) session: SessionId,
    pub(super) client: Arc<str>,
    over: AtomicBool,
}

/// End of a pipe in the place of a program. Dropped, it is lost to the other end, unless it was closed.
pub struct HostedPipe {
    exchange: Arc<Exchange>,
    stream: Arc<Stream>,
    /// Writes that are not over, by their sequences.
    writes: Arc<Mutex<HashMap<u64, Cancel>>>,
}

// === impl Stream ===

impl Stream {
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

// === impl HostedPipe ===

impl HostedPipe {
    /// An end without a pipe yet. The program calls itself `program`.
    #[must_use]
    pub fn new(exchange: &Arc<Exchange>, program: Arc<Program>) -> Self {
        let number = FIRST + exchange.pipes.last_stream.fetch_add(1, Ordering::Relaxed);
        let (session, client) = (SessionId(number), Arc::clone(&program.name));
        exchange.store.plain_session_began(session, program);
        let stream = Arc::new(Stream { session, client, over: AtomicBool::new(false) });
        Self { exchange: Arc::clone(exchange), stream, writes: Arc::default() }
    }

    fn asker(&self, cancel: &Cancel) -> (Asker, Cancel) {
        (Asker::Stream(Arc::clone(&self.stream)), cancel.clone())
    }

    /// Caller in whose name tensors of messages are stored.
    #[must_use]
    pub fn caller(&self, cancel: &Cancel) -> Caller {
        let holder = Some(Holder::Session(self.stream.session));
        Caller { holder, link: None, on_behalf: None, cancel: cancel.clone() }
    }

    /// Connects to a listener.
    pub fn connect(
        &self,
        call: &CancelOnDrop,
        request: &v1::PipeConnectRequest,
        done: impl FnOnce(Result<v1::PipeOpened, Failure>) + Send + 'static,
    ) {
        self.exchange.pipe_connect_for(self.asker(call.cancel()), request, Box::new(done));
    }

    /// Listens on a name until one pipe was connected, or its time is over.
    pub fn accept(
        &self,
        call: &CancelOnDrop,
        request: &v1::PipeAccept,
        done: impl FnOnce(Result<v1::PipeOpened, Failure>) + Send + 'static,
    ) {
        let checked =
            tensor_name(&request.name).and_then(|name| Ok((name, allowed(request.allow.as_ref())?)));
        let (name, allowed) = match checked {
            Ok(checked) => checked,
            Err(failure) => return done(Err(failure)),
        };
        let exchange = &self.exchange;
        let (after, me) = (exchange.pipe_time(request.deadline_ms), exchange.me().peer.clone());
        let done = move |outcome: Result<Outcome, Failure>| done(outcome.and_then(|it| it.opened(&me)));
        let listener = exchange.pipes.table.lock().number();
        let waits = Waits::Pipe(listener);
        Op::begin(exchange, self.asker(call.cancel()), waits, after, Box::new(done), |table, asker, me| {
            Ok((None, table.listen_once(listener, asker.party(), (name, allowed), me)?))
        });
    }

    /// Writes a message; `done` is called when it was read, or will not be. It goes on until this is dropped.
    pub fn write(
        &self,
        request: v1::PipeWriteRequest,
        done: impl FnOnce(Result<v1::PipeWriteResponse, Failure>) + Send + 'static,
    ) {
        let (sequence, cancel, writes) = (request.sequence, Cancel::default(), Arc::clone(&self.writes));
        self.writes.lock().insert(sequence, cancel.clone());
        let done = move |outcome| {
            writes.lock().remove(&sequence);
            done(outcome);
        };
        self.exchange.pipe_write_for(self.asker(&cancel), request, Box::new(done));
    }

    /// Asks for the descriptor of a message.
    pub fn read(
        &self,
        call: &CancelOnDrop,
        request: &v1::PipeReadRequest,
        done: impl FnOnce(Result<v1::PipeReadResponse, Failure>) + Send + 'static,
    ) {
        self.exchange.pipe_read_for(self.asker(call.cancel()), request, Box::new(done));
    }

    /// Says what was read, or what ends.
    pub fn say(&self, end: &v1::PipeEndRequest) {
        self.exchange.pipe_end(self.stream.session, end);
    }

    /// Ends leases of tensors that a message had.
    pub fn release(&self, ids: &[u64]) {
        // Each is a lease of this session, or was never one.
        self.exchange.store.release(Holder::Session(self.stream.session), ids, &[]);
    }
}

impl Drop for HostedPipe {
    fn drop(&mut self) {
        self.stream.over.store(true, Ordering::Release);
        self.exchange.session_ended(self.stream.session);
        // At another peer they are told of the end by its sidecar; nobody waits for that.
        let writes = std::mem::take(&mut *self.writes.lock());
        writes.values().for_each(Cancel::cancel);
    }
}
