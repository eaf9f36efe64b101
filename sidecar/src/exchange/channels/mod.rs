//! Channels: how they are made, attached and ended. Messages never come here: writer and readers share memory.
//!
//! - [`table`]: who writes and who reads what. Pure.
//! - [`attach`]: one reader on its way.
//! - [`extents`]: memory of messages that are larger than a slot.
//! - [`relay`]: a channel of ours that another peer reads.
//! - [`replica`]: a channel of another peer that is read here.
//! - [`credit`]: what may be on its way between the two. Pure.
//! - [`attachment`]: one connection after the other between the two. Pure.
//! - [`hosted`]: a program without maps, for which this sidecar writes or reads.
//! - [`lists`]: the bound of what is told of channels at once. Pure.
//!
//! The sidecar makes every ring and cursor and keeps a map of each. So it says in them who has died, and wakes whoever waits
//! for the dead.

mod attach;
mod attachment;
mod credit;
mod extents;
mod hosted;
mod lists;
mod relay;
mod replica;
#[cfg(test)]
pub(super) mod sim;
mod table;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message as _;
use tensorlane_memory::ring::{self, First, Policy, RingReaders, RingShape, RingState};
use tensorlane_memory::{Block, Purpose, Watch, passing};
use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::channel::READERS_MAX;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

use self::attach::{Attach, Who};
pub use self::extents::ChannelExtent;
use self::hosted::HostedReaders;
pub use self::hosted::{HostedReader, HostedWriter};
use self::lists::{LISTS_BYTES_MAX, ListRoom};
use self::relay::Relay;
use self::replica::Replicas;
use self::table::{Channel, Effect, Party, Spec, Standing, Table};
use super::names::tensor_name;
use super::{Caller, Exchange, session_required};
use crate::cancel::Cancel;
use crate::session::SessionLink;
use crate::store::{AllocRequest, Claimant, whole};

/// The way of messages in a pod: a map of the ring.
const LOCAL: &str = "local";

/// The channels of this sidecar.
#[derive(Default)]
pub(super) struct Channels {
    table: Mutex<Table<Block, Weak<Attach>>>,
    /// Readers of whom the writer was told and has said nothing yet.
    asked: Mutex<HashMap<u64, Arc<Attach>>>,
    /// Sessions that have ended and have readers, until their processes end.
    leaving: Mutex<HashMap<SessionId, Watch>>,
    /// Messages of channels that have ended.
    written: AtomicU64,
    /// Messages that readers which have ended were told of as dropped, by policy.
    dropped: [AtomicU64; Policy::ALL.len()],
    /// Readers that were evicted.
    evicted: AtomicU64,
    /// Attachments between peers that went on after a connection was lost.
    resumed: AtomicU64,
    /// Relays of readers that are peers.
    relays: Mutex<HashMap<u64, Weak<Relay>>>,
    /// Number of the last reader that is a peer.
    last_peer: AtomicU64,
    /// Number of the last stream that writes or reads for a program.
    last_stream: AtomicU64,
    /// Readers of the rings that streams write, by the stream.
    hosted: Mutex<HashMap<SessionId, Arc<HostedReaders>>>,
    /// Channels of other peers that are read here.
    replicas: Mutex<Replicas>,
}

/// A channel that was made.
pub struct Created {
    channel: u64,
    policy: Policy,
    /// The ring.
    pub ring: Block,
}

/// A reader that is attached.
pub struct Attached {
    /// Number of the reader.
    pub reader: u64,
    channel: u64,
    spec: Spec,
    writer: Arc<str>,
    /// The ring, which it reads.
    pub ring: Block,
    /// Cursor of the reader.
    pub cursor: Block,
    first: u64,
    missed: u64,
    route: &'static str,
    peer: Option<PeerName>,
}

/// Numbers of channels at this moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ChannelTotals {
    /// Channels, those that are being drained included.
    pub channels: usize,
    /// Readers that are attached.
    pub readers: usize,
    /// Messages that were written, in the life of the sidecar.
    pub written: u64,
    /// Messages that readers were told of as dropped, by policy.
    pub dropped: [u64; Policy::ALL.len()],
    /// Readers that were evicted, in the life of the sidecar.
    pub evicted: u64,
    /// Attachments between peers that went on after a connection was lost, in the life of the sidecar.
    pub resumed: u64,
}

// === impl Created ===

impl Created {
    /// The answer.
    pub fn message(&self) -> v1::ChannelCreateResponse {
        let policy = policy_message(self.policy).into();
        v1::ChannelCreateResponse { channel: self.channel, ring: Some(whole(&self.ring)), policy }
    }
}

// === impl Attached ===

impl Attached {
    /// The answer.
    pub fn message(&self) -> v1::ChannelAttachResponse {
        v1::ChannelAttachResponse {
            reader: self.reader,
            channel: self.channel,
            spec: Some(spec_message(&self.spec)),
            ring: Some(whole(&self.ring)),
            cursor: Some(whole(&self.cursor)),
            first: self.first,
            missed: self.missed,
            writer: self.writer.to_string(),
            route: self.route.to_owned(),
            peer: self.peer.as_ref().map(ToString::to_string).unwrap_or_default(),
            epoch: self.spec.epoch,
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Makes a channel that the caller writes.
    pub fn channel_create(
        self: &Arc<Self>,
        caller: Caller,
        request: &v1::ChannelCreateRequest,
        done: impl FnOnce(Result<Created, Failure>) + Send + 'static,
    ) {
        let checked = self.channel_caller(&caller).and_then(|link| {
            let (spec, shape) = own_spec(request.spec.as_ref(), request.readers.as_ref())?;
            self.channels.table.lock().check_create(link.id(), &spec)?;
            Ok((link, spec, shape))
        });
        let (link, spec, shape) = match checked {
            Ok(checked) => checked,
            Err(failure) => return done(Err(failure)),
        };
        let (deadline, key) = (self.deadline(request.deadline_ms), request.key);
        let queueing = caller.queueing(Purpose::Put, deadline);
        self.on_waiter(queueing, Box::new(done), move |exchange| {
            let waits = (&caller.claimant(), deadline, &caller.cancel);
            let ring = exchange.allocate_ring(Some(&link), shape, waits)?;
            let policy = spec.policy;
            let writer = Party { session: link.id(), client: Arc::clone(link.client()) };
            let channel = exchange.enter_channel(writer, key, spec, ring.clone())?;
            if link.is_cut() {
                // Its end may have come before the channel was there.
                exchange.channels_of_session_ended(link.id());
                return Err(Failure::new(Reason::Cancelled, "the session has ended"));
            }
            Ok(Created { channel, policy, ring })
        });
    }

    /// Memory of a new ring, formatted: in a segment of the session that writes it, or in one of the sidecar's own.
    fn allocate_ring(
        &self,
        writer: Option<&Arc<SessionLink>>,
        shape: RingShape,
        (claimant, deadline, cancel): (&Claimant, Instant, &Cancel),
    ) -> Result<Block, Failure> {
        self.end_detached_of_leaving();
        let (purpose, bytes) = (Purpose::Put, shape.bytes());
        let ring =
            self.store.allocate(&AllocRequest { writer, claimant, purpose, bytes, deadline, cancel })?;
        ring::format_ring(&ring, shape).map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
        Ok(ring)
    }

    /// Enters a new channel; its number. Those who waited for it go on.
    fn enter_channel(&self, writer: Party, key: u64, spec: Spec, ring: Block) -> Result<u64, Failure> {
        let created = self.channels.table.lock().create(writer, key, spec, ring);
        let (channel, waited) = created?;
        waited.iter().filter_map(Weak::upgrade).for_each(|attach| attach.go(channel));
        Ok(channel)
    }

    /// Attaches the caller to a channel as a reader. A wait is for its peer, too.
    pub fn channel_attach(
        self: &Arc<Self>,
        caller: Caller,
        request: &v1::ChannelAttachRequest,
        done: impl FnOnce(Result<Attached, Failure>) + Send + 'static,
    ) {
        match self.channel_caller(&caller) {
            Ok(link) => {
                self.channel_attach_for((Who::Session(link), caller.cancel), request, Box::new(done));
            }
            Err(failure) => done(Err(failure)),
        }
    }

    /// The peer of the channel that is meant, none for this one, and its name there.
    fn channel_place(
        &self,
        request: &v1::ChannelAttachRequest,
    ) -> Result<(Option<PeerName>, TensorName), Failure> {
        let (me, name) = (&self.me().peer, tensor_name(&request.name)?);
        if let Some(peer) = self.named_peer(&request.peer)? {
            return Ok(((peer != *me).then_some(peer), name));
        }
        if self.channels.table.lock().find(&name).is_some() {
            return Ok((None, name));
        }
        self.place_of(name)
    }

    /// The peer that a name of a channel or listener begins with, none for this one, and the rest; all of it where no peer is called so.
    pub(in crate::exchange) fn place_of(
        &self,
        name: TensorName,
    ) -> Result<(Option<PeerName>, TensorName), Failure> {
        let Some((peer, rest)) = name.as_str().split_once('/') else { return Ok((None, name)) };
        let Ok(peer) = peer.parse::<PeerName>() else { return Ok((None, name)) };
        if peer == self.me().peer {
            return Ok((None, tensor_name(rest)?));
        }
        match self.peers.get().is_some_and(|peers| peers.lists(&peer)) {
            true => Ok((Some(peer), tensor_name(rest)?)),
            false => Ok((None, name)),
        }
    }

    /// The writer of a channel evicts a reader. One that is not its own, or has ended, is nothing.
    fn channel_evict(&self, writer: SessionId, reader: u64) {
        let evicted = self.channels.table.lock().evict(writer, reader);
        let Some((cursor, ring)) = evicted else { return };
        // Counted first: whoever sees that it is evicted finds it counted.
        self.channels.evicted.fetch_add(1, Ordering::Relaxed);
        ring::mark_evicted(&cursor, &ring);
        let relay = self.channels.relays.lock().get(&reader).and_then(Weak::upgrade);
        if let Some(relay) = relay {
            relay.evict();
        }
    }

    /// Ends a channel or a reader of a session, or evicts a reader, or frees an extent.
    pub fn channel_detach(&self, session: SessionId, request: &v1::ChannelDetachRequest) {
        let v1::ChannelDetachRequest { channel, reader, still_mapped, evicts, extent } = *request;
        if evicts {
            return self.channel_evict(session, reader);
        }
        if extent > 0 {
            return self.channel_free(session, channel, extent);
        }
        if channel > 0 {
            let effects = {
                let mut table = self.channels.table.lock();
                self.count_written(table.channel(channel), session);
                table.end_channel(session, channel)
            };
            self.carry_out(effects);
        }
        // One that is not attached yet is ended by its own call.
        if reader > 0 && self.channels.table.lock().is_attached(session, reader) {
            self.end_reader(session, reader, still_mapped);
        }
    }

    /// The writer of a channel says how it stands with a reader.
    pub fn channel_ready(&self, session: SessionId, ready: &v1::ChannelReady) {
        if ready.gone {
            return self.channels.table.lock().forget(session, ready.reader);
        }
        let taken = ready.error.is_empty();
        let asked = {
            let mut table = self.channels.table.lock();
            match taken {
                true => table.ready(session, ready.reader),
                false => table.is_writer_of(session, ready.reader),
            }
        };
        if !asked {
            return;
        }
        let attach = self.channels.asked.lock().remove(&ready.reader);
        if let Some(attach) = attach {
            attach.ready(ready);
        }
        if self.channels.table.lock().is_evicted_early(ready.reader) {
            self.channel_evict(session, ready.reader);
        }
    }

    /// Channels whose names begin with the prefix, as they are now: all of them, with as many of their readers and patterns as have
    /// room in one answer. A channel of just this name comes first, and so has its lists told.
    pub fn channel_stat(&self, request: &v1::ChannelStatRequest) -> v1::ChannelStatResponse {
        let relays = self.channels.relays.lock().clone();
        let is_away = |relay: &Weak<Relay>| relay.upgrade().is_some_and(|relay| relay.is_away());
        let mut away: HashSet<u64> =
            relays.iter().filter(|(_, relay)| is_away(relay)).map(|(reader, _)| *reader).collect();
        // Channels and readers have their numbers together.
        away.extend(self.channels.replicas.lock().away());
        let table = self.channels.table.lock();
        let is_wanted =
            |(_, channel): &(u64, &Channel<Block>)| channel.spec.name.as_str().starts_with(&request.prefix);
        let mut wanted: Vec<(u64, &Channel<Block>)> = table.numbered().filter(is_wanted).collect();
        wanted.sort_by_key(|&(_, channel)| {
            (channel.spec.name.as_str(), channel.peer.as_ref().map(PeerName::as_str))
        });
        let mut room = ListRoom::of(LISTS_BYTES_MAX);
        let told = wanted.into_iter().map(|(number, channel)| status(number, channel, &away, &mut room));
        v1::ChannelStatResponse { channels: told.collect() }
    }

    /// Numbers of channels, for telling people.
    pub fn channel_totals(&self) -> ChannelTotals {
        let table = self.channels.table.lock();
        let attached = |channel: &Channel<Block>| {
            channel.readers.values().filter(|reader| reader.standing == Standing::Attached).count()
        };
        let own = |channel: &&Channel<Block>| channel.peer.is_none();
        let open = table.channels().filter(own).filter(|channel| channel.writer.is_some());
        let mut dropped = self.channels.dropped.each_ref().map(|ended| ended.load(Ordering::Relaxed));
        for channel in table.channels() {
            let sum = &mut dropped[channel.spec.policy as usize];
            for reader in channel.readers.values().filter(|reader| reader.standing == Standing::Attached) {
                *sum = sum.saturating_add(ring::inspect_cursor(&reader.cursor).dropped);
            }
        }
        let written = open.map(|channel| ring::inspect_ring(&channel.ring).head).fold(0, u64::saturating_add);
        ChannelTotals {
            channels: table.channels().filter(own).count(),
            readers: table.channels().map(attached).sum(),
            written: written.saturating_add(self.channels.written.load(Ordering::Relaxed)),
            dropped,
            evicted: self.channels.evicted.load(Ordering::Relaxed),
            resumed: self.channels.resumed.load(Ordering::Relaxed),
        }
    }

    /// A session ended. Its channels end now, its readers with its process: until then it may look at messages that it holds, and
    /// drain what was written.
    pub(super) fn channels_of_session_ended(&self, session: SessionId) {
        let effects = {
            let mut table = self.channels.table.lock();
            table.channels().for_each(|channel| self.count_written(Some(channel), session));
            table.end_channels_of(session)
        };
        self.carry_out(effects);
        if self.end_detached(session) && !self.readers_end_with_process(session) {
            self.readers_of_process_ended(session);
        }
    }

    /// Ends the readers of a session that have let their cursors go, and could not say so any more. Returns whether others are left.
    fn end_detached(&self, session: SessionId) -> bool {
        let readers = self.channels.table.lock().readers_of(session);
        let (attached, detached): (Vec<_>, Vec<_>) =
            readers.into_iter().partition(|(_, cursor)| ring::inspect_cursor(cursor).attached);
        detached.into_iter().for_each(|(reader, _)| self.end_reader(session, reader, true));
        !attached.is_empty()
    }

    /// Looks whether processes whose sessions have ended have let go of their readers.
    pub(super) fn end_detached_of_leaving(&self) {
        let sessions: Vec<SessionId> = self.channels.leaving.lock().keys().copied().collect();
        for session in sessions {
            if !self.end_detached(session) {
                drop(self.channels.leaving.lock().remove(&session));
            }
        }
    }

    /// Has the readers of a session ended when its process is. Returns whether that process still lives, as far as the kernel says.
    fn readers_end_with_process(&self, session: SessionId) -> bool {
        let Some(link) = self.store.link(session) else { return false };
        let Ok(Some(process)) = passing::peer_pidfd(link.socket().as_fd()) else { return false };
        let own = Weak::clone(&self.own);
        // Held until the watch is there: its end takes it away again.
        let mut leaving = self.channels.leaving.lock();
        let watch = self.store.arena().watcher().on_exit(process, move || {
            if let Some(exchange) = own.upgrade() {
                exchange.readers_of_process_ended(session);
            }
        });
        match watch {
            Ok(watch) => {
                leaving.insert(session, watch);
                true
            }
            Err(_) => false,
        }
    }

    fn readers_of_process_ended(&self, session: SessionId) {
        drop(self.channels.leaving.lock().remove(&session));
        let effects = self.channels.table.lock().end_readers_of(session);
        self.carry_out(effects);
    }

    /// A reader ends.
    pub(super) fn end_reader(&self, session: SessionId, reader: u64, maps: bool) {
        self.channels.asked.lock().remove(&reader);
        self.channels.relays.lock().remove(&reader);
        let effects = self.channels.table.lock().end_reader(session, reader, maps);
        self.carry_out(effects);
    }

    /// The caller's link, which it needs for channels.
    pub(super) fn channel_caller(&self, caller: &Caller) -> Result<Arc<SessionLink>, Failure> {
        caller.link.clone().ok_or_else(|| session_required("A channel"))
    }

    /// Time that a writer has to look at a new cursor.
    fn map_deadline(&self, writer: SessionId) -> Duration {
        if hosted::is_stream(writer) {
            // It looks at once.
            return Duration::MAX;
        }
        self.store.link(writer).map_or(Duration::ZERO, |link| link.map_deadline())
    }

    /// The messages of a channel that this session writes stay counted when it ends.
    fn count_written(&self, channel: Option<&Channel<Block>>, session: SessionId) {
        if let Some(channel) = channel
            && channel.is_written_by(session)
        {
            let head = ring::inspect_ring(&channel.ring).head;
            add(&self.channels.written, head);
        }
    }

    fn carry_out(&self, effects: Vec<Effect<Block>>) {
        for effect in effects {
            match effect {
                Effect::EndRing(ring) => ring::mark_lost(&ring),
                Effect::EndCursor(cursor, policy) => {
                    ring::mark_gone(&cursor);
                    let dropped = ring::inspect_cursor(&cursor).dropped;
                    add(&self.channels.dropped[policy as usize], dropped);
                }
                Effect::Pin { session, blocks } => self.store.pin(session, blocks),
                Effect::Refuse { reader } => {
                    let attach = self.channels.asked.lock().remove(&reader);
                    if let Some(attach) = attach {
                        attach.finish(Err(table::ended()));
                    }
                }
                Effect::TellGone { writer, key, reader } if writer == replica::WRITER => {
                    self.replica_reader_gone(key, reader);
                }
                Effect::TellGone { writer, reader, .. } if hosted::is_stream(writer) => {
                    self.hosted_reader_gone(writer, reader);
                }
                Effect::TellGone { writer, key, reader } => {
                    if let Some(link) = self.store.link(writer) {
                        let gone = v1::ChannelReader { key, reader, gone: true, ..Default::default() };
                        link.tell_reader(SessionKind::ChannelReader, &gone);
                    }
                }
            }
        }
    }
}

/// Adds what a ring or a cursor says. A number that lies does not make the sum smaller.
fn add(sum: &AtomicU64, more: u64) {
    let added = |before: u64| Some(before.saturating_add(more));
    let _ = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
}

fn first_of(from: v1::ChannelFrom) -> First {
    match from {
        v1::ChannelFrom::Next => First::Next,
        v1::ChannelFrom::Oldest => First::Oldest,
    }
}

/// Enters the cursor of a new reader into a ring that this sidecar writes. Its first message, and how many before it cannot be had.
fn enter_cursor(
    readers: &RingReaders,
    reader: u64,
    cursor: &Block,
    from: First,
) -> Result<(u64, u64), Failure> {
    let first = readers.attach_block(reader, cursor, from);
    let first = first.map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
    // A ring may begin later than its channel did.
    Ok((first, if from == First::Oldest { first } else { 0 }))
}

/// Returns whether messages may come to a ring, as its writer says.
fn is_open(ring: &Block) -> bool {
    ring::inspect_ring(ring).state == Some(RingState::Open)
}

/// A channel of this peer as it was asked for, proven, with the other peers that may read it.
fn own_spec(
    spec: Option<&v1::ChannelSpec>,
    readers: Option<&v1::PeerPatterns>,
) -> Result<(Spec, RingShape), Failure> {
    let (spec, shape) = shape_of(spec.unwrap_or(&v1::ChannelSpec::default()))?;
    let allowed = AllowedPeers::read(readers, "the list of readers of a channel")?;
    Ok((Spec { allowed, epoch: rand::random::<u64>().max(1), ..spec }, shape))
}

/// A shape as it was asked for, proven.
fn shape_of(spec: &v1::ChannelSpec) -> Result<(Spec, RingShape), Failure> {
    let invalid = |message: String| Failure::new(Reason::InvalidArgument, message);
    let name = tensor_name(&spec.name)?;
    let (policy, evicts) = (policy_of(spec)?, spec.evicts);
    if evicts && policy.drops() {
        let message = format!(
            "nobody is waited for in a channel with the policy {policy}, and so nobody evicted; make it with the policy block"
        );
        return Err(invalid(message).with("channel", &spec.name));
    }
    if spec.readers_max > READERS_MAX {
        let message =
            format!("{} readers are more than the {READERS_MAX} that a channel may have", spec.readers_max);
        return Err(invalid(message).with("readers_max", spec.readers_max));
    }
    let readers_max = if spec.readers_max == 0 { READERS_MAX } else { spec.readers_max };
    let (slots, slot_bytes, growth, allowed) = (spec.slots, spec.slot_bytes, spec.growth, AllowedPeers::All);
    let spec = Spec { name, slots, slot_bytes, readers_max, policy, evicts, growth, allowed, epoch: 0 };
    let shape = spec.shape().map_err(|error| invalid(error.to_string()).with("channel", &spec.name))?;
    Ok((spec, shape))
}

fn spec_message(spec: &Spec) -> v1::ChannelSpec {
    let Spec { name, slots, slot_bytes, readers_max, policy, evicts, growth, .. } = spec;
    v1::ChannelSpec {
        name: name.to_string(),
        slots: *slots,
        slot_bytes: *slot_bytes,
        readers_max: *readers_max,
        policy: policy_message(*policy).into(),
        evicts: *evicts,
        growth: *growth,
    }
}

/// Shape of a channel as another peer has it: each of its slots takes the largest message.
fn far_spec(spec: &Spec) -> v1::ChannelSpec {
    v1::ChannelSpec { slot_bytes: spec.message_bytes(), growth: 0, ..spec_message(spec) }
}

fn policy_message(policy: Policy) -> v1::ChannelPolicy {
    match policy {
        Policy::Block => v1::ChannelPolicy::Block,
        Policy::DropOldest => v1::ChannelPolicy::DropOldest,
        Policy::Latest => v1::ChannelPolicy::Latest,
    }
}

fn policy_of(spec: &v1::ChannelSpec) -> Result<Policy, Failure> {
    match v1::ChannelPolicy::try_from(spec.policy) {
        Ok(v1::ChannelPolicy::Block) => Ok(Policy::Block),
        Ok(v1::ChannelPolicy::DropOldest) => Ok(Policy::DropOldest),
        Ok(v1::ChannelPolicy::Latest) => Ok(Policy::Latest),
        Err(_) => {
            let message = format!(
                "{} is no policy of a channel that this sidecar knows; choose block, drop_oldest or latest, or update it",
                spec.policy
            );
            Err(Failure::new(Reason::InvalidArgument, message).with("policy", spec.policy))
        }
    }
}

/// Checks that a reader knows rings of the channel's policy, and may hold so many messages.
fn check_reader(spec: &Spec, hold: u32, takes_gaps: bool) -> Result<(), Failure> {
    let Spec { name, slots, policy, .. } = spec;
    if policy.drops() && !takes_gaps {
        let message = format!(
            "the channel {name:?} drops messages ({policy}), and this reader's release knows channels alone that block; update it, or write the channel with the policy block"
        );
        return Err(Failure::new(Reason::Unsupported, message).with("policy", policy));
    }
    // Proven when the channel was made.
    let most = spec.shape().map_or(*slots, |shape| shape.most_held());
    if hold <= most {
        return Ok(());
    }
    let message = format!(
        "a reader cannot hold {hold} messages of a channel of {slots} slots with the policy {policy}; hold at most {most}"
    );
    Err(Failure::new(Reason::InvalidArgument, message)
        .with("hold", hold)
        .with("slots", slots)
        .with("most", most))
}

/// A channel as it is told, with the lists that have room. `away` are the numbers of channels and readers whose connection is lost, and
/// waited for.
fn status(
    number: u64,
    channel: &Channel<Block>,
    away: &HashSet<u64>,
    room: &mut ListRoom,
) -> v1::ChannelStatus {
    let now = ring::inspect_ring(&channel.ring);
    let readers = channel.readers.iter().filter(|(_, reader)| reader.standing.has_cursor());
    let readers = readers.map(|(number, reader)| {
        let cursor = ring::inspect_cursor(&reader.cursor);
        v1::ChannelReaderStatus {
            reader: *number,
            client: reader.party.client.to_string(),
            next: cursor.next,
            dropped: cursor.dropped,
            waits: cursor.asleep,
            route: if relay::is_peer(reader.party.session) { replica::ROUTE } else { LOCAL }.to_owned(),
            evicted: reader.standing == Standing::Evicted,
            away: away.contains(number),
        }
    });
    let (readers, readers_left_out) = room.take(readers, v1::ChannelReaderStatus::encoded_len);
    let (allowed, allowed_left_out) = match &channel.spec.allowed {
        AllowedPeers::All => (None, 0),
        AllowedPeers::Only(patterns) => {
            let (patterns, left_out) = room.take(patterns.iter(), |pattern| pattern.len());
            (Some(v1::PeerPatterns { patterns: patterns.into_iter().cloned().collect() }), left_out)
        }
    };
    v1::ChannelStatus {
        spec: Some(spec_message(&channel.spec)),
        writer: channel.writer.as_ref().map(|(party, _)| party.client.to_string()).unwrap_or_default(),
        written: now.head,
        finished: now.state == Some(RingState::Finished),
        readers,
        bytes: channel.extents.values().map(Block::len).fold(channel.ring.len(), u64::saturating_add),
        peer: channel.peer.as_ref().map(ToString::to_string).unwrap_or_default(),
        route: if channel.peer.is_some() { replica::ROUTE } else { "" }.to_owned(),
        allowed,
        away: away.contains(&number),
        readers_left_out,
        allowed_left_out,
    }
}
