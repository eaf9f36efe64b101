//! The clock: monotonic milliseconds since the sidecar started. Wall time is never used for leases or deadlines.

use std::time::{Duration, Instant};

use tensorlane_proto::ledger::Millis;

/// A limit of time as people read it: `2s`, `250ms`. What a millisecond more or less would add says nothing, so it is rounded up.
pub(crate) fn told(limit: Duration) -> String {
    format!("{:?}", Duration::from_millis(millis(limit)))
}

/// A time in milliseconds, rounded up: who waits for less comes before it is over.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// Counts from the start of the incarnation.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds since the start, as the ledger counts them.
    pub fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the time from now until `moment`; nothing when it has passed.
    pub fn until(&self, moment: Millis) -> Duration {
        Duration::from_millis(moment.0.saturating_sub(self.now().0))
    }

    /// Returns the time for which the sidecar has been running.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_to_the_millisecond() {
        assert_eq!(told(Duration::from_secs(2)), "2s");
        assert_eq!(told(Duration::from_nanos(1_999_999_123)), "2s");
        assert_eq!(told(Duration::from_micros(249_100)), "250ms");
        assert_eq!(told(Duration::ZERO), "0ns");
    }
}
