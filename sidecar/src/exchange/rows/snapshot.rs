//! Neighbouring rows of a set, or all of them, as they were at one moment, copied while commits go on.
//!
//! ```text
//!   begin   under shared locks of all rows: no commit is under way, and each later one finds the snapshot
//!   copy    band by band of these rows, each under the shared lock of its rows
//!   save    a commit, under its own locks, copies the bands that it is about to change and that were not copied yet
//! ```
//! So a commit waits for the copy of one band, and copies its own bands at most once. Of one set one snapshot is made at a time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, RwLockWriteGuard};
use tensorlane_memory::Landing;
use tensorlane_proto::failure::Failure;

use super::locking::{Until, Wish, check_patience};
use super::memory::{MutableSet, Shard, internal, shard_of};

/// Rows of some leaves in the making.
pub(super) struct RowSnapshot {
    /// The rows: the first one, and their number.
    span: (u64, u64),
    /// The leaves, as their indices.
    leaves: Vec<usize>,
    /// Taken out when the snapshot is over: what is saved later is saved nowhere.
    copy: Mutex<Option<BandCopies>>,
}

/// Copies of bands until now.
struct BandCopies {
    /// Room for the rows of each leaf.
    landings: Vec<Landing>,
    /// Bands of the rows that were copied.
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
    /// A snapshot of rows, the first one and their number: one at least.
    fn new(
        set: &MutableSet,
        span: (u64, u64),
        leaves: &[usize],
        landings: Vec<Landing>,
    ) -> Result<Arc<Self>, Failure> {
        let bands = bands_of(set, span);
        let bands = usize::try_from(bands.end - bands.start).map_err(|error| internal(&error))?;
        let copy = BandCopies { landings, is_copied: vec![false; bands], failed: None };
        Ok(Arc::new(Self { span, leaves: leaves.to_vec(), copy: Mutex::new(Some(copy)) }))
    }

    /// Copies a band, if it has some of the rows and nobody has copied it. Called under a lock of its rows.
    fn copy_band(&self, set: &MutableSet, shard: &Shard, band: u64) -> Result<(), Failure> {
        let mut copy = self.copy.lock();
        let Some(BandCopies { landings, is_copied, failed }) = &mut *copy else { return Ok(()) };
        let Some(at) = band.checked_sub(bands_of(set, self.span).start) else { return Ok(()) };
        let at = usize::try_from(at).map_err(|error| internal(&error))?;
        if is_copied.get_mut(at).is_none_or(|copied| std::mem::replace(copied, true)) {
            return Ok(());
        }
        let copied = set.copy_rows(shard, band, self, landings);
        if let Err(failure) = &copied {
            *failed = Some(failure.clone());
        }
        copied
    }
}

/// Bands that have some of the rows, of which there is one at least.
fn bands_of(set: &MutableSet, (first, count): (u64, u64)) -> Range<u64> {
    set.layout.band(first)..set.layout.band(first + count.saturating_sub(1)) + 1
}

// === impl MutableSet ===

impl MutableSet {
    /// Copies neighbouring rows of leaves, the first one and their number, each leaf into a landing of their length. All of one
    /// version, which is returned. Called in turn, under `copying`.
    ///
    /// # Errors
    /// TORN_ROWS, STORAGE_FAILED, DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn copy_span(
        &self,
        span: (u64, u64),
        leaves: &[usize],
        landings: Vec<Landing>,
        until: Until<'_>,
    ) -> Result<u64, Failure> {
        let snapshot = RowSnapshot::new(self, span, leaves, landings)?;
        let (version, _known) = self.begin_snapshot(&snapshot, until)?;
        let bands = bands_of(self, span);
        for band in bands.clone() {
            check_patience(until, || {
                format!(
                    "{} of {} bands of the set were copied in time; give the call a longer deadline",
                    band - bands.start,
                    bands.end - bands.start
                )
            })?;
            let shards = self.shared([band], until)?;
            let Some(shard) = shards.get(shard_of(band)).and_then(Option::as_ref) else { continue };
            snapshot.copy_band(self, shard, band)?;
        }
        let failed = snapshot.copy.lock().as_mut().and_then(|copy| copy.failed.take());
        failed.map_or(Ok(version), Err)
    }

    /// Has commits know of a snapshot, at a moment at which none is under way; and the version at that moment.
    fn begin_snapshot(
        &self,
        snapshot: &Arc<RowSnapshot>,
        until: Until<'_>,
    ) -> Result<(u64, KnownToCommits<'_>), Failure> {
        let _no_commit = self.turns.turn(Wish::all(false), until)?;
        if let Some(files) = &self.files {
            files.check()?;
            let wanted = snapshot.leaves.iter().filter_map(|at| Some((*at, self.layout.leaves().get(*at)?)));
            for (at, leaf) in wanted {
                files.check_torn(at, leaf, snapshot.span.0, snapshot.span.1)?;
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

    /// Copies those rows of a snapshot that lie in a band to their places in landings of its rows.
    fn copy_rows(
        &self,
        shard: &Shard,
        band: u64,
        snapshot: &RowSnapshot,
        landings: &mut [Landing],
    ) -> Result<(), Failure> {
        let (from, rows) = snapshot.span;
        let (first, count) = self.layout.rows_of_band(band);
        let (first, end) = (first.max(from), (first + count).min(from + rows));
        let count = end.saturating_sub(first);
        let held = shard.get(&band);
        if let Some(files) = &self.files {
            files.check()?;
        }
        for (at, landing) in snapshot.leaves.iter().zip(landings) {
            let leaf = self.layout.leaves().get(*at).ok_or_else(|| internal(&"no such leaf"))?;
            let (start, bytes) = ((first - from) * leaf.row_bytes, count * leaf.row_bytes);
            if bytes == 0 {
                continue;
            }
            let into = landing.chunk_mut(start..start + bytes).map_err(|error| internal(&error))?;
            match (&self.files, held) {
                (Some(files), _) => files.read_span(*at, first * leaf.row_bytes, into)?,
                (None, Some(held)) => match self.bytes_of(held, *at, self.layout.run(leaf, first, count))? {
                    Some(from) => into.copy_from_slice(from.as_ref()),
                    None => into.fill(0),
                },
                (None, None) => into.fill(0),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tensorlane_memory::{Block, Purpose};
    use tensorlane_proto::ledger::TensorName;
    use tensorlane_proto::rows::{RowList, SetId, SetLayout, SetReference};
    use tensorlane_proto::{DType, Reason, generated as v1};

    use super::*;
    use crate::cancel::Cancel;
    use crate::exchange::Exchange;
    use crate::exchange::alone::{MINUTE, alone};
    use crate::exchange::rows::memory::{Band, NewRows, Terms, zeroed};
    use crate::store::{AllocRequest, Claimant};

    /// Bytes of a row, which is a band.
    const ROW: u64 = 1 << 20;

    fn block(exchange: &Exchange, bytes: u64) -> Block {
        let cancel = Cancel::default();
        let deadline = Instant::now() + MINUTE;
        let (claimant, purpose) = (&Claimant::Holder(None), Purpose::Put);
        let alloc = AllocRequest { writer: None, claimant, purpose, bytes, deadline, cancel: &cancel };
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
        let room = |band: u64| (band, Band::Own(zeroed(&block(exchange, set.layout.band_bytes())).unwrap()));
        let parts = [NewRows { leaf: 1, block: &new }];
        let cancel = Cancel::default();
        let until = (Instant::now() + MINUTE, &cancel);
        let fresh = set.missing(&rows, &parts, until).unwrap().into_iter().map(room).collect();
        let terms = Terms { expects: None, retry: None };
        set.apply(&rows, &parts, terms, fresh, until).unwrap();
    }

    #[test]
    fn a_commit_saves_what_it_changes_unless_it_was_copied() {
        let (exchange, workers, _) = alone();
        let set = set(&exchange);
        commit(&exchange, &set, 0, 1);
        commit(&exchange, &set, 1, 2);
        let room = block(&exchange, 3);
        let snapshot = RowSnapshot::new(&set, (0, 3), &[1], vec![room.landing().unwrap()]).unwrap();
        let until = (Instant::now() + MINUTE, &Cancel::default());
        let (version, known) = set.begin_snapshot(&snapshot, until).unwrap();
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
    fn a_snapshot_of_some_rows_has_those_alone_and_commits_to_others_save_nothing() {
        let (exchange, workers, _) = alone();
        let set = set(&exchange);
        (0..3).for_each(|row| commit(&exchange, &set, row, 4));
        let room = block(&exchange, 2);
        let snapshot = RowSnapshot::new(&set, (1, 2), &[1], vec![room.landing().unwrap()]).unwrap();
        let (_, known) =
            set.begin_snapshot(&snapshot, (Instant::now() + MINUTE, &Cancel::default())).unwrap();
        commit(&exchange, &set, 0, 9);
        commit(&exchange, &set, 2, 9);
        snapshot.copy_band(&set, &set.shards[1].read(), 1).unwrap();
        let copied = snapshot.copy.lock().as_ref().unwrap().landings[0].chunk(0..2).unwrap().to_vec();
        assert_eq!(copied, [4, 4]);
        drop(known);
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
        let cancel = Cancel::default();
        let copy = |until| set.copy_span((0, 3), &[1], landings(), until);
        let withdrawn = copy((Instant::now() + MINUTE, &gone)).unwrap_err();
        let late = copy((Instant::now(), &cancel)).unwrap_err();
        assert_eq!((withdrawn.reason, late.reason), (Reason::Cancelled, Reason::DeadlineExceeded));
        assert_eq!(copy((Instant::now() + MINUTE, &cancel)).unwrap(), 1);
        workers.stop();
    }
}
