//! Reader of a ring: takes messages in order, holds some, and gives their places back in any order.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::dropping::{Holds, Progress};
use super::leaving;
use super::region::{Own, Shared};
use super::shape::{self, LAYOUT_BYTES, cursor, entry, ring};
use super::wait::{self, Counter};
use super::{CURSOR_BYTES, CursorState, Deadline, Place, RingError, RingShape, RingState};
use crate::OutOfBounds;
use crate::block::Block;
use crate::view::View;

/// Result of a read.
#[derive(Debug)]
pub enum Read {
    /// A message.
    Message(Message),
    /// Messages that were dropped before this reader came to them. The next read goes on behind them.
    Gap {
        /// Number of them.
        dropped: u64,
        /// Sequence after the last one.
        next: u64,
    },
    /// All messages were read, and no more come.
    Finished,
    /// All messages were read, and the writer is gone.
    Lost,
    /// All messages that came to this replica were read, and the way to the writer is gone.
    Cut,
}

/// Reason why a read brings nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The time was over.
    #[error("no message came in time")]
    TimedOut,
    /// The caller's word.
    #[error("the wait was stopped")]
    Stopped,
    /// The reader was closed here.
    #[error("the reader is closed")]
    Closed,
    /// The sidecar has ended the reader.
    #[error("the session of the reader is over")]
    Ended,
    /// The writer has evicted the reader.
    #[error("the writer has evicted the reader")]
    Evicted,
    /// As many messages are held as may be.
    #[error("{hold} messages are held, and no more may be")]
    HoldLimit {
        /// The limit.
        hold: u32,
    },
    /// The ring says what cannot be.
    #[error("message {sequence} is damaged: {what}")]
    Damaged {
        /// Sequence of the message.
        sequence: u64,
        /// Description for people.
        what: String,
    },
}

/// A reader of a ring.
#[derive(Debug)]
pub struct RingReader {
    pub(super) inner: Arc<Inner>,
    /// The layout of the message before, with its number.
    pub(super) layout: (u64, Arc<[u8]>),
    /// Progress in a ring that drops.
    pub(super) progress: Progress,
}

/// Closes a reader from another thread.
#[derive(Debug, Clone)]
pub struct RingCloser(Weak<Inner>);

/// Place to which a reader that acknowledges may go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Next sequence to read.
    pub next: u64,
    /// Messages that it was told of as dropped.
    pub(super) dropped: u64,
}

/// Memory of a message that is larger than a slot, as its entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Number that its writer has said.
    pub number: u64,
    /// Bytes of the message.
    pub bytes: u64,
}

/// A message. Its bytes stay as they are until it is dropped; then its place is given back.
pub struct Message {
    pub(super) inner: Arc<Inner>,
    pub(super) sequence: u64,
    pub(super) view: View,
    /// Memory of one that is larger than a slot. Its view is empty until that is found.
    pub(super) extent: Option<Extent>,
    pub(super) layout: Arc<[u8]>,
    /// Index of its hold in a ring that drops.
    pub(super) held_by: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) ring: Shared,
    pub(super) cursor: Own,
    pub(super) shape: RingShape,
    pub(super) hold: u32,
    /// The cursor says what was acknowledged, and not what was read.
    pub(super) acknowledges: bool,
    closed: AtomicBool,
    held: Mutex<Held>,
    /// Holds in a ring that drops.
    pub(super) holds: Mutex<Holds>,
}

/// Messages that were read and not all given back.
#[derive(Debug)]
struct Held {
    /// Lowest sequence that was not given back.
    next: u64,
    /// Next sequence to read.
    taken: u64,
    /// Number of messages that are held.
    count: u32,
    /// Flags of the sequence numbers from `next` on that were given back, by sequence number modulo slots.
    given: Vec<bool>,
}

// === impl RingReader ===

impl RingReader {
    /// A reader from the message `first` on, which holds up to `hold` messages at a time.
    ///
    /// # Errors
    /// Ring or cursor lie out of their maps, the cursor is not mapped for writing, the ring's header is not that of the shape, or
    /// there are fewer slots than are to be held.
    pub fn open(
        ring: Place,
        cursor: Place,
        shape: RingShape,
        first: u64,
        hold: u32,
    ) -> Result<Self, RingError> {
        let most = shape.most_held();
        if hold == 0 || hold > most {
            return Err(RingError::Hold { hold, most });
        }
        let ring = Shared::of_mapping(ring.mapping, ring.offset, shape.bytes())?;
        let cursor = Own::of_mapping(cursor.mapping, cursor.offset, CURSOR_BYTES)?;
        Self::over(ring, cursor, shape, first, hold)
    }

    /// A reader in the sidecar that made ring and cursor, of one message at a time.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_blocks(ring: &Block, cursor: &Block, shape: RingShape, first: u64) -> Result<Self, RingError> {
        let ring = Own::of_block(ring, shape.bytes())?.into_shared();
        Self::over(ring, Own::of_block(cursor, CURSOR_BYTES)?, shape, first, 1)
    }

    /// Makes a new reader one that may go back to messages that it has not acknowledged. Until then a writer that waits for readers
    /// leaves them where they are; one that drops waits for nobody.
    #[must_use]
    pub fn acknowledging(mut self) -> Self {
        // Nothing else has it yet.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.acknowledges = true;
        }
        self
    }

    fn over(ring: Shared, cursor: Own, shape: RingShape, first: u64, hold: u32) -> Result<Self, RingError> {
        let header = ring.load64(ring::MAGIC) == shape::MAGIC
            && ring.load32(ring::VERSION) == shape.version()
            && (!shape.policy().drops() || ring.load32(ring::POLICY) == shape.policy() as u32)
            && ring.load32(ring::SLOTS) == shape.slots()
            && ring.load64(ring::SLOT_BYTES) == shape.slot_bytes();
        if !header {
            return Err(RingError::Header { slots: shape.slots(), slot_bytes: shape.slot_bytes() });
        }
        let given = vec![false; shape.slots() as usize];
        let held = Mutex::new(Held { next: first, taken: first, count: 0, given });
        let (closed, holds) = (AtomicBool::new(false), Mutex::default());
        let inner = Inner { ring, cursor, shape, hold, acknowledges: false, closed, held, holds };
        inner.cursor.store64(cursor::NEXT, first);
        Ok(Self { inner: Arc::new(inner), layout: (0, Arc::from([])), progress: Progress::from(first) })
    }

    /// The next message; waits for it until the deadline, or until `stop` says so. `stop` is asked after each sleep, at least every
    /// quarter of a second.
    ///
    /// # Errors
    /// Why there is none. After [`ReadError::Damaged`] the ring is not to be read on.
    pub fn read(&mut self, deadline: Deadline, stop: &dyn Fn() -> bool) -> Result<Read, ReadError> {
        if self.inner.shape.tells_holds() {
            return self.read_dropping(deadline, stop);
        }
        let inner = Arc::clone(&self.inner);
        loop {
            let events = inner.ring.load32(ring::EVENTS);
            let (taken, held) = {
                let held = inner.held.lock();
                (held.taken, held.count)
            };
            // Before the head: a writer that finishes has published before.
            let state = RingState::read(inner.ring.load32(ring::STATE));
            let is_there = inner.ring.load64(ring::HEAD) > taken;
            // After the state: whoever sees the end of the ring sees whether this reader was evicted before.
            inner.check_open()?;
            if held >= inner.hold && (is_there || state == Some(RingState::Open)) {
                return Err(ReadError::HoldLimit { hold: inner.hold });
            }
            if is_there {
                return self.take(taken).map(Read::Message);
            }
            if let Some(end) = end_of(state, taken)? {
                return Ok(end);
            }
            inner.sleep(events, taken, deadline, stop)?;
        }
    }

    /// Returns the place after the last message that was read.
    #[must_use]
    pub fn mark(&self) -> Mark {
        match self.inner.shape.tells_holds() {
            true => self.progress.mark(),
            false => Mark { next: self.inner.held.lock().taken, dropped: 0 },
        }
    }

    /// Goes back to a place that is not below what was acknowledged, while no message is held.
    pub fn go_back(&mut self, mark: Mark) {
        self.progress.go_back(mark);
        self.inner.held.lock().taken = mark.next;
    }

    /// Returns a handle that closes the reader from another thread.
    #[must_use]
    pub fn closer(&self) -> RingCloser {
        RingCloser(Arc::downgrade(&self.inner))
    }

    /// Takes the message of that sequence, which the head says is there.
    fn take(&mut self, sequence: u64) -> Result<Message, ReadError> {
        let inner = &self.inner;
        let word = |word| inner.shape.entry(sequence, word);
        if inner.ring.load64(word(entry::POSITION)) != sequence.wrapping_add(1) {
            return Err(damaged(sequence, "its entry is another message's"));
        }
        let number = inner.ring.load64(word(entry::LAYOUT));
        if number != self.layout.0 {
            self.layout = (number, inner.layout(sequence, sequence, number)?);
        }
        let (view, extent) = inner.body(sequence)?;
        let mut held = inner.held.lock();
        held.taken = sequence.wrapping_add(1);
        held.count += 1;
        drop(held);
        let layout = Arc::clone(&self.layout.1);
        Ok(Message { inner: Arc::clone(inner), sequence, view, extent, layout, held_by: None })
    }
}

/// End that a ring in this state has once all before `sequence` was read; none while messages may come.
pub(super) fn end_of(state: Option<RingState>, sequence: u64) -> Result<Option<Read>, ReadError> {
    match state {
        Some(RingState::Open) => Ok(None),
        Some(RingState::Finished) => Ok(Some(Read::Finished)),
        Some(RingState::Lost) => Ok(Some(Read::Lost)),
        Some(RingState::Cut) => Ok(Some(Read::Cut)),
        None => Err(damaged(sequence, "the ring has no state that there is")),
    }
}

pub(super) fn damaged(sequence: u64, what: impl Into<String>) -> ReadError {
    ReadError::Damaged { sequence, what: what.into() }
}

// === impl RingCloser ===

impl RingCloser {
    /// Closes the reader: no read of it brings anything any more, and one that sleeps comes back within a quarter of a second, mostly
    /// at once. The writer waits for it until it and its messages are dropped: their bytes stay as they are.
    pub fn close(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.closed.store(true, Ordering::Release);
            inner.ring.wake(ring::EVENTS);
        }
    }

    /// Acknowledges all below a sequence, of a reader that does so: its writer waits for that no longer.
    pub fn acknowledge(&self, next: u64) {
        if let Some(inner) = self.0.upgrade() {
            inner.acknowledge(next);
        }
    }

    /// Wakes a read that sleeps, which asks whether it is to stop.
    pub fn wake(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.ring.wake(ring::EVENTS);
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Sleeps until a message may be there at the position `taken` or behind it. `events` is the counter from before the last look.
    pub(super) fn sleep(
        &self,
        events: u32,
        taken: u64,
        deadline: Deadline,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), ReadError> {
        let until = match deadline {
            Deadline::At(until) if Instant::now() < until => Some(until),
            Deadline::Never => None,
            _ => return Err(ReadError::TimedOut),
        };
        if stop() {
            return Err(ReadError::Stopped);
        }
        // Another state has another counter, too.
        let is_there = || self.ring.load64(ring::HEAD) > taken || self.is_closed();
        let announce = || self.cursor.store32(cursor::ASLEEP, 1);
        wait::sleep_unless(&Counter(&self.ring, ring::EVENTS), events, announce, is_there, until);
        self.cursor.store32(cursor::ASLEEP, 0);
        Ok(())
    }

    /// Bytes of the message at a position, as its entry says: none, and where they are, if they are more than a slot has.
    pub(super) fn body(&self, position: u64) -> Result<(View, Option<Extent>), ReadError> {
        let bytes = self.ring.load64(self.shape.entry(position, entry::BYTES));
        let most = self.shape.message_bytes();
        if bytes > most {
            return Err(damaged(position, format!("it has {bytes} bytes, and {most} are the most")));
        }
        let number = || self.ring.load64(self.shape.entry(position, entry::EXTENT));
        let extent = (bytes > self.shape.slot_bytes()).then(|| Extent { number: number(), bytes });
        let here = if extent.is_some() { 0 } else { bytes };
        let view = self.ring.view(self.shape.data(position), here);
        view.map(|view| (view, extent)).map_err(|error| damaged(position, error.to_string()))
    }

    fn is_closed(&self) -> bool {
        self.check_open().is_err()
    }

    /// Checks that messages may be read: nobody has closed the reader, evicted it or ended it.
    pub(super) fn check_open(&self) -> Result<(), ReadError> {
        let state = self.cursor.load32(cursor::STATE);
        if state == CursorState::Evicted as u32 {
            return Err(ReadError::Evicted);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(ReadError::Closed);
        }
        match state == CursorState::Attached as u32 {
            true => Ok(()),
            false => Err(ReadError::Ended),
        }
    }

    /// Wakes the writer if it waits, after a cursor has said more.
    pub(super) fn tell_writer(&self) {
        let wants = || self.ring.load32(ring::WANTS) != 0;
        if wait::count(&Counter(&self.cursor, cursor::EVENTS), wants) {
            self.cursor.wake(cursor::EVENTS);
        }
    }

    /// A layout by its number, of the message at a position; 0 is none.
    pub(super) fn layout(&self, position: u64, sequence: u64, number: u64) -> Result<Arc<[u8]>, ReadError> {
        if number == 0 {
            return Ok(Arc::from([]));
        }
        let bytes = self.ring.load32(self.shape.entry(position, entry::LAYOUT_BYTES));
        if u64::from(bytes) > LAYOUT_BYTES {
            return Err(damaged(sequence, format!("its layout has {bytes} bytes of {LAYOUT_BYTES}")));
        }
        let view = self.ring.view(self.shape.layout(number), u64::from(bytes));
        let view = view.map_err(|error| damaged(sequence, error.to_string()))?;
        Ok(view.to_vec().into())
    }

    /// A message is not needed any more.
    fn give_back(&self, sequence: u64) {
        let mut held = self.held.lock();
        if self.acknowledges {
            held.count -= 1;
            return;
        }
        let slots = held.given.len() as u64;
        held.given[(sequence % slots) as usize] = true;
        held.count -= 1;
        let before = held.next;
        while held.next != held.taken {
            let at = (held.next % slots) as usize;
            if !held.given[at] {
                break;
            }
            held.given[at] = false;
            held.next = held.next.wrapping_add(1);
        }
        if held.next == before {
            return;
        }
        // Under the lock: a later give-back must not be stored before an earlier one.
        self.cursor.store64(cursor::NEXT, held.next);
        drop(held);
        self.tell_writer();
    }

    /// All below a sequence was read.
    fn acknowledge(&self, next: u64) {
        let mut held = self.held.lock();
        if !self.acknowledges || next <= held.next {
            return;
        }
        // Under the lock: a later word must not be stored before an earlier one.
        held.next = next;
        self.cursor.store64(cursor::NEXT, next);
        drop(held);
        self.tell_writer();
    }
}

impl Drop for Inner {
    /// Reader and messages are gone: the writer waits for this reader no more.
    fn drop(&mut self) {
        leaving::let_go(&self.cursor);
    }
}

// === impl Message ===

impl Message {
    /// Sequence number: 0 for the first message of the ring.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes of the message. None of one that is larger than a slot until its extent was found.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Number of its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.extent.map_or(self.view.len() as u64, |extent| extent.bytes)
    }

    /// The extent of a message that is larger than a slot, which is to be found; none where its bytes lie in the ring.
    #[must_use]
    pub fn extent(&self) -> Option<Extent> {
        self.extent
    }

    /// The extent begins at that place: the bytes are read there.
    ///
    /// # Errors
    /// It does not lie in the map.
    pub fn found_at(&mut self, place: Place) -> Result<(), OutOfBounds> {
        if let Some(extent) = self.extent {
            self.view = View::new(place.mapping, place.offset, extent.bytes)?;
        }
        Ok(())
    }

    /// The extent is a block of this sidecar: the bytes are read there.
    ///
    /// # Errors
    /// It has fewer bytes than the message.
    pub fn found_in(&mut self, block: &Block) -> Result<(), OutOfBounds> {
        if let Some(extent) = self.extent {
            self.view = View::of_block(block, 0, extent.bytes)?;
        }
        Ok(())
    }

    /// Layout of the message; messages one after the other with the same one share it. Empty for none.
    #[must_use]
    pub fn layout(&self) -> &Arc<[u8]> {
        &self.layout
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        match self.held_by {
            Some(index) => self.inner.end_hold(index),
            None => self.inner.give_back(self.sequence),
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sequence, bytes) = (self.sequence, self.bytes());
        f.debug_struct("Message").field("sequence", &sequence).field("bytes", &bytes).finish_non_exhaustive()
    }
}
