//! What a call was refused with.

use std::fmt::Debug;

use tensorlane_client::{Error, Result};
use tensorlane_proto::{Failure, Reason};

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

/// The reason of the sidecar's refusal.
///
/// # Panics
/// As [`failure`].
#[track_caller]
pub fn reason<T: Debug>(outcome: Result<T>) -> Reason {
    failure(outcome).reason
}
