//! Pipes over gRPC: a stream is one end of a pipe, by copy.
//!
//! ```text
//!   connect or accept ──> opened
//!   message, chunk, chunk ── tensors of this sidecar ── written at the pipe ── read there ──> written
//!   taken <── received, chunk, chunk <── read at the pipe <── tensors of the other end
//! ```
//! - [`message`]: a message that comes in, part after part. Pure.
//! - [`write`]: messages of the client go into the pipe.
//! - [`read`]: messages of the pipe go to the client.
//! - [`progress`]: how far both are, and when the stream is over. Pure.
//!
//! The stream is a session of its own: whatever ends it drops its end of the pipe, its leases, and what was written and not read.

mod message;
mod progress;
mod read;
mod write;

use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::pipe_request::Step;
use tensorlane_proto::generated::pipe_response::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use self::progress::Progress;
use self::read::Reader;
use self::write::Writer;
use super::call::outcome;
use super::lasting::{self, Begun, attend, start_task};
use super::status::broken;
use crate::cancel::CancelOnDrop;
use crate::exchange::HostedPipe;
use crate::store::Program;

/// Answers to the client of a pipe.
pub(super) type Events = ReceiverStream<Result<v1::PipeResponse, Status>>;

type Requests = Streaming<v1::PipeRequest>;

/// Answers on their way to the client: one waits here, and the next one for it.
#[derive(Clone)]
struct Answers(lasting::Answers<v1::PipeResponse>);

impl Answers {
    /// Says something to the client. Where it has gone, the stream is about to end.
    async fn say(&self, event: Event) {
        let _ = self.0.send(Ok(v1::PipeResponse { event: Some(event) })).await;
    }
}

/// Begins an end of a pipe, which lasts until both ends have finished, either ends it, it is refused, or the server ends.
pub(super) fn begin(begun: Begun, requests: Requests) -> Events {
    let (send, answers) = mpsc::channel(1);
    let (threads, begun) = (begun.exchange.threads().clone(), Arc::new(begun));
    let conversation = {
        let (begun, answers) = (Arc::clone(&begun), Answers(send.clone()));
        async move { converse(&begun, requests, &answers).await }
    };
    start_task(threads, "grpc-pipe", send.clone(), attend(begun, send, conversation));
    ReceiverStream::new(answers)
}

async fn converse(begun: &Begun, mut requests: Requests, answers: &Answers) -> Result<(), Failure> {
    let first = next(&mut requests).await?;
    // Silent for as long as it has nothing to say.
    let patience = begun.bounds.patience();
    begun.bounds.bear();
    let (pipe, opened) = open(begun, first).await?;
    let number = opened.pipe;
    answers.say(Event::Opened(opened)).await;
    begun.exchange.threads().point("pipe opened");
    let progress = Progress::default();
    let (writer, told) = Writer::new(begun, (&pipe, number), &progress, patience);
    let reading = async {
        let failure = match Reader::new(begun, answers, (&pipe, number), &progress).run().await {
            // The client may write on.
            Ok(()) => std::future::pending().await,
            Err(failure) => failure,
        };
        // No further message can be written. What was is told first.
        progress.stop();
        progress.until_told().await;
        failure
    };
    tokio::select! {
        biased;
        () = write::tell(told, answers, &pipe, &progress) => {}
        failure = writer.run(requests) => return Err(failure),
        failure = reading => return Err(failure),
        () = progress.until_over() => {}
    }
    pipe.say(&v1::PipeEndRequest { pipe: number, closed: true, ..Default::default() });
    Ok(())
}

/// Connects, or accepts, as the first message of the stream says.
async fn open(begun: &Begun, first: Option<Step>) -> Result<(HostedPipe, v1::PipeOpened), Failure> {
    let end = |client: &str| {
        let name = begun.client(client)?;
        let program = Program { name, ..Program::clone(&begun.program) };
        Ok::<_, Failure>(HostedPipe::new(&begun.exchange, Arc::new(program)))
    };
    let call = CancelOnDrop::default();
    match first {
        Some(Step::Connect(v1::PipeConnect { name, peer, wait_ms, deadline_ms, client })) => {
            let (pipe, request) =
                (end(&client)?, v1::PipeConnectRequest { peer, name, wait_ms, deadline_ms });
            let opened = outcome(|done| pipe.connect(&call, &request, done), drop).await?;
            Ok((pipe, opened))
        }
        Some(Step::Accept(accept)) => {
            let pipe = end(&accept.client)?;
            let opened = outcome(|done| pipe.accept(&call, &accept, done), drop).await?;
            Ok((pipe, opened))
        }
        _ => Err(misuse("the first message of a Pipe stream is `connect` or `accept`")),
    }
}

async fn next(requests: &mut Requests) -> Result<Option<Step>, Failure> {
    match requests.message().await.map_err(|status| broken(&status))? {
        None => Ok(None),
        Some(v1::PipeRequest { step: Some(step) }) => Ok(Some(step)),
        Some(v1::PipeRequest { step: None }) => {
            Err(misuse("a message without a step that this sidecar knows; update it, or send another one"))
        }
    }
}

fn misuse(why: &str) -> Failure {
    Failure::new(Reason::InvalidArgument, why)
}
