//! The carrier from outside: a real store and exchange without peers, behind a socket, and the generated client.

mod bounds;
mod bytes;
mod channels;
mod errors;
mod gpu;
pub(crate) mod panics;
mod pipes;
mod server;
mod session;
mod sets;
mod tickets;
mod watching;
mod weighed;
mod world;
