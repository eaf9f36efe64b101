//! Knowledge of one transport between two peers. Plain data; knows neither the other one nor which is in use.
//!
//! What is averaged is the time of a byte and not the rate, which is what makes a goodput of pulls of which some take five times as
//! long as others (a lost packet at the end waits for TCP's timeout of 200 ms).

use std::time::{Duration, Instant};

use crate::backoff::Backoff;

/// Windows that an average is taken to stand for where there is one, and at most: one more counts a fifth, and at last a
/// sixteenth. On a link that loses packets some windows in a hundred take five times as long as the others, and half as many
/// would show their luck; twice as many would notice too late that the link is another one.
const WINDOWS: (f64, f64) = (4.0, 16.0);
/// By how much of itself one window makes the time of a byte longer at most. Without it a single pull that stands still would change
/// what is in use.
const LONGER: f64 = 0.5;
/// Factor of another link. What a trial shows is averaged with what was known, unless they differ by it: then the link
/// is another one. Otherwise a few windows in which nothing was lost would show a transport at its best, again and
/// again.
const ANOTHER_LINK: f64 = 4.0;
/// Windows of the other transport in which what is known of this one comes to count half.
const AGES: f64 = 64.0;
/// Time for which a transport that failed is not tried: at first, and at most. It doubles until it brings something.
const COOLDOWN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct One {
    /// Bytes a second; none before the first pull.
    pub(super) rate: Option<f64>,
    /// Windows for which that stands.
    windows: f64,
    /// Bound of what it brought, if it has brought nothing yet: no measurement, and good only to be held against
    /// one.
    pub(super) bound: Option<f64>,
    /// Failures since it last brought something.
    failed: u32,
    cooling: Option<Instant>,
}

impl One {
    /// Bytes a second that it brings, or at most.
    pub(super) fn known(&self) -> Option<f64> {
        self.rate.or(self.bound)
    }

    pub(super) fn cools(&self, now: Instant) -> bool {
        self.cooling.is_some_and(|until| now < until)
    }

    /// Notes that it works.
    pub(super) fn works(&mut self) {
        (self.failed, self.cooling) = (0, None);
    }

    /// Goodput that it brought, if that was measured and no bound has come after it.
    pub(super) fn measured(&self) -> Option<f64> {
        self.rate.filter(|_| self.windows > 0.0)
    }

    /// A window of it is over, while it is in use; gives the average.
    pub(super) fn went_on(&mut self, new: f64) -> f64 {
        self.windows = self.windows.max(WINDOWS.0);
        let slowest = 1.0 + LONGER * (self.windows + 1.0).min(WINDOWS.1);
        self.average(self.rate.map_or(new, |rate| new.max(rate / slowest)), 1.0)
    }

    /// So many windows of the other one are over.
    pub(super) fn ages(&mut self, windows: u32) {
        self.windows *= (-f64::from(windows) / AGES).exp2();
    }

    /// Notes that it comes into use: what was known of it is soon outweighed.
    pub(super) fn comes_into_use(&mut self) {
        self.windows = self.windows.min(WINDOWS.0);
    }

    /// Notes that what was known of it says nothing of how the link is now.
    pub(super) fn is_stale(&mut self) {
        self.windows = 0.0;
    }

    /// The mean of so many windows while it was not in use.
    pub(super) fn showed(&mut self, mean: f64, windows: f64) {
        if self.rate.is_some_and(|rate| mean > rate * ANOTHER_LINK || mean < rate / ANOTHER_LINK) {
            self.is_stale();
        }
        self.average(mean, windows);
    }

    /// Windows more, and what they brought; gives the average.
    fn average(&mut self, new: f64, windows: f64) -> f64 {
        let old = self.measured().filter(|old| *old > 0.0);
        self.windows = (old.map_or(0.0, |_| self.windows) + windows).min(WINDOWS.1);
        let newest = (windows / self.windows).min(1.0);
        let rate = old.map_or(new, |old| ((1.0 - newest) / old + newest / new).recip());
        (self.rate, self.bound) = (Some(rate), None);
        rate
    }

    /// Notes that it did not bring more than that, once: whatever is measured next is worth more.
    pub(super) fn at_most(&mut self, bound: f64) {
        match self.rate {
            Some(rate) if rate <= bound => {}
            Some(_) => (self.rate, self.windows) = (Some(bound), 0.0),
            None => self.bound = Some(self.bound.map_or(bound, |lowest| lowest.min(bound))),
        }
    }

    /// A pull could not come by it: nothing that was known holds, and it is left alone for a while.
    pub(super) fn fails(&mut self, now: Instant) {
        self.failed = self.failed.saturating_add(1);
        self.cooling = Some(now + COOLDOWN.wait(self.failed));
        (self.rate, self.bound) = (None, None);
    }
}
