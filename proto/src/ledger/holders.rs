//! Holders and what they hold. All that a holder has hangs on the holder, so that its end costs what it had and no
//! more.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::deadlines::Deadlines;
use super::hash::BuildMix;
use super::{Holder, Limits, Millis, Refusal, TensorId};

/// Entries up to which an empty table is kept: some 8 KiB.
const SPARE_MAX: usize = 256;

/// Every holder that has a claim or is away. Others are not remembered.
#[derive(Default)]
pub(super) struct Holders {
    known: HashMap<Holder, Standing, BuildMix>,
    /// The table of one that was forgotten, for the next: whoever takes and gives one lease at a time costs no memory
    /// call.
    spare: HashMap<TensorId, Held, BuildMix>,
    /// Entries in the tables of all holders.
    claimed: u64,
    away: Deadlines<Holder>,
}

/// State of one holder.
#[derive(Default)]
struct Standing {
    held: HashMap<TensorId, Held, BuildMix>,
    /// Leases and reservations: what the limit is for.
    claims: u64,
    leases: u64,
    /// Bytes of the tensors in `held`, each once.
    bytes: u64,
    away: Option<Millis>,
}

/// Part that a holder has in one tensor: a reservation, or at least one lease.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) leases: u64,
    pub(super) reserving: bool,
}

impl Holders {
    /// Tensors that holders lease or reserve, each as often as it has holders.
    pub(super) const fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Checks whether this holder may have a further claim.
    pub(super) fn admit(&self, by: Holder, limits: &Limits) -> Result<(), Refusal> {
        self.admit_many(by, 1, limits)
    }

    /// Checks whether this holder may have so many more claims.
    pub(super) fn admit_many(&self, by: Holder, more: u64, limits: &Limits) -> Result<(), Refusal> {
        let limit = limits.leases_per_holder;
        let claims = match self.known.get(&by) {
            Some(standing) => standing.claims,
            None if self.known.len() >= limits.holders => {
                return Err(Refusal::TooManyHolders { limit: limits.holders });
            }
            None => 0,
        };
        if claims.saturating_add(more) > limit {
            return Err(Refusal::TooManyLeases { by, limit });
        }
        Ok(())
    }

    pub(super) fn reserve(&mut self, by: Holder, id: TensorId, bytes: u64) {
        let standing = self.standing(by);
        standing.claims += 1;
        standing.bytes += bytes;
        let before = standing.held.insert(id, Held { leases: 0, reserving: true });
        self.claimed += u64::from(before.is_none());
    }

    /// The reservation becomes a lease.
    pub(super) fn promote(&mut self, by: Holder, id: TensorId) {
        if let Some(standing) = self.known.get_mut(&by)
            && let Some(held) = standing.held.get_mut(&id)
        {
            *held = Held { leases: 1, reserving: false };
            standing.leases += 1;
        }
    }

    /// The reservation ends.
    pub(super) fn unreserve(&mut self, by: Holder, id: TensorId, bytes: u64) {
        if let Some(standing) = self.known.get_mut(&by)
            && standing.held.remove(&id).is_some()
        {
            standing.claims -= 1;
            standing.bytes -= bytes;
            self.claimed -= 1;
            self.forget_if_idle(by);
        }
    }

    /// Makes room for so many more tensors of a holder, of which it leases one next.
    pub(super) fn make_room(&mut self, by: Holder, more: usize) {
        self.standing(by).held.reserve(more);
    }

    /// Adds a lease; returns how many it then has of this tensor.
    pub(super) fn lease(&mut self, by: Holder, id: TensorId, bytes: u64) -> u64 {
        let standing = self.standing(by);
        standing.claims += 1;
        standing.leases += 1;
        let held = standing.held.entry(id).or_default();
        held.leases += 1;
        let leases = held.leases;
        if leases == 1 {
            standing.bytes += bytes;
            self.claimed += 1;
        }
        leases
    }

    /// Fewer leases: how many it then has of this tensor, or how many it has if that is not enough.
    pub(super) fn release(&mut self, by: Holder, id: TensorId, count: u64, bytes: u64) -> Result<u64, u64> {
        let Some(standing) = self.known.get_mut(&by) else { return no_leases(count) };
        let Some(held) = standing.held.get_mut(&id) else { return no_leases(count) };
        let left = held.leases.checked_sub(count).ok_or(held.leases)?;
        held.leases = left;
        standing.claims -= count;
        standing.leases -= count;
        if left == 0 {
            standing.held.remove(&id);
            standing.bytes -= bytes;
            self.claimed -= 1;
            self.forget_if_idle(by);
        }
        Ok(left)
    }

    /// Ends a holder. Returns all that it had, by id, so that equal histories have equal effects.
    pub(super) fn gone(&mut self, holder: Holder) -> Vec<(TensorId, Held)> {
        let Some(standing) = self.known.remove(&holder) else { return Vec::new() };
        self.claimed -= standing.held.len() as u64;
        if let Some(until) = standing.away {
            self.away.remove(until, holder);
        }
        let mut all: Vec<_> = standing.held.into_iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Notes that it will be gone at `until`. One that holds nothing is remembered as well: a late request may yet give
    /// it a lease.
    pub(super) fn away(&mut self, holder: Holder, until: Millis, limits: &Limits) -> Result<(), Refusal> {
        if !self.known.contains_key(&holder) && self.known.len() >= limits.holders {
            return Err(Refusal::TooManyHolders { limit: limits.holders });
        }
        if let Some(before) = self.standing(holder).away.replace(until) {
            self.away.remove(before, holder);
        }
        self.away.insert(until, holder);
        Ok(())
    }

    pub(super) fn back(&mut self, holder: Holder) {
        if let Some(standing) = self.known.get_mut(&holder)
            && let Some(until) = standing.away.take()
        {
            self.away.remove(until, holder);
            self.forget_if_idle(holder);
        }
    }

    pub(super) fn first_end(&self) -> Option<(Millis, Holder)> {
        self.away.first()
    }

    pub(super) fn leases(&self, by: Holder, id: TensorId) -> u64 {
        self.known.get(&by).and_then(|standing| standing.held.get(&id)).map_or(0, |held| held.leases)
    }

    pub(super) fn leases_of(&self, by: Holder) -> impl Iterator<Item = (TensorId, u64)> + '_ {
        let held = self.known.get(&by).into_iter().flat_map(|standing| &standing.held);
        held.filter(|(_, held)| held.leases > 0).map(|(id, held)| (*id, held.leases))
    }

    /// Claims of it that are no leases.
    pub(super) fn reservations_of(&self, by: Holder) -> u64 {
        self.known.get(&by).map_or(0, |standing| standing.claims - standing.leases)
    }

    /// Every tensor that it leases or reserves, each once.
    pub(super) fn all_of(&self, by: Holder) -> impl Iterator<Item = TensorId> + '_ {
        self.known.get(&by).into_iter().flat_map(|standing| standing.held.keys().copied())
    }

    pub(super) fn holding(&self, id: TensorId) -> impl Iterator<Item = (Holder, u64)> + '_ {
        let leases = move |standing: &Standing| standing.held.get(&id).map_or(0, |held| held.leases);
        self.known.iter().map(move |(by, standing)| (*by, leases(standing))).filter(|(_, leases)| *leases > 0)
    }

    /// Holder, bytes, leases: those that hold something.
    pub(super) fn weights(&self) -> impl Iterator<Item = (Holder, u64, u64)> + '_ {
        let holding = self.known.iter().filter(|(_, standing)| standing.claims > 0);
        holding.map(|(by, standing)| (*by, standing.bytes, standing.leases))
    }

    fn standing(&mut self, by: Holder) -> &mut Standing {
        let Self { known, spare, .. } = self;
        known.entry(by).or_insert_with(|| Standing { held: std::mem::take(spare), ..Standing::default() })
    }

    fn forget_if_idle(&mut self, holder: Holder) {
        if let Entry::Occupied(found) = self.known.entry(holder)
            && found.get().claims == 0
            && found.get().away.is_none()
        {
            let held = found.remove().held;
            if held.capacity() <= SPARE_MAX {
                self.spare = held;
            }
        }
    }
}

/// Releasing nothing from nothing is fine.
const fn no_leases(count: u64) -> Result<u64, u64> {
    if count == 0 { Ok(0) } else { Err(0) }
}
