//! Redeem: tickets become leases; those of another peer there first, then here.
//!
//! ```text
//!   ticket of this peer    ──> lease of the session
//!   ticket of another peer ──> lease of this peer at the owner ──> fetched as any tensor ──> lease of the session
//!                                                └─ ends when the fetch is over, however it ends
//! ```

use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, TensorId, TicketId};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;
use tensorlane_proto::wire;

use super::acquire::Terms;
use super::fetch::Fetch;
use super::gather::Gather;
use super::keep::parse_ticket;
use super::retry::redeeming;
use super::{Caller, Exchange, Taken, session_required};
use crate::peer::{PeerKey, PullGuard};

/// Most tickets of other peers in one request. Each keeps a place at its owner, as a pull does, until its tensor has come.
const ELSEWHERE_MAX: usize = 512;

impl Exchange {
    /// Turns tickets into leases of the caller's session; those of other peers bring their tensors here.
    pub fn redeem(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::RedeemRequest,
        done: impl FnOnce(Result<Vec<Result<Taken, Failure>>, Failure>) + Send + 'static,
    ) {
        let Some(by) = caller.holder else { return done(Err(session_required("Redeem"))) };
        let deadline = self.deadline(request.deadline_ms);
        let terms = Arc::new(Terms { by, require: Require::NONE, deadline, host: true, caller });
        let gather = Gather::new(request.items.len(), Box::new(done));
        let mut elsewhere = 0;
        for (index, item) in request.items.into_iter().enumerate() {
            match self.parsed(&item.ticket) {
                Ok((reference, ticket)) if self.store.is_ours(&reference) => {
                    gather.put(index, self.redeem_here(by, &item, &reference, ticket));
                }
                Ok((reference, _)) if elsewhere < ELSEWHERE_MAX => {
                    elsewhere += 1;
                    self.redeem_there(&terms, item, reference, (&gather, index));
                }
                Ok(_) => gather.put(index, Err(too_many())),
                Err(failure) => gather.put(index, Err(failure)),
            }
        }
        gather.arm();
    }

    fn parsed(&self, ticket: &str) -> Result<(Reference, TicketId), Failure> {
        let (reference, ticket) = parse_ticket(ticket)?;
        self.check_exchange(&reference)?;
        Ok((reference, ticket))
    }

    fn redeem_here(
        &self,
        by: Holder,
        item: &v1::RedeemItem,
        reference: &Reference,
        ticket: TicketId,
    ) -> Result<Taken, Failure> {
        let retry = wire::retry(&item.retry_id)?;
        self.check_incarnation(reference)?;
        self.store.redeem((TensorId(reference.id()), ticket), by, retry.map(|id| redeeming(id, &item.ticket)))
    }

    /// Has a ticket redeemed by the peer that made it, and fetches its tensor.
    fn redeem_there(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        item: v1::RedeemItem,
        reference: Reference,
        (gather, index): (&Arc<Gather<Taken>>, usize),
    ) {
        let peers = match wire::retry(&item.retry_id).and_then(|_| self.peers_or_fail()) {
            Ok(peers) => peers,
            Err(failure) => return gather.put(index, Err(failure)),
        };
        let owner = reference.peer().clone();
        let tensor = (reference.id(), reference.incarnation());
        let message = v1::PeerRedeem { retry_id: item.retry_id, ticket: item.ticket };
        let (exchange, asked, gather) = (Arc::clone(self), Arc::clone(terms), Arc::clone(gather));
        let over = move |taken| gather.put(index, taken);
        let call = peers.redeem(&owner, tensor, message, terms.deadline, move |redeemed| match redeemed {
            Ok(guard) => exchange.fetch_redeemed(asked, reference, guard, over),
            Err(failure) => over(Err(failure)),
        });
        terms.caller.cancel.on_cancel(Arc::new(move || call.cancel()));
    }

    /// Fetches a tensor that is leased for this peer until then.
    fn fetch_redeemed(
        self: &Arc<Self>,
        terms: Arc<Terms>,
        reference: Reference,
        guard: PullGuard,
        over: impl FnOnce(Result<Taken, Failure>) + Send + 'static,
    ) {
        let one = Gather::one(move |outcome| {
            drop(guard);
            over(outcome);
        });
        self.fetch_all(vec![(0, Fetch::new(reference, Selection::All, terms))], &one);
        one.arm();
    }

    /// Turns a ticket of ours into a lease of another peer; the number of its tensor.
    pub(super) fn redeem_for(&self, from: &PeerKey, asked: &v1::PeerRedeem) -> Result<u64, Failure> {
        self.may_leave(from, false)?;
        let retry = wire::retry(&asked.retry_id)?.map(|id| redeeming(id, &asked.ticket));
        let (reference, ticket) = parse_ticket(&asked.ticket)?;
        let ticket = (self.own(&reference)?, ticket);
        let redeem = |holder| self.store.redeem_for(ticket, holder, retry);
        self.lease_for(from, redeem).map(|(_, id)| id.0)
    }
}

fn too_many() -> Failure {
    let message = format!(
        "at most {ELSEWHERE_MAX} tickets of other peers are redeemed in one request, and this one was not used; redeem the rest in \
         further ones"
    );
    Failure::new(Reason::TooLarge, message)
}
