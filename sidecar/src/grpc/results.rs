//! Results as gRPC carries them: without places in memory.

use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;

use crate::exchange::{Room, Taken};
pub(super) use crate::results::{Ended, Results};

/// Room, without a place to map it.
pub(super) fn reserve_result(room: &Result<Room, Failure>) -> v1::ReserveResult {
    use v1::reserve_result::Outcome;
    let outcome = match room {
        Ok(room) => Outcome::Reserved(v1::Reserved { id: room.id.0, location: None }),
        Err(failure) => Outcome::Failure(failure.into()),
    };
    v1::ReserveResult { outcome: Some(outcome) }
}

/// A lease, without a place to map it.
pub(super) fn acquire_result(taken: &Result<Taken, Failure>) -> v1::AcquireResult {
    use v1::acquire_result::Outcome;
    let outcome = match taken {
        Ok(taken) => Outcome::Acquired(taken.to_wire()),
        Err(failure) => Outcome::Failure(failure.into()),
    };
    v1::AcquireResult { outcome: Some(outcome) }
}

/// The end of a lease or of a reservation.
pub(super) fn done_result(outcome: &Result<(), Failure>) -> v1::DoneResult {
    v1::DoneResult { failure: outcome.as_ref().err().map(v1::Failure::from) }
}
