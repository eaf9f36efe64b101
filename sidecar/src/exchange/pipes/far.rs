//! Pipes of our clients to listeners at other peers: the pipe lives there, and calls of the client are passed on.
//!
//! A call that waits is an entry in `waits` here and one at the peer. The peer says what becomes of it; a deadline here is only for a
//! connection that says nothing. Where the connection is lost, the pipe waits for the next one as long as for leases, and says again
//! what the peer may not have heard ([`Crossing`]). Then, or where a peer of an earlier release cannot go on, whoever waits gets PIPE_LOST.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::PIPE_MESSAGE_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::asker::Asker;
use super::crossing::{Crossing, Word};
use super::op::unexpected;
use super::serving::CLIENT_MAX;
use super::table::{Budget, Ended, PIPES_MAX, SESSION_PIPES_MAX, limit, no_pipe};
use crate::cancel::Cancel;
use crate::exchange::lookup::There;
use crate::exchange::waits::{Key, WaitId, Waiter, cost};
use crate::exchange::{Done, Exchange};
use crate::peer::{PipeCallHandle, PipeDone, PipeLine, PipeSink, PipeThere};

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
    open: HashMap<u64, Arc<Far>>,
    /// Writes that are not answered.
    pub(super) unread: usize,
    /// Bytes of their messages, which are kept until then.
    budget: Budget,
    /// Messages that were read at either end, in the life of the sidecar.
    pub(super) messages: u64,
    /// Pipes that went on over another connection, in the life of the sidecar.
    pub(super) resumed: u64,
}

/// Pipe of a client to another peer.
struct Far {
    exchange: Weak<Exchange>,
    session: SessionId,
    state: Mutex<FarState>,
}

/// Line of a pipe, and what was said on it. Locked while that is said again, so that nothing comes before it.
struct FarState {
    line: PipeLine,
    crossing: Crossing<Arc<Passed>>,
}

/// A call that was passed on.
struct Passed {
    exchange: Arc<Exchange>,
    far: Arc<Far>,
    peer: PeerName,
    asked: Asked,
    until: Instant,
    state: Mutex<State>,
}

struct State {
    /// Taken by whatever answers.
    done: Option<Done<v1::peer_pipe_answer::Kind>>,
    entry: Option<WaitId>,
    call: Option<PipeCallHandle>,
    /// Number among the calls of its pipe.
    number: Option<u64>,
    /// Set if it was on a connection: the peer may know of it.
    sent: bool,
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

    /// Counts a message that is written.
    fn book(&mut self, asker: &Asker, bytes: u64) -> Result<(), Failure> {
        self.budget.book(&asker.party(), bytes)?;
        self.unread += 1;
        Ok(())
    }

    fn far(&self, session: SessionId, pipe: u64) -> Option<Arc<Far>> {
        self.open.get(&pipe).filter(|far| far.session == session).cloned()
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
        let (name, client) = (name.to_string(), asker.party().client.to_string());
        let message = v1::PeerPipeConnect { name, client, wait_ms, resume: 0 };
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
        let exchange = Weak::clone(&self.own);
        let state = Mutex::new(FarState { line: line.clone(), crossing: Crossing::new() });
        let far = Arc::new(Far { exchange, session, state });
        let entered = {
            let mut fars = self.pipes.fars.lock();
            fars.check(session).map(|()| {
                fars.last += 1;
                let pipe = FIRST + fars.last;
                fars.open.insert(pipe, Arc::clone(&far));
                pipe
            })
        };
        let pipe =
            entered.inspect_err(|_| line.end(v1::PeerPipeEnd { closed: true, ..Default::default() }))?;
        if line.resumes() {
            // From now on the peer keeps it, too.
            line.end(v1::PeerPipeEnd::default());
            if !line.listen(Arc::clone(&far) as Arc<dyn PipeSink>) {
                far.lost();
            }
        }
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
        let Some(far) = self.pipes.fars.lock().far(asker.session(), pipe) else {
            return done(Err(no_pipe(pipe)));
        };
        if asked.writes() {
            let booked = self.pipes.fars.lock().book(&asker, asked.bytes());
            if let Err(failure) = booked {
                return done(Err(failure));
            }
        }
        let after = self.pipe_time(deadline_ms);
        let peer = far.state.lock().line.peer().clone();
        let state = State { done: Some(done), entry: None, call: None, number: None, sent: false };
        let passed = Arc::new(Passed {
            exchange: Arc::clone(self),
            far,
            peer,
            asked: asked.kept(),
            until: Instant::now() + after,
            state: Mutex::new(state),
        });
        if let Err(failure) = passed.enter(&asker).and_then(|()| passed.far.begin(&passed)) {
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
        let far = {
            let mut fars = self.pipes.fars.lock();
            let Some(far) = fars.far(session, pipe) else { return };
            fars.messages += u64::from(read > 0);
            if closed {
                fars.open.remove(&pipe);
            }
            far
        };
        if read > 0 || finished {
            far.say(v1::PeerPipeEnd { read, finished, ..Default::default() });
        }
        if closed {
            far.close(Ended::Closed);
        }
    }

    /// A session ended: the other ends of its pipes to other peers are told.
    pub(super) fn fars_of_session_ended(&self, session: SessionId) {
        let ended: Vec<Arc<Far>> = {
            let mut fars = self.pipes.fars.lock();
            fars.open.extract_if(|_, far| far.session == session).map(|(_, far)| far).collect()
        };
        for far in ended {
            far.close(Ended::Lost);
        }
    }
}

// === impl Asked ===

impl Asked {
    fn writes(&self) -> bool {
        matches!(self, Self::Write(_))
    }

    /// Bytes of the message.
    fn bytes(&self) -> u64 {
        match self {
            Self::Write(request) => request.message.len() as u64,
            Self::Read(_) => 0,
        }
    }

    /// A copy of the message: what is kept is that, and not the frame that it came in.
    fn kept(self) -> Self {
        match self {
            Self::Write(request) => {
                let message = Bytes::copy_from_slice(&request.message);
                Self::Write(v1::PipeWriteRequest { message, ..request })
            }
            Self::Read(request) => Self::Read(request),
        }
    }
}

// === impl Far ===

impl Far {
    /// Passes a call on, or keeps it until there is a connection.
    fn begin(&self, passed: &Arc<Passed>) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let FarState { line, crossing } = &mut *state;
        let number = crossing.enter(Arc::clone(passed)).ok_or_else(|| line.lost())?;
        if !passed.is_numbered(number) {
            crossing.leave(number);
            return Ok(());
        }
        if !crossing.is_on() {
            return Ok(());
        }
        passed.send(line).or_else(|failure| match is_waited_for(line, &failure) {
            true => Ok(()),
            false => {
                crossing.leave(number);
                Err(failure)
            }
        })
    }

    /// Says what was read, or that nothing more is written.
    fn say(&self, end: v1::PeerPipeEnd) {
        let mut state = self.state.lock();
        if state.crossing.note(&end) {
            state.line.end(end);
        }
    }

    /// The end of our client is no more.
    fn close(self: &Arc<Self>, how: Ended) {
        let given_up = {
            let mut state = self.state.lock();
            let FarState { line, crossing } = &mut *state;
            let mut given_up = crossing.close(how);
            if crossing.is_on() {
                let last = crossing.last_word();
                given_up.extend(self.say_last(line, crossing, last));
            }
            given_up
        };
        given_up.into_iter().for_each(|passed| passed.give_up(closed()));
    }

    /// Says the last word. Gives the calls that nobody answers any more.
    fn say_last(
        self: &Arc<Self>,
        line: &PipeLine,
        crossing: &mut Crossing<Arc<Passed>>,
        end: v1::PeerPipeEnd,
    ) -> Vec<Arc<Passed>> {
        if !line.resumes() {
            line.end(end);
            return Vec::new();
        }
        let far = Arc::clone(self);
        let heard: PipeDone = Box::new(move |_| far.heard());
        match line.close(end, heard) {
            Err(failure) if !is_waited_for(line, &failure) => {
                // Too many calls: it is said once, and nothing is kept of the pipe. Where that is lost the peer waits for its grace.
                line.end(end);
                line.leave();
                crossing.over()
            }
            _ => Vec::new(),
        }
    }

    fn heard(&self) {
        let mut state = self.state.lock();
        state.crossing.heard();
        state.line.leave();
    }

    /// Asks the peer to go on as soon as it is connected again.
    fn wait_for_peer(self: &Arc<Self>) {
        let exchange = self.exchange.upgrade();
        let peers = exchange.as_ref().and_then(|exchange| exchange.peers.get());
        let (Some(exchange), Some(peers)) = (&exchange, peers) else { return self.over() };
        let (far, line) = (Arc::clone(self), self.state.lock().line.clone());
        let until = Instant::now() + exchange.store.lease_grace();
        peers.resume_pipe(&line, until, move |outcome| match outcome {
            Ok(there) => far.go_on(there.line),
            Err(_) => far.over(),
        });
    }

    /// The peer goes on, on another connection.
    fn go_on(self: &Arc<Self>, line: PipeLine) {
        let mut refused = Vec::new();
        let is_on = {
            let mut state = self.state.lock();
            let FarState { line: present, crossing } = &mut *state;
            *present = line;
            let is_on = present.listen(Arc::clone(self) as Arc<dyn PipeSink>);
            let words = if is_on { crossing.resumed() } else { Vec::new() };
            for word in words {
                match word {
                    Word::End(end) => present.end(end),
                    Word::Close(end) => {
                        let given_up = self.say_last(present, crossing, end);
                        refused.extend(given_up.into_iter().map(|passed| (passed, closed())));
                    }
                    Word::Call(number, passed) => {
                        if let Err(failure) = passed.send(present)
                            && !is_waited_for(present, &failure)
                        {
                            crossing.leave(number);
                            refused.push((passed, failure));
                        }
                    }
                }
            }
            is_on
        };
        if !is_on {
            // It is lost again.
            return self.wait_for_peer();
        }
        refused.into_iter().for_each(|(passed, failure)| passed.give_up(failure));
        if let Some(exchange) = self.exchange.upgrade() {
            exchange.pipes.fars.lock().resumed += 1;
        }
    }

    /// The peer does not go on, or has not come back in time.
    fn over(&self) {
        let (calls, why) = {
            let mut state = self.state.lock();
            (state.crossing.over(), state.line.lost())
        };
        calls.into_iter().for_each(|passed| passed.give_up(why.clone()));
    }
}

impl PipeSink for Far {
    fn lost(self: Arc<Self>) {
        let given_up = self.state.lock().crossing.lost();
        let Some(given_up) = given_up else { return };
        given_up.into_iter().for_each(|passed| passed.give_up(closed()));
        self.wait_for_peer();
    }
}

/// Returns whether nothing was sent because the connection is lost, and the pipe goes on over the next one: its loss is told.
fn is_waited_for(line: &PipeLine, failure: &Failure) -> bool {
    line.resumes() && failure.reason == Reason::PipeLost
}

fn closed() -> Failure {
    Failure::new(Reason::PipeClosed, "this end of the pipe was closed")
}

// === impl Passed ===

impl Passed {
    /// From now on it is told at its deadline.
    fn enter(self: &Arc<Self>, asker: &Asker) -> Result<(), Failure> {
        let waits = &self.exchange.waits;
        let until = self.until + SLACK;
        let waiter = Arc::clone(self) as Arc<dyn Waiter>;
        let entry = waits.enter(asker.owner(), cost(std::iter::empty()), until, waiter)?;
        self.state.lock().entry = Some(entry);
        waits.wait(entry, Vec::new(), until)
    }

    /// Takes its number among the calls of its pipe. Returns false where it has its outcome.
    fn is_numbered(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let is_open = state.done.is_some();
        state.number = is_open.then_some(number);
        is_open
    }

    fn send(self: &Arc<Self>, line: &PipeLine) -> Result<(), Failure> {
        let left = self.until.saturating_duration_since(Instant::now());
        let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let told = Arc::clone(self);
        let done: PipeDone = Box::new(move |outcome| told.answered(outcome));
        // Before it is: whoever gives up meanwhile does not know better.
        let before = std::mem::replace(&mut self.state.lock().sent, true);
        let sent = match &self.asked {
            Asked::Write(request) => {
                line.write((request.sequence, request.message.clone()), deadline_ms, done)
            }
            Asked::Read(request) => line.read(request.from, deadline_ms, done),
        };
        let mut state = self.state.lock();
        let call = sent.inspect_err(|_| state.sent = before)?;
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

    /// Adds to a failure that the message may have been read, unless the peer says that it was not, or never had it.
    fn unknown(&self, failure: Failure) -> Failure {
        if !self.asked.writes() || failure.detail("delivered").is_some() {
            return failure;
        }
        let sent = self.state.lock().sent;
        failure.with("delivered", if sent { "unknown" } else { "no" })
    }

    /// The answer, once.
    fn finish(&self, outcome: Result<v1::peer_pipe_answer::Kind, Failure>) {
        let (done, entry, number) = {
            let mut state = self.state.lock();
            state.call = None;
            (state.done.take(), state.entry.take(), state.number.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        if let Some(number) = number {
            self.far.state.lock().crossing.leave(number);
        }
        let Some(done) = done else { return };
        if self.asked.writes() {
            let mut fars = self.exchange.pipes.fars.lock();
            fars.unread -= 1;
            fars.messages += u64::from(outcome.is_ok());
            fars.budget.unbook(&[(self.far.session, self.asked.bytes())]);
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
