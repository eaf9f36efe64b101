//! The words of Tensorlane, and the rules that need no machine.
//!
//! A *peer* keeps *tensors*; a *workload* puts them, hands out *references* and gets them anywhere in the
//! *exchange*. This crate says what those words mean: what a tensor is (dtype, shape, strides, byte length,
//! proven to agree when the value is made), which bytes a selection names, how a reference is written, what may
//! go wrong and what it is called, and which transport two peers choose, with the reasons why not a better one.
//!
//! Nothing here touches memory, sockets or clocks, and nothing is unsafe: the caller says what there is and what
//! happened, and gets a value back. That is why every rule can be tested by the million.
//!
//! ```text
//!   dtype ─┐
//!   shape ─┼─> layout ──┬─> descriptor ─────────> reserve, put
//!  strides ┘            ├─> selection.resolve ──> runs of bytes to map, gather or send
//!                       └─> reference ──────────> a small string, from anywhere to the owner
//!   offer + offer + policy + measured ──negotiate──> route, or no route: either says why
//! ```
//!
//! Goals: a value that exists is valid; an error names what was wrong and what to do; limits stand beside what
//! they limit. Non-goals: moving bytes (the sidecar's transports), keeping them (the `memory` crate).

pub mod allowed;
pub mod channel;
pub mod checksum;
#[cfg(feature = "grpc")]
pub mod codec;
#[cfg(feature = "crd")]
pub mod crd;
pub mod decoded;
pub mod descriptor;
pub mod device;
pub mod dtype;
pub mod encoded;
pub mod failure;
pub mod frame;
pub mod generated;
pub mod identity;
pub mod layout;
pub mod ledger;
pub mod negotiate;
pub mod reference;
pub mod revision;
pub mod rows;
pub mod selection;
#[cfg(feature = "set")]
pub mod set;
pub mod text;
pub mod wire;

pub use allowed::AllowedPeers;
pub use descriptor::{Descriptor, Metadata};
pub use device::Device;
pub use dtype::DType;
pub use failure::{Code, Failure, Reason};
pub use identity::{ExchangeName, Fingerprint, Incarnation, PeerName};
pub use layout::{Layout, MAX_TENSOR_BYTES, Shape, Strides};
pub use negotiate::{Offer, Policy, Require, Route, Transport, negotiate};
pub use reference::Reference;
pub use revision::Revision;
pub use selection::{Range, Resolved, Selection};
