//! Limits: what this machine can do without Tensorlane: the same work, done in the plain way and nothing else.
//!
//! Whatever needs two ends has them in two processes, as we do: [`End`] is the hidden command line of the other ends.

pub mod bulk;
pub mod chain;
mod compiled;
pub mod ends;
mod fetch;
pub mod futex;
pub mod gather;
pub mod gloo;
pub mod iperf;
pub mod memory;
pub mod quic;
pub mod replay;
pub mod round_trip;
pub mod tls;
pub mod warm;

pub use ends::End;
