//! The books of the arena: decisions over plain numbers, made under its lock.
//!
//! Nothing here unmaps, waits or calls back. What has to be dropped is returned to the caller, who drops it when
//! the lock is free.
//!
//! ```text
//!            admit            populate          adopt          session ended, reclaimed
//!   (none) --------> Booked ----------> Fresh ---------> Live --------------------------> Closed --> (none)
//!                       '------- dropped ---'----------------------------------------------^    |   when empty, unmapped
//!                                                Live, the sidecar's <------------------------'   and without witness
//!                                                    when its session ended, it is empty and without witness
//! ```

mod ends;
mod foreign;
mod growth;
mod room;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{ArenaError, ArenaOptions, Lease, NoRoom, Owner, Purpose, SegmentHandle};
use crate::accounting::Usage;
use crate::block::Block;
use crate::extents::Extents;
use crate::segment::Unsealed;
use crate::{PAGE, round_to_pages};

/// Part of an ordinary segment that a small one has at most.
const SMALL_PART: u64 = 16;

/// The numbers an arena was made with, all in whole pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) total: u64,
    pub(crate) granule: u64,
    pub(crate) for_pulls: u64,
    pub(crate) ready: u64,
    pub(crate) takes_over: bool,
}

impl Limits {
    pub(crate) fn from_options(options: &ArenaOptions) -> Result<Self, ArenaError> {
        let total = floor_to_pages(options.bytes);
        if total == 0 {
            return Err(ArenaError::TooSmall { bytes: options.bytes });
        }
        let share = options.pull_share;
        if !(0.0..=1.0).contains(&share) {
            return Err(ArenaError::PullShare { share });
        }
        Ok(Self {
            total,
            granule: round_to_pages(options.segment_bytes).unwrap_or(total).clamp(PAGE, total),
            for_pulls: floor_to_pages((total as f64 * share) as u64),
            ready: options.ready_bytes,
            takes_over: options.take_over,
        })
    }

    fn for_puts(&self) -> u64 {
        self.total - self.for_pulls
    }

    /// Returns whether a segment of a session is one of its small ones: made when it is needed, and gone with its session.
    fn is_small(&self, bytes: u64) -> bool {
        bytes <= self.granule / SMALL_PART
    }
}

fn floor_to_pages(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

/// Place of a block.
pub(crate) struct Place {
    pub(crate) segment: Arc<SegmentHandle>,
    pub(crate) offset: u64,
    pub(crate) charged: u64,
    /// The sidecar writes it; else the session that owns the segment.
    pub(crate) is_ours: bool,
    /// Of a foreign block: given back with it.
    pub(crate) lease: Option<Lease>,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (segment, offset) = (self.segment.id(), self.offset);
        f.debug_struct("Place").field("segment", &segment).field("offset", &offset).finish_non_exhaustive()
    }
}

/// Class that a block counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Reserved,
    Sealed,
    Retired,
}

impl Class {
    /// The class that `class as u8` was.
    pub(crate) fn of(number: u8) -> Self {
        match number {
            0 => Self::Reserved,
            1 => Self::Sealed,
            _ => Self::Retired,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Booked,
    Fresh,
    Live,
    Closed,
}

/// Group of segments that a request may be served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Shelf {
    Session(u64),
    Sidecar(Purpose),
}

impl Shelf {
    fn of(owner: Owner, purpose: Purpose) -> Self {
        match owner {
            Owner::Session(session) => Self::Session(session),
            // Puts and pulls apart, so that small puts do not break up what is kept for large pulls.
            Owner::Sidecar => Self::Sidecar(purpose),
        }
    }
}

#[derive(Debug)]
struct Record {
    bytes: u64,
    owner: Owner,
    purpose: Purpose,
    stage: Stage,
    /// The owner is gone: not to be adopted; once closed, the sidecar may take it over.
    ended: bool,
    extents: Extents,
    classes: [u64; 3],
    handle: Option<Arc<SegmentHandle>>,
    /// Set while our map and descriptor exist.
    memory: bool,
    witnesses: u32,
}

impl Record {
    fn is_empty(&self) -> bool {
        self.extents.free() == self.bytes
    }

    /// Idle, alive, unmapped by anyone else: can be dropped at once. The count of handles proves that nobody else
    /// holds one, since new ones are only made under the lock we hold.
    fn is_droppable(&self) -> bool {
        self.stage == Stage::Live
            && self.owner == Owner::Sidecar
            && self.is_empty()
            && self.witnesses == 0
            && self.handle.as_ref().is_some_and(|handle| Arc::strong_count(handle) == 1)
    }
}

/// Action that is due now that a segment changed.
#[derive(Debug)]
#[must_use]
pub(in crate::arena) enum Settled {
    /// Nothing.
    Waits,
    /// Bytes came back: someone may find room.
    Freed,
    /// To be unmapped.
    Emptied(Arc<SegmentHandle>),
}

/// A segment the background populator is making.
#[derive(Debug)]
pub(in crate::arena) struct Populating {
    pub(in crate::arena) serial: u64,
    pub(in crate::arena) bytes: u64,
    pub(in crate::arena) cancelled: Arc<AtomicBool>,
}

/// Witnesses of a session that still has a segment, and the blocks that wait for their end.
#[derive(Debug, Default)]
pub(in crate::arena) struct Witnessed {
    pub(in crate::arena) live: u32,
    pub(in crate::arena) pinned: Vec<Block>,
}

#[derive(Debug)]
pub(crate) struct State {
    limits: Limits,
    records: BTreeMap<u32, Record>,
    /// Segments of other sidecars.
    foreign: BTreeMap<u32, foreign::Guest>,
    /// Bytes of those whose owner was gone or lost, since the start: copied here, and let go of.
    orphans_copied: u64,
    orphans_dropped: u64,
    shelves: HashMap<Shelf, Vec<u32>>,
    last_segment: u32,
    pub(in crate::arena) pool: Vec<Unsealed>,
    pub(in crate::arena) populating: Option<Populating>,
    /// Bytes that dead incarnations still charge, and how much of it is booked in the arena (it may not fit).
    inherited: u64,
    inherited_booked: u64,
    /// Bytes that grants are about to destroy and have not booked for themselves.
    clearing: u64,
    pub(in crate::arena) witnessed: HashMap<(u32, u64), Witnessed>,
    pub(in crate::arena) cold_populates: u64,
    pub(in crate::arena) populate_failures: u64,
    pub(in crate::arena) stopped: bool,
}

pub(super) use growth::Admitted;

impl State {
    pub(in crate::arena) fn new(limits: Limits, inherited: u64) -> Self {
        Self {
            limits,
            records: BTreeMap::new(),
            foreign: BTreeMap::new(),
            orphans_copied: 0,
            orphans_dropped: 0,
            shelves: HashMap::new(),
            last_segment: 0,
            pool: Vec::new(),
            populating: None,
            inherited,
            inherited_booked: inherited.min(limits.total),
            clearing: 0,
            witnessed: HashMap::new(),
            cold_populates: 0,
            populate_failures: 0,
            stopped: false,
        }
    }

    fn assigned(&self) -> u64 {
        let records: u64 = self.records.values().map(|record| record.bytes).sum();
        records + self.inherited_booked + self.clearing
    }

    fn assigned_to_puts(&self) -> u64 {
        let puts = self.records.values().filter(|record| record.purpose == Purpose::Put);
        puts.map(|record| record.bytes).sum::<u64>() + self.inherited_booked
    }

    pub(in crate::arena) fn unassigned(&self) -> u64 {
        self.limits.total - self.assigned()
    }

    pub(in crate::arena) fn pooled(&self) -> u64 {
        self.pool.iter().map(Unsealed::bytes).sum()
    }

    /// Bytes that the background populator should make next, if anything.
    pub(in crate::arena) fn wanted_ready(&self) -> Option<u64> {
        let pooled = self.pooled();
        if self.stopped || self.populating.is_some() || pooled >= self.limits.ready {
            return None;
        }
        let bytes = self.limits.granule.min(self.unassigned().saturating_sub(pooled));
        (bytes > 0).then_some(bytes)
    }

    pub(in crate::arena) fn most(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Put => self.limits.for_puts(),
            Purpose::Pull => self.limits.total,
        }
    }

    pub(in crate::arena) fn usage(&self) -> Usage {
        let pooled = self.pooled();
        let mut usage = Usage {
            total: self.limits.total,
            free: self.unassigned(),
            reserved: self.clearing,
            retired: self.inherited_booked,
            inherited: self.inherited_booked,
            populated: self.inherited + pooled,
            ready: pooled,
            cold_populates: self.cold_populates,
            populate_failures: self.populate_failures,
            ..Usage::default()
        };
        for record in self.records.values() {
            let [reserved, sealed, retired] = record.classes;
            usage.reserved += reserved;
            usage.sealed += sealed;
            usage.retired += retired;
            let idle = record.extents.free();
            match (record.stage, record.owner) {
                (Stage::Booked | Stage::Fresh, _) => usage.reserved += idle,
                (Stage::Live, Owner::Session(_)) => usage.held += idle,
                (Stage::Live, Owner::Sidecar) => usage.free += idle,
                (Stage::Closed, _) => usage.retired += idle,
            }
            if record.memory || record.witnesses > 0 {
                usage.populated += record.bytes;
            }
        }
        usage
    }

    pub(in crate::arena) fn allocate(
        &mut self,
        owner: Owner,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Option<Place>, NoRoom> {
        if self.stopped {
            return Err(NoRoom::Stopped);
        }
        let most = self.most(purpose);
        let charged = Extents::charged(bytes).filter(|charged| *charged <= most);
        let charged = charged.ok_or(NoRoom::Never { asked: bytes, most })?;
        let shelf = Shelf::of(owner, purpose);
        let found = self.best_on(shelf, charged).or_else(|| self.repurpose(shelf, charged));
        let Some((id, offset)) = found else { return Ok(None) };
        let record = self.record(id);
        let segment = Arc::clone(record.handle.as_ref().expect("segments on a shelf are live"));
        record.extents.take(offset, charged);
        record.classes[Class::Reserved as usize] += charged;
        Ok(Some(Place { segment, offset, charged, is_ours: owner == Owner::Sidecar, lease: None }))
    }

    fn best_on(&self, shelf: Shelf, charged: u64) -> Option<(u32, u64)> {
        let fits = self.shelves.get(&shelf).into_iter().flatten().filter_map(|id| {
            let (offset, len) = self.records.get(id)?.extents.best_fit(charged)?;
            Some((len, *id, offset))
        });
        fits.min().map(|(_, id, offset)| (id, offset))
    }

    /// An idle segment of the sidecar that was for puts serves pulls, and the other way round within the puts' share.
    fn repurpose(&mut self, shelf: Shelf, charged: u64) -> Option<(u32, u64)> {
        let Shelf::Sidecar(purpose) = shelf else { return None };
        let puts = self.limits.for_puts().saturating_sub(self.assigned_to_puts());
        let other = if purpose == Purpose::Put { Purpose::Pull } else { Purpose::Put };
        let candidates = self.shelves.get(&Shelf::Sidecar(other))?.iter().filter_map(|id| {
            let record = self.records.get(id)?;
            let fits = record.is_empty()
                && record.bytes >= charged
                && (purpose == Purpose::Pull || record.bytes <= puts);
            fits.then_some((record.bytes, *id))
        });
        let (_, id) = candidates.min()?;
        self.take_off(Shelf::Sidecar(other), id);
        self.record(id).purpose = purpose;
        self.shelves.entry(shelf).or_default().push(id);
        Some((id, 0))
    }

    /// Takes a block back.
    pub(in crate::arena) fn release(
        &mut self,
        segment: u32,
        offset: u64,
        charged: u64,
        class: Class,
    ) -> Settled {
        let record = self.record(segment);
        record.extents.give_back(offset, charged);
        record.classes[class as usize] -= charged;
        match self.settle(segment) {
            Settled::Waits => Settled::Freed,
            settled => settled,
        }
    }

    pub(in crate::arena) fn reclass(&mut self, segment: u32, charged: u64, from: Class, to: Class) {
        let record = self.record(segment);
        record.classes[from as usize] -= charged;
        record.classes[to as usize] += charged;
    }

    fn record(&mut self, segment: u32) -> &mut Record {
        self.records.get_mut(&segment).expect("a segment stays in the books while it has blocks")
    }
}
