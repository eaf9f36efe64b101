//! Size that a window must have for a link to be full: the bandwidth-delay product, as it is measured. Plain data,
//! without clock and connection.
//!
//! ```text
//!   goodput x least round trip x 2  ──> need ──(between the floor and the most)──> size
//! ```
//! Twice, so that a window that was too small shows itself: what comes in a round trip is then the window, and the next one
//! is twice as large, until it is the link that bounds. The *least* round trip, because later ones count what waits in the
//! queues on the way, and a window that follows them fills queues that follow the window.

use std::time::Duration;

/// Of the product.
const TIMES: f64 = 2.0;
/// A look that needs less takes so much of the window away, one of so many parts: one that found a pause, or the end of a
/// pull, says little.
const SHRINK: u64 = 8;

/// The window of one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    floor: u64,
    most: u64,
    need: u64,
}

impl Window {
    /// Nothing was measured yet. `floor`: enough without any delay; `most`: what it may cost.
    pub(super) fn new(floor: u64, most: u64) -> Self {
        Self { floor, most: most.max(floor), need: 0 }
    }

    /// Window that follows from another look, during which `goodput` bytes a second came. Grows at once, shrinks
    /// slowly.
    #[must_use]
    pub(super) fn next(self, round_trip: Duration, goodput: f64) -> Self {
        // Casts of floats saturate.
        let need = ((goodput * round_trip.as_secs_f64() * TIMES) as u64).min(self.most);
        Self { need: need.max(self.need - self.need / SHRINK), ..self }
    }

    /// Bytes that may be under way.
    pub(super) fn size(&self) -> u64 {
        self.need.clamp(self.floor, self.most)
    }

    /// Bytes that should be under way for the link to be full, however few: nothing where nothing was measured.
    pub(super) fn need(&self) -> u64 {
        self.need
    }

    /// No window of it is smaller.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FLOOR: u64 = 16 << 20;
    const MOST: u64 = 64 << 20;

    fn window() -> Window {
        Window::new(FLOOR, MOST)
    }

    /// Goodput of a link with such a window: it moves what fits into the window in each round trip, and no more than it
    /// can.
    fn goodput(window: u64, rate: f64, round_trip: Duration) -> f64 {
        rate.min(window as f64 / round_trip.as_secs_f64())
    }

    #[test]
    fn a_link_of_a_gigabit_and_a_tenth_of_a_second_has_twice_its_product_after_two_looks() {
        let (rate, round_trip) = (125e6, Duration::from_millis(100));
        let mut window = window();
        for _ in 0..2 {
            window = window.next(round_trip, goodput(window.size(), rate, round_trip));
        }
        assert_eq!(window.size(), 25_000_000);
    }

    #[test]
    fn a_fast_link_without_delay_stays_at_the_floor() {
        let window = window().next(Duration::from_micros(200), 5e9);
        assert_eq!((window.size(), window.need()), (FLOOR, 2_000_000));
    }

    #[test]
    fn a_pause_takes_an_eighth_and_the_next_look_gives_it_back() {
        let (busy, second) = (window().next(Duration::from_secs(1), 20e6), Duration::from_secs(1));
        let paused = busy.next(second, 0.0);
        assert_eq!((busy.size(), paused.size()), (40_000_000, 35_000_000));
        assert_eq!(paused.next(second, 20e6), busy);
    }

    proptest! {
        #[test]
        fn it_never_leaves_its_bounds_and_never_shrinks_by_more_than_an_eighth(
            floor in 0u64..1 << 30,
            most in 0u64..1 << 30,
            looks in prop::collection::vec((0u64..10_000_000, 0.0f64..1e12), 0..40),
        ) {
            let mut window = Window::new(floor, most);
            for (micros, goodput) in looks {
                let next = window.next(Duration::from_micros(micros), goodput);
                prop_assert!((floor..=most.max(floor)).contains(&next.size()));
                prop_assert!(next.size() >= window.size() - window.size() / 8);
                window = next;
            }
        }

        #[test]
        fn whatever_fits_is_full_after_a_few_looks_and_settles_at_twice_the_product(
            rate in 1e6f64..5e9,
            millis in 1u64..400,
        ) {
            let round_trip = Duration::from_millis(millis);
            let mut window = window();
            for _ in 0..30 {
                window = window.next(round_trip, goodput(window.size(), rate, round_trip));
            }
            let product = rate * round_trip.as_secs_f64();
            if product * TIMES <= MOST as f64 {
                prop_assert_eq!(window.size(), ((product * TIMES) as u64).max(FLOOR));
            } else {
                prop_assert_eq!(window.size(), MOST);
            }
        }

        #[test]
        fn more_goodput_or_a_longer_way_never_makes_it_smaller(
            need in 0.0f64..1e9,
            micros in 0u64..1_000_000,
            more in 0u64..1_000_000,
            goodput in 0.0f64..1e10,
            faster in 0.0f64..1e10,
        ) {
            let before = window().next(Duration::from_secs(1), need);
            let less = before.next(Duration::from_micros(micros), goodput);
            let more = before.next(Duration::from_micros(micros + more), goodput + faster);
            prop_assert!(more.size() >= less.size());
        }

        #[test]
        fn a_link_that_stops_comes_back_to_the_floor(need in 0.0f64..1e9) {
            let mut window = window().next(Duration::from_secs(1), need);
            for _ in 0..20 {
                window = window.next(Duration::from_secs(1), 0.0);
            }
            prop_assert_eq!(window.size(), FLOOR);
        }
    }
}
