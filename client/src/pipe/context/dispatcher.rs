//! Dispatcher: the one thread of a context, on which its callbacks are called one after the other.
//!
//! The dispatcher knows callbacks and how many operations are under way; what the operations are it may not know.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::{Failure, Reason};

use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::wait::Wait;

type Call = Box<dyn FnOnce() + Send>;

/// Queue of the thread.
pub(super) struct Dispatcher {
    state: Mutex<State>,
    /// Told of a callback that is due, and of the end.
    due: Condvar,
    /// Told when no operation is under way any more.
    idle: Condvar,
    origin: Origin,
}

#[derive(Default)]
struct State {
    due: VecDeque<Call>,
    /// Operations whose callback was not called yet.
    operations: usize,
    panics: u64,
    thread: Option<ThreadId>,
    /// Set when nobody is left who could schedule anything.
    ended: bool,
}

/// Callback of one operation, which is under way until this was called.
pub(super) struct Callback<T> {
    call: Box<dyn FnOnce(T) + Send>,
    operation: Operation,
}

/// An operation under way until its drop, counted at its context and at its end.
pub(super) struct Operation {
    dispatcher: Arc<Dispatcher>,
    at_end: Arc<AtomicUsize>,
}

impl Dispatcher {
    /// Starts the thread, which ends when it was told to and nothing is due.
    pub(super) fn start(origin: Origin) -> Result<Arc<Self>> {
        let (state, due, idle) = (Mutex::default(), Condvar::new(), Condvar::new());
        let dispatcher = Arc::new(Self { state, due, idle, origin });
        let running = Arc::clone(&dispatcher);
        let thread = thread::Builder::new()
            .name("tl-pipes".into())
            .spawn(move || running.run())
            .map_err(|error| Error::resources("the thread of a context cannot be started", error))?;
        dispatcher.state.lock().thread = Some(thread.thread().id());
        Ok(dispatcher)
    }

    fn run(&self) {
        while let Some(call) = self.next() {
            // What it holds is dropped by the unwinding, and is its caller's to keep whole.
            let outcome = catch_unwind(AssertUnwindSafe(call));
            if self.origin.is_child() {
                // The callback forked, and has returned in the child as well. What is due is the parent's.
                return;
            }
            if let Err(payload) = outcome {
                self.state.lock().panics += 1;
                // Its drop is the user's, and may panic in its turn.
                if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                    std::mem::forget(again);
                }
            }
        }
    }

    fn next(&self) -> Option<Call> {
        let mut state = self.state.lock();
        loop {
            if let Some(call) = state.due.pop_front() {
                return Some(call);
            }
            if state.ended {
                return None;
            }
            self.due.wait(&mut state);
        }
    }

    fn post(&self, call: Call) {
        self.state.lock().due.push_back(call);
        self.due.notify_one();
    }

    /// Lets the thread end behind what is due.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.due.notify_one();
    }

    /// Number of callbacks that panicked.
    pub(super) fn panics(&self) -> u64 {
        self.state.lock().panics
    }

    /// Waits until no operation is under way.
    pub(super) fn join(&self, wait: &Wait) -> Result<()> {
        let mut state = self.state.lock();
        if state.thread == Some(thread::current().id()) {
            let message = "a callback of a context cannot wait for that context; join it from another thread";
            return Err(Error::invalid(message));
        }
        while state.operations > 0 {
            if wait.left().is_zero() {
                let message = format!(
                    "{} operations of the context are still under way; wait longer, or close the context",
                    state.operations
                );
                return Err(Failure::new(Reason::DeadlineExceeded, message).into());
            }
            // Without the lock: a signal's handler may use this very context.
            parking_lot::MutexGuard::unlocked(&mut state, || wait.check())?;
            if state.operations > 0 {
                self.idle.wait_for(&mut state, wait.slice().min(wait.left()));
            }
        }
        Ok(())
    }
}

impl<T: Send + 'static> Callback<T> {
    /// Callback of an operation that is under way.
    pub(super) fn of(operation: Operation, call: impl FnOnce(T) + Send + 'static) -> Self {
        Self { call: Box::new(call), operation }
    }

    /// Posts the call with the outcome of its operation, behind those that are due.
    pub(super) fn post(self, outcome: T) {
        let Self { call, operation } = self;
        let dispatcher = Arc::clone(&operation.dispatcher);
        dispatcher.post(Box::new(move || {
            // Over when the callback is, and what it held is gone.
            let _under_way = operation;
            call(outcome);
        }));
    }
}

impl Operation {
    /// An operation that is under way from now on, and the number of those of its end before it.
    pub(super) fn begin(dispatcher: &Arc<Dispatcher>, at_end: &Arc<AtomicUsize>) -> (Self, usize) {
        dispatcher.state.lock().operations += 1;
        let before = at_end.fetch_add(1, Ordering::Relaxed);
        (Self { dispatcher: Arc::clone(dispatcher), at_end: Arc::clone(at_end) }, before)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.at_end.fetch_sub(1, Ordering::Relaxed);
        if self.dispatcher.origin.is_child() {
            return;
        }
        let mut state = self.dispatcher.state.lock();
        state.operations -= 1;
        if state.operations == 0 {
            self.dispatcher.idle.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    struct PanicsInItsDrop;

    impl Drop for PanicsInItsDrop {
        fn drop(&mut self) {
            panic!("a panic of this test, inside the drop of a panic");
        }
    }

    #[test]
    fn a_panic_whose_payload_panics_as_well_ends_no_thread() {
        let dispatcher = Dispatcher::start(Origin::here()).unwrap();
        dispatcher.post(Box::new(|| std::panic::panic_any(PanicsInItsDrop)));
        let (tell, told) = mpsc::channel();
        dispatcher.post(Box::new(move || tell.send(()).unwrap()));
        told.recv_timeout(MINUTE).unwrap();
        assert_eq!(dispatcher.panics(), 1);
        dispatcher.end();
    }

    #[test]
    fn a_callback_that_returns_in_a_forked_child_is_the_last_one_there() {
        let dispatcher = Dispatcher::start(Origin::parent()).unwrap();
        let (tell, told) = mpsc::channel();
        for number in [1, 2] {
            let tell = tell.clone();
            dispatcher.post(Box::new(move || tell.send(number).unwrap()));
        }
        drop((tell, dispatcher));
        let called: Vec<_> = std::iter::from_fn(|| told.recv_timeout(MINUTE).ok()).collect();
        assert_eq!(called, [1], "the other one is its parent's");
    }
}
