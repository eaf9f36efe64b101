//! Bytes of the tables of a ledger: estimates from above, so that their bound is one of memory.
//!
//! Every event that adds an entry is admitted first. Events that take entries away are never refused. What forgets its oldest by
//! itself (the journal, remembered requests) has limits of its own and is not counted here.

use super::{Effect, Ledger, NameSpec, Refusal, TensorName};

/// Bytes of a lease or reservation: the first of its holder on a tensor. A table doubles, and for a moment has its half beside it.
pub const LEASE_BYTES: u64 = 96;

/// Bytes of a name beside its text: its place among all names, and among those of its tensor.
pub const NAME_BYTES: u64 = 400;

/// Bytes of a ticket, with its deadline.
pub const TICKET_BYTES: u64 = 192;

/// Bytes of a remembered request, which is one of [`Limits::retries`](super::Limits::retries).
pub const RETRY_BYTES: u64 = 320;

/// Bytes of a name.
pub(super) fn name_bytes(name: &TensorName) -> u64 {
    NAME_BYTES + name.as_str().len() as u64
}

impl Ledger {
    /// Bytes of all tables that are bounded by [`Limits::table_bytes`](super::Limits::table_bytes).
    #[must_use]
    pub fn table_bytes(&self) -> u64 {
        let tensors = (self.slots.live() as u64).saturating_mul(self.limits.tensor_bytes);
        let leases = self.holders.claimed().saturating_mul(LEASE_BYTES);
        let tickets = (self.tickets.len() as u64).saturating_mul(TICKET_BYTES);
        tensors.saturating_add(leases).saturating_add(tickets).saturating_add(self.counts.name_bytes)
    }

    /// Checks that tensors, names or tickets of so many bytes may be added: they leave an eighth to leases, without which what is there could
    /// not be had.
    pub(super) fn admit_entry(&self, more: u64) -> Result<(), Refusal> {
        self.admit(more, self.limits.table_bytes - self.limits.table_bytes / 8)
    }

    /// Checks that a tensor and claims of so many bytes may be added, once idle copies have made room, the oldest first.
    pub(super) fn admit_tensor(&mut self, claims: u64, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let more = self.limits.tensor_bytes.saturating_add(claims);
        loop {
            match self.admit_entry(more) {
                Err(_) if self.evict_oldest(effects) => {}
                admitted => return admitted,
            }
        }
    }

    /// Checks that leases of so many bytes may be added.
    pub(super) fn admit_leases(&self, more: u64) -> Result<(), Refusal> {
        self.admit(more, self.limits.table_bytes)
    }

    fn admit(&self, more: u64, limit: u64) -> Result<(), Refusal> {
        let bytes = self.table_bytes().saturating_add(more);
        if more > 0 && bytes > limit { Err(Refusal::TablesTooLarge { bytes, limit }) } else { Ok(()) }
    }

    /// Bytes that giving a name adds: none where it is given already.
    pub(super) fn more_for_name(&self, spec: &NameSpec) -> u64 {
        if self.names.contains_key(&spec.name) { 0 } else { name_bytes(&spec.name) }
    }
}
