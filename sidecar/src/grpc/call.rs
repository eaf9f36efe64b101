//! A call: who makes it, that its end cancels what still waits for it, and that it is counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::ITEMS_MAX;
use tensorlane_proto::ledger::Holder;
use tokio::sync::{Notify, oneshot};

use super::results::Ended;
use super::sessions::KEY;
use super::status::broke_off;
use crate::cancel::{Cancel, Waiting};
use crate::exchange::{Caller, Done};
use crate::gate::UnderWay;
use crate::metrics::Metrics;
use crate::metrics::label::Verb;

/// The calls that are going on, so that the end of the server cancels them.
#[derive(Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Going>>);

#[derive(Default)]
struct Going {
    next: u64,
    cancels: HashMap<u64, Cancel>,
    stopped: bool,
}

/// A call. Dropped before [`Call::end`] (its client is gone, or its deadline) it cancels whatever waits for it.
pub(super) struct Call {
    verb: Verb,
    began: Instant,
    caller: Caller,
    calls: Calls,
    number: u64,
    metrics: Arc<Metrics>,
    ended: bool,
    _under_way: UnderWay,
}

/// Way back for an outcome. Dropped by a panic it says so.
struct Answer<T>(Option<oneshot::Sender<Result<T, Failure>>>);

// === impl Answer ===

impl<T> Answer<T> {
    fn give(mut self, outcome: Result<T, Failure>) {
        if let Some(send) = self.0.take() {
            // Where nobody receives, it is dropped here.
            let _ = send.send(outcome);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(send) = self.0.take().filter(|_| std::thread::panicking()) {
            let _ = send.send(Err(broke_off()));
        }
    }
}

// === impl Calls ===

impl Calls {
    /// Begins a call that has entered the gate.
    pub(super) fn begin(&self, verb: Verb, metrics: &Arc<Metrics>, under_way: UnderWay) -> Call {
        let cancel = Cancel::default();
        let number = {
            let mut going = self.0.lock();
            let number = going.next;
            going.next += 1;
            going.cancels.insert(number, cancel.clone());
            if going.stopped {
                cancel.cancel();
            }
            number
        };
        let caller = Caller { holder: None, link: None, on_behalf: None, cancel };
        let (calls, metrics) = (self.clone(), Arc::clone(metrics));
        Call {
            verb,
            began: Instant::now(),
            caller,
            calls,
            number,
            metrics,
            ended: false,
            _under_way: under_way,
        }
    }

    /// Cancels all of them, and all that come.
    pub(super) fn stop(&self) {
        let going: Vec<Cancel> = {
            let mut calls = self.0.lock();
            calls.stopped = true;
            calls.cancels.values().cloned().collect()
        };
        going.iter().for_each(Cancel::cancel);
    }
}

// === impl Call ===

impl Call {
    /// Caller of the call.
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Caller of the call, to be changed once it is known.
    pub(super) fn caller_mut(&mut self) -> &mut Caller {
        &mut self.caller
    }

    /// Counts how the items ended, and the time.
    pub(super) fn end(mut self, items: impl IntoIterator<Item = Ended>) {
        self.count(items);
    }

    fn count(&mut self, items: impl IntoIterator<Item = Ended>) {
        self.ended = true;
        for ended in items {
            self.metrics.calls.items.at((self.verb, ended.into())).inc();
        }
        self.metrics.calls.seconds.at((self.verb,)).observe(self.began.elapsed().as_secs_f64());
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.0.lock().cancels.remove(&self.number);
        if !self.ended {
            self.caller.cancel.cancel();
            // Counted as a panic by whoever goes on with the call.
            let broke_off = std::thread::panicking();
            self.count([Err(if broke_off { Reason::Internal } else { Reason::Cancelled })]);
        }
    }
}

/// Action for an outcome that nobody takes: the call ended while it was on its way.
pub(super) struct Undo<T, F: FnOnce(T)>(Option<(T, F)>);

// === impl Undo ===

impl<T, F: FnOnce(T)> Undo<T, F> {
    /// The outcome is taken.
    pub(super) fn take(mut self) -> Option<T> {
        self.0.take().map(|(outcome, _)| outcome)
    }
}

impl<T, F: FnOnce(T)> Drop for Undo<T, F> {
    fn drop(&mut self) {
        if let Some((outcome, undo)) = self.0.take() {
            undo(outcome);
        }
    }
}

/// Waits for the outcome of a verb. If the wait is dropped and the outcome comes all the same, it is undone.
pub(super) async fn outcome<T: Send + 'static, F: FnOnce(T) + Send + 'static>(
    begin: impl FnOnce(Done<T>),
    undo: F,
) -> Result<T, Failure> {
    let (send, receive) = oneshot::channel();
    let answer = Answer(Some(send));
    begin(Box::new(move |outcome: Result<T, Failure>| {
        // Where nobody receives, it is undone.
        answer.give(outcome.map(|outcome| Undo(Some((outcome, undo)))));
    }));
    let taken = receive.await.map_err(|_| given_up())??.take();
    taken.ok_or_else(given_up)
}

fn given_up() -> Failure {
    Failure::new(Reason::Draining, "the sidecar gave this call up; it is ending")
}

/// The moment at which a call is cancelled, for those who wait for its messages. For one waiter.
pub(super) struct Cancelled {
    raised: Arc<Notify>,
    _waiting: Waiting,
}

// === impl Cancelled ===

impl Cancelled {
    pub(super) fn of(cancel: &Cancel) -> Self {
        let raised = Arc::new(Notify::new());
        let notify = Arc::clone(&raised);
        Self { raised, _waiting: cancel.while_waiting(Arc::new(move || notify.notify_one())) }
    }

    /// Waits for it, and says so.
    pub(super) async fn wait(&self) -> Failure {
        self.raised.notified().await;
        given_up()
    }
}

/// Refuses more items than one call may have.
pub(super) fn within(items: usize) -> Result<(), Failure> {
    if items <= ITEMS_MAX {
        return Ok(());
    }
    Err(Failure::new(Reason::TooLarge, format!("{items} items in one call; at most {ITEMS_MAX}: split it"))
        .with("items", items)
        .with("items_max", ITEMS_MAX))
}

/// The session of a call that leases, reserves or gives back.
pub(super) fn needs_session(caller: &Caller) -> Result<Holder, Failure> {
    caller.holder.ok_or_else(|| {
        let why = format!("this call needs a session: open the stream Session and send its id as {KEY}");
        Failure::new(Reason::SessionRequired, why)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::metrics::label::PanicScope;
    use crate::threads::Threads;

    #[tokio::test]
    async fn an_outcome_that_nobody_takes_is_undone() {
        let (undone, lost) = mpsc::channel();
        let undo = |undone: &mpsc::Sender<u8>| {
            let undone = undone.clone();
            move |outcome| undone.send(outcome).unwrap()
        };
        // Taken: nothing to undo.
        assert_eq!(outcome(|done| done(Ok(1)), undo(&undone)).await, Ok(1));
        // It comes after the wait was dropped.
        let mut later: Option<Done<u8>> = None;
        tokio::select! {
            biased;
            _ = outcome(|done| later = Some(done), undo(&undone)) => unreachable!(),
            () = std::future::ready(()) => {}
        }
        let done = later.expect("the verb has begun");
        done(Ok(2));
        drop(undone);
        assert_eq!(lost.iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn an_outcome_in_hand_is_undone_with_it() {
        let (undone, lost) = mpsc::channel();
        let undo = |outcome: u8| undone.send(outcome).unwrap();
        assert_eq!(Undo(Some((1, undo))).take(), Some(1));
        drop(Undo(Some((2, undo))));
        assert_eq!(lost.try_iter().collect::<Vec<_>>(), [2]);
    }

    #[tokio::test]
    async fn a_verb_that_is_given_up_says_so() {
        let failure = outcome::<u8, _>(drop, drop).await.unwrap_err();
        assert_eq!(failure.reason, Reason::Draining);
    }

    #[tokio::test]
    async fn a_verb_that_panics_says_so_instead() {
        let threads = Threads::default();
        let panics = |done: Done<u8>| {
            let thread = threads.start("verb", PanicScope::Call, move || {
                let _done = done;
                panic!("part of the test");
            });
            assert!(thread.unwrap().join().is_err());
        };
        assert_eq!(outcome(panics, drop).await.unwrap_err().reason, Reason::Internal);
    }

    #[test]
    fn items_are_limited() {
        assert!(within(ITEMS_MAX).is_ok());
        assert_eq!(within(ITEMS_MAX + 1).unwrap_err().reason, Reason::TooLarge);
    }
}
