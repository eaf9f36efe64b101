//! Arrival: what was fetched as a whole is entered as a copy, leased to all who wait for it, and handed to them. Who began it is
//! `fetch`'s, and how it came `transfer`'s.
//!
//! ```text
//!   arrived, one or many --> who waits? --> enter and lease, under one lock --> the fetch is over --> each gets theirs
//! ```
//! Who comes to wait in between has no lease yet, and takes one of what is there.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::negotiate::Transport;
use tensorlane_proto::reference::Reference;

use super::fetch::{Fetch, Waiting, moved};
use super::transfer::{Arrived, Came};
use super::{Exchange, Taken};
use crate::store::{Copied, Entered};

// === impl Exchange ===

impl Exchange {
    /// A whole tensor has come, or will not: everyone who waits gets theirs.
    pub(super) fn whole_arrived(self: &Arc<Self>, reference: &Reference, outcome: Result<Arrived, Failure>) {
        match outcome {
            Ok(arrived) => self.all_arrived(vec![(reference.clone(), arrived)]),
            Err(failure) => self.does_not_arrive(reference, &failure),
        }
    }

    /// The same for tensors that have come together.
    pub(super) fn all_arrived(self: &Arc<Self>, arrived: Vec<(Reference, Arrived)>) {
        let mut came = Vec::with_capacity(arrived.len());
        let mut copies = Vec::with_capacity(arrived.len());
        {
            let fetches = self.fetches.lock();
            for (reference, one) in arrived {
                let waiting = fetches.get(&reference).map_or(&[][..], |fetching| &fetching.waiting);
                let wanted_by = waiting.iter().map(|waiting| waiting.fetch.terms.by).collect();
                let Arrived { descriptor, crc32c, block, came: how, receipt } = one;
                came.push((reference.clone(), how, receipt));
                copies.push(Copied { reference, descriptor, block, crc32c, wanted_by });
            }
        }
        for ((reference, how, receipt), entered) in came.into_iter().zip(self.store.copies_in(copies)) {
            let entered = match entered {
                Ok(entered) => entered,
                Err(failure) => {
                    self.does_not_arrive(&reference, &failure);
                    continue;
                }
            };
            self.grown(&reference, true);
            // Proven, and here for whomever the owner sends.
            if let Some(receipt) = receipt {
                receipt.holds();
            }
            self.hand_out(&reference, entered, &how);
        }
    }

    fn does_not_arrive(self: &Arc<Self>, reference: &Reference, failure: &Failure) {
        self.grown(reference, false);
        let waiting = self.end_fetch(reference, false);
        self.whole_failed(waiting, failure);
    }

    /// From here on a newcomer finds the copy.
    fn hand_out(self: &Arc<Self>, reference: &Reference, entered: Entered, came: &Came) {
        let Entered { tensor, mut leased } = entered;
        // Another pod's memory is not ours to lend.
        let waiting = self.end_fetch(reference, !tensor.block.is_foreign());
        let refused = waiting.first().map(|w| w.fetch.refused_for(came)).unwrap_or_default();
        let bytes = tensor.block.len();
        self.count_moved(bytes, &refused, came);
        for Waiting { fetch, done } in waiting {
            let must_be_here = fetch.transport == Transport::Shm || fetch.only_here.is_some();
            if must_be_here && came.transport != Transport::Shm {
                // It joined another's pull and may require better: now there is a copy here, which is as local as any.
                self.begin_again(fetch, done);
                continue;
            }
            let mine = match leased.iter().position(|by| *by == fetch.terms.by) {
                Some(at) => {
                    leased.swap_remove(at);
                    Ok(Taken::whole(Arc::clone(&tensor)))
                }
                None => self.store.lease(fetch.terms.by, None, tensor.id),
            };
            match mine {
                Ok(whole) => self.give(&fetch, whole, came, done),
                // It came to wait when all had theirs, and they have let it go.
                Err(failure) if failure.reason == Reason::NotFound => self.begin_again(fetch, done),
                Err(failure) => done(Err(failure)),
            }
        }
        // Of those who have left, or begun anew.
        leased.into_iter().for_each(|by| self.untake(by, &Taken::whole(Arc::clone(&tensor))));
    }

    fn give(
        self: &Arc<Self>,
        fetch: &Fetch,
        whole: Taken,
        came: &Came,
        done: Box<dyn FnOnce(Result<Taken, Failure>) + Send>,
    ) {
        // Nothing crosses where a map is made.
        let crossed = if came.transport == Transport::Shm { 0 } else { whole.block().len() };
        let moved = moved(&fetch.refused_for(came), crossed, came);
        self.select(&fetch.terms, Taken { moved: Some(moved), ..whole }, &fetch.selection, done);
    }

    fn whole_failed(self: &Arc<Self>, waiting: Vec<Waiting>, failure: &Failure) {
        let now = Instant::now();
        for Waiting { fetch, done } in waiting {
            // The one who began it was in more of a hurry than this one, or gave up.
            let again = matches!(failure.reason, Reason::DeadlineExceeded | Reason::Cancelled)
                && !fetch.terms.caller.cancel.is_cancelled();
            if again && fetch.terms.deadline > now {
                self.begin_again(fetch, done);
            } else {
                done(Err(failure.clone()));
            }
        }
    }
}
