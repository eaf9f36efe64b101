//! The store: the ledger with memory behind it. Opens no socket and knows no peer.
//!
//! ```text
//!   verbs --> Store { ledger: who may, what lives }      one short lock, never held while waiting,
//!                   { tensors: id -> block, meaning }    copying or touching a descriptor of the kernel
//!              |
//!              v    arena: blocks that return themselves when the last handle of them goes
//! ```
//!
//! Whatever the ledger frees leaves the map at once and is gone for every caller; its block follows when the last one who
//! may still look at it (a reply on its way, a transfer, a process that was mapping it) is done.

mod allocation;
mod gpu;
mod holdings;
mod keeper;
mod known;
mod metadata;
mod names;
mod orphans;
mod read;
mod refusals;
mod repeat;
mod sessions;
mod sets;
mod tensor;
#[cfg(test)]
mod tests;
mod wait_queue;
mod watch;
mod write;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_memory::Arena;
use tensorlane_proto::failure::Failure;
use tensorlane_proto::identity::{ExchangeName, Incarnation, PeerName};
use tensorlane_proto::ledger::{
    Answer, BuildMix, Effect, Event, Holder, Ledger, Limits, Millis, Refusal, SessionId, TensorId, TensorName,
};

pub use self::allocation::AllocRequest;
pub(crate) use self::allocation::{NoTurn, turn};
pub use self::gpu::{Allocation, GpuHeld, Handed, PeerMemory, copy_dropped, no_gpu_process};
pub use self::holdings::{Direction, Holding, Program, Streaming, Streams};
use self::keeper::Bell;
pub use self::keeper::Keeper;
pub use self::known::{Known, Own};
use self::metadata::SharedMetadata;
use self::names::Awaited;
pub use self::names::NameWait;
pub use self::repeat::Stored;
pub use self::sessions::OWN;
pub use self::tensor::{Moved, Part, Room, Taken, Tensor, whole};
pub use self::wait_queue::Claimant;
use self::wait_queue::WaitQueue;
pub use self::watch::{NameEvent, NameWatch, News};
pub use self::write::{Copied, Entered, NewTensor, Sealing};
use crate::cancel::Cancel;
use crate::clock::Clock;

/// Identity of this sidecar, in this life.
#[derive(Debug, Clone)]
pub struct Me {
    /// The exchange that it belongs to.
    pub exchange: ExchangeName,
    /// Name of this sidecar as a peer.
    pub peer: PeerName,
    /// Incarnation of this sidecar: this life of it.
    pub incarnation: Incarnation,
}

/// Settings of the store: its bounds and times.
#[derive(Debug, Clone, Copy)]
pub struct StoreSettings {
    /// Bounds of the ledger.
    pub limits: Limits,
    /// Time that a ticket lives if nobody gave it one.
    pub ticket_ttl: Duration,
    /// Time that leases of a peer wait for it when its connection is lost.
    pub lease_grace: Duration,
    /// Bytes that the metadata of all tensors may take, each value counted once.
    pub metadata_bytes: u64,
}

/// Tensors, their blocks, and who holds them.
pub struct Store {
    me: Me,
    settings: StoreSettings,
    clock: Clock,
    arena: Arc<Arena>,
    state: Mutex<State>,
    /// Wakes the keeper: a deadline came nearer, or room may have come about.
    keeper_wanted: Bell,
    puts: WaitQueue,
    pulls: WaitQueue,
    /// Turn of those that wait for several blocks.
    several: Mutex<()>,
    /// Turn of other peers that wait for several blocks: they hold up each other alone.
    several_of_peers: Mutex<()>,
    gpu: Arc<gpu::GpuShares>,
    metadata: SharedMetadata,
    streams: Streams,
    /// Raised when nobody waits for room any more.
    closed: Cancel,
}

/// Bytes of the tables of a store, and the most that they may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    /// Metadata of all tensors, each value once.
    pub metadata: u64,
    /// Bound of these.
    pub metadata_max: u64,
    /// Tensors, leases, names and tickets.
    pub ledger: u64,
    /// Bound of these.
    pub ledger_max: u64,
}

struct State {
    ledger: Ledger,
    tensors: HashMap<TensorId, Arc<Tensor>, BuildMix>,
    /// Open sessions; with a link where they map memory.
    sessions: HashMap<SessionId, holdings::Open, BuildMix>,
    /// Names of peers that may hold something.
    peers: holdings::Peers,
    awaited: HashMap<TensorName, Vec<Awaited>>,
    watchers: watch::Watchers,
    effects: Vec<Effect>,
    keeper: keeper::Orders,
}

/// Tensors that the ledger has freed, to be dropped outside of the lock.
#[must_use = "dropping this gives the memory back; do it after the lock is released"]
#[derive(Default)]
struct Freed(Vec<Arc<Tensor>>);

// === impl Store ===

impl Store {
    /// An empty store over an arena.
    pub fn new(me: Me, settings: StoreSettings, arena: Arc<Arena>, clock: Clock) -> Arc<Self> {
        let state = State {
            ledger: Ledger::new(settings.limits),
            tensors: HashMap::default(),
            sessions: HashMap::default(),
            peers: HashMap::new(),
            awaited: HashMap::new(),
            watchers: watch::Watchers::default(),
            effects: Vec::new(),
            keeper: keeper::Orders::default(),
        };
        Arc::new(Self {
            me,
            settings,
            clock,
            arena,
            state: Mutex::new(state),
            keeper_wanted: Bell::default(),
            puts: WaitQueue::default(),
            pulls: WaitQueue::default(),
            several: Mutex::default(),
            several_of_peers: Mutex::default(),
            gpu: Arc::default(),
            metadata: SharedMetadata::new(settings.metadata_bytes),
            streams: Streams::default(),
            closed: Cancel::default(),
        })
    }

    /// Returns the identity of this sidecar.
    pub fn me(&self) -> &Me {
        &self.me
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the time that a ticket lives if nobody gave it one.
    pub fn ticket_ttl(&self) -> Duration {
        self.settings.ticket_ttl
    }

    /// Returns the time for which this incarnation has lived.
    pub fn uptime(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Returns the number of callers that wait for room.
    pub fn waiting(&self) -> usize {
        self.puts.len() + self.pulls.len()
    }

    /// Counts of everything that lives, and of open sessions.
    pub fn totals(&self) -> (tensorlane_proto::ledger::Totals, usize) {
        let state = self.state.lock();
        (state.ledger.totals(), state.sessions.len())
    }

    /// Bytes of the tables beside the arena, with their bounds.
    pub fn tables(&self) -> Tables {
        let (metadata, metadata_max) = self.metadata.bytes();
        let state = self.state.lock();
        let (ledger, ledger_max) = (state.ledger.table_bytes(), state.ledger.limits().table_bytes);
        Tables { metadata, metadata_max, ledger, ledger_max }
    }

    /// Called by the arena when bytes may have become free. Cheap, and takes no lock of the store.
    pub fn notify(&self) {
        self.puts.notify();
        self.pulls.notify();
    }

    /// Called by the arena when a segment waits for nothing but to be unmapped: those who map it are asked to. It takes no lock of the
    /// store.
    pub fn ask_for_unmapping(&self) {
        self.keeper_wanted.ring();
    }

    /// From now on nobody waits for room: who does is told that the sidecar is ending.
    pub fn close(&self) {
        self.closed.cancel();
        self.notify();
    }

    /// Applies one event and nothing else; what it freed is given back outside of the lock.
    fn apply(&self, event: Event) -> Result<Answer, Failure> {
        self.apply_for(None, event)
    }

    /// Applies one event for somebody who may hear of its own reservations.
    fn apply_for(&self, asker: Option<Holder>, event: Event) -> Result<Answer, Failure> {
        self.step(|state, now, freed| {
            state.apply_into(now, event, freed).map_err(|refusal| state.refused_to(asker, &refusal))
        })
    }

    /// Changes the state under one lock. Memory that this frees goes back outside of it.
    fn step<T>(&self, change: impl FnOnce(&mut State, Millis, &mut Freed) -> T) -> T {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let done = change(&mut state, self.clock.now(), &mut freed);
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        done
    }

    /// After the lock: memory goes back, and the keeper learns of nearer deadlines and of tables that have shrunk.
    fn settle(&self, freed: Freed, wake_keeper: bool) {
        if wake_keeper {
            self.keeper_wanted.ring();
        }
        if freed.0.is_empty() {
            return;
        }
        drop(freed);
        let has_shrunk = self.metadata.has_shrunk();
        let mut state = self.state.lock();
        let bytes = state.ledger.table_bytes();
        state.keeper.note_size(bytes);
        if has_shrunk {
            state.keeper.shrunk(bytes);
        }
        let wake = state.keeper.sleeps_on_heap();
        drop(state);
        if wake {
            self.keeper_wanted.ring();
        }
    }
}

// === impl State ===

impl State {
    /// Applies an event and takes what it freed out of the map.
    fn apply(&mut self, now: Millis, event: Event) -> (Result<Answer, Refusal>, Freed) {
        let mut freed = Freed::default();
        let answer = self.apply_into(now, event, &mut freed);
        (answer, freed)
    }

    /// Applies one of many events in a row; the caller drops what they freed.
    fn apply_into(&mut self, now: Millis, event: Event, freed: &mut Freed) -> Result<Answer, Refusal> {
        self.keeper.note_size(self.ledger.table_bytes());
        let answer = self.ledger.apply(now, event, &mut self.effects);
        let mut useless = Vec::new();
        for effect in self.effects.drain(..) {
            let Effect::Freed { id, cause, bytes } = effect;
            self.keeper.count_freed(cause, bytes);
            if let Some(tensor) = self.tensors.remove(&id) {
                tensor.block.mark_retired();
                if tensor.gpu.as_ref().is_some_and(|gpu| gpu.is_own()) {
                    useless.extend(self.ledger.copy_of(&write::origin(&tensor.reference)));
                }
                freed.0.push(tensor);
            }
        }
        for id in useless {
            // A copy in host memory does not outlive what it is a copy of. Nothing of this is ever refused.
            let _ = self.apply_into(now, Event::EndCopy { id }, freed);
        }
        answer
    }

    /// Returns whether the keeper sleeps past the next deadline of the ledger.
    fn wants_keeper(&self) -> bool {
        self.keeper.sleeps_past(self.ledger.next_deadline())
    }
}
