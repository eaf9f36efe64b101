//! The objects of Kubernetes: what an exchange is meant to be, and which peers it has.
//!
//! `TensorExchange` is written by people; its status by the operator. `TensorPeer` belongs to a pod: its spec is
//! written by the operator, its status by the sidecar in that pod, and it goes with the pod. Nothing per tensor is ever
//! written here.
//!
//! The schemas in `manifests/crds` are generated from these types (`cargo xtask generate`); what a wrong object is told
//! stands beside the rule. Everything optional is absent where nobody said anything: what holds then is the operator's
//! to decide. Nothing here talks to an API server.

// `KubeSchema` copies each public struct into a function of its own, where nobody reaches it.
#[allow(unreachable_pub)]
mod exchange;
#[allow(unreachable_pub)]
mod peer;
mod readable;
mod words;

pub use exchange::{
    Arena, ExchangeSpec, ExchangeStatus, Gc, Gpu, Inject, Members, Security, SidecarResources,
    SidecarSettings, TensorExchange,
};
pub use peer::{OfferedTransport, POD_IPS_MAX, PeerOffer, PeerSpec, PeerStatus, TensorPeer, is_at_pod};
pub use words::{
    Encryption, GpuMode, LogLevel, Neighbours, Prefer, Requirement, SameNode, TransportKind, UnknownWord,
};

/// The group of all our objects, and the prefix of our annotations and labels.
pub const GROUP: &str = "tensorlane.dev";

/// The most bytes of the name of an exchange: it is the value of a label.
pub const MAX_EXCHANGE_NAME_BYTES: usize = 63;

/// The exchange of a pod that names none.
pub const DEFAULT_EXCHANGE: &str = "default";

#[cfg(test)]
mod tests;
