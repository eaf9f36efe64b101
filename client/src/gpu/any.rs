//! Tensors in whichever memory they lie: those of a GPU are mapped there where this process reaches it, and all others in the host's.

use std::sync::Arc;

use tensorlane_cuda::{ImportedSegment, Refusal, start};
use tensorlane_proto::{Descriptor, Reason, Selection};

use super::{DeviceTensor, devices, opened, stager};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::moved::Moved;
use crate::set::{Keys, Set};
use crate::target::{AcquireOptions, Target};
use crate::tensor::Tensor;
use crate::verbs::{acquire_any, acquire_anywhere};
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
    /// A tensor of a GPU that this process does not reach, or a list of rows of any, comes as [`Client::acquire`] gives it: on the host.
    pub fn acquire_any(&self, targets: &[Target], options: &AcquireOptions) -> Vec<Result<AnyTensor>> {
        let wait = self.wait(options.deadline);
        let connection = match self.connection(&wait) {
            Ok(connection) => connection,
            Err(error) => return targets.iter().map(|_| Err(error.clone())).collect(),
        };
        let leased = acquire_any(&connection, targets, options, wait);
        let one = |(target, outcome): (&Target, Result<Tensor>)| match outcome {
            // A list of rows is packed, which is not done on a GPU.
            Err(Error::Refused(why)) if why.reason == Reason::NoGpuProcess && is_rows(options) => {
                self.acquire(target, options).map(AnyTensor::Host)
            }
            outcome => self.mapped(&connection, outcome?, options),
        };
        targets.iter().zip(leased).map(one).collect()
    }

    /// Maps a tensor that was leased, where it lies; in the host's memory if this process does not reach its GPU.
    fn mapped(
        &self,
        connection: &Arc<Connection>,
        tensor: Tensor,
        options: &AcquireOptions,
    ) -> Result<AnyTensor> {
        let Some(location) = tensor.on_gpu().copied() else { return Ok(AnyTensor::Host(tensor)) };
        let wait = self.wait(options.deadline);
        match segment(connection, tensor.lease().id(), &wait) {
            Ok(segment) => {
                let tensor = DeviceTensor::new(tensor, segment, &location)?;
                stager::serve(self, tensor.device());
                Ok(AnyTensor::Device(tensor))
            }
            Err(Error::Gpu(refusal)) if is_out_of_reach(&refusal) => {
                // Leased until then, so that it is the same tensor whatever a name stands for by now.
                let id = Target::Id(tensor.lease().id());
                let copy = acquire_anywhere(connection, id, options, &wait, true);
                copy.map(AnyTensor::Host).map_err(|error| explained(error, &refusal))
            }
            Err(error) => Err(error),
        }
    }

    /// Leases the tensors of some keys of a set, or of all, as [`Client::get_set_of`], in whichever memory they lie.
    ///
    /// # Errors
    /// As there.
    pub fn get_any_set(
        &self,
        target: impl Into<Target>,
        keys: &Keys,
        options: &AcquireOptions,
    ) -> Result<Set<AnyTensor>> {
        self.get_set_by(&target.into(), keys, options, |targets, options| self.acquire_any(targets, options))
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

    /// Tensor without some dimensions of size 1, as [`Tensor::squeezed`].
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

/// The allocation of a leased tensor, mapped.
fn segment(connection: &Arc<Connection>, id: u64, wait: &Wait) -> Result<Arc<ImportedSegment>> {
    // Before the sidecar is asked for a descriptor that nobody here could use.
    start()?;
    opened::open(connection, id, |uuid| Ok(devices::found(uuid)?), wait)
}

fn is_rows(options: &AcquireOptions) -> bool {
    matches!(options.selection, Selection::Rows(_))
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
