//! Decision when the key of this sidecar is changed, step by step. Pure: time, the peer table and the connections are
//! arguments.
//!
//! ```text
//!            age               listed, half the overlap            half the overlap, or no connection by it is left
//!   Steady --------> Announced -----------------------> Fading ----------------------------------------------------> Steady
//!            both keys stand for it, the last is used    both stand for it, the new one is used     the new one alone
//! ```
//! A key is used only after the table that others read lists it: where nobody can be told (an API server that is away, a
//! file that nobody has changed) the last key stays, however old it is.

use std::time::{Duration, Instant};

/// Time to wait after a step that failed.
const RETRY: Duration = Duration::from_secs(60);

/// Time after which connections are counted again while the last key fades.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Configured periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// The age at which a key is changed; absent: never.
    pub every: Option<Duration>,
    /// Time for which two keys stand for this sidecar: half of it before the new one is used, half of it after.
    pub overlap: Duration,
}

/// Part of the age that a sidecar changes its key earlier, at most, so that those which started together do not all
/// write and dial anew together.
const SPREAD: f64 = 0.1;

impl Periods {
    /// Periods up to a tenth shorter, by `chance` from 0 to 1.
    pub fn spread(self, chance: f64) -> Periods {
        let shorter = 1.0 - SPREAD * chance.clamp(0.0, 1.0);
        Periods { every: self.every.map(|every| every.mul_f64(shorter)), ..self }
    }
}

/// State that is seen when somebody looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The peer table lists this sidecar with its next key.
    pub next_listed: bool,
    /// The peer table lists this sidecar with the key in use.
    pub current_listed: bool,
    /// Connections that were made with the last key.
    pub old_connections: usize,
}

/// Step that is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing until then, or until the table changes.
    Wait(Option<Instant>),
    /// Make the next key and make it known.
    Announce,
    /// Use the next key.
    Switch,
    /// End what was made with the last key, and make the new one alone known.
    Retire,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Steady { due: Option<Instant> },
    Announced { listed: Option<Instant> },
    Fading { until: Instant },
}

/// State of a change of keys.
#[derive(Clone, Debug)]
pub struct Rotation {
    periods: Periods,
    phase: Phase,
}

impl Rotation {
    /// For a key of that age; `announced`: the next one is there already.
    pub fn new(periods: Periods, now: Instant, age: Duration, announced: bool) -> Rotation {
        let due = periods.every.map(|every| now + every.saturating_sub(age));
        let phase = if announced { Phase::Announced { listed: None } } else { Phase::Steady { due } };
        Rotation { periods, phase }
    }

    /// Returns what to do now. A step other than waiting is taken for done.
    pub fn step(&mut self, now: Instant, seen: Seen) -> Step {
        let half = self.periods.overlap / 2;
        match &mut self.phase {
            Phase::Steady { due } => match *due {
                Some(due) if due <= now => {
                    self.phase = Phase::Announced { listed: None };
                    Step::Announce
                }
                due => Step::Wait(due),
            },
            Phase::Announced { listed } if !seen.next_listed => {
                *listed = None;
                Step::Wait(None)
            }
            Phase::Announced { listed } => {
                let at = *listed.get_or_insert(now) + half;
                // Whoever takes the last key out of the table wants the new one now.
                if seen.current_listed && at > now {
                    return Step::Wait(Some(at));
                }
                self.phase = Phase::Fading { until: now + half };
                Step::Switch
            }
            Phase::Fading { until } => {
                if seen.old_connections > 0 && *until > now {
                    return Step::Wait(Some((now + LOOK_EVERY).min(*until)));
                }
                self.phase = Phase::Steady { due: self.periods.every.map(|every| now + every) };
                Step::Retire
            }
        }
    }

    /// A step could not be done: `announced` says whether there is a next key. It is tried again later.
    pub fn failed(&mut self, now: Instant, announced: bool) {
        self.phase = match announced {
            true => Phase::Announced { listed: Some(now + RETRY) },
            false => Phase::Steady { due: Some(now + RETRY) },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const PERIODS: Periods =
        Periods { every: Some(Duration::from_secs(100)), overlap: Duration::from_secs(20) };
    const NOT_LISTED: Seen = Seen { next_listed: false, current_listed: true, old_connections: 0 };
    const LISTED: Seen = Seen { next_listed: true, current_listed: true, old_connections: 2 };

    #[test]
    fn sidecars_that_started_together_do_not_change_their_keys_together() {
        let every = |chance| PERIODS.spread(chance).every.unwrap().as_secs();
        assert_eq!([0.0, 0.5, 1.0, 7.0].map(every), [100, 95, 90, 90]);
        assert_eq!(PERIODS.spread(1.0).overlap, PERIODS.overlap);
        let never = Periods { every: None, ..PERIODS };
        assert_eq!(never.spread(1.0), never);
    }

    #[test]
    fn a_key_is_made_known_then_used_then_alone() {
        let start = Instant::now();
        let at = |seconds: u32| start + S * seconds;
        let mut rotation = Rotation::new(PERIODS, start, S * 40, false);
        assert_eq!(rotation.step(at(0), NOT_LISTED), Step::Wait(Some(at(60))));
        assert_eq!(rotation.step(at(60), NOT_LISTED), Step::Announce);
        assert_eq!(rotation.step(at(60), NOT_LISTED), Step::Wait(None));
        assert_eq!(rotation.step(at(65), LISTED), Step::Wait(Some(at(75))));
        assert_eq!(rotation.step(at(75), LISTED), Step::Switch);
        assert_eq!(rotation.step(at(75), LISTED), Step::Wait(Some(at(76))));
        assert_eq!(rotation.step(at(85), LISTED), Step::Retire);
        assert_eq!(rotation.step(at(86), NOT_LISTED), Step::Wait(Some(at(185))));
    }

    #[test]
    fn a_key_that_nobody_can_be_told_of_is_never_used() {
        let start = Instant::now();
        let mut rotation = Rotation::new(PERIODS, start, S * 1000, false);
        assert_eq!(rotation.step(start, NOT_LISTED), Step::Announce);
        assert_eq!(rotation.step(start + S * 10_000, NOT_LISTED), Step::Wait(None));
        assert_eq!(rotation.step(start + S * 10_000, LISTED), Step::Wait(Some(start + S * 10_010)));
        // A table that lost it again: the wait begins anew.
        assert_eq!(rotation.step(start + S * 10_020, NOT_LISTED), Step::Wait(None));
        assert_eq!(rotation.step(start + S * 10_021, LISTED), Step::Wait(Some(start + S * 10_031)));
    }

    #[test]
    fn a_table_without_the_last_key_hurries_and_no_connection_ends_the_overlap() {
        let start = Instant::now();
        let mut rotation = Rotation::new(PERIODS, start, S, true);
        let alone = Seen { current_listed: false, ..LISTED };
        assert_eq!(rotation.step(start, alone), Step::Switch);
        assert_eq!(rotation.step(start, Seen { old_connections: 0, ..LISTED }), Step::Retire);
    }

    #[test]
    fn a_step_that_failed_is_tried_again() {
        let start = Instant::now();
        let mut rotation = Rotation::new(PERIODS, start, S * 100, false);
        assert_eq!(rotation.step(start, NOT_LISTED), Step::Announce);
        rotation.failed(start, false);
        assert_eq!(rotation.step(start, NOT_LISTED), Step::Wait(Some(start + RETRY)));
        assert_eq!(rotation.step(start + RETRY, NOT_LISTED), Step::Announce);
        rotation.failed(start, true);
        assert_eq!(rotation.step(start, LISTED), Step::Wait(Some(start + RETRY + S * 10)));
    }

    #[test]
    fn without_a_period_nothing_is_changed_but_what_was_begun_is_ended() {
        let (start, never) = (Instant::now(), Periods { every: None, ..PERIODS });
        assert_eq!(Rotation::new(never, start, S * 1000, false).step(start, NOT_LISTED), Step::Wait(None));
        let mut begun = Rotation::new(never, start, S, true);
        assert_eq!(begun.step(start, LISTED), Step::Wait(Some(start + S * 10)));
        assert_eq!(begun.step(start + S * 10, LISTED), Step::Switch);
    }
}
