//! The fence of a term: a leader that stood still (its process was stopped, its node was overloaded) may have lost its lease
//! without having noticed, and what it was about to write is what another one has decided since. So the whole work of a term is
//! polled only after a look at the clock; after too long a gap it is not polled again, and the lease has to be had anew.
//!
//! It knows no lease and no API server, so it does not hold back:
//! - a request that had been handed to the connection before the gap, and what is done in a poll that a gap interrupts: it can
//!   arrive late;
//! - a leader that runs all the time while its renewals fail, as when the API server takes everything but those: whoever keeps
//!   the lease tries again and says that it leads until it reads of another holder, and meanwhile two may write;
//! - a gap between the answer that the lease is had and the beginning of the term;
//! - a gap that the monotonic clock does not count, as that of a suspended machine.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

/// Interval at which it is looked at where there is nothing to poll.
const PULSE: Duration = Duration::from_secs(1);

/// Watch on whether the process has run all the time since a term began.
#[derive(Debug)]
pub struct Fence {
    /// Time at which it was last seen to run; none once it stood still for too long.
    seen: Option<Instant>,
    /// The longest gap in which no lease can be lost.
    most: Duration,
}

impl Fence {
    /// The fence of a term that begins `now`. `most`: how long before its end a lease is renewed, less what clocks may differ by.
    pub fn new(most: Duration, now: Instant) -> Fence {
        Fence { seen: Some(now), most }
    }

    /// Does this work for as long as it holds; none if it broke before the work was done.
    pub async fn guard<W: Future>(mut self, work: W) -> Option<W::Output> {
        let mut work = pin!(work);
        let mut pulse = tokio::time::interval(PULSE.min(self.most / 2));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll_fn(move |context| {
            if !self.holds(Instant::now()) {
                return Poll::Ready(None);
            }
            // Until it is pending: then it wakes this task.
            while pulse.poll_tick(context).is_ready() {}
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Returns whether it has run until `now`. Once it has not, it never has.
    fn holds(&mut self, now: Instant) -> bool {
        self.seen = self.seen.filter(|seen| now.saturating_duration_since(*seen) <= self.most).map(|_| now);
        self.seen.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_leader_that_is_paused_beyond_its_lease_goes_on_with_nothing() {
        let begun = Instant::now();
        let mut fence = Fence::new(5 * S, begun);
        assert!((1..60).all(|second| fence.holds(begun + second * S)), "it runs");
        // Paused for twenty seconds.
        let goes_on = begun + 79 * S;
        assert!(!fence.holds(goes_on));
        assert!(!fence.holds(goes_on + S / 10), "and another look does not mend it");
    }

    #[test]
    fn a_short_stand_still_loses_no_lease() {
        let begun = Instant::now();
        let mut fence = Fence::new(5 * S, begun);
        assert!(fence.holds(begun + 5 * S) && fence.holds(begun + 10 * S));
    }

    #[tokio::test]
    async fn work_is_not_polled_again_after_a_gap() {
        let mut polls = 0;
        let work = poll_fn(|context| {
            polls += 1;
            // The thread that runs the term stands still, and the work could go on at once.
            std::thread::sleep(Duration::from_millis(40));
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let fence = Fence::new(Duration::from_millis(20), Instant::now());
        let done = tokio::time::timeout(20 * S, fence.guard(work)).await.unwrap();
        // Not even once where a busy machine stood still before.
        assert!(done.is_none() && polls <= 1, "{polls}");
    }

    #[tokio::test]
    async fn work_that_waits_does_not_break_it() {
        let mut polls = 0;
        // Nothing wakes it but the pulse.
        let work = poll_fn(|_| {
            polls += 1;
            if polls < 3 { Poll::Pending } else { Poll::Ready(7) }
        });
        assert_eq!(Fence::new(60 * S, Instant::now()).guard(work).await, Some(7));
    }
}
