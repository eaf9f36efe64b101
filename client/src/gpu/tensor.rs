//! A leased tensor in GPU memory.

use std::fmt;
use std::sync::Arc;

use tensorlane_cuda::{Device, DeviceSegment, ImportedSegment, Stream};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Selection};

use super::release;
use crate::error::{Error, Result};
use crate::moved::Moved;
use crate::tensor::{Lease, Tensor, squeezed};

/// A leased tensor in GPU memory, mapped for reading or copied there, or the selected part of one. The memory is this process's to
/// read until this is dropped. Work on the device that was begun by then, on whatever stream, still reads it: map and lease are
/// given back behind it.
#[must_use = "dropping a tensor releases it"]
pub struct DeviceTensor {
    held: Arc<Held>,
    descriptor: Descriptor,
    offset: u64,
    bytes: u64,
}

/// Map and lease of a tensor.
pub(super) struct Held {
    // In the order of dropping: the map, then the lease.
    memory: Memory,
    tensor: Tensor,
}

/// GPU memory that a tensor lies in.
pub(super) enum Memory {
    /// Another's, or this process's, as the sidecar holds it.
    Mapped(Arc<ImportedSegment>),
    /// A copy of this process's own.
    Own(DeviceSegment),
}

impl Memory {
    fn device(&self) -> &Device {
        match self {
            Self::Mapped(segment) => segment.device(),
            Self::Own(segment) => segment.device(),
        }
    }

    fn pointer(&self) -> u64 {
        match self {
            Self::Mapped(segment) => segment.pointer(),
            Self::Own(segment) => segment.pointer(),
        }
    }

    fn copy_to_host(&self, offset: u64, to: &mut [u8]) -> tensorlane_cuda::Result<()> {
        match self {
            Self::Mapped(segment) => segment.copy_to_host(offset, to),
            Self::Own(segment) => segment.copy_to_host(offset, to),
        }
    }

    fn copy_to_device(
        &self,
        offset: u64,
        pointer: u64,
        bytes: u64,
        stream: Stream,
    ) -> tensorlane_cuda::Result<()> {
        match self {
            Self::Mapped(segment) => segment.copy_to_device(offset, pointer, bytes, stream),
            Self::Own(segment) => segment.copy_to_device(offset, pointer, bytes, stream),
        }
    }
}

impl DeviceTensor {
    pub(super) fn new(
        tensor: Tensor,
        segment: Arc<ImportedSegment>,
        location: &v1::Location,
    ) -> Result<Self> {
        let (offset, bytes) = (location.offset, location.bytes);
        if offset.checked_add(bytes).is_none_or(|end| end > segment.bytes()) {
            let within = segment.bytes();
            return Err(Error::protocol(format!(
                "a tensor of {bytes} bytes at {offset} was said to lie in {within} bytes of GPU memory"
            )));
        }
        Ok(Self::of(tensor, Memory::Mapped(segment), offset, bytes))
    }

    /// A tensor in memory that it fits.
    pub(super) fn of(tensor: Tensor, memory: Memory, offset: u64, bytes: u64) -> Self {
        let descriptor = tensor.descriptor().clone();
        Self { held: Arc::new(Held { memory, tensor }), descriptor, offset, bytes }
    }

    /// Meaning of the bytes. If ranges or steps were selected it has strides, relative to [`DeviceTensor::pointer`].
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The device that it is on, as this process sees it.
    pub fn device(&self) -> &Device {
        self.held.memory.device()
    }

    /// Address on the device, in this process. Reading there is allowed; writing is an error of the GPU.
    pub fn pointer(&self) -> u64 {
        self.held.memory.pointer() + self.offset
    }

    /// Bytes at the address, gaps between strided elements included.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Returns whether there are no bytes; never so.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Tensor without some dimensions of size 1, as [`Tensor::squeezed`].
    ///
    /// # Errors
    /// As there.
    pub fn squeezed(mut self, dims: &[usize]) -> Result<Self> {
        self.descriptor.layout = squeezed(&self.descriptor.layout, dims)?;
        Ok(self)
    }

    /// The lease.
    pub fn lease(&self) -> &Lease {
        self.held.tensor.lease()
    }

    /// Way in which the bytes came: by `cuda_ipc`, none of them moved; or the way that they came to host memory, from where they were
    /// copied to the device.
    pub fn moved(&self) -> &Moved {
        self.held.tensor.moved()
    }

    /// Copies the elements to the host, row-major and without gaps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where `to` has another length than the elements, [`Error::Gpu`] where the driver refuses.
    pub fn copy_to_host(&self, to: &mut [u8]) -> Result<()> {
        let layout = &self.descriptor().layout;
        let needed = layout.packed_bytes();
        if to.len() as u64 != needed {
            let given = to.len();
            return Err(Error::invalid(format!(
                "the destination has {given} bytes and the tensor {needed}; give it exactly as many"
            )));
        }
        if layout.is_contiguous() {
            return Ok(self.held.memory.copy_to_host(self.offset, to)?);
        }
        // One copy of all that lies between; a copy from the GPU for each run would cost more than the gaps.
        let length =
            usize::try_from(self.bytes).map_err(|_| Error::invalid("it is larger than the host's memory"))?;
        let mut all = vec![0; length];
        self.held.memory.copy_to_host(self.offset, &mut all)?;
        let resolved = Selection::All
            .resolve(layout)
            .map_err(|error| Error::protocol(format!("a layout that cannot be walked: {error}")))?;
        let mut rest = to;
        for (offset, len) in resolved.runs() {
            let outside = || Error::protocol("a layout that reaches out of its bytes");
            let (run, after) = rest.split_at_mut_checked(len as usize).ok_or_else(outside)?;
            let from = all.get(offset as usize..).and_then(|all| all.get(..len as usize));
            run.copy_from_slice(from.ok_or_else(outside)?);
            rest = after;
        }
        Ok(())
    }

    /// Copies the elements to memory of this process on the same GPU, row-major: one copy there, on `stream` and behind what is on it,
    /// which is waited for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there are gaps between the elements or `bytes` is not their length, [`Error::Gpu`]
    /// where the address is none of that GPU's memory or the driver refuses.
    pub fn copy_to_device(&self, pointer: u64, bytes: u64, stream: Stream) -> Result<()> {
        let layout = &self.descriptor().layout;
        let needed = layout.packed_bytes();
        if bytes != needed {
            return Err(Error::invalid(format!(
                "the destination has {bytes} bytes and the tensor {needed}; give it exactly as many"
            )));
        }
        if !layout.is_contiguous() {
            return Err(Error::invalid("a part with gaps is copied by a kernel of the caller's library"));
        }
        Ok(self.held.memory.copy_to_device(self.offset, pointer, bytes, stream)?)
    }

    /// The elements on the host, row-major and without gaps.
    ///
    /// # Errors
    /// As [`DeviceTensor::copy_to_host`].
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let length = usize::try_from(self.descriptor().layout.packed_bytes())
            .map_err(|_| Error::invalid("it is larger than the host's memory"))?;
        let mut bytes = vec![0; length];
        self.copy_to_host(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        let held = Arc::clone(&self.held);
        release::when_idle(self.held.memory.device(), move || drop(held));
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTensor")
            .field("id", &self.held.tensor.lease().id())
            .field("layout", &format_args!("{}", self.descriptor().layout))
            .finish_non_exhaustive()
    }
}
