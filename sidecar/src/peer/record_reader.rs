//! The receiving side of one connection below frames: a buffer of ciphertext, opened in place.

use std::io::{self, Read};
use std::net::TcpStream;

use super::record::{Opened, Opener, RecordError};

/// Ciphertext taken from the socket in one call. Fewer calls than with less; more does not stay in the cache of a core.
const BUFFER: usize = 128 << 10;

/// End of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    /// All whole records were opened; more must be received.
    All,
    /// The taker wanted no more for now.
    Stopped,
    /// The other side ended its stream in order.
    Closed,
}

/// Sealed bytes that came, and plaintext that was opened before anyone was there to take it.
pub(super) struct RecordReader {
    opener: Opener,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    plain: Vec<u8>,
}

impl RecordReader {
    /// Goes on where the handshake ended: `plain` was opened there, `sealed` came after it.
    pub(super) fn new(opener: Opener, plain: Vec<u8>, sealed: &[u8]) -> Self {
        let mut buffer = vec![0; BUFFER];
        buffer[..sealed.len()].copy_from_slice(sealed);
        Self { opener, buffer, start: 0, end: sealed.len(), plain }
    }

    /// Receives once, waiting as long as the socket is set to. 0: end of file.
    pub(super) fn receive(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        // At most one record that is not whole: a sixteenth of the buffer.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match socket.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(bytes) => {
                    self.end += bytes;
                    return Ok(bytes);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens every whole record and hands its plaintext to `take`, which says how much it took: all, or it is stopped
    /// there and the rest kept.
    pub(super) fn drain<E: From<RecordError>>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<usize, E>,
    ) -> Result<Drained, E> {
        if !self.plain.is_empty() {
            let taken = take(&self.plain)?;
            self.plain.drain(..taken);
            if !self.plain.is_empty() {
                return Ok(Drained::Stopped);
            }
        }
        while let Some(length) = Opener::whole(&self.buffer[self.start..self.end])? {
            let record = &mut self.buffer[self.start..self.start + length];
            self.start += length;
            match self.opener.open(record)? {
                Opened::Data(plain) => {
                    let taken = take(plain)?;
                    if taken < plain.len() {
                        self.plain = plain[taken..].to_vec();
                        return Ok(Drained::Stopped);
                    }
                }
                Opened::Nothing => {}
                Opened::Closed => return Ok(Drained::Closed),
            }
        }
        Ok(Drained::All)
    }

    /// Returns whether the other side asked for new keys of ours since this was last asked.
    pub(super) fn take_update_request(&mut self) -> bool {
        self.opener.take_update_request()
    }
}
