//! Frames from a session socket. Knows bytes and limits, not verbs.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use tensorlane_proto::failure::Failure;
use tensorlane_proto::frame::{FrameError, HEADER_BYTES, Header, SESSION_BODY_MAX, SessionKind};
use thiserror::Error;

use super::requests::{COUNTED_FROM, Requests};

/// Read ahead at most this much in one system call: a request and what was sent with it.
const READ_BYTES: usize = 64 << 10;
/// A long body is given room in steps of this much, as it comes.
const GROW_BYTES: usize = 256 << 10;
/// Descriptors that were read and whose frames are not whole yet, at most. A frame has one, and a few small ones come with one read.
const DESCRIPTORS_MAX: usize = 4;
/// Longest body of somebody who has not said who it is. A Hello has a few dozen bytes, and a later version's may have more.
const STRANGER_BODY_MAX: u32 = 64 << 10;

/// Time in which the whole of a counted body has to come: half a mebibyte a second, at the least.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// Why no further frame can be read.
#[derive(Debug, Error)]
pub(super) enum ReadError {
    /// The client has closed the connection, or is gone.
    #[error("the client closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the session socket failed: {0}")]
    Socket(#[from] io::Error),
    /// The rest of a body did not come in time.
    #[error("the client began a frame and did not send the rest of it within {BODY_WITHIN:?}")]
    Late,
    /// A descriptor of the client found no room: this process has as many as it may have.
    #[error(
        "a descriptor of the client did not fit into this process; raise the sidecar's limit of open files"
    )]
    NoDescriptor,
    /// The client sent what is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads whole frames. Small ones, often several, come with one read; the rest of a large one is read into place.
pub(super) struct FrameReader {
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    limit: u32,
    until: Option<Instant>,
    /// Set if the client may send descriptors; the kernel closes those of others.
    takes_descriptors: bool,
    /// Bytes read since the beginning.
    received: u64,
    /// Offset at which the frame that was read last began, in bytes since the beginning.
    began: u64,
    /// Descriptors, each with the end of what was read with it: its frame begins before that.
    descriptors: VecDeque<(OwnedFd, u64)>,
}

/// Most bytes of a frame that gives back: the items of one call, and room.
const GIVES_BACK_MAX: u32 = 1 << 20;

/// Returns whether a frame gives back what its session has, or ends something: it makes room, so it has room always. Most of them have no
/// answer that could refuse them.
pub(super) fn gives_back(header: &Header) -> bool {
    let does = |kind| {
        matches!(
            kind,
            SessionKind::Release
                | SessionKind::Abort
                | SessionKind::Unname
                | SessionKind::SegmentMapped
                | SessionKind::ChannelDetach
                | SessionKind::ChannelReady
                | SessionKind::PipeEnd
                | SessionKind::Cancel
        )
    };
    header.length <= GIVES_BACK_MAX && SessionKind::try_from(header.kind).is_ok_and(does)
}

// === impl FrameReader ===

impl Default for FrameReader {
    fn default() -> Self {
        let ahead = vec![0; READ_BYTES].into_boxed_slice();
        let (limit, until, descriptors) = (SESSION_BODY_MAX, None, VecDeque::new());
        let (start, end, received, began, takes_descriptors) = (0, 0, 0, 0, false);
        Self { ahead, start, end, limit, until, takes_descriptors, received, began, descriptors }
    }
}

impl FrameReader {
    /// A reader that takes short frames only, all of them before `until`: for whoever has not said who it is.
    pub(super) fn of_stranger(until: Instant) -> Self {
        Self { limit: STRANGER_BODY_MAX, until: Some(until), ..Self::default() }
    }

    /// The stranger has said who it is.
    pub(super) fn trust(&mut self) {
        (self.limit, self.until) = (SESSION_BODY_MAX, None);
    }

    /// From now on descriptors are taken.
    pub(super) fn take_descriptors(&mut self) {
        self.takes_descriptors = true;
    }

    /// The descriptor of the frame that was read last, of a kind that has one.
    ///
    /// # Errors
    /// It came without one.
    pub(super) fn descriptor(&mut self, header: &Header) -> Result<OwnedFd, FrameError> {
        self.descriptors.pop_front().map(|(fd, _)| fd).ok_or(FrameError::OutOfPlace(header.kind))
    }

    /// Waits for the next frame. A length above the limit is refused before any memory is set aside for it.
    pub(super) fn next(&mut self, socket: &UnixStream) -> Result<(Header, Bytes), ReadError> {
        let header = self.header(socket)?;
        let body = self.body(socket, header.length as usize)?;
        Ok((header, body))
    }

    /// Waits for the next frame of a session, whose bodies count among the requests of all. Where there is no room for
    /// a body it is read over, and the reason is there in its place.
    pub(super) fn next_counted(
        &mut self,
        socket: &UnixStream,
        requests: &Requests,
    ) -> Result<(Header, Result<Bytes, Failure>), ReadError> {
        let header = self.header(socket)?;
        let length = header.length as usize;
        if length < COUNTED_FROM {
            return Ok((header, Ok(self.body(socket, length)?)));
        }
        let bytes = u64::from(header.length);
        let admitted = match gives_back(&header) {
            true => {
                let admitted = requests.take_in_turn(bytes, || is_gone(socket));
                Ok(admitted.ok_or(ReadError::Closed)?)
            }
            false => requests.admit(bytes),
        };
        self.until = Some(Instant::now() + BODY_WITHIN);
        let body = match admitted {
            Ok(admitted) => self.body(socket, length).map(|body| Ok(admitted.counts(body))),
            Err(failure) => self.skip(socket, length).map(|()| Err(failure)),
        };
        self.until = None;
        let is_late = |error: &ReadError| matches!(error, ReadError::Socket(error) if error.kind() == io::ErrorKind::TimedOut);
        body.map(|body| (header, body)).map_err(|error| if is_late(&error) { ReadError::Late } else { error })
    }

    /// Reads over a body.
    fn skip(&mut self, socket: &UnixStream, length: usize) -> Result<(), ReadError> {
        let have = (self.end - self.start).min(length);
        self.start += have;
        let mut left = length - have;
        let mut over = vec![0; left.min(READ_BYTES)];
        while left > 0 {
            let next = left.min(over.len());
            left -= self.read(socket, &mut over[..next])?;
        }
        Ok(())
    }

    fn body(&mut self, socket: &UnixStream, length: usize) -> Result<Bytes, ReadError> {
        let have = (self.end - self.start).min(length);
        let there = &self.ahead[self.start..self.start + have];
        self.start += have;
        if have == length {
            return Ok(Bytes::copy_from_slice(there));
        }
        let mut body = BytesMut::from(there);
        while body.len() < length {
            // Room for what may come next, not for what the header claims.
            let filled = body.len();
            body.resize(length.min(filled + GROW_BYTES), 0);
            let read = self.read(socket, &mut body[filled..])?;
            body.truncate(filled + read);
        }
        Ok(body.freeze())
    }

    fn header(&mut self, socket: &UnixStream) -> Result<Header, ReadError> {
        loop {
            if let Some(head) = self.ahead[self.start..self.end].first_chunk::<HEADER_BYTES>() {
                let header = Header::decode(head, self.limit)?;
                self.began = self.received - (self.end - self.start) as u64;
                // One that came before this frame began was asked for by no frame.
                if self.descriptors.front().is_some_and(|(_, end)| *end <= self.began) {
                    return Err(FrameError::OutOfPlace(header.kind).into());
                }
                self.start += HEADER_BYTES;
                return Ok(header);
            }
            self.ahead.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let mut ahead = std::mem::take(&mut self.ahead);
            let read = self.read(socket, &mut ahead[self.end..]);
            self.ahead = ahead;
            self.end += read?;
        }
    }

    fn read(&mut self, socket: &UnixStream, into: &mut [u8]) -> Result<usize, ReadError> {
        loop {
            let left = self.left()?;
            let came = match self.takes_descriptors {
                true => self.receive(socket, into)?,
                false => rustix::net::recv(socket, &mut *into, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes),
            };
            match came {
                Ok(0) | Err(Errno::CONNRESET) => return Err(ReadError::Closed),
                Ok(bytes) => {
                    self.received += bytes as u64;
                    return Ok(bytes);
                }
                Err(Errno::AGAIN) => wait(socket, left)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(ReadError::Socket(error.into())),
            }
        }
    }

    /// Reads with the descriptor that comes along. The kernel ends a read behind the descriptors of one write.
    fn receive(&mut self, socket: &UnixStream, into: &mut [u8]) -> Result<Result<usize, Errno>, ReadError> {
        // Room for one more than may come, so that it is seen.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let came = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags) {
            Ok(came) => came,
            Err(error) => return Ok(Err(error)),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(list) = message {
                descriptors.extend(list);
            }
        }
        if descriptors.len() > 1 || self.descriptors.len() + descriptors.len() > DESCRIPTORS_MAX {
            return Err(FrameError::OutOfPlace(SessionKind::PutGpu.into()).into());
        }
        if came.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ReadError::NoDescriptor);
        }
        let end = self.received + came.bytes as u64;
        self.descriptors.extend(descriptors.into_iter().map(|descriptor| (descriptor, end)));
        Ok(Ok(came.bytes))
    }

    /// Returns the time that is left to a stranger; none if it has no limit.
    fn left(&self) -> Result<Option<Duration>, ReadError> {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(left) if left.is_zero() => Err(ReadError::Socket(io::ErrorKind::TimedOut.into())),
            left => Ok(left),
        }
    }
}

/// Returns whether the client has closed the socket, or this end was cut.
fn is_gone(socket: &UnixStream) -> bool {
    let mut ends = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut ends, Some(&now)).is_ok_and(|count| count > 0) && ends[0].revents().contains(PollFlags::HUP)
}

/// Until there is something to read, or that time is over. In `poll`, for a thread that sleeps in a read is woken for nothing
/// whenever the client takes what was written to it.
fn wait(socket: &UnixStream, left: Option<Duration>) -> Result<(), ReadError> {
    let patience = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], patience.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(ReadError::Socket(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use tensorlane_fuzz::{Target, fuzz};
    use tensorlane_memory::heap::MeteringAllocator;
    use tensorlane_memory::passing;
    use tensorlane_proto::frame::encode;
    use tensorlane_proto::generated as v1;

    use super::*;

    #[test]
    fn mutated_streams_are_read_as_frames_to_their_end_or_to_what_is_none() {
        let hello =
            encode(SessionKind::Hello.into(), 0, 1, &v1::SessionHello { version: 1, client: "x".into() });
        let release = encode(
            SessionKind::Release.into(),
            0,
            2,
            &v1::ReleaseRequest { ids: vec![7; 40], still_mapped: vec![] },
        );
        let corpus = vec![[&hello[..], &release].concat(), release];
        // One buffer to read ahead, and a step of room for what is announced.
        let (times, spare, meter) =
            (4, READ_BYTES + 2 * GROW_BYTES, MeteringAllocator::peak_of as tensorlane_fuzz::Meter);
        fuzz(Target { name: "FrameReader", corpus, times, spare, meter }, |bytes| {
            let (mut client, sidecar) = UnixStream::pair().unwrap();
            client.write_all(bytes).unwrap();
            drop(client);
            let (mut reader, mut read) =
                (FrameReader::of_stranger(Instant::now() + Duration::from_secs(30)), 0);
            let end = loop {
                match reader.next(&sidecar) {
                    Ok((header, body)) => {
                        assert_eq!(header.length as usize, body.len());
                        let at = read + HEADER_BYTES;
                        assert_eq!(bytes[at..at + body.len()], body);
                        read = at + body.len();
                    }
                    Err(error) => break error,
                }
            };
            matches!(end, ReadError::Closed) && read == bytes.len()
        });
    }

    #[test]
    fn frames_come_whole_however_the_bytes_arrive() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let hello = v1::SessionHello { version: 1, client: "x".repeat(100_000) };
        let bytes = encode(SessionKind::Hello.into(), 0, 7, &hello);
        let writer = std::thread::spawn(move || {
            for piece in bytes.chunks(999) {
                client.write_all(piece).unwrap();
            }
        });
        let mut reader = FrameReader::default();
        let (header, body) = reader.next(&sidecar).unwrap();
        writer.join().unwrap();
        assert_eq!(header.call, 7);
        assert_eq!(<v1::SessionHello as prost::Message>::decode(body).unwrap(), hello);
        assert!(matches!(reader.next(&sidecar), Err(ReadError::Closed)));
    }

    /// Sends a frame with a file of so many bytes.
    fn send_with_file(client: &UnixStream, call: u64, bytes: u64) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let frame = encode(SessionKind::PutGpu.into(), 0, call, &v1::PutGpuRequest::default());
        let sent = passing::send(client.as_fd(), &[io::IoSlice::new(&frame)], &[file.as_fd()]).unwrap();
        assert_eq!(sent, frame.len());
    }

    #[test]
    fn each_frame_has_the_descriptor_that_came_with_it_however_many_lie_in_the_socket() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        for number in 1..=20 {
            send_with_file(&client, number, number);
            let other = encode(SessionKind::Status.into(), 0, 100 + number, &v1::StatusRequest {});
            client.write_all(&other).unwrap();
        }
        let mut reader = FrameReader::default();
        reader.take_descriptors();
        for number in 1..=20 {
            let (header, _) = reader.next(&sidecar).unwrap();
            assert_eq!((header.kind, header.call), (SessionKind::PutGpu.into(), number));
            let file = std::fs::File::from(reader.descriptor(&header).unwrap());
            assert_eq!(file.metadata().unwrap().len(), number);
            assert_eq!(reader.next(&sidecar).unwrap().0.call, 100 + number);
        }
    }

    #[test]
    fn a_descriptor_that_no_frame_asked_for_ends_the_reading_and_one_before_it_is_wanted_is_closed() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let status = || encode(SessionKind::Status.into(), 0, 2, &v1::StatusRequest {});
        send_with_file(&client, 1, 1);
        client.write_all(&status()).unwrap();
        let mut reader = FrameReader::default();
        let (header, _) = reader.next(&sidecar).unwrap();
        assert!(reader.descriptor(&header).is_err(), "it is not taken from an older client");
        reader.next(&sidecar).unwrap();
        reader.take_descriptors();
        send_with_file(&client, 1, 1);
        client.write_all(&status()).unwrap();
        reader.next(&sidecar).unwrap();
        assert!(matches!(reader.next(&sidecar), Err(ReadError::Frame(FrameError::OutOfPlace(_)))));
    }

    #[test]
    fn the_time_of_a_stranger_is_over_however_often_another_byte_comes() {
        let (client, sidecar) = UnixStream::pair().unwrap();
        let hello = v1::SessionHello { version: 1, client: "x".repeat(60_000) };
        let bytes = encode(SessionKind::Hello.into(), 0, 1, &hello);
        let dripping = std::thread::spawn(move || {
            let mut client = client;
            // A minute's worth, at this pace; it ends when the other side hangs up.
            for byte in bytes {
                if client.write_all(&[byte]).is_err() {
                    return true;
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
            false
        });
        let until = Instant::now() + Duration::from_millis(50);
        let late = FrameReader::of_stranger(until).next(&sidecar);
        assert!(
            matches!(&late, Err(ReadError::Socket(e)) if e.kind() == io::ErrorKind::TimedOut),
            "{late:?}"
        );
        drop(sidecar);
        assert!(dripping.join().unwrap(), "it was cut before it was through");
    }

    #[test]
    fn a_body_without_room_is_read_over_and_the_next_frame_is_whole() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let long = v1::SessionHello { version: 1, client: "x".repeat(100_000) };
        let short = v1::SessionHello { version: 1, client: "y".repeat(COUNTED_FROM) };
        let (mut bytes, next) = (encode(1, 0, 7, &long), encode(1, 0, 8, &short));
        bytes.extend_from_slice(&next);
        let requests = Requests::new(0);
        requests.close();
        let all = requests.admit(requests.bytes().1).unwrap();
        let writer = std::thread::spawn(move || client.write_all(&bytes).map(|()| client));
        let mut reader = FrameReader::default();
        let (header, refused) = reader.next_counted(&sidecar, &requests).unwrap();
        assert_eq!((header.call, refused.unwrap_err().reason), (7, tensorlane_proto::Reason::Draining));
        drop(all);
        let (header, body) = reader.next_counted(&sidecar, &requests).unwrap();
        assert_eq!((header.call, requests.bytes().0), (8, u64::from(header.length)));
        assert_eq!(<v1::SessionHello as prost::Message>::decode(body.unwrap()).unwrap(), short);
        assert_eq!(requests.bytes().0, 0);
        drop(writer.join().unwrap().unwrap());
    }

    #[test]
    fn a_body_that_gives_back_is_kept_without_room() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let long = v1::ReleaseRequest { ids: (0..5_000).collect(), still_mapped: Vec::new() };
        client.write_all(&encode(SessionKind::Release.into(), 0, 7, &long)).unwrap();
        let requests = Requests::new(0);
        let all = requests.admit(requests.bytes().1).unwrap();
        let (header, body) = FrameReader::default().next_counted(&sidecar, &requests).unwrap();
        let body = body.unwrap();
        assert_eq!((header.call, body.len()), (7, header.length as usize));
        assert!(body.len() > COUNTED_FROM);
        drop((all, body));
        assert_eq!(requests.bytes().0, 0);
    }

    #[test]
    fn a_client_that_is_gone_waits_for_no_turn_to_give_back() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let requests = Requests::new(0);
        let all = requests.take_in_turn(requests.bytes().1, || false).unwrap();
        let header = Header { length: GIVES_BACK_MAX, kind: SessionKind::Release.into(), flags: 0, call: 7 };
        client.write_all(&header.encode()).unwrap();
        assert!(!is_gone(&sidecar));
        drop(client);
        let mut reader = FrameReader::default();
        assert!(matches!(reader.next_counted(&sidecar, &requests), Err(ReadError::Closed)));
        drop(all);
        assert_eq!(requests.bytes().0, 0);
    }

    #[test]
    fn a_stranger_may_say_a_long_hello_and_nothing_longer() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let mut header = Header { length: STRANGER_BODY_MAX, kind: 1, flags: 0, call: 1 };
        client.write_all(&header.encode()).unwrap();
        client.write_all(&vec![0; STRANGER_BODY_MAX as usize]).unwrap();
        header.length += 1;
        client.write_all(&header.encode()).unwrap();
        let mut reader = FrameReader::of_stranger(Instant::now() + Duration::from_secs(30));
        let (_, body) = reader.next(&sidecar).unwrap();
        assert_eq!(body.len(), STRANGER_BODY_MAX as usize);
        assert!(matches!(reader.next(&sidecar), Err(ReadError::Frame(FrameError::TooLong { .. }))));
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_its_body_comes() {
        let (mut client, sidecar) = UnixStream::pair().unwrap();
        let header = Header { length: u32::MAX, kind: 16, flags: 0, call: 1 };
        client.write_all(&header.encode()).unwrap();
        let refused = FrameReader::default().next(&sidecar);
        assert!(matches!(refused, Err(ReadError::Frame(FrameError::TooLong { .. }))));
    }
}
