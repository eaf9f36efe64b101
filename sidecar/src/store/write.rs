//! Writing: reservations, seals, aborts, and copies that came from other peers.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use smallvec::SmallVec;
use tensorlane_memory::{Block, BlockError};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::encoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{Answer, Event, Holder, Keep, Millis, Origin, Refusal, Retry, TensorId};
use tensorlane_proto::reference::Reference;

use super::gpu::Allocation;
use super::keeper::FOREIGN_LOOK;
use super::metadata::{Described, SharedMetadata};
use super::names::Wake;
use super::refusals::refused;
use super::sessions::OWN;
use super::{Freed, Room, State, Store, Stored, Taken, Tensor};

/// A tensor about to be written.
pub struct NewTensor {
    /// Meaning that its bytes will have.
    pub descriptor: Descriptor,
    /// The client's id of the request, and what it asked for.
    pub retry: Option<Retry>,
}

/// Terms on which a reservation is to be sealed.
pub struct Sealing {
    /// The reservation.
    pub id: TensorId,
    /// Keep: what keeps it.
    pub keep: Keep,
    /// CRC-32C that its writer gave; already verified.
    pub crc32c: Option<u32>,
    /// The client's id of the request, and what it asked for.
    pub retry: Option<Retry>,
}

/// A finished copy of another peer's tensor, or its own bytes mapped here.
pub struct Copied {
    /// The tensor, at its owner.
    pub reference: Reference,
    /// Meaning of its bytes.
    pub descriptor: Descriptor,
    /// Encoded descriptor but for the metadata, as [`encoded::without_metadata`] makes it.
    pub plain: Bytes,
    /// The bytes, sealed by whoever brought them, before anyone could hear of it.
    pub block: Block,
    /// The GPU memory that the bytes are in; then there is nothing in the block.
    pub gpu: Option<Arc<Allocation>>,
    /// Set if the bytes were copied out of GPU memory for it.
    pub staged: bool,
    /// CRC-32C of the bytes, where their writer gave one.
    pub crc32c: Option<u32>,
    /// Holders that wait for it, each as often as it does.
    pub wanted_by: SmallVec<[Holder; 1]>,
}

/// A copy that is known here: the one that was brought, or another that was faster.
pub struct Entered {
    /// The tensor.
    pub tensor: Arc<Tensor>,
    /// Holders that waited and have a lease now. The others ask for one, and hear why not.
    pub leased: SmallVec<[Holder; 1]>,
}

// === impl Store ===

impl Store {
    /// Books a block as a reservation of `by`.
    pub fn reserve(&self, by: Option<Holder>, new: NewTensor, block: Block) -> Result<Room, Failure> {
        let bytes = new.descriptor.layout.bytes();
        let described = self.metadata.keep(new.descriptor)?;
        let mut state = self.state.lock();
        state.check_open(by)?;
        let (answer, freed) = state.apply(self.clock.now(), Event::Reserve { by, bytes, retry: new.retry });
        let room = match answer {
            Ok(Answer::Reserved { id, again: false }) => {
                let tensor = self.tensor(id, described, block.clone(), None);
                state.tensors.insert(id, Arc::new(tensor));
                Ok(Room { id, block })
            }
            // A repeat: the block of the first answer, and the new one goes back by itself.
            Ok(Answer::Reserved { id, again: true }) => state.room(id),
            Ok(other) => Err(unexpected(&other)),
            Err(refusal) => Err(refused(&refusal)),
        };
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        room
    }

    /// The reservation that `by` wants to seal, for looking at its bytes before it does.
    pub fn reserved(&self, by: Option<Holder>, id: TensorId) -> Result<Arc<Tensor>, Failure> {
        let state = self.state.lock();
        let entry = state.ledger.entry(id).ok_or_else(|| refused(&Refusal::NotFound { id }))?;
        if entry.state == tensorlane_proto::ledger::State::Sealed {
            return Err(refused(&Refusal::AlreadySealed { id }));
        }
        if !state.writes(by, id) {
            return Err(refused(&Refusal::NotFound { id }));
        }
        state.tensors.get(&id).cloned().ok_or_else(|| refused(&Refusal::NotFound { id }))
    }

    /// Makes a reservation visible and immutable. Gives its reference and the ticket that was made.
    pub fn seal(&self, by: Option<Holder>, sealing: Sealing) -> Result<Stored, Failure> {
        let mut state = self.state.lock();
        let mut freed = Freed::default();
        let outcome = self.seal_locked(&mut state, by, sealing, &mut freed);
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        let (sealed, woken) = outcome?;
        woken.into_iter().for_each(|wake| wake());
        Ok(sealed)
    }

    pub(super) fn seal_locked(
        &self,
        state: &mut State,
        by: Option<Holder>,
        sealing: Sealing,
        freed: &mut Freed,
    ) -> Result<(Stored, Vec<Wake>), Failure> {
        let Sealing { id, keep, crc32c, retry } = sealing;
        if let Some(retry) = retry
            && let Some(again) =
                state.stored_before(self.clock.now(), retry, by.filter(|_| keep.lease), freed)?
        {
            return Ok((again, Vec::new()));
        }
        state.end_writing(by, id)?;
        let name = keep.name.as_ref().map(|n| n.name.clone());
        let event = Event::Seal { by, id, keep, retry };
        let answer =
            state.apply_into(self.clock.now(), event, freed).map_err(|r| state.refused_to(by, &r))?;
        let Answer::Sealed { id, ticket, .. } = answer else { return Err(unexpected(&answer)) };
        let tensor = state.tensors.get_mut(&id).ok_or_else(|| refused(&Refusal::NotFound { id }))?;
        if crc32c.is_some() {
            let Tensor { descriptor, kept, block, .. } = &**tensor;
            let described = Described { descriptor: descriptor.clone(), kept: kept.clone() };
            let sealed = self.tensor(id, described, block.clone(), crc32c);
            *tensor = Arc::new(sealed);
        }
        let reference = tensor.reference.clone();
        let woken = name.map(|name| state.named(std::iter::once(&name))).unwrap_or_default();
        Ok((Stored { reference, id, ticket }, woken))
    }

    /// Gives a reservation up.
    pub fn abort(&self, by: Option<Holder>, id: TensorId) -> Result<(), Failure> {
        // The writer may still be writing through its map: its block is the session's own, and nobody else gets it.
        self.apply_for(by, Event::Abort { by, id }).map(|_| ())
    }

    /// Enters finished copies of other peers' tensors, or their own bytes mapped here, under one lock; one result for each, in
    /// order.
    pub fn copies_in(&self, copies: Vec<Copied>) -> Vec<Result<Entered, Failure>> {
        let now = self.clock.now();
        let mapped = copies.iter().any(|copied| copied.block.is_guest());
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let enter = |copied| state.copy_in(now, copied, &self.metadata, &mut freed);
        let entered = copies.into_iter().map(enter).collect();
        let wake =
            state.wants_keeper() || (mapped && state.keeper.sleeps_past(Some(now.after(FOREIGN_LOOK))));
        drop(state);
        self.settle(freed, wake);
        entered
    }

    /// Enters bytes that were packed for one caller (a row list, a part of another peer's tensor), leased by it alone.
    pub fn pack_in(&self, by: Holder, descriptor: Descriptor, block: Block) -> Result<Taken, Failure> {
        let room = self.reserve(Some(by), NewTensor { descriptor, retry: None }, block)?;
        let keep = Keep { lease: true, ..Keep::default() };
        self.seal(Some(by), Sealing { id: room.id, keep, crc32c: None, retry: None })?;
        self.state.lock().taken(room.id)
    }

    pub(super) fn tensor(
        &self,
        id: TensorId,
        described: Described,
        block: Block,
        crc32c: Option<u32>,
    ) -> Tensor {
        let Described { descriptor, kept } = described;
        let me = &self.me;
        let reference =
            Reference::new(me.exchange.clone(), me.peer.clone(), me.incarnation, id.0, &descriptor.layout);
        let (plain, sums) = (encoded::without_metadata(&descriptor), OnceLock::new());
        let hashes = OnceLock::new();
        Tensor {
            id,
            reference,
            descriptor,
            plain,
            kept,
            block,
            gpu: None,
            staged: false,
            crc32c,
            sums,
            hashes,
        }
    }
}

// === impl State ===

impl State {
    pub(super) fn copy_in(
        &mut self,
        now: Millis,
        copied: Copied,
        metadata: &SharedMetadata,
        freed: &mut Freed,
    ) -> Result<Entered, Failure> {
        let Copied { reference, descriptor, plain, block, gpu, staged, crc32c, wanted_by: mut leased } =
            copied;
        let (origin, bytes, mapped) = match &gpu {
            // None of the arena's bytes, and its owner's until nobody leases it.
            Some(_) => (on_gpu(&reference), 0, true),
            None => (origin(&reference), descriptor.layout.bytes(), block.is_guest()),
        };
        let Described { descriptor, kept } = metadata.keep(descriptor)?;
        leased.retain(|by| self.check_open(Some(*by)).is_ok());
        // The first one's from the start. Ours, until all who wait have theirs, where nobody does any more, or that one may have
        // no more.
        let first = leased.first().copied();
        let mut enter =
            |by| self.apply_into(now, Event::CopyIn { origin: origin.clone(), bytes, by, mapped }, freed);
        let (entered, mut has) = match first.map(&mut enter) {
            None | Some(Err(Refusal::TooManyLeases { .. } | Refusal::TooManyHolders { .. })) => {
                (enter(OWN), false)
            }
            Some(entered) => (entered, true),
        };
        let (id, tensor) = match entered {
            Ok(Answer::CopiedIn { id }) => {
                let (sums, hashes) = (OnceLock::new(), OnceLock::new());
                let tensor = Tensor {
                    id,
                    reference,
                    descriptor,
                    plain,
                    kept,
                    block,
                    gpu,
                    staged,
                    crc32c,
                    sums,
                    hashes,
                };
                let tensor = Arc::new(tensor);
                self.tensors.insert(id, Arc::clone(&tensor));
                (id, Ok(tensor))
            }
            Err(Refusal::CopyExists { id }) => {
                has = false;
                self.apply_into(now, Event::Lease { by: OWN, id }, freed).map_err(|r| refused(&r))?;
                (id, self.taken(id).map(|taken| taken.tensor))
            }
            Ok(other) => return Err(unexpected(&other)),
            Err(refusal) => return Err(refused(&refusal)),
        };
        let is_ours = !has;
        leased.retain(|by| {
            std::mem::take(&mut has) || self.apply_into(now, Event::Lease { by: *by, id }, freed).is_ok()
        });
        if is_ours {
            // It is there, and held: this is never refused.
            let _ = self.apply_into(now, Event::Release { by: OWN, id, count: 1 }, freed);
        }
        Ok(Entered { tensor: tensor?, leased })
    }

    pub(super) fn room(&self, id: TensorId) -> Result<Room, Failure> {
        let tensor = self.tensors.get(&id).ok_or_else(|| refused(&Refusal::NotFound { id }))?;
        Ok(Room { id, block: tensor.block.clone() })
    }

    /// Before the ledger hears of a seal: nobody in this process writes the block from now on. Refused while a Fill does,
    /// when nothing has changed yet. If the ledger refuses the seal, the reservation stays, and can be sealed or aborted.
    fn end_writing(&self, by: Option<Holder>, id: TensorId) -> Result<(), Failure> {
        let reserved = self.ledger.entry(id).filter(|entry| entry.reserved_by == by);
        if reserved.is_none_or(|entry| entry.state != tensorlane_proto::ledger::State::Reserved) {
            // The ledger will say what is wrong.
            return Ok(());
        }
        match self.tensors.get(&id) {
            Some(tensor) if !tensor.block.is_sealed() => {
                tensor.block.mark_sealed().map_err(|e| unsealable(&e))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn taken(&self, id: TensorId) -> Result<Taken, Failure> {
        let tensor = self.tensors.get(&id).ok_or_else(|| refused(&Refusal::NotFound { id }))?;
        Ok(Taken::whole(Arc::clone(tensor)))
    }
}

/// Origin that a reference names, as the ledger keeps it.
pub(super) fn origin(reference: &Reference) -> Origin {
    let (peer, incarnation) = (reference.peer().into(), reference.incarnation().0);
    Origin { peer, incarnation, id: reference.id(), on_gpu: false }
}

/// Origin of the same tensor in GPU memory.
pub(super) fn on_gpu(reference: &Reference) -> Origin {
    Origin { on_gpu: true, ..origin(reference) }
}

fn unsealable(error: &BlockError) -> Failure {
    let reason = match error {
        BlockError::Landing => Reason::NotSealed,
        _ => Reason::Internal,
    };
    Failure::new(reason, format!("the block of a reservation cannot be sealed: {error}"))
}

pub(super) fn unexpected(answer: &Answer) -> Failure {
    Failure::new(Reason::Internal, format!("the ledger answered {answer:?} to another question"))
}
