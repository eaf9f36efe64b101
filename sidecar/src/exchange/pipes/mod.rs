//! Pipes: how they are connected, how descriptors of messages go from one end to the other, and how ends are told.
//!
//! - [`table`]: who listens, who is connected, what is not read. Pure.
//! - [`op`]: one caller that waits, as an entry in `waits`: no thread waits for a message.
//!
//! The bytes of a message never come here. They are tensors that the writer leases until its write is over; the reader gets them
//! as it gets any tensor. So an end that dies takes its leases with it, and there is nothing else to give back.

mod op;
mod table;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::PIPE_MESSAGE_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{SessionId, TensorName};

use self::op::{Op, Outcome, Placed, Who};
pub use self::table::PipeTotals;
use self::table::{Effect, Ended, Party, Table, Waits};
use super::names::tensor_name;
use super::{Caller, Exchange, session_required};
use crate::session::SessionLink;

/// The pipes of this sidecar.
#[derive(Default)]
pub(super) struct Pipes {
    table: Mutex<Table<Who>>,
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
        let link = pipe_caller(caller)?;
        let name = tensor_name(&request.name)?;
        let (listener, effects) = self.pipes.table.lock().listen(party(&link), name)?;
        self.carry_out_pipes(effects);
        if link.is_cut() {
            // Its end may have come before the listener was there.
            self.pipes_of_session_ended(link.id());
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
        let me = self.me().peer.to_string();
        let done = move |outcome: Result<Outcome, Failure>| done(outcome.and_then(|it| it.opened(me)));
        Op::begin(self, caller, Waits::Pipe(listener), after, 0, Box::new(done), |table, link, me| {
            let accepted = table.accept(link.id(), listener, me)?;
            Ok((accepted.map(|(pipe, other)| Outcome::Opened(pipe, other)), Vec::new()))
        });
    }

    /// Connects to a listener.
    pub fn pipe_connect(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::PipeConnectRequest,
        done: impl FnOnce(Result<v1::PipeOpened, Failure>) + Send + 'static,
    ) {
        let name = self.pipe_peer(&request.peer).and_then(|()| tensor_name(&request.name));
        let name = match name {
            Ok(name) => name,
            Err(failure) => return done(Err(failure)),
        };
        let after = if request.wait_ms == 0 { Duration::ZERO } else { self.pipe_time(request.wait_ms) };
        let me = self.me().peer.to_string();
        let done = move |outcome: Result<Outcome, Failure>| done(outcome.and_then(|it| it.opened(me)));
        Op::begin(
            self,
            caller,
            Waits::Listener(name.clone()),
            after,
            0,
            Box::new(done),
            |table, link, me| connect(table, link, &name, me, !after.is_zero()),
        );
    }

    /// Writes a message; the answer comes when the other end has read it.
    pub fn pipe_write(
        self: &Arc<Self>,
        caller: &Caller,
        request: v1::PipeWriteRequest,
        done: impl FnOnce(Result<v1::PipeWriteResponse, Failure>) + Send + 'static,
    ) {
        let v1::PipeWriteRequest { pipe, sequence, message, deadline_ms } = request;
        // Whatever is refused here was seen by nobody.
        let done = move |outcome: Result<Outcome, Failure>| {
            let said = |failure: Failure| match failure.detail("delivered") {
                Some(_) => failure,
                None => failure.with("delivered", "no"),
            };
            done(outcome.map(|_| v1::PipeWriteResponse {}).map_err(said));
        };
        if message.len() > PIPE_MESSAGE_MAX {
            let what = format!(
                "the message has {} bytes beside its tensors, and {PIPE_MESSAGE_MAX} are the most; put more of it into tensors",
                message.len()
            );
            return done(Err(Failure::new(Reason::TooLarge, what).with("bytes", message.len())));
        }
        // A copy: what is kept is the message, and not the frame that it came in.
        let message = bytes::Bytes::copy_from_slice(&message);
        let (after, bytes) = (self.pipe_time(deadline_ms), message.len() as u64);
        let waits = Waits::Reader(pipe, sequence);
        Op::begin(self, caller, waits, after, bytes, Box::new(done), |table, link, me| {
            table.write(link.id(), pipe, sequence, message, me).map(|effects| (None, effects))
        });
    }

    /// Asks for the descriptor of a message.
    pub fn pipe_read(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::PipeReadRequest,
        done: impl FnOnce(Result<v1::PipeReadResponse, Failure>) + Send + 'static,
    ) {
        let v1::PipeReadRequest { pipe, from, deadline_ms } = *request;
        let after = self.pipe_time(deadline_ms);
        let done = move |outcome: Result<Outcome, Failure>| {
            done(outcome.map(|outcome| match outcome {
                Outcome::Message(sequence, message) => v1::PipeReadResponse { sequence, message },
                _ => v1::PipeReadResponse::default(),
            }));
        };
        Op::begin(self, caller, Waits::Message(pipe), after, 0, Box::new(done), |table, link, me| {
            table.read(link.id(), pipe, from, me).map(|effects| (None, effects))
        });
    }

    /// Hears what a session says of ends, and of what it has read. What is not its own is nothing.
    pub fn pipe_end(&self, session: SessionId, end: &v1::PipeEndRequest) {
        let v1::PipeEndRequest { pipe, listener, read, withdrawn, finished, closed } = *end;
        let effects = {
            let mut table = self.pipes.table.lock();
            let mut effects = Vec::new();
            if listener > 0 {
                effects.extend(table.end_listener(session, listener, Ended::Closed));
            }
            if read > 0 {
                effects.extend(table.taken(session, pipe, read));
            }
            if withdrawn > 0 {
                effects.extend(table.withdraw(session, pipe, withdrawn));
            }
            if finished {
                effects.extend(table.finish(session, pipe));
            }
            if closed {
                effects.extend(table.close(session, pipe, Ended::Closed));
            }
            effects
        };
        self.carry_out_pipes(effects);
    }

    /// Numbers of pipes, for telling people.
    pub fn pipe_totals(&self) -> PipeTotals {
        self.pipes.table.lock().totals()
    }

    /// A session ended: its pipes and listeners end, and the other ends are told.
    pub(super) fn pipes_of_session_ended(&self, session: SessionId) {
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

    fn pipe_peer(&self, peer: &str) -> Result<(), Failure> {
        if peer.is_empty() || peer == self.me().peer.as_str() {
            return Ok(());
        }
        let message = format!(
            "pipes between peers are not there yet, and {peer} is another one; connect in the pod of the listener, or put tensors \
             and pass references"
        );
        Err(Failure::new(Reason::Unsupported, message).with("peer", peer))
    }
}

/// Connects, or leaves whoever connects waiting.
fn connect(
    table: &mut Table<Who>,
    link: &Arc<SessionLink>,
    name: &TensorName,
    me: Who,
    waits: bool,
) -> Placed {
    match table.connect(party(link), name, waits.then_some(me))? {
        Some((pipe, other, effects)) => Ok((Some(Outcome::Opened(pipe, other)), effects)),
        None if waits => Ok((None, Vec::new())),
        None => Err(op::absent(name)),
    }
}

fn party(link: &Arc<SessionLink>) -> Party {
    Party { session: link.id(), client: Arc::clone(link.client()) }
}

fn pipe_caller(caller: &Caller) -> Result<Arc<SessionLink>, Failure> {
    caller.link.clone().ok_or_else(|| session_required("A pipe"))
}
