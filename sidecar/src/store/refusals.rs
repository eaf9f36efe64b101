//! Refusals of the ledger and the arena, as failures that a caller can act on.

use tensorlane_memory::Room;
use tensorlane_proto::failure::{Failure, HOLDER_DETAIL, Reason};
use tensorlane_proto::ledger::{Holder, Refusal, TensorId};

use super::{Holding, State};

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
        Refusal::VersionChanged { .. } => Reason::VersionChanged,
        Refusal::NameTwice { .. }
        | Refusal::TicketWithoutTime
        | Refusal::ManifestPublished { .. }
        | Refusal::LeafIsManifest { .. }
        | Refusal::NameIsVersion { .. }
        | Refusal::NameTooLong { .. } => Reason::InvalidArgument,
        Refusal::TicketUnknown => Reason::TicketSpent,
        Refusal::RetryMismatch { .. } | Refusal::RetryLapsed { .. } => Reason::RetryMismatch,
        Refusal::TooManyBelow { .. } => Reason::TooLarge,
        Refusal::TooManyTensors { .. }
        | Refusal::TooManyBytes { .. }
        | Refusal::TablesTooLarge { .. }
        | Refusal::TooManyHolders { .. }
        | Refusal::TooManyLeases { .. }
        | Refusal::TooManyNames { .. }
        | Refusal::TooManyTickets { .. } => Reason::LimitExceeded,
        Refusal::CopyExists { .. } | Refusal::TicketTaken => Reason::Internal,
    };
    let failure = Failure::new(reason, refusal.to_string());
    match refusal {
        Refusal::NameTaken { name, .. }
        | Refusal::NameChanged { name, .. }
        | Refusal::NameTwice { name }
        | Refusal::NameUnknown { name } => failure.with("name", name),
        Refusal::VersionChanged { name, latest, .. } => failure.with("name", name).with("latest", latest),
        _ => failure,
    }
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

    /// True if this is a reservation of `by`.
    pub(super) fn writes(&self, by: Option<Holder>, id: TensorId) -> bool {
        let reserved = tensorlane_proto::ledger::State::Reserved;
        self.ledger.entry(id).is_some_and(|e| e.state == reserved && e.reserved_by == by)
    }
}

/// No room came in time: the largest place there is for such a request, where the rest of the arena is, and who has the
/// most of it. Who never came to the `front` of the line did not even get its turn.
pub(super) fn arena_full(asked: u64, room: &Room, front: bool, largest: &[Holding]) -> Failure {
    let Room { usage, largest: usable, elsewhere, for_pulls, in_reach: _ } = room;
    let turn = if front { "" } else { ", and calls that came earlier still wait" };
    let retired = match usage.retired {
        0 => "",
        _ => " (which come back when those that map them let go: peers of this node within seconds)",
    };
    let message = format!(
        "{asked} bytes do not fit: the largest place for them is {usable} bytes{turn}; of the arena {} are free{}, {} \
         sealed, {} reserved, {} held, {} retired{retired}; release tensors, wait longer, or raise arena.size",
        usage.free,
        not_for_this(*elsewhere, *for_pulls),
        usage.sealed,
        usage.reserved,
        usage.held,
        usage.retired
    );
    let mut failure = Failure::new(Reason::ArenaFull, message)
        .with("asked_bytes", asked)
        .with("usable_bytes", usable)
        .with("free_bytes", usage.free)
        .with("free_elsewhere_bytes", elsewhere)
        .with("free_for_pulls_bytes", for_pulls)
        .with("sealed_bytes", usage.sealed)
        .with("reserved_bytes", usage.reserved)
        .with("held_bytes", usage.held)
        .with("retired_bytes", usage.retired);
    for (place, holding) in largest.iter().enumerate() {
        failure = failure.with(format!("{HOLDER_DETAIL}{}", place + 1), holding);
    }
    failure
}

/// ` (3 of them in segments that other kinds of writes use, 4 kept for tensors of other peers)`, or nothing.
fn not_for_this(elsewhere: u64, for_pulls: u64) -> String {
    let parts = [
        (elsewhere, "in segments that other kinds of writes use"),
        (for_pulls, "kept for tensors of other peers"),
    ];
    let told =
        parts.iter().filter(|(bytes, _)| *bytes > 0).map(|(bytes, where_)| format!("{bytes} {where_}"));
    match told.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        some => format!(" ({some})"),
    }
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

#[cfg(test)]
mod tests {
    use tensorlane_memory::Usage;

    use super::*;

    #[test]
    fn free_bytes_that_are_not_for_this_put_are_told_apart() {
        let usage = Usage { total: 100, free: 90, sealed: 10, ..Usage::default() };
        let room = Room { usage, largest: 4, in_reach: 4, elsewhere: 70, for_pulls: 16 };
        let full = arena_full(50, &room, true, &[]);
        assert!(
            full.message.starts_with(
                "50 bytes do not fit: the largest place for them is 4 bytes; of the arena 90 are free (70 in segments \
                 that other kinds of writes use, 16 kept for tensors of other peers), 10 sealed,"
            ),
            "{full}"
        );
        assert_eq!(full.detail("usable_bytes"), Some("4"));
        let plain = arena_full(50, &Room { elsewhere: 0, for_pulls: 0, ..room }, false, &[]);
        assert!(plain.message.contains("4 bytes, and calls that came earlier still wait;"), "{plain}");
        assert!(plain.message.contains("90 are free, 10 sealed"), "{plain}");
    }
}
