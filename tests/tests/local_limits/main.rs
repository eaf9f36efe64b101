//! Limits of a sidecar: room in its arena, what its clients may take of it, and seats for peers.

mod limits;
mod pressure;
mod probes;
mod room;
mod seats;
mod streams;
mod tables;
mod waits;
