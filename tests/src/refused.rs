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

/// The sidecar's refusal when the deadline of a call has passed. A client that has no answer half a second later gives up
/// itself, as it may on a busy machine: then the call is made again.
///
/// # Panics
/// As [`failure`], and where no answer ever comes in time.
#[track_caller]
pub fn failure_in_time<T: Debug>(mut call: impl FnMut() -> Result<T>) -> Failure {
    let mut outcome = call();
    until("the sidecar answers in time", || {
        let is_late = matches!(outcome, Err(Error::DeadlineExceeded { .. }));
        if is_late {
            outcome = call();
        }
        !is_late
    });
    failure(outcome)
}

/// The reason of the sidecar's refusal.
///
/// # Panics
/// As [`failure`].
#[track_caller]
pub fn reason<T: Debug>(outcome: Result<T>) -> Reason {
    failure(outcome).reason
}
