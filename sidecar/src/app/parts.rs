//! The parts of a running sidecar, made in order and ended in the opposite one.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tensorlane_memory::limits::memory_limit;
use tensorlane_memory::{Arena, ArenaOptions};
use tensorlane_proto::crd::GpuMode;
use tensorlane_proto::identity::{Fingerprint, Incarnation};
use tensorlane_proto::ledger::{Limits, Millis, RETRY_BYTES};

use super::drain::Left;
use super::error::{RunError, io, io_at};
use super::peering::{self, Peering};
use super::scrape;
use crate::clock::Clock;
use crate::config::{Config, above_machine, check_abilities, check_memory};
use crate::exchange::{Exchange, ExchangeSettings, FanoutSettings, RoutePolicy, budget};
use crate::identity::Keyring;
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::output_budget::OutputBudget;
use crate::session::{Requests, SessionServer, SessionSettings};
use crate::store::{Keeper, Me, Store, StoreSettings};
use crate::threads::Threads;
use crate::workers::{THREADS_MAX, Workers};

/// The longest that a call may wait, whatever it asks for: one that waits for room has a worker.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);
/// Changes of names that are remembered for those who watch names.
const NAME_CHANGES: usize = 1 << 17;
/// Bytes of these changes at most, of `arena.base`.
const NAME_CHANGE_BYTES: u64 = 16 << 20;
/// Bytes that a tensor takes in the tables of ledger and store: its entries there, its reference, its descriptor, and what its
/// block takes. Measured as the growth of the process, and a third more.
const TENSOR_BYTES: u64 = 1_024;
/// Peers and sessions that the ledger remembers as holders, beyond those that the limits allow at a time.
const SPARE_HOLDERS: usize = 1 << 10;

/// Everything that runs.
pub(super) struct Parts {
    workers: Workers,
    keeper: Keeper,
    arena: Arc<Arena>,
    exchange: Arc<Exchange>,
    peers: Option<Peering>,
    sessions: Arc<SessionServer>,
    fingerprint: Fingerprint,
    unread: OutputBudget,
    requests: Requests,
    /// Held for as long as the sidecar runs.
    _locks: [File; 2],
}

// === impl Parts ===

impl Parts {
    pub(super) fn start(
        config: &Config,
        metrics: &Arc<Metrics>,
        threads: &Threads,
    ) -> Result<Self, RunError> {
        check_abilities(config)?;
        check_memory(config, memory_limit())?;
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        if let Some((needed, memory)) = above_machine(config, &meminfo) {
            tracing::warn!(
                needed,
                memory,
                "arena.size and arena.base are more bytes than this machine has: the kernel may kill this process"
            );
        }
        if config.routes.may_be_plain() {
            tracing::warn!(
                "encryption is none: with peers that agree, lanes carry tensors that can be read on the wire"
            );
        }
        raise_descriptor_limit();
        let state = &config.state.directory;
        let locks = [lock(state, "state.directory")?, lock(&config.sockets.directory, "sockets.directory")?];
        let witnesses = state.join("witnesses");
        std::fs::create_dir_all(&witnesses).map_err(io_at("make", &witnesses, "state.directory"))?;
        let keyring = Keyring::start(state)?;
        let fingerprint = keyring.current().fingerprint;
        let me = Me {
            exchange: config.exchange.clone(),
            peer: config.peer.clone(),
            incarnation: Incarnation(rand::random()),
        };
        let workers = Workers::new(threads.clone(), THREADS_MAX);
        let (arena, store) = start_store(config, me, witnesses, threads)?;
        let keeper = Keeper::start(Arc::clone(&store), threads).map_err(io("start the keeper"))?;
        let exchange = Exchange::new(
            store,
            workers.clone(),
            Arc::clone(metrics),
            exchange_settings(config, fingerprint),
        );
        if let Some(root) = &config.sets.root {
            make_last(root, "sets.root")?;
            let opened = exchange.open_sets(root, config.limits.set_files, config.limits.set_journal_bytes);
            opened.map_err(|error| match error.kind() {
                std::io::ErrorKind::ResourceBusy => RunError::InUse { directory: root.clone() },
                _ => io_at("open", root, "sets.root")(error),
            })?;
        }
        let unread = OutputBudget::new(config.limits.unread_bytes);
        let requests = Requests::new(config.arena.request_bytes());
        let peers = peering::start(config, keyring, &exchange, &unread, metrics)?;
        let sessions = SessionServer::start(
            SessionSettings {
                path: config.sockets.directory.join("session.sock"),
                sessions_max: config.limits.sessions,
                pending_max: config.limits.pending_requests,
                strangers_max: config.limits.strangers,
                unread: unread.clone(),
                requests: requests.clone(),
                map_deadline: config.deadlines.map,
                takes_gpu: config.gpu.mode != GpuMode::None,
            },
            Arc::clone(&exchange),
            workers.clone(),
            Arc::clone(metrics),
        );
        let sessions = Arc::new(sessions.map_err(io_at(
            "listen on",
            &config.sockets.directory.join("session.sock"),
            "sockets.directory",
        ))?);
        scrape::register(metrics, &exchange, &sessions, peers.as_ref().map(|p| &p.peers), &unread, threads);
        scrape::register_requests(metrics, requests.clone());
        tell_budgets(&exchange, unread.clone(), requests.clone());
        Ok(Self {
            workers,
            keeper,
            arena,
            exchange,
            peers,
            sessions,
            fingerprint,
            unread,
            requests,
            _locks: locks,
        })
    }

    pub(super) fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// The budgets of answers that wait to be read, with buffers over gRPC, and of requests.
    pub(super) fn budgets(&self) -> (&OutputBudget, &Requests) {
        (&self.unread, &self.requests)
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.exchange.me().incarnation
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns what has begun and not finished.
    pub(super) fn left(&self) -> Left {
        Left {
            calls: self.exchange.gate().under_way(),
            pulls: self.peers.as_ref().map_or(0, |peering| peering.peers.open_pulls()),
            unread: self.unread.bytes(),
        }
    }

    /// Ends everything, in order. Blocks where threads are waited for, so it runs beside the runtime.
    pub(super) async fn stop(mut self) -> Result<(), RunError> {
        if let Some(peering) = &mut self.peers {
            peering.rotating.shutdown().await;
        }
        let ended = tokio::task::spawn_blocking(move || {
            self.exchange.end();
            self.sessions.stop();
            if let Some(peering) = &self.peers {
                peering.peers.stop();
            }
            self.exchange.stop_waiters();
            self.workers.stop();
            self.keeper.stop();
            self.arena.stop();
        });
        ended.await.map_err(std::io::Error::other).map_err(io("end in order"))
    }
}

/// Has status tell of the budgets that the exchange does not know.
fn tell_budgets(exchange: &Exchange, unread: OutputBudget, requests: Requests) {
    exchange.tell_budgets(move || {
        vec![budget("requests", requests.bytes()), budget("unread", (unread.bytes(), unread.limit()))]
    });
}

fn exchange_settings(config: &Config, fingerprint: Fingerprint) -> ExchangeSettings {
    ExchangeSettings {
        deadline: config.deadlines.default,
        deadline_max: DEADLINE_MAX,
        fingerprint,
        routes: RoutePolicy {
            transports: config.routes.transports,
            require: config.routes.require,
            encryption: config.routes.encryption,
            prefer: config.routes.prefer,
            node: config.node.directory.is_some(),
            own_copies: !config.security.neighbours,
        },
        fanout: FanoutSettings { degree: config.peers.fan_out, from: config.peers.fan_out_from },
        waiting_bytes: config.arena.waiting_bytes(),
    }
}

fn start_store(
    config: &Config,
    me: Me,
    witnesses: std::path::PathBuf,
    threads: &Threads,
) -> Result<(Arc<Arena>, Arc<Store>), RunError> {
    let starts = threads.clone();
    let options = ArenaOptions {
        start_thread: Arc::new(move |name, run| starts.start(name, PanicScope::Process, run)),
        segment_bytes: config.arena.segment,
        ready_bytes: config.arena.ready,
        witness_dir: Some(witnesses),
        ..ArenaOptions::new(config.arena.size)
    };
    // The arena tells the store of room, and the store is made over the arena.
    let told: Arc<OnceLock<Weak<Store>>> = Arc::default();
    let tells = Arc::clone(&told);
    let on_room = Arc::new(move || {
        if let Some(store) = tells.get().and_then(Weak::upgrade) {
            store.notify();
        }
    });
    let tells = Arc::clone(&told);
    let on_lingering = Arc::new(move || {
        if let Some(store) = tells.get().and_then(Weak::upgrade) {
            store.ask_for_unmapping();
        }
    });
    let options = ArenaOptions { on_lingering, ..options };
    let arena = Arena::start(options, on_room)?;
    let settings = StoreSettings {
        limits: Limits {
            tensors: config.limits.tensors,
            tensor_bytes: TENSOR_BYTES,
            table_bytes: config.arena.table_bytes(),
            holders: config.limits.sessions + config.peers.max + SPARE_HOLDERS,
            leases_per_holder: config.limits.leases_per_session as u64,
            names: config.limits.names,
            name_changes: NAME_CHANGES,
            name_change_bytes: NAME_CHANGE_BYTES.min(config.arena.remembered_bytes()),
            tickets: config.limits.tickets,
            retries: remembered_requests(config),
            copy_idle: Millis(u64::try_from(config.gc.copy_idle.as_millis()).unwrap_or(u64::MAX)),
        },
        ticket_ttl: config.gc.ticket_ttl,
        lease_grace: config.gc.lease_grace,
        metadata_bytes: config.arena.metadata_bytes(),
    };
    let store = Store::new(me, settings, Arc::clone(&arena), Clock::start());
    // It is set once, here.
    let _ = told.set(Arc::downgrade(&store));
    Ok((arena, store))
}

/// Requests that are remembered: two for each tensor, of its reservation and its seal, within their bytes. Beyond those the oldest
/// one is forgotten, of tens of thousands.
fn remembered_requests(config: &Config) -> usize {
    let fit = usize::try_from(config.arena.remembered_bytes() / RETRY_BYTES).unwrap_or(usize::MAX);
    config.limits.tensors.saturating_mul(2).min(fit)
}

/// Makes a directory in one that is there. Those above it are not made: where they lack, a disk may not be mounted, or the path is
/// another one.
fn make_last(directory: &Path, setting: &'static str) -> Result<(), RunError> {
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let made = io_at("make the directory", directory, setting);
            Err(made(std::io::Error::new(error.kind(), format!("{error}; make the one above it"))))
        }
        // One that is there is opened, which says what is wrong with it; so does a file system that takes none.
        _ => Ok(()),
    }
}

/// Makes a directory this sidecar's own, for as long as the result lives: two in one would take each other's clients.
fn lock(directory: &Path, setting: &'static str) -> Result<File, RunError> {
    std::fs::create_dir_all(directory).map_err(io_at("make the directory", directory, setting))?;
    let file = File::open(directory).map_err(io_at("open the directory", directory, setting))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(RunError::InUse { directory: directory.to_owned() }),
        Err(error) => Err(io_at("lock the directory", directory, setting)(error.into())),
    }
}

/// A session costs four descriptors and a mapped segment one more: take what the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }) {
        tracing::warn!(%error, "the limit of open files stays where it is");
    }
}
