//! Actions that must be undone on every way out: by return, by panic and by signal.
//!
//! A guard's drop covers the first two. A signal ends a process without dropping anything, so every guard leaves its
//! action here as well, and the thread that waits for signals performs what is left, latest first.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::{fmt, io, process, thread};

use tokio::signal::unix::{SignalKind, signal};

type Action = Box<dyn FnOnce() + Send>;

/// Of this program.
static PENDING: Pending = Pending::new();

/// Set while a signal is ending this program.
static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// Actions by number; the latest has the highest.
#[derive(Default)]
struct Pending {
    actions: Mutex<BTreeMap<u64, Action>>,
    next: AtomicU64,
}

/// Performs its action once: when dropped, or when a signal ends the program.
#[must_use = "dropping it undoes at once"]
pub struct Undo {
    number: u64,
    pending: &'static Pending,
}

impl Undo {
    /// Remembers what is to be done at the end.
    pub fn with(action: impl FnOnce() + Send + 'static) -> Self {
        PENDING.undo(action)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let action = self.pending.lock().remove(&self.number);
        if let Some(action) = action {
            action();
        }
    }
}

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undo").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Pending {
    const fn new() -> Self {
        Self { actions: Mutex::new(BTreeMap::new()), next: AtomicU64::new(0) }
    }

    fn undo(&'static self, action: impl FnOnce() + Send + 'static) -> Undo {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(number, Box::new(action));
        Undo { number, pending: self }
    }

    fn undo_everything(&self) {
        while let Some(action) = self.latest() {
            action();
        }
    }

    fn latest(&self) -> Option<Action> {
        self.lock().pop_last().map(|(_, action)| action)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Action>> {
        // No action runs under the lock, so that a panic leaves the table whole.
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP undo everything and end the program with 128 + the signal's number.
///
/// # Errors
/// No thread or no signal handler to be had.
pub fn on_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = {
        let _inside = runtime.enter();
        [(kinds[0], signal(kinds[0])?), (kinds[1], signal(kinds[1])?), (kinds[2], signal(kinds[2])?)]
    };
    let watch = move || {
        let came = runtime.block_on(poll_fn(|context| {
            let mut signals = signals.iter_mut();
            let came =
                signals.find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            came.map_or(Poll::Pending, Poll::Ready)
        }));
        SIGNALLED.store(true, Ordering::SeqCst);
        PENDING.undo_everything();
        process::exit(128 + came.as_raw_value());
    };
    thread::Builder::new().name("signals".into()).spawn(watch).map(drop)
}

/// Returns unless a signal is ending the program. Then whatever the caller has to say is only a consequence of that, and
/// the program ends meanwhile.
pub fn unless_signalled() {
    while SIGNALLED.load(Ordering::SeqCst) {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn an_action_is_performed_once_and_the_latest_first() {
        let pending: &'static Pending = Box::leak(Box::default());
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let done = Arc::clone(&done);
            pending.undo(move || done.lock().unwrap().push(what))
        };
        let (first, second, third) = (note("first"), note("second"), note("third"));
        drop(second);
        assert_eq!(*done.lock().unwrap(), ["second"]);
        pending.undo_everything();
        drop((first, third));
        assert_eq!(*done.lock().unwrap(), ["second", "third", "first"]);
    }

    #[test]
    fn a_panic_undoes() {
        let done = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&done);
        let panicked = thread::spawn(move || {
            let _undo = Undo::with(move || count.store(1, Ordering::Relaxed));
            panic!("as the test wants it");
        });
        assert!(panicked.join().is_err());
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }
}
