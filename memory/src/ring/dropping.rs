//! Rings that drop: their writer waits for nobody, their readers are told what they missed.
//!
//! ```text
//!   positions  … 8     9    10    11    12      slots = 4: the message at 12 lies in the slot of the one at 8
//!   sequences  … 8     9    held  10    11      position 10 was passed over: a reader held what lies in its slot
//! ```
//! - A message has a *position* in the ring and a *sequence*. Positions that were passed over have no message; sequences are those of
//!   the messages that were written. So a difference of sequences is a number of messages that a reader has missed.
//! - The entry of a message says its position until the writer comes to its slot again. A reader looks at the entries from the
//!   oldest that may be there upwards (`drop_oldest`), or from the newest downwards (`latest`), and takes the first one that it can
//!   hold ([`super::holds`]). Entries that it could not hold never come back, so it goes on behind them.
//! - Where readers hold every slot, the message is written to a spare slot that nobody reads, and is dropped. Its sequence is gone.
//! - A cursor that lies stops nobody. A hold counts where it names what lies in the slot, and for as many slots as a reader may hold.
//! - A message waits for nobody and costs no allocation: the writer looks at the holds of each reader, which lie in one line.

use std::sync::Arc;

use super::holds::{self, Fence};
use super::reader::{Inner, Mark, damaged, end_of};
use super::region::Shared;
use super::shape::{HOLDS, cursor, entry, ring};
use super::writer::{List, Reader};
use super::{
    CursorState, Deadline, First, Message, Policy, Published, Read, ReadError, RingReader, RingReaders,
    RingState, RingWriter,
};

/// Looks of one read, at most, at a ring whose writer is faster than it.
const LOOKS: u32 = 64;

/// Progress of a reader in a ring that drops.
#[derive(Debug)]
pub(super) struct Progress {
    /// Lowest position that was not looked at.
    position: u64,
    /// Lowest sequence of which the reader knows nothing.
    sequence: u64,
    /// Messages that it was told of as dropped.
    dropped: u64,
    /// The message behind a gap that was told.
    behind_gap: Option<Message>,
}

/// Holds of a reader: a bit for each that is in use.
#[derive(Debug, Default)]
pub(super) struct Holds(u32);

/// Round of a writer through all slots: the first one withdraws every entry, and the second one finds all of them withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    First,
    Second,
}

/// A look at a position.
enum Look {
    /// No message is there any more, or none ever was.
    Gone,
    /// Message from before the first one of this reader.
    Old,
    Message(Message),
}

impl Progress {
    /// Progress of a reader that begins with a sequence.
    pub(super) fn from(sequence: u64) -> Self {
        Self { position: 0, sequence, dropped: 0, behind_gap: None }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { next: self.sequence, dropped: self.dropped }
    }

    /// Looks once more for what comes from a place on.
    pub(super) fn go_back(&mut self, mark: Mark) {
        *self = Self { dropped: mark.dropped, ..Self::from(mark.next) };
    }
}

// === impl Round ===

impl Round {
    /// Both, in order.
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Second];
}

// === impl RingReader ===

impl RingReader {
    /// Goes on, before the first read, with the message `next` of what another reader of the same channel has read. Returns how many
    /// from there on cannot be had: they count as dropped. In a ring that drops, what is below is passed over and does not count; in
    /// another one it comes once more, and is given back as any message.
    pub fn resume(&mut self, next: u64) -> u64 {
        let dropped = self.mark().next.saturating_sub(next);
        if dropped > 0 {
            self.progress.dropped = dropped;
            self.inner.cursor.store64(cursor::DROPPED, dropped);
        } else if self.inner.shape.policy().drops() {
            self.progress.sequence = next;
            self.inner.cursor.store64(cursor::NEXT, next);
        }
        dropped
    }

    /// As [`Self::read`], in a ring that drops or evicts.
    pub(super) fn read_dropping(
        &mut self,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Result<Read, ReadError> {
        let inner = Arc::clone(&self.inner);
        let mut looks = 0;
        loop {
            let events = inner.ring.load32(ring::EVENTS);
            inner.check_open()?;
            if let Some(message) = self.progress.behind_gap.take() {
                return Ok(Read::Message(message));
            }
            // Before the head: a writer that finishes has published before.
            let state = RingState::read(inner.ring.load32(ring::STATE));
            let head = inner.ring.load64(ring::HEAD);
            let is_there = head > self.progress.position;
            let held = inner.holds.lock().count();
            if held >= inner.hold && (is_there || state == Some(RingState::Open)) {
                self.check_passed_over(head)?;
                return Err(ReadError::HoldLimit { hold: inner.hold });
            }
            if is_there {
                if let Some(message) = self.find(head)? {
                    self.check_next(message.sequence)?;
                    return Ok(self.tell(message));
                }
                // What was not there is not coming back.
                self.progress.position = head;
                looks += 1;
                if looks < LOOKS {
                    continue;
                }
            }
            if let Some(end) = end_of(state, self.progress.sequence)? {
                let written = inner.ring.load64(ring::WRITTEN);
                self.check_next(written)?;
                return Ok(self.miss(written).unwrap_or(end));
            }
            inner.sleep(events, self.progress.position, deadline, stop)?;
            looks = 0;
        }
    }

    /// The message that comes next, of those before the head that are still there.
    fn find(&mut self, head: u64) -> Result<Option<Message>, ReadError> {
        let shape = self.inner.shape;
        let lowest = self.progress.position.max(head.saturating_sub(u64::from(shape.slots())));
        if shape.policy() == Policy::Latest {
            for position in (lowest..head).rev() {
                match self.look(position)? {
                    Look::Message(message) => return Ok(Some(message)),
                    Look::Old => return Ok(None),
                    Look::Gone => {}
                }
            }
        } else {
            for position in lowest..head {
                if let Look::Message(message) = self.look(position)? {
                    return Ok(Some(message));
                }
            }
        }
        Ok(None)
    }

    /// Takes the message at a position, if it is there and can be held.
    fn look(&mut self, position: u64) -> Result<Look, ReadError> {
        let inner = Arc::clone(&self.inner);
        let is_there = || inner.is_at(position);
        if !is_there() {
            return Ok(Look::Gone);
        }
        if inner.sequence(position) < self.progress.sequence {
            return Ok(Look::Old);
        }
        let Some(index) = inner.holds.lock().begin() else { return Ok(Look::Gone) };
        let announce = || inner.cursor.store64(cursor::hold(index), position.wrapping_add(1));
        let taken = match holds::hold(&Fence, announce, is_there) {
            true => self.take_held(position, index),
            false => Ok(None),
        };
        if !matches!(taken, Ok(Some(_))) {
            inner.end_hold(index);
        }
        Ok(taken?.map_or(Look::Gone, Look::Message))
    }

    /// The message at a position, which is held; none if its layout was written over.
    fn take_held(&mut self, position: u64, index: u32) -> Result<Option<Message>, ReadError> {
        let inner = &self.inner;
        let sequence = inner.sequence(position);
        if sequence < self.progress.sequence || sequence == u64::MAX {
            return Err(damaged(sequence, "it comes after a later one"));
        }
        let number = inner.ring.load64(inner.shape.entry(position, entry::LAYOUT));
        if number != self.layout.0 {
            let layout = inner.layout(position, sequence, number);
            // What stood at its place may have been another one by then.
            if !holds::look_again(&Fence, || inner.is_at(position)) {
                return Ok(None);
            }
            self.layout = (number, layout?);
        }
        let (view, extent) = inner.body(position)?;
        let (inner, layout) = (Arc::clone(inner), Arc::clone(&self.layout.1));
        self.progress.position = position.wrapping_add(1);
        Ok(Some(Message { inner, sequence, view, extent, layout, held_by: Some(index) }))
    }

    /// Checks that the message that comes next is there still, without a hold: a reader at its limit may be evicted, too, and whoever
    /// marks its cursor may come later than the writer has gone on.
    fn check_passed_over(&self, head: u64) -> Result<(), ReadError> {
        let (inner, progress) = (&self.inner, &self.progress);
        if head <= progress.position {
            return Ok(());
        }
        let lowest = progress.position.max(head.saturating_sub(u64::from(inner.shape.slots())));
        let there = (lowest..head).filter(|position| inner.is_at(*position));
        let next = there.map(|position| inner.sequence(position)).min();
        self.check_next(next.unwrap_or(u64::MAX))
    }

    /// Checks that no message was missed before a sequence in a ring that evicts. Its writer goes on without the readers that it evicts,
    /// and without those alone; the word of it may still be on its way.
    fn check_next(&self, sequence: u64) -> Result<(), ReadError> {
        match self.inner.shape.evicts() && sequence > self.progress.sequence {
            true => Err(ReadError::Evicted),
            false => Ok(()),
        }
    }

    /// Tells of a message, or first of those that were missed before it.
    fn tell(&mut self, message: Message) -> Read {
        let sequence = message.sequence;
        let gap = self.miss(sequence);
        self.progress.sequence = sequence + 1;
        if !self.inner.acknowledges {
            self.inner.cursor.store64(cursor::NEXT, sequence + 1);
            if self.inner.shape.evicts() {
                self.inner.tell_writer();
            }
        }
        match gap {
            Some(gap) => {
                self.progress.behind_gap = Some(message);
                gap
            }
            None => Read::Message(message),
        }
    }

    /// Counts what was missed before a sequence.
    fn miss(&mut self, next: u64) -> Option<Read> {
        let dropped = next.saturating_sub(self.progress.sequence);
        if dropped == 0 {
            return None;
        }
        self.progress.sequence = next;
        self.progress.dropped = self.progress.dropped.saturating_add(dropped);
        self.inner.cursor.store64(cursor::DROPPED, self.progress.dropped);
        if !self.inner.acknowledges {
            self.inner.cursor.store64(cursor::NEXT, next);
        }
        Some(Read::Gap { dropped, next })
    }
}

// === impl Inner ===

impl Inner {
    /// Returns whether the message of a position is in its slot.
    fn is_at(&self, position: u64) -> bool {
        self.ring.load64(self.shape.entry(position, entry::POSITION)) == position.wrapping_add(1)
    }

    fn sequence(&self, position: u64) -> u64 {
        self.ring.load64(self.shape.entry(position, entry::SEQUENCE))
    }

    /// A message is not needed any more. The writer of a ring that drops does not wait for it.
    pub(super) fn end_hold(&self, index: u32) {
        let mut holds = self.holds.lock();
        self.cursor.store64(cursor::hold(index), 0);
        holds.end(index);
        drop(holds);
        if self.shape.evicts() {
            self.tell_writer();
        }
    }
}

// === impl Holds ===

impl Holds {
    fn count(&self) -> u32 {
        self.0.count_ones()
    }

    fn begin(&mut self) -> Option<u32> {
        let index = self.0.trailing_ones();
        (index < HOLDS).then(|| {
            self.0 |= 1 << index;
            index
        })
    }

    fn end(&mut self, index: u32) {
        self.0 &= !(1 << index);
    }
}

// === impl RingWriter ===

impl RingWriter {
    /// Takes the next slot that no reader holds; else the message will be dropped. Readers take other slots while it looks: in the
    /// second round nothing is there that they could take, so what is held then was held all the time.
    pub(super) fn take_slot(&mut self) {
        let (shape, ring) = (self.shape, &self.ring);
        let list = &mut *self.readers.list.lock();
        list.readers.retain(Reader::is_attached);
        self.is_dropped = true;
        for round in Round::BOTH {
            list.begin(round);
            for _ in 0..shape.slots() {
                let (entry, last) = (
                    shape.entry(self.head, entry::POSITION),
                    ring.load64(shape.entry(self.head, entry::LAST)),
                );
                let is_held = || list.holder(last, shape.most_held()).is_some();
                if holds::withdraw(&Fence, || ring.store64(entry, 0), is_held) {
                    self.is_dropped = false;
                    return;
                }
                self.head += 1;
            }
        }
    }

    /// Withdraws the entries of messages below a position: their layouts' place is about to be written.
    pub(super) fn withdraw_below(&mut self, floor: u64) {
        let lowest = self.withdrawn.max(self.head.saturating_sub(u64::from(self.shape.slots())));
        for position in lowest..floor {
            let entry = self.shape.entry(position, entry::POSITION);
            holds::withdraw(&Fence, || self.ring.store64(entry, 0), || false);
        }
        self.withdrawn = self.withdrawn.max(floor);
    }

    /// Counts a message that had no slot.
    pub(super) fn publish_none(&self, sequence: u64) -> Published {
        let list = self.readers.list.lock();
        self.ring.store64(ring::WRITTEN, self.sequence);
        Published { sequence, readers: list.readers.len() as u32, dropped: true }
    }

    /// Says of a replica that is about to end, which messages were written: those that did not come were dropped.
    pub fn finish_at(&mut self, written: u64) {
        if self.shape.policy().drops() {
            self.sequence = self.sequence.max(written);
            self.ring.store64(ring::WRITTEN, self.sequence);
        }
    }
}

// === impl List ===

impl List {
    /// A round through all slots begins.
    pub(super) fn begin(&mut self, round: Round) {
        let held = match round {
            Round::First => None,
            Round::Second => Some(0),
        };
        self.readers.iter_mut().for_each(|reader| reader.held = held);
    }

    /// A reader that holds the message of a slot, and whether it is evicted: one that is not, if there is one. `last` is the message's
    /// position plus 1, or 0 for none.
    pub(super) fn holder(&mut self, last: u64, most: u32) -> Option<(bool, u64)> {
        let holders = self.readers.iter_mut().filter_map(|reader| {
            let holds = reader.holds(last, most);
            holds.then_some((reader.evicted, reader.id))
        });
        holders.min()
    }
}

/// Returns whether a cursor says that its reader holds the message of that position plus 1.
pub(super) fn is_held_by(cursor: &Shared, last: u64) -> bool {
    last != 0 && (0..HOLDS).any(|index| cursor.load64(cursor::hold(index)) == last)
}

// === impl Reader ===

impl Reader {
    fn is_attached(&self) -> bool {
        self.cursor.load32(cursor::STATE) == CursorState::Attached as u32
    }

    /// Returns whether it holds a message, as far as it may. In a second round it can take nothing more: whoever holds more slots there
    /// than `most` has a cursor that lies, and those beyond are not its own.
    fn holds(&mut self, last: u64, most: u32) -> bool {
        if !is_held_by(&self.cursor, last) {
            return false;
        }
        let Some(held) = &mut self.held else { return true };
        *held = held.saturating_add(1);
        *held <= most
    }
}

// === impl RingReaders ===

impl RingReaders {
    /// Sequence of the first message of a reader that comes, in a ring that drops. The caller holds the list.
    pub(super) fn first_dropping(&self, from: First, head: u64) -> u64 {
        let written = self.ring.load64(ring::WRITTEN);
        let word = |position, word| self.ring.load64(self.shape.entry(position, word));
        let mut there = head.saturating_sub(u64::from(self.shape.slots()))..head;
        match from {
            First::Next => written,
            First::Oldest => there
                .find(|position| word(*position, entry::POSITION) == position.wrapping_add(1))
                .map_or(written, |position| word(position, entry::SEQUENCE).min(written)),
        }
    }
}
