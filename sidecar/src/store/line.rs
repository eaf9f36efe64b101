//! The waiting line for room: first come, first served, cancellable, with a deadline.
//!
//! Only the one in front may take room of the arena; it does so outside of any lock of the line. Whoever makes room (a
//! freed block, a dropped segment) calls [`Line::stir`]. Knows nothing of memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::cancel::{Cancel, Waiting};

/// A line of callers that wait for room.
#[derive(Clone, Default)]
pub(super) struct Line(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    stirred: Condvar,
}

#[derive(Default)]
struct State {
    places: VecDeque<u64>,
    next: u64,
    /// Raised by every `stir`; a waiter that saw an older count has something to look at.
    stirs: u64,
}

/// End of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// Something changed: try again.
    Stirred,
    /// The deadline passed.
    TooLate,
    /// The caller wants no answer any more.
    Cancelled,
}

/// Place of a caller; leaving is dropping it.
pub(super) struct Place {
    line: Line,
    number: u64,
    seen: u64,
    _waiting: Waiting,
}

// === impl Line ===

impl Line {
    /// Takes a place at the end.
    pub(super) fn enter(&self, cancel: &Cancel) -> Place {
        let (number, seen) = {
            let mut state = self.0.state.lock();
            let number = state.next;
            state.next += 1;
            state.places.push_back(number);
            (number, state.stirs)
        };
        let line = Self(Arc::clone(&self.0));
        let woken = Arc::downgrade(&self.0);
        let waiting = cancel.while_waiting(Arc::new(move || {
            if let Some(inner) = woken.upgrade() {
                Line(inner).stir();
            }
        }));
        Place { line, number, seen, _waiting: waiting }
    }

    /// Says that room may have come about.
    pub(super) fn stir(&self) {
        let mut state = self.0.state.lock();
        if state.places.is_empty() {
            return;
        }
        state.stirs += 1;
        drop(state);
        self.0.stirred.notify_all();
    }

    /// Number of those that wait.
    pub(super) fn len(&self) -> usize {
        self.0.state.lock().places.len()
    }

    /// True if nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// === impl Place ===

impl Place {
    /// True if this caller is the first.
    pub(super) fn is_front(&self) -> bool {
        self.line.0.state.lock().places.front() == Some(&self.number)
    }

    /// Waits until the line is stirred after the last time this was asked, the deadline passes or the caller cancels.
    pub(super) fn wait(&mut self, deadline: Instant, cancel: &Cancel) -> Waited {
        let mut state = self.line.0.state.lock();
        loop {
            if cancel.is_cancelled() {
                return Waited::Cancelled;
            }
            if state.stirs != self.seen {
                self.seen = state.stirs;
                return Waited::Stirred;
            }
            if self.line.0.stirred.wait_until(&mut state, deadline).timed_out() {
                return Waited::TooLate;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut state = self.line.0.state.lock();
            state.places.retain(|n| *n != self.number);
        }
        // The next one in the line has become the first.
        self.line.stir();
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
        let line = Line::default();
        let cancel = Cancel::default();
        let first = line.enter(&cancel);
        let mut second = line.enter(&cancel);
        assert!(first.is_front() && !second.is_front());
        drop(first);
        assert_eq!(second.wait(soon(), &cancel), Waited::Stirred);
        assert!(second.is_front());
        drop(second);
        assert!(line.is_empty());
    }

    #[test]
    fn a_place_that_gives_up_lets_the_next_one_through() {
        let line = Line::default();
        let gone = Cancel::default();
        let mut first = line.enter(&gone);
        let mut second = line.enter(&Cancel::default());
        gone.cancel();
        assert_eq!(first.wait(soon(), &gone), Waited::Cancelled);
        drop(first);
        assert_eq!(second.wait(soon(), &Cancel::default()), Waited::Stirred);
        assert!(second.is_front());
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let line = Line::default();
        let cancel = Cancel::default();
        let mut place = line.enter(&cancel);
        assert_eq!(place.wait(Instant::now(), &cancel), Waited::TooLate);
    }

    #[test]
    fn room_that_came_before_the_wait_is_not_missed() {
        let line = Line::default();
        let cancel = Cancel::default();
        let mut place = line.enter(&cancel);
        line.stir();
        assert_eq!(place.wait(Instant::now(), &cancel), Waited::Stirred);
    }
}
