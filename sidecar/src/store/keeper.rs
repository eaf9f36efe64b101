//! The keeper: one thread that lets the ledger know when time has passed (tickets, graces, idle copies), asks clients to unmap
//! what they have no more use for, and looks after what dead owners left ([`super::orphans`]).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorlane_memory::heap;
use tensorlane_proto::ledger::{Cause, Event, Millis, SessionId};

use super::orphans::Orphans;
use super::{State, Store};
use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Interval of the keeper's looks for segments to be unmapped while any are retired.
const UNMAP_LOOK: Millis = Millis(200);
/// Interval while other pods' memory is mapped, of which nobody tells when it is of no use any more. Whoever maps the
/// first of it wakes the keeper.
pub(super) const FOREIGN_LOOK: Millis = Millis(2_000);

/// Bytes by which the tables have to shrink until the heap is given back to the kernel: less is used again soon.
pub(super) const SHRUNK_BYTES: u64 = 8 << 20;

/// Orders that the keeper sleeps for, and what it counts on the way. Under the store's lock.
#[derive(Default)]
pub(super) struct Orders {
    /// Time at which it wakes by itself; none while it is awake or sleeps without an end.
    wakes_at: Option<Millis>,
    sleeping: bool,
    stopping: bool,
    freed: [(u64, u64); Cause::ALL.len()],
    numbers: u64,
    /// The most bytes of the ledger's tables since the heap was given back.
    peak: u64,
    /// Set if the heap is to be given back.
    has_shrunk: bool,
}

/// Bell that wakes the keeper. What rings while it is awake is heard when it goes to sleep: nothing that it has not seen is missed.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

/// The keeper's thread; ends with [`Keeper::stop`].
pub struct Keeper {
    store: Arc<Store>,
    thread: JoinHandle<()>,
}

// === impl Orders ===

impl Orders {
    pub(super) fn sleeps_past(&self, deadline: Option<Millis>) -> bool {
        self.sleeping && deadline.is_some_and(|d| self.wakes_at.is_none_or(|w| d < w))
    }

    /// Notes the bytes of the ledger's tables.
    pub(super) fn note_size(&mut self, bytes: u64) {
        self.peak = self.peak.max(bytes);
        if self.peak - bytes >= SHRUNK_BYTES {
            self.shrunk(bytes);
        }
    }

    /// Has the heap given back, when the ledger's tables have so many bytes.
    pub(super) fn shrunk(&mut self, bytes: u64) {
        (self.peak, self.has_shrunk) = (bytes, true);
    }

    /// True if the keeper sleeps though the heap is to be given back.
    pub(super) fn sleeps_on_heap(&self) -> bool {
        self.sleeping && self.has_shrunk
    }

    /// True if the keeper was told to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// A number that was not given before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn count_freed(&mut self, cause: Cause, bytes: u64) {
        let (tensors, all) = &mut self.freed[cause as usize];
        *tensors += 1;
        *all = all.saturating_add(bytes);
    }

    pub(super) fn freed(&self) -> impl Iterator<Item = (Cause, u64, u64)> + '_ {
        Cause::ALL.into_iter().zip(self.freed).map(|(cause, (tensors, bytes))| (cause, tensors, bytes))
    }
}

// === impl Keeper ===

impl Keeper {
    /// Starts the keeper of a store.
    pub fn start(store: Arc<Store>, threads: &Threads) -> std::io::Result<Self> {
        let (kept, starts) = (Arc::clone(&store), threads.clone());
        let thread = threads.start("keeper", PanicScope::Process, move || kept.keep(&starts))?;
        Ok(Self { store, thread })
    }

    /// Ends the thread.
    pub fn stop(self) {
        self.store.state.lock().keeper.stopping = true;
        self.store.keeper_wanted.ring();
        // A panic there has been counted.
        let _ = self.thread.join();
    }
}

// === impl Bell ===

impl Bell {
    pub(super) fn ring(&self) {
        *self.rung.lock() = true;
        self.heard.notify_one();
    }

    /// Waits until it was rung since the last wait, for ever or for so long.
    fn wait(&self, patience: Option<Duration>) {
        let mut rung = self.rung.lock();
        if !*rung {
            match patience {
                Some(patience) => {
                    self.heard.wait_for(&mut rung, patience);
                }
                None => self.heard.wait(&mut rung),
            }
        }
        *rung = false;
    }
}

// === impl Store ===

impl Store {
    fn keep(self: &Arc<Self>, threads: &Threads) {
        let mut orphans = Orphans::default();
        loop {
            if std::mem::take(&mut self.state.lock().keeper.has_shrunk) {
                heap::give_back();
            }
            let look_in = self.ask_to_unmap();
            // Nothing is begun any more then. Not under the lock, which the look takes itself.
            let stopping = self.state.lock().keeper.stopping;
            if !stopping {
                self.look_after(&mut orphans, threads);
            }
            let mut state = self.state.lock();
            if state.keeper.stopping {
                drop(state);
                orphans.stop();
                return;
            }
            let (_, freed) = state.apply(self.clock.now(), Event::Tick);
            if freed.0.is_empty() && !state.keeper.has_shrunk {
                self.sleep(state, look_in);
            } else {
                drop(state);
            }
            drop(freed);
        }
    }

    /// Sleeps until the next deadline; not for longer than until somebody has to look at segments again.
    fn sleep(&self, mut state: MutexGuard<'_, State>, look_in: Option<Millis>) {
        let now = self.clock.now();
        // Under the lock: what was mapped since the last look has found the keeper awake.
        let foreign = (self.arena.foreign().mapped > 0).then_some(FOREIGN_LOOK);
        let look_again = look_in.or(foreign).map(|time| now.after(time));
        let deadline = state.ledger.next_deadline().into_iter().chain(look_again).min();
        state.keeper.sleeping = true;
        state.keeper.wakes_at = deadline;
        drop(state);
        // One millisecond more, so that the clock has certainly passed the deadline.
        let patience = deadline.map(|deadline| self.clock.until(deadline) + Duration::from_millis(1));
        self.keeper_wanted.wait(patience);
        self.state.lock().keeper.sleeping = false;
    }

    /// Asks sessions to let go of segments that wait for nothing else. When to look again, if at all.
    fn ask_to_unmap(&self) -> Option<Millis> {
        if !self.arena.waits_for_unmapping() {
            return None;
        }
        for (session, segment) in self.arena.lingering() {
            if let Some(link) = self.link(SessionId(session)) {
                link.retire(segment);
            }
        }
        Some(UNMAP_LOOK)
    }

    /// Tensors and bytes freed since the start, by cause.
    pub fn freed(&self) -> Vec<(Cause, u64, u64)> {
        self.state.lock().keeper.freed().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_rang_before_the_wait_is_heard_once() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        bell.wait(None);
        bell.wait(Some(Duration::ZERO));
        assert!(!*bell.rung.lock());
    }
}
