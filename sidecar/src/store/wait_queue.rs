//! Queue of callers that wait for room: first come, first served, cancellable, with a deadline.
//!
//! Only the one in front may take room of the arena; it does so outside of any lock of the queue. Whoever makes room (a
//! freed block, a dropped segment) calls [`WaitQueue::notify`]. Knows nothing of memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::cancel::{Cancel, Waiting};

/// A queue of callers that wait for room.
#[derive(Clone, Default)]
pub(super) struct WaitQueue(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    notified: Condvar,
}

#[derive(Default)]
struct State {
    slots: VecDeque<u64>,
    next: u64,
    /// Raised by every `notify`; a waiter that saw an older count has something to look at.
    notifications: u64,
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
    seen: u64,
    _waiting: Waiting,
}

// === impl WaitQueue ===

impl WaitQueue {
    /// Takes a slot at the end.
    pub(super) fn enter(&self, cancel: &Cancel) -> QueueSlot {
        let (number, seen) = {
            let mut state = self.0.state.lock();
            let number = state.next;
            state.next += 1;
            state.slots.push_back(number);
            (number, state.notifications)
        };
        let queue = Self(Arc::clone(&self.0));
        let woken = Arc::downgrade(&self.0);
        let waiting = cancel.while_waiting(Arc::new(move || {
            if let Some(inner) = woken.upgrade() {
                WaitQueue(inner).notify();
            }
        }));
        QueueSlot { queue, number, seen, _waiting: waiting }
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

    /// True if nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// === impl QueueSlot ===

impl QueueSlot {
    /// True if this caller is the first.
    pub(super) fn is_front(&self) -> bool {
        self.queue.0.state.lock().slots.front() == Some(&self.number)
    }

    /// Waits until the queue is notified after the last time this was asked, the deadline passes or the caller cancels.
    pub(super) fn wait(&mut self, deadline: Instant, cancel: &Cancel) -> WaitEnd {
        let mut state = self.queue.0.state.lock();
        loop {
            if cancel.is_cancelled() {
                return WaitEnd::Cancelled;
            }
            if state.notifications != self.seen {
                self.seen = state.notifications;
                return WaitEnd::Notified;
            }
            if self.queue.0.notified.wait_until(&mut state, deadline).timed_out() {
                return WaitEnd::TooLate;
            }
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        {
            let mut state = self.queue.0.state.lock();
            state.slots.retain(|n| *n != self.number);
        }
        // The next one in the queue has become the first.
        self.queue.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn the_line_keeps_the_order_of_arrival() {
        let queue = WaitQueue::default();
        let cancel = Cancel::default();
        let first = queue.enter(&cancel);
        let mut second = queue.enter(&cancel);
        assert!(first.is_front() && !second.is_front());
        drop(first);
        assert_eq!(second.wait(soon(), &cancel), WaitEnd::Notified);
        assert!(second.is_front());
        drop(second);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_place_that_gives_up_lets_the_next_one_through() {
        let queue = WaitQueue::default();
        let gone = Cancel::default();
        let mut first = queue.enter(&gone);
        let mut second = queue.enter(&Cancel::default());
        gone.cancel();
        assert_eq!(first.wait(soon(), &gone), WaitEnd::Cancelled);
        drop(first);
        assert_eq!(second.wait(soon(), &Cancel::default()), WaitEnd::Notified);
        assert!(second.is_front());
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let queue = WaitQueue::default();
        let cancel = Cancel::default();
        let mut slot = queue.enter(&cancel);
        assert_eq!(slot.wait(Instant::now(), &cancel), WaitEnd::TooLate);
    }

    #[test]
    fn room_that_came_before_the_wait_is_not_missed() {
        let queue = WaitQueue::default();
        let cancel = Cancel::default();
        let mut slot = queue.enter(&cancel);
        queue.notify();
        assert_eq!(slot.wait(Instant::now(), &cancel), WaitEnd::Notified);
    }
}
