//! Channels between peers: who reads which channel of whom on one connection, and the frames of that.
//!
//! ```text
//!   owner: ChannelSource                        control connection                 reader: ChannelSink
//!     pump, a thread ── ChannelMessage ... ────────────────────────────────────────────> message
//!     credit <───────────────────────────── ChannelCredit {next, landed, received} ── what it has room for, and has
//!     ended  <──────────────────────────────────── ChannelEnd ────────────────────────────────> ended
//!     lost   <───────────────────────────── the connection has ended ─────────────────────────> lost
//!     resumed <── ChannelAttach {resume}, on another connection ── Peers::resume_channel
//! ```
//! An attachment is known by the call that asked for it on a connection. With that it ends, or goes on by another call on another
//! one. What comes of one that has ended on this side is nothing: the other side did not know yet. What a peer may not say ends the
//! connection.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tensorlane_memory::View;
use tensorlane_proto::frame::{
    self, CHANNEL_PIECE_MAX, EVICTIONS_SINCE, FrameError, Header, PEER_CHANNELS_MAX, PEER_CHANNELS_SINCE,
    PeerKind, REPLY,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, PeerName, Reason};

use super::api::PeerKey;
use super::calls::Kind;
use super::link::{Ended, Link};
use super::outbox::Pieces;
use super::parse::{Body, decode};
use super::peers::{CallHandle, Peers};
use super::serving::{enter_inquiry, failed, take_inquiry};
use super::shared::Shared;

/// Bytes of frames that may wait on the connection when another one is added.
const BACKLOG: usize = 2 * CHANNEL_PIECE_MAX;

/// A frame of a channel that may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame of a channel that may not be")]
pub struct Misuse;

/// A channel of ours that a peer reads.
pub trait ChannelSource: Send + Sync {
    /// The peer has room for more. Must not block.
    ///
    /// # Errors
    /// It says what cannot be.
    fn credit(&self, credit: &v1::PeerChannelCredit) -> Result<(), Misuse>;
    /// The peer reads no more. Must not block; again is nothing.
    fn ended(&self);
    /// The connection is lost. Must not block; again is nothing.
    fn lost(&self);
    /// Goes on with the attachment on this connection. Must not block.
    fn resumed(&self, line: ChannelLine);
    /// Sends what there is until the end, on a thread of its own, and says that its last line is over.
    fn pump(&self, line: &ChannelLine);
}

/// A channel of ours to which a peer is attached.
pub struct AttachedHere {
    /// Answer to it.
    pub message: v1::PeerChannelAttached,
    /// Source of its messages.
    pub source: Arc<dyn ChannelSource>,
    /// Set if that goes on, and has a thread.
    pub resumed: bool,
}

/// A channel of a peer that is read here. Nothing of it may block.
pub trait ChannelSink: Send + Sync {
    /// A message, or a piece of one.
    ///
    /// # Errors
    /// It is not what may come.
    fn message(&self, message: &v1::PeerChannelMessage) -> Result<(), Misuse>;
    /// Nothing more comes.
    fn ended(&self, end: v1::PeerChannelEnd);
    /// The connection is lost.
    fn lost(&self);
}

/// End of an attachment.
#[derive(Clone)]
pub struct ChannelLine {
    shared: Weak<Shared>,
    link: Weak<Link>,
    call: u64,
}

/// Messages of an attachment on their way out, with the buffers that they are put together in.
pub struct OutgoingMessages {
    line: ChannelLine,
    /// None where the connection has ended.
    pieces: Option<Pieces>,
}

/// A channel of a peer that we are attached to: no message comes before the first credit. Dropped before anybody listens, it is left.
pub struct AttachedThere {
    /// Message with which the owner answered.
    pub message: v1::PeerChannelAttached,
    /// Line to it.
    pub line: ChannelLine,
}

/// Takes the outcome of an attach. Runs on a reader thread: must not block.
pub(super) type AttachDone = Box<dyn FnOnce(Result<AttachedThere, Failure>) + Send>;
/// Takes our answer to an attach.
pub type TellAttached = Box<dyn FnOnce(Result<AttachedHere, Failure>) + Send>;

/// A sink, or what came before it was there.
enum Sink {
    Coming(Option<v1::PeerChannelEnd>),
    There(Arc<dyn ChannelSink>),
}

/// Attachments of one connection.
#[derive(Default)]
pub(super) struct Attachments(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    over: bool,
    /// Number of attaches of theirs that are not answered.
    asked: usize,
    sources: HashMap<u64, Arc<dyn ChannelSource>>,
    sinks: HashMap<u64, Sink>,
}

// === impl Attachments ===

impl Attachments {
    /// The connection has ended.
    pub(super) fn end(&self) {
        let (sources, sinks) = {
            let mut inner = self.0.lock();
            inner.over = true;
            (std::mem::take(&mut inner.sources), std::mem::take(&mut inner.sinks))
        };
        sources.into_values().for_each(|source| source.lost());
        for sink in sinks.into_values() {
            if let Sink::There(sink) = sink {
                sink.lost();
            }
        }
    }

    /// Ends everything as this sidecar stops, and tells the peer so.
    pub(super) fn stop(&self, link: &Link) {
        let (sources, sinks) = {
            let mut inner = self.0.lock();
            let sources: Vec<_> = inner.sources.iter().map(|(call, of)| (*call, Arc::clone(of))).collect();
            (sources, std::mem::take(&mut inner.sinks))
        };
        for (call, source) in sources {
            source.ended();
            link.submit(end_frame(call, v1::PeerChannelOutcome::Lost));
        }
        for (call, sink) in sinks {
            link.submit(end_frame(call, v1::PeerChannelOutcome::Left));
            if let Sink::There(sink) = sink {
                sink.lost();
            }
        }
    }

    /// Returns whether nobody is attached, at either end.
    pub(super) fn is_empty(&self) -> bool {
        let inner = self.0.lock();
        inner.asked == 0 && inner.sources.is_empty() && inner.sinks.is_empty()
    }

    /// Returns whether the peer may ask for one more.
    fn ask(&self) -> bool {
        let mut inner = self.0.lock();
        let may = inner.asked + inner.sources.len() < PEER_CHANNELS_MAX;
        inner.asked += usize::from(may);
        may
    }

    fn answered(&self) {
        self.0.lock().asked -= 1;
    }

    fn serve(&self, call: u64, source: &Arc<dyn ChannelSource>) -> bool {
        let mut inner = self.0.lock();
        if inner.over || inner.sources.contains_key(&call) {
            return false;
        }
        inner.sources.insert(call, Arc::clone(source));
        true
    }

    /// A reply came: from now on frames of the attachment may.
    fn expect(&self, call: u64) {
        let mut inner = self.0.lock();
        if !inner.over {
            inner.sinks.insert(call, Sink::Coming(None));
        }
    }

    fn remove_sink(&self, call: u64) -> bool {
        self.0.lock().sinks.remove(&call).is_some()
    }
}

// === impl ChannelLine ===

impl ChannelLine {
    /// A line that leads nowhere any more.
    #[cfg(test)]
    pub(crate) fn to_nobody() -> Self {
        Self { shared: Weak::new(), link: Weak::new(), call: 1 }
    }

    /// From now on the sink is told what comes.
    ///
    /// # Errors
    /// PEER_UNREACHABLE where the connection has ended.
    pub fn listen(&self, sink: &Arc<dyn ChannelSink>) -> Result<(), Failure> {
        let lost = || Failure::new(Reason::PeerUnreachable, "the connection to the channel's peer was lost");
        let link = self.link.upgrade().ok_or_else(lost)?;
        let early = {
            let mut inner = link.channels.0.lock();
            let entry = inner.sinks.get_mut(&self.call).ok_or_else(lost)?;
            match std::mem::replace(entry, Sink::There(Arc::clone(sink))) {
                Sink::Coming(Some(end)) => {
                    inner.sinks.remove(&self.call);
                    Some(end)
                }
                _ => None,
            }
        };
        if let Some(end) = early {
            sink.ended(end);
        }
        Ok(())
    }

    /// The peer at the other end, in the life that it has; none where the connection has ended.
    pub fn peer(&self) -> Option<PeerKey> {
        self.link.upgrade().map(|link| link.key())
    }

    /// Says what there is room for. Never waits.
    pub fn credit(&self, credit: &v1::PeerChannelCredit) {
        if let Some(link) = self.link.upgrade() {
            link.submit(frame::encode(PeerKind::ChannelCredit.into(), 0, self.call, credit));
        }
    }

    /// Begins to send messages.
    pub fn messages(&self) -> OutgoingMessages {
        let pieces = self.link.upgrade().map(|link| link.outbox.pieces());
        OutgoingMessages { line: self.clone(), pieces }
    }

    /// Ends the attachment to a channel of another peer: its readers leave.
    pub fn leave(&self) {
        if let Some(link) = self.link.upgrade()
            && link.channels.remove_sink(self.call)
        {
            link.submit(end_frame(self.call, v1::PeerChannelOutcome::Left));
        }
    }

    /// Says that the end of the attachment to a channel of another peer has come.
    pub fn confirm(&self) {
        if let Some(link) = self.link.upgrade() {
            link.submit(end_frame(self.call, v1::PeerChannelOutcome::Left));
        }
    }

    /// Nothing more is sent of the attachment of a peer to a channel of ours.
    pub fn over(&self) {
        if let Some(link) = self.link.upgrade() {
            link.channels.0.lock().sources.remove(&self.call);
        }
    }

    /// Ends the attachment of a peer to a channel of ours.
    pub fn finish(&self, end: &v1::PeerChannelEnd) {
        if let Some(link) = self.link.upgrade() {
            let unknown = end.outcome() == v1::PeerChannelOutcome::Evicted && link.version < EVICTIONS_SINCE;
            let outcome = if unknown { v1::PeerChannelOutcome::Lost.into() } else { end.outcome };
            let end = v1::PeerChannelEnd { outcome, ..*end };
            link.submit(frame::encode(PeerKind::ChannelEnd.into(), 0, self.call, &end));
        }
    }

    /// Starts a thread of the attachment, which ends with it. Returns whether there is one.
    pub fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.spawn(name, work))
    }
}

// === impl OutgoingMessages ===

impl OutgoingMessages {
    /// Sends a message, or a piece of one, with these bytes; waits while much waits on the connection. Returns whether the connection
    /// goes on.
    pub fn send(&self, message: &v1::PeerChannelMessage, data: &View) -> bool {
        let (Some(pieces), Some(link)) = (&self.pieces, self.line.link.upgrade()) else { return false };
        link.gone_on(pieces.send(BACKLOG, |frame| encode_piece(frame, self.line.call, message, data)))
    }
}

/// Appends the frame of a message without its bytes, and these as its last field: from the ring to where they are sealed from.
fn encode_piece(frame: &mut Vec<u8>, call: u64, message: &v1::PeerChannelMessage, data: &View) {
    const DATA: u32 = 6;
    let field = match data.len() {
        0 => 0,
        bytes => key_len(DATA) + encoded_len_varint(bytes as u64) + bytes,
    };
    // Bounded by the most bytes of a piece and of a layout.
    let length = (message.encoded_len() + field) as u32;
    let header = Header { length, kind: PeerKind::ChannelMessage.into(), flags: 0, call };
    frame.extend_from_slice(&header.encode());
    message.encode_raw(frame);
    if !data.is_empty() {
        encode_key(DATA, WireType::LengthDelimited, frame);
        encode_varint(data.len() as u64, frame);
        data.append_to(frame);
    }
}

fn end_frame(call: u64, outcome: v1::PeerChannelOutcome) -> Vec<u8> {
    let end = v1::PeerChannelEnd { outcome: outcome.into(), written: 0 };
    frame::encode(PeerKind::ChannelEnd.into(), 0, call, &end)
}

// === impl AttachedHere ===

impl AttachedHere {
    /// The peer does not hear of it on this connection.
    fn unheard(&self, line: &ChannelLine) {
        if self.resumed {
            return self.source.lost();
        }
        // Whoever owns it ends it by its thread, which has nobody to send to.
        self.source.ended();
        self.source.pump(line);
    }
}

// === impl AttachedThere ===

impl Drop for AttachedThere {
    fn drop(&mut self) {
        let Some(link) = self.line.link.upgrade() else { return };
        let unused = {
            let mut inner = link.channels.0.lock();
            let unused = matches!(inner.sinks.get(&self.line.call), Some(Sink::Coming(_)));
            if unused {
                inner.sinks.remove(&self.line.call);
            }
            unused
        };
        if unused {
            link.submit(end_frame(self.line.call, v1::PeerChannelOutcome::Left));
        }
    }
}

// === impl Peers ===

impl Peers {
    /// Attaches to a channel of a peer. `done` is told the outcome exactly once.
    pub fn attach_channel(
        &self,
        peer: &PeerName,
        message: v1::PeerChannelAttach,
        deadline: Instant,
        done: impl FnOnce(Result<AttachedThere, Failure>) + Send + 'static,
    ) -> CallHandle {
        let done: AttachDone = Box::new(done);
        self.shared.call(peer, None, deadline, Kind::Channel { message, done: Some(done) })
    }

    /// Goes on with an attachment to a channel of a peer, in that life of it, as soon as it is connected again. `done` is told the
    /// outcome exactly once.
    pub fn resume_channel(
        &self,
        peer: &PeerKey,
        message: v1::PeerChannelAttach,
        deadline: Instant,
        done: impl FnOnce(Result<AttachedThere, Failure>) + Send + 'static,
    ) {
        let kind = Kind::Channel { message, done: Some(Box::new(done)) };
        // It is not withdrawn: whoever does not listen leaves.
        let _ = self.shared.call(&peer.name, Some(peer.incarnation), deadline, kind);
    }

    /// Returns whether the directory lists a peer of this name, other than this one.
    pub fn lists(&self, name: &PeerName) -> bool {
        *name != self.shared.me.peer && self.shared.known.peer(name).is_some()
    }
}

/// The owner has attached us.
pub(super) fn attached(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    body: &[u8],
) -> Result<(), Ended> {
    let message: v1::PeerChannelAttached = decode(header, body)?;
    link.channels.expect(header.call);
    let (call, mut effects) = link.peer.state.lock().over(header.call, false);
    let line = ChannelLine { shared: Arc::downgrade(shared), link: Arc::downgrade(link), call: header.call };
    match call.map(|call| call.kind) {
        Some(Kind::Channel { done: Some(done), .. }) => {
            effects.finish.push(Box::new(move || done(Ok(AttachedThere { message, line }))));
        }
        // The caller has gone meanwhile.
        _ => line.leave(),
    }
    shared.perform(effects);
    Ok(())
}

/// Attaches the peer to a channel of ours.
pub(super) fn attach(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    header: Header,
    asked: &v1::PeerChannelAttach,
) -> Result<(), Ended> {
    let call = header.call;
    if link.version < PEER_CHANNELS_SINCE {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    if !link.channels.ask() {
        let message = format!(
            "{} reads {PEER_CHANNELS_MAX} channels of this peer already; end some first, or send several in one",
            link.peer.name
        );
        let full = Failure::new(Reason::LimitExceeded, message).with("most", PEER_CHANNELS_MAX);
        link.submit(failed(PeerKind::ChannelAttach, call, &full));
        return Ok(());
    }
    let gone = enter_inquiry(link, header, PeerKind::ChannelAttach)?;
    let (answering, on_thread) = (Arc::downgrade(link), Arc::downgrade(shared));
    let reply = move |outcome: Result<AttachedHere, Failure>| {
        let link = answering.upgrade();
        if let Some(link) = &link {
            link.channels.answered();
        }
        let wanted = link.filter(|link| take_inquiry(link, call));
        match (outcome, wanted) {
            (Ok(here), Some(link)) => serve(&on_thread, &link, call, here),
            (Ok(here), None) => {
                here.unheard(&ChannelLine { shared: Weak::clone(&on_thread), link: Weak::new(), call });
            }
            (Err(failure), Some(link)) => link.submit(failed(PeerKind::ChannelAttach, call, &failure)),
            (Err(_), None) => {}
        }
    };
    shared.serve.channel(&link.key(), asked, gone, Box::new(reply));
    Ok(())
}

/// The attachment begins: its thread sends from the first credit on. Or it goes on, and has a thread.
fn serve(shared: &Weak<Shared>, link: &Arc<Link>, call: u64, here: AttachedHere) {
    let line = ChannelLine { shared: Weak::clone(shared), link: Arc::downgrade(link), call };
    if !link.channels.serve(call, &here.source) {
        return here.unheard(&line);
    }
    let AttachedHere { message, source, resumed } = here;
    link.submit(frame::encode(PeerKind::ChannelAttach.into(), REPLY, call, &message));
    if resumed {
        return source.resumed(line);
    }
    let (pumped, on_thread) = (Arc::clone(&source), line.clone());
    if !line.spawn("tl-channel-out", move || pumped.pump(&on_thread)) {
        source.ended();
        source.pump(&line);
        link.submit(end_frame(call, v1::PeerChannelOutcome::Lost));
    }
}

/// A frame of an attachment that there is, or was.
pub(super) fn frame(link: &Arc<Link>, kind: PeerKind, header: Header, body: Body<'_>) -> Result<(), Ended> {
    let wrong = |_: Misuse| Ended::from(FrameError::Malformed(header.kind));
    if link.version < PEER_CHANNELS_SINCE || header.call == 0 || header.flags != 0 {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    let call = header.call;
    match kind {
        PeerKind::ChannelMessage => {
            let body: Bytes = body.into();
            let message: v1::PeerChannelMessage = decode(header, body)?;
            if message.data.len() > CHANNEL_PIECE_MAX {
                return Err(FrameError::Malformed(header.kind).into());
            }
            let sink = match link.channels.0.lock().sinks.get(&call) {
                Some(Sink::There(sink)) => Arc::clone(sink),
                // Before the first credit nothing may come.
                Some(Sink::Coming(_)) => return Err(wrong(Misuse)),
                None => return Ok(()),
            };
            sink.message(&message).map_err(wrong)
        }
        PeerKind::ChannelCredit => {
            let credit: v1::PeerChannelCredit = decode(header, &body[..])?;
            let source = link.channels.0.lock().sources.get(&call).cloned();
            source.map_or(Ok(()), |source| source.credit(&credit).map_err(wrong))
        }
        _ => {
            let end: v1::PeerChannelEnd = decode(header, &body[..])?;
            let outcome = v1::PeerChannelOutcome::try_from(end.outcome).map_err(|_| wrong(Misuse))?;
            ended(link, call, outcome, end);
            Ok(())
        }
    }
}

fn ended(link: &Link, call: u64, outcome: v1::PeerChannelOutcome, end: v1::PeerChannelEnd) {
    if outcome == v1::PeerChannelOutcome::Left {
        // Its thread takes it out: until then its number is taken, and it counts.
        let source = link.channels.0.lock().sources.get(&call).cloned();
        if let Some(source) = source {
            source.ended();
        }
        return;
    }
    let sink = {
        let mut inner = link.channels.0.lock();
        match inner.sinks.get_mut(&call) {
            Some(Sink::Coming(early)) => {
                early.get_or_insert(end);
                None
            }
            Some(Sink::There(_)) => inner.sinks.remove(&call),
            None => None,
        }
    };
    if let Some(Sink::There(sink)) = sink {
        sink.ended(end);
    }
}

/// Why a peer of an earlier release cannot be asked.
pub(super) fn unsupported(peer: &PeerName) -> Failure {
    let message = format!(
        "{peer} speaks a version of the peer protocol before {PEER_CHANNELS_SINCE}, which has no channels: update its sidecar"
    );
    Failure::new(Reason::Unsupported, message).with("peer", peer)
}
