//! The leader's work: what exchanges, peers and permissions a namespace should have, and making it so.
//!
//! ```text
//!   watch ──> dereference: what is there, ──> validate: what this ──> build: what to do ──> apply, one
//!     ^       as plain data                   release lacks           (pure)                call each
//!     │                                       (crate::abilities)
//!     └────────────────────────── what was changed is seen again ──────────────────────────────────┘
//! ```
//!
//! A namespace is looked at as a whole whenever something in it changes: nothing is remembered between two looks but which
//! objects failed and rest, each by itself (`schedule`), so
//! an operator that dies in the middle of one leaves nothing that the next look does not see. Objects are applied
//! server-side under one field manager; what belongs to a pod or to the exchanges goes with it, by its owner references.

mod apply;
mod build;
mod controller;
mod dereference;
mod fence;
mod schedule;
mod status;
mod webhooks;

pub use apply::{Applier, ApplyError};
pub use build::{Action, build};
pub use controller::Controller;
pub use dereference::{PodFacts, Scene};
pub use fence::Fence;
pub use webhooks::{GPU_MANAGER, Webhooks, apply_webhooks};

#[cfg(test)]
mod tests;
