//! Wait of a call: how long it lasts, and what may end it earlier.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::config::{GRACE, Interrupt};
use crate::connection::SLICE;
use crate::error::{Error, Result};

/// A sidecar that makes no room in the socket for so long is taken for dead. It lets a session wait for its budget of requests for a
/// third of it.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(15);
/// Most that the time between two looks counts for: if it was longer it was we who stood still, and what the sidecar
/// has answered meanwhile is yet to be read.
const COUNTED_MAX: Duration = SLICE.saturating_mul(3);

/// Withdraws the calls that were given it, from another thread. See [`Client::with_cancel`](crate::Client::with_cancel).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<Used>);

#[derive(Debug, Default)]
struct Used {
    here: AtomicBool,
    within: Option<Cancel>,
}

impl Cancel {
    /// Cancel that is not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancel for a part of the calls of this one: either withdraws them, and the part's use does not use this one.
    pub fn part(&self) -> Self {
        Self(Arc::new(Used { here: AtomicBool::new(false), within: Some(self.clone()) }))
    }

    /// Withdraws: calls that wait return within 100 ms with [`Error::Withdrawn`], later ones at once.
    pub fn cancel(&self) {
        self.0.here.store(true, Ordering::Relaxed);
    }

    /// Returns whether it was used, or one that it is a part of.
    pub fn is_cancelled(&self) -> bool {
        self.0.here.load(Ordering::Relaxed) || self.0.within.as_ref().is_some_and(Self::is_cancelled)
    }
}

/// Time so much later. Beyond what a clock can say a year is as good.
pub(crate) fn later(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or(now + Duration::from_secs(365 * 24 * 3600))
}

/// The patience of one call.
#[derive(Clone)]
pub(crate) struct Wait {
    /// Deadline that the call was given.
    deadline: Duration,
    /// Time at which this side stops waiting: a grace later, and later by what this process did not see of it.
    until: Cell<Instant>,
    /// Time at which it last looked.
    looked: Cell<Instant>,
    interrupt: Option<Interrupt>,
    cancel: Option<Cancel>,
    /// Raised when what waits is closed.
    closing: Option<Cancel>,
}

impl Wait {
    pub(crate) fn new(deadline: Duration, interrupt: Option<Interrupt>, cancel: Option<Cancel>) -> Self {
        let (until, looked) = (Cell::new(later(deadline.saturating_add(GRACE))), Cell::new(Instant::now()));
        Self { deadline, until, looked, interrupt, cancel, closing: None }
    }

    /// Wait that `closing` ends, too.
    pub(crate) fn until_closed(self, closing: &Cancel) -> Self {
        Self { closing: Some(closing.clone()), ..self }
    }

    /// For frames that are only sent: long enough for any sidecar that reads at all.
    pub(crate) fn briefly() -> Self {
        let now = Instant::now();
        let until = Cell::new(now + STALLED_AFTER);
        let looked = Cell::new(now);
        Self { deadline: STALLED_AFTER, until, looked, interrupt: None, cancel: None, closing: None }
    }

    /// Rest of the deadline, as the sidecar is told: in milliseconds, the one that has begun counted whole; at least 1,
    /// because 0 means its default.
    pub(crate) fn deadline_ms(&self) -> u64 {
        u64::try_from(self.left().as_micros().div_ceil(1_000)).unwrap_or(u64::MAX).max(1)
    }

    /// Rest of the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.instant().saturating_duration_since(Instant::now()).min(self.deadline)
    }

    /// Time at which the deadline itself passes.
    pub(crate) fn instant(&self) -> Instant {
        self.until.get() - GRACE
    }

    /// Checks whether to wait on.
    pub(crate) fn check(&self) -> Result<()> {
        let withdrawn = [&self.cancel, &self.closing].into_iter().flatten().any(Cancel::is_cancelled)
            || self.interrupt.as_ref().is_some_and(|interrupted| interrupted());
        if withdrawn {
            return Err(Error::Withdrawn);
        }
        let now = Instant::now();
        self.until.set(put_off(self.until.get(), self.looked.replace(now), now));
        if now >= self.until.get() {
            return Err(Error::DeadlineExceeded { after: self.deadline.saturating_add(GRACE) });
        }
        Ok(())
    }

    /// The patience of a part of a call that begins now, and has as long as the whole.
    pub(crate) fn part(&self) -> Self {
        Self { looked: Cell::new(Instant::now()), ..self.clone() }
    }

    /// Follows another part on the same thread, which has looked meanwhile: what passed until then was seen, and what
    /// was put off stays so.
    pub(crate) fn follows(&self, before: &Self) {
        self.looked.set(self.looked.get().max(before.looked.get()));
        self.until.set(self.until.get().max(before.until.get()));
    }

    /// Counts what passed until now as seen: it was waited for elsewhere, with a limit of its own.
    pub(crate) fn looked_until_now(&self) {
        self.looked.set(Instant::now());
    }

    /// Time to sleep before looking again.
    pub(crate) fn slice(&self) -> Duration {
        SLICE.min(self.until.get().saturating_duration_since(Instant::now()))
    }
}

/// The end of a wait that was looked at `now` and, before that, at `looked`.
fn put_off(until: Instant, looked: Instant, now: Instant) -> Instant {
    let unseen = now.saturating_duration_since(looked).saturating_sub(COUNTED_MAX);
    until.checked_add(unseen).unwrap_or(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_cancel_is_withdrawn_with_it_and_leaves_it_unused() {
        let whole = Cancel::new();
        let (one, other) = (whole.part(), whole.part());
        one.cancel();
        assert!(one.is_cancelled() && !other.is_cancelled() && !whole.is_cancelled());
        whole.cancel();
        assert!(other.is_cancelled() && other.part().is_cancelled());
    }

    #[test]
    fn the_time_in_which_this_process_stood_still_is_not_counted() {
        let began = Instant::now();
        let until = began + Duration::from_secs(2);
        assert_eq!(put_off(until, began, began + SLICE), until);
        assert_eq!(put_off(until, began, began + COUNTED_MAX), until);
        let still = Duration::from_secs(60);
        assert_eq!(put_off(until, began, began + COUNTED_MAX + still), until + still);
    }

    #[test]
    fn a_process_that_stands_still_again_and_again_gives_up_all_the_same() {
        let began = Instant::now();
        let (mut until, mut looked) = (began + Duration::from_secs(2), began);
        let looks = (0..).take_while(|_| {
            let now = looked + Duration::from_secs(1);
            until = put_off(until, looked, now);
            looked = now;
            now < until
        });
        assert_eq!(looks.count(), 6, "at 300 ms a look two seconds are over with the seventh");
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_waited_for_all_the_same() {
        let wait = Wait::new(Duration::MAX, None, None);
        assert!(wait.check().is_ok());
        assert!(wait.left() > Duration::from_secs(300 * 24 * 3600));
    }

    #[test]
    fn a_sidecar_is_told_what_is_left_of_a_deadline() {
        let wait = Wait::new(Duration::from_secs(8_000), None, None);
        assert!((7_000_000..=8_000_000).contains(&wait.deadline_ms()), "{}", wait.deadline_ms());
        // Half of it went before the request could leave.
        wait.until.set(wait.until.get() - Duration::from_secs(4_000));
        assert!((3_000_000..=4_000_000).contains(&wait.deadline_ms()), "{}", wait.deadline_ms());
        let over = Wait::new(Duration::ZERO, None, None);
        assert_eq!((over.left(), over.deadline_ms()), (Duration::ZERO, 1));
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
