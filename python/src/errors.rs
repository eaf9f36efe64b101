//! Errors of the client as exceptions of `tensorlane`. The classes and what helps are Python's (`tensorlane/errors.py`).

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use tensorlane_client::Error;
use tensorlane_proto::{Code, Reason};

/// The exception for an error of the client; what a signal handler raised, where one did during the call.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    // Whatever the error: a handler is called once, and nobody else tells what it raised.
    if let Some(raised) = crate::interrupt::raised() {
        return raised;
    }
    let (message, details) = match error {
        Error::Refused(failure) => (
            failure.message.clone(),
            failure.details.iter().map(|(k, v)| (k.to_string(), v.clone())).collect(),
        ),
        Error::Gpu(refusal) => {
            (refusal.to_string(), vec![("refusal".to_owned(), refusal.label().to_owned())])
        }
        other => (other.to_string(), Vec::new()),
    };
    made(py, kind(error), error.reason().map(Reason::as_str), &message, details)
}

/// The result of a call as Python has it. What a signal handler raised during the call comes first.
pub(crate) fn outcome<R>(py: Python<'_>, result: tensorlane_client::Result<R>) -> PyResult<R> {
    result.map_err(|error| raise(py, &error)).and_then(crate::interrupt::heeded)
}

/// A refusal of this side, in the words of a class of `tensorlane.errors`.
pub(crate) fn refuse(py: Python<'_>, kind: &str, message: &str) -> PyErr {
    made(py, kind, None, message, Vec::new())
}

fn made(
    py: Python<'_>,
    kind: &str,
    reason: Option<&str>,
    message: &str,
    details: Vec<(String, String)>,
) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let details: Bound<'_, PyDict> = details.into_py_dict(py)?;
        let made = py.import("tensorlane.errors")?.getattr("make")?;
        Ok(PyErr::from_value(made.call1((kind, reason, message, details))?))
    };
    make().unwrap_or_else(|error| error)
}

/// The name in `tensorlane.errors`: the gRPC code, or the case of the client.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Refused(failure) => failure.code.as_str(),
        Error::SidecarUnreachable { .. } => "SIDECAR_UNREACHABLE",
        Error::SessionLost { .. } => "SESSION_LOST",
        Error::DeadlineExceeded { .. } => Code::DeadlineExceeded.as_str(),
        Error::Withdrawn => "WITHDRAWN",
        Error::InvalidArgument(_) => Code::InvalidArgument.as_str(),
        Error::Resources { .. } => Code::ResourceExhausted.as_str(),
        Error::Forked => "FORKED",
        Error::Gpu(_) => "GPU",
        _ => Code::Internal.as_str(),
    }
}
