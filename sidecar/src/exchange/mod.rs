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
use tensorlane_memory::{Purpose, SegmentHandle};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::Fingerprint;
use tensorlane_proto::ledger::{Holder, SessionId, TensorId};
use tensorlane_proto::negotiate::Offer;

pub use self::acquire::Borrowed;
#[cfg(test)]
pub(crate) use self::channels::sim::{Delivery, OwnedChannels, ReadStep, SimReplica, ToReader};
pub use self::channels::{Attached, ChannelExtent, Created, HostedReader, HostedWriter};
use self::fetch::Fetches;
#[cfg(test)]
pub(crate) use self::pipes::sim::{PipeNews, SimPipes, ToldPipes};
pub use self::pipes::{HostedPipe, PipeTotals};
pub use self::put::{OpenPut, stored_result};
pub use self::route::RoutePolicy;
pub use self::rows::{OpenRows, RowsRead};
use self::serve::Slots;
use self::small::SmallFetches;
pub use self::sources::FanoutSettings;
use self::sources::Sources;
pub use self::status::budget;
use crate::cancel::Cancel;
use crate::gate::{self, Gate};
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::peer::Peers;
use crate::session::{Segments, SessionLink};
use crate::store::{Claimant, Me, Store};
pub use crate::store::{Room, Taken};
use crate::threads::Threads;
use crate::waiters::Waiters;
use crate::workers::{Busy, Workers};

/// Settings that the verbs go by if a caller says nothing.
#[derive(Debug, Clone, Copy)]
pub struct ExchangeSettings {
    /// Deadline of a call that gave none.
    pub deadline: Duration,
    /// The longest deadline that is taken.
    pub deadline_max: Duration,
    /// The fingerprint of this sidecar's key, to begin with.
    pub fingerprint: Fingerprint,
    /// Policy of routes: what they may be, and must be.
    pub routes: RoutePolicy,
    /// Settings by which readers get tensors from each other.
    pub fanout: FanoutSettings,
    /// Bytes that look-ups of this pod may take, and its waits for names as many.
    pub waiting_bytes: u64,
}

/// The verbs of this sidecar.
pub struct Exchange {
    /// Itself, for what goes on after a call.
    own: Weak<Self>,
    store: Arc<Store>,
    peers: OnceLock<Arc<Peers>>,
    workers: Workers,
    /// Threads of calls that wait for room, a turn or a peer; those for puts and those for pulls apart, as their room is.
    waiters: Waiters<(Claimant, Purpose)>,
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
    /// Budgets that others keep, for status.
    budgets: OnceLock<Budgets>,
}

/// Caller of a verb.
#[derive(Clone)]
pub struct Caller {
    /// In whose name leases and reservations are; none outside of a session.
    pub holder: Option<Holder>,
    /// The session's link, where it maps memory.
    pub link: Option<Arc<SessionLink>>,
    /// Program or peer that calls, where that is not the holder.
    pub on_behalf: Option<Claimant>,
    /// Raised when the answer is not wanted any more.
    pub cancel: Cancel,
}

/// Call that may wait: in whose share, for what and how long.
struct Queueing {
    claimant: Claimant,
    purpose: Purpose,
    deadline: Instant,
    /// Cancel of the call, where the work looks at it.
    cancel: Option<Cancel>,
}

/// Function that tells of budgets as they are now.
type Budgets = Box<dyn Fn() -> Vec<v1::BudgetStatus> + Send + Sync>;

/// Function that carries the outcome of a verb back.
pub type Done<T> = Box<dyn FnOnce(Result<T, Failure>) + Send>;

// === impl Caller ===

impl Caller {
    /// Claimant in whose share this call waits.
    pub fn claimant(&self) -> Claimant {
        self.on_behalf.clone().unwrap_or(Claimant::Holder(self.holder))
    }

    /// The call, as one that waits.
    fn queueing(&self, purpose: Purpose, deadline: Instant) -> Queueing {
        Queueing { claimant: self.claimant(), purpose, deadline, cancel: Some(self.cancel.clone()) }
    }
}

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
            waits: waits::Waits::new(Weak::clone(own), workers.threads().clone(), settings.waiting_bytes),
            waiters: Waiters::new(workers.clone()),
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
            budgets: OnceLock::new(),
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
        self.waiters.close();
    }

    /// The sidecar ends: whoever waits in its own name stops.
    pub fn end(&self) {
        self.close();
        self.waits.stop();
    }

    /// Ends the threads of calls that wait, once the peers have ended that they may wait for. Before the workers end.
    pub fn stop_waiters(&self) {
        self.waiters.stop();
    }

    /// Returns the number of calls that wait for room, or for their turn to wait.
    pub fn waiting_for_room(&self) -> usize {
        self.store.waiting() + self.waiters.waiting()
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

    /// A session ended: all it had goes back. What one step cannot give back keeps none of the others from it.
    pub fn session_ended(&self, session: SessionId) {
        let steps: [fn(&Self, SessionId); 5] = [
            // First: rings that its process may still map are pinned while its segments are known.
            Self::channels_of_session_ended,
            Self::pipes_of_session_ended,
            Self::staging_of_session_ended,
            |exchange, session| exchange.store.session_ended(session),
            Self::session_reaches_nothing,
        ];
        let threads = self.threads();
        for step in steps {
            let _ = threads.caught("session", PanicScope::Connection, || {
                threads.point("session ends");
                step(self, session);
            });
        }
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

    /// Runs what takes a while on a worker; where none is to be had the call fails with that.
    fn on_worker<T: Send + 'static>(
        self: &Arc<Self>,
        done: Done<T>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, Failure> + Send + 'static,
    ) {
        taken(self.workers.run(self.job(done, work)));
    }

    /// Runs what may wait for others on a thread of its caller's share, once there is one; at its deadline at the latest. From then on
    /// it waits for nothing.
    fn on_waiter<T: Send + 'static>(
        self: &Arc<Self>,
        queueing: Queueing,
        done: Done<T>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, Failure> + Send + 'static,
    ) {
        let Queueing { claimant, purpose, deadline, cancel } = queueing;
        taken(self.waiters.run((claimant, purpose), deadline, cancel.as_ref(), self.job(done, work)));
    }

    fn job<T: Send + 'static, W>(self: &Arc<Self>, done: Done<T>, work: W) -> impl FnOnce() + Send + use<T, W>
    where
        W: FnOnce(&Arc<Self>) -> Result<T, Failure> + Send + 'static,
    {
        let exchange = Arc::clone(self);
        let answer = Answer { done: Some(done), ending: self.gate.ending().clone() };
        move || {
            // Moved in whole: a job that panics or is thrown away answers all the same.
            let mut answer = answer;
            let outcome = work(&exchange);
            if let Some(done) = answer.done.take() {
                done(outcome);
            }
        }
    }
}

/// Notes that a call was refused, which its answer says.
fn taken(run: Result<(), Busy>) {
    if let Err(busy) = run {
        tracing::warn!(%busy, "a call that has to wait was not taken");
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
