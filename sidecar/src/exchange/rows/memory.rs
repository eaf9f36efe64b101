//! The rows of one mutable set, in bands of memory or in files, which this sidecar alone writes.
//!
//! Bands are spread over shards, each with a lock. A read holds those of its rows while it copies, a commit holds them alone while
//! it writes; both take them in turns (`locking`). So a read has all of a commit or nothing of it, in all leaves. A band that nothing
//! but zeros was written into is not there, and reads as zero. Called on workers: copies take as long as they take. Files are
//! `files`; their locks are these.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tensorlane_memory::{Block, FieldChunk, Landing, Scattered, scatter_runs};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{RetryId, TensorName};
use tensorlane_proto::rows::{Commits, Committed, Intent, Record, RowList, Run, SetLayout, SetReference};

use super::copying::{PAST_CACHES_FROM, RUNS_MAX, copy_out};
use super::files::{FileSet, NewBytes};
use super::locking::{Locked, RowTurns, SHARDS, Until, Wish};
use super::mapping::LeafFields;
use super::snapshot::RowSnapshot;

pub(super) type Shard = BTreeMap<u64, Band>;

/// Memory of a band that was written.
pub(super) enum Band {
    /// Memory of its own.
    Own(Landing),
    /// Rows in the pieces of a contiguous set, which were zeroed there.
    InPieces,
}

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
    /// Turns at the shards: nobody locks one otherwise.
    pub(super) turns: RowTurns,
    /// Held while all rows are copied: one snapshot at a time.
    pub(super) copying: Mutex<()>,
    /// Snapshot in the making, into which commits save what they are about to change.
    pub(super) snapshot: Mutex<Option<Arc<RowSnapshot>>>,
    /// Files that its rows lie in; none for a set in memory, whose rows lie in the shards.
    pub(super) files: Option<FileSet>,
    /// Rows of a contiguous set, in one piece for each leaf; bands in the shards are then those that were zeroed.
    pub(super) pieces: Option<LeafFields>,
    /// Versions of the sealed set of its name that its own pod keeps. What other peers publish ends none of these.
    pub(super) kept: AtomicU32,
}

/// New rows of a leaf, packed in a sealed block.
pub(super) struct NewRows<'a> {
    pub(super) leaf: usize,
    pub(super) block: &'a Block,
}

/// Bytes of a run, while it is read.
pub(super) enum RunBytes<'a> {
    Band(&'a [u8]),
    Piece(FieldChunk<'a>),
}

impl AsRef<[u8]> for RunBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Band(bytes) => bytes,
            Self::Piece(chunk) => chunk.as_ref(),
        }
    }
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

    /// A set whose rows lie in one piece for each leaf.
    pub(super) fn contiguous(
        reference: SetReference,
        name: TensorName,
        writers: Vec<String>,
        layout: SetLayout,
        pieces: LeafFields,
    ) -> Self {
        Self { pieces: Some(pieces), ..Self::stored(reference, name, writers, layout, None) }
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
            turns: RowTurns::default(),
            copying: Mutex::new(()),
            snapshot: Mutex::new(None),
            files,
            pieces: None,
            kept: AtomicU32::new(0),
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
            contiguous: self.pieces.is_some(),
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

    /// Bytes of the arena that its bands take, or its pieces.
    pub(super) fn held_bytes(&self) -> u64 {
        if self.pieces.is_some() {
            return self.layout.bytes();
        }
        self.held.load(Ordering::Relaxed) * self.layout.band_bytes()
    }

    /// Copies rows of leaves, each into a landing of their length. All of one version, which is returned.
    ///
    /// # Errors
    /// TORN_ROWS, STORAGE_FAILED, DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn gather(
        &self,
        rows: &RowList,
        leaves: &[usize],
        to: &mut [Landing],
        until: Until<'_>,
    ) -> Result<u64, Failure> {
        let bands = rows.pieces(&self.layout).map(|(row, _)| self.layout.band(row));
        let shards = self.shared(bands, until)?;
        if let Some(files) = &self.files {
            files.check()?;
            let wanted = leaves.iter().filter_map(|at| Some((*at, self.layout.leaves().get(*at)?)));
            wanted.zip(to).try_for_each(|((at, leaf), landing)| files.read(at, leaf, rows, landing))?;
            return Ok(self.commits.lock().version());
        }
        let wanted = leaves.iter().filter_map(|at| Some((*at, self.layout.leaves().get(*at)?)));
        for ((at, leaf), landing) in wanted.zip(to) {
            let source = |run: Run| {
                let shard = shards.get(shard_of(run.band)).and_then(Option::as_ref);
                let bytes = match shard.and_then(|shard| shard.get(&run.band)) {
                    Some(band) => self.bytes_of(band, at, run),
                    None => Ok(None),
                };
                (run.length, bytes)
            };
            let runs = rows.runs(&self.layout, leaf).filter(|run| run.length > 0);
            copy_out(runs.map(source), landing)?;
        }
        Ok(self.commits.lock().version())
    }

    /// Bytes of a run of a leaf in a band; none where it has none.
    pub(super) fn bytes_of<'a>(
        &'a self,
        band: &'a Band,
        leaf: usize,
        run: Run,
    ) -> Result<Option<RunBytes<'a>>, Failure> {
        match (band, &self.pieces) {
            (Band::Own(landing), _) => {
                let bytes = landing.chunk(run.offset..run.offset + run.length);
                bytes.map(|bytes| Some(RunBytes::Band(bytes))).map_err(|error| internal(&error))
            }
            (Band::InPieces, Some(pieces)) => {
                Ok(pieces.chunk(leaf, run.start, run.length)?.map(RunBytes::Piece))
            }
            (Band::InPieces, None) => Err(internal(&"a band in no piece")),
        }
    }

    /// Picks, of some bands, those that nothing but zeros was written into.
    pub(super) fn absent(
        &self,
        mut bands: BTreeSet<u64>,
        until: Until<'_>,
    ) -> Result<BTreeSet<u64>, Failure> {
        let shards = self.shared(bands.iter().copied(), until)?;
        bands.retain(|band| {
            let shard = shards.get(shard_of(*band)).and_then(Option::as_ref);
            shard.is_some_and(|shard| !shard.contains_key(band))
        });
        drop(shards);
        Ok(bands)
    }

    /// Bands that new rows need and that have no memory yet: zeros need none.
    pub(super) fn missing(
        &self,
        rows: &RowList,
        parts: &[NewRows<'_>],
        until: Until<'_>,
    ) -> Result<BTreeSet<u64>, Failure> {
        if self.layout.band_bytes() == 0 || self.files.is_some() {
            // Rows without bytes need none, however many there are.
            return Ok(BTreeSet::new());
        }
        let bands = self.absent(rows.bands(&self.layout), until)?;
        let mut needed = BTreeSet::new();
        for (_, leaf, mut bytes) in self.given(rows, parts)? {
            for run in rows.runs(&self.layout, leaf) {
                let (new, rest) = bytes.split_at(split(run.length));
                bytes = rest;
                if bands.contains(&run.band) && !needed.contains(&run.band) && !is_zero(new) {
                    needed.insert(run.band);
                }
            }
        }
        Ok(needed)
    }

    /// New rows as their leaves and bytes.
    fn given<'a>(&'a self, rows: &RowList, parts: &'a [NewRows<'_>]) -> Result<Vec<NewBytes<'a>>, Failure> {
        let one = |part: &'a NewRows<'_>| {
            let leaf = self.layout.leaves().get(part.leaf).ok_or_else(|| internal(&"no such leaf"))?;
            let bytes = part.block.chunk(0..rows.len() * leaf.row_bytes).map_err(|error| internal(&error))?;
            Ok((part.leaf, leaf, bytes))
        };
        parts.iter().map(one).collect()
    }

    /// Writes rows, all or none. `fresh` are bands for those that were missing, with zeroed memory where it is their own. A band that is not there keeps its zeros:
    /// whatever a writer does to its tensors meanwhile, they were zero when room was taken.
    pub(super) fn apply(
        &self,
        rows: &RowList,
        parts: &[NewRows<'_>],
        terms: Terms,
        fresh: Vec<(u64, Band)>,
        until: Until<'_>,
    ) -> Result<Committed, Failure> {
        let given = self.given(rows, parts)?;
        let bands = rows.bands(&self.layout);
        let mut shards = self.alone(bands.iter().copied(), until)?;
        self.save_for_snapshot(&bands, &shards);
        if let Some(files) = &self.files {
            let lock = shards.iter().position(Option::is_some).unwrap_or(0);
            return self.apply_to_files(files, lock, rows, &given, (terms, until));
        }
        let committed = {
            let mut commits = self.commits.lock();
            if let Some(before) = commits.repeated(terms.retry) {
                return Ok(before);
            }
            commits.check(terms.expects)?;
            commits.commit(rows, terms.retry)
        };
        for (number, band) in fresh {
            let Some(shard) = shards.get_mut(shard_of(number)).and_then(Option::as_mut) else { continue };
            if shard.contains_key(&number) {
                continue;
            }
            if let (Band::InPieces, Some(pieces)) = (&band, &self.pieces) {
                pieces.zero(&self.layout, number)?;
            }
            self.held.fetch_add(1, Ordering::Relaxed);
            shard.insert(number, band);
        }
        self.write_runs(&mut shards, rows, given)?;
        Ok(committed)
    }

    /// Writes rows into those of their bands that are there, whose shards are locked.
    fn write_runs(
        &self,
        shards: &mut [Option<RwLockWriteGuard<'_, Shard>>],
        rows: &RowList,
        given: Vec<NewBytes<'_>>,
    ) -> Result<(), Failure> {
        let bytes = given.iter().fold(0, |sum: u64, (_, _, bytes)| sum + bytes.len() as u64);
        if self.pieces.is_none() && bytes >= PAST_CACHES_FROM {
            let runs = rows.pieces(&self.layout).take(RUNS_MAX + 1).count().saturating_mul(given.len());
            if runs <= RUNS_MAX {
                return self.scatter(shards, rows, &given);
            }
        }
        for (at, leaf, mut bytes) in given {
            for run in rows.runs(&self.layout, leaf).filter(|run| run.length > 0) {
                let (from, rest) = bytes.split_at(split(run.length));
                bytes = rest;
                let shard = shards.get_mut(shard_of(run.band)).and_then(Option::as_mut);
                match (shard.and_then(|shard| shard.get_mut(&run.band)), &self.pieces) {
                    (Some(Band::Own(landing)), _) => {
                        let into = landing.chunk_mut(run.offset..run.offset + run.length);
                        into.map_err(|error| internal(&error))?.copy_from_slice(from);
                    }
                    (Some(Band::InPieces), Some(pieces)) => pieces.write(at, run.start, from)?,
                    (Some(Band::InPieces), None) | (None, _) => {}
                }
            }
        }
        Ok(())
    }

    /// Writes large rows into those of their bands that are there: bands beside each other, and the rows of each in their order.
    fn scatter(
        &self,
        shards: &mut [Option<RwLockWriteGuard<'_, Shard>>],
        rows: &RowList,
        given: &[NewBytes<'_>],
    ) -> Result<(), Failure> {
        let mut by_band: BTreeMap<u64, Vec<(u64, &[u8])>> = BTreeMap::new();
        for &(_, leaf, mut bytes) in given {
            for run in rows.runs(&self.layout, leaf).filter(|run| run.length > 0) {
                let (from, rest) = bytes.split_at(split(run.length));
                bytes = rest;
                by_band.entry(run.band).or_default().push((run.offset, from));
            }
        }
        let ends = (by_band.first_key_value(), by_band.last_key_value());
        let (Some((&first, _)), Some((&last, _))) = ends else { return Ok(()) };
        let mut all = Vec::with_capacity(by_band.len());
        for shard in shards.iter_mut().flatten() {
            for (number, band) in shard.range_mut(first..=last) {
                if let (Band::Own(landing), Some(runs)) = (band, by_band.remove(number)) {
                    all.push(Scattered { landing, runs });
                }
            }
        }
        scatter_runs(&mut all).map_err(|error| internal(&error))
    }

    /// Writes rows into files, under the locks of their bands, of which `lock` is the lowest one.
    fn apply_to_files(
        &self,
        files: &FileSet,
        lock: usize,
        rows: &RowList,
        parts: &[NewBytes<'_>],
        (terms, until): (Terms, Until<'_>),
    ) -> Result<Committed, Failure> {
        if let Some(before) = terms.before(&self.commits.lock())? {
            return Ok(before);
        }
        files.check()?;
        files.reserve(rows, parts)?;
        if let Some(made) = files.commit(&self.commits, lock, rows, parts, (terms, until)) {
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
            let behind = {
                let mut commits = self.commits.lock();
                commits.failed(terms.retry);
                commits.settled()
            };
            files.tear(lock, rows, parts);
            // Rows of an extension are given back.
            let cursor = if let RowList::Round { first, .. } = *rows { first } else { behind };
            files.note_failed(lock, &Record { committed, cursor, retry: None });
            return Err(failure);
        }
        Ok(committed)
    }

    /// Ends the use of files, when nobody reads or writes them any more.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED, NOT_FOUND, DEADLINE_EXCEEDED, CANCELLED: it is a set still.
    pub(super) fn forget_files(&self, until: Until<'_>) -> Result<(), Failure> {
        let Some(files) = &self.files else { return Ok(()) };
        let _alone = self.turns.turn(Wish::all(true), until)?;
        files.forget()
    }

    /// Locks the shards of bands, to be read.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn shared(
        &self,
        bands: impl IntoIterator<Item = u64>,
        until: Until<'_>,
    ) -> Result<Locked<'_, Vec<Option<RwLockReadGuard<'_, Shard>>>>, Failure> {
        self.locked(bands, false, until, RwLock::read)
    }

    /// Locks the shards of bands, to be written.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn alone(
        &self,
        bands: impl IntoIterator<Item = u64>,
        until: Until<'_>,
    ) -> Result<Locked<'_, Vec<Option<RwLockWriteGuard<'_, Shard>>>>, Failure> {
        self.locked(bands, true, until, RwLock::write)
    }

    fn locked<'a, G>(
        &'a self,
        bands: impl IntoIterator<Item = u64>,
        alone: bool,
        until: Until<'_>,
        lock: impl Fn(&'a RwLock<Shard>) -> G,
    ) -> Result<Locked<'a, Vec<Option<G>>>, Failure> {
        let wish = Wish::of(bands.into_iter().map(shard_of), alone);
        let turn = self.turns.turn(wish, until)?;
        let shards = self.shards.iter().enumerate();
        Ok(turn.locked(shards.map(|(at, shard)| wish.wants(at).then(|| lock(shard))).collect()))
    }
}

/// Length of a run, at which bytes are split: a run of a block fits into memory.
fn split(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// Returns whether bytes are zero. Looked at in pieces, so that the first one of new rows mostly settles it.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
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

pub(super) fn internal(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Reason::Internal, error.to_string())
}
