//! Watches of names, for `tensorlane.watching`.

use pyo3::prelude::*;
use tensorlane_client::{Cancel, Client, Error, WatchOptions};
use tensorlane_proto::{Failure, Reason};

use crate::channel::{OneAtATime, Seconds};
use crate::errors;
use crate::reference::Reference;

/// An event: what happened, the name, what it stands for, and the revision to go on from.
type Event = (&'static str, String, Option<Reference>, Option<String>);

/// A watch of the names that begin alike.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Watch {
    end: OneAtATime<tensorlane_client::Watch>,
    /// Ends a wait.
    cancel: Cancel,
}

/// Begins a watch. Nothing is asked yet.
///
/// # Errors
/// A revision or the name of a peer that is none.
pub(crate) fn watch(
    client: &Client,
    prefix: &str,
    after: Option<&str>,
    peer: Option<&str>,
) -> tensorlane_client::Result<Watch> {
    let invalid = |error: String| Error::from(Failure::new(Reason::InvalidArgument, error));
    let mut options = WatchOptions::new();
    if let Some(after) = after {
        options = options.from(after.parse().map_err(|error| Error::from(Failure::from(error)))?);
    }
    if let Some(peer) = peer {
        let name = peer
            .parse()
            .map_err(|error: tensorlane_proto::identity::IdentityError| invalid(error.to_string()))?;
        options = options.peer(name);
    }
    let cancel = Cancel::new();
    let watch = client.with_cancel(cancel.clone()).watch(prefix, options);
    Ok(Watch { end: OneAtATime::new(watch, closed), cancel })
}

#[pymethods]
impl Watch {
    /// The next event.
    fn next(&self, py: Python<'_>, timeout: Seconds) -> PyResult<Event> {
        let timeout = timeout.timeout(py)?;
        let next = py.detach(|| self.end.with(|watch| watch.next(timeout), drop));
        let event = next.map_err(|error| errors::raise(py, &error))?;
        let revision = event.revision.map(|revision| revision.to_string());
        Ok((event.kind.as_str(), event.name, event.reference.map(Reference), revision))
    }

    /// Ends it; a call of it in another thread comes back. Again is nothing.
    fn close(&self, py: Python<'_>) {
        if !self.end.is_child() {
            py.detach(|| {
                self.cancel.cancel();
                self.end.close(drop);
            });
        }
    }
}

fn closed() -> Error {
    Failure::new(Reason::InvalidArgument, "this watch was closed; begin another one").into()
}
