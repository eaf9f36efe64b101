//! Limits of a sidecar: room in its arena, and what its clients may take of it.

mod limits;
mod pressure;
mod probes;
mod streams;
mod tables;
mod waits;
