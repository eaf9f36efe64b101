//! Claims that hold where the machine runs on.
//!
//! Whoever stands still for a second or two is left by others, and rightly (`deadlines.progress`); whoever answers half a second
//! late is no longer waited for. So a case that demands that nobody is left, or that an answer comes in its time, shows nothing
//! where the machine itself stood still meanwhile, as a virtual one does whose host is busy. Such a case is done again, and the
//! log of the run says so. On a machine that ran on, a case that fails has failed; so has one that saw what is never right.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, current, scope};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A core that ran nobody for so long stood still: just less than a client waits for an answer that is late.
const STOOD_STILL: Duration = Duration::from_millis(400);
/// Interval at which a core is asked to run somebody.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Greatest number of times that a case is done. If a machine stands still in all of them, what the last one says is
/// said.
const TIMES: usize = 4;

/// Set if a test of this process saw what no machine that stands still explains.
static NEVER_RIGHT: AtomicBool = AtomicBool::new(false);

/// Other bytes, or books that do not balance: no case of this process is done again from now on.
pub(crate) fn never_right() {
    NEVER_RIGHT.store(true, Ordering::SeqCst);
}

/// Does a case, and does it again where it failed while the machine stood still. A case starts all that it needs itself, and is
/// no longer than it must be: it may have failed at another time than the machine stood still.
///
/// # Panics
/// As the case does.
pub fn where_the_machine_runs_on(case: impl Fn()) {
    repeated(|| watched(&case), || NEVER_RIGHT.load(Ordering::SeqCst));
}

/// End of a case, and the longest time that a core stood still in it.
type Ended = (Result<(), Box<dyn Any + Send>>, Duration);

fn repeated(mut once: impl FnMut() -> Ended, is_wrong: impl Fn() -> bool) {
    for time in 1..=TIMES {
        match once() {
            (Ok(()), _) => return,
            (Err(failed), still) if still < STOOD_STILL || time == TIMES || is_wrong() => {
                resume_unwind(failed)
            }
            (Err(_), still) => say(still),
        }
    }
}

/// Straight to the log of the run: what a test prints is shown only where it fails.
fn say(still: Duration) {
    let thread = current();
    let test = thread.name().unwrap_or_default();
    let line = format!("\nAGAIN {test}: it failed, and the machine had stood still for {still:.1?}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn watched(case: &impl Fn()) -> Ended {
    let over = AtomicBool::new(false);
    scope(|scope| {
        let over = &over;
        let watching: Vec<ScopedJoinHandle<'_, Duration>> =
            cores().into_iter().map(|core| scope.spawn(move || longest_standstill(core, over))).collect();
        let outcome = catch_unwind(AssertUnwindSafe(case));
        over.store(true, Ordering::Relaxed);
        let still = watching.into_iter().filter_map(|one| one.join().ok()).max();
        (outcome, still.unwrap_or_default())
    })
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    sched_getaffinity(None).map_or_else(
        |_| Vec::new(),
        |allowed| (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect(),
    )
}

/// For how long a core did not run a thread that wanted to run.
fn longest_standstill(core: usize, over: &AtomicBool) -> Duration {
    let mut only = CpuSet::new();
    only.set(core);
    // Where that is refused it runs on any.
    let _ = sched_setaffinity(None, &only);
    longest_delay(|| std::thread::park_timeout(LOOK_EVERY), || over.load(Ordering::Relaxed))
}

/// By how much the longest of several waits was longer than it was to be.
fn longest_delay(wait: impl Fn(), mut is_over: impl FnMut() -> bool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over() {
        let began = Instant::now();
        wait();
        longest = longest.max(began.elapsed().saturating_sub(LOOK_EVERY));
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Result<(), &str> = Err("failed");

    /// Number of times that a case is done that ends so, each time, and what it says at last.
    fn times(ends: &[(Result<(), &'static str>, Duration)], is_wrong: bool) -> (usize, Result<(), String>) {
        let mut done = 0;
        let once = || {
            let (outcome, still) = ends[done.min(ends.len() - 1)];
            done += 1;
            (outcome.map_err(|why| Box::new(why) as Box<dyn Any + Send>), still)
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| repeated(once, || is_wrong)));
        (done, outcome.map_err(|why| why.downcast_ref::<&str>().copied().unwrap_or_default().to_owned()))
    }

    #[test]
    fn a_case_that_fails_is_done_again_only_where_the_machine_stood_still_and_not_for_ever() {
        let (ran, stood) = (STOOD_STILL - LOOK_EVERY, STOOD_STILL);
        assert_eq!(times(&[(Ok(()), stood)], false), (1, Ok(())));
        assert_eq!(times(&[(FAILED, ran)], false), (1, Err("failed".to_owned())));
        assert_eq!(times(&[(FAILED, stood), (Ok(()), ran)], false), (2, Ok(())));
        assert_eq!(times(&[(FAILED, stood), (FAILED, ran)], false), (2, Err("failed".to_owned())));
        assert_eq!(times(&[(FAILED, stood)], false), (TIMES, Err("failed".to_owned())));
        assert_eq!(
            times(&[(FAILED, stood)], true),
            (1, Err("failed".to_owned())),
            "it saw what is never right"
        );
    }

    #[test]
    fn what_a_case_says_is_heard_and_who_watched_it_ends() {
        let failed = catch_unwind(|| where_the_machine_runs_on(|| panic!("it failed"))).unwrap_err();
        assert_eq!(failed.downcast_ref::<&str>(), Some(&"it failed"));
        where_the_machine_runs_on(|| ());
    }

    #[test]
    fn the_longest_of_its_waits_counts() {
        let (long, waits) = (5 * LOOK_EVERY, std::cell::Cell::new(0));
        let wait = || std::thread::sleep(if waits.get() == 2 { long } else { LOOK_EVERY });
        let is_over = || {
            waits.set(waits.get() + 1);
            waits.get() == 4
        };
        assert!(longest_delay(wait, is_over) >= long - LOOK_EVERY);
    }
}
