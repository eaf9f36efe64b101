//! Leases: taken, given back, and had for a ticket.

use super::slots::Life;
use super::weigh::LEASE_BYTES;
use super::{Answer, Cause, Effect, Holder, Ledger, Recalled, Refusal, Retry, RetryKind, TensorId, TicketId};

impl Ledger {
    pub(super) fn lease(&mut self, by: Holder, id: TensorId) -> Result<Answer, Refusal> {
        self.check_sealed(id)?;
        self.holders.admit(by, &self.limits)?;
        self.admit_leases(self.more_for_lease(by, id))?;
        Ok(Answer::Leased { held: self.add_lease(by, id) })
    }

    /// Leases the tensors of all names that begin so, or none.
    pub(super) fn lease_names(&mut self, by: Holder, prefix: &str, most: usize) -> Result<Answer, Refusal> {
        let names = self.list(prefix, None, most.saturating_add(1));
        if names.len() > most {
            return Err(Refusal::TooManyBelow { prefix: prefix.to_owned(), most });
        }
        if !names.is_empty() {
            self.holders.admit_many(by, names.len() as u64, &self.limits)?;
            self.admit_leases(names.iter().map(|(_, id)| self.more_for_lease(by, *id)).sum())?;
        }
        for (_, id) in &names {
            self.add_lease(by, *id);
        }
        Ok(Answer::NamesLeased { names })
    }

    pub(super) fn release(
        &mut self,
        by: Holder,
        id: TensorId,
        count: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let bytes = self.check_sealed(id)?;
        let held = self.holders.release(by, id, count, bytes).map_err(|held| Refusal::NotHeld {
            id,
            by,
            held,
            asked: count,
        })?;
        if count > 0 {
            self.drop_leases(id, count, held == 0, Cause::Released, effects);
        }
        Ok(Answer::Released { held })
    }

    pub(super) fn redeem(
        &mut self,
        ticket: TicketId,
        by: Holder,
        retry: Option<Retry>,
    ) -> Result<Answer, Refusal> {
        let kind = RetryKind::Redeem { ticket };
        if let Some(Recalled { id, .. }) = self.repeated(retry, Some(by), |first, _| first == kind)? {
            // Whoever is answered "redeemed" holds a lease, also the second time.
            let held = self.holders.leases(by, id) > 0;
            return if held {
                Ok(Answer::Redeemed { id, again: true })
            } else {
                Err(Refusal::RetryLapsed { id })
            };
        }
        let id = self.tickets.find(ticket).ok_or(Refusal::TicketUnknown)?.tensor;
        self.holders.admit(by, &self.limits)?;
        self.admit_leases(self.more_for_lease(by, id))?;
        // The lease comes first: nothing is without a keeper in between.
        self.add_lease(by, id);
        if self.tickets.spend(ticket)
            && let Some(Life::Owned { tickets, .. }) = self.slots.get_mut(id).map(|tensor| &mut tensor.life)
        {
            *tickets -= 1;
        }
        self.remember(retry, kind, Some(by), id);
        Ok(Answer::Redeemed { id, again: false })
    }

    /// Bytes that a lease adds: none where the holder has one of this tensor.
    fn more_for_lease(&self, by: Holder, id: TensorId) -> u64 {
        if self.holders.leases(by, id) > 0 { 0 } else { LEASE_BYTES }
    }

    /// The bytes of a sealed tensor.
    pub(super) fn check_sealed(&self, id: TensorId) -> Result<u64, Refusal> {
        let tensor = self.slots.get(id).ok_or(Refusal::NotFound { id })?;
        match tensor.life {
            Life::Reserved { .. } => Err(Refusal::NotSealed { id }),
            Life::Owned { .. } | Life::Copied { .. } => Ok(tensor.bytes),
        }
    }

    /// Adds a lease of a sealed tensor for a holder that was admitted; returns how many it has then.
    pub(super) fn add_lease(&mut self, by: Holder, id: TensorId) -> u64 {
        let Some(tensor) = self.slots.get_mut(id) else { return 0 };
        let held = self.holders.lease(by, id, tensor.bytes);
        tensor.holders += u64::from(held == 1);
        tensor.leases += 1;
        self.counts.leases += 1;
        if tensor.leases == 1 && matches!(tensor.life, Life::Copied { .. }) && self.idle.remove(id.slot()) {
            self.counts.bytes_idle -= tensor.bytes;
        }
        held
    }

    /// Leases that a holder no longer has; with `all`, it has none left.
    pub(super) fn drop_leases(
        &mut self,
        id: TensorId,
        count: u64,
        all: bool,
        cause: Cause,
        effects: &mut Vec<Effect>,
    ) {
        let Some(tensor) = self.slots.get_mut(id) else { return };
        tensor.leases -= count;
        tensor.holders -= u64::from(all);
        self.counts.leases -= count;
        if tensor.leases == 0 {
            self.loosened(id, cause, effects);
        }
    }
}
