//! Descriptions: what is known of a tensor without moving it.

use tensorlane_proto::{Descriptor, Reference};

/// Description of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Names it from anywhere in the exchange.
    pub reference: Reference,
    /// Meaning of its bytes.
    pub descriptor: Descriptor,
    /// Set if it is sealed; a reservation is shown to its writer alone.
    pub sealed: bool,
    /// Names at the tensor's owner, in order; at most the first 16.
    pub names: Vec<String>,
    /// Leases on it, of sessions and peers together.
    pub leases: u64,
    /// Live tickets.
    pub tickets: u32,
    /// CRC-32C of its bytes, where its writer gave one.
    pub crc32c: Option<u32>,
    /// Set if this peer has the bytes, as owner or as a copy.
    pub here: bool,
}

/// A name and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// The tensor.
    pub description: Description,
}
