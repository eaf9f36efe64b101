//! Queue of callers that wait for room: first come, first served, cancellable, with a deadline.
//!
//! Only the one in front may take room of the arena; it does so outside of any lock of the queue. Whoever makes room (a
//! freed block, a dropped segment) calls [`WaitQueue::notify`]. Knows nothing of memory.
//!
//! A caller keeps those behind it from room for a while only ([`CLAIM`]), from when it came. After that it waits on, and holds
//! nobody up. So nobody is held up for longer than that, whoever waits. Another peer holds nobody up at all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::Holder;

use super::holdings::Program;
use crate::cancel::{Cancel, Waiting};

/// Time for which a caller that waits keeps those behind it from room: a part of what a call waits that does not say.
pub(crate) const CLAIM: Duration = Duration::from_secs(10);

/// Caller in whose name room is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Claimant {
    /// A session, or the sidecar itself; none for callers of which nothing is known.
    Holder(Option<Holder>),
    /// A program that calls without a session.
    Program(Arc<Program>),
    /// Another peer of the exchange.
    Peer(PeerName),
}

/// A queue of callers that wait for room.
#[derive(Clone)]
pub(super) struct WaitQueue(Arc<Inner>);

struct Inner {
    claim: Duration,
    state: Mutex<State>,
    notified: Condvar,
}

#[derive(Default)]
struct State {
    slots: VecDeque<QueuedCaller>,
    next: u64,
    /// Raised by every `notify`; a waiter that saw an older count has something to look at.
    notifications: u64,
}

/// Somebody in the queue.
struct QueuedCaller {
    number: u64,
    kind: RoomKind,
    /// Moment until when it holds up those behind it; none where it never does.
    claims_until: Option<Instant>,
}

/// Kind of room that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoomKind {
    /// Room in segments that the sidecar writes.
    Sidecar,
    /// Room in segments that the caller writes itself.
    Own,
}

/// Room that a caller may take now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Any, and new segments too.
    All,
    /// Room in segments of its kind that are there.
    Present,
    /// Nothing: others come first.
    Nothing,
}

/// End of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitEnd {
    /// Something changed: try again.
    Notified,
    /// The deadline passed.
    TooLate,
    /// The caller wants no answer any more.
    Cancelled,
}

/// Slot of a caller; leaving is dropping it.
pub(super) struct QueueSlot {
    queue: WaitQueue,
    number: u64,
    kind: RoomKind,
    seen: u64,
    _waiting: Waiting,
}

// === impl WaitQueue ===

impl Default for WaitQueue {
    fn default() -> Self {
        Self::with_claims(CLAIM)
    }
}

impl WaitQueue {
    /// A queue in which each holds others up for so long.
    fn with_claims(claim: Duration) -> Self {
        Self(Arc::new(Inner { claim, state: Mutex::default(), notified: Condvar::new() }))
    }

    /// Takes a slot at the end.
    pub(super) fn enter(&self, whose: &Claimant, kind: RoomKind, cancel: &Cancel) -> QueueSlot {
        let (number, seen) = {
            let mut state = self.0.state.lock();
            let number = state.next;
            state.next += 1;
            let claims_until = match whose {
                Claimant::Peer(_) => None,
                Claimant::Holder(_) | Claimant::Program(_) => Some(Instant::now() + self.0.claim),
            };
            state.slots.push_back(QueuedCaller { number, kind, claims_until });
            (number, state.notifications)
        };
        let queue = Self(Arc::clone(&self.0));
        let woken = Arc::downgrade(&self.0);
        let waiting = cancel.while_waiting(Arc::new(move || {
            if let Some(inner) = woken.upgrade() {
                WaitQueue(inner).notify();
            }
        }));
        QueueSlot { queue, number, kind, seen, _waiting: waiting }
    }

    /// Says that room may have come about.
    pub(super) fn notify(&self) {
        let mut state = self.0.state.lock();
        if state.slots.is_empty() {
            return;
        }
        state.notifications += 1;
        drop(state);
        self.0.notified.notify_all();
    }

    /// Number of those that wait.
    pub(super) fn len(&self) -> usize {
        self.0.state.lock().slots.len()
    }

    /// True if nobody waits whom a newcomer must let go first to room of the sidecar's own segments.
    pub(super) fn lets_pass(&self) -> bool {
        let state = self.0.state.lock();
        state.slots.is_empty()
            || state.reach(state.next, RoomKind::Sidecar, Instant::now()).0 != Reach::Nothing
    }
}

// === impl State ===

impl State {
    /// Room that the caller of a slot may take; and when somebody before it ceases to hold it up, if so.
    fn reach(&self, number: u64, kind: RoomKind, now: Instant) -> (Reach, Option<Instant>) {
        let (mut reach, mut until) = (Reach::All, None);
        for slot in self.slots.iter().take_while(|slot| slot.number != number) {
            let Some(claims_until) = slot.claims_until.filter(|until| *until > now) else { continue };
            // They came one after the other.
            until = until.or(Some(claims_until));
            // Room in its own segments is a caller's in any case.
            if slot.kind == kind || kind == RoomKind::Own {
                return (Reach::Nothing, until);
            }
            reach = Reach::Present;
        }
        (reach, until)
    }
}

// === impl QueueSlot ===

impl QueueSlot {
    /// Room that this caller may take now.
    pub(super) fn reach(&self) -> Reach {
        self.queue.0.state.lock().reach(self.number, self.kind, Instant::now()).0
    }

    /// Waits until the queue is notified after the last time this was asked, somebody before it holds it up no more, the deadline
    /// passes or the caller cancels.
    pub(super) fn wait(&mut self, deadline: Instant, cancel: &Cancel) -> WaitEnd {
        let mut state = self.queue.0.state.lock();
        let held = state.reach(self.number, self.kind, Instant::now()).1;
        loop {
            if cancel.is_cancelled() {
                return WaitEnd::Cancelled;
            }
            if state.notifications != self.seen {
                self.seen = state.notifications;
                return WaitEnd::Notified;
            }
            let until = held.map_or(deadline, |held| held.min(deadline));
            if self.queue.0.notified.wait_until(&mut state, until).timed_out() {
                return if Instant::now() >= deadline { WaitEnd::TooLate } else { WaitEnd::Notified };
            }
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        {
            let mut state = self.queue.0.state.lock();
            state.slots.retain(|slot| slot.number != self.number);
        }
        // The next one in the queue has become the first.
        self.queue.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlane_proto::ledger::SessionId;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn session(number: u64) -> Claimant {
        Claimant::Holder(Some(Holder::Session(SessionId(number))))
    }

    fn peer() -> Claimant {
        Claimant::Peer("there".parse().unwrap())
    }

    fn enter(queue: &WaitQueue, whose: &Claimant) -> QueueSlot {
        queue.enter(whose, RoomKind::Own, &Cancel::default())
    }

    #[test]
    fn the_line_keeps_the_order_of_arrival() {
        let queue = WaitQueue::with_claims(HOUR);
        let cancel = Cancel::default();
        let first = enter(&queue, &session(1));
        let mut second = enter(&queue, &session(2));
        assert_eq!((first.reach(), second.reach()), (Reach::All, Reach::Nothing));
        drop(first);
        assert_eq!(second.wait(soon(), &cancel), WaitEnd::Notified);
        assert_eq!(second.reach(), Reach::All);
        drop(second);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_place_that_gives_up_lets_the_next_one_through() {
        let queue = WaitQueue::with_claims(HOUR);
        let gone = Cancel::default();
        let mut first = queue.enter(&session(1), RoomKind::Own, &gone);
        let mut second = enter(&queue, &session(2));
        gone.cancel();
        assert_eq!(first.wait(soon(), &gone), WaitEnd::Cancelled);
        drop(first);
        assert_eq!(second.wait(soon(), &Cancel::default()), WaitEnd::Notified);
        assert_eq!(second.reach(), Reach::All);
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let queue = WaitQueue::default();
        let mut slot = enter(&queue, &session(1));
        assert_eq!(slot.wait(Instant::now(), &Cancel::default()), WaitEnd::TooLate);
    }

    #[test]
    fn room_that_came_before_the_wait_is_not_missed() {
        let queue = WaitQueue::default();
        let mut slot = enter(&queue, &session(1));
        queue.notify();
        assert_eq!(slot.wait(Instant::now(), &Cancel::default()), WaitEnd::Notified);
    }

    #[test]
    fn nobody_is_held_up_for_longer_than_a_while_however_many_wait_in_front() {
        let queue = WaitQueue::with_claims(HOUR);
        let many: Vec<_> = (0..100).map(|number| enter(&queue, &session(number))).collect();
        let behind = enter(&queue, &session(1_000));
        let reach = |now| queue.0.state.lock().reach(behind.number, RoomKind::Own, now);
        let now = Instant::now();
        let (held, until) = reach(now);
        assert!(held == Reach::Nothing && until.is_some_and(|until| until <= now + HOUR));
        assert_eq!(reach(now + HOUR), (Reach::All, None));
        assert_eq!(many[0].reach(), Reach::All);
    }

    #[test]
    fn whoever_is_held_up_looks_again_when_it_is_not() {
        let queue = WaitQueue::with_claims(Duration::from_millis(20));
        let front = enter(&queue, &session(1));
        let mut behind = enter(&queue, &session(2));
        let deadline = soon();
        while behind.reach() == Reach::Nothing {
            assert_eq!(behind.wait(deadline, &Cancel::default()), WaitEnd::Notified, "by the clock alone");
        }
        assert_eq!((front.reach(), behind.reach()), (Reach::All, Reach::All));
    }

    #[test]
    fn a_peer_in_front_holds_nobody_up() {
        let queue = WaitQueue::with_claims(HOUR);
        let theirs = enter(&queue, &peer());
        assert!(queue.lets_pass());
        let ours = enter(&queue, &session(1));
        let again = enter(&queue, &peer());
        assert_eq!((theirs.reach(), ours.reach(), again.reach()), (Reach::All, Reach::All, Reach::Nothing));
    }

    #[test]
    fn who_waits_for_segments_of_its_own_leaves_those_of_the_sidecar_to_others() {
        let queue = WaitQueue::with_claims(HOUR);
        let own = enter(&queue, &session(1));
        assert!(queue.lets_pass());
        let sidecar = |number| queue.enter(&session(number), RoomKind::Sidecar, &Cancel::default());
        let (first, second) = (sidecar(2), sidecar(3));
        assert_eq!((first.reach(), second.reach()), (Reach::Present, Reach::Nothing));
        assert!(!queue.lets_pass(), "whoever waits for these came first");
        drop(own);
        assert_eq!(first.reach(), Reach::All);
    }
}
