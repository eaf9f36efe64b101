//! Two and more of [`super::Peers`] on loopback, with twins of what is around them.

mod faults;
mod hostile;
mod keys;
mod proxy;
mod rotation;
mod transfer;
mod world;
