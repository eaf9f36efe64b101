//! Arrival: what was fetched as a whole is entered as a copy, leased to all who wait for it, and handed to them. Who began it is
//! `fetch`'s, and how it came `transfer`'s.
//!
//! ```text
//!   arrived, one or many --> who waits? --> enter and lease, under one lock --> the fetch is over --> each gets theirs
//! ```
//! Who comes to wait in between has no lease yet, and takes one of what is there; so does who has joined the first to wait for a
//! small one.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tensorlane_proto::encoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::negotiate::{Refusal, Transport};
use tensorlane_proto::reference::Reference;

use super::fetch::{Fetch, Waiting, moved};
use super::transfer::{Arrived, Came};
use super::{Exchange, Taken};
use crate::peer::PullGuard;
use crate::store::{Copied, Entered, Moved};

/// A whole tensor that is here, and proven.
pub(super) struct Arrival {
    /// Copy that is to be entered; who waits for it is added here.
    pub(super) copied: Copied,
    /// Way in which it has come: one for all that have come alike.
    pub(super) came: Arc<Came>,
    /// Of one that others may be served from.
    pub(super) pull_guard: Option<PullGuard>,
    /// The first who waits, of a small one. Who waits for a large one stands in the table of fetches, where they can leave.
    pub(super) first: Option<Waiting>,
}

/// Memory of how the tensors before came, as those are told who waited: for most of a thousand it is the same.
#[derive(Default)]
struct Told(Option<Account>);

/// Account that was made of how a tensor came, and from what.
struct Account {
    came: Arc<Came>,
    refused: Vec<Refusal>,
    staged: Option<&'static str>,
    moved: Arc<Moved>,
}

// === impl Exchange ===

impl Exchange {
    /// A whole tensor has come, or will not: everyone who waits gets theirs.
    pub(super) fn whole_arrived(self: &Arc<Self>, reference: &Reference, outcome: Result<Arrived, Failure>) {
        match outcome {
            Ok(arrived) => self.all_arrived(vec![Arrival::of(reference.clone(), arrived)]),
            Err(failure) => self.does_not_arrive(reference, None, &failure),
        }
    }

    /// Tensors that have come together: everyone who waits gets theirs.
    pub(super) fn all_arrived(self: &Arc<Self>, arrivals: Vec<Arrival>) {
        let mut came = Vec::with_capacity(arrivals.len());
        let mut copies = Vec::with_capacity(arrivals.len());
        {
            // None is looked up where all are small.
            let mut fetches = None;
            for Arrival { mut copied, came: how, pull_guard, first } in arrivals {
                // Who has joined the first takes a lease of what is there.
                let waiting = match &first {
                    Some(first) => std::slice::from_ref(first),
                    None => fetches
                        .get_or_insert_with(|| self.fetches.lock())
                        .get(&copied.reference)
                        .map_or(&[][..], |fetching| &fetching.waiting),
                };
                copied.wanted_by.extend(waiting.iter().map(|waiting| waiting.fetch.terms.by));
                came.push((copied.reference.clone(), how, pull_guard, first));
                copies.push(copied);
            }
        }
        let mut told = Told::default();
        for ((reference, how, pull_guard, first), entered) in
            came.into_iter().zip(self.store.copies_in(copies))
        {
            let entered = match entered {
                Ok(entered) => entered,
                Err(failure) => {
                    self.does_not_arrive(&reference, first, &failure);
                    continue;
                }
            };
            self.grown(&reference, true);
            // Proven, and here for whomever the owner sends.
            if let Some(pull_guard) = pull_guard {
                pull_guard.holds();
            }
            // Another pod's memory is not ours to lend; from here on a newcomer finds a copy.
            let is_ours = !entered.tensor.block.is_foreign() && entered.tensor.gpu.is_none();
            let waiting = self.end_any(&reference, first, is_ours);
            self.hand_out(&reference, waiting, entered, &how, &mut told);
        }
    }

    /// A small tensor will not come: neither the first who waits for it nor anyone else gets it.
    pub(super) fn small_fails(self: &Arc<Self>, first: Waiting, failure: &Failure) {
        let reference = first.fetch.reference.clone();
        self.does_not_arrive(&reference, Some(first), failure);
    }

    fn does_not_arrive(self: &Arc<Self>, reference: &Reference, first: Option<Waiting>, failure: &Failure) {
        self.grown(reference, false);
        let waiting = self.end_any(reference, first, false);
        self.whole_failed(reference, waiting, failure);
    }

    /// All who wait for a tensor: with the first, if it is a small one.
    fn end_any(
        &self,
        reference: &Reference,
        first: Option<Waiting>,
        here: bool,
    ) -> impl Iterator<Item = Waiting> {
        let others = match first {
            Some(_) => self.end_small(reference),
            None => self.end_fetch(reference, here),
        };
        first.into_iter().chain(others)
    }

    fn hand_out(
        self: &Arc<Self>,
        reference: &Reference,
        waiting: impl Iterator<Item = Waiting>,
        entered: Entered,
        came: &Arc<Came>,
        told: &mut Told,
    ) {
        let Entered { tensor, mut leased } = entered;
        let bytes = tensor.block.len();
        let mut waiting = waiting.peekable();
        match waiting.peek() {
            // Each session that gets it counts it.
            _ if tensor.gpu.is_some() => {}
            Some(first) => self.count_moved(bytes, first.fetch.refused_for(came), came),
            None => self.count_moved(bytes, std::iter::empty(), came),
        }
        for Waiting { fetch, place } in waiting {
            let must_be_here = fetch.transport == Transport::Shm || fetch.only_here.is_some();
            let comes_on_gpu = came.staged.is_some() && fetch.was_not_asked_on_gpu();
            let misses = must_be_here && !came.transport.stays_on_node();
            let needs_bytes = tensor.gpu.is_some() && !fetch.maps_gpus();
            if misses || comes_on_gpu || needs_bytes || fetch.reference != *reference {
                // It joined another's pull and may require better: now there is a copy here, which is as local as any. Or it
                // says of that tensor what the other one does not.
                self.begin_again(fetch, place);
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
                Ok(whole) => {
                    // Nothing crosses where a map is made.
                    let crossed = if came.transport.stays_on_node() { 0 } else { bytes };
                    let taken = Taken { moved: Some(told.moved(&fetch, crossed, came)), ..whole };
                    self.select(&fetch.terms, taken, &fetch.selection, |outcome| place.put(outcome));
                }
                // It came to wait when all had theirs, and they have let it go.
                Err(failure) if failure.reason == Reason::NotFound => self.begin_again(fetch, place),
                Err(failure) => place.put(Err(failure)),
            }
        }
        // Of those who have left, or begun anew.
        leased.into_iter().for_each(|by| self.untake(by, &Taken::whole(Arc::clone(&tensor))));
    }

    fn whole_failed(
        self: &Arc<Self>,
        reference: &Reference,
        waiting: impl Iterator<Item = Waiting>,
        failure: &Failure,
    ) {
        let now = Instant::now();
        for Waiting { fetch, place } in waiting {
            if failure.reason == Reason::NoGpuProcess && fetch.was_not_asked_on_gpu() {
                self.begin_again(fetch, place);
                continue;
            }
            if fetch.is_to_be_staged(failure) {
                self.stage_far(fetch, place);
                continue;
            }
            // The one who began it was in more of a hurry than this one, or gave up.
            let again = (matches!(failure.reason, Reason::DeadlineExceeded | Reason::Cancelled)
                || fetch.reference != *reference)
                && !fetch.terms.caller.cancel.is_cancelled();
            if again && fetch.terms.deadline > now {
                self.begin_again(fetch, place);
            } else {
                place.put(Err(fetch.told(failure)));
            }
        }
    }
}

// === impl Arrival ===

impl Arrival {
    fn of(reference: Reference, arrived: Arrived) -> Self {
        let Arrived { descriptor, crc32c, block, gpu, came, pull_guard } = arrived;
        let (plain, wanted_by) = (encoded::without_metadata(&descriptor), SmallVec::new());
        let staged = came.staged.is_some();
        let copied = Copied { reference, descriptor, plain, block, gpu, staged, crc32c, wanted_by };
        Self { copied, came: Arc::new(came), pull_guard, first: None }
    }
}

// === impl Told ===

impl Told {
    /// Account of how a tensor came of which `bytes` crossed: made anew only if it is not made already.
    fn moved(&mut self, fetch: &Fetch, bytes: u64, came: &Arc<Came>) -> Arc<Moved> {
        let staged = came.staged.or(fetch.staged);
        if let Some(last) = &self.0
            && Arc::ptr_eq(&last.came, came)
            && last.moved.message.bytes == bytes
            && last.staged == staged
            && last.refused.iter().copied().eq(fetch.refused_for(came))
        {
            return Arc::clone(&last.moved);
        }
        let how = Came { staged, ..(**came).clone() };
        let told = Moved::new(moved(fetch.refused_for(came), bytes, &how));
        let refused = fetch.refused_for(came).collect();
        self.0 = Some(Account { came: Arc::clone(came), refused, staged, moved: Arc::clone(&told) });
        told
    }
}
