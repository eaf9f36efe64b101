//! The words between the one who drives and the workloads that act: what is asked of one, and what it answers. Plain data;
//! a line of JSON each.

use serde::{Deserialize, Serialize};

/// A workload: the host of its sidecar, and which of those there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the type says it")]
pub struct Actor {
    pub host: usize,
    pub seat: usize,
}

/// A process that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The sidecar of a host.
    Sidecar(usize),
    /// A workload.
    Workload(Actor),
}

/// Fault that is done to a host or to the network between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Cut of the host's cable.
    Cut(usize),
    /// Loss of what the first sends to the second.
    Lose(usize, usize),
    /// Stop of the host's sidecar, which goes on later.
    Stop(usize),
    /// Kill of the host's sidecar; another one is started later.
    Kill(usize),
    /// Damage to the host's directory of peers, which cannot be read.
    Directory(usize),
}

impl Fault {
    /// Returns whether it keeps a host from its work or from another one. A directory that is away must not.
    pub fn troubles(self, host: usize) -> bool {
        match self {
            Fault::Cut(at) | Fault::Stop(at) | Fault::Kill(at) => at == host,
            Fault::Lose(from, to) => from == host || to == host,
            Fault::Directory(_) => false,
        }
    }
}

/// Order to a workload. Tensors have numbers of their own here: that of the step which makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Puts a tensor and holds its lease. A second one with the same number is the same put again, by its retry id.
    Put {
        /// Number of the tensor to put.
        tensor: u64,
        /// Seed from which its bytes follow.
        seed: u64,
        /// Number of bytes.
        bytes: u64,
        /// Set if it gets the name that follows from its number.
        named: bool,
        /// With a checksum.
        checksum: bool,
    },
    /// Reserves a tensor and writes it, without sealing it.
    Reserve {
        /// Number of the tensor to reserve.
        tensor: u64,
        /// Seed from which its bytes follow.
        seed: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Seals what it reserved.
    Seal {
        /// Number of the tensor to seal.
        tensor: u64,
    },
    /// Gives up what it reserved.
    Abort {
        /// Number of the tensor to give up.
        tensor: u64,
    },
    /// Gives the lease of a tensor back that it put.
    Release {
        /// Number of the tensor to release.
        tensor: u64,
    },
    /// Looks at a tensor once.
    Get {
        /// Number of the tensor to look at.
        tensor: u64,
        /// Only these bytes: from, to.
        part: Option<(u64, u64)>,
        /// By its name, of whoever has it, and not by its reference.
        by_name: bool,
        /// Milliseconds that it may take.
        deadline_ms: u64,
    },
    /// Looks at a tensor and goes on holding it.
    Hold {
        /// Number of the tensor to hold.
        tensor: u64,
        /// Slot in which it is held.
        slot: u64,
        /// Milliseconds that it may take.
        deadline_ms: u64,
    },
    /// Looks again at what it holds.
    Look {
        /// Slot in which it is held.
        slot: u64,
    },
    /// Gives back what it holds.
    Drop {
        /// Slot in which it is held.
        slot: u64,
    },
    /// Gives everything back, and takes all names of its peer away.
    Clear,
}

/// Outcome of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A tensor was put or sealed.
    Stored {
        /// Reference of the tensor.
        reference: String,
    },
    /// A tensor was reserved.
    Reserved {
        /// Reference that it would have.
        reference: String,
    },
    /// A tensor was seen.
    Got {
        /// Number of bytes.
        bytes: u64,
        /// CRC-32C of these bytes.
        crc: u32,
        /// Transport by which it came.
        transport: String,
        /// The better ways that were refused, such as `shm: other_node`.
        refused: Vec<String>,
        /// Bytes that crossed the transport.
        moved: u64,
    },
    /// Seen again, what is held.
    Seen {
        /// Number of bytes.
        bytes: u64,
        /// CRC-32C of these bytes.
        crc: u32,
        /// Set if the lease still lives.
        live: bool,
    },
    /// Done, and nothing to tell.
    Done,
    /// Refused, or without an answer.
    Failed {
        /// The reason of the sidecar, or the client's own word for what ended the call.
        reason: String,
        /// All of it.
        told: String,
    },
    /// The workload was killed meanwhile.
    Died,
    /// Nothing to ask for: the tensor was never put, or the slot is empty.
    Unasked,
}

/// An order on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Verb: what to do.
    pub verb: Verb,
    /// The tensor that it is about.
    pub reference: Option<String>,
}

/// The name of a tensor that gets one.
pub fn name_of(tensor: u64) -> String {
    format!("soak/{tensor}")
}
