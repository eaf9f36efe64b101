//! The verbs: what the store and the peers can do together, for whoever calls. Knows no socket and no gRPC.
//!
//! Every verb comes as the message of the wire and goes back as one result for each item. Quick ones answer at once, on
//! the caller's thread; those that may wait take a closure that is called once with the outcome, on whatever thread has
//! it. A closure that is dropped uncalled (the sidecar ends) is the carrier's to notice.

mod acquire;
#[cfg(test)]
pub(crate) mod alone;
mod arrive;
mod attempts;
mod await_names;
mod channels;
mod describe;
mod evidence;
mod fanout;
mod fetch;
mod follow;
mod gather;
mod gpu;
mod keep;
mod lend;
mod lookup;
mod map;
mod names;
mod neighbours;
mod pipes;
mod put;
mod redeem;
mod retry;
mod route;
mod rows;
mod search;
mod serve;
mod sets;
mod small;
mod sources;
mod staging;
mod status;
mod target;
mod transfer;
mod waits;
mod watch;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::SegmentHandle;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::Fingerprint;
use tensorlane_proto::ledger::{Holder, SessionId, TensorId};
use tensorlane_proto::negotiate::Offer;

pub use self::acquire::Borrowed;
pub use self::channels::{Attached, Created, HostedReader, HostedWriter};
use self::fetch::Fetches;
pub use self::pipes::{HostedPipe, PipeCall, PipeTotals};
pub use self::put::{OpenPut, stored_result};
pub use self::route::RoutePolicy;
pub use self::rows::{OpenRows, RowsRead};
use self::serve::Slots;
use self::small::SmallFetches;
pub use self::sources::FanoutSettings;
use self::sources::Sources;
use crate::cancel::Cancel;
use crate::gate::{self, Gate};
use crate::metrics::Metrics;
use crate::peer::Peers;
use crate::session::{Segments, SessionLink};
use crate::store::{Me, Store};
pub use crate::store::{Room, Taken};
use crate::threads::Threads;
use crate::workers::Workers;

/// Settings that the verbs go by if a caller says nothing.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeSettings {
    /// Deadline of a call that gave none.
    pub deadline: Duration,
    /// The longest deadline that is taken: a call that waits for room has a worker.
    pub deadline_max: Duration,
    /// The fingerprint of this sidecar's key, to begin with.
    pub fingerprint: Fingerprint,
    /// Policy of routes: what they may be, and must be.
    pub routes: RoutePolicy,
    /// Settings by which readers get tensors from each other.
    pub fanout: FanoutSettings,
}

/// The verbs of this sidecar.
pub struct Exchange {
    /// Itself, for what goes on after a call.
    own: Weak<Self>,
    store: Arc<Store>,
    peers: OnceLock<Arc<Peers>>,
    workers: Workers,
    /// Waits for names.
    waits: waits::Waits,
    channels: channels::Channels,
    /// Sets whose rows change.
    mutable_sets: rows::MutableSets,
    pipes: pipes::Pipes,
    staging: staging::Staging,
    /// GPUs that this side reaches.
    reach: gpu::GpuReach,
    metrics: Arc<Metrics>,
    settings: ExchangeSettings,
    /// Offer of ours, without the addresses: one side of every negotiation.
    offered: Offer,
    fingerprint: Mutex<Fingerprint>,
    fetches: Mutex<Fetches>,
    small_fetches: Mutex<SmallFetches>,
    slots: Mutex<Slots>,
    sources: Sources,
    waits_at_neighbours: lend::Waits,
    gate: Gate,
}

/// Caller of a verb.
#[derive(Clone)]
pub struct Caller {
    /// In whose name leases and reservations are; none outside of a session.
    pub holder: Option<Holder>,
    /// The session's link, where it maps memory.
    pub link: Option<Arc<SessionLink>>,
    /// Raised when the answer is not wanted any more.
    pub cancel: Cancel,
}

/// Function that carries the outcome of a verb back.
pub type Done<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

// === impl Exchange ===

impl Exchange {
    /// The verbs over a store. Peers come later, if at all: see [`Self::connect`].
    pub fn new(
        store: Arc<Store>,
        workers: Workers,
        metrics: Arc<Metrics>,
        settings: ExchangeSettings,
    ) -> Arc<Self> {
        let offered = route::own_offer(store.me(), &settings.routes, &[]);
        Arc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            store,
            peers: OnceLock::new(),
            waits: waits::Waits::new(Weak::clone(own), workers.threads().clone()),
            channels: channels::Channels::default(),
            mutable_sets: rows::MutableSets::default(),
            pipes: pipes::Pipes::default(),
            staging: staging::Staging::default(),
            reach: gpu::GpuReach::default(),
            workers,
            metrics,
            fingerprint: Mutex::new(settings.fingerprint),
            sources: Sources::new(settings.fanout),
            settings,
            offered,
            fetches: Mutex::default(),
            small_fetches: Mutex::default(),
            slots: Mutex::default(),
            waits_at_neighbours: lend::Waits::default(),
            gate: Gate::default(),
        })
    }

    /// Gate at which calls enter.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The sidecar is about to end: nothing new begins, and who waits for a name or for room is told so. Waits for nobody.
    pub fn close(&self) {
        self.gate.close();
        self.store.close();
        self.waits.close();
    }

    /// The sidecar ends: whoever waits in its own name stops.
    pub fn end(&self) {
        self.close();
        self.waits.stop();
    }

    /// Gives the verbs a way to other peers. Once.
    pub fn connect(&self, peers: Arc<Peers>) {
        // A second time would be a mistake of the wiring; the first one stays.
        let _ = self.peers.set(peers);
    }

    /// The key of this sidecar was changed.
    pub fn rekeyed(&self, fingerprint: Fingerprint) {
        *self.fingerprint.lock() = fingerprint;
    }

    /// Identity of this sidecar.
    pub fn me(&self) -> &Me {
        self.store.me()
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Starter of threads.
    pub fn threads(&self) -> &Threads {
        self.workers.threads()
    }

    /// Numbers of calls and questions of peers that wait for names, and the bytes of them and of those that look names
    /// up.
    pub fn waiting_for_names(&self) -> (usize, u64) {
        (self.waits.waiting(), self.waits.bytes())
    }

    /// Metrics: what is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// A session on the socket began.
    pub fn session_began(&self, link: &Arc<SessionLink>) {
        self.store.session_began(link);
    }

    /// A session ended: all it had goes back.
    pub fn session_ended(&self, session: SessionId) {
        // First: rings that its process may still map are pinned while its segments are known.
        self.channels_of_session_ended(session);
        self.pipes_of_session_ended(session);
        self.staging_of_session_ended(session);
        self.store.session_ended(session);
        self.session_reaches_nothing(session);
    }

    /// Takes back a reservation whose answer could not be delivered.
    pub(crate) fn give_up(&self, holder: Holder, id: TensorId) {
        // It may have ended with its session already.
        let _ = self.store.abort(Some(holder), id);
    }

    fn peers_or_fail(&self) -> Result<&Arc<Peers>, Failure> {
        self.peers.get().ok_or_else(|| {
            Failure::new(
                Reason::PeerUnreachable,
                "this sidecar has no way to other peers; set peers.listen and peers.file",
            )
        })
    }

    /// The moment at which a call that asked for `ms` milliseconds gives up.
    pub(crate) fn deadline(&self, ms: u64) -> Instant {
        Instant::now() + self.longest(ms)
    }

    /// Time that a call may take which asks for so many milliseconds; 0 asks for what is usual.
    fn longest(&self, ms: u64) -> Duration {
        let asked = if ms == 0 { self.settings.deadline } else { Duration::from_millis(ms) };
        asked.min(self.settings.deadline_max)
    }

    /// Runs what may wait on a worker; where none is to be had the call fails with that.
    fn on_worker<T: Send + 'static>(
        self: &Arc<Self>,
        done: Done<T>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, Failure> + Send + 'static,
    ) {
        let exchange = Arc::clone(self);
        let answer = Answer { done: Some(done), ending: self.gate.ending().clone() };
        let started = self.workers.run(move || {
            // Moved in whole: a job that panics or is thrown away answers all the same.
            let mut answer = answer;
            let outcome = work(&exchange);
            if let Some(done) = answer.done.take() {
                done(outcome);
            }
        });
        if let Err(busy) = started {
            tracing::warn!(%busy, "a call that has to wait was not taken");
        }
    }
}

/// An answer that is owed: dropped without having been given, it says so.
struct Answer<T> {
    done: Option<Done<T>>,
    ending: Cancel,
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(match self.ending.is_cancelled() {
                true => gate::draining(),
                false if std::thread::panicking() => {
                    Failure::new(Reason::Internal, "this call broke off inside the sidecar")
                }
                false => Failure::new(Reason::LimitExceeded, "too many calls wait already; retry later"),
            }));
        }
    }
}

impl Segments for Exchange {
    fn open(&self, segment: &SegmentHandle, session: SessionId) -> io::Result<(OwnedFd, OwnedFd)> {
        Segments::open(&**self.store.arena(), segment, session)
    }
}

/// Result for an item, as the wire has it.
fn done_result(outcome: &Result<(), Failure>) -> v1::DoneResult {
    v1::DoneResult { failure: outcome.as_ref().err().map(v1::Failure::from) }
}

fn session_required(verb: &str) -> Failure {
    Failure::new(
        Reason::SessionRequired,
        format!(
            "{verb} needs a session to lease for; open one (the session socket, or the Session stream and its id in \
             the metadata key tensorlane-session)"
        ),
    )
}
