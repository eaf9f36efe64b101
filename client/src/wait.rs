//! How long a call is waited for, and what may end the wait earlier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::config::{GRACE, Interrupt};
use crate::connection::SLICE;
use crate::error::{Error, Result};

/// A sidecar that makes no room in the socket for so long is taken for dead.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// Withdraws the calls that were given it, from another thread. See [`Client::with_cancel`](crate::Client::with_cancel).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// One that is not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Withdraws: calls that wait return within 100 ms with [`Error::Withdrawn`], later ones at once.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was used.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The patience of one call.
#[derive(Clone)]
pub(crate) struct Wait {
    /// What the sidecar is given.
    deadline: Duration,
    /// When this side stops waiting: a grace later.
    until: Instant,
    interrupt: Option<Interrupt>,
    cancel: Option<Cancel>,
}

impl Wait {
    pub(crate) fn new(deadline: Duration, interrupt: Option<Interrupt>, cancel: Option<Cancel>) -> Self {
        let now = Instant::now();
        let until = now.checked_add(deadline.saturating_add(GRACE));
        // A deadline beyond what a clock can say is none; a year is as good.
        let until = until.unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        Self { deadline, until, interrupt, cancel }
    }

    /// For frames that are only sent: long enough for any sidecar that reads at all.
    pub(crate) fn briefly() -> Self {
        let until = Instant::now() + STALLED_AFTER;
        Self { deadline: STALLED_AFTER, until, interrupt: None, cancel: None }
    }

    /// The deadline as the sidecar is told, in milliseconds; at least 1, because 0 means its default.
    pub(crate) fn deadline_ms(&self) -> u64 {
        u64::try_from(self.deadline.as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// When the deadline itself passes.
    pub(crate) fn instant(&self) -> Instant {
        self.until - GRACE
    }

    /// Whether to wait on.
    pub(crate) fn check(&self) -> Result<()> {
        let withdrawn = self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
            || self.interrupt.as_ref().is_some_and(|interrupted| interrupted());
        if withdrawn {
            return Err(Error::Withdrawn);
        }
        if Instant::now() >= self.until {
            return Err(Error::DeadlineExceeded { after: self.deadline + GRACE });
        }
        Ok(())
    }

    /// How long to sleep before looking again.
    pub(crate) fn slice(&self) -> Duration {
        SLICE.min(self.until.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_the_clock_is_waited_for_all_the_same() {
        let wait = Wait::new(Duration::MAX, None, None);
        assert!(wait.check().is_ok());
        assert_eq!(wait.deadline_ms(), u64::MAX);
    }

    #[test]
    fn a_cancelled_call_is_withdrawn() {
        let cancel = Cancel::new();
        let wait = Wait::new(Duration::from_secs(9), None, Some(cancel.clone()));
        assert!(wait.check().is_ok());
        cancel.cancel();
        assert!(matches!(wait.check(), Err(Error::Withdrawn)));
    }
}
