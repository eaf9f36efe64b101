//! Both halves of a wait. The two waits of a ring are these two functions with other words; the tests prove them under every order of
//! memory accesses that the language allows.

use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use super::region::{Own, Shared};

/// A counter on which one side sleeps.
pub(super) trait Events {
    /// Sleeps while it has the value `seen`; may end for no reason.
    fn wait(&self, seen: u32, until: Option<Instant>);
    /// Orders what this side stored before what it loads next, in the one order that all fences have.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Counter of events, for the side that counts.
pub(super) trait Count: Events {
    fn increment(&self);
}

/// The counter at an offset of a region.
pub(super) struct Counter<'a, R>(pub(super) &'a R, pub(super) u64);

/// Regions of which the words can be read.
pub(super) trait Readable {
    fn shared(&self) -> &Shared;
}

impl Readable for Shared {
    fn shared(&self) -> &Shared {
        self
    }
}

impl Readable for Own {
    fn shared(&self) -> &Shared {
        self.deref()
    }
}

impl<R: Readable> Events for Counter<'_, R> {
    fn wait(&self, seen: u32, until: Option<Instant>) {
        self.0.shared().wait(self.1, seen, until);
    }
}

impl Count for Counter<'_, Own> {
    fn increment(&self) {
        self.0.add32(self.1);
    }
}

/// Announces a sleep, looks once more, and sleeps if nothing is there. `seen` is the counter from before the first look.
pub(super) fn sleep_unless(
    events: &impl Events,
    seen: u32,
    announce: impl FnOnce(),
    is_there: impl FnOnce() -> bool,
    until: Option<Instant>,
) {
    announce();
    events.fence();
    if !is_there() {
        events.wait(seen, until);
    }
}

/// Counts an event whose cause was stored before, and asks who sleeps. Whoever does must be woken after.
pub(super) fn count<T>(events: &impl Count, who_sleeps: impl FnOnce() -> T) -> T {
    events.increment();
    events.fence();
    who_sleeps()
}

#[cfg(test)]
pub(super) mod tests {
    use loom::sync::atomic::{AtomicU32, fence};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// Model of a counter. The lock is that of the kernel's queue of those who sleep on it.
    pub(in super::super) struct Bell {
        fenced: bool,
        pub(in super::super) events: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    /// Model of one direction.
    struct Model {
        head: AtomicU32,
        asleep: AtomicU32,
        bell: Bell,
    }

    /// As [`Shared::load32`] loads on pages that may be read-only.
    pub(in super::super) fn load32(word: &AtomicU32) -> u32 {
        let value = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    impl Bell {
        pub(in super::super) fn new(fenced: bool) -> Self {
            Self { fenced, events: AtomicU32::new(0), queue: Mutex::new(()), woken: Condvar::new() }
        }

        pub(in super::super) fn wake(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_all();
        }
    }

    impl Events for Bell {
        fn wait(&self, seen: u32, _: Option<Instant>) {
            let queue = self.queue.lock().unwrap();
            if self.events.load(Ordering::Relaxed) == seen {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        fn fence(&self) {
            if self.fenced {
                fence(Ordering::SeqCst);
            }
        }
    }

    impl Count for Bell {
        fn increment(&self) {
            self.events.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Publishes `last` messages on one side and waits for the last one on the other. Loom fails when it sleeps for ever.
    fn publish_and_wait(last: u32, fenced: bool, switches: Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = switches;
        builder.check(move || {
            let word = || AtomicU32::new(0);
            let model = Arc::new(Model { head: word(), asleep: word(), bell: Bell::new(fenced) });
            let shared = Arc::clone(&model);
            let publishing = thread::spawn(move || {
                for head in 1..=last {
                    shared.head.store(head, Ordering::Release);
                    if count(&shared.bell, || load32(&shared.asleep)) != 0 {
                        shared.bell.wake();
                    }
                }
            });
            let is_there = || load32(&model.head) == last;
            loop {
                let seen = load32(&model.bell.events);
                if is_there() {
                    break;
                }
                let announce = || model.asleep.store(1, Ordering::Release);
                sleep_unless(&model.bell, seen, announce, is_there, None);
                model.asleep.store(0, Ordering::Release);
            }
            publishing.join().unwrap();
        });
    }

    #[test]
    fn sleeper_is_woken_in_every_order_of_accesses() {
        publish_and_wait(1, true, None);
    }

    #[test]
    fn sleeper_of_two_messages_is_woken_however_its_side_is_interrupted_twice() {
        publish_and_wait(2, true, Some(2));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_model_finds_the_wake_that_is_lost_without_fences() {
        publish_and_wait(1, false, None);
    }
}
