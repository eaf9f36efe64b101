//! The webhook as an API server calls it: over TLS, with reviews, on loopback.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::certs::{Current, Kept, SecretPath, SecretPaths, now};
use crate::metrics::Metrics;
use crate::names::MUTATE_PATH;
use crate::plan::{Defaults, Facts, Namespace};

mod forged;
mod places;
mod strangers;

const NAME: &str = "webhook.test";

/// Facts that are equal for every pod, and a door that can be shut while a call is open.
struct FixedFacts {
    facts: Facts,
    door: Arc<Semaphore>,
    /// Tells that a call has come to the door.
    entered: mpsc::UnboundedSender<()>,
}

impl FactSource for FixedFacts {
    async fn facts(&self, look_ups: &LookUps) -> Result<Facts, FactsError> {
        self.entered.send(()).unwrap();
        let _open = self.door.acquire().await.unwrap();
        let namespace = Namespace { name: look_ups.namespace.to_string(), ..self.facts.namespace.clone() };
        Ok(Facts { namespace, ..self.facts.clone() })
    }
}

struct Scene {
    address: std::net::SocketAddr,
    gate: Gate,
    /// Path that the API server calls.
    path: SecretPath,
    kept: Kept,
    current: Current,
    notes: mpsc::Receiver<Note>,
    metrics: Arc<Metrics>,
    door: Arc<Semaphore>,
    entered: mpsc::UnboundedReceiver<()>,
    stop: CancellationToken,
    server: JoinHandle<std::io::Result<()>>,
}

fn leaf(kept: &Kept) -> crate::certs::Leaf {
    let signer = kept.step(now()).signer.unwrap();
    kept.authority(signer).unwrap().sign(&[NAME.to_owned()], now()).unwrap()
}

/// The webhook over facts of a namespace with nothing in it.
async fn scene(bounds: Bounds) -> Scene {
    scene_knowing(Facts::default(), bounds).await
}

/// Webhook over facts that stand behind a door.
async fn scene_knowing(facts: Facts, bounds: Bounds) -> Scene {
    let door = Arc::new(Semaphore::new(100));
    let (enter, entered) = mpsc::unbounded_channel();
    let facts = FixedFacts { facts, door: Arc::clone(&door), entered: enter };
    Scene { door, entered, ..scene_of(facts, bounds).await }
}

/// The webhook over these facts, which have no door.
async fn scene_of<F: FactSource>(facts: F, bounds: Bounds) -> Scene {
    let kept = Kept::default();
    let kept = kept.after(&kept.step(now()), now()).unwrap().unwrap();
    let current = Current::default();
    current.set(leaf(&kept));
    let (sender, notes) = Notes::new();
    let metrics = Arc::new(Metrics::new().unwrap());
    let paths = SecretPaths::default().after(now(), None).unwrap();
    let gate = Gate::default();
    gate.set(paths.accepted());
    let path = paths.announced(now()).unwrap();
    let handler = Handler::new(facts, Defaults::default(), gate.clone(), sender, Arc::clone(&metrics));
    let routes = handler.routes();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let bounds = Bounds { linger: Duration::from_millis(50), ..bounds };
    let server = Server::new(listener, current.clone(), routes, bounds).unwrap();
    let server = tokio::spawn(server.serve(stop.clone()));
    let (door, entered) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel().1);
    Scene { address, gate, path, kept, current, notes, metrics, door, entered, stop, server }
}

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;
type Ended = JoinHandle<Result<(), hyper::Error>>;

impl Scene {
    /// The API server, which knows the path.
    async fn connect(&self) -> (Caller, Ended) {
        self.connect_for(self.path.as_str()).await
    }

    /// Caller of this path.
    async fn connect_for(&self, path: &str) -> (Caller, Ended) {
        let stream = self.handshake(&["h2"]).await;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        (Caller { sender, path: path.to_owned() }, tokio::spawn(connection))
    }

    async fn handshake(&self, protocols: &[&str]) -> TlsStream<TcpStream> {
        self.secured(TcpStream::connect(self.address).await.unwrap(), protocols).await
    }

    async fn secured(&self, stream: TcpStream, protocols: &[&str]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let bundle = self.kept.bundle();
        roots
            .add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|word| word.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        within(self.server).await.unwrap().unwrap();
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it takes far too long")
}

/// A sender over a connection, and the path that it calls.
struct Caller {
    sender: Sender,
    path: String,
}

async fn post(caller: &mut Caller, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    let request = Request::post(format!("https://{NAME}{}", caller.path))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let reply = within(caller.sender.send_request(request)).await.unwrap();
    let status = reply.status();
    (status, within(reply.into_body().collect()).await.unwrap().to_bytes().to_vec())
}

fn review(annotations: &BTreeMap<&str, &str>, dry_run: bool) -> Vec<u8> {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
    serde_json::to_vec(&json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "42",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "", "namespace": "ml", "operation": "CREATE", "userInfo": {}, "dryRun": dry_run,
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"generateName": "r-", "namespace": "ml", "annotations": annotations, "ownerReferences": owner},
                "spec": {"containers": [{"name": "main", "image": "x"}], "newField": true},
            },
        },
    }))
    .unwrap()
}

async fn ask(caller: &mut Caller, annotations: &[(&str, &str)], dry_run: bool) -> Value {
    let (status, body) = post(caller, review(&annotations.iter().copied().collect(), dry_run)).await;
    assert_eq!(status, 200);
    let review: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&review["kind"], &review["response"]["uid"]), (&json!("AdmissionReview"), &json!("42")));
    review["response"].clone()
}

const ENABLED: (&str, &str) = ("tensorlane.dev/inject", "enabled");

#[tokio::test]
async fn a_pod_that_asks_gets_a_patch_and_its_owner_an_event() {
    let mut scene = scene(Bounds::default()).await;
    let (mut sender, _connection) = scene.connect().await;
    let response = ask(&mut sender, &[ENABLED, ("tensorlane.dev/arena-sise", "2Gi")], false).await;
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));
    assert!(
        response["patch"].as_array().is_some_and(|bytes| !bytes.is_empty()) || response["patch"].is_string()
    );
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(warning.contains("did you mean tensorlane.dev/arena-size?"), "{warning}");
    let notes = [within(scene.notes.recv()).await.unwrap(), within(scene.notes.recv()).await.unwrap()];
    assert_eq!(notes.each_ref().map(|note| note.reason), ["Injected", "InjectionWarning"]);
    assert_eq!(notes[0].owner.kind, "ReplicaSet");
    let metrics = scene.metrics.render().unwrap();
    assert!(metrics.contains("tensorlane_operator_injections_total{result=\"injected\"} 1"), "{metrics}");
    scene.end().await;
}

#[tokio::test]
async fn a_pod_that_cannot_be_served_is_refused_with_the_remedy() {
    let scene = scene(Bounds::default()).await;
    let (mut sender, _connection) = scene.connect().await;
    let response = ask(&mut sender, &[ENABLED, ("tensorlane.dev/arena-size", "2GB")], false).await;
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(403)));
    assert!(response["status"]["message"].as_str().unwrap().contains("such as 2Gi"), "{response}");
    scene.end().await;
}

/// More than have notes at once in a namespace.
const DRY_RUNS: usize = 100;

#[tokio::test]
async fn a_dry_run_leaves_nothing_behind_and_takes_no_note_of_others() {
    let mut scene = scene(Bounds::default()).await;
    let (mut sender, _connection) = scene.connect().await;
    for _ in 0..DRY_RUNS {
        for (more, allowed) in
            [(("tensorlane.dev/arena-sise", "2Gi"), true), (("tensorlane.dev/arena-size", "2GB"), false)]
        {
            assert_eq!(ask(&mut sender, &[ENABLED, more], true).await["allowed"], allowed);
        }
    }
    assert_eq!(ask(&mut sender, &[("tensorlane.dev/inject", "disabled")], false).await["allowed"], true);
    let note = within(scene.notes.recv()).await.unwrap();
    assert_eq!(note.reason, "InjectionSkipped", "the first note is of the only pod that is made");
    assert!(scene.notes.is_empty() && scene.metrics.notes_dropped.get() == 0);
    scene.end().await;
}

#[tokio::test]
async fn what_is_no_review_or_too_large_is_refused_and_the_connection_goes_on() {
    let scene = scene(Bounds::default()).await;
    let (mut sender, _connection) = scene.connect().await;
    assert_eq!(post(&mut sender, b"hello".to_vec()).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(post(&mut sender, vec![b' '; 5 << 20]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(ask(&mut sender, &[ENABLED], false).await["allowed"], true);
    scene.end().await;
}

#[tokio::test]
async fn a_connection_is_told_to_go_away_so_that_calls_spread_over_replicas() {
    let scene = scene(Bounds { connection_age: Duration::from_secs(2), ..Bounds::default() }).await;
    let (_sender, connection) = scene.connect().await;
    within(connection).await.unwrap().unwrap();
    let (mut sender, _connection) = scene.connect().await;
    drop(sender.sender.ready().await);
    scene.end().await;
}

/// As API servers call: by HTTP/1.1. A connection that is closed while it is idle may be closed under a call.
#[tokio::test]
async fn an_old_idle_connection_stays_until_its_next_answer_which_says_that_it_is_the_last() {
    let scene = scene(Bounds { connection_age: Duration::ZERO, ..Bounds::default() }).await;
    let stream = scene.handshake(&["http/1.1"]).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    // Long past its age, and nobody has closed it.
    let (mut other, ended) = scene.connect().await;
    // It is reset where this end had more to say.
    drop(within(ended).await.unwrap());
    assert!(within(other.sender.ready()).await.is_err() && !connection.is_finished());
    let request = Request::post(MUTATE_PATH).header("host", NAME).body(Full::new(Bytes::from("no review")));
    let reply = within(sender.send_request(request.unwrap())).await.unwrap();
    assert_eq!(
        (reply.status(), &reply.headers()["connection"]),
        (StatusCode::BAD_REQUEST, &"close".parse().unwrap())
    );
    drop(reply);
    within(connection).await.unwrap().unwrap();
    scene.end().await;
}

#[tokio::test]
async fn a_call_that_is_open_at_the_end_is_answered() {
    let mut scene = scene(Bounds::default()).await;
    let (mut sender, _connection) = scene.connect().await;
    let shut = Arc::clone(&scene.door).acquire_many_owned(100).await.unwrap();
    let call = tokio::spawn(async move { ask(&mut sender, &[ENABLED], false).await });
    within(scene.entered.recv()).await.unwrap();
    scene.stop.cancel();
    drop(shut);
    assert_eq!(within(call).await.unwrap()["allowed"], true);
    within(scene.server).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_certificate_that_is_replaced_is_shown_to_the_next_connection() {
    let scene = scene(Bounds::default()).await;
    let (mut before, _first) = scene.connect().await;
    scene.current.set(leaf(&scene.kept));
    let (mut after, _second) = scene.connect().await;
    for sender in [&mut before, &mut after] {
        assert_eq!(ask(sender, &[ENABLED], false).await["allowed"], true);
    }
    scene.end().await;
}
