//! GPUs that the two sides of a pair reach, and tensors that lie in their memory. What the sidecars of a node pass on is the
//! descriptor that the driver exported: nothing here looks into it.
//!
//! ```text
//!   each side, first and whenever it changes:   PeerGpus                            (control)
//!   reader                                                          owner
//!     | Pull { way shm, GPUs that both reach }     (node's socket)  |  leased; the descriptor is kept (`lent`)
//!     | PullHead { allocation }                    (node's socket)  |
//!     | WantGpu { call } -> descriptor             (node's socket)  |
//!     |   ... handed on to clients, which check and map it ...      |
//!     | PullDone                                        (control)   |  the lease ends
//! ```
//! A tensor that lies elsewhere is answered as any other map. There is no witness: whoever has a descriptor or a map keeps the
//! memory, and its exporter never uses again what was lent.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use tensorlane_memory::Lease;
use tensorlane_proto::frame::{self, FrameError, GPUS_MAX, Header, PEER_GPUS_SINCE, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Failure, Reason};

use super::link::{Ended, Link};
use super::parse::decode;

/// UUID of a GPU, as CUDA gives it.
pub type GpuId = [u8; 16];

/// Kind of handle that is a descriptor, in `handle_types`.
const POSIX_DESCRIPTORS: u32 = 1;

/// A GPU that one side of a pair reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReachableGpu {
    /// UUID of the GPU.
    pub uuid: GpuId,
    /// Version of the driver there, as CUDA numbers it; 0 where nobody said it.
    pub driver: u32,
}

/// Tensor in GPU memory that is lent to a peer, where it lies.
pub struct ServedOnGpu {
    /// Meaning of the bytes. Its device is the GPU.
    pub descriptor: Descriptor,
    /// Memory of the tensor.
    pub memory: LentMemory,
}

/// GPU memory at its owner, as it is lent.
#[derive(Debug, Clone)]
pub struct LentMemory {
    /// Descriptor that the driver exported.
    pub memory: Arc<OwnedFd>,
    /// Length of the allocation in bytes, as its exporter said.
    pub bytes: u64,
}

/// GPU memory of a peer of this node. The lease there ends with it.
pub struct BorrowedMemory {
    /// Descriptor that the driver exported, as the owner gave it.
    pub memory: OwnedFd,
    /// Length of the allocation in bytes, as the owner says.
    pub bytes: u64,
    /// Lease at the owner.
    pub lease: Lease,
}

impl fmt::Debug for BorrowedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Frame that tells GPUs: at most as many as may be named.
pub(super) fn told(gpus: &[ReachableGpu]) -> Vec<u8> {
    let one = |gpu: &ReachableGpu| v1::ReachedGpu {
        cuda_uuid: gpu.uuid.to_vec().into(),
        cuda_driver: gpu.driver,
        handle_types: POSIX_DESCRIPTORS,
    };
    let message = v1::PeerGpus { gpus: gpus.iter().take(GPUS_MAX).map(one).collect() };
    frame::encode(PeerKind::Gpus.into(), 0, 0, &message)
}

/// Takes the GPUs that a peer tells.
pub(super) fn heard(link: &Link, header: Header, body: &[u8]) -> Result<(), Ended> {
    if link.version < PEER_GPUS_SINCE || header.call != 0 || header.flags != 0 {
        return Err(FrameError::OutOfPlace(header.kind).into());
    }
    let malformed = || Ended::from(FrameError::Malformed(header.kind));
    if frame::top_level_items(body) > GPUS_MAX {
        return Err(malformed());
    }
    let message: v1::PeerGpus = decode(header, body)?;
    let mut gpus = Vec::with_capacity(message.gpus.len());
    for gpu in message.gpus {
        let uuid = GpuId::try_from(&gpu.cuda_uuid[..]).map_err(|_| malformed())?;
        // One whose memory cannot cross the node's socket is none to this side.
        if gpu.handle_types & POSIX_DESCRIPTORS != 0 {
            gpus.push(ReachableGpu { uuid, driver: gpu.cuda_driver });
        }
    }
    link.peer.state.lock().reaches(link.id, gpus);
    Ok(())
}

/// The GPUs that a reader names as those that both reach.
pub(super) fn named(uuids: &[Bytes]) -> Result<Vec<GpuId>, Failure> {
    let invalid = |what: String| Failure::new(Reason::InvalidArgument, what);
    if uuids.len() > GPUS_MAX {
        return Err(invalid(format!("{} GPUs were named; at most {GPUS_MAX}", uuids.len())));
    }
    let one = |uuid: &Bytes| {
        GpuId::try_from(&uuid[..])
            .map_err(|_| invalid(format!("a UUID of a GPU has 16 bytes, not {}", uuid.len())))
    };
    uuids.iter().map(one).collect()
}
