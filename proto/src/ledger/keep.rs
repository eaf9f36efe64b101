//! Names and tickets: what keeps a tensor that nobody leases.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use super::slots::Life;
use super::weigh::{TICKET_BYTES, name_bytes};
use super::{Answer, Cause, Effect, Ledger, Millis, NameSpec, Refusal, TensorId, TensorName, TicketSpec};

impl Ledger {
    pub(super) fn name(
        &mut self,
        id: TensorId,
        spec: &NameSpec,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        self.check_owned(id)?;
        self.check_name(spec)?;
        self.admit_entry(self.more_for_name(spec))?;
        Ok(Answer::Named { replaced: self.add_name(id, &spec.name, effects) })
    }

    /// All names or none. Every name is given before any is taken from its tensor: one that loses a name and gets another in the
    /// same step lives on. A name that no tensor gets ends.
    pub(super) fn name_together(
        &mut self,
        items: Vec<(Option<TensorId>, NameSpec)>,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let mut given = BTreeSet::new();
        for (id, spec) in &items {
            id.map_or(Ok(()), |id| self.check_owned(id))?;
            self.check_name(spec)?;
            if !given.insert(&spec.name) {
                return Err(Refusal::NameTwice { name: spec.name.clone() });
            }
        }
        let is_new = |(id, spec): &&(Option<TensorId>, NameSpec)| id.is_some() && spec.replaces.is_none();
        let (limit, new) = (self.limits.names, items.iter().filter(is_new).count());
        if self.names.len() + new > limit {
            return Err(Refusal::TooManyNames { limit });
        }
        self.admit_entry(items.iter().filter(is_new).map(|(_, spec)| self.more_for_name(spec)).sum())?;
        let mut lost = Vec::new();
        for (id, NameSpec { name, .. }) in items {
            let (before, cause) = match id {
                Some(id) => (self.give_name(id, &name), Cause::Replaced),
                None => (self.end_name(&name), Cause::Unnamed),
            };
            lost.extend(before.filter(|before| Some(*before) != id).map(|before| (before, name, cause)));
        }
        for (before, name, cause) in lost {
            self.drop_name(before, &name, cause, effects);
        }
        Ok(Answer::NamedTogether)
    }

    pub(super) fn unname(&mut self, name: TensorName, effects: &mut Vec<Effect>) -> Result<Answer, Refusal> {
        let Some(id) = self.end_name(&name) else { return Err(Refusal::NameUnknown { name }) };
        self.drop_name(id, &name, Cause::Unnamed, effects);
        Ok(Answer::Unnamed { id })
    }

    pub(super) fn issue_ticket(&mut self, id: TensorId, spec: TicketSpec) -> Result<Answer, Refusal> {
        self.check_owned(id)?;
        self.check_ticket(&spec)?;
        self.admit_entry(TICKET_BYTES)?;
        Ok(Answer::TicketIssued { deadline: self.add_ticket(id, spec) })
    }

    pub(super) fn check_owned(&self, id: TensorId) -> Result<(), Refusal> {
        match &self.slots.get(id).ok_or(Refusal::NotFound { id })?.life {
            Life::Reserved { .. } => Err(Refusal::NotSealed { id }),
            Life::Copied { origin, .. } => Err(Refusal::NotOwned { id, origin: origin.clone() }),
            Life::Owned { .. } => Ok(()),
        }
    }

    /// Compare and swap: the name is free, or exactly where the request says.
    pub(super) fn check_name(&self, spec: &NameSpec) -> Result<(), Refusal> {
        let limit = self.limits.names;
        match (self.names.get(&spec.name).copied(), spec.replaces) {
            (None, None) if self.names.len() >= limit => Err(Refusal::TooManyNames { limit }),
            (None, None) => Ok(()),
            (Some(by), None) => Err(Refusal::NameTaken { name: spec.name.clone(), by }),
            (now, replaces) if now == replaces => Ok(()),
            (now, _) => Err(Refusal::NameChanged { name: spec.name.clone(), now }),
        }
    }

    pub(super) fn check_ticket(&self, spec: &TicketSpec) -> Result<(), Refusal> {
        let limit = self.limits.tickets;
        if spec.ttl == Millis(0) {
            return Err(Refusal::TicketWithoutTime);
        }
        if self.tickets.find(spec.id).is_some() {
            return Err(Refusal::TicketTaken);
        }
        if self.tickets.len() >= limit {
            let next = self.tickets.first_end().map(|(at, _)| at);
            return Err(Refusal::TooManyTickets { limit, next });
        }
        Ok(())
    }

    /// Gives a name that was checked, taking it from the tensor that has it; that tensor.
    pub(super) fn add_name(
        &mut self,
        id: TensorId,
        name: &TensorName,
        effects: &mut Vec<Effect>,
    ) -> Option<TensorId> {
        let before = self.give_name(id, name);
        if let Some(before) = before.filter(|&before| before != id) {
            self.drop_name(before, name, Cause::Replaced, effects);
        }
        before
    }

    /// The side of the name and of the tensor that gets it; who had it before, which still counts it among its names.
    fn give_name(&mut self, id: TensorId, name: &TensorName) -> Option<TensorId> {
        if let Some(Life::Owned { names, .. }) = self.slots.get_mut(id).map(|tensor| &mut tensor.life) {
            names.insert(name.clone());
        }
        let before = match self.names.entry(name.clone()) {
            Entry::Occupied(mut found) => Some(found.insert(id)),
            Entry::Vacant(free) => {
                free.insert(id);
                self.counts.name_bytes += name_bytes(name);
                None
            }
        };
        self.journal.note(name, before, Some(id), &self.limits);
        before
    }

    /// The name's side of its end; who had it, which still counts it among its names.
    fn end_name(&mut self, name: &TensorName) -> Option<TensorId> {
        let before = self.names.remove(name)?;
        self.counts.name_bytes -= name_bytes(name);
        self.journal.note(name, Some(before), None, &self.limits);
        Some(before)
    }

    /// Issues a ticket that was checked; its deadline.
    pub(super) fn add_ticket(&mut self, id: TensorId, spec: TicketSpec) -> Millis {
        if let Some(Life::Owned { tickets, .. }) = self.slots.get_mut(id).map(|tensor| &mut tensor.life) {
            *tickets += 1;
        }
        self.tickets.issue(id, spec, self.now)
    }

    /// The tensor's side of a name that has ended.
    fn drop_name(&mut self, id: TensorId, name: &TensorName, cause: Cause, effects: &mut Vec<Effect>) {
        if let Some(Life::Owned { names, .. }) = self.slots.get_mut(id).map(|tensor| &mut tensor.life) {
            names.remove(name);
            self.loosened(id, cause, effects);
        }
    }
}
