//! Labels: words from enums, so that the number of series is known when this is compiled.

use tensorlane_memory::ring::Policy;
use tensorlane_proto::failure::Reason;
use tensorlane_proto::frame::FrameError;
use tensorlane_proto::ledger::Cause;
use tensorlane_proto::negotiate::{Transport, Why};

/// A label whose values are the variants of an enum.
pub trait Label: Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// The word in the metric.
    fn as_str(self) -> &'static str;

    /// Returns the place of the value among [`Label::ALL`].
    fn index(self) -> usize;
}

/// Several labels together: one series for each combination that has happened.
pub trait Labels: Copy + 'static {
    /// Number of combinations.
    const COUNT: usize;

    /// A place below [`Labels::COUNT`], its own for each combination.
    fn index(self) -> usize;

    /// The words, in the order of the labels' names.
    fn words(self) -> Vec<&'static str>;

    /// Every combination, by index.
    fn all() -> Vec<Self>;
}

impl<A: Label> Labels for (A,) {
    const COUNT: usize = A::ALL.len();

    fn index(self) -> usize {
        self.0.index()
    }

    fn words(self) -> Vec<&'static str> {
        vec![self.0.as_str()]
    }

    fn all() -> Vec<Self> {
        A::ALL.iter().map(|&a| (a,)).collect()
    }
}

impl<A: Label, B: Label> Labels for (A, B) {
    const COUNT: usize = A::ALL.len() * B::ALL.len();

    fn index(self) -> usize {
        self.0.index() * B::ALL.len() + self.1.index()
    }

    fn words(self) -> Vec<&'static str> {
        vec![self.0.as_str(), self.1.as_str()]
    }

    fn all() -> Vec<Self> {
        A::ALL.iter().flat_map(|&a| B::ALL.iter().map(move |&b| (a, b))).collect()
    }
}

impl<A: Label, B: Label, C: Label> Labels for (A, B, C) {
    const COUNT: usize = A::ALL.len() * B::ALL.len() * C::ALL.len();

    fn index(self) -> usize {
        (self.0, self.1).index() * C::ALL.len() + self.2.index()
    }

    fn words(self) -> Vec<&'static str> {
        vec![self.0.as_str(), self.1.as_str(), self.2.as_str()]
    }

    fn all() -> Vec<Self> {
        let pairs = <(A, B)>::all().into_iter();
        pairs.flat_map(|(a, b)| C::ALL.iter().map(move |&c| (a, b, c))).collect()
    }
}

macro_rules! labels {
    ($( $(#[$doc:meta])+ $name:ident { $( $(#[$variant_doc:meta])+ $variant:ident = $word:literal, )+ } )+) => { $(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[$variant_doc])+ $variant, )+ }

        impl Label for $name {
            const ALL: &'static [Self] = &[$($name::$variant),+];

            fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    )+ };
}

labels! {
    /// Verb that a workload calls.
    Verb {
        /// Bytes in.
        Put = "put",
        /// Room to write in place.
        Reserve = "reserve",
        /// Bytes into a reservation.
        Fill = "fill",
        /// A reservation becomes a tensor.
        Seal = "seal",
        /// A reservation is given up.
        Abort = "abort",
        /// Bytes out.
        Get = "get",
        /// Lease and map.
        Acquire = "acquire",
        /// The lease ends.
        Release = "release",
        /// Description of what is known of a tensor.
        Describe = "describe",
        /// Names, by pages.
        List = "list",
        /// Tells of names that come and go: until there is something to tell.
        Watch = "watch",
        /// Gives a name.
        Name = "name",
        /// Takes a name away.
        Unname = "unname",
        /// Makes a set the next version of its name.
        PublishSet = "publish_set",
        /// Makes a channel.
        ChannelCreate = "channel_create",
        /// Attaches a reader to a channel.
        ChannelAttach = "channel_attach",
        /// Ends a channel or a reader of one.
        ChannelDetach = "channel_detach",
        /// Makes memory for a message that is larger than a slot, or finds it.
        ChannelExtent = "channel_extent",
        /// Channels, with how far their readers are.
        ChannelStat = "channel_stat",
        /// Channel that is written over gRPC, from begin to end.
        ChannelWrite = "channel_write",
        /// Channel that is read over gRPC, from begin to end.
        ChannelRead = "channel_read",
        /// Makes a mutable set.
        SetCreate = "set_create",
        /// Finds a mutable set.
        SetOpen = "set_open",
        /// Reads rows of a mutable set.
        SetRead = "set_read",
        /// Writes rows of a mutable set.
        SetCommit = "set_commit",
        /// Mutable sets of this peer.
        SetStat = "set_stat",
        /// Publishes what a mutable set holds.
        SetSnapshot = "set_snapshot",
        /// Takes a mutable set away.
        SetDrop = "set_drop",
        /// Opens an entry point for pipes.
        PipeListen = "pipe_listen",
        /// Connects a pipe.
        PipeConnect = "pipe_connect",
        /// Takes a pipe that was connected.
        PipeAccept = "pipe_accept",
        /// Writes a message to a pipe: until it was read.
        PipeWrite = "pipe_write",
        /// Asks for the descriptor of a message: until there is one.
        PipeRead = "pipe_read",
        /// End of a pipe over gRPC, from begin to end.
        Pipe = "pipe",
        /// Ends a pipe or a listener.
        PipeEnd = "pipe_end",
        /// GPU memory in.
        PutGpu = "put_gpu",
        /// GPU memory out.
        OpenGpu = "open_gpu",
        /// Copies tensors out of GPU memory: until there is one to copy.
        Stage = "stage",
        /// Finds by name.
        Lookup = "lookup",
        /// Makes a ticket.
        Ticket = "ticket",
        /// Uses a ticket.
        Redeem = "redeem",
        /// The state of this sidecar.
        Status = "status",
        /// The peers of this sidecar.
        Peers = "peers",
        /// A session over gRPC.
        Session = "session",
    }

    /// Outcome of a move: whether bytes have moved, all of them.
    Moved {
        /// All.
        Done = "done",
        /// The call failed; what moved before is counted all the same.
        Failed = "failed",
    }

    /// The states of the bytes of an arena, which together are all of it.
    ArenaState {
        /// Can be given to anyone.
        Free = "free",
        /// Belongs to reservations.
        Reserved = "reserved",
        /// Belongs to sealed tensors.
        Sealed = "sealed",
        /// Idle in segments of live sessions; reclaimable.
        Held = "held",
        /// Freed, but some process may still map it.
        Retired = "retired",
    }

    /// State of GPU memory that is held.
    GpuState {
        /// A session's that lives.
        Live = "live",
        /// A session's that has ended: the sidecar alone keeps it.
        Orphaned = "orphaned",
        /// Another peer's of the node, which has lent it.
        Borrowed = "borrowed",
    }

    /// Kind of tensor, by its owner.
    Kind {
        /// Put or being written here.
        Own = "own",
        /// A copy of another peer's.
        Copy = "copy",
    }

    /// Thing that a request waits for.
    Wait {
        /// Room in the arena.
        Room = "room",
        /// A name that does not exist yet.
        Name = "name",
    }

    /// Tables that are bounded in bytes.
    TableKind {
        /// Metadata of tensors, each value once.
        Metadata = "metadata",
        /// Tensors, leases, names and tickets.
        Ledger = "ledger",
        /// Requests of sessions that come, wait or run.
        Requests = "requests",
        /// Lists of rows that open pulls of peers keep.
        RowLists = "row_lists",
    }

    /// Carrier by which a workload is connected.
    Carrier {
        /// The session socket.
        Socket = "socket",
        /// gRPC.
        Grpc = "grpc",
    }

    /// Reason for which a session was closed whose client did not do its part.
    SessionCut {
        /// More waited for it than one client may have.
        Backlog = "backlog",
        /// Client that took no byte for too long.
        Stalled = "stalled",
        /// All unread answers were more than `limits.unreadBytes`, and it had the most.
        Unread = "unread",
        /// Client that began a frame and did not send the rest of it in time.
        HalfSent = "half_sent",
        /// Client that had not said Hello when there were more than `limits.strangers`, and was the oldest.
        Stranger = "stranger",
    }

    /// Reason for which a gRPC connection was closed.
    GrpcCut {
        /// Connection that had said nothing when there was no room for a further one, and was the oldest of these.
        Silent = "silent",
        /// Connection that was one too many.
        Crowded = "crowded",
        /// Connection whose client took no byte for `deadlines.default`, at least 5 s.
        Stalled = "stalled",
        /// All unread answers were more than `limits.unreadBytes`, and one of it that stood still could not be ended alone.
        Unread = "unread",
    }

    /// Reason for which a connection of a peer was closed that had been up.
    PeerCut {
        /// More waited for it than one peer may have, or it asked for more than it may.
        Backlog = "backlog",
        /// All unread answers were more than `limits.unreadBytes`, and it had the most.
        Unread = "unread",
        /// Nothing moved for `deadlines.progress`.
        Progress = "progress",
        /// Peer that took bytes at less than 32 KiB a second.
        Slow = "slow",
        /// Peer whose key is no longer in the peer table.
        Revoked = "revoked",
    }

    /// Extent of what a panic in a thread ended.
    PanicScope {
        /// All: the process works no more, and `/livez` says so.
        Process = "process",
        /// The connection of a workload or a peer, or a lane of it.
        Connection = "connection",
        /// A call, or a piece of work that is begun again.
        Call = "call",
    }

    /// Reason for which a frame closed its connection.
    FrameFault {
        /// Above the limit of its kind.
        TooLong = "too_long",
        /// A kind that this version does not have.
        UnknownKind = "unknown_kind",
        /// Flags that this version does not have.
        UnknownFlags = "unknown_flags",
        /// Frame whose body cannot be read.
        Malformed = "malformed",
        /// A known frame in a state where it may not come.
        OutOfPlace = "out_of_place",
        /// Too many descriptors, too few, or not of the right kind.
        Descriptors = "descriptors",
        /// Bulk bytes outside the block that they were asked for.
        OutOfBounds = "out_of_bounds",
        /// A version that is not spoken here.
        Version = "version",
        /// The connection ended in the middle of a frame.
        Truncated = "truncated",
    }

    /// State between this sidecar and a peer.
    PeerState {
        /// Frames go both ways.
        Connected = "connected",
        /// A connection is being made.
        Connecting = "connecting",
        /// The last attempt failed.
        Unreachable = "unreachable",
        /// Known, and not needed so far.
        Idle = "idle",
        /// Listed no more, and without a connection.
        Left = "left",
    }

    /// Reason for which a connection of a peer was refused before its first frame.
    AuthRefusal {
        /// Peer that presented no certificate.
        NoCertificate = "no_certificate",
        /// Peer whose certificate cannot be read, or has a key of a kind not taken here.
        MalformedCertificate = "malformed_certificate",
        /// Peer that did not prove that it has the key.
        BadSignature = "bad_signature",
        /// TLS failed for another reason: version, cipher, alert; or a peer that was dialed closed.
        Tls = "tls",
        /// Peer whose key is in nobody's entry of the peer table.
        UnknownKey = "unknown_key",
        /// Peer that says another name than its key stands for.
        OtherPeer = "other_peer",
        /// Peer of another exchange.
        OtherExchange = "other_exchange",
        /// Peer that speaks no version of the protocol that is known here.
        Version = "version",
        /// Peer whose first frame was no Hello, or a malformed one.
        Frame = "frame",
        /// Peer that took too long.
        Timeout = "timeout",
        /// Connection beyond `peers.max` or `limits.strangers`.
        TooMany = "too_many",
        /// Connection from an address that has its part of `limits.strangers` already.
        TooManyFromAddress = "too_many_from_address",
        /// Connection that had said nothing when another one needed its place.
        GaveWay = "gave_way",
        /// Connection that wanted to be a lane and did not prove to be one of a connection that is up.
        Lane = "lane",
    }

    /// Reason for which a lane ended.
    LaneEnd {
        /// Lane that had nothing to do.
        Idle = "idle",
        /// Lane whose connection ended.
        Ended = "ended",
        /// The owner has no such pull on this connection, which is about to end.
        Refused = "refused",
        /// The other end closed, or the network did.
        Lost = "lost",
        /// Nothing moved for 2 seconds although something should.
        Progress = "progress",
        /// The reader took bytes at less than 32 KiB a second.
        Slow = "slow",
        /// A frame came that may not.
        Frame = "frame",
        /// A record of TLS was altered.
        Record = "record",
        /// Lane that brought other bytes than were sent.
        Altered = "altered",
        /// A mistake of this sidecar.
        Ours = "ours",
    }

    /// Reason for which a pull did not come, or did not go on, in the best way.
    FallBack {
        /// No lane came in the time that it could wait.
        NoLane = "no_lane",
        /// Lanes broke in the middle, and none came back in time.
        LanesBroke = "lanes_broke",
        /// No lane came lately, so it did not wait for one.
        LanesCooldown = "lanes_cooldown",
        /// Lanes of other peers alone: there are `limits.lanes` already, and none of them is of the two.
        LanesFull = "lanes_full",
        /// The other peer takes no lanes.
        LanesNotOffered = "lanes_not_offered",
    }

    /// Reason for which a pull does not go on from a holder that is not the owner.
    HolderLost {
        /// Holder that was not reached, or its connection ended.
        Unreachable = "unreachable",
        /// Holder that does not have the tensor, or does not give it.
        Refused = "refused",
        /// No byte came for 2 seconds although some should.
        Stalled = "stalled",
        /// Holder that had nothing for 6 seconds.
        Starved = "starved",
        /// Holder that sent other bytes than it summed.
        Altered = "altered",
        /// At its rate the rest would have come after the deadline.
        Slow = "slow",
        /// Holder that was not asked: it was unreachable or stalled a moment ago, or there was no lane to it.
        Cooldown = "cooldown",
        /// Another connection took the place of the one that it was asked on.
        Replaced = "replaced",
    }

    /// The way that the bytes of a pull came.
    Way {
        /// On the control connection.
        Stream = "stream",
        /// On lanes.
        Lanes = "lanes",
        /// On lanes that are streams of a QUIC connection.
        Quic = "quic",
        /// Not at all: they were mapped.
        Shm = "shm",
    }

    /// End of a connection that dialed the other one.
    Dialed {
        /// Sidecar that counts.
        Us = "us",
        /// The other one.
        Them = "them",
    }

    /// Side of a connection at which all seats for peers were in use.
    SeatSide {
        /// Own side: this sidecar refused a connection that came in or one of its own.
        Here = "here",
        /// Peer that was dialed, and told it.
        There = "there",
    }

    /// Event of memory of other pods of the node, or of a peer there.
    NodeEvent {
        /// A peer was met at the node's socket.
        Met = "met",
        /// Peer that went away, or its process ended.
        Closed = "closed",
        /// Peer that said what may not be said.
        Protocol = "protocol",
        /// Peer that gave something that is no segment that can be read safely.
        Segment = "segment",
        /// Descriptor of another file than the peer said.
        OtherFile = "other_file",
        /// Message that the peer has not sent.
        Forged = "forged",
        /// The socket failed.
        Socket = "socket",
    }

    /// Reason for which a call at a socket of the node's directory came to nothing.
    NodeRefusal {
        /// The peer has no socket there, or the table of peers has it on another node.
        OtherNode = "other_node",
        /// The peer has another boot id.
        OtherKernel = "other_kernel",
        /// The peer has another directory, or one of another file system.
        OtherDirectory = "other_directory",
        /// The peer does not tell where its socket is.
        Untold = "untold",
        /// Something else has its name.
        ForeignSocket = "foreign_socket",
        /// Somebody who did not prove that it is the peer.
        Stranger = "stranger",
        /// The socket failed.
        Socket = "socket",
        /// Too many callers at a time.
        TooMany = "too_many",
    }

    /// Part of other pods' memory that is here.
    Foreign {
        /// Segments that this pod maps.
        Mapped = "mapped",
        /// Tensors in them that are in use.
        Used = "used",
        /// Of the mapped, those whose owner is gone.
        Orphaned = "orphaned",
    }

    /// Outcome of other pods' memory whose owner was gone or lost.
    OrphanEnd {
        /// Memory that was in use, and was copied into the arena.
        Copied = "copied",
        /// Nobody here mapped it any more.
        Dropped = "dropped",
    }

    /// Reason for which a peer that a directory lists is not in the table.
    LeftOut {
        /// Peer that has not said yet who it is.
        NotPublished = "not_published",
        /// Peer whose pod has ended.
        Ended = "ended",
        /// Peer with a name that no peer can have.
        Name = "name",
        /// An address that is none, or too many.
        Address = "address",
        /// A fingerprint that is none, or too many.
        Fingerprint = "fingerprint",
        /// Peer beyond as many as a table takes.
        TooMany = "too_many",
    }

    /// The way of bytes, seen from here.
    Direction {
        /// From the peer.
        In = "in",
        /// To the peer.
        Out = "out",
    }

    /// State of a tensor that is to be copied out of GPU memory.
    StagingState {
        /// No process has it.
        Queued = "queued",
        /// Process that has it, or for which room is made.
        Moving = "moving",
    }

    /// Reason for which a process did not make a copy.
    StagingEnd {
        /// Process that stood still.
        Stalled = "stalled",
        /// Process that said that it could not, or a copy that could not be entered.
        Failed = "failed",
        /// End of its session.
        Gone = "gone",
    }

    /// Place at which a checksum was compared.
    ChecksumPlace {
        /// Sealing of a tensor.
        Seal = "seal",
        /// Arrival of bytes from a peer.
        Pull = "pull",
        /// Further read of a block.
        Read = "read",
    }
}

/// The end of a request: well, or with a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Ok,
    /// With a reason.
    Failed(Reason),
}

impl From<FrameError> for FrameFault {
    fn from(error: FrameError) -> FrameFault {
        match error {
            FrameError::TooLong { .. } => FrameFault::TooLong,
            FrameError::UnknownKind(_) => FrameFault::UnknownKind,
            FrameError::UnknownFlags(_) => FrameFault::UnknownFlags,
            FrameError::Malformed(_) => FrameFault::Malformed,
            FrameError::OutOfPlace(_) => FrameFault::OutOfPlace,
        }
    }
}

impl From<Result<(), Reason>> for Outcome {
    fn from(result: Result<(), Reason>) -> Outcome {
        result.map_or_else(Outcome::Failed, |()| Outcome::Ok)
    }
}

const REASONS: usize = Reason::ALL.len();

const OUTCOMES: [Outcome; REASONS + 1] = {
    let mut all = [Outcome::Ok; REASONS + 1];
    let mut i = 0;
    while i < REASONS {
        all[i + 1] = Outcome::Failed(Reason::ALL[i]);
        i += 1;
    }
    all
};

impl Label for Outcome {
    const ALL: &'static [Self] = &OUTCOMES;

    fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "OK",
            Outcome::Failed(reason) => reason.as_str(),
        }
    }

    fn index(self) -> usize {
        match self {
            Outcome::Ok => 0,
            Outcome::Failed(reason) => 1 + reason as usize,
        }
    }
}

impl Label for Transport {
    const ALL: &'static [Self] = &Transport::ALL;

    fn as_str(self) -> &'static str {
        Transport::as_str(self)
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Label for Policy {
    const ALL: &'static [Self] = &Policy::ALL;

    fn as_str(self) -> &'static str {
        Policy::as_str(self)
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Label for Cause {
    const ALL: &'static [Self] = &Cause::ALL;

    fn as_str(self) -> &'static str {
        Cause::as_str(self)
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Label for Why {
    const ALL: &'static [Self] = &[
        Why::NoCommonVersion,
        Why::NotOffered,
        Why::Policy,
        Why::OtherNode,
        Why::NodeUnproven,
        Why::NoSocketDir,
        Why::Cooldown,
        Why::LentFull,
        Why::SegmentRefused,
        Why::OtherGpu,
        Why::NoGpuProcess,
        Why::NotSupported,
        Why::NoAddress,
        Why::NotZeroCopy,
        Why::NotSameNode,
        Why::NotEncrypted,
        Why::Slower,
        Why::NotCompared,
    ];

    fn as_str(self) -> &'static str {
        Why::as_str(self)
    }

    fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices_are_places<K: Labels>() {
        for (place, key) in K::all().into_iter().enumerate() {
            assert_eq!(key.index(), place, "{:?}", key.words());
        }
        assert_eq!(K::all().len(), K::COUNT);
    }

    #[test]
    fn a_frame_error_and_its_label_are_one_word() {
        let errors = [
            FrameError::TooLong { length: 2, limit: 1 },
            FrameError::UnknownKind(1),
            FrameError::UnknownFlags(1),
            FrameError::Malformed(1),
            FrameError::OutOfPlace(1),
        ];
        for error in errors {
            assert_eq!(FrameFault::from(error).as_str(), error.label());
        }
    }

    #[test]
    fn every_combination_has_its_own_place() {
        indices_are_places::<(Verb, Outcome)>();
        indices_are_places::<(Transport, Moved)>();
        indices_are_places::<(Transport, Transport, Why)>();
        indices_are_places::<(Cause,)>();
        indices_are_places::<(AuthRefusal,)>();
    }
}
