//! Cancellation: a flag that a caller raises and a waiter hears.
//!
//! A call is cancelled by its caller (a Cancel frame, a dropped gRPC request) or because its caller is gone. Waiting code
//! asks [`Cancel::is_cancelled`] whenever it wakes, and has itself woken while it sleeps ([`Cancel::while_waiting`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

type Wake = Arc<dyn Fn() + Send + Sync>;

/// Shared by a caller and whoever works for it; clones are the same flag.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Inner>);

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    wakes: Mutex<Wakes>,
}

#[derive(Default)]
struct Wakes {
    next: u64,
    all: Vec<(u64, Wake)>,
}

/// A wake-up that ends when this is dropped.
#[must_use = "dropping it ends the wake-up"]
pub struct Waiting {
    cancel: Weak<Inner>,
    number: u64,
}

/// Flag of one call that nobody awaits any more once this is dropped: it is raised then.
#[derive(Default)]
#[must_use = "dropping it cancels the call"]
pub struct CancelOnDrop(Cancel);

impl Cancel {
    /// Raises the flag and wakes all who wait; again is nothing.
    pub fn cancel(&self) {
        if self.0.cancelled.swap(true, Ordering::AcqRel) {
            return;
        }
        let wakes = std::mem::take(&mut self.0.wakes.lock().all);
        for (_, wake) in wakes {
            wake();
        }
    }

    /// Returns whether the flag is raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Calls `wake` once the flag is raised; at once if it is. Kept for as long as the flag lives: for flags of one call.
    pub fn on_cancel(&self, wake: Wake) {
        self.register(wake);
    }

    /// Calls `wake` once the flag is raised, until the result is dropped: for those who wait on a flag that outlives
    /// them.
    pub fn while_waiting(&self, wake: Wake) -> Waiting {
        Waiting { number: self.register(wake), cancel: Arc::downgrade(&self.0) }
    }

    fn register(&self, wake: Wake) -> u64 {
        {
            let mut wakes = self.0.wakes.lock();
            wakes.next += 1;
            let number = wakes.next;
            if !self.is_cancelled() {
                wakes.all.push((number, wake));
                return number;
            }
        }
        wake();
        0
    }
}

// === impl Waiting ===

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(inner) = self.cancel.upgrade() {
            inner.wakes.lock().all.retain(|(number, _)| *number != self.number);
        }
    }
}

// === impl CancelOnDrop ===

impl CancelOnDrop {
    /// Flag that is raised then.
    #[must_use]
    pub fn cancel(&self) -> &Cancel {
        &self.0
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_woken_once_whether_it_came_before_or_after() {
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let wake = |count: &Arc<std::sync::atomic::AtomicU32>| -> Wake {
            let count = Arc::clone(count);
            Arc::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let cancel = Cancel::default();
        cancel.on_cancel(wake(&count));
        cancel.cancel();
        cancel.cancel();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        cancel.on_cancel(wake(&count));
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_call_that_nobody_awaits_is_cancelled_and_keeps_nothing() {
        let call = CancelOnDrop::default();
        let (cancel, kept) = (call.cancel().clone(), Arc::new(()));
        let wake = Arc::clone(&kept);
        cancel.on_cancel(Arc::new(move || drop(Arc::clone(&wake))));
        assert!(!cancel.is_cancelled() && Arc::strong_count(&kept) == 2);
        drop(call);
        assert!(cancel.is_cancelled() && Arc::strong_count(&kept) == 1);
    }

    #[test]
    fn whoever_waits_no_longer_is_not_woken() {
        let woken = Arc::new(AtomicBool::new(false));
        let cancel = Cancel::default();
        let mark = Arc::clone(&woken);
        drop(cancel.while_waiting(Arc::new(move || mark.store(true, Ordering::Relaxed))));
        cancel.cancel();
        assert!(!woken.load(Ordering::Relaxed));
    }
}
