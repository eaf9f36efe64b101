//! Reasons for which an event was refused. A refused event has changed nothing.

use super::{Holder, Millis, Origin, TensorId, TensorName};

/// Reason of a refusal, with the value that was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Never was, or is freed: the two are one to every caller.
    #[error(
        "tensor {id} does not exist (any more): a reference keeps nothing, a lease, a name or a ticket does"
    )]
    NotFound {
        /// Tensor that was asked for.
        id: TensorId,
    },
    /// Invisible until sealed.
    #[error("tensor {id} is not sealed yet")]
    NotSealed {
        /// The reservation.
        id: TensorId,
    },
    /// Sealed tensors are final.
    #[error("tensor {id} is already sealed")]
    AlreadySealed {
        /// The tensor.
        id: TensorId,
    },
    /// Only the reserving holder may seal or abort.
    #[error("the reservation {id} belongs to another holder")]
    NotYours {
        /// The reservation.
        id: TensorId,
    },
    /// Names and tickets are given by the peer that owns the tensor.
    #[error("tensor {id} is a copy: ask {} for a name or a ticket", origin.peer)]
    NotOwned {
        /// The copy.
        id: TensorId,
        /// Origin that it is a copy of.
        origin: Origin,
    },
    /// Nothing would keep it.
    #[error("tensor {id} would be freed at once: seal it with a lease, a name or a ticket")]
    WouldVanish {
        /// The reservation.
        id: TensorId,
    },
    /// A lease needs someone who holds it.
    #[error("the reservation {id} has no holder to lease it to: seal it with a name or a ticket")]
    NoHolder {
        /// The reservation.
        id: TensorId,
    },
    /// More was released than held.
    #[error("{by} holds {held} leases of tensor {id} and cannot release {asked}")]
    NotHeld {
        /// The tensor.
        id: TensorId,
        /// The holder.
        by: Holder,
        /// Number that it holds.
        held: u64,
        /// Number that it wanted to release.
        asked: u64,
    },
    /// Somebody has this name.
    #[error("the name {name} is taken by tensor {by}: choose another, or replace it")]
    NameTaken {
        /// The name.
        name: TensorName,
        /// Tensor that has it.
        by: TensorId,
    },
    /// The name is not where the request thought it was.
    #[error(
        "the name {name} was to be taken from another tensor than the one that has it now: look it up and ask again"
    )]
    NameChanged {
        /// The name.
        name: TensorName,
        /// Tensor that has it now.
        now: Option<TensorId>,
    },
    /// Another version was published meanwhile.
    #[error(
        "version {asked} of {name} cannot be published: the latest is {latest}; publish again on top of that one"
    )]
    VersionChanged {
        /// The set's name.
        name: TensorName,
        /// The latest version that has a name; 0 where there is none.
        latest: u64,
        /// The version that was to be published.
        asked: u64,
    },
    /// A manifest is published once.
    #[error("tensor {id} is the manifest of a set that was published already: put another manifest")]
    ManifestPublished {
        /// The manifest.
        id: TensorId,
    },
    /// Sets have tensors as leaves.
    #[error("tensor {id} is a manifest and cannot be a leaf of a set: take the leaves that it names")]
    LeafIsManifest {
        /// The leaf.
        id: TensorId,
    },
    /// Versions are named by their set.
    #[error("{name} is the name of a version: publish the set under the name before the @")]
    NameIsVersion {
        /// The name.
        name: TensorName,
    },
    /// No room for the number of the version.
    #[error(
        "the name {name} is too long for a set: with the mark and the number of a version it may have 512 bytes"
    )]
    NameTooLong {
        /// The set's name.
        name: TensorName,
    },
    /// Nobody has this name.
    #[error("nothing is named {name}; `tensorlane ls` (List) shows the names of a peer")]
    NameUnknown {
        /// The name.
        name: TensorName,
    },
    /// A name can be given once in one step.
    #[error("the name {name} is given twice in one step: give each name once")]
    NameTwice {
        /// The name.
        name: TensorName,
    },
    /// More names than are leased in one step.
    #[error(
        "more than {most} names begin with {prefix:?}, and at most {most} are leased in one step: ask for a longer prefix"
    )]
    TooManyBelow {
        /// The beginning of the names.
        prefix: String,
        /// Most names that are leased in one step.
        most: usize,
    },
    /// A ticket without any time.
    #[error("a ticket needs a time to live of at least 1 ms")]
    TicketWithoutTime,
    /// Ticket id that is in use: the caller's randomness repeats itself.
    #[error("a ticket with this id is there already: draw another")]
    TicketTaken,
    /// Never was, spent or expired.
    #[error("the ticket does not exist, is spent or has expired: ask for a new one")]
    TicketUnknown,
    /// A copy of this is here already.
    #[error("tensor {id} is a copy of the same tensor: lease that one")]
    CopyExists {
        /// The copy.
        id: TensorId,
    },
    /// A retry id stands for one request, by one holder.
    #[error("this retry id was used for another request ({first}): use a new one")]
    RetryMismatch {
        /// [`RetryKind::as_str`](super::RetryKind::as_str) of what it was used for: no more, it may be another's.
        first: &'static str,
    },
    /// The lease that the first request gave is given back; a ticket is not used twice by one redeemer.
    #[error("the lease of tensor {id} that this request gave has ended since: make a new request")]
    RetryLapsed {
        /// The tensor.
        id: TensorId,
    },
    /// The ledger is full.
    #[error("the limit of {limit} tensors (limits.tensors) is reached: release some, or raise it")]
    TooManyTensors {
        /// [`Limits::tensors`](super::Limits::tensors).
        limit: usize,
    },
    /// The tables of the ledger are full.
    #[error(
        "the tables of tensors, leases, names and tickets would take {bytes} bytes, and may take {limit} (a quarter of \
         arena.base): release or unname some, or raise arena.base"
    )]
    TablesTooLarge {
        /// Bytes that they would take.
        bytes: u64,
        /// [`Limits::table_bytes`](super::Limits::table_bytes), or what leases leave of it to tensors, names and tickets.
        limit: u64,
    },
    /// Bytes of all tensors are counted in 64 bits.
    #[error("{bytes} more bytes cannot be counted")]
    TooManyBytes {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// Too many hold something.
    #[error("the limit of {limit} holders is reached: end sessions that are not needed")]
    TooManyHolders {
        /// [`Limits::holders`](super::Limits::holders).
        limit: usize,
    },
    /// Holder that holds too much.
    #[error("{by} has reached the limit of {limit} leases and reservations: release some")]
    TooManyLeases {
        /// The holder.
        by: Holder,
        /// [`Limits::leases_per_holder`](super::Limits::leases_per_holder).
        limit: u64,
    },
    /// All names are given.
    #[error("the limit of {limit} names (limits.names) is reached: unname some, or raise it")]
    TooManyNames {
        /// [`Limits::names`](super::Limits::names).
        limit: usize,
    },
    /// All tickets are out.
    #[error("the limit of {limit} tickets (limits.tickets) is reached: give them shorter lives, or raise it")]
    TooManyTickets {
        /// [`Limits::tickets`](super::Limits::tickets).
        limit: usize,
        /// The earliest deadline of a ticket.
        next: Option<Millis>,
    },
}

impl Refusal {
    /// The reason as a stable word, for metrics and error details.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "NOT_FOUND",
            Self::NotSealed { .. } => "NOT_SEALED",
            Self::AlreadySealed { .. } => "ALREADY_SEALED",
            Self::NotYours { .. } => "NOT_YOURS",
            Self::NotOwned { .. } => "NOT_OWNED",
            Self::WouldVanish { .. } => "WOULD_VANISH",
            Self::NoHolder { .. } => "NO_HOLDER",
            Self::NotHeld { .. } => "NOT_HELD",
            Self::NameTaken { .. } => "NAME_TAKEN",
            Self::NameChanged { .. } => "NAME_CHANGED",
            Self::NameUnknown { .. } => "NAME_UNKNOWN",
            Self::VersionChanged { .. } => "VERSION_CHANGED",
            Self::ManifestPublished { .. } => "MANIFEST_PUBLISHED",
            Self::LeafIsManifest { .. } => "LEAF_IS_MANIFEST",
            Self::NameIsVersion { .. } => "NAME_IS_VERSION",
            Self::NameTooLong { .. } => "NAME_TOO_LONG",
            Self::NameTwice { .. } => "NAME_TWICE",
            Self::TooManyBelow { .. } => "TOO_MANY_BELOW",
            Self::TicketWithoutTime => "TICKET_WITHOUT_TIME",
            Self::TicketTaken => "TICKET_TAKEN",
            Self::TicketUnknown => "TICKET_UNKNOWN",
            Self::CopyExists { .. } => "COPY_EXISTS",
            Self::RetryMismatch { .. } => "RETRY_MISMATCH",
            Self::RetryLapsed { .. } => "RETRY_LAPSED",
            Self::TooManyTensors { .. } => "TOO_MANY_TENSORS",
            Self::TablesTooLarge { .. } => "TABLES_TOO_LARGE",
            Self::TooManyBytes { .. } => "TOO_MANY_BYTES",
            Self::TooManyHolders { .. } => "TOO_MANY_HOLDERS",
            Self::TooManyLeases { .. } => "TOO_MANY_LEASES",
            Self::TooManyNames { .. } => "TOO_MANY_NAMES",
            Self::TooManyTickets { .. } => "TOO_MANY_TICKETS",
        }
    }
}
