//! What the ledger and the arena refuse, as failures that a caller can act on.

use tensorlane_memory::Shortage;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{Holder, Refusal, TensorId};

use super::State;

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

// === impl State ===

impl State {
    /// A refusal, as `asker` may hear it: a reservation is there for its writer alone.
    pub(super) fn refused_to(&self, asker: Option<Holder>, refusal: &Refusal) -> Failure {
        match refusal {
            Refusal::NotSealed { id } | Refusal::NotYours { id } if !self.writes(asker, *id) => {
                refused(&Refusal::NotFound { id: *id })
            }
            _ => refused(refusal),
        }
    }

    /// Whether this is a reservation of `by`.
    pub(super) fn writes(&self, by: Option<Holder>, id: TensorId) -> bool {
        let reserved = tensorlane_proto::ledger::State::Reserved;
        self.ledger.entry(id).is_some_and(|e| e.state == reserved && e.reserved_by == by)
    }
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
