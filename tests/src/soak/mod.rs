//! Random puts, gets, kills and cuts between sidecars that are processes of their own, written down as a history which is
//! then held against the eight lines of "What holds at all times" in `docs/ARCHITECTURE.md`.
//!
//! ```text
//!   seed --> plan --steps--> crew (workloads) and world (sidecars, network) --events--> history --> check
//!   pure                     real processes                                             data        pure
//! ```
//! The same seed gives the same steps; how long each takes, and so what it meets, is the machine's. Everything that is
//! judged stands in the history, so that a saved one can be judged again. Needs root.

pub mod check;
pub mod crew;
pub mod history;
pub mod lap;
pub mod orders;
pub mod plan;
pub mod world;
