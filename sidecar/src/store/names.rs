//! Names and tickets, and waiting for names that do not exist yet.

use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{
    Answer, Event, Holder, Millis, NameSpec, Refusal, Retry, TensorId, TensorName, TicketId, TicketSpec,
};

use super::refusals::refused;
use super::{Freed, Own, State, Store, Taken, Tensor};

/// Called once, on the thread that gave the name, outside of the store's lock.
pub(super) type Wake = Box<dyn FnOnce() + Send>;

/// Somebody waits for a name.
pub(super) struct Awaited {
    number: u64,
    wake: Wake,
}

/// A wait for a name; dropping it ends it.
pub struct NameWait {
    store: Arc<Store>,
    name: TensorName,
    number: u64,
}

// === impl Store ===

impl Store {
    /// Gives a name to a tensor, for `asker`.
    pub fn name(
        &self,
        asker: Option<Holder>,
        own: Own<'_>,
        name: &TensorName,
        replaces: Option<TensorId>,
    ) -> Result<(), Failure> {
        let spec = NameSpec { name: name.clone(), replaces };
        let woken = self.step(|state, now, freed| {
            let id = state.id_of(own)?;
            state.check_kept_by_others(id)?;
            let applied = state.apply_into(now, Event::Name { id, name: spec }, freed);
            applied.map_err(|refusal| state.refused_to(asker, &refusal))?;
            Ok::<Vec<Wake>, Failure>(state.named(std::iter::once(name)))
        })?;
        woken.into_iter().for_each(|wake| wake());
        Ok(())
    }

    /// Gives names to tensors in one step, for `asker`, and ends those without a tensor: all of them, or none.
    pub fn name_together(
        &self,
        asker: Option<Holder>,
        items: &[(Option<Own<'_>>, NameSpec)],
    ) -> Result<(), Failure> {
        let woken = self.step(|state, now, freed| {
            let id = |own: &Option<Own<'_>>| own.map(|own| state.id_of(own)).transpose();
            let ids = items.iter().map(|(own, spec)| Ok((id(own)?, spec.clone())));
            let named = ids.collect::<Result<Vec<_>, Failure>>()?;
            named.iter().filter_map(|(id, _)| *id).try_for_each(|id| state.check_kept_by_others(id))?;
            let applied = state.apply_into(now, Event::NameTogether { items: named }, freed);
            applied.map_err(|refusal| state.refused_to(asker, &refusal))?;
            Ok::<Vec<Wake>, Failure>(state.named(items.iter().map(|(_, spec)| &spec.name)))
        })?;
        woken.into_iter().for_each(|wake| wake());
        Ok(())
    }

    /// Leases the tensors of all names that begin with `prefix` in one step, or none; the names in order, with the ids of their
    /// tensors.
    pub fn lease_names(
        &self,
        by: Holder,
        prefix: &str,
        most: usize,
    ) -> Result<Vec<(TensorName, TensorId)>, Failure> {
        let event = Event::LeaseNames { by, prefix: prefix.to_owned(), most };
        let answer = self.step(|state, now, freed| {
            state.check_open(Some(by))?;
            state.apply_into(now, event, freed).map_err(|refusal| refused(&refusal))
        })?;
        match answer {
            Answer::NamesLeased { names } => Ok(names),
            other => Err(Failure::new(Reason::Internal, format!("the ledger answered {other:?} to a lease"))),
        }
    }

    /// Takes a name away.
    pub fn unname(&self, name: TensorName) -> Result<(), Failure> {
        let woken = self.step(|state, now, freed| {
            state.apply_into(now, Event::Unname { name }, freed).map_err(|refusal| refused(&refusal))?;
            Ok::<Vec<Wake>, Failure>(state.names_changed())
        })?;
        woken.into_iter().for_each(|wake| wake());
        Ok(())
    }

    /// Makes a ticket for a sealed tensor, for `asker`; gives the tensor.
    pub fn issue_ticket(
        &self,
        asker: Option<Holder>,
        own: Own<'_>,
        spec: TicketSpec,
    ) -> Result<Arc<Tensor>, Failure> {
        self.apply_to(asker, own, |id| Event::IssueTicket { id, spec })
    }

    /// Applies an event to a sealed tensor, in the moment in which it is found; gives the tensor.
    fn apply_to(
        &self,
        asker: Option<Holder>,
        own: Own<'_>,
        event: impl FnOnce(TensorId) -> Event,
    ) -> Result<Arc<Tensor>, Failure> {
        self.step(|state, now, freed| {
            let id = state.id_of(own)?;
            let tensor = state.sealed(asker, id)?;
            state.check_kept_by_others(id)?;
            let applied = state.apply_into(now, event(id), freed);
            applied.map(|_| tensor).map_err(|refusal| state.refused_to(asker, &refusal))
        })
    }

    /// Turns a ticket of a tensor into a lease.
    pub fn redeem(
        &self,
        ticket: (TensorId, TicketId),
        by: Holder,
        retry: Option<Retry>,
    ) -> Result<Taken, Failure> {
        self.step(|state, now, freed| {
            let (id, _) = state.redeem(ticket, by, retry, now, freed)?;
            state.taken(id)
        })
    }

    /// Turns a ticket into one more lease of a peer, also where a repeat finds the ticket used: whoever asked first may end its own.
    ///
    /// # Errors
    /// The ledger's refusal.
    pub fn redeem_for(
        &self,
        ticket: (TensorId, TicketId),
        by: Holder,
        retry: Option<Retry>,
    ) -> Result<TensorId, Failure> {
        self.step(|state, now, freed| {
            let (id, again) = state.redeem(ticket, by, retry, now, freed)?;
            if again {
                state.apply_into(now, Event::Lease { by, id }, freed).map_err(|r| refused(&r))?;
            }
            Ok(id)
        })
    }

    /// Calls `wake` when the name is given, or at once where it exists. It may be taken away again before the caller
    /// looks: then wait again.
    pub fn await_name(self: &Arc<Self>, name: TensorName, wake: impl FnOnce() + Send + 'static) -> NameWait {
        let mut state = self.state.lock();
        let number = state.keeper.next_number();
        let exists = state.ledger.find(name.as_str()).is_some();
        if !exists {
            state.awaited.entry(name.clone()).or_default().push(Awaited { number, wake: Box::new(wake) });
            drop(state);
            return NameWait { store: Arc::clone(self), name, number };
        }
        drop(state);
        wake();
        NameWait { store: Arc::clone(self), name, number }
    }
}

// === impl State ===

impl State {
    /// Uses a ticket for a lease; the tensor, and whether a repeat found it used.
    ///
    /// # Errors
    /// The ledger's refusal. The ticket is of another tensor: somebody has put text of two together.
    fn redeem(
        &mut self,
        (id, ticket): (TensorId, TicketId),
        by: Holder,
        retry: Option<Retry>,
        now: Millis,
        freed: &mut Freed,
    ) -> Result<(TensorId, bool), Failure> {
        self.check_open(Some(by))?;
        if self.ledger.of_ticket(ticket).is_some_and(|of| of != id) {
            return Err(refused(&Refusal::TicketUnknown));
        }
        match self.apply_into(now, Event::Redeem { ticket, by, retry }, freed).map_err(|r| refused(&r))? {
            Answer::Redeemed { id, again } => Ok((id, again)),
            other => {
                Err(Failure::new(Reason::Internal, format!("the ledger answered {other:?} to a ticket")))
            }
        }
    }

    /// Wakes of those who waited for these names, which were given, and of those who watch; to be called outside of the lock.
    #[must_use]
    pub(super) fn named<'a>(&mut self, names: impl Iterator<Item = &'a TensorName>) -> Vec<Wake> {
        let waited = names.filter_map(|name| self.awaited.remove(name)).flatten().map(|w| w.wake);
        let mut woken: Vec<Wake> = waited.collect();
        woken.extend(self.names_changed());
        woken
    }
}

// === impl NameWait ===

impl Drop for NameWait {
    fn drop(&mut self) {
        let mut state = self.store.state.lock();
        if let Some(waiting) = state.awaited.get_mut(&self.name) {
            waiting.retain(|w| w.number != self.number);
            if waiting.is_empty() {
                state.awaited.remove(&self.name);
            }
        }
    }
}
