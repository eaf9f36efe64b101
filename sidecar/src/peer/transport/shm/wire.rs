//! Messages on the node's socket once it is bound: 16 bytes a message, and a segment's two descriptors or a frame with
//! it.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use tensorlane_memory::passing;

/// Bytes of a message: kind, three that are 0, segment, bytes; little-endian.
const BYTES: usize = 16;

/// Longest frame: of a size that the kernel takes whole or not at all, so that what several threads send does not mix. The head
/// of a tensor with all the metadata that it may have is shorter.
pub(super) const FRAME_MAX: usize = 32 << 10;

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The reader needs a segment that a head has named.
    Want { segment: u32 },
    /// Here it is: its memory, read-only, and a witness.
    Segment { segment: u32, bytes: u64 },
    /// Segment that is not to be had.
    Gone { segment: u32 },
    /// A frame of so many bytes follows, as on the control connection.
    Frame { bytes: u32 },
}

/// Reason for which the talk is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeEnd {
    /// The other end closed it, or its process ended.
    #[error("the other end closed it")]
    Closed,
    /// Message that may not be sent.
    #[error("{0}")]
    Wrong(&'static str),
    /// Descriptors given that are no segment that can be read safely.
    #[error("what it gave is no segment: {0}")]
    Segment(#[from] tensorlane_memory::ImportError),
    /// Frame that may not be sent, or not there.
    #[error("{0}")]
    Frame(String),
    /// The socket.
    #[error("{0}")]
    Socket(#[from] io::Error),
}

impl NodeEnd {
    /// The label in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Wrong(_) | Self::Frame(_) => "protocol",
            Self::Segment(_) => "segment",
            Self::Socket(_) => "socket",
        }
    }
}

impl Message {
    fn encode(self) -> [u8; BYTES] {
        let (kind, segment, bytes) = match self {
            Self::Want { segment } => (1, segment, 0),
            Self::Segment { segment, bytes } => (2, segment, bytes),
            Self::Gone { segment } => (3, segment, 0),
            Self::Frame { bytes } => (4, 0, u64::from(bytes)),
        };
        let mut message = [0; BYTES];
        message[0] = kind;
        message[4..8].copy_from_slice(&u32::to_le_bytes(segment));
        message[8..].copy_from_slice(&u64::to_le_bytes(bytes));
        message
    }

    fn decode(message: [u8; BYTES]) -> Option<Self> {
        const MOST: u64 = FRAME_MAX as u64;
        let [kind, 0, 0, 0, s0, s1, s2, s3, bytes @ ..] = message else { return None };
        let segment = u32::from_le_bytes([s0, s1, s2, s3]);
        let bytes = u64::from_le_bytes(bytes);
        match (kind, bytes) {
            (1, 0) => Some(Self::Want { segment }),
            (2, bytes) if bytes > 0 => Some(Self::Segment { segment, bytes }),
            (3, 0) => Some(Self::Gone { segment }),
            (4, 1..=MOST) if segment == 0 => Some(Self::Frame { bytes: bytes as u32 }),
            _ => None,
        }
    }
}

/// Sends a message without waiting. One that does not read has answers to take before it gets more.
pub(super) fn send(socket: &UnixStream, message: Message) -> io::Result<()> {
    send_whole(socket, &message.encode(), false)
}

/// Sends bytes that are few enough for the kernel to take them whole, or not at all.
fn send_whole(socket: &UnixStream, bytes: &[u8], waits: bool) -> io::Result<()> {
    let flags = if waits { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
    loop {
        match rustix::net::send(socket, bytes, flags) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a segment; waits for as long as the socket allows.
pub(super) fn give(
    socket: &UnixStream,
    segment: u32,
    bytes: u64,
    memory: BorrowedFd<'_>,
    witness: BorrowedFd<'_>,
) -> io::Result<()> {
    let message = Message::Segment { segment, bytes }.encode();
    match passing::send(socket.as_fd(), &[IoSlice::new(&message)], &[memory, witness])? {
        BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Sends a frame, in one piece: without waiting where nothing is lost by that, else for as long as the socket allows.
pub(super) fn send_frame(socket: &UnixStream, frame: &[u8], waits: bool) -> io::Result<()> {
    let bytes = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= FRAME_MAX);
    let bytes = bytes.filter(|bytes| *bytes > 0).ok_or(io::ErrorKind::InvalidInput)?;
    let mut whole = Vec::with_capacity(BYTES + frame.len());
    whole.extend_from_slice(&Message::Frame { bytes }.encode());
    whole.extend_from_slice(frame);
    send_whole(socket, &whole, waits)
}

/// The frame that was announced.
pub(super) fn receive_frame(socket: &UnixStream, bytes: u32) -> Result<Vec<u8>, NodeEnd> {
    let mut frame = vec![0; bytes as usize];
    let mut socket = socket;
    socket.read_exact(&mut frame).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => NodeEnd::Closed,
        _ => NodeEnd::Socket(error),
    })?;
    Ok(frame)
}

/// The next message, with the descriptors of a segment. Waits in `poll`: a thread that sleeps in a read is woken for nothing
/// whenever the other end takes what was written to it.
pub(super) fn receive(socket: &UnixStream) -> Result<(Message, Option<(OwnedFd, OwnedFd)>), NodeEnd> {
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(NodeEnd::Socket(error.into())),
    }
    let (mut message, mut have, mut fds) = ([0; BYTES], 0, Vec::new());
    while have < BYTES {
        match passing::receive(socket.as_fd(), &mut message[have..], &mut fds)? {
            0 => return Err(NodeEnd::Closed),
            bytes => have += bytes,
        }
    }
    let message = Message::decode(message).ok_or(NodeEnd::Wrong("it sent what is no message"))?;
    let witness = fds.pop();
    match (message, fds.pop(), witness, fds.is_empty()) {
        (Message::Segment { .. }, Some(memory), Some(witness), true) => {
            Ok((message, Some((memory, witness))))
        }
        (Message::Want { .. } | Message::Gone { .. } | Message::Frame { .. }, None, None, true) => {
            Ok((message, None))
        }
        _ => Err(NodeEnd::Wrong("a message came with the wrong number of descriptors")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_back_and_any_other_byte_makes_it_none() {
        for message in [
            Message::Want { segment: 7 },
            Message::Segment { segment: u32::MAX, bytes: 1 << 40 },
            Message::Gone { segment: 0 },
            Message::Frame { bytes: FRAME_MAX as u32 },
        ] {
            assert_eq!(Message::decode(message.encode()), Some(message));
            for at in 0..4 {
                let mut wrong = message.encode();
                wrong[at] ^= 0x40;
                assert_eq!(Message::decode(wrong), None);
            }
        }
        let mut longer = Message::Want { segment: 7 }.encode();
        longer[9] = 1;
        assert_eq!(Message::decode(longer), None);
    }

    #[test]
    fn a_frame_is_read_back_and_one_that_is_too_long_is_not_sent() {
        let (a, b) = UnixStream::pair().unwrap();
        for frame in [vec![7; 1], vec![8; FRAME_MAX]] {
            send_frame(&a, &frame, true).unwrap();
            let (message, _) = receive(&b).unwrap();
            assert_eq!(message, Message::Frame { bytes: frame.len() as u32 });
            assert!(receive_frame(&b, frame.len() as u32).unwrap() == frame);
        }
        for wrong in [vec![], vec![9; FRAME_MAX + 1]] {
            let refused = send_frame(&a, &wrong, false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        send(&a, Message::Frame { bytes: 4 }).unwrap();
        drop(a);
        assert!(matches!(receive(&b), Ok((Message::Frame { bytes: 4 }, None))));
        assert!(matches!(receive_frame(&b, 4), Err(NodeEnd::Closed)));
    }

    #[test]
    fn a_full_socket_takes_a_frame_whole_or_not_at_all() {
        let (a, b) = UnixStream::pair().unwrap();
        let frame = vec![7; FRAME_MAX];
        let sent = (0..1000).take_while(|_| send_frame(&a, &frame, false).is_ok()).count();
        assert!((1..1000).contains(&sent), "{sent}");
        drop(a);
        for _ in 0..sent {
            assert!(matches!(receive(&b), Ok((Message::Frame { .. }, None))));
            assert!(receive_frame(&b, FRAME_MAX as u32).unwrap() == frame);
        }
        assert!(matches!(receive(&b), Err(NodeEnd::Closed)));
    }

    #[test]
    fn a_segment_comes_with_two_descriptors_and_nothing_else_with_any() {
        let (a, b) = UnixStream::pair().unwrap();
        let (read, write) = passing::pipe().unwrap();
        give(&a, 3, 4096, read.as_fd(), write.as_fd()).unwrap();
        let (message, fds) = receive(&b).unwrap();
        assert_eq!((message, fds.is_some()), (Message::Segment { segment: 3, bytes: 4096 }, true));
        send(&a, Message::Segment { segment: 3, bytes: 4096 }).unwrap();
        assert!(matches!(receive(&b), Err(NodeEnd::Wrong(_))));
        let want = Message::Want { segment: 3 }.encode();
        passing::send(a.as_fd(), &[IoSlice::new(&want)], &[read.as_fd()]).unwrap();
        assert!(matches!(receive(&b), Err(NodeEnd::Wrong(_))));
        drop(a);
        assert!(matches!(receive(&b), Err(NodeEnd::Closed)));
    }
}
