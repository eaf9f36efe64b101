//! Call of a session: who makes it, that it is answered once, that it has a place among the pending ones until then,
//! and that it is counted once: with the outcome that its client is told, or would be if it were still there. Knows no
//! verb's work.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use tensorlane_memory::Block;
use tensorlane_proto::decoded::decoded_bytes;
use tensorlane_proto::encoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{
    self, FAILED, FrameError, GPU_SINCE, HEADER_BYTES, Header, REPLY, SESSION_BODY_MAX, SESSION_ITEMS_MAX,
    SessionKind,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::negotiate::Transport;

use super::Pending;
use super::link::{Segments, SessionLink};
use super::read::gives_back;
use super::requests::{Admitted, COUNTED_FROM, Requests};
use crate::cancel::Cancel;
use crate::exchange::{Attached, Caller, ChannelExtent, Created, Exchange, Room, RowsRead, Taken};
use crate::gate::UnderWay;
use crate::metrics::label::{Moved, Verb};
use crate::results::{Ended, Results};
use crate::store::{Allocation, no_gpu_process};

/// Call that has not been answered. Dropped without an answer it says so, rather than leave the client waiting.
pub(super) struct Call {
    exchange: Arc<Exchange>,
    link: Arc<SessionLink>,
    pending: Pending,
    pub(super) verb: SessionKind,
    number: u64,
    cancel: Cancel,
    began: Instant,
    answered: bool,
    requests: Requests,
    /// The request, which counts among those of all until it is answered, and what it became.
    _body: Bytes,
    _decoded: Option<Admitted>,
    _under_way: UnderWay,
}

/// Reason for which a call has no request.
#[derive(Debug)]
pub(super) enum Undecoded {
    /// Body that is none, which ends the session.
    Frame(FrameError),
    /// Call that was refused already, for want of room for what its body becomes.
    Refused,
}

impl From<FrameError> for Undecoded {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

// === impl Call ===

impl Call {
    pub(super) fn begin(
        exchange: &Arc<Exchange>,
        link: &Arc<SessionLink>,
        pending: &Pending,
        verb: SessionKind,
        number: u64,
        body: &Bytes,
        requests: &Requests,
    ) -> Self {
        let (cancel, under_way) = (Cancel::default(), exchange.gate().enter());
        pending.lock().insert(number, cancel.clone());
        let (exchange, link, pending) = (Arc::clone(exchange), Arc::clone(link), Arc::clone(pending));
        Self {
            exchange,
            link,
            pending,
            verb,
            number,
            cancel,
            began: Instant::now(),
            answered: false,
            // A short one counts nowhere, and is not kept.
            requests: requests.clone(),
            _body: if body.len() < COUNTED_FROM { Bytes::new() } else { body.clone() },
            _decoded: None,
            _under_way: under_way,
        }
    }

    pub(super) fn caller(&self) -> Caller {
        Caller {
            holder: Some(Holder::Session(self.link.id())),
            link: Some(Arc::clone(&self.link)),
            on_behalf: None,
            cancel: self.cancel.clone(),
        }
    }

    /// Decodes the request, once there is room for what it becomes beyond the bytes of its body, which count already. Waits for room as a
    /// body does, on the session's thread.
    pub(super) fn decode<M: Message + Default>(
        &mut self,
        header: &Header,
        body: Bytes,
    ) -> Result<M, Undecoded> {
        let malformed = || FrameError::Malformed(header.kind);
        let bytes = decoded_bytes::<M>(&body).ok_or_else(malformed)?.saturating_sub(body.len());
        if bytes >= COUNTED_FROM {
            let admitted = match gives_back(header) {
                true => Ok(self.requests.take(bytes as u64)),
                false => self.requests.admit_more(body.len() as u64, bytes as u64),
            };
            match admitted {
                Ok(admitted) => self._decoded = Some(admitted),
                Err(failure) => {
                    self.send_failure(&failure);
                    return Err(Undecoded::Refused);
                }
            }
        }
        Ok(M::decode(body).map_err(|_| malformed())?)
    }

    /// The call, if it asks for no more items than allowed; else it has been refused.
    pub(super) fn within(self, items: usize) -> Option<Self> {
        if items <= SESSION_ITEMS_MAX {
            return Some(self);
        }
        self.fail(&Failure::new(
            Reason::TooLarge,
            format!("{items} items in one call; at most {SESSION_ITEMS_MAX}: split it"),
        ));
        None
    }

    pub(super) fn answer<M: Message + Results>(mut self, outcome: Result<M, Failure>) {
        match outcome {
            Ok(message) => {
                let frame = frame::encode(self.verb.into(), REPLY, self.number, &message);
                if let Err(failure) = check_length(frame.len()) {
                    return self.fail(&failure);
                }
                self.count(message.ended());
                self.done();
                self.link.send(frame, Vec::new());
            }
            Err(failure) => self.fail(&failure),
        }
    }

    pub(super) fn answer_reserved(self, outcome: Result<Vec<Result<Room, Failure>>, Failure>) {
        let exchange = Arc::clone(&self.exchange);
        self.deliver_reserved(outcome, &*exchange);
    }

    fn deliver_reserved(
        mut self,
        outcome: Result<Vec<Result<Room, Failure>>, Failure>,
        segments: &dyn Segments,
    ) {
        let rooms = match outcome {
            Ok(rooms) => rooms,
            Err(failure) => return self.fail(&failure),
        };
        let results = rooms.iter().map(reserve_result).collect();
        let frame = frame::encode(self.verb.into(), REPLY, self.number, &v1::ReserveResponse { results });
        let blocks = rooms.iter().flatten().map(|room| &room.block);
        if let Err(failure) = self.link.announce(blocks, segments) {
            for room in rooms.iter().flatten() {
                self.exchange.give_up(Holder::Session(self.link.id()), room.id);
            }
            drop(rooms);
            return self.fail(&failure);
        }
        self.count(rooms.iter().map(|room| ended(room.as_ref().err())));
        // Before it is told: whoever gives it up at once finds that nobody holds it.
        drop(rooms);
        self.done();
        self.link.send(frame, Vec::new());
    }

    pub(super) fn answer_acquired(self, outcome: Result<Vec<Result<Taken, Failure>>, Failure>) {
        let exchange = Arc::clone(&self.exchange);
        self.deliver_acquired(outcome, 0, &*exchange);
    }

    /// Rows of a set that were read, and their version.
    pub(super) fn answer_rows(self, outcome: Result<RowsRead, Failure>) {
        let exchange = Arc::clone(&self.exchange);
        match outcome {
            Ok(RowsRead { taken, version }) => {
                self.deliver_acquired(Ok(taken.into_iter().map(Ok).collect()), version, &*exchange);
            }
            Err(failure) => self.fail(&failure),
        }
    }

    fn deliver_acquired(
        mut self,
        outcome: Result<Vec<Result<Taken, Failure>>, Failure>,
        version: u64,
        segments: &dyn Segments,
    ) {
        let taken = match outcome {
            Ok(taken) if self.link.version() < GPU_SINCE => self.without_gpu(taken),
            Ok(taken) => taken,
            Err(failure) => return self.fail(&failure),
        };
        let mapped = taken.iter().flatten().filter(|t| t.moved.is_none()).map(|t| t.block().len()).sum();
        let blocks = taken.iter().flatten().map(Taken::block);
        let frame = self.acquired(&taken, version);
        let frame = frame.and_then(|frame| self.link.announce(blocks, segments).map(|()| frame));
        let frame = match frame {
            Ok(frame) => frame,
            Err(failure) => {
                let ids = taken.iter().flatten().map(|t| t.id.0).collect();
                let release = v1::ReleaseRequest { ids, still_mapped: Vec::new() };
                self.exchange.release(Holder::Session(self.link.id()), &release);
                drop(taken);
                return self.fail(&failure);
            }
        };
        let moves = &self.exchange.metrics().moves;
        moves.got(Transport::Local, Moved::Done, mapped, self.began.elapsed());
        let on_gpu = taken.iter().flatten().filter(|t| t.tensor.gpu.is_some());
        let on_gpu: u64 = on_gpu.map(|t| t.tensor.descriptor.layout.bytes()).sum();
        if on_gpu > 0 {
            moves.got(Transport::CudaIpc, Moved::Done, on_gpu, self.began.elapsed());
        }
        self.count(taken.iter().map(|taken| ended(taken.as_ref().err())));
        // Before it is told: whoever gives it back at once finds that nobody holds it.
        drop(taken);
        self.done();
        self.link.send(frame, Vec::new());
    }

    /// The frame that tells of tensors. One that would be too long is not made: many tensors may share what each would bring along.
    fn acquired(&self, taken: &[Result<Taken, Failure>], version: u64) -> Result<Vec<u8>, Failure> {
        let bytes = taken.iter().flatten().map(|taken| taken.tensor.descriptor.metadata.text_bytes()).sum();
        check_length(bytes)?;
        let answer =
            encoded::AcquireResponse { results: taken.iter().map(acquire_result).collect(), version };
        let frame = frame::encode(self.verb.into(), REPLY, self.number, &answer);
        check_length(frame.len()).map(|()| frame)
    }

    /// A channel that cannot be shown to the client ends at once.
    pub(super) fn answer_created(self, outcome: Result<Created, Failure>) {
        let exchange = Arc::clone(&self.exchange);
        match outcome {
            Ok(created) => {
                let message = created.message();
                let end = v1::ChannelDetachRequest { channel: message.channel, ..Default::default() };
                self.answer_shown(&[&created.ring], message, &*exchange, &end);
            }
            Err(failure) => self.fail(&failure),
        }
    }

    /// A reader that cannot be shown its ring ends at once.
    pub(super) fn answer_attached(self, outcome: Result<Attached, Failure>) {
        let exchange = Arc::clone(&self.exchange);
        match outcome {
            Ok(attached) => {
                let end = v1::ChannelDetachRequest { reader: attached.reader, ..Default::default() };
                let blocks = [&attached.ring, &attached.cursor];
                self.answer_shown(&blocks, attached.message(), &*exchange, &end);
            }
            Err(failure) => self.fail(&failure),
        }
    }

    /// Memory of a message that cannot be shown to its writer is freed at once.
    pub(super) fn answer_extent(self, outcome: Result<ChannelExtent, Failure>) {
        let exchange = Arc::clone(&self.exchange);
        match outcome {
            Ok(extent) => self.answer_shown(&[&extent.block], extent.message(), &*exchange, &extent.end()),
            Err(failure) => self.fail(&failure),
        }
    }

    fn answer_shown<M: Message + Results>(
        self,
        blocks: &[&Block],
        message: M,
        segments: &dyn Segments,
        end: &v1::ChannelDetachRequest,
    ) {
        match self.link.announce(blocks.iter().copied(), segments) {
            Ok(()) => self.answer(Ok(message)),
            Err(failure) => {
                self.exchange.channel_detach(self.link.id(), end);
                self.fail(&failure);
            }
        }
    }

    /// Refuses tensors in GPU memory to a client that does not know of it: it would look for a segment.
    fn without_gpu(&self, taken: Vec<Result<Taken, Failure>>) -> Vec<Result<Taken, Failure>> {
        let host = |taken: Taken| {
            if taken.tensor.gpu.is_none() {
                return Ok(taken);
            }
            let release = v1::ReleaseRequest { ids: vec![taken.id.0], still_mapped: Vec::new() };
            self.exchange.release(Holder::Session(self.link.id()), &release);
            Err(no_gpu_process(taken.id))
        };
        taken.into_iter().map(|taken| taken.and_then(host)).collect()
    }

    /// The GPU memory that was asked for goes out with the answer.
    pub(super) fn answer_opened(mut self, outcome: Result<Arc<Allocation>, Failure>) {
        let allocation = match outcome {
            Ok(allocation) => allocation,
            Err(failure) => return self.fail(&failure),
        };
        let answer = v1::OpenGpuResponse {
            allocation_bytes: allocation.bytes(),
            cuda_uuid: Bytes::copy_from_slice(&allocation.uuid()),
        };
        let frame = frame::encode(self.verb.into(), REPLY, self.number, &answer);
        self.count([Ok(())]);
        self.done();
        self.link.send_shared(frame, vec![Arc::clone(allocation.memory())]);
    }

    pub(super) fn fail(mut self, failure: &Failure) {
        self.send_failure(failure);
    }

    fn send_failure(&mut self, failure: &Failure) {
        self.count([Err(failure.reason)]);
        self.done();
        let message = v1::Failure::from(failure);
        let frame = frame::encode(self.verb.into(), REPLY | FAILED, self.number, &message);
        self.link.send(frame, Vec::new());
    }

    /// Counts how the items ended, and the time.
    fn count(&self, items: impl IntoIterator<Item = Ended>) {
        let calls = &self.exchange.metrics().calls;
        let mut well = 0;
        for ended in items {
            match ended {
                Ok(()) => well += 1,
                Err(reason) => calls.items.at((self.label(), Err(reason).into())).inc(),
            }
        }
        calls.items.at((self.label(), Ok(()).into())).inc_by(well);
        calls.seconds.at((self.label(),)).observe(self.began.elapsed().as_secs_f64());
    }

    pub(super) fn label(&self) -> Verb {
        match self.verb {
            SessionKind::Put => Verb::Put,
            SessionKind::Reserve => Verb::Reserve,
            SessionKind::Seal => Verb::Seal,
            SessionKind::Abort => Verb::Abort,
            SessionKind::Acquire => Verb::Acquire,
            SessionKind::Release => Verb::Release,
            SessionKind::Describe => Verb::Describe,
            SessionKind::List => Verb::List,
            SessionKind::Name => Verb::Name,
            SessionKind::Unname => Verb::Unname,
            SessionKind::Lookup => Verb::Lookup,
            SessionKind::Ticket => Verb::Ticket,
            SessionKind::Redeem => Verb::Redeem,
            SessionKind::Status => Verb::Status,
            SessionKind::Peers => Verb::Peers,
            SessionKind::PublishSet => Verb::PublishSet,
            SessionKind::ChannelCreate => Verb::ChannelCreate,
            SessionKind::ChannelAttach => Verb::ChannelAttach,
            SessionKind::ChannelDetach => Verb::ChannelDetach,
            SessionKind::ChannelExtent => Verb::ChannelExtent,
            SessionKind::ChannelStat => Verb::ChannelStat,
            SessionKind::SetCreate => Verb::SetCreate,
            SessionKind::SetOpen => Verb::SetOpen,
            SessionKind::SetRead => Verb::SetRead,
            SessionKind::SetCommit => Verb::SetCommit,
            SessionKind::SetStat => Verb::SetStat,
            SessionKind::SetDrop => Verb::SetDrop,
            SessionKind::SetSnapshot => Verb::SetSnapshot,
            SessionKind::Watch => Verb::Watch,
            SessionKind::PipeListen => Verb::PipeListen,
            SessionKind::PipeConnect => Verb::PipeConnect,
            SessionKind::PipeAccept => Verb::PipeAccept,
            SessionKind::PipeWrite => Verb::PipeWrite,
            SessionKind::PipeRead => Verb::PipeRead,
            SessionKind::PipeEnd => Verb::PipeEnd,
            SessionKind::PutGpu => Verb::PutGpu,
            SessionKind::OpenGpu => Verb::OpenGpu,
            SessionKind::Stage => Verb::Stage,
            SessionKind::Hello
            | SessionKind::ChannelReader
            | SessionKind::ChannelReady
            | SessionKind::Segment
            | SessionKind::SegmentMapped
            | SessionKind::SegmentRetired
            | SessionKind::SegmentExchanged
            | SessionKind::GpuFreed
            | SessionKind::Cancel => Verb::Session,
        }
    }

    fn done(&mut self) {
        self.answered = true;
        self.pending.lock().remove(&self.number);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.answered {
            let failure = match std::thread::panicking() {
                true => Failure::new(Reason::Internal, "this call broke off inside the sidecar"),
                false => Failure::new(Reason::Cancelled, "the sidecar gave this call up; it is ending"),
            };
            // Counted in any case; a link that is cut says nothing any more.
            self.send_failure(&failure);
        }
    }
}

fn ended(failure: Option<&Failure>) -> Ended {
    failure.map_or(Ok(()), |failure| Err(failure.reason))
}

/// A reply above the limit of a frame would end the session; a few items with much metadata each come to that.
fn check_length(bytes: usize) -> Result<(), Failure> {
    let most = HEADER_BYTES + SESSION_BODY_MAX as usize;
    if bytes <= most {
        return Ok(());
    }
    Err(Failure::new(
        Reason::TooLarge,
        format!(
            "the reply would have {bytes} bytes and at most {most} are allowed; ask for fewer items at once"
        ),
    ))
}

fn reserve_result(room: &Result<Room, Failure>) -> v1::ReserveResult {
    use v1::reserve_result::Outcome;
    let outcome = match room {
        Ok(room) => Outcome::Reserved(v1::Reserved { id: room.id.0, location: Some(room.location()) }),
        Err(failure) => Outcome::Failure(failure.into()),
    };
    v1::ReserveResult { outcome: Some(outcome) }
}

fn acquire_result(taken: &Result<Taken, Failure>) -> encoded::AcquireResult {
    use encoded::Outcome;
    let outcome = match taken {
        Ok(taken) => Outcome::Acquired(taken.encoded()),
        Err(failure) => Outcome::Failure(failure.into()),
    };
    encoded::AcquireResult { outcome: Some(outcome) }
}

#[cfg(test)]
mod tests;
