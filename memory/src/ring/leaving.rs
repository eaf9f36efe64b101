//! Ends of a reader: it lets its cursor go, is evicted, or is taken back by its sidecar. The steps are these functions; the tests prove
//! them beside the writer's look and the reader's own, under every order of memory accesses that the language allows.
//!
//! ```text
//!   reader:  attached ──let_go──> detached        sidecar:  attached ──evict──> evicted      any ──lose──> lost
//!            evicted ───let_go──> detached
//! ```
//! - Sidecar and reader may do so at once, and neither waits. An eviction changes an attached reader alone. So whoever has let go is
//!   never evicted after it, and whoever was evicted lets go all the same.
//! - Whoever changes the state counts an event and wakes after that, and asks nobody who sleeps. So a writer that waits for the reader
//!   sees it, or is woken.
//! - An evicted reader is one of the writer's still, for as long as it holds messages: they are looked at ([`super::holds`]). One that has
//!   let go has no messages any more, and one that is lost has no process.

use super::CursorState;
use super::region::Own;
use super::shape::cursor;

/// The state in a cursor, and whoever sleeps until that changes.
pub(super) trait Leaver {
    /// Stores `to` where `from` is.
    fn swap(&self, from: CursorState, to: CursorState);
    /// Stores a state whatever is there.
    fn store(&self, to: CursorState);
    /// Counts an event of the cursor, then wakes its writer.
    fn tell(&self);
}

impl Leaver for Own {
    fn swap(&self, from: CursorState, to: CursorState) {
        self.swap32(cursor::STATE, from as u32, to as u32);
    }

    fn store(&self, to: CursorState) {
        self.store32(cursor::STATE, to as u32);
    }

    fn tell(&self) {
        self.add32(cursor::EVENTS);
        self.wake(cursor::EVENTS);
    }
}

/// Reader's word that it holds no message and reads none any more.
pub(super) fn let_go(cursor: &impl Leaver) {
    for state in [CursorState::Attached, CursorState::Evicted] {
        cursor.swap(state, CursorState::Detached);
    }
    cursor.tell();
}

/// Sidecar's word that the reader gets no more messages.
pub(super) fn evict(cursor: &impl Leaver) {
    cursor.swap(CursorState::Attached, CursorState::Evicted);
    cursor.tell();
}

/// Sidecar's word that the reader's process is gone.
pub(super) fn lose(cursor: &impl Leaver) {
    cursor.store(CursorState::Lost);
    cursor.tell();
}

/// Returns whether a reader is one still to its writer, by the state in its cursor. Once it was `evicted`, which is noted, that is
/// so for ever: a state that takes it back is not believed.
pub(super) fn is_there(state: u32, evicted: &mut bool) -> bool {
    *evicted |= state == CursorState::Evicted as u32;
    let is = |other: CursorState| state == other as u32;
    if *evicted { !is(CursorState::Detached) && !is(CursorState::Lost) } else { is(CursorState::Attached) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
    use loom::thread;

    use super::super::holds::{self, Order};
    use super::super::wait::tests::{Bell, load32};
    use super::super::wait::{self, Count};
    use super::*;

    /// Ring of two slots whose messages 0 and 1 were published, and one reader that has read neither.
    struct Model {
        state: AtomicU32,
        /// Lowest position that was not read.
        next: AtomicU64,
        /// Position plus 1 of the message that is held.
        hold: AtomicU64,
        cursor: Bell,
        ring: Bell,
        /// Position plus 1 in the entry of slot 0.
        entry: AtomicU64,
        /// Bytes of slot 0: the position plus 1 of the message that they are of.
        bytes: AtomicU64,
        /// Set where somebody may sleep. Where nobody does, nobody is told, which spares orders.
        sleeps: bool,
    }

    impl Leaver for Model {
        fn swap(&self, from: CursorState, to: CursorState) {
            let (from, to) = (from as u32, to as u32);
            let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }

        fn store(&self, to: CursorState) {
            self.state.store(to as u32, Ordering::Release);
        }

        fn tell(&self) {
            if self.sleeps {
                count_and_wake(&self.cursor);
            }
        }
    }

    impl Order for Model {
        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    /// As `Shared::load64` loads.
    fn load64(word: &AtomicU64) -> u64 {
        let value = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }

    impl Model {
        fn new(sleeps: bool) -> Self {
            let word = |value| AtomicU64::new(value);
            Self {
                state: AtomicU32::new(CursorState::Attached as u32),
                next: word(0),
                hold: word(0),
                cursor: Bell::new(true),
                ring: Bell::new(true),
                entry: word(1),
                bytes: word(1),
                sleeps,
            }
        }

        fn is_attached(&self) -> bool {
            load32(&self.state) == CursorState::Attached as u32
        }

        /// Reads message 0 if it is there, and lets go.
        fn read(&self) {
            let announce = || self.hold.store(1, Ordering::Release);
            if holds::hold(self, announce, || load64(&self.entry) == 1) {
                assert_eq!(self.bytes.load(Ordering::Relaxed), 1, "overwritten");
                self.next.store(1, Ordering::Release);
                assert_eq!(self.bytes.load(Ordering::Relaxed), 1, "overwritten");
            }
            self.hold.store(0, Ordering::Release);
            let_go(self);
        }

        /// Writes message 2 to slot 0 if the reader need not be waited for: the steps of `Reader::look` and `RingWriter::try_slot`.
        /// Holds of an evicted reader count where `looks`.
        fn write(&self, mut evicted: bool, looks: bool) {
            let next = load64(&self.next);
            let is_there = is_there(load32(&self.state), &mut evicted);
            if is_there && !evicted && next == 0 {
                return;
            }
            let is_held = || is_there && (looks || !evicted) && load64(&self.hold) == 1;
            if holds::withdraw(self, || self.entry.store(0, Ordering::Release), is_held) {
                self.bytes.store(3, Ordering::Relaxed);
                self.entry.store(3, Ordering::Release);
            }
        }
    }

    /// Counts an event and wakes, whoever sleeps.
    fn count_and_wake(bell: &Bell) {
        bell.increment();
        bell.wake();
    }

    fn sleep_while_attached(model: &Model, bell: &Bell) {
        let is_over = || !model.is_attached();
        loop {
            let seen = load32(&bell.events);
            if is_over() {
                return;
            }
            wait::sleep_unless(bell, seen, || {}, is_over, None);
        }
    }

    /// Two ends at once; the state that is left must be one of those.
    fn end_twice(ends: [fn(&Model); 2], left: &'static [CursorState]) {
        loom::model(move || {
            let model = Arc::new(Model::new(false));
            let shared = Arc::clone(&model);
            let other = thread::spawn(move || ends[1](&shared));
            ends[0](&model);
            other.join().unwrap();
            let state = load32(&model.state);
            assert!(left.iter().any(|one| *one as u32 == state), "{state} is left");
        });
    }

    #[test]
    fn a_reader_that_lets_go_while_it_is_evicted_or_taken_back_is_left_by_its_writer_in_every_order() {
        end_twice([let_go, evict], &[CursorState::Detached]);
        end_twice([let_go, lose], &[CursorState::Detached, CursorState::Lost]);
    }

    /// A writer that waits for the reader until another thread has made an end of that. Loom fails when it sleeps for ever.
    fn wait_for(end: fn(&Model)) {
        loom::model(move || {
            let model = Arc::new(Model::new(true));
            let shared = Arc::clone(&model);
            let ending = thread::spawn(move || end(&shared));
            sleep_while_attached(&model, &model.cursor);
            ending.join().unwrap();
        });
    }

    #[test]
    fn a_writer_that_waits_for_a_reader_is_woken_by_every_end_of_it() {
        let ends: [fn(&Model); 3] = [let_go, evict, lose];
        for end in ends {
            wait_for(end);
        }
    }

    #[test]
    fn a_reader_that_goes_to_sleep_while_it_is_evicted_is_woken() {
        loom::model(|| {
            let model = Arc::new(Model::new(true));
            let shared = Arc::clone(&model);
            // As `super::evict`: the cursor first, then those who sleep on the ring.
            let evicting = thread::spawn(move || {
                evict(&*shared);
                count_and_wake(&shared.ring);
            });
            sleep_while_attached(&model, &model.ring);
            evicting.join().unwrap();
        });
    }

    /// Reader and writer, beside a sidecar that evicts the reader, or by the writer's own word.
    fn read_while_evicted(by_the_writer: bool, looks: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(if by_the_writer { 3 } else { 2 });
        builder.check(move || {
            let model = Arc::new(Model::new(false));
            let shared = Arc::clone(&model);
            let writing = thread::spawn(move || shared.write(by_the_writer, looks));
            let evicting = (!by_the_writer).then(|| {
                let shared = Arc::clone(&model);
                thread::spawn(move || evict(&*shared))
            });
            model.read();
            writing.join().unwrap();
            if let Some(evicting) = evicting {
                evicting.join().unwrap();
            }
            assert_eq!(load32(&model.state), CursorState::Detached as u32);
        });
    }

    #[test]
    fn what_a_reader_holds_is_not_written_while_it_is_evicted_and_lets_go() {
        read_while_evicted(true, true);
        read_while_evicted(false, true);
    }

    #[test]
    #[should_panic(expected = "overwritten")]
    fn the_model_finds_what_is_overwritten_where_holds_of_an_evicted_reader_do_not_count() {
        read_while_evicted(false, false);
    }

    #[test]
    fn an_eviction_that_a_cursor_takes_back_is_not_believed() {
        let mut evicted = false;
        let mut look = |state: CursorState| (is_there(state as u32, &mut evicted), evicted);
        assert_eq!(look(CursorState::Attached), (true, false));
        assert_eq!(look(CursorState::Evicted), (true, true));
        assert_eq!(look(CursorState::Attached), (true, true));
        assert_eq!(look(CursorState::Lost), (false, true));
        let mut evicted = false;
        assert!(!is_there(77, &mut evicted) && !is_there(CursorState::Detached as u32, &mut evicted));
    }
}
