//! Following names: a tensor is wanted by a name of another peer, which may be replaced until the tensor is leased there.
//!
//! ```text
//!   look the name up --> fetch what it stands for --> got it
//!          ^                        |
//!          '---- it was replaced ---'   as long as it stands for another tensor than the one that is gone
//! ```
//! Every round follows one replacement, so that a name that stands still is asked for twice at most. The deadline ends all.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;

use super::acquire::Terms;
use super::fetch::Fetch;
use super::gather::Gather;
use super::lookup::{Found, Look, Wanted};
use super::{Exchange, Taken};

/// A tensor that is wanted by a name which is not here.
pub(super) struct Named {
    /// Place of the item among those of the call.
    pub(super) index: usize,
    pub(super) peer: Option<PeerName>,
    pub(super) name: TensorName,
    pub(super) selection: Selection,
    /// Reference that the name stood for, and what was said when that was asked for.
    pub(super) gone: Option<(Reference, Failure)>,
}

// === impl Exchange ===

impl Exchange {
    /// Looks names up, waits for those that do not exist yet, and goes on with what each stands for.
    pub(super) fn take_named(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        named: Vec<Named>,
        until: Instant,
        gather: &Arc<Gather<Taken>>,
    ) {
        let (terms, own) = (Arc::clone(terms), Arc::clone(gather));
        let wanted = Wanted {
            names: named.iter().map(|one| (one.peer.clone(), one.name.clone())).collect(),
            wait: until.saturating_duration_since(Instant::now()),
            deadline: terms.deadline,
        };
        let leases = Arc::clone(&terms);
        let look: Look<Taken> = Box::new(move |exchange, names| {
            let lease =
                |name: &&TensorName| exchange.store.lease_named(leases.by, leases.caller.holder, name);
            names.iter().map(lease).collect()
        });
        let caller = terms.caller.clone();
        let then = move |exchange: &Arc<Self>, found: Vec<Result<Found<Taken>, Failure>>| {
            let mut there = Vec::new();
            for (one, found) in named.into_iter().zip(found) {
                match found {
                    Ok(Found::Here(taken)) => {
                        exchange.hand_over(&terms, Ok(taken), &one.selection, &own, one.index);
                    }
                    Ok(Found::There(found)) => match one.still_gone(&found.reference) {
                        Some(failure) => own.put(one.index, Err(failure)),
                        None => there.push((one, found.reference)),
                    },
                    // It was not answered any more.
                    Err(_) if one.gone.is_some() && Instant::now() >= terms.deadline => {
                        own.put(one.index, Err(too_fast(&one)));
                    }
                    Err(failure) => own.put(one.index, Err(failure)),
                }
            }
            exchange.fetch_named(&terms, there, until, &own);
        };
        self.find(caller, wanted, look, Box::new(then));
    }

    /// Fetches what names stand for; where that is gone meanwhile, the name is looked up anew.
    fn fetch_named(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        there: Vec<(Named, Reference)>,
        until: Instant,
        gather: &Arc<Gather<Taken>>,
    ) {
        if there.is_empty() {
            return;
        }
        let fetch = |(at, (one, reference)): (usize, &(Named, Reference))| {
            (at, Fetch::new(reference.clone(), one.selection.clone(), Arc::clone(terms)))
        };
        let fetches = there.iter().enumerate().map(fetch).collect();
        let (exchange, again, own) = (Arc::clone(self), Arc::clone(terms), Arc::clone(gather));
        let round = Gather::new(
            there.len(),
            Box::new(move |outcome: Result<Vec<_>, Failure>| {
                let none = |failure: Failure| there.iter().map(|_| Err(failure.clone())).collect();
                let (results, mut replaced) = (outcome.unwrap_or_else(none), Vec::new());
                for ((one, reference), result) in there.into_iter().zip(results) {
                    match result {
                        Err(failure) if failure.reason == Reason::NotFound => {
                            replaced.push(Named { gone: Some((reference, failure)), ..one });
                        }
                        result => own.put(one.index, result),
                    }
                }
                exchange.follow(&again, replaced, until, &own);
            }),
        );
        self.fetch_all(fetches, &round);
        round.arm();
    }

    /// Looks up what the names stand for now, if there is time.
    fn follow(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        replaced: Vec<Named>,
        until: Instant,
        gather: &Arc<Gather<Taken>>,
    ) {
        if Instant::now() >= terms.deadline {
            return replaced.iter().for_each(|one| gather.put(one.index, Err(too_fast(one))));
        }
        if !replaced.is_empty() {
            self.take_named(terms, replaced, until, gather);
        }
    }
}

// === impl Named ===

impl Named {
    /// Failure for which it is not to be had, if the name stands for what is gone.
    fn still_gone(&self, reference: &Reference) -> Option<Failure> {
        let (gone, failure) = self.gone.as_ref()?;
        (gone == reference).then(|| failure.clone())
    }
}

/// A writer was faster than this peer for as long as the call had.
fn too_fast(one: &Named) -> Failure {
    let name = &one.name;
    let message = format!(
        "{name} was replaced each time before its tensor could be leased; a writer that keeps what it has replaced for a \
         moment lets readers of other peers follow"
    );
    Failure::new(Reason::DeadlineExceeded, message).with("name", name)
}
