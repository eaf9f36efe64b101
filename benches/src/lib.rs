//! Library that the programs `bench` and `demo` share: limits of the machine, processes and hosts to run them on,
//! statistics.
//!
//! Nothing here knows how Tensorlane works inside: sidecars are started as a user starts them and spoken to through
//! the client. Only [`limits`], so that they run on the same kind of memory, and the rows of rings look at `tensorlane-memory`.
//!
//! ```text
//!   bench ──┬── pairs ── stats          a limit, us, a limit, us, ...
//!   demo  ──┤
//!           ├── limits ── worker        the same work without Tensorlane, in processes of its own
//!           ├── sidecar ── hosts        two hosts: network namespaces, or loopback
//!           └── process, scratch ── undo   whatever was started is ended on every way out
//! ```

pub mod cores;
pub mod delay;
pub mod faults;
pub mod hosts;
pub mod limits;
pub mod links;
pub mod machine;
pub mod pairs;
pub mod process;
pub mod scratch;
pub mod sidecar;
pub mod stats;
pub mod style;
pub mod tensors;
pub mod text;
pub mod undo;
pub mod wait;
pub mod worker;
