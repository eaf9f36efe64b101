//! Pipes: entry points, ends, descriptors and writes under way, for `tensorlane.pipes`.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensorlane_client::pipe::{
    Allocation, ConnectOptions, Delivered, Descriptor, Incoming, ListenOptions, Listener, Message, Payload,
    Pipe, Place, Tensor, WriteFailed, Writing,
};
use tensorlane_client::{Cancel, Client, Error, Result};
use tensorlane_proto::{Failure, Reason};

use crate::channel::Seconds;
use crate::client::{Core, called};
use crate::errors;
use crate::held::Acquired;
use crate::interrupt;
use crate::layout;
use crate::reference::Reference;

/// A message: its metadata, its payloads, its tensors.
#[derive(FromPyObject)]
pub(crate) struct Given(Vec<u8>, Vec<Vec<u8>>, Vec<Sent>);

/// A tensor of a message: its reference, dtype and shape where they are known, and words about it.
#[derive(FromPyObject)]
struct Sent(Reference, Option<(String, Vec<u64>)>, Vec<u8>);

/// An entry point.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct PipeListener(Held<Listener>);

/// End of a pipe.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct PipeEnd {
    end: Held<Pipe>,
    #[pyo3(get)]
    peer: String,
    #[pyo3(get)]
    client: String,
    #[pyo3(get)]
    route: String,
}

/// A message without its bytes. Given up unread it is the next one again.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct PipeDescriptor {
    pipe: Weak<Pipe>,
    descriptor: Mutex<Option<Descriptor>>,
}

/// A write under way. Given up before it is over it is withdrawn.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct PipeWriting(Mutex<Option<Writing>>);

/// Something that calls of several threads use until one closes it. Calls that wait are withdrawn then.
struct Held<T> {
    /// Locked by threads that have the interpreter's lock only, and so by no other thread in the instant of a fork.
    held: Mutex<Option<Arc<T>>>,
    cancel: Cancel,
    process: u32,
}

impl<T> Held<T> {
    fn new(held: T, cancel: Cancel) -> Self {
        Self { held: Mutex::new(Some(Arc::new(held))), cancel, process: std::process::id() }
    }

    fn get(&self) -> Result<Arc<T>> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        self.held.lock().clone().ok_or_else(closed)
    }

    /// Gives it to the caller, to be dropped without the interpreter's lock.
    fn close(&self) -> Option<Arc<T>> {
        if self.process != std::process::id() {
            return None;
        }
        let held = self.held.lock().take();
        self.cancel.cancel();
        held
    }
}

/// Opens an entry point.
pub(crate) fn listen(client: &Client, name: &str, options: &ListenOptions) -> Result<PipeListener> {
    let cancel = Cancel::new();
    let listener = client.with_cancel(cancel.clone()).listen_with(name, options)?;
    Ok(PipeListener(Held::new(listener, cancel)))
}

/// Connects to an entry point.
pub(crate) fn connect(client: &Client, to: &str, options: &ConnectOptions) -> Result<PipeEnd> {
    Ok(PipeEnd::new(client.connect_pipe(to, options)?))
}

#[pymethods]
impl PipeListener {
    /// Takes the next pipe that was connected.
    fn accept(&self, py: Python<'_>, timeout: Seconds) -> PyResult<PipeEnd> {
        let timeout = timeout.timeout(py)?;
        let listener = self.0.get().map_err(|error| errors::raise(py, &error))?;
        let accepted = py.detach(move || called(|| listener.accept(timeout)));
        accepted.map(PipeEnd::new).map_err(|error| errors::raise(py, &error))
    }

    /// Ends it; an accept of it in another thread comes back. Again is nothing.
    fn close(&self, py: Python<'_>) {
        let held = self.0.close();
        py.detach(|| drop(held));
    }
}

#[pymethods]
impl PipeEnd {
    /// Writes a message and waits until the other end has read it.
    fn write(&self, py: Python<'_>, client: &Core, given: Given, timeout: Seconds) -> PyResult<()> {
        let timeout = timeout.timeout(py)?;
        let message = given.message(py, &client.client(py)?)?;
        let end = self.end.get().map_err(|error| errors::raise(py, &error))?;
        let written = py.detach(|| called(|| end.write(message, timeout)));
        written.map(drop).map_err(|failed| raise(py, &failed)).and_then(interrupt::heeded)
    }

    /// Begins to write a message.
    fn begin(&self, py: Python<'_>, client: &Core, given: Given, timeout: Seconds) -> PyResult<PipeWriting> {
        let timeout = timeout.timeout(py)?;
        let message = given.message(py, &client.client(py)?)?;
        let end = self.end.get().map_err(|error| errors::raise(py, &error))?;
        let begun = py.detach(|| called(|| end.begin(message, timeout)));
        let writing = begun.map_err(|failed| raise(py, &failed))?;
        Ok(PipeWriting(Mutex::new(Some(writing))))
    }

    /// Takes the descriptor of the next message; None where the other end has finished and everything was read.
    fn read_descriptor(&self, py: Python<'_>, timeout: Seconds) -> PyResult<Option<PipeDescriptor>> {
        let timeout = timeout.timeout(py)?;
        let end = self.end.get().map_err(|error| errors::raise(py, &error))?;
        let incoming = py.detach(|| called(|| end.read_descriptor(timeout)));
        match errors::outcome(py, incoming)? {
            Incoming::End => Ok(None),
            Incoming::Message(descriptor) => {
                let pipe = Arc::downgrade(&end);
                Ok(Some(PipeDescriptor { pipe, descriptor: Mutex::new(Some(descriptor)) }))
            }
        }
    }

    /// Says that this end writes nothing more.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let end = self.end.get().map_err(|error| errors::raise(py, &error))?;
        py.detach(move || end.finish()).map_err(|error| errors::raise(py, &error))
    }

    /// Closes this end; calls of it that wait are withdrawn. Again is nothing.
    fn close(&self, py: Python<'_>) {
        let held = self.end.close();
        py.detach(|| drop(held));
    }
}

impl PipeEnd {
    fn new(pipe: Pipe) -> Self {
        let cancel = Cancel::new();
        let remote = pipe.remote().clone();
        let end = Held::new(pipe.with_cancel(cancel.clone()), cancel);
        Self { end, peer: remote.peer, client: remote.client, route: remote.route }
    }
}

#[pymethods]
impl PipeDescriptor {
    #[getter]
    fn sequence(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, Descriptor::sequence)
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(py, |descriptor| PyBytes::new(py, descriptor.metadata()))
    }

    /// Lengths of the payloads in bytes.
    #[getter]
    fn payloads(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.with(py, |descriptor| descriptor.payloads().collect())
    }

    /// Type, shape and length of each tensor, with the words about it.
    #[getter]
    #[expect(clippy::type_complexity, reason = "a tuple of Python")]
    fn tensors<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(&'static str, Vec<i64>, u64, Bound<'py, PyBytes>)>> {
        self.with(py, |descriptor| {
            let one = |(tensor, about): (&tensorlane_proto::Descriptor, &[u8])| {
                let layout = &tensor.layout;
                let (shape, _) = layout::dimensions(layout);
                (layout.dtype().name(), shape, layout.packed_bytes(), PyBytes::new(py, about))
            };
            descriptor.tensors().map(one).collect()
        })
    }

    /// Brings the payloads, and the tensors that are wanted, mapped; tells the writer that it was read.
    #[expect(clippy::type_complexity, reason = "a tuple of Python")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        wanted: Option<Vec<bool>>,
        timeout: Seconds,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, Vec<Option<Bound<'py, Acquired>>>)> {
        let refused = |error: Error| errors::raise(py, &error);
        let timeout = timeout.timeout(py)?;
        let pipe = self.pipe.upgrade().ok_or_else(closed).map_err(refused)?;
        let descriptor = self.descriptor.lock().take().ok_or_else(taken).map_err(refused)?;
        let place = |wanted| if wanted { Place::Map } else { Place::Skip };
        let allocation = match wanted {
            None => Allocation::map(),
            Some(wanted) => Allocation::new(wanted.into_iter().map(place).collect()),
        };
        let received = match py.detach(|| called(|| pipe.read_within(descriptor, allocation, timeout))) {
            Ok(received) => received,
            Err(failed) => {
                let failed = *failed;
                *self.descriptor.lock() = Some(failed.descriptor);
                return Err(refused(failed.error));
            }
        };
        let payload = |payload: &Payload| match payload {
            Payload::Inline(bytes) => PyBytes::new(py, bytes),
            Payload::Mapped(tensor) => PyBytes::new(py, &py.detach(|| tensor.to_vec())),
        };
        let tensor = |tensor: Tensor| match tensor {
            Tensor::Mapped(tensor) => Bound::new(py, Acquired::new(*tensor)).map(Some),
            Tensor::Copied | Tensor::Skipped => Ok(None),
        };
        let payloads = received.payloads.iter().map(payload).collect();
        let tensors = received.tensors.into_iter().map(tensor).collect::<PyResult<_>>()?;
        Ok((payloads, tensors))
    }

    /// Gives it up unread: the next descriptor is this one again.
    fn release(&self, py: Python<'_>) {
        let descriptor = self.descriptor.lock().take();
        py.detach(|| drop(descriptor));
    }
}

impl PipeDescriptor {
    fn with<R>(&self, py: Python<'_>, look: impl FnOnce(&Descriptor) -> R) -> PyResult<R> {
        let descriptor = self.descriptor.lock();
        descriptor.as_ref().map(look).ok_or_else(|| errors::raise(py, &taken()))
    }
}

#[pymethods]
impl PipeWriting {
    /// Waits until the other end has read the message.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let writing = self.0.lock().take().ok_or_else(|| {
            errors::refuse(
                py,
                "INVALID_ARGUMENT",
                "this write was waited for, or withdrawn; write the message again",
            )
        })?;
        let written = py.detach(|| called(|| writing.wait())).map(drop);
        written.map_err(|failed| raise(py, &failed)).and_then(interrupt::heeded)
    }

    /// Takes the message back. The other end may have read it already.
    fn withdraw(&self, py: Python<'_>) {
        let writing = self.0.lock().take();
        py.detach(|| drop(writing));
    }
}

impl Given {
    /// The message, of tensors that Python keeps until its write is over.
    fn message(self, py: Python<'_>, client: &Client) -> PyResult<Message> {
        let Self(metadata, payloads, tensors) = self;
        let mut message = payloads.into_iter().fold(Message::new().metadata(metadata), Message::payload);
        for Sent(Reference(reference), known, about) in tensors {
            let descriptor = match known {
                Some((dtype, shape)) => layout::descriptor(py, &dtype, &shape, Vec::new())?,
                None => {
                    let described = py.detach(|| called(|| client.describe(reference.clone())));
                    errors::outcome(py, described)?.descriptor
                }
            };
            message = message.kept(descriptor, reference).about(about);
        }
        Ok(message)
    }
}

/// The exception of a write that failed, with what is known of the message.
fn raise(py: Python<'_>, failed: &WriteFailed) -> PyErr {
    let error = errors::raise(py, &failed.error);
    let delivered = match failed.delivered {
        Delivered::No => "no",
        Delivered::Unknown => "unknown",
    };
    // An exception of a signal handler takes it as well as ours.
    let _ = error.value(py).setattr("delivered", delivered);
    error
}

fn closed() -> Error {
    Failure::new(Reason::PipeClosed, "this end was closed here; listen or connect again").into()
}

fn taken() -> Error {
    Error::InvalidArgument("this descriptor was read or given up; ask for the next one".into())
}
