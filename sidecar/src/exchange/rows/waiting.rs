//! Waits for mutable sets by their names: entries in `waits`, told when a set is made. No thread waits for a set.
//!
//! ```text
//!   open ── set is there? ──no──> entry until the wait is over ── made here ──────────────────> done
//!     └── of another peer ──────> the wait is an entry there; a peer that is not there is tried again
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::Purpose;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::SetReference;

use super::Meant;
use super::memory::MutableSet;
use crate::cancel::Cancel;
use crate::exchange::attempts::{Attempts, Rest};
use crate::exchange::lookup::There;
use crate::exchange::waits::{Key, Owner, WaitId, Waiter, cost};
use crate::exchange::{Caller, Done, Exchange, Queueing};
use crate::gate;

/// Waits, by the name and the entry of each.
#[derive(Default)]
pub(super) struct SetWaits(HashMap<TensorName, HashMap<WaitId, Weak<SetWait>>>);

/// Somebody who waits for a set of this peer.
pub(super) struct SetWait {
    exchange: Arc<Exchange>,
    name: TensorName,
    wait: Duration,
    state: Mutex<WaitState>,
}

struct WaitState {
    entry: Option<WaitId>,
    /// Taken by whatever answers first.
    done: Option<Done<Arc<MutableSet>>>,
}

// === impl Exchange ===

impl Exchange {
    /// Finds a set, here or at another peer; waits for one that is not there yet.
    pub fn set_open(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::SetOpenRequest,
        done: impl FnOnce(Result<v1::SetOpenResponse, Failure>) + Send + 'static,
    ) {
        let is_of_peer = !SetReference::is_meant(&request.set) && self.peer_meant("", &request.set).is_some();
        if request.wait_ms == 0 || !is_of_peer {
            return self.set_open_now(caller, request, None, Box::new(done));
        }
        let (exchange, request, by) = (Arc::clone(self), request.clone(), caller.clone());
        let (owner, wait) = (Owner::Client(by.holder), self.set_wait(&request));
        let attempt = move |cancel: Cancel, rest, done| {
            exchange.set_open_now(&Caller { cancel, ..by.clone() }, &request, Some(rest), done);
        };
        Attempts::begin(self, (owner, &caller.cancel), wait, Box::new(attempt), Box::new(done));
    }

    /// Time that a caller waits for a set.
    fn set_wait(&self, request: &v1::SetOpenRequest) -> Duration {
        self.longest(request.wait_ms).min(self.longest(request.deadline_ms))
    }

    /// Finds it, if its peer is there; waits for the rest of a wait, if there is one.
    fn set_open_now(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::SetOpenRequest,
        rest: Option<Rest>,
        done: Done<v1::SetOpenResponse>,
    ) {
        match self.set_meant(&request.set) {
            Ok(Meant::There(peer, life, set)) => {
                let deadline = self.deadline(request.deadline_ms);
                let wait_ms = rest.map_or(request.wait_ms, Rest::there);
                let request = v1::SetOpenRequest { set, wait_ms, ..request.clone() };
                self.open_there(caller, (&peer, life), request, deadline, done);
            }
            found => {
                let wait_ms = rest.map_or(request.wait_ms, Rest::here);
                let request = v1::SetOpenRequest { wait_ms, ..request.clone() };
                let by = (Owner::Client(caller.holder), caller.cancel.clone());
                let queueing = caller.queueing(Purpose::Put, self.deadline(request.deadline_ms));
                self.open_or_wait(by, found.and_then(here), &request, queueing, done);
            }
        }
    }

    /// Answers with a set of this peer as it is, or when it is there.
    pub(super) fn open_or_wait(
        self: &Arc<Self>,
        by: (Owner, Cancel),
        found: Result<Arc<MutableSet>, Failure>,
        request: &v1::SetOpenRequest,
        queueing: Queueing,
        done: Done<v1::SetOpenResponse>,
    ) {
        let flushing = request.flush.then_some(queueing);
        let waits = request.wait_ms > 0 && !SetReference::is_meant(&request.set);
        let name = match found {
            Ok(set) => return self.opened(set, flushing, done),
            Err(failure) if failure.reason != Reason::NotFound || !waits => return done(Err(failure)),
            Err(failure) => match self.own_name(&request.set) {
                Some(name) => name,
                None => return done(Err(failure)),
            },
        };
        let exchange = Arc::clone(self);
        let appeared: Done<Arc<MutableSet>> = Box::new(move |set| match set {
            Ok(set) => exchange.opened(set, flushing, done),
            Err(failure) => done(Err(failure)),
        });
        SetWait::begin(self, by, name, self.set_wait(request), appeared);
    }

    /// The name that a text means at this peer: `replay`, or `me/replay`.
    fn own_name(&self, text: &str) -> Option<TensorName> {
        let own = text.split_once('/').filter(|(peer, _)| *peer == self.me().peer.as_str());
        TensorName::new(own.map_or(text, |(_, name)| name)).ok()
    }

    /// A set has this name now.
    pub(super) fn mutable_set_appeared(&self, name: &TensorName) {
        let waiting = self.mutable_sets.waiting.lock().0.remove(name).unwrap_or_default();
        for waiter in waiting.into_values().filter_map(|waiter| waiter.upgrade()) {
            // By the thread of the waits: there may be ten thousand, and whoever made the set is to have its answer.
            self.waits.again(&(waiter as Arc<dyn Waiter>));
        }
    }
}

fn here(meant: Meant) -> Result<Arc<MutableSet>, Failure> {
    match meant {
        Meant::Here(set) => Ok(set),
        Meant::There(peer, ..) => {
            let what = format!("the set is of {peer}; ask there");
            Err(Failure::new(Reason::NotOwned, what).with("peer", peer))
        }
    }
}

// === impl SetWait ===

impl SetWait {
    /// Waits for a set of this peer. `done` is called once.
    fn begin(
        exchange: &Arc<Exchange>,
        (owner, cancel): (Owner, Cancel),
        name: TensorName,
        wait: Duration,
        done: Done<Arc<MutableSet>>,
    ) {
        let state = Mutex::new(WaitState { entry: None, done: Some(done) });
        let waiter = Arc::new(Self { exchange: Arc::clone(exchange), name, wait, state });
        if let Err(failure) = waiter.enter(owner) {
            return waiter.finish(Err(failure));
        }
        let leaving = Arc::downgrade(&waiter);
        cancel.on_cancel(Arc::new(move || {
            if let Some(waiter) = leaving.upgrade() {
                waiter.leave();
            }
        }));
        waiter.look_or_wait();
    }

    fn enter(self: &Arc<Self>, owner: Owner) -> Result<(), Failure> {
        let until = Instant::now() + self.wait;
        let waits = &self.exchange.waits;
        let entry = {
            let mut state = self.state.lock();
            let bytes = cost(std::iter::once(&self.name));
            let entry = waits.enter(owner, bytes, until, Arc::clone(self) as Arc<dyn Waiter>)?;
            state.entry = Some(entry);
            entry
        };
        waits.wait(entry, Vec::new(), until)
    }

    /// Finds the set, or is told when one is made. It is among those who wait before it looks: so none is missed.
    fn look_or_wait(self: &Arc<Self>) {
        let Some(entry) = self.state.lock().entry else { return };
        let waiter = Arc::downgrade(self);
        self.exchange
            .mutable_sets
            .waiting
            .lock()
            .0
            .entry(self.name.clone())
            .or_default()
            .insert(entry, waiter);
        let found = self.exchange.mutable_sets.table.lock().named(self.name.as_str()).cloned();
        if let Some(set) = found {
            self.finish(Ok(set));
        } else if self.state.lock().done.is_none() {
            // Its time was over before it was among them.
            self.forget();
        }
    }

    /// The answer, once.
    fn finish(&self, outcome: Result<Arc<MutableSet>, Failure>) {
        self.forget();
        let done = self.state.lock().done.take();
        if let Some(done) = done {
            done(outcome);
        }
    }

    fn forget(&self) {
        let Some(entry) = self.state.lock().entry else { return };
        self.exchange.waits.remove(entry);
        let mut waiting = self.exchange.mutable_sets.waiting.lock();
        if let Some(of_name) = waiting.0.get_mut(&self.name) {
            of_name.remove(&entry);
            if of_name.is_empty() {
                waiting.0.remove(&self.name);
            }
        }
    }

    fn absent(&self) -> Failure {
        let what = format!(
            "no mutable set {:?} came in {} ms; its name may be another, or the program that makes it has not come so far",
            self.name.as_str(),
            self.wait.as_millis()
        );
        Failure::new(Reason::NotFound, what).with("set", &self.name).with("waited_ms", self.wait.as_millis())
    }
}

impl Waiter for SetWait {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn again(self: Arc<Self>) {
        // One that was dropped in this moment is waited for anew.
        self.look_or_wait();
    }

    fn due(&self) {
        self.finish(Err(self.absent()));
    }

    fn leave(&self) {
        let gone = || Failure::new(Reason::Cancelled, "the caller or the sidecar is ending");
        let is_closed = self.exchange.gate.is_closed();
        self.finish(Err(if is_closed { gate::draining() } else { gone() }));
    }
}
