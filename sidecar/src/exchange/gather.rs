//! Gathering: many results that come at different times, on different threads, make one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};

use super::Done;

/// Takes the results of all items.
type Deliver<T> = Done<Vec<Result<T, Failure>>>;
/// A place for each result.
type Places<T> = Vec<Option<Result<T, Failure>>>;

/// Waits for one result for each item; whoever brings the last one delivers the answer.
pub(super) struct Gather<T> {
    results: Mutex<Places<T>>,
    missing: AtomicUsize,
    done: Mutex<Option<Deliver<T>>>,
}

/// Place for the result of one item.
pub(super) struct Place<T> {
    gather: Arc<Gather<T>>,
    item: usize,
}

// === impl Place ===

impl<T: Send + 'static> Place<T> {
    /// The place of one item of many.
    pub(super) fn of(gather: &Arc<Gather<T>>, item: usize) -> Self {
        Self { gather: Arc::clone(gather), item }
    }

    /// The result is this.
    pub(super) fn put(self, result: Result<T, Failure>) {
        self.gather.put(self.item, result);
    }
}

// === impl Gather ===

impl<T: Send + 'static> Gather<T> {
    /// Expects `items` results, and one more call of [`Self::arm`] when all have been asked for.
    pub(super) fn new(items: usize, done: Done<Vec<Result<T, Failure>>>) -> Arc<Self> {
        let results = Mutex::new((0..items).map(|_| None).collect());
        Arc::new(Self { results, missing: AtomicUsize::new(items + 1), done: Mutex::new(Some(done)) })
    }

    /// Expects the result of one item, and one call of [`Self::arm`] when that has been asked for.
    pub(super) fn one(done: impl FnOnce(Result<T, Failure>) + Send + 'static) -> Arc<Self> {
        let none = || Err(Failure::new(Reason::Internal, "an item has no result"));
        let first = move |results: Result<Vec<Result<T, Failure>>, Failure>| {
            done(results.and_then(|mut results| results.pop().unwrap_or_else(none)));
        };
        Self::new(1, Box::new(first))
    }

    /// The result of one item. A second one for the same item would be a mistake of ours and is not counted.
    pub(super) fn put(&self, item: usize, result: Result<T, Failure>) {
        {
            let mut results = self.results.lock();
            match results.get_mut(item) {
                Some(place @ None) => *place = Some(result),
                _ => return,
            }
        }
        self.arrived();
    }

    /// All items have been asked for.
    pub(super) fn arm(&self) {
        self.arrived();
    }

    fn arrived(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let results = std::mem::take(&mut *self.results.lock());
        let lost = || Err(Failure::new(Reason::Internal, "this item got no answer"));
        let results = results.into_iter().map(|r| r.unwrap_or_else(lost)).collect();
        if let Some(done) = self.done.lock().take() {
            done(Ok(results));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_answer_comes_once_when_the_last_result_does() {
        let (send, answers) = channel();
        let gather = Gather::new(2, Box::new(move |outcome| send.send(outcome).unwrap()));
        gather.put(1, Ok('b'));
        gather.put(1, Ok('x'));
        gather.arm();
        assert!(answers.try_recv().is_err());
        gather.put(0, Ok('a'));
        let answer: Vec<_> = answers.recv().unwrap().unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(answer, ['a', 'b']);
        assert!(answers.try_recv().is_err());
    }

    #[test]
    fn nothing_to_gather_is_answered_at_once() {
        let (send, answers) = channel();
        Gather::<u8>::new(0, Box::new(move |outcome| send.send(outcome).unwrap())).arm();
        assert!(answers.recv().unwrap().unwrap().is_empty());
    }
}
