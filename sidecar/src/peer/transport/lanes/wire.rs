//! Wire that a lane is made of: something that carries asks one way and their answers the other. TCP with TLS, plain
//! TCP and a stream of QUIC are three of them; the reader and the server above see no difference.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::Part;
use tensorlane_proto::Failure;
use tensorlane_proto::frame::{
    self, FAILED, FrameError, HEADER_BYTES, Header, LAST, PIECE_BYTES_MAX, PeerKind, REPLY,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::wire;

use super::moved::LastMoved;
use super::pool::{Piece, Wanted};
use super::transfer::{Brought, Reserved, Transfer};
use crate::hashes;
use crate::peer::parse::{Body, Flow, OFFSET_BYTES, Sink, decode};
use crate::peer::record::RecordError;
use crate::peer::record_writer::OutgoingPull;
use crate::peer::send_error::{SendError, SourceError};

/// Time that a wire waits for bytes before it looks whether they are still wanted.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// A lane is never taken for failed sooner, however little time a pull has: more than the round trip around the world.
const PROGRESS_MIN: Duration = Duration::from_millis(500);

/// Reason for which a lane ended.
#[derive(Debug, thiserror::Error)]
pub(in crate::peer) enum LaneEnd {
    /// Something came that may not.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// A record was altered.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// No byte moved although some were due.
    #[error("nothing moved for the progress deadline")]
    Progress,
    /// Bytes were taken, and too few of them.
    #[error("the other end takes bytes too slowly")]
    Slow,
    /// The other end closed.
    #[error("the other end closed")]
    Closed,
    /// The socket failed.
    #[error("{0}")]
    Socket(io::Error),
    /// Ended for want of work.
    #[error("it had nothing to do")]
    Idle,
    /// Ended with its connection.
    #[error("its connection ended")]
    Ended,
    /// The owner has no bytes of a pull that is not over: its end of the connection knows more than ours.
    #[error("the owner refused: {0}")]
    Refused(Failure),
    /// Altered bytes: other ones came than were sent.
    #[error("bytes {} to {} are not what the owner sent", .0.start, .0.end)]
    Altered(Range<u64>),
    /// Bytes that were being passed on on it do not come any more.
    #[error("the tensor that it passed on does not come any more")]
    Gone,
    /// Something of ours is not as it must be.
    #[error("a mistake of this sidecar: {0}")]
    Ours(String),
}

impl LaneEnd {
    /// The label in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Frame(_) => "frame",
            Self::Record(_) => "record",
            Self::Progress => "progress",
            Self::Slow => "slow",
            Self::Closed | Self::Socket(_) => "lost",
            Self::Idle => "idle",
            Self::Ended => "ended",
            Self::Refused(_) => "refused",
            Self::Altered(_) => "altered",
            // Of what it had said that it has.
            Self::Gone => "refused",
            Self::Ours(_) => "ours",
        }
    }

    /// End of a lane whose connection was closed because nothing came on it, whichever of its lanes found that.
    pub(super) fn of_silence(self) -> Self {
        match self {
            Self::Closed | Self::Socket(_) => Self::Progress,
            other => other,
        }
    }

    /// End of a lane whose thread has panicked.
    pub(super) fn broke_off() -> Self {
        Self::Ours("its thread has panicked".into())
    }

    /// Returns whether it should be opened again only after a while.
    pub(super) fn is_failure(&self) -> bool {
        !matches!(self, Self::Idle | Self::Ended)
    }
}

impl From<io::Error> for LaneEnd {
    fn from(error: io::Error) -> Self {
        SendError::from(error).into()
    }
}

impl From<SendError> for LaneEnd {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed => Self::Closed,
            SendError::Progress => Self::Progress,
            SendError::Slow => Self::Slow,
            SendError::Socket(error) => Self::Socket(error),
            SendError::Tls(error) => Self::Record(error.into()),
            SendError::Backlog => Self::Ours("a lane has no backlog".into()),
            SendError::Source(SourceError::Gone) => Self::Gone,
            SendError::Source(error) => Self::Ours(error.to_string()),
        }
    }
}

/// End of a lane. Every method may wait for the socket.
pub(super) trait Wire: Send {
    /// Reader: asks for bytes of a pull.
    fn ask(&mut self, call: u64, bytes: &Range<u64>) -> Result<(), LaneEnd>;
    /// Reader: takes the answer to the oldest ask that has none.
    fn receive(&mut self, answer: &mut Answer) -> Result<(), LaneEnd>;
    /// Reader: says that it has nothing to ask for and closes.
    fn leave(&mut self) -> Result<(), LaneEnd>;
    /// Server: the next ask. A reader that leaves is [`LaneEnd::Idle`].
    fn next_ask(&mut self) -> Result<Ask, LaneEnd>;
    /// Server: the next `length` bytes of a pull; their CRC-32C where the reader is to be told.
    fn answer(&mut self, bulk: &mut OutgoingPull, length: u64) -> Result<Option<u32>, LaneEnd>;
    /// Server: a frame that is a whole answer.
    fn say(&mut self, frame: &[u8]) -> Result<(), LaneEnd>;
    /// Server: there is no answer.
    fn refuse(&mut self, call: u64, failure: &Failure) -> Result<(), LaneEnd> {
        self.say(&frame::encode(
            PeerKind::Ask.into(),
            REPLY | FAILED,
            call,
            &v1::Failure::from(&failure.clone().for_peer()),
        ))
    }
    /// Server: there is none yet.
    fn later(&mut self, call: u64) -> Result<(), LaneEnd> {
        self.say(&frame::encode(PeerKind::Ask.into(), REPLY, call, &v1::Ask::default()))
    }
}

/// Bytes of a pull that the other end wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) call: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Ask {
    /// Reads one; nothing else may come to a server.
    pub(super) fn decode(kind: PeerKind, header: Header, body: &[u8]) -> Result<Self, LaneEnd> {
        if kind != PeerKind::Ask || header.flags != 0 {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        let ask: v1::Ask = decode(header, body)?;
        if header.call == 0 && ask == v1::Ask::default() {
            return Err(LaneEnd::Idle);
        }
        if header.call == 0 {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        if ask.length == 0 || ask.length > PIECE_BYTES_MAX {
            return Err(FrameError::Malformed(header.kind).into());
        }
        Ok(Self { call: header.call, offset: ask.offset, length: ask.length.into() })
    }
}

/// Part that a lane writes. Dropped before it was taken out, as by a panic, it is given back: the landing waits for every part.
struct PartOut {
    part: Option<Part>,
    transfer: Arc<Transfer>,
}

impl PartOut {
    fn begin(transfer: &Arc<Transfer>, reserved: &Reserved) -> Option<Self> {
        let part = transfer.begin(reserved)?;
        Some(Self { part: Some(part), transfer: Arc::clone(transfer) })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.part {
            Some(part) => part.bytes_mut(),
            None => &mut [],
        }
    }

    fn take(mut self) -> Option<Part> {
        self.part.take()
    }
}

impl Drop for PartOut {
    fn drop(&mut self) {
        if let Some(part) = self.part.take()
            && let Some(finish) = self.transfer.give_back(part)
        {
            finish();
        }
    }
}

/// The answer to an ask while it comes: where its bytes go, and what may come next.
pub(super) struct Answer {
    pub(super) wanted: Wanted,
    pub(super) reserved: Reserved,
    /// Part to which the bytes go; none when nobody wants them any more.
    part: Option<PartOut>,
    range: Range<u64>,
    at: u64,
    /// Position at which it was when it was last looked after.
    seen: u64,
    /// Bytes came since, which may be too few to be opened.
    stirred: bool,
    moved: Arc<LastMoved>,
    /// Time for which no byte of it may come.
    progress: Duration,
    /// CRC-32C of what came, where the wire does not prove its bytes itself.
    pub(super) crc32c: Option<u32>,
    /// The owner has no answer, and says why.
    pub(super) refused: Option<Failure>,
    /// Set if whoever was asked does not have the bytes yet.
    pub(super) later: bool,
    done: bool,
}

impl Answer {
    pub(super) fn new(piece: Piece, moved: &Arc<LastMoved>) -> Self {
        let Piece { wanted, reserved } = piece;
        let transfer = &wanted.transfer;
        let (range, part) = (reserved.range(), PartOut::begin(transfer, &reserved));
        let (at, seen) = (range.start, range.start);
        let progress = transfer.allowance(Instant::now()).max(PROGRESS_MIN);
        Self {
            wanted,
            reserved,
            part,
            range,
            at,
            seen,
            stirred: false,
            moved: Arc::clone(moved),
            progress,
            crc32c: None,
            refused: None,
            later: false,
            done: false,
        }
    }

    /// Time without a byte until the lane has failed: less if the pull is in a hurry, so that it has time for
    /// another one.
    pub(super) fn progress(&self, most: Duration) -> Duration {
        most.min(self.progress)
    }

    /// Returns the range of bytes that were asked for.
    pub(super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns whether all of it came.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Returns what came on a lane, if it is wanted. What did not come from the owner is hashed.
    pub(super) fn into_brought(self, lane: u64) -> Option<Brought> {
        let Self { part, reserved, crc32c, wanted, .. } = self;
        let mut part = part?;
        let claim = wanted.asker.map(|asker| (asker, hashes::of_granules(part.bytes_mut())));
        let part = part.take()?;
        Some(Brought { part, reserved, crc32c, lane, claim })
    }

    /// Gives back a piece that does not come whole: whoever wants its bytes asks again.
    pub(super) fn give_back(self) {
        match self.part {
            Some(part) => drop(part),
            None => self.wanted.transfer.release(&self.reserved),
        }
    }

    /// Lets go of the memory if nobody wants the bytes any more. Before every wait for the socket, and once a [`TICK`] where
    /// there is none.
    pub(super) fn look(&mut self) {
        let has_come = std::mem::replace(&mut self.seen, self.at) != self.at;
        if std::mem::take(&mut self.stirred) || has_come {
            self.wanted.transfer.moves();
            self.moved.note();
        }
        if !self.wanted.transfer.is_over() {
            return;
        }
        drop(self.part.take());
    }

    /// Bytes came that cannot be opened yet.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Checks that the chunk that begins may come here.
    pub(super) fn chunk(&self, header: Header, offset: u64, length: usize) -> Result<(), FrameError> {
        let end = offset.checked_add(length as u64).ok_or(FrameError::Malformed(header.kind))?;
        if header.flags & (REPLY | FAILED) != 0 || header.call != self.wanted.call || self.done {
            return Err(FrameError::OutOfPlace(header.kind));
        }
        let fits = offset == self.at && length > 0 && end <= self.range.end;
        if !fits || header.is_last() != (end == self.range.end) {
            return Err(FrameError::Malformed(header.kind));
        }
        Ok(())
    }

    /// Room for the next bytes, at most `most`; `None`: they go nowhere.
    pub(super) fn room(&mut self, most: usize) -> Option<&mut [u8]> {
        let from = (self.at - self.range.start) as usize;
        let room = self.part.as_mut()?.bytes_mut().get_mut(from..)?;
        let most = most.min(room.len());
        Some(&mut room[..most])
    }

    /// So many bytes came.
    pub(super) fn came(&mut self, bytes: usize) {
        self.at += bytes as u64;
        self.done = self.at == self.range.end;
    }

    /// The owner refuses.
    pub(super) fn message(&mut self, kind: PeerKind, header: Header, body: &[u8]) -> Result<(), FrameError> {
        let refusal = kind == PeerKind::Ask && header.flags == REPLY | FAILED;
        // The owner has all bytes, always.
        let later = kind == PeerKind::Ask && header.flags == REPLY && self.wanted.asker.is_some();
        if !(refusal || later) || header.call != self.wanted.call || self.at != self.range.start || self.done
        {
            return Err(FrameError::OutOfPlace(header.kind));
        }
        if later {
            let v1::Ask { .. } = decode(header, body)?;
            self.later = true;
        } else {
            let failure: v1::Failure = decode(header, body)?;
            self.refused = Some(wire::failure(failure));
        }
        self.done = true;
        Ok(())
    }
}

/// Message of a reader that leaves.
pub(super) fn leaving() -> Vec<u8> {
    frame::encode(PeerKind::Ask.into(), 0, 0, &v1::Ask::default())
}

/// Head before the bytes of a chunk.
pub(super) fn chunk_head(call: u64, at: u64, bytes: u64, last: bool) -> [u8; HEADER_BYTES + OFFSET_BYTES] {
    let length = (OFFSET_BYTES as u64 + bytes) as u32;
    let header = Header { length, kind: PeerKind::Chunk.into(), flags: if last { LAST } else { 0 }, call };
    let mut head = [0; HEADER_BYTES + OFFSET_BYTES];
    head[..HEADER_BYTES].copy_from_slice(&header.encode());
    head[HEADER_BYTES..].copy_from_slice(&at.to_le_bytes());
    head
}

/// Takes one ask.
pub(super) struct AskSink(pub(super) Option<Ask>);

impl Sink for AskSink {
    type Error = LaneEnd;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, LaneEnd> {
        self.0 = Some(Ask::decode(kind, header, &body)?);
        Ok(Flow::Stop)
    }
}

impl Sink for Answer {
    type Error = LaneEnd;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, LaneEnd> {
        Answer::message(self, kind, header, &body)?;
        Ok(Flow::Stop)
    }

    fn chunk(&mut self, header: Header, offset: u64, length: usize) -> Result<(), LaneEnd> {
        Ok(Answer::chunk(self, header, offset, length)?)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), LaneEnd> {
        if let Some(room) = self.room(bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn chunk_end(&mut self) -> Result<Flow, LaneEnd> {
        self.came(0);
        Ok(if self.done { Flow::Stop } else { Flow::Go })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_silent_connection_end_alike_whichever_finds_it_and_others_keep_their_reason() {
        let ended = |end: LaneEnd| end.of_silence().label();
        let lost = io::Error::from(io::ErrorKind::ConnectionAborted);
        assert_eq!(
            [ended(LaneEnd::Progress), ended(LaneEnd::Closed), ended(LaneEnd::Socket(lost))],
            ["progress"; 3]
        );
        assert_eq!([ended(LaneEnd::Idle), ended(LaneEnd::Altered(0..1))], ["idle", "altered"]);
    }
}
