//! Choice of the lane that takes the next piece, and of the piece's length.
//! Plain data: rates and bytes, no clock, no lane.

use std::time::Duration;

use super::pieces::GRANULE;

/// Granules of the longest piece.
const GRANULES_MAX: u64 = 4;
/// Time that a piece should take: what a short pull or a cancelled one waits for at worst.
const PIECE_TIME: Duration = Duration::from_millis(5);
/// Weight of a new measurement, of 1: a rate follows a change within some ten pieces.
const NEWEST: f64 = 0.25;

/// Measurements of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::peer) struct LaneRate {
    /// Bytes a second; none before the first piece.
    rate: Option<f64>,
    /// Bytes that were asked for and have not come.
    flight: u64,
}

impl LaneRate {
    pub(in crate::peer) fn asked(&mut self, bytes: u64) {
        self.flight += bytes;
    }

    /// Bytes that were asked for will not come.
    pub(in crate::peer) fn dropped(&mut self, bytes: u64) {
        self.flight = self.flight.saturating_sub(bytes);
    }

    /// Bytes came, and took that long since the ones before, or since they were asked for.
    pub(in crate::peer) fn came(&mut self, bytes: u64, took: Duration) {
        self.dropped(bytes);
        if bytes < GRANULE {
            // The end of a pull: it says more of the round trip than of the lane.
            return;
        }
        // A clock with coarse steps may say that no time passed.
        let new = bytes as f64 / took.as_secs_f64().max(1e-6);
        self.rate = Some(self.rate.map_or(new, |old| old + NEWEST * (new - old)));
    }

    /// Granules of its next piece.
    pub(in crate::peer) fn granules(&self) -> u64 {
        let Some(rate) = self.rate else { return 1 };
        let bytes = rate * PIECE_TIME.as_secs_f64();
        ((bytes / GRANULE as f64) as u64).clamp(1, GRANULES_MAX)
    }

    /// Time at which it would be done with a further piece, in seconds from now; none if nobody knows.
    fn finish(&self, piece: u64) -> Option<f64> {
        self.rate.map(|rate| (self.flight + piece) as f64 / rate)
    }

    /// Number of further pieces that it would have finished before then.
    fn finished_before(&self, time: f64, piece: u64) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let more = (time * rate - self.flight as f64) / piece as f64;
        // Strictly before: of two equal lanes neither waits for the other.
        (more - 1e-6).ceil().max(1.0) as u64 - 1
    }
}

/// Returns whether a lane should take a piece of `piece` bytes when `untaken` bytes, this piece among them, are
/// nobody's. It should not if the others would have finished all of it before.
pub(in crate::peer) fn should_take<'a>(
    lane: &LaneRate,
    others: impl Iterator<Item = &'a LaneRate>,
    piece: u64,
    untaken: u64,
) -> bool {
    let Some(finish) = lane.finish(piece) else { return true };
    let piece = piece.max(1);
    let before: u64 = others.map(|other| other.finished_before(finish, piece)).sum();
    before < untaken.div_ceil(piece)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pace(rate: f64, flight: u64) -> LaneRate {
        LaneRate { rate: Some(rate), flight }
    }

    #[test]
    fn a_piece_takes_about_five_milliseconds_within_one_and_four_granules() {
        assert_eq!(LaneRate::default().granules(), 1);
        assert_eq!(pace(10e6, 0).granules(), 1);
        assert_eq!(pace(650e6, 0).granules(), 3);
        assert_eq!(pace(5e9, 0).granules(), 4);
    }

    #[test]
    fn a_slow_lane_helps_in_the_middle_and_not_at_the_end() {
        let (slow, fast) = (pace(1e6, 0), pace(100e6, 2 * GRANULE));
        assert!(should_take(&slow, [fast].iter(), GRANULE, 1000 * GRANULE));
        assert!(!should_take(&slow, [fast].iter(), GRANULE, 10 * GRANULE));
        assert!(should_take(&fast, [slow].iter(), GRANULE, GRANULE));
    }

    #[test]
    fn a_rate_follows_what_is_measured() {
        let mut lane = LaneRate::default();
        lane.asked(2 * GRANULE);
        lane.came(GRANULE, Duration::from_millis(10));
        let first = lane.rate.unwrap();
        assert!((first - GRANULE as f64 * 100.0).abs() < 1.0);
        for _ in 0..30 {
            lane.came(GRANULE, Duration::from_millis(1));
        }
        assert!(lane.rate.unwrap() > 9.0 * first);
        assert_eq!(lane.flight, 0);
    }

    #[test]
    fn the_short_end_of_a_pull_says_nothing_of_a_lane() {
        let mut lane = LaneRate::default();
        lane.asked(5);
        lane.came(5, Duration::from_millis(1));
        assert_eq!(lane, LaneRate::default());
        lane.asked(GRANULE);
        lane.dropped(GRANULE);
        assert_eq!(lane, LaneRate::default());
    }

    proptest! {
        #[test]
        fn one_of_them_always_takes_the_piece(
            lanes in prop::collection::vec((prop::option::of(1e3f64..1e10), 0u64..8), 1..8),
            left in 1u64..100,
        ) {
            let lanes: Vec<LaneRate> =
                lanes.into_iter().map(|(rate, flight)| LaneRate { rate, flight: flight * GRANULE }).collect();
            let takes = |at: usize| {
                let others = lanes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, pace)| pace);
                should_take(&lanes[at], others, GRANULE, left * GRANULE)
            };
            prop_assert!((0..lanes.len()).any(takes), "{:?}", lanes);
        }
    }
}
