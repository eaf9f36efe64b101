//! Refusals of calls.

use std::fmt::Debug;

use tensorlane_client::{Error, Result};
use tensorlane_proto::{Failure, Reason};

use crate::wait::until;

/// The sidecar's refusal.
///
/// # Panics
/// Where the call succeeded, or failed without being refused.
#[track_caller]
pub fn failure<T: Debug>(outcome: Result<T>) -> Failure {
    match outcome {
        Err(Error::Refused(failure)) => *failure,
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

/// The outcome of a call in the sidecar's words. A client that has no answer half a second after its deadline gives up
/// itself, as it may on a busy machine. Then the call is made again.
///
/// # Errors
/// As the call.
///
/// # Panics
/// Where no answer ever comes in time.
pub fn in_time<T>(call: impl FnMut() -> Result<T>) -> Result<T> {
    let is_late = |outcome: &Result<T>| matches!(outcome, Err(Error::DeadlineExceeded { .. }));
    repeated_until("the sidecar answers in time", call, |outcome| !is_late(outcome))
}

/// Outcome of a call that is made again and again, until the outcome is the one that is waited for.
///
/// # Panics
/// Where it never is.
pub fn repeated_until<T>(what: &str, mut call: impl FnMut() -> T, is_it: impl Fn(&T) -> bool) -> T {
    let mut outcome = call();
    until(what, || {
        let is_over = is_it(&outcome);
        if !is_over {
            outcome = call();
        }
        is_over
    });
    outcome
}

/// The sidecar's refusal when the deadline of a call has passed, as [`in_time`] has it.
///
/// # Panics
/// As [`failure`], and where no answer ever comes in time.
#[track_caller]
pub fn failure_in_time<T: Debug>(call: impl FnMut() -> Result<T>) -> Failure {
    failure(in_time(call))
}

/// The reason of the sidecar's refusal.
///
/// # Panics
/// As [`failure`].
#[track_caller]
pub fn reason<T: Debug>(outcome: Result<T>) -> Reason {
    failure(outcome).reason
}
