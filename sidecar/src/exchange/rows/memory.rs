//! The rows of one mutable set, in bands of memory or in files, which this sidecar alone writes.
//!
//! Bands are spread over shards, each with a lock. A read holds those of its rows while it copies, a commit holds them alone while
//! it writes; both take them in one order. So a read has all of a commit or nothing of it, in all leaves. What was never written
//! has no band and reads as zero. Called on workers: copies take as long as they take. Files are `files`; their locks are these.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tensorlane_memory::{Block, Landing};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{RetryId, TensorName};
use tensorlane_proto::rows::{Commits, Committed, Intent, Record, RowList, SetLayout, SetReference};

use super::files::{FileSet, NewBytes};
use super::snapshot::RowSnapshot;

/// Locks of a set. Two commits whose rows share none go on beside each other.
const SHARDS: usize = 64;

pub(super) type Shard = BTreeMap<u64, Landing>;

/// A mutable set.
pub(super) struct MutableSet {
    pub(super) reference: SetReference,
    pub(super) name: TensorName,
    /// Patterns of peers that may write, beside the owner.
    pub(super) writers: Vec<String>,
    pub(super) layout: SetLayout,
    pub(super) commits: Mutex<Commits>,
    /// Held while an extension chooses its rows and writes them: so rows of one that fails are given back.
    pub(super) extending: Mutex<()>,
    /// Bands that have memory.
    held: AtomicU64,
    pub(super) shards: Vec<RwLock<Shard>>,
    /// Held while all rows are copied: one snapshot at a time.
    pub(super) copying: Mutex<()>,
    /// Snapshot in the making, into which commits save what they are about to change.
    pub(super) snapshot: Mutex<Option<Arc<RowSnapshot>>>,
    /// Files that its rows lie in; none for a set in memory, whose rows lie in the shards.
    pub(super) files: Option<FileSet>,
}

/// New rows of a leaf, packed in a sealed block.
pub(super) struct NewRows<'a> {
    pub(super) leaf: usize,
    pub(super) block: &'a Block,
}

/// Terms of a commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) expects: Option<u64>,
    pub(super) retry: Option<RetryId>,
}

// === impl Terms ===

impl Terms {
    /// The commit that one with these terms repeats; none where it may be made.
    ///
    /// # Errors
    /// VERSION_CHANGED with the latest version.
    pub(super) fn before(self, commits: &Commits) -> Result<Option<Committed>, Failure> {
        match commits.repeated(self.retry) {
            Some(before) => Ok(Some(before)),
            None => commits.check(self.expects).map(|()| None),
        }
    }
}

// === impl MutableSet ===

impl MutableSet {
    pub(super) fn new(
        reference: SetReference,
        name: TensorName,
        writers: Vec<String>,
        layout: SetLayout,
    ) -> Self {
        Self::stored(reference, name, writers, layout, None)
    }

    /// A set whose rows lie in files, and whose commits go on from those of its earlier lives.
    pub(super) fn on_files(
        reference: SetReference,
        name: TensorName,
        writers: Vec<String>,
        layout: SetLayout,
        (files, commits): (FileSet, Commits),
    ) -> Self {
        Self { commits: Mutex::new(commits), ..Self::stored(reference, name, writers, layout, Some(files)) }
    }

    fn stored(
        reference: SetReference,
        name: TensorName,
        writers: Vec<String>,
        layout: SetLayout,
        files: Option<FileSet>,
    ) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self {
            reference,
            name,
            writers,
            layout,
            commits: Mutex::default(),
            extending: Mutex::default(),
            held: AtomicU64::new(0),
            shards,
            copying: Mutex::new(()),
            snapshot: Mutex::new(None),
            files,
        }
    }

    /// The set as it is now, as a message.
    pub(super) fn info(&self) -> v1::SetInfo {
        let (version, cursor) = {
            let commits = self.commits.lock();
            (commits.version(), commits.cursor())
        };
        let spec = v1::SetSpec {
            leaves: self.layout.leaves().iter().map(tensorlane_proto::rows::Leaf::message).collect(),
            name: self.name.to_string(),
            rows: self.layout.rows(),
            writers: self.writers.clone(),
            files: self.files.as_ref().map(FileSet::message),
        };
        v1::SetInfo {
            reference: self.reference.to_string(),
            spec: Some(spec),
            version,
            cursor,
            bytes: self.layout.bytes(),
            held_bytes: self.held_bytes(),
            torn_rows: self.files.as_ref().map_or(0, FileSet::torn_rows),
        }
    }

    /// Bytes of the arena that its bands take.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed) * self.layout.band_bytes()
    }

    /// Copies rows of leaves, each into a landing of their length. All of one version, which is returned.
    pub(super) fn gather(
        &self,
        rows: &RowList,
        leaves: &[usize],
        to: &mut [Landing],
    ) -> Result<u64, Failure> {
        let shards = self.shared(&rows.bands(&self.layout));
        if let Some(files) = &self.files {
            files.check()?;
            let wanted = leaves.iter().filter_map(|at| Some((*at, self.layout.leaves().get(*at)?)));
            wanted.zip(to).try_for_each(|((at, leaf), landing)| files.read(at, leaf, rows, landing))?;
            return Ok(self.commits.lock().version());
        }
        for (leaf, landing) in leaves.iter().filter_map(|leaf| self.layout.leaves().get(*leaf)).zip(to) {
            let mut at = 0;
            for run in rows.runs(&self.layout, leaf).filter(|run| run.length > 0) {
                let into = landing.chunk_mut(at..at + run.length).map_err(|error| internal(&error))?;
                let shard = shards.get(shard_of(run.band)).and_then(Option::as_ref);
                match shard.and_then(|shard| shard.get(&run.band)) {
                    Some(band) => {
                        let from = band.chunk(run.offset..run.offset + run.length);
                        into.copy_from_slice(from.map_err(|error| internal(&error))?);
                    }
                    None => into.fill(0),
                }
                at += run.length;
            }
        }
        Ok(self.commits.lock().version())
    }

    /// Bands that rows need and that have no memory yet.
    pub(super) fn missing(&self, rows: &RowList) -> Vec<u64> {
        if self.layout.band_bytes() == 0 || self.files.is_some() {
            // Rows without bytes need none, however many there are.
            return Vec::new();
        }
        let bands = rows.bands(&self.layout);
        let shards = self.shared(&bands);
        let is_missing = |band: &u64| {
            let shard = shards.get(shard_of(*band)).and_then(Option::as_ref);
            shard.is_some_and(|shard| !shard.contains_key(band))
        };
        bands.into_iter().filter(is_missing).collect()
    }

    /// Writes rows, all or none. `fresh` are zeroed bands for those that were missing.
    pub(super) fn apply(
        &self,
        rows: &RowList,
        parts: &[NewRows<'_>],
        terms: Terms,
        fresh: Vec<(u64, Landing)>,
    ) -> Result<Committed, Failure> {
        let mut given = Vec::with_capacity(parts.len());
        for part in parts {
            let leaf = self.layout.leaves().get(part.leaf).ok_or_else(|| internal(&"no such leaf"))?;
            let bytes = part.block.chunk(0..rows.len() * leaf.row_bytes).map_err(|error| internal(&error))?;
            given.push((part.leaf, leaf, bytes));
        }
        let bands = rows.bands(&self.layout);
        let mut shards = self.alone(&bands);
        self.save_for_snapshot(&bands, &shards);
        if let Some(files) = &self.files {
            let lock = shards.iter().position(Option::is_some).unwrap_or(0);
            return self.apply_to_files(files, lock, rows, &given, terms);
        }
        let committed = {
            let mut commits = self.commits.lock();
            if let Some(before) = commits.repeated(terms.retry) {
                return Ok(before);
            }
            commits.check(terms.expects)?;
            commits.commit(rows, terms.retry)
        };
        for (band, landing) in fresh {
            if let Some(shard) = shards.get_mut(shard_of(band)).and_then(Option::as_mut) {
                shard.entry(band).or_insert_with(|| {
                    self.held.fetch_add(1, Ordering::Relaxed);
                    landing
                });
            }
        }
        for (_, leaf, mut bytes) in given {
            for run in rows.runs(&self.layout, leaf).filter(|run| run.length > 0) {
                let shard = shards.get_mut(shard_of(run.band)).and_then(Option::as_mut);
                let band = shard.and_then(|shard| shard.get_mut(&run.band));
                let band = band.ok_or_else(|| internal(&"a band without memory"))?;
                let into = band.chunk_mut(run.offset..run.offset + run.length);
                let into = into.map_err(|error| internal(&error))?;
                let (from, rest) = bytes.split_at(into.len());
                into.copy_from_slice(from);
                bytes = rest;
            }
        }
        Ok(committed)
    }

    /// Writes rows into files, under the locks of their bands, of which `lock` is the lowest one.
    fn apply_to_files(
        &self,
        files: &FileSet,
        lock: usize,
        rows: &RowList,
        parts: &[NewBytes<'_>],
        terms: Terms,
    ) -> Result<Committed, Failure> {
        if let Some(before) = terms.before(&self.commits.lock())? {
            return Ok(before);
        }
        files.check()?;
        files.reserve(rows, parts)?;
        if let Some(made) = files.commit(&self.commits, lock, rows, parts, terms) {
            return made;
        }
        let committed = {
            let mut commits = self.commits.lock();
            if let Some(before) = terms.before(&commits)? {
                return Ok(before);
            }
            // Before anybody sees the version: no other commit has it, also after the end of this life.
            let leaves = parts.iter().map(|(at, ..)| *at).collect();
            files.intend(lock, &Intent::new(commits.version() + 1, leaves, rows))?;
            commits.commit(rows, terms.retry)
        };
        let settled = files.write(rows, parts).and_then(|()| {
            let record = Record { committed, cursor: self.commits.lock().settled(), retry: terms.retry };
            files.settle(lock, &record, rows, parts)
        });
        if let Err(failure) = settled {
            self.commits.lock().failed(terms.retry);
            files.tear(lock, rows, parts);
            return Err(failure);
        }
        Ok(committed)
    }

    /// Ends the use of files, when nobody reads or writes them any more.
    pub(super) fn forget_files(&self) -> Result<(), Failure> {
        let Some(files) = &self.files else { return Ok(()) };
        let _alone: Vec<_> = self.shards.iter().map(|shard| shard.write()).collect();
        files.forget()
    }

    fn shared(&self, bands: &BTreeSet<u64>) -> Vec<Option<RwLockReadGuard<'_, Shard>>> {
        let wanted = shards_of(bands);
        (0..).zip(&self.shards).map(|(at, shard)| wanted.contains(&at).then(|| shard.read())).collect()
    }

    fn alone(&self, bands: &BTreeSet<u64>) -> Vec<Option<RwLockWriteGuard<'_, Shard>>> {
        let wanted = shards_of(bands);
        (0..).zip(&self.shards).map(|(at, shard)| wanted.contains(&at).then(|| shard.write())).collect()
    }
}

/// Zeroes a block for a band.
pub(super) fn zeroed(block: &Block) -> Result<Landing, Failure> {
    let mut landing = block.landing().ok_or_else(|| internal(&"a fresh block cannot be written"))?;
    landing.chunk_mut(0..block.len()).map_err(|error| internal(&error))?.fill(0);
    Ok(landing)
}

pub(super) fn shard_of(band: u64) -> usize {
    usize::try_from(band % SHARDS as u64).unwrap_or(0)
}

fn shards_of(bands: &BTreeSet<u64>) -> BTreeSet<usize> {
    bands.iter().map(|band| shard_of(*band)).collect()
}

pub(super) fn internal(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Reason::Internal, error.to_string())
}
