//! Pipes: how they are connected, how descriptors of messages go from one end to the other, and how ends are told.
//!
//! - [`table`]: who listens, who is connected, what is not read. Pure.
//! - [`op`]: one caller that waits, as an entry in `waits`: no thread waits for a message.
//! - [`asker`]: that caller, a session of this pod, a stream over gRPC or a connection of another peer.
//! - [`hosted`]: an end whose program maps nothing, in whose place this sidecar is it.
//! - [`serving`]: calls of other peers about pipes to listeners here.
//! - [`far`]: pipes of our clients to listeners of other peers, whose calls are passed on.
//! - [`crossing`]: what such a pipe has said on a connection that may be lost. Pure.
//!
//! A pipe lives at the sidecar of its listener, also where the other end is at another peer: one table decides every outcome.
//!
//! The bytes of a message never come here. They are tensors that the writer leases until its write is over; the reader gets them
//! as it gets any tensor. So an end that dies takes its leases with it, and there is nothing else to give back.

mod asker;
mod crossing;
mod far;
mod hosted;
mod op;
mod serving;
#[cfg(test)]
pub(super) mod sim;
mod table;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::PIPE_MESSAGE_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

use self::asker::Asker;
use self::far::{Asked, Fars, is_far};
pub use self::hosted::HostedPipe;
use self::op::{Op, Outcome, Placed, Who};
pub use self::table::PipeTotals;
use self::table::{Effect, Ended, Table, Waits};
use super::attempts::{Attempts, Rest};
use super::names::tensor_name;
use super::{Caller, Done, Exchange};
use crate::cancel::Cancel;

/// The way of descriptors inside a pod.
const LOCAL: &str = "local";

/// The pipes of this sidecar.
#[derive(Default)]
pub(super) struct Pipes {
    table: Mutex<Table<Who>>,
    fars: Mutex<Fars>,
    /// Number of the stream over gRPC that came last.
    last_stream: AtomicU64,
}

// === impl Exchange ===

impl Exchange {
    /// Opens a listener.
    ///
    /// # Errors
    /// NAME_TAKEN, LIMIT_EXCEEDED.
    pub fn pipe_listen(
        &self,
        caller: &Caller,
        request: &v1::PipeListenRequest,
    ) -> Result<v1::PipeListenResponse, Failure> {
        let asker = Asker::of(caller)?;
        let name = tensor_name(&request.name)?;
        let allowed = allowed(request.allow.as_ref())?;
        let (listener, effects) = self.pipes.table.lock().listen(asker.party(), name, allowed)?;
        self.carry_out_pipes(effects);
        if asker.is_over() {
            // Its end may have come before the listener was there.
            self.pipes_of_session_ended(asker.session());
        }
        Ok(v1::PipeListenResponse { listener })
    }

    /// Takes the next pipe of a listener.
    pub fn pipe_accept(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::PipeAcceptRequest,
        done: impl FnOnce(Result<v1::PipeOpened, Failure>) + Send + 'static,
    ) {
        let listener = request.listener;
        let after = self.pipe_time(request.deadline_ms);
        let asker = match Asker::of(caller) {
            Ok(asker) => (asker, caller.cancel.clone()),
            Err(failure) => return done(Err(failure)),
        };
        let me = self.me().peer.clone();
        let done = move |outcome: Result<Outcome, Failure>| done(outcome.and_then(|it| it.opened(&me)));
        Op::begin(self, asker, Waits::Pipe(listener), after, Box::new(done), |table, asker, me| {
            let accepted = table.accept(asker.session(), listener, me)?;
            Ok((accepted.map(|(pipe, other)| Outcome::Opened(pipe, other)), Vec::new()))
        });
    }

    /// Connects to a listener. A wait is for its peer, too.
    pub fn pipe_connect(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::PipeConnectRequest,
        done: impl FnOnce(Result<v1::PipeOpened, Failure>) + Send + 'static,
    ) {
        match Asker::of(caller) {
            Ok(asker) => self.pipe_connect_for((asker, caller.cancel.clone()), request, Box::new(done)),
            Err(failure) => done(Err(failure)),
        }
    }

    fn pipe_connect_for(
        self: &Arc<Self>,
        (asker, cancel): (Asker, Cancel),
        request: &v1::PipeConnectRequest,
        done: Done<v1::PipeOpened>,
    ) {
        if request.wait_ms == 0 || self.peer_meant(&request.peer, &request.name).is_none() {
            return self.pipe_connect_now((asker, cancel), request, None, done);
        }
        let (exchange, request) = (Arc::clone(self), request.clone());
        let (wait, owner) = (self.longest(request.wait_ms), asker.owner());
        let attempt = move |cancel: Cancel, rest, done| {
            exchange.pipe_connect_now((asker.clone(), cancel), &request, Some(rest), done);
        };
        Attempts::begin(self, (owner, &cancel), wait, Box::new(attempt), done);
    }

    /// Connects, if the peer of the listener is there; waits for the rest of a wait, if there is one.
    fn pipe_connect_now(
        self: &Arc<Self>,
        asker: (Asker, Cancel),
        request: &v1::PipeConnectRequest,
        rest: Option<Rest>,
        done: Done<v1::PipeOpened>,
    ) {
        let name = match self.pipe_place(request) {
            Ok((None, name)) => name,
            Ok((Some(peer), name)) => {
                let wait_ms = rest.map_or(request.wait_ms, Rest::there);
                let request = v1::PipeConnectRequest { wait_ms, ..request.clone() };
                return self.pipe_connect_there(asker, (peer, name), &request, done);
            }
            Err(failure) => return done(Err(failure)),
        };
        let after = match rest.map_or(request.wait_ms, Rest::here) {
            0 => Duration::ZERO,
            wait_ms => self.pipe_time(wait_ms),
        };
        let me = self.me().peer.clone();
        let done = move |outcome: Result<Outcome, Failure>| done(outcome.and_then(|it| it.opened(&me)));
        let (waits, more) = (Waits::Listener(name.clone()), self.no_such_peer(&name));
        Op::begin(self, asker, waits, after, Box::new(done), |table, asker, me| {
            connect(table, asker, &name, me, !after.is_zero()).map_err(|failure| match failure.reason {
                Reason::NotFound => op::absent(&name, &more),
                _ => failure,
            })
        });
    }

    /// Writes a message; the answer comes when the other end has read it.
    pub fn pipe_write(
        self: &Arc<Self>,
        caller: &Caller,
        request: v1::PipeWriteRequest,
        done: impl FnOnce(Result<v1::PipeWriteResponse, Failure>) + Send + 'static,
    ) {
        match Asker::of(caller) {
            Ok(asker) => self.pipe_write_for((asker, caller.cancel.clone()), request, Box::new(done)),
            Err(failure) => done(Err(unseen(failure))),
        }
    }

    fn pipe_write_for(
        self: &Arc<Self>,
        asker: (Asker, Cancel),
        request: v1::PipeWriteRequest,
        done: Done<v1::PipeWriteResponse>,
    ) {
        match checked(request) {
            Err(failure) => done(Err(unseen(failure))),
            Ok(request) if is_far(request.pipe) => {
                let told = move |outcome: Result<v1::peer_pipe_answer::Kind, Failure>| {
                    done(outcome.map(|_| v1::PipeWriteResponse {}).map_err(unseen));
                };
                self.pass_on_pipe_call(asker, Asked::Write(request), Box::new(told));
            }
            Ok(request) => self.write_here(asker, request, done),
        }
    }

    /// Writes a message to a pipe that lives here.
    fn write_here(
        self: &Arc<Self>,
        asker: (Asker, Cancel),
        request: v1::PipeWriteRequest,
        done: impl FnOnce(Result<v1::PipeWriteResponse, Failure>) + Send + 'static,
    ) {
        let v1::PipeWriteRequest { pipe, sequence, message, deadline_ms } = request;
        // A copy: what is kept is the message, and not the frame that it came in.
        let message = bytes::Bytes::copy_from_slice(&message);
        let (after, waits) = (self.pipe_time(deadline_ms), Waits::Reader(pipe, sequence));
        let done = move |outcome: Result<Outcome, Failure>| {
            done(outcome.map(|_| v1::PipeWriteResponse {}).map_err(unseen));
        };
        Op::begin(self, asker, waits, after, Box::new(done), |table, asker, me| {
            table.write(asker.session(), pipe, sequence, message, me).map(|effects| (None, effects))
        });
    }

    /// Asks for the descriptor of a message.
    pub fn pipe_read(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::PipeReadRequest,
        done: impl FnOnce(Result<v1::PipeReadResponse, Failure>) + Send + 'static,
    ) {
        match Asker::of(caller) {
            Ok(asker) => self.pipe_read_for((asker, caller.cancel.clone()), request, Box::new(done)),
            Err(failure) => done(Err(failure)),
        }
    }

    fn pipe_read_for(
        self: &Arc<Self>,
        asker: (Asker, Cancel),
        request: &v1::PipeReadRequest,
        done: Done<v1::PipeReadResponse>,
    ) {
        if !is_far(request.pipe) {
            return self.read_here(asker, *request, done);
        }
        let from = request.from;
        let told = move |outcome: Result<v1::peer_pipe_answer::Kind, Failure>| {
            done(outcome.and_then(|answer| match answer {
                v1::peer_pipe_answer::Kind::Message(message) if far::may_answer(&message, from) => {
                    Ok(message)
                }
                _ => Err(op::unexpected()),
            }));
        };
        self.pass_on_pipe_call(asker, Asked::Read(*request), Box::new(told));
    }

    /// Asks for the descriptor of a message of a pipe that lives here.
    fn read_here(
        self: &Arc<Self>,
        asker: (Asker, Cancel),
        request: v1::PipeReadRequest,
        done: impl FnOnce(Result<v1::PipeReadResponse, Failure>) + Send + 'static,
    ) {
        let v1::PipeReadRequest { pipe, from, deadline_ms } = request;
        let after = self.pipe_time(deadline_ms);
        let done = move |outcome: Result<Outcome, Failure>| {
            done(outcome.map(|outcome| match outcome {
                Outcome::Message(sequence, message) => v1::PipeReadResponse { sequence, message },
                _ => v1::PipeReadResponse::default(),
            }));
        };
        Op::begin(self, asker, Waits::Message(pipe), after, Box::new(done), |table, asker, me| {
            table.read(asker.session(), pipe, from, me).map(|effects| (None, effects))
        });
    }

    /// Hears what a session says of ends, and of what it has read. What is not its own is nothing.
    pub fn pipe_end(&self, session: SessionId, end: &v1::PipeEndRequest) {
        let v1::PipeEndRequest { pipe, listener, read, finished, closed } = *end;
        if is_far(pipe) {
            self.pipe_end_there(session, end);
        }
        let effects = {
            let mut table = self.pipes.table.lock();
            let mut effects = Vec::new();
            if listener > 0 {
                effects.extend(table.end_listener(session, listener, Ended::Closed));
            }
            let ended = closed.then_some(Ended::Closed);
            effects.extend(table.hear(session, pipe, read, (false, finished), ended));
            effects
        };
        self.carry_out_pipes(effects);
    }

    /// Numbers of pipes, for telling people.
    pub fn pipe_totals(&self) -> PipeTotals {
        let mut totals = self.pipes.table.lock().totals();
        let fars = self.pipes.fars.lock();
        totals.pipes += fars.len();
        totals.unread += fars.unread;
        totals.messages += fars.messages;
        totals.resumed += fars.resumed;
        totals
    }

    /// A session ended: its pipes and listeners end, and the other ends are told.
    pub(super) fn pipes_of_session_ended(&self, session: SessionId) {
        self.fars_of_session_ended(session);
        self.pipes_end(session);
    }

    /// An asker has ended, and all that it had in the table.
    fn pipes_of_asker_over(&self, asker: &Asker) {
        match asker {
            Asker::Peer(from, ..) => self.pipes_of_peer_over(from),
            Asker::Session(_) | Asker::Stream(_) => self.pipes_end(asker.session()),
        }
    }

    /// A session of this pod, or a connection of another peer, has ended, and all that it had in the table.
    fn pipes_end(&self, session: SessionId) {
        let effects = self.pipes.table.lock().end_session(session);
        self.carry_out_pipes(effects);
    }

    fn carry_out_pipes(&self, effects: Vec<Effect<Who>>) {
        for effect in effects {
            match effect {
                Effect::Accepted { to, pipe, other } => to.tell(Ok(Outcome::Opened(pipe, other))),
                Effect::Listens { to } => to.connect_again(),
                Effect::Show { to, sequence, message } => {
                    to.tell(Ok(Outcome::Message(sequence, message)));
                }
                Effect::End { to } => to.tell(Ok(Outcome::End)),
                Effect::Written { to } => to.tell(Ok(Outcome::Written)),
                Effect::Fail { to, why } => to.tell(Err(why)),
            }
        }
    }

    /// Time that a call may wait.
    fn pipe_time(&self, ms: u64) -> Duration {
        self.deadline(ms).saturating_duration_since(std::time::Instant::now())
    }

    /// The peer of the listener that is meant, none for this one, and its name there.
    fn pipe_place(
        &self,
        request: &v1::PipeConnectRequest,
    ) -> Result<(Option<PeerName>, TensorName), Failure> {
        let (me, name) = (&self.me().peer, tensor_name(&request.name)?);
        if let Some(peer) = self.named_peer(&request.peer)? {
            return Ok(((peer != *me).then_some(peer), name));
        }
        if self.pipes.table.lock().is_listened(&name) {
            return Ok((None, name));
        }
        self.place_of(name)
    }
}

/// Peers that may connect, as a caller said.
fn allowed(allow: Option<&v1::PeerPatterns>) -> Result<AllowedPeers, Failure> {
    AllowedPeers::read(allow, "the list of peers that a listener allows")
}

/// Says of a write that was refused that nobody has seen its message, unless more is known.
fn unseen(failure: Failure) -> Failure {
    match failure.detail("delivered") {
        Some(_) => failure,
        None => failure.with("delivered", "no"),
    }
}

/// Checks the length of a message.
fn checked(request: v1::PipeWriteRequest) -> Result<v1::PipeWriteRequest, Failure> {
    let bytes = request.message.len();
    if bytes <= PIPE_MESSAGE_MAX {
        return Ok(request);
    }
    let what = format!(
        "the message has {bytes} bytes beside its tensors, and {PIPE_MESSAGE_MAX} are the most; put more of it into tensors"
    );
    Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes))
}

/// Connects, or leaves whoever connects waiting.
fn connect(table: &mut Table<Who>, asker: &Asker, name: &TensorName, me: Who, waits: bool) -> Placed {
    match table.connect(asker.party(), name, waits.then_some(me))? {
        Some((pipe, other, effects)) => Ok((Some(Outcome::Opened(pipe, other)), effects)),
        None if waits => Ok((None, Vec::new())),
        None => Err(op::absent(name, "")),
    }
}
