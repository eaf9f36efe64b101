//! Inside of a context, which its ends share: the client, the dispatcher, and who is to be closed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tensorlane_proto::{Failure, Reason};

use super::super::time;
use super::dispatcher::Dispatcher;
use crate::channel::Timeout;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::origin::Origin;

/// Most pipes and listeners of one context, all together. Each costs three threads at most.
pub const ENDS_MAX: usize = 256;

/// Inside of a context. Dropped it ends the dispatcher: nobody is left who could schedule anything.
pub(super) struct Core {
    origin: Origin,
    pub(super) client: Client,
    pub(super) dispatcher: Arc<Dispatcher>,
    ends: Mutex<Ends>,
}

#[derive(Default)]
struct Ends {
    closed: bool,
    all: Vec<Weak<dyn Closing>>,
}

/// An end of a context.
pub(super) trait Closing: Send + Sync {
    /// The context that it is of.
    fn core(&self) -> &Core;

    /// Ends what is under way, and what is scheduled later, with that error.
    fn close(&self, why: Error);
}

/// Does a piece of work of an end, which a panic closes. Returns false then: the rest is still to be done, and fails.
pub(super) fn guarded(end: &impl Closing, work: impl FnOnce()) -> bool {
    let is_done = catch_unwind(AssertUnwindSafe(work)).is_ok();
    if !is_done {
        let message = "a thread of this end panicked, and the end was closed with that; open another one";
        end.close(Failure::new(Reason::Internal, message).into());
    }
    is_done
}

/// Hold of the user's handles on an end. The drop of the last one closes it.
pub(super) struct Hold<E: Closing>(pub(super) Arc<E>);

impl Core {
    pub(super) fn start(client: &Client, origin: Origin) -> Result<Arc<Self>> {
        let dispatcher = Dispatcher::start(origin)?;
        Ok(Arc::new(Self { origin, client: client.clone(), dispatcher, ends: Mutex::default() }))
    }

    /// Returns whether this process is a child of the one that made it. It must touch no lock then.
    pub(super) fn is_child(&self) -> bool {
        self.origin.is_child()
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.is_child() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Takes an end in, to be closed with the context.
    ///
    /// # Errors
    /// PIPE_CLOSED, LIMIT_EXCEEDED.
    pub(super) fn register(&self, end: &Arc<impl Closing + 'static>) -> Result<()> {
        let mut ends = self.ends.lock();
        if ends.closed {
            return Err(closed());
        }
        ends.all.retain(|end| end.strong_count() > 0);
        if ends.all.len() >= ENDS_MAX {
            let message = format!(
                "a context has {ENDS_MAX} pipes and listeners at most; drop some, or make another context"
            );
            return Err(Failure::new(Reason::LimitExceeded, message).into());
        }
        let end: Weak<dyn Closing> = Arc::downgrade(end) as _;
        ends.all.push(end);
        Ok(())
    }

    pub(super) fn close(&self) {
        if self.is_child() {
            return;
        }
        let all = {
            let mut ends = self.ends.lock();
            ends.closed = true;
            std::mem::take(&mut ends.all)
        };
        all.iter().filter_map(Weak::upgrade).for_each(|end| end.close(closed()));
    }

    pub(super) fn join(&self, timeout: Timeout) -> Result<()> {
        self.check()?;
        let wait = self.client.wait(Some(time(&self.client, timeout)));
        self.dispatcher.join(&wait)
    }

    pub(super) fn panics(&self) -> u64 {
        if self.is_child() { 0 } else { self.dispatcher.panics() }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.is_child() {
            self.dispatcher.end();
        }
    }
}

impl<E: Closing> Hold<E> {
    /// Closes the end, in the process that it belongs to.
    pub(super) fn close(&self) {
        if !self.0.core().is_child() {
            let message = "this end was closed here; open another one";
            self.0.close(Failure::new(Reason::PipeClosed, message).into());
        }
    }
}

impl<E: Closing> Drop for Hold<E> {
    fn drop(&mut self) {
        self.close();
    }
}

fn closed() -> Error {
    Failure::new(Reason::PipeClosed, "the context was closed, and its pipes with it; make another one").into()
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::frame::PIPES_SINCE;

    use super::*;
    use crate::fake_sidecar::FakeSidecar;

    struct Breaking {
        core: Arc<Core>,
        why: Mutex<Option<Error>>,
    }

    impl Closing for Breaking {
        fn core(&self) -> &Core {
            &self.core
        }

        fn close(&self, why: Error) {
            *self.why.lock() = Some(why);
        }
    }

    #[test]
    fn a_panic_of_a_worker_closes_its_end_and_the_rest_is_done_again() {
        let twin = FakeSidecar::start();
        twin.state.lock().version = PIPES_SINCE;
        let client = Client::connect(twin.directory()).unwrap();
        let end = Breaking { core: Core::start(&client, Origin::here()).unwrap(), why: Mutex::default() };
        let mut left = vec!["fine", "panics", "fine"];
        let mut work = || {
            while let Some(what) = left.pop() {
                assert_ne!(what, "panics", "a panic of this test, inside a worker");
            }
        };
        assert!(!guarded(&end, &mut work));
        assert_eq!(end.why.lock().take().and_then(|why| why.reason()), Some(Reason::Internal));
        assert!(guarded(&end, &mut work));
        assert!(end.why.lock().is_none() && left.is_empty());
    }
}
