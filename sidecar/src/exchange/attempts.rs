//! Attempts at a channel or listener of another peer, made anew while the caller's wait lasts.
//!
//! ```text
//!   begin ──> attempt ──Ok, or a failure that stays──> done
//!                ^  └──a peer that is not there (yet)──> entry in `waits` for a moment ──┐
//!                └───────────────────────────────────────────────────────────────────────┘
//! ```
//! A pod that reads `trainer-0/batches` may start before trainer-0 does, or just as trainer-0 is made anew. A wait for such a name
//! is a wait for its peer, too. What is told at the end is how the last attempt failed.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;

use super::lookup::There;
use super::waits::{Key, Owner, WaitId, Waiter, cost};
use super::{Done, Exchange};
use crate::cancel::Cancel;

/// Time between two attempts, and for which a name that may be of a peer is waited for here before peers are looked at again.
const AGAIN: Duration = Duration::from_millis(500);

/// Detail of a failure by a writer that refused the reader.
pub(super) const REFUSED_BY: &str = "refused_by";

/// Attempt, with a cancel of its own, the rest of the wait, and who is told the outcome.
pub(super) type Attempt<T> = Box<dyn Fn(Cancel, Rest, Done<T>) + Send + Sync>;

/// Rest of a wait for a name that may be of a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest(Duration);

/// See the module.
pub(super) struct Attempts<T> {
    own: Weak<Self>,
    exchange: Arc<Exchange>,
    owner: Owner,
    wait: Duration,
    until: Instant,
    attempt: Attempt<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Taken by whatever answers first.
    done: Option<Done<T>>,
    /// Attempt under way.
    running: Option<Cancel>,
    /// Rest before the next one.
    entry: Option<WaitId>,
    /// Failure of the last one.
    failed: Option<Failure>,
    /// True once the caller does not want it any more.
    left: bool,
    /// Beginning of the last attempt.
    begun: Instant,
}

// === impl Rest ===

impl Rest {
    /// Milliseconds for which the peer itself is to wait.
    pub(super) fn there(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }

    /// Milliseconds of a wait here, before peers are looked at again.
    pub(super) fn here(self) -> u64 {
        Self(self.0.min(AGAIN)).there()
    }
}

// === impl Exchange ===

impl Exchange {
    /// The peer that a channel or listener is of, if it is not this one: the peer that is given, or what the name begins with. Such a
    /// peer may not be listed.
    pub(super) fn peer_meant(&self, peer: &str, name: &str) -> Option<PeerName> {
        let peer = if peer.is_empty() { name.split_once('/')?.0 } else { peer };
        peer.parse().ok().filter(|peer| *peer != self.me().peer)
    }

    /// ` and no other peer is called trainer-0`, where a name that is not here begins as with a peer.
    pub(super) fn no_such_peer(&self, name: &TensorName) -> String {
        let peer = self.peer_meant("", name.as_str());
        peer.map(|peer| format!(", and no other peer is called {peer}")).unwrap_or_default()
    }
}

// === impl Attempts ===

impl<T: Send + 'static> Attempts<T> {
    /// Begins with the first attempt. `done` is called once.
    pub(super) fn begin(
        exchange: &Arc<Exchange>,
        (owner, cancel): (Owner, &Cancel),
        wait: Duration,
        attempt: Attempt<T>,
        done: Done<T>,
    ) {
        let state = Mutex::new(State {
            done: Some(done),
            running: None,
            entry: None,
            failed: None,
            left: false,
            begun: Instant::now(),
        });
        let attempts = Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            exchange: Arc::clone(exchange),
            owner,
            wait,
            until: Instant::now() + wait,
            attempt,
            state,
        });
        let leaving = Arc::downgrade(&attempts);
        cancel.on_cancel(Arc::new(move || {
            if let Some(attempts) = leaving.upgrade() {
                attempts.leave();
            }
        }));
        attempts.try_again();
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn try_again(self: Arc<Self>) {
        let running = Cancel::default();
        {
            let mut state = self.state.lock();
            if state.left {
                drop(state);
                return self.finish(Err(gone()));
            }
            (state.running, state.begun) = (Some(running.clone()), Instant::now());
        }
        let left = self.left();
        let attempts = Arc::clone(&self);
        (self.attempt)(running, Rest(left), Box::new(move |outcome| attempts.over(outcome)));
    }

    fn over(&self, outcome: Result<T, Failure>) {
        match outcome {
            Err(failure) if may_come(&failure) && !self.left().is_zero() => {
                // One that has waited here goes on at once: whoever comes between two attempts is not heard of.
                let has_waited = self.state.lock().begun.elapsed() >= AGAIN;
                match self.own.upgrade().filter(|_| has_waited) {
                    Some(own) => own.try_again(),
                    None => self.rest(failure),
                }
            }
            Err(failure) if may_come(&failure) => self.finish(Err(self.waited(failure))),
            outcome => self.finish(outcome),
        }
    }

    /// The failure with the time of all attempts, and not of the last one.
    fn waited(&self, mut failure: Failure) -> Failure {
        failure.details.retain(|(key, _)| key != "waited_ms");
        failure.with("waited_ms", self.wait.as_millis())
    }

    fn rest(&self, failure: Failure) {
        let Some(own) = self.own.upgrade() else { return };
        let until = self.until.min(Instant::now() + AGAIN);
        let refused = {
            let mut state = self.state.lock();
            (state.running, state.failed) = (None, Some(failure));
            if state.left {
                Some(gone())
            } else {
                let waits = &self.exchange.waits;
                let entered = waits.enter(self.owner.clone(), cost(std::iter::empty()), until, own);
                entered.map(|entry| state.entry = Some(entry)).err()
            }
        };
        if let Some(refused) = refused {
            self.finish(Err(refused));
        }
    }

    /// The answer, once.
    fn finish(&self, outcome: Result<T, Failure>) {
        let (done, entry, running) = {
            let mut state = self.state.lock();
            (state.done.take(), state.entry.take(), state.running.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        match done {
            Some(done) => done(outcome),
            None => drop(outcome),
        }
        drop(running);
    }
}

impl<T: Send + 'static> Waiter for Attempts<T> {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        let (entry, failed) = {
            let mut state = self.state.lock();
            (state.entry.take(), state.failed.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        match (self.left().is_zero(), failed, self.own.upgrade()) {
            (true, Some(failed), _) => self.finish(Err(self.waited(failed))),
            (_, _, Some(own)) => own.try_again(),
            _ => {}
        }
    }

    fn leave(&self) {
        let running = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.left, true) {
                return;
            }
            state.running.clone()
        };
        match running {
            // It says how it ended.
            Some(running) => running.cancel(),
            None => self.finish(Err(gone())),
        }
    }
}

fn gone() -> Failure {
    Failure::new(Reason::Cancelled, "the caller or the sidecar is ending")
}

/// Returns whether a later attempt may do better: what is missing is the peer, or what it has under the name.
fn may_come(failure: &Failure) -> bool {
    // Whoever was refused by the writer itself would be so again.
    failure.detail(REFUSED_BY).is_none()
        && matches!(
            failure.reason,
            Reason::NotFound
                | Reason::PeerUnknown
                | Reason::PeerUnreachable
                | Reason::OwnerLost
                | Reason::Draining
                // A sidecar that ends sends those who wait there away. Whoever was withdrawn here has left.
                | Reason::Cancelled
                | Reason::ChannelEnded
                | Reason::PipeClosed
                | Reason::PipeLost
        )
}
