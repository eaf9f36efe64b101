//! Requests that come again: the first answer, if this one asks for the same thing.

use std::sync::Arc;

use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::Failure;
use tensorlane_proto::ledger::{
    Event, Holder, Millis, Recalled, Refusal, Retry, RetryId, RetryKind, TensorId, TicketId,
};
use tensorlane_proto::reference::Reference;

use super::refusals::refused;
use super::{Freed, Room, State, Store, Tensor};

/// Answer to a Put or a Seal.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Names the tensor.
    pub reference: Reference,
    /// Id of the tensor at this sidecar.
    pub id: TensorId,
    /// The ticket that was made.
    pub ticket: Option<TicketId>,
}

// === impl Store ===

impl Store {
    /// The room of an earlier request with this retry id: of one for a reservation that still lives.
    ///
    /// # Errors
    /// RETRY_MISMATCH where it was for something else, or another's.
    pub fn recall_room(&self, by: Option<Holder>, retry: Retry) -> Result<Option<Room>, Failure> {
        let state = self.state.lock();
        match state.ledger.recall(&retry.id) {
            None => Ok(None),
            Some(Recalled { kind: RetryKind::Reserve { .. }, asked, id, by: whose })
                if asked == retry.asked && whose == by =>
            {
                state.room(id).map(Some)
            }
            Some(first) => Err(mismatch(&first)),
        }
    }

    /// Answer to an earlier Put or Seal with this retry id, if it was one and its tensor lives. The new
    /// caller gets a lease of its own if it wants one: the first caller's may have ended with its session.
    ///
    /// # Errors
    /// RETRY_MISMATCH where it was for something else.
    pub fn recall_stored(&self, retry: Retry, lease_for: Option<Holder>) -> Result<Option<Stored>, Failure> {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let stored = state.stored_before(self.clock.now(), retry, lease_for, &mut freed);
        drop(state);
        drop(freed);
        stored
    }

    /// The tensor of an earlier Put or Seal with this retry id, for comparing its bytes.
    pub fn stored_first(&self, retry: &RetryId) -> Option<Arc<Tensor>> {
        let state = self.state.lock();
        let first = state.ledger.recall(retry)?;
        let sealed = state.ledger.state(first.id) == Some(tensorlane_proto::ledger::State::Sealed);
        state.tensors.get(&first.id).filter(|_| sealed).cloned()
    }

    /// Meaning of `id` to a Seal of `by` with this retry id: its own reservation (of a put that is made anew), or what
    /// the first Seal with that retry id sealed.
    pub fn to_be_sealed(&self, by: Option<Holder>, id: TensorId, retry: &RetryId) -> Option<Descriptor> {
        let state = self.state.lock();
        let first = state.ledger.recall(retry).is_some_and(|first| first.id == id);
        let tensor = state.tensors.get(&id).filter(|_| first || state.writes(by, id))?;
        Some(tensor.descriptor.clone())
    }
}

// === impl State ===

impl State {
    /// See [`Store::recall_stored`].
    pub(super) fn stored_before(
        &mut self,
        now: Millis,
        retry: Retry,
        lease_for: Option<Holder>,
        freed: &mut Freed,
    ) -> Result<Option<Stored>, Failure> {
        let Some(first) = self.ledger.recall(&retry.id) else { return Ok(None) };
        let ticket = match first.kind {
            RetryKind::Seal { ticket } if first.asked == retry.asked => ticket,
            _ => return Err(mismatch(&first)),
        };
        let id = first.id;
        if let Some(by) = lease_for.filter(|by| first.by != Some(*by)) {
            self.apply_into(now, Event::Lease { by, id }, freed).map_err(|r| refused(&r))?;
        }
        Ok(self.tensors.get(&id).map(|t| Stored { reference: t.reference.clone(), id, ticket }))
    }
}

fn mismatch(first: &Recalled) -> Failure {
    refused(&Refusal::RetryMismatch { first: first.kind.as_str() })
}
