//! Watch: the names that there are, then each change of them, as calls of which each has one answer.
//!
//! ```text
//!   no revision        ──> a page of the names as they are, and the revision of this moment
//!   revision and token ──> the next page of the names as they were at the revision
//!   revision           ──> the changes after it; where there are none yet, an entry in `waits` until there are
//! ```
//! Nothing is kept between two calls. Who comes back too late finds that changes are forgotten, and is told so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{NoRevision, TensorName};
use tensorlane_proto::revision::Revision;

use super::describe::{PAGE, PAGE_BYTES_MAX, PAGE_MAX};
use super::lookup::There;
use super::waits::{Key, Owner, WaitId, Waiter, cost};
use super::{Caller, Done, Exchange};
use crate::cancel::Cancel;
use crate::gate;
use crate::peer::PeerKey;
use crate::store::{NameEvent, NameWatch, News};

/// Time that another peer has at least, also where a client does not want to wait: it has to be asked.
const AT_LEAST: Duration = Duration::from_millis(250);

/// A call that waits for a change.
struct Watcher {
    exchange: Arc<Exchange>,
    prefix: Arc<str>,
    most: usize,
    /// Revision up to which there is nothing to tell.
    reached: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// Taken by whatever answers.
    done: Option<Done<v1::WatchResponse>>,
    entry: Option<WaitId>,
    watch: Option<NameWatch>,
}

// === impl Exchange ===

impl Exchange {
    /// Answers with names that are there, or with changes of names as soon as there are some, or without at the deadline.
    pub fn watch(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::WatchRequest,
        done: impl FnOnce(Result<v1::WatchResponse, Failure>) + Send + 'static,
    ) {
        match self.other_peer(&request.peer) {
            Ok(None) => {
                self.watch_here(Owner::Client(caller.holder), &caller.cancel, request, Box::new(done));
            }
            Ok(Some(peer)) => self.watch_there(caller, &peer, request, Box::new(done)),
            Err(failure) => done(Err(failure)),
        }
    }

    /// The peer that is named, if it is another one than this.
    fn other_peer(&self, named: &str) -> Result<Option<PeerName>, Failure> {
        Ok(self.named_peer(named)?.filter(|peer| *peer != self.me().peer))
    }

    /// Has names of another peer watched there.
    fn watch_there(
        &self,
        caller: &Caller,
        peer: &PeerName,
        request: &v1::WatchRequest,
        done: Done<v1::WatchResponse>,
    ) {
        let peers = match self.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => return done(Err(failure)),
        };
        let until = self.deadline(request.deadline_ms).max(Instant::now() + AT_LEAST);
        let asked = v1::WatchRequest { peer: String::new(), ..request.clone() };
        let after =
            Some(request.after.clone()).filter(|after| !after.is_empty() && request.page_token.is_empty());
        let call = peers.watch(peer, asked, until, move |answer| {
            done(match (answer, after) {
                // Nothing is missed: the next call goes on from there.
                (Err(late), Some(after)) if late.reason == Reason::DeadlineExceeded => {
                    Ok(v1::WatchResponse { revision: after, ..Default::default() })
                }
                (answer, _) => answer,
            });
        });
        caller.cancel.on_cancel(Arc::new(move || call.cancel()));
    }

    /// Tells names of ours to a peer that watches them.
    pub(super) fn watch_for(
        &self,
        from: &PeerKey,
        request: &v1::WatchRequest,
        gone: &Cancel,
        done: Done<v1::WatchResponse>,
    ) {
        let Some(exchange) = self.own.upgrade() else { return done(Err(gate::draining())) };
        match self.may_leave(from, false).and_then(|()| self.other_peer(&request.peer)) {
            Ok(None) => exchange.watch_here(Owner::Peer(from.name.clone()), gone, request, done),
            Ok(Some(_)) => done(Err(Failure::new(
                Reason::InvalidArgument,
                format!("a peer tells its own names only, here those of {}", self.me().peer),
            ))),
            Err(failure) => done(Err(failure)),
        }
    }

    fn watch_here(
        self: &Arc<Self>,
        owner: Owner,
        cancel: &Cancel,
        request: &v1::WatchRequest,
        done: Done<v1::WatchResponse>,
    ) {
        let most = match request.page_size {
            0 => PAGE,
            size => size.min(PAGE_MAX),
        } as usize;
        let after = match self.watched_after(request) {
            Ok(after) => after,
            Err(failure) => return done(Err(failure)),
        };
        let Some(after) = after.filter(|_| request.page_token.is_empty()) else {
            return done(self.names_that_were(request, after, most));
        };
        let state = State { done: Some(done), entry: None, watch: None };
        let watcher = Arc::new(Watcher {
            exchange: Arc::clone(self),
            prefix: request.prefix.as_str().into(),
            most,
            reached: AtomicU64::new(after),
            state: Mutex::new(state),
        });
        // First: however short its time is, what is there is told.
        watcher.look();
        watcher.enter(owner, self.deadline(request.deadline_ms));
        let leaving = Arc::downgrade(&watcher);
        cancel.on_cancel(Arc::new(move || {
            if let Some(watcher) = leaving.upgrade() {
                watcher.leave();
            }
        }));
    }

    /// Checks what is asked for; the sequence of the revision that is known already.
    fn watched_after(&self, request: &v1::WatchRequest) -> Result<Option<u64>, Failure> {
        let invalid = |message: String| Failure::new(Reason::InvalidArgument, message);
        let bytes = request.prefix.len();
        if bytes > TensorName::BYTES_MAX {
            let most = TensorName::BYTES_MAX;
            return Err(invalid(format!(
                "a prefix of {bytes} bytes is longer than any name: {most} at most"
            )));
        }
        if request.after.is_empty() {
            let first = "a page token of a watch comes with its revision; begin without both".to_owned();
            return if request.page_token.is_empty() { Ok(None) } else { Err(invalid(first)) };
        }
        let revision: Revision = request.after.parse()?;
        let mine = self.me().incarnation;
        if revision.incarnation != mine {
            let why = format!("it is of another life of this sidecar, whose incarnation is now {mine}");
            return Err(cut(&request.after, &why));
        }
        Ok(Some(revision.sequence))
    }

    /// Reads one page of the names as they are now, or as they were.
    fn names_that_were(
        &self,
        request: &v1::WatchRequest,
        revision: Option<u64>,
        most: usize,
    ) -> Result<v1::WatchResponse, Failure> {
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(TensorName::new(token).map_err(|_| {
                Failure::new(Reason::InvalidArgument, "this is not a page token of Watch; begin without one")
            })?),
        };
        let names = self.store.names_at(&request.prefix, after.as_ref(), most + 1, revision);
        let (mut names, revision) = names.map_err(|no| self.no_revision(&request.after, no))?;
        let total = names.len();
        names.truncate(most);
        let events = fitting(names);
        let more = events.len() < total;
        let next_page_token = events.last().filter(|_| more).map(|e| e.name.clone()).unwrap_or_default();
        Ok(v1::WatchResponse { events, revision: self.revision(revision), snapshot: true, next_page_token })
    }

    fn revision(&self, sequence: u64) -> String {
        Revision { incarnation: self.me().incarnation, sequence }.to_string()
    }

    fn no_revision(&self, asked: &str, no: NoRevision) -> Failure {
        match no {
            NoRevision::Forgotten { oldest } => {
                let oldest = self.revision(oldest);
                let why = format!("too much has changed since: changes after {oldest} are remembered");
                cut(asked, &why).with("oldest", oldest)
            }
            NoRevision::Ahead { latest } => {
                let message = format!(
                    "revision {asked} was not told by this sidecar: its latest is {}; watch without a revision",
                    self.revision(latest)
                );
                Failure::new(Reason::InvalidArgument, message).with("latest", self.revision(latest))
            }
        }
    }
}

/// Failure of a watch that cannot go on where it was.
fn cut(asked: &str, why: &str) -> Failure {
    let message = format!(
        "the watch cannot go on after revision {asked}, and has missed changes: {why}; begin anew without a revision, the names that \
         there are come first then"
    );
    Failure::new(Reason::WatchCut, message).with("after", asked)
}

/// As many events, from the first on, as an answer takes; at least one.
fn fitting(events: Vec<NameEvent>) -> Vec<v1::NameEvent> {
    let (mut fitting, mut bytes) = (Vec::with_capacity(events.len()), 0);
    for event in events {
        let event = v1::NameEvent {
            kind: event.kind.into(),
            name: event.name.to_string(),
            reference: event.tensor.map(|tensor| tensor.reference.encode()).unwrap_or_default(),
            sequence: event.sequence,
        };
        bytes += event.encoded_len();
        fitting.push(event);
        if bytes > PAGE_BYTES_MAX {
            break;
        }
    }
    fitting
}

// === impl Watcher ===

impl Watcher {
    /// Answers if there is something to tell; else it is woken when there is.
    fn look(self: &Arc<Self>) {
        let outcome = {
            let mut state = self.state.lock();
            loop {
                if state.done.is_none() {
                    return;
                }
                let after = self.reached.load(Ordering::Relaxed);
                let woken = Arc::downgrade(self);
                let told = move |reached| {
                    if let Some(watcher) = woken.upgrade() {
                        watcher.reached.fetch_max(reached, Ordering::Relaxed);
                        let waiter: Arc<dyn Waiter> = Arc::clone(&watcher) as _;
                        watcher.exchange.waits.again(&waiter);
                    }
                };
                match self.exchange.store.watch(&self.prefix, after, self.most, told) {
                    Ok(News::Later(watch)) => {
                        state.watch = Some(watch);
                        return;
                    }
                    Ok(News::Events(events, until)) if events.is_empty() => {
                        self.reached.fetch_max(until, Ordering::Relaxed);
                    }
                    Ok(News::Events(events, until)) => break Ok(self.answer(events, until)),
                    Err(no) => break Err(self.exchange.no_revision(&self.exchange.revision(after), no)),
                }
            }
        };
        self.finish(outcome);
    }

    fn answer(&self, events: Vec<NameEvent>, until: u64) -> v1::WatchResponse {
        let total = events.len();
        let events = fitting(events);
        let last = events.last().map_or(until, |event| event.sequence);
        let until = if events.len() < total { last } else { until };
        v1::WatchResponse { events, revision: self.exchange.revision(until), ..Default::default() }
    }

    /// From now on it is told at its deadline, unless it has its answer.
    fn enter(self: &Arc<Self>, owner: Owner, until: Instant) {
        let waits = &self.exchange.waits;
        let entered = {
            let mut state = self.state.lock();
            if state.done.is_none() {
                return;
            }
            let bytes = cost(std::iter::empty()) + self.prefix.len() as u64;
            let waiter = Arc::clone(self) as Arc<dyn Waiter>;
            waits.enter(owner, bytes, until, waiter).and_then(|entry| {
                state.entry = Some(entry);
                waits.wait(entry, Vec::new(), until)
            })
        };
        if let Err(failure) = entered {
            self.finish(Err(failure));
        }
    }

    /// The answer, once.
    fn finish(&self, outcome: Result<v1::WatchResponse, Failure>) {
        let State { done, entry, watch } = {
            let mut state = self.state.lock();
            State { done: state.done.take(), entry: state.entry.take(), watch: state.watch.take() }
        };
        drop(watch);
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        if let Some(done) = done {
            done(outcome);
        }
    }

    /// Nothing has changed until now, or what has changed is on its way to be looked at.
    fn nothing(&self) -> v1::WatchResponse {
        let unchanged = self.state.lock().watch.as_ref().and_then(NameWatch::unchanged);
        let until = self.reached.load(Ordering::Relaxed).max(unchanged.unwrap_or_default());
        self.answer(Vec::new(), until)
    }
}

impl Waiter for Watcher {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn again(self: Arc<Self>) {
        Watcher::look(&self);
    }

    fn due(&self) {
        self.finish(Ok(self.nothing()));
    }

    fn leave(&self) {
        let failure = match self.exchange.gate.is_closed() {
            true => gate::draining(),
            false => Failure::new(Reason::Cancelled, "the caller withdrew the watch"),
        };
        self.finish(Err(failure));
    }
}
