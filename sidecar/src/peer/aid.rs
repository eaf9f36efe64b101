//! Bytes of a pull from a holder that is not the owner: what is asked of it, and what is done when it does not do.
//!
//! ```text
//!   owner:   Pull ──> head with holders ─────────────────── Seek (that one is lost) ──> Sought ─ ... ──> PullDone
//!                       │                                     ^
//!   holder:             '─ Pull of the owner's tensor ─ lanes ┘ refused, lost, stalled, starved
//! ```
//! The pull stays the owner's: its lease, head, end and deadline are on the control connection with the owner. A holder brings
//! bytes into the transfer of that pull, and is let go as soon as it does not. Nothing it says is believed but bytes, and
//! those only when all of them have the checksum that the owner says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation, PeerName, Transport};

use super::api::PeerKey;
use super::calls::{Finish, Kind};
use super::growth::Pass;
use super::peers::CallHandle;
use super::remote::Peer;
use super::shared::Shared;
use super::transport::Way;
use super::transport::lanes::{Transfer, Wanted};

/// The first version of the protocol with holders.
pub(super) const HOLDERS_SINCE: u32 = 3;
/// How long a holder may take to be connected and to answer: a pull is not held up for longer by one that is away.
const OPENING: Duration = Duration::from_secs(2);
/// How long a holder may say that it has nothing yet.
const STARVED: Duration = Duration::from_secs(6);

/// Why a pull does not go on from a holder. The words are for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderLost {
    /// It was not reached, or its connection ended.
    Unreachable,
    /// It has no such tensor, or does not give it to us.
    Refused,
    /// No byte came though some were due.
    Stalled,
    /// It lives, and had nothing for too long.
    Starved,
    /// It sent other bytes than it summed.
    Altered,
}

impl HolderLost {
    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Starved => "starved",
            Self::Altered => "altered",
        }
    }
}

/// A pull of ours that a holder brings bytes for.
pub(super) struct Asker {
    /// The owner.
    pub(super) owner: Arc<Peer>,
    /// The number of the pull there.
    pub(super) call: u64,
    /// Which of the holders of that pull this is.
    pub(super) turn: u32,
    pub(super) holder: PeerKey,
    /// When the holder last had something.
    fed: Mutex<Instant>,
    /// It did not have something that it was asked for.
    behind: AtomicBool,
}

impl Asker {
    pub(super) fn new(owner: &Arc<Peer>, call: u64, turn: u32, holder: PeerKey) -> Arc<Self> {
        let (owner, fed) = (Arc::clone(owner), Mutex::new(Instant::now()));
        Arc::new(Self { owner, call, turn, holder, fed, behind: AtomicBool::new(false) })
    }

    /// The holder is getting it itself, and we are as far as it is.
    pub(super) fn falls_behind(&self) {
        self.behind.store(true, Ordering::Relaxed);
    }

    /// Whether pieces are to be as small as they can, so that each is there soon.
    pub(super) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// The holder sent something.
    pub(super) fn fed(&self) {
        *self.fed.lock() = Instant::now();
    }

    /// Whether it has had nothing for too long, for somebody who can wait for `most`.
    pub(super) fn is_starved(&self, most: Duration) -> bool {
        self.fed.lock().elapsed() >= STARVED.min(most)
    }
}

/// The holder that a pull has now.
pub(super) struct Aid {
    pub(super) asker: Arc<Asker>,
    /// None for a moment, until it was asked.
    pub(super) handle: Option<CallHandle>,
}

/// A holder is to be asked.
pub(super) struct Wish {
    pub(super) asker: Arc<Asker>,
    pub(super) owner: PeerKey,
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) pass: Pass,
    pub(super) transfer: Arc<Transfer>,
    pub(super) transport: Transport,
    /// What comes from the owner cannot be read on the wire: then nothing may.
    pub(super) encrypted: bool,
    pub(super) deadline: Instant,
}

/// What is asked of a holder.
pub(super) struct AidCall {
    wish: Wish,
    pub(super) way: Way,
    pub(super) opened: bool,
    lost: Option<Box<dyn FnOnce(HolderLost) + Send>>,
}

impl AidCall {
    pub(super) fn message(&self) -> v1::Pull {
        let Wish { owner, id, bytes, pass, .. } = &self.wish;
        let owner = Some(life(owner));
        let (way, pass) = (v1::Way::from(self.way).into(), pass.to_vec().into());
        v1::Pull { id: *id, bytes: *bytes, way, owner, pass, ..v1::Pull::default() }
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

    /// What lanes are to bring.
    pub(super) fn wanted(&self, call: u64) -> Wanted {
        Wanted { call, transfer: Arc::clone(&self.wish.transfer), asker: Some(Arc::clone(&self.wish.asker)) }
    }

    /// It does not do.
    pub(super) fn fail(&mut self, failure: &Failure) -> Option<Finish> {
        use tensorlane_proto::Reason;
        let lost = self.lost.take()?;
        let away =
            [Reason::PeerUnreachable, Reason::PeerUnknown, Reason::DeadlineExceeded, Reason::OwnerLost];
        let why = if away.contains(&failure.reason) { HolderLost::Unreachable } else { HolderLost::Refused };
        Some(Box::new(move || lost(why)))
    }
}

/// Asks a holder. Called without locks.
pub(super) fn begin(shared: &Arc<Shared>, wish: Wish) {
    let (asker, again) = (Arc::clone(&wish.asker), Arc::downgrade(shared));
    let told = Arc::clone(&asker);
    let lost: Box<dyn FnOnce(HolderLost) + Send> = Box::new(move |why| {
        if let Some(shared) = Weak::upgrade(&again) {
            lose(&shared, &told, why);
        }
    });
    let now = Instant::now();
    let deadline = now + OPENING.min(wish.transfer.allowance(now));
    let PeerKey { name, incarnation } = asker.holder.clone();
    let call = AidCall { wish, way: Way::Lanes, opened: false, lost: Some(lost) };
    let handle = shared.call(&name, Some(incarnation), deadline, Kind::Aid(Box::new(call)));
    let kept = asker.owner.state.lock().aided(&asker, handle.clone());
    if !kept {
        // It was lost at once, or nobody wants the pull any more.
        handle.cancel();
    }
}

/// A holder does not do: its pull goes on with another one, or with the owner. Nothing where it was let go before. Called
/// without locks.
pub(super) fn lose(shared: &Shared, asker: &Asker, why: HolderLost) {
    let todo = asker.owner.state.lock().aid_lost(asker);
    let Some(todo) = todo else { return };
    shared.counters.holders_lost.add(why.as_str());
    let (owner, holder, reason) = (&asker.owner.name, &asker.holder.name, why.as_str());
    tracing::info!(%owner, %holder, reason, "a pull goes on from elsewhere");
    shared.perform(todo);
}

/// As the wire has it.
pub(super) fn life(key: &PeerKey) -> v1::Life {
    v1::Life { peer: key.name.to_string(), incarnation: key.incarnation.to_string() }
}

/// As we have it.
pub(super) fn key(life: &v1::Life) -> Option<PeerKey> {
    let name = PeerName::new(&life.peer).ok()?;
    let incarnation: Incarnation = life.incarnation.parse().ok()?;
    Some(PeerKey { name, incarnation })
}
