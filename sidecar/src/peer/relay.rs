//! Bytes of a pull from a holder that is not the owner: what is asked of it, and what is done when it does not do.
//!
//! ```text
//!   owner:   Pull ──> head with holders ─────────────────── Seek (that one is lost) ──> Sought ─ ... ──> PullDone
//!                       │                                     ^
//!   holder:             '─ Pull of the owner's tensor ─ lanes ┘ refused, lost, stalled, starved
//! ```
//! The pull stays the owner's: its lease, head, end and deadline are on the control connection with the owner (`remote/alone` says
//! what becomes of it without one). A holder brings bytes into the transfer of that pull, and is let go as soon as it does not. Nothing
//! it says is believed but bytes, and of those each granule only when it has the hash that the owner says (`Proofs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation, PeerName, Transport};

use super::api::PeerKey;
use super::calls::{Finish, Kind};
use super::floor::RateFloor;
use super::lost::HolderLost;
use super::partial::RelayToken;
use super::peers::CallHandle;
use super::remote::Peer;
use super::shared::Shared;
use super::transport::Way;
use super::transport::lanes::{Forged, Transfer, Wanted};

/// The first version of the protocol with holders.
pub(super) const HOLDERS_SINCE: u32 = 3;
/// Time that a holder may take to be connected and to answer: a pull is not held up for longer by one that is away.
const OPENING: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 2 });
/// Time for which a holder may say that it has nothing yet.
const STARVED: Duration = Duration::from_secs(6);
/// Time for which a holder that had nothing is not asked again while there are other pieces to be asked for: as long as
/// the question would hold up its lane.
const REST: Duration = Duration::from_millis(100);

/// A pull of ours that a holder brings bytes for.
pub(super) struct RelaySession {
    /// The owner.
    pub(super) owner: Arc<Peer>,
    /// The number of the pull there.
    pub(super) call: u64,
    /// Number of this holder among those of that pull.
    pub(super) turn: u32,
    pub(super) holder: PeerKey,
    state: Mutex<Bringing>,
    /// Set once the holder did not have something that it was asked for.
    behind: AtomicBool,
    /// Set if the holder had less time than others get: that it did not do says nothing for them.
    hurried: AtomicBool,
    /// Set once it sent other bytes than the owner's.
    forged: AtomicBool,
}

/// Bytes that a holder has brought, and when.
struct Bringing {
    /// Time at which the holder last had something.
    fed: Instant,
    /// Time at which the holder last had nothing, if it has had nothing since.
    hungry: Option<Instant>,
    floor: RateFloor,
}

impl RelaySession {
    pub(super) fn new(owner: &Arc<Peer>, call: u64, turn: u32, holder: PeerKey) -> Arc<Self> {
        let (owner, now) = (Arc::clone(owner), Instant::now());
        let state = Mutex::new(Bringing { fed: now, hungry: None, floor: RateFloor::new(now) });
        let [behind, hurried, forged] = std::array::from_fn(|_| AtomicBool::new(false));
        Arc::new(Self { owner, call, turn, holder, state, behind, hurried, forged })
    }

    /// The holder is getting it itself, and we are as far as it is.
    pub(super) fn falls_behind(&self, now: Instant) {
        self.behind.store(true, Ordering::Relaxed);
        self.state.lock().hungry = Some(now);
    }

    /// Returns whether it had nothing just now, so that it is asked again only if there is nothing else to ask for.
    pub(super) fn rests(&self, now: Instant) -> bool {
        let hungry = self.state.lock().hungry;
        hungry.is_some_and(|since| now.saturating_duration_since(since) < REST)
    }

    /// The holder sent other bytes than the owner's: nothing more is asked of it.
    pub(super) fn has_been_found(&self) {
        self.forged.store(true, Ordering::Relaxed);
    }

    /// Returns whether the holder sent other bytes than the owner's.
    pub(super) fn is_forger(&self) -> bool {
        self.forged.load(Ordering::Relaxed)
    }

    /// Returns whether pieces are to be as small as they can, so that each is there soon.
    pub(super) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// The holder sent something.
    pub(super) fn fed(&self, bytes: u64) {
        let now = Instant::now();
        let mut state = self.state.lock();
        (state.fed, state.hungry) = (now, None);
        state.floor.came(bytes, now);
    }

    /// Returns whether at its rate so many bytes come too late for the deadline.
    pub(super) fn is_too_slow(&self, left: u64, deadline: Instant) -> bool {
        left > 0 && self.state.lock().floor.is_too_slow(left, Instant::now(), deadline)
    }

    /// Returns whether it has had nothing for too long, for somebody who can wait for `most`.
    pub(super) fn is_starved(&self, most: Duration) -> bool {
        self.state.lock().fed.elapsed() >= STARVED.min(most)
    }
}

/// The holder that a pull has now.
pub(super) struct RelayFetch {
    pub(super) asker: Arc<RelaySession>,
    /// None for a moment, until it was asked.
    pub(super) handle: Option<CallHandle>,
    /// Set if the holder was asked for a copy alone.
    pub(super) whole: bool,
}

/// A holder is to be asked.
pub(super) struct RelayOrder {
    pub(super) asker: Arc<RelaySession>,
    pub(super) owner: PeerKey,
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) pass: RelayToken,
    pub(super) transfer: Arc<Transfer>,
    pub(super) transport: Transport,
    /// Set if bytes from the owner cannot be read on the wire: then nothing may.
    pub(super) encrypted: bool,
    /// Set if the holder is asked for a copy alone: the owner has not said that it may be waited for.
    pub(super) whole: bool,
    pub(super) deadline: Instant,
}

/// Call that asks a holder.
pub(super) struct RelayCall {
    wish: RelayOrder,
    pub(super) way: Way,
    pub(super) opened: bool,
    lost: Option<Box<dyn FnOnce(HolderLost) + Send>>,
}

impl RelayCall {
    #[cfg(test)]
    pub(super) fn for_test(wish: RelayOrder, lost: Box<dyn FnOnce(HolderLost) + Send>) -> Self {
        Self { wish, way: Way::Lanes, opened: true, lost: Some(lost) }
    }

    pub(super) fn message(&self) -> v1::Pull {
        let RelayOrder { owner, id, bytes, pass, whole, .. } = &self.wish;
        let owner = Some(life(owner));
        let (way, pass) = (v1::Way::from(self.way).into(), pass.to_vec().into());
        v1::Pull { id: *id, bytes: *bytes, way, owner, pass, whole: *whole, ..v1::Pull::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.wish.bytes
    }

    pub(super) fn transport(&self) -> Transport {
        self.wish.transport
    }

    pub(super) fn encrypted(&self) -> bool {
        self.wish.encrypted
    }

    /// Until when the bytes are wanted.
    pub(super) fn deadline(&self) -> Instant {
        self.wish.deadline
    }

    /// The part that lanes are to bring.
    pub(super) fn wanted(&self, call: u64) -> Wanted {
        Wanted { call, transfer: Arc::clone(&self.wish.transfer), asker: Some(Arc::clone(&self.wish.asker)) }
    }

    /// Gives the holder up.
    pub(super) fn fail(&mut self, failure: &Failure) -> Option<Finish> {
        use tensorlane_proto::Reason;
        let lost = self.lost.take()?;
        let away =
            [Reason::PeerUnreachable, Reason::PeerUnknown, Reason::DeadlineExceeded, Reason::OwnerLost];
        let why = match failure.reason {
            // There are no lanes to it now: ours may be too many.
            Reason::Unsupported => HolderLost::Cooldown,
            // Its connection is another one.
            Reason::Cancelled => HolderLost::Replaced,
            reason if away.contains(&reason) => HolderLost::Unreachable,
            _ => HolderLost::Refused,
        };
        Some(Box::new(move || lost(why)))
    }
}

/// Asks a holder. Called without locks.
pub(super) fn begin(shared: &Arc<Shared>, wish: RelayOrder) {
    let PeerKey { name, incarnation } = &wish.asker.holder;
    let peer = shared.known_peer(name);
    if peer.is_some_and(|peer| peer.shunned.lock().is(*incarnation, Instant::now())) {
        return lose(shared, &wish.asker, HolderLost::Cooldown);
    }
    let (asker, again) = (Arc::clone(&wish.asker), Arc::downgrade(shared));
    let told = Arc::clone(&asker);
    let lost: Box<dyn FnOnce(HolderLost) + Send> = Box::new(move |why| {
        if let Some(shared) = Weak::upgrade(&again) {
            lose(&shared, &told, why);
        }
    });
    let now = Instant::now();
    let allowance = wish.transfer.allowance(now);
    asker.hurried.store(allowance < OPENING, Ordering::Relaxed);
    let deadline = now + OPENING.min(allowance);
    let PeerKey { name, incarnation } = asker.holder.clone();
    let call = RelayCall { wish, way: Way::Lanes, opened: false, lost: Some(lost) };
    let handle = shared.call(&name, Some(incarnation), deadline, Kind::Relay(Box::new(call)));
    let kept = asker.owner.state.lock().relayed(&asker, handle.clone());
    if !kept {
        // It was lost at once, or nobody wants the pull any more.
        handle.cancel();
    }
}

/// A holder does not do: its pull goes on with another one, or with the owner. Nothing where it was let go before. Called
/// without locks.
pub(super) fn lose(shared: &Shared, asker: &RelaySession, why: HolderLost) {
    let effects = asker.owner.state.lock().relay_lost(asker, why);
    let Some(effects) = effects else { return };
    let shuns = why.is_for_a_while() && !asker.hurried.load(Ordering::Relaxed);
    if let Some(peer) = shared.known_peer(&asker.holder.name).filter(|_| shuns) {
        peer.shunned.lock().lost(asker.holder.incarnation, Instant::now());
    }
    shared.counters.holders_lost.add(why.as_str());
    let (owner, holder, reason) = (&asker.owner.name, &asker.holder.name, why.as_str());
    tracing::info!(%owner, %holder, reason, "a pull goes on from elsewhere");
    shared.perform(effects);
}

/// Holders have sent what is not the owner's: none of it was used, and they are asked no more for this tensor. Called without locks.
pub(super) fn forged(shared: &Shared, forged: Vec<Forged>) {
    for Forged { by, granules } in forged {
        shared.counters.forged.fetch_add(granules, Ordering::Relaxed);
        let (owner, holder) = (&by.owner.name, &by.holder.name);
        tracing::warn!(%owner, %holder, granules, "a peer sent other bytes of a tensor than its owner has; they come again");
        lose(shared, &by, HolderLost::Altered);
    }
    // Somebody else may have been asked for the rest, and has nothing to do.
    shared.scheduler.wake();
}

/// As the wire has it.
pub(super) fn life(key: &PeerKey) -> v1::Life {
    let (peer, incarnation) = (key.name.to_string(), key.incarnation.to_string());
    v1::Life { peer, incarnation, ..v1::Life::default() }
}

/// Several keys as the wire has them.
pub(super) fn lives(keys: &[PeerKey]) -> Vec<v1::Life> {
    keys.iter().map(life).collect()
}

/// As we have it.
pub(super) fn key(life: &v1::Life) -> Option<PeerKey> {
    let name = PeerName::new(&life.peer).ok()?;
    let incarnation: Incarnation = life.incarnation.parse().ok()?;
    Some(PeerKey { name, incarnation })
}
