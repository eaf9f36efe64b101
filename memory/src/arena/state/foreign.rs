//! The books of segments of other sidecars: how many blocks are in use, who may still map them, and nothing of the budget.

use std::sync::{Arc, Weak};

use super::{SegmentHandle, State};
use crate::arena::ForeignUsage;

/// A foreign segment that somebody here maps.
#[derive(Debug)]
pub(super) struct Guest {
    bytes: u64,
    handle: Weak<SegmentHandle>,
    /// Our own map exists.
    memory: bool,
    witnesses: u32,
    blocks: u64,
    used: u64,
    orphaned: bool,
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
            witnesses: 0,
            blocks: 0,
            used: 0,
            orphaned: false,
        };
        self.foreign.insert(segment.id(), guest);
    }

    pub(in crate::arena) fn foreign_usage(&self) -> ForeignUsage {
        let mut usage = ForeignUsage::default();
        for guest in self.foreign.values() {
            usage.mapped += guest.bytes;
            usage.used += guest.used;
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
    }

    pub(in crate::arena) fn foreign_given_back(&mut self, segment: u32, bytes: u64) {
        if let Some(guest) = self.foreign.get_mut(&segment) {
            guest.blocks -= 1;
            guest.used -= bytes;
        }
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

    /// A client is to get the segment: counts its witness. None where it is not a foreign one that is still here. The
    /// handle must be dropped without the lock.
    pub(in crate::arena) fn foreign_witness_begins(
        &mut self,
        segment: u32,
        session: u64,
    ) -> Option<Arc<SegmentHandle>> {
        let guest = self.foreign.get_mut(&segment)?;
        let handle = guest.handle.upgrade()?;
        guest.witnesses += 1;
        self.witnessed.entry((segment, session)).or_default().live += 1;
        Some(handle)
    }

    pub(super) fn foreign_witness_ended(&mut self, segment: u32) {
        if let Some(guest) = self.foreign.get_mut(&segment) {
            guest.witnesses -= 1;
        }
        self.settle_foreign(segment);
    }

    /// Whether clients map a foreign segment that is of no use to us any more.
    pub(super) fn foreign_lingers(&self, segment: u32) -> bool {
        self.foreign.get(&segment).is_some_and(|guest| !guest.memory)
    }

    /// Whether that is so of any.
    pub(in crate::arena) fn any_foreign_lingers(&self) -> bool {
        self.foreign.values().any(|guest| !guest.memory)
    }

    fn settle_foreign(&mut self, segment: u32) {
        if self.foreign.get(&segment).is_some_and(|guest| !guest.memory && guest.witnesses == 0) {
            self.foreign.remove(&segment);
        }
    }
}
