//! Waiting for a condition, with a deadline. Tests never sleep for a time and hope.

use std::time::{Duration, Instant};

/// The longest that any condition of a test may take to come about on a slow, busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
/// Says what was waited for, where it does not come about within [`PATIENCE`].
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "this did not come about within {PATIENCE:?}: {what}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}
