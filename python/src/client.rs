//! Calls of a client, for `tensorlane.Client`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use tensorlane_client::channel::{ChannelSpec, ReadOptions};
use tensorlane_client::pipe::{ConnectOptions, ListenOptions};
use tensorlane_client::set::mutable::CommitOptions;
use tensorlane_client::set::snapshot::{Snapshot, SnapshotOptions};
use tensorlane_client::{
    AcquireOptions, Client, ClientOptions, Item, Moved, Naming, PutOptions, Result, RetryId, SOCKETS_ENV,
    Target, sockets_directory,
};
use tensorlane_proto::{Descriptor, Failure, Range, Reason, Require, Selection};

use crate::channel;
use crate::errors;
use crate::held::Acquired;
use crate::interrupt::{self, Cancel};
use crate::layout;
use crate::mutable::{self, Opened};
use crate::pipe;
use crate::raw::{Block, Memory, with_bytes};
use crate::reference::Reference;
use crate::set;
use crate::stored::Stored;
use crate::watch;

/// A client, connected anew in each process that uses it.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Core {
    directory: PathBuf,
    options: ClientOptions,
    deadline: Duration,
    /// Locked by threads that have the interpreter's lock only, and so by no other thread in the instant of a fork.
    client: Mutex<Option<Connected>>,
}

struct Connected {
    process: u32,
    client: Client,
}

/// A tensor that is asked for: a reference, or a name with the peer that it belongs to.
#[derive(FromPyObject)]
enum Wanted {
    Reference(Reference),
    Name(String, Option<String>),
}

/// A part of a tensor: a range for each leading dimension, or rows of the first one; and dimensions that go because an
/// index took one element of them.
#[derive(FromPyObject)]
struct Part(Vec<(Option<u64>, Option<u64>, u64)>, Option<Vec<u64>>, Vec<usize>);

/// Terms on which tensors are got: for how long a name may not exist yet, the deadline, and what the route must be, with commas between
/// the words.
#[derive(FromPyObject)]
struct Terms(f64, Option<f64>, String);

/// A dense array: its bytes, dtype, shape, metadata, and how it is stored.
#[derive(FromPyObject)]
struct Dense(PyBuffer<u8>, String, Vec<u64>, Vec<(String, String)>, Keep);

/// Options for storing a tensor.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Keep {
    name: Option<String>,
    replaces: Option<Reference>,
    ticket: Option<f64>,
    uses: u32,
    lease: bool,
    checksum: bool,
    deadline: Option<f64>,
}

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (directory, name, deadline, patience))]
    fn new(
        py: Python<'_>,
        directory: Option<PathBuf>,
        name: Option<String>,
        deadline: f64,
        patience: f64,
    ) -> PyResult<Self> {
        let directory = directory.unwrap_or_else(|| sockets_directory(std::env::var_os(SOCKETS_ENV)));
        let deadline = seconds(py, deadline)?;
        let mut options = ClientOptions::at(&directory).deadline(deadline).interrupt(interrupt::interrupted);
        if let Some(name) = name {
            options = options.name(&name);
        }
        let core = Self { directory, options: options.clone(), deadline, client: Mutex::new(None) };
        core.connect(py, options.patience(seconds(py, patience)?))?;
        Ok(core)
    }

    #[getter]
    fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    #[getter]
    fn exchange(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |client| client.exchange().map(|name| name.to_string()))
    }

    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |client| client.peer().map(|name| name.to_string()))
    }

    /// Ends the connection, once the last tensor and lease of it is gone.
    fn close(&self, py: Python<'_>) {
        let connected = self.client.lock().take();
        match connected {
            // It belongs to the parent, whose locks it may hold.
            Some(parents) if parents.process != std::process::id() => std::mem::forget(parents),
            own => py.detach(|| drop(own)),
        }
    }

    /// Stores bytes, each with a result of its own: the stored tensor, or the exception.
    fn put<'py>(&self, py: Python<'py>, items: Vec<Dense>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut buffers = Vec::with_capacity(items.len());
        let mut described = Vec::with_capacity(items.len());
        for Dense(bytes, dtype, shape, metadata, keep) in items {
            described.push((layout::descriptor(py, &dtype, &shape, metadata)?, keep.options(py)?));
            buffers.push(bytes);
        }
        let client = self.client(py)?;
        let results = with_bytes(py, &buffers, |bytes| {
            called(|| match (bytes, described.as_slice()) {
                ([bytes], [(descriptor, options)]) => vec![client.put(descriptor, bytes, options)],
                _ => client.put_many(&bytes.iter().zip(&described).map(as_item).collect::<Vec<_>>()),
            })
        })?;
        let results = interrupt::heeded(results)?;
        let one = |result: Result<_>| match result {
            Ok(stored) => Ok(Bound::new(py, Stored::new(stored))?.into_any()),
            Err(error) => Ok(errors::raise(py, &error).into_value(py).into_bound(py).into_any()),
        };
        results.into_iter().map(one).collect()
    }

    /// Makes room for a tensor that will be written in place.
    fn reserve(
        &self,
        py: Python<'_>,
        dtype: &str,
        shape: Vec<u64>,
        metadata: Vec<(String, String)>,
        deadline: Option<f64>,
    ) -> PyResult<Block> {
        let descriptor = layout::descriptor(py, dtype, &shape, metadata)?;
        let deadline = deadline.map(|deadline| seconds(py, deadline)).transpose()?.unwrap_or(self.deadline);
        self.call(py, |client| client.with_deadline(deadline).reserve(&descriptor)).map(Block::new)
    }

    /// Makes a written block a tensor.
    fn seal(&self, py: Python<'_>, block: &Block, keep: Keep) -> PyResult<Stored> {
        let options = keep.options(py)?;
        let reservation = block.take(py)?;
        let stored = py.detach(|| called(|| reservation.seal(&options)));
        errors::outcome(py, stored.map(Stored::new))
    }

    /// Leases and maps tensors, each with a result of its own: what was acquired, or the exception.
    #[pyo3(signature = (targets, terms, cancel, part))]
    fn acquire<'py>(
        &self,
        py: Python<'py>,
        targets: Vec<Wanted>,
        terms: Terms,
        cancel: Option<&Cancel>,
        part: Option<Part>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let targets = targets.into_iter().map(|wanted| wanted.target(py)).collect::<PyResult<Vec<_>>>()?;
        let mut options = self.options(py, terms)?;
        let mut dropped = Vec::new();
        if let Some(part) = part {
            (options.selection, dropped) = part.selection();
        }
        let mut client = self.client(py)?;
        if let Some(Cancel(cancel)) = cancel {
            client = client.with_cancel(cancel.clone());
        }
        let results = interrupt::heeded(py.detach(|| called(|| client.acquire_any(&targets, &options))))?;
        let results = results.into_iter().map(|result| result?.squeezed(&dropped));
        let one = |result: Result<_>| match result {
            Ok(tensor) => Ok(Bound::new(py, Acquired::new(tensor))?.into_any()),
            Err(error) => Ok(errors::raise(py, &error).into_value(py).into_bound(py).into_any()),
        };
        results.map(one).collect()
    }

    /// Returns whether a tensor is one of this sidecar, in its present life. False where that cannot be told.
    fn owns(&self, py: Python<'_>, reference: Reference) -> bool {
        let Reference(of) = reference;
        let is_ours = |client: &Client| {
            let here = (client.exchange()?, client.peer()?, client.incarnation()?);
            Ok((of.exchange(), of.peer(), of.incarnation()) == (&here.0, &here.1, here.2))
        };
        self.call(py, is_ours).unwrap_or(false)
    }

    /// The reference of a leased tensor in memory of the host; none for a part of one, and for what another client leases.
    fn reference_of(&self, py: Python<'_>, memory: &Memory) -> PyResult<Option<Reference>> {
        let tensor = memory.on_host()?;
        self.call(py, |client| client.reference_of(&tensor)).map(|found| found.map(Reference))
    }

    /// Makes a ticket for a tensor of this peer.
    fn ticket(&self, py: Python<'_>, target: Wanted, ttl: Option<f64>, uses: u32) -> PyResult<String> {
        let target = target.target(py)?;
        let ttl = ttl.map(|ttl| seconds(py, ttl)).transpose()?;
        self.call(py, |client| client.ticket(target, ttl, uses))
    }

    /// Turns a ticket into a leased and mapped tensor. A call that is repeated with its retry id uses the ticket once.
    #[pyo3(signature = (ticket, retry_id, deadline, cancel))]
    fn redeem(
        &self,
        py: Python<'_>,
        ticket: &str,
        retry_id: Option<[u8; 16]>,
        deadline: Option<f64>,
        cancel: Option<&Cancel>,
    ) -> PyResult<Acquired> {
        let deadline = deadline.map(|deadline| seconds(py, deadline)).transpose()?.unwrap_or(self.deadline);
        let client = self.client(py)?.with_deadline(deadline);
        let client = cancel.map_or(client.clone(), |Cancel(cancel)| client.with_cancel(cancel.clone()));
        let redeemed = py.detach(|| called(|| client.redeem(ticket, retry_id.map(RetryId))));
        errors::outcome(py, redeemed.map(Acquired::new))
    }

    /// Makes a tree of tensors the next version of a name: its number and the reference of its manifest.
    #[pyo3(signature = (name, nodes, keep, expects, deadline))]
    fn publish(
        &self,
        py: Python<'_>,
        name: &str,
        nodes: Vec<set::Given>,
        keep: u32,
        expects: Option<u64>,
        deadline: Option<f64>,
    ) -> PyResult<(u64, Reference)> {
        let tree = set::tree(py, nodes)?;
        let mut options = set::options(keep, expects);
        options.deadline = deadline.map(|deadline| seconds(py, deadline)).transpose()?;
        let published = self.call(py, |client| client.publish_set(name, &tree, &options))?;
        Ok((published.version, Reference(published.reference)))
    }

    /// Leases and maps a set: its version, and its nodes. `keys` are those that are got, and whether each must be there.
    #[pyo3(signature = (target, terms, cancel, keys))]
    fn acquire_set<'py>(
        &self,
        py: Python<'py>,
        target: Wanted,
        terms: Terms,
        cancel: Option<&Cancel>,
        keys: Option<(Vec<String>, bool)>,
    ) -> PyResult<(u64, Bound<'py, PyList>)> {
        let target = target.target(py)?;
        let options = self.options(py, terms)?;
        let client = self.client(py)?;
        let client = cancel.map_or(client.clone(), |Cancel(cancel)| client.with_cancel(cancel.clone()));
        let keys = set::keys(keys);
        let set = py.detach(|| called(|| client.get_any_set(target, &keys, &options)));
        set::nodes(py, errors::outcome(py, set)?)
    }

    /// Makes a channel that this process writes. `slots` says their number and bytes, and the largest message where that may be larger;
    /// `readers` how many it has at most, how many are expected, and the peers that may read.
    fn channel_writer(
        &self,
        py: Python<'_>,
        name: &str,
        slots: (u32, u64, u64),
        readers: (u32, u32, Option<Vec<String>>),
        policy: &str,
        evicts: (bool, Option<f64>),
    ) -> PyResult<channel::Writer> {
        let policy = channel::policy(policy).map_err(|error| errors::raise(py, &error))?;
        let spec = ChannelSpec::new(name).slots(slots.0).slot_bytes(slots.1).growth(slots.2).policy(policy);
        let mut spec = spec.readers_max(readers.0).expect_readers(readers.1);
        if let Some(allowed) = readers.2 {
            spec = spec.readers(&allowed.iter().map(String::as_str).collect::<Vec<_>>());
        }
        spec = match evicts {
            (_, Some(after)) => spec.evict_after(seconds(py, after)?),
            (true, None) => spec.evictable(),
            (false, None) => spec,
        };
        self.call(py, |client| channel::writer(client, &spec))
    }

    /// Attaches a reader to a channel. `begins` says whether it begins with the oldest message, and whether it follows the name.
    fn channel_reader(
        &self,
        py: Python<'_>,
        name: &str,
        begins: (bool, bool),
        hold: u32,
        wait: f64,
        require: &str,
    ) -> PyResult<channel::Reader> {
        let options = ReadOptions::new().hold(hold).wait(seconds(py, wait)?).require(required(py, require)?);
        let options = if begins.0 { options.from_oldest() } else { options };
        let options = if begins.1 { options.follow() } else { options };
        self.call(py, |client| channel::reader(client, name, &options))
    }

    /// Channels of this peer whose names begin so.
    fn channels<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyList>> {
        let channels = self.call(py, |client| client.channels(prefix))?;
        channel::statuses(py, channels)
    }

    /// Watches the names of this peer that begin so.
    fn watch(
        &self,
        py: Python<'_>,
        prefix: &str,
        after: Option<&str>,
        peer: Option<&str>,
    ) -> PyResult<watch::Watch> {
        self.call(py, |client| watch::watch(client, prefix, after, peer))
    }

    /// Opens an entry point for pipes.
    fn listen(&self, py: Python<'_>, name: &str, allow: Option<Vec<String>>) -> PyResult<pipe::PipeListener> {
        let options = ListenOptions { allow };
        self.call(py, |client| pipe::listen(client, name, &options))
    }

    /// Connects to an entry point, by its name or as `peer/name`.
    fn connect_pipe(&self, py: Python<'_>, to: &str, wait: Option<f64>) -> PyResult<pipe::PipeEnd> {
        let options = match wait {
            Some(wait) => ConnectOptions::new().wait(seconds(py, wait)?),
            None => ConnectOptions::new(),
        };
        self.call(py, |client| pipe::connect(client, to, &options))
    }

    /// Makes a mutable set of this peer. `place` are its files, if it lies in some: a directory, if it may be there, and the
    /// durability; and whether each leaf lies in one piece.
    fn create_set(
        &self,
        py: Python<'_>,
        name: &str,
        rows: u64,
        leaves: Vec<mutable::Leaf>,
        writers: Vec<String>,
        place: (Option<mutable::Files>, bool),
    ) -> PyResult<Opened> {
        let (files, contiguous) = place;
        let spec = mutable::spec(py, name, rows, &leaves, &writers, files, contiguous)?;
        self.call(py, |client| client.create_set(&spec).map(|set| Opened::from(&set)))
    }

    /// Brings what was committed to a set on files to the disk.
    fn flush_set(&self, py: Python<'_>, set: &Opened) -> PyResult<Opened> {
        let info = Arc::clone(&set.0);
        self.call(py, move |client| client.mutable_set(&info).flush().map(|info| Opened(info.into())))
    }

    /// Opens a mutable set by its reference, its name at this peer, or `peer/name`; waits for one that is not there yet.
    #[pyo3(signature = (set, wait=0.0, cancel=None))]
    fn open_set(&self, py: Python<'_>, set: &str, wait: f64, cancel: Option<&Cancel>) -> PyResult<Opened> {
        let (client, wait) = (self.until(py, None, cancel)?, seconds(py, wait)?);
        let opened = py.detach(|| called(|| client.wait_for_mutable_set(set, wait)));
        errors::outcome(py, opened.map(|set| Opened::from(&set)))
    }

    /// Publishes what a mutable set holds at one moment: name and version of the sealed set, version of the mutable one, and the
    /// manifest.
    fn snapshot_set(
        &self,
        py: Python<'_>,
        set: &Opened,
        name: Option<String>,
        keep: u32,
        deadline: Option<f64>,
    ) -> PyResult<(String, u64, u64, Reference)> {
        let (client, info) = (self.until(py, deadline, None)?, Arc::clone(&set.0));
        let options = SnapshotOptions { name, keep, deadline: None };
        let done = py.detach(|| called(|| client.mutable_set(&info).snapshot(&options)));
        let Snapshot { name, version, set_version, reference } = errors::outcome(py, done)?;
        Ok((name, version, set_version, Reference(reference)))
    }

    /// Mutable sets of this peer whose names begin so, in order.
    fn mutable_sets(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<Opened>> {
        let sets = self.call(py, |client| client.mutable_sets(prefix))?;
        Ok(sets.into_iter().map(|info| Opened(info.into())).collect())
    }

    /// Takes a mutable set of this peer away, with its rows.
    fn drop_set(&self, py: Python<'_>, set: &str) -> PyResult<()> {
        self.call(py, |client| client.drop_set(set))
    }

    /// Reads rows of some leaves of a mutable set, or of all; with `true` beside the keys they are mapped, where they can be.
    fn read_rows(
        &self,
        py: Python<'_>,
        set: &Opened,
        wanted: (Vec<String>, bool),
        rows: Part,
        deadline: Option<f64>,
        cancel: Option<&Cancel>,
    ) -> PyResult<mutable::Read> {
        let (keys, map) = wanted;
        let client = self.until(py, deadline, cancel)?;
        let (selection, dropped) = rows.selection();
        let set = &set.0;
        let read = py
            .detach(|| called(|| mutable::read(&client.mutable_set(set), &keys, &selection, &dropped, map)));
        errors::outcome(py, read)
    }

    /// Writes tensors that were put before as rows of a mutable set, or behind the last extension: first row and version.
    fn commit_rows(
        &self,
        py: Python<'_>,
        set: &Opened,
        staged: Vec<(String, Reference)>,
        rows: Option<Part>,
        terms: (Option<u64>, Option<[u8; 16]>),
        deadline: Option<f64>,
    ) -> PyResult<(u64, u64)> {
        let client = self.until(py, deadline, None)?;
        let rows = rows.map(|rows| rows.selection().0);
        let staged: Vec<_> = staged.into_iter().map(|(key, Reference(reference))| (key, reference)).collect();
        let (set, (expects, retry_id)) = (&set.0, terms);
        let options = CommitOptions::from(expects);
        let options = retry_id.map_or(options, |id| options.retry_id(RetryId(id)));
        let done = py.detach(|| called(|| mutable::commit(&client.mutable_set(set), rows, &staged, options)));
        errors::outcome(py, done)
    }

    /// Tells what is known of a tensor, which is not moved.
    fn describe<'py>(&self, py: Python<'py>, target: Wanted) -> PyResult<Bound<'py, PyDict>> {
        let target = target.target(py)?;
        let known = self.call(py, |client| client.describe(target))?;
        let told = PyDict::new(py);
        let layout = &known.descriptor.layout;
        told.set_item("reference", Reference(known.reference.clone()))?;
        told.set_item("dtype", layout.dtype().name())?;
        told.set_item("shape", layout::dimensions(layout).0)?;
        told.set_item("nbytes", layout.packed_bytes())?;
        told.set_item("metadata", layout::owned(&known.descriptor.metadata))?;
        told.set_item("names", known.names)?;
        told.set_item("leases", known.leases)?;
        told.set_item("tickets", known.tickets)?;
        told.set_item("here", known.here)?;
        Ok(told)
    }

    /// Names of this peer that begin so, in order.
    fn names(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<(String, Reference)>> {
        let listed = self.call(py, |client| client.list(prefix).collect::<Result<Vec<_>>>())?;
        Ok(listed.into_iter().map(|entry| (entry.name, Reference(entry.description.reference))).collect())
    }

    /// Gives tensors of this peer names that are free, all in one step or none.
    fn name_together(&self, py: Python<'_>, items: Vec<(String, Reference)>) -> PyResult<()> {
        let naming = |(name, Reference(reference)): (String, Reference)| Naming {
            target: Some(reference.into()),
            name,
            replaces: None,
        };
        let items: Vec<_> = items.into_iter().map(naming).collect();
        self.call(py, |client| client.name_together(&items))
    }

    /// Takes names of this peer away.
    fn unname(&self, py: Python<'_>, names: Vec<String>) -> PyResult<()> {
        self.call(py, |client| client.unname(&names)?.into_iter().collect())
    }

    /// The peers of the exchange as this sidecar knows them, itself first, as dicts of plain values.
    fn peers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let told = PyList::empty(py);
        for peer in self.call(py, Client::peers)? {
            let one = PyDict::new(py);
            one.set_item("name", peer.name)?;
            one.set_item("state", peer.state)?;
            one.set_item("node", peer.node)?;
            one.set_item("addresses", peer.addresses)?;
            one.set_item("route", peer.route.map(|route| Moved::from(route).to_string()))?;
            one.set_item("bytes_in", peer.bytes_in)?;
            one.set_item("bytes_out", peer.bytes_out)?;
            one.set_item("last_error", peer.last_error)?;
            told.append(one)?;
        }
        Ok(told)
    }

    /// Tells the sidecar at once of every lease that ended.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, Client::flush)
    }

    /// The state of the sidecar, in plain numbers.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.call(py, Client::status)?;
        let told = PyDict::new(py);
        for (key, text) in [("version", status.version), ("exchange", status.exchange), ("peer", status.peer)]
        {
            told.set_item(key, text)?;
        }
        let arena = status.arena.unwrap_or_default();
        let numbers = [
            ("tensors", status.tensors),
            ("copies", status.copies),
            ("leases", status.leases),
            ("names", status.names),
            ("tickets", status.tickets),
            ("sessions", status.sessions),
            ("waiting", status.waiting),
            ("arena_bytes", arena.total),
            ("free_bytes", arena.free),
            ("sealed_bytes", arena.sealed),
            ("retired_bytes", arena.retired),
            ("largest_put_bytes", arena.largest_put),
        ];
        for (key, number) in numbers {
            told.set_item(key, number)?;
        }
        told.set_item("uptime_seconds", status.uptime_seconds)?;
        Ok(told)
    }
}

impl Core {
    /// Connects in this process. What a parent left here is let go of, and touched by nobody.
    fn connect(&self, py: Python<'_>, options: ClientOptions) -> PyResult<Client> {
        let client = py.detach(|| called(|| options.connect())).map_err(|error| errors::raise(py, &error))?;
        let connected = Connected { process: std::process::id(), client: client.clone() };
        let before = self.client.lock().replace(connected);
        // It belongs to the parent, whose locks it may hold.
        std::mem::forget(before.filter(|before| before.process != std::process::id()));
        Ok(client)
    }

    pub(crate) fn client(&self, py: Python<'_>) -> PyResult<Client> {
        let known = self.client.lock().as_ref().map(|known| (known.process, known.client.clone()));
        match known {
            Some((process, client)) if process == std::process::id() => Ok(client),
            Some((_, parents)) => {
                std::mem::forget(parents);
                self.connect(py, self.options.clone().name(&format!("python[{}]", std::process::id())))
            }
            None => Err(errors::refuse(py, "CLOSED", "this client was closed; connect again")),
        }
    }

    /// The client with the deadline of a call, which `cancel` withdraws.
    fn until(&self, py: Python<'_>, deadline: Option<f64>, cancel: Option<&Cancel>) -> PyResult<Client> {
        let deadline = deadline.map(|deadline| seconds(py, deadline)).transpose()?.unwrap_or(self.deadline);
        let client = self.client(py)?.with_deadline(deadline);
        Ok(cancel.map_or(client.clone(), |Cancel(cancel)| client.with_cancel(cancel.clone())))
    }

    /// Options of a call that may wait for names. Without a deadline the wait is on top of the client's.
    fn options(&self, py: Python<'_>, Terms(wait, deadline, require): Terms) -> PyResult<AcquireOptions> {
        let wait = seconds(py, wait)?;
        let deadline = match deadline {
            Some(deadline) => seconds(py, deadline)?,
            None => wait.saturating_add(self.deadline),
        };
        Ok(AcquireOptions::new().wait(wait).deadline(deadline).require(required(py, &require)?))
    }

    fn call<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&Client) -> Result<R> + Send) -> PyResult<R> {
        let client = self.client(py)?;
        let done = py.detach(|| called(|| work(&client)));
        errors::outcome(py, done)
    }
}

impl Wanted {
    fn target(self, py: Python<'_>) -> PyResult<Target> {
        match self {
            Self::Reference(Reference(reference)) => Ok(reference.into()),
            Self::Name(name, None) => Ok(Target::name(name)),
            Self::Name(name, Some(peer)) => {
                let refused =
                    |error| errors::refuse(py, "INVALID_ARGUMENT", &format!("peer {peer:?}: {error}"));
                Ok(Target::name_at(peer.parse().map_err(refused)?, name))
            }
        }
    }
}

impl Part {
    fn selection(self) -> (Selection, Vec<usize>) {
        let Self(ranges, rows, dropped) = self;
        let range = |(start, stop, step)| Range { start, stop, step };
        let selection = match rows {
            Some(rows) => Selection::Rows(rows.into()),
            None => Selection::Ranges(ranges.into_iter().map(range).collect()),
        };
        (selection, dropped)
    }
}

impl Keep {
    pub(crate) fn options(self, py: Python<'_>) -> PyResult<PutOptions> {
        Ok(PutOptions {
            name: self.name,
            replaces: self.replaces.map(|Reference(reference)| reference),
            ticket: self.ticket.map(|ticket| seconds(py, ticket)).transpose()?,
            ticket_uses: self.uses,
            no_lease: !self.lease,
            checksum: self.checksum,
            deadline: self.deadline.map(|deadline| seconds(py, deadline)).transpose()?,
            retry_id: None,
        })
    }
}

fn as_item<'a>((bytes, (descriptor, options)): (&&'a [u8], &'a (Descriptor, PutOptions))) -> Item<'a> {
    Item { descriptor, bytes, options: options.clone() }
}

/// Makes a call on this thread, which signals may end.
pub(crate) fn called<R>(work: impl FnOnce() -> R) -> R {
    interrupt::begin();
    work()
}

/// Requirements by their words, with commas between them.
fn required(py: Python<'_>, words: &str) -> PyResult<Require> {
    words.parse::<Require>().map_err(|error| {
        let failure = Failure::new(Reason::InvalidArgument, format!("require: {error}"));
        errors::raise(py, &failure.into())
    })
}

/// Seconds of Python. Infinity is as long as there is.
pub(crate) fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| errors::refuse(py, "INVALID_ARGUMENT", &format!("{seconds} is no number of seconds")))
}
