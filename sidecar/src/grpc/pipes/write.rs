//! Messages of the client go into the pipe.
//!
//! ```text
//!   message ── room for its tensors ── bytes ── all came: sealed, written ── read by the other end ──> written
//!                └── refused: its bytes are passed over ─────────────────────────────────────────────> written, not delivered
//! ```
//! With [`UNREAD_MAX`] messages that are not over nothing of the client is looked at, so whoever sends waits.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::pipe_request::Step;
use tensorlane_proto::generated::pipe_response::Event;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::super::call::outcome;
use super::super::coming::Landing;
use super::super::lasting::Begun;
use super::message::{Draft, DraftPart};
use super::progress::Progress;
use super::{Answers, Requests, misuse, next};
use crate::exchange::{HostedPipe, OpenPut};
use crate::store::{Direction, Streaming};

/// Messages of a client that are not over, at most: as many as an end of a pipe may have unread.
const UNREAD_MAX: usize = 64;

/// Place of one message among those that are not over.
type Room = OwnedSemaphorePermit;

/// Write that has ended, until its client is told.
pub(super) struct EndedWrite {
    message: u64,
    outcome: Result<(), Failure>,
    /// Tensors that are leased for it.
    ids: Vec<u64>,
    room: Room,
}

/// Writer of the messages of a client, on its stream.
pub(super) struct Writer<'a> {
    begun: &'a Begun,
    pipe: &'a HostedPipe,
    number: u64,
    progress: &'a Progress,
    /// Time for which it may stand still in the midst of a message.
    patience: Duration,
    window: Arc<Semaphore>,
    ended: mpsc::UnboundedSender<EndedWrite>,
    /// Number of messages that have come.
    messages: u64,
}

/// Bytes of a message that are coming.
struct Bodies {
    parts: Vec<Body>,
    /// Place among the streams that keep bytes of the arena.
    held: Streaming,
}

/// Bytes of a part.
enum Body {
    Inline(Vec<u8>),
    Open(Box<OpenPut>),
}

// === impl Writer ===

impl<'a> Writer<'a> {
    /// A writer to a pipe by its number, and where it tells of writes that have ended.
    pub(super) fn new(
        begun: &'a Begun,
        (pipe, number): (&'a HostedPipe, u64),
        progress: &'a Progress,
        patience: Duration,
    ) -> (Self, mpsc::UnboundedReceiver<EndedWrite>) {
        // Each of them has a place in the window.
        let (ended, told) = mpsc::unbounded_channel();
        let window = Arc::new(Semaphore::new(UNREAD_MAX));
        (Self { begun, pipe, number, progress, patience, window, ended, messages: 0 }, told)
    }

    /// Looks at what the client sends until that fails, or its stream ends before it has finished.
    pub(super) async fn run(mut self, mut requests: Requests) -> Failure {
        match self.converse(&mut requests).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    async fn converse(&mut self, requests: &mut Requests) -> Result<Infallible, Failure> {
        loop {
            let room = self.room().await?;
            match self.next(requests).await? {
                Some(Step::Message(_)) if self.progress.is_finished() => {
                    return Err(misuse("a message behind `finish`: nothing is written any more"));
                }
                Some(Step::Message(message)) => self.message(requests, message, room).await?,
                Some(Step::Taken(taken)) => self.taken(taken)?,
                Some(Step::Finish(_)) => {
                    self.pipe.say(&v1::PipeEndRequest {
                        pipe: self.number,
                        finished: true,
                        ..Default::default()
                    });
                    self.progress.finish();
                }
                Some(Step::Chunk(_)) => {
                    return Err(misuse(
                        "a chunk that belongs to no message: the one before has all its bytes",
                    ));
                }
                Some(Step::Connect(_) | Step::Accept(_)) => {
                    return Err(misuse(
                        "`connect` or `accept` is only the first message: a stream is one pipe",
                    ));
                }
                None if self.progress.is_finished() => {
                    self.progress.fall_silent();
                    return std::future::pending().await;
                }
                None => {
                    let why =
                        "the stream ended without `finish`: the other end was told that this one is lost";
                    return Err(Failure::new(Reason::Cancelled, why));
                }
            }
        }
    }

    /// A place for one more message, once there is one.
    async fn room(&self) -> Result<Room, Failure> {
        if let Ok(room) = Arc::clone(&self.window).try_acquire_owned() {
            return Ok(room);
        }
        // Its client may send on, and is not taken for one that stands still.
        let _pause = self.begun.bounds.pause();
        let room = Arc::clone(&self.window).acquire_owned().await;
        room.map_err(|_| Failure::new(Reason::Internal, "this stream broke off inside the sidecar"))
    }

    /// The next step of the client, unless the pipe is no more: then why is told elsewhere.
    async fn next(&self, requests: &mut Requests) -> Result<Option<Step>, Failure> {
        tokio::select! {
            biased;
            () = self.progress.until_stopped() => std::future::pending().await,
            step = next(requests) => step,
        }
    }

    /// The next step of the client in the midst of a message, whose room it keeps: it comes within the patience of the sidecar.
    async fn more(&self, requests: &mut Requests) -> Result<Option<Step>, Failure> {
        match tokio::time::timeout(self.patience, self.next(requests)).await {
            Ok(step) => step,
            // Then why the pipe is no more is told elsewhere.
            Err(_) if self.progress.is_stopped() => std::future::pending().await,
            Err(_) => {
                let why = format!(
                    "nothing came for {:?} in the middle of a message, which keeps its room: begin a message once its bytes are there",
                    self.patience
                );
                Err(Failure::new(Reason::DeadlineExceeded, why))
            }
        }
    }

    /// The client has read a message.
    fn taken(&self, taken: v1::PipeTaken) -> Result<(), Failure> {
        self.progress.take(taken.message)?;
        self.pipe.say(&v1::PipeEndRequest { pipe: self.number, read: taken.message, ..Default::default() });
        Ok(())
    }

    /// Takes a message in, or passes it over where it was refused.
    async fn message(
        &mut self,
        requests: &mut Requests,
        message: v1::PipeStreamMessage,
        room: Room,
    ) -> Result<(), Failure> {
        self.messages += 1;
        let (number, deadline_ms) = (self.messages, message.deadline_ms);
        let (Draft { metadata, parts, mut coming, refused }, first) = Draft::of(message)?;
        let opened = match refused {
            Some(refused) => Err(refused),
            None => self.open(&parts, deadline_ms).await,
        };
        // What is refused is told at once.
        let mut bodies = match opened {
            Ok(bodies) => Some((bodies, room)),
            Err(failure) => {
                self.fail(number, failure, Vec::new(), room);
                None
            }
        };
        for (part, data) in (0..).zip(first) {
            let landing = coming.take(part, data.len())?;
            land(&mut bodies, &landing, &data)?;
        }
        while !coming.is_whole() {
            match self.more(requests).await? {
                Some(Step::Chunk(v1::PipeChunk { part, data })) => {
                    let landing = coming.take(part, data.len())?;
                    land(&mut bodies, &landing, &data)?;
                }
                Some(Step::Taken(taken)) => self.taken(taken)?,
                Some(_) => {
                    return Err(misuse("another message before all bytes of the one before have come"));
                }
                None => {
                    let why = "the stream ended in the middle of a message: nothing of that is seen";
                    return Err(Failure::new(Reason::Cancelled, why));
                }
            }
        }
        if let Some((bodies, room)) = bodies {
            self.write(number, self.sealed(metadata, parts, bodies), deadline_ms, room);
        }
        Ok(())
    }

    /// Room for the tensors of a message, once there is some.
    async fn open(&self, parts: &[DraftPart], deadline_ms: u64) -> Result<Bodies, Failure> {
        let exchange = Arc::clone(&self.begun.exchange);
        let deadline = exchange.deadline(deadline_ms);
        let held = exchange.store().streams().enter(Direction::Put, Arc::clone(&self.begun.program));
        let items: Vec<v1::PutItem> = parts.iter().filter_map(item).collect();
        let inline = |part: &DraftPart| Body::Inline(Vec::with_capacity(as_length(part.bytes)));
        if items.is_empty() {
            return Ok(Bodies { parts: parts.iter().map(inline).collect(), held });
        }
        held.keeps_bytes(parts.iter().filter(|part| part.stored.is_some()).map(|part| part.bytes).sum());
        let caller = self.pipe.caller(&self.begun.call.caller().cancel);
        // Its client may send on, and is not taken for one that stands still.
        let pause = self.begun.bounds.pause();
        // All or none: two messages that hold some room never wait for each other.
        let opened = outcome(|done| exchange.open_puts(caller, items, deadline, done), drop).await;
        drop(pause);
        let mut opened = opened?.into_iter();
        let mut body = |part: &DraftPart| {
            let open = part.stored.as_ref().and_then(|_| opened.next());
            open.map_or_else(|| inline(part), |open| Body::Open(Box::new(open)))
        };
        let parts = parts.iter().map(&mut body).collect();
        Ok(Bodies { parts, held })
    }

    /// Makes tensors of what has come: the message as it travels, and what is leased for it.
    fn sealed(
        &self,
        metadata: Bytes,
        parts: Vec<DraftPart>,
        bodies: Bodies,
    ) -> Result<(Bytes, Vec<u64>), Failure> {
        let mut message = v1::PipeMessage { metadata, ..Default::default() };
        let mut ids = Vec::new();
        for (part, body) in parts.into_iter().zip(bodies.parts) {
            let DraftPart { bytes, descriptor, metadata, .. } = part;
            let (inline, reference) = match body {
                Body::Inline(bytes) => (Bytes::from(bytes), String::new()),
                Body::Open(open) => {
                    let stored = open.finish().inspect_err(|_| self.pipe.release(&ids))?;
                    ids.push(stored.id);
                    (Bytes::new(), stored.reference)
                }
            };
            let to = if descriptor.is_some() { &mut message.tensors } else { &mut message.payloads };
            let descriptor = descriptor.as_ref().map(Into::into);
            to.push(v1::PipePart { inline, reference, bytes, descriptor, metadata });
        }
        Ok((message.encode_to_vec().into(), ids))
    }

    /// Writes a message whose bytes are all there.
    fn write(&self, number: u64, sealed: Result<(Bytes, Vec<u64>), Failure>, deadline_ms: u64, room: Room) {
        let (message, ids) = match sealed {
            Ok(sealed) => sealed,
            Err(failure) => return self.fail(number, failure, Vec::new(), room),
        };
        self.progress.write();
        let (ended, pipe) = (self.ended.clone(), self.number);
        let request = v1::PipeWriteRequest { pipe, sequence: number, message, deadline_ms };
        self.pipe.write(request, move |outcome| {
            let outcome = outcome.map(|_| ());
            // Where nobody hears it, the stream is over, and what is leased with it.
            let _ = ended.send(EndedWrite { message: number, outcome, ids, room });
        });
    }

    /// Says of a message that nobody has seen it.
    fn fail(&self, message: u64, failure: Failure, ids: Vec<u64>, room: Room) {
        self.progress.write();
        let outcome = Err(failure.with("delivered", "no"));
        let _ = self.ended.send(EndedWrite { message, outcome, ids, room });
    }
}

/// Tells the client of writes that have ended, for as long as the stream lasts.
pub(super) async fn tell(
    mut told: mpsc::UnboundedReceiver<EndedWrite>,
    answers: &Answers,
    pipe: &HostedPipe,
    progress: &Progress,
) {
    while let Some(EndedWrite { message, outcome, ids, room }) = told.recv().await {
        pipe.release(&ids);
        let delivered = match &outcome {
            Ok(()) => v1::PipeDelivered::Yes,
            Err(failure) if failure.detail("delivered") == Some("no") => v1::PipeDelivered::No,
            Err(_) => v1::PipeDelivered::Unknown,
        };
        let failure = outcome.as_ref().err().map(Into::into);
        answers.say(Event::Written(v1::PipeWritten { message, delivered: delivered.into(), failure })).await;
        drop(room);
        progress.told();
    }
    std::future::pending::<()>().await;
}

/// Tensor that a part becomes, leased for the stream.
fn item(part: &DraftPart) -> Option<v1::PutItem> {
    let descriptor = Some(part.stored.as_ref()?.into());
    Some(v1::PutItem { descriptor, ..Default::default() })
}

/// Puts bytes of a part to its others, where the message was not refused.
fn land(bodies: &mut Option<(Bodies, Room)>, landing: &Landing, data: &[u8]) -> Result<(), Failure> {
    let Some((bodies, _)) = bodies else { return Ok(()) };
    bodies.held.moved();
    match bodies.parts.get_mut(landing.part) {
        Some(Body::Inline(bytes)) => bytes.extend_from_slice(data),
        Some(Body::Open(open)) => open.write(data)?,
        None => {}
    }
    Ok(())
}

/// Length of a payload that travels inside its message.
fn as_length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}
