//! Acts of the sessions of simulated peers: they put, get, lease, release, name, withdraw and end.

use std::time::Duration;

use tensorlane_proto::Reason;
use tensorlane_proto::ledger::{
    Answer, Event, Holder, Millis, NameSpec, SessionId, TensorId, TensorName, TicketId, TicketSpec,
};
use tensorlane_proto::negotiate::{Measured, NoRoute, Route, Transport, What, negotiate};

use super::node::{Get, Put, origin};
use super::world::{Happening, MS, World};

impl World {
    pub(super) fn act(&mut self, node: usize) {
        if self.ending {
            return;
        }
        let now = self.millis();
        let by = self.nodes[node].session(&mut self.dice);
        match self.dice.roll(100) {
            0..22 => {
                let (bytes, seed) = (self.dice.roll(1500), self.dice.roll(1 << 40));
                let put = self.nodes[node].put(now, by, bytes, seed);
                self.board.extend(put);
            }
            22..68 => self.get(node, by),
            68..80 => {
                let count = self.nodes[node].leases.len() as u64;
                if count > 0 {
                    let which = self.dice.roll(count) as usize;
                    self.nodes[node].release(now, which);
                }
            }
            80..84 => self.nodes[node].end_session(now, by),
            84..89 => {
                if let Some(call) = self.nodes[node].some_get(&mut self.dice) {
                    let owner = self.nodes[node].gets[&call].put.owner;
                    self.withdraw(node, owner, call, Reason::Cancelled);
                }
            }
            89..92 => {
                let bytes = self.dice.roll(3000);
                self.nodes[node]
                    .book
                    .apply(now, Event::Evict { bytes })
                    .expect("room may always be asked for");
            }
            92..96 => self.name(node, now),
            _ => self.ticket(node, now, by),
        }
        self.soon(60 * MS, Happening::Act { node });
    }

    /// A tensor of this life that somebody here leases.
    pub(super) fn own(&mut self, node: usize) -> Option<TensorId> {
        let here = &self.nodes[node];
        let own: Vec<TensorId> =
            here.leases.iter().map(|(_, id)| *id).filter(|id| here.contents.contains_key(id)).collect();
        self.dice.pick(&own)
    }

    pub(super) fn name(&mut self, node: usize, now: Millis) {
        let name = TensorName::new(["n/1", "n/2", "n/3"][self.dice.roll(3) as usize]).expect("a name");
        let event = match self.own(node) {
            Some(id) if self.dice.one_in(2) => Event::Name { id, name: NameSpec { name, replaces: None } },
            _ => Event::Unname { name },
        };
        // Taken, or nobody's.
        let _ = self.nodes[node].book.apply(now, event);
    }

    pub(super) fn ticket(&mut self, node: usize, now: Millis, by: SessionId) {
        let tickets = self.nodes[node].book.tickets();
        if let Some(ticket) = self.dice.pick(&tickets)
            && self.dice.one_in(2)
        {
            let event = Event::Redeem { ticket, by: Holder::Session(by), retry: None };
            if let Ok(Answer::Redeemed { id, .. }) = self.nodes[node].book.apply(now, event) {
                self.nodes[node].leases.push((by, id));
            }
            return;
        }
        let id = TicketId(self.dice.roll(u64::MAX).into());
        if let Some(tensor) = self.own(node) {
            let spec = TicketSpec::once(id, Millis(1 + self.dice.roll(400)));
            let issued = self.nodes[node].book.apply(now, Event::IssueTicket { id: tensor, spec });
            issued.expect("a tensor that is leased here can have a ticket");
        }
    }

    /// Gets a tensor, wherever it is.
    pub(super) fn get(&mut self, node: usize, by: SessionId) {
        let late = self.board.len().saturating_sub(12);
        let from = if self.dice.one_in(4) { 0 } else { late };
        let Some(put) = self.dice.pick(&self.board[from..]) else { return };
        let (now, owner) = (self.millis(), put.owner);
        let here = &mut self.nodes[node];
        if owner == node {
            if put.life == here.life && here.lease(now, by, put.id) {
                self.seen.copied += 1;
            }
            return;
        }
        let known_over = here.other(owner).state.was(put.life);
        if known_over {
            assert!(self.dead.contains_key(&put.life), "a life that goes on counts as over");
            self.seen.owner_lost += 1;
            return;
        }
        if let Some(copy) = here.book.ledger.copy_of(&origin(&put)) {
            if here.lease(now, by, copy) {
                self.seen.copied += 1;
            }
            return;
        }
        let Ok(route) = self.route(node, &put) else {
            self.seen.no_route += 1;
            return;
        };
        let time = 50 * MS + self.dice.roll(2500 * MS);
        self.begin(node, put, by, route.transport, time);
    }

    /// Begins a pull that may take so long.
    pub(super) fn begin(&mut self, node: usize, put: Put, by: SessionId, transport: Transport, time: u64) {
        let (owner, began, now) = (put.owner, self.now, self.instant());
        let bulk = matches!(transport, Transport::Tcp | Transport::Quic);
        let measured = bulk.then(|| self.nodes[node].other(owner).goodput.began(transport, put.bytes, now));
        let get = Get { put, by, began, measured };
        let deadline = now + Duration::from_micros(time);
        let (call, effects) = self.nodes[node].pull(get, transport, deadline);
        let life = self.nodes[node].life;
        self.at(began + time, Happening::Deadline { node, life, owner, call });
        self.perform(node, effects);
    }

    /// Both ends come to the same answer, and the answer accounts for every transport.
    pub(super) fn route(&mut self, node: usize, put: &Put) -> Result<Route, NoRoute> {
        let (now, ready) = (self.instant(), self.dice.one_in(2));
        let goodput = &mut self.nodes[node].other(put.owner).goodput;
        if self.dice.one_in(30) {
            goodput.failed(Transport::Tcp, now);
        }
        let measured = Measured { same_node: self.same_node, ..goodput.for_pull(now, ready) };
        let what = What { bytes: put.bytes, ..What::default() };
        let (ours, theirs) = (&self.nodes[node].offer, &self.nodes[put.owner].offer);
        let route = negotiate(ours, theirs, &what, &self.policy, &measured);
        assert_eq!(route, negotiate(theirs, ours, &what, &self.policy, &measured), "the two ends disagree");
        let refusals = match &route {
            Ok(route) => {
                let offered =
                    ours.transport(route.transport).is_some() && theirs.transport(route.transport).is_some();
                assert!(offered && self.policy.allow.contains(route.transport), "{route} was taken");
                &route.refusals
            }
            Err(none) => &none.refusals,
        };
        let mut named: Vec<Transport> = refusals.iter().map(|refusal| refusal.transport).collect();
        named.extend(route.as_ref().map(|route| route.transport).ok());
        let count = named.len();
        named.sort_unstable();
        named.dedup();
        assert!(
            count > 0 && named.len() == count,
            "an answer that names nothing, or one thing twice: {route:?}"
        );
        route
    }
}
