//! The writer of a ring: finds room, writes, publishes, and knows its readers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::dropping::is_held_by;
use super::evicting::Eviction;
use super::leaving;
use super::region::{Own, Shared};
use super::shape::{LAYOUT_BYTES, LAYOUTS, cursor, entry, ring};
use super::wait::{self, Counter};
use super::{CURSOR_BYTES, CursorState, Deadline, Place, RingError, RingShape, RingState};
use crate::OutOfBounds;
use crate::block::Block;
use crate::view::WriteView;

/// First message of a new reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The next one that is published.
    Next,
    /// The oldest one that is whole.
    Oldest,
}

/// Layout of a message: opaque bytes that say what its bytes are.
#[derive(Debug, Clone, Copy)]
pub enum Layout<'a> {
    /// None.
    Plain,
    /// The one that was given last.
    Same,
    /// Another one, [`LAYOUT_BYTES`] at most.
    New(&'a [u8]),
}

/// Reason why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The time was over, and a reader still held what was needed.
    #[error("reader {reader} has held message {sequence} for {held:?}")]
    Blocked {
        /// The reader, by the number that it was attached with.
        reader: u64,
        /// Lowest sequence that it has not given back.
        sequence: u64,
        /// Time since the writer first waited for that.
        held: Duration,
    },
    /// The caller's word.
    #[error("the wait was stopped")]
    Stopped,
    /// A layout with too many bytes.
    #[error("a layout of {bytes} bytes; {} are the most", LAYOUT_BYTES)]
    Layout {
        /// Given value.
        bytes: u64,
    },
}

/// A message that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Sequence number, from 0.
    pub sequence: u64,
    /// Readers that were attached then.
    pub readers: u32,
    /// Set if every slot was held, in a ring that drops: no reader gets the message, and all are told so.
    pub dropped: bool,
}

/// Place of a message in the ring, before it is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Sequence number that the message gets.
    pub sequence: u64,
    /// Sequence of the message that lay in its slot before, which no reader has any more; none for the first one there.
    pub replaces: Option<u64>,
}

/// The only writer of a ring.
#[derive(Debug)]
pub struct RingWriter {
    pub(super) ring: Arc<Own>,
    pub(super) shape: RingShape,
    pub(super) readers: Arc<RingReaders>,
    /// Position of the next message. In a ring that drops, slots that are held are passed over.
    pub(super) head: u64,
    /// Sequence of the next message: its position, in a ring that blocks.
    pub(super) sequence: u64,
    /// Set if the next message has no slot, in a ring that drops.
    pub(super) is_dropped: bool,
    /// Entries below it are withdrawn, in a ring that drops.
    pub(super) withdrawn: u64,
    pub(super) layout: Layouts,
    pub(super) eviction: Option<Eviction>,
}

/// Layouts in the ring: the last one's number, from 1, its length, and the message that used each place last.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    last: u64,
    bytes: u32,
    used: [Option<Used>; LAYOUTS as usize],
}

/// Last use of the place of a layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub(super) position: u64,
    pub(super) sequence: u64,
}

/// The readers of a ring. Another thread may attach and detach them while the writer writes.
#[derive(Debug)]
pub struct RingReaders {
    pub(super) ring: Arc<Own>,
    pub(super) shape: RingShape,
    pub(super) list: Mutex<List>,
}

#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) readers: Vec<Reader>,
    /// Messages below it may have lost their layout.
    floor: u64,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) id: u64,
    pub(super) cursor: Arc<Shared>,
    first: u64,
    /// The lowest sequence that it had not given back at the last look.
    next: u64,
    /// When the writer first waited for that to grow.
    since: Option<Instant>,
    /// Set once it was evicted, for ever: what its cursor says of that later is not believed.
    pub(super) evicted: bool,
    /// Slots that it was found to hold in the round that is made; none where they do not count.
    pub(super) held: Option<u32>,
}

/// A reader that is waited for.
pub(super) struct Laggard {
    pub(super) id: u64,
    cursor: Arc<Shared>,
    sequence: u64,
    pub(super) since: Instant,
    /// The cursor's counter, from before the look of whoever sleeps.
    events: u32,
    lacks: Lacks,
    pub(super) evicted: bool,
}

/// Step of a reader that is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lacks {
    /// To read, or give back, all below a sequence.
    Below(u64),
    /// To let go of the message of that position plus 1.
    Hold(u64),
}

/// Room for one message. Dropped without [`Slot::publish`] it leaves nothing.
#[derive(Debug)]
#[must_use = "dropping a slot publishes nothing"]
pub struct Slot<'a> {
    writer: &'a mut RingWriter,
    layout: (u64, u32),
}

/// A slot of a ring that drops, claimed for a message that is written with [`RingWriter::write_ahead`] and comes to its end later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    layout: (u64, u32),
}

// === impl RingWriter ===

impl RingWriter {
    /// The writer of a ring that its sidecar has just made.
    ///
    /// # Errors
    /// It lies out of its map, or is not mapped for writing.
    pub fn open(place: Place, shape: RingShape) -> Result<Self, RingError> {
        Ok(Self::over(Own::of_mapping(place.mapping, place.offset, shape.bytes())?, shape, 0))
    }

    /// The writer of a replica in the sidecar that has just formatted it, from the message `first` on.
    ///
    /// # Errors
    /// The block is too small, or not the sidecar's to write.
    pub fn of_block(block: &Block, shape: RingShape, first: u64) -> Result<Self, RingError> {
        Ok(Self::over(Own::of_block(block, shape.bytes())?, shape, first))
    }

    fn over(ring: Own, shape: RingShape, first: u64) -> Self {
        let (ring, list) = (Arc::new(ring), Mutex::new(List { floor: first, ..List::default() }));
        let readers = Arc::new(RingReaders { ring: Arc::clone(&ring), shape, list });
        let (head, sequence, withdrawn, layout) = (first, first, first, Layouts::default());
        Self { ring, shape, readers, head, sequence, is_dropped: false, withdrawn, layout, eviction: None }
    }

    /// Writes a piece of the next message: before its slot is claimed, and only where [`RingReaders::given_back`] has said that the slot
    /// is free; in a ring that drops, after [`Slot::keep`].
    ///
    /// # Errors
    /// Where it does not lie in the slot.
    pub fn write_ahead(&mut self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, bytes.len() as u64, self.shape.slot_bytes())?;
        let at = self.data() + offset;
        self.ring.write_view(at, bytes.len() as u64)?.copy_from(0, bytes)
    }

    /// The slot that was claimed before, and neither published nor claimed again since.
    pub fn kept(&mut self, claimed: Claimed) -> Slot<'_> {
        Slot { writer: self, layout: claimed.layout }
    }

    /// Offset of the bytes of the next message.
    fn data(&self) -> u64 {
        if self.is_dropped { self.shape.spare() } else { self.shape.data(self.head) }
    }

    /// Readers of the ring, for another thread to attach and detach.
    #[must_use]
    pub fn readers(&self) -> Arc<RingReaders> {
        Arc::clone(&self.readers)
    }

    /// A slot for the next message; waits for it until the deadline, or until `stop` says so. `stop` is asked after each sleep, at
    /// least every quarter of a second. A ring that drops has a slot at once.
    ///
    /// # Errors
    /// The reader that is waited for, that it was stopped, or a layout with too many bytes. Nothing has changed then.
    pub fn claim(
        &mut self,
        layout: Layout<'_>,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Result<Slot<'_>, ClaimError> {
        let new = match layout {
            Layout::New(bytes) => Some(layout_length(bytes)?),
            Layout::Plain | Layout::Same => None,
        };
        // Every reader must have given back what lies in the slot, and what uses the layout's place.
        let last_use = new.and_then(|_| self.layout.used[place(self.layout.last + 1)]);
        let floor = last_use.map_or(0, |used| used.position + 1);
        if self.shape.policy().drops() {
            self.take_slot();
            self.withdraw_below(floor);
        } else if self.shape.evicts() {
            self.wait_for_slot(last_use, deadline, stop)?;
        } else {
            let needed = (self.head + 1).saturating_sub(u64::from(self.shape.slots())).max(floor);
            while let Some(laggard) = self.readers.behind(needed, floor) {
                self.sleep(&laggard, deadline, stop)?;
            }
        }
        if let (Layout::New(bytes), Some(length)) = (layout, new) {
            self.layout.last += 1;
            self.layout.bytes = length;
            self.put_layout(bytes);
        }
        let layout = match layout {
            Layout::Plain => (0, 0),
            Layout::Same | Layout::New(_) => (self.layout.last, self.layout.bytes),
        };
        Ok(Slot { writer: self, layout })
    }

    /// Says that no message comes any more. None may be published after it.
    pub fn finish(&self) {
        self.ring.swap32(ring::STATE, RingState::Open as u32, RingState::Finished as u32);
        self.ring.add32(ring::EVENTS);
        self.ring.wake(ring::EVENTS);
    }

    /// Sleeps until a reader may have done what is waited for, or evicts it if it is time.
    pub(super) fn sleep(
        &self,
        laggard: &Laggard,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), ClaimError> {
        if self.evict_in_time(laggard) {
            return Ok(());
        }
        let until = match deadline {
            Deadline::At(until) if Instant::now() < until => Some(until),
            Deadline::Never => None,
            _ => return Err(laggard.blocks()),
        };
        if stop() {
            return Err(ClaimError::Stopped);
        }
        self.readers.sleep(laggard, [until, self.evicts_at(laggard)].into_iter().flatten().min());
        Ok(())
    }

    fn put_layout(&self, bytes: &[u8]) {
        let at = self.shape.layout(self.layout.last);
        // The shape has room for it, and its length was checked.
        if let Ok(mut view) = self.ring.write_view(at, LAYOUT_BYTES) {
            let _ = view.copy_from(0, bytes);
        }
    }

    /// Publishes a message of so many bytes: in its slot, or where there are more, in an extent.
    fn publish(&mut self, layout: (u64, u32), bytes: u64, extent: u64) -> Published {
        let sequence = self.sequence;
        self.sequence += 1;
        if self.is_dropped {
            return self.publish_none(sequence);
        }
        let word = |word| self.shape.entry(self.head, word);
        self.ring.store64(word(entry::LAYOUT), layout.0);
        self.ring.store64(word(entry::BYTES), bytes);
        if bytes > self.shape.slot_bytes() {
            self.ring.store64(word(entry::EXTENT), extent);
        }
        self.ring.store32(word(entry::LAYOUT_BYTES), layout.1);
        self.ring.store64(word(entry::SEQUENCE), sequence);
        self.ring.store64(word(entry::LAST), self.head + 1);
        self.ring.store64(word(entry::POSITION), self.head + 1);
        if layout.0 > 0 {
            self.layout.used[place(layout.0)] = Some(Used { position: self.head, sequence });
        }
        self.head += 1;
        // In this order for whoever is attached meanwhile: it begins with this message, or sees it published.
        let list = self.readers.list.lock();
        self.ring.store64(ring::HEAD, self.head);
        self.ring.store64(ring::WRITTEN, self.sequence);
        let sleeps = wait::count(&Counter(&*self.ring, ring::EVENTS), || {
            list.readers.iter().any(|reader| reader.cursor.load32(cursor::ASLEEP) != 0)
        });
        let readers = list.count() as u32;
        drop(list);
        if sleeps {
            self.ring.wake(ring::EVENTS);
        }
        Published { sequence, readers, dropped: false }
    }
}

/// The place of a layout by its number.
fn place(number: u64) -> usize {
    (number % LAYOUTS) as usize
}

fn layout_length(bytes: &[u8]) -> Result<u32, ClaimError> {
    match u32::try_from(bytes.len()) {
        Ok(length) if u64::from(length) <= LAYOUT_BYTES => Ok(length),
        _ => Err(ClaimError::Layout { bytes: bytes.len() as u64 }),
    }
}

impl Laggard {
    fn blocks(&self) -> ClaimError {
        ClaimError::Blocked { reader: self.id, sequence: self.sequence, held: self.since.elapsed() }
    }

    /// Returns whether it is waited for no longer.
    fn is_over(&self) -> bool {
        let state = self.cursor.load32(cursor::STATE);
        let evicted = state == CursorState::Evicted as u32;
        if !evicted && state != CursorState::Attached as u32 {
            return true;
        }
        match self.lacks {
            Lacks::Below(needed) => evicted || self.cursor.load64(cursor::NEXT) >= needed,
            Lacks::Hold(last) => !is_held_by(&self.cursor, last),
        }
    }
}

// === impl RingReaders ===

impl RingReaders {
    /// Adds a reader by its cursor; the sequence of its first message.
    ///
    /// A message that is being written meanwhile is its first one, or comes later: the writer decided on room without this reader,
    /// and took nothing that is this reader's. So the oldest whole message is the one after that whose slot the next one takes.
    ///
    /// # Errors
    /// The cursor lies out of its map.
    pub fn attach(&self, id: u64, cursor: Place, from: First) -> Result<u64, RingError> {
        Ok(self.add(id, Shared::of_mapping(cursor.mapping, cursor.offset, CURSOR_BYTES)?, from))
    }

    /// Adds a reader in the sidecar that made its cursor, as [`Self::attach`].
    ///
    /// # Errors
    /// The block is too small for a cursor, or not the sidecar's.
    pub fn attach_block(&self, id: u64, cursor: &Block, from: First) -> Result<u64, RingError> {
        Ok(self.add(id, Own::of_block(cursor, CURSOR_BYTES)?.into_shared(), from))
    }

    fn add(&self, id: u64, cursor: Shared, from: First) -> u64 {
        let cursor = Arc::new(cursor);
        let mut list = self.list.lock();
        let head = self.ring.load64(ring::HEAD);
        let first = match from {
            _ if self.shape.tells_holds() => self.first_dropping(from, head),
            First::Next => head,
            First::Oldest => {
                (head + 1).saturating_sub(u64::from(self.shape.slots())).max(list.floor).min(head)
            }
        };
        let (next, since, evicted, held) = (first, None, false, None);
        list.readers.push(Reader { id, cursor, first, next, since, evicted, held });
        first
    }

    /// The lowest sequence that some reader has not given back. What is below it no reader gets any more, a new one neither: its
    /// places may be promised. In a ring that drops nobody is waited for: all positions that there were.
    #[must_use]
    pub fn given_back(&self) -> u64 {
        let mut list = self.list.lock();
        let head = self.ring.load64(ring::HEAD);
        if self.shape.policy().drops() {
            // Its cursors say sequences, which are beyond its positions where some were dropped at the source.
            return head;
        }
        list.readers.retain_mut(|reader| reader.look(head));
        let there = list.readers.iter().filter(|reader| !reader.evicted);
        let lowest = there.map(|reader| reader.next).min().unwrap_or(head);
        // A message that every reader may get again must stay until the last slot needs its place.
        let lowest = lowest.max(list.floor);
        list.floor = lowest;
        lowest
    }

    /// Waits until more is given back than below `seen`, for a quarter of a second at most; at once where nobody reads.
    pub fn wait_given_back(&self, seen: u64) {
        if let Some(laggard) = self.behind(seen + 1, 0) {
            self.sleep(&laggard, None);
        }
    }

    /// Sleeps until a reader may have done what it is waited for.
    fn sleep(&self, laggard: &Laggard, until: Option<Instant>) {
        let is_there = || laggard.is_over();
        let announce = || self.ring.store32(ring::WANTS, 1);
        let cursor = &Counter(&*laggard.cursor, cursor::EVENTS);
        wait::sleep_unless(cursor, laggard.events, announce, is_there, until);
        self.ring.store32(ring::WANTS, 0);
    }

    /// Removes a reader. Its cursor is looked at no more after this.
    pub fn detach(&self, id: u64) {
        self.list.lock().readers.retain(|reader| reader.id != id);
    }

    /// Number of readers, without those that are evicted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.lock().count()
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The reader that is most behind, if any has not given back all below `needed`. Those that are gone are forgotten, and so is one
    /// whose cursor lies: it goes back, or is ahead of the head.
    fn behind(&self, needed: u64, floor: u64) -> Option<Laggard> {
        let mut list = self.list.lock();
        list.floor = list.floor.max(floor);
        let head = self.ring.load64(ring::HEAD);
        list.behind(needed, head)
    }
}

// === impl List ===

impl List {
    /// Number of readers that are not evicted.
    pub(super) fn count(&self) -> usize {
        self.readers.iter().filter(|reader| !reader.evicted).count()
    }

    /// As [`RingReaders::behind`], where so many messages were published.
    pub(super) fn behind(&mut self, needed: u64, published: u64) -> Option<Laggard> {
        self.readers.retain_mut(|reader| reader.look(published));
        let behind = self.readers.iter_mut().filter(|reader| !reader.evicted && reader.next < needed);
        let reader = behind.min_by_key(|reader| reader.next)?;
        Some(reader.laggard(reader.next, Lacks::Below(needed)))
    }
}

impl Reader {
    /// Looks at the cursor; returns whether the reader is one still.
    fn look(&mut self, head: u64) -> bool {
        let next = self.cursor.load64(cursor::NEXT).max(self.first);
        let state = self.cursor.load32(cursor::STATE);
        if !leaving::is_there(state, &mut self.evicted) {
            return false;
        }
        if self.evicted {
            // What it holds is its own, until it lets go of all.
            return true;
        }
        if next > head || next < self.next {
            return false;
        }
        if next > self.next {
            (self.next, self.since) = (next, None);
        }
        true
    }

    /// The reader as one that is waited for, because of a message. Whoever sleeps for it looks once more before.
    pub(super) fn laggard(&mut self, sequence: u64, lacks: Lacks) -> Laggard {
        let events = self.cursor.load32(cursor::EVENTS);
        let since = *self.since.get_or_insert_with(Instant::now);
        let (id, cursor, evicted) = (self.id, Arc::clone(&self.cursor), self.evicted);
        Laggard { id, cursor, sequence, since, events, lacks, evicted }
    }
}

// === impl Slot ===

impl Slot<'_> {
    /// Sequence that the message will have.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.writer.sequence
    }

    /// Place of the message; none for one that is dropped because readers hold every slot.
    #[must_use]
    pub fn placed(&self) -> Option<Placed> {
        let RingWriter { ring, shape, head, sequence, is_dropped, .. } = &*self.writer;
        let word = |word| ring.load64(shape.entry(*head, word));
        let replaces = (word(entry::LAST) > 0).then(|| word(entry::SEQUENCE));
        (!is_dropped).then_some(Placed { sequence: *sequence, replaces })
    }

    /// Bytes of the message, to be written.
    ///
    /// # Errors
    /// Where they do not lie in the slot.
    pub fn bytes(&mut self, offset: u64, len: u64) -> Result<WriteView, OutOfBounds> {
        OutOfBounds::check(offset, len, self.writer.shape.slot_bytes())?;
        let at = self.writer.data() + offset;
        self.writer.ring.write_view(at, len)
    }

    /// Keeps the slot of a ring that drops for pieces that come later.
    pub fn keep(self) -> Claimed {
        Claimed { layout: self.layout }
    }

    /// As [`Self::publish`], in a replica: with the sequence of the message that it replicates, which is not below the next one.
    pub fn publish_as(self, sequence: u64, bytes: u64) -> Published {
        self.writer.sequence = self.writer.sequence.max(sequence);
        self.publish(bytes)
    }

    /// The message is there, with so many bytes; cut at the slot's.
    pub fn publish(self, bytes: u64) -> Published {
        let bytes = bytes.min(self.writer.shape.slot_bytes());
        self.writer.publish(self.layout, bytes, 0)
    }

    /// Index of the slot; none where the message will be dropped, because readers hold every slot.
    #[must_use]
    pub fn index(&self) -> Option<u64> {
        (!self.writer.is_dropped).then(|| self.writer.shape.slot(self.writer.head))
    }

    /// The message is there, with more bytes than the slot has: in the extent of that number. That stays as it is until a slot of the
    /// same index is claimed.
    pub fn publish_elsewhere(self, extent: u64, bytes: u64) -> Published {
        let bytes = bytes.min(self.writer.shape.message_bytes());
        self.writer.publish(self.layout, bytes, extent)
    }
}
