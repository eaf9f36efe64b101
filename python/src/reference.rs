//! References as Python values: small texts that any process of the exchange can get.

use std::hash::{Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tensorlane_proto::reference::RefShape;

use crate::errors;

/// Names a tensor from anywhere in the exchange. Immutable, hashable, picklable, and no lease: it keeps nothing.
#[pyclass(frozen, eq, hash, str, from_py_object, module = "tensorlane")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Reference(pub(crate) tensorlane_proto::Reference);

impl Hash for Reference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[pymethods]
impl Reference {
    /// Reads the text of a reference, as `str(reference)` gives it.
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        let read = text.parse().map_err(|error| errors::refuse(py, "INVALID_ARGUMENT", &format!("{error}")));
        read.map(Self)
    }

    fn __repr__(&self) -> String {
        format!("tensorlane.Reference('{}')", self.0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let text = (slf.get().0.to_string(),).into_pyobject(slf.py())?;
        Ok((slf.get_type().into_any(), text))
    }

    /// A part of the tensor, to be got: `reference[3:10, ::2]`, `reference[[1, 5020, 34572]]`.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlane.parts")?.call_method1("of", (slf, index))
    }

    /// Makes a ticket for the tensor, by the client of this process whose sidecar has it.
    #[pyo3(signature = (*, uses = 1, ttl = None))]
    fn ticket<'py>(slf: &Bound<'py, Self>, uses: i64, ttl: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlane.client")?.call_method1("ticket_of", (slf, uses, ttl))
    }

    /// Iteration would ask for the parts one by one, without an end.
    #[classattr]
    const __iter__: Option<bool> = None;

    /// The exchange that the tensor is in.
    #[getter]
    fn exchange(&self) -> String {
        self.0.exchange().to_string()
    }

    /// The peer that owns it.
    #[getter]
    fn peer(&self) -> String {
        self.0.peer().to_string()
    }

    /// The short name of the type of its elements, such as `f32`.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype().name()
    }

    /// Number of bytes of the tensor.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Shape of the tensor; None if it has so many dimensions that the text does not say them.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        match self.0.shape() {
            RefShape::Dims(dims) => Ok(Some(PyTuple::new(py, dims.iter())?)),
            _ => Ok(None),
        }
    }
}
