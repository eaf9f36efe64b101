//! Stored tensors: the lease that a put gives, and the reference.

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use tensorlane_client::Lease;

use crate::reference::Reference;

/// A stored tensor: its reference, and the lease that keeps it until this is released or dropped.
#[pyclass(frozen, module = "tensorlane")]
pub(crate) struct Stored {
    reference: Reference,
    ticket: Option<String>,
    lease: Mutex<Option<Lease>>,
}

impl Stored {
    pub(crate) fn new(stored: tensorlane_client::Stored) -> Self {
        let reference = Reference(stored.reference().clone());
        let ticket = stored.ticket().map(str::to_owned);
        Self { reference, ticket, lease: Mutex::new(stored.into_lease()) }
    }
}

#[pymethods]
impl Stored {
    /// Names the tensor from anywhere in the exchange; small, picklable, and no lease.
    #[getter]
    fn reference(&self) -> Reference {
        self.reference.clone()
    }

    /// The ticket that was asked for.
    #[getter]
    fn ticket(&self) -> Option<&str> {
        self.ticket.as_deref()
    }

    /// Returns whether this holds a lease of a session that stands.
    #[getter]
    fn held(&self) -> bool {
        self.lease.lock().as_ref().is_some_and(Lease::is_live)
    }

    /// Ends the lease. What no name, ticket or other lease keeps is freed.
    fn release(&self) {
        self.lease.lock().take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: Bound<'_, PyAny>, _value: Bound<'_, PyAny>, _trace: Bound<'_, PyAny>) {
        self.release();
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a lease stays in its process; pickle `.reference` and keep this while it is used",
        ))
    }

    fn __str__(&self) -> String {
        self.reference.to_string()
    }

    fn __repr__(&self) -> String {
        let held = if self.held() { "held" } else { "released" };
        format!("<tensorlane.Stored {}, {held}>", self.reference)
    }
}
