//! Channels: the writer and the reader of one, for `tensorlane.channels`.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tensorlane_client::channel::{
    AttachedReaders, Attachment, ChannelReader, ChannelSpec, ChannelStatus, ChannelWriter, End, Part, Placed,
    Policy, Read, ReadOptions, ReaderCloser, Timeout, policy_of,
};
use tensorlane_client::{Cancel, Client, Error, Result};
use tensorlane_proto::Incarnation;

use crate::client::{called, seconds};
use crate::errors;
use crate::held::Acquired;
use crate::interrupt::Cancel as Withdraws;
use crate::layout;
use crate::raw::with_bytes;

/// Part of a message: its bytes, dtype, shape and metadata.
#[derive(FromPyObject)]
pub(crate) struct Dense(PyBuffer<u8>, String, Vec<u64>, Vec<(String, String)>);

/// A time to wait: the client's deadline, or seconds, of which 0 is one try and infinity for ever.
#[derive(FromPyObject)]
pub(crate) struct Seconds(Option<f64>);

/// Objects of the messages that lie in a ring, by their sequences, and the one that is written.
type Kept = (Py<PyDict>, Py<PyAny>);

/// The only writer of a channel.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Writer {
    end: OneAtATime<ChannelWriter>,
    /// Ends a write that waits.
    cancel: Cancel,
    attached: AttachedReaders,
    channel: (String, u64),
    /// Set if the channel is finished when it is closed.
    finishes: AtomicBool,
}

/// An end of a channel, used by one call at a time. A signal handler may close it in the middle of a call of its own thread: so nobody
/// waits for a call that is under way, and whoever is done last lets the end go.
pub(crate) struct OneAtATime<T> {
    process: u32,
    /// Makes the error of a call after it was closed.
    refusal: fn() -> Error,
    end: Mutex<Option<T>>,
    closed: AtomicBool,
}

impl<T> OneAtATime<T> {
    pub(crate) fn new(end: T, refusal: fn() -> Error) -> Self {
        let (process, end) = (std::process::id(), Mutex::new(Some(end)));
        Self { process, refusal, end, closed: AtomicBool::new(false) }
    }

    pub(crate) fn is_child(&self) -> bool {
        self.process != std::process::id()
    }

    /// Runs a call. `let_go` takes the end that was closed meanwhile.
    pub(crate) fn with<R>(
        &self,
        call: impl FnOnce(&mut T) -> Result<R>,
        let_go: impl FnOnce(T),
    ) -> Result<R> {
        // Before the lock: another thread of the parent may have held it when the child was made.
        if self.is_child() {
            return Err(Error::Forked);
        }
        let done = {
            let mut end = self.end.try_lock().ok_or_else(busy)?;
            match end.as_mut() {
                Some(end) if !self.closed.load(Ordering::SeqCst) => called(|| call(end)),
                _ => Err((self.refusal)()),
            }
        };
        self.let_go_if_closed(let_go);
        done
    }

    /// Checks that it is open, and this process's. Beside a call that is under way.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_child() {
            return Err(Error::Forked);
        }
        if self.closed.load(Ordering::SeqCst) {
            return Err((self.refusal)());
        }
        Ok(())
    }

    /// Closes it, now or when the call that is under way is done.
    pub(crate) fn close(&self, let_go: impl FnOnce(T)) {
        self.closed.store(true, Ordering::SeqCst);
        self.let_go_if_closed(let_go);
    }

    fn let_go_if_closed(&self, let_go: impl FnOnce(T)) {
        if !self.closed.load(Ordering::SeqCst) {
            return;
        }
        // Where it is taken, its taker looks again when it is done.
        let end = self.end.try_lock().and_then(|mut end| end.take());
        if let Some(end) = end {
            let_go(end);
        }
    }
}

/// A reader of a channel.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Reader {
    end: OneAtATime<ChannelReader>,
    closer: ReaderCloser,
    /// Channel that it was attached to first; none of another peer.
    channel: Option<(String, u64)>,
    /// Result of the last attach. Locked by threads that have the interpreter's lock only, and so by no other thread in the instant of a
    /// fork.
    attached: Mutex<Attachment>,
}

/// A policy by its name.
pub(crate) fn policy(name: &str) -> Result<Policy> {
    Policy::named(name).ok_or_else(|| {
        let message = format!("{name:?} is no policy of a channel; choose block, drop_oldest or latest");
        tensorlane_proto::Failure::new(tensorlane_proto::Reason::InvalidArgument, message).into()
    })
}

/// Makes a channel.
pub(crate) fn writer(client: &Client, spec: &ChannelSpec) -> Result<Writer> {
    let cancel = Cancel::new();
    let writer = client.with_cancel(cancel.clone()).channel_writer(spec)?;
    let (attached, channel) = (writer.attached(), told(writer.channel()));
    let finishes = AtomicBool::new(false);
    Ok(Writer { end: OneAtATime::new(writer, closed), cancel, attached, channel, finishes })
}

/// Attaches to a channel.
pub(crate) fn reader(client: &Client, name: &str, options: &ReadOptions) -> Result<Reader> {
    let reader = client.channel_reader(name, options)?;
    let (attached, channel) = (Mutex::new(reader.attached().clone()), reader.channel().map(told));
    Ok(Reader { closer: reader.closer(), end: OneAtATime::new(reader, closed), channel, attached })
}

/// Incarnation of a sidecar and number of a channel there, for Python.
fn told((incarnation, number): (Incarnation, u64)) -> (String, u64) {
    (incarnation.to_string(), number)
}

/// Puts the object of a message in the place of the one that lay in its slot.
fn keep(kept: Option<&Kept>, placed: Placed) {
    let Some((objects, value)) = kept else { return };
    // Without an entry, for want of memory, the message is read from the ring. An interpreter that ends has no reader.
    Python::try_attach(|py| {
        let objects = objects.bind(py);
        if let Some(before) = placed.replaces {
            let _ = objects.del_item(before);
        }
        let _ = objects.set_item(placed.sequence, value.bind(py));
    });
}

/// Channels as dicts of plain values.
pub(crate) fn statuses(py: Python<'_>, channels: Vec<ChannelStatus>) -> PyResult<Bound<'_, PyList>> {
    let told = PyList::empty(py);
    for channel in channels {
        let one = PyDict::new(py);
        let spec = channel.spec.unwrap_or_default();
        let policy = policy_of(&spec).map_or("unknown", Policy::as_str);
        one.set_item("name", spec.name)?;
        one.set_item("peer", channel.peer)?;
        one.set_item("route", channel.route)?;
        one.set_item("writer", channel.writer)?;
        one.set_item("written", channel.written)?;
        one.set_item("finished", channel.finished)?;
        one.set_item("slots", spec.slots)?;
        one.set_item("slot_bytes", spec.slot_bytes)?;
        one.set_item("growth", spec.growth)?;
        one.set_item("policy", policy)?;
        one.set_item("evicts", spec.evicts)?;
        one.set_item("allowed", channel.allowed.map(|allowed| allowed.patterns))?;
        one.set_item("allowed_left_out", channel.allowed_left_out)?;
        let readers = PyList::empty(py);
        for reader in channel.readers {
            let status = PyDict::new(py);
            status.set_item("reader", reader.reader)?;
            status.set_item("client", reader.client)?;
            status.set_item("route", reader.route)?;
            status.set_item("behind", channel.written.saturating_sub(reader.next))?;
            status.set_item("dropped", reader.dropped)?;
            status.set_item("waits", reader.waits)?;
            status.set_item("evicted", reader.evicted)?;
            readers.append(status)?;
        }
        one.set_item("readers", readers)?;
        one.set_item("readers_left_out", channel.readers_left_out)?;
        told.append(one)?;
    }
    Ok(told)
}

#[pymethods]
impl Writer {
    /// Writes a message of parts: its sequence, and how many readers it is for. With `kept`, its object is there before a reader sees it.
    #[pyo3(signature = (parts, timeout, kept=None))]
    fn write(
        &self,
        py: Python<'_>,
        parts: Vec<Dense>,
        timeout: Seconds,
        kept: Option<Kept>,
    ) -> PyResult<(u64, u32, bool)> {
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
            self.with(|writer| writer.write_placed(&parts, timeout, |placed| keep(kept.as_ref(), placed)))
        })?;
        let written = written.map_err(|error| errors::raise(py, &error))?;
        Ok((written.sequence, written.readers, written.dropped))
    }

    /// Writes a message of plain bytes, as `write` does.
    #[pyo3(signature = (bytes, timeout, kept=None))]
    fn write_bytes(
        &self,
        py: Python<'_>,
        bytes: PyBuffer<u8>,
        timeout: Seconds,
        kept: Option<Kept>,
    ) -> PyResult<(u64, u32, bool)> {
        let timeout = timeout.timeout(py)?;
        let written = with_bytes(py, &[bytes], |bytes| {
            let bytes = bytes.first().copied().unwrap_or_default();
            self.with(|writer| {
                writer.write_bytes_placed(bytes, timeout, |placed| keep(kept.as_ref(), placed))
            })
        })?;
        let written = written.map_err(|error| errors::raise(py, &error))?;
        Ok((written.sequence, written.readers, written.dropped))
    }

    /// Evicts a reader. Beside a write, which may wait for just that reader.
    fn evict(&self, py: Python<'_>, reader: u64) -> PyResult<()> {
        let evict = || called(|| self.attached.evict(reader));
        let evicted = py.detach(|| self.end.check().and_then(|()| evict()));
        evicted.map_err(|error| errors::raise(py, &error))
    }

    /// Incarnation of the sidecar that has the channel, and its number there.
    #[getter]
    fn channel(&self) -> (String, u64) {
        self.channel.clone()
    }

    /// Number of readers that are attached.
    #[getter]
    fn readers(&self, py: Python<'_>) -> PyResult<usize> {
        match self.end.is_child() {
            true => Err(errors::raise(py, &Error::Forked)),
            false => Ok(self.attached.count()),
        }
    }

    /// Says that no message comes any more, or else lets the channel go. A write that waits is withdrawn. Again is nothing.
    fn close(&self, py: Python<'_>, finish: bool) {
        if !self.end.is_child() {
            self.finishes.fetch_or(finish, Ordering::SeqCst);
            self.cancel.cancel();
            py.detach(|| self.end.close(|writer| self.let_go(writer)));
        }
    }
}

impl Writer {
    fn with<R>(&self, work: impl FnOnce(&mut ChannelWriter) -> Result<R>) -> Result<R> {
        self.end.with(work, |writer| self.let_go(writer))
    }

    fn let_go(&self, writer: ChannelWriter) {
        if self.finishes.load(Ordering::SeqCst) {
            writer.finish();
        }
    }
}

#[pymethods]
impl Reader {
    /// Incarnation of the sidecar and number of the channel there, of the first attach; none of another peer's.
    #[getter]
    fn channel(&self) -> Option<(String, u64)> {
        self.channel.clone()
    }

    #[getter]
    fn first(&self) -> u64 {
        self.attached.lock().first
    }

    #[getter]
    fn missed(&self) -> u64 {
        self.attached.lock().missed
    }

    #[getter]
    fn route(&self) -> String {
        self.attached.lock().route.clone()
    }

    #[getter]
    fn peer(&self) -> String {
        self.attached.lock().peer.clone()
    }

    #[getter]
    fn writer(&self) -> String {
        self.attached.lock().writer.clone()
    }

    #[getter]
    fn policy(&self) -> &'static str {
        self.attached.lock().policy.as_str()
    }

    /// The next message: its sequence, whether it is plain bytes, and its tensors; or how many were dropped before it; or a word for how
    /// the channel ended, or that another one is read from now on.
    ///
    /// With `cancel` it is withdrawn by that, and by `wake` then.
    #[pyo3(signature = (timeout, cancel=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        timeout: Seconds,
        cancel: Option<&Withdraws>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let timeout = timeout.timeout(py)?;
        let cancel = cancel.map(|cancel| cancel.0.clone());
        let read = py.detach(|| self.next(timeout, cancel));
        let (read, attached) = read.map_err(|error| errors::raise(py, &error))?;
        if let Some(attached) = attached {
            *self.attached.lock() = attached;
        }
        let message = match read {
            Read::End(End::Finished) => return Ok("finished".into_pyobject(py)?.into_any()),
            Read::End(End::WriterLost) => return Ok("lost".into_pyobject(py)?.into_any()),
            Read::End(End::PeerLost) => return Ok("cut".into_pyobject(py)?.into_any()),
            Read::Epoch { .. } => return Ok("epoch".into_pyobject(py)?.into_any()),
            Read::Gap { dropped, .. } => return Ok(dropped.into_pyobject(py)?.into_any()),
            Read::Message(message) => message,
        };
        let (sequence, plain) = (message.sequence(), message.parts() == 0);
        let tensors = message.into_tensors().map_err(|error| errors::raise(py, &error))?;
        let made = tensors.into_iter().map(|tensor| Bound::new(py, Acquired::new(tensor)));
        Ok((sequence, plain, made.collect::<PyResult<Vec<_>>>()?).into_pyobject(py)?.into_any())
    }

    /// Wakes a read of another thread, whose cancel was used.
    fn wake(&self) {
        self.closer.wake();
    }

    /// Ends the reader; a read of it in another thread comes back. Messages that are held stay as they are.
    fn close(&self, py: Python<'_>) {
        if !self.end.is_child() {
            py.detach(|| {
                self.closer.close();
                self.end.close(drop);
            });
        }
    }
}

impl Reader {
    /// The next read, and how it was attached anew, if it was.
    fn next(&self, timeout: Timeout, cancel: Option<Cancel>) -> Result<(Read, Option<Attachment>)> {
        let read = |reader: &mut ChannelReader| {
            let read = match cancel {
                None => reader.read(timeout)?,
                Some(cancel) => {
                    reader.set_cancel(Some(cancel));
                    let read = reader.read(timeout);
                    reader.set_cancel(None);
                    read?
                }
            };
            let attached = matches!(read, Read::Epoch { .. }).then(|| reader.attached().clone());
            Ok((read, attached))
        };
        self.end.with(read, drop)
    }
}

impl Seconds {
    pub(crate) fn timeout(&self, py: Python<'_>) -> PyResult<Timeout> {
        Ok(match self.0 {
            None => Timeout::Default,
            Some(0.0) => Timeout::Now,
            Some(f64::INFINITY) => Timeout::Never,
            Some(given) => Timeout::After(seconds(py, given)?),
        })
    }
}

fn busy() -> Error {
    let message =
        "this end of a channel, or this watch, is in use by another call; it serves one call at a time";
    tensorlane_proto::Failure::new(tensorlane_proto::Reason::InvalidArgument, message).into()
}

fn closed() -> Error {
    let message = "this end of the channel was closed";
    tensorlane_proto::Failure::new(tensorlane_proto::Reason::ChannelEnded, message).into()
}
