//! Reading: leases, their end, and what is known of tensors.

use std::sync::Arc;

use tensorlane_memory::Block;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::ledger::{Event, Holder, Millis, Origin, Refusal, SessionId, TensorId, TensorName};
use tensorlane_proto::reference::Reference;

use super::gpu::no_gpu_process;
use super::refusals::refused;
use super::write::origin;
use super::{Freed, OWN, State, Store, Taken, Tensor};

// === impl Store ===

impl Store {
    /// Leases many tensors of this peer under one lock, for `asker`; one result for each, in order.
    pub fn lease_many(
        &self,
        by: Holder,
        asker: Option<Holder>,
        ids: impl Iterator<Item = TensorId>,
    ) -> Vec<Result<Taken, Failure>> {
        let now = self.clock.now();
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        if let Err(ended) = state.check_open(Some(by)) {
            return ids.map(|_| Err(ended.clone())).collect();
        }
        let taken = ids.map(|id| state.lease(now, by, asker, id, &mut freed)).collect();
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        taken
    }

    /// Leases one tensor of this peer, for `asker`.
    pub fn lease(&self, by: Holder, asker: Option<Holder>, id: TensorId) -> Result<Taken, Failure> {
        self.lease_many(by, asker, std::iter::once(id))
            .pop()
            .unwrap_or_else(|| Err(refused(&Refusal::NotFound { id })))
    }

    /// Leases the tensor that a name of this peer stands for, for `asker`; none where there is no such name.
    pub fn lease_named(
        &self,
        by: Holder,
        asker: Option<Holder>,
        name: &TensorName,
    ) -> Option<Result<Taken, Failure>> {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let id = state.ledger.find(name.as_str())?;
        let leased = state
            .check_open(Some(by))
            .and_then(|()| state.lease(self.clock.now(), by, asker, id, &mut freed));
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        Some(leased)
    }

    /// Leases the copy of another peer's tensor, if there is one.
    pub fn lease_copy(&self, by: Holder, reference: &Reference) -> Option<Result<Taken, Failure>> {
        self.lease_copied(by, &origin(reference))
    }

    /// Leases a copy by whose tensor it is, if there is no more of its reference.
    pub fn lease_copy_of(
        &self,
        by: Holder,
        owner: &PeerName,
        incarnation: Incarnation,
        id: u64,
    ) -> Option<Result<Taken, Failure>> {
        let (peer, incarnation) = (owner.as_str().into(), incarnation.0);
        self.lease_copied(by, &Origin { peer, incarnation, id, on_gpu: false })
    }

    pub(super) fn lease_copied(&self, by: Holder, origin: &Origin) -> Option<Result<Taken, Failure>> {
        let id = self.state.lock().ledger.copy_of(origin)?;
        match self.lease(by, None, id) {
            // It went between the two looks.
            Err(failure) if failure.reason == Reason::NotFound => None,
            outcome => Some(outcome),
        }
    }

    /// Ends leases under one lock. `still_mapped` are leases of tensors that some process may go on mapping: their
    /// blocks wait for the session's witness.
    pub fn release(&self, by: Holder, ids: &[u64], still_mapped: &[u64]) -> Vec<Result<(), Failure>> {
        let now = self.clock.now();
        let mut freed = Freed::default();
        let mut pinned: Vec<Block> = Vec::new();
        let mut state = self.state.lock();
        for id in still_mapped {
            pinned.extend(state.tensors.get(&TensorId(*id)).map(|t| t.block.clone()));
        }
        let outcomes = ids
            .iter()
            .chain(still_mapped)
            .map(|id| {
                let event = Event::Release { by, id: TensorId(*id), count: 1 };
                let outcome = state.apply_into(now, event, &mut freed);
                outcome.map(|_| ()).map_err(|r| state.refused_to(Some(by), &r))
            })
            .collect();
        let wake = state.wants_keeper();
        drop(state);
        if let Holder::Session(session) = by {
            self.pin(session, pinned);
        }
        self.settle(freed, wake);
        outcomes
    }

    /// Keeps blocks from reuse until nobody who got them through `session` can map them any more.
    pub fn pin(&self, session: SessionId, mut blocks: Vec<Block>) {
        blocks.sort_by_key(Block::segment_id);
        for same in blocks.chunk_by(|a, b| a.segment_id() == b.segment_id()) {
            if let Some(first) = same.first() {
                self.arena.pin_until_witness_ends(first.segment_id(), session.0, same.to_vec());
            }
        }
    }

    /// A sealed tensor of this peer, for `asker` to read its bytes; no lease.
    pub fn sealed(&self, asker: Option<Holder>, id: TensorId) -> Result<Arc<Tensor>, Failure> {
        let state = self.state.lock();
        state.sealed(asker, id).and_then(|tensor| state.in_host(tensor))
    }

    /// Sealed tensors of this peer under one lock, for another peer to read their bytes; one result for each, in order.
    pub fn all_sealed(&self, ids: &[u64]) -> Vec<Result<Arc<Tensor>, Failure>> {
        let state = self.state.lock();
        let sealed = |id: &u64| state.sealed(None, TensorId(*id)).and_then(|tensor| state.in_host(tensor));
        ids.iter().map(sealed).collect()
    }

    /// The copy of another peer's tensor.
    pub fn copy_of(&self, reference: &Reference) -> Option<TensorId> {
        self.state.lock().ledger.copy_of(&origin(reference))
    }

    /// Returns whether a reference is of this peer, and in which life.
    pub fn is_ours(&self, reference: &Reference) -> bool {
        *reference.peer() == self.me.peer
    }

    /// Returns the incarnation of this life.
    pub fn incarnation(&self) -> Incarnation {
        self.me.incarnation
    }

    /// Drops copies of other peers' tensors that nobody leases, the longest idle first, until `bytes` are given back.
    pub(super) fn evict(&self, bytes: u64) -> bool {
        let before = self.totals().0.copies;
        // Evicting is never refused; what it gives back is seen by looking at the arena again.
        let _ = self.apply(Event::Evict { bytes });
        self.totals().0.copies < before
    }
}

// === impl State ===

impl State {
    /// Leases a tensor to `by`, whose session is open, for `asker`.
    fn lease(
        &mut self,
        now: Millis,
        by: Holder,
        asker: Option<Holder>,
        id: TensorId,
        freed: &mut Freed,
    ) -> Result<Taken, Failure> {
        if let Err(failure) = self.check_kept_by_others(id)
            && by != OWN
            && !self.ledger.holdings(by).any(|held| held == id)
        {
            return Err(failure);
        }
        match self.apply_into(now, Event::Lease { by, id }, freed) {
            Ok(_) => self.taken(id),
            Err(refusal) => Err(self.refused_to(asker, &refusal)),
        }
    }

    /// Checks that a tensor may be kept by others than whoever leases it now. Rows of a mutable set that are mapped may not: commits to them
    /// would wait for somebody whom nobody knows.
    pub(super) fn check_kept_by_others(&self, id: TensorId) -> Result<(), Failure> {
        match self.tensors.get(&id) {
            Some(tensor) if tensor.block.is_piece() => Err(Failure::new(
                Reason::Unsupported,
                "the tensor is mapped rows of a set, which go with their map; put a copy of them",
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn sealed(&self, asker: Option<Holder>, id: TensorId) -> Result<Arc<Tensor>, Failure> {
        match self.ledger.state(id) {
            None => Err(refused(&Refusal::NotFound { id })),
            Some(tensorlane_proto::ledger::State::Reserved) => {
                Err(self.refused_to(asker, &Refusal::NotSealed { id }))
            }
            Some(tensorlane_proto::ledger::State::Sealed) => {
                self.tensors.get(&id).cloned().ok_or_else(|| refused(&Refusal::NotFound { id }))
            }
        }
    }

    /// The tensor, or its copy in host memory: one whose bytes can be read here.
    fn in_host(&self, tensor: Arc<Tensor>) -> Result<Arc<Tensor>, Failure> {
        if tensor.gpu.is_none() {
            return Ok(tensor);
        }
        let copy = self.ledger.copy_of(&origin(&tensor.reference)).and_then(|id| self.tensors.get(&id));
        copy.cloned().ok_or_else(|| no_gpu_process(tensor.id))
    }
}
