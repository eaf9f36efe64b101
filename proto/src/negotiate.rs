//! Choice of the way that bytes go between two peers, and the reasons against a better one.
//!
//! Two offers, what is to be moved, a policy and what was measured go in; a [`Route`] or a [`NoRoute`] comes out, and
//! either explains itself. The function is pure, and symmetric in the two offers: both ends of a pair come to the
//! same answer on their own. It opens nothing and trusts nothing that an offer says of itself: that two peers share
//! a node or that a transport works is measured, by a handshake and a probe, and comes in as [`Measured`].
//!
//! The order is fixed: `local`, then `shm` (host) or `cuda_ipc` (GPU), then `tcp` and `quic`. The first candidate
//! with nothing against it is taken; what spoke against each one before it is the list of refusals. `tcp` comes
//! before `quic`, unless the policy or the measurement says otherwise.

use std::fmt;

mod choose;
mod measured;
mod offer;
mod policy;
mod release;
mod require;
mod standing;

pub use choose::{GOODPUT_ADVANTAGE_PERCENT, negotiate};
pub use measured::{Measured, SameNode};
pub use offer::{NodeToken, Offer, Transport, TransportOffer, TransportSet, VersionRange};
pub use policy::{Encryption, Policy};
pub use release::{own_up, owned_up};
pub use require::Require;
pub use standing::{Candidate, Passed, Standing, candidates};

use crate::device::Device;
use crate::selection::SelectionKind;

/// Tensor that is to be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct What {
    /// The bytes of the selection.
    pub bytes: u64,
    /// Device on which the tensor lies.
    pub device: Device,
    /// The kind of the selection.
    pub selection: SelectionKind,
    /// Requirement that the caller insists on.
    pub require: Require,
}

/// Reason for which a transport is not the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The peers share no version of the protocol.
    NoCommonVersion,
    /// Not both peers offer it.
    NotOffered,
    /// The exchange does not allow it, or prefers another.
    Policy,
    /// The peers are on different nodes.
    OtherNode,
    /// Nobody has proven yet that the peers are on one node.
    NodeUnproven,
    /// The sidecars of the node have no directory to find each other in, or this one is not told of it.
    NoSocketDir,
    /// Transport that failed lately and is not tried again yet.
    Cooldown,
    /// The owner lends this peer no more memory than it has lent already.
    LentFull,
    /// The memory that the owner gave was not what it said, or could not be read safely.
    SegmentRefused,
    /// GPU that not both peers reach, though both have processes that reach some: the one that the tensor is on.
    OtherGpu,
    /// Lack of a process that reaches a GPU, at one of the two.
    NoGpuProcess,
    /// Transport that does not carry the memory that the tensor is in.
    NotSupported,
    /// Neither peer has an address for it that the other reaches.
    NoAddress,
    /// Required: not a byte copied.
    NotZeroCopy,
    /// Required: the same node.
    NotSameNode,
    /// Required: encrypted.
    NotEncrypted,
    /// Measured to be slower than the one that was taken.
    Slower,
    /// Not both were measured, and the one that was taken is in use, or is tried so that they can be compared.
    NotCompared,
}

impl Why {
    /// The label in replies and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Why::NoCommonVersion => "no_common_version",
            Why::NotOffered => "not_offered",
            Why::Policy => "policy",
            Why::OtherNode => "other_node",
            Why::NodeUnproven => "node_unproven",
            Why::NoSocketDir => "no_socket_dir",
            Why::Cooldown => "cooldown",
            Why::LentFull => "lent_full",
            Why::SegmentRefused => "segment_refused",
            Why::OtherGpu => "other_gpu",
            Why::NoGpuProcess => "no_gpu_process",
            Why::NotSupported => "not_supported",
            Why::NoAddress => "no_address",
            Why::NotZeroCopy => "not_zero_copy",
            Why::NotSameNode => "not_same_node",
            Why::NotEncrypted => "not_encrypted",
            Why::Slower => "slower",
            Why::NotCompared => "not_compared",
        }
    }

    /// Returns whether the caller's own requirement spoke against it.
    pub const fn is_requirement(self) -> bool {
        matches!(self, Why::NotZeroCopy | Why::NotSameNode | Why::NotEncrypted)
    }
}

/// `other_node`
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transport that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// Transport that was not taken.
    pub transport: Transport,
    /// Reason of the refusal.
    pub why: Why,
}

/// `not shm: other_node`
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {}: {}", self.transport, self.why)
    }
}

/// The transport for one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The transport.
    pub transport: Transport,
    /// The version of the protocol: the newest that both speak.
    pub version: u16,
    /// True if no byte is copied between the block and the reader's map.
    pub zero_copy: bool,
    /// Every better transport, and why it is not that one.
    pub refusals: Vec<Refusal>,
}

/// `tcp, not shm: other_node`
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.transport.fmt(f)?;
        self.refusals.iter().try_for_each(|refusal| write!(f, ", {refusal}"))
    }
}

/// Absence of any route, with the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoute {
    /// Every transport that came into question.
    pub refusals: Vec<Refusal>,
}

impl NoRoute {
    /// Returns whether waiting may help: something that was fit failed lately, or is not proven yet, and no requirement
    /// is what speaks against the others.
    pub fn is_transient(&self) -> bool {
        let passing =
            |why| matches!(why, Why::Cooldown | Why::LentFull | Why::SegmentRefused | Why::NodeUnproven);
        self.refusals.iter().any(|refusal| passing(refusal.why))
            && !self.refusals.iter().any(|refusal| refusal.why.is_requirement())
    }
}

/// `no route: not shm: other_node, not tcp: not_zero_copy`
impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no route")?;
        self.refusals.iter().enumerate().try_for_each(|(position, refusal)| {
            write!(f, "{}{refusal}", if position == 0 { ": " } else { ", " })
        })
    }
}

impl std::error::Error for NoRoute {}

#[cfg(test)]
mod tests;
