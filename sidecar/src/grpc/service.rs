//! The generated service, verb by verb.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::ITEMS_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::tensorlane_server::Tensorlane;
use tensorlane_proto::ledger::Holder;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::bounds::Bounds;
use super::call::{Call, Calls, needs_session, outcome, within};
use super::channels;
use super::get::{ChunkSource, Chunks, Watched};
use super::guests::Connection;
use super::lasting::{Begun, LastingStreams};
use super::limits::MESSAGE_BYTES_MAX;
use super::pipes;
use super::put::{self, From};
use super::results::{Results, acquire_result, done_result, reserve_result};
use super::sessions::Sessions;
use super::status::{broke_off, status};
use super::{sets, watching};
use crate::exchange::{Borrowed, Caller, Exchange, Room, Taken};
use crate::metrics::Metrics;
use crate::metrics::label::{PanicScope, Verb};
use crate::store::{self, Claimant, Direction, Program};

/// The verbs over gRPC; clones are the same service.
#[derive(Clone)]
pub(super) struct Service {
    exchange: Arc<Exchange>,
    metrics: Arc<Metrics>,
    sessions: Arc<Sessions>,
    calls: Calls,
    lasting: LastingStreams,
}

type Reply<T> = Result<Response<T>, Status>;

// === impl Service ===

impl Service {
    pub(super) fn new(exchange: Arc<Exchange>, metrics: Arc<Metrics>, sessions: Arc<Sessions>) -> Self {
        Self { exchange, metrics, sessions, calls: Calls::default(), lasting: LastingStreams::default() }
    }

    /// Cancels all calls, then ends all sessions: what the sessions give back is not for calls that nobody awaits.
    pub(super) fn stop(&self) {
        self.calls.stop();
        self.sessions.stop();
    }

    /// Finds out who calls, and whether it may.
    fn begin<Q>(&self, verb: Verb, request: &Request<Q>) -> Result<Call, Status> {
        let gate = self.exchange.gate();
        let mut call = self.calls.begin(verb, &self.metrics, gate.enter());
        match gate.admit(verb).and_then(|()| self.sessions.holder(request.metadata())) {
            Ok(holder) => {
                let caller = call.caller_mut();
                caller.holder = holder;
                // Without a session it waits in the share of its program.
                caller.on_behalf = holder.is_none().then(|| Claimant::Program(from(request).program));
                Ok(call)
            }
            Err(failure) => {
                call.end([Err(failure.reason)]);
                Err(status(&failure))
            }
        }
    }

    /// Begins a stream of a channel or a pipe, if there is room for one more.
    fn begin_lasting<Q>(&self, verb: Verb, request: &Request<Q>) -> Result<Begun, Status> {
        let call = self.begin(verb, request)?;
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        match self.lasting.enter(connection.clone(), verb != Verb::ChannelRead) {
            Ok(place) => {
                let From { program, bounds } = from(request);
                let exchange = Arc::clone(&self.exchange);
                Ok(Begun { exchange, call, place, program, bounds, connection })
            }
            Err(failure) => {
                call.end([Err(failure.reason)]);
                Err(status(&failure))
            }
        }
    }

    /// Place of what was borrowed among the streams that keep bytes of the arena.
    fn held(&self, borrowed: &Borrowed, from: &From) -> store::Streaming {
        let held = self.exchange.store().streams().enter(Direction::Get, Arc::clone(&from.program));
        held.keeps(borrowed.tensors());
        held
    }

    /// Chunks of what was borrowed, for a call that began at `began`.
    fn chunks(&self, borrowed: Borrowed, began: Instant, from: &From) -> Chunks {
        let under_way = self.exchange.gate().enter();
        Chunks::new(borrowed, began, Arc::clone(&self.metrics), under_way)
            .within(self.exchange.store().streams().clone(), from.bounds.limit())
    }

    /// Chunks for a client that may stop reading.
    fn watched<S: ChunkSource + Send + 'static>(
        &self,
        chunks: S,
        held: store::Streaming,
        from: From,
    ) -> Watched<S> {
        let (watched, watch) = Watched::new(chunks, held, from.bounds);
        watched.by(self.exchange.threads(), watch)
    }

    /// Runs one call from beginning to end: whoever drops the future before has cancelled it.
    async fn call<Q, R: Results + prost::Message, F: Future<Output = Result<R, Failure>>>(
        &self,
        verb: Verb,
        request: Request<Q>,
        work: impl FnOnce(Arc<Exchange>, Caller, Q) -> F,
    ) -> Reply<R> {
        let call = self.begin(verb, &request)?;
        let threads = self.exchange.threads();
        let work = work(Arc::clone(&self.exchange), call.caller().clone(), request.into_inner());
        let done = threads.caught_future("grpc call", PanicScope::Call, pin!(work)).await;
        let done = done.unwrap_or_else(|| {
            // Whatever it has begun and nobody awaits.
            call.caller().cancel.cancel();
            Err(broke_off())
        });
        match done.and_then(bounded) {
            Ok(results) => {
                call.end(results.ended());
                Ok(Response::new(results))
            }
            Err(failure) => {
                call.end([Err(failure.reason)]);
                Err(status(&failure))
            }
        }
    }
}

/// An answer that its client takes, which by default is one of 4 MiB at most.
fn bounded<R: prost::Message>(answer: R) -> Result<R, Failure> {
    let bytes = answer.encoded_len();
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(answer);
    }
    let message = format!(
        "the answer would have {bytes} bytes and at most {MESSAGE_BYTES_MAX} are allowed over gRPC; ask for fewer items at once"
    );
    Err(Failure::new(Reason::TooLarge, message).with("bytes", bytes).with("bytes_max", MESSAGE_BYTES_MAX))
}

/// An answer about leases; they are given back where its client would not take it.
fn leased<R: prost::Message>(
    taken: Vec<Result<Taken, Failure>>,
    undo: impl FnOnce(Vec<Result<Taken, Failure>>),
    answer: impl FnOnce(Vec<v1::AcquireResult>) -> R,
) -> Result<R, Failure> {
    bounded(answer(taken.iter().map(acquire_result).collect())).inspect_err(|_| undo(taken))
}

/// Releases leases whose caller is gone before it has heard of them.
fn give_back(
    exchange: &Arc<Exchange>,
    by: Holder,
) -> impl FnOnce(Vec<Result<Taken, Failure>>) + Clone + Send + 'static {
    let exchange = Arc::clone(exchange);
    move |taken| {
        let ids = taken.iter().flatten().map(|t| t.id.0).collect();
        exchange.release(by, &v1::ReleaseRequest { ids, still_mapped: Vec::new() });
    }
}

#[tonic::async_trait]
impl Tensorlane for Service {
    type GetStream = Watched<Chunks>;
    type SetReadStream = Watched<sets::RowChunks>;
    type WatchStream = watching::Answers;
    type ChannelWriteStream = channels::Written;
    type ChannelReadStream = channels::Messages;
    type PipeStream = pipes::Events;
    type SessionStream = ReceiverStream<Result<v1::SessionEvent, Status>>;

    async fn put(&self, request: Request<Streaming<v1::PutChunk>>) -> Reply<v1::PutResponse> {
        let metrics = Arc::clone(&self.metrics);
        let from = from(&request);
        let put = |exchange, caller, stream| put::put(exchange, caller, metrics, from, stream);
        self.call(Verb::Put, request, put).await
    }

    async fn reserve(&self, request: Request<v1::ReserveRequest>) -> Reply<v1::ReserveResponse> {
        self.call(Verb::Reserve, request, |exchange, caller, request| async move {
            within(request.items.len())?;
            let by = needs_session(&caller)?;
            let lost = Arc::clone(&exchange);
            let undo = move |rooms: Vec<Result<Room, Failure>>| {
                rooms.into_iter().flatten().for_each(|room| lost.give_up(by, room.id));
            };
            let rooms = outcome(|done| exchange.reserve(caller, request, done), undo).await?;
            Ok(v1::ReserveResponse { results: rooms.iter().map(reserve_result).collect() })
        })
        .await
    }

    async fn fill(&self, request: Request<Streaming<v1::FillChunk>>) -> Reply<v1::FillResponse> {
        let from = from(&request);
        let fill = |exchange, caller, stream| put::fill(exchange, caller, from, stream);
        self.call(Verb::Fill, request, fill).await
    }

    async fn seal(&self, request: Request<v1::SealRequest>) -> Reply<v1::SealResponse> {
        self.call(Verb::Seal, request, |exchange, caller, request| async move {
            within(request.items.len())?;
            needs_session(&caller)?;
            if request.items.iter().all(|item| item.crc32c.is_none()) {
                return Ok(exchange.seal(&caller, request));
            }
            // Every byte is read for a checksum.
            let threads = exchange.threads().clone();
            let sealed = threads.blocking(move || exchange.seal(&caller, request));
            sealed.await.map_err(|_| Failure::new(Reason::Internal, "this seal broke off inside the sidecar"))
        })
        .await
    }

    async fn abort(&self, request: Request<v1::AbortRequest>) -> Reply<v1::AbortResponse> {
        self.call(Verb::Abort, request, |exchange, caller, request| async move {
            within(request.ids.len())?;
            needs_session(&caller)?;
            Ok(exchange.abort(&caller, &request))
        })
        .await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Reply<Self::GetStream> {
        let began = Instant::now();
        let call = self.begin(Verb::Get, &request)?;
        let (from, deadline_ms) = (from(&request), request.get_ref().deadline_ms);
        let (exchange, caller, request) = (&self.exchange, call.caller().clone(), request.into_inner());
        if deadline_ms > 0 {
            from.bounds.bear_until(exchange.deadline(deadline_ms));
        }
        let borrowed = match within(request.items.len()) {
            // What is borrowed goes back by itself.
            Ok(()) => outcome(|done| exchange.borrow(caller, request, done), drop).await,
            Err(failure) => Err(failure),
        };
        match borrowed {
            Ok(borrowed) => {
                let ended: Vec<_> =
                    borrowed.taken.iter().map(|t| t.as_ref().map(drop).map_err(|f| f.reason)).collect();
                let held = self.held(&borrowed, &from);
                let chunks = self.chunks(borrowed, began, &from);
                // The call ends here; its bytes are still on their way.
                call.end(ended);
                Ok(Response::new(self.watched(chunks, held, from)))
            }
            Err(failure) => {
                call.end([Err(failure.reason)]);
                Err(status(&failure))
            }
        }
    }

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Reply<v1::AcquireResponse> {
        self.call(Verb::Acquire, request, |exchange, caller, request| async move {
            within(request.items.len())?;
            let by = needs_session(&caller)?;
            if request.require.is_some_and(|require| require.zero_copy) {
                let why = "gRPC carries no maps; zero_copy is for the session socket";
                return Err(Failure::new(Reason::RequirementNotMet, why));
            }
            let undo = give_back(&exchange, by);
            let taken = outcome(|done| exchange.acquire(caller, request, done), undo.clone()).await?;
            leased(taken, undo, |results| v1::AcquireResponse { results })
        })
        .await
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Reply<v1::ReleaseResponse> {
        self.call(Verb::Release, request, |exchange, caller, request| async move {
            within(request.ids.len() + request.still_mapped.len())?;
            let by = needs_session(&caller)?;
            let results = exchange.release(by, &request).iter().map(done_result).collect();
            Ok(v1::ReleaseResponse { results })
        })
        .await
    }

    async fn describe(&self, request: Request<v1::DescribeRequest>) -> Reply<v1::DescribeResponse> {
        self.call(Verb::Describe, request, |exchange, caller, request| async move {
            within(request.targets.len())?;
            outcome(|done| exchange.describe(caller, request, done), drop).await
        })
        .await
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Reply<v1::ListResponse> {
        self.call(Verb::List, request, |exchange, caller, request| async move {
            exchange.list(&caller, &request, ITEMS_MAX)
        })
        .await
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let call = self.begin(Verb::Watch, &request)?;
        // A watch lasts for as long as its client wants, however seldom it reads.
        Bounds::of(&request).bear();
        Ok(Response::new(watching::stream(Arc::clone(&self.exchange), call, request.into_inner())))
    }

    async fn name(&self, request: Request<v1::NameRequest>) -> Reply<v1::NameResponse> {
        self.call(Verb::Name, request, |exchange, caller, request| async move {
            within(request.items.len())?;
            exchange.name(&caller, &request)
        })
        .await
    }

    async fn unname(&self, request: Request<v1::UnnameRequest>) -> Reply<v1::UnnameResponse> {
        self.call(Verb::Unname, request, |exchange, _, request| async move {
            within(request.names.len())?;
            Ok(exchange.unname(&request))
        })
        .await
    }

    async fn publish_set(&self, request: Request<v1::PublishSetRequest>) -> Reply<v1::PublishSetResponse> {
        self.call(Verb::PublishSet, request, |exchange, _, request| async move {
            within(request.leaves.len())?;
            exchange.publish_set(request)
        })
        .await
    }

    async fn set_create(&self, request: Request<v1::SetCreateRequest>) -> Reply<v1::SetCreateResponse> {
        self.call(Verb::SetCreate, request, |exchange, caller, request| async move {
            outcome(|done| exchange.set_create(&caller, request, done), drop).await
        })
        .await
    }

    async fn set_open(&self, request: Request<v1::SetOpenRequest>) -> Reply<v1::SetOpenResponse> {
        self.call(Verb::SetOpen, request, |exchange, caller, request| async move {
            outcome(|done| exchange.set_open(&caller, &request, done), drop).await
        })
        .await
    }

    async fn set_stat(&self, request: Request<v1::SetStatRequest>) -> Reply<v1::SetStatResponse> {
        self.call(Verb::SetStat, request, |exchange, _, request| async move {
            exchange.set_stat(&request, MESSAGE_BYTES_MAX)
        })
        .await
    }

    async fn set_drop(&self, request: Request<v1::SetDropRequest>) -> Reply<v1::SetDropResponse> {
        self.call(Verb::SetDrop, request, |exchange, caller, request| async move {
            outcome(|done| exchange.set_drop(&caller, &request, done), drop).await
        })
        .await
    }

    async fn set_read(&self, request: Request<v1::SetReadRequest>) -> Reply<Self::SetReadStream> {
        let began = Instant::now();
        let call = self.begin(Verb::SetRead, &request)?;
        let (from, request) = (from(&request), request.into_inner());
        if request.deadline_ms > 0 {
            from.bounds.bear_until(self.exchange.deadline(request.deadline_ms));
        }
        let read = sets::read(&self.exchange, call.caller(), request).await.and_then(|rows| {
            let held = self.held(&rows.borrowed, &from);
            Ok((rows.going_out(|borrowed| self.chunks(borrowed, began, &from))?, held))
        });
        match read {
            Ok((chunks, held)) => {
                // The call ends here; its bytes are still on their way.
                call.end([Ok(())]);
                Ok(Response::new(self.watched(chunks, held, from)))
            }
            Err(failure) => {
                call.end([Err(failure.reason)]);
                Err(status(&failure))
            }
        }
    }

    async fn set_commit(
        &self,
        request: Request<Streaming<v1::SetCommitChunk>>,
    ) -> Reply<v1::SetCommitResponse> {
        let from = from(&request);
        let commit = |exchange, caller, stream| sets::commit(exchange, caller, from, stream);
        self.call(Verb::SetCommit, request, commit).await
    }

    async fn set_snapshot(&self, request: Request<v1::SetSnapshotRequest>) -> Reply<v1::SetSnapshotResponse> {
        self.call(Verb::SetSnapshot, request, |exchange, caller, request| async move {
            outcome(|done| exchange.set_snapshot(&caller, request, done), drop).await
        })
        .await
    }

    async fn channel_write(
        &self,
        request: Request<Streaming<v1::ChannelWriteRequest>>,
    ) -> Reply<Self::ChannelWriteStream> {
        let begun = self.begin_lasting(Verb::ChannelWrite, &request)?;
        Ok(Response::new(channels::write(begun, request.into_inner())))
    }

    async fn channel_read(&self, request: Request<v1::ChannelReadRequest>) -> Reply<Self::ChannelReadStream> {
        let begun = self.begin_lasting(Verb::ChannelRead, &request)?;
        Ok(Response::new(channels::read(begun, request.into_inner())))
    }

    async fn pipe(&self, request: Request<Streaming<v1::PipeRequest>>) -> Reply<Self::PipeStream> {
        let begun = self.begin_lasting(Verb::Pipe, &request)?;
        Ok(Response::new(pipes::begin(begun, request.into_inner())))
    }

    async fn lookup(&self, request: Request<v1::LookupRequest>) -> Reply<v1::LookupResponse> {
        self.call(Verb::Lookup, request, |exchange, caller, request| async move {
            within(request.names.len())?;
            outcome(|done| exchange.lookup(caller, request, done), drop).await
        })
        .await
    }

    async fn ticket(&self, request: Request<v1::TicketRequest>) -> Reply<v1::TicketResponse> {
        self.call(Verb::Ticket, request, |exchange, caller, request| async move {
            within(request.items.len())?;
            Ok(exchange.ticket(&caller, &request))
        })
        .await
    }

    async fn redeem(&self, request: Request<v1::RedeemRequest>) -> Reply<v1::RedeemResponse> {
        self.call(Verb::Redeem, request, |exchange, caller, request| async move {
            within(request.items.len())?;
            let by = needs_session(&caller)?;
            let undo = give_back(&exchange, by);
            let taken = outcome(|done| exchange.redeem(caller, request, done), undo.clone()).await?;
            leased(taken, undo, |results| v1::RedeemResponse { results })
        })
        .await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusResponse> {
        self.call(Verb::Status, request, |exchange, _, _| async move { Ok(exchange.status()) }).await
    }

    async fn peers(&self, request: Request<v1::PeersRequest>) -> Reply<v1::PeersResponse> {
        self.call(Verb::Peers, request, |exchange, _, _| async move { Ok(exchange.peers()) }).await
    }

    async fn session(&self, request: Request<v1::SessionRequest>) -> Reply<Self::SessionStream> {
        let call = self.calls.begin(Verb::Session, &self.metrics, self.exchange.gate().enter());
        match self.sessions.stream(request.metadata(), from(&request).program) {
            Ok(events) => {
                call.end([Ok(())]);
                Ok(Response::new(events))
            }
            Err(failure) => {
                call.end([Err(failure.reason)]);
                Err(status(&failure))
            }
        }
    }
}

/// Longest user agent that is kept, in bytes.
const AGENT_BYTES_MAX: usize = 256;

/// Origin of a request, as far as it is known.
fn from<T>(request: &Request<T>) -> From {
    let connection = request.extensions().get::<Arc<Connection>>();
    let agent = request.metadata().get("user-agent").and_then(|agent| agent.to_str().ok()).unwrap_or("");
    // Visible ASCII: any byte is the end of a character.
    let name = agent[..agent.len().min(AGENT_BYTES_MAX)].into();
    let (process, address) = connection.map_or((0, None), |c| (c.process, c.address));
    From { program: Arc::new(Program { name, process, address }), bounds: Bounds::of(request) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::exchange::alone::alone;

    #[tokio::test]
    async fn what_a_call_that_panics_has_begun_is_cancelled() {
        let (exchange, workers, metrics) = alone();
        let sessions = Sessions::new(1, Duration::ZERO, Arc::clone(&exchange), Arc::clone(&metrics));
        let service = Service::new(exchange, metrics, sessions);
        let mut begun = None;
        let work = |_: Arc<Exchange>, caller: Caller, ()| {
            begun = Some(caller.cancel);
            async {
                assert!(std::hint::black_box(false), "part of the test");
                Ok::<_, Failure>(v1::StatusResponse::default())
            }
        };
        let refused = service.call(Verb::Status, Request::new(()), work).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Internal);
        assert!(begun.is_some_and(|cancel| cancel.is_cancelled()));
        assert_eq!(service.exchange.threads().panics(PanicScope::Call), 1);
        workers.stop();
    }
}
