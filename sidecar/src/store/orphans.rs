//! Remains of dead owners: memory of other pods of the node that no pod owns any more. While sessions of ours use
//! tensors of it, it is copied into our arena, where there is room, and whoever maps it is told of the copy. The
//! tensors stay what they are: number, place and leases do not change. Knows no peer: that an owner is dead is the
//! arena's to find out.
//!
//! The copies are made on a thread of their own, one segment after the other, so that the keeper keeps its time.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tensorlane_memory::{Arena, GrowError, NoRoom, SegmentHandle};
use tensorlane_proto::ledger::{Millis, SessionId};

use super::Store;
use crate::backoff::Backoff;
use crate::metrics::label::PanicScope;
use crate::session::Segments;
use crate::threads::Threads;

/// Interval of looks for owners that have died. A look costs a system call for each foreign segment in use.
const LOOK: Millis = Millis(200);
/// Time until the next copy is tried after one for which there was no room. Twice as long after each further one: pages
/// that stay for so much longer, against a look through the arena, idle copies that are dropped and idle segments that
/// clients are asked to unmap.
const TRY_AGAIN: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// State of the copies that are being made, as the keeper knows it.
#[derive(Default)]
pub(super) struct Orphans {
    copying: Option<JoinHandle<Tried>>,
    not_before: Option<Millis>,
    /// Time at which the next copy may be begun, if the last one could not be made.
    paused_until: Option<Millis>,
    /// Number of tries in vain since the last copy.
    failures: u32,
    /// Segments that are larger than what the arena may give at all.
    too_large: HashSet<u32>,
}

/// Outcome of one round of copies.
#[derive(Default)]
struct Tried {
    copied: bool,
    /// The last one that could not be made now.
    failed: Option<GrowError>,
    too_large: Vec<u32>,
    /// Set if the thread has panicked.
    broke_off: bool,
}

// === impl Orphans ===

impl Orphans {
    /// True if it is time for a look, and nothing is being copied.
    fn is_time(&mut self, now: Millis) -> bool {
        if self.copying.as_ref().is_some_and(|copying| !copying.is_finished()) {
            return false;
        }
        if let Some(outcome) = self.end() {
            self.heard(now, outcome);
        }
        if self.not_before.is_some_and(|then| now < then) {
            return false;
        }
        self.not_before = Some(now.after(LOOK));
        true
    }

    fn heard(&mut self, now: Millis, tried: Tried) {
        self.too_large.extend(tried.too_large);
        self.paused_until = None;
        if tried.copied {
            self.failures = 0;
        }
        if tried.failed.is_none() && !tried.broke_off {
            return;
        }
        self.paused_until = Some(now.after(pause(self.failures)));
        self.failures = self.failures.saturating_add(1);
        if let Some(error) = tried.failed
            && self.failures == 1
        {
            tracing::warn!(%error, "the memory of a dead owner stays nobody's: it cannot be copied into the arena now");
        }
    }

    /// Waits for what is being copied.
    fn end(&mut self) -> Option<Tried> {
        // A panic there has been counted, and it is tried again.
        let broke_off = |_| Tried { broke_off: true, ..Tried::default() };
        self.copying.take().map(|copying| copying.join().unwrap_or_else(broke_off))
    }

    /// Waits for what is being copied, if nobody asks any more whether it could be copied.
    pub(super) fn stop(mut self) {
        let _ = self.end();
    }
}

/// Pause after a further failure than these.
fn pause(failures: u32) -> Millis {
    Millis(u64::try_from(TRY_AGAIN.wait(failures.saturating_add(1)).as_millis()).unwrap_or(u64::MAX))
}

// === impl Store ===

impl Store {
    /// Has copied what dead owners left, and tells of the copies whoever has not heard of them. Does not wait.
    pub(super) fn look_after(self: &Arc<Self>, orphans: &mut Orphans, threads: &Threads) {
        let now = self.clock.now();
        if !orphans.is_time(now) || self.arena.foreign().mapped == 0 {
            return;
        }
        self.tell_of_copies();
        let mut left = self.arena.orphans();
        left.retain(|(segment, _)| !orphans.too_large.contains(segment));
        if left.is_empty() {
            (orphans.failures, orphans.paused_until) = (0, None);
            return;
        }
        if orphans.paused_until.is_some_and(|then| now < then) || self.has_to_yield() {
            return;
        }
        let store = Arc::clone(self);
        let copy = move || store.take_in(&left);
        // Without a thread it is tried again at the next look.
        orphans.copying = threads.start("tl-orphans", PanicScope::Call, copy).ok();
    }

    /// True if no copy is begun now: who waits in line for room came first, and the store may be about to end.
    fn has_to_yield(&self) -> bool {
        self.waiting() > 0 || self.state.lock().keeper.is_stopping()
    }

    /// True if there could be room for so much if all that is idle were given back. Without that nothing is taken away
    /// for it.
    fn could_have(&self, bytes: u64) -> bool {
        let (usage, totals) = (self.arena.usage(), self.totals().0);
        usage.free.saturating_add(usage.held).saturating_add(totals.bytes_idle) >= bytes
    }

    /// Copies segments of dead owners, given with their bytes; as many as there is room for.
    fn take_in(&self, left: &[(u32, u64)]) -> Tried {
        let mut tried = Tried::default();
        for &(segment, bytes) in left {
            if self.has_to_yield() {
                break;
            }
            let taken = match self.arena.take_in(segment) {
                Err(GrowError::NoRoom(NoRoom::Full(_))) if self.could_have(bytes) && self.reclaim(bytes) => {
                    self.arena.take_in(segment)
                }
                taken => taken,
            };
            match taken {
                Ok(Some(taken)) => {
                    tried.copied = true;
                    let sessions = taken.sessions.len();
                    tracing::info!(
                        segment,
                        bytes,
                        sessions,
                        "the memory of a dead owner was copied into the arena"
                    );
                }
                Ok(None) => {}
                Err(GrowError::NoRoom(error @ NoRoom::Never { .. })) => {
                    tracing::warn!(segment, bytes, %error, "the memory of a dead owner stays nobody's: it can never be copied");
                    tried.too_large.push(segment);
                }
                Err(error) => tried.failed = Some(error),
            }
            self.tell_of_copies();
        }
        tried
    }

    /// Announces copies to the sessions that map the pages of a dead owner still; each hears of it once.
    fn tell_of_copies(&self) {
        for outdated in self.arena.outdated() {
            for session in outdated.sessions {
                let Some(link) = self.link(SessionId(session)) else { continue };
                if let Err(error) = link.exchange(&outdated.segment, &*self.arena) {
                    tracing::debug!(session, %error, "no descriptor for a copy: told at the next look");
                }
            }
        }
    }
}

impl Segments for Arena {
    fn open(&self, segment: &SegmentHandle, session: SessionId) -> io::Result<(OwnedFd, OwnedFd)> {
        self.hand_out(segment, session.0)
    }
}

#[cfg(test)]
mod tests;
