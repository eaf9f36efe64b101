//! Calls over gRPC that are open, of all connections together: one that has only begun costs as much as any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorlane_proto::failure::{Failure, Reason};

/// Calls of all connections from which on one that has many begins no more. Each costs some 8 KiB.
const CALLS_MAX: usize = 8_192;
/// Calls of one connection that are few: so many begin, however many others have.
const FEW: usize = 16;

/// Number of calls that are open; clones are the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct OpenCalls(Arc<AtomicUsize>);

/// A call that is open until this is dropped.
#[derive(Debug)]
pub(super) struct OpenCall {
    all: Arc<AtomicUsize>,
    own: Arc<AtomicUsize>,
}

impl OpenCalls {
    /// Counts a call in, of a connection that has `own` ones.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit, where all have as many as may be and this connection has many of them.
    pub(super) fn enter(&self, own: Arc<AtomicUsize>) -> Result<OpenCall, Failure> {
        let (of_all, of_own) = (self.0.fetch_add(1, Ordering::Relaxed), own.fetch_add(1, Ordering::Relaxed));
        // Dropped it gives back what it took.
        let call = OpenCall { all: Arc::clone(&self.0), own };
        if of_all < CALLS_MAX || of_own < FEW {
            return Ok(call);
        }
        let message = format!(
            "{of_all} calls over gRPC are open at this sidecar and {of_own} of them on this connection; at most {CALLS_MAX}, and {FEW} of \
             each connection beyond that: wait for some to end"
        );
        Err(Failure::new(Reason::LimitExceeded, message).with("most", CALLS_MAX))
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.own.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_as_many_are_open_as_may_be_a_connection_with_many_begins_no_more_and_one_with_few_does() {
        let calls = OpenCalls::default();
        let [many, few] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let begin = |own: &Arc<AtomicUsize>| calls.enter(Arc::clone(own));
        let mut open: Vec<_> = (0..CALLS_MAX).map(|_| begin(&many).unwrap()).collect();
        let refused = begin(&many).unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("8192")));
        let others: Vec<_> = (0..FEW).map(|_| begin(&few).unwrap()).collect();
        assert!(begin(&few).is_err());
        assert_eq!([&many, &few].map(|own| own.load(Ordering::Relaxed)), [CALLS_MAX, FEW]);
        drop(others);
        drop(open.pop());
        assert!(begin(&many).is_ok());
        drop(open);
        assert_eq!([&many, &calls.0].map(|count| count.load(Ordering::Relaxed)), [0, 0]);
    }
}
