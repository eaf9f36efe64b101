//! Ends of segments: the way out of the books, and those who wait for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Owner, Record, SegmentHandle, Settled, Shelf, Stage, State};
use crate::block::Block;
use crate::segment::Unsealed;

impl State {
    /// No more blocks from this segment.
    pub(in crate::arena) fn close(&mut self, segment: u32) -> Settled {
        let Some(record) = self.records.get_mut(&segment) else { return Settled::Waits };
        record.stage = Stage::Closed;
        let shelf = Shelf::of(record.owner, record.purpose);
        self.take_off(shelf, segment);
        self.settle(segment)
    }

    /// Decides about a segment whose blocks, witnesses or memory changed.
    pub(super) fn settle(&mut self, segment: u32) -> Settled {
        let limits = self.limits;
        let takes_over = |bytes| limits.takes_over && !self.stopped && !limits.is_small(bytes);
        let Some(record) = self.records.get_mut(&segment) else { return Settled::Waits };
        if record.stage != Stage::Closed {
            return Settled::Waits;
        }
        if let Some(handle) = &record.handle
            && let Owner::Session(writer) = record.owner
            && record.ended
            && takes_over(record.bytes)
        {
            if self.witnessed.contains_key(&(segment, writer)) {
                return Settled::Waits;
            }
            // Warm, and nobody else can write it: of more use than its bytes, which would have to be unmapped,
            // given back and populated anew. Its sealed tensors stay where they are, and so do their readers' maps:
            // from here on it is like any segment of the sidecar's own.
            handle.take_over();
            (record.owner, record.stage, record.ended) = (Owner::Sidecar, Stage::Live, false);
            self.shelves.entry(Shelf::Sidecar(record.purpose)).or_default().push(segment);
            return Settled::Freed;
        }
        if !record.is_empty() {
            return Settled::Waits;
        }
        if let Some(handle) = record.handle.take() {
            return Settled::Emptied(handle);
        }
        if record.memory || record.witnesses > 0 {
            return Settled::Waits;
        }
        self.records.remove(&segment);
        Settled::Freed
    }

    /// Strikes a droppable segment from the books at once; its handle must be dropped before its bytes are used.
    pub(super) fn forget(&mut self, segment: u32) -> Option<Arc<SegmentHandle>> {
        let record = self.records.remove(&segment)?;
        self.take_off(Shelf::of(record.owner, record.purpose), segment);
        record.handle
    }

    pub(super) fn take_off(&mut self, shelf: Shelf, segment: u32) {
        if let Some(segments) = self.shelves.get_mut(&shelf) {
            segments.retain(|id| *id != segment);
            if segments.is_empty() {
                self.shelves.remove(&shelf);
            }
        }
    }

    pub(in crate::arena) fn session_ended(&mut self, session: u64) -> Vec<Settled> {
        for record in self.records.values_mut().filter(|record| record.owner == Owner::Session(session)) {
            record.ended = true;
        }
        let segments = self.shelves.get(&Shelf::Session(session)).cloned().unwrap_or_default();
        segments.into_iter().map(|segment| self.close(segment)).collect()
    }

    pub(in crate::arena) fn reclaim(&mut self, want: u64) -> (Vec<Settled>, Vec<(u64, u32)>) {
        let idle = |record: &Record| record.stage == Stage::Live && record.is_empty();
        let mut candidates: Vec<(bool, u64, u32)> = self
            .records
            .iter()
            .filter(|(_, record)| idle(record) && !record.is_droppable())
            .map(|(id, record)| (record.owner == Owner::Sidecar, record.bytes, *id))
            .collect();
        candidates.sort_unstable();
        let enough = candidates.iter().find(|(sidecars, bytes, _)| !sidecars && *bytes >= want);
        let chosen = match enough {
            Some(one) => vec![*one],
            // Largest first, sessions' before the sidecar's own.
            None => {
                candidates
                    .sort_unstable_by_key(|(sidecars, bytes, _)| (*sidecars, std::cmp::Reverse(*bytes)));
                candidates
            }
        };
        let (mut coming, mut emptied, mut told) = (0, Vec::new(), Vec::new());
        for (_, bytes, segment) in chosen {
            if coming >= want {
                break;
            }
            coming += bytes;
            emptied.push(self.close(segment));
            told.extend(self.witnessed.keys().filter(|(of, _)| *of == segment).map(|(of, who)| (*who, *of)));
        }
        told.sort_unstable();
        (emptied, told)
    }

    /// Segments that are on their way out and only wait for somebody to unmap them: session and segment.
    pub(in crate::arena) fn lingering(&self) -> Vec<(u64, u32)> {
        let waits = |segment: &u32| {
            self.records.get(segment).is_some_and(|record| record.stage == Stage::Closed && record.is_empty())
        };
        let waits = |segment: &u32| waits(segment) || self.foreign_lingers(*segment);
        let witnessed = self.witnessed.iter().filter(|((segment, _), one)| one.live > 0 && waits(segment));
        witnessed.map(|((segment, session), _)| (*session, *segment)).collect()
    }

    /// Notes that our memory of a segment is gone.
    pub(in crate::arena) fn memory_gone(&mut self, segment: u32) -> Settled {
        if let Some(record) = self.records.get_mut(&segment) {
            record.memory = false;
        }
        self.settle(segment)
    }

    /// Counts a witness; the size of the segment, or `None` where there is no such segment any more.
    pub(in crate::arena) fn witness_begins(&mut self, segment: u32, session: u64) -> Option<u64> {
        // What is on its way out is not handed to anyone new.
        let going = |record: &Record| record.stage == Stage::Closed && record.is_empty();
        let record = self.records.get_mut(&segment).filter(|record| record.memory && !going(record))?;
        record.witnesses += 1;
        self.witnessed.entry((segment, session)).or_default().live += 1;
        Some(record.bytes)
    }

    /// Bytes that witnesses of these sessions keep from being used again, each once.
    pub(in crate::arena) fn kept_by(&self, sessions: &[u64]) -> u64 {
        let mut kept = BTreeMap::new();
        for ((segment, session), witnessed) in &self.witnessed {
            let record = self.records.get(segment).filter(|_| sessions.contains(session));
            let Some(record) = record else { continue };
            if record.stage == Stage::Closed && record.is_empty() {
                kept.insert((*segment, 0), record.bytes);
            }
            kept.extend(witnessed.pinned.iter().map(|block| ((*segment, block.offset()), block.len())));
        }
        kept.values().sum()
    }

    /// A witness is at its end; the blocks that waited for it.
    pub(in crate::arena) fn witness_ended(&mut self, segment: u32, session: u64) -> (Vec<Block>, Settled) {
        if let Some(record) = self.records.get_mut(&segment) {
            record.witnesses -= 1;
        }
        (self.unwitnessed(segment, session), self.settle(segment))
    }

    /// Counts one witness less of a session that maps a segment. Returns what waited for the last one.
    pub(super) fn unwitnessed(&mut self, segment: u32, session: u64) -> Vec<Block> {
        let Some(witnessed) = self.witnessed.get_mut(&(segment, session)) else { return Vec::new() };
        witnessed.live -= 1;
        if witnessed.live > 0 {
            return Vec::new();
        }
        self.witnessed.remove(&(segment, session)).map(|witnessed| witnessed.pinned).unwrap_or_default()
    }

    /// A segment of a dead incarnation is unmapped everywhere.
    pub(in crate::arena) fn inherited_gone(&mut self, bytes: u64) {
        self.inherited -= bytes;
        self.inherited_booked = self.inherited_booked.min(self.inherited);
    }

    pub(in crate::arena) fn stop(&mut self) -> (Vec<Block>, Vec<Unsealed>) {
        self.stopped = true;
        if let Some(making) = &self.populating {
            making.cancelled.store(true, Ordering::Relaxed);
        }
        let pinned = self.witnessed.values_mut().flat_map(|one| std::mem::take(&mut one.pinned)).collect();
        (pinned, std::mem::take(&mut self.pool))
    }
}
