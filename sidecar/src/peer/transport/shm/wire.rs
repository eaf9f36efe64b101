//! Messages on the node's socket once both ends have met. Each bears a tag under a key of the control connection, so that whoever
//! passes bytes between two ends can stop them and not alter, repeat or add any.
//!
//! ```text
//!   kind | 0 0 0 | segment | bytes | memory: device, inode | witness: device, inode | tag      a frame's bytes
//!      1       3         4       8                      16                       16    32
//! ```
//! Messages of GPU memory have the number of a call in place of bytes, and neither segment nor witness.
//! The tag is of the number of the message among those of its end, of what is before it, and of the frame. Descriptors cannot be
//! tagged: a segment says which files they are, and they are looked at as they come.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tensorlane_memory::passing;

use super::place::FileId;
use crate::peer::transport::lanes::key::{self, MessageKey};

/// Bytes of a message without its tag: kind, three that are 0, segment, bytes, two files; little-endian.
const SAID: usize = 48;
/// Bytes of a message.
const BYTES: usize = SAID + key::BYTES;

/// Longest frame: of a size that the kernel takes whole or not at all, so that what several threads send does not mix. The head
/// of a tensor with all the metadata that it may have is shorter.
pub(super) const FRAME_MAX: usize = 32 << 10;
/// No file.
const NONE: FileId = FileId { device: 0, inode: 0 };
/// Time that a message that waits for room in the socket may take.
const STALL: Duration = Duration::from_secs(2);

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The reader needs a segment that a head has named.
    Want { segment: u32 },
    /// Here it is: its memory, read-only, and a witness, and which files they are.
    Segment { segment: u32, bytes: u64, memory: FileId, witness: FileId },
    /// Segment that is not to be had.
    Gone { segment: u32 },
    /// A frame of so many bytes follows, as on the control connection.
    Frame { bytes: u32 },
    /// The reader needs the GPU memory that the head of this call has lent.
    WantGpu { call: u64 },
    /// Here it is, and which file its descriptor is.
    Gpu { call: u64, memory: FileId },
    /// GPU memory that is not to be had.
    GpuGone { call: u64 },
}

/// Message that came, with all that belongs to it.
#[derive(Debug)]
pub(super) enum Heard {
    /// The other end needs a segment.
    Want(u32),
    /// Segment of the owner's, whose descriptors are the files that it said.
    Segment { segment: u32, bytes: u64, memory: OwnedFd, witness: OwnedFd },
    /// Segment that is not to be had.
    Gone(u32),
    /// Frame as on the control connection.
    Frame(Vec<u8>),
    /// The other end needs the GPU memory of a call.
    WantGpu(u64),
    /// GPU memory of the owner's, whose descriptor is the file that it said.
    Gpu { call: u64, memory: OwnedFd },
    /// GPU memory that is not to be had.
    GpuGone(u64),
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
    /// Message that the other end of the control connection has not sent, or not now.
    #[error("a message came that the peer has not sent: somebody stands between")]
    Forged,
    /// Descriptors given that are no segment that can be read safely.
    #[error("what it gave is no segment: {0}")]
    Segment(#[from] tensorlane_memory::ImportError),
    /// Descriptor of another file than was said.
    #[error(
        "the {what} of segment {segment} came as {came}, and the owner said {said}: somebody stands between"
    )]
    OtherFile { what: &'static str, segment: u32, came: FileId, said: FileId },
    /// Descriptor of GPU memory that is another file than was said.
    #[error("GPU memory came as {came}, and the owner said {said}: somebody stands between")]
    OtherMemory { came: FileId, said: FileId },
    /// Frame that may not be sent, or not there.
    #[error("{0}")]
    Frame(String),
    /// The socket.
    #[error("{0}")]
    Socket(io::Error),
}

/// The node's socket after a meeting.
pub(super) struct MetSocket {
    socket: UnixStream,
    said: Mutex<Side>,
    heard: Mutex<Side>,
}

/// Messages of one end.
struct Side {
    key: MessageKey,
    /// Number of the next one.
    next: u64,
}

// === impl NodeEnd ===

impl From<io::Error> for NodeEnd {
    /// An end that closed while it was told something is closed, as one is whose end is read.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Socket(error),
        }
    }
}

impl NodeEnd {
    /// The label in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Wrong(_) | Self::Frame(_) => "protocol",
            Self::Forged => "forged",
            Self::Segment(_) => "segment",
            Self::OtherFile { .. } | Self::OtherMemory { .. } => "other_file",
            Self::Socket(_) => "socket",
        }
    }

    /// Returns whether memory was refused that came in the owner's name.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Segment(_) | Self::OtherFile { .. } | Self::OtherMemory { .. })
    }
}

// === impl Message ===

impl Message {
    fn encode(self) -> [u8; SAID] {
        let (kind, segment, bytes, memory, witness) = match self {
            Self::Want { segment } => (1, segment, 0, NONE, NONE),
            Self::Segment { segment, bytes, memory, witness } => (2, segment, bytes, memory, witness),
            Self::Gone { segment } => (3, segment, 0, NONE, NONE),
            Self::Frame { bytes } => (4, 0, u64::from(bytes), NONE, NONE),
            Self::WantGpu { call } => (5, 0, call, NONE, NONE),
            Self::Gpu { call, memory } => (6, 0, call, memory, NONE),
            Self::GpuGone { call } => (7, 0, call, NONE, NONE),
        };
        let mut message = [0; SAID];
        message[0] = kind;
        message[4..8].copy_from_slice(&segment.to_le_bytes());
        let numbers = [bytes, memory.device, memory.inode, witness.device, witness.inode];
        for (place, number) in message[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        message
    }

    fn decode(message: &[u8; SAID]) -> Option<Self> {
        const MOST: u64 = FRAME_MAX as u64;
        let [kind, 0, 0, 0, s0, s1, s2, s3, numbers @ ..] = *message else { return None };
        let segment = u32::from_le_bytes([s0, s1, s2, s3]);
        let mut words = numbers.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut word = || words.next().unwrap_or_default();
        let bytes = word();
        let mut file = || FileId { device: word(), inode: word() };
        let (memory, witness) = (file(), file());
        let has_no_file = [memory, witness] == [NONE; 2];
        match (kind, bytes, has_no_file) {
            (1, 0, true) => Some(Self::Want { segment }),
            (2, bytes, _) if bytes > 0 => Some(Self::Segment { segment, bytes, memory, witness }),
            (3, 0, true) => Some(Self::Gone { segment }),
            (4, 1..=MOST, true) if segment == 0 => Some(Self::Frame { bytes: bytes as u32 }),
            (5, call, true) if segment == 0 && call > 0 => Some(Self::WantGpu { call }),
            (6, call, _) if segment == 0 && call > 0 && witness == NONE => Some(Self::Gpu { call, memory }),
            (7, call, true) if segment == 0 && call > 0 => Some(Self::GpuGone { call }),
            _ => None,
        }
    }
}

// === impl MetSocket ===

impl MetSocket {
    /// A socket at which both ends have met, with the keys of what is said here and what is heard.
    pub(super) fn new(socket: UnixStream, said: MessageKey, heard: MessageKey) -> Self {
        let side = |key| Mutex::new(Side { key, next: 0 });
        Self { socket, said: side(said), heard: side(heard) }
    }

    /// The socket itself.
    pub(super) fn stream(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a message without waiting. One that does not read has answers to take before it gets more.
    pub(super) fn send(&self, message: Message) -> io::Result<()> {
        self.send_whole(message, &[], &[], false)
    }

    /// Sends a segment; waits for a while where there is no room.
    pub(super) fn give(
        &self,
        segment: u32,
        bytes: u64,
        memory: BorrowedFd<'_>,
        witness: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let files = (FileId::of(memory)?, FileId::of(witness)?);
        let message = Message::Segment { segment, bytes, memory: files.0, witness: files.1 };
        self.send_whole(message, &[], &[memory, witness], true)
    }

    /// Sends GPU memory; waits for a while where there is no room.
    pub(super) fn give_gpu(&self, call: u64, memory: BorrowedFd<'_>) -> io::Result<()> {
        let message = Message::Gpu { call, memory: FileId::of(memory)? };
        self.send_whole(message, &[], &[memory], true)
    }

    /// Sends a frame, in one piece: without waiting where nothing is lost by that, else for a while.
    pub(super) fn send_frame(&self, frame: &[u8], waits: bool) -> io::Result<()> {
        let bytes = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= FRAME_MAX);
        let bytes = bytes.filter(|bytes| *bytes > 0).ok_or(io::ErrorKind::InvalidInput)?;
        self.send_whole(Message::Frame { bytes }, frame, &[], waits)
    }

    /// Sends bytes that are few enough for the kernel to take them whole, or not at all. No lock is held while it waits.
    fn send_whole(
        &self,
        message: Message,
        frame: &[u8],
        fds: &[BorrowedFd<'_>],
        waits: bool,
    ) -> io::Result<()> {
        let said = message.encode();
        let until = Instant::now() + STALL;
        loop {
            match self.send_now(&said, frame, fds) {
                Err(error) if waits && error.kind() == io::ErrorKind::WouldBlock => self.await_room(until)?,
                sent => return sent,
            }
        }
    }

    fn send_now(&self, said: &[u8; SAID], frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut whole = Vec::with_capacity(BYTES + frame.len());
        whole.extend_from_slice(said);
        whole.extend_from_slice(frame);
        let mut side = self.said.lock();
        let tag = side.key.tag(side.next, &whole);
        whole.splice(SAID..SAID, tag);
        match passing::send_now(self.socket.as_fd(), &[IoSlice::new(&whole)], fds)? {
            sent if sent == whole.len() => side.next += 1,
            _ => return Err(io::ErrorKind::WriteZero.into()),
        }
        Ok(())
    }

    fn await_room(&self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&left)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next message, with what belongs to it. Waits in `poll`: a thread that sleeps in a read is woken for nothing
    /// whenever the other end takes what was written to it.
    pub(super) fn receive(&self) -> Result<Heard, NodeEnd> {
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(NodeEnd::Socket(error.into())),
        }
        let (mut head, mut fds) = ([0; BYTES], Vec::new());
        self.fill(&mut head, &mut fds)?;
        let (said, tag) = head.split_first_chunk::<SAID>().ok_or(NodeEnd::Forged)?;
        // Read by what is not proven yet only as far as it says how much there is to be proven.
        let message = Message::decode(said).ok_or(NodeEnd::Wrong("it sent what is no message"))?;
        let mut whole = said.to_vec();
        if let Message::Frame { bytes } = message {
            whole.resize(SAID + bytes as usize, 0);
            self.fill(&mut whole[SAID..], &mut fds)?;
        }
        {
            let mut side = self.heard.lock();
            if !side.key.is_tag(side.next, &whole, tag) {
                return Err(NodeEnd::Forged);
            }
            side.next += 1;
        }
        heard(message, whole.split_off(SAID), fds)
    }

    /// Reads as many bytes as there is room for.
    fn fill(&self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(), NodeEnd> {
        let mut have = 0;
        while have < bytes.len() {
            match passing::receive(self.socket.as_fd(), &mut bytes[have..], fds)? {
                0 => return Err(NodeEnd::Closed),
                more => have += more,
            }
            if fds.len() > DESCRIPTORS_MAX {
                return Err(NodeEnd::Wrong("a message came with the wrong number of descriptors"));
            }
        }
        Ok(())
    }
}

/// Most descriptors of a message.
const DESCRIPTORS_MAX: usize = 2;

/// A message that is the peer's, with its descriptors where they are those that it said.
fn heard(message: Message, frame: Vec<u8>, mut fds: Vec<OwnedFd>) -> Result<Heard, NodeEnd> {
    let second = fds.pop();
    match (message, fds.pop(), second) {
        (Message::Segment { segment, bytes, memory, witness }, Some(first), Some(second)) => {
            check_file(&first, "memory", segment, memory)?;
            check_file(&second, "witness", segment, witness)?;
            Ok(Heard::Segment { segment, bytes, memory: first, witness: second })
        }
        (Message::Gpu { call, memory }, None, Some(only)) => match FileId::of(&only)? {
            came if came == memory => Ok(Heard::Gpu { call, memory: only }),
            came => Err(NodeEnd::OtherMemory { came, said: memory }),
        },
        (Message::WantGpu { call }, None, None) => Ok(Heard::WantGpu(call)),
        (Message::GpuGone { call }, None, None) => Ok(Heard::GpuGone(call)),
        (Message::Want { segment }, None, None) => Ok(Heard::Want(segment)),
        (Message::Gone { segment }, None, None) => Ok(Heard::Gone(segment)),
        (Message::Frame { .. }, None, None) => Ok(Heard::Frame(frame)),
        _ => Err(NodeEnd::Wrong("a message came with the wrong number of descriptors")),
    }
}

/// Checks that a descriptor is the file that was said.
fn check_file(file: &OwnedFd, what: &'static str, segment: u32, said: FileId) -> Result<(), NodeEnd> {
    let came = FileId::of(file)?;
    if came == said { Ok(()) } else { Err(NodeEnd::OtherFile { what, segment, came, said }) }
}

#[cfg(test)]
mod tests {
    use tensorlane_fuzz::{Meter, Target, fuzz};
    use tensorlane_memory::heap::MeteringAllocator;

    use super::*;
    use crate::peer::transport::lanes::key::{LaneKey, Nonce, Role, nonce};

    const FILE: FileId = FileId { device: 1, inode: 9 };

    /// Two ends that have met.
    fn pair() -> (MetSocket, MetSocket) {
        pair_of(&LaneKey::random(), &[nonce(), nonce()])
    }

    fn pair_of(key: &LaneKey, nonces: &[Nonce; 2]) -> (MetSocket, MetSocket) {
        let (a, b) = UnixStream::pair().unwrap();
        let of = |role| key.messages(role, nonces);
        let met = |socket, said, heard| MetSocket::new(socket, of(said), of(heard));
        (met(a, Role::NodeDialed, Role::NodeAccepted), met(b, Role::NodeAccepted, Role::NodeDialed))
    }

    /// A message of each kind.
    fn messages() -> [Message; 7] {
        [
            Message::Want { segment: 7 },
            Message::Segment { segment: u32::MAX, bytes: 1 << 40, memory: FILE, witness: FILE },
            Message::Gone { segment: 0 },
            Message::Frame { bytes: FRAME_MAX as u32 },
            Message::WantGpu { call: u64::MAX },
            Message::Gpu { call: 1, memory: FILE },
            Message::GpuGone { call: 1 },
        ]
    }

    #[test]
    fn mutated_messages_are_written_as_they_were_read_or_are_none() {
        let corpus = messages().map(|message| message.encode().to_vec()).to_vec();
        let (times, spare, meter) = (1, 1 << 10, MeteringAllocator::peak_of as Meter);
        fuzz(Target { name: "Message of the node's socket", corpus, times, spare, meter }, |bytes| {
            let Ok(said) = <&[u8; SAID]>::try_from(bytes) else { return false };
            let message = Message::decode(said);
            assert!(message.is_none_or(|message| message.encode() == *said));
            message.is_some()
        });
    }

    #[test]
    fn mutated_streams_are_what_the_other_end_has_said_up_to_where_they_are_not() {
        let keyed = || pair_of(&LaneKey::told(&[7; key::BYTES]), &[[8; key::BYTES], [9; key::BYTES]]);
        let (a, b) = keyed();
        // All that was said, and where each message ends in it.
        let (mut stream, mut ends) = (Vec::new(), vec![0]);
        for frame in [&b"a frame"[..], b"another one"] {
            for message in
                [Message::Want { segment: 1 }, Message::Gone { segment: 2 }, Message::WantGpu { call: 3 }]
            {
                a.send(message).unwrap();
                stream.extend(raw(&b));
                ends.push(stream.len());
            }
            a.send_frame(frame, true).unwrap();
            stream.extend(raw(&b));
            ends.push(stream.len());
        }
        let corpus = ends[1..].iter().map(|end| stream[..*end].to_vec()).collect();
        // One frame at a time is kept, whatever is announced: as it came, and as it is given.
        let (times, spare, meter) = (1, 4 * FRAME_MAX, MeteringAllocator::peak_of as Meter);
        fuzz(Target { name: "MetSocket", corpus, times, spare, meter }, move |bytes| {
            let (from, to) = keyed();
            rustix::io::write(from.stream(), bytes).unwrap();
            drop(from);
            let heard = std::iter::from_fn(|| to.receive().ok()).count();
            let said = &stream[..ends[heard]];
            assert!(bytes.starts_with(said), "{heard} messages");
            bytes == said
        });
    }

    #[test]
    fn a_message_is_read_back_and_any_other_byte_makes_it_none() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode()), Some(message));
            for at in 0..4 {
                let mut wrong = message.encode();
                wrong[at] ^= 0x40;
                assert_eq!(Message::decode(&wrong), None);
            }
        }
        for at in [9, 20, 47] {
            let mut longer = Message::Want { segment: 7 }.encode();
            longer[at] = 1;
            assert_eq!(Message::decode(&longer), None);
        }
    }

    #[test]
    fn a_frame_is_read_back_and_one_that_is_too_long_is_not_sent() {
        let (a, b) = pair();
        for frame in [vec![7; 1], vec![8; FRAME_MAX]] {
            a.send_frame(&frame, true).unwrap();
            assert!(matches!(b.receive(), Ok(Heard::Frame(came)) if came == frame));
        }
        for wrong in [vec![], vec![9; FRAME_MAX + 1]] {
            let refused = a.send_frame(&wrong, false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        a.send(Message::Frame { bytes: 4 }).unwrap();
        drop(a);
        assert!(matches!(b.receive(), Err(NodeEnd::Closed)), "it ends in the middle");
    }

    #[test]
    fn an_end_that_has_closed_is_closed_whether_it_is_told_something_or_listened_to() {
        let (a, b) = pair();
        drop(b);
        let told = NodeEnd::from(a.send(Message::Want { segment: 1 }).unwrap_err());
        assert_eq!((told.label(), a.receive().unwrap_err().label()), ("closed", "closed"));
        let (a, b) = pair();
        a.send(Message::Want { segment: 1 }).unwrap();
        // What it has not read makes its end a reset.
        drop(b);
        assert_eq!(a.receive().unwrap_err().label(), "closed");
    }

    #[test]
    fn a_full_socket_takes_a_frame_whole_or_not_at_all_and_what_follows_is_right() {
        let (a, b) = pair();
        let frame = vec![7; FRAME_MAX];
        let sent = (0..1000).take_while(|_| a.send_frame(&frame, false).is_ok()).count();
        assert!((1..1000).contains(&sent), "{sent}");
        std::thread::scope(|scope| {
            scope.spawn(|| a.send_frame(&frame, true).unwrap());
            for _ in 0..=sent {
                assert!(matches!(b.receive(), Ok(Heard::Frame(came)) if came == frame));
            }
        });
        drop(a);
        assert!(matches!(b.receive(), Err(NodeEnd::Closed)));
    }

    #[test]
    fn a_segment_comes_with_two_descriptors_and_nothing_else_with_any() {
        let (read, write) = passing::pipe().unwrap();
        let (a, b) = pair();
        a.give(3, 4096, read.as_fd(), write.as_fd()).unwrap();
        assert!(matches!(b.receive(), Ok(Heard::Segment { segment: 3, bytes: 4096, .. })));
        let alone = Message::Segment { segment: 3, bytes: 4096, memory: FILE, witness: FILE };
        a.send(alone).unwrap();
        assert!(matches!(b.receive(), Err(NodeEnd::Wrong(_))));
        a.send_whole(Message::Want { segment: 3 }, &[], &[read.as_fd()], true).unwrap();
        assert!(matches!(b.receive(), Err(NodeEnd::Wrong(_))));
        drop(a);
        assert!(matches!(b.receive(), Err(NodeEnd::Closed)));
    }

    #[test]
    fn gpu_memory_comes_with_the_one_descriptor_that_was_said_and_no_other() {
        let of = |name| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let (memory, other) = (of("memory"), of("other"));
        let said = Message::Gpu { call: 7, memory: FileId::of(&memory).unwrap() };
        let given = |fds: &[&OwnedFd]| {
            let (a, b) = pair();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            a.send_whole(said, &[], &fds, true).unwrap();
            b.receive()
        };
        assert!(matches!(given(&[&memory]), Ok(Heard::Gpu { call: 7, .. })));
        assert!(matches!(given(&[&other]), Err(NodeEnd::OtherMemory { .. })));
        for wrong in [vec![], vec![&memory, &memory], vec![&memory, &memory, &memory]] {
            assert!(matches!(given(&wrong), Err(NodeEnd::Wrong(_))), "{} descriptors", wrong.len());
        }
    }

    #[test]
    fn a_descriptor_of_another_file_than_was_said_is_refused() {
        let ((read, write), (_other, others)) = (passing::pipe().unwrap(), passing::pipe().unwrap());
        let memory = rustix::fs::memfd_create("own", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let of = |file: &OwnedFd| FileId::of(file).unwrap();
        let said = Message::Segment { segment: 3, bytes: 4096, memory: of(&memory), witness: of(&write) };
        for (given, what) in [([&read, &write], "memory"), ([&memory, &others], "witness")] {
            let (a, b) = pair();
            a.send_whole(said, &[], &given.map(AsFd::as_fd), true).unwrap();
            assert!(matches!(b.receive(), Err(NodeEnd::OtherFile { what: told, .. }) if told == what));
        }
    }

    /// Bytes that one end has sent.
    fn raw(of: &MetSocket) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 10];
        let length = rustix::net::recv(of.stream(), &mut bytes, rustix::net::RecvFlags::DONTWAIT).unwrap().0;
        bytes.truncate(length);
        bytes
    }

    /// Message that the other end makes of bytes.
    fn made_of(at: &MetSocket, from: &MetSocket, bytes: &[u8]) -> Result<Heard, NodeEnd> {
        rustix::io::write(from.stream(), bytes).unwrap();
        at.receive()
    }

    #[test]
    fn whoever_stands_between_can_alter_repeat_reorder_and_add_nothing() {
        let altered = |change: &dyn Fn(&mut Vec<u8>)| {
            let (a, b) = pair();
            a.send_frame(b"a frame", true).unwrap();
            let mut bytes = raw(&b);
            change(&mut bytes);
            made_of(&b, &a, &bytes)
        };
        assert!(altered(&|_| {}).is_ok());
        for at in [BYTES - 1, BYTES, BYTES + 6] {
            assert!(matches!(altered(&|bytes| bytes[at] ^= 1), Err(NodeEnd::Forged)), "byte {at}");
        }
        let (a, b) = pair();
        a.send(Message::Want { segment: 1 }).unwrap();
        let once = raw(&b);
        assert!(made_of(&b, &a, &once).is_ok());
        assert!(matches!(made_of(&b, &a, &once), Err(NodeEnd::Forged)), "it is repeated");
        let (a, b) = pair();
        let [first, second] = [1, 2].map(|segment| {
            a.send(Message::Want { segment }).unwrap();
            raw(&b)
        });
        assert!(matches!(made_of(&b, &a, &second), Err(NodeEnd::Forged)), "its turn has not come");
        assert!(made_of(&b, &a, &first).is_ok());
        // What one end says is not what the other one says.
        let (a, b) = pair();
        a.send(Message::Want { segment: 1 }).unwrap();
        let said = raw(&b);
        assert!(matches!(made_of(&a, &b, &said), Err(NodeEnd::Forged)));
    }
}
