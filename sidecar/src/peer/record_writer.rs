//! Sealed records on their way into the socket: sealed in one order, and sent in that order.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;

use socket2::SockRef;
use tensorlane_proto::frame::{HEADER_BYTES, Header, LAST, PeerKind};

use super::full::Full;
use super::gather_frame::GatherFrame;
use super::gpus::LentMemory;
use super::parse::OFFSET_BYTES;
use super::received::ReceivedRanges;
use super::record::{RECORD_PLAIN_MAX, Sealer};
use super::send_error::SendError;
use super::slowest::Taking;
use super::source::Source;

/// Records handed to the kernel in one call.
const RECORDS_A_CALL: usize = 64;
const HEAD_BYTES: usize = HEADER_BYTES + OFFSET_BYTES;

/// A pull being served: the chunks that are still to be sent.
#[derive(Clone)]
pub(super) struct OutgoingPull {
    /// The call of the pull.
    pub(super) call: u64,
    /// Bytes of the pull.
    pub(super) source: Source,
    /// Packed bytes that were sent, or that the reader had before.
    pub(super) at: u64,
    /// Number of bytes that there are.
    pub(super) end: u64,
    /// Bytes behind `at` that the reader has.
    pub(super) ahead: ReceivedRanges,
    /// Set if the bytes are another peer's, of whose tensor we have a copy or get one.
    pub(super) relayed: bool,
    /// The GPU memory that the tensor is lent in; then there are no bytes to be sent.
    pub(super) gpu: Option<LentMemory>,
}

impl OutgoingPull {
    /// The length of the next chunk, of at most so many bytes, and whether it is the last one.
    pub(super) fn next(&self, most: u64) -> (u64, bool) {
        let length = (self.ahead.gap_end(self.end) - self.at).min(most);
        (length, self.ahead.is_end(self.at + length, self.end))
    }

    /// A chunk of this length was sent.
    pub(super) fn sent(&mut self, length: u64) {
        let behind = self.at + length;
        self.at = self.ahead.pass(behind);
        self.source.skip(self.at - behind);
    }
}

/// The sealing end of a connection, and what the socket has not taken yet.
pub(super) struct RecordWriter {
    sealer: Sealer,
    /// Sealed, in order, not yet taken by the socket.
    records: VecDeque<Vec<u8>>,
    /// Bytes of the first record that the socket has.
    sent: usize,
}

impl RecordWriter {
    pub(super) fn new(sealer: Sealer) -> Self {
        Self { sealer, records: VecDeque::new(), sent: 0 }
    }

    /// Returns whether the socket has all of it.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes that the socket does not have.
    pub(super) fn bytes(&self) -> u64 {
        (self.records.iter().map(Vec::len).sum::<usize>() - self.sent) as u64
    }

    pub(super) fn seal_frame(&mut self, frame: &[u8]) -> Result<(), rustls::Error> {
        self.sealer.seal_all(frame, &mut self.records)
    }

    /// Seals a frame that is put together here.
    pub(super) fn seal_gathered(&mut self, frame: &GatherFrame) -> Result<(), rustls::Error> {
        let Self { sealer, records, .. } = self;
        let (mut record, mut room) = (Vec::new(), RECORD_PLAIN_MAX);
        for mut part in frame.parts() {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(room));
                record.push(now);
                (part, room) = (later, room - now.len());
                if room == 0 {
                    sealer.seal(&record, records)?;
                    record.clear();
                    room = RECORD_PLAIN_MAX;
                }
            }
        }
        if record.is_empty() { Ok(()) } else { sealer.seal(&record, records) }
    }

    pub(super) fn close_notify(&mut self) -> Result<(), rustls::Error> {
        self.sealer.close_notify(&mut self.records)
    }

    #[cfg(test)]
    pub(super) fn rekey_every(&mut self, records: u64) {
        self.sealer.rekey_every(records);
    }

    pub(super) fn update_keys(&mut self) -> Result<(), rustls::Error> {
        let Self { sealer, records, .. } = self;
        sealer.update_keys(records)
    }

    /// Frames in their order; small ones share records.
    pub(super) fn seal_frames(&mut self, frames: &VecDeque<Vec<u8>>) -> Result<(), rustls::Error> {
        let mut together = Vec::new();
        for frame in frames {
            if together.len() + frame.len() > RECORD_PLAIN_MAX {
                self.sealer.seal_all(&together, &mut self.records)?;
                together.clear();
            }
            if frame.len() >= RECORD_PLAIN_MAX {
                self.sealer.seal_all(frame, &mut self.records)?;
            } else {
                together.extend_from_slice(frame);
            }
        }
        self.sealer.seal_all(&together, &mut self.records)
    }

    /// The next `length` bytes of a pull.
    pub(super) fn seal_chunk(
        &mut self,
        bulk: &mut OutgoingPull,
        length: usize,
        last: bool,
    ) -> Result<(), SendError> {
        let header = Header {
            length: (OFFSET_BYTES + length) as u32,
            kind: PeerKind::Chunk.into(),
            flags: if last { LAST } else { 0 },
            call: bulk.call,
        };
        let mut head = [0; HEAD_BYTES];
        let (front, back) = head.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&header.encode());
        back.copy_from_slice(&bulk.at.to_le_bytes());
        let first = length.min(RECORD_PLAIN_MAX - HEAD_BYTES);
        let Self { sealer, records, .. } = self;
        bulk.source.take(first, &head, |parts| sealer.seal(parts, records))??;
        let mut done = first;
        while done < length {
            let take = (length - done).min(RECORD_PLAIN_MAX);
            bulk.source.take(take, &[], |parts| sealer.seal(parts, records))??;
            done += take;
        }
        Ok(())
    }

    /// Gives the socket what it takes without waiting.
    pub(super) fn offer(&mut self, socket: &TcpStream) -> Result<(), SendError> {
        while !self.records.is_empty() && self.step(socket)? {}
        Ok(())
    }

    /// Gives the socket all of it; fails when nothing arrives at the other end for the progress deadline, or not enough.
    pub(super) fn flush(&mut self, socket: &TcpStream, mut taking: Taking) -> Result<(), SendError> {
        let mut full = Full::default();
        while !self.records.is_empty() {
            taking.goes_on()?;
            if self.step(socket)? {
                full.took();
            } else {
                full.wait(socket, &mut taking)?;
            }
        }
        Ok(())
    }

    /// Gives the socket what it takes of some records. Whether it took any.
    fn step(&mut self, socket: &TcpStream) -> Result<bool, SendError> {
        let mut slices = [IoSlice::new(&[]); RECORDS_A_CALL];
        let mut count = 0;
        for (slice, record) in slices.iter_mut().zip(&self.records) {
            *slice = IoSlice::new(record);
            count += 1;
        }
        if let (Some(slice), Some(record)) = (slices.first_mut(), self.records.front()) {
            *slice = IoSlice::new(&record[self.sent..]);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match SockRef::from(socket).send_vectored_with_flags(&slices[..count], flags) {
            Ok(0) => Err(SendError::Closed),
            Ok(sent) => {
                self.took(sent);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn took(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(record) = self.records.front()
            && self.sent >= record.len()
        {
            self.sent -= record.len();
            self.records.pop_front();
        }
    }
}
