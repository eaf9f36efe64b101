//! Pace of requests, and times to wait: every wait of this directory. Pure.

use std::time::Duration;

use crate::backoff::Backoff;

/// The waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Time over which the first lists of sidecars that start together are spread, by chance. Each of them is late by half of it.
    pub(super) spread: Duration,
    /// Waits after failures. A sidecar is at most the longest late after an outage.
    pub(super) backoff: Backoff,
    /// The shortest time between two lists that somebody asked for: strangers who knock must not make us list all day.
    pub(super) refresh_every: Duration,
    /// Time that the watch may take to bring what a refresh is about, before a list is made.
    pub(super) refresh_lag: Duration,
    /// Changes that come this close to each other make one table.
    pub(super) gather: Duration,
    /// Time that a request may take until its answer is whole, or a watch until it begins.
    pub(super) request: Duration,
    /// A watch on which nothing comes for so long is dead, or waits for a version that never comes: peers are listed anew. API
    /// servers send a bookmark about once a minute.
    pub(super) silence: Duration,
    /// Time that a watch is asked to last; up to a quarter more, so that not all end together.
    pub(super) watch: Duration,
    /// Time for which the source must have failed before people are told. Longer than the silence of a watch that is well, so that one
    /// which has just begun again is not told of.
    pub(super) outage: Duration,
    /// The shortest time between two writes.
    pub(super) write_every: Duration,
    /// The shortest time between two times that the table is kept.
    pub(super) keep: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            spread: Duration::from_millis(500),
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(15)),
            refresh_every: Duration::from_secs(1),
            refresh_lag: Duration::from_millis(100),
            gather: Duration::from_millis(50),
            request: Duration::from_secs(30),
            silence: Duration::from_secs(90),
            watch: Duration::from_secs(240),
            outage: Duration::from_secs(120),
            write_every: Duration::from_secs(1),
            keep: Duration::from_secs(5),
        }
    }
}

/// The longest that an API server may make us wait when it says how long.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

impl Timing {
    /// Time to wait after this many failures in a row, at least as long as the server says. Between half and all of
    /// the doubled wait, by `chance` from 0 to 1, so that sidecars that failed together do not come back together.
    pub(super) fn pause(&self, failures: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
        let wait = self.backoff.jittered(failures, chance);
        wait.max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX))
    }

    /// Time that the next watch is asked to last, in seconds.
    pub(super) fn watch_seconds(&self, chance: f64) -> u32 {
        let seconds = self.watch.mul_f64(1.0 + chance.clamp(0.0, 1.0) / 4.0).as_secs();
        u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_half_of_it_is_chance() {
        let timing = Timing::default();
        let longest = |failures| timing.pause(failures, None, 1.0);
        assert_eq!(longest(1), timing.backoff.first);
        assert_eq!(longest(2), timing.backoff.first * 2);
        for failures in [8, 100, u32::MAX] {
            assert_eq!(longest(failures), timing.backoff.longest);
        }
        assert_eq!(timing.pause(2, None, 0.0), timing.backoff.first);
    }

    #[test]
    fn a_server_that_says_how_long_is_believed_up_to_a_minute() {
        let timing = Timing::default();
        let said = |seconds| timing.pause(1, Some(Duration::from_secs(seconds)), 0.5);
        assert_eq!(said(7), Duration::from_secs(7));
        assert_eq!(said(7000), RETRY_AFTER_MAX);
        assert!(said(0) > Duration::ZERO);
    }

    #[test]
    fn watches_do_not_all_end_together() {
        let timing = Timing::default();
        assert_eq!((timing.watch_seconds(0.0), timing.watch_seconds(1.0)), (240, 300));
        let silence = timing.silence.as_secs();
        assert!(silence >= 90, "a bookmark may be half a minute late");
        assert!(silence + timing.request.as_secs() <= 120, "statuses heal in two minutes");
    }
}
