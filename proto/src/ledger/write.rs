//! Beginning of tensors: reservations, seals, aborts, copies, and the repeats of these requests.

use std::collections::BTreeSet;

use super::slots::{Life, Tensor};
use super::weigh::{LEASE_BYTES, TICKET_BYTES};
use super::{
    Answer, Cause, Effect, Holder, Keep, Ledger, Origin, Recalled, Refusal, Retry, RetryKind, TensorId,
};

impl Ledger {
    pub(super) fn reserve(
        &mut self,
        by: Option<Holder>,
        bytes: u64,
        retry: Option<Retry>,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let kind = RetryKind::Reserve { bytes };
        if let Some(first) = self.repeated(retry, by, |first, _| first == kind)? {
            return Ok(Answer::Reserved { id: first.id, again: true });
        }
        if let Some(by) = by {
            self.holders.admit(by, &self.limits)?;
        }
        let claim = if by.is_some() { LEASE_BYTES } else { 0 };
        self.admit_tensor(claim, effects)?;
        let id = self.add(Tensor::new(bytes, Life::Reserved { by }))?;
        self.counts.reserved += 1;
        self.counts.bytes_reserved += bytes;
        if let Some(by) = by {
            self.holders.reserve(by, id, bytes);
        }
        self.remember(retry, kind, by, id);
        Ok(Answer::Reserved { id, again: false })
    }

    pub(super) fn seal(
        &mut self,
        by: Option<Holder>,
        id: TensorId,
        keep: Keep,
        retry: Option<Retry>,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let same = |first, of| of == id && matches!(first, RetryKind::Seal { .. });
        if let Some(Recalled { kind: RetryKind::Seal { ticket }, .. }) = self.repeated(retry, by, same)? {
            return Ok(Answer::Sealed { id, ticket, again: true });
        }
        self.check_reservation(by, id)?;
        self.check_keep(by, id, &keep)?;
        let ticket = keep.ticket.map(|spec| spec.id);
        self.seal_unchecked(by, id, keep, effects);
        self.remember(retry, RetryKind::Seal { ticket }, by, id);
        Ok(Answer::Sealed { id, ticket, again: false })
    }

    pub(super) fn abort(
        &mut self,
        by: Option<Holder>,
        id: TensorId,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let bytes = self.check_reservation(by, id)?;
        if let Some(by) = by {
            self.holders.unreserve(by, id, bytes);
        }
        self.free(id, Cause::Aborted, effects);
        Ok(Answer::Aborted)
    }

    pub(super) fn copy_in(
        &mut self,
        origin: Origin,
        bytes: u64,
        by: Holder,
        mapped: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        if let Some(&id) = self.copies.get(&origin) {
            return Err(Refusal::CopyExists { id });
        }
        self.holders.admit(by, &self.limits)?;
        self.admit_tensor(LEASE_BYTES, effects)?;
        let id = self.add(Tensor::new(bytes, Life::Copied { origin: origin.clone(), mapped }))?;
        self.counts.bytes_sealed += bytes;
        self.copies.insert(origin, id);
        self.add_lease(by, id);
        Ok(Answer::CopiedIn { id })
    }

    /// A new tensor, if there is room for it in every count.
    fn add(&mut self, tensor: Tensor) -> Result<TensorId, Refusal> {
        let bytes = tensor.bytes;
        let limit = self.limits.tensors;
        let all = self.counts.bytes_reserved.checked_add(self.counts.bytes_sealed);
        if all.and_then(|all| all.checked_add(bytes)).is_none() {
            return Err(Refusal::TooManyBytes { bytes });
        }
        if self.slots.live() >= limit {
            return Err(Refusal::TooManyTensors { limit });
        }
        self.slots.insert(tensor).ok_or(Refusal::TooManyTensors { limit })
    }

    /// The bytes of a reservation that is this holder's.
    fn check_reservation(&self, by: Option<Holder>, id: TensorId) -> Result<u64, Refusal> {
        let tensor = self.slots.get(id).ok_or(Refusal::NotFound { id })?;
        match tensor.life {
            Life::Reserved { by: whose } if whose == by => Ok(tensor.bytes),
            Life::Reserved { .. } => Err(Refusal::NotYours { id }),
            Life::Owned { .. } | Life::Copied { .. } => Err(Refusal::AlreadySealed { id }),
        }
    }

    fn check_keep(&self, by: Option<Holder>, id: TensorId, keep: &Keep) -> Result<(), Refusal> {
        if !keep.lease && keep.name.is_none() && keep.ticket.is_none() {
            return Err(Refusal::WouldVanish { id });
        }
        if keep.lease && by.is_none() {
            return Err(Refusal::NoHolder { id });
        }
        if let Some(name) = &keep.name {
            self.check_name(name)?;
        }
        if let Some(spec) = &keep.ticket {
            self.check_ticket(spec)?;
        }
        let name = keep.name.as_ref().map_or(0, |spec| self.more_for_name(spec));
        self.admit_entry(name + if keep.ticket.is_some() { TICKET_BYTES } else { 0 })
    }

    /// Seals what `check_reservation` and `check_keep` have allowed.
    fn seal_unchecked(&mut self, by: Option<Holder>, id: TensorId, keep: Keep, effects: &mut Vec<Effect>) {
        let Some(tensor) = self.slots.get_mut(id) else { return };
        tensor.life = Life::Owned { names: BTreeSet::new(), tickets: 0, manifest: false };
        let bytes = tensor.bytes;
        self.counts.reserved -= 1;
        self.counts.bytes_reserved -= bytes;
        self.counts.bytes_sealed += bytes;
        match by {
            Some(by) if keep.lease => {
                tensor.leases = 1;
                tensor.holders = 1;
                self.counts.leases += 1;
                self.holders.promote(by, id);
            }
            Some(by) => self.holders.unreserve(by, id, bytes),
            None => {}
        }
        if let Some(spec) = keep.ticket {
            self.add_ticket(id, spec);
        }
        if let Some(spec) = keep.name {
            self.add_name(id, &spec.name, effects);
        }
    }

    /// The first request with this retry id, if this is a repeat of it.
    pub(super) fn repeated(
        &self,
        retry: Option<Retry>,
        by: Option<Holder>,
        same: impl FnOnce(RetryKind, TensorId) -> bool,
    ) -> Result<Option<Recalled>, Refusal> {
        let Some(retry) = retry else { return Ok(None) };
        match self.retries.recall(&retry.id) {
            None => Ok(None),
            Some(first) if first.by == by && first.asked == retry.asked && same(first.kind, first.id) => {
                Ok(Some(*first))
            }
            Some(first) => Err(Refusal::RetryMismatch { first: first.kind.as_str() }),
        }
    }

    pub(super) fn remember(
        &mut self,
        retry: Option<Retry>,
        kind: RetryKind,
        by: Option<Holder>,
        id: TensorId,
    ) {
        let Some(Retry { id: retry, asked }) = retry else { return };
        if self.limits.retries == 0 {
            return;
        }
        while self.retries.len() >= self.limits.retries {
            let Some(id) = self.retries.forget_oldest() else { break };
            if let Some(tensor) = self.slots.get_mut(id) {
                tensor.retries.pop_front();
            }
        }
        if let Some(tensor) = self.slots.get_mut(id) {
            tensor.retries.push_back(retry);
            self.retries.remember(retry, Recalled { kind, asked, by, id });
        }
    }
}
