//! Allocation: from a request for bytes to a block, at once if there is room, else after a wait in a queue.
//!
//! ```text
//!   request --> the owner's own segments ------------------------------------------> block
//!     |
//!     '--> queue --> in front: a new segment fits? --yes--> leave the queue, populate, (writer maps), seal --> block
//!                     |  ^                        '--no---> drop idle copies, take idle segments back
//!                     v  |                                   nothing there: wait for room, the deadline or a cancel
//!                    room came about
//! ```
//!
//! Puts and pulls have a queue each: a tenth of the arena is for pulls only, so that two full peers never wait
//! for each other. Waiting blocks: it is for threads of the `waiters`, of which each caller has a share.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tensorlane_memory::{AdoptError, Block, Grant, NoRoom, Owner, Purpose};
use tensorlane_proto::failure::{Failure, Reason};

use super::Store;
use super::refusals::{arena_full, never_fits};
use super::wait_queue::{CLAIM, Claimant, Reach, RoomKind, WaitEnd, WaitQueue};
use crate::cancel::Cancel;
use crate::gate;
use crate::no_descriptor::no_descriptor;
use crate::session::SessionLink;

/// Time after which whoever waits for a turn looks whether its caller is there still.
const LOOK: Duration = Duration::from_millis(50);
/// Holders that a refusal for lack of room names.
const HOLDERS_TOLD: usize = 5;

/// Bytes that somebody wants, and for how long.
pub struct AllocRequest<'a> {
    /// The session that will write them itself, or none where the sidecar does.
    pub writer: Option<&'a Arc<SessionLink>>,
    /// Caller who waits for them, if need be.
    pub claimant: &'a Claimant,
    /// Purpose of the bytes: they come from here or from another peer.
    pub purpose: Purpose,
    /// Number of bytes.
    pub bytes: u64,
    /// Deadline: when to give up.
    pub deadline: Instant,
    /// Raised when nobody wants them any more.
    pub cancel: &'a Cancel,
}

/// Reason for which a turn was not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// The deadline passed.
    TooLate,
    /// The caller wants no answer any more.
    Cancelled,
}

/// Next thing to do about a request.
enum Next {
    Have(Block),
    Populate(Grant),
    Wait,
}

// === impl AllocRequest ===

impl AllocRequest<'_> {
    fn owner(&self) -> Owner {
        self.writer.map_or(Owner::Sidecar, |link| Owner::Session(link.id().0))
    }

    fn kind(&self) -> RoomKind {
        if self.writer.is_some() { RoomKind::Own } else { RoomKind::Sidecar }
    }

    /// Returns whether nobody wants it any more.
    fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || Instant::now() >= self.deadline
    }
}

// === impl Store ===

impl Store {
    /// A block, if one is there right now. Never waits.
    pub fn allocate_now(&self, owner: Owner, purpose: Purpose, bytes: u64) -> Option<Block> {
        // Those who wait for the sidecar's segments came first.
        if owner == Owner::Sidecar && bytes > 0 && !self.queue(purpose).lets_pass() {
            return None;
        }
        self.arena.allocate(owner, purpose, bytes).ok()
    }

    /// A block; waits for it in line until the deadline. Blocks: for waiters.
    pub fn allocate(&self, request: &AllocRequest<'_>) -> Result<Block, Failure> {
        if let Some(block) = self.allocate_now(request.owner(), request.purpose, request.bytes) {
            return Ok(block);
        }
        let mut slot = self.queue(request.purpose).enter(request.claimant, request.kind(), request.cancel);
        let grant = loop {
            let reach = slot.reach();
            match self.next(request, reach)? {
                Next::Have(block) => return Ok(block),
                Next::Populate(grant) => break grant,
                Next::Wait => match slot.wait(request.deadline, request.cancel) {
                    WaitEnd::Notified if !request.is_over() => {}
                    WaitEnd::Cancelled => return Err(cancelled()),
                    WaitEnd::Notified if request.cancel.is_cancelled() => return Err(cancelled()),
                    WaitEnd::TooLate | WaitEnd::Notified => {
                        return Err(self.too_late(request, reach != Reach::Nothing));
                    }
                },
            }
        };
        // Populating takes a while, and the room is booked: let the next one look.
        drop(slot);
        self.grow(request, grant)
    }

    /// Several blocks, all or none. Of those that have to wait for some of them one caller holds others meanwhile, and the rest
    /// hold nothing: so two never wait for each other. It holds them for ten seconds at most, and begins anew behind the others.
    /// Peers have a turn of their own. Blocks: for waiters.
    ///
    /// # Errors
    /// As of one block; those that were had are given back.
    pub fn allocate_all(&self, sizes: &[u64], request: &AllocRequest<'_>) -> Result<Vec<Block>, Failure> {
        let (total, most) =
            (sizes.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)), self.arena.usage().total);
        if total > most {
            return Err(never_fits(total, most));
        }
        let now = |bytes: &u64| self.allocate_now(request.owner(), request.purpose, *bytes);
        if let Some(blocks) = sizes.iter().map(now).collect() {
            return Ok(blocks);
        }
        let several = match request.claimant {
            Claimant::Peer(_) => &self.several_of_peers,
            Claimant::Holder(_) | Claimant::Program(_) => &self.several,
        };
        loop {
            let _turn = match turn(several, request.deadline, request.cancel) {
                Ok(turn) => turn,
                Err(NoTurn::Cancelled) => return Err(cancelled()),
                Err(NoTurn::TooLate) => {
                    return Err(self.too_late(&AllocRequest { bytes: total, ..*request }, false));
                }
            };
            let deadline = request.deadline.min(Instant::now() + CLAIM);
            let one = |bytes: &u64| self.allocate(&AllocRequest { bytes: *bytes, deadline, ..*request });
            match sizes.iter().map(one).collect() {
                // What it has goes back before the others have their turn.
                Err(full)
                    if full.reason == Reason::ArenaFull
                        && deadline < request.deadline
                        && Instant::now() >= deadline => {}
                outcome => return outcome,
            }
        }
    }

    fn next(&self, request: &AllocRequest<'_>, reach: Reach) -> Result<Next, Failure> {
        // Whose time is over makes no segment that its client would have to map.
        let front = reach == Reach::All && !(request.writer.is_some() && request.is_over());
        loop {
            if self.closed.is_cancelled() {
                return Err(gate::draining());
            }
            // Room in a session's own segments is nobody else's, so it need not wait for its turn.
            let own = request.writer.is_some();
            let no_room = match reach != Reach::Nothing || own {
                true => match self.arena.allocate(request.owner(), request.purpose, request.bytes) {
                    Ok(block) => return Ok(Next::Have(block)),
                    Err(no_room) => no_room,
                },
                false => NoRoom::Grow,
            };
            match no_room {
                NoRoom::Never { asked, most } => return Err(never_fits(asked, most)),
                NoRoom::Stopped => return Err(gate::draining()),
                NoRoom::Grow | NoRoom::Full(_) if !front => return Ok(Next::Wait),
                NoRoom::Grow => match self.arena.admit(request.owner(), request.purpose, request.bytes) {
                    Ok(grant) => return Ok(Next::Populate(grant)),
                    Err(NoRoom::Never { asked, most }) => return Err(never_fits(asked, most)),
                    Err(NoRoom::Stopped) => return Err(gate::draining()),
                    Err(_) if self.reclaim(request.bytes) => {}
                    Err(_) => return Ok(Next::Wait),
                },
                NoRoom::Full(_) if self.reclaim(request.bytes) => {}
                NoRoom::Full(_) => return Ok(Next::Wait),
            }
        }
    }

    /// Makes the booked segment, lets its writer map it, seals it, and takes the block that it was booked for.
    fn grow(&self, request: &AllocRequest<'_>, grant: Grant) -> Result<Block, Failure> {
        let bytes = grant.bytes();
        let fresh = grant.populate().map_err(|error| {
            let cause = error.source().map(|cause| format!(" ({cause})")).unwrap_or_default();
            Failure::new(
                Reason::ArenaFull,
                format!(
                    "a segment of {bytes} bytes could not be populated: {error}{cause}; the memory was given back"
                ),
            )
        })?;
        if let Some(link) = request.writer {
            let segment = fresh.segment_id();
            let memory = fresh.writer_fd().map_err(|e| no_descriptor(&e))?;
            let witness = self.arena.witness(segment, link.id().0).map_err(|e| no_descriptor(&e))?;
            link.map_writable(segment, fresh.bytes(), memory, witness)?;
        }
        self.arena.adopt_for(fresh, request.bytes).map_err(|error| match error {
            AdoptError::OwnerGone { .. } => cancelled(),
            AdoptError::Segment(error) => {
                Failure::new(Reason::Internal, format!("a segment could not be sealed: {error}"))
            }
            AdoptError::TooSmall { .. } | AdoptError::Exchange(_) => {
                Failure::new(Reason::Internal, error.to_string())
            }
        })
    }

    /// Gives back what nobody needs. True when there is more room already; bytes that clients were asked to let go of
    /// come back by themselves, and stir the line.
    pub(super) fn reclaim(&self, bytes: u64) -> bool {
        if self.evict(bytes) {
            return true;
        }
        let before = self.arena.usage();
        let told = self.arena.reclaim_held(bytes);
        for (session, segment) in &told {
            if let Some(link) = self.link(tensorlane_proto::ledger::SessionId(*session)) {
                link.retire(*segment);
            }
        }
        let after = self.arena.usage();
        after.free > before.free
    }

    fn queue(&self, purpose: Purpose) -> &WaitQueue {
        match purpose {
            Purpose::Put => &self.puts,
            Purpose::Pull => &self.pulls,
        }
    }

    fn too_late(&self, request: &AllocRequest<'_>, front: bool) -> Failure {
        let room = self.arena.room(request.owner(), request.purpose);
        arena_full(request.bytes, &room, front, &self.holdings(HOLDERS_TOLD)).with("waiting", self.waiting())
    }
}

/// A lock that is held for long: waits for it until the deadline or a cancel.
///
/// # Errors
/// The deadline has passed, or the caller has given up.
pub(crate) fn turn<'a>(
    lock: &'a Mutex<()>,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<MutexGuard<'a, ()>, NoTurn> {
    loop {
        if cancel.is_cancelled() {
            return Err(NoTurn::Cancelled);
        }
        if let Some(turn) = lock.try_lock_until(deadline.min(Instant::now() + LOOK)) {
            return Ok(turn);
        }
        if Instant::now() >= deadline {
            return Err(NoTurn::TooLate);
        }
    }
}

fn cancelled() -> Failure {
    Failure::new(Reason::Cancelled, "the caller gave up waiting for room")
}
