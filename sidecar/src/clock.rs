//! The clock: monotonic milliseconds since the sidecar started. Wall time is never used for leases or deadlines.

use std::time::{Duration, Instant};

use tensorlane_proto::ledger::Millis;

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

    /// How long from now until `moment`; nothing when it has passed.
    pub fn until(&self, moment: Millis) -> Duration {
        Duration::from_millis(moment.0.saturating_sub(self.now().0))
    }

    /// How long the sidecar has been running.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
