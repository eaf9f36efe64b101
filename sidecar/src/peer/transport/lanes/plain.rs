//! A plain lane: bytes go from the tensor's memory to the socket and from the socket into the part, with no buffer between.
//!
//! Bytes that lie together go from the segment's file (sendfile): the kernel sends the pages themselves, and the one copy is the
//! reader's. What it has not got rid of is `queued`.

use std::io::{self, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use tensorlane_proto::checksum;
use tensorlane_proto::frame::{
    self, CHUNK_BYTES_MAX, FrameError, HEADER_BYTES, Header, PEER_BODY_MAX, PeerKind,
};
use tensorlane_proto::generated as v1;

use super::queued::InFlightBuffers;
use super::wire::{Answer, Ask, LaneEnd, TICK, Wire, chunk_head, leaving};
use crate::peer::handshake::timed_out_here;
use crate::peer::parse::OFFSET_BYTES;
use crate::peer::record_writer::OutgoingPull;
use crate::peer::send_error::SendError;
use crate::peer::slowest::Taking;
use crate::peer::source::Source;
use crate::sums::Summing;

mod send;

/// Tensor bytes of one chunk: summed and sent while they are in the cache of a core.
const QUANTUM: u64 = 256 << 10;
/// Tensor bytes of one chunk whose sum is known, so that nothing but the kernel looks at them.
const QUANTUM_KNOWN: u64 = CHUNK_BYTES_MAX as u64;
/// Longest body of a message on a lane: a failure.
const MESSAGE_MAX: u32 = 64 << 10;

/// End of a plain lane.
pub(super) struct PlainWire {
    pub(super) socket: TcpStream,
    /// Time for which no byte may come while some are due.
    pub(super) progress: Duration,
    /// Buffer for bytes that nobody wants.
    pub(super) nowhere: Vec<u8>,
    /// Sources whose pages the kernel may still be sending.
    pub(super) queued: InFlightBuffers<Source>,
}

impl PlainWire {
    /// Fills `room`, whose bytes are due, with `answer` looked after meanwhile; or those of the next ask, which may take
    /// their time until the first is here.
    fn fill(&mut self, room: &mut [u8], mut answer: Option<&mut Answer>) -> Result<(), LaneEnd> {
        let most = answer.as_ref().map_or(self.progress, |answer| answer.progress(self.progress));
        let mut have = 0;
        let mut moved = Instant::now();
        while have < room.len() {
            match self.socket.read(&mut room[have..]) {
                Ok(0) => return Err(LaneEnd::Closed),
                Ok(bytes) => {
                    have += bytes;
                    moved = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if timed_out_here(&error) => {
                    if (answer.is_some() || have > 0) && moved.elapsed() >= most {
                        return Err(LaneEnd::Progress);
                    }
                    if let Some(answer) = &mut answer {
                        answer.look();
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn header(&mut self, limit: u32, answer: Option<&mut Answer>) -> Result<Header, LaneEnd> {
        let mut bytes = [0; HEADER_BYTES];
        self.fill(&mut bytes, answer)?;
        Ok(Header::decode(&bytes, limit)?)
    }

    /// The bytes of a chunk, into the part while they are wanted.
    fn chunk(&mut self, answer: &mut Answer, length: usize) -> Result<(), LaneEnd> {
        let mut left = length;
        let (mut moved, most) = (Instant::now(), answer.progress(self.progress));
        let mut looked = moved;
        while left > 0 {
            let before = answer.crc32c.unwrap_or(0);
            let room = match answer.room(left) {
                Some(room) => room,
                None => {
                    self.nowhere.resize(left.min(64 << 10), 0);
                    &mut self.nowhere[..]
                }
            };
            match self.socket.read(room) {
                Ok(0) => return Err(LaneEnd::Closed),
                Ok(bytes) => {
                    // Now, while they are in the cache of this core.
                    answer.crc32c = Some(checksum::crc32c_append(before, &room[..bytes]));
                    answer.came(bytes);
                    left -= bytes;
                    moved = Instant::now();
                    // Bytes that trickle in never let the socket wait for a whole tick.
                    if moved.saturating_duration_since(looked) >= TICK {
                        answer.look();
                        looked = moved;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if timed_out_here(&error) && moved.elapsed() < most => answer.look(),
                Err(error) => return Err(error.into()),
            }
        }
        answer.look();
        Ok(())
    }
}

impl Wire for PlainWire {
    fn ask(&mut self, call: u64, bytes: &Range<u64>) -> Result<(), LaneEnd> {
        let ask = v1::Ask { offset: bytes.start, length: (bytes.end - bytes.start) as u32 };
        self.say_all(&frame::encode(PeerKind::Ask.into(), 0, call, &ask))
    }

    fn receive(&mut self, answer: &mut Answer) -> Result<(), LaneEnd> {
        while !answer.is_done() {
            let header = self.header(PEER_BODY_MAX, Some(&mut *answer))?;
            let kind = PeerKind::try_from(header.kind)?;
            if kind != PeerKind::Chunk {
                if header.length > MESSAGE_MAX {
                    return Err(FrameError::TooLong { length: header.length, limit: MESSAGE_MAX }.into());
                }
                let mut body = vec![0; header.length as usize];
                self.fill(&mut body, Some(&mut *answer))?;
                answer.message(kind, header, &body)?;
                continue;
            }
            let length = header.length as usize;
            if !(OFFSET_BYTES..=OFFSET_BYTES + CHUNK_BYTES_MAX).contains(&length) {
                return Err(FrameError::Malformed(header.kind).into());
            }
            let mut offset = [0; OFFSET_BYTES];
            self.fill(&mut offset, Some(&mut *answer))?;
            let length = length - OFFSET_BYTES;
            answer.chunk(header, u64::from_le_bytes(offset), length)?;
            self.chunk(answer, length)?;
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<(), LaneEnd> {
        self.say_all(&leaving())
    }

    fn next_ask(&mut self) -> Result<Ask, LaneEnd> {
        self.wait_until_sent();
        // Its control connection sees to it that nobody waits here for a peer that is gone.
        let header = self.header(MESSAGE_MAX, None)?;
        let mut body = vec![0; header.length as usize];
        self.fill(&mut body, None)?;
        Ask::decode(PeerKind::try_from(header.kind)?, header, &body)
    }

    fn answer(&mut self, bulk: &mut OutgoingPull, length: u64) -> Result<Option<u32>, LaneEnd> {
        let sums = bulk.source.sums();
        let known = sums.as_ref().and_then(|sums| sums.of(&(bulk.at..bulk.at + length)));
        let mut summing = Summing::new(sums.as_deref(), bulk.at);
        let quantum = if known.is_some() { QUANTUM_KNOWN } else { QUANTUM };
        let (mut left, taking) = (length, Taking::begin(length, self.progress));
        while left > 0 {
            let now = left.min(quantum);
            left -= now;
            let head = chunk_head(bulk.call, bulk.at, now, left == 0);
            if let Some(lying) = bulk.source.lying(now).map_err(SendError::from)? {
                if known.is_none() {
                    summing.add(lying.bytes);
                }
                let sent = self.send_lying(&head, &lying, taking);
                // Of what could not be sent whole a part may be under way.
                self.queued.keep(bulk.call, || bulk.source.clone());
                sent?;
                bulk.at += now;
                continue;
            }
            let sent = bulk.source.take(now as usize, &head, |parts| {
                if known.is_none() {
                    // Now, while they are in the cache of this core, or will be.
                    parts.iter().skip(1).for_each(|part| summing.add(part));
                }
                self.send(parts, taking)
            });
            sent.map_err(SendError::from)??;
            bulk.at += now;
        }
        Ok(Some(known.unwrap_or_else(|| summing.sum())))
    }

    fn say(&mut self, frame: &[u8]) -> Result<(), LaneEnd> {
        self.say_all(frame)
    }
}
