//! Log lines of what goes on and on: the first is written, then one in a while, with how often it happened meanwhile.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Kind of line.
pub(crate) struct Seldom(Mutex<Option<Said>>);

struct Said {
    at: Instant,
    untold: u64,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self(parking_lot::const_mutex(None))
    }

    /// Counts one more; how many there were since the last line, if it is time for the next.
    pub(crate) fn times(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.lock();
        match &mut *said {
            Some(last) if now < last.at + PAUSE => {
                last.untold += 1;
                None
            }
            last => {
                let untold = last.as_ref().map_or(0, |last| last.untold);
                *last = Some(Said { at: now, untold: 0 });
                Some(untold + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_said_at_first_and_then_once_in_a_while_with_its_number() {
        let (seldom, start) = (Seldom::new(), Instant::now());
        assert_eq!(seldom.times(start), Some(1));
        for millis in [50, 100, 9_000] {
            assert_eq!(seldom.times(start + Duration::from_millis(millis)), None);
        }
        assert_eq!(seldom.times(start + PAUSE), Some(4));
        assert_eq!(seldom.times(start + PAUSE * 5), Some(1));
    }
}
