//! The numbers that name things in the ledger. Each is a type of its own, so that two of them cannot be swapped.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A tensor of this peer in this incarnation: the slot in the low 32 bits, the slot's generation in the high 32.
///
/// Never used again within an incarnation: a slot whose generation would wrap is retired.
/// Generations start at 1, so that no tensor has the id 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u64);

impl TensorId {
    pub(super) const fn new(generation: u32, slot: u32) -> Self {
        Self((generation as u64) << 32 | slot as u64)
    }

    pub(super) const fn slot(self) -> u32 {
        self.0 as u32
    }

    pub(super) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Slot and generation, as `slot.generation`.
impl fmt::Debug for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorId({}.{})", self.slot(), self.generation())
    }
}

/// The number that stands in its reference: whoever reads of it finds it there.
impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A session of a workload with this sidecar. Made by the sidecar, never by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Another peer, as this sidecar numbers the incarnations it has met. Made by the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerSlot(pub u64);

/// Holder of leases and reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A workload of this pod.
    Session(SessionId),
    /// Another peer of the exchange.
    Peer(PeerSlot),
    /// A published set, by its manifest: it holds its leaves.
    Manifest(TensorId),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(SessionId(n)) => write!(f, "session {n}"),
            Self::Peer(PeerSlot(n)) => write!(f, "peer {n}"),
            Self::Manifest(id) => write!(f, "the set of manifest {id}"),
        }
    }
}

/// Made by a client for one request, and sent again with every repeat of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryId(pub [u8; 16]);

/// A request that may be repeated: its id, and what it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Retry {
    /// The client's id of the request.
    pub id: RetryId,
    /// A digest of all that the request asks for, made by the caller: a repeat has the same one. The ledger compares it
    /// and reads nothing out of it.
    pub asked: u64,
}

/// A ticket's secret: whoever knows it may redeem it. Random, from the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u128);

/// Shows the last 16 bits only: a ticket in a log is a ticket lost.
impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketId(…{:04x})", self.0 as u16)
    }
}

/// Milliseconds of a monotonic clock, or a length of time. The ledger has no clock: the caller says what time it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The end of time: a deadline that is never met in practice.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time this long after, or the end of time.
    #[must_use]
    pub const fn after(self, length: Self) -> Self {
        Self(self.0.saturating_add(length.0))
    }
}

/// Origin of a copy: a tensor of another peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The name of the peer that owns the tensor.
    pub peer: Arc<str>,
    /// The incarnation of that peer.
    pub incarnation: u128,
    /// The tensor's id in that incarnation.
    pub id: u64,
    /// Set if it is the tensor where it lies in GPU memory, and no copy in host memory: both may be here.
    pub on_gpu: bool,
}

impl Hash for Origin {
    /// Not of the name: an incarnation is of one peer.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.incarnation, self.id).hash(state);
    }
}
