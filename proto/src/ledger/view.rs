//! Questions that can be asked of a ledger. Asking changes nothing and settles nothing: what is due but not settled is
//! still there.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::slots::Life;
use super::{
    Holder, Ledger, Limits, Millis, Origin, Recalled, RetryId, TensorId, TensorName, Ticket, TicketId,
};

/// State of a tensor: whether it can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Being written: invisible.
    Reserved,
    /// Final.
    Sealed,
}

/// View of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The tensor.
    pub id: TensorId,
    /// Reserved or sealed.
    pub state: State,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// Holder that writes it, if it is reserved and somebody does.
    pub reserved_by: Option<Holder>,
    /// Leases of all holders together.
    pub leases: u64,
    /// Holders with at least one lease; [`Ledger::holders_of`] names them.
    pub holders: u64,
    /// Live tickets.
    pub tickets: u64,
    /// Origin from which it comes, if it is a copy.
    pub origin: Option<&'a Origin>,
    names: Option<&'a BTreeSet<TensorName>>,
}

impl<'a> Entry<'a> {
    /// Returns the names of the tensor, in order.
    pub fn names(&self) -> impl Iterator<Item = &'a TensorName> + use<'a> {
        self.names.into_iter().flatten()
    }
}

/// Sums over the whole ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Reserved and sealed.
    pub tensors: usize,
    /// Being written.
    pub reserved: usize,
    /// Final, copies included.
    pub sealed: usize,
    /// Copies of other peers' tensors.
    pub copies: usize,
    /// Leases of all holders on all tensors.
    pub leases: u64,
    /// Names.
    pub names: usize,
    /// Live tickets.
    pub tickets: usize,
    /// Bytes of the tables of tensors, leases, names and tickets, as [`Limits::table_bytes`] counts them.
    pub table_bytes: u64,
    /// Bytes being written.
    pub bytes_reserved: u64,
    /// Bytes that are final, copies included.
    pub bytes_sealed: u64,
    /// Bytes of copies that nobody leases: what [`Event::Evict`](super::Event::Evict) could free. Part of `bytes_sealed`.
    pub bytes_idle: u64,
}

impl Ledger {
    /// The limits it was made with.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The latest time it was told.
    #[must_use]
    pub const fn now(&self) -> Millis {
        self.now
    }

    /// Reserved or sealed; none if it does not exist (any more).
    #[must_use]
    pub fn state(&self, id: TensorId) -> Option<State> {
        self.slots.get(id).map(|tensor| match tensor.life {
            Life::Reserved { .. } => State::Reserved,
            Life::Owned { .. } | Life::Copied { .. } => State::Sealed,
        })
    }

    /// All about one tensor.
    #[must_use]
    pub fn entry(&self, id: TensorId) -> Option<Entry<'_>> {
        let tensor = self.slots.get(id)?;
        let mut entry = Entry {
            id,
            state: State::Sealed,
            bytes: tensor.bytes,
            reserved_by: None,
            leases: tensor.leases,
            holders: tensor.holders,
            tickets: 0,
            origin: None,
            names: None,
        };
        match &tensor.life {
            Life::Reserved { by } => {
                entry.state = State::Reserved;
                entry.reserved_by = *by;
            }
            Life::Owned { names, tickets, .. } => {
                entry.names = Some(names);
                entry.tickets = *tickets;
            }
            Life::Copied { origin, .. } => entry.origin = Some(origin),
        }
        Some(entry)
    }

    /// Every live tensor, in the order of slots. Costs a look at every slot ever used.
    pub fn ids(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.slots.ids()
    }

    /// The tensor of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.names.get(name).copied()
    }

    /// The tensor of a ticket that is not spent.
    #[must_use]
    pub fn of_ticket(&self, ticket: TicketId) -> Option<TensorId> {
        self.tickets.find(ticket).map(|ticket| ticket.tensor)
    }

    /// Names that begin with `prefix`, in order, at most `limit`, those after `after` (the last of the page before).
    #[must_use]
    pub fn list(
        &self,
        prefix: &str,
        after: Option<&TensorName>,
        limit: usize,
    ) -> Vec<(TensorName, TensorId)> {
        let start = match after.map(TensorName::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let from = self.names.range::<str, _>((start, Bound::Unbounded));
        let matching = from.take_while(|(name, _)| name.as_str().starts_with(prefix));
        matching.take(limit).map(|(name, id)| (name.clone(), *id)).collect()
    }

    /// The copy of another peer's tensor, if there is one.
    #[must_use]
    pub fn copy_of(&self, origin: &Origin) -> Option<TensorId> {
        self.copies.get(origin).copied()
    }

    /// A live ticket.
    #[must_use]
    pub fn ticket(&self, id: TicketId) -> Option<Ticket> {
        self.tickets.find(id).copied()
    }

    /// An earlier request with this retry id, if it is remembered.
    #[must_use]
    pub fn recall(&self, retry: &RetryId) -> Option<Recalled> {
        self.retries.recall(retry).copied()
    }

    /// Tensors that a holder leases, and how often, in no order. Reservations are not leases.
    pub fn leases_of(&self, holder: Holder) -> impl Iterator<Item = (TensorId, u64)> + '_ {
        self.holders.leases_of(holder)
    }

    /// Every tensor that a holder leases or reserves, each once, in no order.
    pub fn holdings(&self, holder: Holder) -> impl Iterator<Item = TensorId> + '_ {
        self.holders.all_of(holder)
    }

    /// Holders that lease a tensor, and how often, in no order. Asks every holder: for people, not for every request.
    pub fn holders_of(&self, id: TensorId) -> impl Iterator<Item = (Holder, u64)> + '_ {
        self.holders.holding(id)
    }

    /// Holders of the most bytes, reserved and leased, each tensor once: holder, bytes, leases. Asks every holder.
    #[must_use]
    pub fn largest_holders(&self, n: usize) -> Vec<(Holder, u64, u64)> {
        let mut all: Vec<_> = self.holders.weights().collect();
        all.sort_unstable_by_key(|&(holder, bytes, _)| (std::cmp::Reverse(bytes), holder));
        all.truncate(n);
        all
    }

    /// Number of tensors that a holder has begun and not sealed.
    #[must_use]
    pub fn reservations_of(&self, holder: Holder) -> u64 {
        self.holders.reservations_of(holder)
    }

    /// The sums, kept up to date with every event.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            tensors: self.slots.live(),
            reserved: self.counts.reserved,
            sealed: self.slots.live() - self.counts.reserved,
            copies: self.copies.len(),
            leases: self.counts.leases,
            names: self.names.len(),
            tickets: self.tickets.len(),
            table_bytes: self.table_bytes(),
            bytes_reserved: self.counts.bytes_reserved,
            bytes_sealed: self.counts.bytes_sealed,
            bytes_idle: self.counts.bytes_idle,
        }
    }
}
