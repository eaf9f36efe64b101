//! Tensorlane in Kubernetes: which pods get a sidecar, and the objects of exchanges and peers.
//!
//! ```text
//!   pod + namespace + exchanges + defaults + limits ──plan──> inject (patch), skip (why), deny (why, what to do)
//!                                                      │
//!     admission webhook, `tensorlane inject -f` ───────┘            everything that decides is plain data in, plain
//!     reconcile: dereference → validate → build → apply → status    data out; shells fetch, wait and write
//! ```
//!
//! Without the feature `run` there is nothing here that waits: the planner ([`plan()`]), manifests from files
//! ([`offline`]) and the manifests of the installation ([`manifests`]). The operator never sees a tensor.

pub mod abilities;
pub mod annotations;
#[cfg(feature = "run")]
pub mod app;
#[cfg(feature = "run")]
pub mod certs;
#[cfg(feature = "run")]
pub mod directories;
pub mod dns;
pub mod findings;
pub mod inspect;
pub mod manifests;
#[cfg(feature = "run")]
pub mod metrics;
pub mod names;
pub mod offline;
pub mod plan;
pub mod quantity;
#[cfg(feature = "run")]
pub mod reconcile;
#[cfg(feature = "args")]
pub mod sidecar_args;
#[cfg(feature = "run")]
pub mod webhook;

mod nearest;

pub use plan::{Decision, Deny, Facts, Outcome, Plan, Skip, plan};
