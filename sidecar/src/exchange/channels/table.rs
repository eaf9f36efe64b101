//! The table of channels: who writes, who reads, and what an end of either means. Pure; `B` is a piece of memory, `W` somebody
//! who waits for a channel that does not exist yet.
//!
//! ```text
//!   create ──> open ──add_reader──> asked ──ready──> attached ──end_reader──> gone ──forget──> (cursor freed)
//!               │                                        └──evict──> evicted ──┘
//!               └──end_channel──> draining: its readers take what is left, and end; then the ring is freed
//! ```
//! A cursor of a reader that is gone is kept until the writer says that it looks at it no more: its memory may become
//! anything after that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorlane_memory::ring::{Policy, RingShape, ShapeError};
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::channel::READERS_MAX;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

/// Channels of one peer at most, those included that readers still drain. Each costs some 500 bytes beside its ring.
pub(super) const CHANNELS_MAX: usize = 4_096;
/// Channels of one session at most: those that it writes, and those without a writer that it drains.
const SESSION_CHANNELS_MAX: usize = 1_024;
/// Readers of all channels at most, those included that have ended and that their writer has not let go of. Each costs some 400 bytes
/// beside its cursor.
const ALL_READERS_MAX: usize = 16_384;
/// Readers of one session at most.
const SESSION_READERS_MAX: usize = 4_096;
/// Extents of all channels at most. Each costs some 300 bytes beside its block.
const ALL_EXTENTS_MAX: usize = 16_384;
/// Extents of the channels of one session at most: those that it writes, and those without a writer that it drains.
const SESSION_EXTENTS_MAX: usize = 4_096;

/// A session with the name that its client gave itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) session: SessionId,
    pub(super) client: Arc<str>,
}

/// Shape of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) name: TensorName,
    pub(super) slots: u32,
    pub(super) slot_bytes: u64,
    pub(super) readers_max: u32,
    pub(super) policy: Policy,
    /// Readers may be evicted, of a channel that blocks.
    pub(super) evicts: bool,
    /// Largest message in bytes, where that may be larger than a slot; 0 where none is.
    pub(super) growth: u64,
    /// Other peers that may read it.
    pub(super) allowed: AllowedPeers,
    /// Number that tells it from others that had its name.
    pub(super) epoch: u64,
}

/// A channel.
pub(super) struct Channel<B> {
    pub(super) spec: Spec,
    /// The writer, with the number that it gave the channel; none once it has ended.
    pub(super) writer: Option<(Party, u64)>,
    pub(super) ring: B,
    /// Memory of messages that are larger than a slot, by number, until the writer frees it or the channel is no more.
    pub(super) extents: BTreeMap<u64, B>,
    pub(super) readers: BTreeMap<u64, Reader<B>>,
    /// The peer that has it, where this is a replica.
    pub(super) peer: Option<PeerName>,
}

/// A reader of a channel.
pub(super) struct Reader<B> {
    pub(super) party: Party,
    pub(super) cursor: B,
    pub(super) standing: Standing,
    /// The writer has evicted it, whether or not it was attached then.
    pub(super) is_evicted: bool,
}

/// Progress of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The writer was asked to look at its cursor.
    Asked,
    /// The writer does.
    Attached,
    /// The writer has evicted it, and looks at what it holds.
    Evicted,
    /// Reader that has ended, of which the writer was told.
    Gone,
}

/// Work that follows a change, for whoever made it. In order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect<B> {
    /// No message will come: the ring says so, if its writer has not.
    EndRing(B),
    /// The reader of a channel of that policy is no more: its cursor says so, and whoever waits for it is woken.
    EndCursor(B, Policy),
    /// The writer is told that a reader has gone.
    TellGone { writer: SessionId, key: u64, reader: u64 },
    /// A reader that is asked for cannot be had.
    Refuse { reader: u64 },
    /// The session's process may still look at a ring, and at its extents.
    Pin { session: SessionId, blocks: Vec<B> },
}

/// A reader that was added: whom to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) reader: u64,
    pub(super) writer: SessionId,
    pub(super) key: u64,
}

/// All channels of a peer.
pub(super) struct Table<B, W> {
    channels: BTreeMap<u64, Channel<B>>,
    /// Channels that have a writer, by name.
    open: HashMap<TensorName, u64>,
    /// The channel of each reader.
    readers: HashMap<u64, u64>,
    /// Readers of each session that has some.
    sessions: HashMap<SessionId, usize>,
    waiting: HashMap<TensorName, Vec<W>>,
    last: u64,
}

// === impl Standing ===

impl Standing {
    /// Returns whether it is a reader for which the writer waits, or will.
    fn is_waited_for(self) -> bool {
        matches!(self, Self::Asked | Self::Attached)
    }

    /// Returns whether its session has the cursor, and may hold messages.
    pub(super) fn has_cursor(self) -> bool {
        matches!(self, Self::Attached | Self::Evicted)
    }
}

// === impl Spec ===

impl Spec {
    /// The shape of the ring, which was proven when the spec was read.
    pub(super) fn shape(&self) -> Result<RingShape, ShapeError> {
        RingShape::with(self.policy, self.evicts, self.slots, self.slot_bytes)?.growing(self.growth)
    }

    /// Largest message in bytes.
    pub(super) fn message_bytes(&self) -> u64 {
        self.growth.max(self.slot_bytes)
    }
}

// === impl Channel ===

impl<B> Channel<B> {
    fn new(spec: Spec, writer: (Party, u64), ring: B, peer: Option<PeerName>) -> Self {
        let (extents, readers) = (BTreeMap::new(), BTreeMap::new());
        Self { spec, writer: Some(writer), ring, extents, readers, peer }
    }

    /// Returns whether a session writes it.
    pub(super) fn is_written_by(&self, session: SessionId) -> bool {
        self.writer.as_ref().is_some_and(|(party, _)| party.session == session)
    }

    /// Returns whether it counts among the channels of a session: those that it writes, and those without a writer that it drains. So
    /// whoever ends its channels and goes on reading them fills no table.
    fn counts_for(&self, session: SessionId) -> bool {
        match &self.writer {
            Some((by, _)) => by.session == session,
            None => self.readers.values().any(|reader| reader.party.session == session),
        }
    }
}

// === impl Table ===

impl<B, W> Default for Table<B, W> {
    fn default() -> Self {
        let (channels, open, readers) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { channels, open, readers, sessions: HashMap::new(), waiting: HashMap::new(), last: 0 }
    }
}

impl<B: Clone, W> Table<B, W> {
    /// Checks whether a channel could be made.
    ///
    /// # Errors
    /// NAME_TAKEN with the client that writes it, LIMIT_EXCEEDED with the limit.
    pub(super) fn check_create(&self, session: SessionId, spec: &Spec) -> Result<(), Failure> {
        let name = &spec.name;
        if let Some(taken) = self.open.get(name).and_then(|id| self.channels.get(id)) {
            let writer = taken.writer.as_ref().map_or("", |(party, _)| &party.client);
            let message = format!(
                "the channel {name:?} is written by {writer:?} already; attach a reader, or choose another name"
            );
            return Err(Failure::new(Reason::NameTaken, message).with("name", name));
        }
        if self.channels.len() >= CHANNELS_MAX {
            return Err(limit(&format!("{CHANNELS_MAX} channels are here already"), CHANNELS_MAX));
        }
        let its = self.channels.values().filter(|channel| channel.counts_for(session));
        if its.count() >= SESSION_CHANNELS_MAX {
            let what = format!("this session writes or drains {SESSION_CHANNELS_MAX} channels already");
            return Err(limit(&what, SESSION_CHANNELS_MAX));
        }
        let lists = self.channels.values().map(|channel| &channel.spec.allowed);
        spec.allowed.check_room(lists, "the lists of readers of all channels")
    }

    /// Adds a channel; its number, and those who waited for it.
    ///
    /// # Errors
    /// As [`Self::check_create`].
    pub(super) fn create(
        &mut self,
        writer: Party,
        key: u64,
        spec: Spec,
        ring: B,
    ) -> Result<(u64, Vec<W>), Failure> {
        self.check_create(writer.session, &spec)?;
        let waited = self.waiting.remove(&spec.name).unwrap_or_default();
        self.last += 1;
        self.open.insert(spec.name.clone(), self.last);
        self.channels.insert(self.last, Channel::new(spec, (writer, key), ring, None));
        Ok((self.last, waited))
    }

    /// Adds a replica of a channel of another peer; its number. It has no name here.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit.
    pub(super) fn create_replica(
        &mut self,
        writer: Party,
        key: u64,
        spec: Spec,
        ring: B,
        peer: PeerName,
    ) -> Result<u64, Failure> {
        if self.channels.len() >= CHANNELS_MAX {
            return Err(limit(&format!("{CHANNELS_MAX} channels are here already"), CHANNELS_MAX));
        }
        self.last += 1;
        self.channels.insert(self.last, Channel::new(spec, (writer, key), ring, Some(peer)));
        Ok(self.last)
    }

    /// Checks whether a session may have an extent for a message of so many bytes, of a channel that it writes.
    ///
    /// # Errors
    /// NOT_FOUND for another channel, TOO_LARGE with the largest message, LIMIT_EXCEEDED with the limit.
    pub(super) fn check_extent(&self, session: SessionId, id: u64, bytes: u64) -> Result<(), Failure> {
        let channel = self.channels.get(&id).filter(|channel| channel.is_written_by(session));
        let channel = channel.ok_or_else(|| {
            let message = format!("this session writes no channel {id}; it has ended, or is another one's");
            Failure::new(Reason::NotFound, message).with("channel", id)
        })?;
        let most = channel.spec.message_bytes();
        if bytes > most {
            let message = format!(
                "a message of {bytes} bytes is larger than the {most} that the channel {:?} takes; make it with more growth, or put \
                 the tensors and send their references",
                channel.spec.name
            );
            return Err(Failure::new(Reason::TooLarge, message).with("bytes", bytes).with("growth", most));
        }
        let count = |channel: &Channel<B>| channel.extents.len();
        let own = self.channels.values().filter(|channel| channel.counts_for(session));
        let its: usize = own.map(count).sum();
        if its >= SESSION_EXTENTS_MAX {
            let what =
                format!("channels of this session have {its} messages that are larger than their slots");
            return Err(limit(&what, SESSION_EXTENTS_MAX));
        }
        let all: usize = self.channels.values().map(count).sum();
        if all >= ALL_EXTENTS_MAX {
            let what = format!("all channels have {all} messages that are larger than their slots");
            return Err(limit(&what, ALL_EXTENTS_MAX));
        }
        Ok(())
    }

    /// Keeps an extent with the channel that a session writes; its number.
    ///
    /// # Errors
    /// As [`Self::check_extent`].
    pub(super) fn add_extent(
        &mut self,
        session: SessionId,
        id: u64,
        bytes: u64,
        extent: B,
    ) -> Result<u64, Failure> {
        self.check_extent(session, id, bytes)?;
        self.last += 1;
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.extents.insert(self.last, extent);
        }
        Ok(self.last)
    }

    /// An extent of a channel.
    pub(super) fn extent(&self, id: u64, number: u64) -> Option<B> {
        self.channels.get(&id)?.extents.get(&number).cloned()
    }

    /// An extent of the channel that a session reads.
    pub(super) fn extent_for(&self, session: SessionId, reader: u64, number: u64) -> Option<B> {
        if !self.is_attached(session, reader) {
            return None;
        }
        self.extent(*self.readers.get(&reader)?, number)
    }

    /// A session frees an extent of a channel that it writes: what is left to drop.
    pub(super) fn free_extent(&mut self, session: SessionId, id: u64, number: u64) -> Option<B> {
        let channel = self.channels.get_mut(&id).filter(|channel| channel.is_written_by(session))?;
        channel.extents.remove(&number)
    }

    /// The channel that has this name and a writer.
    pub(super) fn find(&self, name: &TensorName) -> Option<u64> {
        self.open.get(name).copied()
    }

    /// The channel that has this name and a writer, if its ring is open: a finished one takes no readers any more, though its
    /// name may still be taken.
    pub(super) fn find_open(&self, name: &TensorName, is_open: impl FnOnce(&B) -> bool) -> Option<u64> {
        let id = self.find(name)?;
        self.channels.get(&id).is_some_and(|channel| is_open(&channel.ring)).then_some(id)
    }

    /// As [`Self::find_open`]; where there is none, `waiter` is told when there is.
    pub(super) fn find_or_wait(
        &mut self,
        name: &TensorName,
        is_open: impl FnOnce(&B) -> bool,
        waiter: W,
    ) -> Option<u64> {
        let found = self.find_open(name, is_open);
        if found.is_none() {
            self.waiting.entry(name.clone()).or_default().push(waiter);
        }
        found
    }

    /// Forgets those who wait for a name no more.
    pub(super) fn retain_waiting(&mut self, name: &TensorName, waits: impl Fn(&W) -> bool) {
        if let Some(waiting) = self.waiting.get_mut(name) {
            waiting.retain(waits);
            if waiting.is_empty() {
                self.waiting.remove(name);
            }
        }
    }

    /// A channel by its number.
    pub(super) fn channel(&self, id: u64) -> Option<&Channel<B>> {
        self.channels.get(&id)
    }

    /// Every channel, in the order of their numbers.
    pub(super) fn channels(&self) -> impl Iterator<Item = &Channel<B>> {
        self.channels.values()
    }

    /// Every channel with its number, in the order of the numbers. Readers have none.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u64, &Channel<B>)> {
        self.channels.iter().map(|(number, channel)| (*number, channel))
    }

    /// Adds a reader, of whom the writer does not know yet.
    ///
    /// # Errors
    /// CHANNEL_ENDED, LIMIT_EXCEEDED with the limit.
    pub(super) fn add_reader(&mut self, id: u64, party: Party, cursor: B) -> Result<Added, Failure> {
        if self.readers.len() >= ALL_READERS_MAX {
            return Err(limit(&format!("{ALL_READERS_MAX} readers are here already"), ALL_READERS_MAX));
        }
        let of_session = self.sessions.get(&party.session).copied().unwrap_or_default();
        if of_session >= SESSION_READERS_MAX {
            let what = format!("this session has {SESSION_READERS_MAX} readers already");
            return Err(limit(&what, SESSION_READERS_MAX));
        }
        let channel = self.channels.get_mut(&id).ok_or_else(ended)?;
        let (writer, key) = channel.writer.as_ref().ok_or_else(ended)?;
        let most = channel.spec.readers_max;
        let there = channel.readers.values().filter(|reader| reader.standing.is_waited_for()).count();
        if channel.readers.len() >= 2 * READERS_MAX as usize {
            // A writer that answers forgets those that are gone at once.
            let what =
                format!("the writer of {} has not let go of readers that have ended", channel.spec.name);
            return Err(limit(&what, 2 * READERS_MAX as usize));
        }
        if there >= most as usize {
            let what = format!("the channel {:?} has {there} readers already", channel.spec.name);
            return Err(limit(&what, most as usize));
        }
        self.last += 1;
        *self.sessions.entry(party.session).or_default() += 1;
        let added = Added { reader: self.last, writer: writer.session, key: *key };
        channel
            .readers
            .insert(added.reader, Reader { party, cursor, standing: Standing::Asked, is_evicted: false });
        self.readers.insert(added.reader, id);
        Ok(added)
    }

    /// The writer looks at the cursor of a reader from now on. Returns whether that reader was asked for.
    pub(super) fn ready(&mut self, writer: SessionId, reader: u64) -> bool {
        let Some(reader) = self.reader_of(writer, reader) else { return false };
        let asked = reader.standing == Standing::Asked;
        if asked {
            reader.standing = Standing::Attached;
        }
        asked
    }

    /// Returns whether a reader of a session has been told that it is attached, or will be.
    pub(super) fn is_attached(&self, session: SessionId, reader: u64) -> bool {
        let reader = self.reader(reader);
        reader.is_some_and(|reader| reader.party.session == session && reader.standing.has_cursor())
    }

    /// Returns whether a reader has not ended, whether or not its writer has said that it looks at it.
    pub(super) fn is_there(&self, reader: u64) -> bool {
        self.reader(reader).is_some_and(|reader| reader.standing != Standing::Gone)
    }

    fn reader(&self, number: u64) -> Option<&Reader<B>> {
        self.channels.get(self.readers.get(&number)?)?.readers.get(&number)
    }

    /// Returns whether a reader that is attached by now was evicted before.
    pub(super) fn is_evicted_early(&self, reader: u64) -> bool {
        let reader = self.reader(reader);
        reader.is_some_and(|reader| reader.is_evicted && reader.standing == Standing::Attached)
    }

    /// The writer evicts a reader: its cursor and the ring, once. None where there is nobody to evict; one that is about to be attached
    /// is kept in mind. One that has gone may have found out by the ring alone, before this was said.
    pub(super) fn evict(&mut self, writer: SessionId, number: u64) -> Option<(B, B)> {
        let channel = self.channels.get_mut(self.readers.get(&number)?)?;
        let is_writer = channel.is_written_by(writer);
        let reader = channel.readers.get_mut(&number)?;
        if !channel.spec.evicts || !is_writer {
            return None;
        }
        let is_first = !std::mem::replace(&mut reader.is_evicted, true);
        match reader.standing {
            Standing::Attached => reader.standing = Standing::Evicted,
            Standing::Gone if is_first => {}
            _ => return None,
        }
        Some((reader.cursor.clone(), channel.ring.clone()))
    }

    /// Returns whether a session writes the channel of a reader.
    pub(super) fn is_writer_of(&mut self, writer: SessionId, reader: u64) -> bool {
        self.reader_of(writer, reader).is_some()
    }

    /// The writer looks at the cursor of a reader no more.
    pub(super) fn forget(&mut self, writer: SessionId, reader: u64) {
        if self.reader_of(writer, reader).is_some_and(|reader| reader.standing == Standing::Gone) {
            self.remove_reader(reader);
        }
    }

    /// A writer ends its channel.
    pub(super) fn end_channel(&mut self, session: SessionId, id: u64) -> Vec<Effect<B>> {
        let Some(channel) = self.channels.get_mut(&id) else { return Vec::new() };
        if !channel.is_written_by(session) {
            return Vec::new();
        }
        channel.writer = None;
        if channel.peer.is_none() {
            self.open.remove(&channel.spec.name);
        }
        let mut effects = vec![Effect::EndRing(channel.ring.clone())];
        let over: Vec<(u64, Standing)> = channel
            .readers
            .iter()
            .filter(|(_, reader)| !reader.standing.has_cursor())
            .map(|(number, reader)| (*number, reader.standing))
            .collect();
        for (reader, standing) in over {
            if standing == Standing::Asked {
                effects.push(Effect::Refuse { reader });
            }
            self.remove_reader(reader);
        }
        self.drop_if_over(id);
        effects
    }

    /// A reader ends. `maps` is set where a process may still look at the ring.
    pub(super) fn end_reader(&mut self, session: SessionId, reader: u64, maps: bool) -> Vec<Effect<B>> {
        let Some(&id) = self.readers.get(&reader) else { return Vec::new() };
        let Some(channel) = self.channels.get_mut(&id) else { return Vec::new() };
        let Some(entry) = channel.readers.get_mut(&reader) else { return Vec::new() };
        if entry.party.session != session || entry.standing == Standing::Gone {
            return Vec::new();
        }
        entry.standing = Standing::Gone;
        let mut effects = vec![Effect::EndCursor(entry.cursor.clone(), channel.spec.policy)];
        if maps {
            let blocks = std::iter::once(&channel.ring).chain(channel.extents.values()).cloned().collect();
            effects.push(Effect::Pin { session, blocks });
        }
        match &channel.writer {
            Some((writer, key)) => {
                effects.push(Effect::TellGone { writer: writer.session, key: *key, reader });
            }
            None => self.remove_reader(reader),
        }
        effects
    }

    /// A session ended: no message comes to its channels any more.
    pub(super) fn end_channels_of(&mut self, session: SessionId) -> Vec<Effect<B>> {
        let its = self.channels.iter().filter(|(_, channel)| channel.is_written_by(session));
        let written: Vec<u64> = its.map(|(id, _)| *id).collect();
        written.into_iter().flat_map(|id| self.end_channel(session, id)).collect()
    }

    /// Returns whether a session has readers, those included of which the writer was told that they are gone.
    fn has_readers(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Readers of a session that have not ended, with their cursors.
    pub(super) fn readers_of(&self, session: SessionId) -> Vec<(u64, B)> {
        if !self.has_readers(session) {
            return Vec::new();
        }
        let all = self.channels.values().flat_map(|channel| &channel.readers);
        let its = all.filter(|(_, r)| r.party.session == session && r.standing != Standing::Gone);
        its.map(|(number, reader)| (*number, reader.cursor.clone())).collect()
    }

    /// The process of a session that has ended is gone: it reads nothing any more.
    pub(super) fn end_readers_of(&mut self, session: SessionId) -> Vec<Effect<B>> {
        let read = self.readers_of(session).into_iter();
        read.flat_map(|(reader, _)| self.end_reader(session, reader, true)).collect()
    }

    fn reader_of(&mut self, writer: SessionId, reader: u64) -> Option<&mut Reader<B>> {
        let channel = self.channels.get_mut(self.readers.get(&reader)?)?;
        if !channel.is_written_by(writer) {
            return None;
        }
        channel.readers.get_mut(&reader)
    }

    fn remove_reader(&mut self, reader: u64) {
        let Some(id) = self.readers.remove(&reader) else { return };
        let removed = self.channels.get_mut(&id).and_then(|channel| channel.readers.remove(&reader));
        if let Some(Reader { party, .. }) = removed
            && let Some(count) = self.sessions.get_mut(&party.session)
        {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&party.session);
            }
        }
        self.drop_if_over(id);
    }

    fn drop_if_over(&mut self, id: u64) {
        if self.channels.get(&id).is_some_and(|c| c.writer.is_none() && c.readers.is_empty()) {
            self.channels.remove(&id);
        }
    }
}

/// The channel that was asked for has no writer any more.
pub(super) fn ended() -> Failure {
    Failure::new(
        Reason::ChannelEnded,
        "the channel ended before the reader was attached; wait for a new one of its name",
    )
}

fn limit(what: &str, most: usize) -> Failure {
    let message = format!("{what}, at most {most}; end some first");
    Failure::new(Reason::LimitExceeded, message).with("most", most)
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::allowed::{LISTS_BYTES_MAX, PATTERN_BYTES_MAX, PATTERNS_MAX};

    use super::*;

    const WRITER: SessionId = SessionId(1);
    const READER: SessionId = SessionId(2);

    fn party(session: SessionId) -> Party {
        Party { session, client: Arc::from(format!("client-{}", session.0)) }
    }

    fn spec(name: &str, readers_max: u32) -> Spec {
        let (name, policy, allowed) = (TensorName::new(name).unwrap(), Policy::Block, AllowedPeers::All);
        Spec {
            name,
            slots: 4,
            slot_bytes: 64,
            readers_max,
            policy,
            evicts: true,
            growth: 0,
            allowed,
            epoch: 1,
        }
    }

    type Numbered = Table<&'static str, &'static str>;

    /// A table with the channel `c` of `WRITER`, whose key is 7.
    fn one() -> (Numbered, u64) {
        let mut table = Numbered::default();
        let (id, _) = table.create(party(WRITER), 7, spec("c", 2), "ring").unwrap();
        (table, id)
    }

    #[test]
    fn a_name_has_one_writer_and_is_free_again_after_its_end() {
        let (mut table, id) = one();
        let taken = table.create(party(READER), 1, spec("c", 2), "other").unwrap_err();
        assert_eq!(taken.reason, Reason::NameTaken);
        assert!(taken.message.contains("client-1"), "{taken}");
        assert_eq!(table.end_channel(WRITER, id), [Effect::EndRing("ring")]);
        assert_eq!(table.channels().count(), 0, "nobody drains it");
        assert!(table.create(party(READER), 1, spec("c", 2), "other").is_ok());
    }

    #[test]
    fn whoever_waits_for_a_channel_is_told_when_it_is_there() {
        let mut table = Numbered::default();
        let name = TensorName::new("c").unwrap();
        assert_eq!(table.find_or_wait(&name, |_| true, "first"), None);
        assert_eq!(table.find_or_wait(&name, |_| true, "second"), None);
        table.retain_waiting(&name, |waiter| *waiter != "first");
        let (id, waited) = table.create(party(WRITER), 7, spec("c", 2), "ring").unwrap();
        assert_eq!(waited, ["second"]);
        assert_eq!(table.find_or_wait(&name, |_| true, "third"), Some(id));
        assert_eq!(table.find_or_wait(&name, |_| false, "fourth"), None, "it is finished");
        table.end_channel(WRITER, id);
        let (_, waited) = table.create(party(WRITER), 8, spec("c", 2), "ring").unwrap();
        assert_eq!(waited, ["fourth"]);
    }

    #[test]
    fn a_cursor_is_kept_until_the_writer_looks_at_it_no_more() {
        let (mut table, id) = one();
        let added = table.add_reader(id, party(READER), "cursor").unwrap();
        assert_eq!((added.writer, added.key), (WRITER, 7));
        assert!(!table.ready(READER, added.reader), "only the writer may say so");
        assert!(table.is_there(added.reader));
        assert!(table.ready(WRITER, added.reader));
        let effects = table.end_reader(READER, added.reader, false);
        let told = Effect::TellGone { writer: WRITER, key: 7, reader: added.reader };
        assert_eq!(effects, [Effect::EndCursor("cursor", Policy::Block), told]);
        assert_eq!(table.end_reader(READER, added.reader, false), [], "a second end is none");
        assert!(!table.is_there(added.reader), "whoever tells the writer of it takes it back");
        assert_eq!(table.channel(id).unwrap().readers.len(), 1);
        table.forget(WRITER, added.reader);
        assert_eq!(table.channel(id).unwrap().readers.len(), 0);
    }

    #[test]
    fn a_reader_that_is_attached_cannot_be_forgotten() {
        let (mut table, id) = one();
        let added = table.add_reader(id, party(READER), "cursor").unwrap();
        table.ready(WRITER, added.reader);
        table.forget(WRITER, added.reader);
        assert_eq!(table.channel(id).unwrap().readers.len(), 1);
    }

    #[test]
    fn the_end_of_a_writer_leaves_the_ring_to_those_who_drain_it() {
        let (mut table, id) = one();
        let drains = table.add_reader(id, party(READER), "cursor").unwrap();
        table.ready(WRITER, drains.reader);
        let late = table.add_reader(id, party(READER), "late").unwrap();
        let effects = table.end_channels_of(WRITER);
        assert_eq!(effects, [Effect::EndRing("ring"), Effect::Refuse { reader: late.reader }]);
        assert_eq!(table.find(&TensorName::new("c").unwrap()), None);
        assert!(
            table.add_reader(id, party(READER), "later").is_err_and(|f| f.reason == Reason::ChannelEnded)
        );
        assert_eq!(
            table.end_reader(READER, drains.reader, false),
            [Effect::EndCursor("cursor", Policy::Block)]
        );
        assert_eq!(table.channels().count(), 0);
    }

    #[test]
    fn the_death_of_a_reader_keeps_the_ring_for_whoever_may_still_map_it() {
        let (mut table, id) = one();
        let added = table.add_reader(id, party(READER), "cursor").unwrap();
        table.ready(WRITER, added.reader);
        assert_eq!(table.end_channels_of(READER), [], "its process may still read");
        let effects = table.end_readers_of(READER);
        let told = Effect::TellGone { writer: WRITER, key: 7, reader: added.reader };
        let pin = Effect::Pin { session: READER, blocks: vec!["ring"] };
        assert_eq!(effects, [Effect::EndCursor("cursor", Policy::Block), pin, told]);
    }

    #[test]
    fn a_reader_that_is_evicted_keeps_its_cursor_until_it_ends() {
        let (mut table, id) = one();
        let [slow, _] = [(); 2].map(|()| table.add_reader(id, party(READER), "cursor").unwrap());
        assert_eq!(table.evict(WRITER, slow.reader), None, "it is not attached yet");
        table.ready(WRITER, slow.reader);
        assert_eq!(table.evict(READER, slow.reader), None, "only the writer may");
        assert_eq!(table.evict(WRITER, slow.reader), Some(("cursor", "ring")));
        assert_eq!(table.evict(WRITER, slow.reader), None, "once");
        assert!(table.add_reader(id, party(READER), "cursor").is_ok(), "its place is another one's");
        table.forget(WRITER, slow.reader);
        assert!(table.is_attached(READER, slow.reader) && table.readers_of(READER).len() == 3);
        assert_eq!(table.end_reader(READER, slow.reader, false).len(), 2);
        table.forget(WRITER, slow.reader);
        assert_eq!(table.channel(id).unwrap().readers.len(), 2);
    }

    #[test]
    fn a_reader_that_left_because_it_was_evicted_is_evicted_once() {
        let (mut table, id) = one();
        let reader = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        table.ready(WRITER, reader);
        // The ring says it before the writer's session does.
        table.end_reader(READER, reader, false);
        assert_eq!(table.evict(WRITER, reader), Some(("cursor", "ring")));
        assert_eq!(table.evict(WRITER, reader), None, "once");
        assert_eq!(table.channel(id).unwrap().readers[&reader].standing, Standing::Gone);
        let other = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        table.ready(WRITER, other);
        assert!(table.evict(WRITER, other).is_some());
        table.end_reader(READER, other, false);
        assert_eq!(table.evict(WRITER, other), None, "it was evicted before it left");
    }

    #[test]
    fn nobody_is_evicted_from_a_channel_that_was_not_made_for_it() {
        let mut table = Numbered::default();
        let plain = Spec { evicts: false, ..spec("plain", 2) };
        let (id, _) = table.create(party(WRITER), 7, plain, "ring").unwrap();
        let reader = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        table.ready(WRITER, reader);
        assert_eq!(table.evict(WRITER, reader), None);
    }

    #[test]
    fn a_reader_that_is_evicted_before_its_writer_is_ready_is_so_afterwards() {
        let mut table = Numbered::default();
        let evicting = Spec { evicts: true, ..spec("evicting", 2) };
        let (id, _) = table.create(party(WRITER), 7, evicting, "ring").unwrap();
        let reader = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        assert_eq!(table.evict(WRITER, reader), None);
        assert!(!table.is_evicted_early(reader), "nobody has told it that it is attached");
        assert!(table.ready(WRITER, reader) && table.is_evicted_early(reader));
        assert_eq!(table.evict(WRITER, reader), Some(("cursor", "ring")));
        assert!(!table.is_evicted_early(reader));
        let other = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        table.ready(WRITER, other);
        assert!(!table.is_evicted_early(other));
    }

    #[test]
    fn a_session_ends_only_its_own() {
        let (mut table, id) = one();
        let added = table.add_reader(id, party(READER), "cursor").unwrap();
        assert!(!table.is_attached(READER, added.reader), "its writer has not said so");
        table.ready(WRITER, added.reader);
        assert!(table.is_attached(READER, added.reader) && !table.is_attached(WRITER, added.reader));
        assert_eq!(table.end_channel(READER, id), []);
        assert_eq!(table.end_reader(WRITER, added.reader, false), []);
        assert_eq!(table.end_channels_of(SessionId(3)), []);
        assert_eq!(table.end_readers_of(SessionId(3)), []);
    }

    #[test]
    fn a_session_may_write_and_read_its_own_channel_and_end_whole() {
        let (mut table, id) = one();
        let added = table.add_reader(id, party(WRITER), "cursor").unwrap();
        table.ready(WRITER, added.reader);
        table.end_channels_of(WRITER);
        table.end_readers_of(WRITER);
        assert_eq!(table.channels().count(), 0);
        assert!(table.readers.is_empty() && table.open.is_empty() && table.sessions.is_empty());
    }

    #[test]
    fn readers_and_channels_have_limits_that_name_themselves() {
        let (mut table, id) = one();
        for _ in 0..2 {
            table.add_reader(id, party(READER), "cursor").unwrap();
        }
        let refused = table.add_reader(id, party(READER), "cursor").unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("2")));
        for n in 1..SESSION_CHANNELS_MAX {
            table.create(party(WRITER), 0, spec(&format!("c{n}"), 1), "ring").unwrap();
        }
        let refused = table.create(party(WRITER), 0, spec("more", 1), "ring").unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("1024")));
    }

    #[test]
    fn channels_that_a_session_ended_and_still_drains_count_among_its_own() {
        let mut table = Numbered::default();
        let mut drained = Vec::new();
        for n in 0..SESSION_CHANNELS_MAX {
            let (id, _) = table.create(party(WRITER), 0, spec(&format!("c{n}"), 1), "ring").unwrap();
            let reader = table.add_reader(id, party(WRITER), "cursor").unwrap().reader;
            assert!(table.ready(WRITER, reader));
            table.end_channel(WRITER, id);
            drained.push(reader);
        }
        let refused = table.create(party(WRITER), 0, spec("more", 1), "ring").unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("1024")));
        assert!(table.create(party(READER), 0, spec("others", 1), "ring").is_ok());
        table.end_reader(WRITER, drained[0], false);
        assert!(table.create(party(WRITER), 0, spec("more", 1), "ring").is_ok());
    }

    #[test]
    fn lists_of_readers_of_all_channels_have_a_bound_and_channels_without_one_are_not_kept_out() {
        let mut table = Numbered::default();
        let longest = AllowedPeers::Only(vec!["*".repeat(PATTERN_BYTES_MAX); PATTERNS_MAX].into());
        let listed = |n: u64| Spec { allowed: longest.clone(), ..spec(&format!("c{n}"), 1) };
        let most = LISTS_BYTES_MAX / longest.heap_bytes();
        for n in 0..most {
            table.create(party(WRITER), n, listed(n), "ring").unwrap();
        }
        let refused = table.create(party(READER), 0, listed(most), "ring").unwrap_err();
        assert_eq!((refused.reason, refused.detail("limit")), (Reason::LimitExceeded, Some("8388608")));
        assert!(table.create(party(READER), 0, spec("plain", 1), "ring").is_ok());
        table.end_channels_of(WRITER);
        assert!(table.create(party(READER), 0, listed(most), "ring").is_ok());
    }

    #[test]
    fn readers_of_a_session_and_of_all_have_limits_until_their_writer_has_let_go_of_some() {
        let mut table = Numbered::default();
        let most = |refused: Failure| (refused.reason, refused.detail("most").map(str::to_owned));
        let limit = |most: usize| (Reason::LimitExceeded, Some(most.to_string()));
        let channels = ALL_READERS_MAX / READERS_MAX as usize;
        let its = SESSION_READERS_MAX / READERS_MAX as usize;
        let mut last = None;
        for number in 0..channels {
            let reads = SessionId(10 + (number / its) as u64);
            let (id, _) =
                table.create(party(WRITER), 0, spec(&format!("c{number}"), READERS_MAX), "ring").unwrap();
            for _ in 0..READERS_MAX {
                last = Some((id, reads, table.add_reader(id, party(reads), "cursor").unwrap().reader));
            }
            if number + 1 == its {
                let (next, _) = table.create(party(WRITER), 0, spec("next", 1), "ring").unwrap();
                let refused = table.add_reader(next, party(reads), "cursor").unwrap_err();
                assert_eq!(most(refused), limit(SESSION_READERS_MAX));
            }
        }
        let (id, reads, reader) = last.unwrap();
        let other = |table: &mut Numbered| table.add_reader(id, party(SessionId(99)), "cursor").map(drop);
        assert_eq!(most(other(&mut table).unwrap_err()), limit(ALL_READERS_MAX));
        table.end_reader(reads, reader, false);
        assert_eq!(
            most(other(&mut table).unwrap_err()),
            limit(ALL_READERS_MAX),
            "its writer looks at it yet"
        );
        table.forget(WRITER, reader);
        assert_eq!(other(&mut table), Ok(()));
    }

    /// A table with the channel `c` of `WRITER`, whose messages have up to 1,000 bytes.
    fn growing() -> (Numbered, u64) {
        let mut table = Numbered::default();
        let spec = Spec { growth: 1_000, ..spec("c", 2) };
        let (id, _) = table.create(party(WRITER), 7, spec, "ring").unwrap();
        (table, id)
    }

    #[test]
    fn an_extent_is_its_writers_until_it_is_freed_and_seen_by_readers_of_its_channel_alone() {
        let (mut table, id) = growing();
        let reader = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        let number = table.add_extent(WRITER, id, 1_000, "extent").unwrap();
        assert_eq!(table.extent_for(READER, reader, number), None, "it is not attached yet");
        table.ready(WRITER, reader);
        assert_eq!(table.extent_for(READER, reader, number), Some("extent"));
        assert_eq!(table.extent_for(READER, reader, number + 1), None);
        assert_eq!(table.extent_for(WRITER, reader, number), None, "the reader is another one's");
        assert_eq!(table.free_extent(READER, id, number), None, "only its writer may");
        assert_eq!(table.free_extent(WRITER, id, number), Some("extent"));
        assert_eq!((table.extent(id, number), table.free_extent(WRITER, id, number)), (None, None));
    }

    #[test]
    fn extents_are_refused_to_others_and_above_the_largest_message() {
        let (mut table, id) = growing();
        let refused = table.add_extent(WRITER, id, 1_001, "extent").unwrap_err();
        assert_eq!((refused.reason, refused.detail("growth")), (Reason::TooLarge, Some("1000")));
        assert!(refused.message.contains("1001") && refused.message.contains("more growth"), "{refused}");
        for (session, channel) in [(READER, id), (WRITER, id + 1)] {
            let refused = table.add_extent(session, channel, 1, "extent").unwrap_err();
            assert_eq!(refused.reason, Reason::NotFound);
        }
        let (plain, _) = table.create(party(WRITER), 8, spec("plain", 2), "ring").unwrap();
        let refused = table.add_extent(WRITER, plain, 65, "extent").unwrap_err();
        assert_eq!((refused.reason, refused.detail("growth")), (Reason::TooLarge, Some("64")));
    }

    #[test]
    fn extents_stay_for_whoever_drains_a_channel_and_for_who_may_map_them_and_end_with_it() {
        let (mut table, id) = growing();
        let reader = table.add_reader(id, party(READER), "cursor").unwrap().reader;
        table.ready(WRITER, reader);
        let number = table.add_extent(WRITER, id, 65, "extent").unwrap();
        table.end_channels_of(WRITER);
        assert!(table.add_extent(WRITER, id, 65, "late").is_err());
        assert_eq!(table.extent_for(READER, reader, number), Some("extent"));
        let effects = table.end_readers_of(READER);
        let pin = Effect::Pin { session: READER, blocks: vec!["ring", "extent"] };
        assert!(effects.contains(&pin), "{effects:?}");
        assert_eq!(table.extent(id, number), None);
    }

    #[test]
    fn extents_of_a_session_and_of_all_have_limits() {
        let mut table = Numbered::default();
        let most = |refused: Failure| (refused.reason, refused.detail("most").map(str::to_owned));
        let limit = |most: usize| (Reason::LimitExceeded, Some(most.to_string()));
        let sessions = ALL_EXTENTS_MAX / SESSION_EXTENTS_MAX;
        let mut last = None;
        for number in 0..sessions {
            let writes = SessionId(10 + number as u64);
            let spec = Spec { growth: 1_000, ..spec(&format!("c{number}"), 2) };
            let (id, _) = table.create(party(writes), 0, spec, "ring").unwrap();
            for _ in 1..SESSION_EXTENTS_MAX {
                table.add_extent(writes, id, 65, "extent").unwrap();
            }
            last = Some((writes, id, table.add_extent(writes, id, 65, "extent").unwrap()));
            if number + 1 < sessions {
                let refused = table.add_extent(writes, id, 65, "extent").unwrap_err();
                assert_eq!(most(refused), limit(SESSION_EXTENTS_MAX));
            }
        }
        let spec = Spec { growth: 1_000, ..spec("other", 2) };
        let (other, _) = table.create(party(WRITER), 0, spec, "ring").unwrap();
        let refused = table.add_extent(WRITER, other, 65, "extent").unwrap_err();
        assert_eq!(most(refused), limit(ALL_EXTENTS_MAX));
        let (writes, id, number) = last.unwrap();
        assert_eq!(table.free_extent(writes, id, number), Some("extent"));
        assert!(table.add_extent(WRITER, other, 65, "extent").is_ok());
    }

    #[test]
    fn channels_of_a_sidecar_have_a_limit_for_those_of_other_peers_too() {
        let mut table = Numbered::default();
        for number in 0..CHANNELS_MAX {
            let writer = SessionId((number / SESSION_CHANNELS_MAX) as u64);
            table.create(party(writer), 0, spec(&format!("c{number}"), 1), "ring").unwrap();
        }
        let next = party(SessionId(99));
        let refused = table.create(next.clone(), 0, spec("more", 1), "ring").map(drop).unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("4096")));
        let there: PeerName = "there".parse().unwrap();
        let refused = table.create_replica(next, 0, spec("more", 1), "ring", there).map(drop).unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("4096")));
    }

    #[test]
    fn ten_thousand_readers_that_come_and_go_leave_nothing() {
        let (mut table, id) = one();
        for number in 0..10_000 {
            let reads = SessionId(2 + number % 7);
            let added = table.add_reader(id, party(reads), "cursor").unwrap();
            // Some go before their writer knows of them, and some when their session ends.
            if number % 3 > 0 {
                assert!(table.ready(WRITER, added.reader));
            }
            let ended = match number % 2 {
                0 => table.end_reader(reads, added.reader, false).len(),
                _ => table.end_readers_of(reads).len(),
            };
            assert!(ended >= 2, "the cursor ends, and the writer is told: {ended}");
            table.forget(WRITER, added.reader);
        }
        assert_eq!(table.channel(id).unwrap().readers.len(), 0);
        table.end_channel(WRITER, id);
        assert!(table.readers.is_empty() && table.open.is_empty() && table.sessions.is_empty());
    }
}
