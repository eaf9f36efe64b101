//! What dead owners left: memory of other pods of the node that no pod owns any more. While sessions of ours use tensors of it, it
//! is copied into our arena, where there is room, and whoever maps it is told of the copy. The tensors stay what they are: number,
//! place and leases do not change. Knows no peer: that an owner is dead is the arena's to find out.
//!
//! The copies are made on a thread of their own, one segment after the other, so that the keeper keeps its time.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use tensorlane_memory::{Arena, GrowError, NoRoom, SegmentHandle};
use tensorlane_proto::ledger::{Millis, SessionId};

use super::Store;
use crate::session::Segments;

/// How often it is looked whether an owner has died. A look costs a system call for each foreign segment in use.
const LOOK: Millis = Millis(200);
/// How long after one for which there was no room the next copy is tried: pages that stay for so much longer, against a look
/// through the arena, and idle segments that clients are asked to unmap.
const TRY_AGAIN: Millis = Millis(2_000);

/// What the keeper knows of the copies that are being made.
#[derive(Default)]
pub(super) struct Orphans {
    copying: Option<JoinHandle<Result<(), GrowError>>>,
    not_before: Option<Millis>,
    /// That there is no room was said since the last copy.
    complained: bool,
}

// === impl Orphans ===

impl Orphans {
    /// Whether it is time for a look, and nothing is being copied.
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

    fn heard(&mut self, now: Millis, outcome: Result<(), GrowError>) {
        let Err(error) = outcome else {
            self.complained = false;
            return;
        };
        self.not_before = Some(now.after(TRY_AGAIN));
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "the memory of a dead owner stays nobody's: it cannot be copied into the arena now");
        }
    }

    /// Waits for what is being copied.
    pub(super) fn end(&mut self) -> Option<Result<(), GrowError>> {
        // A panic there has been reported by the panic hook.
        self.copying.take().map(|copying| copying.join().unwrap_or(Ok(())))
    }
}

// === impl Store ===

impl Store {
    /// Has copied what dead owners left, and tells of the copies whoever has not heard of them. Does not wait.
    pub(super) fn look_after(self: &Arc<Self>, orphans: &mut Orphans) {
        if !orphans.is_time(self.clock.now()) || self.arena.foreign().mapped == 0 {
            return;
        }
        self.tell_of_copies();
        let left = self.arena.orphans();
        // Who waits in line for room came first.
        if left.is_empty() || self.waiting() > 0 {
            return;
        }
        let store = Arc::clone(self);
        let copy = move || store.take_in(&left);
        // Without a thread it is tried again at the next look.
        orphans.copying = std::thread::Builder::new().name("tl-orphans".into()).spawn(copy).ok();
    }

    /// Copies segments of dead owners, given with their bytes; as many as there is room for.
    fn take_in(&self, left: &[(u32, u64)]) -> Result<(), GrowError> {
        let mut outcome = Ok(());
        for &(segment, bytes) in left {
            let taken = match self.arena.take_in(segment) {
                Err(GrowError::NoRoom(NoRoom::Full(_))) if self.relieve(bytes) => self.arena.take_in(segment),
                taken => taken,
            };
            match taken {
                Ok(Some(taken)) => {
                    let sessions = taken.sessions.len();
                    tracing::info!(
                        segment,
                        bytes,
                        sessions,
                        "the memory of a dead owner was copied into the arena"
                    );
                }
                Ok(None) => {}
                Err(error) => outcome = Err(error),
            }
            self.tell_of_copies();
        }
        outcome
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
