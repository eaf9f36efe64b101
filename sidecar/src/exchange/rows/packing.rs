//! Rows on their way out: copied into blocks of their own, all of one version.
//!
//! A few rows are copied under their locks, at once. Many that are neighbours, such as all of a large set, are a snapshot, which
//! commits do not wait for.

use std::time::Instant;

use tensorlane_memory::{Block, Landing, Purpose};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::rows::{RowList, SetLayout};
use tensorlane_proto::selection::MAX_ROWS;
use tensorlane_proto::wire;

use super::RowsRead;
use super::locking::withdrawn;
use super::memory::{MutableSet, internal};
use crate::cancel::Cancel;
use crate::exchange::{Exchange, Taken};
use crate::store::{AllocRequest, Claimant, NoTurn, turn};

/// Bytes of neighbouring rows from which on they are copied as a snapshot. Less is copied in a few milliseconds, for which commits
/// wait.
const LARGE_BYTES: u64 = 16 << 20;

/// Rows of leaves in blocks of their own, which nobody leases yet.
pub(super) struct PackedBlocks {
    /// Descriptor and bytes of each leaf, in the order in which the leaves were given.
    pub(super) blocks: Vec<(Descriptor, Block)>,
    /// The version.
    pub(super) version: u64,
}

/// Room for rows of leaves, and the places in it that they are copied to, both in the order of the leaves.
struct RowsRoom {
    blocks: Vec<(Descriptor, Block)>,
    landings: Vec<Landing>,
}

/// Leaves of a set that are packed, and the patience for it.
pub(super) struct Packing<'a> {
    pub(super) set: &'a MutableSet,
    pub(super) leaves: &'a [usize],
    pub(super) waits: Waits<'a>,
}

/// Caller that waits, until when and for how long it wants to.
pub(super) type Waits<'a> = (&'a Claimant, Instant, &'a Cancel);

// === impl Exchange ===

impl Exchange {
    /// Packs rows into tensors that a holder leases. Blocks: for waiters.
    pub(super) fn pack_rows(
        &self,
        set: &MutableSet,
        by: Holder,
        request: v1::SetReadRequest,
        waits: Waits<'_>,
    ) -> Result<RowsRead, Failure> {
        let (_, deadline, cancel) = waits;
        if cancel.is_cancelled() {
            return Err(Failure::new(Reason::Cancelled, "the reader is gone, or withdrew the call"));
        }
        let leaves = chosen(&set.layout, &request.keys)?;
        let packing = Packing { set, leaves: &leaves, waits };
        let rows = RowList::of_any_length(&wire::selection(request.rows)?, &set.layout)?;
        let span = rows.span().filter(|_| request.map);
        if let Some(mapped) =
            span.map(|span| self.map_rows(set, by, &leaves, span, (deadline, cancel))).transpose()?.flatten()
        {
            self.metrics.sets.rows_read.inc_by(rows.len());
            return Ok(mapped);
        }
        let packed = match rows.span().filter(|(_, count)| packing.is_large(*count)) {
            Some(span) => self.pack_span(&packing, span)?,
            None => self.pack_some(&packing, &rows)?,
        };
        let PackedBlocks { blocks, version } = packed;
        let taken = self.lease_blocks(by, blocks)?;
        self.metrics.sets.rows_read.inc_by(rows.len());
        Ok(RowsRead { taken, version })
    }

    /// Packs neighbouring rows of leaves, the first one and their number, as they are at one moment. Commits go on meanwhile.
    ///
    /// # Errors
    /// TOO_LARGE, ARENA_FULL, TORN_ROWS, STORAGE_FAILED, DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn pack_span(
        &self,
        packing: &Packing<'_>,
        (first, count): (u64, u64),
    ) -> Result<PackedBlocks, Failure> {
        let Packing { set, leaves, waits: (_, deadline, cancel) } = *packing;
        // Before the room: whoever waits for its turn holds none.
        let _copying = match turn(&set.copying, deadline, cancel) {
            Ok(turn) => turn,
            Err(NoTurn::Cancelled) => return Err(withdrawn()),
            Err(NoTurn::TooLate) => {
                let what = "many rows of the set are being copied for another caller; give the call a longer deadline";
                return Err(Failure::new(Reason::DeadlineExceeded, what));
            }
        };
        let RowsRoom { blocks, landings } = self.room_for_rows(packing, count)?;
        let version = set.copy_span((first, count), leaves, landings, (deadline, cancel))?;
        Ok(PackedBlocks { blocks, version })
    }

    fn pack_some(&self, packing: &Packing<'_>, rows: &RowList) -> Result<PackedBlocks, Failure> {
        rows.check_length()?;
        let RowsRoom { blocks, mut landings } = self.room_for_rows(packing, rows.len())?;
        let (_, deadline, cancel) = packing.waits;
        let version = packing.set.gather(rows, packing.leaves, &mut landings, (deadline, cancel))?;
        Ok(PackedBlocks { blocks, version })
    }

    /// Room for so many rows of each leaf, all or none.
    fn room_for_rows(&self, packing: &Packing<'_>, count: u64) -> Result<RowsRoom, Failure> {
        let (claimant, deadline, cancel) = packing.waits;
        let descriptors: Vec<Descriptor> =
            packing.leaves().map(|leaf| leaf.packed(count)).collect::<Result<_, Failure>>()?;
        let sizes: Vec<u64> = descriptors.iter().map(|one| one.layout.bytes()).collect();
        let bytes = sizes.iter().fold(0_u64, |sum, one| sum.saturating_add(*one));
        let most = self.store.arena().usage().total / 2;
        if bytes > most {
            let what = format!(
                "a read of {bytes} bytes; at most {most}, half of the owner's arena: read fewer rows, or enlarge the arena"
            );
            return Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes));
        }
        let purpose = Purpose::Put;
        let alloc = AllocRequest { writer: None, claimant, purpose, bytes, deadline, cancel };
        let blocks = self.store.allocate_all(&sizes, &alloc)?;
        let landing =
            |block: &Block| block.landing().ok_or_else(|| internal(&"a fresh block cannot be written"));
        let landings = blocks.iter().map(landing).collect::<Result<_, Failure>>()?;
        Ok(RowsRoom { blocks: descriptors.into_iter().zip(blocks).collect(), landings })
    }

    /// Makes tensors of packed rows, leased by a holder: all or none.
    pub(super) fn lease_blocks(
        &self,
        by: Holder,
        blocks: Vec<(Descriptor, Block)>,
    ) -> Result<Vec<Taken>, Failure> {
        let mut taken = Vec::with_capacity(blocks.len());
        for (descriptor, block) in blocks {
            match self.store.pack_in(by, descriptor, block) {
                Ok(one) => taken.push(Taken { copied: true, ..one }),
                Err(failure) => {
                    taken.iter().for_each(|one| self.untake(by, one));
                    return Err(failure);
                }
            }
        }
        Ok(taken)
    }
}

// === impl Packing ===

impl Packing<'_> {
    fn leaves(&self) -> impl Iterator<Item = &tensorlane_proto::rows::Leaf> {
        self.leaves.iter().filter_map(|leaf| self.set.layout.leaves().get(*leaf))
    }

    /// Returns whether so many rows are more than commits should wait for.
    fn is_large(&self, rows: u64) -> bool {
        let bytes = self.leaves().map(|leaf| leaf.row_bytes.saturating_mul(rows));
        rows > MAX_ROWS as u64 || bytes.fold(0, u64::saturating_add) > LARGE_BYTES
    }
}

/// Leaves of keys, of which none is given twice; no keys mean all leaves.
pub(super) fn chosen(layout: &SetLayout, keys: &[String]) -> Result<Vec<usize>, Failure> {
    if keys.is_empty() {
        return Ok((0..layout.leaves().len()).collect());
    }
    let mut given = vec![false; layout.leaves().len()];
    let mut leaf_of = |key: &String| {
        let leaf = layout.leaf(key)?;
        match given.get_mut(leaf).is_some_and(|given| !std::mem::replace(given, true)) {
            true => Ok(leaf),
            false => {
                let what = format!("{key:?} is given twice; give each leaf once");
                Err(Failure::new(Reason::InvalidArgument, what).with("key", key))
            }
        }
    };
    keys.iter().map(&mut leaf_of).collect()
}
