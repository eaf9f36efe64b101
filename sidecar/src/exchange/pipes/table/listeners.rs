//! Listeners: entry points of a name, and the pipes to them that are not accepted yet. Pure.

use std::collections::VecDeque;

use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::{Effect, Ended, LISTENERS_MAX, Listener, Party, Table, limit};

impl<W> Table<W> {
    /// Opens a listener; its number, and whoever waited for it.
    ///
    /// # Errors
    /// NAME_TAKEN with the client that has it, LIMIT_EXCEEDED.
    pub(in super::super) fn listen(
        &mut self,
        party: Party,
        name: TensorName,
        allowed: AllowedPeers,
    ) -> Result<(u64, Vec<Effect<W>>), Failure> {
        let number = self.number();
        let effects = self.enter_listener(number, party, (name, allowed), None)?;
        Ok((number, effects))
    }

    /// Opens a listener of that number for one pipe alone, of which `accept` is told: it has no backlog.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub(in super::super) fn listen_once(
        &mut self,
        number: u64,
        party: Party,
        entry: (TensorName, AllowedPeers),
        accept: W,
    ) -> Result<Vec<Effect<W>>, Failure> {
        self.enter_listener(number, party, entry, Some(accept))
    }

    /// A number for a listener or a pipe.
    pub(in super::super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn enter_listener(
        &mut self,
        number: u64,
        party: Party,
        (name, allowed): (TensorName, AllowedPeers),
        once: Option<W>,
    ) -> Result<Vec<Effect<W>>, Failure> {
        if let Some(taken) = self.names.get(&name).and_then(|id| self.listeners.get(id)) {
            let message = format!(
                "{} listens on {name} already; end that listener, or choose another name",
                taken.party
            );
            return Err(Failure::new(Reason::NameTaken, message).with("name", name));
        }
        if self.listeners.len() >= LISTENERS_MAX {
            return Err(limit(&format!("{LISTENERS_MAX} listeners are here already"), LISTENERS_MAX));
        }
        self.names.insert(name.clone(), number);
        let waited = self.waiting.remove(&name).unwrap_or_default();
        let (is_once, accepting) = (once.is_some(), once.into_iter().collect());
        let backlog = VecDeque::new();
        let listener = Listener { name, party, allowed, once: is_once, backlog, accepting };
        self.listeners.insert(number, listener);
        Ok(waited.into_iter().map(|to| Effect::Listens { to }).collect())
    }

    /// Takes a listener for one pipe away, once it has that or waits for it no more.
    pub(super) fn end_once(&mut self, id: u64) {
        if self.listeners.get(&id).is_some_and(|listener| listener.once)
            && let Some(listener) = self.listeners.remove(&id)
        {
            self.names.remove(&listener.name);
        }
    }

    /// Returns whether there is a listener of that name.
    pub(in super::super) fn is_listened(&self, name: &TensorName) -> bool {
        self.names.contains_key(name)
    }

    /// Takes a pipe out of those that are not accepted yet. Returns whether it was one of them.
    pub(super) fn leave_backlog(&mut self, name: &TensorName, number: u64) -> bool {
        let listener = self.names.get(name).and_then(|id| self.listeners.get_mut(id));
        let Some(backlog) = listener.map(|listener| &mut listener.backlog) else { return false };
        let before = backlog.len();
        backlog.retain(|pipe| *pipe != number);
        backlog.len() < before
    }

    /// A listener ends, and every pipe that it has not accepted.
    pub(in super::super) fn end_listener(
        &mut self,
        session: SessionId,
        id: u64,
        how: Ended,
    ) -> Vec<Effect<W>> {
        if self.listeners.get(&id).is_none_or(|listener| listener.party.session != session) {
            return Vec::new();
        }
        let Some(listener) = self.listeners.remove(&id) else { return Vec::new() };
        self.names.remove(&listener.name);
        let over = Failure::new(Reason::PipeClosed, format!("the listener {} has ended", listener.name));
        let fail = |to| Effect::Fail { to, why: over.clone() };
        let mut effects: Vec<_> = listener.accepting.into_iter().map(fail).collect();
        for pipe in listener.backlog {
            effects.extend(self.close_side(pipe, 1, how));
        }
        effects
    }
}
