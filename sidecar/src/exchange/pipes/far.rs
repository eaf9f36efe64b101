//! Pipes of our clients to listeners at other peers: the pipe lives there, and calls of the client are passed on.
//!
//! A call that waits is an entry in `waits` here and one at the peer. The peer says what becomes of it; a deadline here is only for a
//! connection that says nothing. A connection that is lost ends its pipes: whoever waits gets PIPE_LOST from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::PIPE_MESSAGE_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::asker::Asker;
use super::op::unexpected;
use super::serving::CLIENT_MAX;
use super::table::{PIPES_MAX, SESSION_PIPES_MAX, limit, no_pipe};
use crate::cancel::Cancel;
use crate::exchange::lookup::There;
use crate::exchange::waits::{Key, WaitId, Waiter, cost};
use crate::exchange::{Done, Exchange};
use crate::peer::{PipeCallHandle, PipeLine, PipeThere};

/// Pipes to other peers have numbers from here on.
const FIRST: u64 = 1 << 63;
/// Time that the peer's own word of a deadline may take. Less than the grace of a client.
const SLACK: Duration = Duration::from_millis(400);
/// The way of descriptors between peers: the control connection.
pub(super) const ROUTE: &str = "tcp";

/// Pipes of our clients to other peers.
#[derive(Default)]
pub(super) struct Fars {
    last: u64,
    open: HashMap<u64, Far>,
    /// Writes that are not answered.
    pub(super) unread: usize,
    /// Messages that were read at either end, in the life of the sidecar.
    pub(super) messages: u64,
}

/// Pipe of a client to another peer.
struct Far {
    session: SessionId,
    line: PipeLine,
}

/// A call that was passed on.
struct Passed {
    exchange: Arc<Exchange>,
    writes: bool,
    peer: PeerName,
    state: Mutex<State>,
}

struct State {
    /// Taken by whatever answers.
    done: Option<Done<v1::peer_pipe_answer::Kind>>,
    entry: Option<WaitId>,
    call: Option<PipeCallHandle>,
}

/// Call that is to be passed on.
pub(super) enum Asked {
    Write(v1::PipeWriteRequest),
    Read(v1::PipeReadRequest),
}

/// Returns whether a peer may answer a read from that sequence on so: with the end, or a message of the bounds that hold here.
pub(super) fn may_answer(message: &v1::PipeReadResponse, from: u64) -> bool {
    let is_next = message.sequence >= from && message.sequence < u64::MAX;
    message.message.len() <= PIPE_MESSAGE_MAX && (message.sequence == 0 || is_next)
}

/// Returns whether that is the number of a pipe to another peer.
pub(super) fn is_far(pipe: u64) -> bool {
    pipe >= FIRST
}

// === impl Fars ===

impl Fars {
    /// Number of pipes.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    fn check(&self, session: SessionId) -> Result<(), Failure> {
        if self.open.len() >= PIPES_MAX {
            return Err(limit(&format!("{PIPES_MAX} pipes to other peers are here already"), PIPES_MAX));
        }
        let there = self.open.values().filter(|far| far.session == session).count();
        if there >= SESSION_PIPES_MAX {
            let what = format!("session {} has {SESSION_PIPES_MAX} pipes to other peers already", session.0);
            return Err(limit(&what, SESSION_PIPES_MAX));
        }
        Ok(())
    }

    fn line(&self, session: SessionId, pipe: u64) -> Option<&PipeLine> {
        self.open.get(&pipe).filter(|far| far.session == session).map(|far| &far.line)
    }
}

// === impl Exchange ===

impl Exchange {
    /// Connects a client to a listener of another peer.
    pub(super) fn pipe_connect_there(
        self: &Arc<Self>,
        (asker, cancel): (Asker, Cancel),
        (peer, name): (PeerName, TensorName),
        request: &v1::PipeConnectRequest,
        done: impl FnOnce(Result<v1::PipeOpened, Failure>) + Send + 'static,
    ) {
        let ready = self
            .peers_or_fail()
            .map(Arc::clone)
            .and_then(|peers| self.pipes.fars.lock().check(asker.session()).map(|()| peers));
        let peers = match ready {
            Ok(ready) => ready,
            Err(failure) => return done(Err(failure)),
        };
        let wait = if request.wait_ms == 0 { Duration::ZERO } else { self.pipe_time(request.wait_ms) };
        let until = Instant::now() + (wait + SLACK).max(self.pipe_time(request.deadline_ms));
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let message =
            v1::PeerPipeConnect { name: name.to_string(), client: asker.party().client.to_string(), wait_ms };
        let exchange = Arc::clone(self);
        let call = peers.connect_pipe(&peer, message, until, move |outcome| {
            done(outcome.and_then(|there| exchange.opened_there(&asker, there)));
        });
        cancel.on_cancel(Arc::new(move || call.cancel()));
    }

    fn opened_there(&self, asker: &Asker, there: PipeThere) -> Result<v1::PipeOpened, Failure> {
        let PipeThere { message, line } = there;
        let (session, peer) = (asker.session(), line.peer().to_string());
        if message.client.len() > CLIENT_MAX {
            line.end(v1::PeerPipeEnd { closed: true, ..Default::default() });
            return Err(unexpected());
        }
        let entered = {
            let mut fars = self.pipes.fars.lock();
            fars.check(session).map(|()| {
                fars.last += 1;
                let pipe = FIRST + fars.last;
                fars.open.insert(pipe, Far { session, line: line.clone() });
                pipe
            })
        };
        let pipe =
            entered.inspect_err(|_| line.end(v1::PeerPipeEnd { closed: true, ..Default::default() }))?;
        if asker.is_over() {
            // Its end may have come before the pipe was there.
            self.fars_of_session_ended(session);
        }
        Ok(v1::PipeOpened { pipe, peer, client: message.client, route: ROUTE.to_owned() })
    }

    /// Passes a call on to the peer at which the pipe lives.
    pub(super) fn pass_on_pipe_call(
        self: &Arc<Self>,
        (asker, cancel): (Asker, Cancel),
        asked: Asked,
        done: Done<v1::peer_pipe_answer::Kind>,
    ) {
        let (pipe, deadline_ms) = match &asked {
            Asked::Write(request) => (request.pipe, request.deadline_ms),
            Asked::Read(request) => (request.pipe, request.deadline_ms),
        };
        let line = self.pipes.fars.lock().line(asker.session(), pipe).cloned();
        let Some(line) = line else { return done(Err(no_pipe(pipe))) };
        let after = self.pipe_time(deadline_ms);
        let writes = matches!(asked, Asked::Write(_));
        let state = Mutex::new(State { done: Some(done), entry: None, call: None });
        let passed =
            Arc::new(Passed { exchange: Arc::clone(self), writes, peer: line.peer().clone(), state });
        self.pipes.fars.lock().unread += usize::from(writes);
        if let Err(failure) = passed.enter(&asker, after).and_then(|()| passed.send(&line, asked, after)) {
            return passed.finish(Err(failure));
        }
        let leaving = Arc::downgrade(&passed);
        cancel.on_cancel(Arc::new(move || {
            if let Some(passed) = leaving.upgrade() {
                passed.leave();
            }
        }));
    }

    /// Hears what a session says of a pipe to another peer. What is not its own is nothing.
    pub(super) fn pipe_end_there(&self, session: SessionId, end: &v1::PipeEndRequest) {
        let v1::PipeEndRequest { pipe, read, finished, closed, .. } = *end;
        let line = {
            let mut fars = self.pipes.fars.lock();
            let Some(line) = fars.line(session, pipe).cloned() else { return };
            fars.messages += u64::from(read > 0);
            if closed {
                fars.open.remove(&pipe);
            }
            line
        };
        line.end(v1::PeerPipeEnd { read, finished, closed, ..Default::default() });
    }

    /// A session ended: the other ends of its pipes to other peers are told.
    pub(super) fn fars_of_session_ended(&self, session: SessionId) {
        let ended: Vec<Far> = {
            let mut fars = self.pipes.fars.lock();
            fars.open.extract_if(|_, far| far.session == session).map(|(_, far)| far).collect()
        };
        for far in ended {
            far.line.end(v1::PeerPipeEnd { lost: true, ..Default::default() });
        }
    }
}

// === impl Passed ===

impl Passed {
    /// From now on it is told at its deadline.
    fn enter(self: &Arc<Self>, asker: &Asker, after: Duration) -> Result<(), Failure> {
        let waits = &self.exchange.waits;
        let until = Instant::now() + after + SLACK;
        let waiter = Arc::clone(self) as Arc<dyn Waiter>;
        let entry = waits.enter(asker.owner(), cost(std::iter::empty()), until, waiter)?;
        self.state.lock().entry = Some(entry);
        waits.wait(entry, Vec::new(), until)
    }

    fn send(self: &Arc<Self>, line: &PipeLine, asked: Asked, after: Duration) -> Result<(), Failure> {
        let deadline_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1);
        let told = Arc::clone(self);
        let done = Box::new(move |outcome: Result<v1::PeerPipeAnswer, Failure>| told.answered(outcome));
        let call = match asked {
            Asked::Write(request) => line.write((request.sequence, request.message), deadline_ms, done),
            Asked::Read(request) => line.read(request.from, deadline_ms, done),
        }?;
        let mut state = self.state.lock();
        if state.done.is_some() {
            state.call = Some(call);
            return Ok(());
        }
        drop(state);
        // Whoever waited has left, or has its answer: that is nothing then.
        call.cancel();
        Ok(())
    }

    fn answered(&self, outcome: Result<v1::PeerPipeAnswer, Failure>) {
        let outcome = outcome.map_err(|failure| self.unknown(failure));
        self.finish(outcome.and_then(|answer| answer.kind.ok_or_else(unexpected)));
    }

    /// Adds to a failure that the message may have been read, unless the peer says that it was not.
    fn unknown(&self, failure: Failure) -> Failure {
        match self.writes && failure.detail("delivered").is_none() {
            true => failure.with("delivered", "unknown"),
            false => failure,
        }
    }

    /// The answer, once.
    fn finish(&self, outcome: Result<v1::peer_pipe_answer::Kind, Failure>) {
        let (done, entry) = {
            let mut state = self.state.lock();
            state.call = None;
            (state.done.take(), state.entry.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        let Some(done) = done else { return };
        if self.writes {
            let mut fars = self.exchange.pipes.fars.lock();
            fars.unread -= 1;
            fars.messages += u64::from(outcome.is_ok());
        }
        done(outcome);
    }

    /// Nobody waits any more: the peer is told, and what it says then is nothing.
    fn give_up(&self, why: Failure) {
        let call = self.state.lock().call.take();
        if let Some(call) = call {
            call.cancel();
        }
        self.finish(Err(self.unknown(why)));
    }
}

impl Waiter for Passed {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        let message = format!("peer {}, at which the pipe lives, has not answered in time", self.peer);
        self.give_up(Failure::new(Reason::DeadlineExceeded, message).with("peer", &self.peer));
    }

    fn leave(&self) {
        self.give_up(Failure::new(Reason::Cancelled, "the caller or the sidecar is ending"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_read_is_the_end_or_a_later_message_of_a_bounded_length() {
        let answer = |sequence, bytes| v1::PipeReadResponse { sequence, message: vec![0; bytes].into() };
        assert!(may_answer(&answer(0, 0), 7) && may_answer(&answer(7, PIPE_MESSAGE_MAX), 7));
        assert!(may_answer(&answer(8, 1), 7));
        for wrong in [answer(6, 1), answer(u64::MAX, 1), answer(7, PIPE_MESSAGE_MAX + 1)] {
            assert!(!may_answer(&wrong, 7));
        }
    }
}
