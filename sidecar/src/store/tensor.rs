//! A tensor as the store has it: what its bytes mean, and the block that they are in.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::Message;
use tensorlane_memory::Block;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::encoded;
use tensorlane_proto::generated as v1;
use tensorlane_proto::layout::Layout;
use tensorlane_proto::ledger::TensorId;
use tensorlane_proto::reference::Reference;

use super::gpu::{Allocation, by_cuda_ipc};
use super::metadata::InternedMetadata;
use crate::hashes::Hashes;
use crate::sums::Sums;

/// A reservation or a sealed tensor. Whoever has one can read its bytes: the block is not reused while one lives.
#[derive(Debug)]
pub struct Tensor {
    /// Id of the tensor at this sidecar.
    pub id: TensorId,
    /// Names it from anywhere: at its owner, for a copy.
    pub reference: Reference,
    /// Meaning of the bytes.
    pub descriptor: Descriptor,
    /// Encoded descriptor but for the metadata, as [`encoded::without_metadata`] makes it.
    pub(super) plain: Bytes,
    /// Entry of the metadata, which it shares with other tensors.
    pub(super) kept: Option<Arc<InternedMetadata>>,
    /// Block in which the bytes are; nothing for those in GPU memory.
    pub block: Block,
    /// The GPU memory that the bytes are in.
    pub gpu: Option<Arc<Allocation>>,
    /// Set if the bytes were copied out of GPU memory for it.
    pub staged: bool,
    /// CRC-32C of the bytes, where their writer gave one.
    pub crc32c: Option<u32>,
    /// Sums of its granules, from when it is first sent.
    pub(super) sums: OnceLock<Arc<Sums>>,
    /// Hashes of its granules, from when a reader first asks for them.
    pub(super) hashes: OnceLock<Hashes>,
}

impl Tensor {
    /// Encodes the descriptor, as [`encoded::descriptor`] does.
    pub fn encoded(&self) -> Bytes {
        encoded::with_metadata(&self.plain, &self.descriptor.metadata)
    }

    /// Bytes that [`encoded`](Self::encoded) takes, within a few.
    pub fn encoded_bytes(&self) -> usize {
        self.plain.len() + self.descriptor.metadata.heap_bytes()
    }

    /// Checksums of its packed bytes, of which there are so many.
    pub fn sums(&self, bytes: u64) -> Arc<Sums> {
        Arc::clone(self.sums.get_or_init(|| Arc::new(Sums::new(bytes))))
    }

    /// Hashes of its packed bytes, of which there are so many.
    pub fn hashes(&self, bytes: u64) -> &Hashes {
        self.hashes.get_or_init(|| Hashes::new(bytes))
    }
}

/// A leased tensor on its way to whoever asked for it.
pub struct Taken {
    /// The lease.
    pub id: TensorId,
    /// The tensor.
    pub tensor: Arc<Tensor>,
    /// The selected part; none for all of it.
    pub part: Option<Part>,
    /// Set if bytes were copied here to answer.
    pub copied: bool,
    /// Way in which the bytes came; none for a local map.
    pub moved: Option<Arc<Moved>>,
}

/// Way in which bytes came, made once for all tensors that came alike.
#[derive(Debug)]
pub struct Moved {
    /// As a message.
    pub message: v1::Moved,
    encoded: Bytes,
}

/// A view of a part of a tensor.
#[derive(Debug, Clone)]
pub struct Part {
    /// Beginning, in bytes from the start of the tensor.
    pub offset: u64,
    /// Shape and strides of it.
    pub layout: Layout,
}

/// Room for a tensor that is being written.
pub struct Room {
    /// The reservation.
    pub id: TensorId,
    /// Block to write to.
    pub block: Block,
}

// === impl Taken ===

impl Taken {
    /// A whole tensor, mapped where it is.
    pub fn whole(tensor: Arc<Tensor>) -> Self {
        let moved = tensor.gpu.is_some().then(by_cuda_ipc);
        Self { id: tensor.id, tensor, part: None, copied: false, moved }
    }

    /// The block.
    pub fn block(&self) -> &Block {
        &self.tensor.block
    }

    /// The answer as a message, without a place to map it.
    pub fn to_wire(&self) -> v1::Acquired {
        let descriptor = match &self.part {
            None => v1::Descriptor::from(&self.tensor.descriptor),
            Some(part) => v1::Descriptor::from(&part.descriptor(&self.tensor.descriptor)),
        };
        v1::Acquired {
            id: self.id.0,
            location: None,
            descriptor: Some(descriptor),
            copied: self.copied,
            moved: self.moved.as_ref().map(|moved| moved.message.clone()),
            crc32c: self.crc32c(),
        }
    }

    /// The answer as a message, with the place in the segment.
    pub fn encoded(&self) -> encoded::Acquired {
        let (offset, bytes, descriptor) = match &self.part {
            None => (0, self.tensor.descriptor.layout.bytes(), self.tensor.encoded()),
            Some(part) => {
                let descriptor = part.descriptor(&self.tensor.descriptor);
                (part.offset, part.layout.bytes(), encoded::descriptor(&descriptor))
            }
        };
        encoded::Acquired {
            id: self.id.0,
            location: Some(location(&self.tensor.block, offset, bytes)),
            descriptor: Some(descriptor),
            copied: self.copied,
            moved: self.moved.as_ref().map(|moved| moved.encoded.clone()),
            crc32c: self.crc32c(),
        }
    }

    /// Checksum of all bytes, which says nothing of a part.
    fn crc32c(&self) -> Option<u32> {
        self.tensor.crc32c.filter(|_| self.part.is_none())
    }
}

// === impl Moved ===

impl Moved {
    /// Encodes it.
    pub fn new(message: v1::Moved) -> Arc<Self> {
        let encoded = message.encode_to_vec().into();
        Arc::new(Self { message, encoded })
    }
}

// === impl Part ===

impl Part {
    /// Descriptor of the part: with the words about the whole.
    fn descriptor(&self, whole: &Descriptor) -> Descriptor {
        Descriptor { layout: self.layout.clone(), ..whole.clone() }
    }
}

// === impl Room ===

impl Room {
    /// Location to write to, as a message.
    pub fn location(&self) -> v1::Location {
        whole(&self.block)
    }
}

/// The place of all bytes of a block, as a message.
pub fn whole(block: &Block) -> v1::Location {
    location(block, 0, block.len())
}

fn location(block: &Block, offset: u64, bytes: u64) -> v1::Location {
    v1::Location { segment: block.segment_id(), offset: block.offset() + offset, bytes }
}
