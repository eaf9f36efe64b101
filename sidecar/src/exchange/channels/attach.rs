//! Reader on its way to a channel: waits for the channel, gets a cursor, waits for the writer's word.
//!
//! ```text
//!   begin ── channel is there? ──no──> entry in `waits` until `wait_ms` ── created ──┐
//!                 └──yes───────────────────────────────────────────────────────────>─┴─> cursor, on a worker
//!   finish(Ok) <── ChannelReady <── ChannelReader to the writer ── entry until the deadline <──┘
//! ```
//! Whatever comes first answers the caller: the writer, a deadline, a cancel, an end. No thread waits for a channel or its writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::{Block, Owner as Segments, Purpose, ring};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{CHANNEL_GROWTH_SINCE, CHANNEL_OPTIONS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{Holder, SessionId, TensorName};
use tensorlane_proto::wire;

use super::super::attempts::{Attempts, REFUSED_BY, Rest};
use super::super::lookup::There;
use super::super::waits::{Key, Owner, WaitId, Waiter, cost};
use super::super::{Done, Exchange, Queueing};
use super::replica::ROUTE;
use super::table::{self, Added, Effect, Party, Spec};
use super::{Attached, LOCAL, check_reader, hosted, is_open};
use crate::cancel::Cancel;
use crate::session::SessionLink;
use crate::store::{AllocRequest, Claimant, whole};

/// A reader on its way.
pub(super) struct Attach {
    exchange: Arc<Exchange>,
    cancel: Cancel,
    who: Who,
    name: TensorName,
    from: i32,
    hold: u32,
    takes_gaps: bool,
    wait: Duration,
    deadline: Duration,
    state: Mutex<State>,
}

/// Reader that is attached: a session of this pod, a stream of a program without maps, or another peer.
#[derive(Clone)]
pub(super) enum Who {
    /// A session, which maps ring and cursor.
    Session(Arc<SessionLink>),
    /// A stream, for which this sidecar reads.
    Stream { session: SessionId, client: Arc<str> },
    /// Another peer, for which this sidecar reads.
    Peer { session: SessionId, client: Arc<str>, peer: PeerName },
}

struct State {
    /// Set once the channel is there.
    found: bool,
    /// Taken by whatever answers first.
    done: Option<Done<Attached>>,
    entry: Option<WaitId>,
    asked: Option<Asked>,
}

/// A reader of which the writer was told.
struct Asked {
    reader: u64,
    channel: u64,
    spec: Spec,
    writer: Arc<str>,
    ring: Block,
    cursor: Block,
}

// === impl Who ===

impl Who {
    pub(super) fn session(&self) -> SessionId {
        match self {
            Self::Session(link) => link.id(),
            Self::Stream { session, .. } | Self::Peer { session, .. } => *session,
        }
    }

    pub(super) fn link(&self) -> Option<&Arc<SessionLink>> {
        match self {
            Self::Session(link) => Some(link),
            Self::Stream { .. } | Self::Peer { .. } => None,
        }
    }

    pub(super) fn party(&self) -> Party {
        let client = match self {
            Self::Session(link) => link.client(),
            Self::Stream { client, .. } | Self::Peer { client, .. } => client,
        };
        Party { session: self.session(), client: Arc::clone(client) }
    }

    /// Checks that it may read a channel of this peer, and can.
    fn check(&self, spec: &Spec) -> Result<(), Failure> {
        match self {
            Self::Peer { peer, .. } if !spec.allowed.allow(peer) => {
                let message = format!(
                    "{peer} may not read the channel {:?}; make it with {peer} among its readers",
                    spec.name
                );
                Err(Failure::new(Reason::PermissionDenied, message).with("peer", peer))
            }
            Self::Session(link) if spec.evicts && link.version() < CHANNEL_OPTIONS_SINCE => {
                let message = format!(
                    "the channel {:?} evicts readers, and this reader's release knows no such channels; update it",
                    spec.name
                );
                Err(Failure::new(Reason::Unsupported, message))
            }
            Self::Session(link) if spec.growth > 0 && link.version() < CHANNEL_GROWTH_SINCE => {
                let message = format!(
                    "messages of the channel {:?} may be larger than its slots, and this reader's release knows no such channels; update \
                     it, or make the channel without growth",
                    spec.name
                );
                Err(Failure::new(Reason::Unsupported, message).with("growth", spec.growth))
            }
            _ => Ok(()),
        }
    }

    /// In whose share it waits for room.
    pub(super) fn claimant(&self) -> Claimant {
        match self {
            Self::Session(_) | Self::Stream { .. } => Claimant::Holder(Some(Holder::Session(self.session()))),
            Self::Peer { peer, .. } => Claimant::Peer(peer.clone()),
        }
    }

    fn owner(&self) -> Owner {
        match self {
            Self::Session(_) | Self::Stream { .. } => Owner::Client(Some(Holder::Session(self.session()))),
            Self::Peer { peer, .. } => Owner::Peer(peer.clone()),
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Attaches a session or a stream to a channel. A wait is for its peer, too.
    pub(super) fn channel_attach_for(
        self: &Arc<Self>,
        (who, cancel): (Who, Cancel),
        request: &v1::ChannelAttachRequest,
        done: Done<Attached>,
    ) {
        if request.wait_ms == 0 || self.peer_meant(&request.peer, &request.name).is_none() {
            return self.channel_attach_now((who, cancel), request, None, done);
        }
        let wait = self.longest(request.wait_ms);
        let (exchange, request, owner) = (Arc::clone(self), request.clone(), who.owner());
        let attempt = move |cancel: Cancel, rest, done| {
            exchange.channel_attach_now((who.clone(), cancel), &request, Some(rest), done);
        };
        Attempts::begin(self, (owner, &cancel), wait, Box::new(attempt), done);
    }

    /// Attaches it, if the peer of the channel is there; waits for the rest of a wait, if there is one.
    fn channel_attach_now(
        self: &Arc<Self>,
        by: (Who, Cancel),
        request: &v1::ChannelAttachRequest,
        rest: Option<Rest>,
        done: Done<Attached>,
    ) {
        let waits = |wait_ms| v1::ChannelAttachRequest { wait_ms, ..request.clone() };
        match self.channel_place(request) {
            Ok((None, name)) => {
                let request = waits(rest.map_or(request.wait_ms, Rest::here));
                Attach::begin(self, by, &request, name, done);
            }
            Ok((Some(peer), name)) => {
                if let Err(failure) = check_way(request.require, &peer) {
                    return done(Err(failure));
                }
                let request = waits(rest.map_or(request.wait_ms, Rest::there));
                self.channel_attach_there(by, &request, (peer, name), done);
            }
            Err(failure) => done(Err(failure)),
        }
    }
}

/// Checks what is insisted on for messages of another peer: they come over the encrypted connection to it, into a ring of this pod.
fn check_way(require: Option<v1::Require>, peer: &PeerName) -> Result<(), Failure> {
    let require = wire::require(require);
    if !require.zero_copy && !require.same_node {
        return Ok(());
    }
    let message = format!(
        "messages of {peer} come by {ROUTE}, through the network and with a copy into a ring of this pod, and {require} is required; \
         read the channel in the pod of its writer, or do not insist"
    );
    Err(Failure::new(Reason::RequirementNotMet, message).with("peer", peer).with("require", require))
}

// === impl Attach ===

impl Attach {
    /// Begins to attach a reader. `done` is called once.
    pub(super) fn begin(
        exchange: &Arc<Exchange>,
        by: (Who, Cancel),
        request: &v1::ChannelAttachRequest,
        name: TensorName,
        done: Done<Attached>,
    ) {
        let times = (request.wait_ms, request.deadline_ms);
        let asks = (request.from, request.hold, request.takes_gaps);
        Self::begin_for(exchange, by, name, asks, times, done);
    }

    /// Begins to attach this sidecar, for another peer that goes by that number. `done` is called once.
    pub(super) fn begin_for_peer(
        exchange: &Arc<Exchange>,
        (session, peer, gone): (SessionId, &PeerName, Cancel),
        asked: &v1::PeerChannelAttach,
        name: TensorName,
        done: Done<Attached>,
    ) {
        let client = Arc::from(format!("peer {peer}"));
        let who = Who::Peer { session, client, peer: peer.clone() };
        let times = (asked.wait_ms, asked.deadline_ms);
        Self::begin_for(exchange, (who, gone), name, (asked.from, 1, asked.takes_gaps), times, done);
    }

    fn begin_for(
        exchange: &Arc<Exchange>,
        (who, cancel): (Who, Cancel),
        name: TensorName,
        (from, hold, takes_gaps): (i32, u32, bool),
        (wait_ms, deadline_ms): (u64, u64),
        done: Done<Attached>,
    ) {
        let now = Instant::now();
        let deadline = exchange.deadline(deadline_ms).saturating_duration_since(now);
        let wait = match wait_ms {
            0 => Duration::ZERO,
            ms => exchange.deadline(ms).saturating_duration_since(now),
        };
        let state = Mutex::new(State { found: false, done: Some(done), entry: None, asked: None });
        let exchange = Arc::clone(exchange);
        let attach =
            Arc::new(Self { exchange, cancel, who, name, from, hold, takes_gaps, wait, deadline, state });
        let leaving = Arc::downgrade(&attach);
        attach.cancel.on_cancel(Arc::new(move || {
            if let Some(attach) = leaving.upgrade() {
                attach.leave();
            }
        }));
        attach.look();
    }

    /// Goes on if the channel is there, else waits for it.
    fn look(self: &Arc<Self>) {
        let channels = &self.exchange.channels;
        let there = channels.table.lock().find_open(&self.name, is_open);
        if let Some(channel) = there {
            return self.go(channel);
        }
        if self.wait.is_zero() {
            return self.finish(Err(self.absent()));
        }
        if let Err(failure) = self.enter(self.wait) {
            return self.finish(Err(failure));
        }
        let there = channels.table.lock().find_or_wait(&self.name, is_open, Arc::downgrade(self));
        match there {
            Some(channel) => self.go(channel),
            // Its time may have been over before it was there to be found.
            None if self.state.lock().done.is_none() => self.forget_waiting(),
            None => {}
        }
    }

    /// The channel is there: what takes time is done elsewhere.
    pub(super) fn go(self: &Arc<Self>, channel: u64) {
        self.state.lock().found = true;
        // From now on it is not the channel that is waited for.
        if let Err(failure) = self.enter(self.deadline) {
            return self.finish(Err(failure));
        }
        let (attach, after) = (Arc::clone(self), Arc::clone(self));
        let asked = move |outcome: Result<(), Failure>| {
            if let Err(failure) = outcome {
                after.finish(Err(failure));
            }
        };
        let segments = self.who.link().map_or(Segments::Sidecar, |link| Segments::Session(link.id().0));
        match self.exchange.store.allocate_now(segments, Purpose::Put, ring::CURSOR_BYTES) {
            Some(cursor) => {
                self.exchange.on_worker(Box::new(asked), move |_| attach.ask(channel, cursor));
            }
            None => {
                let (deadline, cancel) = (Instant::now() + self.deadline, Some(self.cancel.clone()));
                let queueing =
                    Queueing { claimant: self.who.claimant(), purpose: Purpose::Put, deadline, cancel };
                self.exchange.on_waiter(queueing, Box::new(asked), move |_| {
                    attach.check(channel)?;
                    let cursor = attach.room(deadline)?;
                    attach.ask(channel, cursor)
                });
            }
        }
    }

    /// Checks that the channel may be read, if it is there still.
    fn check(&self, channel: u64) -> Result<(), Failure> {
        self.exchange.end_detached_of_leaving();
        if let Some(channel) = self.exchange.channels.table.lock().channel(channel) {
            check_reader(&channel.spec, self.hold, self.takes_gaps)?;
            self.who.check(&channel.spec)?;
        }
        Ok(())
    }

    /// Room for the cursor. Blocks: for waiters.
    fn room(&self, deadline: Instant) -> Result<Block, Failure> {
        self.exchange.store.allocate(&AllocRequest {
            writer: self.who.link(),
            claimant: &self.who.claimant(),
            purpose: Purpose::Put,
            bytes: ring::CURSOR_BYTES,
            deadline,
            cancel: &self.cancel,
        })
    }

    /// Formats the cursor and tells the writer of it.
    fn ask(self: &Arc<Self>, channel: u64, cursor: Block) -> Result<(), Failure> {
        let exchange = &self.exchange;
        self.check(channel)?;
        ring::format_cursor(&cursor).map_err(|error| Failure::new(Reason::Internal, error.to_string()))?;
        let (added, spec, writer, ring) = {
            let mut table = exchange.channels.table.lock();
            let added = table.add_reader(channel, self.who.party(), cursor.clone())?;
            exchange.channels.asked.lock().insert(added.reader, Arc::clone(self));
            let there = table.channel(channel).ok_or_else(table::ended)?;
            let writer =
                there.writer.as_ref().map(|(party, _)| Arc::clone(&party.client)).unwrap_or_default();
            (added, there.spec.clone(), writer, there.ring.clone())
        };
        let asked = Asked { reader: added.reader, channel, spec, writer, ring, cursor };
        if let Err(failure) = self.enter(self.deadline.min(exchange.map_deadline(added.writer))) {
            exchange.end_reader(self.who.session(), added.reader, false);
            return Err(failure);
        }
        if hosted::is_stream(added.writer) {
            return self.attach_hosted(&added, asked);
        }
        self.tell(&added, asked)
    }

    /// Has the ring that this sidecar writes for a stream look at the cursor: there is nobody to ask.
    fn attach_hosted(&self, added: &Added, asked: Asked) -> Result<(), Failure> {
        let (exchange, cursor) = (&self.exchange, asked.cursor.clone());
        self.state.lock().asked = Some(asked);
        let reader = added.reader;
        let attached = hosted::attach(&exchange.channels, added.writer, reader, &cursor, self.from);
        let (hosted, first, missed) = attached.inspect_err(|_| self.withdraw())?;
        let ready = v1::ChannelReady { reader, first, missed, ..Default::default() };
        exchange.channel_ready(added.writer, &ready);
        if !exchange.channels.table.lock().is_attached(self.who.session(), reader) {
            // It ended meanwhile, or the channel did.
            hosted.detach(reader);
            return Err(table::ended());
        }
        hosted.tell();
        Ok(())
    }

    /// Tells the writer of the reader. Under the lock, so that no end of it is told first.
    fn tell(&self, added: &Added, asked: Asked) -> Result<(), Failure> {
        let exchange = &self.exchange;
        let mut state = self.state.lock();
        let told = match (state.done.is_some(), exchange.store.link(added.writer)) {
            (true, Some(writer)) => writer.announce(std::iter::once(&asked.cursor), &**exchange).map(|()| {
                let reader = v1::ChannelReader {
                    key: added.key,
                    reader: added.reader,
                    cursor: Some(whole(&asked.cursor)),
                    from: self.from,
                    client: self.who.party().client.to_string(),
                    gone: false,
                };
                writer.tell_reader(SessionKind::ChannelReader, &reader);
            }),
            // The caller has its answer already, or the writer has gone.
            _ => Err(table::ended()),
        };
        match told {
            Ok(()) => {
                state.asked = Some(asked);
                drop(state);
                if exchange.channels.table.lock().is_there(added.reader) {
                    return Ok(());
                }
                // Its session ended before, and that was told first: the writer has a reader in its list that nobody is.
                let Added { reader, writer, key } = *added;
                exchange.carry_out(vec![Effect::TellGone { writer, key, reader }]);
                Err(table::ended())
            }
            Err(failure) => {
                drop(state);
                exchange.end_reader(self.who.session(), added.reader, false);
                Err(failure)
            }
        }
    }

    /// The writer looks at the cursor, or refuses.
    pub(super) fn ready(&self, ready: &v1::ChannelReady) {
        if !ready.error.is_empty() {
            let message = format!("the channel's writer refused the reader: {}", ready.error);
            let writer = self.state.lock().asked.as_ref().map(|asked| Arc::clone(&asked.writer));
            let failure = Failure::new(Reason::ChannelEnded, message);
            return self.finish(Err(failure.with(REFUSED_BY, writer.unwrap_or_default())));
        }
        let asked = self.state.lock().asked.take();
        let Some(Asked { reader, channel, spec, writer, ring, cursor }) = asked else { return };
        let (first, missed) = (ready.first, ready.missed);
        let (route, peer) = (LOCAL, None);
        self.finish(Ok(Attached { reader, channel, spec, writer, ring, cursor, first, missed, route, peer }));
    }

    /// The answer, once. A reader that the writer was told of is taken back if it is a refusal.
    pub(super) fn finish(&self, outcome: Result<Attached, Failure>) {
        let (done, entry) = {
            let mut state = self.state.lock();
            (state.done.take(), state.entry.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        self.forget_waiting();
        match (done, outcome) {
            (Some(done), Ok(attached)) => done(Ok(attached)),
            (Some(done), Err(failure)) => {
                self.withdraw();
                done(Err(failure));
            }
            (None, Ok(attached)) => self.exchange.end_reader(self.who.session(), attached.reader, false),
            (None, Err(_)) => self.withdraw(),
        }
    }

    /// Removes the waiters that have their answer from those that wait for the channel.
    fn forget_waiting(&self) {
        self.exchange.channels.table.lock().retain_waiting(&self.name, |waiter| {
            waiter.upgrade().is_some_and(|waiter| waiter.state.lock().done.is_some())
        });
    }

    /// The writer looks at the cursor no more.
    fn withdraw(&self) {
        // Not under the lock: an end looks at the table, and whoever looks at the table looks here.
        let asked = self.state.lock().asked.take();
        if let Some(asked) = asked {
            self.exchange.end_reader(self.who.session(), asked.reader, false);
        }
    }

    /// From now on `due` comes then.
    fn enter(self: &Arc<Self>, after: Duration) -> Result<(), Failure> {
        let (until, owner) = (Instant::now() + after, self.who.owner());
        let bytes = cost(std::iter::once(&self.name));
        let entry = {
            let mut state = self.state.lock();
            let entry = match state.entry {
                Some(entry) => entry,
                None => {
                    self.exchange.waits.enter(owner, bytes, until, Arc::clone(self) as Arc<dyn Waiter>)?
                }
            };
            state.entry = Some(entry);
            entry
        };
        self.exchange.waits.wait(entry, Vec::new(), until)
    }

    fn absent(&self) -> Failure {
        let message = format!(
            "no channel of this peer is named {}{}; a reader may wait for it (wait), `tensorlane channel ls` shows those there are",
            self.name,
            self.exchange.no_such_peer(&self.name)
        );
        Failure::new(Reason::NotFound, message).with("name", &self.name)
    }
}

impl Waiter for Attach {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        let (found, asked) = {
            let state = self.state.lock();
            (state.found, state.asked.as_ref().map(|asked| Arc::clone(&asked.writer)))
        };
        let failure = match asked {
            None if found => {
                let message =
                    format!("the reader of {} could not be given a cursor in time; try again", self.name);
                Failure::new(Reason::DeadlineExceeded, message)
            }
            None => self.absent().with("waited_ms", self.wait.as_millis()),
            Some(writer) => {
                let message = format!(
                    "the writer of {}, client {writer:?}, did not take the reader in time; its process may be stopped",
                    self.name
                );
                Failure::new(Reason::WriterNotAnswering, message).with("writer", writer)
            }
        };
        self.finish(Err(failure));
    }

    fn leave(&self) {
        self.finish(Err(Failure::new(Reason::Cancelled, "the caller or the sidecar is ending")));
    }
}
