//! Taking of a message while its writer may write over it. The two halves are these functions; the tests prove them under every
//! order of memory accesses that the language allows.
//!
//! A reader can write its own cursor alone, and the writer its ring alone. So neither takes a slot from the other: each says what it
//! is about to do, and looks whether the other one has said so first (as hazard pointers do).
//!
//! ```text
//!   reader: [`hold`]                                writer: [`withdraw`]
//!     cursor.holds[i] = position + 1                  entry.position = 0
//!     fence (SeqCst)                                  fence (SeqCst)
//!     entry.position == position + 1?                 holds of any reader in this slot?
//!       yes: the bytes stay                             no: the slot is the writer's
//!       no:  holds[i] = 0, the message is gone          yes: the next slot
//! ```
//! - The fences have one order. Where the reader's is first, the writer sees its hold and passes over the slot. Where the writer's is
//!   first, the reader sees that the entry was withdrawn. It may be that both see each other: then neither has the slot, the writer
//!   takes another one, and the reader another message. An entry that was withdrawn says a position again only when the writer has
//!   published another message in its slot: the position of the old one never comes back.
//! - A hold that ends is stored with release, and looked at with acquire: what the reader read is read before the slot is written.
//! - The words of an entry beside `position` are written by a publish alone, in a slot that was taken: those of a message that is held
//!   stay as they are.
//! - A layout is not held but copied. Before its place is written, every entry that uses it is withdrawn; a reader looks at `position`
//!   once more after it has copied. Did it copy a byte that was written later, it sees the entry withdrawn (as a seqlock).
//! - A reader that is stopped anywhere in this keeps one slot for each hold, and nobody waits for it.

use std::sync::atomic::{Ordering, fence};

/// Orders what this side stored before what it loads next, in the one order that all fences have.
pub(super) trait Order {
    fn fence(&self);
}

/// The fence of the machine.
pub(super) struct Fence;

impl Order for Fence {
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Reader's half: says that it holds a message, and looks whether that is still there. Where it is not, the caller takes its word back.
pub(super) fn hold(order: &impl Order, announce: impl FnOnce(), is_there: impl FnOnce() -> bool) -> bool {
    announce();
    order.fence();
    is_there()
}

/// Writer's half: withdraws the entry of a slot, and looks whether the slot is held. Returns whether it may be written.
pub(super) fn withdraw(order: &impl Order, withdraw: impl FnOnce(), is_held: impl FnOnce() -> bool) -> bool {
    withdraw();
    order.fence();
    !is_held()
}

/// Looks whether a message is still there, after something was read that is not held.
pub(super) fn look_again(order: &impl Order, is_there: impl FnOnce() -> bool) -> bool {
    order.fence();
    is_there()
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, fence};
    use loom::thread;

    use super::*;

    struct Model {
        fenced: bool,
        /// Position plus 1 of each entry.
        entries: [AtomicU64; 2],
        /// The hold of one reader.
        hold: AtomicU64,
        /// Bytes of each slot: the position plus 1 of the message that they are of.
        bytes: [AtomicU64; 2],
    }

    impl Model {
        fn new(fenced: bool) -> Self {
            let word = |value| AtomicU64::new(value);
            Self { fenced, entries: [word(1), word(2)], hold: word(0), bytes: [word(1), word(2)] }
        }

        /// As `Shared::load64` loads.
        fn load(word: &AtomicU64) -> u64 {
            let value = word.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            value
        }

        /// Writes messages from position 2 on; those for which no slot is free are dropped.
        fn write(&self, messages: u64) {
            let mut position = 2;
            for _ in 0..messages {
                for _ in 0..2 {
                    let slot = (position % 2) as usize;
                    let held = || {
                        let hold = Self::load(&self.hold);
                        hold != 0 && (hold - 1) % 2 == position % 2
                    };
                    let free = withdraw(self, || self.entries[slot].store(0, Ordering::Release), held);
                    if free {
                        self.bytes[slot].store(position + 1, Ordering::Relaxed);
                        self.entries[slot].store(position + 1, Ordering::Release);
                        position += 1;
                        break;
                    }
                    position += 1;
                }
            }
        }

        /// Takes the messages of these positions, as far as they are there, and looks twice at the bytes of each.
        fn read(&self, positions: &[u64]) {
            for &position in positions {
                let slot = (position % 2) as usize;
                let announce = || self.hold.store(position + 1, Ordering::Release);
                if hold(self, announce, || Self::load(&self.entries[slot]) == position + 1) {
                    for _ in 0..2 {
                        assert_eq!(self.bytes[slot].load(Ordering::Relaxed), position + 1, "overwritten");
                    }
                }
                self.hold.store(0, Ordering::Release);
            }
        }
    }

    impl Order for Model {
        fn fence(&self) {
            if self.fenced {
                fence(Ordering::SeqCst);
            }
        }
    }

    fn write_and_read(messages: u64, positions: &'static [u64], fenced: bool, switches: Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = switches;
        builder.check(move || {
            let model = Arc::new(Model::new(fenced));
            let shared = Arc::clone(&model);
            let writing = thread::spawn(move || shared.write(messages));
            model.read(positions);
            writing.join().unwrap();
        });
    }

    #[test]
    fn what_is_held_is_not_written_in_any_order_of_accesses() {
        write_and_read(1, &[0], true, None);
        write_and_read(2, &[1], true, Some(3));
    }

    #[test]
    fn what_is_held_is_not_written_by_a_writer_that_laps_its_reader() {
        write_and_read(3, &[0, 2], true, Some(2));
    }

    #[test]
    #[should_panic(expected = "overwritten")]
    fn the_model_finds_bytes_that_are_overwritten_without_fences() {
        write_and_read(1, &[0], false, None);
    }

    /// A layout that is copied while its place is written again, here the bytes of slot 0.
    fn copy_a_layout(fenced: bool) {
        loom::model(move || {
            let model = Arc::new(Model::new(fenced));
            let shared = Arc::clone(&model);
            let writing = thread::spawn(move || {
                withdraw(&*shared, || shared.entries[0].store(0, Ordering::Release), || false);
                shared.bytes[0].store(8, Ordering::Relaxed);
            });
            let is_there = || Model::load(&model.entries[0]) == 1;
            if is_there() {
                let copied = model.bytes[0].load(Ordering::Relaxed);
                assert!(!look_again(&*model, is_there) || copied == 1, "overwritten");
            }
            writing.join().unwrap();
        });
    }

    #[test]
    fn a_layout_that_was_written_over_while_it_was_copied_is_seen_as_gone() {
        copy_a_layout(true);
    }

    #[test]
    #[should_panic(expected = "overwritten")]
    fn the_model_finds_a_layout_that_was_written_over_without_fences() {
        copy_a_layout(false);
    }
}
