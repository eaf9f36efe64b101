//! Rings that block and evict: their writer waits for every reader, until one is marked as evicted.
//!
//! - As in a ring that drops, a reader says in its cursor what it holds, and the writer passes over that ([`super::holds`]). So a reader
//!   that is evicted keeps what it holds, and nobody waits for what it has not read.
//! - As in a ring that blocks, a message stays until every reader that is not evicted has read it: no sequence is ever missed.
//! - Whether all have read what lies in a slot is looked at under the lock of the list, and its entry is withdrawn there. So a reader
//!   that attaches was looked at, or does not find that message.
//! - Where every slot is held, the writer sleeps on the cursor of one holder, and looks at all again after a quarter of a second.
//! - An eviction is the writer's own word: a cursor that takes it back is not believed, and holds no more slots than a reader may.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dropping::Round;
use super::holds::{self, Fence};
use super::shape::entry;
use super::writer::{Lacks, Laggard, Used};
use super::{ClaimError, Deadline, RingReaders, RingWriter};

/// Eviction of readers that hold the writer up.
pub(super) struct Eviction {
    /// Time that the writer waits for one reader.
    after: Duration,
    /// Has a reader marked. Must not wait.
    evict: Box<dyn Fn(u64) + Send + Sync>,
}

impl fmt::Debug for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eviction").field("after", &self.after).finish_non_exhaustive()
    }
}

// === impl RingWriter ===

impl RingWriter {
    /// From now on a reader for which a claim has waited so long is evicted, as by [`RingReaders::evict`]. It is given to `evict`, once,
    /// which has its cursor marked as evicted and does not wait for that. Only of a ring that evicts.
    pub fn evict_after(&mut self, after: Duration, evict: impl Fn(u64) + Send + Sync + 'static) {
        self.eviction = Some(Eviction { after, evict: Box::new(evict) });
    }

    /// Takes the next slot that all readers have read and none holds, once there is one.
    pub(super) fn wait_for_slot(
        &mut self,
        last_use: Option<Used>,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), ClaimError> {
        while let Some(laggard) = self.try_slot(last_use) {
            self.sleep(&laggard, deadline, stop)?;
        }
        Ok(())
    }

    /// Takes a slot, or says who is waited for. `last_use` is of the layout whose place is about to be written.
    fn try_slot(&mut self, last_use: Option<Used>) -> Option<Laggard> {
        let (shape, readers) = (self.shape, Arc::clone(&self.readers));
        let list = &mut *readers.list.lock();
        let (floor, read) = last_use.map_or((0, 0), |used| (used.position + 1, used.sequence + 1));
        loop {
            let mut held = None;
            for round in Round::BOTH {
                // What every reader has read, and is held in the second round, was held all the time.
                list.begin(round);
                held = None;
                for _ in 0..shape.slots() {
                    let word = |word| shape.entry(self.head, word);
                    let needed = match self.ring.load64(word(entry::POSITION)) {
                        0 => read,
                        _ => read.max(self.ring.load64(word(entry::SEQUENCE)) + 1),
                    };
                    if let Some(laggard) = list.behind(needed, self.sequence) {
                        return Some(laggard);
                    }
                    let (last, mut holder) = (self.ring.load64(word(entry::LAST)), None);
                    let is_held = || {
                        holder = list.holder(last, shape.most_held());
                        holder.is_some()
                    };
                    if holds::withdraw(&Fence, || self.ring.store64(word(entry::POSITION), 0), is_held) {
                        self.withdraw_below(floor);
                        return None;
                    }
                    // One that may let go by itself is better waited for than one that is evicted.
                    let found = holder.map(|(evicted, id)| (evicted, id, self.head));
                    held = [held, found].into_iter().flatten().min();
                    self.head += 1;
                }
            }
            if let Some((_, id, position)) = held
                && let Some(reader) = list.readers.iter_mut().find(|reader| reader.id == id)
            {
                let word = |word| self.ring.load64(shape.entry(position, word));
                return Some(reader.laggard(word(entry::SEQUENCE), Lacks::Hold(word(entry::LAST))));
            }
            // It has gone meanwhile, and holds nothing any more.
        }
    }

    /// Evicts a reader if it is time, and returns whether it did.
    pub(super) fn evict_in_time(&self, laggard: &Laggard) -> bool {
        let Some(eviction) = self.eviction.as_ref() else { return false };
        let is_due = self.evicts_at(laggard).is_some_and(|due| due <= Instant::now());
        if !is_due || !self.readers.evict(laggard.id) {
            return false;
        }
        (eviction.evict)(laggard.id);
        true
    }

    /// The moment at which a reader is evicted that is waited for, if it is to be.
    pub(super) fn evicts_at(&self, laggard: &Laggard) -> Option<Instant> {
        let eviction = self.eviction.as_ref().filter(|_| self.shape.evicts() && !laggard.evicted)?;
        laggard.since.checked_add(eviction.after)
    }
}

// === impl RingReaders ===

impl RingReaders {
    /// Evicts a reader: its writer waits for it no longer, whatever its cursor says. Whoever calls it has that marked. Returns whether
    /// it was attached, and could be evicted.
    pub fn evict(&self, id: u64) -> bool {
        let mut list = self.list.lock();
        let mut readers = list.readers.iter_mut().filter(|reader| reader.id == id && !reader.evicted);
        let Some(reader) = readers.next().filter(|_| self.shape.evicts()) else { return false };
        reader.evicted = true;
        true
    }
}
