//! Offer of what a peer can speak.

use std::fmt;
use std::str::FromStr;

use crate::identity::{Incarnation, PeerName};
use crate::negotiate::Require;

/// Way by which bytes get from one peer to another, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Own sidecar: mapped, no copy.
    Local,
    /// Node in common: a descriptor is passed and mapped, no copy.
    Shm,
    /// GPU in common: a handle is passed and mapped, no copy.
    CudaIpc,
    /// Any two peers, over TLS or plain lanes.
    Tcp,
    /// Any two peers, many streams in one encrypted connection.
    Quic,
}

impl Transport {
    /// Every transport, the best first.
    pub const ALL: [Transport; 5] =
        [Transport::Local, Transport::Shm, Transport::CudaIpc, Transport::Tcp, Transport::Quic];

    /// The label in replies, metrics and configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Transport::Local => "local",
            Transport::Shm => "shm",
            Transport::CudaIpc => "cuda_ipc",
            Transport::Tcp => "tcp",
            Transport::Quic => "quic",
        }
    }

    /// Returns whether it leaves the bytes on their node.
    pub const fn stays_on_node(self) -> bool {
        matches!(self, Transport::Local | Transport::Shm | Transport::CudaIpc)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that is no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown transport {0:?}; there are local, shm, cuda_ipc, tcp and quic")]
pub struct UnknownTransport(pub String);

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(word: &str) -> Result<Transport, UnknownTransport> {
        let found = Transport::ALL.into_iter().find(|transport| transport.as_str() == word);
        found.ok_or_else(|| UnknownTransport(word.to_owned()))
    }
}

/// A set of transports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransportSet(u8);

impl TransportSet {
    /// None.
    pub const EMPTY: TransportSet = TransportSet(0);
    /// Every one.
    pub const ALL: TransportSet = TransportSet(0b1_1111);

    /// The set with this one in it.
    #[must_use]
    pub const fn with(self, transport: Transport) -> TransportSet {
        TransportSet(self.0 | 1 << transport as u8)
    }

    /// The set with this one not in it.
    #[must_use]
    pub const fn without(self, transport: Transport) -> TransportSet {
        TransportSet(self.0 & !(1 << transport as u8))
    }

    /// Returns whether this one is in it.
    pub const fn contains(self, transport: Transport) -> bool {
        self.0 & 1 << transport as u8 != 0
    }

    /// Transports in it, the best first.
    pub fn iter(self) -> impl Iterator<Item = Transport> {
        Transport::ALL.into_iter().filter(move |&transport| self.contains(transport))
    }
}

impl FromIterator<Transport> for TransportSet {
    fn from_iter<I: IntoIterator<Item = Transport>>(transports: I) -> TransportSet {
        transports.into_iter().fold(TransportSet::EMPTY, TransportSet::with)
    }
}

/// The versions of the protocol that a peer speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VersionRange {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

impl VersionRange {
    /// The newest version that both speak.
    pub fn newest_common(self, other: VersionRange) -> Option<u16> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

/// Something that peers of one node have in common and others most likely do not: a hint whom to try, proof of
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeToken(pub String);

/// A transport of an offer. It is there because the peer has tried that it works on its side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportOffer {
    /// Transport that is offered.
    pub transport: Transport,
    /// Addresses at which it is reached: `host:port` for `tcp` and `quic`. Empty if this peer cannot be called, only
    /// calls.
    pub addresses: Vec<String>,
    /// True if it takes bytes from and to GPU memory by itself. `cuda_ipc` always does.
    pub gpu_memory: bool,
    /// Words of the transport's own, which negotiation does not read.
    pub detail: String,
}

impl TransportOffer {
    /// A transport without an address that carries host memory.
    pub const fn new(transport: Transport) -> TransportOffer {
        TransportOffer { transport, addresses: Vec::new(), gpu_memory: false, detail: String::new() }
    }

    /// Transport that is reached at this address.
    #[must_use]
    pub fn at(mut self, address: impl Into<String>) -> TransportOffer {
        self.addresses.push(address.into());
        self
    }
}

/// Offer of what a peer can speak, as it publishes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Peer that offers.
    pub peer: PeerName,
    /// In which life.
    pub incarnation: Incarnation,
    /// The versions of the protocol.
    pub versions: VersionRange,
    /// The transports, at most one entry each.
    pub transports: Vec<TransportOffer>,
    /// A hint of the node, if the peer may say.
    pub node: Option<NodeToken>,
    /// The UUIDs of the GPUs that the peer or its workloads reach.
    pub gpus: Vec<[u8; 16]>,
    /// Requirement for every route from and to it, whoever asks.
    pub require: Require,
}

impl Offer {
    /// Offer for a transport.
    pub fn transport(&self, transport: Transport) -> Option<&TransportOffer> {
        self.transports.iter().find(|offer| offer.transport == transport)
    }

    /// Returns whether both offers are of one living peer.
    pub fn is_same_peer(&self, other: &Offer) -> bool {
        self.peer == other.peer && self.incarnation == other.incarnation
    }
}
