//! Ways `lanes` and `quic`: connections, or streams of one, of their own for the bytes of large pulls, bound to a control
//! connection and ended with it.
//!
//! ```text
//!   pull ── Transfer (pieces, landing of several writers) ──┐
//!   pull ── Transfer ───────────────────────────────────────┴─ PieceQueue ──┬─ read ── Wire ~~~~ Wire ── serve ──┐
//!                                                                     └─ read ── Wire ~~~~ Wire ── serve ──┴─ Serving
//! ```
//! The reader plans (`pieces`, `schedule`, `opening`: plain data), the owner answers. This module knows pulls by the number
//! of their call; what is leased and when a call is over is decided on the control connection.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::frame::{self, FrameError, PeerKind};
use tensorlane_proto::generated as v1;

use super::{Suits, Transport, Way};
use crate::peer::calls::PullCall;
use crate::peer::link::Link;
use crate::peer::lost::HolderLost;
use crate::peer::outbox::Outbox;
use crate::peer::paths::FallBack;
use crate::peer::record_writer::OutgoingPull;
use crate::peer::relay;
use crate::peer::send_error::SendError;
use crate::peer::shared::Shared;
use crate::peer::standstill::FEW_BYTES;

pub(in crate::peer) mod bind;
mod bound;
mod claims;
pub(in crate::peer) mod key;
mod moved;
mod opening;
pub(in crate::peer) mod pieces;
mod plain;
mod pool;
mod queued;
pub(in crate::peer) mod quic;
mod read;
mod room;
pub(in crate::peer) mod schedule;
mod serve;
mod tls;
mod transfer;
mod wire;

use bound::{Bound, Up};
use key::{LaneKey, LaneName};
use moved::LastMoved;
use opening::LaneDialer;
#[cfg(test)]
pub(in crate::peer) use pieces::GRANULE;
use pool::PieceQueue;
pub(in crate::peer) use pool::Wanted;
use quic::QuicConnection;
pub(in crate::peer) use room::Room;
use serve::Serving;
pub(in crate::peer) use transfer::{Forged, Landed, Reclaimed, Transfer};
use wire::{LaneEnd, Wire};

/// Time without a word of the other end after which it is asked for one, while lanes bring nothing.
const UNHEARD: Duration = Duration::from_millis(250);

/// Configuration of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanesConfig {
    /// Number of lanes in each direction of a pair, at most [`frame::LANES_MAX`]; 0 for none. Each costs a thread and
    /// up to half a MiB at both ends while it is up.
    pub count: usize,
    /// The bytes from which on a pull comes on lanes: below, asking for pieces costs more than lanes bring.
    pub from: u64,
    /// The bytes from which on a pull comes on plain lanes: they spare sealing and opening, which costs more than asking for pieces.
    pub plain_from: u64,
    /// True if lanes may be plain. They are where both ends say so.
    pub plain: bool,
    /// Number of lanes of all pairs together, both directions and those on QUIC included. A further one is refused.
    pub most: usize,
    /// Number of lanes on QUIC in each direction of a pair, at most [`frame::LANES_MAX`]; 0 for no QUIC. Each costs a
    /// thread at both ends while it is up, and up to 8 MiB where its thread is slower than the link; all together 64
    /// MiB more where links have a long delay.
    pub quic: usize,
    /// Time for which a lane without work stays. Opening one costs a handshake.
    pub idle: Duration,
    /// Time that pulls wait when no lane comes, at most; a pull waits for no more than a quarter of the time it has
    /// left. Then they go on without.
    pub patience: Duration,
    /// Time for which no byte may move on a lane while some are due; no longer than the connection itself may stand still. More
    /// costs a pull that much where a lane is dead.
    pub progress: Duration,
}

impl Default for LanesConfig {
    /// Two lanes in TLS and no QUIC, 256 of all pairs, from 8 MiB (256 KiB if they are plain), for a minute; 2 seconds of patience
    /// and 2 without a byte.
    fn default() -> Self {
        let (idle, patience, progress) =
            (Duration::from_secs(60), Duration::from_secs(2), Duration::from_secs(2));
        let (from, plain_from) = (8 << 20, 256 << 10);
        Self { count: 2, from, plain_from, plain: false, most: 256, quic: 0, idle, patience, progress }
    }
}

/// Agreement of two ends in their Hellos about lanes of one kind.
pub(in crate::peer) struct Agreed {
    pub(in crate::peer) key: LaneKey,
    pub(in crate::peer) count: usize,
    pub(in crate::peer) carrier: Carrier,
}

/// Carrier that lanes are made of.
pub(in crate::peer) enum Carrier {
    /// Connections in TLS.
    Tls,
    /// Plain connections.
    Plain,
    /// Streams of this one.
    Quic(Box<QuicConnection>),
}

/// The lanes of one kind of one control connection.
pub(in crate::peer) struct Lanes {
    key: LaneKey,
    carrier: Carrier,
    count: usize,
    config: LanesConfig,
    shared: Weak<Shared>,
    link: Weak<Link>,
    outbox: Arc<Outbox>,
    pool: PieceQueue,
    serving: Serving,
    /// Dialer of the lanes that we read on.
    opening: Mutex<LaneDialer>,
    /// Time at which a byte last came on one that we read on.
    moved: Arc<LastMoved>,
    up: Mutex<Up>,
}

impl Lanes {
    pub(in crate::peer) fn new(
        agreed: Agreed,
        shared: &Arc<Shared>,
        link: &Weak<Link>,
        outbox: &Arc<Outbox>,
    ) -> Self {
        let config = shared.config.lanes;
        Self {
            key: agreed.key,
            carrier: agreed.carrier,
            count: agreed.count,
            config,
            shared: Arc::downgrade(shared),
            link: Weak::clone(link),
            outbox: Arc::clone(outbox),
            pool: PieceQueue::new(config.idle),
            serving: Serving::default(),
            opening: Mutex::new(LaneDialer::new(agreed.count, config.patience, bind::progress(shared))),
            moved: Arc::default(),
            up: Mutex::default(),
        }
    }

    /// Returns whether what they carry can be read on the wire.
    pub(in crate::peer) fn is_plain(&self) -> bool {
        matches!(self.carrier, Carrier::Plain)
    }

    /// The QUIC connection that they are streams of.
    pub(in crate::peer) fn quic_connection(&self) -> Option<&QuicConnection> {
        match &self.carrier {
            Carrier::Quic(quic) => Some(quic),
            Carrier::Tls | Carrier::Plain => None,
        }
    }

    /// Bytes that a lane should have asked for, where the way is so long that two pieces are few. Nothing where that is not
    /// known, as of connections.
    fn ahead(&self) -> u64 {
        self.quic_connection().map_or(0, QuicConnection::ahead)
    }

    /// Opens what is missing, if there is work for it.
    fn open(&self, shared: &Arc<Shared>, link: &Arc<Link>) {
        let missing = self.opening.lock().missing(Instant::now());
        if missing.is_empty() {
            return;
        }
        if link.dialed {
            missing
                .into_iter()
                .for_each(|number| self.dial(shared, link, LaneName { number, serves: false }));
            return;
        }
        if self.are_shut_out() {
            shared.counters.lanes_refused.add("read");
            let mut opening = self.opening.lock();
            return missing.into_iter().for_each(|number| opening.failed(number, Instant::now()));
        }
        let missing = missing.into_iter().map(u32::from).collect();
        // Version 2 before QUIC says nothing of the way, and means the lanes that it knows.
        let way = if self.way() == Way::Quic { v1::Way::Quic } else { v1::Way::Stream };
        let small_segments = self.segment(link).is_some();
        let lanes = v1::Lanes { missing, way: way.into(), small_segments };
        link.submit(frame::encode(PeerKind::Lanes.into(), 0, 0, &lanes));
    }

    /// The other end wants to read on lanes that we dial.
    pub(in crate::peer) fn wanted(
        &self,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        lanes: &v1::Lanes,
    ) -> Result<(), FrameError> {
        let wrong = FrameError::Malformed(PeerKind::Lanes.into());
        if !link.dialed || lanes.missing.len() > self.count {
            return Err(wrong);
        }
        if lanes.missing.is_empty() {
            self.asked_to_be_ready(shared, link);
        }
        if lanes.small_segments {
            link.peer.standstill.lock().peer_asks_for_small(Instant::now());
        }
        for number in &lanes.missing {
            let number = u8::try_from(*number).ok().filter(|number| usize::from(*number) < self.count);
            self.dial(shared, link, LaneName { number: number.ok_or(wrong)?, serves: true });
        }
        Ok(())
    }

    /// Starts a thread that dials a lane and runs it, if it is to be dialed.
    fn dial(&self, shared: &Arc<Shared>, link: &Arc<Link>, name: LaneName) {
        if !self.begins_to_dial(shared, name) {
            return;
        }
        let thread = if name.serves { "tl-lane-out" } else { "tl-lane-in" };
        let (on_thread, dialed, way) = (Arc::clone(shared), Arc::clone(link), self.way());
        let spawned = shared.spawn(thread, move || {
            if let Some(lanes) = dialed.ways.lanes_of(way) {
                let dial = || bind::dial(&on_thread, &dialed, lanes, name);
                if on_thread.caught("lane", dial).is_none() {
                    lanes.missed(name);
                }
            }
        });
        if !spawned {
            self.missed(name);
        }
    }

    fn run(&self, shared: &Arc<Shared>, link: &Arc<Link>, bound: &Bound<'_>, wire: &mut dyn Wire) -> LaneEnd {
        shared.counters.lanes_opened.add(if bound.reads { "read" } else { "serve" });
        if bound.reads {
            read::Reader { shared, link, lanes: self, id: bound.id, number: bound.name.number }.run(wire)
        } else {
            let serve = || serve::run(shared, link, self, bound.name.number, wire);
            shared.caught("lane serves", serve).unwrap_or_else(LaneEnd::broke_off)
        }
    }

    /// Tells its call what came of a piece.
    fn settle(&self, shared: &Shared, link: &Link, wanted: &Wanted, landed: Landed) {
        let owner = wanted.asker.as_ref().map_or(&link.peer, |asker| &asker.owner);
        let effects = match landed {
            Landed::More => return,
            Landed::Told(finish) => return finish(),
            Landed::Whole(landing) => {
                if self.quic_connection().is_none() {
                    link.peer.standstill.lock().lanes_came(Instant::now());
                }
                owner.state.lock().whole(&wanted.transfer, landing)
            }
            Landed::Altered(range, lane) => {
                self.cut(lane, LaneEnd::Altered(range.clone()));
                return read::altered(shared, link, wanted, &range);
            }
            Landed::Forged(forged) => return relay::forged(shared, forged),
        };
        shared.perform(effects);
    }

    /// Brings bytes of a pull whose owner is not the other end.
    pub(in crate::peer) fn want(&self, wanted: Wanted) {
        if let Some(quic) = self.quic_connection() {
            quic.expect(true);
        }
        self.pool.add(wanted);
    }

    /// Brings no more bytes for a call; those that were asked for may still come.
    pub(in crate::peer) fn want_no_more(&self, call: u64) {
        self.pool.remove(call);
    }

    /// The owner says what bytes of a plain lane sum to. Of a pull that is over it may come late.
    pub(in crate::peer) fn sum(
        &self,
        shared: &Shared,
        link: &Link,
        call: u64,
        body: &[u8],
    ) -> Result<(), FrameError> {
        if !self.is_plain() {
            return Err(FrameError::OutOfPlace(PeerKind::Sum.into()));
        }
        let (offset, length, crc32c) = serve::sum(body)?;
        let Some(wanted) = self.pool.find(call) else { return Ok(()) };
        let landed = wanted.transfer.sum(offset, length, crc32c);
        let landed = landed.ok_or(FrameError::OutOfPlace(PeerKind::Sum.into()))?;
        self.settle(shared, link, &wanted, landed);
        Ok(())
    }

    /// Bytes of the segments of a lane that is opened now, where they are to be small.
    fn segment(&self, link: &Link) -> Option<u32> {
        let is_beside = self.opening.lock().is_up();
        link.peer.standstill.lock().segment_of_lane(Instant::now(), is_beside)
    }

    /// Returns whether a pull of so many bytes is too small for lanes. Where large amounts have stood still, those of medium size
    /// come on lanes, too, so that few bytes stand before small calls.
    fn is_small(&self, bytes: u64) -> bool {
        let is_wary = |link: Arc<Link>| link.peer.standstill.lock().is_wary(Instant::now());
        let is_medium = bytes > FEW_BYTES;
        let from = if self.is_plain() { self.config.plain_from } else { self.config.from };
        bytes < from && !(is_medium && self.link.upgrade().is_some_and(is_wary))
    }

    /// Pulls have waited in vain. Where lanes were up for long and brought no byte, and the control connection was heard meanwhile,
    /// this is noted, the other transport is for the next ones, and the lanes begin anew with small segments. Returns whether
    /// they do: once.
    fn begins_anew(&self, link: &Link, tired: &[Wanted], now: Instant) -> bool {
        let mut opening = self.opening.lock();
        let (still, is_mute) = (opening.still(), opening.is_mute(self.moved.at(), now));
        // A network that carries nothing at all loses no packets of full size in particular.
        let is_heard = link.unheard() <= still * 3 / 4;
        let Some(first) = tired.iter().find(|wanted| wanted.asker.is_none()).filter(|_| is_mute && is_heard)
        else {
            return false;
        };
        link.peer.standstill.lock().lanes_were_mute(
            self.way() == Way::Quic,
            still,
            first.transfer.came_of(),
            now,
        );
        if self.way() != Way::Lanes || !opening.begins_anew() {
            return false;
        }
        drop(opening);
        if link.ways.quic().is_some_and(|quic| quic.suits(u64::MAX) == Suits::Yes) {
            link.peer.goodput.lock().failed(tensorlane_proto::Transport::Tcp, now);
        }
        tracing::warn!(peer = %link.peer.name, "TCP lanes come up and bring nothing: they begin anew with small segments");
        self.cut_readers();
        true
    }

    /// Pulls that have waited too long for a lane come another way.
    fn give_up(&self, shared: &Shared, link: &Arc<Link>, tired: &[Wanted]) {
        let (from, to) = (self.way(), link.ways.instead_of(self.way()));
        for wanted in tired {
            if let Some(asker) = &wanted.asker {
                self.pool.remove(wanted.call);
                // Whoever comes next does not wait for lanes that do not come.
                self.opening.lock().give_up(Instant::now());
                relay::lose(shared, asker, HolderLost::Stalled);
                continue;
            }
            let transfer = &wanted.transfer;
            // Before its way is another one, so that no lane of this one asks in between.
            self.pool.remove(transfer.call);
            let fallen = link.peer.state.lock().fall_back(link, transfer, to);
            let Some((why, effects)) = fallen else {
                // A lane still writes: as soon as none does, and none begins meanwhile, it is tried again.
                transfer.leave(true);
                self.pool.add(wanted.clone());
                continue;
            };
            transfer.leave(false);
            let is_over = self.opening.lock().give_up(Instant::now());
            if is_over && from == Way::Quic {
                link.peer.goodput.lock().failed(tensorlane_proto::Transport::Quic, Instant::now());
            }
            shared.counters.fallbacks.add(why.as_str());
            let (call, reason) = (transfer.call, why.as_str());
            let (from, to) = (from.as_str(), to.as_str());
            tracing::warn!(peer = %link.peer.name, call, reason, from, to, "a pull goes on another way");
            shared.perform(effects);
            if !link.peer.state.lock().wants(call) {
                // Whoever withdrew it meanwhile may have done so before it was asked for again.
                link.submit(frame::encode(PeerKind::Cancel.into(), 0, call, &v1::Cancel {}));
            }
        }
    }
}

impl Transport for Lanes {
    fn way(&self) -> Way {
        match self.carrier {
            Carrier::Tls | Carrier::Plain => Way::Lanes,
            Carrier::Quic(_) => Way::Quic,
        }
    }

    fn suits(&self, bytes: u64) -> Suits {
        if self.is_small(bytes) || bytes == 0 {
            return Suits::No;
        }
        if self.are_shut_out() {
            return Suits::Missed(FallBack::LanesFull);
        }
        match self.opening.lock().can_use_lanes(Instant::now()) {
            true => Suits::Yes,
            false => Suits::Missed(FallBack::LanesCooldown),
        }
    }

    fn serve(&self, head: Vec<u8>, bulk: OutgoingPull) -> Result<(), SendError> {
        self.serving.open(bulk);
        self.outbox.submit(head)
    }

    fn close(&self, call: u64, _end: Option<Vec<u8>>) -> Result<(), SendError> {
        // The head was the only answer on the control connection.
        self.serving.close(call);
        Ok(())
    }

    fn bring(&self, call: u64, deadline: Instant, pull: &mut PullCall) {
        if let Some(transfer) = &pull.transfer {
            transfer.forget_sums();
        }
        let Some(transfer) = pull.transfer(call, deadline) else { return };
        transfer.leave(false);
        if let Some(quic) = self.quic_connection() {
            quic.expect(true);
        }
        self.pool.add(Wanted::of(&transfer));
    }

    fn tend(&self) -> Option<Instant> {
        let (shared, link) = (self.shared.upgrade()?, self.link.upgrade()?);
        if let Some(quic) = self.quic_connection() {
            quic.look(&shared.counters, bind::progress(&shared), self.is_used());
        }
        let (now, mut waiting) = (Instant::now(), self.pool.under_way());
        if let Some(quic) = self.quic_connection() {
            quic.expect(!waiting.is_empty());
        }
        let without = self.opening.lock().without(now, !waiting.is_empty());
        if let Some(since) = without {
            if link.unheard() >= UNHEARD {
                link.ask();
            }
            let is_tired = |wanted: &Wanted| wanted.transfer.waits_until(since, self.config.patience) <= now;
            let (tired, patient): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_tired);
            waiting = patient;
            if !tired.is_empty() && self.begins_anew(&link, &tired, now) {
                waiting.extend(tired);
            } else {
                self.give_up(&shared, &link, &tired);
            }
            waiting.iter().for_each(|wanted| wanted.transfer.leave(false));
        } else {
            // Lanes bring something again.
            waiting.iter().for_each(|wanted| wanted.transfer.leave(false));
        }
        if waiting.is_empty() {
            return None;
        }
        if let Some(before) = now.checked_sub(self.config.patience) {
            waiting.iter().for_each(|wanted| wanted.transfer.forget_unsummed(before));
        }
        // That, and a lane of the connection before, may have given something back.
        self.pool.stir();
        self.open(&shared, &link);
        let since = self.opening.lock().without(now, true).filter(|_| without.is_some())?;
        waiting.iter().map(|wanted| wanted.transfer.waits_until(since, self.config.patience)).min()
    }

    fn end(&self) {
        self.pool.end();
        // Before the pulls are closed: an ask that finds none is refused, and the other end would take that for an answer.
        self.cut_all();
        self.serving.close_all();
        if let Some(quic) = self.quic_connection() {
            quic.end();
        }
    }
}
