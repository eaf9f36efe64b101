//! Two and more of [`super::Peers`] on loopback, with twins of what is around them.

mod copied;
mod datagrams;
mod dated;
mod fanout;
mod faults;
mod hostile;
pub(crate) mod keys;
mod meter;
mod named;
mod node_wire;
mod own_addresses;
pub(crate) mod panics;
mod proxy;
mod questions;
mod quic;
mod records;
mod resolving;
mod resumed;
mod rotation;
mod seats;
mod sets;
mod shm;
mod shm_hostile;
mod transfer;
mod transports;
pub(crate) mod world;
