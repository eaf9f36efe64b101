//! Ways of segments into the books: planned, booked, made, adopted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{NoRoom, Owner, Purpose, Record, SegmentHandle, Shelf, Stage, State};
use crate::accounting::Shortage;
use crate::extents::Extents;
use crate::segment::Unsealed;
use crate::{PAGE, round_to_pages};

/// Bytes of a session's first segment where it needs no more: cursors of 512 readers of channels, say.
const FIRST: u64 = 64 << 10;

/// Times as many bytes as a session has in its next small segment.
const GROWTH: u64 = 4;

/// Plan by which a new segment can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::arena) struct Plan {
    need: u64,
    bytes: u64,
    drops: Vec<u32>,
}

/// Values that an admitted request takes with it.
#[derive(Debug)]
pub(in crate::arena) struct Admitted {
    pub(in crate::arena) segment: u32,
    pub(in crate::arena) bytes: u64,
    pub(in crate::arena) ready: Option<Unsealed>,
    pub(in crate::arena) doomed: Vec<Unsealed>,
    pub(in crate::arena) dropped: Vec<Arc<SegmentHandle>>,
    pub(in crate::arena) waits_for: Option<u64>,
    /// Bytes of `doomed` and `dropped` beyond what was booked for: not free before they are destroyed.
    pub(in crate::arena) clearing: u64,
}

impl State {
    /// Plan by which a segment for `bytes` can be had within the budget, if need be by dropping idle ones of the
    /// sidecar.
    pub(in crate::arena) fn plan(&self, purpose: Purpose, bytes: u64) -> Result<Plan, NoRoom> {
        if self.stopped {
            return Err(NoRoom::Stopped);
        }
        let most = self.most(purpose);
        let need = round_to_pages(bytes.max(1)).filter(|need| *need <= most);
        let need = need.ok_or(NoRoom::Never { asked: bytes, most })?;
        let (mut any, mut puts) =
            (self.unassigned(), self.limits.for_puts().saturating_sub(self.assigned_to_puts()));
        let room =
            |any: u64, puts: u64| if purpose == Purpose::Put { any.min(puts) } else { any } / PAGE * PAGE;
        if room(any, puts) >= need {
            return Ok(Plan {
                need,
                bytes: self.limits.granule.clamp(need, room(any, puts)),
                drops: Vec::new(),
            });
        }
        let mut candidates: Vec<(&u32, &Record)> =
            self.records.iter().filter(|(_, record)| record.is_droppable()).collect();
        candidates.sort_by_key(|(_, record)| (record.purpose, record.bytes));
        let mut drops = Vec::new();
        for (id, record) in candidates {
            let more_puts = if record.purpose == Purpose::Put { record.bytes } else { 0 };
            if room(any + record.bytes, puts + more_puts) > room(any, puts) {
                drops.push(*id);
                (any, puts) = (any + record.bytes, puts + more_puts);
            }
            if room(any, puts) >= need {
                return Ok(Plan { need, bytes: need, drops });
            }
        }
        Err(NoRoom::Full(Shortage::of(bytes, &self.usage())))
    }

    /// Books a new segment. What is returned has to be destroyed before the segment is populated.
    pub(in crate::arena) fn admit(
        &mut self,
        owner: Owner,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Admitted, NoRoom> {
        let Owner::Session(session) = owner else {
            let plan = self.plan(purpose, bytes)?;
            return Ok(self.book(owner, purpose, &plan));
        };
        let mut plan = self.plan(Purpose::Put, bytes)?;
        plan.bytes = plan.bytes.min(self.usual(session, bytes)).max(plan.need);
        Ok(self.book(owner, Purpose::Put, &plan))
    }

    /// Bytes that a session's next segment has if there is room. Small at first, so that a session with little takes little; an ordinary
    /// one, which may be ready, for a large block and where much is there already.
    fn usual(&self, session: u64, bytes: u64) -> u64 {
        let of_session = |record: &&Record| record.owner == Owner::Session(session);
        let has: u64 = self.records.values().filter(of_session).map(|record| record.bytes).sum();
        let next = has.saturating_mul(GROWTH).max(bytes).max(FIRST);
        if self.limits.is_small(next) { next } else { self.limits.granule }
    }

    /// Books a segment of the sidecar's own that has as many bytes as it must, and no more.
    pub(in crate::arena) fn admit_exactly(&mut self, bytes: u64) -> Result<Admitted, NoRoom> {
        let plan = self.plan(Purpose::Pull, bytes)?;
        let exact = Plan { bytes: plan.need, ..plan };
        Ok(self.book(Owner::Sidecar, Purpose::Pull, &exact))
    }

    fn book(&mut self, owner: Owner, purpose: Purpose, plan: &Plan) -> Admitted {
        let dropped: Vec<_> = plan.drops.iter().filter_map(|id| self.forget(*id)).collect();
        let ready = self.take_ready(plan);
        let bytes = ready.as_ref().map_or(plan.bytes, Unsealed::bytes);
        self.last_segment += 1;
        let segment = self.last_segment;
        self.records.insert(
            segment,
            Record {
                bytes,
                owner,
                purpose,
                stage: Stage::Booked,
                ended: false,
                extents: Extents::new(bytes),
                classes: [0; 3],
                handle: None,
                memory: false,
                witnesses: 0,
            },
        );
        let doomed = self.shrink_pool();
        let going = doomed.iter().map(Unsealed::bytes).sum::<u64>()
            + dropped.iter().map(|handle| handle.bytes()).sum::<u64>();
        // A ready segment exists beside what is going; another comes into being after it has gone.
        let clearing = if ready.is_some() { going } else { going.saturating_sub(bytes) };
        self.clearing += clearing;
        let waits_for = self.cancel_populating();
        Admitted { segment, bytes, ready, doomed, dropped, waits_for, clearing }
    }

    /// Notes that what a grant was about to destroy is gone.
    pub(in crate::arena) fn cleared(&mut self, clearing: u64) {
        self.clearing -= clearing;
    }

    /// A pooled segment that is large enough and not wastefully larger.
    fn take_ready(&mut self, plan: &Plan) -> Option<Unsealed> {
        let most = plan.bytes.max(plan.need);
        let fits = self.pool.iter().enumerate().map(|(at, pooled)| (pooled.bytes(), at));
        let (_, at) = fits.filter(|(bytes, _)| (plan.need..=most).contains(bytes)).min()?;
        Some(self.pool.swap_remove(at))
    }

    /// Takes out of the pool what it holds beyond what is unassigned now.
    fn shrink_pool(&mut self) -> Vec<Unsealed> {
        let mut doomed = Vec::new();
        while self.pooled() > self.unassigned() {
            doomed.extend(self.pool.pop());
        }
        doomed
    }

    /// Stops the populator if what it makes is not unassigned any more. Its serial number, to be waited for: its
    /// pages exist until it says so.
    fn cancel_populating(&self) -> Option<u64> {
        let (pooled, unassigned) = (self.pooled(), self.unassigned());
        let making = self.populating.as_ref().filter(|making| pooled + making.bytes > unassigned)?;
        making.cancelled.store(true, Ordering::Relaxed);
        Some(making.serial)
    }

    /// A grant was given up before anything was made.
    pub(in crate::arena) fn unbook(&mut self, segment: u32, ready: Option<Unsealed>) {
        self.records.remove(&segment);
        self.pool.extend(ready);
    }

    /// The memory of a booked segment exists.
    pub(in crate::arena) fn made(&mut self, segment: u32) {
        let record = self.record(segment);
        record.stage = Stage::Fresh;
        record.memory = true;
    }

    /// Returns whether the owner of a fresh segment is gone.
    pub(in crate::arena) fn is_ended(&self, segment: u32) -> bool {
        self.stopped || self.records.get(&segment).is_none_or(|record| record.ended)
    }

    /// The segment takes blocks from now on; unless its owner is gone.
    pub(in crate::arena) fn adopt(&mut self, handle: &Arc<SegmentHandle>) -> bool {
        if self.is_ended(handle.id()) {
            // The handle's drop settles the rest.
            let _ = self.close(handle.id());
            return false;
        }
        let record = self.record(handle.id());
        record.stage = Stage::Live;
        record.handle = Some(Arc::clone(handle));
        let shelf = Shelf::of(record.owner, record.purpose);
        self.shelves.entry(shelf).or_default().push(handle.id());
        true
    }
}
