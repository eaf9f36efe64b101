//! Events that may happen to a ledger, what it answers, and what the caller must then do.

use std::num::NonZeroU32;

use super::{Holder, Millis, Origin, Retry, TensorId, TensorName, TicketId};

/// Something that happened or is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Room for a new tensor. Without `by`, whoever knows the id may seal it, and only [`Event::Abort`] ends it otherwise.
    Reserve {
        /// Holder that writes it: the reservation ends with this holder.
        by: Option<Holder>,
        /// Bytes of the tensor; zero is fine.
        bytes: u64,
        /// The client's id of this request, and what it asked for.
        retry: Option<Retry>,
    },
    /// The bytes are there and final. Kept by at least one of lease, name, ticket, else refused.
    Seal {
        /// The reserving holder.
        by: Option<Holder>,
        /// The reservation.
        id: TensorId,
        /// Keeper of it from now on.
        keep: Keep,
        /// The client's id of this request, and what it asked for.
        retry: Option<Retry>,
    },
    /// A reservation is given up.
    Abort {
        /// The reserving holder.
        by: Option<Holder>,
        /// The reservation.
        id: TensorId,
    },
    /// A further lease.
    Lease {
        /// Holder of the lease.
        by: Holder,
        /// A sealed tensor.
        id: TensorId,
    },
    /// Leases are given back.
    Release {
        /// Holder of the leases until now.
        by: Holder,
        /// The tensor.
        id: TensorId,
        /// Number of leases.
        count: u64,
    },
    /// A sealed tensor gets a (further) name.
    Name {
        /// The tensor.
        id: TensorId,
        /// The name and what it may replace.
        name: NameSpec,
    },
    /// Sealed tensors get (further) names, and names end: all of them, or none.
    NameTogether {
        /// The tensors, each with a name and what it may replace. Without a tensor the name ends.
        items: Vec<(Option<TensorId>, NameSpec)>,
    },
    /// The holder gets one more lease for each name that begins so: for all of them, or for none.
    LeaseNames {
        /// Holder of the leases.
        by: Holder,
        /// The beginning of the names.
        prefix: String,
        /// Most names; more are refused.
        most: usize,
    },
    /// A name ends.
    Unname {
        /// The name.
        name: TensorName,
    },
    /// A set becomes the next version of its name: all of it or nothing.
    Publish(Publication),
    /// A sealed tensor gets a (further) ticket.
    IssueTicket {
        /// The tensor.
        id: TensorId,
        /// The ticket.
        spec: TicketSpec,
    },
    /// A use of a ticket is turned into a lease.
    Redeem {
        /// The ticket.
        ticket: TicketId,
        /// Holder that gets the lease.
        by: Holder,
        /// The client's id of this request, and what it asked for.
        retry: Option<Retry>,
    },
    /// A copy of another peer's tensor is complete. It is sealed at once and leased by `by`.
    CopyIn {
        /// Origin that it is a copy of.
        origin: Origin,
        /// Bytes of the tensor.
        bytes: u64,
        /// Holder that wanted it.
        by: Holder,
        /// The bytes are still their owner's, and only mapped here: freed the moment nobody leases them, for the owner
        /// cannot reuse them before.
        mapped: bool,
    },
    /// Free copies that nobody leases, longest idle first, until this many bytes are free or no such copy is left.
    Evict {
        /// Bytes wanted.
        bytes: u64,
    },
    /// A copy is of no use any more: freed now where nobody leases it, else with its last lease. Nothing for what is no copy.
    EndCopy {
        /// The copy.
        id: TensorId,
    },
    /// A holder is no more: all its leases and reservations end now. Nothing may be asked in its name afterwards.
    HolderGone {
        /// The holder.
        holder: Holder,
    },
    /// A holder's connection is lost: unless it is back by then, it is gone.
    /// What is asked in its name meanwhile (requests on their way) ends with it too.
    HolderAway {
        /// The holder.
        holder: Holder,
        /// Time at which its leases and reservations end.
        until: Millis,
    },
    /// Return of a holder that was away, in its incarnation.
    HolderBack {
        /// The holder.
        holder: Holder,
    },
    /// Time has passed. Every other event settles what is due before it as well.
    Tick,
}

/// Keeper of a tensor when it is sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// A lease of the reserving holder.
    pub lease: bool,
    /// A name.
    pub name: Option<NameSpec>,
    /// A ticket.
    pub ticket: Option<TicketSpec>,
}

/// A name to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSpec {
    /// The name.
    pub name: TensorName,
    /// The tensor that must have it now (compare and swap). Without it, the name must be free.
    pub replaces: Option<TensorId>,
}

/// A set to publish. From then on its leaves live as long as its manifest, which two names keep: its own and its version's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The tensor that says what the set consists of. It must not have been published before.
    pub manifest: TensorId,
    /// The tensors of the set: of this peer, and no manifests. One may stand there twice.
    pub leaves: Vec<TensorId>,
    /// The name: free, or that of an earlier version.
    pub name: TensorName,
    /// Version that the name gets: one more than its latest one, 1 if there is none (compare and swap).
    pub version: u64,
    /// Versions that keep their name, this one included; 0 means 1.
    pub keep: u32,
}

/// A ticket to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketSpec {
    /// Random id of the ticket.
    pub id: TicketId,
    /// Time for which it is good, from now; zero is refused.
    pub ttl: Millis,
    /// Number of times that it can be redeemed.
    pub uses: NonZeroU32,
}

impl TicketSpec {
    /// A ticket for one use.
    #[must_use]
    pub const fn once(id: TicketId, ttl: Millis) -> Self {
        Self { id, ttl, uses: NonZeroU32::MIN }
    }
}

/// Outcome of an event. `again` says that this is the answer of an earlier request with the same retry id, and that
/// nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Room is there. With `again`, the tensor may be sealed by now: ask for its state.
    Reserved {
        /// The new tensor.
        id: TensorId,
        /// An earlier answer.
        again: bool,
    },
    /// The tensor is sealed.
    Sealed {
        /// The tensor.
        id: TensorId,
        /// The ticket made when it was sealed: with `again`, the first one, not the one in this request.
        ticket: Option<TicketId>,
        /// An earlier answer.
        again: bool,
    },
    /// The reservation has ended.
    Aborted,
    /// The holder has one more lease.
    Leased {
        /// Leases of this tensor that the holder has now.
        held: u64,
    },
    /// The holder has fewer leases.
    Released {
        /// Leases of this tensor that the holder has now.
        held: u64,
    },
    /// The name is given.
    Named {
        /// Tensor that had it before.
        replaced: Option<TensorId>,
    },
    /// The names are given.
    NamedTogether,
    /// The holder has one more lease for each of these.
    NamesLeased {
        /// The names in order, and their tensors.
        names: Vec<(TensorName, TensorId)>,
    },
    /// The name has ended.
    Unnamed {
        /// Tensor that had it.
        id: TensorId,
    },
    /// The set is the latest version of its name.
    Published {
        /// Number of the version.
        version: u64,
    },
    /// The ticket is good.
    TicketIssued {
        /// Until when.
        deadline: Millis,
    },
    /// The redeemer has a lease.
    Redeemed {
        /// Of this tensor.
        id: TensorId,
        /// An earlier answer.
        again: bool,
    },
    /// The copy is in the ledger, and leased.
    CopiedIn {
        /// Id of the copy here.
        id: TensorId,
    },
    /// Idle copies were freed.
    Evicted {
        /// Number of tensors.
        tensors: u64,
        /// Bytes of those tensors: fewer than wanted if nothing else was idle.
        bytes: u64,
    },
    /// Noted.
    Done,
}

/// Action that the caller must take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Freed tensor, gone for every caller. Said exactly once for each. Its block may be reused as soon as nobody maps
    /// it.
    Freed {
        /// The tensor.
        id: TensorId,
        /// Bytes of the tensor.
        bytes: u64,
        /// Cause that ended it.
        cause: Cause,
    },
}

/// Cause that took the last thing that kept a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The writer gave up.
    Aborted,
    /// The last lease was released.
    Released,
    /// The last name ended.
    Unnamed,
    /// The last name went to another tensor.
    Replaced,
    /// The last ticket ran out of time.
    TicketExpired,
    /// The holder of the last lease, or of the reservation, is gone.
    HolderGone,
    /// The peer with the last lease did not come back in time.
    PeerLost,
    /// A copy made room.
    Evicted,
    /// A copy had no lease for too long.
    CopyIdle,
}

impl Cause {
    /// Every cause, for metrics that start at zero.
    pub const ALL: [Self; 9] = [
        Self::Aborted,
        Self::Released,
        Self::Unnamed,
        Self::Replaced,
        Self::TicketExpired,
        Self::HolderGone,
        Self::PeerLost,
        Self::Evicted,
        Self::CopyIdle,
    ];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Aborted => "aborted",
            Self::Released => "released",
            Self::Unnamed => "unnamed",
            Self::Replaced => "replaced",
            Self::TicketExpired => "ticket_expired",
            Self::HolderGone => "holder_gone",
            Self::PeerLost => "peer_lost",
            Self::Evicted => "evicted",
            Self::CopyIdle => "copy_idle",
        }
    }
}
