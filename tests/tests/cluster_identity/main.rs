//! Identities on a real cluster: who is refused, and keys that are changed.

mod refused;
mod rotation;

const KI: u64 = 1024;
