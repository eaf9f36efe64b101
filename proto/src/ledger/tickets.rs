//! Tickets: leases that nobody holds yet, each with a deadline and a number of uses.

use std::collections::HashMap;

use super::deadlines::Deadlines;
use super::{Millis, TensorId, TicketId, TicketSpec};

/// A live ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The tensor it keeps.
    pub tensor: TensorId,
    /// Time at which it ends.
    pub deadline: Millis,
    /// Uses left: at least one.
    pub uses: u32,
}

/// All live tickets. Keyed by the standard library's keyed hash: redeemers choose what they ask for.
#[derive(Default)]
pub(super) struct Tickets {
    live: HashMap<TicketId, Ticket>,
    deadlines: Deadlines<TicketId>,
}

impl Tickets {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn find(&self, id: TicketId) -> Option<&Ticket> {
        self.live.get(&id)
    }

    pub(super) fn issue(&mut self, tensor: TensorId, spec: TicketSpec, now: Millis) -> Millis {
        let deadline = now.after(spec.ttl);
        self.live.insert(spec.id, Ticket { tensor, deadline, uses: spec.uses.get() });
        self.deadlines.insert(deadline, spec.id);
        deadline
    }

    /// Takes one use; returns whether that was the last.
    pub(super) fn spend(&mut self, id: TicketId) -> bool {
        let Some(ticket) = self.live.get_mut(&id) else { return false };
        ticket.uses = ticket.uses.saturating_sub(1);
        let spent = ticket.uses == 0;
        if spent {
            self.end(id);
        }
        spent
    }

    /// Removes the ticket; returns the tensor that it kept.
    pub(super) fn end(&mut self, id: TicketId) -> Option<TensorId> {
        let ticket = self.live.remove(&id)?;
        self.deadlines.remove(ticket.deadline, id);
        Some(ticket.tensor)
    }

    pub(super) fn first_end(&self) -> Option<(Millis, TicketId)> {
        self.deadlines.first()
    }
}
