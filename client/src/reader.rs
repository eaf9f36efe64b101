//! Bytes and descriptors of the session socket, cut into frames.
//!
//! One read takes what there is, up to 64 KiB, so a small reply costs no second one. A frame that does not fit there is
//! read straight into memory of its own. Knows nothing of calls.
//!
//! Whoever waits for bytes waits in `poll`, not in a read: when the other end takes what was written to it, the kernel wakes
//! every thread that sleeps in a read of the writer's socket, for nothing. On a core that has gone idle that costs as much as the
//! reply.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use tensorlane_proto::frame::{FrameError, HEADER_BYTES, Header, SESSION_BODY_MAX};

use crate::connection::timespec;
use crate::error::{Error, Result};

/// Most bytes that one read takes. Costs that much memory a connection.
const BUFFER_BYTES: usize = 64 << 10;
/// Descriptors of one read at most; a segment has two, and the kernel ends a read behind the ones of one write.
const DESCRIPTORS_MAX: usize = 32;

/// Frame, whole.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Header: length, kind, flags and number of the call.
    pub(crate) header: Header,
    /// Bytes behind the header.
    pub(crate) body: Bytes,
    /// The descriptor that came with it, if it is a reply that has one.
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Bytes.
    Some,
    /// Nothing in time, or a signal came.
    Nothing,
}

/// A frame that is longer than the buffer, while it is being read.
#[derive(Debug)]
struct Large {
    header: Header,
    body: Vec<u8>,
    filled: usize,
}

/// The reading half of a session socket.
#[derive(Debug)]
pub(crate) struct Reader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    large: Option<Large>,
    descriptors: VecDeque<OwnedFd>,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, large: None, descriptors: VecDeque::new() }
    }

    /// The next descriptor that came; descriptors come no later than the first byte of their frame.
    pub(crate) fn descriptor(&mut self) -> Result<OwnedFd> {
        self.descriptors.pop_front().ok_or_else(|| Error::protocol("a frame came without its descriptors"))
    }

    /// The next whole frame among the bytes that were read, if there is one.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>> {
        if let Some(large) = self.large.take() {
            if large.filled < large.body.len() {
                self.large = Some(large);
                return Ok(None);
            }
            return Ok(Some(Frame { header: large.header, body: large.body.into(), descriptor: None }));
        }
        let bytes = &self.buffer[self.start..self.end];
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head, SESSION_BODY_MAX).map_err(broken)?;
        let length = header.length as usize;
        if let Some(body) = rest.get(..length) {
            let body = Bytes::copy_from_slice(body);
            self.start += HEADER_BYTES + length;
            return Ok(Some(Frame { header, body, descriptor: None }));
        }
        if HEADER_BYTES + length > self.buffer.len() {
            let mut body = vec![0; length];
            body[..rest.len()].copy_from_slice(rest);
            self.large = Some(Large { header, body, filled: rest.len() });
            (self.start, self.end) = (0, 0);
        }
        Ok(None)
    }

    /// Reads once, when there is something, but waits no longer than that for it.
    pub(crate) fn fill_within(&mut self, socket: impl AsFd, patience: Duration) -> Result<Filled> {
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut ready, Some(&timespec(patience))) {
            Ok(0) | Err(Errno::INTR) => Ok(Filled::Nothing),
            // What is wrong with a socket shows in a read of it.
            _ => self.fill(socket),
        }
    }

    /// Reads once what there is. Does not wait.
    pub(crate) fn fill(&mut self, socket: impl AsFd) -> Result<Filled> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let room = match &mut self.large {
            Some(large) => &mut large.body[large.filled..],
            None => {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                &mut self.buffer[self.end..]
            }
        };
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let came = match recvmsg(socket, &mut [IoSliceMut::new(room)], &mut ancillary, flags) {
            Ok(came) => came,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Filled::Nothing),
            Err(error) => return Err(Error::lost(format!("reading the session socket failed: {error}"))),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(list) = message {
                self.descriptors.extend(list);
            }
        }
        if came.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Error::resources(
                "a descriptor of the sidecar did not fit into this process (raise its limit of open files)",
                Errno::MFILE,
            ));
        }
        if came.bytes == 0 {
            return Err(Error::lost("the sidecar closed the session socket"));
        }
        match &mut self.large {
            Some(large) => large.filled += came.bytes,
            None => self.end += came.bytes,
        }
        Ok(Filled::Some)
    }
}

fn broken(error: FrameError) -> Error {
    Error::protocol(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn frame(kind: u16, call: u64, body: &[u8]) -> Vec<u8> {
        let header = Header { length: u32::try_from(body.len()).unwrap(), kind, flags: 1, call };
        [&header.encode()[..], body].concat()
    }

    /// Every frame that `bytes` hold, when they arrive in pieces of `piece` bytes.
    fn read_in_pieces(bytes: &[u8], piece: usize) -> Vec<(u64, Vec<u8>)> {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut reader = Reader::new();
        let mut frames = Vec::new();
        for part in bytes.chunks(piece) {
            far.write_all(part).unwrap();
            while reader.fill(&near).unwrap() == Filled::Some {
                while let Some(frame) = reader.next_frame().unwrap() {
                    frames.push((frame.header.call, frame.body.into()));
                }
            }
        }
        frames
    }

    #[test]
    fn frames_are_whole_however_the_bytes_arrive() {
        let large: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let bytes =
            [frame(20, 1, b"one"), frame(20, 2, &large), frame(20, 3, b""), frame(20, 4, b"four")].concat();
        let want = vec![(1, b"one".to_vec()), (2, large), (3, vec![]), (4, b"four".to_vec())];
        for piece in [7, 16, 4_096, 65_536, bytes.len()] {
            assert_eq!(read_in_pieces(&bytes, piece), want, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_frame_above_the_limit_is_refused_before_it_is_read() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let header = Header { length: SESSION_BODY_MAX + 1, kind: 20, flags: 1, call: 1 };
        far.write_all(&header.encode()).unwrap();
        let mut reader = Reader::new();
        reader.fill(&near).unwrap();
        assert!(matches!(reader.next_frame(), Err(Error::Protocol(_))));
    }

    #[test]
    fn the_end_of_the_socket_is_a_lost_session() {
        let (far, near) = UnixStream::pair().unwrap();
        drop(far);
        assert!(matches!(Reader::new().fill(&near), Err(Error::SessionLost { .. })));
    }

    #[test]
    fn whoever_waits_for_bytes_has_them_when_they_come_and_nothing_when_time_is_over() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut reader = Reader::new();
        assert_eq!(reader.fill_within(&near, Duration::from_millis(1)).unwrap(), Filled::Nothing);
        let writing = std::thread::spawn(move || {
            far.write_all(&frame(20, 1, b"late")).unwrap();
            far
        });
        let patience = Duration::from_secs(30);
        assert_eq!(reader.fill_within(&near, patience).unwrap(), Filled::Some);
        assert_eq!(reader.next_frame().unwrap().unwrap().body, b"late"[..]);
        drop(writing.join().unwrap());
        assert!(matches!(reader.fill_within(&near, patience), Err(Error::SessionLost { .. })));
    }
}
