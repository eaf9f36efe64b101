//! Serving peers: what this sidecar does for others. Called on threads that read from peers, so nothing here waits.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use tensorlane_memory::BlockError;
use tensorlane_proto::checksum;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::encoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, PeerSlot, TensorId, TensorName};
use tensorlane_proto::selection::{Runs, Selection};

use super::describe::inquired_result;
use super::target::Meant;
use super::{Exchange, Taken};
use crate::cancel::Cancel;
use crate::hashes::GRANULE;
use crate::peer::{
    Asked, AskedLoan, GpuId, PeerKey, PipeAsker, PipeDone, RelayRequest, RelaySource, Serve, Served,
    ServedOnGpu, SetDone, SmallAnswer, SmallBytes, SmallTensor, Sought, Source, TellAttached, TellConnected,
    TellFound, TellProven, WatchDone,
};
use crate::store::{Own, Tensor, no_gpu_process};

/// Small tensors that are looked up under one lock.
const SMALL_BATCH: usize = 64;

/// The longest that a peer may let us wait for a name.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The numbers that peers have as holders: one for each life of each peer.
#[derive(Default)]
pub(super) struct Slots {
    known: HashMap<PeerKey, PeerSlot>,
    next: u64,
}

// === impl Slots ===

impl Slots {
    fn get(&self, peer: &PeerKey) -> Option<PeerSlot> {
        self.known.get(peer).copied()
    }

    pub(super) fn of(&mut self, peer: &PeerKey) -> PeerSlot {
        if let Some(slot) = self.get(peer) {
            return slot;
        }
        self.next += 1;
        let slot = PeerSlot(self.next);
        self.known.insert(peer.clone(), slot);
        slot
    }
}

// === impl Exchange ===

impl Serve for Exchange {
    fn open(&self, from: &PeerKey, asked: &Asked) -> Result<Served, Failure> {
        self.may_leave(from, asked.resumed)?;
        let id = TensorId(asked.id);
        let (holder, (taken, staged)) = self.lease_for(from, |holder| self.lease_bytes(holder, id))?;
        let stated = is_stated(&taken.tensor, asked.stored);
        let mut served = stated.and_then(|()| served(&taken.tensor, &asked.selection, asked.bytes));
        match &mut served {
            Ok(served) => {
                served.staged = staged;
                let Asked { id, bytes, lost, .. } = asked;
                if asked.spreads {
                    served.holders = self.sources.holders(*id, *bytes, from, lost);
                } else {
                    self.sources.blame(*id, *bytes, lost);
                }
            }
            Err(_) => self.untake(holder, &taken),
        }
        served
    }

    fn map(&self, from: &PeerKey, id: u64, bytes: u64) -> Result<Served, Failure> {
        self.may_leave(from, false)?;
        let (holder, (taken, staged)) =
            self.lease_for(from, |holder| self.lease_bytes(holder, TensorId(id)))?;
        let served = lent(&taken.tensor, bytes);
        if served.is_err() {
            self.untake(holder, &taken);
        }
        served.map(|served| Served { staged, ..served })
    }

    fn map_on_gpu(&self, from: &PeerKey, id: u64, gpus: &[GpuId]) -> Result<Option<ServedOnGpu>, Failure> {
        self.lend_on_gpu(from, id, gpus)
    }

    fn done(&self, from: &PeerKey, id: u64) {
        // Without a number it has no leases.
        let slot = self.slots.lock().get(from);
        if let Some(slot) = slot {
            self.store.release(Holder::Peer(slot), &[id], &[]);
        }
    }

    fn relay(&self, from: &PeerKey, asked: &RelayRequest) -> Result<RelaySource, Failure> {
        self.pass_on(from, asked)
    }

    fn lend(&self, from: &PeerKey, asked: &AskedLoan) -> Result<RelaySource, Failure> {
        self.lent_to(from, asked)
    }

    fn seek(&self, from: &PeerKey, id: u64, sought: Sought, reply: TellFound) {
        self.sought(from, id, &sought, reply);
    }

    fn prove(&self, id: u64, granules: Range<u64>, reply: TellProven) {
        self.say_hashes(id, granules, reply);
    }

    fn left(&self, from: &PeerKey, id: u64, holds: bool) {
        self.sources.left(id, from, holds);
    }

    fn small(&self, from: &PeerKey, asked: &v1::PullMany, answer: &mut SmallAnswer) {
        let v1::PullMany { ids, stored } = asked;
        if let Err(failure) = self.may_leave(from, false) {
            return ids.iter().for_each(|_| answer.failed(&failure));
        }
        for (first, batch) in (0..).step_by(SMALL_BATCH).zip(ids.chunks(SMALL_BATCH)) {
            if answer.is_full() {
                batch.iter().for_each(|_| answer.does_not_fit());
                continue;
            }
            let tensors = self.store.all_sealed(batch);
            answer.expect(batch.len(), tensors.iter().flatten().map(|tensor| tensor.encoded_bytes()).sum());
            for (index, tensor) in (first..).zip(&tensors) {
                match tensor {
                    Ok(tensor) => is_stated(tensor, stored.get(index).copied())
                        .and_then(|()| small(tensor, answer))
                        .unwrap_or_else(|failure| answer.failed(&failure)),
                    Err(failure) => answer.failed(failure),
                }
            }
        }
    }

    fn inquire(
        &self,
        from: &PeerKey,
        inquire: v1::Inquire,
        gone: Cancel,
        reply: Box<dyn FnOnce(v1::Inquired) + Send>,
    ) {
        if inquire.copies {
            return self.copies(from, inquire, gone, reply);
        }
        if inquire.stage {
            return self.stage_for(from, inquire, &gone, reply);
        }
        let targets: Vec<_> = inquire.targets.into_iter().map(|t| self.meant(t)).collect();
        let now: Vec<_> = targets.iter().map(|t| self.known_now(t.as_ref())).collect();
        // Names alone are waited for, and counted: who asks of something else, too, has an answer at once.
        let waits = inquire.wait_ms > 0 && now.iter().any(Result::is_err);
        let names: Option<Vec<TensorName>> = targets.iter().map(name_of).collect();
        let Some(names) = names.filter(|_| waits) else {
            let results = now.into_iter().map(inquired_result).collect();
            return reply(v1::Inquired { results });
        };
        let until = Instant::now() + Duration::from_millis(inquire.wait_ms).min(WAIT_MAX);
        self.answer_later(from, names, until, &gone, reply);
    }

    fn channel(&self, from: &PeerKey, asked: &v1::PeerChannelAttach, gone: Cancel, reply: TellAttached) {
        match self.own.upgrade() {
            Some(exchange) => exchange.channel_attach_peer(from, asked, gone, reply),
            None => reply(Err(crate::gate::draining())),
        }
    }

    fn set_call(&self, from: &PeerKey, call: v1::SetCall, gone: Cancel, reply: SetDone) {
        self.answer_set_call(from, call, gone, reply);
    }

    fn redeem(&self, from: &PeerKey, asked: &v1::PeerRedeem) -> Result<u64, Failure> {
        self.redeem_for(from, asked)
    }

    fn watch(&self, from: &PeerKey, asked: v1::WatchRequest, gone: Cancel, reply: WatchDone) {
        self.watch_for(from, &asked, &gone, reply);
    }

    fn pipe_connect(&self, from: &PipeAsker, asked: v1::PeerPipeConnect, gone: Cancel, reply: TellConnected) {
        self.answer_pipe_connect(from, asked, gone, reply);
    }

    fn pipe_resume(&self, from: &PipeAsker, pipe: u64) -> Result<v1::PeerPipeConnected, Failure> {
        self.resume_pipe(from, pipe)
    }

    fn pipe_call(&self, from: &PipeAsker, call: v1::peer_pipe_call::Kind, gone: Cancel, reply: PipeDone) {
        self.answer_pipe_call(from, call, gone, reply);
    }

    fn pipe_end(&self, from: &PipeAsker, end: &v1::PeerPipeEnd) {
        self.hear_pipe_end(from, end);
    }

    fn has_pipes(&self, from: &PipeAsker) -> bool {
        self.has_pipes_of_peer(from)
    }

    fn pipes_over(&self, from: &PipeAsker) {
        self.pipes_of_peer_over(from);
    }

    fn stopping(&self) {
        self.channels_stop();
    }

    fn peer_lost(&self, peer: &PeerKey) {
        self.sources.away(peer, true);
        // Also without leases: what it asked for last may be on its way to one.
        let slot = self.slot_of(peer);
        if let Err(failure) = self.store.peer_away(slot) {
            // Too many holders to remember one more: better no leases than leases nobody ends.
            tracing::warn!(peer = %peer.name, %failure, "the leases of a lost peer end at once");
            self.store.peer_gone(slot);
        }
    }

    fn peer_back(&self, peer: &PeerKey) {
        self.sources.away(peer, false);
        let slot = self.slots.lock().get(peer);
        if let Some(slot) = slot {
            self.store.peer_back(slot);
        }
    }

    fn peer_over(&self, old: &PeerKey) {
        self.sources.gone(old);
        self.channels_of_peer_over(old);
        let slot = self.slots.lock().known.remove(old);
        if let Some(slot) = slot {
            self.pipes_of_life_over(slot);
            self.store.peer_gone(slot);
        }
    }
}

impl Exchange {
    /// Number of a life of a peer as a holder; the store hears whose it is.
    pub(super) fn slot_of(&self, peer: &PeerKey) -> PeerSlot {
        let mut slots = self.slots.lock();
        let known = slots.get(peer);
        let slot = known.unwrap_or_else(|| slots.of(peer));
        drop(slots);
        if known.is_none() {
            self.store.peer_named(slot, peer.name.as_str());
            // It may have gone meanwhile, and then nobody takes its name away.
            if self.slots.lock().get(peer) != Some(slot) {
                self.store.peer_unnamed(slot);
            }
        }
        slot
    }

    /// Leases something for a life of a peer, as `lease` does for a holder.
    pub(super) fn lease_for<T>(
        &self,
        peer: &PeerKey,
        lease: impl FnOnce(Holder) -> Result<T, Failure>,
    ) -> Result<(Holder, T), Failure> {
        let slot = self.slot_of(peer);
        let leased = lease(Holder::Peer(slot))?;
        let present = self.slots.lock().get(peer);
        if present == Some(slot) {
            return Ok((Holder::Peer(slot), leased));
        }
        // That life was over before the lease was there, and nobody else would end it.
        self.store.peer_gone(slot);
        let message = format!("this life of {} is over", peer.name);
        Err(Failure::new(Reason::PeerUnreachable, message))
    }

    /// Leases a tensor to somebody who reads its bytes, or the copy of one in GPU memory; and that copy, if so.
    fn lease_bytes(&self, by: Holder, id: TensorId) -> Result<(Taken, Option<u64>), Failure> {
        let taken = self.store.lease(by, None, id)?;
        if taken.tensor.gpu.is_none() {
            return Ok((taken, None));
        }
        let copy =
            self.store.lease_copy(by, &taken.tensor.reference).unwrap_or_else(|| Err(no_gpu_process(id)));
        self.untake(by, &taken);
        copy.map(|copy| {
            let staged = Some(copy.id.0);
            (copy, staged)
        })
    }

    /// Description that a peer gets to know at once. Copies are not ours to speak for.
    pub(super) fn known_now(&self, target: Result<&Meant, &Failure>) -> Result<v1::Description, Failure> {
        match target {
            Err(failure) => Err(failure.clone()),
            Ok(Meant::Here(id, _)) => self.store.description(None, Own::Id(*id)),
            Ok(Meant::There(reference)) => Err(Failure::new(
                Reason::NotOwned,
                format!("{reference} is not this peer's; ask {}", reference.peer()),
            )),
            Ok(Meant::Named(_, name)) => self.store.description(None, Own::Named(name)),
        }
    }
}

/// A selection of a tensor as it goes to a peer: packed, in order.
struct Packed {
    descriptor: Descriptor,
    crc32c: Option<u32>,
    runs: Runs,
}

fn packed(tensor: &Tensor, selection: &Selection) -> Result<Packed, Failure> {
    let layout = &tensor.descriptor.layout;
    let resolved = selection.resolve(layout)?;
    // The writer's checksum is of the bytes as they lie: it holds for all of them in that order only.
    let as_it_lies = *selection == Selection::All && layout.is_contiguous();
    Ok(Packed {
        descriptor: Descriptor { layout: resolved.packed_layout(), ..tensor.descriptor.clone() },
        crc32c: tensor.crc32c.filter(|_| as_it_lies),
        runs: resolved.runs(),
    })
}

/// The packed bytes of a tensor that is small enough to travel inside a message.
fn small_length(tensor: &Tensor) -> Result<usize, Failure> {
    let bytes = tensor.descriptor.layout.packed_bytes();
    usize::try_from(bytes).ok().filter(|length| *length <= INLINE_BYTES_MAX).ok_or_else(|| {
        let why = format!("{bytes} bytes do not travel inside a message; pull them");
        Failure::new(Reason::TooLarge, why)
    })
}

/// Checks that a tensor has as many bytes as its reference states, if the reader says that. What travels is packed, so
/// that only the owner can tell.
fn is_stated(tensor: &Tensor, stored: Option<u64>) -> Result<(), Failure> {
    let ours = tensor.reference.bytes();
    match stored {
        Some(stated) if stated != ours => {
            let message = format!("the tensor has {ours} bytes here, and its reference states {stated}");
            Err(Failure::new(Reason::LayoutMismatch, message).with("bytes", ours))
        }
        _ => Ok(()),
    }
}

/// Puts a small tensor into an answer.
fn small(tensor: &Tensor, answer: &mut SmallAnswer) -> Result<(), Failure> {
    let unreadable = |e: BlockError| Failure::new(Reason::Internal, e.to_string());
    let length = small_length(tensor)?;
    let Tensor { descriptor, block, crc32c, .. } = tensor;
    if descriptor.layout.is_contiguous() {
        let bytes = SmallBytes::Lie(block.owned_chunk(0..length as u64).map_err(unreadable)?);
        answer.tensor(SmallTensor { descriptor: &tensor.encoded(), bytes, crc32c: *crc32c });
        return Ok(());
    }
    let Packed { descriptor, crc32c, runs } = packed(tensor, &Selection::All)?;
    let mut packed = Vec::with_capacity(length);
    for (offset, run) in runs {
        packed.extend_from_slice(block.chunk(offset..offset + run).map_err(unreadable)?);
    }
    let (descriptor, bytes) = (encoded::descriptor(&descriptor), SmallBytes::Packed(&packed));
    answer.tensor(SmallTensor { descriptor: &descriptor, bytes, crc32c });
    Ok(())
}

pub(super) fn served(tensor: &Tensor, selection: &Selection, bytes: u64) -> Result<Served, Failure> {
    let Packed { descriptor, crc32c, runs } = packed(tensor, selection)?;
    let ours = descriptor.layout.bytes();
    if ours != bytes {
        return Err(Failure::new(
            Reason::LayoutMismatch,
            format!("the selection has {ours} bytes here, and the reader expects {bytes}"),
        )
        .with("bytes", ours));
    }
    let source = Source::new(tensor.block.clone(), runs)
        .map_err(|e| Failure::new(Reason::Internal, format!("the bytes cannot be read: {e}")))?;
    let source = if *selection == Selection::All { source.summed(tensor.sums(bytes)) } else { source };
    Ok(Served { descriptor, crc32c, source, holders: None, staged: None })
}

/// The CRC-32C of all bytes of a tensor, packed.
pub(super) fn sum(tensor: &Tensor) -> Result<u32, Failure> {
    let Packed { crc32c, mut runs, .. } = packed(tensor, &Selection::All)?;
    if let Some(crc32c) = crc32c {
        return Ok(crc32c);
    }
    runs.try_fold(0, |sum, (offset, run)| {
        let part = tensor.block.chunk(offset..offset + run);
        let part = part.map_err(|e| Failure::new(Reason::Internal, e.to_string()))?;
        Ok(checksum::crc32c_append(sum, part))
    })
}

/// The hashes of granules of a tensor's packed bytes, one after the other: those that nobody has made are made.
pub(super) fn hash(tensor: &Tensor, granules: Range<u64>) -> Result<Vec<u8>, Failure> {
    let unreadable =
        |error: String| Failure::new(Reason::Internal, format!("the bytes cannot be hashed: {error}"));
    let Packed { descriptor, runs, .. } = packed(tensor, &Selection::All)?;
    let bytes = descriptor.layout.bytes();
    let hashes = tensor.hashes(bytes);
    let mut source =
        Source::new(tensor.block.clone(), runs).map_err(|error| unreadable(error.to_string()))?;
    source.skip(granules.start * GRANULE);
    for granule in granules.clone() {
        let length = GRANULE.min(bytes.saturating_sub(granule * GRANULE));
        if hashes.knows(granule) {
            source.skip(length);
        } else {
            hashes.learn(granule, source.hash(length)?);
        }
    }
    hashes.of(&granules).ok_or_else(|| unreadable("they are not so many".to_owned()))
}

/// All of a tensor as it lies, to be mapped.
pub(super) fn lent(tensor: &Tensor, bytes: u64) -> Result<Served, Failure> {
    let ours = tensor.block.len();
    if ours != bytes {
        let message = format!("the tensor has {ours} bytes here, and the reader expects {bytes}");
        return Err(Failure::new(Reason::LayoutMismatch, message).with("bytes", ours));
    }
    if tensor.block.is_foreign() {
        return Err(Failure::new(Reason::NotOwned, "the tensor is another peer's; map it there"));
    }
    let descriptor = tensor.descriptor.clone();
    let runs = Selection::All.resolve(&descriptor.layout.packed())?.runs();
    let source = Source::new(tensor.block.clone(), runs)
        .map_err(|e| Failure::new(Reason::Internal, format!("the bytes cannot be read: {e}")))?;
    Ok(Served { descriptor, crc32c: tensor.crc32c, source, holders: None, staged: None })
}

fn name_of(meant: &Result<Meant, Failure>) -> Option<TensorName> {
    match meant {
        Ok(Meant::Named(_, name)) => Some(name.clone()),
        Ok(Meant::Here(..) | Meant::There(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::identity::Incarnation;

    use super::*;
    use crate::exchange::alone::alone;

    #[test]
    fn peers_that_come_and_go_leave_no_numbers_and_a_life_that_is_over_gets_no_lease() {
        let (exchange, ..) = alone();
        let known = || exchange.slots.lock().known.len();
        for life in 0..1000 {
            let peer = PeerKey { name: "there".parse().unwrap(), incarnation: Incarnation(life) };
            let (holder, ()) = exchange.lease_for(&peer, |_| Ok(())).unwrap();
            let again = exchange.lease_for(&peer, |_| Ok(())).unwrap();
            assert_eq!((again.0, known()), (holder, 1), "one number for one life");
            exchange.peer_lost(&peer);
            exchange.peer_back(&peer);
            let over = exchange.lease_for(&peer, |_| {
                exchange.peer_over(&peer);
                Ok(())
            });
            assert_eq!(over.unwrap_err().reason, Reason::PeerUnreachable);
            exchange.done(&peer, 7);
            exchange.peer_back(&peer);
            assert_eq!(known(), 0);
        }
    }
}
