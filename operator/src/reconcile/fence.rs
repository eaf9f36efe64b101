//! The fence of a term: whoever leads may write until a time that each renewal of the lease moves on. The whole work of a term is
//! polled only after a look at the clock, so after that time nothing more is written: neither by a leader whose renewals
//! fail, nor by one that stood still (its process was stopped, its node was overloaded) and has not noticed.
//!
//! Not held back:
//! - a request that had been handed to the connection before that time, and what is done in a poll that a gap interrupts. The
//!   first is why the lease lasts for longer than the fence is open; the second can arrive later than that;
//! - a gap that the monotonic clock does not count, as that of a suspended machine.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

/// Interval at which it is looked at where there is nothing to poll.
const PULSE: Duration = Duration::from_secs(1);

/// Time until which a term may write.
#[derive(Debug)]
pub struct Fence {
    until: watch::Receiver<Instant>,
}

impl Fence {
    /// The fence of a term that may write until then, as whoever renews it says.
    pub fn new(until: watch::Receiver<Instant>) -> Fence {
        Fence { until }
    }

    /// Does this work for as long as it is open; none if it closed before the work was done.
    pub async fn guard<W: Future>(self, work: W) -> Option<W::Output> {
        let mut work = pin!(work);
        let mut pulse = tokio::time::interval(PULSE);
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll_fn(move |context| {
            if Instant::now() >= *self.until.borrow() {
                return Poll::Ready(None);
            }
            // Until it is pending: then it wakes this task.
            while pulse.poll_tick(context).is_ready() {}
            work.as_mut().poll(context).map(Some)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn work_is_not_polled_after_the_time_of_the_last_renewal() {
        let mut polls = 0;
        let work = poll_fn(|context| {
            polls += 1;
            // The thread that runs the term stands still, and the work could go on at once.
            std::thread::sleep(Duration::from_millis(40));
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        let until = watch::Sender::new(Instant::now() + Duration::from_millis(20));
        let done = tokio::time::timeout(20 * S, Fence::new(until.subscribe()).guard(work)).await.unwrap();
        // Not even once where a busy machine stood still before.
        assert!(done.is_none() && polls <= 1, "{polls}");
    }

    #[tokio::test]
    async fn a_renewal_that_fails_ends_work_that_waits_and_one_that_is_granted_does_not() {
        let until = watch::Sender::new(Instant::now() + S / 2);
        let fence = Fence::new(until.subscribe());
        let renewals = async {
            for _ in 0..4 {
                tokio::time::sleep(S / 4).await;
                until.send_replace(Instant::now() + 60 * S);
            }
            7
        };
        assert_eq!(fence.guard(renewals).await, Some(7), "twice as long as without them");
        let waits = std::future::pending::<()>();
        until.send_replace(Instant::now() + S / 4);
        let ended = tokio::time::timeout(20 * S, Fence::new(until.subscribe()).guard(waits)).await;
        assert_eq!(ended, Ok(None), "nothing wakes it but the pulse");
    }

    #[tokio::test]
    async fn work_that_waits_goes_on_while_it_is_open() {
        let mut polls = 0;
        // Nothing wakes it but the pulse.
        let work = poll_fn(|_| {
            polls += 1;
            if polls < 3 { Poll::Pending } else { Poll::Ready(7) }
        });
        let until = watch::Sender::new(Instant::now() + 60 * S);
        assert_eq!(Fence::new(until.subscribe()).guard(work).await, Some(7));
    }
}
