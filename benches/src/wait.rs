//! Waiting for a condition that nobody announces.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Time to wait before asking again.
const PAUSE: Duration = Duration::from_millis(2);

/// Asks until the answer is yes. False where it was not in time.
///
/// # Errors
/// What `asked` fails with.
pub fn until(limit: Duration, mut asked: impl FnMut() -> Result<bool>) -> Result<bool> {
    let deadline = Instant::now() + limit;
    while !asked()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        pause();
    }
    Ok(true)
}

/// Lets a moment pass before the next question.
pub fn pause() {
    thread::sleep(PAUSE);
}
