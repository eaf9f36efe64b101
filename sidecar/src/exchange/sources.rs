//! Tensors that are passed on: ours, of which readers get bytes from each other, and other peers', of which we are such a
//! reader. Who gets what from whom is decided in `fanout`; bytes and connections are `peer`'s.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::dtype::DType;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::layout::{Layout, Shape};
use tensorlane_proto::ledger::TensorId;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;

use super::Exchange;
use super::fanout::Fanout;
use super::serve;
use crate::peer::{
    Found, Holders, LostHolder, PartialTensor, PeerKey, RelayRequest, RelaySource, RelayToken, Served,
    Sought, Source, TellFound, TellProven,
};
use crate::store::Tensor;

/// Most tensors of other peers that are on their way here or here and known to be passed on. Each costs some 200 bytes.
const KNOWN_MAX: usize = 4_096;
/// Most checksums of our tensors that were made for readers and are kept. Each costs 16 bytes, or a read of a tensor.
const PROOFS_MAX: usize = 4_096;
/// Most questions for hashes of one tensor that wait; the next one is refused, and its reader gets all bytes of the owner.
const HASHING_MAX: usize = 4_096;

/// Settings by which tensors are passed on from reader to reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FanoutSettings {
    /// Readers of a tensor that one peer serves at a time while others can; 0: the owner serves all.
    pub degree: usize,
    /// The bytes from which on a tensor is passed on: below, a connection more costs more than the owner's link.
    pub from: u64,
}

impl Default for FanoutSettings {
    /// Chains, from 32 MiB.
    fn default() -> Self {
        Self { degree: 1, from: 32 << 20 }
    }
}

/// A tensor of another peer, as others may get it here.
enum Passed {
    /// Growing: on its way.
    Growing(Arc<PartialTensor>),
    /// Held as a copy in the ledger, as long as that is there, for whoever shows this.
    Held(RelayToken),
}

/// The checksum of a tensor of ours that was put without one.
enum Proof {
    /// Being made, and who waits for it.
    Making(Vec<TellFound>),
    Made(u32),
}

/// Granules of a tensor of ours whose hashes a reader waits for.
type WaitingForHashes = (Range<u64>, Asked);

/// A question for hashes, which is answered whatever becomes of it.
struct Asked(Option<TellProven>);

/// Knowledge of tensors that are passed on.
pub(super) struct Sources {
    settings: FanoutSettings,
    fanout: Mutex<Fanout>,
    /// Checksums for readers of earlier versions, which ask for no hashes.
    proofs: Mutex<HashMap<u64, Proof>>,
    /// Tensors of ours that a worker is hashing, and who waits for that: a pull that is open asks for one answer at a time.
    hashing: Mutex<HashMap<u64, Vec<WaitingForHashes>>>,
    passed: Mutex<HashMap<Reference, Passed>>,
}

impl Sources {
    pub(super) fn new(settings: FanoutSettings) -> Self {
        Self {
            settings,
            fanout: Mutex::new(Fanout::new(settings.degree)),
            proofs: Mutex::default(),
            hashing: Mutex::default(),
            passed: Mutex::default(),
        }
    }

    fn is_large_enough(&self, bytes: u64) -> bool {
        self.settings.degree > 0 && bytes >= self.settings.from
    }

    /// A reader of a tensor of ours takes its bytes from others, too: who they are.
    pub(super) fn holders(
        &self,
        id: u64,
        bytes: u64,
        reader: &PeerKey,
        lost: &[LostHolder],
    ) -> Option<Holders> {
        if !self.is_large_enough(bytes) {
            return None;
        }
        self.fanout.lock().enter(id, reader, lost, rand::random())
    }

    /// A reader takes a tensor of ours from nobody else any more: what others sent of it was not what we have.
    pub(super) fn blame(&self, id: u64, bytes: u64, lost: &[LostHolder]) {
        if !lost.is_empty() && self.is_large_enough(bytes) {
            self.fanout.lock().blame(id, lost, rand::random());
        }
    }

    /// Records that this reader is done.
    pub(super) fn left(&self, id: u64, reader: &PeerKey, holds: bool) {
        self.fanout.lock().left(id, reader, holds);
    }

    /// Records how things stand with a peer: lost, back, or another one now.
    pub(super) fn away(&self, peer: &PeerKey, away: bool) {
        self.fanout.lock().away(peer, away);
    }

    pub(super) fn gone(&self, peer: &PeerKey) {
        self.fanout.lock().gone(peer);
    }
}

// === impl Exchange ===

impl Exchange {
    /// A tensor of another peer is about to come here as a whole: others may be served from it. None where it is too small,
    /// or too much is known already.
    pub(super) fn grow(&self, reference: &Reference, bytes: u64) -> Option<Arc<PartialTensor>> {
        if !self.sources.is_large_enough(bytes) {
            return None;
        }
        let mut passed = self.sources.passed.lock();
        // What was dropped under pressure or for want of use is not here any more.
        passed.retain(|known, how| matches!(how, Passed::Growing(_)) || self.store.copy_of(known).is_some());
        if passed.len() >= KNOWN_MAX {
            return None;
        }
        let growth = PartialTensor::new();
        passed.insert(reference.clone(), Passed::Growing(Arc::clone(&growth)));
        Some(growth)
    }

    /// Tensor that is on its way here.
    pub(super) fn growing(&self, reference: &Reference) -> Option<Arc<PartialTensor>> {
        match self.sources.passed.lock().get(reference) {
            Some(Passed::Growing(growth)) => Some(Arc::clone(growth)),
            Some(Passed::Held(_)) | None => None,
        }
    }

    /// A tensor that others may be served from is a copy now, or does not come.
    pub(super) fn grown(&self, reference: &Reference, is_copy: bool) {
        let Some(growth) = self.growing(reference) else { return };
        match growth.pass().filter(|_| is_copy) {
            Some(pass) => drop(self.sources.passed.lock().insert(reference.clone(), Passed::Held(pass))),
            None => drop(self.sources.passed.lock().remove(reference)),
        }
        if !is_copy {
            growth.gone();
        }
    }

    /// Gives what is here of another peer's tensor to a reader whom its owner has let in.
    pub(super) fn pass_on(&self, from: &PeerKey, asked: &RelayRequest) -> Result<RelaySource, Failure> {
        self.may_leave(from, false)?;
        let RelayRequest { owner, id, bytes, pass, whole } = asked;
        let not_here = || {
            let message = format!("tensor {id} of {} is not here; ask its owner", owner.name);
            Failure::new(Reason::NotFound, message).with("peer", &owner.name)
        };
        let (reference, growth) = {
            let passed = self.sources.passed.lock();
            let is_it = |reference: &&Reference| {
                reference.id() == *id
                    && *reference.peer() == owner.name
                    && reference.incarnation() == owner.incarnation
            };
            let reference = passed.keys().find(is_it).ok_or_else(not_here)?;
            match &passed[reference] {
                Passed::Growing(_) if *whole => return Err(not_here()),
                Passed::Growing(growth) => (reference.clone(), Some(Arc::clone(growth))),
                Passed::Held(theirs) if theirs == pass => (reference.clone(), None),
                Passed::Held(_) => return Err(not_here()),
            }
        };
        if let Some(growth) = growth {
            let source = Source::growing(growth, *pass);
            return Ok(RelaySource { served: as_bytes(*bytes, source)?, leased: None });
        }
        let copy = |holder| self.store.lease_copy(holder, &reference).ok_or_else(not_here)?;
        let (holder, taken) = self.lease_for(from, copy)?;
        let served = match taken.block().is_foreign() {
            // Another pod's memory is not ours to pass on.
            true => Err(not_here()),
            false => serve::served(&taken.tensor, &Selection::All, *bytes),
        };
        if served.is_err() {
            self.untake(holder, &taken);
        }
        Ok(RelaySource { served: served?, leased: Some(taken.id.0) })
    }

    /// A reader of ours lost its holder.
    pub(super) fn other_holders(&self, from: &PeerKey, id: u64, lost: &[LostHolder]) -> Found {
        let mut fanout = self.sources.fanout.lock();
        let peers = fanout.seek(id, from, lost);
        Found { spares: fanout.spares(id, from, lost, &peers), peers, crc32c: None }
    }

    /// The checksum of all bytes of a tensor of ours, made once however many ask.
    pub(super) fn prove(&self, id: u64, reply: TellFound) {
        let tensor = match self.store.sealed(None, TensorId(id)) {
            Ok(tensor) => tensor,
            Err(failure) => return reply(Err(failure)),
        };
        {
            let mut proofs = self.sources.proofs.lock();
            if proofs.len() >= PROOFS_MAX {
                proofs.retain(|_, proof| matches!(proof, Proof::Making(_)));
            }
            match proofs.get_mut(&id) {
                Some(Proof::Made(crc32c)) => {
                    let crc32c = *crc32c;
                    drop(proofs);
                    return reply(Ok(Found { crc32c: Some(crc32c), ..Found::default() }));
                }
                Some(Proof::Making(waiting)) => return waiting.push(reply),
                None => drop(proofs.insert(id, Proof::Making(vec![reply]))),
            }
        }
        let Some(exchange) = self.own.upgrade() else { return };
        let told = Arc::clone(&exchange);
        let done = move |outcome: Result<u32, Failure>| told.proven(id, &outcome);
        exchange.on_worker(Box::new(done), move |_| serve::sum(&tensor));
    }

    fn proven(&self, id: u64, outcome: &Result<u32, Failure>) {
        let before = {
            let mut proofs = self.sources.proofs.lock();
            match outcome {
                Ok(crc32c) => proofs.insert(id, Proof::Made(*crc32c)),
                Err(_) => proofs.remove(&id),
            }
        };
        let Some(Proof::Making(waiting)) = before else { return };
        for reply in waiting {
            reply(outcome.clone().map(|crc32c| Found { crc32c: Some(crc32c), ..Found::default() }));
        }
    }

    /// Says what granules of a tensor of ours hash to: each is hashed once, however many ask, and not on the thread of the asker.
    pub(super) fn say_hashes(&self, id: u64, granules: Range<u64>, reply: TellProven) {
        let tensor = match self.store.sealed(None, TensorId(id)) {
            Ok(tensor) => tensor,
            Err(failure) => return reply(Err(failure)),
        };
        let hashes = tensor.hashes(tensor.descriptor.layout.packed_bytes());
        if granules.end > hashes.granules() {
            let message = format!("the tensor has {} granules", hashes.granules());
            return reply(Err(Failure::new(Reason::InvalidArgument, message)));
        }
        if let Some(known) = hashes.of(&granules) {
            return reply(Ok(known));
        }
        let asked = Asked(Some(reply));
        let (is_first, refused) = match self.sources.hashing.lock().entry(id) {
            Entry::Occupied(waiting) if waiting.get().len() == HASHING_MAX => (false, Some(asked)),
            Entry::Occupied(mut waiting) => {
                waiting.get_mut().push((granules, asked));
                (false, None)
            }
            Entry::Vacant(first) => {
                first.insert(vec![(granules, asked)]);
                (true, None)
            }
        };
        if let Some(refused) = refused {
            let message = format!("{HASHING_MAX} readers wait for hashes of the tensor");
            return refused.tell(Err(Failure::new(Reason::LimitExceeded, message)));
        }
        if let Some(exchange) = self.own.upgrade().filter(|_| is_first) {
            exchange.hash(id, tensor);
        }
    }

    /// Has a worker hash what is waited for of a tensor. What is asked for meanwhile is the next job, behind those of others.
    fn hash(self: &Arc<Self>, id: u64, tensor: Arc<Tensor>) {
        let (told, hashed) = (Arc::clone(self), Arc::clone(&tensor));
        let done = move |outcome: Result<(), Failure>| {
            let left = {
                let mut hashing = told.sources.hashing.lock();
                let goes_on = outcome.is_ok() && hashing.get(&id).is_some_and(|waiting| !waiting.is_empty());
                if goes_on { None } else { Some(hashing.remove(&id).unwrap_or_default()) }
            };
            let Some(left) = left else { return told.hash(id, hashed) };
            if let Err(failure) = outcome {
                left.into_iter().for_each(|(_, asked)| asked.tell(Err(failure.clone())));
            }
        };
        self.on_worker(Box::new(done), move |exchange| {
            let waiting = exchange.sources.hashing.lock().get_mut(&id).map(std::mem::take);
            for (granules, asked) in waiting.into_iter().flatten() {
                asked.tell(serve::hash(&tensor, granules));
            }
            Ok(())
        });
    }

    /// Answers what a reader of ours asks in the middle of a pull.
    pub(super) fn sought(&self, from: &PeerKey, id: u64, sought: &Sought, reply: TellFound) {
        match sought {
            Sought::Holders(lost) => reply(Ok(self.other_holders(from, id, lost))),
            Sought::Proof => self.prove(id, reply),
        }
    }
}

// === impl Asked ===

impl Asked {
    fn tell(mut self, proven: Result<Vec<u8>, Failure>) {
        if let Some(reply) = self.0.take() {
            reply(proven);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(reply) = self.0.take() {
            reply(Err(Failure::new(Reason::Internal, "the hashes were not made: a thread has ended")));
        }
    }
}

/// Bytes of which only their owner says what they mean.
fn as_bytes(bytes: u64, source: Source) -> Result<Served, Failure> {
    let shape = Shape::new(&[bytes])?;
    let descriptor = Descriptor::host(Layout::contiguous(DType::U8, shape)?);
    Ok(Served { descriptor, crc32c: None, source, holders: None, staged: None })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use tensorlane_memory::Purpose;

    use super::*;
    use crate::cancel::Cancel;
    use crate::exchange::alone::{MINUTE, alone};
    use crate::hashes::{self, GRANULE};
    use crate::store::{AllocRequest, Claimant, OWN};

    #[test]
    fn hashes_of_a_tensor_are_said_to_all_who_ask_and_none_of_what_is_not_there() {
        let (exchange, ..) = alone();
        let bytes = 2 * GRANULE + 5;
        let (deadline, cancel) = (Instant::now() + MINUTE, Cancel::default());
        let (claimant, purpose) = (&Claimant::Holder(None), Purpose::Pull);
        let alloc = AllocRequest { writer: None, claimant, purpose, bytes, deadline, cancel: &cancel };
        let block = exchange.store.allocate(&alloc).unwrap();
        let mut landing = block.landing().unwrap();
        landing
            .chunk_mut(0..bytes)
            .unwrap()
            .iter_mut()
            .zip(0u64..)
            .for_each(|(byte, at)| *byte = (at * 7 + at / 251) as u8);
        drop(landing);
        block.mark_sealed().unwrap();
        let own = hashes::of_granules(block.chunk(0..bytes).unwrap());
        let layout = Layout::contiguous(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap();
        let taken = exchange.store.pack_in(OWN, Descriptor::host(layout), block).unwrap();
        let ask = |id: u64, granules: Range<u64>| {
            let (tell, told) = channel();
            exchange.say_hashes(id, granules, Box::new(move |said| tell.send(said).unwrap()));
            told
        };
        let asked: Vec<_> =
            [0..3, 1..2, 2..3, 0..3].map(|granules| (ask(taken.id.0, granules.clone()), granules)).into();
        for (told, granules) in asked {
            let said = told.recv_timeout(MINUTE).expect("everyone is answered").unwrap();
            assert_eq!(said, own[granules.start as usize..granules.end as usize].concat(), "{granules:?}");
        }
        assert!((0..3).all(|granule| taken.tensor.hashes(bytes).knows(granule)), "they are kept");
        assert_eq!(ask(taken.id.0, 1..3).try_recv().expect("at once").unwrap(), own[1..].concat());
        for (id, granules, reason) in
            [(taken.id.0, 2..4, Reason::InvalidArgument), (99, 0..1, Reason::NotFound)]
        {
            let said = ask(id, granules).recv_timeout(MINUTE).expect("everyone is answered");
            assert_eq!(said.unwrap_err().reason, reason);
        }
        let is_over = || exchange.sources.hashing.lock().is_empty();
        while !is_over() {
            assert!(Instant::now() < deadline, "nothing is waited for any more");
            std::thread::yield_now();
        }
    }
}
