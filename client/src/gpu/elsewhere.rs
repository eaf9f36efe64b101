//! Tensors that this process cannot map on their GPU: they come in host memory, and are copied into memory of the caller's device.

use std::sync::Arc;

use tensorlane_cuda::Refusal;
use tensorlane_proto::{Failure, Reason};

use super::tensor::{DeviceTensor, Memory};
use super::{Gpu, devices, idle, opened};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::target::{AcquireOptions, Target};
use crate::tensor::Tensor;
use crate::verbs::acquire_anywhere;
use crate::wait::Wait;

/// Reason for which a tensor in GPU memory is not mapped by a process that reaches another GPU.
const OTHER_GPU: &str = "other_gpu";

/// Leases a tensor wherever it is, and has it on the caller's device or maps it on its own.
pub(super) fn acquire(
    gpu: &Gpu,
    connection: &Arc<Connection>,
    target: Target,
    options: &AcquireOptions,
    wait: &Wait,
) -> Result<DeviceTensor> {
    let acquired = acquire_anywhere(connection, target.clone(), options, wait, false);
    let tensor = match acquired {
        // A list of rows is packed, which is not done where they lie.
        Err(Error::Refused(why)) if why.reason == Reason::NoGpuProcess => {
            acquire_anywhere(connection, target, options, wait, true)?
        }
        acquired => acquired?,
    };
    let Some(location) = tensor.on_gpu().copied() else { return upload(gpu, tensor, options) };
    let device = |uuid| Ok(devices::found_near(gpu.device(), uuid)?);
    match opened::open(connection, tensor.lease().id(), device, wait) {
        Ok(segment) => DeviceTensor::new(tensor, segment, &location),
        Err(Error::Gpu(other @ Refusal::NoSuchDevice { .. })) if !options.require.zero_copy => {
            // Held until then, so that it is the same tensor whatever a name stands for by now.
            let id = Target::Id(tensor.lease().id());
            match acquire_anywhere(connection, id, options, wait, true) {
                Ok(copy) => upload(gpu, copy.moved_for(OTHER_GPU), options),
                // Nobody reaches that GPU, and the first refusal says which it is.
                Err(Error::Refused(why)) if why.reason == Reason::NoGpuProcess => Err(other.into()),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Copies a tensor of the host into memory of the device.
fn upload(gpu: &Gpu, tensor: Tensor, options: &AcquireOptions) -> Result<DeviceTensor> {
    if options.require.zero_copy {
        let why = "the tensor is not in GPU memory that this process maps, and is copied there; do without zero_copy";
        return Err(Failure::new(Reason::RequirementNotMet, why).into());
    }
    let Some(view) = tensor.view() else {
        return Err(Error::invalid("a tensor without bytes has no GPU memory; take it with Client::acquire"));
    };
    let segment = idle::take_or_make(gpu.device(), view.len() as u64)?.segment;
    segment.copy_from_view(0, view)?;
    let bytes = view.len() as u64;
    let place = gpu.place();
    Ok(DeviceTensor::of(tensor.placed(place), Memory::Own(segment), 0, bytes))
}
