//! Interleaved measurement: limit, us, limit, us, ... so that whatever else the machine does meets both alike.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::stats;

/// A single value of ours and the limit measured right before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Ours.
    pub value: f64,
    /// The limit's; none for a row without one.
    pub limit: Option<f64>,
}

impl Pair {
    /// Value by limit.
    pub fn ratio(self) -> Option<f64> {
        self.limit.map(|limit| self.value / limit)
    }

    /// Value less limit, in the unit of both.
    pub fn above(self) -> Option<f64> {
        self.limit.map(|limit| self.value - limit)
    }
}

/// Measures `count` pairs, after `warm_up` pairs that are thrown away.
///
/// # Errors
/// What either of the two fails with.
pub fn interleaved(
    count: usize,
    warm_up: usize,
    mut limit: impl FnMut() -> Result<f64>,
    mut ours: impl FnMut() -> Result<f64>,
) -> Result<Vec<Pair>> {
    let mut pair = || -> Result<Pair> { Ok(Pair { limit: Some(limit()?), value: ours()? }) };
    for _ in 0..warm_up {
        pair()?;
    }
    (0..count).map(|_| pair()).collect()
}

/// Measures `count` values that have no limit beside them, after `warm_up` that are thrown away.
///
/// # Errors
/// What the measurement fails with.
pub fn alone(count: usize, warm_up: usize, mut ours: impl FnMut() -> Result<f64>) -> Result<Vec<Pair>> {
    for _ in 0..warm_up {
        ours()?;
    }
    (0..count).map(|_| Ok(Pair { limit: None, value: ours()? })).collect()
}

/// Microseconds of one of `count` equal pieces of work: their median.
///
/// # Errors
/// What the work fails with.
pub fn median_us(count: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        took.push(seconds(&mut work)? * 1e6);
    }
    stats::median(&took).context("no work to measure")
}

/// Time that one piece of work takes.
///
/// # Errors
/// What the work fails with.
pub fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn limit_and_ours_take_turns_and_the_warm_up_is_not_kept() {
        let turns = RefCell::new(String::new());
        let turn = |letter: char, value: f64| {
            turns.borrow_mut().push(letter);
            Ok(value)
        };
        let pairs = interleaved(2, 1, || turn('l', 2.0), || turn('u', 3.0)).unwrap();
        assert_eq!(*turns.borrow(), "lululu");
        assert_eq!(pairs, [Pair { value: 3.0, limit: Some(2.0) }; 2]);
        assert_eq!(pairs[0].ratio(), Some(1.5));
    }

    #[test]
    fn a_failure_ends_the_measurement() {
        assert!(interleaved(11, 0, || Ok(1.0), || anyhow::bail!("broken")).is_err());
    }
}
