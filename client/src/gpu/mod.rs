//! Tensors in GPU memory: put by the process that has the GPU, and mapped by others of its pod without a copy.
//!
//! ```text
//!   put:      DeviceSegment, filled  --PutGpu + descriptor-->  the sidecar holds the descriptor, for as long as the tensor lives
//!   acquire:  a lease, as of any tensor; the first time  --OpenGpu-->  descriptor: imported, checked, mapped for reading
//! ```
//!
//! A process that does not know in which memory a tensor lies asks by [`Client::acquire_any`]. No GPU is opened unless one comes.
//!
//! Bytes are there before a tensor is put: every copy is waited for. So a reader needs no event. What a reader has begun on the
//! device when it drops its tensor is waited for before the memory may go.
//!
//! The process that put a tensor keeps its allocation until the sidecar says that nobody keeps the tensor any more, or the session
//! ends. After that, and after its death, the memory lives by the descriptor that the sidecar holds.
//!
//! Whoever cannot map a tensor on its GPU gets it in host memory: the stager of a process that reaches the GPU copies it out,
//! once. A reader with another GPU has it copied there.

mod any;
mod calls;
mod devices;
mod elsewhere;
mod idle;
pub(crate) mod imported;
mod opened;
pub(crate) mod owned;
mod release;
pub(crate) mod staged_gpus;
mod stager;
mod tensor;

use std::os::fd::AsFd;

use tensorlane_cuda::DeviceSegment;
use tensorlane_proto::device;
use tensorlane_proto::frame::GPU_SINCE;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Layout, Metadata};

pub use tensorlane_cuda::{Code, Device, GpuUuid, Probe, Probed, Refusal, Stream, probe};

pub use self::any::AnyTensor;
pub use self::devices::device;
use self::idle::Room;
pub use self::tensor::DeviceTensor;
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::target::{AcquireOptions, Target};
use crate::verbs::{PutOptions, Stored, stored};
use crate::wire;

/// GPU memory in the sessions of a client, on one device.
#[derive(Clone, Debug)]
pub struct Gpu {
    client: Client,
    device: Device,
}

/// Memory on the device in which a tensor is made in place, until it is put. Dropped, it is given back.
#[derive(Debug)]
#[must_use = "dropped before it is put, it is given back"]
pub struct DeviceReservation {
    gpu: Gpu,
    descriptor: Descriptor,
    /// Absent once it is put.
    room: Option<Room>,
}

impl Client {
    /// Tensors in the memory of a GPU that is open in this process.
    pub fn gpu(&self, device: &Device) -> Gpu {
        Gpu { client: self.clone(), device: device.clone() }
    }
}

// === impl Gpu ===

impl Gpu {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The client whose sessions it is in.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Gives the memory that is kept for the next puts back to the driver, for others in this process: how many bytes. At most one
    /// 64th of the device's memory is kept.
    pub fn release_idle(&self) -> u64 {
        // In a forked child it is the parent's, and who held the lock may not be there.
        if self.device.check_process().is_err() {
            return 0;
        }
        idle::release(&self.device)
    }

    /// Makes room for a tensor that is computed in place; what is there before that is whatever was there. No sidecar is asked before it is put.
    ///
    /// # Errors
    /// [`Error::Gpu`] where the device has no such memory, [`Error::InvalidArgument`] for a tensor without bytes.
    pub fn reserve(&self, layout: &Layout, metadata: &Metadata) -> Result<DeviceReservation> {
        let bytes = layout.bytes();
        if bytes == 0 {
            return Err(Error::invalid("a tensor without bytes has no GPU memory; put it with Client::put"));
        }
        let room = idle::take_or_make(&self.device, bytes)?;
        stager::serve(&self.client, &self.device);
        let descriptor =
            Descriptor { layout: layout.clone(), device: self.place(), metadata: metadata.clone() };
        Ok(DeviceReservation { gpu: self.clone(), descriptor, room: Some(room) })
    }

    /// Stores bytes of the host in memory of the device: one copy to it.
    ///
    /// # Errors
    /// As [`Gpu::reserve`] and [`DeviceReservation::put`], and [`Error::InvalidArgument`] where bytes and layout disagree.
    pub fn put_bytes(&self, layout: &Layout, bytes: &[u8], options: &PutOptions) -> Result<Stored> {
        check_length(layout, bytes.len() as u64)?;
        let reservation = self.reserve(layout, &Metadata::default())?;
        reservation.segment()?.copy_from_host(0, bytes)?;
        reservation.put(options)
    }

    /// Stores a tensor of this process that lies on the device: one copy there, on `stream` and behind what is on it, which is waited
    /// for. `bytes` at `pointer` must be as many as the layout has.
    ///
    /// # Errors
    /// As [`Gpu::put_bytes`]; [`Refusal::NotDeviceMemory`] for an address that is none of this device's memory.
    pub fn put_device(
        &self,
        layout: &Layout,
        pointer: u64,
        bytes: u64,
        stream: Stream,
        options: &PutOptions,
    ) -> Result<Stored> {
        check_length(layout, bytes)?;
        let reservation = self.reserve(layout, &Metadata::default())?;
        reservation.copy_from_device(pointer, bytes, stream)?;
        reservation.put(options)
    }

    /// Leases a tensor, wherever it lies, and has it in GPU memory. What lies in GPU memory of this pod that this process reaches is
    /// mapped for reading where it is, on whichever GPU that is, and no byte is copied. Anything else comes in host memory first, and
    /// is copied into memory of this device: tensors of the host, of other peers, of GPUs that only others reach, and lists of rows.
    /// Ranges and steps are views.
    ///
    /// # Errors
    /// The sidecar's refusal; [`Error::Gpu`] where what was put there is no memory of that GPU or not as long as was
    /// said, or this one has no room; [`Error::InvalidArgument`] for a tensor without bytes.
    pub fn acquire(&self, target: impl Into<Target>, options: &AcquireOptions) -> Result<DeviceTensor> {
        let wait = self.client.wait(options.deadline);
        let connection = self.client.connection(&wait)?;
        stager::serve(&self.client, &self.device);
        // Other peers of the node lend what lies on a GPU to those of whom it is known that they reach it.
        stager::await_ready(&self.client, &self.device, &connection, &wait)?;
        elsewhere::acquire(self, &connection, target.into(), options, &wait)
    }

    /// The device, as a descriptor names it.
    fn place(&self) -> device::Device {
        device::Device::Cuda { index: self.device.index(), uuid: Some(self.device.uuid().0) }
    }
}

// === impl DeviceReservation ===

impl DeviceReservation {
    /// Address on the device, in this process, at which the tensor is to be written.
    pub fn pointer(&self) -> u64 {
        self.room.as_ref().map_or(0, |room| room.segment.pointer())
    }

    /// Meaning that its bytes will have.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        self.gpu.device()
    }

    fn segment(&self) -> Result<&DeviceSegment> {
        self.room.as_ref().map(|room| &room.segment).ok_or_else(given_up)
    }

    /// Fills it from memory of this process on the same device: one copy there, on `stream` and behind what is on it, which is waited
    /// for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where `bytes` is not the tensor's length, [`Error::Gpu`] where the address is none of that GPU's
    /// memory or the driver refuses.
    pub fn copy_from_device(&self, pointer: u64, bytes: u64, stream: Stream) -> Result<()> {
        check_length(&self.descriptor.layout, bytes)?;
        Ok(self.segment()?.copy_from_device(0, pointer, bytes, stream)?)
    }

    /// Waits for all that is on `stream` now, such as the kernels that write the tensor.
    ///
    /// # Errors
    /// [`Error::Gpu`] where something on the stream went wrong.
    pub fn wait(&self, stream: Stream) -> Result<()> {
        Ok(self.segment()?.wait(stream)?)
    }

    /// Makes the tensor visible and immutable. Whoever wrote it has waited for that: nothing here does.
    ///
    /// # Errors
    /// The sidecar's refusal, or what ended the call; the memory is given back then. [`Error::InvalidArgument`] for
    /// options that need the bytes (a checksum) or a repeat (a retry id).
    pub fn put(mut self, options: &PutOptions) -> Result<Stored> {
        if options.checksum || options.retry_id.is_some() {
            return Err(Error::invalid(
                "a tensor in GPU memory is put without checksum and without retry id",
            ));
        }
        let (gpu, descriptor) = (&self.gpu, &self.descriptor);
        let wait = gpu.client.wait(options.deadline);
        let connection = gpu.client.connection(&wait)?;
        check_version(&connection)?;
        stager::await_ready(&gpu.client, &gpu.device, &connection, &wait)?;
        let Some(Room { segment, memory }) = self.room.take() else { return Err(given_up()) };
        let memory = memory.map_or_else(|| segment.export(), Ok)?;
        let allocation_bytes = segment.bytes();
        // Before it is sent: the word that it was freed may come before the answer.
        let allocation = connection.owned().keep(segment);
        let (descriptor, keep) = (Some(descriptor.into()), Some(options.keep()));
        let request = v1::PutGpuRequest { descriptor, keep, allocation, allocation_bytes };
        let outcome = connection
            .put_gpu(&request, memory.as_fd(), &wait, options.late())
            .and_then(|reply| stored(&connection, wire::single(reply.results)?, options));
        outcome.inspect_err(|error| {
            // A refusal alone proves that nobody has it. Else the sidecar says when nobody has, or the session ends.
            if matches!(error, Error::Refused(_)) {
                connection.owned().freed(allocation, true);
            }
        })
    }
}

impl Drop for DeviceReservation {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            // Kernels may be writing there.
            release::when_idle(&self.gpu.device, move || idle::keep(room));
        }
    }
}

fn given_up() -> Error {
    Error::invalid("the room was put already")
}

/// # Errors
/// The sidecar is older than GPU memory.
fn check_version(connection: &Connection) -> Result<()> {
    connection.require(GPU_SINCE, "GPU memory needs", "; use a sidecar of this release")
}

fn check_length(layout: &Layout, given: u64) -> Result<()> {
    let needed = layout.bytes();
    if given == needed {
        return Ok(());
    }
    Err(Error::invalid(format!("{given} bytes were given for {layout}, which has {needed}")))
}
