//! A holder that lately could not be reached, or fell silent: for a while it is not asked, so that a reader whom it does not reach
//! waits for it once and not in every pull. Plain data: the time is an argument.

use std::time::{Duration, Instant};

use tensorlane_proto::Incarnation;

/// Time for which it is not asked.
const COOLDOWN: Duration = Duration::from_secs(30);

/// Memory of one peer as a holder.
#[derive(Debug, Default)]
pub(super) struct Shunned(Option<(Incarnation, Instant)>);

impl Shunned {
    /// Notes that this life of it did not do.
    pub(super) fn lost(&mut self, life: Incarnation, now: Instant) {
        self.0 = Some((life, now + COOLDOWN));
    }

    /// Notes that this life of it is connected anew.
    pub(super) fn is_back(&mut self, life: Incarnation) {
        self.0.take_if(|(lost, _)| *lost == life);
    }

    /// Returns whether that life of it is not to be asked.
    pub(super) fn is(&self, life: Incarnation, now: Instant) -> bool {
        self.0.is_some_and(|(lost, until)| lost == life && now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_life_of_it_is_not_asked_for_half_a_minute_and_another_one_is() {
        let (now, life) = (Instant::now(), Incarnation(1));
        let mut shunned = Shunned::default();
        assert!(!shunned.is(life, now));
        shunned.lost(life, now);
        assert!(shunned.is(life, now + COOLDOWN - Duration::from_millis(1)));
        shunned.is_back(Incarnation(2));
        assert!(shunned.is(life, now), "another one is back");
        assert!(!shunned.is(life, now + COOLDOWN) && !shunned.is(Incarnation(2), now));
        shunned.is_back(life);
        assert!(!shunned.is(life, now));
    }
}
