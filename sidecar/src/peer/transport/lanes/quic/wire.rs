//! A lane of a QUIC connection: the same frames as in TLS, sealed and numbered by QUIC.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use prost::Message;
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use tensorlane_proto::frame::{self, CHUNK_BYTES_MAX, FrameError, PeerKind};
use tensorlane_proto::generated as v1;
use tokio::sync::watch;

use super::super::wire::{Answer, Ask, AskSink, LaneEnd, TICK, Wire, chunk_head, leaving};
use super::QuicEndpoint;
use crate::peer::connect::Refused;
use crate::peer::hello::{FirstFrame, FirstSink};
use crate::peer::parse::{FrameParser, Sink};
use crate::peer::record_writer::OutgoingPull;
use crate::peer::send_error::SendError;
use crate::peer::slowest::Taking;

/// Runs of bytes that are taken from the stream at a time, each from one datagram.
const RUNS: usize = 32;

/// Longest body of a first frame.
const FIRST_MAX: u32 = 1 << 10;

/// Handle whose holder can end the lane: by dropping it.
pub(in crate::peer) type Cut = watch::Sender<()>;

/// End of a lane on QUIC.
pub(in crate::peer) struct QuicWire {
    endpoint: Arc<QuicEndpoint>,
    send: SendStream,
    receive: RecvStream,
    parser: FrameParser,
    /// Bytes that came and were not looked at.
    came: VecDeque<Bytes>,
    room: [Bytes; RUNS],
    cut: watch::Receiver<()>,
    /// Time for which no byte may move while some are due.
    progress: Duration,
    /// Set once it said that it leaves.
    left: bool,
}

/// Outcome of a wait for a stream.
enum Waited<T> {
    Done(T),
    Cut,
    Late,
}

/// Waits for `work`, the lane's end, or that long.
async fn wait<T>(
    work: impl Future<Output = T>,
    cut: &mut watch::Receiver<()>,
    most: Option<Duration>,
) -> Waited<T> {
    let late = async {
        match most {
            Some(most) => tokio::time::sleep(most).await,
            None => pending().await,
        }
    };
    // In this order: where bytes are there already, no clock is set.
    tokio::select! {
        biased;
        done = work => Waited::Done(done),
        _ = cut.changed() => Waited::Cut,
        () = late => Waited::Late,
    }
}

impl QuicWire {
    pub(super) fn new(
        endpoint: Arc<QuicEndpoint>,
        (send, receive): (SendStream, RecvStream),
        progress: Duration,
    ) -> (Self, Cut) {
        let (cut, watched) = watch::channel(());
        let parser = FrameParser::new(FIRST_MAX);
        let room = std::array::from_fn(|_| Bytes::new());
        let came = VecDeque::with_capacity(RUNS);
        (Self { endpoint, send, receive, parser, came, room, cut: watched, progress, left: false }, cut)
    }

    /// Takes what is there, or waits for it that long. Whether anything came.
    fn take(&mut self, most: Option<Duration>) -> Result<bool, LaneEnd> {
        let Self { endpoint, receive, room, cut, .. } = self;
        match endpoint.wait(wait(receive.read_chunks(&mut room[..]), cut, most)) {
            Waited::Done(Ok(Some(runs))) => {
                self.came.extend(self.room[..runs].iter_mut().map(std::mem::take));
                Ok(true)
            }
            Waited::Done(Ok(None)) | Waited::Cut => Err(LaneEnd::Closed),
            Waited::Done(Err(ReadError::ConnectionLost(error))) => Err(lost(error)),
            Waited::Done(Err(_)) => Err(LaneEnd::Closed),
            Waited::Late => Ok(false),
        }
    }

    /// Looks at what came, until the sink has what it wants.
    fn parse<S: Sink>(&mut self, sink: &mut S, has_all: impl Fn(&S) -> bool) -> Result<(), S::Error> {
        while !has_all(sink)
            && let Some(run) = self.came.front_mut()
        {
            let taken = self.parser.feed(run, sink)?;
            run.advance(taken);
            if run.is_empty() {
                self.came.pop_front();
            }
        }
        Ok(())
    }

    fn write(&mut self, chunks: &mut [Bytes], taking: Taking) -> Result<(), LaneEnd> {
        let Self { endpoint, send, cut, progress, .. } = self;
        let mut rest = chunks;
        while !rest.is_empty() {
            taking.goes_on()?;
            let now = std::mem::take(&mut rest);
            let written = match endpoint.wait(wait(send.write_chunks(now), cut, Some(*progress))) {
                Waited::Done(Ok(written)) => written,
                Waited::Done(Err(WriteError::ConnectionLost(error))) => return Err(lost(error)),
                Waited::Done(Err(_)) | Waited::Cut => return Err(LaneEnd::Closed),
                Waited::Late => return Err(LaneEnd::Progress),
            };
            rest = &mut now[written.chunks..];
        }
        Ok(())
    }

    fn send(&mut self, frame: Vec<u8>) -> Result<(), LaneEnd> {
        let taking = Taking::begin(frame.len() as u64, self.progress);
        self.write(&mut [frame.into()], taking)
    }

    /// Says a first frame.
    pub(in super::super) fn say(
        &mut self,
        kind: PeerKind,
        flags: u16,
        message: &impl Message,
    ) -> Result<(), Refused> {
        Ok(self.send(frame::encode(kind.into(), flags, 0, message)).map_err(io::Error::other)?)
    }

    /// Says what the stream is for, and hears that it is taken.
    pub(in super::super) fn introduce(
        &mut self,
        hello: &v1::LaneHello,
        until: Instant,
    ) -> Result<(), Refused> {
        self.say(PeerKind::LaneHello, 0, hello)?;
        match self.hear(until)? {
            FirstFrame::LaneReply => Ok(()),
            _ => Err(FrameError::OutOfPlace(PeerKind::LaneHello.into()).into()),
        }
    }

    /// Reads until the first frame is there, and nothing beyond it.
    pub(in super::super) fn hear(&mut self, until: Instant) -> Result<FirstFrame, Refused> {
        let mut first = FirstSink(None);
        loop {
            self.parse(&mut first, |first| first.0.is_some())?;
            if let Some(first) = first.0 {
                self.parser.trust();
                return Ok(first);
            }
            // Unlike a lane that is bound, nobody cuts this one when we stop.
            let Self { endpoint, receive, room, .. } = self;
            match endpoint.within(until, receive.read_chunks(&mut room[..]))? {
                Ok(Some(runs)) => self.came.extend(self.room[..runs].iter_mut().map(std::mem::take)),
                Ok(None) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Err(error) => return Err(io::Error::other(error).into()),
            }
        }
    }
}

fn lost(error: quinn::ConnectionError) -> LaneEnd {
    LaneEnd::Socket(io::Error::other(error))
}

impl Wire for QuicWire {
    fn ask(&mut self, call: u64, bytes: &Range<u64>) -> Result<(), LaneEnd> {
        let ask = v1::Ask { offset: bytes.start, length: (bytes.end - bytes.start) as u32 };
        self.send(frame::encode(PeerKind::Ask.into(), 0, call, &ask))
    }

    fn receive(&mut self, answer: &mut Answer) -> Result<(), LaneEnd> {
        let mut moved = Instant::now();
        loop {
            self.parse(answer, Answer::is_done)?;
            if answer.is_done() {
                return Ok(());
            }
            answer.look();
            if self.take(Some(TICK))? {
                moved = Instant::now();
            } else if moved.elapsed() >= answer.progress(self.progress) {
                return Err(LaneEnd::Progress);
            }
        }
    }

    fn leave(&mut self) -> Result<(), LaneEnd> {
        self.send(leaving())?;
        // What was said last is to arrive.
        self.left = true;
        Ok(())
    }

    fn next_ask(&mut self) -> Result<Ask, LaneEnd> {
        loop {
            let mut sink = AskSink(None);
            self.parse(&mut sink, |sink| sink.0.is_some())?;
            if let Some(ask) = sink.0 {
                return Ok(ask);
            }
            // Its control connection sees to it that nobody waits here for a peer that is gone.
            self.take(None)?;
        }
    }

    fn answer(&mut self, bulk: &mut OutgoingPull, length: u64) -> Result<Option<u32>, LaneEnd> {
        let (mut left, taking) = (length, Taking::begin(length, self.progress));
        while left > 0 {
            let now = left.min(CHUNK_BYTES_MAX as u64);
            left -= now;
            let head = chunk_head(bulk.call, bulk.at, now, left == 0);
            let mut chunks = vec![Bytes::copy_from_slice(&head)];
            bulk.source.lend(now, &mut chunks).map_err(SendError::from)?;
            self.write(&mut chunks, taking)?;
            bulk.at += now;
        }
        Ok(None)
    }

    fn say(&mut self, frame: &[u8]) -> Result<(), LaneEnd> {
        self.send(frame.to_vec())
    }
}

impl Drop for QuicWire {
    fn drop(&mut self) {
        // What was sent and not received is not wanted any more: its memory is let go now. An error means that it is closed.
        if !self.left {
            let _ = self.send.reset(0_u32.into());
        }
    }
}
