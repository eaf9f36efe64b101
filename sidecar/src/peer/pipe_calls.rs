//! Pipes between peers: the pipe lives at the peer of its listener, and the peer that connected passes the calls of its clients on.
//!
//! ```text
//!   connector                                listener
//!     PipeConnect { name }        ──>          a pipe, of this connection
//!     PipeCall { write }          ──>            │ read there
//!        REPLY <──────────────────────────────── ┘
//!     PipeCall { read }           ──>  REPLY: a message that was written there, or the end
//!     PipeCall { end }, call 0    ──>  what was read here, finish, close, loss
//! ```
//! A pipe is of the connection on which it was opened. It goes on over another one, where both ends know that ([`PIPES_RESUMED_SINCE`]):
//! the connector says which one by `PipeConnect { resume }`, and says again what it has no answer to. Else it ends with its connection.
//! Calls are kept here and not with those of [`super::calls`], where those who wait for hours would keep pulls out. A call of
//! the other side is answered once, also when it is withdrawn. No thread waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use tensorlane_proto::frame::{
    self, FrameError, Header, PEER_PIPE_CALLS_MAX, PEER_PIPE_CONNECTS_MAX, PEER_PIPES_SINCE,
    PIPE_UNREAD_BYTES_MAX, PIPES_RESUMED_SINCE, PeerKind, REPLY,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, PeerName, Reason, wire};

use super::api::PeerKey;
use super::calls::Kind;
use super::gather_frame::GatherFrame;
use super::link::{Ended, Link};
use super::parse::{Body, decode};
use super::peers::{CallHandle, Peers};
use super::serving::{enter_inquiry, failed, take_inquiry};
use super::shared::Shared;
use crate::cancel::Cancel;

/// Longest answer that is put together at once, however much waits on the connection.
const SMALL: usize = 4 << 10;
/// Most bytes of answers that wait for room on a connection.
const LATE_MAX: usize = 32 << 20;

/// A peer that connects to listeners of ours, on one connection.
#[derive(Debug, Clone)]
pub struct PipeAsker {
    /// The peer.
    pub key: PeerKey,
    /// Number of the connection, unlike any other of this process, and above those before.
    pub link: u64,
    /// Set if its pipes go on over another connection.
    pub resumes: bool,
    over: Arc<AtomicBool>,
}

/// A pipe at a peer that goes on over another connection. Nothing of it may block.
pub trait PipeSink: Send + Sync {
    /// The connection is lost: calls on it that are not answered have no outcome.
    fn lost(self: Arc<Self>);
}

/// A pipe that was opened at a peer.
pub struct PipeThere {
    /// Message with which the peer answered.
    pub message: v1::PeerPipeConnected,
    /// Line to it.
    pub line: PipeLine,
}

/// Line to a pipe at a peer.
#[derive(Clone)]
pub struct PipeLine {
    shared: Weak<Shared>,
    link: Weak<Link>,
    peer: PeerKey,
    pipe: u64,
    /// Number of the line, unlike any other.
    number: u64,
    resumes: bool,
    /// While this is held, the connection is in use.
    _open: Arc<()>,
}

/// A call about a pipe under way. Dropping it changes nothing.
pub struct PipeCallHandle {
    link: Weak<Link>,
    call: u64,
}

/// Takes the outcome of a connect. Runs on a reader thread: must not block.
pub(super) type ConnectDone = Box<dyn FnOnce(Result<PipeThere, Failure>) + Send>;
/// Takes our answer to a connect.
pub type TellConnected = Box<dyn FnOnce(Result<v1::PeerPipeConnected, Failure>) + Send>;
/// Takes the answer to a call about a pipe, or gives ours. Runs on a reader thread: must not block.
pub type PipeDone = Box<dyn FnOnce(Result<v1::PeerPipeAnswer, Failure>) + Send>;

/// Calls about pipes on one connection.
#[derive(Default)]
pub(super) struct PipeCalls {
    over: Arc<AtomicBool>,
    /// Held by each line of ours.
    lines: Arc<()>,
    /// The peer has opened a pipe on it at some time.
    has_opened: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Ours that are not answered.
    asked: HashMap<u64, Asked>,
    /// Pipes of ours that go on where the connection is lost, by their lines.
    sinks: HashMap<u64, Arc<dyn PipeSink>>,
    /// Bytes of the messages in them.
    bytes: u64,
    /// Calls of theirs that are not answered.
    served: HashMap<u64, Cancel>,
    /// Connects of theirs that are not answered.
    connecting: usize,
    /// Bytes of answers that wait for room.
    late: usize,
}

/// A call of ours. One that was withdrawn has nobody to tell, and waits for its answer.
struct Asked {
    expects: Expected,
    bytes: u64,
    done: Option<PipeDone>,
}

/// Kind of answer that a call of ours gets where it does not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Written,
    Message,
    Heard,
}

// === impl PipeAsker ===

impl PipeAsker {
    /// Returns whether the connection has ended, and its pipes with it.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

// === impl PipeCalls ===

impl PipeCalls {
    /// Enters a call of ours.
    fn enter(&self, peer: &PeerName, call: u64, asked: Asked) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        if self.over.load(Ordering::Acquire) {
            return Err(lost(peer));
        }
        if inner.asked.len() >= PEER_PIPE_CALLS_MAX {
            return Err(full_calls(&format!("calls about pipes wait at {peer} already")));
        }
        if inner.bytes + asked.bytes > PIPE_UNREAD_BYTES_MAX {
            let what = format!(
                "messages of {} bytes that this peer has written to pipes of {peer} are unread, at most {PIPE_UNREAD_BYTES_MAX}; let \
                 some be read first, or put more into tensors",
                inner.bytes
            );
            return Err(Failure::new(Reason::LimitExceeded, what).with("most", PIPE_UNREAD_BYTES_MAX));
        }
        inner.bytes += asked.bytes;
        inner.asked.insert(call, asked);
        Ok(())
    }

    /// Returns what a call of ours expects; none where there is no such call.
    fn expected(&self, call: u64) -> Option<Expected> {
        self.inner.lock().asked.get(&call).map(|asked| asked.expects)
    }

    /// Takes out a call of ours.
    fn leave(&self, call: u64) -> Option<Asked> {
        let mut inner = self.inner.lock();
        let asked = inner.asked.remove(&call)?;
        inner.bytes -= asked.bytes;
        Some(asked)
    }

    /// Enters a call of theirs; none where there are too many.
    fn serve(&self, header: Header) -> Result<Option<Cancel>, Ended> {
        let mut inner = self.inner.lock();
        if inner.served.contains_key(&header.call) {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        if inner.served.len() >= PEER_PIPE_CALLS_MAX {
            return Ok(None);
        }
        let gone = Cancel::default();
        inner.served.insert(header.call, gone.clone());
        Ok(Some(gone))
    }

    /// Takes out a call of theirs that is answered now; none where there is no such call any more.
    fn served(&self, call: u64) -> Option<Cancel> {
        self.inner.lock().served.remove(&call)
    }

    /// Withdraws a call of theirs, which is answered all the same. Returns whether there is one.
    pub(super) fn withdraw(&self, call: u64) -> bool {
        let gone = self.inner.lock().served.get(&call).cloned();
        if let Some(gone) = &gone {
            gone.cancel();
        }
        gone.is_some()
    }

    /// Returns whether we have a pipe on it, or wait for something about one.
    fn is_used(&self) -> bool {
        let inner = self.inner.lock();
        let waits = !inner.asked.is_empty() || !inner.served.is_empty() || inner.connecting > 0;
        waits || Arc::strong_count(&self.lines) > 1
    }

    /// Returns whether the peer may wait for one more listener.
    fn connect(&self) -> bool {
        let mut inner = self.inner.lock();
        let may = inner.connecting < PEER_PIPE_CONNECTS_MAX;
        inner.connecting += usize::from(may);
        may
    }
}

/// The connection has ended, and every pipe on it that does not go on over another one.
pub(super) fn end(shared: &Shared, link: &Link) {
    let (asked, served, sinks) = {
        let mut inner = link.pipes.inner.lock();
        link.pipes.over.store(true, Ordering::Release);
        let sinks = std::mem::take(&mut inner.sinks);
        (std::mem::take(&mut inner.asked), std::mem::take(&mut inner.served), sinks)
    };
    if link.version >= PEER_PIPES_SINCE {
        shared.serve.pipes_over(&asker(link));
    }
    served.into_values().for_each(|gone| gone.cancel());
    if !resumes(link) {
        for done in asked.into_values().filter_map(|asked| asked.done) {
            done(Err(lost(&link.peer.name)));
        }
    }
    // What those have asked is asked again.
    for sink in sinks.into_values() {
        sink.lost();
    }
}

/// Returns whether pipes of a connection go on over another one.
fn resumes(link: &Link) -> bool {
    link.version >= PIPES_RESUMED_SINCE
}

/// Returns whether either end has a pipe on a connection. Takes locks of whoever serves.
pub(super) fn is_used(shared: &Shared, link: &Link) -> bool {
    let is_theirs = || link.pipes.has_opened.load(Ordering::Acquire) && shared.serve.has_pipes(&asker(link));
    link.pipes.is_used() || is_theirs()
}

fn asker(link: &Link) -> PipeAsker {
    let over = Arc::clone(&link.pipes.over);
    PipeAsker { key: link.key(), link: link.id, resumes: resumes(link), over }
}

fn lost(peer: &PeerName) -> Failure {
    let message = format!(
        "the connection to {peer} on which the pipe was opened is lost, and the pipe with it; connect again"
    );
    Failure::new(Reason::PipeLost, message).with("peer", peer)
}

fn full_calls(what: &str) -> Failure {
    let message = format!("{PEER_PIPE_CALLS_MAX} {what}; end or read some first");
    Failure::new(Reason::LimitExceeded, message).with("most", PEER_PIPE_CALLS_MAX)
}

/// Why a peer of an earlier release cannot be asked.
pub(super) fn unsupported(peer: &PeerName) -> Failure {
    let message = format!(
        "{peer} speaks a version of the peer protocol before {PEER_PIPES_SINCE}, which has no pipes: update its sidecar"
    );
    Failure::new(Reason::Unsupported, message).with("peer", peer)
}

// === impl PipeLine ===

impl PipeLine {
    /// A line that leads nowhere any more.
    #[cfg(test)]
    pub(crate) fn to_nobody(peer: PeerKey) -> Self {
        let (shared, link) = (Weak::new(), Weak::new());
        Self { shared, link, peer, pipe: 0, number: 0, resumes: false, _open: Arc::default() }
    }

    fn new(shared: &Arc<Shared>, link: &Arc<Link>, pipe: u64) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            link: Arc::downgrade(link),
            peer: link.key(),
            pipe,
            number: shared.next_call(),
            resumes: resumes(link),
            _open: Arc::clone(&link.pipes.lines),
        }
    }

    /// The peer at which the pipe lives.
    pub fn peer(&self) -> &PeerName {
        &self.peer.name
    }

    /// Returns whether the pipe goes on where the connection is lost.
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// From now on the sink is told where the connection is lost. Returns false where it is.
    pub fn listen(&self, sink: Arc<dyn PipeSink>) -> bool {
        let Some(link) = self.link.upgrade() else { return false };
        let mut inner = link.pipes.inner.lock();
        let is_on = !link.pipes.over.load(Ordering::Acquire);
        if is_on {
            inner.sinks.insert(self.number, sink);
        }
        is_on
    }

    /// Nobody is told any more.
    pub fn leave(&self) {
        let Some(link) = self.link.upgrade() else { return };
        let sink = link.pipes.inner.lock().sinks.remove(&self.number);
        // Without the lock: it may be the last one that holds the pipe.
        drop(sink);
    }

    /// Reason for which a pipe ends with its connection.
    pub fn lost(&self) -> Failure {
        lost(&self.peer.name)
    }

    /// Writes a message. `done` is told the outcome exactly once, unless the call is withdrawn. Where the connection is lost that is
    /// PIPE_LOST, or nothing for a pipe that goes on.
    ///
    /// # Errors
    /// PIPE_LOST, LIMIT_EXCEEDED: nothing was sent.
    pub fn write(
        &self,
        (sequence, message): (u64, Bytes),
        deadline_ms: u64,
        done: PipeDone,
    ) -> Result<PipeCallHandle, Failure> {
        let asked = Asked { expects: Expected::Written, bytes: message.len() as u64, done: Some(done) };
        let request = v1::PipeWriteRequest { pipe: self.pipe, sequence, message, deadline_ms };
        self.ask(v1::peer_pipe_call::Kind::Write(request), asked)
    }

    /// Asks for the descriptor of a message, otherwise as [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn read(&self, from: u64, deadline_ms: u64, done: PipeDone) -> Result<PipeCallHandle, Failure> {
        let asked = Asked { expects: Expected::Message, bytes: 0, done: Some(done) };
        let request = v1::PipeReadRequest { pipe: self.pipe, from, deadline_ms };
        self.ask(v1::peer_pipe_call::Kind::Read(request), asked)
    }

    /// Says an end of which it is to be known that it was heard, otherwise as [`Self::write`]. For a pipe that goes on.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn close(&self, end: v1::PeerPipeEnd, done: PipeDone) -> Result<PipeCallHandle, Failure> {
        let asked = Asked { expects: Expected::Heard, bytes: 0, done: Some(done) };
        let end = v1::PeerPipeEnd { pipe: self.pipe, ..end };
        self.ask(v1::peer_pipe_call::Kind::End(end), asked)
    }

    fn ask(&self, kind: v1::peer_pipe_call::Kind, asked: Asked) -> Result<PipeCallHandle, Failure> {
        let (shared, link) = self.shared.upgrade().zip(self.link.upgrade()).ok_or_else(|| self.lost())?;
        let call = shared.next_call();
        link.pipes.enter(&self.peer.name, call, asked)?;
        send(&link, call, kind);
        Ok(PipeCallHandle { link: Weak::clone(&self.link), call })
    }

    /// Says what has ended here, or was read. Never waits.
    pub fn end(&self, end: v1::PeerPipeEnd) {
        if let Some(link) = self.link.upgrade() {
            send(&link, 0, v1::peer_pipe_call::Kind::End(v1::PeerPipeEnd { pipe: self.pipe, ..end }));
        }
    }
}

fn send(link: &Link, call: u64, kind: v1::peer_pipe_call::Kind) {
    link.submit(frame::encode(PeerKind::PipeCall.into(), 0, call, &v1::PeerPipeCall { kind: Some(kind) }));
}

// === impl PipeCallHandle ===

impl PipeCallHandle {
    /// Withdraws the call, unless it is answered. Nobody is told its outcome.
    pub fn cancel(&self) {
        let Some(link) = self.link.upgrade() else { return };
        let done = link.pipes.inner.lock().asked.get_mut(&self.call).and_then(|asked| asked.done.take());
        if done.is_some() {
            link.submit(frame::encode(PeerKind::Cancel.into(), 0, self.call, &v1::Cancel {}));
        }
    }
}

// === impl Peers ===

impl Peers {
    /// Connects to a listener of a peer. `done` is told the outcome exactly once.
    pub fn connect_pipe(
        &self,
        peer: &PeerName,
        message: v1::PeerPipeConnect,
        deadline: Instant,
        done: impl FnOnce(Result<PipeThere, Failure>) + Send + 'static,
    ) -> CallHandle {
        let done: ConnectDone = Box::new(done);
        self.shared.call(peer, None, deadline, Kind::PipeConnect { message, done: Some(done) })
    }

    /// Goes on with a pipe at a peer, in that life of it, as soon as it is connected again. `done` is told the outcome exactly once.
    pub fn resume_pipe(
        &self,
        line: &PipeLine,
        deadline: Instant,
        done: impl FnOnce(Result<PipeThere, Failure>) + Send + 'static,
    ) {
        let message = v1::PeerPipeConnect { resume: line.pipe, ..Default::default() };
        let kind = Kind::PipeConnect { message, done: Some(Box::new(done)) };
        // It is not withdrawn: a pipe that has ended here is ended there once it goes on.
        let _ = self.shared.call(&line.peer.name, Some(line.peer.incarnation), deadline, kind);
    }
}

/// The peer has opened a pipe for us.
pub(super) fn connected(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: &[u8],
) -> Result<(), Ended> {
    let message: v1::PeerPipeConnected = decode(header, body)?;
    // Before the call is over: between the two nothing would use the connection, which would give way with the pipe.
    let line = PipeLine::new(shared, link, message.pipe);
    let (call, mut effects) = link.peer.state.lock().over(header.call, false);
    match call.map(|call| call.kind) {
        Some(Kind::PipeConnect { done: Some(done), .. }) => {
            effects.finish.push(Box::new(move || done(Ok(PipeThere { message, line }))));
        }
        // Nobody has waited for the pipe any longer.
        Some(Kind::PipeConnect { message: asked, .. }) if asked.resume != 0 => {
            line.end(v1::PeerPipeEnd { lost: true, ..Default::default() });
        }
        // The caller has gone meanwhile.
        _ => line.end(v1::PeerPipeEnd { closed: true, ..Default::default() }),
    }
    shared.perform(effects);
    Ok(())
}

/// An answer to a call of ours. One that is none leaves its call to the end of the connection, which tells whoever waits.
pub(super) fn answered(link: &Link, header: Header, body: &[u8]) -> Result<(), Ended> {
    let expected = link.pipes.expected(header.call).ok_or(FrameError::OutOfPlace(header.kind))?;
    let outcome = match header.is_failed() {
        true => Err(wire::failure(decode(header, body)?)),
        false => {
            let answer: v1::PeerPipeAnswer = decode(header, body)?;
            let given = match answer.kind {
                Some(v1::peer_pipe_answer::Kind::Written(_)) => Some(Expected::Written),
                Some(v1::peer_pipe_answer::Kind::Message(_)) => Some(Expected::Message),
                Some(v1::peer_pipe_answer::Kind::Heard(_)) => Some(Expected::Heard),
                None => None,
            };
            if given != Some(expected) {
                return Err(FrameError::Malformed(header.kind).into());
            }
            Ok(answer)
        }
    };
    if let Some(done) = link.pipes.leave(header.call).and_then(|asked| asked.done) {
        done(outcome);
    }
    Ok(())
}

/// Connects the peer to a listener of ours.
pub(super) fn connect(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: v1::PeerPipeConnect,
) -> Result<(), Ended> {
    let call = header.call;
    if link.version < PEER_PIPES_SINCE {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    if asked.resume != 0 {
        return go_on(shared, link, header, asked.resume);
    }
    if !link.pipes.connect() {
        let message = format!(
            "{PEER_PIPE_CONNECTS_MAX} connects of {} wait for listeners here already; listen first, or connect later",
            link.peer.name
        );
        let full = Failure::new(Reason::LimitExceeded, message).with("most", PEER_PIPE_CONNECTS_MAX);
        link.submit(failed(PeerKind::PipeConnect, call, &full));
        return Ok(());
    }
    link.pipes.has_opened.store(true, Ordering::Release);
    let gone = enter_inquiry(link, header, PeerKind::PipeConnect)?;
    let (answering, serve, by) = (Arc::downgrade(link), Arc::clone(&shared.serve), asker(link));
    let asked_by = by.clone();
    let reply = move |outcome: Result<v1::PeerPipeConnected, Failure>| {
        let link = answering.upgrade();
        if let Some(link) = &link {
            link.pipes.inner.lock().connecting -= 1;
        }
        let wanted = link.filter(|link| take_inquiry(link, call));
        match (outcome, wanted) {
            (Ok(message), Some(link)) => {
                link.submit(frame::encode(PeerKind::PipeConnect.into(), REPLY, call, &message));
            }
            (Ok(message), None) => {
                serve
                    .pipe_end(&by, &v1::PeerPipeEnd { pipe: message.pipe, lost: true, ..Default::default() });
            }
            (Err(failure), Some(link)) => link.submit(failed(PeerKind::PipeConnect, call, &failure)),
            (Err(_), None) => {}
        }
    };
    shared.serve.pipe_connect(&asked_by, asked, gone, Box::new(reply));
    Ok(())
}

/// The peer goes on with a pipe to a listener of ours that it has opened on another connection.
fn go_on(shared: &Arc<Shared>, link: &Arc<Link>, header: Header, pipe: u64) -> Result<(), Ended> {
    if !resumes(link) || header.call == 0 {
        return Err(FrameError::Malformed(header.kind).into());
    }
    if !link.is_present() {
        // It was read late, from a connection that another one has replaced: it is asked again there.
        return Ok(());
    }
    link.pipes.has_opened.store(true, Ordering::Release);
    match shared.serve.pipe_resume(&asker(link), pipe) {
        Ok(message) => {
            link.submit(frame::encode(PeerKind::PipeConnect.into(), REPLY, header.call, &message));
        }
        Err(failure) => link.submit(failed(PeerKind::PipeConnect, header.call, &failure)),
    }
    Ok(())
}

/// A call of theirs, or an end, about a pipe here.
pub(super) fn call(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: Body<'_>,
) -> Result<(), Ended> {
    let call = header.call;
    if link.version < PEER_PIPES_SINCE || header.flags != 0 {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    let body: Bytes = body.into();
    let asked: v1::PeerPipeCall = decode(header, body)?;
    let kind = match asked.kind {
        Some(v1::peer_pipe_call::Kind::End(end)) if call == 0 => {
            shared.serve.pipe_end(&asker(link), &end);
            return Ok(());
        }
        Some(v1::peer_pipe_call::Kind::End(end)) if resumes(link) => {
            shared.serve.pipe_end(&asker(link), &end);
            let heard = v1::peer_pipe_answer::Kind::Heard(v1::PeerPipeHeard {});
            let answer = v1::PeerPipeAnswer { kind: Some(heard) };
            link.submit(frame::encode(PeerKind::PipeCall.into(), REPLY, call, &answer));
            return Ok(());
        }
        Some(kind) if call != 0 && !matches!(kind, v1::peer_pipe_call::Kind::End(_)) => kind,
        _ => return Err(FrameError::Malformed(header.kind).into()),
    };
    let Some(gone) = link.pipes.serve(header)? else {
        let what = format!("calls about pipes of {} wait here already", link.peer.name);
        let full = full_calls(&what).with("delivered", "no");
        link.submit(failed(PeerKind::PipeCall, call, &full));
        return Ok(());
    };
    let answering = Arc::downgrade(link);
    let reply = move |outcome: Result<v1::PeerPipeAnswer, Failure>| {
        let Some(link) = answering.upgrade() else { return };
        match outcome {
            Ok(answer) => answer_call(&link, call, answer),
            Err(failure) if link.pipes.served(call).is_some() => {
                link.submit(failed(PeerKind::PipeCall, call, &failure));
            }
            Err(_) => {}
        }
    };
    shared.serve.pipe_call(&asker(link), kind, gone, Box::new(reply));
    Ok(())
}

/// Answers a call; a message is put together when there is room for it on the connection.
fn answer_call(link: &Arc<Link>, call: u64, answer: v1::PeerPipeAnswer) {
    let bytes = answer.encoded_len();
    if bytes <= SMALL || !link.outbox.is_late() {
        if link.pipes.served(call).is_none() {
            return;
        }
        link.submit(frame::encode(PeerKind::PipeCall.into(), REPLY, call, &answer));
        return;
    }
    let late = {
        let mut inner = link.pipes.inner.lock();
        inner.late += bytes;
        inner.late
    };
    if late > LATE_MAX {
        // It asks and does not read the answers.
        link.end(Ended::Backlog);
        return;
    }
    let answering = Arc::downgrade(link);
    link.submit_late(bytes, move || {
        let mut frame = GatherFrame::default();
        if let Some(link) = answering.upgrade() {
            link.pipes.inner.lock().late -= bytes;
            // Whoever asked may have given up while it waited: nobody would read the message.
            *frame.own() = match link.pipes.served(call) {
                Some(gone) if gone.is_cancelled() => failed(PeerKind::PipeCall, call, &withdrawn()),
                Some(_) => frame::encode(PeerKind::PipeCall.into(), REPLY, call, &answer),
                None => Vec::new(),
            };
        }
        frame
    });
}

/// Answer to whoever has given up.
fn withdrawn() -> Failure {
    Failure::new(Reason::Cancelled, "the call was withdrawn")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(bytes: u64) -> Asked {
        Asked { expects: Expected::Written, bytes, done: None }
    }

    fn reason(outcome: Result<(), Failure>) -> Option<Reason> {
        outcome.err().map(|failure| failure.reason)
    }

    #[test]
    fn calls_on_a_connection_have_bounds_in_number_and_in_bytes_and_none_is_begun_behind_its_end() {
        let (calls, peer) = (PipeCalls::default(), "there".parse().unwrap());
        let enter = |call, bytes| reason(calls.enter(&peer, call, asked(bytes)));
        assert_eq!(enter(1, PIPE_UNREAD_BYTES_MAX), None);
        assert_eq!(enter(2, 1), Some(Reason::LimitExceeded));
        assert_eq!(enter(2, 0), None);
        assert!(calls.leave(1).is_some() && calls.leave(1).is_none());
        for call in 3..=PEER_PIPE_CALLS_MAX as u64 + 1 {
            assert_eq!(enter(call, 1), None, "{call}");
        }
        assert_eq!(enter(9_999, 0), Some(Reason::LimitExceeded));
        assert!(calls.leave(2).is_some());
        calls.over.store(true, Ordering::Release);
        assert_eq!(enter(9_999, 0), Some(Reason::PipeLost));
    }

    #[test]
    fn a_pipe_keeps_its_connection_in_use_from_its_opening_to_its_end() {
        let (calls, peer) = (PipeCalls::default(), "there".parse().unwrap());
        assert!(!calls.is_used());
        // Lines are made before the call that opened them is over.
        let line = Arc::clone(&calls.lines);
        assert!(calls.is_used(), "nothing was written yet");
        calls.enter(&peer, 1, asked(10)).unwrap();
        drop(line);
        assert!(calls.is_used(), "a call is not answered");
        assert!(calls.leave(1).is_some() && !calls.is_used());
    }

    #[test]
    fn calls_of_the_other_side_are_bounded_and_one_number_is_one_call() {
        let calls = PipeCalls::default();
        let header = |call| Header { length: 0, kind: PeerKind::PipeCall.into(), flags: 0, call };
        for call in 1..=PEER_PIPE_CALLS_MAX as u64 {
            assert!(calls.serve(header(call)).unwrap().is_some());
        }
        assert!(calls.serve(header(9_999)).unwrap().is_none());
        assert!(calls.serve(header(1)).is_err());
        assert!(calls.withdraw(1) && !calls.withdraw(9_999));
        assert!(calls.serve(header(1)).is_err(), "what is withdrawn is answered yet");
        assert!((0..PEER_PIPE_CONNECTS_MAX).all(|_| calls.connect()) && !calls.connect());
    }
}
