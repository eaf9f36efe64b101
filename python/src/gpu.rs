//! Memory of a GPU that is written here and then put, and arrays of other libraries that lie there.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use tensorlane_client::Error;
use tensorlane_client::gpu::{DeviceReservation, device, probe};
use tensorlane_proto::DType;

use crate::client::{Core, Keep, called};
use crate::dlpack::{CUDA, Exported, Seen, data_type};
use crate::errors;
use crate::layout::{self, dimensions};
use crate::raw::{capsule, seen, stream};
use crate::stored::Stored;

/// Room for a tensor in memory of a GPU. Put when no view of it is left.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct DeviceBlock(Mutex<Option<Arc<DeviceReservation>>>);

#[pymethods]
impl DeviceBlock {
    /// Makes room on the GPU of that index, as this process sees it.
    #[new]
    fn new(
        py: Python<'_>,
        core: &Core,
        dtype: &str,
        shape: Vec<u64>,
        metadata: Vec<(String, String)>,
        gpu: u32,
    ) -> PyResult<Self> {
        let described = layout::descriptor(py, dtype, &shape, metadata)?;
        let client = core.client(py)?;
        let reserved = py.detach(|| {
            let device = device(gpu).map_err(Error::from)?;
            client.gpu(&device).reserve(&described.layout, &described.metadata)
        });
        let reserved = reserved.map_err(|error| errors::raise(py, &error))?;
        Ok(Self(Mutex::new(Some(Arc::new(reserved)))))
    }

    /// Address on the GPU, in this process.
    #[getter]
    fn pointer(&self) -> PyResult<u64> {
        Ok(self.held()?.pointer())
    }

    /// Bytes of the tensor.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.held()?.descriptor().layout.bytes())
    }

    /// Fills it from other memory of the same GPU, on a stream and behind what is on it, which is waited for.
    #[pyo3(signature = (pointer, nbytes, on))]
    fn fill(&self, py: Python<'_>, pointer: u64, nbytes: u64, on: u64) -> PyResult<()> {
        let reserved = self.held()?;
        py.detach(|| reserved.copy_from_device(pointer, nbytes, stream(on)))
            .map_err(|error| errors::raise(py, &error))
    }

    /// Waits for all that is on a stream now, or for all that this process has given the GPU.
    #[pyo3(signature = (on))]
    fn wait(&self, py: Python<'_>, on: Option<u64>) -> PyResult<()> {
        let reserved = self.held()?;
        let waited = py.detach(|| match on {
            Some(on) => reserved.wait(stream(on)),
            None => reserved.device().synchronize().map_err(Error::from),
        });
        waited.map_err(|error| errors::raise(py, &error))
    }

    /// A DLPack capsule over the memory, to be written. It holds the memory, and counts as a view.
    fn capsule<'py>(&self, py: Python<'py>, versioned: bool, bits: bool) -> PyResult<Bound<'py, PyCapsule>> {
        let reserved = self.held()?;
        let layout = &reserved.descriptor().layout;
        let (shape, strides) = dimensions(layout);
        let exported = Exported {
            address: reserved.pointer(),
            device: (CUDA, reserved.device().index() as i32),
            dtype: data_type(layout.dtype(), bits),
            shape,
            strides,
            flags: 0,
            keeps: Box::new(Arc::clone(&reserved)),
        };
        capsule(py, exported, versioned)
    }

    /// Makes it a tensor.
    fn put(&self, py: Python<'_>, keep: Keep) -> PyResult<Stored> {
        let options = keep.options(py)?;
        let reserved = self.take()?;
        let stored = py.detach(|| called(|| reserved.put(&options)));
        errors::outcome(py, stored.map(Stored::new))
    }
}

impl DeviceBlock {
    fn held(&self) -> PyResult<Arc<DeviceReservation>> {
        self.0.lock().clone().ok_or_else(gone)
    }

    /// The reservation, of which no view is left.
    fn take(&self) -> PyResult<DeviceReservation> {
        let mut held = self.0.lock();
        match Arc::try_unwrap(held.take().ok_or_else(gone)?) {
            Ok(reserved) => Ok(reserved),
            Err(viewed) => {
                let views = Arc::strong_count(&viewed) - 1;
                *held = Some(viewed);
                Err(PyBufferError::new_err(format!(
                    "{views} arrays still write this block; drop them before it is sealed"
                )))
            }
        }
    }
}

fn gone() -> PyErr {
    PyBufferError::new_err("this block was sealed or given up; reserve another one")
}

/// Address, GPU, dtype, shape, strides in elements, and whether it is read-only.
type Array = (u64, i32, &'static str, Vec<i64>, Option<Vec<i64>>, bool);

/// Array that a DLPack capsule shows, which is not taken: keep the capsule while the address is used.
#[pyfunction]
pub(crate) fn capsule_array(py: Python<'_>, capsule: &Bound<'_, PyCapsule>) -> PyResult<Array> {
    let Seen { address, device: (kind, id), dtype, shape, strides, read_only } = seen(capsule)?;
    if kind != CUDA {
        let why =
            format!("the DLPack capsule shows memory of a device of kind {kind}, and its array said CUDA");
        return Err(errors::refuse(py, "INVALID_ARGUMENT", &why));
    }
    let known = DType::ALL.iter().find(|known| known.dlpack() == dtype).ok_or_else(|| {
        let (code, bits, lanes) = dtype;
        let why =
            format!("elements of DLPack's type {code} with {bits} bits and {lanes} lanes cannot be stored");
        errors::refuse(py, "UNIMPLEMENTED", &why)
    })?;
    Ok((address, id, known.name(), shape, strides, read_only))
}

/// Gives memory of a GPU that is kept for the next puts back to it: how many bytes.
#[pyfunction]
pub(crate) fn release_idle(py: Python<'_>, core: &Core, gpu: u32) -> PyResult<u64> {
    let client = core.client(py)?;
    let released = py.detach(|| device(gpu).map(|device| client.gpu(&device).release_idle()));
    released.map_err(|refusal| errors::raise(py, &refusal.into()))
}

/// GPUs of this process with what each can, or the reason why there is none. Each is opened, which costs a context there.
#[pyfunction]
pub(crate) fn probe_gpus(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let told = PyDict::new(py);
    match py.detach(probe) {
        Err(refusal) => told.set_item("refusal", (refusal.label(), refusal.to_string()))?,
        Ok(found) => {
            told.set_item("driver", found.driver)?;
            let of = |device: &tensorlane_client::gpu::Probed| {
                let refusal = device.shares.as_ref().err().map(ToString::to_string);
                (device.index, device.name.clone(), device.uuid.to_string(), device.bytes, refusal)
            };
            told.set_item("devices", found.devices.iter().map(of).collect::<Vec<_>>())?;
        }
    }
    Ok(told)
}
