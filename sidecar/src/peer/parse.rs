//! Frames out of a stream of plaintext, piece by piece. Sans I/O: it knows bytes and limits, never a socket.
//!
//! ```text
//!            16 bytes            kind Chunk            8 bytes
//!  (Header) ----------> length, kind ------> (Offset) ---------> (Bytes) --all came--> (Header)
//!                               \-- any other kind --> (Body) ----------all came-------^
//! ```
//! The bytes of a chunk go to the sink as they come and are never kept here. The body of any other frame is given
//! whole: from where it lies if it lies there whole, else collected in a buffer of at most its announced length, or in the one of the
//! body before.

use std::ops::Deref;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use tensorlane_proto::decoded;
use tensorlane_proto::frame::{CHUNK_BYTES_MAX, FrameError, HEADER_BYTES, Header, PEER_BODY_MAX, PeerKind};

/// Bytes of a chunk's body before its tensor bytes.
pub(super) const OFFSET_BYTES: usize = 8;

/// Bytes set aside for a body that is announced, once it is known who is speaking: whole for an answer to many small pulls,
/// which is not moved while it grows then. Whoever announces and sends nothing costs that, once a connection.
const READY: usize = 512 << 10;

/// Decision whether to go on after a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next frame.
    Go,
    /// Stop here; the rest of the bytes is for later.
    Stop,
}

/// The body of a frame that came whole.
pub(super) enum Body<'a> {
    /// Body that lies in what was fed.
    Lies(&'a [u8]),
    /// Body that was collected.
    Collected(Bytes),
}

impl Deref for Body<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Lies(bytes) => bytes,
            Self::Collected(bytes) => bytes,
        }
    }
}

impl From<Body<'_>> for Bytes {
    /// Converts a body; what was collected is not copied.
    fn from(body: Body<'_>) -> Self {
        match body {
            Body::Lies(bytes) => Self::copy_from_slice(bytes),
            Body::Collected(bytes) => bytes,
        }
    }
}

/// Message of a body. The one place where bytes of a peer become more than they were, and how many more is bounded there.
///
/// # Errors
/// The body is none, or would take much more memory than it has bytes.
pub(super) fn decode<M: Message + Default>(
    header: Header,
    body: impl Buf + AsRef<[u8]>,
) -> Result<M, FrameError> {
    decoded::decode(body).map_err(|_| FrameError::Malformed(header.kind))
}

/// Taker of frames. An error ends the connection. Whoever takes messages alone says nothing of chunks.
pub(super) trait Sink {
    /// Reason for which a frame was not taken.
    type Error: From<FrameError>;
    /// A message came whole.
    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, Self::Error>;
    /// A chunk of `length` bytes begins at `offset` of its call.
    fn chunk(&mut self, header: Header, _offset: u64, _length: usize) -> Result<(), Self::Error> {
        Err(FrameError::OutOfPlace(header.kind).into())
    }
    /// The next bytes of the chunk; together never more than its length.
    fn bytes(&mut self, _bytes: &[u8]) -> Result<(), Self::Error> {
        Err(FrameError::OutOfPlace(PeerKind::Chunk.into()).into())
    }
    /// All bytes of the chunk came.
    fn chunk_end(&mut self) -> Result<Flow, Self::Error> {
        Err(FrameError::OutOfPlace(PeerKind::Chunk.into()).into())
    }
}

enum State {
    Header { bytes: [u8; HEADER_BYTES], have: usize },
    Offset { header: Header, bytes: [u8; OFFSET_BYTES], have: usize },
    Bytes { left: usize },
    Body { kind: PeerKind, header: Header, body: BytesMut },
}

const START: State = State::Header { bytes: [0; HEADER_BYTES], have: 0 };

/// The parser of one connection.
pub(super) struct FrameParser {
    state: State,
    body_max: u32,
    /// Buffer in which the body before was collected, for the next one, until a frame comes that needs none: to give it
    /// back each time, and take it again, costs the allocator more than all the small tensors that came in it.
    spare: BytesMut,
}

/// Moves as many bytes as fit from the front of `from` into `to[*have..]`; whether `to` is full now.
fn fill(to: &mut [u8], have: &mut usize, from: &mut &[u8]) -> bool {
    let take = from.len().min(to.len() - *have);
    let (now, later) = from.split_at(take);
    to[*have..*have + take].copy_from_slice(now);
    *have += take;
    *from = later;
    *have == to.len()
}

impl FrameParser {
    /// A parser that refuses bodies above `body_max` bytes before keeping any of them.
    pub(super) fn new(body_max: u32) -> Self {
        Self { state: START, body_max: body_max.min(PEER_BODY_MAX), spare: BytesMut::new() }
    }

    /// Takes the limit of the protocol, once it is known who is speaking.
    pub(super) fn trust(&mut self) {
        self.body_max = PEER_BODY_MAX;
    }

    /// Takes in plaintext; how much of it (all, unless the sink said stop).
    pub(super) fn feed<S: Sink>(&mut self, bytes: &[u8], sink: &mut S) -> Result<usize, S::Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.step(&mut rest, sink)? == Flow::Stop {
                break;
            }
        }
        Ok(bytes.len() - rest.len())
    }

    fn step<S: Sink>(&mut self, rest: &mut &[u8], sink: &mut S) -> Result<Flow, S::Error> {
        match &mut self.state {
            State::Header { bytes, have } => {
                if !fill(bytes, have, rest) {
                    return Ok(Flow::Go);
                }
                let header = Header::decode(bytes, self.body_max)?;
                self.begin(header, rest, sink)
            }
            State::Offset { header, bytes, have } => {
                if !fill(bytes, have, rest) {
                    return Ok(Flow::Go);
                }
                let left = header.length as usize - OFFSET_BYTES;
                sink.chunk(*header, u64::from_le_bytes(*bytes), left)?;
                self.state = State::Bytes { left };
                self.end_of_chunk(sink)
            }
            State::Bytes { left } => {
                let (now, later) = rest.split_at(rest.len().min(*left));
                sink.bytes(now)?;
                *left -= now.len();
                *rest = later;
                self.end_of_chunk(sink)
            }
            State::Body { kind, header, body } => {
                let missing = header.length as usize - body.len();
                let (now, later) = rest.split_at(rest.len().min(missing));
                body.extend_from_slice(now);
                *rest = later;
                if now.len() < missing {
                    return Ok(Flow::Go);
                }
                let (kind, header, mut body) = (*kind, *header, std::mem::take(body));
                self.state = START;
                let whole = body.split().freeze();
                self.spare = body;
                sink.message(kind, header, Body::Collected(whole))
            }
        }
    }

    fn begin<S: Sink>(&mut self, header: Header, rest: &mut &[u8], sink: &mut S) -> Result<Flow, S::Error> {
        let kind = PeerKind::try_from(header.kind)?;
        let length = header.length as usize;
        if kind == PeerKind::Chunk {
            if length < OFFSET_BYTES {
                return Err(FrameError::Malformed(header.kind).into());
            }
            if length > OFFSET_BYTES + CHUNK_BYTES_MAX {
                let limit = (OFFSET_BYTES + CHUNK_BYTES_MAX) as u32;
                return Err(FrameError::TooLong { length: header.length, limit }.into());
            }
            self.state = State::Offset { header, bytes: [0; OFFSET_BYTES], have: 0 };
            return Ok(Flow::Go);
        }
        if rest.len() >= length {
            let (body, later) = rest.split_at(length);
            *rest = later;
            self.state = START;
            self.spare = BytesMut::new();
            return sink.message(kind, header, Body::Lies(body));
        }
        let ready = if self.body_max == PEER_BODY_MAX { length.min(READY) } else { 0 };
        let mut body = std::mem::take(&mut self.spare);
        body.reserve(ready);
        self.state = State::Body { kind, header, body };
        Ok(Flow::Go)
    }

    fn end_of_chunk<S: Sink>(&mut self, sink: &mut S) -> Result<Flow, S::Error> {
        if !matches!(self.state, State::Bytes { left: 0 }) {
            return Ok(Flow::Go);
        }
        self.state = START;
        sink.chunk_end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensorlane_fuzz::{Target, fuzz};
    use tensorlane_memory::heap::MeteringAllocator;
    use tensorlane_proto::generated as v1;

    use super::*;

    /// Writes down what it was given.
    #[derive(Default, PartialEq, Debug)]
    struct Log {
        frames: Vec<(Header, Option<u64>, Vec<u8>)>,
        open: Option<usize>,
    }

    impl Sink for Log {
        type Error = FrameError;
        fn message(&mut self, _: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, FrameError> {
            self.frames.push((header, None, body.to_vec()));
            Ok(Flow::Go)
        }
        fn chunk(&mut self, header: Header, offset: u64, length: usize) -> Result<(), FrameError> {
            assert!(length <= CHUNK_BYTES_MAX);
            self.open = Some(length);
            self.frames.push((header, Some(offset), Vec::new()));
            Ok(())
        }
        fn bytes(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
            let left = self.open.unwrap().checked_sub(bytes.len()).expect("never more than announced");
            self.open = Some(left);
            self.frames.last_mut().unwrap().2.extend_from_slice(bytes);
            Ok(())
        }
        fn chunk_end(&mut self) -> Result<Flow, FrameError> {
            assert_eq!(self.open.take(), Some(0));
            Ok(Flow::Go)
        }
    }

    fn stream(sizes: &[u16]) -> Vec<u8> {
        let mut stream = Vec::new();
        for (call, size) in sizes.iter().enumerate() {
            let ids = vec![7; usize::from(*size) / 8];
            let frame = v1::PullMany { ids, stored: Vec::new() };
            tensorlane_proto::frame::encode_into(
                &mut stream,
                PeerKind::PullMany.into(),
                0,
                call as u64,
                &frame,
            );
            let length = (OFFSET_BYTES + usize::from(*size)) as u32;
            let header = Header { length, kind: PeerKind::Chunk.into(), flags: 0, call: call as u64 };
            stream.extend_from_slice(&header.encode());
            stream.extend_from_slice(&99u64.to_le_bytes());
            stream.extend((0..*size).map(|i| i as u8));
        }
        stream
    }

    /// Places of the bodies that were collected.
    #[derive(Default)]
    struct Places(Vec<usize>);

    impl Sink for Places {
        type Error = FrameError;
        fn message(&mut self, _: PeerKind, _: Header, body: Body<'_>) -> Result<Flow, FrameError> {
            if let Body::Collected(bytes) = body {
                self.0.push(bytes.as_ptr().addr());
            }
            Ok(Flow::Go)
        }
        fn chunk(&mut self, _: Header, _: u64, _: usize) -> Result<(), FrameError> {
            Ok(())
        }
        fn bytes(&mut self, _: &[u8]) -> Result<(), FrameError> {
            Ok(())
        }
        fn chunk_end(&mut self) -> Result<Flow, FrameError> {
            Ok(Flow::Go)
        }
    }

    #[test]
    fn a_body_is_collected_where_the_one_before_was_until_a_frame_comes_whole() {
        let frame = |ids| {
            let many = v1::PullMany { ids, stored: Vec::new() };
            tensorlane_proto::frame::encode(PeerKind::PullMany.into(), 0, 1, &many)
        };
        let large = frame(vec![7; 10_000]);
        let (mut parser, mut places) = (FrameParser::new(PEER_BODY_MAX), Places::default());
        for piece in large.chunks(1000).chain(large.chunks(700)) {
            parser.feed(piece, &mut places).unwrap();
        }
        assert_eq!(places.0.len(), 2);
        assert_eq!(places.0[0], places.0[1]);
        assert!(parser.spare.try_reclaim(large.len() - HEADER_BYTES));
        parser.feed(&frame(Vec::new()), &mut places).unwrap();
        assert_eq!(places.0.len(), 2);
        assert!(!parser.spare.try_reclaim(1));
    }

    #[test]
    fn mutated_streams_are_the_same_frames_whole_and_in_pieces_or_an_error_both_times() {
        let corpus = vec![stream(&[0, 9, 1]), stream(&[300]), stream(&[])];
        // What is announced is made room for, once a stream, and what came is kept twice here.
        let (times, spare, meter) = (16, 4 * READY, MeteringAllocator::peak_of as tensorlane_fuzz::Meter);
        fuzz(Target { name: "FrameParser", corpus, times, spare, meter }, |bytes| {
            let (mut whole, mut pieces) = (Log::default(), Log::default());
            let taken = FrameParser::new(PEER_BODY_MAX).feed(bytes, &mut whole);
            let mut parser = FrameParser::new(PEER_BODY_MAX);
            let in_pieces = bytes.chunks(7).try_for_each(|piece| parser.feed(piece, &mut pieces).map(drop));
            assert_eq!(taken.map(drop), in_pieces);
            assert_eq!(whole, pieces);
            taken.is_ok()
        });
    }

    proptest! {
        #[test]
        fn however_the_stream_is_cut_the_frames_are_the_same(
            sizes in prop::collection::vec(0u16..3000, 1..6),
            cuts in prop::collection::vec(1usize..500, 1..50),
        ) {
            let stream = stream(&sizes);
            let mut whole = Log::default();
            FrameParser::new(PEER_BODY_MAX).feed(&stream, &mut whole).unwrap();
            prop_assert_eq!(whole.frames.len(), 2 * sizes.len());
            let (mut pieces, mut parser) = (Log::default(), FrameParser::new(PEER_BODY_MAX));
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                prop_assert_eq!(parser.feed(now, &mut pieces).unwrap(), now.len());
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error_and_nothing_large_is_kept(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            kind in 0u16..16,
        ) {
            let mut bytes = bytes;
            if bytes.len() > 6 {
                bytes[4..6].copy_from_slice(&kind.to_le_bytes());
            }
            let mut parser = FrameParser::new(PEER_BODY_MAX);
            let _ = parser.feed(&bytes, &mut Log::default());
            if let State::Body { body, .. } = &parser.state {
                prop_assert!(body.capacity() <= READY.max(2 * bytes.len()));
            }
        }
    }
}
