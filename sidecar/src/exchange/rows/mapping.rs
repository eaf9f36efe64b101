//! Rows that are mapped where they lie: a contiguous set has each leaf in one field, of which pieces are shown to readers.
//!
//! ```text
//!   map      hold(rows) ──> a piece of each leaf ── a tensor that its reader leases ── its last lease ends: released
//!   commit   waits for its rows ── a hold is released ── writes, under the locks of its bands as any
//! ```
//! A hold ends with the blocks of its tensors. So it lasts for as long as a process may look at the rows: one that was killed ends its
//! witness, and one that is stopped keeps commits waiting, which say who it is.

use std::any::Any;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tensorlane_memory::{Block, Field, FieldChunk, FieldError};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::rows::{HeldRows, HoldId, Holds, Leaf, RowList, SetLayout, Touched, WaitId};

use super::RowsRead;
use super::locking::{LOOK, Until};
use super::memory::{Band, MutableSet, NewRows, internal, shard_of};
use crate::cancel::Cancel;
use crate::exchange::Exchange;

/// Rows of a contiguous set.
pub(super) struct LeafFields {
    /// Field of each leaf; none for one whose rows have no bytes.
    fields: Vec<Option<Field>>,
    maps: Arc<MapHolds>,
}

/// Holds of a set, and commits that wait for one to be released.
#[derive(Default)]
struct MapHolds {
    holds: Mutex<Holds<Mapper>>,
    released: Condvar,
}

/// Reader that maps rows.
struct Mapper {
    /// Short words for it, such as `session 3 (trainer, process 12)`.
    who: String,
    since: Instant,
}

/// A hold of rows, which ends when this is dropped.
struct Hold {
    maps: Arc<MapHolds>,
    id: HoldId,
}

/// Rows that nobody maps, until this is dropped.
pub(super) struct Unmapped<'a> {
    maps: &'a MapHolds,
    wait: WaitId,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.maps.holds.lock().release(self.id);
        self.maps.released.notify_all();
    }
}

impl Drop for Unmapped<'_> {
    fn drop(&mut self) {
        self.maps.holds.lock().leave(self.wait);
    }
}

// === impl LeafFields ===

impl LeafFields {
    /// Takes a fresh block for each leaf. What is in them does not matter: a band is zeroed when it is first written or mapped.
    pub(super) fn new(blocks: &[Block]) -> Result<Self, Failure> {
        let field = |block: &Block| match block.is_empty() {
            true => Ok(None),
            false => Field::new(block).map(Some).ok_or_else(|| internal(&"a fresh block cannot be written")),
        };
        Ok(Self { fields: blocks.iter().map(field).collect::<Result<_, _>>()?, maps: Arc::default() })
    }

    /// Bytes of neighbouring rows of a leaf, to be read; none where there are none.
    pub(super) fn chunk(
        &self,
        leaf: usize,
        start: u64,
        length: u64,
    ) -> Result<Option<FieldChunk<'_>>, Failure> {
        let field = self.fields.get(leaf).and_then(Option::as_ref);
        field.map(|field| field.chunk(start..start + length)).transpose().map_err(|error| internal(&error))
    }

    /// Writes neighbouring rows of a leaf.
    pub(super) fn write(&self, leaf: usize, start: u64, from: &[u8]) -> Result<(), Failure> {
        let field = self.fields.get(leaf).and_then(Option::as_ref);
        field.map_or(Ok(()), |field| field.write(start, from)).map_err(|error| internal(&error))
    }

    /// Zeroes a band that has not been used.
    pub(super) fn zero(&self, layout: &SetLayout, band: u64) -> Result<(), Failure> {
        let (first, count) = layout.rows_of_band(band);
        let zero = |(leaf, field): (&Leaf, &Option<Field>)| match field {
            Some(field) => field.zero(first * leaf.row_bytes..(first + count) * leaf.row_bytes),
            None => Ok(()),
        };
        let zeroed: Result<(), FieldError> = layout.leaves().iter().zip(&self.fields).try_for_each(zero);
        zeroed.map_err(|error| internal(&error))
    }

    /// Waits until nobody maps rows that a commit writes, and keeps it so. Blocks: for waiters.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED with whoever maps some of them the longest, CANCELLED.
    pub(super) fn unmapped(
        &self,
        rows: &RowList,
        parts: &[NewRows<'_>],
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<Unmapped<'_>, Failure> {
        let leaves: Vec<usize> = parts.iter().map(|part| part.leaf).collect();
        let maps = &*self.maps;
        // Before the lock: they may be many.
        let touched = Touched::new(rows, &leaves);
        let unmapped = Unmapped { maps, wait: maps.holds.lock().wait(touched) };
        let mut holds = maps.holds.lock();
        while let Some(held) = holds.blocker(unmapped.wait) {
            let now = Instant::now();
            if cancel.is_cancelled() {
                return Err(Failure::new(Reason::Cancelled, "the writer is gone, or withdrew the call"));
            }
            if now >= deadline {
                return Err(mapped_by(held, now));
            }
            maps.released.wait_until(&mut holds, deadline.min(now + LOOK));
        }
        drop(holds);
        Ok(unmapped)
    }

    /// Number of maps.
    pub(super) fn maps(&self) -> u64 {
        self.maps.holds.lock().len() as u64
    }

    fn hold(&self, span: (u64, u64), leaves: &[usize], who: String) -> Option<Arc<dyn Any + Send + Sync>> {
        let id = self.maps.holds.lock().hold(span, leaves, Mapper { who, since: Instant::now() })?;
        Some(Arc::new(Hold { maps: Arc::clone(&self.maps), id }))
    }

    /// Shows neighbouring rows of a leaf, which are held.
    fn show(
        &self,
        (at, leaf): (usize, &Leaf),
        (first, count): (u64, u64),
        hold: &Arc<dyn Any + Send + Sync>,
    ) -> Result<(Descriptor, Block), Failure> {
        let range = first * leaf.row_bytes..(first + count) * leaf.row_bytes;
        let field = self.fields.get(at).and_then(Option::as_ref);
        let shown = field.map(|field| field.show(range, Arc::clone(hold))).transpose();
        let block = shown.map_err(|error| internal(&error))?.unwrap_or_else(Block::nothing);
        Ok((leaf.packed(count)?, block))
    }
}

fn mapped_by(held: &HeldRows<Mapper>, now: Instant) -> Failure {
    let HeldRows { first, count, by: Mapper { who, since }, .. } = held;
    let (last, held_for) = (first + count.saturating_sub(1), now.saturating_duration_since(*since));
    let what = format!(
        "rows {first} to {last} have been mapped by {who} for {} ms; have it release them, or give the commit a longer deadline",
        held_for.as_millis()
    );
    Failure::new(Reason::DeadlineExceeded, what).with("holder", who).with("held_ms", held_for.as_millis())
}

// === impl MutableSet ===

impl MutableSet {
    /// Has neighbouring rows of a contiguous set be there, zero where nothing was written.
    fn make_bands(
        &self,
        pieces: &LeafFields,
        (first, count): (u64, u64),
        until: Until<'_>,
    ) -> Result<(), Failure> {
        if self.layout.band_bytes() == 0 {
            return Ok(());
        }
        let bands = self.layout.band(first)..=self.layout.band(first + count - 1);
        for band in self.absent(bands.collect(), until)? {
            let mut shards = self.alone([band], until)?;
            let Some(shard) = shards.get_mut(shard_of(band)).and_then(Option::as_mut) else { continue };
            if let Entry::Vacant(vacant) = shard.entry(band) {
                pieces.zero(&self.layout, band)?;
                vacant.insert(Band::InPieces);
            }
        }
        Ok(())
    }
}

// === impl Exchange ===

impl Exchange {
    /// Leases neighbouring rows of leaves where they lie, the first one and their number. None where they are to be copied: of a set
    /// that is not contiguous, for no rows, beside a commit that waits for some of them, and beyond the maps that a set may have.
    pub(super) fn map_rows(
        &self,
        set: &MutableSet,
        by: Holder,
        leaves: &[usize],
        span: (u64, u64),
        until: Until<'_>,
    ) -> Result<Option<RowsRead>, Failure> {
        let Some(pieces) = set.pieces.as_ref().filter(|_| span.1 > 0) else { return Ok(None) };
        let Some(hold) = pieces.hold(span, leaves, self.store.named_holder(by)) else { return Ok(None) };
        set.make_bands(pieces, span, until)?;
        // From the hold on no commit to these rows is applied: they are those of this version, too.
        let version = set.commits.lock().version();
        let show = |at: &usize| {
            let leaf = set.layout.leaves().get(*at).ok_or_else(|| internal(&"no such leaf"))?;
            pieces.show((*at, leaf), span, &hold)
        };
        let blocks = leaves.iter().map(show).collect::<Result<Vec<_>, Failure>>()?;
        let mut taken = self.lease_blocks(by, blocks)?;
        taken.iter_mut().for_each(|taken| taken.copied = false);
        self.metrics.sets.maps.inc();
        Ok(Some(RowsRead { taken, version }))
    }
}
