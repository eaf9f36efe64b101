//! Ends of a wait before its time: a signal that Python handles (^C), or a [`Cancel`].

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// A call that is younger asks no interpreter: most are over by then, and the lock may be another thread's.
const YOUNG: Duration = Duration::from_millis(50);

thread_local! {
    /// When the call of this thread began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The exception that a signal handler raised during it.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Notes that a call begins on this thread.
pub(crate) fn begin() {
    BEGAN.set(Some(Instant::now()));
    RAISED.take();
}

/// Takes the exception that a handler raised during the call of this thread.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// The result of a call that went well, unless a handler raised during it: nobody else would tell what.
pub(crate) fn heeded<R>(brought: R) -> PyResult<R> {
    match raised() {
        Some(raised) => Err(raised),
        None => Ok(brought),
    }
}

/// Lets Python handle signals; true where a handler raised. Only the main thread has handlers.
pub(crate) fn interrupted() -> bool {
    let young = BEGAN.get().is_some_and(|began| began.elapsed() < YOUNG);
    if young || rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    match Python::attach(handle_signals) {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    }
}

fn handle_signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// Withdraws the calls that were given it, from any thread, within 100 ms.
#[pyclass(frozen, module = "tensorlane")]
#[derive(Default)]
pub(crate) struct Cancel(pub(crate) tensorlane_client::Cancel);

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Makes a Cancel for a part of the calls: either withdraws them, and the part's use does not use this one.
    fn part(&self) -> Self {
        Self(self.0.part())
    }

    /// Withdraws: calls that wait end with `tensorlane.Withdrawn`, later ones at once.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// Returns whether it was used, or one that it is a part of.
    #[getter]
    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}
