//! Mutable sets: their layouts, rows that are read, and rows that are written, for `tensorlane.mutable`.

use std::sync::Arc;

use pyo3::prelude::*;
use tensorlane_client::set::mutable::{
    CommitOptions, Durability, MutableSet, Place, SetFiles, SetInfo, SetSpec,
};
use tensorlane_proto::{DType, Reference, Selection};

use crate::errors;
use crate::held::Acquired;

/// Files of a set: directory, whether one that is there is opened, and durability, if one is asked for.
pub(crate) type Files = (String, bool, Option<String>);

/// A leaf: its key, its dtype and the shape of one row.
pub(crate) type Leaf = (String, String, Vec<u64>);

/// A mutable set as it was when it was asked for. It belongs to no client, and so to no process.
#[pyclass(frozen, module = "tensorlane._tensorlane")]
pub(crate) struct Opened(pub(crate) Arc<SetInfo>);

impl From<&MutableSet> for Opened {
    fn from(set: &MutableSet) -> Self {
        Self(Arc::clone(set.info()))
    }
}

#[pymethods]
impl Opened {
    #[getter]
    fn reference(&self) -> &str {
        &self.0.reference
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.spec.as_ref().map_or("", |spec| &spec.name)
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.0.spec.as_ref().map_or(0, |spec| spec.rows)
    }

    #[getter]
    fn writers(&self) -> Vec<String> {
        self.0.spec.as_ref().map_or_else(Vec::new, |spec| spec.writers.clone())
    }

    /// Leaves in the order of the layout: key, dtype and the shape of one row.
    #[getter]
    fn leaves(&self) -> Vec<(String, &'static str, Vec<u64>)> {
        let leaves = self.0.spec.iter().flat_map(|spec| &spec.leaves);
        let dtype = |code: u32| u16::try_from(code).ok().and_then(DType::from_code);
        let known = |code| dtype(code).map_or("unknown", DType::name);
        leaves.map(|leaf| (leaf.key.clone(), known(leaf.dtype), leaf.row_shape.clone())).collect()
    }

    /// Number of commits when it was asked for.
    #[getter]
    fn version(&self) -> u64 {
        self.0.version
    }

    /// Row that the next extension begins at.
    #[getter]
    fn cursor(&self) -> u64 {
        self.0.cursor
    }

    /// Bytes that it takes when every row was written.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.bytes
    }

    /// Bytes that it takes in the arena of its owner.
    #[getter]
    fn held_bytes(&self) -> u64 {
        self.0.held_bytes
    }

    /// Set if each leaf lies in one piece, so that rows can be mapped.
    #[getter]
    fn contiguous(&self) -> bool {
        self.0.spec.as_ref().is_some_and(|spec| spec.contiguous)
    }

    /// Directory below `sets.root`, and durability, of a set on files.
    #[getter]
    fn files(&self) -> Option<(String, &'static str)> {
        let files = self.0.spec.as_ref()?.files.as_ref()?;
        Some((files.directory.clone(), Durability::of(files).map_or("unknown", Durability::as_str)))
    }

    /// Rows of which a leaf is TORN_ROWS.
    #[getter]
    fn torn_rows(&self) -> u64 {
        self.0.torn_rows
    }
}

/// A layout that Python made.
pub(crate) fn spec(
    py: Python<'_>,
    name: &str,
    rows: u64,
    leaves: &[Leaf],
    writers: &[String],
    files: Option<Files>,
    contiguous: bool,
) -> PyResult<SetSpec> {
    let mut spec = SetSpec::new(name, rows);
    if contiguous {
        spec = spec.contiguous();
    }
    for (key, dtype, row_shape) in leaves {
        let dtype = dtype
            .parse()
            .map_err(|error| errors::refuse(py, "INVALID_ARGUMENT", &format!("{key}: {error}")))?;
        spec = spec.leaf(key, dtype, row_shape);
    }
    if let Some((directory, open, durability)) = files {
        let durability: Option<Result<Durability, String>> = durability.map(|word| word.parse());
        let durability =
            durability.transpose().map_err(|error| errors::refuse(py, "INVALID_ARGUMENT", &error))?;
        spec = spec.files(&SetFiles { directory, open, durability });
    }
    Ok(spec.writers(&writers.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Rows of one version: their version, key and tensor of each leaf, and whether they are mapped where they lie.
pub(crate) type Read = (u64, Vec<(String, Acquired)>, bool);

/// Reads rows; `dropped` are dimensions that go because an index took one element of them.
pub(crate) fn read(
    set: &MutableSet,
    keys: &[String],
    rows: &Selection,
    dropped: &[usize],
    map: bool,
) -> tensorlane_client::Result<Read> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let rows = if map { set.map(&keys, rows) } else { set.read(&keys, rows) }?;
    let is_mapped = rows.is_mapped();
    let named = |(key, tensor): (String, tensorlane_client::Tensor)| {
        Ok((key, Acquired::new(if dropped.is_empty() { tensor } else { tensor.squeezed(dropped)? })))
    };
    let leaves = rows.leaves.into_iter().map(named).collect::<tensorlane_client::Result<_>>()?;
    Ok((rows.version, leaves, is_mapped))
}

/// Writes tensors that were put before as rows, or behind those of the extension before: the first row and the version.
pub(crate) fn commit(
    set: &MutableSet,
    rows: Option<Selection>,
    staged: &[(String, Reference)],
    options: CommitOptions,
) -> tensorlane_client::Result<(u64, u64)> {
    let place = rows.map_or(Place::Extend, Place::Rows);
    let committed = set.commit(&place, staged, options)?;
    Ok((committed.first, committed.version))
}
