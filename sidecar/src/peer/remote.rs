//! A peer: its connection if there is one, our calls to it, its pulls from us, and what lives on when the connection
//! does not.
//!
//! ```text
//!            place                 connection up              answer
//!   caller --------> waiting ------------------------> sent ---------> over
//!                       ^        (other incarnation:     |
//!                       |          OWNER_LOST)           | connection lost
//!                       '--------------------------------'
//! ```
//! A call that names another incarnation than the connected one is not lost yet: that connection may be dead and nobody
//! has noticed. So the other side is asked whether it lives; only its answer makes the call OWNER_LOST, and if none comes
//! the connection is given up for its silence, and the next one tells.
//!
//! One lock, held for moments and never while anything is sent or told: methods return what is to be sent and told
//! ([`Effects`]). `handover` orders what `Serve` hears about connections; it is taken before the state's lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::{Offer, Why};
use tensorlane_proto::{Failure, Incarnation, PeerName, Reason};

use super::calls::{Call, Finish, Kind};
use super::channels;
use super::dial::Dial;
use super::gpus::ReachableGpu;
use super::link::Link;
use super::pipe_calls;
use super::questions;
use super::relay::RelayOrder;
use super::seats::{self, LackingSide, NoSeat};
use super::sets::Packed;
use super::shunned::Shunned;
use super::standstill::Standstill;
use super::transport::Way;
use super::transport::measure::Goodput;
use crate::cancel::Cancel;
use crate::clock;

mod alone;
mod holders;
mod landed;
mod lives;
mod mapped;
mod opened;

/// Words for people on a peer that nobody can dial yet.
pub(super) const NO_IP: &str = "its TensorPeer has no IP of its pod yet";
/// Most calls of ours on one connection at a time; the rest wait here. The other side keeps a little for each.
pub(crate) const CALLS_MAX: usize = 1024;
/// Number of calls that may be on a connection for a further one to be asked for at the node's socket: their answers,
/// with all the metadata that tensors may have, find room in the socket; and many together are as fast on the control
/// connection.
const AT_NODE_MAX: usize = 8;
/// Most pulls of lost callers, and maps that nobody uses any more, that we still have to end at their owner: as many as there
/// may be maps. Beyond it the owner's grace ends them. Each costs 16 bytes.
const OWED_MAX: usize = super::transport::shm::MAPS_MAX;
/// Incarnations of a peer that are known to be over. An older one costs one more question.
const PAST_MAX: usize = 64;

/// Time that calls wait for a peer that was lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Time for calls that were not sent yet.
    pub(super) progress: Duration,
    /// Time for calls that were under way.
    pub(super) grace: Duration,
}

/// View that calls have of the connection that they are on: all of it that a simulation has to be.
pub(super) trait Carrier {
    /// Unlike any other connection of this process.
    fn id(&self) -> u64;
    /// The life of the peer that it leads to.
    fn incarnation(&self) -> Incarnation;
    /// Time at which it was begun.
    fn begun(&self) -> Instant;
    /// Offer of what the peer said it can speak.
    fn offer(&self) -> &Arc<Offer>;
    /// The peer.
    fn peer(&self) -> &PeerName;
    /// Returns whether tensors of the peer can be mapped now.
    fn maps(&self) -> bool;
    /// Returns whether maps can be asked for at the node's socket now.
    fn maps_at_node(&self) -> bool;
    /// Returns whether the peer passes on tensors of others.
    fn passes_on(&self) -> bool;
    /// Returns whether channels of the peer can be read.
    fn has_channels(&self) -> bool;
    /// Returns whether the peer knows mutable sets.
    fn takes_sets(&self) -> bool;
    /// Returns whether the peer takes snapshots of mutable sets.
    fn takes_set_snapshots(&self) -> bool;
    /// Returns whether the other end redeems tickets, and tells its names to who watches them.
    fn takes_questions(&self) -> bool;
    /// Returns whether the peer has pipes.
    fn has_pipes(&self) -> bool;
    /// Lanes of a way bring no more of what a holder was asked for.
    fn want_no_more(&self, way: Way, call: u64);
    /// Chooses the way in which the bytes of a call are to come.
    fn choose_way(&self, call: &mut Call);
}

/// Work that is to be done after the lock was given back.
#[must_use]
pub(super) struct Effects<L = Link> {
    /// Frames for a connection, in order.
    pub(super) send: Option<(Arc<L>, Vec<Vec<u8>>)>,
    /// Calls to be asked at the node's socket, with their frames.
    pub(super) at_node: Vec<(Arc<L>, u64, Vec<u8>)>,
    /// Outcomes to tell.
    pub(super) finish: Vec<Finish>,
    /// Calls that are over, with their deadlines.
    pub(super) over: Vec<(Instant, u64)>,
    /// Inquiries of theirs that nobody waits for any more.
    pub(super) gone: Vec<Cancel>,
    /// Holders to be asked for bytes.
    pub(super) relays: Vec<RelayOrder>,
    /// Calls whose deadline is another one now.
    pub(super) expected: Vec<(Instant, u64, Arc<Peer>)>,
    /// Set if there is something to be tended.
    pub(super) wake: bool,
    /// Held while a word about a lease is on its way to the connection, which is in use until then.
    pub(super) told: Option<Arc<()>>,
}

impl<L> Default for Effects<L> {
    fn default() -> Self {
        Self {
            send: None,
            at_node: Vec::new(),
            finish: Vec::new(),
            over: Vec::new(),
            gone: Vec::new(),
            relays: Vec::new(),
            expected: Vec::new(),
            wake: false,
            told: None,
        }
    }
}

impl<L> Effects<L> {
    pub(super) fn one(finish: Option<Finish>) -> Self {
        Self { finish: finish.into_iter().collect(), ..Self::default() }
    }

    fn frame(&mut self, link: &Arc<L>, frame: Vec<u8>) {
        self.send.get_or_insert_with(|| (Arc::clone(link), Vec::new())).1.push(frame);
    }

    pub(super) fn and(mut self, other: Self) -> Self {
        if let Some((link, frames)) = other.send {
            frames.into_iter().for_each(|frame| self.frame(&link, frame));
        }
        self.at_node.extend(other.at_node);
        self.finish.extend(other.finish);
        self.over.extend(other.over);
        self.gone.extend(other.gone);
        self.relays.extend(other.relays);
        self.expected.extend(other.expected);
        self.wake |= other.wake;
        self.told = self.told.or(other.told);
        self
    }
}

/// A pull of theirs that we hold a lease for.
#[derive(Debug, Clone, Copy)]
pub(super) struct InboundPull {
    pub(super) id: u64,
    /// The connection on which it was last asked.
    pub(super) link: u64,
    /// The way that its bytes go.
    pub(super) way: Way,
    /// The segment that its bytes are mapped in, and the holder of its witness.
    pub(super) mapped: Option<(u32, u64)>,
    /// Lease for it here: the tensor, or our copy of another peer's; nothing where it is on its way here itself.
    pub(super) leased: Option<u64>,
    /// The reader may get it from others, and have it for others.
    pub(super) spreads: bool,
    /// The owner was asked for the checksum of all bytes: once is enough.
    pub(super) proven: bool,
    /// The owner was asked what granules hash to, and has not answered: one answer at a time.
    pub(super) hashing: bool,
}

/// A question of theirs that is not answered.
pub(super) struct Inquiry {
    pub(super) gone: Cancel,
    pub(super) kind: PeerKind,
    /// The peer can do without the answer.
    pub(super) yields: bool,
}

/// State that is known of a peer besides the directory.
pub(super) struct State<L = Link> {
    pub(super) link: Option<Arc<L>>,
    pub(super) incarnation: Option<Incarnation>,
    /// Time at which its last connection was begun.
    begun: Option<Instant>,
    pub(super) offer: Option<Arc<Offer>>,
    /// GPUs that it said it reaches, on its last connection.
    pub(super) gpus: Vec<ReachableGpu>,
    /// `Serve` was told that it is lost, and when that was.
    pub(super) lost: Option<Instant>,
    pub(super) last_error: String,
    /// True while nobody can dial it, because no IP of its pod is known.
    pub(super) awaits_ip: bool,
    /// Lack of a seat lately, and at which end.
    pub(super) no_seat: Option<(LackingSide, NoSeat)>,
    pub(super) dial: Dial,
    /// Threads that wait in `ensure`.
    pub(super) waiters: usize,
    pub(super) calls: HashMap<u64, Call>,
    waiting: VecDeque<u64>,
    on_link: usize,
    /// Calls for an incarnation that the connected one says it is not; it was asked whether it lives.
    in_doubt: Vec<u64>,
    /// Held by words about leases that are decided and not given to the connection yet.
    told: Arc<()>,
    /// Incarnations that are over, the latest last.
    past: VecDeque<Incarnation>,
    /// Pulls of theirs, by their call. Outlives connections, not incarnations.
    pub(super) open: HashMap<u64, InboundPull>,
    /// Inquiries of theirs and calls about sets on the present connection that are not answered.
    pub(super) inquiries: HashMap<u64, Inquiry>,
    /// Rows that were packed for them and not released.
    pub(super) packed: Packed,
    /// Tickets of theirs that were redeemed and whose lease is needed yet, by their call: asked again on each connection, for a call that
    /// is not is forgotten.
    redeemed: HashMap<u64, v1::PeerRedeem>,
    /// Pulls of ours that nobody wants any more, whose lease at the owner is to be ended: call and id.
    owed: Vec<(u64, u64)>,
    /// Pulls of theirs that were over before they were known here, by connection and call, the latest last: asked for at the node's
    /// socket, and given up on the control connection.
    done_early: VecDeque<(u64, u64)>,
    /// No maps are tried before; with the reason, where more is known than that one failed.
    cooling: Option<(Instant, Option<Why>)>,
    /// Time at which it last was too late with what it could lend.
    pub(super) late: Option<Instant>,
}

impl<L> Default for State<L> {
    fn default() -> Self {
        Self {
            link: None,
            incarnation: None,
            begun: None,
            offer: None,
            gpus: Vec::new(),
            lost: None,
            told: Arc::default(),
            last_error: String::new(),
            awaits_ip: false,
            no_seat: None,
            dial: Dial::default(),
            waiters: 0,
            calls: HashMap::new(),
            waiting: VecDeque::new(),
            on_link: 0,
            in_doubt: Vec::new(),
            past: VecDeque::new(),
            open: HashMap::new(),
            inquiries: HashMap::new(),
            packed: Packed::default(),
            redeemed: HashMap::new(),
            owed: Vec::new(),
            done_early: VecDeque::new(),
            cooling: None,
            late: None,
        }
    }
}

/// A peer.
pub(super) struct Peer {
    pub(super) name: PeerName,
    pub(super) state: Mutex<State>,
    /// The connection came or went, or an attempt ended.
    pub(super) changed: Condvar,
    pub(super) handover: Mutex<()>,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    /// Goodput of its transports.
    pub(super) goodput: Mutex<Goodput>,
    /// Memory of the way to it, as far as large amounts stood still.
    pub(super) standstill: Mutex<Standstill>,
    /// State that says whether it is asked for other peers' tensors.
    pub(super) shunned: Mutex<Shunned>,
    /// Set if it is ours to dial, needed or not.
    eager: AtomicBool,
    /// Held by whatever has a lease there without a call.
    pub(super) held: Arc<()>,
}

impl Peer {
    pub(super) fn new(name: PeerName) -> Self {
        Self {
            name,
            state: Mutex::default(),
            changed: Condvar::new(),
            handover: Mutex::default(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            goodput: Mutex::default(),
            standstill: Mutex::default(),
            shunned: Mutex::default(),
            eager: AtomicBool::new(false),
            held: Arc::default(),
        }
    }

    pub(super) fn set_eager(&self) {
        self.eager.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_eager(&self) -> bool {
        self.eager.load(Ordering::Relaxed)
    }

    /// Returns whether something here has a lease there without a call.
    pub(super) fn is_held(&self) -> bool {
        Arc::strong_count(&self.held) > 1
    }
}

fn pull_done(call: u64, id: u64, holds: bool) -> Vec<u8> {
    frame::encode(PeerKind::PullDone.into(), 0, call, &v1::PullDone { id, holds })
}

impl<L: Carrier> State<L> {
    /// A new call: sent if there is a connection and room on it, else kept.
    pub(super) fn place(&mut self, mut call: Call) -> Effects<L> {
        if self.link.is_none() && call.is_passing() {
            let failure = Failure::new(Reason::PeerUnreachable, "the connection was lost just now");
            return Effects { over: vec![(call.deadline, call.number)], ..Effects::one(call.fail(failure)) };
        }
        if self.link.is_none() && self.waiting.is_empty() && self.waiters == 0 {
            // What was told to those who waited before is old.
            self.no_seat = None;
            self.dial.forget_full();
        }
        call.attempt = self.dial.begun;
        self.waiting.push_back(call.number);
        self.calls.insert(call.number, call);
        self.pump()
    }

    /// Time for which it has been lost.
    pub(super) fn away(&self, now: Instant) -> Option<Duration> {
        self.lost.map(|lost| now.saturating_duration_since(lost))
    }

    /// Counts their pulls that go on, or will when the connection is back: as long as their leases wait for it.
    pub(super) fn open_pulls(&self, grace: Duration, now: Instant) -> usize {
        let may_come_back = self.away(now).is_none_or(|away| away < grace);
        if may_come_back { self.open.len() } else { 0 }
    }

    /// Returns whether calls wait for a connection.
    pub(super) fn needs_link(&self) -> bool {
        self.link.is_none() && (!self.waiting.is_empty() || self.waiters > 0)
    }

    /// Returns whether anything of either end goes on here that the connection is for.
    pub(super) fn is_used(&self) -> bool {
        let has_leases = !self.open.is_empty() || !self.redeemed.is_empty() || !self.owed.is_empty();
        let is_asked = self.inquiries.values().any(|inquiry| !inquiry.yields);
        let asks = self.waiters > 0 || self.calls.values().any(|call| !call.yields());
        let tells = Arc::strong_count(&self.told) > 1;
        tells || has_leases || is_asked || asks || !self.packed.is_empty()
    }

    /// Returns whether the peer is to come back, without a call that waits for it: something of it is held here, for which it keeps
    /// leases until the grace is over.
    pub(super) fn must_return(&self, is_held: bool, grace: Duration, now: Instant) -> bool {
        let has = is_held || !self.redeemed.is_empty() || !self.owed.is_empty();
        self.link.is_none() && has && self.away(now).is_some_and(|away| away < grace)
    }

    /// Returns whether the peer has something here that it may come back for.
    pub(super) fn serves(&self) -> bool {
        let is_asked = self.inquiries.values().any(|inquiry| !inquiry.yields);
        is_asked || !self.open.is_empty() || !self.packed.is_empty()
    }

    /// The connection that has ended gave its seat away, and nobody used it: the peer is not lost.
    pub(super) fn rest(&mut self) {
        self.lost = None;
        self.last_error.clear();
        self.dial.rests = true;
    }

    /// Notes that there was no seat: calls wait until their deadlines.
    pub(super) fn found_no_seat(&mut self, side: LackingSide, told: NoSeat, now: Instant, chance: f64) {
        self.no_seat = Some((side, told));
        self.last_error.clear();
        self.dial.no_seat(told, now, chance);
    }

    /// Failure of a call to it, or a wait for it, that was never connected within a time.
    pub(super) fn unreached(&self, peer: &PeerName, limit: Duration) -> Failure {
        if let Some(lack) = self.no_seat {
            return seats::failure(peer, lack, limit);
        }
        let error = match self.last_error.as_str() {
            _ if self.awaits_ip => NO_IP,
            "" => "not connected yet",
            error => error,
        };
        let message = format!("{peer} was not reached within {}: {error}", clock::told(limit));
        Failure::new(Reason::PeerUnreachable, message)
    }

    /// Returns whether this is the present connection.
    pub(super) fn is_present(&self, link: u64) -> bool {
        self.link.as_ref().is_some_and(|present| present.id() == link)
    }

    /// Returns whether nothing is under way with a peer that has no connection, and none will be taken up again: what
    /// either had of the other has ended with the grace, on both sides.
    pub(super) fn may_be_forgotten(&self, grace: Duration, now: Instant) -> bool {
        let is_away = self.link.is_none() && !self.dial.running && self.waiters == 0;
        is_away && self.calls.is_empty() && self.away(now).is_none_or(|away| away >= grace)
    }

    /// Nothing of its life is waited for any more: gives that life, once.
    pub(super) fn give_up_life(&mut self) -> Option<Incarnation> {
        self.open.clear();
        self.owed.clear();
        self.incarnation.take()
    }

    /// Sends what waits, as far as there is room.
    fn pump(&mut self) -> Effects<L> {
        let mut effects = Effects::default();
        let Some(link) = self.link.clone() else { return effects };
        while self.on_link < CALLS_MAX
            && let Some(number) = self.waiting.pop_front()
        {
            let Some(call) = self.calls.get_mut(&number) else { continue };
            if let Some(expected) = call.expected.filter(|expected| *expected != link.incarnation()) {
                if !self.past.contains(&expected) {
                    self.in_doubt.push(number);
                    effects.frame(&link, frame::encode(PeerKind::Ping.into(), 0, number, &v1::Ping {}));
                    continue;
                }
                if call.outlives_owner(|| owner_lost(link.peer()), &mut effects.relays) {
                    continue;
                }
                effects.finish.extend(call.fail(owner_lost(link.peer())));
                effects.over.push((call.deadline, number));
                self.calls.remove(&number);
                continue;
            }
            if let Some(failure) = stood_still(&call.kind).or_else(|| unsupported(&call.kind, &*link)) {
                effects.finish.extend(call.fail(failure));
                effects.over.push((call.deadline, number));
                self.calls.remove(&number);
                continue;
            }
            let of_any_life = matches!(
                call.kind,
                Kind::Inquire { .. } | Kind::Channel { .. } | Kind::PipeConnect { .. } | Kind::Watch { .. }
            );
            if !of_any_life {
                call.expected = Some(link.incarnation());
            }
            let before = call.way();
            link.choose_way(call);
            if matches!(call.kind, Kind::Relay(_)) && (call.way() == Way::Stream || !link.passes_on()) {
                let message = format!("{} passes no tensors on", link.peer());
                effects.finish.extend(call.fail(Failure::new(Reason::Unsupported, message)));
                effects.over.push((call.deadline, number));
                self.calls.remove(&number);
                continue;
            }
            if matches!(call.kind, Kind::Map(_)) && !link.maps() {
                self.unsendable(number, &mut effects);
                continue;
            }
            if call.needs_lanes() && !call.has_lanes() && !call.leave_lanes(before) {
                let lost = "the peer takes no lanes any more, on which the first part of the tensor came";
                effects.finish.extend(call.fail(Failure::new(Reason::PeerUnreachable, lost)));
                effects.over.push((call.deadline, number));
                self.calls.remove(&number);
                continue;
            }
            if !call.has_lanes() {
                effects.finish.extend(call.end_aid());
            }
            call.sent_on = Some(link.id());
            call.sent_before = true;
            let frame = call.frame();
            match &mut call.kind {
                Kind::Map(map) if self.on_link < AT_NODE_MAX && link.maps_at_node() => {
                    map.at_node = true;
                    effects.at_node.push((Arc::clone(&link), number, frame));
                }
                _ => effects.frame(&link, frame),
            }
            self.on_link += 1;
        }
        effects
    }

    /// The lease of a redeemed ticket is needed until [`Self::end_lease`].
    pub(super) fn keep_redeemed(&mut self, call: u64, message: v1::PeerRedeem) {
        self.redeemed.insert(call, message);
    }

    /// The call that an answer on this connection belongs to.
    pub(super) fn answered(&mut self, number: u64, kind: PeerKind, link: u64) -> Option<&mut Call> {
        self.calls.get_mut(&number).filter(|call| call.sent_on == Some(link) && call.answer() == kind)
    }

    /// Returns whether anybody waits for the outcome of a call.
    pub(super) fn wants(&self, number: u64) -> bool {
        self.calls.get(&number).is_some_and(|call| !call.withdrawn)
    }

    /// The call has its last frame: it leaves, and the next one in line is sent. For a pull that was served, the owner is
    /// told that its lease may end.
    pub(super) fn over(&mut self, number: u64, served: bool) -> (Option<Call>, Effects<L>) {
        let Some(call) = self.calls.remove(&number) else { return (None, Effects::default()) };
        let mut effects = Effects::default();
        effects.over.push((call.deadline, number));
        if call.sent_on.is_some() {
            self.on_link -= 1;
        }
        if let (Kind::Relay(relay), Some(link)) = (&call.kind, &self.link) {
            link.want_no_more(relay.way, number);
        }
        // Of what may be had for others the word is kept until it is proven.
        if served && !call.is_receipted() {
            self.settle(&call, &mut effects);
        }
        let effects = effects.and(self.pump());
        (Some(call), effects)
    }

    /// Tells the owner that the lease of a pull may end: now, or when that life of it is back.
    fn settle(&mut self, call: &Call, effects: &mut Effects<L>) {
        let id = match &call.kind {
            Kind::Pull(pull) => pull.id,
            Kind::Map(map) => map.id,
            Kind::Redeem { id, .. } => *id,
            Kind::Small(_)
            | Kind::Inquire { .. }
            | Kind::Relay(_)
            | Kind::Channel { .. }
            | Kind::PipeConnect { .. }
            | Kind::Set { .. }
            | Kind::Watch { .. } => return,
        };
        self.end_lease((call.number, id), call.expected, false, effects);
    }

    /// Ends the lease of a pull that is over here; tells whether its tensor may be had here by others.
    pub(super) fn end_lease(
        &mut self,
        (number, id): (u64, u64),
        expected: Option<Incarnation>,
        holds: bool,
        effects: &mut Effects<L>,
    ) {
        self.redeemed.remove(&number);
        match &self.link {
            Some(link) if expected == Some(link.incarnation()) => {
                effects.frame(link, pull_done(number, id, holds));
                effects.told = Some(Arc::clone(&self.told));
            }
            Some(_) => {}
            None if expected == self.incarnation && self.owed.len() < OWED_MAX => {
                self.owed.push((number, id));
            }
            None => {}
        }
    }

    /// The caller wants no outcome but this one.
    pub(super) fn withdraw(&mut self, number: u64, failure: Failure) -> Effects<L> {
        let Some(call) = self.calls.get_mut(&number) else { return Effects::default() };
        if std::mem::replace(&mut call.withdrawn, true) {
            return Effects::default();
        }
        let mut effects = Effects::one(call.fail(failure));
        effects.over.push((call.deadline, number));
        match (&self.link, call.sent_on) {
            (Some(link), Some(on)) if on == link.id() => {
                let cancel = frame::encode(PeerKind::Cancel.into(), 0, number, &v1::Cancel {});
                effects.frame(link, cancel);
                if call.is_answered() {
                    // No last frame comes that would have to be waited for.
                    effects = effects.and(self.over(number, false).1);
                }
            }
            // On a connection that is ending: its end forgets the call.
            (_, Some(_)) => {}
            (_, None) => self.forget(number, &mut effects),
        }
        effects
    }

    /// Removes a call that is on no connection.
    fn forget(&mut self, number: u64, effects: &mut Effects<L>) {
        self.waiting.retain(|waiting| *waiting != number);
        self.in_doubt.retain(|in_doubt| *in_doubt != number);
        if let Some(call) = self.calls.remove(&number)
            && call.sent_before
        {
            self.settle(&call, effects);
        }
    }

    /// A connection is up, which is not late. The caller tells `Serve`.
    pub(super) fn adopt(&mut self, link: &Arc<L>) -> Effects<L> {
        self.lives_now(link.incarnation(), link.begun());
        // Of another connection nothing is opened any more.
        self.done_early.clear();
        self.doubt_again();
        self.offer = Some(Arc::clone(link.offer()));
        self.gpus.clear();
        self.link = Some(Arc::clone(link));
        self.lost = None;
        self.last_error.clear();
        self.no_seat = None;
        self.dial.connected();
        let mut effects = Effects { gone: self.take_inquiries(), ..Effects::default() };
        for (call, id) in std::mem::take(&mut self.owed) {
            effects.frame(link, pull_done(call, id, false));
        }
        for (call, message) in &self.redeemed {
            effects.frame(link, frame::encode(PeerKind::Redeem.into(), 0, *call, message));
        }
        effects.and(self.pump())
    }

    /// The peer says which GPUs it reaches.
    pub(super) fn reaches(&mut self, link: u64, gpus: Vec<ReachableGpu>) {
        if !self.is_present(link) {
            return;
        }
        let uuids = gpus.iter().map(|gpu| gpu.uuid).collect();
        self.offer = self.offer.take().map(|offer| Arc::new(Offer { gpus: uuids, ..(*offer).clone() }));
        self.gpus = gpus;
    }

    /// A connection has ended: what was on it waits again, or goes to the connection that took its place. Whether it was
    /// the present one.
    pub(super) fn link_ended(&mut self, link: &L, error: &str, now: Instant) -> (bool, Effects<L>) {
        let present = self.is_present(link.id());
        let mut effects = Effects::default();
        if present {
            self.link = None;
            self.lost = Some(now);
            self.last_error = error.to_owned();
            effects.gone = self.take_inquiries();
            self.doubt_again();
        }
        let mut back: Vec<u64> = self
            .calls
            .values()
            .filter(|call| call.sent_on == Some(link.id()))
            .map(|call| call.number)
            .collect();
        if present {
            self.end_passing(error, &mut effects);
        }
        // The order in which they were asked.
        back.sort_unstable();
        self.on_link -= back.len();
        let mut complete = Vec::new();
        for number in back.into_iter().rev() {
            let Some(call) = self.calls.get_mut(&number) else { continue };
            call.sent_on = None;
            if call.ends_with_link() {
                // What it was for goes on from elsewhere at once; bytes from a holder, where that is still there, from it.
                let replaced = !present && matches!(call.kind, Kind::Relay(_));
                let why = if replaced { Reason::Cancelled } else { Reason::PeerUnreachable };
                effects.finish.extend(call.fail(Failure::new(why, error)));
                effects.over.push((call.deadline, number));
                self.forget(number, &mut effects);
            } else if call.withdrawn {
                self.forget(number, &mut effects);
            } else if call.is_complete() {
                complete.push(number);
            } else {
                self.waiting.push_front(number);
            }
        }
        for number in complete.into_iter().rev() {
            effects = effects.and(self.finish_whole(number));
        }
        (present, effects.and(self.pump()))
    }

    /// Ends what only this connection was for, and what was not asked yet: it can be had elsewhere, or done without.
    fn end_passing(&mut self, error: &str, effects: &mut Effects<L>) {
        for number in self.waiting.clone() {
            let Some(call) = self.calls.get_mut(&number).filter(|call| call.is_passing()) else {
                continue;
            };
            effects.finish.extend(call.fail(Failure::new(Reason::PeerUnreachable, error)));
            effects.over.push((call.deadline, number));
            self.forget(number, effects);
        }
    }

    /// Takes the inquiries on a connection that is no more: nobody waits for the answers.
    fn take_inquiries(&mut self) -> Vec<Cancel> {
        self.inquiries.drain().map(|(_, inquiry)| inquiry.gone).collect()
    }

    /// An attempt to connect failed: calls that were never sent and were there before it are not kept waiting, unless
    /// the peer was lost only just now. Those that were sent wait as long as the peer keeps their leases.
    pub(super) fn dial_failed(
        &mut self,
        attempt: u64,
        error: &str,
        patience: Patience,
        now: Instant,
    ) -> Effects<L> {
        // One that began before a connection came says nothing of the peer any more.
        if attempt > self.dial.reached {
            self.last_error = error.to_owned();
            self.no_seat = None;
        }
        let mut effects = Effects::default();
        let lost_for = self.away(now);
        if self.link.is_some() || lost_for.is_some_and(|time| time < patience.progress) {
            return effects;
        }
        let forgotten = lost_for.is_none_or(|time| time >= patience.grace);
        let stuck: Vec<u64> = self.waiting.iter().copied().collect();
        for number in stuck {
            let Some(call) = self.calls.get_mut(&number) else { continue };
            let waits = match call.sent_before {
                true => !forgotten || call.continues_without_owner(),
                false => call.attempt >= attempt,
            };
            if waits {
                continue;
            }
            effects.finish.extend(call.fail(Failure::new(Reason::PeerUnreachable, error)));
            effects.over.push((call.deadline, number));
            self.forget(number, &mut effects);
        }
        effects
    }

    /// The peer has been away for as long as it keeps our leases: what was under way is over, but for what a holder brings. An
    /// attempt to connect that is still waiting for an answer changes nothing of that.
    pub(super) fn give_up_lost(&mut self, grace: Duration, now: Instant) -> Effects<L> {
        let mut effects = Effects::default();
        let Some(away) = self.away(now) else { return effects };
        // Whoever has no seat is there: calls wait until their deadlines.
        if self.link.is_some() || away < grace || self.no_seat.is_some() {
            return effects;
        }
        let error = match self.last_error.as_str() {
            "" => format!("the connection was lost {:.1} s ago and has not come back", away.as_secs_f64()),
            error => error.to_owned(),
        };
        for number in self.waiting.clone() {
            if self.calls.get(&number).is_some_and(|call| call.sent_before && !call.continues_without_owner())
            {
                let failure = Failure::new(Reason::PeerUnreachable, error.clone());
                effects = effects.and(self.withdraw(number, failure));
            }
        }
        effects
    }

    /// The peer refused us: calls that wait for a connection fail, even if they were on one before.
    pub(super) fn refused(&mut self, failure: &Failure) -> Effects<L> {
        let mut effects = Effects::default();
        if self.link.is_none() {
            for number in self.waiting.clone() {
                effects = effects.and(self.withdraw(number, failure.clone()));
            }
        }
        effects
    }

    /// Every call fails: we are going away, or the peer has left the exchange.
    pub(super) fn fail_all(&mut self, failure: &Failure) -> Effects<L> {
        let mut effects = Effects::default();
        let numbers: Vec<u64> = self.calls.keys().copied().collect();
        for number in numbers {
            effects = effects.and(self.withdraw(number, failure.clone()));
        }
        effects
    }
}

/// Why that is not asked again as it was: who still has time asks for each tensor by itself.
fn stood_still(kind: &Kind) -> Option<Failure> {
    let stood = matches!(kind, Kind::Small(small) if small.stood_still);
    let message = "the connection to the owner stood still while the tensor was due on it";
    stood.then(|| Failure::new(Reason::DeadlineExceeded, message))
}

/// Why a peer of an earlier release cannot be asked that.
fn unsupported<L: Carrier>(kind: &Kind, link: &L) -> Option<Failure> {
    match kind {
        Kind::Channel { .. } if !link.has_channels() => Some(channels::unsupported(link.peer())),
        Kind::PipeConnect { .. } if !link.has_pipes() => Some(pipe_calls::unsupported(link.peer())),
        Kind::Set { .. } if !link.takes_sets() => {
            let message = format!(
                "{} runs an earlier release, which knows no mutable sets; update its sidecar",
                link.peer()
            );
            Some(Failure::new(Reason::Unsupported, message))
        }
        Kind::Set { message, .. }
            if matches!(message.kind, Some(v1::set_call::Kind::Snapshot(_)))
                && !link.takes_set_snapshots() =>
        {
            let message = format!(
                "{} runs an earlier release, which takes no snapshots of mutable sets; update its sidecar",
                link.peer()
            );
            Some(Failure::new(Reason::Unsupported, message))
        }
        Kind::Redeem { .. } | Kind::Watch { .. } if !link.takes_questions() => {
            Some(questions::unsupported(link.peer()))
        }
        _ => None,
    }
}

fn owner_lost(peer: &PeerName) -> Failure {
    Failure::new(
        Reason::OwnerLost,
        format!(
            "the incarnation of {peer} that owned the tensor is gone, and the tensor with it; ask for a new reference"
        ),
    )
}
