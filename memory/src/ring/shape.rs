//! Offsets of everything in a ring and in a cursor. Pure.
//!
//! ```text
//! ring    0  magic u64, version u32, slots u32, slot bytes u64,     cursor   0  next u64
//!            policy u32                                                      8  holds: 7 x u64 {position + 1}
//!        64  head u64, written u64                                          64  events u32
//!       128  events u32    132  state u32                                   68  state u32
//!       192  wants u32                                                      72  asleep u32
//!       256  entries: slots x 64 B {position + 1, layout, bytes,            80  dropped u64
//!            layout bytes, sequence, last, extent}
//!        ..  layouts: 8 x 16 KiB
//!        ..  data: slots x stride, and one more in a ring that drops
//! ```
//! Words that different sides write lie in lines of their own. A ring that blocks has version 1 and no use for the words policy,
//! written, holds and the sequence of an entry: position and sequence are one there. Dropped is what a reader that resumed has missed.
//! A ring that drops has version 2, and one that blocks and evicts version 3: readers of earlier releases refuse what they do not
//! know. The word last of an entry is its writer's own. The word extent is written where a message has more bytes than a slot.

use super::Policy;
use super::region::LINE;
use crate::PAGE;

/// Fewest and most slots.
const SLOTS: std::ops::RangeInclusive<u32> = 2..=65_536;
/// Bytes of a ring at most, and of a message.
const BYTES_MAX: u64 = 1 << 48;
/// Bytes of one layout at most. Eight of them are in each ring.
pub const LAYOUT_BYTES: u64 = 16 << 10;
/// Layouts that are kept at a time. A new one waits until no reader needs the one whose place it takes.
pub(super) const LAYOUTS: u64 = 8;
/// Bytes of a cursor.
pub const CURSOR_BYTES: u64 = 128;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TLRING1\0");
/// Messages that a reader of a ring that drops or evicts holds at a time, at most.
pub const HOLDS: u32 = 7;

/// Offsets of the words of a ring.
pub(super) mod ring {
    pub(in super::super) const MAGIC: u64 = 0;
    pub(in super::super) const VERSION: u64 = 8;
    pub(in super::super) const SLOTS: u64 = 12;
    pub(in super::super) const SLOT_BYTES: u64 = 16;
    pub(in super::super) const POLICY: u64 = 24;
    pub(in super::super) const HEAD: u64 = 64;
    pub(in super::super) const WRITTEN: u64 = 72;
    pub(in super::super) const EVENTS: u64 = 128;
    pub(in super::super) const STATE: u64 = 132;
    pub(in super::super) const WANTS: u64 = 192;
    pub(in super::super) const ENTRIES: u64 = 256;
}

/// Offsets of the words of an entry.
pub(super) mod entry {
    /// Position of the message plus 1; 0 for none.
    pub(in super::super) const POSITION: u64 = 0;
    pub(in super::super) const LAYOUT: u64 = 8;
    pub(in super::super) const BYTES: u64 = 16;
    pub(in super::super) const LAYOUT_BYTES: u64 = 24;
    pub(in super::super) const SEQUENCE: u64 = 32;
    /// Position plus 1 of the message that was written to the slot last. It stays when the entry is withdrawn.
    pub(in super::super) const LAST: u64 = 40;
    /// Number of the memory that has the message, where that is larger than a slot.
    pub(in super::super) const EXTENT: u64 = 48;
}

/// Offsets of the words of a cursor.
pub(super) mod cursor {
    pub(in super::super) const NEXT: u64 = 0;
    pub(in super::super) const HOLDS: u64 = 8;
    pub(in super::super) const EVENTS: u64 = 64;
    pub(in super::super) const STATE: u64 = 68;
    pub(in super::super) const ASLEEP: u64 = 72;
    pub(in super::super) const DROPPED: u64 = 80;

    /// Offset of the word of a message that is held.
    pub(in super::super) fn hold(index: u32) -> u64 {
        HOLDS + 8 * index as u64
    }
}

/// Reason why a ring cannot have a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// Too few or too many slots.
    #[error("a ring has 2 to 65,536 slots, not {slots}")]
    Slots {
        /// Requested value.
        slots: u32,
    },
    /// Slots without bytes, or more bytes than can be counted.
    #[error(
        "{slots} slots of {slot_bytes} bytes are no ring: a slot has at least 1 byte, and a ring at most 2^48"
    )]
    Bytes {
        /// Requested slots.
        slots: u32,
        /// Requested bytes of a slot.
        slot_bytes: u64,
    },
    /// Largest message below the bytes of a slot, or above what can be counted.
    #[error(
        "messages of up to {growth} bytes (growth) are none for slots of {slot_bytes}: it is at least a slot's bytes, and at most 2^48"
    )]
    Growth {
        /// Requested value.
        growth: u64,
        /// Bytes of a slot.
        slot_bytes: u64,
    },
}

/// Shape of a ring, proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingShape {
    policy: Policy,
    evicts: bool,
    slots: u32,
    slot_bytes: u64,
    message_bytes: u64,
    stride: u64,
    layouts: u64,
    data: u64,
    bytes: u64,
}

impl RingShape {
    /// The shape of a ring of so many slots that blocks.
    ///
    /// # Errors
    /// The number that is out of its bounds.
    pub fn new(slots: u32, slot_bytes: u64) -> Result<Self, ShapeError> {
        Self::of(Policy::Block, slots, slot_bytes)
    }

    /// The shape of a ring of that policy, of so many slots.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(policy: Policy, slots: u32, slot_bytes: u64) -> Result<Self, ShapeError> {
        Self::with(policy, false, slots, slot_bytes)
    }

    /// The shape of a ring with a policy, whose readers may be evicted if `evicts`: only of one that blocks.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(policy: Policy, evicts: bool, slots: u32, slot_bytes: u64) -> Result<Self, ShapeError> {
        if !SLOTS.contains(&slots) {
            return Err(ShapeError::Slots { slots });
        }
        let wrong = ShapeError::Bytes { slots, slot_bytes };
        if slot_bytes == 0 || slot_bytes > BYTES_MAX {
            return Err(wrong);
        }
        // Small messages lie side by side, large ones at pages.
        let stride = slot_bytes.next_multiple_of(if slot_bytes < PAGE { LINE } else { PAGE });
        let layouts = ring::ENTRIES + u64::from(slots) * LINE;
        let data = (layouts + LAYOUTS * LAYOUT_BYTES).next_multiple_of(PAGE);
        let places = u64::from(slots) + u64::from(policy.drops());
        let bytes = stride.checked_mul(places).and_then(|all| all.checked_add(data));
        let bytes = bytes.filter(|bytes| *bytes <= BYTES_MAX).ok_or(wrong)?;
        let message_bytes = slot_bytes;
        Ok(Self { policy, evicts, slots, slot_bytes, message_bytes, stride, layouts, data, bytes })
    }

    /// The same shape for messages of up to `growth` bytes: one that is larger than a slot lies elsewhere. 0 is no growth.
    ///
    /// # Errors
    /// The number, where it is below the bytes of a slot or cannot be counted.
    pub fn growing(self, growth: u64) -> Result<Self, ShapeError> {
        if growth == 0 {
            return Ok(self);
        }
        let slot_bytes = self.slot_bytes;
        if !(slot_bytes..=BYTES_MAX).contains(&growth) {
            return Err(ShapeError::Growth { growth, slot_bytes });
        }
        Ok(Self { message_bytes: growth, ..self })
    }

    /// Policy of the ring.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns whether readers of a ring that blocks may be evicted.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.evicts
    }

    /// Returns whether a reader says in its cursor what it holds, and the writer passes over that.
    pub(super) fn tells_holds(&self) -> bool {
        self.evicts || self.policy.drops()
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a slot: the largest message of a ring that does not grow.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Largest message in bytes.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    /// Length of the ring in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Messages that a reader holds at a time, at most.
    #[must_use]
    pub fn most_held(&self) -> u32 {
        // Who holds every slot would hold up a writer that waits for nobody, or has evicted it.
        if self.tells_holds() { (self.slots - 1).min(HOLDS) } else { self.slots }
    }

    /// Version of the words.
    pub(super) fn version(&self) -> u32 {
        match (self.policy.drops(), self.evicts) {
            (true, _) => 2,
            (_, true) => 3,
            _ => 1,
        }
    }

    /// Offset of a word of the entry of the message at a position.
    pub(super) fn entry(&self, position: u64, word: u64) -> u64 {
        ring::ENTRIES + self.slot(position) * LINE + word
    }

    /// Offset of a layout by its number.
    pub(super) fn layout(&self, number: u64) -> u64 {
        self.layouts + number % LAYOUTS * LAYOUT_BYTES
    }

    /// Offset of the bytes of the message at a position.
    pub(super) fn data(&self, position: u64) -> u64 {
        self.data + self.slot(position) * self.stride
    }

    /// Offset of the bytes of a message for which no slot was free, in a ring that drops.
    pub(super) fn spare(&self) -> u64 {
        self.data + u64::from(self.slots) * self.stride
    }

    /// Slot of a position.
    pub(super) fn slot(&self, position: u64) -> u64 {
        position % u64::from(self.slots)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_overlaps_and_all_lies_inside(
            slots in SLOTS, slot_bytes in 1u64..1 << 30, from in any::<u64>(), drops in any::<bool>(),
        ) {
            let policy = if drops { Policy::Latest } else { Policy::Block };
            let shape = RingShape::of(policy, slots, slot_bytes).unwrap();
            if drops {
                prop_assert!(shape.data(u64::from(slots) - 1) + slot_bytes <= shape.spare());
                prop_assert!(shape.spare() + slot_bytes <= shape.bytes());
            }
            prop_assert!(shape.entry(from, 0) >= ring::ENTRIES);
            prop_assert!(shape.entry(from, LINE) <= shape.layout(0));
            prop_assert!(shape.layout(LAYOUTS - 1) + LAYOUT_BYTES <= shape.data(0));
            prop_assert!(shape.data(from) + slot_bytes <= shape.bytes());
            let next = from.wrapping_add(1);
            if shape.slot(next) > 0 {
                prop_assert!(shape.data(from) + slot_bytes <= shape.data(next));
            }
            prop_assert_eq!(shape.data(from) % LINE, 0);
        }
    }

    #[test]
    fn shapes_out_of_bounds_are_refused() {
        for slots in [0, 1, 65_537, u32::MAX] {
            assert_eq!(RingShape::new(slots, 64), Err(ShapeError::Slots { slots }));
        }
        for slot_bytes in [0, 1 << 48, u64::MAX] {
            assert_eq!(RingShape::new(2, slot_bytes), Err(ShapeError::Bytes { slots: 2, slot_bytes }));
        }
    }

    #[test]
    fn growth_is_at_least_a_slot_and_changes_no_place_in_the_ring() {
        let shape = RingShape::new(2, 64).unwrap();
        assert_eq!(shape.growing(0), Ok(shape));
        let grown = shape.growing(1 << 20).unwrap();
        assert_eq!((grown.slot_bytes(), grown.message_bytes(), grown.bytes()), (64, 1 << 20, shape.bytes()));
        for growth in [1, 63, BYTES_MAX + 1, u64::MAX] {
            assert_eq!(shape.growing(growth), Err(ShapeError::Growth { growth, slot_bytes: 64 }));
        }
    }
}
