//! The fence of a term: a leader that stood still (its process was stopped, its node was overloaded) may have lost its lease
//! without having noticed, and what it was about to write is what another one has decided since. So it looks at the clock before
//! each write, and all the time; after too long a gap the term is over, and the lease has to be had anew.
//!
//! It knows no lease and no API server. What it cannot hold back is a call that had left before the process was stopped.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked at where nothing is written.
const PULSE: Duration = Duration::from_secs(1);

/// Whether the process has run all the time since a term began.
#[derive(Debug)]
pub struct Fence {
    /// When it was last seen to run; none once it stood still for too long.
    seen: Mutex<Option<Instant>>,
    /// The longest gap in which no lease can be lost.
    most: Duration,
}

impl Fence {
    /// The fence of a term that begins `now`. `most`: how long before its end a lease is renewed.
    pub fn new(most: Duration, now: Instant) -> Fence {
        Fence { seen: Mutex::new(Some(now)), most }
    }

    /// Whether it has run until `now`. Once it has not, it never has.
    pub fn holds(&self, now: Instant) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen =
            seen.filter(|seen| now.saturating_duration_since(*seen) <= self.most).map(|seen| seen.max(now));
        seen.is_some()
    }

    /// Looks at it all the time; returns when it does not hold any more.
    pub async fn broken(&self) {
        while self.holds(Instant::now()) {
            tokio::time::sleep(PULSE.min(self.most / 2)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_leader_that_is_paused_beyond_its_lease_writes_nothing_when_it_goes_on() {
        let begun = Instant::now();
        let fence = Fence::new(5 * S, begun);
        assert!((1..60).all(|second| fence.holds(begun + second * S)), "it runs");
        // Paused for twenty seconds; whichever of its tasks runs first, the writer finds the fence.
        let goes_on = begun + 79 * S;
        assert!(!fence.holds(goes_on));
        assert!(!fence.holds(goes_on + S / 10), "and another task does not mend it");
    }

    #[test]
    fn a_short_stand_still_loses_no_lease() {
        let begun = Instant::now();
        let fence = Fence::new(5 * S, begun);
        assert!(fence.holds(begun + 5 * S) && fence.holds(begun + 10 * S));
        // A look that was made before, and told after, makes nothing older.
        assert!(fence.holds(begun + 9 * S) && fence.holds(begun + 15 * S));
    }

    #[tokio::test]
    async fn a_term_ends_when_its_fence_is_broken() {
        let fence = Fence::new(Duration::from_millis(20), Instant::now());
        // The thread that runs the term stands still.
        std::thread::sleep(Duration::from_millis(40));
        tokio::time::timeout(Duration::from_secs(20), fence.broken()).await.unwrap();
        assert!(!fence.holds(Instant::now()));
    }
}
