//! The writer of a channel.

mod claim;
mod extents;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tensorlane_memory::ring::{Layout, Placed, Policy, Published, RingShape, RingWriter};
use tensorlane_memory::{OutOfBounds, WriteView};
use tensorlane_proto::channel::{Parts, check_expected, check_layout};
use tensorlane_proto::frame::{CHANNEL_GROWTH_SINCE, CHANNEL_OPTIONS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Failure, Incarnation, Reason};

use self::extents::{Extents, MessageRoom};
use super::table::Attached;
use super::{Timeout, check_version, parts_refused, place, policy_message};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::origin::Origin;
use crate::segments::Segment;

/// Shape of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    name: String,
    slots: u32,
    slot_bytes: u64,
    growth: u64,
    readers_max: u32,
    expect_readers: u32,
    policy: Policy,
    readers: Option<Vec<String>>,
    evictable: bool,
    evict_after: Option<Duration>,
    fixed: bool,
}

/// Part of a message: a tensor with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    descriptor: &'a Descriptor,
    bytes: &'a [u8],
}

/// A message that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Sequence number: 0 for the first message of a channel.
    pub sequence: u64,
    /// Readers that it is for. 0: nobody was attached, and nobody will see it but by `From::Oldest`.
    pub readers: u32,
    /// Set if every slot was held by readers of a channel that drops: none of them gets the message, and all are told so.
    pub dropped: bool,
}

/// The only writer of a channel. Dropped without [`ChannelWriter::finish`] it leaves its readers an end that says so.
pub struct ChannelWriter {
    client: Client,
    connection: Arc<Connection>,
    origin: Origin,
    id: u64,
    key: u64,
    spec: ChannelSpec,
    ring: RingWriter,
    extents: Extents,
    attached: Arc<Attached>,
    /// Parts of the last message that had any, which most messages have again.
    parts: Option<Parts>,
    /// Readers that are waited for before the first message.
    awaited: u32,
    /// Parts of the first message, of which plain bytes have none, once there is one; where the layout is fixed.
    first: Option<Parts>,
    _segment: Arc<Segment>,
}

/// Tells how many readers a channel has, and evicts them, from any thread, also while a write waits for one.
#[derive(Clone, Debug)]
pub struct AttachedReaders {
    attached: Arc<Attached>,
    /// Weak: whoever keeps this keeps no session.
    connection: Weak<Connection>,
    origin: Origin,
    name: String,
    evictable: bool,
}

impl AttachedReaders {
    /// Readers that are attached.
    pub fn count(&self) -> usize {
        self.attached.ring.len()
    }

    /// Evicts a reader, as [`ChannelWriter::evict`] does.
    ///
    /// # Errors
    /// As [`ChannelWriter::evict`].
    pub fn evict(&self, reader: u64) -> Result<()> {
        if self.origin.is_child() {
            return Err(Error::Forked);
        }
        let name = &self.name;
        if !self.evictable {
            return Err(Error::invalid(format!(
                "readers of the channel {name:?} cannot be evicted; make it evictable, or with evict_after"
            )));
        }
        let connection = self.connection.upgrade().filter(|_| self.attached.ring.evict(reader));
        let Some(connection) = connection else {
            let message = format!("the channel {name:?} has no reader {reader} that is not evicted");
            return Err(Failure::new(Reason::NotFound, message).with("reader", reader).into());
        };
        evict(&connection, reader)
    }
}

/// A message that is written in place. Dropped without [`Loan::publish`] it leaves nothing.
pub struct Loan<'a> {
    room: MessageRoom<'a>,
    parts: &'a Parts,
    /// Place for the parts of the first message, if they are fixed.
    first: Option<&'a mut Option<Parts>>,
    origin: Origin,
}

// === impl ChannelSpec ===

impl ChannelSpec {
    /// A channel of that name at this peer, of 4 slots of 1 MiB.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            slots: 4,
            slot_bytes: 1 << 20,
            growth: 0,
            readers_max: 0,
            expect_readers: 0,
            policy: Policy::Block,
            readers: None,
            evictable: false,
            evict_after: None,
            fixed: false,
        }
    }

    /// Messages that the channel holds at a time: 2 to 65,536. So far the writer may be ahead of the slowest reader.
    #[must_use]
    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// Bytes of a slot: the largest message, unless there is [`Self::growth`]. The ring takes slots times this, in the arena of this pod,
    /// for as long as the channel lives.
    #[must_use]
    pub fn slot_bytes(self, slot_bytes: u64) -> Self {
        Self { slot_bytes, ..self }
    }

    /// Largest message in bytes, where it may be larger than a slot; none is by default. Such a message has memory of its own in the arena
    /// of this pod, from when it is written until its slot is used again. It costs a call to the sidecar, and one of each reader of this
    /// pod. Another peer that reads has slots of so many bytes.
    #[must_use]
    pub fn growth(self, growth: u64) -> Self {
        Self { growth, ..self }
    }

    /// Readers at most; 1,024 by default, which is the most.
    #[must_use]
    pub fn readers_max(self, readers_max: u32) -> Self {
        Self { readers_max, ..self }
    }

    /// Readers that the first write waits for, so that none of them misses a message. None by default, and at most as many as the channel
    /// may have.
    #[must_use]
    pub fn expect_readers(self, expect_readers: u32) -> Self {
        Self { expect_readers, ..self }
    }

    /// Policy for messages whose readers are slow; [`Policy::Block`] by default. With another one the writer waits for nobody. A
    /// reader that holds messages keeps their slots from the writer meanwhile, so two more slots than are held at a time are good. The
    /// ring takes one slot more.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Other peers that may read the channel, by patterns of their names: `rollout-*`. Every peer of the exchange by default, and none
    /// by an empty list. Readers of this pod always may. At most 64 patterns, of 253 bytes each.
    #[must_use]
    pub fn readers(self, patterns: &[&str]) -> Self {
        Self { readers: Some(patterns.iter().map(|pattern| (*pattern).to_owned()).collect()), ..self }
    }

    /// Lets readers be evicted ([`ChannelWriter::evict`]), of a channel whose policy is [`Policy::Block`]. A reader holds 7 messages at
    /// most then, and fewer than there are slots: what an evicted one holds stays as it is, and its slot is not written meanwhile.
    #[must_use]
    pub fn evictable(self) -> Self {
        Self { evictable: true, ..self }
    }

    /// Evicts a reader for which a write has waited so long. Implies [`Self::evictable`]. No reader by default.
    #[must_use]
    pub fn evict_after(self, after: Duration) -> Self {
        Self { evict_after: Some(after), evictable: true, ..self }
    }

    /// Fixes types and shapes to those of the first message: another one is LAYOUT_MISMATCH, and is not written.
    #[must_use]
    pub fn fixed(self) -> Self {
        Self { fixed: true, ..self }
    }

    fn message(&self) -> v1::ChannelSpec {
        let Self { name, slots, slot_bytes, growth, readers_max, policy, evictable: evicts, .. } =
            self.clone();
        v1::ChannelSpec {
            name,
            slots,
            slot_bytes,
            readers_max,
            policy: policy_message(policy).into(),
            evicts,
            growth,
        }
    }

    fn shape(&self) -> Result<RingShape> {
        if self.evictable && self.policy.drops() {
            return Err(Error::invalid(format!(
                "nobody is waited for in the channel {:?} with the policy {}, and so nobody evicted; make it with the policy block",
                self.name, self.policy
            )));
        }
        check_expected(self.expect_readers, self.readers_max)?;
        RingShape::with(self.policy, self.evictable, self.slots, self.slot_bytes)
            .and_then(|shape| shape.growing(self.growth))
            .map_err(|error| Error::invalid(format!("the channel {:?}: {error}", self.name)))
    }
}

// === impl Part ===

impl<'a> Part<'a> {
    /// A tensor whose bytes lie as the descriptor says.
    pub fn tensor(descriptor: &'a Descriptor, bytes: &'a [u8]) -> Self {
        Self { descriptor, bytes }
    }
}

// === impl Client ===

impl Client {
    /// Makes a channel that this client writes. The only call to the sidecar in the writer's life.
    ///
    /// # Errors
    /// NAME_TAKEN while another writer has the name, ARENA_FULL or NEVER_FITS for a ring without room, INVALID_ARGUMENT for a shape
    /// out of its bounds, UNSUPPORTED where the sidecar knows channels alone that block.
    pub fn channel_writer(&self, spec: &ChannelSpec) -> Result<ChannelWriter> {
        let shape = spec.shape()?;
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        check_version(&connection)?;
        if spec.readers.is_some() || spec.evictable {
            // An older sidecar would leave open what is to be closed.
            connection.require(
                CHANNEL_OPTIONS_SINCE,
                "channels that say who may read them, or evict readers, came with",
                ": update the sidecar",
            )?;
        }
        if spec.growth > 0 {
            connection.require(
                CHANNEL_GROWTH_SINCE,
                "channels that grow came with",
                ": update the sidecar",
            )?;
        }
        let key = connection.channels().number();
        let made = self.make_channel(spec, shape, key, &connection);
        if made.is_err() {
            connection.channels().close(key);
        }
        made
    }

    fn make_channel(
        &self,
        spec: &ChannelSpec,
        shape: RingShape,
        key: u64,
        connection: &Arc<Connection>,
    ) -> Result<ChannelWriter> {
        let wait = self.wait(None);
        let deadline_ms = wait.deadline_ms();
        let readers = spec.readers.clone().map(|patterns| v1::PeerPatterns { patterns });
        let request = v1::ChannelCreateRequest { spec: Some(spec.message()), key, deadline_ms, readers };
        let reply: v1::ChannelCreateResponse =
            connection.call(SessionKind::ChannelCreate, &request, &wait, Late::Created)?;
        let origin = connection.origin().again();
        let opened =
            check_policy(spec, &reply).and_then(|()| open_ring(connection, reply.ring.as_ref(), shape));
        let (mut ring, segment) = opened.inspect_err(|_| {
            let end = v1::ChannelDetachRequest { channel: reply.channel, ..Default::default() };
            connection.detach(end, &origin);
        })?;
        if let Some(after) = spec.evict_after {
            let connection = Arc::clone(connection);
            // Where the session is lost, so is the channel.
            ring.evict_after(after, move |reader| drop(evict(&connection, reader)));
        }
        let attached = Attached::new(ring.readers());
        let early = connection.channels().open(key, &attached, connection.segments());
        let writer = ChannelWriter {
            client: self.clone(),
            connection: Arc::clone(connection),
            origin,
            id: reply.channel,
            key,
            spec: spec.clone(),
            ring,
            extents: Extents::new(self, connection, reply.channel, spec.slot_bytes),
            attached,
            parts: None,
            awaited: spec.expect_readers,
            first: None,
            _segment: segment,
        };
        connection.answer_readers(&early)?;
        Ok(writer)
    }
}

/// Has the sidecar evict a reader.
fn evict(connection: &Connection, reader: u64) -> Result<()> {
    let evicts = v1::ChannelDetachRequest { reader, evicts: true, ..Default::default() };
    connection.say(SessionKind::ChannelDetach, &evicts)
}

/// An older sidecar makes a ring that blocks, whatever it was asked for.
fn check_policy(spec: &ChannelSpec, reply: &v1::ChannelCreateResponse) -> Result<()> {
    if reply.policy == i32::from(policy_message(spec.policy)) {
        return Ok(());
    }
    let message = format!(
        "the sidecar makes no channels of the policy {}: update it, or write {} with the policy block",
        spec.policy, spec.name
    );
    Err(Failure::new(Reason::Unsupported, message).with("policy", spec.policy).into())
}

fn open_ring(
    connection: &Connection,
    location: Option<&v1::Location>,
    shape: RingShape,
) -> Result<(RingWriter, Arc<Segment>)> {
    let (place, segment) = place(connection.segments(), location)?;
    let ring = RingWriter::open(place, shape)
        .map_err(|error| Error::protocol(format!("a ring that cannot be written: {error}")))?;
    Ok((ring, segment))
}

// === impl ChannelWriter ===

impl ChannelWriter {
    /// The shape that the channel was made with.
    pub fn spec(&self) -> &ChannelSpec {
        &self.spec
    }

    /// Name of the channel.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Incarnation of the sidecar that has the channel, and its number there. No other channel has both.
    pub fn channel(&self) -> (Incarnation, u64) {
        (self.connection.sidecar().incarnation, self.id)
    }

    /// Readers that are attached.
    pub fn readers(&self) -> usize {
        self.attached.ring.len()
    }

    /// Evicts a reader, by the number that BLOCKED_BY and [`Client::channels`] say: the writer waits for it no longer, and its next read
    /// is EVICTED. Messages that it holds stay as they are. Another peer's readers are evicted together. Does not wait for that.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where the channel is not [`ChannelSpec::evictable`], NOT_FOUND for a reader that it does not have, or that
    /// was evicted, and a lost session.
    pub fn evict(&mut self, reader: u64) -> Result<()> {
        self.attached().evict(reader)
    }

    /// Returns a handle that tells the number of readers, and evicts them, while the writer is in use.
    pub fn attached(&self) -> AttachedReaders {
        AttachedReaders {
            attached: Arc::clone(&self.attached),
            connection: Arc::downgrade(&self.connection),
            origin: self.origin,
            name: self.spec.name.clone(),
            evictable: self.spec.evictable,
        }
    }

    /// Writes a message of tensors: copies each part once, into the ring.
    ///
    /// # Errors
    /// BLOCKED_BY with the reader that holds the place, where the policy is `block` and it does not give it back in time; TOO_LARGE above the slot
    /// and the growth, or above the limits of parts and of their descriptors; ARENA_FULL, NEVER_FITS or LIMIT_EXCEEDED where a message that is
    /// larger than the slot has no room; LAYOUT_MISMATCH for bytes that are not as many as the descriptor says; what [`Error`] says of lost
    /// sessions. Nothing of the message is seen then.
    pub fn write(&mut self, parts: &[Part<'_>], timeout: Timeout) -> Result<Written> {
        self.write_placed(parts, timeout, |_| {})
    }

    /// Writes as [`Self::write`], and calls `placed` when nothing can refuse the message any more, and no reader sees it yet. With that a
    /// program keeps something of its own beside each message of the ring. A message that is dropped has no place.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_placed(
        &mut self,
        parts: &[Part<'_>],
        timeout: Timeout,
        placed: impl FnOnce(Placed),
    ) -> Result<Written> {
        for (index, part) in parts.iter().enumerate() {
            let (expected, given) = (part.descriptor.layout.bytes(), part.bytes.len() as u64);
            if expected != given {
                let message = format!(
                    "part {index} has {given} bytes, and its descriptor says {expected}; nothing was written"
                );
                return Err(Failure::new(Reason::LayoutMismatch, message).into());
            }
        }
        let mut loan = self.loan_of(parts.iter().map(|part| part.descriptor), timeout)?;
        for (index, part) in parts.iter().enumerate() {
            loan.part(index)?.copy_from(0, part.bytes).map_err(out_of_slot)?;
        }
        if let Some(place) = loan.room.placed() {
            placed(place);
        }
        loan.publish()
    }

    /// Writes a message of plain bytes: copies them once, into the ring.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_bytes(&mut self, bytes: &[u8], timeout: Timeout) -> Result<Written> {
        self.write_bytes_placed(bytes, timeout, |_| {})
    }

    /// Writes as [`Self::write_bytes`], and calls `placed` as [`Self::write_placed`] does.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_bytes_placed(
        &mut self,
        bytes: &[u8],
        timeout: Timeout,
        placed: impl FnOnce(Placed),
    ) -> Result<Written> {
        check_size(&self.spec, bytes.len() as u64)?;
        check_first(&self.first, &Parts::default())?;
        let claimant = self.claimant(timeout)?;
        let slot = claimant.claim(&mut self.ring, Layout::Plain)?;
        let mut room = self.extents.room(slot, bytes.len() as u64, &claimant)?;
        room.bytes(0, bytes.len() as u64)?.copy_from(0, bytes).map_err(out_of_slot)?;
        if let Some(place) = room.placed() {
            placed(place);
        }
        let published = room.publish();
        if self.spec.fixed {
            self.first.get_or_insert_default();
        }
        Ok(written(published))
    }

    /// A slot for tensors with these descriptors, to be written in place: no copy at all.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn loan(&mut self, descriptors: &[Descriptor], timeout: Timeout) -> Result<Loan<'_>> {
        self.loan_of(descriptors.iter(), timeout)
    }

    fn loan_of<'d>(
        &mut self,
        descriptors: impl ExactSizeIterator<Item = &'d Descriptor> + Clone,
        timeout: Timeout,
    ) -> Result<Loan<'_>> {
        let claimant = self.claimant(timeout)?;
        if let Some(parts) = self.parts.take_if(|parts| parts.are(descriptors.clone())) {
            let parts = self.parts.insert(parts);
            check_first(&self.first, parts)?;
            let slot = claimant.claim(&mut self.ring, Layout::Same)?;
            let room = self.extents.room(slot, parts.bytes(), &claimant)?;
            let first = self.spec.fixed.then_some(&mut self.first);
            return Ok(Loan { room, parts, first, origin: claimant.origin });
        }
        let parts = Parts::of(descriptors.cloned())?;
        check_first(&self.first, &parts)?;
        check_size(&self.spec, parts.bytes())?;
        let layout = parts.encode();
        let slot = claimant.claim(&mut self.ring, Layout::New(&layout))?;
        // Before what may fail: the ring has their layout from now on.
        let parts = self.parts.insert(parts);
        let room = self.extents.room(slot, parts.bytes(), &claimant)?;
        let first = self.spec.fixed.then_some(&mut self.first);
        Ok(Loan { room, parts, first, origin: claimant.origin })
    }

    /// Says that no message comes any more: readers drain what is there, then get [`End::Finished`](super::End).
    pub fn finish(self) {
        if !self.origin.is_child() {
            self.ring.finish();
        }
    }
}

fn check_size(spec: &ChannelSpec, bytes: u64) -> Result<()> {
    if bytes <= spec.slot_bytes.max(spec.growth) {
        return Ok(());
    }
    if spec.growth > 0 {
        let message = format!(
            "a message of {bytes} bytes is larger than the {} that the channel takes; make it with more growth, or put the tensors and \
             send their references",
            spec.growth
        );
        return Err(Failure::new(Reason::TooLarge, message)
            .with("bytes", bytes)
            .with("growth", spec.growth)
            .into());
    }
    let message = format!(
        "a message of {bytes} bytes does not fit a slot of {}; make the channel with larger slots or with growth, or put the \
         tensors and send their references",
        spec.slot_bytes
    );
    let failure = Failure::new(Reason::TooLarge, message);
    Err(failure.with("bytes", bytes).with("slot_bytes", spec.slot_bytes).into())
}

/// Checks a layout against that of the first message, where that is fixed and there is one.
fn check_first(first: &Option<Parts>, parts: &Parts) -> Result<()> {
    match first {
        Some(first) => Ok(check_layout(first, parts)?),
        None => Ok(()),
    }
}

impl Drop for ChannelWriter {
    fn drop(&mut self) {
        if self.origin.is_child() {
            // The locks are its parent's, as they happened to be.
            return;
        }
        self.connection.channels().close(self.key);
        let end = v1::ChannelDetachRequest { channel: self.id, ..Default::default() };
        self.connection.detach(end, &self.origin);
    }
}

impl fmt::Debug for ChannelWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelWriter").field("spec", &self.spec).field("readers", &self.readers()).finish()
    }
}

// === impl Loan ===

impl Loan<'_> {
    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.parts.as_slice().len()
    }

    /// Bytes of a part, to be written in place.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part that the loan does not have.
    pub fn part(&mut self, index: usize) -> Result<WriteView> {
        let part = self.parts.get(index).map_err(parts_refused)?;
        self.room.bytes(part.offset, part.descriptor.layout.bytes())
    }

    /// Publishes the message, for every reader.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child, whose parent's the slot is.
    pub fn publish(self) -> Result<Written> {
        if self.origin.is_child() {
            return Err(Error::Forked);
        }
        if let Some(first) = self.first {
            first.get_or_insert_with(|| self.parts.clone());
        }
        Ok(written(self.room.publish()))
    }
}

impl fmt::Debug for Loan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("sequence", &self.room.sequence()).field("parts", &self.parts()).finish()
    }
}

fn written(published: Published) -> Written {
    let Published { sequence, readers, dropped } = published;
    Written { sequence, readers, dropped }
}

/// Sizes were checked before, so that this is a mistake of ours.
fn out_of_slot(error: OutOfBounds) -> Error {
    Error::invalid(format!("the slot of the channel: {error}"))
}
