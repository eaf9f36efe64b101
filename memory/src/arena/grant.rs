//! Steps of a segment into the arena: booked, populated, sealed, adopted. Each step is a value; dropping it at any
//! step gives back what it took.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::state::{Admitted, State};
use super::{Arena, NoRoom, Owner, Purpose, SegmentHandle, Shared};
use crate::block::Block;
use crate::mapping::{MapError, Mapping};
use crate::segment::{Sealed, SegmentError, Unsealed};

/// Reason why a fresh segment was not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Failure to seal it; it was destroyed.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Failure to put its pages in the place of those that it is a copy of; it was destroyed.
    #[error(transparent)]
    Exchange(#[from] MapError),
    /// End of its session, or of the arena, in the meantime; it was destroyed.
    #[error("the owner of segment {segment} is gone")]
    OwnerGone {
        /// Number of the segment.
        segment: u32,
    },
    /// Too few bytes for what it was made for; it stays, for its owner.
    #[error("segment {segment} has {size} bytes, too few for the {bytes} that it was made for")]
    TooSmall {
        /// Number of the segment.
        segment: u32,
        /// Size of the segment in bytes.
        size: u64,
        /// Bytes that did not fit.
        bytes: u64,
    },
}

/// Reason why `allocate_or_grow` has no block.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// No room.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A segment could not be made.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
}

impl From<SegmentError> for GrowError {
    fn from(error: SegmentError) -> Self {
        Self::Adopt(AdoptError::Segment(error))
    }
}

/// Room for a new segment, booked in the arena.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub struct Grant {
    shared: Arc<Shared>,
    owner: Owner,
    purpose: Purpose,
    /// `None` once it has become a fresh segment.
    admitted: Option<Admitted>,
}

/// A populated segment that is not sealed yet: its writer is about to map it.
#[derive(Debug)]
#[must_use = "dropping it destroys the segment"]
pub struct Fresh {
    shared: Arc<Shared>,
    owner: Owner,
    purpose: Purpose,
    segment: u32,
    /// `None` once it was adopted.
    unsealed: Option<Unsealed>,
}

impl Arena {
    /// Books room for a new segment that holds at least `bytes`, of the usual size where the budget has that much.
    /// Idle segments of the sidecar and pooled ones make way for it.
    ///
    /// # Errors
    /// Why there is no room; never [`NoRoom::Grow`].
    pub fn admit(&self, owner: Owner, purpose: Purpose, bytes: u64) -> Result<Grant, NoRoom> {
        let admitted = self.shared.state.lock().admit(owner, purpose, bytes)?;
        Ok(Grant { shared: Arc::clone(&self.shared), owner, purpose, admitted: Some(admitted) })
    }

    /// Seals a fresh segment and gives it to its owner. The writer must have mapped it: it cannot any more.
    ///
    /// # Errors
    /// It could not be sealed, or its owner is gone; it was destroyed.
    pub fn adopt(&self, fresh: Fresh) -> Result<Arc<SegmentHandle>, AdoptError> {
        self.adopt_and(fresh, |_| ()).map(|(handle, ())| handle)
    }

    /// Seals a fresh segment, gives it to its owner and takes the block out of it that it was made for. One step: an
    /// idle segment is anyone's to reclaim, and who has waited for it would go away empty-handed.
    ///
    /// # Errors
    /// It could not be sealed, or its owner is gone (it was destroyed); or the segment is smaller than `bytes` (it
    /// stays, for its owner).
    pub fn adopt_for(&self, fresh: Fresh, bytes: u64) -> Result<Block, AdoptError> {
        let (owner, purpose, size) = (fresh.owner, fresh.purpose, fresh.bytes());
        let take = |state: &mut State| state.allocate(owner, purpose, bytes);
        let (handle, taken) = self.adopt_and(fresh, take)?;
        match taken {
            Ok(Some(place)) => Ok(Block::new(Arc::clone(&self.shared), place, bytes)),
            _ => Err(AdoptError::TooSmall { segment: handle.id(), size, bytes }),
        }
    }

    /// As [`Arena::admit`], for a segment of the sidecar's own of exactly that size in pages.
    pub(super) fn admit_exactly(&self, bytes: u64) -> Result<Grant, NoRoom> {
        let admitted = self.shared.state.lock().admit_exactly(bytes)?;
        let (shared, owner, purpose) = (Arc::clone(&self.shared), Owner::Sidecar, Purpose::Pull);
        Ok(Grant { shared, owner, purpose, admitted: Some(admitted) })
    }

    fn adopt_and<T>(
        &self,
        mut fresh: Fresh,
        then: impl FnOnce(&mut State) -> T,
    ) -> Result<(Arc<SegmentHandle>, T), AdoptError> {
        let segment = fresh.segment;
        if self.shared.state.lock().is_ended(segment) {
            return Err(AdoptError::OwnerGone { segment });
        }
        let sealed = fresh.seal()?;
        let owner = fresh.owner;
        // From here on the handle's drop settles the books.
        let shared = fresh.disarm();
        let handle = Arc::new(SegmentHandle::new(segment, owner, sealed, Arc::downgrade(&shared)));
        let mut state = shared.state.lock();
        if !state.adopt(&handle) {
            drop(state);
            return Err(AdoptError::OwnerGone { segment });
        }
        let outcome = then(&mut state);
        drop(state);
        // There is room in it for others than the one who made it.
        (shared.on_room)();
        Ok((handle, outcome))
    }

    /// A block of the sidecar's own, in a new segment if need be. Blocks for as long as that takes to populate.
    ///
    /// # Errors
    /// No room, or no segment.
    pub fn allocate_or_grow(&self, purpose: Purpose, bytes: u64) -> Result<Block, GrowError> {
        match self.allocate(Owner::Sidecar, purpose, bytes) {
            Err(NoRoom::Grow) => {
                let fresh = self.admit(Owner::Sidecar, purpose, bytes)?.populate()?;
                Ok(self.adopt_for(fresh, bytes)?)
            }
            done => Ok(done?),
        }
    }
}

impl Grant {
    /// Size of the segment that was booked, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.admitted.as_ref().map_or(0, |admitted| admitted.bytes)
    }

    /// Returns whether the pool has the segment ready, so that [`Grant::populate`] is quick.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.admitted.as_ref().is_some_and(|admitted| admitted.ready.is_some())
    }

    /// Makes the segment. Slow unless [`Grant::is_ready`]: 3 GB/s at best, on the caller's thread.
    ///
    /// # Errors
    /// The step that failed; nothing stays, the room is given back.
    pub fn populate(mut self) -> Result<Fresh, SegmentError> {
        let unsealed = self.make()?;
        let segment = self.admitted.take().expect("make leaves it there").segment;
        self.shared.state.lock().made(segment);
        let (owner, purpose) = (self.owner, self.purpose);
        Ok(Fresh { shared: Arc::clone(&self.shared), owner, purpose, segment, unsealed: Some(unsealed) })
    }

    fn make(&mut self) -> Result<Unsealed, SegmentError> {
        let admitted = self.admitted.as_mut().expect("only populate takes it");
        clear_room(&self.shared, admitted);
        if let Some(ready) = admitted.ready.take() {
            // The pool wants to be filled again.
            self.shared.changed.notify_all();
            return Ok(ready);
        }
        let made = Unsealed::create(admitted.bytes, &*self.shared.populate);
        // A session writes through its own map, and waits for this one.
        if let (Ok(made), Owner::Sidecar) = (&made, self.owner) {
            made.fill_page_tables(&AtomicBool::new(false));
        }
        let mut state = self.shared.state.lock();
        state.cold_populates += 1;
        state.populate_failures += u64::from(made.is_err());
        made
    }
}

/// Destroys what had these bytes before, and waits for the populator to let go of what it was making of them.
fn clear_room(shared: &Shared, admitted: &mut Admitted) {
    destroy_former(shared, admitted);
    if let Some(serial) = admitted.waits_for.take() {
        let mut state = shared.state.lock();
        while state.populating.as_ref().is_some_and(|making| making.serial == serial) {
            shared.changed.wait(&mut state);
        }
    }
}

fn destroy_former(shared: &Shared, admitted: &mut Admitted) {
    admitted.doomed.clear();
    admitted.dropped.clear();
    let clearing = std::mem::take(&mut admitted.clearing);
    if clearing > 0 {
        shared.state.lock().cleared(clearing);
        shared.budget_changed();
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(mut admitted) = self.admitted.take() {
            // Gone before the room is anyone else's.
            destroy_former(&self.shared, &mut admitted);
            self.shared.state.lock().unbook(admitted.segment, admitted.ready.take());
            self.shared.budget_changed();
        }
    }
}

impl Fresh {
    /// Number of the segment.
    #[must_use]
    pub fn segment_id(&self) -> u32 {
        self.segment
    }

    /// Owner, who writes it.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Size in bytes, whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.unsealed.as_ref().map_or(0, Unsealed::bytes)
    }

    /// A read-write descriptor for its one writer. Hand it out with a witness ([`Arena::witness`]), never alone.
    ///
    /// # Errors
    /// Where no descriptor is to be had.
    pub fn writer_fd(&self) -> io::Result<OwnedFd> {
        match &self.unsealed {
            Some(unsealed) => unsealed.writer_fd(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Seals it. The memory is gone with an error, and dropping this settles the books.
    pub(super) fn seal(&mut self) -> Result<Sealed, SegmentError> {
        self.unsealed.take().expect("what is sealed is sealed once").seal()
    }

    /// Memory of the segment, mapped by us for writing.
    pub(super) fn mapping(&self) -> Option<&Mapping> {
        self.unsealed.as_ref().map(Unsealed::mapping)
    }

    /// Leaves the books to someone else.
    pub(super) fn disarm(mut self) -> Arc<Shared> {
        self.segment = 0;
        Arc::clone(&self.shared)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if self.segment != 0 {
            // It has memory still, so that closing cannot settle anything yet.
            let _ = self.shared.state.lock().close(self.segment);
            drop(self.unsealed.take());
            self.shared.memory_gone(self.segment);
        }
    }
}

/// Kept here so that the compiler proves it: these cross threads.
const _: fn() = || {
    fn crosses<T: Send + Sync>() {}
    crosses::<Grant>();
    crosses::<Fresh>();
    crosses::<Arena>();
    crosses::<Block>();
};
