//! ChannelWrite: the messages of a stream go into the ring of its channel.
//!
//! ```text
//!   open ──> opened                                             message ── slot? ──> bytes go in ── all came: publish ──> written
//!                                                                   └─ a reader holds it: blocked, blocked, .. refused, or a slot
//! ```
//! The next message is looked at when the one before is over, so whoever sends waits where readers make the writer wait. A slot that is
//! claimed for a message and never published leaves nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tensorlane_memory::ring::{ClaimError, Claimed, Deadline, Layout, Published, RingWriter, Slot};
use tensorlane_proto::channel::{Parts, check_layout};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::channel_write_request::Step;
use tensorlane_proto::generated::channel_write_response::Event;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::super::call::outcome;
use super::super::coming::Landing;
use super::super::lasting::{self, Begun, Sleeper, attend, start_task};
use super::super::status::broken;
use super::message::Incoming;
use crate::exchange::HostedWriter;

/// Answers that may wait for a client; then its messages do.
const ANSWERS_MAX: usize = 16;
/// Time after which a message that waits is told who holds it up, again and again.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Answers to a writer.
pub(in crate::grpc) type Written = ReceiverStream<Result<v1::ChannelWriteResponse, Status>>;

type Answers = lasting::Answers<v1::ChannelWriteResponse>;
type Requests = Streaming<v1::ChannelWriteRequest>;

/// Begins a writer, which lasts until its client finishes or ends it, it is refused, or the server ends.
pub(in crate::grpc) fn write(begun: Begun, requests: Requests) -> Written {
    let (send, answers) = mpsc::channel(ANSWERS_MAX);
    let (threads, begun) = (begun.exchange.threads().clone(), Arc::new(begun));
    let conversation = {
        let (begun, answers) = (Arc::clone(&begun), send.clone());
        async move { converse(&begun, requests, &answers).await }
    };
    start_task(threads, "grpc-channel", send.clone(), attend(begun, send, conversation));
    ReceiverStream::new(answers)
}

async fn converse(begun: &Begun, mut requests: Requests, answers: &Answers) -> Result<(), Failure> {
    let open = match next(&mut requests).await? {
        Some(Step::Open(open)) => open,
        _ => return Err(misuse("the first message of a ChannelWrite stream is `open`")),
    };
    let mut writer = Writer::open(begun, answers, open).await?;
    // Silent for as long as it has nothing to say.
    begun.bounds.bear();
    loop {
        match next(&mut requests).await? {
            Some(Step::Message(message)) => {
                begun.exchange.threads().point("message written");
                writer.message(begun, &mut requests, message).await?;
            }
            Some(Step::Finish(_)) => return writer.finish().await,
            Some(Step::Evict(evict)) => writer.evict(evict.reader)?,
            Some(Step::Chunk(_)) => {
                return Err(misuse("a chunk that belongs to no message: the one before has all its bytes"));
            }
            Some(Step::Open(_)) => {
                return Err(misuse("`open` is only the first message: a stream writes one channel"));
            }
            None => {
                let why = "the stream ended without `finish`: readers were told that their writer is lost";
                return Err(Failure::new(Reason::Cancelled, why));
            }
        }
    }
}

async fn next(requests: &mut Requests) -> Result<Option<Step>, Failure> {
    match requests.message().await.map_err(|status| broken(&status))? {
        None => Ok(None),
        Some(v1::ChannelWriteRequest { step: Some(step) }) => Ok(Some(step)),
        Some(v1::ChannelWriteRequest { step: None }) => {
            Err(misuse("a message without a step that this sidecar knows; update it, or send another one"))
        }
    }
}

fn misuse(why: &str) -> Failure {
    Failure::new(Reason::InvalidArgument, why)
}

/// The writer of a channel, on its stream.
struct Writer<'a> {
    answers: &'a Answers,
    hosted: HostedWriter,
    /// The ring, unless the thread has it.
    ring: Option<RingWriter>,
    sleeper: Sleeper,
    /// Raised when this is dropped: the thread sleeps no longer.
    stop: Stop,
    came: Arc<Notify>,
    awaited: u32,
    slot_bytes: u64,
    /// Set if types and shapes are those of the first message.
    fixed: bool,
    /// Parts of the last message that had any, which most messages have again.
    parts: Option<Parts>,
    /// Number of messages that have come.
    messages: u64,
    written: u64,
}

struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Layout of a message, for whoever claims.
enum Form {
    Plain,
    Same,
    New(Vec<u8>),
}

impl Form {
    fn layout(&self) -> Layout<'_> {
        match self {
            Self::Plain => Layout::Plain,
            Self::Same => Layout::Same,
            Self::New(bytes) => Layout::New(bytes),
        }
    }
}

/// Slot of a message, or why it has none.
type Room = Result<Claimed, Failure>;

// === impl Writer ===

impl<'a> Writer<'a> {
    async fn open(begun: &Begun, answers: &'a Answers, open: v1::ChannelOpen) -> Result<Self, Failure> {
        let client = begun.client(&open.client)?;
        let (came, cancel) = (Arc::new(Notify::new()), begun.call.caller().cancel.clone());
        let notify = Arc::clone(&came);
        let (awaited, fixed) = (open.expect_readers, open.fixed);
        let made = outcome(
            |done| {
                let came = move || notify.notify_one();
                begun.exchange.channel_create_hosted(client, cancel, &open, came, done);
            },
            drop,
        );
        let (hosted, ring) = made.await?;
        let spec = hosted.spec();
        let slot_bytes = spec.slot_bytes;
        let writer = Self {
            answers,
            hosted,
            ring: Some(ring),
            sleeper: Sleeper::new(begun.exchange.threads()),
            stop: Stop(Arc::default()),
            came,
            awaited,
            slot_bytes,
            fixed,
            parts: None,
            messages: 0,
            written: 0,
        };
        writer.say(Event::Opened(v1::ChannelOpened { spec: Some(spec) })).await;
        Ok(writer)
    }

    /// Says something to the client. Where it has gone, the stream is about to end.
    async fn say(&self, event: Event) {
        let _ = self.answers.send(Ok(v1::ChannelWriteResponse { event: Some(event) })).await;
    }

    /// Takes a message in: into its slot, or past it where it was refused.
    async fn message(
        &mut self,
        begun: &Begun,
        requests: &mut Requests,
        message: v1::ChannelWriteMessage,
    ) -> Result<(), Failure> {
        let number = self.messages;
        self.messages += 1;
        let until = message.wait_ms.map(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        // What the clock cannot say is no end.
        let until = until.flatten();
        let (mut incoming, first) = Incoming::of(message.parts)?;
        let claimed = {
            // Its client may send on, and is not taken for one that stands still.
            let _pause = begun.bounds.pause();
            self.claim(number, &incoming, until).await?
        };
        let room = match claimed {
            Ok(claimed) => Some(claimed),
            Err(failure) => {
                let failure = Some((&failure).into());
                self.say(Event::Refused(v1::ChannelRefused { message: number, failure })).await;
                None
            }
        };
        let plain = incoming.descriptors.is_none();
        for (part, data) in (0..).zip(first) {
            let landing = incoming.take(part, data.len())?;
            self.land(room, plain, &landing, &data)?;
        }
        while !incoming.is_whole() {
            match next(requests).await? {
                Some(Step::Chunk(v1::ChannelChunk { part, data })) => {
                    let landing = incoming.take(part, data.len())?;
                    self.land(room, plain, &landing, &data)?;
                }
                Some(_) => {
                    return Err(misuse("another message before all bytes of the one before have come"));
                }
                None => {
                    let why = "the stream ended in the middle of a message: nothing of that is seen";
                    return Err(Failure::new(Reason::Cancelled, why));
                }
            }
        }
        let Some(claimed) = room else { return Ok(()) };
        let published = self.publish(claimed, plain, &incoming)?;
        self.written += 1;
        let Published { sequence, readers, dropped } = published;
        self.say(Event::Written(v1::ChannelWritten { message: number, sequence, readers, dropped })).await;
        Ok(())
    }

    /// A slot for a message, once there is one; or why it is refused.
    async fn claim(
        &mut self,
        number: u64,
        incoming: &Incoming,
        until: Option<Instant>,
    ) -> Result<Room, Failure> {
        let parts = match incoming.placed() {
            Ok(parts) => parts,
            Err(refused) => return Ok(Err(refused)),
        };
        let bytes = parts.as_ref().map_or_else(|| incoming.plain_bytes(), Parts::bytes);
        if bytes > self.slot_bytes {
            return Ok(Err(self.above_slot(bytes)));
        }
        if self.fixed
            && self.written > 0
            && let Err(refused) = self.check_layout(parts.as_ref())
        {
            return Ok(Err(refused));
        }
        if let Err(refused) = self.readers_came(until).await {
            return Ok(Err(refused));
        }
        let form = match (&parts, &self.parts) {
            (None, _) => Form::Plain,
            (Some(new), Some(old)) if new == old => Form::Same,
            (Some(new), _) => Form::New(new.encode()),
        };
        let room = self.slot(number, form, until).await?;
        if room.is_ok() && parts.is_some() {
            self.parts = parts;
        }
        Ok(room)
    }

    /// Checks a layout against that of the first message.
    fn check_layout(&self, parts: Option<&Parts>) -> Result<(), Failure> {
        let plain = Parts::default();
        check_layout(self.parts.as_ref().unwrap_or(&plain), parts.unwrap_or(&plain))
    }

    /// Waits, before the first message, for the readers that are expected.
    async fn readers_came(&mut self, until: Option<Instant>) -> Result<(), Failure> {
        loop {
            let there = self.hosted.readers();
            if there >= self.awaited as usize {
                self.awaited = 0;
                return Ok(());
            }
            let came = self.came.notified();
            let in_time = match until {
                Some(until) => tokio::time::timeout_at(until.into(), came).await.is_ok(),
                None => {
                    came.await;
                    true
                }
            };
            if !in_time {
                let message = format!(
                    "{there} of the {} readers that are expected have come; let them attach, or give them longer (wait_ms)",
                    self.awaited
                );
                return Err(Failure::new(Reason::DeadlineExceeded, message).with("readers", there));
            }
        }
    }

    /// Claims a slot, on the thread where that takes time.
    async fn slot(&mut self, number: u64, form: Form, until: Option<Instant>) -> Result<Room, Failure> {
        let mut claimed = self.ring()?.claim(form.layout(), Deadline::Now, &|| false).map(Slot::keep);
        let mut form = form;
        loop {
            let (reader, sequence, held) = match claimed {
                Ok(claimed) => return Ok(Ok(claimed)),
                Err(ClaimError::Blocked { reader, sequence, held }) => (reader, sequence, held),
                Err(error @ ClaimError::Layout { .. }) => {
                    let message = format!("{error}; send fewer parts, or less metadata");
                    return Ok(Err(Failure::new(Reason::TooLarge, message)));
                }
                Err(ClaimError::Stopped) => return Err(misuse("the stream has ended")),
            };
            let now = Instant::now();
            let client = self.hosted.client_of(reader);
            if until.is_some_and(|until| until <= now) {
                return Ok(Err(blocked_by(&client, reader, sequence, held)));
            }
            if held >= TELL_EVERY {
                let held_ms = u64::try_from(held.as_millis()).unwrap_or(u64::MAX);
                let blocked = v1::ChannelBlocked { message: number, client, reader, sequence, held_ms };
                // One that reads no answers does without.
                let _ = self
                    .answers
                    .try_send(Ok(v1::ChannelWriteResponse { event: Some(Event::Blocked(blocked)) }));
            }
            let slice = until.map_or(now + TELL_EVERY, |until| until.min(now + TELL_EVERY));
            let (mut ring, stop) = (self.ring.take().ok_or_else(away)?, Arc::clone(&self.stop.0));
            let slept = self.sleeper.run(move || {
                let stops = || stop.load(Ordering::Acquire);
                let claimed = ring.claim(form.layout(), Deadline::At(slice), &stops).map(Slot::keep);
                (ring, form, claimed)
            });
            let ring;
            (ring, form, claimed) = slept.await?;
            self.ring = Some(ring);
        }
    }

    fn ring(&mut self) -> Result<&mut RingWriter, Failure> {
        self.ring.as_mut().ok_or_else(away)
    }

    /// Writes bytes of a part into the slot, where there is one.
    fn land(
        &mut self,
        room: Option<Claimed>,
        plain: bool,
        landing: &Landing,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        if room.is_none() || bytes.is_empty() {
            return Ok(());
        }
        let base = match &self.parts {
            Some(parts) if !plain => parts.get(landing.part)?.offset,
            _ => 0,
        };
        let written = self.ring()?.write_ahead(base + landing.offset, bytes);
        written.map_err(|error| Failure::new(Reason::Internal, error.to_string()))
    }

    fn publish(&mut self, claimed: Claimed, plain: bool, incoming: &Incoming) -> Result<Published, Failure> {
        let bytes = match &self.parts {
            Some(parts) if !plain => parts.bytes(),
            _ => incoming.plain_bytes(),
        };
        Ok(self.ring()?.kept(claimed).publish(bytes))
    }

    /// Evicts a reader; one that has gone is nothing.
    fn evict(&self, reader: u64) -> Result<(), Failure> {
        if !self.hosted.spec().evicts {
            return Err(misuse("a reader is evicted from a channel alone whose shape says `evicts`"));
        }
        self.hosted.evict(reader);
        Ok(())
    }

    /// Says that no message comes any more.
    async fn finish(mut self) -> Result<(), Failure> {
        self.ring()?.finish();
        let (answers, written) = (self.answers, self.written);
        // The name is free when the client hears of it.
        drop(self);
        let event = Some(Event::Finished(v1::ChannelFinished { written }));
        let _ = answers.send(Ok(v1::ChannelWriteResponse { event })).await;
        Ok(())
    }

    fn above_slot(&self, bytes: u64) -> Failure {
        let message = format!(
            "a message of {bytes} bytes does not fit a slot of {}; make the channel with larger slots, or put the tensors and send \
             their references",
            self.slot_bytes
        );
        let failure = Failure::new(Reason::TooLarge, message);
        failure.with("bytes", bytes).with("slot_bytes", self.slot_bytes)
    }
}

/// The thread has kept the ring: it broke off.
fn away() -> Failure {
    Failure::new(Reason::Internal, "this stream broke off inside the sidecar")
}

fn blocked_by(client: &str, reader: u64, sequence: u64, held: Duration) -> Failure {
    let message = format!(
        "the next message needs the place of message {sequence}, which client {client:?} (reader {reader}) has not given back \
         for {held:.1?}; let it read on or end it, or make the channel with more slots"
    );
    let failure = Failure::new(Reason::BlockedBy, message).with("client", client).with("reader", reader);
    failure.with("sequence", sequence).with("held_ms", held.as_millis())
}
