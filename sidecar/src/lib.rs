//! The process beside the pod that keeps and moves tensors.
//!
//! ```text
//!   session ---.                          .--- store --- arena (memory)
//!   (socket)   |--> exchange (the verbs) -|
//!   grpc ------'                          '--- peer  --- TLS to other sidecars
//!
//!   app wires them; config, metrics, admin, logging, identity and directory stand beside
//! ```

pub mod admin;
pub mod app;
pub mod backoff;
pub mod cancel;
pub mod clock;
pub mod config;
pub mod directory;
pub mod exchange;
pub mod gate;
pub mod grpc;
pub mod hashes;
pub mod identity;
pub mod logging;
pub mod metrics;
mod no_descriptor;
pub mod output_budget;
pub mod peer;
mod plain;
mod results;
mod seldom;
pub mod session;
mod socket;
pub mod store;
pub mod sums;
pub mod threads;
pub mod waiters;
pub mod workers;

/// Measures what decoders take of the heap.
#[cfg(test)]
#[global_allocator]
static METERING: tensorlane_memory::heap::MeteringAllocator = tensorlane_memory::heap::MeteringAllocator;
