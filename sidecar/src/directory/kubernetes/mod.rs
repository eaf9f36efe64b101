//! A directory in Kubernetes: the `TensorPeer` objects of one exchange in one namespace.
//!
//! ```text
//!   API server ──list, then watch──> watcher ──> table ──> whoever watches, and the state directory
//!        ^                              │ own object as it stands
//!        └───── status, on change ── publisher <── offer
//! ```
//!
//! Three tasks, ended when the directory is dropped. The watcher lists in pages and swaps the table only when a list is
//! complete, so neither a lost connection nor a compacted watch (410) ever leaves a hole; then it follows the watch. The
//! publisher says what this peer is in the status of the object that has the peer's name: only when something differs,
//! and never by a tensor. An object that is not there yet is a state, not an error: the operator makes it. The keeper
//! writes the table into the state directory, so that a sidecar that restarts while the API server is away still
//! knows its peers.
//!
//! What is kept of an object is what the table needs. Nothing here decides who may connect.

mod api;
mod client;
mod keep;
mod listing;
mod object;
mod pace;
mod publish;
mod status;
mod watcher;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use tensorlane_proto::identity::{ExchangeName, PeerName};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::api::Api;
pub use self::client::{ClientError, connect};
use self::keep::{keep, load};
use self::pace::Timing;
use self::publish::Publisher;
use self::watcher::{Outage, Watcher};
use super::{Directory, PeerTable, PublishedOffer};
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Settings of the directory: the objects that it reads, and whose they are.
#[derive(Clone, Debug)]
pub struct KubernetesSettings {
    /// The namespace of the objects.
    pub namespace: String,
    /// The exchange whose objects are taken.
    pub exchange: ExchangeName,
    /// Name of this peer: the name of its object, which is that of its pod.
    pub peer: PeerName,
    /// File in which the last good table is kept over a restart; absent: nowhere.
    pub keep: Option<PathBuf>,
}

/// The peers whose objects an API server lists. Dropping it ends its tasks.
pub struct KubernetesDirectory {
    table: watch::Sender<Arc<PeerTable>>,
    offer: watch::Sender<Option<Arc<PublishedOffer>>>,
    refresh: Arc<Notify>,
    outage: Arc<Mutex<Option<Outage>>>,
    /// Time for which an outage is not told.
    patience: Duration,
    _tasks: JoinSet<()>,
}

impl KubernetesDirectory {
    /// Starts listing. The first table is the one that was kept, or empty. Needs a runtime of tokio around it.
    pub fn start(
        client: Client,
        settings: &KubernetesSettings,
        metrics: Arc<Metrics>,
        threads: &Threads,
    ) -> KubernetesDirectory {
        KubernetesDirectory::with_timing(client, settings, metrics, threads, Timing::default())
    }

    fn with_timing(
        client: Client,
        settings: &KubernetesSettings,
        metrics: Arc<Metrics>,
        threads: &Threads,
        timing: Timing,
    ) -> KubernetesDirectory {
        metrics.directory.asked();
        let kept = settings.keep.as_deref().and_then(load).unwrap_or_default();
        let table = watch::Sender::new(Arc::new(kept));
        let (own, owned) = watch::channel(None);
        let (offer, offered) = watch::channel(None);
        let refresh = Arc::new(Notify::new());
        let api = Api::new(client, settings, timing.request);
        let mut tasks = JoinSet::new();
        if let Some(path) = settings.keep.clone() {
            let keeping = keep(path, table.subscribe(), timing.keep);
            tasks.spawn(threads.clone().task("directory-keep", PanicScope::Process, keeping));
        }
        let publisher = Publisher::new(api.clone(), timing, Arc::clone(&metrics), owned, offered);
        tasks.spawn(threads.clone().task("directory-publish", PanicScope::Process, publisher.run()));
        let outage = Arc::new(Mutex::new(None));
        let (asked, seen) = (Arc::clone(&refresh), Arc::clone(&outage));
        let watcher = Watcher::new(api, timing, metrics, table.clone(), own, asked, seen);
        tasks.spawn(threads.clone().task("directory-watch", PanicScope::Process, watcher.run()));
        KubernetesDirectory { table, offer, refresh, outage, patience: timing.outage, _tasks: tasks }
    }
}

impl Directory for KubernetesDirectory {
    fn publish(&self, offer: PublishedOffer) {
        self.offer.send_if_modified(|old| {
            let changed = old.as_deref() != Some(&offer);
            if changed {
                *old = Some(Arc::new(offer));
            }
            changed
        });
    }

    fn watch(&self) -> watch::Receiver<Arc<PeerTable>> {
        self.table.subscribe()
    }

    fn refresh(&self) {
        self.refresh.notify_one();
    }

    fn outage(&self) -> Option<String> {
        self.outage.lock().as_ref().and_then(|outage| outage.told(self.patience))
    }
}

#[cfg(test)]
mod tests;
