//! Mapping a tensor of a peer of this node: no room, no bytes, no copy. The entry in the ledger is one of another peer's
//! memory, and gone with its last lease.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_memory::Purpose;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::reference::Reference;

use super::fetch::Fetch;
use super::gather::Place;
use super::transfer::{Arrived, Came};
use super::{Exchange, Queueing, Taken};
use crate::peer::{BorrowedMemory, MapFailed, MapOrder, Mapped};
use crate::store::PeerMemory;

// === impl Exchange ===

impl Exchange {
    /// Waits until it is known whether the owner is on this node; then begins anew.
    pub(super) fn meet(self: &Arc<Self>, mut fetch: Fetch, place: Place<Taken>) {
        fetch.met = true;
        let after = Arc::clone(self);
        let (peer, deadline) = (fetch.reference.peer().clone(), fetch.terms.deadline);
        let asked = fetch.terms.caller.queueing(Purpose::Pull, deadline);
        let met = move |met: Result<(), Failure>| match met {
            // There is no time left in which anything could begin.
            Err(failure) if Instant::now() >= deadline => place.put(Err(failure)),
            // Whoever cannot be reached is told so by what begins then.
            Ok(()) | Err(_) => after.begin_again(fetch, place),
        };
        // It hears of no cancel.
        let queueing = Queueing { cancel: None, ..asked };
        self.on_waiter(queueing, Box::new(met), move |exchange| {
            exchange.peers_or_fail()?.meet(&peer, deadline)
        });
    }

    /// Has the tensor mapped; everyone who waits for it gets theirs.
    pub(super) fn map(self: &Arc<Self>, fetch: &Fetch) {
        let reference = fetch.reference.clone();
        let peers = match self.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => return self.whole_arrived(&reference, Err(failure)),
        };
        let (bytes, deadline) = (reference.bytes(), fetch.terms.deadline);
        let gpus = fetch.gpus.clone();
        let order = MapOrder { id: reference.id(), owner: None, bytes, gpus, deadline };
        let exchange = Arc::clone(self);
        let (owner, life) = (reference.peer().clone(), reference.incarnation());
        let wanted = fetch.clone();
        let handle = peers.map(&owner, Some(life), order, move |outcome| {
            match outcome.and_then(|mapped| exchange.mapped(&wanted, mapped)) {
                Ok(arrived) => exchange.whole_arrived(&wanted.reference, Ok(arrived)),
                Err(MapFailed::Owner(failure)) => exchange.whole_arrived(&wanted.reference, Err(failure)),
                Err(MapFailed::Way(failure)) => exchange.map_lost(&wanted.reference, &failure),
            }
        });
        self.pulling(fetch, handle);
    }

    /// Checks that a map is what was asked for. Nothing was moved, so that there is nothing to sum.
    fn mapped(&self, fetch: &Fetch, mapped: Mapped) -> Result<Arrived, MapFailed> {
        let (reference, peer) = (&fetch.reference, fetch.reference.peer());
        let Mapped { block, gpu, descriptor, crc32c, seconds, staged } = mapped;
        if !reference.describes(&descriptor.layout) {
            let message = format!("{peer} shows {} for {reference}", descriptor.layout);
            return Err(MapFailed::Owner(Failure::new(Reason::LayoutMismatch, message)));
        }
        let staged = staged.then(|| self.not_on_gpu(fetch));
        let Some(BorrowedMemory { memory, bytes, lease }) = gpu else {
            let came = Came { staged, ..Came::mapped(seconds) };
            return Ok(Arrived { descriptor, crc32c, block, gpu: None, came, pull_guard: None });
        };
        let lent = PeerMemory { peer: peer.clone(), bytes, memory, lease };
        // Another way may do: its owner copies it out.
        let gpu = Some(self.store.borrow_gpu(&descriptor, lent).map_err(MapFailed::Way)?);
        Ok(Arrived { descriptor, crc32c, block, gpu, came: Came::on_gpu(seconds), pull_guard: None })
    }

    /// The way is not there any more: whoever waits takes the next best, if that will do.
    fn map_lost(self: &Arc<Self>, reference: &Reference, failure: &Failure) {
        tracing::warn!(peer = %reference.peer(), %failure, "a tensor was not mapped: the next best way is taken");
        for waiting in self.end_fetch(reference, false) {
            self.begin_again(waiting.fetch, waiting.place);
        }
    }
}
