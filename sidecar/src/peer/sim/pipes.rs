//! Pipes between simulated peers: each listens, and connects to others. Whoever connected writes, and the listener reads. The table is
//! that of `exchange/pipes`; here is who says what to whom, as `peer/pipe_calls` does.
//! Pipes end with their connection here, as those of earlier releases. How they go on is driven in `exchange/pipes/crossing/tests`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tensorlane_memory::ring::Policy;
use tensorlane_proto::frame::{FAILED, Header, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation, Reason, wire};

use super::node::name;
use super::owner::Asker;
use super::world::{Happening, MS, World};
use crate::exchange::{Delivery, PipeNews, SimPipes, ToldPipes};
use crate::peer::PeerKey;
use crate::peer::calls::{Call, Kind};
use crate::peer::pipe_calls::{ConnectDone, PipeLine, PipeThere};

/// The session that listens, and the number from which on connections of peers have theirs.
const LISTENS: u64 = 1;
const PEERS: u64 = 1 << 63;
/// Pipes that one life has at others, and messages on one that are not read.
const PIPES: usize = 3;
const UNREAD: u64 = 4;

/// Outcomes of connects that `done` was told.
type ConnectOutcomes = Arc<Mutex<Vec<(u64, Result<v1::PeerPipeConnected, Failure>)>>>;

/// Pipes of one life: those to its listener, and those that it has at others.
#[derive(Default)]
pub(super) struct PipeEnds {
    table: SimPipes,
    listener: Option<u64>,
    last: u64,
    waits: BTreeMap<u64, PipeWait>,
    accepted: BTreeMap<u64, AcceptedPipe>,
    /// Ends of ours at others, by connection and number.
    far: BTreeMap<(u64, u64), FarPipe>,
    /// Writes that are not answered, by their call: the pipe and the sequence.
    asked: BTreeMap<u64, ((u64, u64), u64)>,
    /// Connects without an outcome.
    connecting: BTreeSet<u64>,
    outcomes: ConnectOutcomes,
    /// Connections on which answers came.
    answered: BTreeMap<u64, u64>,
}

/// Somebody who waits in the table.
#[derive(Debug, Clone, Copy)]
enum PipeWait {
    /// The listener, for a pipe.
    Accept,
    /// The listener, for a message of a pipe.
    Read(u64),
    /// A peer that has written, by a call on a connection.
    Write { wire: u64, call: u64 },
}

/// Pipe that the listener reads.
struct AcceptedPipe {
    next: u64,
    delivery: Delivery,
}

/// Pipe at another peer.
#[derive(Debug, Clone, Copy, Default)]
struct FarPipe {
    written: u64,
    answered: u64,
    finished: bool,
}

fn content(pipe: u64, sequence: u64) -> Vec<u8> {
    let number = ((pipe / 2) << 32) | sequence;
    number.to_le_bytes()[..(number % 9) as usize].to_vec()
}

impl PipeEnds {
    /// Returns whether a call connects, and has no outcome.
    pub(super) fn is_connecting(&self, call: u64) -> bool {
        self.connecting.contains(&call)
    }

    fn wait(&mut self, what: PipeWait) -> u64 {
        self.last += 1;
        self.waits.insert(self.last, what);
        self.last
    }

    /// Checks that nothing is left.
    pub(super) fn assert_empty(&self) {
        self.table.assert_empty();
        let ends = (self.accepted.len(), self.far.len());
        let waits = (self.waits.len(), self.asked.len(), self.connecting.len());
        assert_eq!((ends, waits), ((0, 0), (0, 0, 0)), "ends of pipes, or those who wait, are left");
    }
}

impl World {
    /// A peer listens, connects to others and writes.
    pub(super) fn pipe_act(&mut self, node: usize) {
        if !self.ending && self.nodes[node].pipes.listener.is_none() {
            let listener = self.nodes[node].pipes.table.listen(LISTENS);
            self.nodes[node].pipes.listener = Some(listener);
            self.accept(node, listener);
        }
        if self.ending {
            if self.end_pipes(node) {
                self.soon(40 * MS, Happening::Pipe { node });
            }
            return;
        }
        let far: Vec<(u64, u64)> = self.nodes[node].pipes.far.keys().copied().collect();
        match self.dice.roll(100) {
            0..25 if far.len() < PIPES => self.connect_somewhere(node),
            25..85 => {
                if let Some(pipe) = self.dice.pick(&far) {
                    self.write_far(node, pipe);
                }
            }
            85..91 => {
                if let Some(pipe) = self.dice.pick(&far) {
                    self.finish_far(node, pipe);
                }
            }
            91..94 => {
                if let Some(pipe) = self.dice.pick(&far) {
                    self.close_far(node, pipe);
                }
            }
            _ => {}
        }
        self.soon(40 * MS, Happening::Pipe { node });
    }

    /// Ends what a peer has: its listener, and each pipe once all was read. Returns whether something is left.
    fn end_pipes(&mut self, node: usize) -> bool {
        if let Some(listener) = self.nodes[node].pipes.listener.take() {
            let told = self.nodes[node].pipes.table.stop_listening(LISTENS, listener);
            self.tell_pipes(node, told);
        }
        let far: Vec<((u64, u64), FarPipe)> =
            self.nodes[node].pipes.far.iter().map(|(pipe, far)| (*pipe, *far)).collect();
        for (pipe, far) in far {
            self.finish_far(node, pipe);
            if far.finished && far.answered == far.written {
                self.close_far(node, pipe);
            }
        }
        let pipes = &self.nodes[node].pipes;
        !(pipes.far.is_empty() && pipes.connecting.is_empty())
    }

    fn accept(&mut self, node: usize, listener: u64) {
        let pipes = &mut self.nodes[node].pipes;
        let to = pipes.wait(PipeWait::Accept);
        let accepted = pipes.table.accept(LISTENS, listener, to);
        assert_eq!(accepted, None, "whoever connects is accepted at once");
    }

    fn connect_somewhere(&mut self, node: usize) {
        let (owner, within) = (self.other_than(node), 50 * MS + self.dice.roll(600 * MS));
        let deadline = self.instant() + Duration::from_micros(within);
        let here = &mut self.nodes[node];
        let (number, life, told) = (here.next_call, here.life, Arc::clone(&here.pipes.outcomes));
        here.next_call += 1;
        let done: ConnectDone = Box::new(move |outcome: Result<PipeThere, Failure>| {
            told.lock().push((number, outcome.map(|there| there.message)));
        });
        here.pipes.connecting.insert(number);
        let message = v1::PeerPipeConnect { name: "inbox".to_owned(), ..Default::default() };
        let call = Call::new(Kind::PipeConnect { message, done: Some(done) }, deadline, number, None);
        let effects = here.other(owner).state.place(call);
        self.at(self.now + within, Happening::Deadline { node, life, owner, call: number });
        self.perform(node, effects);
    }

    /// Tells the outcomes of connects.
    pub(super) fn tell_connected(&mut self, node: usize) {
        let told = std::mem::take(&mut *self.nodes[node].pipes.outcomes.lock());
        for (call, outcome) in told {
            let pipes = &mut self.nodes[node].pipes;
            assert!(pipes.connecting.remove(&call), "an outcome is told once");
            let wire = pipes.answered.remove(&call);
            match outcome {
                Ok(connected) => {
                    let wire = wire.expect("an answer came on a connection");
                    pipes.far.insert((wire, connected.pipe), FarPipe::default());
                }
                Err(failure) => {
                    use Reason::{Cancelled, DeadlineExceeded, LimitExceeded, NotFound, PeerUnreachable};
                    let is_explained = matches!(
                        failure.reason,
                        Cancelled | DeadlineExceeded | LimitExceeded | NotFound | PeerUnreachable
                    );
                    assert!(is_explained, "a connect ended with {failure}");
                }
            }
        }
    }

    fn write_far(&mut self, node: usize, pipe: (u64, u64)) {
        let here = &mut self.nodes[node];
        let Some(far) = here.pipes.far.get_mut(&pipe) else { return };
        if far.finished || far.written - far.answered >= UNREAD {
            return;
        }
        far.written += 1;
        let (sequence, call) = (far.written, here.next_call);
        here.next_call += 1;
        here.pipes.asked.insert(call, (pipe, sequence));
        let message = Bytes::from(content(pipe.1, sequence));
        let request = v1::PipeWriteRequest { pipe: pipe.1, sequence, message, deadline_ms: 0 };
        self.say_pipe(node, pipe.0, call, v1::peer_pipe_call::Kind::Write(request));
    }

    fn finish_far(&mut self, node: usize, pipe: (u64, u64)) {
        let Some(far) = self.nodes[node].pipes.far.get_mut(&pipe) else { return };
        if std::mem::replace(&mut far.finished, true) {
            return;
        }
        let last = far.written;
        let life = self.life_beyond(node, pipe.0);
        self.written.pipes.insert((life, pipe.1 / 2), last + 1);
        let end = v1::PeerPipeEnd { pipe: pipe.1, finished: true, ..Default::default() };
        self.say_pipe(node, pipe.0, 0, v1::peer_pipe_call::Kind::End(end));
    }

    fn close_far(&mut self, node: usize, pipe: (u64, u64)) {
        if self.nodes[node].pipes.far.remove(&pipe).is_some() {
            self.close_there(node, pipe);
        }
    }

    fn close_there(&mut self, node: usize, (wire, pipe): (u64, u64)) {
        let end = v1::PeerPipeEnd { pipe, closed: true, ..Default::default() };
        self.say_pipe(node, wire, 0, v1::peer_pipe_call::Kind::End(end));
    }

    fn say_pipe(&mut self, node: usize, wire: u64, call: u64, kind: v1::peer_pipe_call::Kind) {
        let message = v1::PeerPipeCall { kind: Some(kind) };
        self.say(node, wire, (PeerKind::PipeCall, 0, call), &message);
    }

    /// A frame of pipes came.
    pub(super) fn pipe_frame(
        &mut self,
        node: usize,
        from: Asker,
        (kind, header): (PeerKind, Header),
        body: &[u8],
    ) {
        match (kind, header.is_reply()) {
            (PeerKind::PipeConnect, true) => self.pipe_answer(node, from, header, body),
            (PeerKind::PipeConnect, false) => self.serve_connect(node, from, header.call),
            (_, true) => self.pipe_written(node, header, body),
            (_, false) => {
                let asked = v1::PeerPipeCall::decode(body).expect("a call of a pipe");
                self.serve_pipe(node, from, header.call, asked.kind.expect("it asks something"));
            }
        }
    }

    fn pipe_answer(&mut self, node: usize, from: Asker, header: Header, body: &[u8]) {
        let (call, wire) = (header.call, from.wire);
        let here = &mut self.nodes[node];
        let state = &mut here.other(from.peer).state;
        let asked = state.answered(call, PeerKind::PipeConnect, wire);
        assert!(asked.is_some(), "an answer to connect {call} on wire {wire}, which is not on it");
        let (asked, mut effects) = state.over(call, false);
        if header.is_failed() {
            let failure = wire::failure(v1::Failure::decode(body).expect("a failure"));
            effects.finish.extend(asked.and_then(|mut asked| asked.fail(failure)));
            return self.perform(node, effects);
        }
        let message = v1::PeerPipeConnected::decode(body).expect("an answer to a connect");
        match asked.map(|asked| asked.kind) {
            Some(Kind::PipeConnect { done: Some(done), .. }) => {
                here.pipes.answered.insert(call, wire);
                let key = PeerKey { name: name(from.peer), incarnation: from.life };
                let there = PipeThere { message, line: PipeLine::to_nobody(key) };
                effects.finish.push(Box::new(move || done(Ok(there))));
            }
            // Withdrawn meanwhile.
            _ => self.close_there(node, (wire, message.pipe)),
        }
        self.perform(node, effects);
    }

    /// A write was answered.
    fn pipe_written(&mut self, node: usize, header: Header, body: &[u8]) {
        let pipes = &mut self.nodes[node].pipes;
        let (pipe, sequence) = pipes.asked.remove(&header.call).expect("a write is answered once");
        if let Some(far) = pipes.far.get_mut(&pipe) {
            far.answered += 1;
        }
        if !header.is_failed() {
            let life = self.life_beyond(node, pipe.0);
            let is_read = self.written.read.contains(&(life, pipe.1 / 2, sequence));
            assert!(is_read, "message {sequence} of pipe {pipe:?} is said to be read, and was not");
            self.seen.pipes_written += 1;
            return;
        }
        let failure = wire::failure(v1::Failure::decode(body).expect("a failure"));
        let is_explained = matches!(failure.reason, Reason::NotFound | Reason::PipeClosed | Reason::PipeLost);
        assert!(is_explained, "a write ended with {failure}");
    }

    fn serve_connect(&mut self, node: usize, from: Asker, call: u64) {
        let connected = self.nodes[node].pipes.table.connect(PEERS + from.wire, &name(from.peer));
        match connected {
            Ok((pipe, told)) => {
                let message = v1::PeerPipeConnected { pipe, client: "listens".to_owned() };
                self.say(node, from.wire, (PeerKind::PipeConnect, REPLY, call), &message);
                self.tell_pipes(node, told);
            }
            Err(failure) => self.refuse(node, from.wire, (PeerKind::PipeConnect, call), &failure),
        }
    }

    fn refuse(&mut self, node: usize, wire: u64, (kind, call): (PeerKind, u64), failure: &Failure) {
        self.say(node, wire, (kind, REPLY | FAILED, call), &v1::Failure::from(failure));
    }

    fn serve_pipe(&mut self, node: usize, from: Asker, call: u64, kind: v1::peer_pipe_call::Kind) {
        let (session, pipes) = (PEERS + from.wire, &mut self.nodes[node].pipes);
        match kind {
            v1::peer_pipe_call::Kind::Write(request) => {
                let to = pipes.wait(PipeWait::Write { wire: from.wire, call });
                match pipes.table.write(session, request, to) {
                    Ok(told) => self.tell_pipes(node, told),
                    Err(failure) => {
                        pipes.waits.remove(&to);
                        self.refuse(node, from.wire, (PeerKind::PipeCall, call), &failure);
                    }
                }
            }
            v1::peer_pipe_call::Kind::End(end) => {
                let told = pipes.table.hear(session, &end);
                self.tell_pipes(node, told);
            }
            v1::peer_pipe_call::Kind::Read(_) => panic!("whoever connected only writes here"),
        }
    }

    /// Tells those who wait.
    fn tell_pipes(&mut self, node: usize, told: ToldPipes) {
        for (to, news) in told {
            let wait = self.nodes[node].pipes.waits.remove(&to);
            match wait.expect("whoever waits is told once") {
                PipeWait::Accept => self.tell_listener(node, news),
                PipeWait::Read(pipe) => self.tell_reader(node, pipe, news),
                PipeWait::Write { wire, call } => self.tell_writer(node, (wire, call), news),
            }
        }
    }

    fn tell_listener(&mut self, node: usize, news: PipeNews) {
        match news {
            PipeNews::Accepted { pipe } => {
                let accepted = AcceptedPipe { next: 1, delivery: Delivery::new(Policy::Block, 1, 1) };
                self.nodes[node].pipes.accepted.insert(pipe, accepted);
                if let Some(listener) = self.nodes[node].pipes.listener {
                    self.accept(node, listener);
                }
                self.read_pipe(node, pipe);
            }
            PipeNews::Fail(_) => assert!(self.ending, "a listener ends while it is wanted"),
            other => panic!("{other:?} for a listener"),
        }
    }

    fn read_pipe(&mut self, node: usize, pipe: u64) {
        let pipes = &mut self.nodes[node].pipes;
        let Some(from) = pipes.accepted.get(&pipe).map(|accepted| accepted.next) else { return };
        let to = pipes.wait(PipeWait::Read(pipe));
        match pipes.table.read(LISTENS, pipe, from, to) {
            Ok(told) => self.tell_pipes(node, told),
            Err(failure) => {
                pipes.waits.remove(&to);
                self.tell_reader(node, pipe, PipeNews::Fail(failure));
            }
        }
    }

    fn tell_reader(&mut self, node: usize, pipe: u64, news: PipeNews) {
        let life = self.nodes[node].life;
        let Some(accepted) = self.nodes[node].pipes.accepted.get_mut(&pipe) else { return };
        match news {
            PipeNews::Show { sequence, message } => {
                let checked = accepted.delivery.message(sequence, &message, &content(pipe, sequence));
                assert_eq!(checked, Ok(()), "pipe {pipe}");
                accepted.next = sequence + 1;
                self.soon(20 * MS, Happening::Take { node, life, pipe, sequence });
                return;
            }
            PipeNews::End => {
                let written = self.written.pipes.get(&(life, pipe / 2)).copied();
                assert!(written.is_some(), "pipe {pipe} ends, and nobody has finished it");
                assert_eq!(accepted.delivery.end(written), Ok(()), "pipe {pipe}");
                self.seen.pipes_finished += 1;
            }
            PipeNews::Fail(_) => self.seen.pipes_lost += 1,
            other => panic!("{other:?} for a reader"),
        }
        self.nodes[node].pipes.accepted.remove(&pipe);
        let end = v1::PeerPipeEnd { pipe, closed: true, ..Default::default() };
        let told = self.nodes[node].pipes.table.hear(LISTENS, &end);
        self.tell_pipes(node, told);
    }

    fn tell_writer(&mut self, node: usize, (wire, call): (u64, u64), news: PipeNews) {
        match news {
            PipeNews::Written => {
                let kind = Some(v1::peer_pipe_answer::Kind::Written(v1::PipeWriteResponse {}));
                let answer = v1::PeerPipeAnswer { kind };
                self.say(node, wire, (PeerKind::PipeCall, REPLY, call), &answer);
            }
            PipeNews::Fail(failure) => self.refuse(node, wire, (PeerKind::PipeCall, call), &failure),
            other => panic!("{other:?} for a writer"),
        }
    }

    /// The listener has read a message, and asks for the next one.
    pub(super) fn take(&mut self, node: usize, life: Incarnation, pipe: u64, sequence: u64) {
        if self.nodes[node].life != life || !self.nodes[node].pipes.accepted.contains_key(&pipe) {
            return;
        }
        assert!(self.written.read.insert((life, pipe / 2, sequence)), "message {sequence} is read twice");
        let end = v1::PeerPipeEnd { pipe, read: sequence, ..Default::default() };
        let told = self.nodes[node].pipes.table.hear(LISTENS, &end);
        self.tell_pipes(node, told);
        self.read_pipe(node, pipe);
    }

    /// A connection has ended, and every pipe on it.
    pub(super) fn pipes_lost(&mut self, node: usize, wire: u64) {
        let pipes = &mut self.nodes[node].pipes;
        pipes.far.retain(|(on, _), _| *on != wire);
        pipes.asked.retain(|_, ((on, _), _)| *on != wire);
        let told = pipes.table.end_session(PEERS + wire);
        self.tell_pipes(node, told);
    }
}
