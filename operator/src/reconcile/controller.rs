//! Watches pods, peers and exchanges, and looks at a namespace when something in it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, Stream, StreamExt, select};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tensorlane_proto::crd::{DEFAULT_EXCHANGE, TensorExchange, TensorPeer};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::Applier;
use super::build::{Action, build};
use super::dereference::{PodFacts, Scene};
use super::schedule::{GATHER, Object, Schedule};
use crate::manifests::{Gap, Installation};
use crate::metrics::Metrics;
use crate::names::INJECTED;

/// Delay before everything is looked at again, after it could not be found out whether peers are guarded.
const RETRY: Duration = Duration::from_secs(5);

/// Objects that are brought to what they should be at once. More load the API server more; as many as are slow to be
/// answered delay all others, until their calls are given up.
const AT_ONCE: usize = 16;

/// Interval at which every namespace is looked at again though nothing has changed.
const AGAIN: Duration = Duration::from_secs(300);

/// Interval of looks at the policy that guards peers: two small reads. What has become of it concerns every namespace.
const GUARD: Duration = Duration::from_secs(30);

/// Objects of a page of a list.
const PAGE: u32 = 50;

/// The leader's watch.
pub struct Controller {
    applier: Applier,
    metrics: Arc<Metrics>,
    /// Objects that were installed, where this operator runs.
    installation: Installation,
    /// Namespaces with an exchange that wants every pod with a GPU.
    gpu_namespaces: watch::Sender<Option<Vec<String>>>,
    pods: Store<Pod>,
    peers: Store<TensorPeer>,
    exchanges: Store<TensorExchange>,
}

/// Task: what is to be done about one object, in this order.
struct Task {
    namespace: String,
    object: Object,
    actions: Vec<Action>,
}

/// Actions by object, in the order in which each object comes first.
fn tasks(namespace: &str, actions: Vec<Action>) -> Vec<Task> {
    let mut all: Vec<Task> = Vec::new();
    let mut places: BTreeMap<Object, usize> = BTreeMap::new();
    for action in actions {
        let object = action.object();
        let place = *places.entry(object.clone()).or_insert_with(|| {
            all.push(Task { namespace: namespace.to_owned(), object, actions: Vec::new() });
            all.len() - 1
        });
        all[place].actions.push(action);
    }
    all
}

/// The namespace of each object that has changed; none after a list.
type Changes = Pin<Box<dyn Stream<Item = Option<String>> + Send>>;

impl Controller {
    /// Watches by this client, and works until `stop`; says which namespaces want their pods with GPUs served.
    /// `operator_namespace` is the one that the policies know.
    pub async fn run(
        client: &Client,
        operator_namespace: &str,
        metrics: Arc<Metrics>,
        gpu_namespaces: watch::Sender<Option<Vec<String>>>,
        stop: CancellationToken,
    ) {
        // A page of a list is in memory whole before anything is left out, and a pod may have a megabyte.
        let any = || watcher::Config::default().page_size(PAGE);
        let injected = any().labels(&format!("{INJECTED}=true"));
        let (pods, changed_pods) = watched(Api::<Pod>::all(client.clone()), injected, |pod| {
            // What a look does not need is most of a pod.
            pod.metadata.managed_fields = None;
            pod.metadata.annotations = None;
            if let Some(spec) = &mut pod.spec {
                spec.containers.clear();
                spec.init_containers = None;
                spec.volumes = None;
            }
        });
        let (peers, changed_peers) = watched(Api::<TensorPeer>::all(client.clone()), any(), |peer| {
            peer.metadata.managed_fields = None;
        });
        let (exchanges, changed_exchanges) =
            watched(Api::<TensorExchange>::all(client.clone()), any(), |exchange| {
                exchange.metadata.managed_fields = None;
                exchange.metadata.annotations = None;
            });
        let mut changes: Changes = Box::pin(select(changed_pods, select(changed_peers, changed_exchanges)));
        let applier = Applier::new(client.clone());
        let installation =
            Installation { namespace: operator_namespace.to_owned(), ..Installation::default() };
        let controller =
            Controller { applier, metrics, installation, gpu_namespaces, pods, peers, exchanges };
        controller.follow(&mut changes, &stop).await;
    }

    async fn follow(&self, changes: &mut Changes, stop: &CancellationToken) {
        let mut schedule = Schedule::default();
        let room = Semaphore::new(AT_ONCE);
        let mut under_way = FuturesUnordered::new();
        let mut all_again = Instant::now() + AGAIN;
        let mut guard_again = Instant::now() + GUARD;
        let mut gap = None;
        loop {
            let next = schedule.next().unwrap_or(all_again).min(all_again).min(guard_again);
            tokio::select! {
                () = stop.cancelled() => return,
                change = changes.next() => match change {
                    Some(Some(namespace)) => schedule.look_at(&namespace, Instant::now() + GATHER),
                    Some(None) => self.all_due(&mut schedule, Instant::now() + GATHER),
                    // The watchers never end by themselves.
                    None => return,
                },
                Some((task, done)) = under_way.next() => {
                    let Task { namespace, object, .. } = task;
                    schedule.ended(&namespace, object, done, Instant::now());
                }
                () = tokio::time::sleep_until(next) => {
                    let now = Instant::now();
                    if now >= all_again {
                        self.all_due(&mut schedule, now);
                        all_again = now + AGAIN;
                    }
                    guard_again = now + GUARD;
                    let tasks = self.work(&mut schedule, &mut gap, now).await;
                    under_way.extend(tasks.into_iter().map(|task| self.perform(task, &room)));
                }
            }
        }
    }

    /// Looks at what is due; gives what is to be done. `known` is the gap in the guard of peers that was seen last.
    async fn work(&self, schedule: &mut Schedule, known: &mut Option<Gap>, now: Instant) -> Vec<Task> {
        let ripe = schedule.take(now);
        // A list that is not whole yet would be read as "there is nothing".
        if !self.is_whole() {
            ripe.iter().for_each(|namespace| schedule.look_at(namespace, now + GATHER));
            return Vec::new();
        }
        self.summary();
        let gap = match self.applier.gap(&self.installation).await {
            Ok(gap) => gap,
            Err(error) => {
                tracing::warn!(%error, "it cannot be found out whether the status of peers is guarded");
                let later = Instant::now() + RETRY;
                ripe.iter().for_each(|namespace| schedule.look_at(namespace, later));
                return Vec::new();
            }
        };
        self.metrics.guarded.set(i64::from(gap.is_none()));
        if gap != *known {
            match &gap {
                Some(gap) => tracing::error!(reason = gap.reason, "{}", gap.message()),
                None => tracing::info!("the status of peers is guarded again"),
            }
            known.clone_from(&gap);
            // Every exchange is told.
            self.all_due(schedule, now);
        }
        let mut all = Vec::new();
        for namespace in ripe {
            let tasks = tasks(&namespace, build(&self.scene(&namespace, gap.clone()), &now_text()));
            schedule.wanted(&namespace, &tasks.iter().map(|task| task.object.clone()).collect());
            let begins = |task: &Task| schedule.begins(&namespace, &task.object, now);
            all.extend(tasks.into_iter().filter(begins));
            // The lease is to be renewed while all of a large installation is looked at.
            tokio::task::yield_now().await;
        }
        all
    }

    /// Does one thing after the other, up to the first that cannot be done; gives whether all were.
    async fn perform(&self, task: Task, room: &Semaphore) -> (Task, bool) {
        // Nobody closes it.
        let _permit = room.acquire().await;
        for action in &task.actions {
            if !self.act(&task.namespace, action).await {
                return (task, false);
            }
        }
        (task, true)
    }

    fn is_whole(&self) -> bool {
        let all = async {
            tokio::try_join!(
                self.pods.wait_until_ready(),
                self.peers.wait_until_ready(),
                self.exchanges.wait_until_ready()
            )
        };
        matches!(all.now_or_never(), Some(Ok(_)))
    }

    fn all_due(&self, schedule: &mut Schedule, at: Instant) {
        self.namespaces().iter().for_each(|namespace| schedule.look_at(namespace, at));
    }

    fn namespaces(&self) -> BTreeSet<String> {
        let pods = self.pods.state().into_iter().filter_map(|object| object.namespace());
        let peers = self.peers.state().into_iter().filter_map(|object| object.namespace());
        let exchanges = self.exchanges.state().into_iter().filter_map(|object| object.namespace());
        pods.chain(peers).chain(exchanges).collect()
    }

    async fn act(&self, namespace: &str, action: &Action) -> bool {
        let done = self.applier.apply(namespace, action).await;
        self.metrics.reconciled(action.label(), done.is_ok());
        if let Err(error) = &done {
            tracing::warn!(namespace, action = action.label(), %error, "it could not be done, and is tried again");
        }
        done.is_ok()
    }

    fn scene(&self, namespace: &str, gap: Option<Gap>) -> Scene {
        let pods = of(&self.pods, namespace);
        Scene {
            namespace: namespace.to_owned(),
            exchanges: of(&self.exchanges, namespace).map(|exchange| (*exchange).clone()).collect(),
            pods: pods.filter_map(|pod| PodFacts::of(&pod)).collect(),
            peers: of(&self.peers, namespace).map(|peer| (*peer).clone()).collect(),
            gap,
        }
    }

    /// Logs what concerns all namespaces: those in which pods with GPUs are wanted, and the number of peers.
    fn summary(&self) {
        let wants = |exchange: &Arc<TensorExchange>| {
            exchange.spec.inject.as_ref().is_some_and(|inject| inject.gpu_pods == Some(true))
        };
        let wanting = self.exchanges.state().into_iter().filter(wants);
        let names: BTreeSet<String> = wanting.filter_map(|exchange| exchange.namespace()).collect();
        let names: Option<Vec<String>> = Some(names.into_iter().collect());
        self.gpu_namespaces.send_if_modified(|known| {
            let news = *known != names;
            known.clone_from(&names);
            news
        });
        let ready = |peer: &Arc<TensorPeer>| {
            let conditions = peer.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let all = self.peers.state();
        let ready = all.iter().filter(|peer| ready(peer)).count();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.peers(count(ready), count(all.len() - ready));
    }
}

/// A store of these objects, and the namespaces of those that change.
fn watched<K>(
    api: Api<K>,
    config: watcher::Config,
    lighten: impl Fn(&mut K) + Clone + Send + 'static,
) -> (Store<K>, impl Stream<Item = Option<String>> + Send)
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    let (store, writer) = reflector::store();
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let events = watcher(api, config).modify(move |object| lighten(object)).default_backoff().reflect(writer);
    let changes = events.filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::Delete(object)) => Some(object.namespace()),
            Ok(watcher::Event::InitDone) => Some(None),
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => None,
            Err(error) => {
                tracing::warn!(kind, %error, "the watch broke, and is begun again");
                None
            }
        };
        std::future::ready(change)
    });
    (store, changes)
}

fn of<K>(store: &Store<K>, namespace: &str) -> impl Iterator<Item = Arc<K>>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store.state().into_iter().filter(move |object| object.meta().namespace.as_deref() == Some(namespace))
}

/// Now, as Kubernetes writes it.
fn now_text() -> String {
    let time = k8s_openapi::jiff::Timestamp::now();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Action {
    /// The label in metrics.
    const fn label(&self) -> &'static str {
        match self {
            Action::MakeDefaultExchange => "exchange",
            Action::ApplyRoleBinding { .. } => "role_binding",
            Action::ApplyPeer { .. } => "peer",
            Action::SetPeerCondition { .. } => "peer_status",
            Action::SetExchangeStatus { .. } => "exchange_status",
            Action::ReportExchange { .. } => "exchange_event",
        }
    }

    /// The object that it is about.
    fn object(&self) -> Object {
        match self {
            Action::MakeDefaultExchange => ("exchange", DEFAULT_EXCHANGE.to_owned()),
            Action::ApplyRoleBinding { .. } => ("role_binding", String::new()),
            Action::ApplyPeer { name, .. } | Action::SetPeerCondition { name, .. } => ("peer", name.clone()),
            Action::SetExchangeStatus { name, .. } | Action::ReportExchange { name, .. } => {
                ("exchange", name.clone())
            }
        }
    }
}
