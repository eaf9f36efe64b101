//! Channels: the writer and the reader of one, for `tensorlane.channels`.

use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tensorlane_client::channel::{
    ChannelReader, ChannelSpec, ChannelStatus, ChannelWriter, End, Part, Read, ReadOptions, ReaderCloser,
    Timeout,
};
use tensorlane_client::{Client, Error, Result};

use crate::client::{called, seconds};
use crate::errors;
use crate::layout;
use crate::raw::{Acquired, with_bytes};

/// One part of a message: its bytes, dtype, shape and metadata.
#[derive(FromPyObject)]
pub(crate) struct Dense(PyBuffer<u8>, String, Vec<u64>, Vec<(String, String)>);

/// A time to wait: the client's deadline, or seconds, of which 0 is one try and infinity for ever.
#[derive(FromPyObject)]
pub(crate) struct Seconds(Option<f64>);

/// The only writer of a channel.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Writer {
    process: u32,
    writer: Mutex<Option<ChannelWriter>>,
}

/// A reader of a channel.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Reader {
    process: u32,
    closer: ReaderCloser,
    reader: Mutex<Option<ChannelReader>>,
    #[pyo3(get)]
    first: u64,
    #[pyo3(get)]
    missed: u64,
    #[pyo3(get)]
    route: String,
    #[pyo3(get)]
    writer: String,
}

/// Makes a channel.
pub(crate) fn writer(client: &Client, spec: &ChannelSpec) -> Result<Writer> {
    let writer = Mutex::new(Some(client.channel_writer(spec)?));
    Ok(Writer { process: std::process::id(), writer })
}

/// Attaches to a channel.
pub(crate) fn reader(client: &Client, name: &str, options: &ReadOptions) -> Result<Reader> {
    let reader = client.channel_reader(name, options)?;
    let attached = reader.attached().clone();
    Ok(Reader {
        process: std::process::id(),
        closer: reader.closer(),
        reader: Mutex::new(Some(reader)),
        first: attached.first,
        missed: attached.missed,
        route: attached.route,
        writer: attached.writer,
    })
}

/// Channels as dicts of plain values.
pub(crate) fn statuses(py: Python<'_>, channels: Vec<ChannelStatus>) -> PyResult<Bound<'_, PyList>> {
    let told = PyList::empty(py);
    for channel in channels {
        let one = PyDict::new(py);
        let spec = channel.spec.unwrap_or_default();
        one.set_item("name", spec.name)?;
        one.set_item("writer", channel.writer)?;
        one.set_item("written", channel.written)?;
        one.set_item("finished", channel.finished)?;
        one.set_item("slots", spec.slots)?;
        one.set_item("slot_bytes", spec.slot_bytes)?;
        let readers = PyList::empty(py);
        for reader in channel.readers {
            let status = PyDict::new(py);
            status.set_item("client", reader.client)?;
            status.set_item("route", reader.route)?;
            status.set_item("behind", channel.written.saturating_sub(reader.next))?;
            status.set_item("waits", reader.waits)?;
            readers.append(status)?;
        }
        one.set_item("readers", readers)?;
        told.append(one)?;
    }
    Ok(told)
}

#[pymethods]
impl Writer {
    /// Writes a message of parts: its sequence, and how many readers it is for.
    fn write(&self, py: Python<'_>, parts: Vec<Dense>, timeout: Seconds) -> PyResult<(u64, u32)> {
        let timeout = timeout.timeout(py)?;
        let mut buffers = Vec::with_capacity(parts.len());
        let mut described = Vec::with_capacity(parts.len());
        for Dense(bytes, dtype, shape, metadata) in parts {
            described.push(layout::descriptor(py, &dtype, &shape, metadata)?);
            buffers.push(bytes);
        }
        let written = with_bytes(py, &buffers, |bytes| {
            let parts: Vec<Part<'_>> = described
                .iter()
                .zip(bytes)
                .map(|(descriptor, bytes)| Part::tensor(descriptor, bytes))
                .collect();
            self.with(|writer| writer.write(&parts, timeout))
        })?;
        let written = written.map_err(|error| errors::raise(py, &error))?;
        Ok((written.sequence, written.readers))
    }

    /// Writes a message of plain bytes.
    fn write_bytes(&self, py: Python<'_>, bytes: PyBuffer<u8>, timeout: Seconds) -> PyResult<(u64, u32)> {
        let timeout = timeout.timeout(py)?;
        let written = with_bytes(py, &[bytes], |bytes| {
            self.with(|writer| writer.write_bytes(bytes.first().copied().unwrap_or_default(), timeout))
        })?;
        let written = written.map_err(|error| errors::raise(py, &error))?;
        Ok((written.sequence, written.readers))
    }

    /// Number of readers that are attached.
    #[getter]
    fn readers(&self, py: Python<'_>) -> PyResult<usize> {
        py.detach(|| self.with(|writer| Ok(writer.readers()))).map_err(|error| errors::raise(py, &error))
    }

    /// Says that no message comes any more, or else lets the channel go. Again is nothing.
    fn close(&self, py: Python<'_>, finish: bool) {
        if self.process != std::process::id() {
            return;
        }
        py.detach(|| {
            let writer = self.writer.lock().take();
            match writer {
                Some(writer) if finish => writer.finish(),
                other => drop(other),
            }
        });
    }
}

impl Writer {
    fn with<R>(&self, work: impl FnOnce(&mut ChannelWriter) -> Result<R>) -> Result<R> {
        // Before the lock: another thread of the parent may have held it when the child was made.
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        let mut writer = self.writer.lock();
        let writer = writer.as_mut().ok_or_else(closed)?;
        called(|| work(writer))
    }
}

#[pymethods]
impl Reader {
    /// The next message: its sequence, whether it is plain bytes, and its tensors; or a word for how the channel ended.
    fn read<'py>(&self, py: Python<'py>, timeout: Seconds) -> PyResult<Bound<'py, PyAny>> {
        let timeout = timeout.timeout(py)?;
        let read = py.detach(|| self.next(timeout)).map_err(|error| errors::raise(py, &error))?;
        let message = match read {
            Read::End(End::Finished) => return Ok("finished".into_pyobject(py)?.into_any()),
            Read::End(End::WriterLost) => return Ok("lost".into_pyobject(py)?.into_any()),
            Read::Message(message) => message,
        };
        let (sequence, plain) = (message.sequence(), message.parts() == 0);
        let tensors = message.into_tensors().map_err(|error| errors::raise(py, &error))?;
        let made = tensors.into_iter().map(|tensor| Bound::new(py, Acquired::new(tensor)));
        Ok((sequence, plain, made.collect::<PyResult<Vec<_>>>()?).into_pyobject(py)?.into_any())
    }

    /// Ends the reader; a read of it in another thread comes back. Messages that are held stay as they are.
    fn close(&self, py: Python<'_>) {
        if self.process != std::process::id() {
            return;
        }
        py.detach(|| {
            self.closer.close();
            let reader = self.reader.lock().take();
            drop(reader);
        });
    }
}

impl Reader {
    fn next(&self, timeout: Timeout) -> Result<Read> {
        // Before the lock, as in the writer.
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        let mut reader = self.reader.lock();
        let reader = reader.as_mut().ok_or_else(closed)?;
        called(|| reader.read(timeout))
    }
}

impl Seconds {
    fn timeout(&self, py: Python<'_>) -> PyResult<Timeout> {
        Ok(match self.0 {
            None => Timeout::Default,
            Some(0.0) => Timeout::Now,
            Some(f64::INFINITY) => Timeout::Never,
            Some(given) => Timeout::After(seconds(py, given)?),
        })
    }
}

fn closed() -> Error {
    let message = "this end of the channel was closed";
    tensorlane_proto::Failure::new(tensorlane_proto::Reason::ChannelEnded, message).into()
}
