//! ChannelRead: the messages of a ring go into a stream.
//!
//! A message is read when the stream has room for its beginning, and given back when the stream has taken the end of it. So a client
//! that does not read holds one message, and has one piece of it here and one in the connection; and one that reads a channel that drops
//! gets what is newest then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tensorlane_memory::View;
use tensorlane_memory::ring::{Deadline, Message, Read, ReadError, RingReader};
use tensorlane_proto::channel::Parts;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::channel_read_response::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::super::call::outcome;
use super::super::lasting::{self, Begun, Sleeper, attend, start_task};
use crate::cancel::CancelOnDrop;
use crate::exchange::HostedReader;

/// Most bytes of a message in one answer. Each stream has two of them here at worst.
const PIECE_MAX: u64 = 256 << 10;
/// Longest wait for the next channel of a name that a reader follows, before it is asked for again.
const FOLLOW_WAIT_MS: u64 = 600_000;
/// Time after which that is asked for again, where it was refused at once.
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);
/// Bytes from which on a piece is booked while it waits for its turn.
const BOOKED_FROM: u64 = 4 << 10;

/// Answers to a reader.
pub(in crate::grpc) type Messages = ReceiverStream<Result<v1::ChannelReadResponse, Status>>;

type Answers = lasting::Answers<v1::ChannelReadResponse>;

/// Begins a reader, which lasts until either end ends it, it is refused, or the server ends.
pub(in crate::grpc) fn read(begun: Begun, request: v1::ChannelReadRequest) -> Messages {
    let (send, answers) = mpsc::channel(1);
    let (threads, begun) = (begun.exchange.threads().clone(), Arc::new(begun));
    let conversation = {
        let (begun, answers) = (Arc::clone(&begun), send.clone());
        async move { converse(&begun, request, &answers).await }
    };
    start_task(threads, "grpc-channel", send.clone(), attend(begun, send, conversation));
    ReceiverStream::new(answers)
}

async fn converse(begun: &Begun, request: v1::ChannelReadRequest, answers: &Answers) -> Result<(), Failure> {
    // However seldom it reads: its writer is told by whom it is held up.
    begun.bounds.bear();
    let (mut hosted, ring) = attach(begun, request.clone()).await?;
    let mut reader = Reader {
        begun,
        answers,
        ring: Some(ring),
        sleeper: Sleeper::new(begun.exchange.threads()),
        parts: (Arc::from([]), Arc::default()),
    };
    reader.room().await?.send(answer(Event::Attached(hosted.attached().clone())));
    // Lowest sequence of which the client knows nothing.
    let mut next = hosted.attached().first;
    loop {
        let room = reader.room().await?;
        let end = match reader.next().await? {
            // Was sent before the way was lost, in a channel that blocks.
            Read::Message(message) if message.sequence() < next => continue,
            Read::Message(mut message) => {
                hosted.find(&mut message)?;
                begun.exchange.threads().point("message read");
                next = message.sequence().saturating_add(1);
                reader.send(room, message).await?;
                continue;
            }
            Read::Gap { dropped, next: after } => {
                room.send(gap(dropped, after));
                next = after;
                continue;
            }
            Read::Finished => v1::ChannelOutcome::Finished,
            Read::Lost => v1::ChannelOutcome::WriterLost,
            Read::Cut => v1::ChannelOutcome::PeerLost,
        };
        let outcome = end.into();
        if !request.follow {
            room.send(answer(Event::End(v1::ChannelEnd { outcome })));
            return Ok(());
        }
        let before = hosted.epoch();
        drop(hosted);
        // The memory of the one that has ended is not kept until there is another one.
        (reader.ring, reader.parts) = (None, (Arc::from([]), Arc::default()));
        let mut ring;
        (hosted, ring) = follow(begun, &request).await?;
        if before == 0 || before != hosted.epoch() {
            let attached = hosted.attached().clone();
            next = attached.first;
            room.send(answer(Event::Epoch(v1::ChannelEpoch { outcome, attached: Some(attached) })));
        } else {
            let dropped = ring.resume(next);
            next = next.saturating_add(dropped);
            if dropped > 0 {
                room.send(gap(dropped, next));
            }
        }
        reader.ring = Some(ring);
    }
}

async fn attach(
    begun: &Begun,
    request: v1::ChannelReadRequest,
) -> Result<(HostedReader, RingReader), Failure> {
    let client = begun.client(&request.client)?;
    // Of this attach alone: what the flag of the stream would keep of each stays until that ends.
    let call = CancelOnDrop::default();
    let cancel = call.cancel().clone();
    outcome(|done| begun.exchange.channel_attach_hosted(client, cancel, request, done), drop).await
}

/// Waits for a channel of the name after the end of one, for as long as the stream lasts.
async fn follow(
    begun: &Begun,
    request: &v1::ChannelReadRequest,
) -> Result<(HostedReader, RingReader), Failure> {
    let from = v1::ChannelFrom::Oldest.into();
    let request = v1::ChannelReadRequest { from, wait_ms: FOLLOW_WAIT_MS, ..request.clone() };
    loop {
        match attach(begun, request.clone()).await {
            Err(failure) if is_absent(&failure) => tokio::time::sleep(FOLLOW_PAUSE).await,
            attached => return attached,
        }
    }
}

/// Returns whether another channel of the name may come all the same.
fn is_absent(failure: &Failure) -> bool {
    matches!(
        failure.reason,
        Reason::NotFound
            | Reason::ChannelEnded
            | Reason::PeerUnknown
            | Reason::PeerUnreachable
            | Reason::OwnerLost
            | Reason::WriterNotAnswering
            | Reason::DeadlineExceeded
    )
}

fn gap(dropped: u64, next: u64) -> Result<v1::ChannelReadResponse, Status> {
    answer(Event::Gap(v1::ChannelGap { dropped, next }))
}

type Room<'a> = mpsc::Permit<'a, Result<v1::ChannelReadResponse, Status>>;

/// The reader of a channel, on its stream.
struct Reader<'a> {
    begun: &'a Begun,
    answers: &'a Answers,
    /// The ring, unless the thread has it.
    ring: Option<RingReader>,
    sleeper: Sleeper,
    /// Parts of the message before, by the layout that they were read from.
    parts: (Arc<[u8]>, Arc<Parts>),
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// Room for one answer, once there is some.
    async fn room(&self) -> Result<Room<'a>, Failure> {
        let gone = |_| Failure::new(Reason::Cancelled, "the client has gone");
        self.answers.reserve().await.map_err(gone)
    }

    /// Next event of the ring; waits for it on the thread.
    async fn next(&mut self) -> Result<Read, Failure> {
        let mut ring = self.ring.take().ok_or_else(broke_off)?;
        let mut read = ring.read(Deadline::Now, &|| false);
        if matches!(read, Err(ReadError::TimedOut)) {
            // It ends at the latest when the reader is closed.
            let slept = self.sleeper.run(move || {
                let read = ring.read(Deadline::Never, &|| false);
                (ring, read)
            });
            (ring, read) = slept.await?;
        }
        self.ring = Some(ring);
        read.map_err(|error| match error {
            ReadError::Damaged { .. } => Failure::new(Reason::MessageDamaged, error.to_string()),
            ReadError::Evicted => {
                let message = format!("{error}, because it held it up; attach again, and read faster");
                Failure::new(Reason::Evicted, message)
            }
            error => {
                let message = format!("this reader was ended by its sidecar: {error}; attach again");
                Failure::new(Reason::ChannelEnded, message)
            }
        })
    }

    /// Sends a message, and gives it back.
    async fn send(&mut self, room: Room<'a>, message: Message) -> Result<(), Failure> {
        let parts = self.parts_of(&message)?;
        let view = message.view();
        let bytes = view.len() as u64;
        // Places of the parts in the message.
        let mut places: Vec<(u64, u64)> =
            parts.as_slice().iter().map(|part| (part.offset, part.descriptor.layout.bytes())).collect();
        if places.is_empty() {
            places.push((0, bytes));
        }
        let here = bytes <= PIECE_MAX;
        let mut told = Vec::with_capacity(places.len());
        for (index, &(offset, bytes)) in places.iter().enumerate() {
            let descriptor = parts.as_slice().get(index).map(|part| (&part.descriptor).into());
            let data = if here { self.piece(view, offset, bytes)? } else { Bytes::new() };
            told.push(v1::ChannelPart { descriptor, bytes, data });
        }
        let sequence = message.sequence();
        room.send(answer(Event::Message(v1::ChannelMessage { sequence, parts: told })));
        if here {
            return Ok(());
        }
        for (part, (offset, bytes)) in (0..).zip(places) {
            let mut at = 0;
            while at < bytes {
                let room = self.room().await?;
                let length = (bytes - at).min(PIECE_MAX);
                let data = self.piece(view, offset + at, length)?;
                room.send(answer(Event::Chunk(v1::ChannelChunk { part, data })));
                at += length;
            }
        }
        Ok(())
    }

    fn parts_of(&mut self, message: &Message) -> Result<Arc<Parts>, Failure> {
        let damaged = |what: String| {
            let message = format!("message {} is damaged: {what}", message.sequence());
            Failure::new(Reason::MessageDamaged, message)
        };
        let layout = message.layout();
        if !Arc::ptr_eq(layout, &self.parts.0) {
            let parts = Parts::decode(layout).map_err(damaged)?;
            self.parts = (Arc::clone(layout), Arc::new(parts));
        }
        let (parts, bytes) = (Arc::clone(&self.parts.1), message.view().len() as u64);
        if !parts.as_slice().is_empty() && parts.bytes() != bytes {
            return Err(damaged(format!("its parts have {} bytes, and it has {bytes}", parts.bytes())));
        }
        Ok(parts)
    }

    /// A copy of some bytes of a message, in the budget of what waits for clients.
    fn piece(&self, view: &View, offset: u64, length: u64) -> Result<Bytes, Failure> {
        let piece = view.piece(offset, length);
        let bytes = piece.map_err(|error| Failure::new(Reason::MessageDamaged, error.to_string()))?.to_vec();
        Ok(match &self.begun.connection {
            Some(connection) if length >= BOOKED_FROM => self.begun.bounds.book(&connection.keeps, bytes),
            _ => bytes.into(),
        })
    }
}

fn answer(event: Event) -> Result<v1::ChannelReadResponse, Status> {
    Ok(v1::ChannelReadResponse { event: Some(event) })
}

fn broke_off() -> Failure {
    Failure::new(Reason::Internal, "this stream broke off inside the sidecar")
}
