//! Limit to how slowly what is sent to a peer may be taken. Who takes no byte at all is found by the progress deadline;
//! who takes a few now and then would never be, and would keep a thread, the room of a lane and a lease for as long as
//! it likes. Knows no socket.

use std::time::{Duration, Instant};

use tensorlane_proto::frame::LANES_MAX;

use super::send_error::SendError;

/// A peer that takes bulk bytes at less than this is slow, not dead: it is given the time for them to answer a ping.
const SLOWEST_BYTES_A_SECOND: u64 = 256 << 10;
/// On how many connections a peer may take bytes at once. They share its link, and how many of them do is not known here: so
/// each may be slower by as much. It costs readers that share a link of 10 Mb/s with more than some forty lanes: a piece of theirs is
/// cut after half a minute, and sent again.
const SHARERS: u32 = LANES_MAX as u32;

/// Time that a peer takes for so many bytes that is slow, not dead.
pub(super) fn time_for(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_BYTES_A_SECOND)
}

/// Until when what is being sent on one connection must have been taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taking {
    until: Instant,
    /// Set if what stands before it is in the time.
    behind: bool,
    /// Time for which no byte may move.
    pub(super) progress: Duration,
}

impl Taking {
    /// So many bytes begin to be sent now. `progress`: how long no byte may move.
    pub(super) fn begin(bytes: u64, progress: Duration) -> Self {
        Self { until: Instant::now() + Self::most(bytes, progress), behind: false, progress }
    }

    fn most(bytes: u64, progress: Duration) -> Duration {
        progress + time_for(bytes) * SHARERS
    }

    /// So many bytes stand before it, as was seen when there was no room: they are given their time, once.
    pub(super) fn stands_behind(&mut self, bytes: u64) {
        if !std::mem::replace(&mut self.behind, true) {
            self.until += time_for(bytes) * SHARERS;
        }
    }

    /// Some of it is not taken yet.
    ///
    /// # Errors
    /// It should be.
    pub(super) fn goes_on(&self) -> Result<(), SendError> {
        if Instant::now() < self.until { Ok(()) } else { Err(SendError::Slow) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: Duration = Duration::from_secs(2);

    #[test]
    fn a_piece_has_half_a_minute_and_a_few_bytes_no_more_than_the_progress_deadline() {
        assert_eq!(Taking::most(28, PROGRESS), PROGRESS);
        assert_eq!(Taking::most(1 << 20, PROGRESS), Duration::from_secs(34));
        assert_eq!(Taking::most(4 << 20, PROGRESS), Duration::from_secs(130));
    }

    #[test]
    fn all_lanes_of_a_pair_fit_a_link_of_ten_megabits_several_times() {
        let piece = 1 << 20;
        let fair = Duration::from_secs_f64((piece * 8) as f64 * LANES_MAX as f64 / 10e6);
        assert!(Taking::most(piece, PROGRESS) > 4 * fair, "{fair:?}");
    }

    #[test]
    fn it_goes_on_until_its_time_is_over() {
        assert!(Taking::begin(1 << 20, PROGRESS).goes_on().is_ok());
        assert!(matches!(Taking::begin(0, Duration::ZERO).goes_on(), Err(SendError::Slow)));
    }

    #[test]
    fn what_stands_before_it_has_its_time_once() {
        let mut taking = Taking::begin(28, Duration::ZERO);
        taking.stands_behind(1 << 20);
        let until = taking.until;
        assert!(taking.goes_on().is_ok());
        taking.stands_behind(1 << 20);
        assert_eq!(taking.until, until);
    }
}
