//! Frames: how messages are told apart on a byte stream. Sans I/O: this module knows bytes, never sockets.
//!
//! Both protocols of ours, the session socket and the peer connection, carry frames: a header of 16 bytes, then a body.
//!
//! ```text
//!  0        4      6       8                16
//!  +--------+------+-------+----------------+---------------- - -
//!  | length | kind | flags | call           | body (length bytes)
//!  +--------+------+-------+----------------+---------------- - -
//!   u32      u16    u16     u64               all little-endian
//! ```
//!
//! `call` is chosen by the asker and repeated in the answer, whose `kind` is the same and whose flags have [`REPLY`].
//! A body is one protobuf message, except that of [`PeerKind::Chunk`]: an 8-byte offset and raw bytes.
//! A frame that breaks a limit, or is of an unknown kind, ends the connection: nothing after it can be trusted.

use thiserror::Error;

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 16;
/// Newest version of the session socket's protocol. Since 2 a segment may be announced again while it is mapped: with the same
/// bytes in other pages, which take the place of those that the client maps. Since 3 sets are published, since 4 there are channels,
/// since 5 tensors lie in GPU memory, since 6 there are sets whose rows change, and pipes, since 7 names are watched,
/// since 8 tensors in GPU memory are copied out by a process that reaches it, since 9 mutable sets are waited for and have
/// snapshots, channels and listeners say who may read and connect, and readers of channels are evicted, since 10 messages of a channel
/// may be larger than its slots.
pub const SESSION_VERSION: u32 = 10;
/// The first version of the session socket's protocol that has [`SessionKind::Stage`].
pub const STAGE_SINCE: u32 = 8;
/// The first version of the session socket's protocol that has [`SessionKind::Watch`].
pub const WATCH_SINCE: u32 = 7;
/// The first version of the session socket's protocol in which mutable sets are waited for and have snapshots.
pub const SET_SNAPSHOTS_SINCE: u32 = 9;
/// The first version of the peer protocol in which mutable sets have snapshots.
pub const PEER_SET_SNAPSHOTS_SINCE: u32 = 11;
/// The first version of the session socket's protocol that has mutable sets.
pub const MUTABLE_SETS_SINCE: u32 = 6;
/// The first version of the peer protocol that has mutable sets.
pub const SET_CALLS_SINCE: u32 = 8;
/// The first version of the session socket's protocol that has channels.
pub const CHANNELS_SINCE: u32 = 4;
/// The first version of the session socket's protocol in which channels say who may read them and evict readers, and listeners who may
/// connect.
pub const CHANNEL_OPTIONS_SINCE: u32 = 9;
/// The first version of the session socket's protocol that has [`SessionKind::ChannelExtent`].
pub const CHANNEL_GROWTH_SINCE: u32 = 10;
/// The first version of the session socket's protocol that has pipes.
pub const PIPES_SINCE: u32 = 6;
/// The first version of the session socket's protocol in which a client sends descriptors: those of GPU memory.
pub const GPU_SINCE: u32 = 5;
/// The first version of the session socket's protocol that has [`SessionKind::PublishSet`].
pub const SETS_SINCE: u32 = 3;
/// The first version of the session socket's protocol in which segments are exchanged.
pub const EXCHANGE_SINCE: u32 = 2;
/// Newest version of the peer protocol. Since 2 the bytes of a pull may come on lanes, since 3 of other holders than the owner,
/// since 4 peers of a node lend each other their copies, since 5 lanes are bound by what both ends export of the connection,
/// since 6 maps are asked for at the node's socket, from 7 to 10 small tensors were asked for on QUIC, too, since 8 channels are read and
/// there are calls about mutable sets, since 9 there are pipes, since 10 tickets are redeemed and names watched,
/// since 11 mutable sets have snapshots, and a peer is told that it was evicted from a channel,
/// and which GPUs the other one reaches, since 12 owners say what the bytes of a tensor hash to, granule by granule, and attachments to
/// channels are resumed on another connection, since 13 pipes are, too.
pub const PEER_VERSION: u32 = 13;
/// The first version of the peer protocol that has [`PeerKind::Proofs`].
pub const PROOFS_SINCE: u32 = 12;
/// Bytes of a granule, of which [`PeerKind::Proofs`] says the hashes; the last one of a tensor may be shorter.
pub const GRANULE_BYTES: u64 = 1 << 20;
/// Bytes of the hash of a granule: BLAKE3.
pub const HASH_BYTES: usize = 32;
/// Most granules whose hashes are asked for in one frame: 64 MiB of a tensor, and 2 KiB of hashes.
pub const PROOFS_MAX: u32 = 64;
/// The first version of the peer protocol that has [`PeerKind::Redeem`] and [`PeerKind::Watch`].
pub const QUESTIONS_SINCE: u32 = 10;
/// Version of the peer protocol since which peers tell the GPUs that they reach, and lend memory of them on a node.
pub const PEER_GPUS_SINCE: u32 = 11;
/// Most GPUs that a session or a peer may name, each with a UUID of 16 bytes.
pub const GPUS_MAX: usize = 64;
/// The first version of the peer protocol that has [`PeerKind::ChannelAttach`].
pub const PEER_CHANNELS_SINCE: u32 = 8;
/// The first version of the peer protocol in which the end of an attachment may be an eviction.
pub const EVICTIONS_SINCE: u32 = 11;
/// Most bytes of a message of a channel in one frame between peers. A frame that comes in between waits for two of these at most.
pub const CHANNEL_PIECE_MAX: usize = 256 << 10;
/// Most bytes of a channel on their way to one peer that have not landed by its word.
pub const CHANNEL_WINDOW: u64 = 4 << 20;
/// Channels of one peer that another one reads at a time. Each costs a thread at both ends, a cursor and a ring.
pub const PEER_CHANNELS_MAX: usize = 64;
/// The first version of the peer protocol that has [`PeerKind::PipeConnect`].
pub const PEER_PIPES_SINCE: u32 = 9;
/// The first version of the peer protocol in which pipes go on over another connection.
pub const PIPES_RESUMED_SINCE: u32 = 13;
/// Most connects to listeners of a peer that another one waits for. Each costs a kilobyte.
pub const PEER_PIPE_CONNECTS_MAX: usize = 256;
/// Most calls about pipes on one connection that are not answered, of either side. Each costs a kilobyte.
pub const PEER_PIPE_CALLS_MAX: usize = 2_048;
/// Most bytes of messages that one session, or the clients of one other peer together, have written to pipes and nobody has read.
pub const PIPE_UNREAD_BYTES_MAX: u64 = 8 << 20;
/// Largest message of a pipe without the bytes of its tensors, encoded, in bytes.
pub const PIPE_MESSAGE_MAX: usize = 512 << 10;
/// Most holders that are told in one frame.
pub const HOLDERS_MAX: usize = 4;
/// Most holders that a reader names as lost.
pub const LOST_MAX: usize = 16;
/// Holders that a pull may lose, those that only refused apart. Then the owner sends the rest: a reader that others do not do
/// for costs itself more by trying than it spares the owner.
pub const HOLDERS_TRIED: usize = 2;
/// Most lanes of a pair of peers in each direction. Each costs a thread and up to half a MiB at both ends.
pub const LANES_MAX: usize = 8;
/// Most bytes of one answer on a lane. A lane that breaks loses at most two of them.
pub const PIECE_BYTES_MAX: u32 = 4 << 20;
/// Longest body on a session socket. Costs that much memory a session at most: a batch of 65,536 small items fits.
pub const SESSION_BODY_MAX: u32 = 16 << 20;
/// Longest body between peers. Costs that much memory a connection at most: four chunks.
pub const PEER_BODY_MAX: u32 = (4 << 20) + (64 << 10);
/// Most tensor bytes in one chunk between peers. Larger ones delay whatever waits behind them on the connection.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Largest tensor that travels inside a message (Put on a session socket, PullMany between peers), in bytes.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Most items of one request on a session socket.
pub const SESSION_ITEMS_MAX: usize = 65_536;
/// Most items of one request over gRPC or between peers.
pub const ITEMS_MAX: usize = 4_096;

/// Flag: this frame answers the call of the same number.
pub const REPLY: u16 = 1;
/// Flag of a reply: the call failed as a whole and the body is a `Failure`.
pub const FAILED: u16 = 2;
/// Flag of a chunk: the last one of its call.
pub const LAST: u16 = 4;

/// Reason for which a frame was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length is above the limit of the protocol.
    #[error("a frame of {length} bytes is above the limit of {limit}")]
    TooLong {
        /// Length that the header says.
        length: u32,
        /// Length that is allowed.
        limit: u32,
    },
    /// No frame of this protocol has this kind.
    #[error("{0} is not a kind of frame")]
    UnknownKind(u16),
    /// A flag that this version does not know.
    #[error("the flags {0:#06x} are not known")]
    UnknownFlags(u16),
    /// The body is not the message that the kind promises.
    #[error("the body of a frame of kind {0} is malformed")]
    Malformed(u16),
    /// A frame that may not come in the present state (a verb before Hello, a chunk of no call).
    #[error("a frame of kind {0} may not come here")]
    OutOfPlace(u16),
}

impl FrameError {
    /// A stable label for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::TooLong { .. } => "too_long",
            Self::UnknownKind(_) => "unknown_kind",
            Self::UnknownFlags(_) => "unknown_flags",
            Self::Malformed(_) => "malformed",
            Self::OutOfPlace(_) => "out_of_place",
        }
    }
}

/// The first 16 bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the body in bytes.
    pub length: u32,
    /// Kind of the body; see [`SessionKind`] and [`PeerKind`].
    pub kind: u16,
    /// [`REPLY`], [`FAILED`], [`LAST`].
    pub flags: u16,
    /// Number of the call; 0 where there is none.
    pub call: u64,
}

impl Header {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes
    }

    /// Reads a header; refuses a body above `limit` before a byte is set aside for it.
    pub fn decode(bytes: &[u8; HEADER_BYTES], limit: u32) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, k0, k1, f0, f1, c @ ..] = *bytes;
        let header = Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u16::from_le_bytes([k0, k1]),
            flags: u16::from_le_bytes([f0, f1]),
            call: u64::from_le_bytes(c),
        };
        if header.length > limit {
            return Err(FrameError::TooLong { length: header.length, limit });
        }
        if header.flags & !(REPLY | FAILED | LAST) != 0 {
            return Err(FrameError::UnknownFlags(header.flags));
        }
        Ok(header)
    }

    /// Returns whether this frame answers a call.
    pub fn is_reply(&self) -> bool {
        self.flags & REPLY != 0
    }

    /// Returns whether the body is a `Failure`.
    pub fn is_failed(&self) -> bool {
        self.flags & FAILED != 0
    }

    /// Returns whether this chunk is the last of its call.
    pub fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }
}

/// Encodes one frame as bytes: header and protobuf body in one buffer, ready for one write.
pub fn encode(kind: u16, flags: u16, call: u64, message: &impl prost::Message) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_into(&mut frame, kind, flags, call, message);
    frame
}

/// Appends one frame to `out`.
pub fn encode_into(out: &mut Vec<u8>, kind: u16, flags: u16, call: u64, message: &impl prost::Message) {
    let length = message.encoded_len();
    out.reserve(HEADER_BYTES + length);
    // A message above 4 GiB cannot be built under the limits of any verb; the receiver would refuse this length.
    let header = Header { length: u32::try_from(length).unwrap_or(u32::MAX), kind, flags, call };
    out.extend_from_slice(&header.encode());
    message.encode_raw(out);
}

/// Number of times that field 1 stands at the top level of an encoded message: its items, for every plural request.
/// Allocates nothing, so that a body can be refused before it is decoded. Packed numbers count once; what is malformed
/// ends the count, and is refused by the decoder.
pub fn top_level_items(body: &[u8]) -> usize {
    let (mut items, mut rest) = (0, body);
    while let Some(key) = varint(&mut rest) {
        let length = match key & 7 {
            0 => varint(&mut rest).map(|_| 0),
            1 => Some(8),
            2 => varint(&mut rest).and_then(|l| usize::try_from(l).ok()),
            5 => Some(4),
            _ => None,
        };
        let Some(after) = length.and_then(|l| rest.get(l..)) else { break };
        rest = after;
        items += usize::from(key >> 3 == 1);
    }
    items
}

/// Takes one varint; none at the end or where it is too long.
pub(crate) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum $name { $($(#[$variant_doc])* $variant = $number),+ }

        impl TryFrom<u16> for $name {
            type Error = FrameError;
            fn try_from(kind: u16) -> Result<Self, FrameError> {
                match kind {
                    $($number => Ok(Self::$variant),)+
                    other => Err(FrameError::UnknownKind(other)),
                }
            }
        }

        impl From<$name> for u16 {
            fn from(kind: $name) -> u16 {
                kind as u16
            }
        }
    };
}

kinds! {
    /// Kinds of frames on the session socket.
    SessionKind {
        /// `SessionHello`; its reply is `SessionWelcome`, with the event pipe's descriptor.
        Hello = 1,
        /// `SegmentFrame`, sidecar to client, with two descriptors: memory and witness.
        Segment = 2,
        /// `SegmentMapped`, client to sidecar.
        SegmentMapped = 3,
        /// `SegmentRetired`, on the event pipe only.
        SegmentRetired = 4,
        /// Withdraws the call of the same number; empty body, no reply of its own.
        Cancel = 5,
        /// `SegmentFrame`, on the event pipe only and without descriptors: it is announced again on the socket.
        SegmentExchanged = 6,
        /// `PutRequest` / `PutResponse`.
        Put = 16,
        /// `ReserveRequest` / `ReserveResponse`.
        Reserve = 17,
        /// `SealRequest` / `SealResponse`.
        Seal = 18,
        /// `AbortRequest` / `AbortResponse`.
        Abort = 19,
        /// `AcquireRequest` / `AcquireResponse`.
        Acquire = 20,
        /// `ReleaseRequest`, no reply.
        Release = 21,
        /// `DescribeRequest` / `DescribeResponse`.
        Describe = 22,
        /// `ListRequest` / `ListResponse`.
        List = 23,
        /// `NameRequest` / `NameResponse`.
        Name = 24,
        /// `UnnameRequest` / `UnnameResponse`.
        Unname = 25,
        /// `LookupRequest` / `LookupResponse`.
        Lookup = 26,
        /// `TicketRequest` / `TicketResponse`.
        Ticket = 27,
        /// `RedeemRequest` / `RedeemResponse`.
        Redeem = 28,
        /// `StatusRequest` / `StatusResponse`.
        Status = 29,
        /// `PeersRequest` / `PeersResponse`.
        Peers = 30,
        /// `ChannelCreateRequest` / `ChannelCreateResponse`, since version 4.
        ChannelCreate = 31,
        /// `ChannelAttachRequest` / `ChannelAttachResponse`, since version 4.
        ChannelAttach = 32,
        /// `ChannelDetachRequest`, no reply, since version 4.
        ChannelDetach = 33,
        /// `ChannelStatRequest` / `ChannelStatResponse`, since version 4.
        ChannelStat = 34,
        /// `ChannelReader`, sidecar to client; on the event pipe, too, where it has no body. Since version 4.
        ChannelReader = 35,
        /// `ChannelReady`, client to sidecar, since version 4.
        ChannelReady = 36,
        /// `ChannelExtentRequest` / `ChannelExtentResponse`, since version 10.
        ChannelExtent = 37,
        /// `PipeListenRequest` / `PipeListenResponse`, since version 6.
        PipeListen = 40,
        /// `PipeConnectRequest` / `PipeOpened`, since version 6.
        PipeConnect = 41,
        /// `PipeAcceptRequest` / `PipeOpened`, since version 6.
        PipeAccept = 42,
        /// `PipeWriteRequest` / `PipeWriteResponse`, since version 6.
        PipeWrite = 43,
        /// `PipeReadRequest` / `PipeReadResponse`, since version 6.
        PipeRead = 44,
        /// `PipeEndRequest`, no reply, since version 6.
        PipeEnd = 39,
        /// `WatchRequest` / `WatchResponse`, since version 7.
        Watch = 45,
        /// `PutGpuRequest` with one descriptor / `PutResponse`, since version 5.
        PutGpu = 46,
        /// `OpenGpuRequest` / `OpenGpuResponse` with one descriptor, since version 5.
        OpenGpu = 47,
        /// `GpuFreed` on the event pipe, no reply, since version 5.
        GpuFreed = 48,
        /// `StageRequest` / `StageResponse`, since version 8.
        Stage = 49,
        /// `SetCreateRequest` / `SetCreateResponse`, since version 6.
        SetCreate = 50,
        /// `SetOpenRequest` / `SetOpenResponse`, since version 6.
        SetOpen = 51,
        /// `SetReadRequest` / `SetReadResponse`, since version 6.
        SetRead = 52,
        /// `SetCommitRequest` / `SetCommitResponse`, since version 6.
        SetCommit = 53,
        /// `SetStatRequest` / `SetStatResponse`, since version 6.
        SetStat = 57,
        /// `SetDropRequest` / `SetDropResponse`, since version 6.
        SetDrop = 58,
        /// `SetSnapshotRequest` / `SetSnapshotResponse`, since version 9.
        SetSnapshot = 59,
        /// `PublishSetRequest` / `PublishSetResponse`, since version 3.
        PublishSet = 55,
    }
}

kinds! {
    /// Kinds of frames between two peers.
    PeerKind {
        /// `PeerHello`, first frame of each side.
        Hello = 1,
        /// `Pull`; its reply is `PullHead`, then chunks of the same call.
        Pull = 2,
        /// Bytes of a pull: 8 bytes of offset into the packed selection, then the bytes.
        Chunk = 3,
        /// `PullDone`, no reply.
        PullDone = 4,
        /// `PullMany` / `PulledMany`.
        PullMany = 5,
        /// `Inquire` / `Inquired`.
        Inquire = 6,
        /// `Cancel`: withdraws the call of the same number; no reply.
        Cancel = 7,
        /// `Ping`; its reply is the same.
        Ping = 8,
        /// The sender closes in order: it will answer nothing more; empty body.
        Goodbye = 9,
        /// `Lanes`, no reply.
        Lanes = 10,
        /// `LaneHello`, first frame of each side of a lane.
        LaneHello = 11,
        /// `Ask`, on lanes only; its answer is chunks, or the same with a `Failure`, or the same and empty.
        Ask = 12,
        /// `Sum`, no reply.
        Sum = 13,
        /// `Seek` / `Sought`, by the number of an open `Pull`.
        Seek = 14,
        /// `PeerChannelAttach` / `PeerChannelAttached`, since version 8.
        ChannelAttach = 15,
        /// `PeerChannelMessage`, by the number of a `ChannelAttach`, no reply.
        ChannelMessage = 16,
        /// `PeerChannelCredit`, likewise.
        ChannelCredit = 17,
        /// `PeerChannelEnd`, likewise.
        ChannelEnd = 18,
        /// `PeerPipeConnect` / `PeerPipeConnected`, since version 9.
        PipeConnect = 19,
        /// `PeerPipeCall` / `PeerPipeAnswer`, since version 9; no reply where the call is 0.
        PipeCall = 20,
        /// `SetCall` / `SetAnswer`, since version 8.
        SetCall = 21,
        /// `PeerRedeem` / `PeerRedeemed`, since version 10. The lease ends with `PullDone`.
        Redeem = 23,
        /// `WatchRequest` / `WatchResponse`, since version 10.
        Watch = 24,
        /// `PeerGpus`, since version 11; its call is 0, no reply.
        Gpus = 28,
        /// `PeerProofs` / `PeerProven`, by the number of an open `Pull`, since version 12.
        Proofs = 29,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_of_two_to_the_63_never_fits_a_header_and_two_to_the_32_is_refused() {
        let header = Header { length: u32::MAX, kind: 16, flags: 0, call: 1 };
        let refused = Header::decode(&header.encode(), SESSION_BODY_MAX);
        assert_eq!(refused, Err(FrameError::TooLong { length: u32::MAX, limit: SESSION_BODY_MAX }));
    }

    #[test]
    fn unknown_kinds_and_flags_are_refused() {
        assert_eq!(SessionKind::try_from(999), Err(FrameError::UnknownKind(999)));
        assert_eq!(PeerKind::try_from(0), Err(FrameError::UnknownKind(0)));
        let header = Header { length: 0, kind: 16, flags: 0x8000, call: 0 };
        assert_eq!(Header::decode(&header.encode(), 1), Err(FrameError::UnknownFlags(0x8000)));
    }

    #[test]
    fn items_are_counted_without_decoding_them() {
        use prost::Message;

        use crate::generated as v1;
        let items = vec![v1::PutItem { data: vec![7; 300].into(), ..v1::PutItem::default() }; 5];
        let request = v1::PutRequest { items, deadline_ms: 9 };
        assert_eq!(top_level_items(&request.encode_to_vec()), 5);
        assert_eq!(top_level_items(&[0x0a, 0x00].repeat(1_000_000)), 1_000_000);
        assert_eq!(top_level_items(&[0x0a, 0xff, 0xff]), 0);
    }

    proptest! {
        #[test]
        fn a_header_survives_the_wire(length in 0u32..=SESSION_BODY_MAX, kind: u16, flags in 0u16..8, call: u64) {
            let header = Header { length, kind, flags, call };
            prop_assert_eq!(Header::decode(&header.encode(), SESSION_BODY_MAX), Ok(header));
        }

        #[test]
        fn any_sixteen_bytes_are_a_header_or_an_error(bytes: [u8; 16]) {
            if let Ok(header) = Header::decode(&bytes, PEER_BODY_MAX) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
