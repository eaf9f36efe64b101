//! Time at which a byte last came on the lanes of one connection: told by each of them, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time of the last byte.
#[derive(Debug)]
pub(super) struct LastMoved {
    origin: Instant,
    /// Milliseconds from `origin` to it, plus one; 0 where none has come.
    millis: AtomicU64,
}

impl Default for LastMoved {
    fn default() -> Self {
        Self { origin: Instant::now(), millis: AtomicU64::new(0) }
    }
}

impl LastMoved {
    /// Some bytes have come.
    pub(super) fn note(&self) {
        self.millis.store(self.origin.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    /// Time at which the last one came, rounded up to a millisecond.
    pub(super) fn at(&self) -> Option<Instant> {
        let millis = self.millis.load(Ordering::Relaxed);
        (millis > 0).then(|| self.origin + Duration::from_millis(millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_came_when_it_was_noted_and_not_before() {
        let moved = LastMoved::default();
        assert_eq!(moved.at(), None);
        let before = Instant::now();
        moved.note();
        assert!(moved.at().is_some_and(|at| at >= before && at <= Instant::now() + Duration::from_millis(1)));
    }
}
