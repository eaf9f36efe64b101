//! A lane in TLS: records are opened where they were received and copied into the part; and sealed from the tensor's memory.

use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;

use super::wire::{Answer, Ask, AskSink, LaneEnd, Wire, leaving};
use crate::peer::handshake::timed_out_here;
use crate::peer::parse::FrameParser;
use crate::peer::record_reader::{Drained, RecordReader};
use crate::peer::record_writer::{OutgoingPull, RecordWriter};
use crate::peer::send_error::SendError;
use crate::peer::slowest::Taking;

/// Bytes that are sealed before they are sent: few enough that the socket copies them from the nearest cache. Eight times as many
/// cost a third of the rate.
const QUANTUM: u64 = 32 << 10;

/// End of a lane in TLS.
pub(super) struct TlsWire {
    pub(super) socket: TcpStream,
    pub(super) incoming: RecordReader,
    pub(super) parser: FrameParser,
    pub(super) pipe: RecordWriter,
    /// Time for which no byte may come while some are due.
    pub(super) progress: Duration,
}

impl TlsWire {
    /// Receives once. Whether anything came before the tick.
    fn receive_some(&mut self) -> Result<bool, LaneEnd> {
        if self.incoming.take_update_request() {
            self.pipe.update_keys().map_err(SendError::from)?;
            self.flush()?;
        }
        match self.incoming.receive(&self.socket) {
            Ok(0) => Err(LaneEnd::Closed),
            Ok(_) => Ok(true),
            Err(error) if timed_out_here(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), LaneEnd> {
        self.pipe.seal_frame(frame).map_err(SendError::from)?;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), LaneEnd> {
        let taking = Taking::begin(self.pipe.bytes(), self.progress);
        Ok(self.pipe.flush(&self.socket, taking)?)
    }
}

impl Wire for TlsWire {
    fn ask(&mut self, call: u64, bytes: &Range<u64>) -> Result<(), LaneEnd> {
        let ask = v1::Ask { offset: bytes.start, length: (bytes.end - bytes.start) as u32 };
        self.send(&frame::encode(PeerKind::Ask.into(), 0, call, &ask))
    }

    fn receive(&mut self, answer: &mut Answer) -> Result<(), LaneEnd> {
        let mut moved = Instant::now();
        loop {
            let parser = &mut self.parser;
            let drained = self.incoming.drain::<LaneEnd>(|plain| match answer.is_done() {
                true => Ok(0),
                false => parser.feed(plain, &mut *answer),
            })?;
            if answer.is_done() {
                return Ok(());
            }
            if drained == Drained::Closed {
                return Err(LaneEnd::Closed);
            }
            answer.look();
            if self.receive_some()? {
                moved = Instant::now();
                answer.stir();
            } else if moved.elapsed() >= answer.progress(self.progress) {
                return Err(LaneEnd::Progress);
            }
        }
    }

    fn leave(&mut self) -> Result<(), LaneEnd> {
        self.send(&leaving())
    }

    fn next_ask(&mut self) -> Result<Ask, LaneEnd> {
        let mut sink = AskSink(None);
        loop {
            let parser = &mut self.parser;
            let drained = self.incoming.drain::<LaneEnd>(|plain| match sink.0 {
                Some(_) => Ok(0),
                None => parser.feed(plain, &mut sink),
            })?;
            if let Some(ask) = sink.0 {
                return Ok(ask);
            }
            if drained == Drained::Closed {
                return Err(LaneEnd::Closed);
            }
            // Its control connection sees to it that nobody waits here for a peer that is gone.
            self.receive_some()?;
        }
    }

    fn answer(&mut self, bulk: &mut OutgoingPull, length: u64) -> Result<Option<u32>, LaneEnd> {
        let (mut left, taking) = (length, Taking::begin(length, self.progress));
        while left > 0 {
            let now = left.min(QUANTUM);
            left -= now;
            self.pipe.seal_chunk(bulk, now as usize, left == 0)?;
            bulk.at += now;
            self.pipe.flush(&self.socket, taking)?;
        }
        Ok(None)
    }

    fn say(&mut self, frame: &[u8]) -> Result<(), LaneEnd> {
        self.send(frame)
    }
}
