//! Fetching: bring another peer's tensor here, once, however many ask.
//!
//! ```text
//!   a copy is here? ------------------------------> lease it
//!   somebody fetches it already? -----------------> wait with them
//!   on this node ---------------------------------> map it, lease (`map`)
//!   another pod of this node has it, or gets it ---> map its copy, lease (`neighbours`)
//!   small (<= 64 KiB) ----> many in one frame ----> copy in, lease
//!   else: room first, then pull into it ----------> checksum, seal, copy in, lease
//! ```
//!
//! What one transfer does is in `transfer`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::layout::{Layout, Shape};
use tensorlane_proto::negotiate::{Refusal, Route, Transport};
use tensorlane_proto::reference::{RefShape, Reference};
use tensorlane_proto::selection::Selection;

use super::acquire::Terms;
use super::gather::{Gather, Place};
use super::keep::owner_lost;
use super::lend::{CopyStage, CopyWaiter};
use super::route::refusals;
use super::small::{Many, Small, add_small};
use super::transfer::{Came, is_of};
use super::{Exchange, Taken};
use crate::peer::{CallHandle, FEW_BYTES, GpuId, give_way};
use crate::store::Moved;

/// Fetch of a tensor of another peer that somebody wants.
#[derive(Clone)]
pub(super) struct Fetch {
    pub(super) reference: Reference,
    pub(super) selection: Selection,
    pub(super) terms: Arc<Terms>,
    /// Set if it has waited for what there is to know of the way to its owner.
    pub(super) met: bool,
    /// The transport that was chosen.
    pub(super) transport: Transport,
    /// Reason for which its owner may not bring it: only what is on this node will do.
    pub(super) only_here: Option<Box<Failure>>,
    /// Reason for which its owner was asked to copy it out of GPU memory, once it was.
    pub(super) staged: Option<&'static str>,
    /// GPUs by whose memory it may come.
    pub(super) gpus: Vec<GpuId>,
    /// Set once its owner was asked for it on these, whoever did.
    pub(super) gpu_asked: bool,
    /// Number of times that it has gone on in another way.
    pub(super) turn: u32,
    /// Better transports than that one, and why they were not.
    refused: Arc<[Refusal]>,
}

impl Fetch {
    pub(super) fn new(reference: Reference, selection: Selection, terms: Arc<Terms>) -> Self {
        let (met, staged, transport) = (false, None, Transport::Tcp);
        let (only_here, refused) = (None, Arc::default());
        let (gpus, gpu_asked) = (Vec::new(), false);
        Self {
            reference,
            selection,
            terms,
            met,
            transport,
            only_here,
            staged,
            gpus,
            gpu_asked,
            turn: 0,
            refused,
        }
    }

    /// Refusals of what did not bring it, now that it is here.
    pub(super) fn refused_for(&self, came: &Came) -> impl Iterator<Item = Refusal> {
        let transport = came.transport;
        let others = self.refused.iter().copied().filter(move |refusal| refusal.transport != transport);
        others.chain(came.instead_of)
    }
}

/// Fetches of whole tensors, and who waits for each. Small ones have a table of their own.
pub(super) type Fetches = HashMap<Reference, Fetching>;

/// A tensor that is being fetched whole. It goes on for as long as anybody waits for it.
#[derive(Default)]
pub(super) struct Fetching {
    pub(super) waiting: Vec<Waiting>,
    /// Stage: what it is to the sidecars of this node.
    pub(super) stage: CopyStage,
    /// Sidecars of this node that wait for it.
    pub(super) borrowers: Vec<CopyWaiter>,
    /// Set if its owner is asked for it in GPU memory, too.
    pub(super) on_gpu: bool,
    /// Turn of its first caller's fetch that is under way, counted from 0.
    pub(super) turn: u32,
    /// The call that brings it.
    pull: Option<CallHandle>,
}

/// The way that the small tensor before went, within one call: a thousand of one owner go it without asking for each whether the
/// owner lives, whether it is met and what the two can speak.
#[derive(Default)]
pub(super) struct RouteCache(Option<(PeerName, Incarnation, Chosen)>);

/// A route, as far as a fetch keeps it.
#[derive(Clone)]
struct Chosen {
    transport: Transport,
    /// Better transports, and why they were not chosen.
    refused: Arc<[Refusal]>,
    /// Bytes up to which a tensor comes in a frame with others.
    small: u64,
}

/// Somebody who waits for a tensor that is being fetched.
pub(super) struct Waiting {
    pub(super) fetch: Fetch,
    pub(super) place: Place<Taken>,
}

// === impl Exchange ===

impl Exchange {
    /// Fetches all of them; each result goes to its place.
    pub(super) fn fetch_all(self: &Arc<Self>, fetches: Vec<(usize, Fetch)>, gather: &Arc<Gather<Taken>>) {
        let mut small: Vec<Many> = Vec::new();
        let mut trodden = RouteCache::default();
        for (index, fetch) in fetches {
            let begun = self.begin(fetch, Place::of(gather, index), &mut trodden);
            if let Some(full) = begun.and_then(|one| add_small(&mut small, one)) {
                // Its owner is at work while the others are begun.
                self.pull_small(full);
                give_way();
            }
        }
        for many in small {
            self.pull_small(many);
        }
    }

    /// Begins one fetch; gives it back if it is to go with other small ones.
    pub(super) fn begin(
        self: &Arc<Self>,
        mut fetch: Fetch,
        place: Place<Taken>,
        trodden: &mut RouteCache,
    ) -> Option<Small> {
        let known = trodden.chosen(&fetch);
        if let Some(Err(failure)) = known.is_none().then(|| self.check_owner(&fetch.reference)) {
            place.put(Err(failure));
            return None;
        }
        fetch.gpus = if fetch.gpu_asked { Vec::new() } else { self.gpus_for(&fetch) };
        if let Some(taken) = self.take_copy(&fetch) {
            match taken {
                Ok(mut taken) => {
                    // A copy is as local as any tensor; another pod's memory is not.
                    if taken.block().is_foreign() {
                        let staged = taken.tensor.staged.then(|| self.not_on_gpu(&fetch));
                        let came = Came { staged, ..Came::mapped(0.0) };
                        taken.moved = Some(Moved::new(moved(fetch.refused_for(&came), 0, &came)));
                    }
                    self.select(&fetch.terms, taken, &fetch.selection, |outcome| place.put(outcome));
                }
                Err(failure) => place.put(Err(failure)),
            }
            return None;
        }
        if known.is_none() && !fetch.met && self.is_meeting(fetch.reference.peer()) {
            self.meet(fetch, place);
            return None;
        }
        let chosen = known.map_or_else(
            || {
                let route = self.route(&fetch.reference, &fetch.selection, fetch.terms.require);
                route.map(|route| Chosen::new(route, self.small_bytes(fetch.reference.peer())))
            },
            |chosen| Ok(chosen.clone()),
        );
        let mut small = INLINE_BYTES_MAX as u64;
        match chosen {
            Ok(chosen) => {
                trodden.remember(&fetch, &chosen);
                small = chosen.small;
                (fetch.transport, fetch.refused, fetch.only_here) = (chosen.transport, chosen.refused, None);
            }
            Err(failure) if self.may_be_lent(&fetch, &failure) => fetch.only_here = Some(Box::new(failure)),
            Err(failure) => {
                place.put(Err(failure));
                return None;
            }
        }
        // What is mapped is mapped as a whole, and the part is a view of it.
        let maps = fetch.transport == Transport::Shm;
        if !maps {
            fetch.gpus.clear();
        }
        if fetch.selection != Selection::All && !maps {
            self.fetch_part(fetch, place);
            return None;
        }
        let bytes = expected_layout(&fetch.reference).map(|layout| layout.bytes());
        if let Some(bytes) = bytes.filter(|bytes| *bytes <= small && !maps) {
            // Here in a moment, in a frame with others: nobody leaves before.
            return self.join_small(Waiting { fetch, place }).map(|first| Small { first, bytes });
        }
        let is_first = self.wait_for(fetch.clone(), place);
        self.leave_when_cancelled(&fetch);
        match is_first {
            true if maps => self.map(&fetch),
            true => self.bring(fetch),
            false => {}
        }
        None
    }

    /// Leases a copy that is here. None also where the reference that it came by states another byte length and else the same: an
    /// owner of an earlier release looks at no length, so that the other one may be the lie, and only the owner can tell.
    fn take_copy(&self, fetch: &Fetch) -> Option<Result<Taken, Failure>> {
        let (by, wanted) = (fetch.terms.by, &fetch.reference);
        let on_gpu = fetch.maps_gpus().then(|| self.store.lease_on_gpu(by, wanted)).flatten();
        let taken = match on_gpu.or_else(|| self.store.lease_copy(by, wanted))? {
            // What was copied out for others can be mapped where it lies.
            Ok(taken) if taken.tensor.staged && !fetch.gpus.is_empty() => {
                self.untake(by, &taken);
                return None;
            }
            Ok(taken) => taken,
            Err(failure) => return Some(Err(failure)),
        };
        let Err(failure) = is_of(wanted, &taken.tensor) else { return Some(Ok(taken)) };
        self.untake(by, &taken);
        let here = &taken.tensor.reference;
        let may_be_true = wanted.dtype() == here.dtype() && wanted.shape() == here.shape();
        (!may_be_true).then_some(Err(failure))
    }

    /// Waits for a tensor that is fetched whole; whether nobody has before.
    fn wait_for(&self, fetch: Fetch, place: Place<Taken>) -> bool {
        let mut fetches = self.fetches.lock();
        let entry = fetches.entry(fetch.reference.clone());
        let is_first = matches!(entry, Entry::Vacant(_));
        let fetching = entry.or_default();
        fetching.on_gpu |= is_first && !fetch.gpus.is_empty();
        fetching.waiting.push(Waiting { fetch, place });
        is_first
    }

    /// Answers a caller that gives up at once; the last one ends the pull.
    fn leave_when_cancelled(self: &Arc<Self>, fetch: &Fetch) {
        let (exchange, reference) = (Arc::downgrade(self), fetch.reference.clone());
        fetch.terms.caller.cancel.on_cancel(Arc::new(move || {
            if let Some(exchange) = exchange.upgrade() {
                exchange.leave(&reference);
            }
        }));
    }

    fn leave(&self, reference: &Reference) {
        let (gone, pull) = {
            let mut fetches = self.fetches.lock();
            let Some(fetching) = fetches.get_mut(reference) else { return };
            let is_gone = |waiting: &mut Waiting| waiting.fetch.terms.caller.cancel.is_cancelled();
            let gone: Vec<_> = fetching.waiting.extract_if(.., is_gone).collect();
            (gone, fetching.unwanted())
        };
        for Waiting { place, .. } in gone {
            place.put(Err(Failure::new(Reason::Cancelled, "the caller gave up")));
        }
        if let Some(pull) = pull {
            pull.cancel();
        }
    }

    /// A pull of all of it is under way. It goes on for whoever has come to wait for it, if the first one gives up; it may
    /// be over already.
    pub(super) fn pulling(&self, fetch: &Fetch, pull: CallHandle) {
        let unwanted = self.fetches.lock().get_mut(&fetch.reference).and_then(|fetching| {
            if fetching.turn != fetch.turn {
                // It failed at once, and goes on in another way.
                return None;
            }
            fetching.pull = Some(pull);
            fetching.unwanted()
        });
        if let Some(pull) = unwanted {
            pull.cancel();
        }
    }

    /// A reference to a life that is over is OWNER_LOST at once, copies or not.
    fn check_owner(&self, reference: &Reference) -> Result<(), Failure> {
        let peers = self.peers_or_fail()?;
        match peers.is_over(reference.peer(), reference.incarnation()) {
            true => Err(owner_lost(reference)),
            false => Ok(()),
        }
    }

    pub(super) fn fetch_whole(self: &Arc<Self>, fetch: Fetch) {
        let Some(layout) = expected_layout(&fetch.reference) else {
            return self.fetch_described(fetch);
        };
        let reference = fetch.reference.clone();
        self.pull_into_room(&fetch, layout.bytes(), move |exchange, outcome| {
            exchange.whole_arrived(&reference, outcome);
        });
    }

    /// A reference with more than 8 dimensions does not say its shape: ask first.
    fn fetch_described(self: &Arc<Self>, fetch: Fetch) {
        let reference = fetch.reference.clone();
        let failed = Arc::clone(self);
        let lost = reference.clone();
        let asked = fetch.clone();
        self.ask_layout(&asked, move |exchange, layout| match layout {
            Ok(layout) => {
                let bytes = layout.packed_bytes();
                exchange.pull_into_room(&fetch, bytes, move |exchange, outcome| {
                    exchange.whole_arrived(&reference, outcome);
                });
            }
            Err(failure) => failed.whole_arrived(&lost, Err(failure)),
        });
    }

    /// Only the selected bytes travel, into a tensor of the caller's own (not a copy that others could use).
    fn fetch_part(self: &Arc<Self>, fetch: Fetch, place: Place<Taken>) {
        match expected_layout(&fetch.reference) {
            Some(layout) => self.fetch_part_of(&fetch, &layout, place),
            None => {
                let asked = fetch.clone();
                self.ask_layout(&asked, move |exchange, layout| match layout {
                    Ok(layout) => exchange.fetch_part_of(&fetch, &layout.packed(), place),
                    Err(failure) => place.put(Err(failure)),
                });
            }
        }
    }

    fn fetch_part_of(self: &Arc<Self>, fetch: &Fetch, layout: &Layout, place: Place<Taken>) {
        let resolved = match fetch.selection.resolve(layout) {
            Ok(resolved) => resolved,
            Err(error) => return place.put(Err(error.into())),
        };
        let wanted = fetch.clone();
        self.pull_into_room(fetch, resolved.bytes(), move |exchange, outcome| {
            if outcome.as_ref().is_err_and(|failure| wanted.is_to_be_staged(failure)) {
                return exchange.stage_far(wanted, place);
            }
            let outcome = outcome.map_err(|failure| wanted.told(&failure));
            place.put(outcome.and_then(|arrived| {
                let (by, bytes) = (wanted.terms.by, arrived.block.len());
                exchange.count_moved(bytes, wanted.refused_for(&arrived.came), &arrived.came);
                let mut came = arrived.came.clone();
                came.staged = came.staged.or(wanted.staged);
                let moved = Moved::new(moved(wanted.refused_for(&came), bytes, &came));
                let taken = exchange.store.pack_in(by, arrived.descriptor, arrived.block)?;
                Ok(Taken { moved: Some(moved), ..taken })
            }));
        });
    }

    /// Bytes up to which tensors of a peer come in a frame with others. Where large amounts stood still few do: the others come on lanes,
    /// which find out what is wrong.
    fn small_bytes(&self, peer: &PeerName) -> u64 {
        let is_wary = self.peers.get().is_some_and(|peers| peers.is_wary(peer));
        if is_wary { FEW_BYTES } else { INLINE_BYTES_MAX as u64 }
    }

    /// A fetch begins anew, alone.
    pub(super) fn begin_again(self: &Arc<Self>, fetch: Fetch, place: Place<Taken>) {
        if let Some(one) = self.begin(fetch, place, &mut RouteCache::default()) {
            self.pull_small(Many::of(one));
        }
    }
}

/// Way in which the bytes of a fetch came.
pub(super) fn moved(refused: impl Iterator<Item = Refusal>, bytes: u64, came: &Came) -> v1::Moved {
    let mut refusals = refusals(refused);
    if let Some(why) = came.staged {
        let transport = v1::Transport::CudaIpc.into();
        refusals.push(v1::Refusal { transport, why: why.to_owned() });
    }
    v1::Moved {
        transport: v1::Transport::from(came.transport).into(),
        bytes,
        seconds: came.seconds,
        staged: came.staged.is_some(),
        refusals,
        paths: came.paths.as_slice().iter().map(Into::into).collect(),
        senders: came.paths.senders().into(),
    }
}

/// The packed layout of a whole tensor as far as its reference says it.
pub(super) fn expected_layout(reference: &Reference) -> Option<Layout> {
    match reference.shape() {
        RefShape::Dims(dims) => Layout::contiguous(reference.dtype(), Shape::new(dims).ok()?).ok(),
        RefShape::Digest { .. } => None,
    }
}

// === impl Chosen ===

impl Chosen {
    fn new(route: Route, small: u64) -> Self {
        Self { transport: route.transport, refused: route.refusals.into(), small }
    }
}

// === impl RouteCache ===

impl RouteCache {
    /// Choice for a tensor, if it is the one for the tensor before.
    fn chosen(&self, fetch: &Fetch) -> Option<&Chosen> {
        let (peer, incarnation, chosen) = self.0.as_ref()?;
        let is_same = *incarnation == fetch.reference.incarnation() && peer == fetch.reference.peer();
        (is_same && is_small(fetch)).then_some(chosen)
    }

    /// Of a large one the way depends on its size, and on what was measured.
    fn remember(&mut self, fetch: &Fetch, chosen: &Chosen) {
        if is_small(fetch) && self.chosen(fetch).is_none() {
            self.0 = Some((fetch.reference.peer().clone(), fetch.reference.incarnation(), chosen.clone()));
        }
    }
}

fn is_small(fetch: &Fetch) -> bool {
    fetch.selection == Selection::All && fetch.reference.bytes() <= INLINE_BYTES_MAX as u64
}

// === impl Fetching ===

impl Fetching {
    /// The pull, if nobody waits for it any more.
    fn unwanted(&self) -> Option<CallHandle> {
        self.pull.clone().filter(|_| self.waiting.is_empty())
    }
}
