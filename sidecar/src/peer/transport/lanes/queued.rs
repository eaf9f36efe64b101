//! Record of what the kernel has been given from files and has not got rid of. Its socket has the pages themselves, and
//! what is in them when they are sent, or sent again, is what goes out. So a source is kept until the other end's
//! kernel has said that its bytes are there, however its pull ends: a block gets no other bytes before. Plain data; how
//! much is not acknowledged is its caller's to find out.
//!
//! Between two ends on one machine acknowledged is not copied: pages wait at the reader as they are, and a reader that has given a
//! call up can find later bytes of the block in them. They have not been on any wire then.

use std::collections::VecDeque;

/// Record of what is under way on one socket.
#[derive(Debug)]
pub(super) struct InFlightBuffers<S> {
    /// Bytes that the socket was given.
    given: u64,
    /// Sources, the call that each is for, and how many bytes the socket had been given with its last one.
    kept: VecDeque<Kept<S>>,
}

#[derive(Debug)]
struct Kept<S> {
    call: u64,
    end: u64,
    /// Only kept.
    _source: S,
}

impl<S> Default for InFlightBuffers<S> {
    fn default() -> Self {
        Self { given: 0, kept: VecDeque::new() }
    }
}

impl<S> InFlightBuffers<S> {
    /// The socket was given so many bytes.
    pub(super) fn given(&mut self, bytes: u64) {
        self.given += bytes;
    }

    /// Keeps the source of bytes that were given just now.
    pub(super) fn keep(&mut self, call: u64, source: impl FnOnce() -> S) {
        let end = self.given;
        match self.kept.back_mut().filter(|kept| kept.call == call) {
            Some(kept) => kept.end = end,
            None => self.kept.push_back(Kept { call, end, _source: source() }),
        }
    }

    /// Of what was given, so many bytes are not acknowledged.
    pub(super) fn acknowledged_but(&mut self, missing: u64) {
        let there = self.given.saturating_sub(missing);
        while self.kept.front().is_some_and(|kept| kept.end <= there) {
            self.kept.pop_front();
        }
    }

    /// Returns whether nothing is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_source_is_kept_until_its_last_byte_is_acknowledged_and_no_longer() {
        let (mut queued, one, two) = (InFlightBuffers::default(), Rc::new(()), Rc::new(()));
        queued.given(24);
        for source in [&one, &one, &two, &one] {
            queued.given(100);
            queued.keep(Rc::as_ptr(source) as u64, || Rc::clone(source));
        }
        // The second 100 bytes of a call go on where its first are kept.
        assert_eq!((Rc::strong_count(&one), Rc::strong_count(&two)), (3, 2));
        for (missing, left) in
            [(424, (3, 2)), (201, (3, 2)), (200, (2, 2)), (100, (2, 1)), (1, (2, 1)), (0, (1, 1))]
        {
            queued.acknowledged_but(missing);
            assert_eq!((Rc::strong_count(&one), Rc::strong_count(&two)), left, "{missing} bytes are missing");
        }
        assert!(queued.is_empty());
    }

    #[test]
    fn what_was_sent_before_it_was_counted_is_waited_for_too() {
        let (mut queued, source) = (InFlightBuffers::default(), Rc::new(()));
        queued.given(10);
        queued.keep(1, || Rc::clone(&source));
        queued.acknowledged_but(50);
        assert!(!queued.is_empty());
        queued.acknowledged_but(0);
        assert!(queued.is_empty());
    }
}
