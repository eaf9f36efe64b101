//! Waiting for a condition of the cluster: with a deadline, and with the end of the log that says why it did not come.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::run::tail;

/// The longest that a machine with two busy cores may take for one step of a start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Interval at which a condition is looked at. Most conditions cost a process.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Number of lines that are shown of a log.
const TAIL: usize = 20;

/// Waits until something holds.
pub(crate) fn until(what: &str, log: &Path, mut holds: impl FnMut() -> bool) -> Result<(), Failure> {
    until_or_over(what, log, PATIENCE, || if holds() { Some(Ok(())) } else { None })
}

/// Waits until something holds, and no longer than whatever it depends on is alive.
pub(crate) fn while_alive(
    what: &str,
    log: &Path,
    alive: impl Fn() -> bool,
    mut holds: impl FnMut() -> bool,
) -> Result<(), Failure> {
    until_or_over(what, log, PATIENCE, || match (holds(), alive()) {
        (true, _) => Some(Ok(())),
        (false, true) => None,
        (false, false) => Some(Err("what it needs has ended".to_owned())),
    })
}

fn until_or_over(
    what: &str,
    log: &Path,
    patience: Duration,
    mut look: impl FnMut() -> Option<Result<(), String>>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + patience;
    loop {
        let why = match look() {
            Some(Ok(())) => return Ok(()),
            Some(Err(why)) => why,
            None if Instant::now() >= deadline => format!("not within {} s", patience.as_secs()),
            None => {
                thread::park_timeout(LOOK_EVERY);
                continue;
            }
        };
        return Err(Failure::new(format!("{what}: {why}{}", end_of(log)))
            .remedy(format!("read {}; `cargo xtask cluster down` tidies up", log.display())));
    }
}

fn end_of(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    tail(&text, TAIL).iter().map(|line| format!("\n    | {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_about_ends_with_the_log() {
        let log = std::env::temp_dir().join(format!("xtask-wait-{}", std::process::id()));
        fs::write(&log, "one\ntwo\n").unwrap();
        let failure = until_or_over("ready", &log, Duration::ZERO, || None).unwrap_err();
        assert!(failure.what().starts_with("ready: not within 0 s"), "{failure:?}");
        assert!(failure.what().ends_with("| one\n    | two"), "{failure:?}");
        let dead = while_alive("ready", &log, || false, || false).unwrap_err();
        assert!(dead.what().contains("has ended"), "{dead:?}");
        while_alive("ready", &log, || false, || true).unwrap();
        fs::remove_file(&log).unwrap();
    }
}
