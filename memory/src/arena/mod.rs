//! The arena: a budget of bytes, the segments in it, and blocks that return themselves.
//!
//! ```text
//!   allocate --Ok--> Block                      (from segments its owner has; quick)
//!      |
//!      '--NoRoom::Grow--> admit --> Grant --populate (slow)--> Fresh --adopt--> SegmentHandle, then allocate again
//! ```
//!
//! Bytes are booked before they are populated and given back after they are gone, so that the pages of this process
//! never exceed the arena: beyond the container's limit the kernel kills, it does not refuse.
//!
//! One lock guards the books (`state`), and it is a leaf: no callback runs, no map is unmapped and no block is
//! dropped under it. So blocks may be dropped on any thread, under any lock of the caller.

pub mod foreign;
mod grant;
mod handle;
mod options;
mod orphans;
mod state;
mod threads;
mod witness;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;

use parking_lot::{Condvar, Mutex};

use crate::accounting::{Room, Usage};
use crate::block::Block;
use crate::inherited;
use crate::owned_thread::OwnedThread;
use crate::segment::Populate;
use crate::watcher::Watcher;

pub use foreign::{Foreign, ForeignUsage, ImportError, Lease};
pub use grant::{AdoptError, Fresh, Grant, GrowError};
pub use handle::SegmentHandle;
pub use options::{
    ArenaError, ArenaOptions, NoRoom, Owner, PULL_SHARE, Purpose, READY_BYTES_MAX, SEGMENT_BYTES,
};
pub use orphans::TakenIn;
use state::{Limits, Settled, State};

/// The memory of a sidecar. Cheap to share; its threads end with [`Arena::stop`] or the last owner.
pub struct Arena {
    shared: Arc<Shared>,
    watcher: Watcher,
    witnesses: witness::Maker,
    populator: Mutex<Option<OwnedThread>>,
    reaper: Mutex<Option<OwnedThread>>,
}

/// State that blocks, grants and threads share with the arena.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Told when the budget, the pool or the populator's work changes.
    changed: Condvar,
    on_room: Arc<dyn Fn() + Send + Sync>,
    on_lingering: Arc<dyn Fn() + Send + Sync>,
    populate: Arc<dyn Populate>,
    /// Channel by which segments go to be unmapped, so that no caller's drop pays for it.
    reaper: Mutex<Option<Sender<Arc<SegmentHandle>>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Arena {
    /// Starts an arena, with what dead incarnations left in its witness directory charged to it.
    ///
    /// `on_room` is called whenever bytes may have become allocatable: on any thread, never under the arena's lock,
    /// possibly under locks of the caller (a block was dropped there). It must be quick and must not call the
    /// arena; waking a task is what it is for.
    ///
    /// # Errors
    /// Wrong options, a witness directory that cannot be used, no threads.
    pub fn start(
        options: ArenaOptions,
        on_room: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Arc<Self>, ArenaError> {
        let limits = Limits::from_options(&options)?;
        let witnesses = witness::Maker::new(options.witness_dir.clone());
        let left = match &options.witness_dir {
            Some(path) => inherited::scan(path)
                .map_err(|source| ArenaError::WitnessDir { path: path.clone(), source })?,
            None => Vec::new(),
        };
        let (to_reaper, to_reap) = std::sync::mpsc::channel();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(limits, left.iter().map(|one| one.bytes).sum())),
            changed: Condvar::new(),
            on_room,
            on_lingering: options.on_lingering,
            populate: options.populate,
            reaper: Mutex::new(Some(to_reaper)),
        });
        let start = options.start_thread;
        let watcher = Watcher::start_by(&start).map_err(ArenaError::Threads)?;
        for one in left {
            witness::watch_inherited(&shared, &watcher, one).map_err(ArenaError::Threads)?;
        }
        let populator = threads::populator(&start, &shared).map_err(ArenaError::Threads)?;
        let reaper = threads::reaper(&start, to_reap).map_err(ArenaError::Threads)?;
        Ok(Arc::new(Self {
            shared,
            watcher,
            witnesses,
            populator: Mutex::new(Some(populator)),
            reaper: Mutex::new(Some(reaper)),
        }))
    }

    /// A block of `bytes` from the segments its owner already has; quick. No bytes: an empty block, always.
    ///
    /// # Errors
    /// [`NoRoom::Grow`] where a new segment has to be made and may be; else why not.
    pub fn allocate(&self, owner: Owner, purpose: Purpose, bytes: u64) -> Result<Block, NoRoom> {
        if bytes == 0 {
            return Ok(Block::nothing());
        }
        let mut state = self.shared.state.lock();
        if let Some(place) = state.allocate(owner, purpose, bytes)? {
            drop(state);
            return Ok(Block::new(Arc::clone(&self.shared), place, bytes));
        }
        state.plan(purpose, bytes).and(Err(NoRoom::Grow))
    }

    /// The account at this instant.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shared.state.lock().usage()
    }

    /// Room that a request of this kind could have at this instant. For telling people: nothing is promised.
    #[must_use]
    pub fn room(&self, owner: Owner, purpose: Purpose) -> Room {
        self.shared.state.lock().room(owner, purpose)
    }

    /// The largest block that an empty arena could give for a purpose.
    #[must_use]
    pub fn most(&self, purpose: Purpose) -> u64 {
        self.shared.state.lock().most(purpose)
    }

    /// The thread that waits for ends; it has room for the caller's processes and pipes too.
    #[must_use]
    pub fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// The session's segments take no more blocks, and their idle bytes are retired. Each goes, to the sidecar or
    /// for good ([`ArenaOptions::take_over`]), when its last block is gone and every witness is at its end. Grants
    /// and fresh segments of the session cannot be adopted any more. The caller asks nothing more in its name.
    pub fn session_ended(&self, session: u64) {
        let settled = self.shared.state.lock().session_ended(session);
        settled.into_iter().for_each(|settled| self.shared.follow(settled));
    }

    /// Takes idle segments away until `want` bytes are on their way back: first those of sessions, then the
    /// sidecar's own that clients still map. Returns every (session, segment) that has to unmap; the bytes are
    /// retired until the witnesses are at their ends, and `on_room` tells when.
    #[must_use = "the sessions have to be told, else the bytes stay retired"]
    pub fn reclaim_held(&self, want: u64) -> Vec<(u64, u32)> {
        let (settled, told) = self.shared.state.lock().reclaim(want);
        settled.into_iter().for_each(|settled| self.shared.follow(settled));
        told
    }

    /// Every (session, segment) whose map is all that a segment still waits for before its bytes can come back. Whoever
    /// is alive should be asked to unmap; asking again does no harm.
    #[must_use]
    pub fn lingering(&self) -> Vec<(u64, u32)> {
        self.shared.state.lock().lingering()
    }

    /// Returns whether anything waits for somebody to unmap it.
    #[must_use]
    pub fn waits_for_unmapping(&self) -> bool {
        let state = self.shared.state.lock();
        state.usage().retired > 0 || state.any_foreign_lingers()
    }

    /// Ends the threads and waits for them. Blocks that live on stay readable; nothing new is given.
    pub fn stop(&self) {
        let pinned = self.shared.state.lock().stop();
        self.shared.changed.notify_all();
        for thread in [self.populator.lock().take(), self.reap_no_more()].into_iter().flatten() {
            drop(thread);
        }
        self.watcher.stop();
        drop(pinned);
    }

    fn reap_no_more(&self) -> Option<OwnedThread> {
        self.shared.reaper.lock().take();
        self.reaper.lock().take()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Notes that our own map and descriptor of a segment are gone.
    fn memory_gone(&self, segment: u32) {
        let settled = self.state.lock().memory_gone(segment);
        if matches!(settled, Settled::Waits) {
            (self.on_lingering)();
        }
        self.follow(settled);
    }

    /// Does what the books decided; the lock is free.
    fn follow(&self, settled: Settled) {
        match settled {
            Settled::Waits => {}
            Settled::Freed => self.budget_changed(),
            Settled::Emptied(handle) => self.reap(handle),
        }
    }

    fn budget_changed(&self) {
        self.changed.notify_all();
        (self.on_room)();
    }

    /// Has a segment unmapped by the reaper, or here and now where there is none any more.
    fn reap(&self, handle: Arc<SegmentHandle>) {
        let reaper = self.reaper.lock().clone();
        match reaper {
            // A reaper that is gone sends it back, and it is dropped here.
            Some(reaper) => drop(reaper.send(handle)),
            None => drop(handle),
        }
    }

    /// A block is gone: its bytes return to its segment.
    pub(crate) fn release(&self, place: Place, class: Class) {
        if place.segment.is_guest() {
            return self.release_foreign(place, class);
        }
        let Place { segment, offset, charged, .. } = place;
        let id = segment.id();
        // Ours is not the last: the books keep one while the segment has blocks. So nothing is unmapped here.
        drop(segment);
        let settled = self.state.lock().release(id, offset, charged, class);
        match settled {
            // Room in a segment, not in the budget: the populator need not know.
            Settled::Freed | Settled::Waits => (self.on_room)(),
            Settled::Emptied(handle) => self.reap(handle),
        }
    }

    /// A block goes on to a later class in the account; never back.
    pub(crate) fn reclass(&self, place: &Place, class: &AtomicU8, to: Class) {
        let mut state = self.state.lock();
        // Under the lock, so that two callers at once see each other's step.
        let from = Class::of(class.fetch_max(to as u8, Ordering::AcqRel));
        if (from as u8) >= to as u8 {
            return;
        }
        match place.segment.is_guest() {
            true => state.foreign_reclass(place.segment.id(), place.charged, to),
            false => state.reclass(place.segment.id(), place.charged, from, to),
        }
    }
}

pub(crate) use state::{Class, Place};

#[cfg(test)]
mod tests;
