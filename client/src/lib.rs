//! The client of Tensorlane: a process's standing with the sidecar of its pod.
//!
//! ```no_run
//! use tensorlane_client::{AcquireOptions, Client, PutOptions};
//! use tensorlane_proto::{DType, Descriptor, Layout, Shape};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::from_env()?;
//! let layout = Layout::contiguous(DType::F32, Shape::new(&[2, 3])?)?;
//! let stored = client.put(&Descriptor::host(layout), &[0; 24], &PutOptions::named("weights"))?;
//! println!("{}", stored.reference()); // a small string that any process of the exchange can acquire
//!
//! let tensor = client.acquire("weights", &AcquireOptions::new())?; // mapped, not copied
//! assert_eq!(tensor.to_vec(), vec![0; 24]);
//! # Ok(())
//! # }
//! ```
//!
//! The core is synchronous: a call writes its request and reads its reply on the caller's own thread, because waking
//! another thread costs as much as the whole call. Any number of threads may share a [`Client`]. `AsyncClient` (feature
//! `tokio`) wraps it.
//!
//! ```text
//!   Client ── Connection ──┬── Sender    one write a request, ended leases in front of it
//!      |        (session)  ├── Calls     who waits, who of them reads
//!      |                   ├── Reader    frames and descriptors
//!      |                   ├── Segments  what is mapped, each with its witness
//!      |                   └── service   one thread: event pipe, leases that nothing takes along
//!   Tensor, Stored, Reservation: guards that hold the connection and give back when dropped
//! ```
//!
//! Non-goals: moving bytes between peers, deciding how; the sidecar does both.

#[cfg(feature = "tokio")]
pub mod asynchronous;
mod calls;
pub mod channel;
mod client;
mod config;
mod connection;
mod describe;
mod error;
#[cfg(test)]
mod fake_sidecar;
#[cfg(feature = "gpu")]
pub mod gpu;
mod handshake;
mod late;
mod moved;
mod origin;
pub mod pipe;
mod reader;
mod release;
#[doc(hidden)]
pub mod rights;
mod segments;
mod sender;
mod service;
pub mod set;
#[doc(hidden)]
pub mod stamp;
mod target;
mod tensor;
#[cfg(test)]
mod tests;
mod verbs;
mod wait;
mod watch;
mod wire;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncClient;
pub use client::Client;
pub use config::{
    ClientOptions, DEADLINE_DEFAULT, SESSION_SOCKET, SOCKETS_DEFAULT, SOCKETS_ENV, sockets_directory,
};
pub use describe::{Description, Listed};
pub use error::{Error, Result};
pub use moved::{Moved, Path, Refused, Way};
pub use segments::OwnView;
pub use target::{AcquireOptions, Target};
pub use tensor::{Lease, Tensor};
pub use tensorlane_memory::{View, WriteView};
pub use tensorlane_proto::generated::{
    ArenaStatus, BudgetStatus, HolderStatus, PeerStatus, StatusResponse as Status,
};
pub use tensorlane_proto::ledger::RetryId;
pub use verbs::{Fetched, Item, Names, Naming, PutOptions, Reservation, Stored};
pub use wait::Cancel;
pub use watch::{Watch, WatchEvent, WatchKind, WatchOptions};
