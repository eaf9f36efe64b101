//! Put, Reserve, Seal, Abort: bytes come in.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_memory::{Block, Landing, Owner, Purpose};
use tensorlane_proto::checksum;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, Keep, Retry, TensorId};
use tensorlane_proto::negotiate::Transport;
use tensorlane_proto::wire;

use super::keep::ticket_text;
use super::retry::{reserving, storing};
use super::{Caller, Exchange, done_result, session_required};
use crate::metrics::label::{ChecksumPlace, Moved};
use crate::session::SessionLink;
use crate::store::{AllocRequest, NewTensor, Room, Sealing, Stored};

/// A put whose bytes are coming. Dropped before [`OpenPut::finish`] it leaves nothing behind.
pub struct OpenPut {
    exchange: Arc<Exchange>,
    by: Option<Holder>,
    new: NewTensor,
    keep: Keep,
    crc32c: Option<u32>,
    block: Block,
    landing: Option<Landing>,
    written: u64,
    sum: u32,
}

/// Request of a put: what was asked for, proven.
struct PutWish {
    new: NewTensor,
    keep: Keep,
    crc32c: Option<u32>,
}

// === impl Exchange ===

impl Exchange {
    /// Stores tensors whose bytes are in the request.
    pub fn put(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::PutRequest,
        done: impl FnOnce(Result<v1::PutResponse, Failure>) + Send + 'static,
    ) {
        let deadline = self.deadline(request.deadline_ms);
        let mut results = Vec::with_capacity(request.items.len());
        let mut items = request.items.into_iter();
        for item in items.by_ref() {
            match self.put_now(&caller, item) {
                Ok(outcome) => results.push(stored_result(outcome)),
                // The rest waits for room, this one first.
                Err(item) => {
                    let queueing = caller.queueing(Purpose::Put, deadline);
                    return self.on_waiter(queueing, Box::new(done), move |exchange| {
                        let rest = std::iter::once(*item).chain(items);
                        results
                            .extend(rest.map(|i| stored_result(exchange.put_waiting(&caller, i, deadline))));
                        Ok(v1::PutResponse { results })
                    });
                }
            }
        }
        done(Ok(v1::PutResponse { results }));
    }

    /// The item comes back if there is no room right now.
    fn put_now(
        self: &Arc<Self>,
        caller: &Caller,
        item: v1::PutItem,
    ) -> Result<Result<v1::Stored, Failure>, Box<v1::PutItem>> {
        let bytes = item.data.len() as u64;
        match self.store.allocate_now(Owner::Sidecar, Purpose::Put, bytes) {
            Some(block) => Ok(self.put_into(caller, item, block)),
            None => Err(Box::new(item)),
        }
    }

    /// Room for bytes of this peer that a caller waits for, in segments of the `writer` if it writes them itself. Blocks: for waiters.
    pub(super) fn room_for_put(
        &self,
        caller: &Caller,
        writer: Option<&Arc<SessionLink>>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<Block, Failure> {
        self.store.allocate(&AllocRequest {
            writer,
            claimant: &caller.claimant(),
            purpose: Purpose::Put,
            bytes,
            deadline,
            cancel: &caller.cancel,
        })
    }

    fn put_waiting(
        self: &Arc<Self>,
        caller: &Caller,
        item: v1::PutItem,
        deadline: Instant,
    ) -> Result<v1::Stored, Failure> {
        let bytes = item.data.len() as u64;
        let block = self.room_for_put(caller, None, bytes, deadline)?;
        self.put_into(caller, item, block)
    }

    fn put_into(
        self: &Arc<Self>,
        caller: &Caller,
        mut item: v1::PutItem,
        block: Block,
    ) -> Result<v1::Stored, Failure> {
        let data = std::mem::take(&mut item.data);
        if data.len() > INLINE_BYTES_MAX {
            return Err(Failure::new(
                Reason::TooLarge,
                format!(
                    "{} bytes in a message; at most {INLINE_BYTES_MAX}: reserve and write in place",
                    data.len()
                ),
            ));
        }
        let alloc = self.put_wish(caller, item)?;
        if let Some(stored) = self.stored_before(caller.holder, &alloc, Some(&data))? {
            return Ok(stored);
        }
        let expected = alloc.new.descriptor.layout.bytes();
        if expected != data.len() as u64 {
            return Err(wrong_length(expected, data.len() as u64));
        }
        let mut put = OpenPut::new(Arc::clone(self), caller.holder, alloc, block)?;
        put.write(&data)?;
        put.finish()
    }

    /// Begins a put whose bytes will be written bit by bit, once there is room. A repeat of an earlier one is answered with its
    /// result.
    pub fn open_put(
        self: &Arc<Self>,
        caller: Caller,
        item: v1::PutItem,
        deadline: Instant,
        done: impl FnOnce(Result<Result<OpenPut, v1::Stored>, Failure>) + Send + 'static,
    ) {
        let begun = self.put_wish(&caller, item).and_then(|wish| {
            let before = self.stored_before(caller.holder, &wish, None)?;
            Ok((wish, before))
        });
        let wish = match begun {
            Ok((wish, None)) => wish,
            Ok((_, Some(stored))) => return done(Ok(Err(stored))),
            Err(failure) => return done(Err(failure)),
        };
        let bytes = wish.new.descriptor.layout.bytes();
        if let Some(block) = self.store.allocate_now(Owner::Sidecar, Purpose::Put, bytes) {
            return done(OpenPut::new(Arc::clone(self), caller.holder, wish, block).map(Ok));
        }
        self.on_waiter(caller.queueing(Purpose::Put, deadline), Box::new(done), move |exchange| {
            let block = exchange.room_for_put(&caller, None, bytes, deadline)?;
            OpenPut::new(Arc::clone(exchange), caller.holder, wish, block).map(Ok)
        });
    }

    /// Begins puts of several tensors at once: there is room for all, or none begins.
    ///
    /// # Errors
    /// NEVER_FITS where all together do not fit; those of one put. INVALID_ARGUMENT for an item with a retry id.
    pub fn open_puts(
        self: &Arc<Self>,
        caller: Caller,
        items: Vec<v1::PutItem>,
        deadline: Instant,
        done: impl FnOnce(Result<Vec<OpenPut>, Failure>) + Send + 'static,
    ) {
        let queueing = caller.queueing(Purpose::Put, deadline);
        self.on_waiter(queueing, Box::new(done), move |exchange| exchange.puts(&caller, items, deadline));
    }

    fn puts(
        self: &Arc<Self>,
        caller: &Caller,
        items: Vec<v1::PutItem>,
        deadline: Instant,
    ) -> Result<Vec<OpenPut>, Failure> {
        let wishes = items.into_iter().map(|item| self.put_wish(caller, item));
        let wishes = wishes.collect::<Result<Vec<_>, Failure>>()?;
        if wishes.iter().any(|wish| wish.new.retry.is_some()) {
            let why = "puts of several tensors at once are not repeated; leave the retry id out";
            return Err(Failure::new(Reason::InvalidArgument, why));
        }
        let sizes: Vec<u64> = wishes.iter().map(|wish| wish.new.descriptor.layout.bytes()).collect();
        let blocks = self.store.allocate_all(
            &sizes,
            &AllocRequest {
                writer: None,
                claimant: &caller.claimant(),
                purpose: Purpose::Put,
                bytes: 0,
                deadline,
                cancel: &caller.cancel,
            },
        )?;
        let open = |(wish, block)| OpenPut::new(Arc::clone(self), caller.holder, wish, block);
        wishes.into_iter().zip(blocks).map(open).collect()
    }

    fn put_wish(&self, caller: &Caller, item: v1::PutItem) -> Result<PutWish, Failure> {
        let retry = wire::retry(&item.retry_id)?;
        let descriptor = host(wire::descriptor(item.descriptor.unwrap_or_default())?)?;
        let retry = retry.map(|id| storing(id, Some(&descriptor), item.keep.as_ref(), item.crc32c));
        let keep = self.keep(caller.holder, item.keep)?;
        Ok(PutWish { new: NewTensor { descriptor, retry }, keep, crc32c: item.crc32c })
    }

    /// The first answer, if this is a repeat; `data` are its bytes, where they are here already.
    fn stored_before(
        &self,
        by: Option<Holder>,
        alloc: &PutWish,
        data: Option<&[u8]>,
    ) -> Result<Option<v1::Stored>, Failure> {
        let Some(retry) = alloc.new.retry else { return Ok(None) };
        if let (Some(data), Some(first)) = (data, self.store.stored_first(&retry.id)) {
            let bytes = first.block.chunk(0..first.block.len());
            if bytes.map_err(|e| Failure::new(Reason::Internal, e.to_string()))? != data {
                let why = "this retry id was used for a tensor of other bytes: use a new one";
                return Err(Failure::new(Reason::RetryMismatch, why));
            }
        }
        let lease_for = by.filter(|_| alloc.keep.lease);
        let before = self.store.recall_stored(retry, lease_for)?;
        Ok(before.map(|before| stored(&before)))
    }

    /// Makes room for tensors that the caller writes in place.
    pub fn reserve(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::ReserveRequest,
        done: impl FnOnce(Result<Vec<Result<Room, Failure>>, Failure>) + Send + 'static,
    ) {
        if caller.holder.is_none() {
            return done(Err(session_required("Reserve")));
        }
        let deadline = self.deadline(request.deadline_ms);
        let mut rooms = Vec::with_capacity(request.items.len());
        let mut items = request.items.into_iter();
        for item in items.by_ref() {
            match self.reserve_now(&caller, item) {
                Ok(outcome) => rooms.push(outcome),
                Err(new) => {
                    let queueing = caller.queueing(Purpose::Put, deadline);
                    return self.on_waiter(queueing, Box::new(done), move |exchange| {
                        rooms.push(exchange.reserve_waiting(&caller, *new, deadline));
                        for item in items {
                            if caller.cancel.is_cancelled() {
                                return Err(Failure::new(Reason::Cancelled, "the caller has gone"));
                            }
                            let room = new_tensor(item)
                                .and_then(|new| exchange.reserve_waiting(&caller, new, deadline));
                            rooms.push(room);
                        }
                        Ok(rooms)
                    });
                }
            }
        }
        done(Ok(rooms));
    }

    fn reserve_now(
        &self,
        caller: &Caller,
        item: v1::ReserveItem,
    ) -> Result<Result<Room, Failure>, Box<NewTensor>> {
        let new = match new_tensor(item) {
            Ok(new) => new,
            Err(failure) => return Ok(Err(failure)),
        };
        let bytes = new.descriptor.layout.bytes();
        match new.retry.map(|retry| self.store.recall_room(caller.holder, retry)).transpose() {
            Ok(before) => {
                if let Some(room) = before.flatten() {
                    return Ok(Ok(room));
                }
            }
            Err(failure) => return Ok(Err(failure)),
        }
        let own_segment = caller.link.as_ref().map(|link| Owner::Session(link.id().0));
        match own_segment.and_then(|owner| self.store.allocate_now(owner, Purpose::Put, bytes)) {
            Some(block) => Ok(self.store.reserve(caller.holder, new, block)),
            // There is no room, or it must be cleared first, which takes a while.
            None => Err(Box::new(new)),
        }
    }

    fn reserve_waiting(&self, caller: &Caller, new: NewTensor, deadline: Instant) -> Result<Room, Failure> {
        let bytes = new.descriptor.layout.bytes();
        let writer = caller.link.as_ref();
        let block = self.room_for_put(caller, writer, bytes, deadline)?;
        if writer.is_none() {
            clear(&block)?;
        }
        self.store.reserve(caller.holder, new, block)
    }

    /// Writes bytes of a reservation in a segment of the sidecar (gRPC).
    pub fn fill(&self, by: Holder, id: TensorId, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let tensor = self.store.reserved(Some(by), id)?;
        let mut landing = tensor.block.landing().ok_or_else(|| {
            Failure::new(
                Reason::NotYours,
                "this reservation is written through the map of its session, or by another Fill right now",
            )
        })?;
        landing.write(offset, data).map_err(|e| Failure::new(Reason::InvalidArgument, e.to_string()))
    }

    /// Makes reservations visible and immutable.
    pub fn seal(&self, caller: &Caller, request: v1::SealRequest) -> v1::SealResponse {
        let results =
            request.items.into_iter().map(|item| stored_result(self.seal_one(caller, item))).collect();
        v1::SealResponse { results }
    }

    fn seal_one(&self, caller: &Caller, item: v1::SealItem) -> Result<v1::Stored, Failure> {
        let by = Some(caller.holder.ok_or_else(|| session_required("Seal"))?);
        let id = TensorId(item.id);
        let retry = wire::retry(&item.retry_id)?.map(|retry| {
            let descriptor = self.store.to_be_sealed(by, id, &retry);
            storing(retry, descriptor.as_ref(), item.keep.as_ref(), item.crc32c)
        });
        let keep = self.keep(by, item.keep)?;
        let lease_for = by.filter(|_| keep.lease);
        if let Some(retry) = retry
            && let Some(before) = self.store.recall_stored(retry, lease_for)?
        {
            return Ok(stored(&before));
        }
        if let Some(expected) = item.crc32c {
            let tensor = self.store.reserved(by, id)?;
            self.check_sum(expected, sum(&tensor.block)?)?;
        }
        self.seal_as(by, id, keep, item.crc32c, retry)
    }

    fn seal_as(
        &self,
        by: Option<Holder>,
        id: TensorId,
        keep: Keep,
        crc32c: Option<u32>,
        retry: Option<Retry>,
    ) -> Result<v1::Stored, Failure> {
        let sealing = Sealing { id, keep, crc32c, retry };
        let sealed = self.store.seal(by, sealing)?;
        self.metrics.moves.put_bytes.at((Transport::Local, Moved::Done)).inc_by(sealed.reference.bytes());
        Ok(stored(&sealed))
    }

    fn check_sum(&self, expected: u32, found: u32) -> Result<(), Failure> {
        if expected == found {
            return Ok(());
        }
        self.metrics.moves.checksum_mismatches.at((ChecksumPlace::Seal,)).inc();
        Err(Failure::new(
            Reason::ChecksumMismatch,
            format!(
                "the bytes have the CRC-32C {found:08x}, not {expected:08x} as given; nothing was sealed"
            ),
        ))
    }

    /// Gives reservations up.
    pub fn abort(&self, caller: &Caller, request: &v1::AbortRequest) -> v1::AbortResponse {
        let abort = |id: &u64| match caller.holder {
            Some(by) => self.store.abort(Some(by), TensorId(*id)),
            None => Err(session_required("Abort")),
        };
        v1::AbortResponse { results: request.ids.iter().map(|id| done_result(&abort(id))).collect() }
    }
}

// === impl OpenPut ===

impl OpenPut {
    fn new(
        exchange: Arc<Exchange>,
        by: Option<Holder>,
        alloc: PutWish,
        block: Block,
    ) -> Result<Self, Failure> {
        let landing = block.landing().ok_or_else(|| {
            Failure::new(Reason::Internal, "a fresh block of the sidecar cannot be written")
        })?;
        let PutWish { new, keep, crc32c } = alloc;
        Ok(Self { exchange, by, new, keep, crc32c, block, landing: Some(landing), written: 0, sum: 0 })
    }

    /// Bytes that have come, and all that will.
    pub fn progress(&self) -> (u64, u64) {
        (self.written, self.block.len())
    }

    /// The next bytes.
    pub fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        let end = self.written + data.len() as u64;
        let expected = self.block.len();
        let landing = self.landing.as_mut().filter(|_| end <= expected).ok_or(wrong_length(expected, end))?;
        landing.write(self.written, data).map_err(|e| Failure::new(Reason::Internal, e.to_string()))?;
        if self.crc32c.is_some() {
            self.sum = checksum::crc32c_append(self.sum, data);
        }
        self.written = end;
        Ok(())
    }

    /// All bytes are there: the tensor becomes visible, or nothing is left of it.
    pub fn finish(mut self) -> Result<v1::Stored, Failure> {
        if self.written != self.block.len() {
            return Err(wrong_length(self.block.len(), self.written));
        }
        if let Some(expected) = self.crc32c {
            self.exchange.check_sum(expected, self.sum)?;
        }
        drop(self.landing.take());
        let retry = self.new.retry;
        // The retry id is the seal's: before it there is nothing that a repeat could be answered with.
        let new = NewTensor { retry: None, descriptor: self.new.descriptor };
        let room = self.exchange.store.reserve(self.by, new, self.block)?;
        let outcome = self.exchange.seal_as(self.by, room.id, self.keep, self.crc32c, retry);
        if outcome.is_err() {
            // It may have gone with its session already.
            let _ = self.exchange.store.abort(self.by, room.id);
        }
        outcome
    }
}

/// Overwrites what an earlier tensor, of whomever, left in a block of the sidecar: nobody makes sure that its new writer
/// fills all of it. (The segments of a session hold nothing but its own tensors.)
fn clear(block: &Block) -> Result<(), Failure> {
    let internal = |why: String| Failure::new(Reason::Internal, why);
    let mut landing =
        block.landing().ok_or_else(|| internal("a fresh block cannot be written".to_owned()))?;
    landing.chunk_mut(0..block.len()).map_err(|e| internal(e.to_string()))?.fill(0);
    Ok(())
}

/// A descriptor of bytes that come here: they lie in host memory.
fn host(descriptor: Descriptor) -> Result<Descriptor, Failure> {
    if descriptor.device.is_host() {
        return Ok(descriptor);
    }
    let message = format!(
        "the descriptor says {}, but these bytes come into host memory; a tensor in GPU memory is put with PutGpu",
        descriptor.device
    );
    Err(Failure::new(Reason::InvalidArgument, message))
}

fn new_tensor(item: v1::ReserveItem) -> Result<NewTensor, Failure> {
    let retry = wire::retry(&item.retry_id)?;
    let descriptor = host(wire::descriptor(item.descriptor.unwrap_or_default())?)?;
    let retry = retry.map(|id| reserving(id, &descriptor));
    Ok(NewTensor { descriptor, retry })
}

pub(super) fn stored(stored: &Stored) -> v1::Stored {
    let Stored { reference, id, ticket } = stored;
    let ticket = ticket.map(|t| ticket_text(reference, t)).unwrap_or_default();
    v1::Stored { reference: reference.encode(), id: id.0, ticket }
}

/// A Put or Seal item's result, as the wire has it.
pub fn stored_result(outcome: Result<v1::Stored, Failure>) -> v1::StoredResult {
    use v1::stored_result::Outcome;
    let outcome = match outcome {
        Ok(stored) => Outcome::Stored(stored),
        Err(failure) => Outcome::Failure((&failure).into()),
    };
    v1::StoredResult { outcome: Some(outcome) }
}

fn wrong_length(expected: u64, given: u64) -> Failure {
    Failure::new(
        Reason::LayoutMismatch,
        format!("the descriptor says {expected} bytes, but {given} were given; nothing was stored"),
    )
    .with("expected_bytes", expected)
    .with("given_bytes", given)
}

/// The checksum of a reservation that its writer says is complete: the sidecar will not write it any more.
fn sum(block: &Block) -> Result<u32, Failure> {
    if !block.is_sealed() {
        block.mark_sealed().map_err(|e| Failure::new(Reason::NotSealed, e.to_string()))?;
    }
    let bytes = block.chunk(0..block.len()).map_err(|e| Failure::new(Reason::Internal, e.to_string()))?;
    Ok(checksum::crc32c(bytes))
}
