//! A reader of a channel.

mod follow;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_memory::View;
use tensorlane_memory::ring::{self, Deadline, Policy, ReadError, RingCloser, RingReader, RingShape};
use tensorlane_proto::channel::Parts;
use tensorlane_proto::frame::{CHANNEL_OPTIONS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Descriptor, Failure, Incarnation, Layout, Reason, Require, Shape};

use super::{Timeout, check_version, expired, gone, parts_refused, place, policy_of, stopped};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::origin::Origin;
use crate::segments::Segment;
use crate::tensor::{self, Lease, Tensor};
use crate::wait::{Cancel, Wait};
use crate::wire;

/// Options of a reader when it attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    oldest: bool,
    hold: u32,
    wait: Duration,
    follow: bool,
    require: Require,
}

/// Result of an attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Sequence of the first message that the reader gets; none from there on is missed, or it is told so ([`Read::Gap`]).
    pub first: u64,
    /// Messages before it that were written and cannot be had any more. 0 for a reader that began with the next one.
    pub missed: u64,
    /// The way of the messages: `local`, a map of the writer's ring in the same pod; `tcp`, from another peer into a ring of this pod.
    pub route: String,
    /// The peer that has the channel; empty for this one.
    pub peer: String,
    /// Client that writes.
    pub writer: String,
    /// Messages that the channel holds at a time.
    pub slots: u32,
    /// Bytes of a slot: the largest message, unless there is growth.
    pub slot_bytes: u64,
    /// Largest message in bytes, where it may be larger than a slot; 0 where none is. Another peer's channel has slots for it.
    pub growth: u64,
    /// Policy for messages when this reader is slow.
    pub policy: Policy,
}

/// Result of a read.
#[derive(Debug)]
pub enum Read {
    /// The next message.
    Message(Message),
    /// Messages that this reader did not get, in a channel that drops. The next read goes on behind them.
    Gap {
        /// Number of them.
        dropped: u64,
        /// Sequence after the last one: that of the next message, if one was there.
        next: u64,
    },
    /// Another channel has taken the name of one that has ended, and is read from now on, from its oldest message. Only for a reader that
    /// follows ([`ReadOptions::follow`]). Sequences begin anew; [`ChannelReader::attached`] has the rest.
    Epoch {
        /// End of the channel before.
        end: End,
        /// Messages of the new one that cannot be had any more.
        missed: u64,
    },
    /// End of the channel: all messages that were written have been read.
    End(End),
}

/// Why no message comes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The writer said so.
    Finished,
    /// The writer's process ended, or it let the channel go without finishing it.
    WriterLost,
    /// The peer that has the channel was lost, or the way to it. Messages that it sent meanwhile did not come.
    PeerLost,
}

/// A reader of a channel.
pub struct ChannelReader {
    name: Arc<str>,
    client: Client,
    options: ReadOptions,
    channel: Joined,
    /// Parts of the message before, by the layout that they were read from.
    parts: (Arc<[u8]>, Arc<Parts>),
    closing: Arc<Closing>,
    /// Lowest sequence that was not read, nor told as dropped.
    next: u64,
    /// End of the channel that was read, while a reader that follows has no other one.
    ended: Option<End>,
    /// Attaches in a row that brought nothing to read.
    idle: u32,
    /// Message that was taken and whose extent could not be mapped: the next read tries again.
    unopened: Option<OwnRing<ring::Message>>,
}

/// A channel that a reader is attached to.
struct Joined {
    attachment: Attachment,
    /// Number of the channel at the sidecar; none where that only has a replica of it.
    number: Option<u64>,
    /// Number that tells it from others of its name; 0 if its sidecar does not say one.
    epoch: u64,
    ring: OwnRing<RingReader>,
    session: Arc<Session>,
}

/// Closes a reader from another thread, or wakes it.
#[derive(Clone)]
pub struct ReaderCloser {
    closing: Arc<Closing>,
    origin: Origin,
}

/// Close of a reader, whichever channel it reads.
struct Closing {
    closed: Cancel,
    ring: Mutex<RingCloser>,
}

/// A message, where its writer wrote it. Its place is given back when this is dropped.
pub struct Message {
    ring: OwnRing<ring::Message>,
    parts: Arc<Parts>,
    session: Arc<Session>,
    /// Segment of its extent; none where it lies in the ring.
    segment: Option<Arc<Segment>>,
}

/// A part of a ring, which a forked child must leave alone: what it gave back would be its parent's.
struct OwnRing<T> {
    part: Option<T>,
    origin: Origin,
}

/// The reader's standing with the sidecar, which ends when reader and messages are gone.
#[derive(Debug)]
struct Session {
    connection: Arc<Connection>,
    origin: Origin,
    reader: u64,
    /// Segments of the ring and of the cursor.
    segments: [Arc<Segment>; 2],
}

// === impl ReadOptions ===

impl Default for ReadOptions {
    fn default() -> Self {
        let (oldest, hold, wait) = (false, 1, Duration::ZERO);
        Self { oldest, hold, wait, follow: false, require: Require::NONE }
    }
}

impl ReadOptions {
    /// From the next message on, one held at a time, of a channel that is there.
    pub fn new() -> Self {
        Self::default()
    }

    /// From the oldest message that is still whole.
    #[must_use]
    pub fn from_oldest(self) -> Self {
        Self { oldest: true, ..self }
    }

    /// Messages that may be held at a time; the channel's slots at most. In a channel that drops or evicts 7 at most, and fewer than
    /// there are slots. The writer cannot use their places meanwhile.
    #[must_use]
    pub fn hold(self, hold: u32) -> Self {
        Self { hold, ..self }
    }

    /// Time to wait for a channel that does not exist yet, on top of the client's deadline. Not at all by default.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Goes on after the end of the channel, whichever it was: a read waits, within its timeout, for a channel of the same name, and tells
    /// of it ([`Read::Epoch`]). Where only the way to the same channel was lost, it goes on behind what was read, and a gap says what is
    /// not there any more.
    #[must_use]
    pub fn follow(self) -> Self {
        Self { follow: true, ..self }
    }

    /// Insists on a way of the messages: else nobody is attached.
    #[must_use]
    pub fn require(self, require: Require) -> Self {
        Self { require, ..self }
    }
}

// === impl Client ===

impl Client {
    /// Attaches a reader to a channel of this peer, or of another one by `peer/name`. From then on no call is made, and no message is missed.
    ///
    /// # Errors
    /// PEER_UNREACHABLE for another peer without a way to it, ARENA_FULL where this pod has no room for a ring as large as the
    /// writer's; NOT_FOUND for a channel that is not there in time, WRITER_NOT_ANSWERING where its process is stopped, CHANNEL_ENDED,
    /// LIMIT_EXCEEDED where it has all the readers it may have, PERMISSION_DENIED where its writer does not let this peer read,
    /// REQUIREMENT_NOT_MET for another way than is insisted on.
    pub fn channel_reader(&self, name: &str, options: &ReadOptions) -> Result<ChannelReader> {
        let closed = Cancel::new();
        let channel = self.join(name, options, &closed)?;
        let closing = Closing { closed, ring: Mutex::new(channel.ring.closer()) };
        Ok(ChannelReader {
            name: Arc::from(name),
            client: self.clone(),
            options: options.clone(),
            next: channel.attachment.first,
            channel,
            parts: (Arc::from([]), Arc::default()),
            closing: Arc::new(closing),
            ended: None,
            idle: 0,
            unopened: None,
        })
    }

    /// Attaches to a channel, unless `closed` is raised before.
    fn join(&self, name: &str, options: &ReadOptions, closed: &Cancel) -> Result<Joined> {
        let wait = self.wait(Some(self.deadline().saturating_add(options.wait))).until_closed(closed);
        let connection = self.connection(&wait)?;
        check_version(&connection)?;
        if options.require != Require::NONE {
            connection.require(
                CHANNEL_OPTIONS_SINCE,
                "readers that insist on a way came with",
                ": update the sidecar",
            )?;
        }
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let from = if options.oldest { v1::ChannelFrom::Oldest } else { v1::ChannelFrom::Next };
        let request = v1::ChannelAttachRequest {
            name: name.to_owned(),
            peer: String::new(),
            from: from.into(),
            hold: options.hold,
            wait_ms: millis(options.wait),
            deadline_ms: millis(self.deadline()).max(1),
            takes_gaps: true,
            require: (options.require != Require::NONE).then(|| options.require.into()),
        };
        let reply: v1::ChannelAttachResponse =
            connection.call(SessionKind::ChannelAttach, &request, &wait, Late::Attached)?;
        Joined::of(&connection, &reply, options.hold.max(1)).inspect_err(|_| {
            let end = v1::ChannelDetachRequest { reader: reply.reader, ..Default::default() };
            connection.detach(end, connection.origin());
        })
    }
}

// === impl Joined ===

impl Joined {
    fn of(connection: &Arc<Connection>, reply: &v1::ChannelAttachResponse, hold: u32) -> Result<Self> {
        let spec = reply.spec.as_ref().ok_or_else(|| wire::missing("the shape of a channel"))?;
        let unusable =
            |error: &dyn fmt::Display| Error::protocol(format!("a channel that cannot be read: {error}"));
        let policy = policy_of(spec)
            .ok_or_else(|| unusable(&format!("{} is no policy that this release knows", spec.policy)))?;
        let shape = RingShape::with(policy, spec.evicts, spec.slots, spec.slot_bytes)
            .and_then(|shape| shape.growing(spec.growth))
            .map_err(|error| unusable(&error))?;
        let (ring, ring_segment) = place(connection.segments(), reply.ring.as_ref())?;
        let (cursor, cursor_segment) = place(connection.segments(), reply.cursor.as_ref())?;
        let reader =
            RingReader::open(ring, cursor, shape, reply.first, hold).map_err(|error| unusable(&error))?;
        let session = Session {
            connection: Arc::clone(connection),
            origin: connection.origin().again(),
            reader: reply.reader,
            segments: [ring_segment, cursor_segment],
        };
        Ok(Self {
            attachment: Attachment {
                first: reply.first,
                missed: reply.missed,
                route: if reply.route.is_empty() { "local".to_owned() } else { reply.route.clone() },
                peer: reply.peer.clone(),
                writer: reply.writer.clone(),
                slots: spec.slots,
                slot_bytes: spec.slot_bytes,
                growth: spec.growth,
                policy,
            },
            number: reply.peer.is_empty().then_some(reply.channel),
            epoch: reply.epoch,
            ring: OwnRing::new(reader, connection),
            session: Arc::new(session),
        })
    }
}

// === impl ChannelReader ===

impl ChannelReader {
    /// Name of the channel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Incarnation of the sidecar that has the channel, and its number there, as [`ChannelWriter::channel`](super::ChannelWriter::channel) says
    /// them; none for a channel of another peer. For a reader that follows, of the last attach.
    pub fn channel(&self) -> Option<(Incarnation, u64)> {
        let incarnation = self.channel.session.connection.sidecar().incarnation;
        self.channel.number.map(|number| (incarnation, number))
    }

    /// Result of the attach; for a reader that follows, of the last one. `first` and `missed` are those of the first attach to this
    /// channel, however often the way to it was lost. What is missed since is told by [`Read::Gap`].
    pub fn attached(&self) -> &Attachment {
        &self.channel.attachment
    }

    /// Lets `cancel` withdraw reads from now on, or nothing. One that sleeps hears of it within a quarter of a second, mostly at once where
    /// it is woken ([`ReaderCloser::wake`]).
    pub fn set_cancel(&mut self, cancel: Option<Cancel>) {
        self.client = self.client.with_cancel(cancel.unwrap_or_default());
    }

    /// The next message, in order. In a channel that drops: first how many were dropped before it, if any were.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED where none comes in time, HOLD_LIMIT while as many are held as may be, CHANNEL_ENDED after it was closed, EVICTED
    /// once the writer has evicted it, MESSAGE_DAMAGED for a ring that says what cannot be, and a lost session where the sidecar is gone,
    /// or has ended the session, and all was read. Where a message that is larger than a slot cannot be mapped, what kept it from that;
    /// the next read tries again. A reader that follows has the errors of an attach, too: the next read tries again.
    pub fn read(&mut self, timeout: Timeout) -> Result<Read> {
        if self.channel.session.origin.is_child() {
            return Err(Error::Forked);
        }
        let (deadline, wait) = self.client.patience(timeout);
        loop {
            if let Some(end) = self.ended {
                match self.go_on(end, deadline, &wait)? {
                    Some(read) => return Ok(read),
                    None => continue,
                }
            }
            match self.read_ring(deadline, &wait)? {
                // Was read before the way was lost, in a channel that blocks.
                Read::Message(message) if message.sequence() < self.next => {}
                Read::End(end) if self.options.follow => self.ended = Some(end),
                read => {
                    match &read {
                        Read::Message(message) => {
                            self.idle = 0;
                            self.next = message.sequence().saturating_add(1);
                        }
                        Read::Gap { next, .. } => self.next = *next,
                        Read::Epoch { .. } | Read::End(_) => {}
                    }
                    return Ok(read);
                }
            }
        }
    }

    fn read_ring(&mut self, deadline: Deadline, wait: &Wait) -> Result<Read> {
        if let Some(message) = self.unopened.take() {
            return self.message(message).map(Read::Message);
        }
        let connection = &self.channel.session.connection;
        let stop = || connection.is_lost() || wait.check().is_err();
        match self.channel.ring.read(deadline, &stop) {
            Ok(ring::Read::Message(message)) => {
                let message = OwnRing::new(message, connection);
                self.message(message).map(Read::Message)
            }
            Ok(ring::Read::Gap { dropped, next }) => Ok(Read::Gap { dropped, next }),
            Ok(ring::Read::Finished) => Ok(Read::End(End::Finished)),
            // A sidecar that ends ends every session: the writer's is not what this reader has to be told of.
            Ok(ring::Read::Lost | ring::Read::Cut) if connection.has_hung_up() => Err(gone()),
            Ok(ring::Read::Lost) => Ok(Read::End(End::WriterLost)),
            Ok(ring::Read::Cut) => Ok(Read::End(End::PeerLost)),
            Err(ReadError::Stopped) => Err(stopped(connection, wait)),
            // One try is not stopped.
            Err(ReadError::TimedOut) if connection.is_lost() => Err(gone()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Returns a handle that closes the reader from another thread.
    pub fn closer(&self) -> ReaderCloser {
        ReaderCloser { closing: Arc::clone(&self.closing), origin: self.channel.session.origin }
    }

    fn message(&mut self, mut message: OwnRing<ring::Message>) -> Result<Message> {
        let layout = message.layout();
        if !Arc::ptr_eq(layout, &self.parts.0) {
            let damaged = |what: String| self.damaged(message.sequence(), &what);
            let parts = Parts::decode(layout).map_err(damaged)?;
            self.parts = (Arc::clone(layout), Arc::new(parts));
        }
        let (parts, session) = (Arc::clone(&self.parts.1), Arc::clone(&self.channel.session));
        let bytes = message.bytes();
        if !parts.as_slice().is_empty() && parts.bytes() != bytes {
            let what = format!("its parts have {} bytes, and it has {bytes}", parts.bytes());
            return Err(self.damaged(message.sequence(), &what));
        }
        let closed = &self.closing.closed;
        let segment = match session.open(&self.client, closed, &mut message) {
            Ok(segment) => segment,
            Err(_) if closed.is_cancelled() => return Err(self.failed(&ReadError::Closed)),
            Err(error) if error.reason() == Some(Reason::NotFound) => {
                return Err(self.damaged(message.sequence(), &error.to_string()));
            }
            Err(error) => {
                self.unopened = Some(message);
                return Err(error);
            }
        };
        Ok(Message { ring: message, parts, session, segment })
    }

    fn failed(&self, error: &ReadError) -> Error {
        let name = &self.name;
        match error {
            ReadError::TimedOut => expired(format!("no message of the channel {name:?} came in time")),
            ReadError::Closed => {
                Failure::new(Reason::ChannelEnded, format!("this reader of the channel {name:?} was closed"))
                    .into()
            }
            ReadError::Ended => gone(),
            ReadError::Evicted => {
                let message = format!(
                    "the writer of the channel {name:?}, client {:?}, has evicted this reader, because it was held up; attach again, and \
                     read faster or hold less",
                    self.channel.attachment.writer
                );
                Failure::new(Reason::Evicted, message).with("writer", &self.channel.attachment.writer).into()
            }
            ReadError::HoldLimit { hold } => {
                let message = format!(
                    "{hold} messages of the channel {name:?} are held, and this reader may hold no more; drop one, or attach with a \
                     larger hold"
                );
                Failure::new(Reason::HoldLimit, message).with("hold", hold).into()
            }
            ReadError::Damaged { sequence, what } => self.damaged(*sequence, what),
            // Told by whoever stopped it.
            ReadError::Stopped => Error::Withdrawn,
        }
    }

    fn damaged(&self, sequence: u64, what: &str) -> Error {
        let message = format!(
            "message {sequence} of the channel {:?} is damaged: {what}; its writer, client {:?}, wrote what cannot be",
            self.name, self.channel.attachment.writer
        );
        Failure::new(Reason::MessageDamaged, message).with("sequence", sequence).into()
    }
}

impl fmt::Debug for ChannelReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelReader").field("name", &self.name).field("attached", self.attached()).finish()
    }
}

// === impl ReaderCloser ===

impl ReaderCloser {
    /// Closes the reader: a read of it that sleeps comes back with CHANNEL_ENDED. The writer waits for it until it and its messages
    /// are dropped.
    pub fn close(&self) {
        if !self.origin.is_child() {
            self.closing.closed.cancel();
            self.closing.ring.lock().close();
        }
    }

    /// Wakes a read that sleeps, which looks whether it was withdrawn.
    pub fn wake(&self) {
        if !self.origin.is_child() {
            self.closing.ring.lock().wake();
        }
    }
}

impl fmt::Debug for ReaderCloser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderCloser").finish_non_exhaustive()
    }
}

// === impl Message ===

impl Message {
    /// Sequence number: 0 for the first message of the channel.
    pub fn sequence(&self) -> u64 {
        self.ring.sequence()
    }

    /// All of its bytes; between parts there are gaps up to the next multiple of 64.
    pub fn bytes(&self) -> &View {
        self.ring.view()
    }

    /// Number of tensors. 0 for a message of plain bytes.
    pub fn parts(&self) -> usize {
        self.parts.as_slice().len()
    }

    /// Descriptor of a part; none for a part that the message does not have.
    pub fn descriptor(&self, index: usize) -> Option<&Descriptor> {
        self.parts.as_slice().get(index).map(|part| &part.descriptor)
    }

    /// The bytes of a part. They stay as they are for as long as this message is held, not longer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part that the message does not have.
    pub fn part(&self, index: usize) -> Result<View> {
        let part = self.parts.get(index).map_err(parts_refused)?;
        let piece = self.ring.view().piece(part.offset, part.descriptor.layout.bytes());
        piece.map_err(|error| Error::invalid(error.to_string()))
    }

    /// The message as tensors, without a copy; plain bytes as one of `u8`. It is held until the last of them is dropped.
    ///
    /// # Errors
    /// A message of more bytes than a tensor has, which there is not.
    pub fn into_tensors(self) -> Result<Vec<Tensor>> {
        let plain = [(plain_bytes(self.bytes().len() as u64)?, self.bytes().clone())];
        let part = |index: usize| Ok((self.parts.as_slice()[index].descriptor.clone(), self.part(index)?));
        let parts = match self.parts() {
            0 => plain.to_vec(),
            parts => (0..parts).map(part).collect::<Result<Vec<_>>>()?,
        };
        let message = Arc::new(self);
        let session = &message.session;
        let segment = message.segment.as_ref().unwrap_or(&session.segments[0]);
        let tensor = |(descriptor, view): (Descriptor, View)| {
            let lease = Lease::of_message(&session.connection, Arc::clone(&message));
            let place = (!view.is_empty()).then(|| (Arc::clone(segment), view));
            Tensor::new(
                lease,
                tensor::Parts { place, on_gpu: None, descriptor, moved: None, copied: false, crc32c: None },
            )
        };
        Ok(parts.into_iter().map(tensor).collect())
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sequence, bytes) = (self.sequence(), self.bytes().len());
        f.debug_struct("Message").field("sequence", &sequence).field("bytes", &bytes).finish_non_exhaustive()
    }
}

/// Plain bytes as a tensor.
fn plain_bytes(bytes: u64) -> Result<Descriptor> {
    let shape = Shape::new(&[bytes]).map_err(|error| Error::invalid(error.to_string()))?;
    let layout = Layout::contiguous(DType::U8, shape).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(Descriptor::host(layout))
}

// === impl OwnRing ===

impl<T> OwnRing<T> {
    fn new(part: T, connection: &Connection) -> Self {
        Self { part: Some(part), origin: connection.origin().again() }
    }
}

impl<T> Deref for OwnRing<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.part.as_ref().expect("taken by drop alone")
    }
}

impl<T> DerefMut for OwnRing<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.part.as_mut().expect("taken by drop alone")
    }
}

impl<T> Drop for OwnRing<T> {
    fn drop(&mut self) {
        if self.origin.is_child() {
            std::mem::forget(self.part.take());
        }
    }
}

// === impl Session ===

impl Session {
    /// Maps the extent of a message that is larger than a slot, unless `closed` is raised before; its segment.
    fn open(
        &self,
        client: &Client,
        closed: &Cancel,
        message: &mut ring::Message,
    ) -> Result<Option<Arc<Segment>>> {
        let Some(ring::Extent { number: extent, bytes }) = message.extent() else { return Ok(None) };
        let wait = client.wait(None).until_closed(closed);
        let request = v1::ChannelExtentRequest { reader: self.reader, extent, bytes, ..Default::default() };
        let reply: v1::ChannelExtentResponse =
            self.connection.call(SessionKind::ChannelExtent, &request, &wait, Late::Nothing)?;
        let (place, segment) = place(self.connection.segments(), reply.location.as_ref())?;
        let found = message.found_at(place);
        found.map_err(|error| Error::protocol(format!("an extent that cannot be read: {error}")))?;
        Ok(Some(segment))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let end = v1::ChannelDetachRequest { reader: self.reader, ..Default::default() };
        self.connection.detach(end, &self.origin);
    }
}
