//! All rows of a set as they were at one moment, copied while commits go on.
//!
//! ```text
//!   begin   under shared locks of all rows: no commit is under way, and each later one finds the snapshot
//!   copy    band by band, each under the shared lock of its rows
//!   save    a commit, under its own locks, copies the bands that it is about to change and that were not copied yet
//! ```
//! So a commit waits for the copy of one band, and copies its own bands at most once. Of one set one snapshot is made at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, RwLockWriteGuard};
use tensorlane_memory::Landing;
use tensorlane_proto::failure::{Failure, Reason};

use super::memory::{MutableSet, Shard, internal, shard_of};
use crate::cancel::Cancel;

/// Rows of some leaves in the making.
pub(super) struct RowSnapshot {
    /// The leaves, as their indices.
    leaves: Vec<usize>,
    /// Taken out when the snapshot is over: what is saved later is saved nowhere.
    copy: Mutex<Option<BandCopies>>,
}

/// Copies of bands until now.
struct BandCopies {
    /// Room for all rows of each leaf.
    landings: Vec<Landing>,
    /// Bands that were copied.
    is_copied: Vec<bool>,
    /// Failure of a band that a commit has changed since.
    failed: Option<Failure>,
}

/// Snapshot that commits know of. Dropped, they do not.
struct KnownToCommits<'a>(&'a MutableSet);

impl Drop for KnownToCommits<'_> {
    fn drop(&mut self) {
        let over = self.0.snapshot.lock().take();
        if let Some(snapshot) = over {
            // Its room goes now, and not with a commit that has just found it.
            snapshot.copy.lock().take();
        }
    }
}

// === impl RowSnapshot ===

impl RowSnapshot {
    fn new(set: &MutableSet, leaves: &[usize], landings: Vec<Landing>) -> Result<Arc<Self>, Failure> {
        let bands = usize::try_from(set.layout.bands()).map_err(|error| internal(&error))?;
        let copy = BandCopies { landings, is_copied: vec![false; bands], failed: None };
        Ok(Arc::new(Self { leaves: leaves.to_vec(), copy: Mutex::new(Some(copy)) }))
    }

    /// Copies a band, if nobody has. Called under a lock of its rows.
    fn copy_band(&self, set: &MutableSet, shard: &Shard, band: u64) -> Result<(), Failure> {
        let mut copy = self.copy.lock();
        let Some(BandCopies { landings, is_copied, failed }) = &mut *copy else { return Ok(()) };
        let at = usize::try_from(band).map_err(|error| internal(&error))?;
        if is_copied.get_mut(at).is_none_or(|copied| std::mem::replace(copied, true)) {
            return Ok(());
        }
        let copied = set.copy_rows(shard, band, &self.leaves, landings);
        if let Err(failure) = &copied {
            *failed = Some(failure.clone());
        }
        copied
    }
}

// === impl MutableSet ===

impl MutableSet {
    /// Copies all rows of leaves, each into a landing of their length. All of one version, which is returned. Called in turn,
    /// under `copying`.
    ///
    /// # Errors
    /// TORN_ROWS, STORAGE_FAILED, DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn copy_all(
        &self,
        leaves: &[usize],
        landings: Vec<Landing>,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<u64, Failure> {
        let snapshot = RowSnapshot::new(self, leaves, landings)?;
        let (version, _known) = self.begin_snapshot(&snapshot)?;
        for band in 0..self.layout.bands() {
            if cancel.is_cancelled() {
                return Err(Failure::new(Reason::Cancelled, "the caller is gone, or withdrew the call"));
            }
            if Instant::now() >= deadline {
                let what = format!(
                    "{band} of {} bands of the set were copied in time; give the call a longer deadline",
                    self.layout.bands()
                );
                return Err(Failure::new(Reason::DeadlineExceeded, what));
            }
            let Some(shard) = self.shards.get(shard_of(band)) else { continue };
            snapshot.copy_band(self, &shard.read(), band)?;
        }
        let failed = snapshot.copy.lock().as_mut().and_then(|copy| copy.failed.take());
        failed.map_or(Ok(version), Err)
    }

    /// Has commits know of a snapshot, at a moment at which none is under way; and the version at that moment.
    fn begin_snapshot(&self, snapshot: &Arc<RowSnapshot>) -> Result<(u64, KnownToCommits<'_>), Failure> {
        let _no_commit: Vec<_> = self.shards.iter().map(|shard| shard.read()).collect();
        if let Some(files) = &self.files {
            files.check()?;
            let wanted = snapshot.leaves.iter().filter_map(|at| Some((*at, self.layout.leaves().get(*at)?)));
            for (at, leaf) in wanted {
                files.check_torn(at, leaf, 0, self.layout.rows())?;
            }
        }
        *self.snapshot.lock() = Some(Arc::clone(snapshot));
        Ok((self.commits.lock().version(), KnownToCommits(self)))
    }

    /// Copies bands that a commit is about to change into the snapshot in the making, if there is one.
    pub(super) fn save_for_snapshot(
        &self,
        bands: &BTreeSet<u64>,
        shards: &[Option<RwLockWriteGuard<'_, Shard>>],
    ) {
        let Some(snapshot) = self.snapshot.lock().clone() else { return };
        for band in bands {
            if let Some(shard) = shards.get(shard_of(*band)).and_then(Option::as_ref) {
                // A failure is the snapshot's, which notes it; the commit goes on.
                let _ = snapshot.copy_band(self, shard, *band);
            }
        }
    }

    /// Copies the rows of a band to their places in landings of all rows.
    fn copy_rows(
        &self,
        shard: &Shard,
        band: u64,
        leaves: &[usize],
        landings: &mut [Landing],
    ) -> Result<(), Failure> {
        let (first, count) = self.layout.rows_of_band(band);
        let held = shard.get(&band);
        if let Some(files) = &self.files {
            files.check()?;
        }
        for (at, landing) in leaves.iter().zip(landings) {
            let leaf = self.layout.leaves().get(*at).ok_or_else(|| internal(&"no such leaf"))?;
            let (start, bytes) = (first * leaf.row_bytes, count * leaf.row_bytes);
            if bytes == 0 {
                continue;
            }
            let into = landing.chunk_mut(start..start + bytes).map_err(|error| internal(&error))?;
            match (&self.files, held) {
                (Some(files), _) => files.read_span(*at, start, into)?,
                (None, Some(held)) => {
                    let run = self.layout.run(leaf, first, count);
                    let from = held.chunk(run.offset..run.offset + run.length);
                    into.copy_from_slice(from.map_err(|error| internal(&error))?);
                }
                (None, None) => into.fill(0),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_memory::{Block, Purpose};
    use tensorlane_proto::ledger::TensorName;
    use tensorlane_proto::rows::{RowList, SetId, SetLayout, SetReference};
    use tensorlane_proto::{DType, generated as v1};

    use super::*;
    use crate::exchange::Exchange;
    use crate::exchange::alone::{MINUTE, alone};
    use crate::exchange::rows::memory::{NewRows, Terms, zeroed};
    use crate::store::AllocRequest;

    /// Bytes of a row, which is a band.
    const ROW: u64 = 1 << 20;

    fn block(exchange: &Exchange, bytes: u64) -> Block {
        let cancel = Cancel::default();
        let deadline = Instant::now() + MINUTE;
        let alloc = AllocRequest { writer: None, purpose: Purpose::Put, bytes, deadline, cancel: &cancel };
        exchange.store().allocate(&alloc).unwrap()
    }

    /// A set of three rows, of which the second leaf is one byte.
    fn set(exchange: &Exchange) -> MutableSet {
        let leaf = |key: &str, row_shape: &[u64]| v1::SetLeaf {
            key: key.to_owned(),
            dtype: DType::U8.code().into(),
            row_shape: row_shape.to_vec(),
        };
        let layout = SetLayout::new(&[leaf("wide", &[ROW - 64]), leaf("thin", &[])], 3).unwrap();
        let me = exchange.me();
        let id = SetId::Memory { incarnation: me.incarnation, number: 1 };
        let reference = SetReference { exchange: me.exchange.clone(), peer: me.peer.clone(), id };
        MutableSet::new(reference, TensorName::new("set").unwrap(), Vec::new(), layout)
    }

    fn commit(exchange: &Exchange, set: &MutableSet, row: u64, value: u8) {
        let rows = RowList::Range { first: row, count: 1, step: 1 };
        let new = block(exchange, 1);
        new.landing().unwrap().write(0, &[value]).unwrap();
        new.mark_sealed().unwrap();
        let room = |band: u64| (band, zeroed(&block(exchange, set.layout.band_bytes())).unwrap());
        let fresh = set.missing(&rows).into_iter().map(room).collect();
        let terms = Terms { expects: None, retry: None };
        set.apply(&rows, &[NewRows { leaf: 1, block: &new }], terms, fresh).unwrap();
    }

    #[test]
    fn a_commit_saves_what_it_changes_unless_it_was_copied() {
        let (exchange, workers, _) = alone();
        let set = set(&exchange);
        commit(&exchange, &set, 0, 1);
        commit(&exchange, &set, 1, 2);
        let room = block(&exchange, 3);
        let snapshot = RowSnapshot::new(&set, &[1], vec![room.landing().unwrap()]).unwrap();
        let (version, known) = set.begin_snapshot(&snapshot).unwrap();
        snapshot.copy_band(&set, &set.shards[0].read(), 0).unwrap();
        for row in 0..3 {
            commit(&exchange, &set, row, 9);
        }
        for band in [1, 2] {
            snapshot.copy_band(&set, &set.shards[shard_of(band)].read(), band).unwrap();
        }
        let copied = snapshot.copy.lock().as_ref().unwrap().landings[0].chunk(0..3).unwrap().to_vec();
        assert_eq!((version, copied), (2, vec![1, 2, 0]));
        drop(known);
        assert!(set.snapshot.lock().is_none() && snapshot.copy.lock().is_none(), "its room is given back");
        commit(&exchange, &set, 0, 7);
        workers.stop();
    }

    #[test]
    fn a_snapshot_that_is_late_or_withdrawn_ends_and_the_next_one_is_whole() {
        let (exchange, workers, _) = alone();
        let set = set(&exchange);
        commit(&exchange, &set, 2, 5);
        let landings = || vec![block(&exchange, 3).landing().unwrap()];
        let gone = Cancel::default();
        gone.cancel();
        let withdrawn = set.copy_all(&[1], landings(), Instant::now() + MINUTE, &gone).unwrap_err();
        let late = set.copy_all(&[1], landings(), Instant::now(), &Cancel::default()).unwrap_err();
        assert_eq!((withdrawn.reason, late.reason), (Reason::Cancelled, Reason::DeadlineExceeded));
        assert_eq!(set.copy_all(&[1], landings(), Instant::now() + MINUTE, &Cancel::default()).unwrap(), 1);
        workers.stop();
    }
}
