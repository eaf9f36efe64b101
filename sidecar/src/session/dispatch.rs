//! From a frame to a verb of the exchange and back to a reply. One place where kinds meet messages.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{
    CHANNEL_GROWTH_SINCE, CHANNELS_SINCE, FrameError, GPU_SINCE, Header, MUTABLE_SETS_SINCE, PIPES_SINCE,
    SESSION_BODY_MAX, SESSION_ITEMS_MAX, SET_SNAPSHOTS_SINCE, SETS_SINCE, STAGE_SINCE, SessionKind,
    WATCH_SINCE, top_level_items,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::Holder;

use super::call::{Call, Undecoded};
use super::link::SessionLink;
use super::read::gives_back;
use super::{Pending, SessionSettings};
use crate::exchange::Exchange;
use crate::metrics::label::Verb;

/// Calls of all sessions and over gRPC, in times of those that a session may have, from which on a session has few at a time: each call
/// costs some hundred bytes, and up to 16 KiB of a request that counts nowhere.
const CROWD: usize = 16;
/// Calls of a session that are few.
const FEW: usize = 16;

/// Frame of a client, whole.
pub(super) struct Frame {
    pub(super) header: Header,
    /// The body, or the reason for which it was not kept.
    pub(super) body: Result<Bytes, Failure>,
    /// The descriptor that came with it; always there for a kind that has one.
    pub(super) memory: Option<OwnedFd>,
}

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
    settings: &SessionSettings,
    frame: Frame,
) -> Result<(), FrameError> {
    let Frame { header, body, memory } = frame;
    let header = &header;
    let kind = SessionKind::try_from(header.kind)?;
    if header.flags != 0 || link.version() < since(kind) {
        return Err(FrameError::OutOfPlace(header.kind));
    }
    let body = match body {
        Ok(body) => body,
        Err(failure) => return refuse(exchange, link, pending, kind, header, settings, &failure),
    };
    match kind {
        SessionKind::Release => {
            release(exchange, link, &decode::<v1::ReleaseRequest>(header, body)?);
            Ok(())
        }
        SessionKind::SegmentMapped => {
            // Nobody waits for an answer after the deadline: the sidecar has taken the segment back, and told the call so.
            let _is_awaited = link.mapped(decode(header, body)?);
            Ok(())
        }
        SessionKind::ChannelDetach => {
            exchange.channel_detach(link.id(), &decode(header, body)?);
            Ok(())
        }
        SessionKind::ChannelReady => {
            exchange.channel_ready(link.id(), &decode(header, body)?);
            Ok(())
        }
        SessionKind::PipeEnd => {
            exchange.pipe_end(link.id(), &decode(header, body)?);
            Ok(())
        }
        SessionKind::Cancel => {
            // Outside of the lock: a call that is cancelled may be answered here and now, and leaves the pending ones then.
            let cancel = pending.lock().get(&header.call).cloned();
            if let Some(cancel) = cancel {
                cancel.cancel();
            }
            Ok(())
        }
        SessionKind::Hello
        | SessionKind::Segment
        | SessionKind::SegmentRetired
        | SessionKind::SegmentExchanged
        | SessionKind::ChannelReader
        | SessionKind::GpuFreed => Err(FrameError::OutOfPlace(header.kind)),
        // Two calls of one number could not be told apart: neither could be withdrawn, nor counted.
        _ if header.call == 0 || pending.lock().contains_key(&header.call) => {
            Err(FrameError::OutOfPlace(header.kind))
        }
        verb => {
            let call = Call::begin(exchange, link, pending, verb, header.call, &body, &settings.requests);
            let own = pending.lock().len();
            // What gives back makes room, however many there are.
            let all = if gives_back(header) { 0 } else { exchange.gate().under_way() };
            let may = check_pending(own, all, settings.pending_max);
            if let Err(failure) = may.and_then(|()| exchange.gate().admit(call.label())) {
                call.fail(&failure);
                return Ok(());
            }
            // Counted before it is decoded: an item of two bytes becomes hundreds.
            let Some(call) = call.within(top_level_items(&body)) else { return Ok(()) };
            let done = match memory {
                Some(_) if !settings.takes_gpu => {
                    call.fail(&no_gpu_here());
                    Ok(())
                }
                Some(memory) => put_gpu(exchange, call, header, body, memory),
                None => verb_call(exchange, call, header, body),
            };
            match done {
                Ok(()) | Err(Undecoded::Refused) => Ok(()),
                Err(Undecoded::Frame(error)) => Err(error),
            }
        }
    }
}

/// Checks that one more call may begin, which is among the `own` ones of its session and the calls of `all`.
fn check_pending(own: usize, all: usize, most: usize) -> Result<(), Failure> {
    let of_all = most.saturating_mul(CROWD);
    let message = if own > most {
        format!("{most} calls of this session wait already (limits.pendingRequests); wait for some to end")
    } else if all > of_all && own > FEW {
        format!(
            "{all} calls wait or run at this sidecar and {own} of them are this session's; beyond {of_all} ({CROWD} times \
             limits.pendingRequests) a session has {FEW} at a time: wait for some to end"
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(Reason::LimitExceeded, message))
}

/// Refuses the call of a frame whose body was not kept. A session whose frame is no call ends: it would believe that it was heard.
fn refuse(
    exchange: &Arc<Exchange>,
    link: &Arc<SessionLink>,
    pending: &Pending,
    kind: SessionKind,
    header: &Header,
    settings: &SessionSettings,
    failure: &Failure,
) -> Result<(), FrameError> {
    let is_call =
        header.call != 0 && kind != SessionKind::Cancel && !pending.lock().contains_key(&header.call);
    if !is_call {
        return Err(FrameError::OutOfPlace(header.kind));
    }
    let requests = &settings.requests;
    Call::begin(exchange, link, pending, kind, header.call, &Bytes::new(), requests).fail(failure);
    Ok(())
}

/// The first version of the protocol that has a kind.
fn since(kind: SessionKind) -> u32 {
    match kind {
        SessionKind::PublishSet => SETS_SINCE,
        SessionKind::ChannelCreate
        | SessionKind::ChannelAttach
        | SessionKind::ChannelDetach
        | SessionKind::ChannelStat
        | SessionKind::ChannelReady => CHANNELS_SINCE,
        SessionKind::ChannelExtent => CHANNEL_GROWTH_SINCE,
        SessionKind::PipeListen
        | SessionKind::PipeConnect
        | SessionKind::PipeAccept
        | SessionKind::PipeWrite
        | SessionKind::PipeRead
        | SessionKind::PipeEnd => PIPES_SINCE,
        SessionKind::PutGpu | SessionKind::OpenGpu => GPU_SINCE,
        SessionKind::Watch => WATCH_SINCE,
        SessionKind::Stage => STAGE_SINCE,
        SessionKind::SetCreate
        | SessionKind::SetOpen
        | SessionKind::SetRead
        | SessionKind::SetCommit
        | SessionKind::SetStat
        | SessionKind::SetDrop => MUTABLE_SETS_SINCE,
        SessionKind::SetSnapshot => SET_SNAPSHOTS_SINCE,
        _ => 1,
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

fn verb_call(
    exchange: &Arc<Exchange>,
    mut call: Call,
    header: &Header,
    body: Bytes,
) -> Result<(), Undecoded> {
    match call.verb {
        SessionKind::Put => {
            let request: v1::PutRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.put(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::Reserve => {
            let request: v1::ReserveRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.reserve(call.caller(), request, move |outcome| call.answer_reserved(outcome));
        }
        SessionKind::Seal => {
            let request: v1::SealRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let response = exchange.seal(&call.caller(), request);
            call.answer(Ok(response));
        }
        SessionKind::Abort => {
            let request: v1::AbortRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.ids.len()) else { return Ok(()) };
            let response = exchange.abort(&call.caller(), &request);
            call.answer(Ok(response));
        }
        SessionKind::Acquire => {
            let request: v1::AcquireRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.acquire(call.caller(), request, move |outcome| call.answer_acquired(outcome));
        }
        SessionKind::Redeem => {
            let request: v1::RedeemRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            exchange.redeem(call.caller(), request, move |outcome| call.answer_acquired(outcome));
        }
        SessionKind::ChannelCreate => {
            let request: v1::ChannelCreateRequest = call.decode(header, body)?;
            exchange.channel_create(call.caller(), &request, move |outcome| call.answer_created(outcome));
        }
        SessionKind::ChannelAttach => {
            let request: v1::ChannelAttachRequest = call.decode(header, body)?;
            exchange.channel_attach(call.caller(), &request, move |outcome| call.answer_attached(outcome));
        }
        SessionKind::ChannelExtent => {
            let request: v1::ChannelExtentRequest = call.decode(header, body)?;
            exchange.channel_extent(call.caller(), &request, move |outcome| call.answer_extent(outcome));
        }
        SessionKind::SetOpen => {
            let request: v1::SetOpenRequest = call.decode(header, body)?;
            exchange.set_open(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        SessionKind::SetRead => {
            let request: v1::SetReadRequest = call.decode(header, body)?;
            exchange.set_read(call.caller(), request, move |outcome| call.answer_rows(outcome));
        }
        SessionKind::SetCommit => {
            let request: v1::SetCommitRequest = call.decode(header, body)?;
            exchange.set_commit(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::SetSnapshot => {
            let request: v1::SetSnapshotRequest = call.decode(header, body)?;
            exchange.set_snapshot(&call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::PipeListen
        | SessionKind::PipeConnect
        | SessionKind::PipeAccept
        | SessionKind::PipeWrite
        | SessionKind::PipeRead => return pipe(exchange, call, header, body),
        _ => return question(exchange, call, header, body),
    }
    Ok(())
}

/// The verbs of pipes.
fn pipe(exchange: &Arc<Exchange>, mut call: Call, header: &Header, body: Bytes) -> Result<(), Undecoded> {
    match call.verb {
        SessionKind::PipeListen => {
            let request: v1::PipeListenRequest = call.decode(header, body)?;
            let response = exchange.pipe_listen(&call.caller(), &request);
            call.answer(response);
        }
        SessionKind::PipeConnect => {
            let request: v1::PipeConnectRequest = call.decode(header, body)?;
            exchange.pipe_connect(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        SessionKind::PipeAccept => {
            let request: v1::PipeAcceptRequest = call.decode(header, body)?;
            exchange.pipe_accept(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        SessionKind::PipeWrite => {
            let request: v1::PipeWriteRequest = call.decode(header, body)?;
            exchange.pipe_write(&call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::PipeRead => {
            let request: v1::PipeReadRequest = call.decode(header, body)?;
            exchange.pipe_read(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        _ => return Err(FrameError::OutOfPlace(header.kind).into()),
    }
    Ok(())
}

fn no_gpu_here() -> Failure {
    let message = "this sidecar takes no tensors in GPU memory: gpu.mode is none, as the operator sets it for a pod without a \
                   GPU; put a tensor of the host";
    Failure::new(Reason::Unsupported, message)
}

/// The one verb that brings a descriptor.
fn put_gpu(
    exchange: &Exchange,
    mut call: Call,
    header: &Header,
    body: Bytes,
    memory: OwnedFd,
) -> Result<(), Undecoded> {
    let request: v1::PutGpuRequest = call.decode(header, body)?;
    let response = exchange.put_gpu(&call.caller(), request, memory);
    call.answer(Ok(response));
    Ok(())
}

/// The verbs that move no bytes.
fn question(exchange: &Arc<Exchange>, mut call: Call, header: &Header, body: Bytes) -> Result<(), Undecoded> {
    match call.verb {
        SessionKind::Describe => {
            let request: v1::DescribeRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.targets.len()) else { return Ok(()) };
            exchange.describe(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::Lookup => {
            let request: v1::LookupRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.names.len()) else { return Ok(()) };
            exchange.lookup(call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::List => {
            let request = call.decode::<v1::ListRequest>(header, body)?;
            let response = exchange.list(&call.caller(), &request, SESSION_ITEMS_MAX);
            call.answer(response);
        }
        SessionKind::Watch => {
            let request: v1::WatchRequest = call.decode(header, body)?;
            exchange.watch(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        SessionKind::Stage => {
            let request: v1::StageRequest = call.decode(header, body)?;
            exchange.stage_next(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        SessionKind::Name => {
            let request: v1::NameRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let response = exchange.name(&call.caller(), &request);
            call.answer(response);
        }
        SessionKind::Unname => {
            let request: v1::UnnameRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.names.len()) else { return Ok(()) };
            let response = exchange.unname(&request);
            call.answer(Ok(response));
        }
        SessionKind::PublishSet => {
            let request: v1::PublishSetRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.leaves.len()) else { return Ok(()) };
            let response = exchange.publish_set(request);
            call.answer(response);
        }
        SessionKind::SetCreate => {
            let request: v1::SetCreateRequest = call.decode(header, body)?;
            exchange.set_create(&call.caller(), request, move |outcome| call.answer(outcome));
        }
        SessionKind::SetStat => {
            let request: v1::SetStatRequest = call.decode(header, body)?;
            let response = exchange.set_stat(&request, SESSION_BODY_MAX as usize);
            call.answer(response);
        }
        SessionKind::SetDrop => {
            let request: v1::SetDropRequest = call.decode(header, body)?;
            exchange.set_drop(&call.caller(), &request, move |outcome| call.answer(outcome));
        }
        SessionKind::ChannelStat => {
            let request: v1::ChannelStatRequest = call.decode(header, body)?;
            let response = exchange.channel_stat(&request);
            call.answer(Ok(response));
        }
        SessionKind::Ticket => {
            let request: v1::TicketRequest = call.decode(header, body)?;
            let Some(call) = call.within(request.items.len()) else { return Ok(()) };
            let response = exchange.ticket(&call.caller(), &request);
            call.answer(Ok(response));
        }
        SessionKind::OpenGpu => {
            let request: v1::OpenGpuRequest = call.decode(header, body)?;
            let allocation = exchange.open_gpu(&call.caller(), &request);
            call.answer_opened(allocation);
        }
        SessionKind::Status => {
            let v1::StatusRequest {} = call.decode(header, body)?;
            let response = exchange.status();
            call.answer(Ok(response));
        }
        SessionKind::Peers => {
            let v1::PeersRequest {} = call.decode(header, body)?;
            let response = exchange.peers();
            call.answer(Ok(response));
        }
        _ => return Err(FrameError::OutOfPlace(header.kind).into()),
    }
    Ok(())
}

fn decode<M: Message + Default>(header: &Header, body: Bytes) -> Result<M, FrameError> {
    M::decode(body).map_err(|_| FrameError::Malformed(header.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_all_sessions_have_as_many_calls_as_may_be_one_with_many_begins_no_more_and_one_with_few_does() {
        let most = 1_024;
        for (own, all) in [(most, most * CROWD), (FEW, usize::MAX), (1, most * CROWD + 1), (most, most)] {
            assert_eq!(check_pending(own, all, most), Ok(()), "{own} of {all}");
        }
        let refused = |own, all| check_pending(own, all, most).unwrap_err();
        let (alone, among_many) = (refused(most + 1, most + 1), refused(FEW + 1, most * CROWD + 1));
        assert_eq!([alone.reason, among_many.reason], [Reason::LimitExceeded; 2]);
        assert!(alone.message.contains("1024 calls of this session wait already"), "{alone}");
        assert!(among_many.message.contains("16385 calls") && among_many.message.contains("beyond 16384"));
        assert_eq!(check_pending(1, usize::MAX, usize::MAX), Ok(()), "the bound has no end");
    }
}
