//! Tensors in whichever memory they lie: those of a GPU are mapped there where this process reaches it, and all others in the host's.

use std::sync::Arc;

use tensorlane_cuda::{Refusal, start};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, Reason};

use super::stager::Stager;
use super::{DeviceTensor, devices, opened};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::moved::Moved;
use crate::set::Set;
use crate::target::{AcquireOptions, Target};
use crate::tensor::Tensor;
use crate::verbs::acquire_any;
use crate::wait::Wait;

/// A leased tensor, mapped where it lies.
#[derive(Debug)]
#[must_use = "dropping a tensor releases it"]
pub enum AnyTensor {
    /// In memory of the host.
    Host(Tensor),
    /// In memory of a GPU.
    Device(DeviceTensor),
}

impl Client {
    /// Leases tensors in whichever memory they lie, each with a result of its own, in the order of the targets. The driver is started
    /// and a GPU opened only when a tensor comes that lies there.
    ///
    /// A tensor of a GPU that this process does not reach comes as [`Client::acquire`] gives it.
    pub fn acquire_any(&self, targets: &[Target], options: &AcquireOptions) -> Vec<Result<AnyTensor>> {
        let wait = self.wait(options.deadline);
        let connection = match self.connection(&wait) {
            Ok(connection) => connection,
            Err(error) => return targets.iter().map(|_| Err(error.clone())).collect(),
        };
        let leased = acquire_any(&connection, targets, options, wait);
        let one = |(target, outcome): (&Target, Result<Tensor>)| {
            let tensor = outcome?;
            let Some(location) = tensor.on_gpu().copied() else { return Ok(AnyTensor::Host(tensor)) };
            match mapped(&connection, tensor, &location, &self.wait(options.deadline)) {
                Err(Error::Gpu(refusal)) if is_out_of_reach(&refusal) => self
                    .acquire(target, options)
                    .map(AnyTensor::Host)
                    .map_err(|error| explained(error, &refusal)),
                outcome => {
                    let tensor = outcome?;
                    Stager::serve(self, tensor.device());
                    Ok(AnyTensor::Device(tensor))
                }
            }
        };
        targets.iter().zip(leased).map(one).collect()
    }

    /// Leases all of a set as [`Client::get_set`], its tensors in whichever memory they lie.
    ///
    /// # Errors
    /// As there.
    pub fn get_any_set(&self, target: impl Into<Target>, options: &AcquireOptions) -> Result<Set<AnyTensor>> {
        self.get_set_by(&target.into(), options, |targets, options| self.acquire_any(targets, options))
    }
}

// === impl AnyTensor ===

impl AnyTensor {
    /// Meaning of the bytes.
    pub fn descriptor(&self) -> &Descriptor {
        match self {
            Self::Host(tensor) => tensor.descriptor(),
            Self::Device(tensor) => tensor.descriptor(),
        }
    }

    /// Way in which the bytes came.
    pub fn moved(&self) -> &Moved {
        match self {
            Self::Host(tensor) => tensor.moved(),
            Self::Device(tensor) => tensor.moved(),
        }
    }

    /// The same tensor without some dimensions of size 1, as [`Tensor::squeezed`].
    ///
    /// # Errors
    /// As there.
    pub fn squeezed(self, dims: &[usize]) -> Result<Self> {
        Ok(match self {
            Self::Host(tensor) => Self::Host(tensor.squeezed(dims)?),
            Self::Device(tensor) => Self::Device(tensor.squeezed(dims)?),
        })
    }
}

impl From<Tensor> for AnyTensor {
    fn from(tensor: Tensor) -> Self {
        Self::Host(tensor)
    }
}

fn mapped(
    connection: &Arc<Connection>,
    tensor: Tensor,
    location: &v1::Location,
    wait: &Wait,
) -> Result<DeviceTensor> {
    // Before the sidecar is asked for a descriptor that nobody here could use.
    start()?;
    let device = |uuid| Ok(devices::found(uuid)?);
    let segment = opened::open(connection, tensor.lease().id(), device, wait)?;
    DeviceTensor::new(tensor, segment, location)
}

/// Returns whether it is this process that has no use of the GPU, whatever was put there.
fn is_out_of_reach(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NoLibrary
            | Refusal::StubLibrary
            | Refusal::MissingSymbol { .. }
            | Refusal::NoDriver { .. }
            | Refusal::NoDevice
            | Refusal::NoSuchDevice { .. }
            | Refusal::NotShareable { .. }
            | Refusal::Forked
    )
}

/// The error of a tensor that could not be had in any way, with the reason why it was not mapped.
fn explained(error: Error, refusal: &Refusal) -> Error {
    match error {
        Error::Refused(mut failure) if failure.reason == Reason::NoGpuProcess => {
            failure.message = format!("{}; it is not mapped here, because {refusal}", failure.message);
            Error::Refused(failure)
        }
        other => other,
    }
}
