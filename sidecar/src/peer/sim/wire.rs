//! A connection between two simulated peers: bytes in order in both directions, in pieces of any size, until it is cut.

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::frame::{FrameError, Header, PEER_BODY_MAX, PeerKind};
use tensorlane_proto::negotiate::Offer;
use tensorlane_proto::{Incarnation, PeerName};

use crate::peer::calls::{Call, Kind};
use crate::peer::parse::{Body, Flow, FrameParser, Sink};
use crate::peer::remote::Carrier;
use crate::peer::transport::Way;

/// View that one peer has of a connection.
pub(super) struct End {
    pub(super) wire: u64,
    pub(super) name: PeerName,
    pub(super) incarnation: Incarnation,
    pub(super) begun: Instant,
    pub(super) offer: Arc<Offer>,
}

impl Carrier for End {
    fn id(&self) -> u64 {
        self.wire
    }

    fn begun(&self) -> Instant {
        self.begun
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn offer(&self) -> &Arc<Offer> {
        &self.offer
    }

    fn peer(&self) -> &PeerName {
        &self.name
    }

    fn maps(&self) -> bool {
        false
    }

    fn maps_at_node(&self) -> bool {
        false
    }

    fn passes_on(&self) -> bool {
        false
    }

    fn has_channels(&self) -> bool {
        true
    }

    fn takes_questions(&self) -> bool {
        true
    }

    fn takes_sets(&self) -> bool {
        false
    }

    fn takes_set_snapshots(&self) -> bool {
        false
    }

    fn has_pipes(&self) -> bool {
        true
    }

    fn want_no_more(&self, _way: Way, _call: u64) {}

    fn choose_way(&self, call: &mut Call) {
        if let Kind::Pull(pull) = &mut call.kind {
            (pull.opened, pull.way) = (false, Way::Stream);
        }
    }
}

/// A frame that came whole.
#[derive(Debug)]
pub(super) enum Frame {
    Message { kind: PeerKind, header: Header, body: Vec<u8> },
    Chunk { header: Header, offset: u64, bytes: Vec<u8> },
}

/// Collects frames.
#[derive(Default)]
struct Collected {
    frames: Vec<Frame>,
    chunk: Option<(Header, u64, Vec<u8>)>,
}

impl Sink for Collected {
    type Error = FrameError;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, FrameError> {
        self.frames.push(Frame::Message { kind, header, body: body.to_vec() });
        Ok(Flow::Go)
    }

    fn chunk(&mut self, header: Header, offset: u64, _length: usize) -> Result<(), FrameError> {
        self.chunk = Some((header, offset, Vec::new()));
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let (.., chunk) = self.chunk.as_mut().expect("a chunk has begun");
        chunk.extend_from_slice(bytes);
        Ok(())
    }

    fn chunk_end(&mut self) -> Result<Flow, FrameError> {
        let (header, offset, bytes) = self.chunk.take().expect("a chunk has begun");
        self.frames.push(Frame::Chunk { header, offset, bytes });
        Ok(Flow::Go)
    }
}

/// A pull whose chunks are not all written.
pub(super) struct Sending {
    pub(super) call: u64,
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
}

/// Side of a connection.
pub(super) struct Side {
    pub(super) node: usize,
    /// The life of the peer at this side.
    pub(super) life: Incarnation,
    /// Set once it was adopted here.
    pub(super) up: bool,
    /// Set once its end was noticed here.
    pub(super) over: bool,
    /// Time at which the last bytes that were sent to this side arrive.
    pub(super) last: u64,
    /// Bytes that arrived before it was adopted.
    pub(super) early: Vec<u8>,
    parser: FrameParser,
    collected: Collected,
    /// Transfers that this side has still to write, in turns.
    pub(super) sending: Vec<Sending>,
}

impl Side {
    pub(super) fn new(node: usize, life: Incarnation) -> Self {
        Self {
            node,
            life,
            up: false,
            over: false,
            last: 0,
            early: Vec::new(),
            parser: FrameParser::new(PEER_BODY_MAX),
            collected: Collected::default(),
            sending: Vec::new(),
        }
    }

    /// Bytes came: the frames that are whole now.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let fed = self.parser.feed(bytes, &mut self.collected);
        assert_eq!(fed, Ok(bytes.len()), "the parser refuses what a peer has sent");
        std::mem::take(&mut self.collected.frames)
    }
}

/// A connection.
pub(super) struct Wire {
    pub(super) sides: [Side; 2],
    /// Time at which it was begun.
    pub(super) begun: Instant,
    /// Nothing that was sent after this arrives.
    pub(super) cut: bool,
}

impl Wire {
    pub(super) fn side_of(&self, node: usize) -> usize {
        usize::from(self.sides[1].node == node)
    }
}
