//! Transfer of one tensor of another peer: room, bytes, proof. Who wanted it, and who else waits, is `fetch`'s.
//!
//! The reader allocates before it asks, and the bytes land where they stay. What the owner says is believed only as far as
//! it fits what was asked for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::{Block, Landing, Owner, Purpose};
use tensorlane_proto::checksum;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::layout::Layout;
use tensorlane_proto::negotiate::{Refusal, Transport, Why};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;
use tensorlane_proto::wire;

use super::Exchange;
use super::acquire::Terms;
use super::fetch::Fetch;
use super::lend::CopyStage;
use super::target::target_of;
use crate::clock;
use crate::metrics::label::ChecksumPlace;
use crate::peer::{Paths, PeerKey, PullGuard, PullOrder, Pulled};
use crate::store::{AllocRequest, Allocation, Tensor};

/// Bytes whose checksum is made on the thread that brought them; more would hold up what else comes on it.
const SUM_AT_ONCE: u64 = 256 << 10;

/// A tensor that has come.
pub(super) struct Arrived {
    pub(super) descriptor: Descriptor,
    pub(super) crc32c: Option<u32>,
    pub(super) block: Block,
    /// The GPU memory that it lies in; then there is nothing in the block.
    pub(super) gpu: Option<Arc<Allocation>>,
    pub(super) came: Came,
    /// Of one that others may be served from, until it is proven.
    pub(super) pull_guard: Option<PullGuard>,
}

/// Action with it, or with why it has not come.
type Then = Box<dyn FnOnce(&Arc<Exchange>, Result<Arrived, Failure>) + Send>;

/// Way in which it has come.
#[derive(Debug, Clone)]
pub(super) struct Came {
    /// Transport that brought it.
    pub(super) transport: Transport,
    /// From the order to the last byte.
    pub(super) seconds: f64,
    /// Transport that was chosen for it and did not bring it.
    pub(super) instead_of: Option<Refusal>,
    /// The ways within the transport.
    pub(super) paths: Paths,
    /// Reason for which its owner copied it out of GPU memory, and it was not mapped there; none where it did not.
    pub(super) staged: Option<&'static str>,
}

// === impl Came ===

impl Came {
    /// Mapped where it is: nothing has moved.
    pub(super) fn mapped(seconds: f64) -> Self {
        Self { transport: Transport::Shm, seconds, instead_of: None, paths: Paths::default(), staged: None }
    }

    /// To be mapped where it is, in GPU memory.
    pub(super) fn on_gpu(seconds: f64) -> Self {
        Self { transport: Transport::CudaIpc, ..Self::mapped(seconds) }
    }

    /// Mapped where another peer than the owner has a copy.
    pub(super) fn lent(seconds: f64, by: &PeerKey) -> Self {
        Self { paths: Paths::lent(by), ..Self::mapped(seconds) }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Asks the owner what a tensor is.
    pub(super) fn ask_layout(
        self: &Arc<Self>,
        fetch: &Fetch,
        then: impl FnOnce(&Arc<Self>, Result<Layout, Failure>) + Send + 'static,
    ) {
        let exchange = Arc::clone(self);
        let left = fetch.terms.deadline.saturating_duration_since(Instant::now());
        // 0 would be the default of this sidecar.
        let deadline_ms = clock::millis(left).max(1);
        let request = v1::DescribeRequest { targets: vec![target_of(&fetch.reference)], deadline_ms };
        self.describe(fetch.terms.caller.clone(), request, move |outcome| {
            let first =
                outcome.and_then(|r| super::lookup::there(r.results.into_iter().next().unwrap_or_default()));
            let layout = first
                .and_then(|t| wire::descriptor(t.description.descriptor.unwrap_or_default()))
                .map(|d| d.layout);
            then(&exchange, layout);
        });
    }

    /// Finds room, pulls into it, verifies, seals; then calls `then`, which must not block.
    pub(super) fn pull_into_room(
        self: &Arc<Self>,
        fetch: &Fetch,
        bytes: u64,
        then: impl FnOnce(&Arc<Self>, Result<Arrived, Failure>) + Send + 'static,
    ) {
        if let Some(block) = self.store.allocate_now(Owner::Sidecar, Purpose::Pull, bytes) {
            return self.pull(fetch, block, then);
        }
        let fetch = fetch.clone();
        let whole = fetch.selection == Selection::All;
        if whole {
            // It may be long until there is room: the pods of this node need not wait for that.
            self.stage(&fetch.reference, |_| ((), CopyStage::Alone));
        }
        let after = Arc::clone(self);
        let then = Arc::new(parking_lot::Mutex::new(Some(then)));
        let late = Arc::clone(&then);
        let failed = move |outcome: Result<(), Failure>| {
            if let (Err(failure), Some(then)) = (outcome, late.lock().take()) {
                then(&after, Err(failure));
            }
        };
        let begun = Instant::now();
        let queueing = fetch.terms.caller.queueing(Purpose::Pull, fetch.terms.deadline);
        self.on_waiter(queueing, Box::new(failed), move |exchange| {
            let Terms { deadline, caller, .. } = &*fetch.terms;
            let alloc = AllocRequest {
                writer: None,
                claimant: &caller.claimant(),
                purpose: Purpose::Pull,
                bytes,
                deadline: *deadline,
                cancel: &caller.cancel,
            };
            let block = exchange.store.allocate(&alloc)?;
            if whole {
                exchange.stage(&fetch.reference, |_| ((), CopyStage::Coming));
            }
            let waited = begun.elapsed();
            if let Some(then) = then.lock().take() {
                // In a box: what is pulled may be pulled anew after one more wait, and so on.
                let then: Then = Box::new(move |exchange, outcome| {
                    then(exchange, outcome.map_err(|failure| after_waiting(failure, waited)));
                });
                exchange.pull(&fetch, block, then);
            }
            Ok(())
        });
    }

    fn pull(
        self: &Arc<Self>,
        fetch: &Fetch,
        block: Block,
        then: impl FnOnce(&Arc<Self>, Result<Arrived, Failure>) + Send + 'static,
    ) {
        let begun = self.peers_or_fail().and_then(|p| Ok((p, landing(&block)?)));
        let (peers, landing) = match begun {
            Ok(begun) => begun,
            Err(failure) => return then(self, Err(failure)),
        };
        let whole = fetch.selection == Selection::All;
        let growth = whole.then(|| self.grow(&fetch.reference, block.len())).flatten();
        let bytes = block.len();
        let order = PullOrder {
            id: fetch.reference.id(),
            selection: fetch.selection.clone(),
            bytes,
            stored: Some(fetch.reference.bytes()),
            landing,
            deadline: fetch.terms.deadline,
            transport: fetch.transport,
            growth,
        };
        let exchange = Arc::clone(self);
        let wanted = fetch.clone();
        let handle =
            peers.pull(fetch.reference.peer(), Some(fetch.reference.incarnation()), order, move |outcome| {
                match outcome {
                    Ok(pulled) => exchange.pulled(&wanted, pulled, block, then),
                    Err(failed) => {
                        drop((failed.landing, block));
                        if failed.failure.reason == Reason::ChecksumMismatch {
                            // Found by a plain lane, piece by piece.
                            exchange.metrics.moves.checksum_mismatches.at((ChecksumPlace::Pull,)).inc();
                        }
                        then(&exchange, Err(failed.failure));
                    }
                }
            });
        if fetch.selection != Selection::All {
            return fetch.terms.caller.cancel.on_cancel(Arc::new(move || handle.cancel()));
        }
        self.pulling(fetch, handle);
    }

    /// The bytes are there. On the thread that read them: a large checksum goes to a worker.
    fn pulled(
        self: &Arc<Self>,
        fetch: &Fetch,
        pulled: Pulled,
        block: Block,
        then: impl FnOnce(&Arc<Self>, Result<Arrived, Failure>) + Send + 'static,
    ) {
        let Pulled { landing, descriptor, crc32c, seconds, transport, paths, pull_guard, staged } = pulled;
        drop(landing);
        let failed = Refusal { transport: fetch.transport, why: Why::Cooldown };
        // Few bytes come on the control connection, whatever brings many.
        let chosen = self.peers.get().is_some_and(|peers| peers.has_choice(block.len()));
        let instead_of = Some(failed).filter(|_| chosen && transport != fetch.transport);
        let staged = staged.then(|| self.not_on_gpu(fetch));
        let came = Came { transport, seconds, instead_of, paths, staged };
        let arrived = Arrived { descriptor, crc32c, block, gpu: None, came, pull_guard };
        if arrived.crc32c.is_none() || arrived.block.len() <= SUM_AT_ONCE {
            let outcome = self.verified(&fetch.reference, &fetch.selection, arrived);
            return then(self, outcome);
        }
        let fetch = fetch.clone();
        let after = Arc::clone(self);
        let done = move |outcome| then(&after, outcome);
        self.on_worker(Box::new(done), move |exchange| {
            exchange.verified(&fetch.reference, &fetch.selection, arrived)
        });
    }

    /// Proves that what came is what was asked for, and makes it immutable.
    fn verified(
        &self,
        reference: &Reference,
        selection: &Selection,
        arrived: Arrived,
    ) -> Result<Arrived, Failure> {
        let Arrived { descriptor, crc32c, block, came, .. } = &arrived;
        self.approve(reference, selection, descriptor, block, *crc32c, &came.paths)?;
        Ok(arrived)
    }

    /// Proves and seals a block that is not told of yet.
    pub(super) fn approve(
        &self,
        reference: &Reference,
        selection: &Selection,
        descriptor: &Descriptor,
        block: &Block,
        crc32c: Option<u32>,
        paths: &Paths,
    ) -> Result<(), Failure> {
        let layout = &descriptor.layout;
        let whole = *selection == Selection::All;
        let fits = layout.bytes() == block.len() && layout.dtype() == reference.dtype();
        if !fits || (whole && !reference.shape().matches(layout.shape())) {
            return Err(reference.mismatch(layout));
        }
        block.mark_sealed().map_err(|e| Failure::new(Reason::Internal, e.to_string()))?;
        if let Some(growth) = self.growing(reference).filter(|_| whole) {
            // Whoever is served from it gets what is proven, or is the owner's own.
            growth.whole(block.clone());
        }
        let Some(expected) = crc32c else { return Ok(()) };
        let bytes = block.chunk(0..block.len()).map_err(|e| Failure::new(Reason::Internal, e.to_string()))?;
        let found = checksum::crc32c(bytes);
        if found == expected {
            return Ok(());
        }
        self.metrics.moves.checksum_mismatches.at((ChecksumPlace::Pull,)).inc();
        Err(Failure::new(
            Reason::ChecksumMismatch,
            format!(
                "{reference} came with the CRC-32C {found:08x} instead of {expected:08x}{}",
                sent_by(paths)
            ),
        ))
    }
}

/// Checks that a tensor that is here is what a reference says of it. Its own reference knows how it lies at its owner,
/// which a copy's layout does not.
pub(super) fn is_of(reference: &Reference, tensor: &Tensor) -> Result<(), Failure> {
    match reference.says_as(&tensor.reference) {
        true => Ok(()),
        false => Err(reference.mismatch(&tensor.descriptor.layout)),
    }
}

/// With the time that the owner never had, where too little was left for it: it is not the one that was slow.
fn after_waiting(mut failure: Failure, waited: Duration) -> Failure {
    if failure.reason == Reason::DeadlineExceeded {
        let waited = clock::told(waited);
        failure
            .message
            .push_str(&format!("; {waited} of the call's time had gone before, for room in the arena here"));
    }
    failure
}

/// Sender of it, if that was not the owner alone.
fn sent_by(paths: &Paths) -> String {
    let senders = paths.senders();
    if senders.are_others() { format!("; its bytes were sent by {}", senders.names()) } else { String::new() }
}

pub(super) fn landing(block: &Block) -> Result<Landing, Failure> {
    block
        .landing()
        .ok_or_else(|| Failure::new(Reason::Internal, "a fresh block of the sidecar cannot be written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_spent_on_waiting_for_room_is_not_put_on_the_owner_alone() {
        let late = Failure::new(Reason::DeadlineExceeded, "a did not answer within 8ms");
        let told = after_waiting(late, Duration::from_secs(2)).message;
        assert_eq!(
            told,
            "a did not answer within 8ms; 2s of the call's time had gone before, for room in the arena here"
        );
        let other = Failure::new(Reason::PeerUnreachable, "a was not reached");
        assert_eq!(after_waiting(other, Duration::from_secs(2)).message, "a was not reached");
    }
}
