//! The books of segments of other sidecars: how many blocks are in use, who may still map them, and nothing of the budget; until
//! one is taken in, whose record is the budget's, and follows the blocks that are counted here.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::{Class, SegmentHandle, Settled, Stage, State};
use crate::arena::ForeignUsage;
use crate::block::Block;

/// A foreign segment that somebody here maps.
#[derive(Debug)]
pub(super) struct Guest {
    bytes: u64,
    handle: Weak<SegmentHandle>,
    /// Set while our own map of the owner's pages exists.
    memory: bool,
    /// Carriers that map the owner's pages, too: their number, by session.
    carriers: BTreeMap<u64, u32>,
    blocks: u64,
    used: u64,
    /// The part of `used` whose tensor is gone.
    retired: u64,
    orphaned: bool,
    /// The pages that the handle shows are a copy of ours, in the record of the same number.
    taken_in: bool,
}

impl Guest {
    /// Returns whether somebody here maps the owner's pages.
    fn is_mapped(&self) -> bool {
        self.memory || !self.carriers.is_empty()
    }

    /// Returns whether others map the owner's pages that are of no use to us any more.
    fn lingers(&self) -> bool {
        !self.memory && self.blocks == 0
    }
}

impl State {
    /// A number for one more segment; none where the arena has stopped.
    pub(in crate::arena) fn next_foreign(&mut self) -> Option<u32> {
        if self.stopped {
            return None;
        }
        self.last_segment += 1;
        Some(self.last_segment)
    }

    pub(in crate::arena) fn import(&mut self, segment: &Arc<SegmentHandle>) {
        let guest = Guest {
            bytes: segment.bytes(),
            handle: Arc::downgrade(segment),
            memory: true,
            carriers: BTreeMap::new(),
            blocks: 0,
            used: 0,
            retired: 0,
            orphaned: false,
            taken_in: false,
        };
        self.foreign.insert(segment.id(), guest);
    }

    pub(in crate::arena) fn foreign_usage(&self) -> ForeignUsage {
        let (copied, dropped) = (self.orphans_copied, self.orphans_dropped);
        let mut usage = ForeignUsage { copied, dropped, ..ForeignUsage::default() };
        for guest in self.foreign.values().filter(|guest| guest.is_mapped()) {
            usage.mapped += guest.bytes;
            usage.used += if guest.taken_in { 0 } else { guest.used };
            usage.orphaned += if guest.orphaned { guest.bytes } else { 0 };
        }
        usage
    }

    pub(in crate::arena) fn foreign_blocks(&self, segment: u32) -> u64 {
        self.foreign.get(&segment).map_or(0, |guest| guest.blocks)
    }

    pub(in crate::arena) fn foreign_taken(&mut self, segment: u32, bytes: u64) {
        if let Some(guest) = self.foreign.get_mut(&segment) {
            guest.blocks += 1;
            guest.used += bytes;
        }
        self.charge(segment);
    }

    pub(in crate::arena) fn foreign_reclass(&mut self, segment: u32, bytes: u64, to: Class) {
        if to == Class::Retired
            && let Some(guest) = self.foreign.get_mut(&segment)
        {
            guest.retired += bytes;
        }
        self.charge(segment);
    }

    pub(in crate::arena) fn foreign_given_back(&mut self, segment: u32, bytes: u64, class: Class) -> Settled {
        if let Some(guest) = self.foreign.get_mut(&segment) {
            guest.blocks -= 1;
            guest.used -= bytes;
            guest.retired -= if class == Class::Retired { bytes } else { 0 };
        }
        let is_own = self.charge(segment);
        self.settle_foreign(segment);
        if is_own { self.settle(segment) } else { Settled::Waits }
    }

    pub(in crate::arena) fn foreign_orphaned(&mut self, segment: u32) {
        if let Some(guest) = self.foreign.get_mut(&segment) {
            guest.orphaned = true;
        }
    }

    pub(in crate::arena) fn foreign_gone(&mut self, segment: u32) {
        if let Some(guest) = self.foreign.get_mut(&segment) {
            guest.memory = false;
        }
        self.settle_foreign(segment);
    }

    /// A client is to get the segment: counts its carrier. None where it is not a foreign one that is still here. The
    /// handle must be dropped without the lock.
    pub(in crate::arena) fn foreign_witness_begins(
        &mut self,
        segment: u32,
        session: u64,
    ) -> Option<Arc<SegmentHandle>> {
        let guest = self.foreign.get_mut(&segment).filter(|guest| guest.memory)?;
        let handle = guest.handle.upgrade()?;
        *guest.carriers.entry(session).or_default() += 1;
        self.witnessed.entry((segment, session)).or_default().live += 1;
        Some(handle)
    }

    /// A carrier is at its end; the blocks that waited for it.
    pub(in crate::arena) fn carrier_ended(&mut self, segment: u32, session: u64) -> Vec<Block> {
        if let Some(guest) = self.foreign.get_mut(&segment)
            && let Some(carriers) = guest.carriers.get_mut(&session)
        {
            *carriers -= 1;
            if *carriers == 0 {
                guest.carriers.remove(&session);
            }
        }
        self.settle_foreign(segment);
        self.unwitnessed(segment, session)
    }

    /// Returns whether clients map a foreign segment that is of no use to us any more.
    pub(super) fn foreign_lingers(&self, segment: u32) -> bool {
        self.foreign.get(&segment).is_some_and(Guest::lingers)
    }

    /// Returns whether that is so of any.
    pub(in crate::arena) fn any_foreign_lingers(&self) -> bool {
        self.foreign.values().any(Guest::lingers)
    }

    /// Foreign segments with blocks that live. The handles must be dropped without the lock.
    pub(in crate::arena) fn foreign_in_use(&self) -> Vec<Arc<SegmentHandle>> {
        let in_use = self.foreign.values().filter(|guest| guest.memory && guest.blocks > 0);
        in_use.filter_map(|guest| guest.handle.upgrade()).collect()
    }

    /// Foreign segment of a number, if a block of it lives. The handle must be dropped without the lock.
    pub(in crate::arena) fn foreign_segment(&self, segment: u32) -> Option<Arc<SegmentHandle>> {
        self.foreign.get(&segment).filter(|guest| guest.memory && guest.blocks > 0)?.handle.upgrade()
    }

    /// Segments that were taken in, and the sessions that map their owners' pages. The handles must be dropped without the lock.
    pub(in crate::arena) fn foreign_outdated(&self) -> Vec<(Arc<SegmentHandle>, Vec<u64>)> {
        let outdated = self.foreign.values().filter(|guest| guest.taken_in && !guest.carriers.is_empty());
        let with_sessions =
            |guest: &Guest| Some((guest.handle.upgrade()?, guest.carriers.keys().copied().collect()));
        outdated.filter_map(with_sessions).collect()
    }

    /// A foreign segment shows pages of ours from now on: those that were booked as `copy`. The sessions that map the owner's.
    pub(in crate::arena) fn taken_in(&mut self, original: &SegmentHandle, copy: u32) -> Vec<u64> {
        let segment = original.id();
        original.is_taken_in();
        if let Some(mut record) = self.records.remove(&copy) {
            // It takes nothing new, and goes with its last block.
            record.stage = Stage::Closed;
            self.records.insert(segment, record);
        }
        let mut sessions = Vec::new();
        if let Some(guest) = self.foreign.get_mut(&segment) {
            (guest.memory, guest.taken_in) = (false, true);
            self.orphans_copied += guest.bytes;
            sessions = guest.carriers.keys().copied().collect();
        }
        self.charge(segment);
        self.settle_foreign(segment);
        sessions
    }

    /// Makes the record of a segment that was taken in follow its blocks: while there are any it is theirs whole. Sealed is what
    /// tensors use, and the rest is of no use until the last of them goes. False where it was not taken in.
    fn charge(&mut self, segment: u32) -> bool {
        let Some(guest) = self.foreign.get(&segment).filter(|guest| guest.taken_in) else { return false };
        let Some(record) = self.records.get_mut(&segment) else { return false };
        if guest.blocks == 0 {
            if !record.is_empty() {
                record.extents.give_back(0, record.bytes);
            }
            record.classes = [0; 3];
            return true;
        }
        if record.is_empty() {
            record.extents.take(0, record.bytes);
        }
        // Blocks may lie over each other: a tensor that is mapped again while the map before is still pinned.
        let sealed = (guest.used - guest.retired).min(record.bytes);
        record.classes = [0, sealed, record.bytes - sealed];
        true
    }

    fn settle_foreign(&mut self, segment: u32) {
        let is_over = |guest: &Guest| !guest.is_mapped() && guest.blocks == 0;
        if self.foreign.get(&segment).is_some_and(is_over)
            && let Some(guest) = self.foreign.remove(&segment)
            && guest.orphaned
            && !guest.taken_in
        {
            self.orphans_dropped += guest.bytes;
        }
    }
}
