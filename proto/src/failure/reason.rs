//! The codes of gRPC and the reasons of Tensorlane.

use std::fmt;
use std::str::FromStr;

macro_rules! codes {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $number:literal, $name:literal; )+) => {
        /// The status codes of gRPC that a failure can have, with their numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Code {
            $( $(#[doc = $doc])+ $variant = $number, )+
        }

        impl Code {
            /// Every code, by number.
            pub const ALL: &'static [Code] = &[$(Code::$variant),+];

            /// The name that gRPC gives it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $name,)+ }
            }

            /// The code of a number. Numbers that gRPC does not define, and 0 (no failure), are [`Code::Unknown`].
            pub const fn from_number(number: i32) -> Code {
                match number { $($number => Code::$variant,)+ _ => Code::Unknown }
            }
        }
    };
}

codes! {
    /// The caller gave up.
    Cancelled = 1, "CANCELLED";
    /// Nothing better is known.
    Unknown = 2, "UNKNOWN";
    /// The request could never be right, whatever the state.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// The time was over first.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// The thing that was named does not exist.
    NotFound = 5, "NOT_FOUND";
    /// The thing that was to be made exists.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// The caller may not.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// Something is used up.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// The state does not allow it; repeating alone does not help.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// Another caller was faster.
    Aborted = 10, "ABORTED";
    /// Beyond the end.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// Not built, or not built in.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// A mistake of ours.
    Internal = 13, "INTERNAL";
    /// Gone or out of reach.
    Unavailable = 14, "UNAVAILABLE";
    /// Bytes are not what they were.
    DataLoss = 15, "DATA_LOSS";
    /// Nobody said who the caller is.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl Code {
    /// The number that gRPC gives it.
    pub const fn number(self) -> i32 {
        self as i32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! reasons {
    ($( $(#[doc = $doc:literal])+ $variant:ident, $name:literal, $code:ident; )+) => {
        /// The cause of a failure, stable and for programs. Each has one gRPC code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $( $(#[doc = $doc])+ $variant, )+
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),+];

            /// The word on the wire, in metrics and in logs.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $name,)+ }
            }

            /// The gRPC code that goes with it.
            pub const fn code(self) -> Code {
                match self { $(Reason::$variant => Code::$code,)+ }
            }

            fn by_word(word: &str) -> Option<Reason> {
                match word { $($name => Some(Reason::$variant),)+ _ => None }
            }
        }
    };
}

reasons! {
    /// No such tensor, name, ticket or session.
    NotFound, "NOT_FOUND", NotFound;
    /// The name belongs to another tensor; say which one it may replace.
    NameTaken, "NAME_TAKEN", AlreadyExists;
    /// The name no longer belongs to the tensor that was to be replaced; look it up again.
    NameChanged, "NAME_CHANGED", FailedPrecondition;
    /// Changes of names after that revision are forgotten: the watch begins anew, with the names that there are.
    WatchCut, "WATCH_CUT", OutOfRange;
    /// Another version of the set was published meanwhile; publish on top of that one.
    VersionChanged, "VERSION_CHANGED", FailedPrecondition;
    /// The name or reference stands for a tensor that is no set.
    NotASet, "NOT_A_SET", FailedPrecondition;
    /// The key, type or shape of what is read or written is not that of the set.
    SetMismatch, "SET_MISMATCH", InvalidArgument;
    /// The owner of the set, channel or listener does not let this peer do that; it names those that may.
    PermissionDenied, "PERMISSION_DENIED", PermissionDenied;
    /// The rows may be of two commits: the sidecar ended, or its storage failed, while they were written. Write them again.
    TornRows, "TORN_ROWS", DataLoss;
    /// The sidecar has no directory for sets on files; its setting `sets.root` names one.
    NoStorage, "NO_STORAGE", FailedPrecondition;
    /// The disk, or its quota, is full; nothing was written.
    StorageFull, "STORAGE_FULL", ResourceExhausted;
    /// The storage of a set failed, or its directory is not the one that it was.
    StorageFailed, "STORAGE_FAILED", DataLoss;
    /// The directory is no set that this release reads.
    UnsupportedFormat, "UNSUPPORTED_FORMAT", FailedPrecondition;
    /// The channel has ended: its writer finished it, let it go or died.
    ChannelEnded, "CHANNEL_ENDED", FailedPrecondition;
    /// The process that writes the channel does not answer; it may be stopped.
    WriterNotAnswering, "WRITER_NOT_ANSWERING", Unavailable;
    /// A reader holds the place that the next message needs.
    BlockedBy, "BLOCKED_BY", DeadlineExceeded;
    /// The writer of the channel has evicted this reader, which held it up.
    Evicted, "EVICTED", FailedPrecondition;
    /// The pipe has ended: one of its ends closed it, or its listener.
    PipeClosed, "PIPE_CLOSED", FailedPrecondition;
    /// The other end of the pipe is gone without a word: its process, its sidecar, or the way to it.
    PipeLost, "PIPE_LOST", Unavailable;
    /// The writer of a message of a pipe has taken it back, or gave up, after it was shown; the pipe goes on.
    MessageWithdrawn, "MESSAGE_WITHDRAWN", FailedPrecondition;
    /// The ring of a channel says what cannot be.
    MessageDamaged, "MESSAGE_DAMAGED", DataLoss;
    /// As many messages are held as the reader may hold at a time.
    HoldLimit, "HOLD_LIMIT", FailedPrecondition;
    /// A dtype that this release does not know.
    DTypeUnknown, "DTYPE_UNKNOWN", InvalidArgument;
    /// Dtype, shape, strides and byte count disagree.
    LayoutMismatch, "LAYOUT_MISMATCH", InvalidArgument;
    /// A selection reaches outside the tensor, or cuts a byte.
    SelectionOutOfRange, "SELECTION_OUT_OF_RANGE", InvalidArgument;
    /// A part of the request is larger than is ever allowed: a key, a list, a message, a tensor.
    TooLarge, "TOO_LARGE", InvalidArgument;
    /// Something countable is used up for now: tensors, leases of a holder, requests in flight.
    LimitExceeded, "LIMIT_EXCEEDED", ResourceExhausted;
    /// A text that is no reference.
    ReferenceMalformed, "REFERENCE_MALFORMED", InvalidArgument;
    /// The reference belongs to another exchange.
    WrongExchange, "WRONG_EXCHANGE", PermissionDenied;
    /// The tensor is still being written.
    NotSealed, "NOT_SEALED", FailedPrecondition;
    /// The tensor is sealed and can no longer be written, sealed or aborted.
    AlreadySealed, "ALREADY_SEALED", FailedPrecondition;
    /// The reservation is being written in another way: through the map of its session, or by another Fill.
    NotYours, "NOT_YOURS", PermissionDenied;
    /// The tensor, set or name belongs to another peer; ask that one.
    NotOwned, "NOT_OWNED", FailedPrecondition;
    /// Nothing would keep the tensor: no session, no ticket, no name.
    WouldVanish, "WOULD_VANISH", FailedPrecondition;
    /// The retry id was used before, for something else.
    RetryMismatch, "RETRY_MISMATCH", InvalidArgument;
    /// No allowed route meets what was required.
    RequirementNotMet, "REQUIREMENT_NOT_MET", FailedPrecondition;
    /// The tensor lies in GPU memory, and nobody brings its bytes to who asked.
    NoGpuProcess, "NO_GPU_PROCESS", FailedPrecondition;
    /// The process that copies the tensor out of GPU memory stands still, and there is no other.
    StagerStalled, "STAGER_STALLED", Unavailable;
    /// The tensor could not be copied out of GPU memory.
    StagingFailed, "STAGING_FAILED", Unavailable;
    /// The arena is full for now; the details say how much is free and who holds the most.
    ArenaFull, "ARENA_FULL", ResourceExhausted;
    /// The tensor is larger than the arena can ever take.
    NeverFits, "NEVER_FITS", ResourceExhausted;
    /// The incarnation that owned the tensor is gone, and the tensor with it.
    OwnerLost, "OWNER_LOST", Unavailable;
    /// The peer is known, but no transport reaches it now.
    PeerUnreachable, "PEER_UNREACHABLE", Unavailable;
    /// No peer of that name is in the exchange.
    PeerUnknown, "PEER_UNKNOWN", NotFound;
    /// Several peers own that name; say which one is meant.
    AmbiguousName, "AMBIGUOUS_NAME", FailedPrecondition;
    /// The caller's deadline was over first.
    DeadlineExceeded, "DEADLINE_EXCEEDED", DeadlineExceeded;
    /// The caller gave up.
    Cancelled, "CANCELLED", Cancelled;
    /// The bytes are not those that were sealed.
    ChecksumMismatch, "CHECKSUM_MISMATCH", DataLoss;
    /// The call needs a session.
    SessionRequired, "SESSION_REQUIRED", FailedPrecondition;
    /// No more sessions are taken.
    SessionLimit, "SESSION_LIMIT", ResourceExhausted;
    /// The ticket's uses are spent, or its time is over.
    TicketSpent, "TICKET_SPENT", FailedPrecondition;
    /// The peer is going away and takes nothing new.
    Draining, "DRAINING", Unavailable;
    /// The request is wrong in a way that has no reason of its own.
    InvalidArgument, "INVALID_ARGUMENT", InvalidArgument;
    /// The call asks for what this peer, transport or release cannot do.
    Unsupported, "UNSUPPORTED", Unimplemented;
    /// A mistake of ours.
    Internal, "INTERNAL", Internal;
}

impl Reason {
    /// Returns whether the same call may succeed later without anyone changing it.
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Reason::ArenaFull
                | Reason::LimitExceeded
                | Reason::SessionLimit
                | Reason::PeerUnreachable
                | Reason::NotSealed
                | Reason::Draining
                | Reason::DeadlineExceeded
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no reason of this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a reason that this release knows")]
pub struct UnknownReason;

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(word: &str) -> Result<Reason, UnknownReason> {
        Reason::by_word(word).ok_or(UnknownReason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_found_again_by_its_word() {
        for &reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert_eq!("not_found".parse::<Reason>(), Err(UnknownReason));
    }

    #[test]
    fn every_code_is_found_again_by_its_number() {
        for &code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), code);
        }
        assert_eq!(Code::from_number(0), Code::Unknown);
        assert_eq!(Code::from_number(17), Code::Unknown);
    }
}
