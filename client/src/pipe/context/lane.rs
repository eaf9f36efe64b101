//! A lane: operations of one end that one worker performs in their order.
//!
//! The lane knows when a worker is wanted and which operation is next; what they do it may not know.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::core::{Closing, guarded};
use crate::error::{Error, Result};

/// Operations that wait for their worker.
pub(super) struct Lane<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    /// Operations that go before all others.
    urgent: VecDeque<J>,
    /// Further ones, which wait while a descriptor is shown.
    jobs: VecDeque<J>,
    /// Set while there is a worker.
    worked: bool,
    /// Set when the end is closed: the worker ends behind the last operation.
    closed: bool,
    /// Set while the last descriptor that was given out is neither read nor dropped.
    shown: bool,
}

/// An operation.
pub(super) trait Job: Send + Sized + 'static {
    /// Returns whether it goes before those that are not, also while a descriptor is shown.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Ends it with an error, without a try.
    fn fail(self, error: Error);
}

impl<J> Default for Lane<J> {
    fn default() -> Self {
        let (urgent, jobs) = (VecDeque::new(), VecDeque::new());
        let state = State { urgent, jobs, worked: false, closed: false, shown: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<J: Job> Lane<J> {
    /// Puts an operation behind the others. True where a worker is to be started: the lane counts on it.
    #[must_use]
    pub(super) fn push(&self, job: J) -> bool {
        let mut state = self.state.lock();
        if job.is_urgent() {
            state.urgent.push_back(job);
        } else {
            state.jobs.push_back(job);
        }
        self.changed.notify_one();
        !std::mem::replace(&mut state.worked, true)
    }

    /// The next operation, for the worker. None when the end is closed and none is left.
    pub(super) fn take(&self) -> Option<J> {
        let mut state = self.state.lock();
        loop {
            // An end that is closed waits for nothing.
            let shown = state.shown && !state.closed;
            let next = state.urgent.pop_front();
            if let Some(job) = next.or_else(|| if shown { None } else { state.jobs.pop_front() }) {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Lets the worker go, unless there is something to do again.
    #[must_use]
    pub(super) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        state.worked = !(state.urgent.is_empty() && state.jobs.is_empty());
        !state.worked
    }

    /// Says whether a descriptor is in the user's hands.
    pub(super) fn show(&self, shown: bool) {
        self.state.lock().shown = shown;
        self.changed.notify_one();
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// Starts the worker that a push has asked for. After a panic, which closes the end, it works again, so that the rest fails in order.
    ///
    /// # Errors
    /// No thread: what waits has failed, in order. The end is to be closed, as what would open it may be among that.
    pub(super) fn start<E: Closing + 'static>(
        &self,
        name: &str,
        end: &Arc<E>,
        work: fn(&Arc<E>),
    ) -> Result<()> {
        let of = Arc::clone(end);
        let work = move || while !guarded(&*of, || work(&of)) {};
        let started = thread::Builder::new().name(name.into()).spawn(work);
        let Err(error) = started else { return Ok(()) };
        let error = Error::resources("the thread of a pipe cannot be started", error);
        let mut state = self.state.lock();
        state.worked = false;
        // With the lock, so that nothing that is pushed later goes before them.
        let State { urgent, jobs, .. } = &mut *state;
        urgent.drain(..).chain(jobs.drain(..)).for_each(|job| job.fail(error.clone()));
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u32);

    impl Job for Number {
        fn is_urgent(&self) -> bool {
            self.0 > 9
        }

        fn fail(self, _: Error) {}
    }

    #[test]
    fn operations_are_taken_in_order_and_those_that_are_urgent_go_before() {
        let lane = Lane::default();
        assert!(lane.push(Number(1)), "the first one asks for a worker");
        assert!(!lane.push(Number(2)) && !lane.push(Number(10)) && !lane.push(Number(11)));
        assert_eq!(lane.take().unwrap().0, 10);
        assert_eq!(lane.take().unwrap().0, 11);
        assert_eq!(lane.take().unwrap().0, 1);
        lane.show(true);
        assert!(!lane.push(Number(12)));
        assert_eq!(lane.take().unwrap().0, 12);
        lane.show(false);
        assert_eq!(lane.take().unwrap().0, 2);
        lane.close();
        assert!(lane.take().is_none());
        assert!(!lane.push(Number(3)), "the worker is not gone");
        assert!(!lane.leave(), "it has something to do");
        lane.show(true);
        assert_eq!(lane.take().unwrap().0, 3, "a lane that is closed waits for nothing");
        assert!(lane.take().is_none() && lane.leave());
        assert!(lane.push(Number(4)), "another worker is asked for");
    }
}
