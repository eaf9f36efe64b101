//! A twin of the API server: one kind, lists in pages, watches from a version, server-side apply of the status. The
//! real one is tested by the suites with a cluster; this one can be told when to fail.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use super::gate::Gate;

const PEERS: &str = "/apis/tensorlane.dev/v1alpha1/namespaces/ml/tensorpeers";

/// Dropping it ends its tasks.
pub(super) struct Twin {
    pub(super) gate: Gate,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    world: Mutex<World>,
    /// Wakes the watches.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct World {
    version: u64,
    uids: u64,
    objects: BTreeMap<String, Value>,
    /// Events by version; all up to `compacted` are forgotten.
    log: Vec<(u64, Value)>,
    compacted: u64,
    seen: Seen,
    will: Will,
}

/// Record of what was asked.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub(super) lists: usize,
    /// Version that each list was asked to be as new as; empty where it was asked for what is stored.
    pub(super) listed_at: Vec<String>,
    pub(super) watches: usize,
    pub(super) writes: Vec<Value>,
    pub(super) managers: Vec<String>,
    pub(super) selectors: Vec<String>,
    pub(super) tokens: Vec<String>,
}

/// Behaviour of the twin.
#[derive(Default)]
pub(super) struct Will {
    /// Objects of a page, at most.
    pub(super) page: Option<usize>,
    /// So many second pages are refused with 410.
    pub(super) expire_pages: usize,
    /// So many lists from the cache are refused, as by an API server whose cache is not as new.
    pub(super) refuse_cached: usize,
    /// So many lists never get an answer.
    pub(super) hang_lists: usize,
    /// So many writes are refused with 403.
    pub(super) forbid_writes: usize,
}

/// Everything that a twin stored at some time.
pub(super) struct Backup {
    version: u64,
    objects: BTreeMap<String, Value>,
}

impl Twin {
    pub(super) async fn start() -> Twin {
        let shared = Arc::new(Shared { world: Mutex::default(), changed: watch::Sender::new(()) });
        shared.world.lock().version = 100;
        let routes = Router::new()
            .route(PEERS, get(list_or_watch))
            .route(&format!("{PEERS}/{{name}}/status"), patch(write))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Twin { gate: Gate::open_before(address).await, shared, _serving: serving }
    }

    pub(super) fn seen(&self) -> Seen {
        self.shared.world.lock().seen.clone()
    }

    pub(super) fn will(&self, change: impl FnOnce(&mut Will)) {
        change(&mut self.shared.world.lock().will);
    }

    /// An object of a new identity, instead of what has the name.
    pub(super) fn create(&self, name: &str, exchange: &str, status: &Value) {
        let mut world = self.shared.world.lock();
        world.delete(name);
        world.uids += 1;
        let metadata = json!({"name": name, "uid": format!("uid-{}", world.uids), "generation": 1});
        let object = json!({"metadata": metadata, "spec": {"exchange": exchange}, "status": status});
        world.put(name, object, "ADDED");
        drop(world);
        self.shared.changed.send_replace(());
    }

    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut world = self.shared.world.lock();
        let mut object = world.objects[name].clone();
        change(&mut object);
        world.put(name, object, "MODIFIED");
        drop(world);
        self.shared.changed.send_replace(());
    }

    pub(super) fn delete(&self, name: &str) {
        self.shared.world.lock().delete(name);
        self.shared.changed.send_replace(());
    }

    pub(super) fn status(&self, name: &str) -> Value {
        self.shared.world.lock().objects[name]["status"].clone()
    }

    /// Version of all that is stored.
    pub(super) fn version(&self) -> u64 {
        self.shared.world.lock().version
    }

    /// A copy of what is stored, as a backup has it.
    pub(super) fn backup(&self) -> Backup {
        let world = self.shared.world.lock();
        Backup { version: world.version, objects: world.objects.clone() }
    }

    /// Puts a backup in the place of everything. Watches that know later versions hear nothing until these are reached again.
    pub(super) fn restore(&self, backup: Backup) {
        let mut world = self.shared.world.lock();
        (world.version, world.objects) = (backup.version, backup.objects);
        world.log.retain(|(version, _)| *version <= backup.version);
        drop(world);
        self.shared.changed.send_replace(());
    }

    /// Changes objects, and forgets everything up to then before any watch has seen it.
    pub(super) fn compact_after(&self, change: impl FnOnce(&mut BTreeMap<String, Value>)) {
        let mut world = self.shared.world.lock();
        change(&mut world.objects);
        world.version += 10;
        world.compacted = world.version;
        world.log.clear();
        drop(world);
        self.shared.changed.send_replace(());
    }
}

/// The status of a peer that has published.
pub(super) fn published(key: u8) -> Value {
    let fingerprint = format!("sha256:{}", format!("{key:02x}").repeat(32));
    json!({"incarnation": "0".repeat(32), "addresses": ["10.0.0.7:9421"], "fingerprints": [fingerprint]})
}

impl World {
    fn put(&mut self, name: &str, mut object: Value, kind: &str) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.log.push((self.version, json!({"type": kind, "object": object})));
        self.objects.insert(name.to_owned(), object);
    }

    fn delete(&mut self, name: &str) {
        if let Some(mut object) = self.objects.remove(name) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.log.push((self.version, json!({"type": "DELETED", "object": object})));
        }
    }

    /// The lines after a version; none where they are forgotten.
    fn after(&self, version: u64, exchange: &str) -> Option<(u64, Vec<Value>)> {
        let new = self
            .log
            .iter()
            .filter(|(at, event)| *at > version && event["object"]["spec"]["exchange"] == exchange);
        (version >= self.compacted).then(|| (self.version, new.map(|(_, event)| event.clone()).collect()))
    }
}

fn refusal(code: StatusCode, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "the twin says no", "reason": reason, "code": code.as_u16()})
}

fn refused(code: StatusCode, reason: &str) -> Response {
    (code, refusal(code, reason).to_string()).into_response()
}

/// The words after the question mark; the only escape in ours is that of `=`.
fn query(uri: &Uri) -> HashMap<String, String> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.replace("%3D", "="))).collect()
}

async fn list_or_watch(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap) -> Response {
    let query = query(&uri);
    let token = headers.get("authorization").map_or("", |value| value.to_str().unwrap()).to_owned();
    let selector = query.get("fieldSelector").cloned().unwrap_or_default();
    {
        let seen = &mut shared.world.lock().seen;
        seen.tokens.push(token);
        seen.selectors.push(selector.clone());
    }
    let exchange = selector.strip_prefix("spec.exchange=").unwrap_or_default().to_owned();
    if query.get("watch").is_some_and(|word| word == "true") {
        watching(&shared, &query, exchange)
    } else {
        listing(&shared, &query, &exchange).await
    }
}

async fn listing(shared: &Shared, query: &HashMap<String, String>, exchange: &str) -> Response {
    let hangs = {
        let mut world = shared.world.lock();
        world.seen.lists += usize::from(!query.contains_key("continue"));
        let version = query.get("resourceVersion").cloned().unwrap_or_default();
        assert_eq!(
            query.get("resourceVersionMatch").map(String::as_str),
            (!version.is_empty()).then_some("NotOlderThan")
        );
        assert_eq!(query.contains_key("limit"), version.is_empty(), "with a limit the cache is not asked");
        if !query.contains_key("continue") {
            world.seen.listed_at.push(version.clone());
        }
        if !version.is_empty() && world.will.refuse_cached > 0 {
            world.will.refuse_cached -= 1;
            return refused(StatusCode::GATEWAY_TIMEOUT, "Timeout");
        }
        let hangs = world.will.hang_lists > 0;
        world.will.hang_lists = world.will.hang_lists.saturating_sub(1);
        hangs
    };
    if hangs {
        std::future::pending::<()>().await;
    }
    let mut world = shared.world.lock();
    let after = query.get("continue").cloned().unwrap_or_default();
    if !after.is_empty() && world.will.expire_pages > 0 {
        world.will.expire_pages -= 1;
        return refused(StatusCode::GONE, "Expired");
    }
    // From the cache all comes at once.
    let Some(limit) = query.get("limit").map(|limit| limit.parse::<usize>().unwrap()) else {
        return listed(&world, exchange, world.objects.keys().len(), "");
    };
    listed(&world, exchange, world.will.page.unwrap_or(limit).min(limit), &after)
}

/// At most so many objects of the exchange behind this name.
fn listed(world: &World, exchange: &str, limit: usize, after: &str) -> Response {
    let rest = world.objects.range(after.to_owned()..).skip_while(|(name, _)| *name == after);
    let mut items: Vec<_> =
        rest.filter(|(_, object)| object["spec"]["exchange"] == exchange).take(limit + 1).collect();
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { items.last().map(|(name, _)| (*name).clone()) } else { None };
    let items: Vec<_> = items.into_iter().map(|(_, object)| object).collect();
    let metadata =
        json!({"resourceVersion": world.version.to_string(), "continue": next.unwrap_or_default()});
    let body = json!({"kind": "TensorPeerList", "apiVersion": "tensorlane.dev/v1alpha1", "metadata": metadata, "items": items});
    body.to_string().into_response()
}

fn watching(shared: &Arc<Shared>, query: &HashMap<String, String>, exchange: String) -> Response {
    let mut version: u64 = query["resourceVersion"].parse().unwrap();
    let mut changed = shared.changed.subscribe();
    {
        let mut world = shared.world.lock();
        world.seen.watches += 1;
        if version < world.compacted {
            return refused(StatusCode::GONE, "Expired");
        }
    }
    let (lines, body) = mpsc::channel::<Result<Bytes, std::io::Error>>(64);
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        loop {
            let new = shared.world.lock().after(version, &exchange);
            let Some((until, events)) = new else {
                let gone = json!({"type": "ERROR", "object": refusal(StatusCode::GONE, "Expired")});
                let _ = lines.send(Ok(format!("{gone}\n").into())).await;
                return;
            };
            let mark = json!({"type": "BOOKMARK", "object": {
                "kind": "TensorPeer", "apiVersion": "tensorlane.dev/v1alpha1",
                "metadata": {"resourceVersion": until.to_string()}}});
            // A version that is not reached yet is waited for in silence.
            let mark = (until >= version).then_some(mark);
            version = version.max(until);
            for line in events.into_iter().chain(mark) {
                if lines.send(Ok(format!("{line}\n").into())).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                () = lines.closed() => return,
            }
        }
    });
    Body::from_stream(ReceiverStream::new(body)).into_response()
}

async fn write(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let query = query(&uri);
    let mut world = shared.world.lock();
    let body: Value = serde_json::from_slice(&body).unwrap();
    world.seen.writes.push(body.clone());
    world.seen.managers.push(query.get("fieldManager").cloned().unwrap_or_default());
    if world.will.forbid_writes > 0 {
        world.will.forbid_writes -= 1;
        return refused(StatusCode::FORBIDDEN, "Forbidden");
    }
    let is_apply = headers["content-type"] == "application/apply-patch+yaml" && query["force"] == "true";
    if !is_apply || body["metadata"]["name"] != name || body["kind"] != "TensorPeer" {
        return refused(StatusCode::BAD_REQUEST, "BadRequest");
    }
    let Some(mut object) = world.objects.get(&name).cloned() else {
        return refused(StatusCode::NOT_FOUND, "NotFound");
    };
    let before = object["status"].clone();
    for (field, value) in body["status"].as_object().unwrap() {
        object["status"][field] = value.clone();
    }
    if object["status"] != before {
        world.put(&name, object, "MODIFIED");
    }
    let answer = world.objects[&name].to_string();
    drop(world);
    shared.changed.send_replace(());
    answer.into_response()
}
