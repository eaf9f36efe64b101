//! Speed that a holder must have for somebody with a deadline. Plain data: the time is an argument.
//!
//! What counts is what it brought over the last seconds, so that neither its beginning nor one bad moment is held against it, and
//! only if it has been too little for a while: a part of the time that is left, since whoever comes next needs the rest of it.
//! A holder that brings nothing at all is not slow but stalled or starved, which is found out elsewhere.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Over how long the rate is taken, and in which steps.
const WINDOW: Duration = Duration::from_secs(4);
const STEP: Duration = Duration::from_millis(250);
/// Time for which it has to be too slow, at least and at most; between them a part of the time that is left: one of so
/// many.
const SLOW_FOR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
const PART_OF_TIME: u32 = 4;

/// Bytes that a holder has brought of late.
#[derive(Debug)]
pub(super) struct RateFloor {
    begun: Instant,
    /// Bytes, by the steps that they came in, the latest last.
    came: VecDeque<(Instant, u64)>,
    /// Since when it has been too slow.
    slow: Option<Instant>,
}

impl RateFloor {
    pub(super) fn new(now: Instant) -> Self {
        Self { begun: now, came: VecDeque::new(), slow: None }
    }

    /// Notes bytes that it brought.
    pub(super) fn came(&mut self, bytes: u64, now: Instant) {
        match self.came.back_mut() {
            Some((since, sum)) if now.saturating_duration_since(*since) < STEP => *sum += bytes,
            _ => self.came.push_back((now, bytes)),
        }
    }

    /// Returns whether `left` more bytes will not be here at the deadline, and it has looked so for a while.
    pub(super) fn is_too_slow(&mut self, left: u64, now: Instant, deadline: Instant) -> bool {
        while self.came.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) > WINDOW) {
            self.came.pop_front();
        }
        let bytes = self.came.iter().map(|(_, bytes)| bytes).sum();
        let over = now.saturating_duration_since(self.begun).min(WINDOW);
        let time = deadline.saturating_duration_since(now);
        if !falls_short(left, (bytes, over), time) {
            self.slow = None;
            return false;
        }
        let since = *self.slow.get_or_insert(now);
        let (least, most) = SLOW_FOR;
        now.saturating_duration_since(since) >= (time / PART_OF_TIME).clamp(least, most)
    }
}

/// Returns whether at the rate of `came` bytes in `over` so many more take longer than `time`. Of nothing there is no
/// rate.
fn falls_short(left: u64, (came, over): (u64, Duration), time: Duration) -> bool {
    came > 0 && left as f64 * over.as_secs_f64() > came as f64 * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A holder that brings so many bytes every tenth of a second; when it is found too slow, in tenths.
    fn found_after(rate: u64, bytes: u64, seconds: u64) -> Option<u64> {
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs(seconds);
        let mut floor = RateFloor::new(begun);
        (1..seconds * 10).take_while(|tenth| tenth * rate < bytes).find(|tenth| {
            let now = begun + Duration::from_millis(tenth * 100);
            floor.came(rate, now);
            floor.is_too_slow(bytes - tenth * rate, now, deadline)
        })
    }

    #[test]
    fn one_that_would_be_late_is_found_in_time_and_one_that_would_not_is_left_alone() {
        assert_eq!(found_after(10, 2_000, 60), None, "20 seconds of 60");
        assert_eq!(found_after(10, 5_900, 60), None, "just in time");
        let found = found_after(10, 12_000, 60).unwrap();
        assert!((30..=40).contains(&found), "{found}: three seconds are a small part of a minute");
        let found = found_after(10, 2_000, 6).unwrap();
        assert!((10..=20).contains(&found), "{found}: with six seconds it is found sooner");
    }

    #[test]
    fn a_bad_moment_is_forgotten_once_the_rate_is_back() {
        let begun = Instant::now();
        let at = |tenth: u64| begun + Duration::from_millis(tenth * 100);
        let (mut floor, deadline) = (RateFloor::new(begun), at(200));
        let mut left = 2_000;
        for tenth in 1..150 {
            // Too little for a second and a half, then twice what is needed.
            let bytes = if tenth < 15 { 1 } else { 20 };
            floor.came(bytes, at(tenth));
            left -= bytes.min(left);
            assert!(!floor.is_too_slow(left, at(tenth), deadline), "{tenth} tenths");
        }
    }

    #[test]
    fn one_that_brings_nothing_is_not_called_slow() {
        let begun = Instant::now();
        let mut floor = RateFloor::new(begun);
        for second in 1..20 {
            let now = begun + Duration::from_secs(second);
            assert!(!floor.is_too_slow(1_000, now, begun + Duration::from_secs(21)));
        }
    }

    proptest! {
        #[test]
        fn nobody_is_too_slow_in_the_first_second(
            steps in prop::collection::vec((0u64..200, 0u64..50), 1..40),
            left in 1u64..1_000_000,
            milliseconds in 0u64..100_000,
        ) {
            let begun = Instant::now();
            let deadline = begun + Duration::from_millis(milliseconds);
            let (mut floor, mut now) = (RateFloor::new(begun), begun);
            for (after, bytes) in steps {
                now += Duration::from_millis(after);
                floor.came(bytes, now);
                let found = floor.is_too_slow(left, now, deadline);
                prop_assert!(!found || now - begun >= Duration::from_secs(1));
            }
        }
    }
}
