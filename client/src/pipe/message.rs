//! A message: metadata, payloads and tensors. It belongs to the pipe until its write is over, and comes back then.

use std::fmt;

use bytes::Bytes;
use prost::Message as _;
use tensorlane_proto::frame::PIPE_MESSAGE_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Descriptor, Failure, Layout, Reason, Reference, Shape};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::verbs::{PutOptions, Reservation, Stored};

/// Most bytes of payloads that travel inside a message, all together; larger ones become tensors.
const INLINE_MAX: usize = 16 << 10;
/// Most bytes of a message's metadata, and of one part's.
const METADATA_MAX: usize = 64 << 10;
const PART_METADATA_MAX: usize = 4 << 10;
/// Most payloads, and most tensors, of one message.
const PARTS_MAX: usize = 1_024;

/// A message that is to be written.
#[derive(Default)]
pub struct Message {
    metadata: Vec<u8>,
    payloads: Vec<Part>,
    tensors: Vec<(Descriptor, Vec<u8>, Part)>,
}

/// Bytes of a part, and what keeps them.
enum Part {
    /// Bytes as the caller gave them, in plain memory.
    Heap(Vec<u8>),
    /// Bytes that are written in the arena, and not sealed.
    Reserved(Box<Reservation>),
    /// A tensor that this process leases.
    Stored(Box<Stored>),
    /// A tensor that this process leases because it was got.
    Got { reference: Reference, _leased: Box<Tensor> },
    /// A tensor that the caller keeps until the write is over.
    Kept(Reference),
    /// Nothing: the part was being sealed, and that failed.
    Gone,
}

/// A payload that was read.
pub enum Payload {
    /// Bytes that came inside the message.
    Inline(Bytes),
    /// Bytes of a tensor, mapped.
    Mapped(Box<Tensor>),
}

impl Payload {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Mapped(tensor) => tensor.len(),
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Inline(bytes) => bytes.to_vec(),
            Self::Mapped(tensor) => tensor.to_vec(),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("bytes", &self.len()).finish()
    }
}

impl Message {
    /// Without anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Words for the reader, which it sees in the descriptor; at most 64 KiB.
    #[must_use]
    pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Adds a payload of plain bytes.
    #[must_use]
    pub fn payload(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.payloads.push(Part::Heap(bytes.into()));
        self
    }

    /// Adds a tensor, whose bytes are copied into the arena once when the message is written.
    #[must_use]
    pub fn tensor(self, descriptor: Descriptor, bytes: impl Into<Vec<u8>>) -> Self {
        self.part(descriptor, Part::Heap(bytes.into()))
    }

    /// Adds a tensor that was written in place: it is sealed, and not copied.
    #[must_use]
    pub fn reservation(self, reservation: Reservation) -> Self {
        let descriptor = reservation.descriptor().clone();
        self.part(descriptor, Part::Reserved(Box::new(reservation)))
    }

    /// Adds a tensor that is stored already: it is not copied.
    #[must_use]
    pub fn stored(self, descriptor: Descriptor, stored: Stored) -> Self {
        self.part(descriptor, Part::Stored(Box::new(stored)))
    }

    /// Adds a tensor that this process has got by that reference, of this peer or another one: it is forwarded, not copied.
    #[must_use]
    pub fn forwarded(self, reference: Reference, tensor: Tensor) -> Self {
        let descriptor = tensor.descriptor().clone();
        self.part(descriptor, Part::Got { reference, _leased: Box::new(tensor) })
    }

    /// Adds a tensor by its reference, of this peer or another one. The caller leases it until the write is over.
    #[must_use]
    pub fn kept(self, descriptor: Descriptor, reference: Reference) -> Self {
        self.part(descriptor, Part::Kept(reference))
    }

    /// Words for the reader about the last tensor; at most 4 KiB.
    #[must_use]
    pub fn about(mut self, metadata: impl Into<Vec<u8>>) -> Self {
        if let Some((_, about, _)) = self.tensors.last_mut() {
            *about = metadata.into();
        }
        self
    }

    /// Number of payloads and of tensors.
    pub fn parts(&self) -> (usize, usize) {
        (self.payloads.len(), self.tensors.len())
    }

    fn part(mut self, descriptor: Descriptor, part: Part) -> Self {
        self.tensors.push((descriptor, Vec::new(), part));
        self
    }

    /// Puts what must lie in the arena there, and gives the message as it travels. `client` has the time that is left, part by part.
    ///
    /// # Errors
    /// TOO_LARGE, LAYOUT_MISMATCH, and what a put says (ARENA_FULL). What was stored stays so, for another try.
    pub(super) fn prepare(&mut self, client: &impl Fn() -> Client) -> Result<Bytes> {
        self.check()?;
        let mut room = INLINE_MAX;
        let mut payloads = Vec::with_capacity(self.payloads.len());
        for part in &mut self.payloads {
            payloads.push(payload(&client(), part, &mut room)?);
        }
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (descriptor, about, part) in &mut self.tensors {
            let bytes = descriptor.layout.bytes();
            let reference = part.store(&client(), descriptor)?;
            let (descriptor, metadata) = (Some((&*descriptor).into()), Bytes::copy_from_slice(about));
            tensors.push(v1::PipePart { inline: Bytes::new(), reference, bytes, descriptor, metadata });
        }
        let metadata = Bytes::copy_from_slice(&self.metadata);
        let message = v1::PipeMessage { metadata, payloads, tensors };
        let bytes = message.encoded_len();
        if bytes > PIPE_MESSAGE_MAX {
            return Err(too_large(bytes, PIPE_MESSAGE_MAX, "a message has beside its tensors"));
        }
        Ok(message.encode_to_vec().into())
    }

    fn check(&self) -> Result<()> {
        let most = self.payloads.len().max(self.tensors.len());
        if most > PARTS_MAX {
            return Err(too_large(most, PARTS_MAX, "payloads or tensors a message has"));
        }
        if self.metadata.len() > METADATA_MAX {
            return Err(too_large(self.metadata.len(), METADATA_MAX, "bytes of metadata a message has"));
        }
        for (index, (descriptor, about, part)) in self.tensors.iter().enumerate() {
            if about.len() > PART_METADATA_MAX {
                return Err(too_large(about.len(), PART_METADATA_MAX, "bytes of metadata a tensor has"));
            }
            let expected = descriptor.layout.bytes();
            if let Part::Heap(bytes) = part
                && bytes.len() as u64 != expected
            {
                let message = format!(
                    "tensor {index} has {} bytes, and its descriptor says {expected}; nothing was written",
                    bytes.len()
                );
                return Err(Failure::new(Reason::LayoutMismatch, message).into());
            }
        }
        Ok(())
    }
}

/// A payload as it travels: inside the message while there is room, else as a tensor.
fn payload(client: &Client, part: &mut Part, room: &mut usize) -> Result<v1::PipePart> {
    if let Part::Heap(bytes) = part
        && bytes.len() <= *room
    {
        *room -= bytes.len();
        let (inline, bytes) = (Bytes::copy_from_slice(bytes), bytes.len() as u64);
        return Ok(v1::PipePart { inline, bytes, ..Default::default() });
    }
    let bytes = match part {
        Part::Heap(bytes) => bytes.len() as u64,
        Part::Stored(stored) => stored.reference().bytes(),
        _ => 0,
    };
    let shape = Shape::new(&[bytes]).and_then(|shape| Layout::contiguous(DType::U8, shape));
    let layout = shape.map_err(|error| Error::invalid(format!("a payload of {bytes} bytes: {error}")))?;
    let reference = part.store(client, &Descriptor::host(layout))?;
    Ok(v1::PipePart { reference, bytes, ..Default::default() })
}

impl Part {
    /// Makes it a tensor; its reference.
    fn store(&mut self, client: &Client, descriptor: &Descriptor) -> Result<String> {
        match self {
            Self::Heap(bytes) => {
                let stored = client.put(descriptor, bytes, &PutOptions::new())?;
                *self = Self::Stored(Box::new(stored));
            }
            Self::Reserved(_) => {
                if let Self::Reserved(reservation) = std::mem::replace(self, Self::Gone) {
                    *self = Self::Stored(Box::new(reservation.seal(&PutOptions::new())?));
                }
            }
            Self::Stored(_) | Self::Got { .. } | Self::Kept(_) | Self::Gone => {}
        }
        match self {
            Self::Stored(stored) => Ok(stored.reference().encode()),
            Self::Got { reference, .. } | Self::Kept(reference) => Ok(reference.encode()),
            _ => Err(Error::invalid(
                "a tensor of the message could not be sealed before; make the message anew",
            )),
        }
    }
}

fn too_large(given: usize, most: usize, what: &str) -> Error {
    let message = format!("{given} are more than the {most} {what} at most; split the message");
    Failure::new(Reason::TooLarge, message).with("given", given).with("most", most).into()
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (payloads, tensors) = self.parts();
        f.debug_struct("Message")
            .field("payloads", &payloads)
            .field("tensors", &tensors)
            .finish_non_exhaustive()
    }
}
