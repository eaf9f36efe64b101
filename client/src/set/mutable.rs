//! Mutable sets: a fixed layout whose rows are read and written from anywhere.
//!
//! ```text
//!   create_set ──SetCreate──> sidecar        reference ──> any process of the exchange ── open_mutable_set
//!   read    ──SetRead──>   a tensor for each leaf, of one version: only these rows travel
//!   map     ──SetRead──>   the same where the rows lie: nothing is copied, and commits to them wait
//!   write   puts the rows, ──SetCommit──> all of them in one step, or none
//! ```
//! Rows lie in the arena of the sidecar, or in files that tensordict opens: [`SetFiles`].

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::encoded;
use tensorlane_proto::frame::{MUTABLE_SETS_SINCE, SET_SNAPSHOTS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::{DType, Descriptor, Failure, Layout, Reason, Reference, Selection, Shape, Transport};

use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::tensor::Tensor;
use crate::verbs::{PutOptions, adopt};
use crate::wait::Wait;
use crate::wire;

/// A mutable set as it was when it was asked for.
pub use tensorlane_proto::generated::SetInfo;

/// The layout of a mutable set that is to be made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SetSpec(v1::SetSpec);

/// Durability of a set on files: what survives whose end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Commits survive the process of the sidecar. Rows that were being written then may be mixed, and nobody is told.
    None,
    /// As `None`, and rows that were being written are TORN_ROWS until they are written again.
    #[default]
    Process,
    /// Commits survive a loss of power, whole. Each waits until its rows are on the disk; earlier sidecars refuse it:
    /// UNSUPPORTED.
    Disk,
}

/// Directory of a set on files, below `sets.root` of its sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetFiles {
    /// Name of the directory, 1 to 200 bytes, without `/`.
    pub directory: String,
    /// Takes a directory that is there, with its layout and rows. Where leaves are given and none is there, it is made.
    pub open: bool,
    /// Durability of its commits. Without one, that of a set that is opened, and [`Durability::Process`] for one that is made.
    pub durability: Option<Durability>,
}

/// A mutable set, opened.
#[derive(Clone, Debug)]
pub struct MutableSet {
    client: Client,
    info: Arc<SetInfo>,
}

/// Rows of one version.
#[derive(Debug)]
pub struct Rows {
    /// The version.
    pub version: u64,
    /// The rows of each leaf that was asked for, packed, in order.
    pub leaves: Vec<(String, Tensor)>,
}

/// Rows that are written, or where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Rows that are selected.
    Rows(Selection),
    /// Rows behind those of the extension before, round robin.
    Extend,
}

/// Terms of a commit. `None` and `Some(version)` stand for those that expect no version, or that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOptions {
    expects: Option<u64>,
    retry_id: Option<RetryId>,
}

/// A commit that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Version that it made.
    pub version: u64,
    /// The first row that it wrote.
    pub first: u64,
}

// === impl Rows ===

impl Rows {
    /// Returns whether the rows are mapped where their set has them, so that commits to them wait; false for a copy.
    pub fn is_mapped(&self) -> bool {
        let is_mapped =
            |tensor: &Tensor| !tensor.copied() && tensor.moved().transport == Some(Transport::Local);
        self.leaves.iter().all(|(_, tensor)| is_mapped(tensor))
    }
}

// === impl CommitOptions ===

impl CommitOptions {
    /// A commit on top of any version.
    pub const fn new() -> Self {
        Self { expects: None, retry_id: None }
    }

    /// Version that the set must have.
    #[must_use]
    pub const fn expects(self, version: u64) -> Self {
        Self { expects: Some(version), ..self }
    }

    /// Names the commit in case it is repeated, by 16 random bytes. A repeat of one that was made writes nothing and is answered with
    /// its version; rows and bytes are not compared. A set remembers its last 1,024 commits.
    #[must_use]
    pub const fn retry_id(self, id: RetryId) -> Self {
        Self { retry_id: Some(id), ..self }
    }
}

impl From<Option<u64>> for CommitOptions {
    fn from(expects: Option<u64>) -> Self {
        Self { expects, ..Self::new() }
    }
}

// === impl SetSpec ===

impl SetSpec {
    /// A set of so many rows that has no leaves yet.
    pub fn new(name: &str, rows: u64) -> Self {
        Self(v1::SetSpec { name: name.to_owned(), rows, ..v1::SetSpec::default() })
    }

    /// A further leaf: its key, its element type and the shape of one row.
    #[must_use]
    pub fn leaf(mut self, key: &str, dtype: DType, row_shape: &[u64]) -> Self {
        let dtype = dtype.code().into();
        self.0.leaves.push(v1::SetLeaf { key: key.to_owned(), dtype, row_shape: row_shape.to_vec() });
        self
    }

    /// Lets workloads of other peers write, too: `rollout-*` stands for all whose names begin so. A set that is opened has its own;
    /// others that are given are refused.
    #[must_use]
    pub fn writers(mut self, patterns: &[&str]) -> Self {
        self.0.writers.extend(patterns.iter().map(|pattern| (*pattern).to_owned()));
        self
    }

    /// Has the rows of each leaf lie in one piece of the arena, so that they can be mapped. The room for all of them is taken at once.
    #[must_use]
    pub fn contiguous(mut self) -> Self {
        self.0.contiguous = true;
        self
    }

    /// Has the rows lie in files, in the layout of tensordict. A set without a name has that of its directory.
    #[must_use]
    pub fn files(mut self, files: &SetFiles) -> Self {
        let durability = match files.durability {
            None => v1::SetDurability::Unspecified,
            Some(Durability::None) => v1::SetDurability::None,
            Some(Durability::Process) => v1::SetDurability::Process,
            Some(Durability::Disk) => v1::SetDurability::Disk,
        };
        self.0.files = Some(v1::SetFiles {
            directory: files.directory.clone(),
            open: files.open,
            durability: durability.into(),
        });
        self
    }
}

impl Durability {
    /// Every durability.
    pub const ALL: [Self; 3] = [Self::None, Self::Process, Self::Disk];

    /// Word of it, such as `process`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Disk => "disk",
        }
    }

    /// The durability of a set as it was told; none where it is one of a later release.
    pub fn of(files: &v1::SetFiles) -> Option<Self> {
        match v1::SetDurability::try_from(files.durability) {
            Ok(v1::SetDurability::None) => Some(Self::None),
            Ok(v1::SetDurability::Unspecified | v1::SetDurability::Process) => Some(Self::Process),
            Ok(v1::SetDurability::Disk) => Some(Self::Disk),
            Err(_) => None,
        }
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|durability| durability.as_str() == word);
        found.ok_or_else(|| format!("{word:?} is no durability; none, process and disk are"))
    }
}

impl Client {
    /// Makes a mutable set of this peer. All rows are zero; nothing is written. On files, it may be one that is there.
    ///
    /// # Errors
    /// NAME_TAKEN, also for a directory that is there; NEVER_FITS, INVALID_ARGUMENT; on files NO_STORAGE, STORAGE_FULL,
    /// STORAGE_FAILED, UNSUPPORTED_FORMAT, and SET_MISMATCH of a directory that is opened, also by other writers or another durability
    /// than its set has; or what ended the call.
    pub fn create_set(&self, spec: &SetSpec) -> Result<MutableSet> {
        let (connection, wait) = self.with_mutable_sets()?;
        let request = v1::SetCreateRequest { spec: Some(spec.0.clone()) };
        let reply: v1::SetCreateResponse =
            connection.call(SessionKind::SetCreate, &request, &wait, Late::Nothing)?;
        let set = self.opened(reply.set)?;
        let made = set.info.spec.as_ref();
        let lacks = |is: fn(&v1::SetSpec) -> bool| is(&spec.0) && !made.is_some_and(is);
        // An earlier sidecar does not know the word, and has made a set in bands of memory.
        let lacking = match () {
            () if lacks(|spec| spec.files.is_some()) => "sets on files",
            () if lacks(|spec| spec.contiguous) => "contiguous sets",
            () => return Ok(set),
        };
        self.drop_set(set.reference())?;
        let what =
            format!("the sidecar is of an earlier release and has no {lacking}; use one of this release");
        Err(Failure::new(Reason::Unsupported, what).into())
    }

    /// Opens a mutable set by its reference, its name at this peer, or `peer/name`.
    ///
    /// # Errors
    /// NOT_FOUND, OWNER_LOST, PEER_UNREACHABLE, UNSUPPORTED of an older peer, or what ended the call.
    pub fn open_mutable_set(&self, set: &str) -> Result<MutableSet> {
        self.ask_for(set, false, Duration::ZERO)
    }

    /// Opens a mutable set by its name, and waits for one that is not there yet, or whose peer is not, on top of the client's
    /// deadline. A reference is of a set that was there: of it nothing is waited for.
    ///
    /// # Errors
    /// NOT_FOUND with the time that was waited, and as [`Client::open_mutable_set`].
    pub fn wait_for_mutable_set(&self, set: &str, wait: Duration) -> Result<MutableSet> {
        self.ask_for(set, false, wait)
    }

    fn ask_for(&self, set: &str, flush: bool, longest: Duration) -> Result<MutableSet> {
        let client = self.with_deadline(self.deadline().saturating_add(longest));
        let (connection, wait) = client.with_mutable_sets()?;
        let wait_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        if wait_ms > 0 {
            connection.require(
                SET_SNAPSHOTS_SINCE,
                "waits for sets need",
                "; use a sidecar of this release",
            )?;
        }
        let request =
            v1::SetOpenRequest { set: set.to_owned(), deadline_ms: wait.deadline_ms(), flush, wait_ms };
        let reply: v1::SetOpenResponse =
            connection.call(SessionKind::SetOpen, &request, &wait, Late::Nothing)?;
        self.opened(reply.set)
    }

    /// The use of a mutable set that was opened before, also by another client of the exchange. The sidecar is not
    /// asked.
    pub fn mutable_set(&self, info: &Arc<SetInfo>) -> MutableSet {
        MutableSet { client: self.clone(), info: Arc::clone(info) }
    }

    /// Mutable sets of this peer whose names begin with `prefix`, by name.
    ///
    /// # Errors
    /// What ended the call.
    pub fn mutable_sets(&self, prefix: &str) -> Result<Vec<SetInfo>> {
        let (connection, wait) = self.with_mutable_sets()?;
        let request = v1::SetStatRequest { prefix: prefix.to_owned() };
        let reply: v1::SetStatResponse =
            connection.call(SessionKind::SetStat, &request, &wait, Late::Nothing)?;
        Ok(reply.sets)
    }

    /// Takes a mutable set of this peer away, with its rows. The directory of one on files stays, as one of tensordict.
    ///
    /// # Errors
    /// NOT_FOUND, NOT_OWNED for one of another peer, or what ended the call.
    pub fn drop_set(&self, set: &str) -> Result<()> {
        let (connection, wait) = self.with_mutable_sets()?;
        let request = v1::SetDropRequest { set: set.to_owned() };
        let v1::SetDropResponse {} = connection.call(SessionKind::SetDrop, &request, &wait, Late::Nothing)?;
        Ok(())
    }

    fn opened(&self, info: Option<SetInfo>) -> Result<MutableSet> {
        let info = info.ok_or_else(|| wire::missing("a set"))?;
        Ok(MutableSet { client: self.clone(), info: Arc::new(info) })
    }

    pub(super) fn with_mutable_sets(&self) -> Result<(Arc<Connection>, Wait)> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        connection.require(MUTABLE_SETS_SINCE, "mutable sets need", "; use a sidecar of this release")?;
        Ok((connection, wait))
    }
}

// === impl MutableSet ===

impl MutableSet {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The set as it was when it was opened or made.
    pub fn info(&self) -> &Arc<SetInfo> {
        &self.info
    }

    /// Reference that names the set from anywhere, at most 300 bytes.
    pub fn reference(&self) -> &str {
        &self.info.reference
    }

    /// Leaves, in the order of the layout.
    pub fn leaves(&self) -> &[v1::SetLeaf] {
        self.info.spec.as_ref().map_or(&[], |spec| &spec.leaves)
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.info.spec.as_ref().map_or(0, |spec| spec.rows)
    }

    /// Reads rows of leaves, or of all leaves where no key is given. All of them are of one version.
    ///
    /// # Errors
    /// SELECTION_OUT_OF_RANGE, SET_MISMATCH for a key that is not there, ARENA_FULL, OWNER_LOST, or what ended the
    /// call.
    pub fn read(&self, keys: &[&str], rows: &Selection) -> Result<Rows> {
        self.read_or_map(keys, rows, false)
    }

    /// Reads rows as they lie, in the pod of a contiguous set: nothing is copied. Until the tensors are dropped the rows stay what they
    /// are, and commits to them wait. Elsewhere, of rows that are no range of neighbours, and of sets on files it is a copy, as a read:
    /// [`Rows::is_mapped`] says which. Others map a copy, too: by the reference that [`Client::reference_of`] tells of its tensor.
    ///
    /// # Errors
    /// As [`MutableSet::read`].
    pub fn map(&self, keys: &[&str], rows: &Selection) -> Result<Rows> {
        self.read_or_map(keys, rows, true)
    }

    fn read_or_map(&self, keys: &[&str], rows: &Selection, map: bool) -> Result<Rows> {
        let (connection, wait) = self.client.with_mutable_sets()?;
        let request = v1::SetReadRequest {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            set: self.info.reference.clone(),
            rows: selected(rows),
            deadline_ms: wait.deadline_ms(),
            map,
        };
        let reply: encoded::AcquireResponse =
            connection.call(SessionKind::SetRead, &request, &wait, Late::Acquired)?;
        let version = reply.version;
        let tensors = adopt(&connection, Ok(reply.results))?;
        let named: Vec<String> = match keys {
            [] => self.leaves().iter().map(|leaf| leaf.key.clone()).collect(),
            keys => keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let tensors = wire::counted(tensors, named.len())?;
        let leaves = named.into_iter().zip(tensors).map(|(key, tensor)| Ok((key, tensor?)));
        Ok(Rows { version, leaves: leaves.collect::<Result<_>>()? })
    }

    /// Writes rows: those of all leaves that are given, in one step, or nothing. The bytes are packed, row-major. A commit whose answer
    /// was lost, with the session or its deadline, is repeated safely by its [`CommitOptions::retry_id`].
    ///
    /// # Errors
    /// VERSION_CHANGED where the version is not the expected one, SET_MISMATCH with the key, SELECTION_OUT_OF_RANGE,
    /// PERMISSION_DENIED, TOO_LARGE, ARENA_FULL, OWNER_LOST, or what ended the call. Nothing is written then.
    pub fn write(
        &self,
        place: &Place,
        count: u64,
        leaves: &BTreeMap<&str, &[u8]>,
        options: impl Into<CommitOptions>,
    ) -> Result<Committed> {
        let put = |(key, bytes): (&&str, &&[u8])| {
            let descriptor = self.descriptor(key, count)?;
            let stored = self.client.put(&descriptor, bytes, &PutOptions::new())?;
            Ok(((*key).to_owned(), stored))
        };
        let stored = leaves.iter().map(put).collect::<Result<Vec<_>>>()?;
        let staged: Vec<_> =
            stored.iter().map(|(key, stored)| (key.clone(), stored.reference().clone())).collect();
        self.commit(place, &staged, options)
    }

    /// Writes rows that were put before, of each leaf one tensor. Their leases must be kept until this returns.
    ///
    /// # Errors
    /// As [`MutableSet::write`].
    pub fn commit(
        &self,
        place: &Place,
        staged: &[(String, Reference)],
        options: impl Into<CommitOptions>,
    ) -> Result<Committed> {
        let CommitOptions { expects, retry_id } = options.into();
        let retry_id = retry_id.unwrap_or_else(|| self.client.retry_id());
        let (connection, wait) = self.client.with_mutable_sets()?;
        let part = |(key, reference): &(String, Reference)| v1::SetPart {
            key: key.clone(),
            reference: reference.to_string(),
        };
        let (rows, extend) = match place {
            Place::Rows(selection) => (selected(selection), false),
            Place::Extend => (None, true),
        };
        let request = v1::SetCommitRequest {
            parts: staged.iter().map(part).collect(),
            set: self.info.reference.clone(),
            rows,
            extend,
            expects_version: expects,
            retry_id: Bytes::copy_from_slice(&retry_id.0),
            deadline_ms: wait.deadline_ms(),
        };
        let reply: v1::SetCommitResponse =
            connection.call(SessionKind::SetCommit, &request, &wait, Late::Nothing)?;
        Ok(Committed { version: reply.version, first: reply.first })
    }

    /// The set as it is now.
    ///
    /// # Errors
    /// As [`Client::open_mutable_set`].
    pub fn now(&self) -> Result<SetInfo> {
        Ok(SetInfo::clone(&self.client.open_mutable_set(&self.info.reference)?.info))
    }

    /// Brings what was committed to the disk, of a set on files; it then survives a loss of power. The set as it is
    /// now.
    ///
    /// # Errors
    /// PERMISSION_DENIED for those who may not write it, STORAGE_FULL, STORAGE_FAILED, or as
    /// [`Client::open_mutable_set`].
    pub fn flush(&self) -> Result<SetInfo> {
        Ok(SetInfo::clone(&self.client.ask_for(&self.info.reference, true, Duration::ZERO)?.info))
    }

    /// Descriptor of so many rows of a leaf.
    ///
    /// # Errors
    /// SET_MISMATCH where no leaf has the key.
    pub fn descriptor(&self, key: &str, count: u64) -> Result<Descriptor> {
        let leaf = self.leaves().iter().find(|leaf| leaf.key == key).ok_or_else(|| {
            let what = format!("the set has no leaf {key:?}; write one of its own");
            Error::from(Failure::new(Reason::SetMismatch, what).with("key", key))
        })?;
        let dims: Vec<u64> = std::iter::once(count).chain(leaf.row_shape.iter().copied()).collect();
        let dtype = u16::try_from(leaf.dtype).ok().and_then(DType::from_code);
        let dtype = dtype.ok_or_else(|| Error::protocol("a leaf of an unknown type"))?;
        let layout = Shape::new(&dims).and_then(|shape| Layout::contiguous(dtype, shape));
        layout.map(Descriptor::host).map_err(|error| Error::invalid(error.to_string()))
    }
}

fn selected(rows: &Selection) -> Option<v1::Selection> {
    (*rows != Selection::All).then(|| rows.into())
}
