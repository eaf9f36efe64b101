//! Knowledge of a pair of peers because it was tried.

use super::{Transport, TransportSet, Why};

/// Answer whether two peers are on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SameNode {
    /// Not tried yet.
    #[default]
    Unknown,
    /// A handshake over the node's socket has proven it.
    Proven,
    /// The handshake could not be made.
    Refuted,
}

/// Results of what was tried and measured between two peers. Plain numbers: whoever keeps them has the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Answer whether they are on one node.
    pub same_node: SameNode,
    /// The transports that failed lately and are not to be tried now.
    pub cooling: TransportSet,
    /// Reason for which `shm` is among them, where more is known than that it failed.
    pub unshared: Option<Why>,
    /// The transports that the two offer and have found out that they do not have with each other.
    pub absent: TransportSet,
    /// The transports for which neither has an address that the other reaches.
    pub unreached: TransportSet,
    /// Goodput over `tcp`, bytes a second, where measured.
    pub tcp_goodput: Option<f64>,
    /// Goodput over `quic`, bytes a second, where measured.
    pub quic_goodput: Option<f64>,
    /// `tcp` or `quic`, whichever the pair uses now: the other has to be clearly faster to replace it.
    pub current: Option<Transport>,
}

impl Measured {
    /// The goodput of a transport, bytes a second.
    pub const fn goodput(&self, transport: Transport) -> Option<f64> {
        match transport {
            Transport::Tcp => self.tcp_goodput,
            Transport::Quic => self.quic_goodput,
            Transport::Local | Transport::Shm | Transport::CudaIpc => None,
        }
    }
}
