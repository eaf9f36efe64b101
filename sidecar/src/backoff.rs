//! Waits between attempts that fail: each is twice as long as the one before, up to a limit. Pure.

use std::time::Duration;

/// Doublings after which every wait has reached its limit.
const DOUBLINGS_MAX: u32 = 16;

/// First and longest wait after failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first failure.
    pub first: Duration,
    /// Longest wait, however many failures there were.
    pub longest: Duration,
}

impl Backoff {
    /// Waits from `first` on, up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Time to wait after so many failures in a row, of which there was at least one.
    pub fn wait(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(DOUBLINGS_MAX);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }

    /// Time to wait of which half is by `chance` from 0 to 1: those that failed together do not come back together.
    pub fn jittered(self, failures: u32, chance: f64) -> Duration {
        self.wait(failures).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_doubles_up_to_its_limit_and_half_of_it_is_chance() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let waits: Vec<u64> =
            [0, 1, 2, 3, 4, 17, u32::MAX].map(|failures| backoff.wait(failures).as_secs()).into();
        assert_eq!(waits, [1, 1, 2, 4, 5, 5, 5]);
        assert_eq!(backoff.jittered(3, 0.0), Duration::from_secs(2));
        assert_eq!(backoff.jittered(3, 1.0), Duration::from_secs(4));
        assert_eq!(backoff.jittered(3, 9.0), Duration::from_secs(4));
    }
}
