//! A channel of another peer that is read here: a ring of ours that this sidecar writes, shared by the readers of this pod.
//!
//! ```text
//!   the owner ── ChannelMessage ──> message: lands in the ring, on the thread that reads from the peer
//!       ^                              │ readers of this pod map the ring, as one of their own pod
//!       └── ChannelCredit ── tend, a thread: sleeps on the cursor of the slowest reader
//! ```
//! It begins with its first reader and ends with its last one, or when the owner ends it: then its readers drain what has come and are
//! told why nothing more does. A connection that is lost is waited for as long as leases are: the owner is asked to go on after the last
//! message that came whole. Where it does not come back, readers are told that.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_memory::ring::{self, Claimed, Deadline, First, Layout, RingReaders, RingWriter};
use tensorlane_memory::{Block, Purpose};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::attach::Who;
use super::credit::Arrivals;
use super::table::{self, Party, Spec};
use super::{Attached, enter_cursor, first_of, shape_of};
use crate::cancel::Cancel;
use crate::exchange::{Done, Exchange, Queueing};
use crate::metrics::label::PanicScope;
use crate::peer::{AttachedThere, ChannelLine, ChannelSink, Misuse, PeerKey};
use crate::session::client_name;
use crate::store::AllocRequest;

/// Writer of all replicas, where channels of this peer have a session.
pub(super) const WRITER: SessionId = SessionId(u64::MAX);
/// The way of messages between peers: the control connection.
pub(super) const ROUTE: &str = "tcp";
/// Time after which the thread of a replica looks whether it has ended, if nothing else wakes it.
const SLICE: Duration = Duration::from_millis(250);

/// Peer and name of a channel.
pub(super) type Place = (PeerName, TensorName);

/// Replicas that are open.
#[derive(Default)]
pub(super) struct Replicas {
    last: u64,
    open: HashMap<Place, Arc<Replica>>,
    numbers: HashMap<u64, Place>,
}

/// See the module.
pub(super) struct Replica {
    exchange: Weak<Exchange>,
    place: Place,
    number: u64,
    channel: u64,
    spec: Spec,
    writer: Arc<str>,
    ring: Block,
    /// The owner, where it goes on after a connection is lost, and the number by which it does.
    resumes: Option<(PeerKey, u64)>,
    readers: Arc<RingReaders>,
    inbox: Mutex<Inbox>,
    state: Mutex<State>,
    changed: Condvar,
}

struct Inbox {
    ring: RingWriter,
    /// Credits go by it under the lock: none of a connection that is lost comes by the next one.
    line: ChannelLine,
    /// Set while somebody listens to it: before, nothing may come, and so no credit is given.
    listens: bool,
    arrivals: Arrivals,
    /// Layout of the message under way.
    layout: Incoming,
    /// Slot of the message under way, in a ring that drops.
    claimed: Option<Claimed>,
}

enum Incoming {
    Plain,
    Same,
    New(bytes::Bytes),
}

#[derive(Default)]
struct State {
    /// Readers that are being attached.
    joining: usize,
    /// The connection is lost, and waited for.
    away: bool,
    over: bool,
    /// Over because the writer has evicted this peer.
    evicted: bool,
}

/// A reader that is being attached to a replica, which does not end meanwhile. Dropped, it is attached or never will be.
struct Joining {
    exchange: Arc<Exchange>,
    replica: Arc<Replica>,
}

/// A reader of this pod that wants to read.
pub(super) struct Wanted {
    pub(super) who: Who,
    pub(super) cancel: Cancel,
    pub(super) from: v1::ChannelFrom,
    pub(super) hold: u32,
    pub(super) takes_gaps: bool,
    pub(super) until: Instant,
}

// === impl Wanted ===

impl Wanted {
    fn queueing(&self, purpose: Purpose) -> Queueing {
        let (claimant, cancel) = (self.who.claimant(), Some(self.cancel.clone()));
        Queueing { claimant, purpose, deadline: self.until, cancel }
    }
}

// === impl Replicas ===

impl Replicas {
    fn get(&self, number: u64) -> Option<Arc<Replica>> {
        self.numbers.get(&number).and_then(|place| self.open.get(place)).cloned()
    }

    /// Channels of replicas whose connection is lost, and waited for.
    pub(super) fn away(&self) -> HashSet<u64> {
        self.open.values().filter(|replica| replica.is_away()).map(|replica| replica.channel).collect()
    }
}

// === impl Exchange ===

impl Exchange {
    /// Attaches the caller to a channel of another peer.
    pub(super) fn channel_attach_there(
        self: &Arc<Self>,
        (who, cancel): (Who, Cancel),
        request: &v1::ChannelAttachRequest,
        place: Place,
        done: Done<Attached>,
    ) {
        let peers = match self.peers_or_fail().map(Arc::clone) {
            Ok(peers) => peers,
            Err(failure) => return done(Err(failure)),
        };
        let (now, leaves) = (Instant::now(), cancel.clone());
        let rest = self.deadline(request.deadline_ms).saturating_duration_since(now);
        let wait = match request.wait_ms {
            0 => Duration::ZERO,
            ms => self.deadline(ms).saturating_duration_since(now),
        };
        let until = now + wait + rest;
        let (from, hold, takes_gaps) = (request.from(), request.hold, request.takes_gaps);
        let wanted = Wanted { who, cancel, from, hold, takes_gaps, until };
        if let Some(joining) = self.join_replica(&place) {
            return self.on_waiter(wanted.queueing(Purpose::Put), done, move |_| joining.attach(&wanted));
        }
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let message = v1::PeerChannelAttach {
            name: place.1.to_string(),
            from: request.from,
            wait_ms: millis(wait),
            deadline_ms: millis(rest).max(1),
            takes_gaps,
            resumes: true,
            resume: None,
        };
        let (exchange, peer) = (Arc::clone(self), place.0.clone());
        let call = peers.attach_channel(&peer, message, until, move |outcome| match outcome {
            Ok(there) => {
                let queueing = wanted.queueing(Purpose::Pull);
                exchange.on_waiter(queueing, done, move |exchange| open(exchange, place, &there, &wanted));
            }
            Err(failure) => done(Err(failure)),
        });
        leaves.on_cancel(Arc::new(move || call.cancel()));
    }

    /// The replica of a channel, which does not end before a reader was attached to it, or not.
    fn join_replica(self: &Arc<Self>, place: &Place) -> Option<Joining> {
        let replicas = self.channels.replicas.lock();
        let replica = replicas.open.get(place)?;
        let mut state = replica.state.lock();
        if state.over {
            return None;
        }
        state.joining += 1;
        Some(Joining { exchange: Arc::clone(self), replica: Arc::clone(replica) })
    }

    /// A reader of a replica has gone.
    pub(super) fn replica_reader_gone(&self, number: u64, reader: u64) {
        let replica = self.channels.replicas.lock().get(number);
        if let Some(replica) = &replica {
            replica.readers.detach(reader);
        }
        self.channels.table.lock().forget(WRITER, reader);
        if let Some(replica) = replica {
            replica.end_if_unused(self);
        }
    }
}

/// Latest first message of a replica: half of what can be counted, so that no message overflows.
const FIRST_MAX: u64 = u64::MAX / 2;

/// Makes the replica of a channel that this sidecar is attached to; another one that was made meanwhile is as good.
fn open(
    exchange: &Arc<Exchange>,
    place: Place,
    there: &AttachedThere,
    wanted: &Wanted,
) -> Result<Attached, Failure> {
    // Whoever does not listen to it leaves it with this.
    let AttachedThere { message, line } = there;
    if let Some(joining) = exchange.join_replica(&place) {
        return joining.attach(wanted);
    }
    let internal = |error: &dyn std::fmt::Display| Failure::new(Reason::Internal, error.to_string());
    // Who is evicted is the owner's to say: nobody is here. And every message lies in a slot.
    let spec = v1::ChannelSpec { evicts: false, growth: 0, ..message.spec.clone().unwrap_or_default() };
    let (spec, shape) = shape_of(&spec)?;
    let spec = Spec { epoch: message.epoch, ..spec };
    let first = message.first;
    if first > FIRST_MAX {
        let what = format!("the channel is at message {first}; at most {FIRST_MAX} can be counted from");
        return Err(Failure::new(Reason::LimitExceeded, what).with("first", first));
    }
    let ring = ring_of(exchange, wanted, &spec, shape.bytes())?;
    ring::format_replica(&ring, shape, first).map_err(|error| internal(&error))?;
    let writing = RingWriter::of_block(&ring, shape, first).map_err(|error| internal(&error))?;
    let replica = {
        let mut replicas = exchange.channels.replicas.lock();
        if replicas.open.contains_key(&place) {
            drop(replicas);
            // It may have ended by now: then the caller asks again.
            let joining = exchange.join_replica(&place).ok_or_else(table::ended)?;
            return joining.attach(wanted);
        }
        replicas.last += 1;
        let number = replicas.last;
        let party = writer_of(message);
        let writer = Arc::clone(&party.client);
        let made = exchange.channels.table.lock().create_replica(
            party,
            number,
            spec.clone(),
            ring.clone(),
            place.0.clone(),
        );
        let channel = made?;
        let replica = Arc::new(Replica {
            exchange: Arc::downgrade(exchange),
            place: place.clone(),
            number,
            channel,
            writer,
            ring,
            resumes: line.peer().filter(|_| message.attachment > 0).map(|owner| (owner, message.attachment)),
            readers: writing.readers(),
            inbox: Mutex::new(Inbox {
                ring: writing,
                line: line.clone(),
                listens: true,
                arrivals: Arrivals::new(spec.policy, spec.slots, spec.slot_bytes, first),
                layout: Incoming::Plain,
                claimed: None,
            }),
            spec,
            state: Mutex::new(State { joining: 1, ..State::default() }),
            changed: Condvar::new(),
        });
        replicas.open.insert(place.clone(), Arc::clone(&replica));
        replicas.numbers.insert(number, place);
        replica
    };
    let joining = Joining { exchange: Arc::clone(exchange), replica: Arc::clone(&replica) };
    let attached = joining.attach_first(wanted);
    if attached.is_err() && replica.state.lock().over {
        // It had no other reader, and has ended as unused.
        return attached;
    }
    if let Err(failure) = replica.begin_to_listen(line, first) {
        replica.end(exchange, None);
        line.leave();
        if let Ok(attached) = &attached {
            exchange.end_reader(wanted.who.session(), attached.reader, false);
        }
        return Err(failure);
    }
    attached.map(|attached| Attached { missed: message.missed, ..attached })
}

/// Memory for the ring of a replica, in the sidecar's own segments.
fn ring_of(exchange: &Exchange, wanted: &Wanted, spec: &Spec, bytes: u64) -> Result<Block, Failure> {
    let alloc = AllocRequest {
        writer: None,
        claimant: &wanted.who.claimant(),
        purpose: Purpose::Pull,
        bytes,
        deadline: wanted.until,
        cancel: &wanted.cancel,
    };
    exchange.store.allocate(&alloc).map_err(|mut failure| {
        failure.message.push_str(&format!(
            "; a channel of {} slots of {} bytes is read through a ring of as many in this pod's arena, for all its readers together",
            spec.slots, spec.slot_bytes
        ));
        failure
    })
}

/// The writer as its peer says it: as short as the clients of this pod are, whatever that peer says.
fn writer_of(message: &v1::PeerChannelAttached) -> Party {
    Party { session: WRITER, client: client_name(&message.writer) }
}

// === impl Joining ===

impl Joining {
    /// Attaches the first reader, from the first message on.
    fn attach_first(self, wanted: &Wanted) -> Result<Attached, Failure> {
        self.replica.add_reader(&self.exchange, wanted, First::Next)
    }

    /// Attaches a reader.
    fn attach(self, wanted: &Wanted) -> Result<Attached, Failure> {
        self.replica.add_reader(&self.exchange, wanted, first_of(wanted.from))
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.replica.state.lock().joining -= 1;
        self.replica.end_if_unused(&self.exchange);
        self.replica.changed.notify_one();
    }
}

// === impl Replica ===

impl Replica {
    /// Takes what comes from now on. A thread gives credit, unless the channel drops.
    fn begin_to_listen(self: &Arc<Self>, line: &ChannelLine, first: u64) -> Result<(), Failure> {
        let sink: Arc<dyn ChannelSink> = Arc::clone(self) as Arc<dyn ChannelSink>;
        line.listen(&sink)?;
        if self.spec.policy.drops() {
            // Nobody waits for its readers: what has landed makes room.
            self.inbox.lock().grant(first);
            return Ok(());
        }
        let tending = Arc::clone(self);
        match line.spawn("tl-channel-in", move || tending.tend_to_end()) {
            true => Ok(()),
            false => {
                let message = "no thread for a channel of another peer; retry later";
                Err(Failure::new(Reason::LimitExceeded, message))
            }
        }
    }

    fn add_reader(
        &self,
        exchange: &Arc<Exchange>,
        wanted: &Wanted,
        from: First,
    ) -> Result<Attached, Failure> {
        exchange.end_detached_of_leaving();
        let Wanted { who, cancel, until, hold, takes_gaps, .. } = wanted;
        super::check_reader(&self.spec, *hold, *takes_gaps)?;
        let alloc = AllocRequest {
            writer: who.link(),
            claimant: &who.claimant(),
            purpose: Purpose::Put,
            bytes: ring::CURSOR_BYTES,
            deadline: *until,
            cancel,
        };
        let cursor = exchange.store.allocate(&alloc)?;
        let internal = |error: ring::RingError| Failure::new(Reason::Internal, error.to_string());
        ring::format_cursor(&cursor).map_err(internal)?;
        let added = exchange.channels.table.lock().add_reader(self.channel, who.party(), cursor.clone())?;
        let entered = enter_cursor(&self.readers, added.reader, &cursor, from).and_then(|entered| {
            let ready = exchange.channels.table.lock().ready(WRITER, added.reader);
            if ready { Ok(entered) } else { Err(table::ended()) }
        });
        let (first, missed) = entered.inspect_err(|_| {
            exchange.end_reader(who.session(), added.reader, false);
            // Where it ended before it was entered, nobody else takes it out.
            self.readers.detach(added.reader);
        })?;
        if self.state.lock().evicted {
            // Those who were there before are told so. This one has held nobody up, and may ask the owner again.
            exchange.end_reader(who.session(), added.reader, false);
            return Err(table::ended());
        }
        if who.link().is_some_and(|link| link.is_cut()) {
            exchange.end_reader(who.session(), added.reader, false);
            return Err(Failure::new(Reason::Cancelled, "the session has ended"));
        }
        Ok(Attached {
            reader: added.reader,
            channel: self.channel,
            spec: self.spec.clone(),
            writer: Arc::clone(&self.writer),
            ring: self.ring.clone(),
            cursor,
            first,
            missed,
            route: ROUTE,
            peer: Some(self.place.0.clone()),
        })
    }

    /// Tends it. Where that breaks off it ends: its readers would wait for messages that the owner may not send.
    fn tend_to_end(&self) {
        let Some(threads) = self.exchange.upgrade().map(|exchange| exchange.threads().clone()) else {
            return;
        };
        let tended = threads.caught("tl-channel-in", PanicScope::Connection, || {
            threads.point("tend");
            self.tend();
        });
        if tended.is_none()
            && let Some(exchange) = self.exchange.upgrade()
        {
            self.end(&exchange, None);
            self.inbox.lock().line.leave();
        }
    }

    /// Tells the owner what there is room for, until the end.
    fn tend(&self) {
        let mut told = None;
        while !self.state.lock().over {
            let given_back = self.readers.given_back();
            if told != Some(given_back) {
                told = Some(given_back);
                self.inbox.lock().grant(given_back);
            }
            if self.readers.is_empty() {
                let mut state = self.state.lock();
                if !state.over {
                    self.changed.wait_for(&mut state, SLICE);
                }
            } else {
                self.readers.wait_given_back(given_back);
            }
        }
    }

    /// Ends it if nobody reads it and nobody is about to.
    fn end_if_unused(&self, exchange: &Exchange) {
        let unused = {
            let _replicas = exchange.channels.replicas.lock();
            let mut state = self.state.lock();
            let unused = state.joining == 0 && !state.over && self.readers.is_empty();
            state.over |= unused;
            unused
        };
        if unused {
            self.forget(exchange);
            self.inbox.lock().line.leave();
        }
    }

    /// Returns whether the connection is lost, and waited for.
    fn is_away(&self) -> bool {
        let state = self.state.lock();
        state.away && !state.over
    }

    /// The connection is lost: asks the owner to go on where it is back in time.
    fn wait_for_owner(self: &Arc<Self>, exchange: &Arc<Exchange>) {
        let (Some((owner, attachment)), Some(peers)) = (&self.resumes, exchange.peers.get()) else {
            return self.end(exchange, None);
        };
        {
            let mut state = self.state.lock();
            if state.over {
                return;
            }
            state.away = true;
        }
        let grace = exchange.store.lease_grace();
        let message = v1::PeerChannelAttach {
            name: self.place.1.to_string(),
            deadline_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            takes_gaps: true,
            resumes: true,
            resume: Some(v1::PeerChannelResume { attachment: *attachment, next: self.inbox.lock().resume() }),
            ..Default::default()
        };
        let (replica, exchange) = (Arc::clone(self), Arc::clone(exchange));
        peers.resume_channel(owner, message, Instant::now() + grace, move |outcome| match outcome {
            Ok(there) => replica.go_on(&exchange, &there),
            Err(_) => replica.end(&exchange, None),
        });
    }

    /// The owner goes on, on another connection. Where nobody reads any more, it is left with `there`.
    fn go_on(self: &Arc<Self>, exchange: &Arc<Exchange>, there: &AttachedThere) {
        {
            let mut state = self.state.lock();
            if state.over {
                return;
            }
            state.away = false;
        }
        self.inbox.lock().line = there.line.clone();
        let sink: Arc<dyn ChannelSink> = Arc::clone(self) as Arc<dyn ChannelSink>;
        if there.line.listen(&sink).is_err() {
            return self.wait_for_owner(exchange);
        }
        exchange.channel_resumed();
        let given_back = self.readers.given_back();
        let mut inbox = self.inbox.lock();
        let (is_away, is_over) = {
            let state = self.state.lock();
            (state.away, state.over)
        };
        if is_over {
            // Its last reader left meanwhile, by the connection before.
            return there.line.leave();
        }
        if is_away {
            // It is lost again.
            return;
        }
        let room = if self.spec.policy.drops() { inbox.arrivals.messages_landed() } else { given_back };
        inbox.listens = true;
        inbox.grant(room);
    }

    /// Ends it: why, or none where the connection is lost.
    fn end(&self, exchange: &Exchange, end: Option<v1::PeerChannelEnd>) {
        let is_over = {
            let mut state = self.state.lock();
            // Before those who are there are marked: whoever comes after that sees it.
            state.evicted |= end.is_some_and(|end| end.outcome() == v1::PeerChannelOutcome::Evicted);
            std::mem::replace(&mut state.over, true)
        };
        if end.is_some() && self.resumes.is_some() {
            // Also where its last reader leaves just now, which finds the attachment taken out already.
            self.inbox.lock().line.confirm();
        }
        if is_over {
            return;
        }
        if let Some(end) = end {
            self.inbox.lock().ring.finish_at(end.written);
        }
        match end.map(|end| end.outcome()) {
            Some(v1::PeerChannelOutcome::Finished) => self.inbox.lock().ring.finish(),
            Some(v1::PeerChannelOutcome::Evicted) => {
                // In this order: whoever sees the end of the ring sees why.
                self.evict_all(exchange);
                ring::mark_lost(&self.ring);
            }
            Some(_) => ring::mark_lost(&self.ring),
            None => ring::mark_cut(&self.ring),
        }
        self.forget(exchange);
    }

    /// The writer has evicted this peer, and so all readers here.
    fn evict_all(&self, exchange: &Exchange) {
        let table = exchange.channels.table.lock();
        let readers = table.channel(self.channel).into_iter().flat_map(|channel| channel.readers.values());
        readers.for_each(|reader| ring::mark_evicted(&reader.cursor, &self.ring));
    }

    /// New readers ask the owner again; those that there are drain it.
    fn forget(&self, exchange: &Exchange) {
        {
            let mut replicas = exchange.channels.replicas.lock();
            replicas.numbers.remove(&self.number);
            replicas.open.remove(&self.place);
        }
        let effects = exchange.channels.table.lock().end_channel(WRITER, self.channel);
        exchange.carry_out(effects);
        self.changed.notify_one();
    }

    fn land(&self, message: &v1::PeerChannelMessage) -> Result<(), Misuse> {
        let inbox = &mut *self.inbox.lock();
        let step = inbox.arrivals.take(message)?;
        if message.offset == 0 {
            inbox.layout = match (&message.layout, message.same_layout) {
                (Some(layout), _) if layout.len() as u64 > ring::LAYOUT_BYTES => return Err(Misuse),
                // A copy: the frame that it came in is larger.
                (Some(layout), _) => Incoming::New(bytes::Bytes::copy_from_slice(layout)),
                (None, true) => Incoming::Same,
                (None, false) => Incoming::Plain,
            };
        }
        let layout = match &inbox.layout {
            Incoming::Plain => Layout::Plain,
            Incoming::Same => Layout::Same,
            Incoming::New(layout) => Layout::New(layout),
        };
        let drops = self.spec.policy.drops();
        if drops && message.offset == 0 {
            let slot = inbox.ring.claim(layout, Deadline::Now, &|| false).map_err(|_| Misuse)?;
            inbox.claimed = Some(slot.keep());
        }
        inbox.ring.write_ahead(message.offset, &message.data).map_err(|_| Misuse)?;
        match (step.last, drops) {
            (false, _) => {}
            (true, false) => {
                // It has room, or more was sent than there was credit for.
                let slot = inbox.ring.claim(layout, Deadline::Now, &|| false).map_err(|_| Misuse)?;
                slot.publish(message.bytes);
            }
            (true, true) => {
                let claimed = inbox.claimed.take().ok_or(Misuse)?;
                inbox.ring.kept(claimed).publish_as(message.sequence, message.bytes);
            }
        }
        let given_back = if drops { inbox.arrivals.messages_landed() } else { inbox.arrivals.given_back() };
        if step.tell {
            inbox.grant(given_back);
        }
        Ok(())
    }
}

// === impl Inbox ===

impl Inbox {
    /// Tells the owner what there is room for.
    fn grant(&mut self, given_back: u64) {
        let credit = self.arrivals.grant(given_back);
        if self.listens {
            self.line.credit(&credit);
        }
    }

    /// Forgets a message of which a part has come; the sequence with which the owner goes on.
    fn resume(&mut self) -> u64 {
        (self.layout, self.claimed, self.listens) = (Incoming::Plain, None, false);
        self.arrivals.resume()
    }
}

impl ChannelSink for Replica {
    fn message(&self, message: &v1::PeerChannelMessage) -> Result<(), Misuse> {
        self.land(message)
    }

    fn ended(&self, end: v1::PeerChannelEnd) {
        if let Some(exchange) = self.exchange.upgrade() {
            self.end(&exchange, Some(end));
        }
    }

    fn lost(&self) {
        let Some(exchange) = self.exchange.upgrade() else { return };
        // One that has ended is in no list.
        let own = exchange.channels.replicas.lock().get(self.number);
        if let Some(own) = own {
            own.wait_for_owner(&exchange);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::alone::{MINUTE, allocate, alone};

    /// A replica that nobody reads, and that one reader is about to.
    fn joined(exchange: &Arc<Exchange>) -> Joining {
        let spec =
            v1::ChannelSpec { name: "c".into(), slots: 4, slot_bytes: 64, ..v1::ChannelSpec::default() };
        let (spec, shape) = shape_of(&spec).unwrap();
        let ring = allocate(exchange, shape.bytes(), MINUTE).unwrap();
        ring::format_replica(&ring, shape, 0).unwrap();
        let writing = RingWriter::of_block(&ring, shape, 0).unwrap();
        let place: Place = ("there".parse().unwrap(), TensorName::new("c").unwrap());
        let party = Party { session: WRITER, client: Arc::from("writer") };
        let mut table = exchange.channels.table.lock();
        let channel = table.create_replica(party, 1, spec.clone(), ring.clone(), place.0.clone()).unwrap();
        drop(table);
        let replica = Arc::new(Replica {
            exchange: Arc::downgrade(exchange),
            place: place.clone(),
            number: 1,
            channel,
            writer: Arc::from("writer"),
            ring,
            resumes: None,
            readers: writing.readers(),
            inbox: Mutex::new(Inbox {
                ring: writing,
                line: ChannelLine::to_nobody(),
                listens: true,
                arrivals: Arrivals::new(spec.policy, spec.slots, spec.slot_bytes, 0),
                layout: Incoming::Plain,
                claimed: None,
            }),
            spec,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut replicas = exchange.channels.replicas.lock();
        replicas.open.insert(place.clone(), replica);
        replicas.numbers.insert(1, place.clone());
        drop(replicas);
        exchange.join_replica(&place).unwrap()
    }

    #[test]
    fn a_reader_that_comes_when_its_peer_was_just_evicted_is_refused_and_not_told_of_a_lost_writer() {
        let (exchange, _workers, _) = alone();
        let joining = joined(&exchange);
        joining.replica.state.lock().evicted = true;
        let session = SessionId(1 << 62);
        let wanted = Wanted {
            who: Who::Stream { session, client: Arc::from("late") },
            cancel: Cancel::default(),
            from: v1::ChannelFrom::Next,
            hold: 1,
            takes_gaps: true,
            until: Instant::now() + MINUTE,
        };
        let refused = joining.attach(&wanted).map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::ChannelEnded);
        assert!(exchange.channels.table.lock().readers_of(session).is_empty());
    }

    #[test]
    fn a_channel_whose_messages_could_not_be_counted_to_its_end_is_refused_and_leaves_nothing() {
        let (exchange, _workers, _) = alone();
        let first = FIRST_MAX + 1;
        let spec =
            v1::ChannelSpec { name: "c".into(), slots: 4, slot_bytes: 64, ..v1::ChannelSpec::default() };
        let message =
            v1::PeerChannelAttached { spec: Some(spec), first, ..v1::PeerChannelAttached::default() };
        let there = AttachedThere { message, line: ChannelLine::to_nobody() };
        let wanted = Wanted {
            who: Who::Stream { session: SessionId(1 << 62), client: Arc::from("early") },
            cancel: Cancel::default(),
            from: v1::ChannelFrom::Next,
            hold: 1,
            takes_gaps: true,
            until: Instant::now() + MINUTE,
        };
        let place: Place = ("there".parse().unwrap(), TensorName::new("c").unwrap());
        let refused = open(&exchange, place, &there, &wanted).map(drop).unwrap_err();
        assert_eq!(
            (refused.reason, refused.detail("first")),
            (Reason::LimitExceeded, Some(&*first.to_string()))
        );
        assert_eq!(exchange.channels.table.lock().channels().count(), 0);
        assert!(exchange.channels.replicas.lock().open.is_empty());
    }

    #[test]
    fn a_writer_that_a_peer_names_at_great_length_costs_no_more_than_a_client_of_this_pod() {
        let named = |writer: &str| {
            let writer = writer.to_owned();
            writer_of(&v1::PeerChannelAttached { writer, ..v1::PeerChannelAttached::default() }).client
        };
        assert_eq!(named(&"w".repeat(1 << 20)).len(), 256);
        assert_eq!(&*named("trainer"), "trainer");
    }

    #[test]
    fn a_replica_ends_where_no_worker_takes_the_reader_that_it_waits_for() {
        let (exchange, workers, _) = alone();
        let joining = joined(&exchange);
        workers.stop();
        let (tell, told) = std::sync::mpsc::channel();
        let done = Box::new(move |outcome: Result<(), Failure>| tell.send(outcome).unwrap());
        exchange.on_worker(done, move |_| {
            drop(joining);
            Ok(())
        });
        told.recv_timeout(MINUTE).unwrap().unwrap_err();
        assert!(exchange.channels.replicas.lock().open.is_empty());
    }
}
