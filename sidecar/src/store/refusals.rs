//! What the ledger and the arena refuse, as failures that a caller can act on.

use tensorlane_memory::Shortage;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{Holder, Refusal};

/// A refusal of the ledger.
pub(super) fn refused(refusal: &Refusal) -> Failure {
    let reason = match refusal {
        Refusal::NotFound { .. } | Refusal::NameUnknown { .. } | Refusal::NotHeld { .. } => Reason::NotFound,
        Refusal::NotSealed { .. } => Reason::NotSealed,
        Refusal::AlreadySealed { .. } => Reason::AlreadySealed,
        Refusal::NotYours { .. } => Reason::NotYours,
        Refusal::NotOwned { .. } => Reason::NotOwned,
        Refusal::WouldVanish { .. } => Reason::WouldVanish,
        Refusal::NoHolder { .. } => Reason::SessionRequired,
        Refusal::NameTaken { .. } => Reason::NameTaken,
        Refusal::NameChanged { .. } => Reason::NameChanged,
        Refusal::TicketWithoutTime => Reason::InvalidArgument,
        Refusal::TicketUnknown => Reason::TicketSpent,
        Refusal::RetryMismatch { .. } | Refusal::RetryLapsed { .. } => Reason::RetryMismatch,
        Refusal::TooManyTensors { .. }
        | Refusal::TooManyBytes { .. }
        | Refusal::TooManyHolders { .. }
        | Refusal::TooManyLeases { .. }
        | Refusal::TooManyNames { .. }
        | Refusal::TooManyTickets { .. } => Reason::LimitExceeded,
        Refusal::CopyExists { .. } | Refusal::TicketTaken => Reason::Internal,
    };
    Failure::new(reason, refusal.to_string())
}

/// The arena is full: how much there is of what, and who has the most.
pub(super) fn arena_full(shortage: &Shortage, largest: &[(Holder, u64, u64)]) -> Failure {
    let mut failure = Failure::new(
        Reason::ArenaFull,
        format!(
            "{} bytes do not fit: {} are free, {} sealed, {} reserved, {} held, {} retired; release tensors, wait \
             longer, or raise arena.size",
            shortage.asked, shortage.free, shortage.sealed, shortage.reserved, shortage.held, shortage.retired
        ),
    )
    .with("asked_bytes", shortage.asked)
    .with("free_bytes", shortage.free)
    .with("sealed_bytes", shortage.sealed)
    .with("reserved_bytes", shortage.reserved)
    .with("held_bytes", shortage.held)
    .with("retired_bytes", shortage.retired);
    for (place, (holder, bytes, leases)) in largest.iter().enumerate() {
        failure = failure
            .with(format!("holder_{}", place + 1), format!("{holder}: {bytes} bytes in {leases} leases"));
    }
    failure
}

/// Larger than the arena can ever give.
pub(super) fn never_fits(asked: u64, most: u64) -> Failure {
    Failure::new(
        Reason::NeverFits,
        format!("{asked} bytes can never fit: one tensor may have {most} at most; raise arena.size"),
    )
    .with("asked_bytes", asked)
    .with("most_bytes", most)
}
