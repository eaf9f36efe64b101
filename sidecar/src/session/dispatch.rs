//! From a frame to a verb of the exchange and back to a reply. One place where kinds meet messages.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{
    self, FAILED, FrameError, HEADER_BYTES, Header, REPLY, SESSION_BODY_MAX, SESSION_ITEMS_MAX, SessionKind,
    top_level_items,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::negotiate::Transport;

use super::Pending;
use super::link::SessionLink;
use crate::cancel::Cancel;
use crate::exchange::{Caller, Exchange, Room, Taken};
use crate::metrics::label::{Moved, Verb};
use crate::results::{Ended, Results};

/// The first frame must be a Hello.
pub(super) fn hello(header: &Header, body: Bytes) -> Result<v1::SessionHello, FrameError> {
    if SessionKind::try_from(header.kind)? != SessionKind::Hello || header.flags != 0 {
        return Err(FrameError::OutOfPlace(header.kind));
    }
    decode(header, body)
}

/// Does what one frame asks for. An error ends the session.
pub(super) fn frame(
    exchange: &Arc<Exchange>,
    link: &Arc<SessionLink>,
    pending: &Pending,
    pending_max: usize,
    header: &Header,
    body: Bytes,
) -> Result<(), FrameError> {
    let kind = SessionKind::try_from(header.kind)?;
    if header.flags != 0 {
        return Err(FrameError::OutOfPlace(header.kind));
    }
    match kind {
        SessionKind::Release => {
            release(exchange, link, &decode::<v1::ReleaseRequest>(header, body)?);
            Ok(())
        }
        SessionKind::SegmentMapped => match link.mapped(decode(header, body)?) {
            true => Ok(()),
            // It came after the deadline: the sidecar has taken the segment back, and told the waiting call so.
            false => Ok(()),
        },
        SessionKind::Cancel => {
            // Outside of the lock: a call that is cancelled may be answered here and now, and leaves the pending ones then.
            let cancel = pending.lock().get(&header.call).cloned();
            if let Some(cancel) = cancel {
                cancel.cancel();
            }
            Ok(())
        }
        SessionKind::Hello | SessionKind::Segment | SessionKind::SegmentRetired => {
            Err(FrameError::OutOfPlace(header.kind))
        }
        // Two calls of one number could not be told apart: neither could be withdrawn, nor counted.
        _ if header.call == 0 || pending.lock().contains_key(&header.call) => {
            Err(FrameError::OutOfPlace(header.kind))
        }
        verb => {
            let call = Call::begin(exchange, link, pending, verb, header.call);
            if pending.lock().len() > pending_max {
                call.fail(&Failure::new(
                    Reason::LimitExceeded,
                    format!("{pending_max} calls of this session wait already; wait for some to end"),
                ));
                return Ok(());
            }
            // Counted before it is decoded: an item of two bytes becomes hundreds.
            match call.within(top_level_items(&body)) {
                Some(call) => verb_call(exchange, call, header, body),
                None => Ok(()),
            }
        }
    }
}

/// Release has no reply; how its items ended is counted all the same.
fn release(exchange: &Arc<Exchange>, link: &Arc<SessionLink>, request: &v1::ReleaseRequest) {
    let items = &exchange.metrics().calls.items;
    let mut well = 0;
    for outcome in exchange.release(Holder::Session(link.id()), request) {
        match outcome {
            Ok(()) => well += 1,
            Err(failure) => items.at((Verb::Release, Err(failure.reason).into())).inc(),
        }
    }
    items.at((Verb::Release, Ok(()).into())).inc_by(well);
}

fn verb_call(exchange: &Arc<Exchange>, call: Call, header: &Header, body: Bytes) -> Result<(), FrameError> {
    match call.verb {
        SessionKind::Put => {
            let request: v1::PutRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.put(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::Reserve => {
            let request: v1::ReserveRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.reserve(call.caller(), request, move |outcome| call.answer_reserved(outcome));
        }
        SessionKind::Seal => {
            let request: v1::SealRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let response = exchange.seal(&call.caller(), request);
            call.answer(Ok(response));
        }
        SessionKind::Abort => {
            let request: v1::AbortRequest = decode(header, body)?;
            let Some(call) = call.within(request.ids.len()) else { return Ok(()) };
            let response = exchange.abort(&call.caller(), &request);
            call.answer(Ok(response));
        }
        SessionKind::Acquire => {
            let request: v1::AcquireRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.acquire(call.caller(), request, move |outcome| call.answer_acquired(outcome));
        }
        SessionKind::Redeem => {
            let request: v1::RedeemRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let outcome = exchange.redeem(&call.caller(), request);
            call.answer_acquired(Ok(outcome));
        }
        _ => return question(exchange, call, header, body),
    }
    Ok(())
}

/// The verbs that move no bytes.
fn question(exchange: &Arc<Exchange>, call: Call, header: &Header, body: Bytes) -> Result<(), FrameError> {
    match call.verb {
        SessionKind::Describe => {
            let request: v1::DescribeRequest = decode(header, body)?;
            let Some(call) = call.within(request.targets.len()) else { return Ok(()) };
            exchange.describe(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::Lookup => {
            let request: v1::LookupRequest = decode(header, body)?;
            let Some(call) = call.within(request.names.len()) else { return Ok(()) };
            exchange.lookup(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::List => {
            let response = exchange.list(&decode::<v1::ListRequest>(header, body)?);
            call.answer(response);
        }
        SessionKind::Name => {
            let request: v1::NameRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let response = exchange.name(&call.caller(), &request);
            call.answer(Ok(response));
        }
        SessionKind::Unname => {
            let request: v1::UnnameRequest = decode(header, body)?;
            let Some(call) = call.within(request.names.len()) else { return Ok(()) };
            let response = exchange.unname(&request);
            call.answer(Ok(response));
        }
        SessionKind::Ticket => {
            let request: v1::TicketRequest = decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let response = exchange.ticket(&call.caller(), &request);
            call.answer(Ok(response));
        }
        SessionKind::Status => {
            let v1::StatusRequest {} = decode(header, body)?;
            let response = exchange.status();
            call.answer(Ok(response));
        }
        SessionKind::Peers => {
            let v1::PeersRequest {} = decode(header, body)?;
            let response = exchange.peers();
            call.answer(Ok(response));
        }
        _ => return Err(FrameError::OutOfPlace(header.kind)),
    }
    Ok(())
}

fn decode<M: Message + Default>(header: &Header, body: Bytes) -> Result<M, FrameError> {
    M::decode(body).map_err(|_| FrameError::Malformed(header.kind))
}

/// One call that has not been answered. Dropped without an answer it says so, rather than leave the client waiting.
struct Call {
    exchange: Arc<Exchange>,
    link: Arc<SessionLink>,
    pending: Pending,
    verb: SessionKind,
    number: u64,
    cancel: Cancel,
    began: Instant,
    answered: bool,
}

// === impl Call ===

impl Call {
    fn begin(
        exchange: &Arc<Exchange>,
        link: &Arc<SessionLink>,
        pending: &Pending,
        verb: SessionKind,
        number: u64,
    ) -> Self {
        let cancel = Cancel::default();
        pending.lock().insert(number, cancel.clone());
        let (exchange, link, pending) = (Arc::clone(exchange), Arc::clone(link), Arc::clone(pending));
        Self { exchange, link, pending, verb, number, cancel, began: Instant::now(), answered: false }
    }

    fn caller(&self) -> Caller {
        Caller {
            holder: Some(Holder::Session(self.link.id())),
            link: Some(Arc::clone(&self.link)),
            cancel: self.cancel.clone(),
        }
    }

    /// The call, if it asks for no more items than allowed; else it has been refused.
    fn within(self, items: usize) -> Option<Self> {
        if items <= SESSION_ITEMS_MAX {
            return Some(self);
        }
        self.fail(&Failure::new(
            Reason::TooLarge,
            format!("{items} items in one call; at most {SESSION_ITEMS_MAX}: split it"),
        ));
        None
    }

    fn answer<M: Message + Results>(mut self, outcome: Result<M, Failure>) {
        match outcome {
            Ok(message) => {
                let frame = frame::encode(self.verb.into(), REPLY, self.number, &message);
                if let Err(failure) = check_length(&frame) {
                    return self.fail(&failure);
                }
                self.count(message.ended());
                self.done();
                self.link.send(frame, Vec::new());
            }
            Err(failure) => self.fail(&failure),
        }
    }

    fn answer_reserved(mut self, outcome: Result<Vec<Result<Room, Failure>>, Failure>) {
        let rooms = match outcome {
            Ok(rooms) => rooms,
            Err(failure) => return self.fail(&failure),
        };
        self.count(rooms.iter().map(|room| ended(room.as_ref().err())));
        let results = rooms.iter().map(reserve_result).collect();
        let frame = frame::encode(self.verb.into(), REPLY, self.number, &v1::ReserveResponse { results });
        let blocks = rooms.iter().filter_map(|r| r.as_ref().ok()).map(|room| &room.block);
        self.done();
        if let Err(failure) = self.link.send_located(frame, blocks, &*self.exchange) {
            for room in rooms.iter().flatten() {
                self.exchange.give_up(Holder::Session(self.link.id()), room.id);
            }
            self.fail(&failure);
        }
    }

    fn answer_acquired(mut self, outcome: Result<Vec<Result<Taken, Failure>>, Failure>) {
        let taken = match outcome {
            Ok(taken) => taken,
            Err(failure) => return self.fail(&failure),
        };
        let results = taken.iter().map(acquire_result).collect();
        let mapped = taken.iter().flatten().filter(|t| t.moved.is_none()).map(|t| t.block().len()).sum();
        let moves = &self.exchange.metrics().moves;
        moves.got(Transport::Local, Moved::Done, mapped, self.began.elapsed());
        let frame = frame::encode(self.verb.into(), REPLY, self.number, &v1::AcquireResponse { results });
        let sent = check_length(&frame).and_then(|()| {
            self.count(taken.iter().map(|taken| ended(taken.as_ref().err())));
            self.done();
            let blocks = taken.iter().filter_map(|t| t.as_ref().ok()).map(Taken::block);
            self.link.send_located(frame, blocks, &*self.exchange)
        });
        if let Err(failure) = sent {
            let ids = taken.iter().flatten().map(|t| t.id.0).collect();
            let release = v1::ReleaseRequest { ids, still_mapped: Vec::new() };
            self.exchange.release(Holder::Session(self.link.id()), &release);
            self.fail(&failure);
        }
    }

    fn fail(mut self, failure: &Failure) {
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

    fn label(&self) -> Verb {
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
            SessionKind::Hello
            | SessionKind::Segment
            | SessionKind::SegmentMapped
            | SessionKind::SegmentRetired
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
        if !self.answered && !self.link.is_cut() {
            self.send_failure(&Failure::new(
                Reason::Cancelled,
                "the sidecar gave this call up; it is ending".to_owned(),
            ));
        }
    }
}

fn ended(failure: Option<&Failure>) -> Ended {
    failure.map_or(Ok(()), |failure| Err(failure.reason))
}

/// A reply above the limit of a frame would end the session; a few items with much metadata each come to that.
fn check_length(frame: &[u8]) -> Result<(), Failure> {
    let (bytes, most) = (frame.len(), HEADER_BYTES + SESSION_BODY_MAX as usize);
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

fn acquire_result(taken: &Result<Taken, Failure>) -> v1::AcquireResult {
    use v1::acquire_result::Outcome;
    let outcome = match taken {
        Ok(taken) => Outcome::Acquired(taken.to_wire()),
        Err(failure) => Outcome::Failure(failure.into()),
    };
    v1::AcquireResult { outcome: Some(outcome) }
}
