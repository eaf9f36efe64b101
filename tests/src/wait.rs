//! Waiting for a condition, with a deadline. Tests never sleep for a time and hope.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest that any condition of a test may take to come about on a slow, busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// # Panics
/// Says what was waited for, where it does not come about within [`PATIENCE`].
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    until_within(PATIENCE, what, condition);
}

/// Waits for what may take longer than other conditions: many processes share the machine.
///
/// # Panics
/// Says what was waited for, where it does not come about within `patience`.
pub fn until_within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < deadline, "this did not come about within {patience:?}: {what}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Flag that is set when this is dropped, also where the test fails meanwhile: somebody else goes on until then.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
