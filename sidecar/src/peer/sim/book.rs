//! A ledger beside a book that says in the plainest way who holds what: whatever the ledger frees must be free by the book.

use std::collections::{BTreeMap, BTreeSet};

use tensorlane_proto::ledger::{
    Answer, Effect, Event, Holder, Keep, Ledger, Limits, Millis, Refusal, TensorId, TicketId, Totals,
};

/// The ledger of one life, and its book.
pub(super) struct Book {
    pub(super) ledger: Ledger,
    /// Bytes of every tensor that lives: what a store would have a block for.
    blocks: BTreeMap<TensorId, u64>,
    claims: BTreeMap<(TensorId, Holder), u64>,
    away: BTreeMap<Holder, Millis>,
    names: BTreeMap<String, TensorId>,
    /// Tickets with their tensors, ends and uses.
    tickets: BTreeMap<TicketId, (TensorId, Millis, u32)>,
    reserved: BTreeMap<TensorId, Option<Holder>>,
    pub(super) freed: BTreeSet<TensorId>,
}

impl Book {
    pub(super) fn new() -> Self {
        let limits = Limits { copy_idle: Millis(300), ..Limits::default() };
        Self {
            ledger: Ledger::new(limits),
            blocks: BTreeMap::new(),
            claims: BTreeMap::new(),
            away: BTreeMap::new(),
            names: BTreeMap::new(),
            tickets: BTreeMap::new(),
            reserved: BTreeMap::new(),
            freed: BTreeSet::new(),
        }
    }

    /// Number of leases that a holder has of a tensor, by the book.
    pub(super) fn held(&self, id: TensorId, by: Holder) -> u64 {
        self.claims.get(&(id, by)).copied().unwrap_or(0)
    }

    /// Leases of all of a kind of holder, by the book.
    pub(super) fn leased_by(&self, by: Holder) -> impl Iterator<Item = (TensorId, u64)> + '_ {
        self.claims.iter().filter(move |((_, holder), _)| *holder == by).map(|((id, _), count)| (*id, *count))
    }

    /// Applies an event; how many tensors it freed is in `freed`.
    pub(super) fn apply(&mut self, now: Millis, event: Event) -> Result<Answer, Refusal> {
        self.settle(now);
        let before = (self.claims.clone(), self.names.clone(), self.tickets.clone());
        let asked = event.clone();
        self.foresee(&asked);
        let mut effects = Vec::new();
        let answer = self.ledger.apply(now, event, &mut effects);
        match &answer {
            Ok(answer) => self.enter(now, &asked, answer),
            // A refused event has changed nothing.
            Err(_) => (self.claims, self.names, self.tickets) = before,
        }
        for effect in effects {
            self.free(effect, &asked);
        }
        self.check();
        answer
    }

    /// Ends what ends by itself until now.
    fn settle(&mut self, now: Millis) {
        let over: Vec<Holder> =
            self.away.iter().filter(|(_, until)| **until <= now).map(|(h, _)| *h).collect();
        over.into_iter().for_each(|holder| self.gone(holder));
        self.tickets.retain(|_, (_, until, _)| *until > now);
    }

    fn gone(&mut self, gone: Holder) {
        self.away.remove(&gone);
        self.claims.retain(|(_, holder), _| *holder != gone);
        self.reserved.retain(|_, holder| *holder != Some(gone));
    }

    /// Takes away what an event takes away, before the ledger may free for it.
    fn foresee(&mut self, event: &Event) {
        match event {
            Event::HolderGone { holder } => self.gone(*holder),
            Event::Release { by, id, count } => {
                let held = self.held(*id, *by).saturating_sub(*count);
                self.claims.insert((*id, *by), held);
                self.claims.retain(|_, count| *count > 0);
            }
            Event::Unname { name } => {
                self.names.remove(name.as_str());
            }
            Event::Name { name, .. } if name.replaces.is_some() => {
                self.names.remove(name.name.as_str());
            }
            Event::Redeem { ticket, .. } => {
                if let Some((.., uses)) = self.tickets.get_mut(ticket) {
                    *uses -= 1;
                }
                self.tickets.retain(|_, (.., uses)| *uses > 0);
            }
            _ => {}
        }
    }

    fn enter(&mut self, now: Millis, event: &Event, answer: &Answer) {
        match (event, answer) {
            (Event::Reserve { by, bytes, .. }, Answer::Reserved { id, again: false }) => {
                assert!(
                    !self.freed.contains(id) && self.blocks.insert(*id, *bytes).is_none(),
                    "{id} was there before"
                );
                self.reserved.insert(*id, *by);
            }
            (Event::Abort { id, .. }, Answer::Aborted) => {
                self.reserved.remove(id);
            }
            (Event::Seal { by, keep, .. }, Answer::Sealed { id, again: false, .. }) => {
                self.reserved.remove(id);
                self.kept(now, *id, *by, keep);
            }
            (Event::CopyIn { bytes, by, .. }, Answer::CopiedIn { id }) => {
                assert!(
                    !self.freed.contains(id) && self.blocks.insert(*id, *bytes).is_none(),
                    "{id} was there before"
                );
                *self.claims.entry((*id, *by)).or_default() += 1;
            }
            (Event::Lease { by, id }, Answer::Leased { .. }) => {
                *self.claims.entry((*id, *by)).or_default() += 1;
            }
            (Event::Redeem { by, .. }, Answer::Redeemed { id, again: false }) => {
                *self.claims.entry((*id, *by)).or_default() += 1;
            }
            (Event::Name { id, name }, Answer::Named { .. }) => {
                self.names.insert(name.name.as_str().to_owned(), *id);
            }
            (Event::IssueTicket { id, spec }, Answer::TicketIssued { deadline }) => {
                self.tickets.insert(spec.id, (*id, *deadline, spec.uses.get()));
            }
            (Event::HolderAway { holder, until }, _) => {
                self.away.insert(*holder, *until);
            }
            (Event::HolderBack { holder }, _) => {
                self.away.remove(holder);
            }
            _ => {}
        }
    }

    fn kept(&mut self, now: Millis, id: TensorId, by: Option<Holder>, keep: &Keep) {
        if keep.lease {
            *self.claims.entry((id, by.expect("it was leased to somebody"))).or_default() += 1;
        }
        if let Some(name) = &keep.name {
            self.names.insert(name.name.as_str().to_owned(), id);
        }
        if let Some(ticket) = &keep.ticket {
            self.tickets.insert(ticket.id, (id, now.after(ticket.ttl), ticket.uses.get()));
        }
    }

    fn free(&mut self, Effect::Freed { id, bytes, cause }: Effect, event: &Event) {
        let claims: Vec<_> = self.claims.iter().filter(|((of, _), _)| *of == id).collect();
        assert!(claims.is_empty(), "{id} was freed ({cause:?}, by {event:?}) while {claims:?} lease it");
        assert!(
            !self.names.values().any(|named| *named == id),
            "{id} was freed ({cause:?}) while it has a name"
        );
        assert!(
            !self.tickets.values().any(|(of, ..)| *of == id),
            "{id} was freed ({cause:?}) while it has a ticket"
        );
        assert_eq!(self.blocks.remove(&id), Some(bytes), "{id} was freed ({cause:?}) and was not there");
        assert!(self.freed.insert(id), "{id} was freed twice");
        self.reserved.remove(&id);
    }

    /// The sums of the ledger are those of the book.
    fn check(&self) {
        let totals = self.ledger.totals();
        let bytes: u64 = self.blocks.values().sum();
        assert_eq!(
            totals.bytes_reserved + totals.bytes_sealed,
            bytes,
            "bytes are not those of the live blocks"
        );
        assert_eq!(totals.tensors, self.blocks.len(), "tensors");
        assert_eq!(totals.leases, self.claims.values().sum::<u64>(), "leases: {:?}", self.claims);
        assert_eq!(
            (totals.names, totals.tickets),
            (self.names.len(), self.tickets.len()),
            "names and tickets"
        );
        assert_eq!(totals.reserved, self.reserved.len(), "reservations");
    }

    /// Nothing is there.
    pub(super) fn assert_empty(&self) {
        assert_eq!(self.ledger.totals(), Totals::default(), "something is left: {:?}", self.claims);
        assert!(self.blocks.is_empty(), "blocks are left: {:?}", self.blocks);
    }

    /// Names that are given.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    /// Tickets that are out.
    pub(super) fn tickets(&self) -> Vec<TicketId> {
        self.tickets.keys().copied().collect()
    }
}
