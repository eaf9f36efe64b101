//! The ring of a channel: messages of one writer for many readers, in memory that all of them map.
//!
//! ```text
//!   writer's process                 ring (its writer and its sidecar write)            reader's process
//!   RingWriter ── data, entry, head+1, events+1 ─────────────────────────> RingReader: head > next? take it
//!       │  <── next, events+1 ── cursor (its reader and its sidecar write) <── message dropped ──┘
//!       └─ sleeps on the cursor's events, having set `wants`      sleeps on the ring's events, having set `asleep` ─┘
//! ```
//!
//! - A message is published by moving `head`, last of all: it is there whole or not at all.
//! - A slot is written again when every attached reader has given its message back (`block`). Nobody's view changes.
//! - A ring of another [`Policy`] waits for nobody. Its writer passes over slots that readers hold, and its readers find out what
//!   was dropped: see `dropping` and `holds`.
//! - A ring that evicts waits as one that blocks, until a reader is marked as evicted: see `evicting`.
//! - A message that is larger than a slot lies in an *extent*: memory elsewhere, of which its entry says the number. The ring knows
//!   nothing of that memory. Whoever writes has it made, and whoever reads finds it ([`Message::found_at`]).
//! - No system call is made while nobody sleeps. Who goes to sleep says so, fences, looks again, and then waits for another value
//!   of the counter than the one from before the first look. Who changes something raises the counter, fences, and looks whether
//!   somebody says that it sleeps. Whichever comes second sees the other (Dekker), and the kernel compares the counter once more.
//! - Words are read as what anybody may have written: a number out of its bounds is an error, never an access.
//! - A process that dies is marked by its sidecar ([`mark_lost`], [`mark_gone`]), which keeps a map of every ring and cursor.

mod dropping;
mod evicting;
mod holds;
mod leaving;
mod reader;
mod region;
mod shape;
mod wait;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use self::reader::{Extent, Mark, Message, Read, ReadError, RingCloser, RingReader};
use self::region::Own;
pub use self::shape::{CURSOR_BYTES, HOLDS, LAYOUT_BYTES, RingShape, ShapeError};
use self::shape::{cursor, ring};
pub use self::writer::{
    ClaimError, Claimed, First, Layout, Placed, Published, RingReaders, RingWriter, Slot,
};
use crate::OutOfBounds;
use crate::block::Block;
use crate::mapping::Mapping;

/// The place of a ring or a cursor.
#[derive(Debug, Clone)]
pub struct Place {
    /// The segment's map.
    pub mapping: Arc<Mapping>,
    /// Offset in it, in bytes.
    pub offset: u64,
}

/// Policy of a ring for messages whose readers are slow.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Policy {
    /// The writer waits for it.
    #[default]
    Block = 0,
    /// The oldest messages are dropped; a reader goes on at the oldest one that is still there.
    DropOldest = 1,
    /// The oldest messages are dropped; a reader goes on at the newest one.
    Latest = 2,
}

/// When a wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// After one try.
    Now,
    /// At that moment.
    At(Instant),
    /// Not by itself.
    Never,
}

/// State of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RingState {
    /// Messages may come.
    Open = 1,
    /// No more messages come: the writer said so.
    Finished = 2,
    /// No more messages come: the writer is gone.
    Lost = 3,
    /// No more messages come: the ring is a replica, and the way to its writer is gone.
    Cut = 4,
}

/// State of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CursorState {
    /// The reader reads.
    Attached = 1,
    /// The reader has closed it.
    Detached = 2,
    /// The reader is gone.
    Lost = 3,
    /// The reader gets no more messages. Those that it holds stay as they are.
    Evicted = 4,
}

/// Reason why a ring or a cursor is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Out of the map or block.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// Not at a cache line.
    #[error("offset {offset} is not a multiple of 64")]
    Misaligned {
        /// Given value.
        offset: u64,
    },
    /// Mapped for reading, where it is to be written.
    #[error("the memory is mapped for reading only")]
    ReadOnly,
    /// Header that does not fit the shape.
    #[error("the header of the ring is not that of {slots} slots of {slot_bytes} bytes")]
    Header {
        /// Expected slots.
        slots: u32,
        /// Expected bytes of a slot.
        slot_bytes: u64,
    },
    /// More messages are to be held than may be, or none.
    #[error("a reader holds 1 to {most} messages, not {hold}")]
    Hold {
        /// Requested value.
        hold: u32,
        /// Messages that a reader of the ring holds at most.
        most: u32,
    },
}

/// A ring at one moment, as its memory says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingNow {
    /// Messages that were published, or dropped for want of a slot.
    pub head: u64,
    /// State of the ring; none for nonsense.
    pub state: Option<RingState>,
}

/// A cursor at one moment, as its memory says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CursorNow {
    /// Lowest sequence that its reader has not given back; in a ring that drops, the lowest one that it has not read.
    pub next: u64,
    /// Messages that its reader was told of as dropped.
    pub dropped: u64,
    /// Set while its reader sleeps.
    pub asleep: bool,
    /// Set until its reader has let it go, or was marked as lost.
    pub attached: bool,
    /// Set from when it was evicted until it has let the cursor go.
    pub evicted: bool,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Block, Self::DropOldest, Self::Latest];

    /// The policy of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }

    /// Returns whether messages are dropped.
    #[must_use]
    pub fn drops(self) -> bool {
        self != Self::Block
    }

    /// Name of the policy, as commands and metrics say it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::DropOldest => "drop_oldest",
            Self::Latest => "latest",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl RingState {
    fn read(value: u32) -> Option<Self> {
        [Self::Open, Self::Finished, Self::Lost, Self::Cut].into_iter().find(|state| *state as u32 == value)
    }
}

/// Makes a ring of a block, for its sidecar: empty and open.
///
/// # Errors
/// The block is too small, or not the sidecar's to write.
pub fn format_ring(block: &Block, shape: RingShape) -> Result<(), RingError> {
    format_replica(block, shape, 0)
}

/// Makes a replica of another ring, whose first message has that sequence.
///
/// # Errors
/// As [`format_ring`].
pub fn format_replica(block: &Block, shape: RingShape, first: u64) -> Result<(), RingError> {
    let region = Own::of_block(block, shape.bytes())?;
    clear_ring(&region, shape);
    region.store64(ring::HEAD, first);
    region.store64(ring::WRITTEN, first);
    Ok(())
}

fn clear_ring(region: &Own, shape: RingShape) {
    for slot in 0..shape.slots() {
        let slot = u64::from(slot);
        region.store64(shape.entry(slot, shape::entry::POSITION), 0);
        region.store64(shape.entry(slot, shape::entry::LAST), 0);
    }
    region.store32(ring::VERSION, shape.version());
    region.store32(ring::POLICY, shape.policy() as u32);
    region.store32(ring::SLOTS, shape.slots());
    region.store64(ring::SLOT_BYTES, shape.slot_bytes());
    region.store64(ring::HEAD, 0);
    region.store64(ring::WRITTEN, 0);
    region.store32(ring::EVENTS, 0);
    region.store32(ring::WANTS, 0);
    region.store32(ring::STATE, RingState::Open as u32);
    region.store64(ring::MAGIC, shape::MAGIC);
}

/// Makes a cursor of a block, for its sidecar: attached, with nothing given back.
///
/// # Errors
/// The block is too small, or not the sidecar's to write.
pub fn format_cursor(block: &Block) -> Result<(), RingError> {
    clear_cursor(&Own::of_block(block, CURSOR_BYTES)?);
    Ok(())
}

fn clear_cursor(region: &Own) {
    region.store64(cursor::NEXT, 0);
    for hold in 0..HOLDS {
        region.store64(cursor::hold(hold), 0);
    }
    region.store64(cursor::DROPPED, 0);
    region.store32(cursor::EVENTS, 0);
    region.store32(cursor::ASLEEP, 0);
    region.store32(cursor::STATE, CursorState::Attached as u32);
}

/// Says in an open ring that its writer is gone, and wakes its readers. One that was finished stays so.
pub fn mark_lost(ring: &Block) {
    // It was formatted by the same sidecar, so that it is one.
    if let Ok(region) = Own::of_block(ring, ring::ENTRIES) {
        lose_ring(&region);
    }
}

/// Says in the open ring of a replica that the way to its writer is gone, and wakes its readers.
pub fn mark_cut(ring: &Block) {
    if let Ok(region) = Own::of_block(ring, ring::ENTRIES) {
        end_ring(&region, RingState::Cut);
    }
}

fn lose_ring(region: &Own) {
    end_ring(region, RingState::Lost);
}

fn end_ring(region: &Own, state: RingState) {
    region.swap32(ring::STATE, RingState::Open as u32, state as u32);
    tell_readers(region);
}

/// Has readers of a ring look again, those that are about to sleep, too.
fn tell_readers(region: &Own) {
    region.add32(ring::EVENTS);
    region.wake(ring::EVENTS);
}

/// Says in a cursor that its reader is gone, and wakes the writer.
pub fn mark_gone(cursor: &Block) {
    if let Ok(region) = Own::of_block(cursor, CURSOR_BYTES) {
        lose_cursor(&region);
    }
}

fn lose_cursor(region: &Own) {
    leaving::lose(region);
}

/// Says in the cursor of a reader of a ring that it is evicted, unless it has let that go, and wakes both sides.
pub fn mark_evicted(cursor: &Block, ring: &Block) {
    let regions = (Own::of_block(cursor, CURSOR_BYTES), Own::of_block(ring, ring::ENTRIES));
    if let (Ok(cursor), Ok(ring)) = regions {
        evict(&cursor, &ring);
    }
}

fn evict(cursor: &Own, ring: &Own) {
    evict_cursor(cursor);
    tell_readers(ring);
}

fn evict_cursor(region: &Own) {
    leaving::evict(region);
}

/// A ring as it is now, for telling people.
#[must_use]
pub fn inspect_ring(ring: &Block) -> RingNow {
    let Ok(region) = Own::of_block(ring, ring::ENTRIES) else { return RingNow::default() };
    // Its writer may have written another version there, and then has the messages of that.
    let head = if region.load32(ring::VERSION) == 1 { ring::HEAD } else { ring::WRITTEN };
    RingNow { head: region.load64(head), state: RingState::read(region.load32(ring::STATE)) }
}

/// A cursor as it is now, for telling people.
#[must_use]
pub fn inspect_cursor(cursor: &Block) -> CursorNow {
    let Ok(region) = Own::of_block(cursor, CURSOR_BYTES) else { return CursorNow::default() };
    let state = region.load32(cursor::STATE);
    let evicted = state == CursorState::Evicted as u32;
    CursorNow {
        next: region.load64(cursor::NEXT),
        dropped: region.load64(cursor::DROPPED),
        asleep: region.load32(cursor::ASLEEP) != 0,
        attached: evicted || state == CursorState::Attached as u32,
        evicted,
    }
}

#[cfg(test)]
mod tests;
