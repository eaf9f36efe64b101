//! Between the directory and the connections: the peer table as `peer` wants to ask it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use tensorlane_proto::identity::{Fingerprint, PeerName};
use tensorlane_proto::negotiate::Transport;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::entry::{advertised, entry, is_nowhere};
use super::error::{RunError, io};
use super::rotating::Rotating;
use crate::config::{Config, PeersDirectory};
use crate::directory::kubernetes::connect;
use crate::directory::{
    Directory, FileDirectory, KubernetesDirectory, KubernetesSettings, MemoryDirectory, PeerEntry, PeerTable,
    PublishedOffer, table_after_refresh,
};
use crate::exchange::Exchange;
use crate::identity::{Identity, Keyring, fingerprint, tls};
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::output_budget::OutputBudget;
use crate::peer::{
    Counters, Keys, Known, KnownPeer, LanesConfig, Me, NodeConfig, Peers, PeersConfig, Resolver,
};
use crate::threads::Threads;

/// Time that a stranger may make us wait for the directory.
const REFRESH_PATIENCE: Duration = Duration::from_secs(1);
/// Time that the name in `peers.listen` may take to become an address: the start waits for it.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(5);
/// Lanes on QUIC in each direction of a pair. They share one connection and its part of the link: the second is there so
/// that one copies while the other asks.
const QUIC_LANES: usize = 2;

/// A directory behind the questions of `peer`.
struct Table {
    directory: Arc<dyn Directory>,
    table: watch::Receiver<Arc<PeerTable>>,
}

// === impl Table ===

impl Table {
    fn over(directory: Arc<dyn Directory>) -> Self {
        let table = directory.watch();
        Self { directory, table }
    }

    fn now(&self) -> Arc<PeerTable> {
        Arc::clone(&self.table.borrow())
    }
}

impl Known for Table {
    fn all(&self) -> Vec<KnownPeer> {
        self.now().iter().map(|entry| known(entry)).collect()
    }

    fn peer(&self, name: &PeerName) -> Option<KnownPeer> {
        self.now().peer(name).map(|entry| known(entry))
    }

    fn claimants(&self, fingerprint: &Fingerprint) -> Vec<PeerName> {
        self.now().claimants(fingerprint).iter().map(|entry| entry.name.clone()).collect()
    }

    fn count(&self) -> usize {
        self.now().len()
    }

    fn at(&self, address: IpAddr) -> Vec<PeerName> {
        self.now().at(&address).iter().map(|entry| entry.name.clone()).collect()
    }

    fn refresh(&self) {
        // Waits for the table that was read because of this question.
        let _ = table_after_refresh(&*self.directory, REFRESH_PATIENCE);
    }

    fn own_lack(&self) -> Option<String> {
        self.directory.own_lack()
    }

    fn outage(&self) -> Option<String> {
        self.directory.outage()
    }
}

fn known(entry: &PeerEntry) -> KnownPeer {
    KnownPeer {
        name: entry.name.clone(),
        addresses: entry.addresses.clone(),
        fingerprints: entry.fingerprints.clone(),
        node: entry.node.clone(),
        awaits_ip: entry.awaits_ip,
    }
}

/// The connections to peers, and the change of the key that they are made with.
pub(super) struct Peering {
    pub(super) peers: Arc<Peers>,
    pub(super) rotating: JoinSet<()>,
}

/// Listens for peers and dials them, if the configuration says where.
pub(super) fn start(
    config: &Config,
    keyring: Keyring,
    exchange: &Arc<Exchange>,
    unread: &OutputBudget,
    metrics: &Arc<Metrics>,
) -> Result<Option<Peering>, RunError> {
    let Some(listen) = &config.peers.listen else { return Ok(None) };
    let refused = |source| RunError::PeersListen { address: listen.clone(), source };
    let threads = exchange.threads();
    let resolver = Resolver::new(threads.clone());
    let address = first(&resolver, listen).map_err(refused)?;
    let directory = directory(config, metrics, threads)?;
    let advertised = advertised(config, listen)?;
    let published = PublishedOffer {
        entry: entry(config, &keyring, advertised.clone()),
        offer: exchange.own_offer(&advertised),
    };
    directory.publish(published.clone());
    let me = exchange.me();
    let peers = Peers::start(
        PeersConfig {
            progress: config.deadlines.progress,
            grace: config.gc.lease_grace,
            peers_max: config.peers.max,
            strangers_max: config.limits.strangers,
            unread: unread.clone(),
            // The rest is for everybody else.
            packed_max: exchange.store().arena().usage().total / 4 * 3,
            lanes: lanes(config),
            node: config.node.directory.clone().map(|directory| {
                let arena = Arc::clone(exchange.store().arena());
                let limits = &config.limits;
                NodeConfig::new(directory, arena).lending(limits.lent_bytes, limits.gpu_lent_bytes)
            }),
            threads: threads.clone(),
            resolver,
            own_addresses: Some(advertised.iter().filter(|one| !is_nowhere(one)).cloned().collect()),
            ..PeersConfig::new(address)
        },
        keys(keyring.current())?,
        Arc::new(Table::over(Arc::clone(&directory))),
        Me {
            exchange: me.exchange.clone(),
            peer: me.peer.clone(),
            incarnation: me.incarnation,
            offer: exchange.offer(&advertised),
        },
        Arc::clone(exchange) as Arc<dyn crate::peer::Serve>,
        Arc::new(Counters::default()),
    );
    let peers = peers.map_err(refused)?;
    exchange.connect(Arc::clone(&peers));
    let rotating =
        Rotating { keyring, directory, published, peers: Arc::clone(&peers), exchange: Arc::clone(exchange) };
    let rotating = rotating.run(config.identity.clone());
    let rotating = threads.clone().task("rotation", PanicScope::Process, rotating);
    let rotating = [rotating].into_iter().collect();
    Ok(Some(Peering { peers, rotating }))
}

fn lanes(config: &Config) -> LanesConfig {
    LanesConfig {
        count: config.peers.lanes,
        plain: config.routes.may_be_plain(),
        most: config.limits.lanes,
        quic: quic_lanes(config),
        ..LanesConfig::default()
    }
}

fn first(resolver: &Resolver, address: &str) -> std::io::Result<SocketAddr> {
    let found = resolver.resolve(address, Instant::now() + RESOLVE_PATIENCE)?;
    found.first().copied().ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
}

/// None where it is not allowed, where the other one is always taken, and where lanes are off altogether.
fn quic_lanes(config: &Config) -> usize {
    let needed = [Transport::Quic, Transport::Tcp];
    let allowed = config.routes.transports.is_none_or(|all| needed.iter().all(|one| all.contains(*one)));
    let wanted = config.routes.prefer != Some(Transport::Tcp) && config.peers.lanes > 0;
    if allowed && wanted { QUIC_LANES } else { 0 }
}

/// The place that `peers.directory` names.
fn directory(
    config: &Config,
    metrics: &Arc<Metrics>,
    threads: &Threads,
) -> Result<Arc<dyn Directory>, RunError> {
    Ok(match (config.peers.directory, &config.peers.file) {
        (PeersDirectory::File, Some(file)) => {
            let started = FileDirectory::start(file, Arc::clone(metrics), threads);
            Arc::new(started.map_err(io("start the directory"))?)
        }
        (PeersDirectory::Kubernetes, _) => Arc::new(kubernetes(config, metrics, threads)?),
        (PeersDirectory::None | PeersDirectory::File, _) => Arc::new(MemoryDirectory::default()),
    })
}

fn kubernetes(
    config: &Config,
    metrics: &Arc<Metrics>,
    threads: &Threads,
) -> Result<KubernetesDirectory, RunError> {
    // A kubeconfig may name a program that gives the credentials. The start has a thread of its own to wait for it.
    let connected = tokio::runtime::Handle::current().block_on(connect(config.peers.kubeconfig.as_deref()));
    let (client, own_namespace) = connected?;
    let settings = KubernetesSettings {
        namespace: config.peers.namespace.clone().unwrap_or(own_namespace),
        exchange: config.exchange.clone(),
        peer: config.peer.clone(),
        keep: Some(config.state.directory.join("peers.yaml")),
    };
    tracing::info!(namespace = settings.namespace, "peers come from Kubernetes");
    Ok(KubernetesDirectory::start(client, &settings, Arc::clone(metrics), threads))
}

/// The identity as TLS takes it.
pub(super) fn keys(identity: &Identity) -> Result<Keys, rustls::Error> {
    Ok(Keys {
        server: Arc::new(tls::server_config(identity)?),
        client: Arc::new(tls::client_config(identity)?),
        fingerprint: identity.fingerprint,
        fingerprint_of: |cert: &CertificateDer<'_>| fingerprint(cert).ok(),
    })
}
