//! End of tensors: what is due, who is gone, what is idle, and the one place where a tensor is freed.

use super::slots::Life;
use super::{Answer, Cause, Effect, Holder, Ledger, Millis, TensorId, TicketId};

/// Kind of thing that ends by itself. At one instant in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Ticket(TicketId),
    Away(Holder),
    Idle(TensorId),
}

impl Ledger {
    /// Does what is due up to `now`, each at the time it was due: a copy whose last lease ended ten seconds ago has been
    /// idle for ten seconds, however late we come to see it.
    pub(super) fn settle(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        while let Some((at, due)) = self.first_due()
            && at <= now
        {
            self.now = self.now.max(at);
            match due {
                Due::Ticket(ticket) => self.expire_ticket(ticket, effects),
                Due::Away(holder @ (Holder::Session(_) | Holder::Manifest(_))) => {
                    self.end_holder(holder, Cause::HolderGone, effects);
                }
                Due::Away(holder @ Holder::Peer(_)) => self.end_holder(holder, Cause::PeerLost, effects),
                Due::Idle(id) => self.free(id, Cause::CopyIdle, effects),
            }
        }
        self.now = self.now.max(now);
    }

    /// Time at which the next thing ends by itself: the time for a [`Tick`](super::Event::Tick).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        self.first_due().map(|(at, _)| at)
    }

    fn first_due(&self) -> Option<(Millis, Due)> {
        let ticket = self.tickets.first_end().map(|(at, ticket)| (at, Due::Ticket(ticket)));
        let away = self.holders.first_end().map(|(at, holder)| (at, Due::Away(holder)));
        let idle = self.oldest_idle().map(|(id, since)| (since.after(self.limits.copy_idle), Due::Idle(id)));
        [ticket, away, idle].into_iter().flatten().min()
    }

    fn oldest_idle(&self) -> Option<(TensorId, Millis)> {
        let (slot, since) = self.idle.oldest()?;
        self.slots.id_at(slot).map(|id| (id, since))
    }

    fn expire_ticket(&mut self, ticket: TicketId, effects: &mut Vec<Effect>) {
        let Some(id) = self.tickets.end(ticket) else { return };
        if let Some(Life::Owned { tickets, .. }) = self.slots.get_mut(id).map(|tensor| &mut tensor.life) {
            *tickets -= 1;
            self.loosened(id, Cause::TicketExpired, effects);
        }
    }

    /// All leases and reservations of a holder end.
    pub(super) fn end_holder(&mut self, holder: Holder, cause: Cause, effects: &mut Vec<Effect>) {
        for (id, held) in self.holders.gone(holder) {
            if held.reserving {
                self.free(id, cause, effects);
            } else {
                self.drop_leases(id, held.leases, true, cause, effects);
            }
        }
    }

    pub(super) fn evict(&mut self, wanted: u64, effects: &mut Vec<Effect>) -> Answer {
        let (mut tensors, mut bytes) = (0, 0);
        while bytes < wanted
            && let Some((id, _)) = self.oldest_idle()
        {
            bytes += self.slots.get(id).map_or(0, |tensor| tensor.bytes);
            tensors += 1;
            self.free(id, Cause::Evicted, effects);
        }
        Answer::Evicted { tensors, bytes }
    }

    /// Frees the copy that is idle for longest. Returns whether there was one.
    pub(super) fn evict_oldest(&mut self, effects: &mut Vec<Effect>) -> bool {
        let oldest = self.oldest_idle();
        if let Some((id, _)) = oldest {
            self.free(id, Cause::Evicted, effects);
        }
        oldest.is_some()
    }

    /// A copy does not outlive its leases from now on.
    pub(super) fn end_copy(&mut self, id: TensorId, effects: &mut Vec<Effect>) {
        let Some(tensor) = self.slots.get_mut(id) else { return };
        let Life::Copied { mapped, .. } = &mut tensor.life else { return };
        *mapped = true;
        if tensor.leases > 0 {
            return;
        }
        self.free(id, Cause::Evicted, effects);
    }

    /// Something that kept a sealed tensor has ended: was it the last?
    pub(super) fn loosened(&mut self, id: TensorId, cause: Cause, effects: &mut Vec<Effect>) {
        let Some(tensor) = self.slots.get(id) else { return };
        if tensor.leases > 0 {
            return;
        }
        match &tensor.life {
            Life::Owned { names, tickets, .. } if names.is_empty() && *tickets == 0 => {
                self.free(id, cause, effects);
            }
            Life::Copied { mapped: true, .. } => self.free(id, cause, effects),
            Life::Copied { mapped: false, .. } => {
                self.idle.push(id.slot(), self.now);
                self.counts.bytes_idle += tensor.bytes;
            }
            Life::Owned { .. } | Life::Reserved { .. } => {}
        }
    }

    /// The end of a tensor that nothing keeps and nobody holds.
    pub(super) fn free(&mut self, id: TensorId, cause: Cause, effects: &mut Vec<Effect>) {
        let Some(tensor) = self.slots.remove(id) else { return };
        let bytes = tensor.bytes;
        let mut ends_leaves = false;
        match tensor.life {
            Life::Reserved { .. } => {
                self.counts.reserved -= 1;
                self.counts.bytes_reserved -= bytes;
            }
            Life::Owned { manifest, .. } => {
                self.counts.bytes_sealed -= bytes;
                ends_leaves = manifest;
            }
            Life::Copied { origin, .. } => {
                self.copies.remove(&origin);
                if self.idle.remove(id.slot()) {
                    self.counts.bytes_idle -= bytes;
                }
                self.counts.bytes_sealed -= bytes;
            }
        }
        for retry in &tensor.retries {
            self.retries.forget(retry);
        }
        effects.push(Effect::Freed { id, bytes, cause });
        if ends_leaves {
            self.end_manifest(id, cause, effects);
        }
    }
}
