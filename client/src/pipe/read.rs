//! Reading: the descriptor first, then an allocation by the reader, then the bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor as TensorDescriptor, Failure, Reason, Reference, decoded};

use super::{End, Patience, Payload, Pipe, time};
use crate::channel::Timeout;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::target::{AcquireOptions, Target};
use crate::wire;

/// Progress of this end in the messages that it reads.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The last message whose descriptor was given.
    last: u64,
    /// Descriptors that were dropped unread: they are given again.
    returned: BTreeSet<u64>,
}

/// Next message, or the end of the pipe.
#[derive(Debug)]
pub enum Incoming {
    /// A message.
    Message(Descriptor),
    /// The other end has finished, and everything was read.
    End,
}

/// A message without its bytes. Dropped unread it is the next one again.
pub struct Descriptor {
    end: Arc<End>,
    sequence: u64,
    metadata: Bytes,
    payloads: Vec<v1::PipePart>,
    tensors: Vec<(TensorDescriptor, v1::PipePart)>,
    read: bool,
    /// Ends with the descriptor: what waits for that hears so.
    pub(super) turn: Option<Box<dyn Send + Sync>>,
}

/// Place for a tensor of a message.
#[derive(Debug, Default)]
pub enum Place<'a> {
    /// A map, read-only and without a copy.
    #[default]
    Map,
    /// Bytes for a copy, row-major and without gaps; exactly as many as the tensor has.
    Bytes(&'a mut [u8]),
    /// No place: the tensor is not wanted.
    Skip,
}

/// Places for the tensors of a message. Payloads come by themselves.
#[derive(Debug, Default)]
pub struct Allocation<'a> {
    places: Option<Vec<Place<'a>>>,
}

/// Tensor of a message that was read.
#[derive(Debug)]
pub enum Tensor {
    /// Map of the tensor.
    Mapped(Box<crate::Tensor>),
    /// Copy of the tensor, in the bytes that were given.
    Copied,
    /// No tensor: it was not wanted.
    Skipped,
}

/// A message that was read.
#[derive(Debug)]
pub struct Received {
    /// Words of the sender.
    pub metadata: Bytes,
    /// Payloads, in order.
    pub payloads: Vec<Payload>,
    /// Tensors, in order.
    pub tensors: Vec<Tensor>,
}

/// A read that failed. The message is not read: with this descriptor it may be tried again.
#[derive(Debug)]
pub struct ReadFailed {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// Cause of the failure.
    pub error: Error,
}

impl<'a> Allocation<'a> {
    /// Maps every tensor.
    pub fn map() -> Self {
        Self { places: None }
    }

    /// A place for each tensor, in order.
    pub fn new(places: Vec<Place<'a>>) -> Self {
        Self { places: Some(places) }
    }
}

impl Pipe {
    /// The descriptor of the next message, in the order of writes. Further ones may be asked for before it is read.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED where none comes in time, PIPE_CLOSED and PIPE_LOST where the other end is no more and has not finished.
    pub fn read_descriptor(&self, timeout: Timeout) -> Result<Incoming> {
        let end = &self.end;
        if end.origin.is_child() {
            return Err(Error::Forked);
        }
        let mut patience = Patience::of(&end.client, timeout);
        let _turn = end.turn(&patience.wait)?;
        loop {
            let wait = &patience.wait;
            let from = {
                let reading = end.reading.lock();
                reading.returned.first().copied().unwrap_or(reading.last.saturating_add(1))
            };
            let request = v1::PipeReadRequest { pipe: end.id, from, deadline_ms: wait.deadline_ms() };
            let reply: Result<v1::PipeReadResponse> =
                end.connection.call(SessionKind::PipeRead, &request, wait, Late::Nothing);
            let reply = match reply {
                Err(error) if patience.goes_on(&error) => continue,
                reply => reply?,
            };
            if reply.sequence == 0 {
                return Ok(Incoming::End);
            }
            let mut reading = end.reading.lock();
            // Another thread has it: the one that was asked for was taken back by its writer.
            let again = reply.sequence <= reading.last && !reading.returned.contains(&reply.sequence);
            // One that its writer has taken back meanwhile does not come again.
            reading.returned.retain(|returned| *returned > reply.sequence);
            reading.last = reading.last.max(reply.sequence);
            drop(reading);
            if again {
                continue;
            }
            return self.descriptor(reply.sequence, reply.message).map(Incoming::Message);
        }
    }

    fn descriptor(&self, sequence: u64, message: Bytes) -> Result<Descriptor> {
        // Its writer is another process, which may write what it likes.
        let unreadable = |what: &dyn fmt::Display| {
            let message =
                format!("message {sequence} cannot be read: {what}; its writer uses another release");
            Error::from(Failure::new(Reason::MessageDamaged, message).with("sequence", sequence))
        };
        let message: v1::PipeMessage = decoded::decode(message).map_err(|error| unreadable(&error))?;
        let mut tensors = Vec::with_capacity(message.tensors.len());
        for part in message.tensors {
            let described =
                part.descriptor.as_ref().ok_or_else(|| unreadable(&"a tensor without a descriptor"))?;
            let descriptor =
                tensorlane_proto::wire::descriptor(described.clone()).map_err(|error| unreadable(&error))?;
            tensors.push((descriptor, part));
        }
        let (metadata, payloads) = (message.metadata, message.payloads);
        let end = Arc::clone(&self.end);
        Ok(Descriptor { end, sequence, metadata, payloads, tensors, read: false, turn: None })
    }

    /// Brings the bytes of a message to where the allocation says, and tells the writer that it was read. Has the client's deadline.
    ///
    /// # Errors
    /// As [`Self::read_within`].
    pub fn read(
        &self,
        descriptor: Descriptor,
        allocation: Allocation<'_>,
    ) -> std::result::Result<Received, Box<ReadFailed>> {
        self.read_within(descriptor, allocation, Timeout::Default)
    }

    /// Brings the bytes of a message within a time, an hour at most.
    ///
    /// # Errors
    /// The descriptor comes back. LAYOUT_MISMATCH for an allocation of another number or length, before anything is written to it;
    /// INVALID_ARGUMENT for a descriptor of another pipe; DEADLINE_EXCEEDED where they do not come in time; MESSAGE_WITHDRAWN where its writer has taken the message back; PIPE_LOST where
    /// the writer is gone and its bytes with it; what an acquire says.
    pub fn read_within(
        &self,
        mut descriptor: Descriptor,
        allocation: Allocation<'_>,
        timeout: Timeout,
    ) -> std::result::Result<Received, Box<ReadFailed>> {
        let own = Arc::ptr_eq(&self.end, &descriptor.end).then_some(());
        let own =
            own.ok_or_else(|| Error::invalid("the descriptor is of another pipe; read it from its own"));
        let within = time(&self.end.client, timeout);
        let outcome = own.and_then(|()| descriptor.fetch(allocation, within)).and_then(|received| {
            self.end.say(v1::PipeEndRequest { read: descriptor.sequence, ..Default::default() })?;
            Ok(received)
        });
        match outcome {
            Ok(received) => {
                descriptor.read = true;
                Ok(received)
            }
            Err(error) => Err(Box::new(ReadFailed { descriptor, error })),
        }
    }
}

fn target(part: &v1::PipePart) -> Result<Target> {
    let reference: Reference = part.reference.parse().map_err(|error| Error::from(Failure::from(error)))?;
    Ok(Target::Reference(reference))
}

impl Descriptor {
    fn fetch(&self, allocation: Allocation<'_>, within: Duration) -> Result<Received> {
        let places = self.places(allocation)?;
        let outside = |part: &&v1::PipePart| !part.reference.is_empty();
        let wanted = self.tensors.iter().zip(&places).filter(|(_, place)| !matches!(place, Place::Skip));
        let wanted = wanted.map(|((_, part), _)| part);
        let parts: Vec<&v1::PipePart> = self.payloads.iter().filter(outside).chain(wanted).collect();
        let targets = parts.iter().map(|part| target(part)).collect::<Result<Vec<_>>>()?;
        let options = AcquireOptions::new().deadline(within);
        let mut got = self.end.client.acquire_many(&targets, &options).into_iter();
        let mut next = || got.next().unwrap_or_else(|| Err(wire::missing("a result")));
        let mut payloads = Vec::with_capacity(self.payloads.len());
        for part in &self.payloads {
            payloads.push(match outside(&part) {
                true => Payload::Mapped(Box::new(next().map_err(|error| self.lost(error))?)),
                false => Payload::Inline(part.inline.clone()),
            });
        }
        let mut tensors = Vec::with_capacity(places.len());
        for place in places {
            tensors.push(match place {
                Place::Skip => Tensor::Skipped,
                Place::Map => Tensor::Mapped(Box::new(next().map_err(|error| self.lost(error))?)),
                Place::Bytes(bytes) => {
                    next().map_err(|error| self.lost(error))?.copy_to(bytes)?;
                    Tensor::Copied
                }
            });
        }
        Ok(Received { metadata: self.metadata.clone(), payloads, tensors })
    }

    /// Sequence of the message: 1 for the first one of a pipe.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Words of the sender.
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// Lengths of the payloads in bytes, in order.
    pub fn payloads(&self) -> impl ExactSizeIterator<Item = u64> {
        self.payloads.iter().map(|part| part.bytes)
    }

    /// Meanings of the tensors, in order, with what the sender says of each.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&TensorDescriptor, &[u8])> {
        self.tensors.iter().map(|(descriptor, part)| (descriptor, &part.metadata[..]))
    }

    /// The places, checked.
    fn places<'p>(&self, allocation: Allocation<'p>) -> Result<Vec<Place<'p>>> {
        let mismatch = |message: String| Error::from(Failure::new(Reason::LayoutMismatch, message));
        let Some(places) = allocation.places else {
            return Ok(self.tensors.iter().map(|_| Place::Map).collect());
        };
        if places.len() != self.tensors.len() {
            let (given, needed) = (places.len(), self.tensors.len());
            return Err(mismatch(format!(
                "{given} places are given, and the message has {needed} tensors; nothing was read"
            )));
        }
        for (index, (place, (descriptor, _))) in places.iter().zip(&self.tensors).enumerate() {
            let needed = descriptor.layout.packed_bytes();
            if let Place::Bytes(bytes) = place
                && bytes.len() as u64 != needed
            {
                return Err(mismatch(format!(
                    "the place of tensor {index} has {} bytes, and the tensor {needed}; nothing was read",
                    bytes.len()
                )));
            }
        }
        Ok(places)
    }

    /// Tells why bytes could not be had: the writer has taken the message back, or is gone itself.
    fn lost(&self, error: Error) -> Error {
        let (reason, why) = match error.reason() {
            Some(Reason::OwnerLost) => (Reason::PipeLost, "is gone"),
            Some(Reason::NotFound) => match self.look_again() {
                Ok(true) => return error,
                Ok(false) => (Reason::MessageWithdrawn, "has taken it back, or its deadline passed"),
                Err(ended) => return ended,
            },
            _ => return error,
        };
        let (sequence, client) = (self.sequence, &self.end.remote.client);
        let message = format!("the bytes of message {sequence} are gone: client {client:?} {why} ({error})");
        Failure::new(reason, message).with("sequence", sequence).into()
    }

    /// Returns whether the message can still be read, as the sidecar knows it.
    ///
    /// # Errors
    /// PIPE_CLOSED and PIPE_LOST where the other end is no more.
    fn look_again(&self) -> Result<bool> {
        let request = v1::PipeReadRequest { pipe: self.end.id, from: self.sequence, deadline_ms: 1 };
        let wait = self.end.client.wait(None);
        let reply: Result<v1::PipeReadResponse> =
            self.end.connection.call(SessionKind::PipeRead, &request, &wait, Late::Nothing);
        match reply {
            Ok(reply) => Ok(reply.sequence == self.sequence),
            Err(error) if error.reason() == Some(Reason::DeadlineExceeded) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.read && !self.end.origin.is_child() {
            self.end.reading.lock().returned.insert(self.sequence);
        }
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}
