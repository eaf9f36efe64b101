//! Watch over gRPC: the calls of a watch one after another, and their answers as one stream.
//!
//! The next answer is asked for when there is room for it. So a client that does not read costs two answers, one here and one in the
//! connection, and is told WATCH_CUT once it has fallen behind what is remembered. An answer without events says where to go on.

use std::sync::Arc;

use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::call::{Call, Cancelled, outcome};
use super::lasting::start_task;
use super::status::status;
use crate::cancel::Cancel;
use crate::exchange::{Caller, Exchange};
use crate::gate;

/// Answers of a watch, on their way to a client.
pub(super) type Answers = ReceiverStream<Result<v1::WatchResponse, Status>>;

/// Begins a watch, which lasts until its client ends it, it is refused or the server ends.
pub(super) fn stream(exchange: Arc<Exchange>, call: Call, request: v1::WatchRequest) -> Answers {
    let (send, answers) = mpsc::channel(1);
    let threads = exchange.threads().clone();
    start_task(threads, "grpc-watch", send.clone(), tell(exchange, call, request, send));
    ReceiverStream::new(answers)
}

async fn tell(
    exchange: Arc<Exchange>,
    call: Call,
    mut request: v1::WatchRequest,
    answers: mpsc::Sender<Result<v1::WatchResponse, Status>>,
) {
    request.deadline_ms = 0;
    let cancelled = Cancelled::of(&call.caller().cancel);
    // A drain waits for no client that does not read.
    let ending = Cancelled::of(exchange.gate().ending());
    let failure = loop {
        let room = tokio::select! {
            biased;
            failure = cancelled.wait() => break failure,
            _ = ending.wait() => break gate::draining(),
            room = answers.reserve() => room,
        };
        // The client has gone.
        let Ok(room) = room else { return };
        let next = tokio::select! {
            biased;
            () = answers.closed() => return,
            failure = cancelled.wait() => Err(failure),
            next = ask(&exchange, call.caller(), &request) => next,
        };
        let answer = match next {
            Ok(answer) => answer,
            Err(failure) => break failure,
        };
        request.after.clone_from(&answer.revision);
        request.page_token.clone_from(&answer.next_page_token);
        room.send(Ok(answer));
    };
    call.end([Err(failure.reason)]);
    // Ended already: a client that does not read holds nothing up. One that is gone needs no reason.
    let _ = answers.send(Err(status(&failure))).await;
}

/// Makes one call of the watch, which is withdrawn if this is dropped before.
async fn ask(
    exchange: &Arc<Exchange>,
    caller: &Caller,
    request: &v1::WatchRequest,
) -> Result<v1::WatchResponse, Failure> {
    let withdrawn = Withdrawn(Cancel::default());
    let caller = Caller { cancel: withdrawn.0.clone(), ..caller.clone() };
    outcome(|done| exchange.watch(&caller, request, done), drop).await
}

/// Cancels a call that nobody awaits any more.
struct Withdrawn(Cancel);

impl Drop for Withdrawn {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
