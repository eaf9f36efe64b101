//! Segments whose owner is dead: nobody's memory, which is copied into this arena while somebody here uses a tensor of it.
//!
//! ```text
//!   orphans --> take_in: room --> populate --> copy --> seal --> exchange (our map and descriptors, the books) --> TakenIn
//!                          nothing of a step that fails stays                                                     |
//!                                                     hand_out for each session in `outdated`, until it maps the copy
//! ```
//!
//! The number, the addresses and the blocks stay what they are: only the pages under them are others. A segment is copied whole,
//! and charged so: a hole in it would be given a page by whoever reads there, behind the back of the books.
//!
//! That an owner is dead is the kernel's word: nobody has the reading end of its witness. A connection that is lost proves
//! nothing, and an owner that lives keeps its bytes for us. One that came back before anybody looked has opened the witness anew,
//! and those pages are in its account as inherited.

use std::sync::Arc;

use super::grant::{AdoptError, Fresh, GrowError};
use super::{Arena, SegmentHandle};
use crate::copy;
use crate::passing::has_no_reader;

/// A segment of a dead owner that has become this arena's.
#[derive(Debug)]
pub struct TakenIn {
    /// Segment that was taken in, under the number that it had.
    pub segment: Arc<SegmentHandle>,
    /// The sessions that map the pages of its dead owner, still.
    pub sessions: Vec<u64>,
}

impl Arena {
    /// Segments of dead owners with tensors that are in use, and their bytes: what [`Arena::take_in`] is for.
    #[must_use]
    pub fn orphans(&self) -> Vec<(u32, u64)> {
        let guests = self.shared.state.lock().foreign_in_use();
        let mut dead = Vec::new();
        for segment in guests {
            if segment.owners_witness().is_some_and(has_no_reader) {
                self.shared.state.lock().foreign_orphaned(segment.id());
                dead.push((segment.id(), segment.bytes()));
            }
            self.shared.let_go(segment);
        }
        dead
    }

    /// Copies a segment of a dead owner into this arena, under the same number and at the same addresses. `None` where there is
    /// no use for it any more. Slow: it populates, and copies.
    ///
    /// # Errors
    /// No room now, or no segment; everything is as before.
    pub fn take_in(&self, segment: u32) -> Result<Option<TakenIn>, GrowError> {
        let Some(original) = self.shared.state.lock().foreign_segment(segment) else { return Ok(None) };
        match self.exchanged(&original) {
            Ok(sessions) => Ok(Some(TakenIn { segment: original, sessions })),
            Err(error) => {
                self.shared.let_go(original);
                Err(error)
            }
        }
    }

    /// Segments that were taken in, each with the sessions that map the pages of its dead owner still.
    #[must_use]
    pub fn outdated(&self) -> Vec<TakenIn> {
        let outdated = self.shared.state.lock().foreign_outdated();
        outdated.into_iter().map(|(segment, sessions)| TakenIn { segment, sessions }).collect()
    }

    fn exchanged(&self, original: &Arc<SegmentHandle>) -> Result<Vec<u64>, GrowError> {
        let mut fresh = self.admit_exactly(original.bytes())?.populate()?;
        copy_whole(original, &fresh);
        // Declared behind `fresh`, so that the memory of one that is given up is gone before its room is anybody's.
        let sealed = fresh.seal()?;
        let handing = original.handing();
        let before = original.exchange(&sealed).map_err(AdoptError::Exchange)?;
        let copied = fresh.segment_id();
        let shared = fresh.disarm();
        let sessions = shared.state.lock().taken_in(original, copied);
        // Whoever hands it out does not wait until the pages of the dead owner are freed.
        drop(handing);
        drop(before);
        Ok(sessions)
    }
}

/// All bytes of a segment into a fresh one of no fewer.
fn copy_whole(original: &SegmentHandle, fresh: &Fresh) {
    let Some(to) = fresh.mapping() else { return };
    let from = original.mapping();
    let bytes = from.bytes().min(to.bytes()) as usize;
    // SAFETY: both maps live through the call and have so many bytes; they are maps of their own, so that they do not overlap.
    // Nobody else knows the fresh one. A process that writes the original meanwhile breaks its word, and mixes bytes only.
    unsafe { copy::raw(to.as_ptr().as_ptr(), from.as_ptr().as_ptr(), bytes) };
}

#[cfg(test)]
mod tests;
