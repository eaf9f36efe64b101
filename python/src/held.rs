//! Tensors that were acquired, in whichever memory they lie.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyCapsule};
use tensorlane_client::Tensor;
use tensorlane_client::gpu::{AnyTensor, DeviceTensor};
use tensorlane_proto::Descriptor;

use crate::dlpack::{CUDA, Exported, READ_ONLY, data_type};
use crate::errors;
use crate::layout::dimensions;
use crate::raw::{capsule, stream};

/// A tensor that was acquired, on its way into a `Memory`.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Acquired {
    tensor: Mutex<Option<AnyTensor>>,
    /// Index of the GPU; none in memory of the host.
    #[pyo3(get)]
    gpu: Option<u32>,
}

/// A tensor that views hold, too.
#[derive(Clone)]
pub(crate) enum Held {
    Host(Arc<Tensor>),
    Device(Arc<DeviceTensor>),
}

/// A tensor in memory of a GPU, which this holds.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct OnDevice(Arc<DeviceTensor>);

// === impl Acquired ===

impl Acquired {
    pub(crate) fn new(tensor: impl Into<AnyTensor>) -> Self {
        let tensor = tensor.into();
        let gpu = match &tensor {
            AnyTensor::Host(_) => None,
            AnyTensor::Device(tensor) => Some(tensor.device().index()),
        };
        Self { tensor: Mutex::new(Some(tensor)), gpu }
    }

    pub(crate) fn take(&self) -> PyResult<Held> {
        match self.tensor.lock().take() {
            None => Err(PyBufferError::new_err("this tensor was taken before")),
            Some(AnyTensor::Host(tensor)) => Ok(Held::Host(Arc::new(tensor))),
            Some(AnyTensor::Device(tensor)) => Ok(Held::Device(Arc::new(tensor))),
        }
    }
}

// === impl Held ===

impl Held {
    pub(crate) fn descriptor(&self) -> &Descriptor {
        match self {
            Self::Host(tensor) => tensor.descriptor(),
            Self::Device(tensor) => tensor.descriptor(),
        }
    }

    pub(crate) fn route(&self) -> String {
        match self {
            Self::Host(tensor) => tensor.moved().to_string(),
            Self::Device(tensor) => tensor.moved().to_string(),
        }
    }

    pub(crate) fn on_host(self) -> PyResult<Arc<Tensor>> {
        let why = "this tensor lies in the memory of a GPU: use .torch(), or .numpy(copy=True)";
        match self {
            Self::Host(tensor) => Ok(tensor),
            Self::Device(_) => Err(PyBufferError::new_err(why)),
        }
    }

    pub(crate) fn on_device(self) -> PyResult<OnDevice> {
        match self {
            Self::Device(tensor) => Ok(OnDevice(tensor)),
            Self::Host(_) => Err(PyBufferError::new_err("this tensor lies in memory of the host")),
        }
    }
}

// === impl OnDevice ===

#[pymethods]
impl OnDevice {
    /// Index of the GPU, as this process sees it.
    #[getter]
    fn gpu(&self) -> u32 {
        self.0.device().index()
    }

    /// Address on the GPU, in this process.
    #[getter]
    fn pointer(&self) -> u64 {
        self.0.pointer()
    }

    /// Strides in elements.
    #[getter]
    fn strides(&self) -> Vec<i64> {
        dimensions(&self.0.descriptor().layout).1
    }

    /// Returns whether the elements lie row-major and without gaps.
    #[getter]
    fn is_dense(&self) -> bool {
        self.0.descriptor().layout.is_contiguous()
    }

    /// A DLPack capsule over the mapped memory, which holds the lease. A versioned one says that nobody is to write.
    fn capsule<'py>(&self, py: Python<'py>, versioned: bool, bits: bool) -> PyResult<Bound<'py, PyCapsule>> {
        let layout = &self.0.descriptor().layout;
        let (shape, strides) = dimensions(layout);
        let exported = Exported {
            address: self.0.pointer(),
            device: (CUDA, self.0.device().index() as i32),
            dtype: data_type(layout.dtype(), bits),
            shape,
            strides,
            flags: READ_ONLY,
            keeps: Box::new(Arc::clone(&self.0)),
        };
        capsule(py, exported, versioned)
    }

    /// The elements on the host, copied row-major.
    fn to_host<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        let tensor = &self.0;
        let bytes = tensor.descriptor().layout.packed_bytes() as usize;
        PyByteArray::new_with(py, bytes, |to| {
            py.detach(|| tensor.copy_to_host(to)).map_err(|error| errors::raise(py, &error))
        })
    }

    /// Copies the elements to memory of the same GPU, on a stream and behind what is on it, which is waited for.
    #[pyo3(signature = (pointer, nbytes, on))]
    fn copy_to(&self, py: Python<'_>, pointer: u64, nbytes: u64, on: u64) -> PyResult<()> {
        let tensor = &self.0;
        py.detach(|| tensor.copy_to_device(pointer, nbytes, stream(on)))
            .map_err(|error| errors::raise(py, &error))
    }
}
