//! Listeners: entry points of a name, and the pipes to them that are not accepted yet. Pure.

use std::collections::VecDeque;

use tensorlane_proto::allowed::AllowedPeers;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{SessionId, TensorName};

use super::{
    Effect, Ended, LISTENERS_MAX, Listener, Party, SESSION_LISTENERS_MAX, SESSION_PIPES_MAX, Table, end,
    limit,
};

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
        let is_its = |listener: &&Listener<W>| listener.party.session == party.session;
        if self.listeners.values().filter(is_its).count() >= SESSION_LISTENERS_MAX {
            let what = format!("this session has {SESSION_LISTENERS_MAX} listeners already");
            return Err(limit(&what, SESSION_LISTENERS_MAX));
        }
        let lists = self.listeners.values().map(|listener| &listener.allowed);
        allowed.check_room(lists, "the lists of peers of all listeners")?;
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

    /// Checks that whoever connects has not its share of the pipes that the listener's session may have: of those that wait to be
    /// accepted there, at most half of what the others leave.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the share.
    pub(super) fn check_share(&self, listener: &Listener<W>, party: &Party) -> Result<(), Failure> {
        if !listener.accepting.is_empty() {
            return Ok(());
        }
        let account = listener.party.account;
        let listeners = self.listeners.values().filter(|other| other.party.account == account);
        let waiting = listeners.flat_map(|other| &other.backlog).filter_map(|pipe| self.pipes.get(pipe));
        let own = waiting.filter(|pipe| pipe.sides[0].party.shares_with(party)).count();
        let free = SESSION_PIPES_MAX.saturating_sub(self.ends_of(account));
        let share = (free + own).div_ceil(2);
        if own < share {
            return Ok(());
        }
        let message = format!(
            "{own} pipes of {party} wait to be accepted by {}, which listens on {}, and {share} are its share, half of what others \
             leave; let it accept some, or close some first",
            listener.party, listener.name
        );
        Err(Failure::new(Reason::LimitExceeded, message).with("most", share).with("name", &listener.name))
    }

    /// Gives a pipe to whoever accepts, or has it wait for that.
    pub(super) fn hand_out(&mut self, id: u64, pipe: u64, from: &Party) -> Vec<Effect<W>> {
        let Some(listener) = self.listeners.get_mut(&id) else { return Vec::new() };
        if let Some(to) = listener.accepting.pop_front() {
            return vec![Effect::Accepted { to, pipe: end(pipe, 1), other: from.clone() }];
        }
        listener.backlog.push_back(pipe);
        Vec::new()
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
