//! The operator changes its certificates and itself while pods are made, and no pod is refused. Needs `cargo xtask cluster
//! up` and the images on the nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use tensorlane_operator::certs::rotation::SIGN_AFTER_SECONDS;
use tensorlane_operator::certs::{Authority, SECRET_KEY, now};
use tensorlane_tests::cluster::{Namespace, eventually, image, succeeds};
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::{OPERATOR, SYSTEM, await_operator, install};
use tensorlane_tests::kubernetes::{kubectl_with, metrics, pods, try_create};

/// Secret with the authorities of the webhook.
pub(super) const SECRET: &str = "tensorlane-webhook-ca";

/// Label of the operator's pods.
pub(super) const REPLICAS: &str = "app.kubernetes.io/component=operator";

/// Pods in one call of kubectl.
const BATCH: usize = 40;

/// Time before an authority signs for which the test lets the bundle hold it, in seconds. It is an hour in life.
const RIPENS: u64 = 60;

/// Pods that are made without a pause, for a try: the webhook is called for each, and nothing is kept.
struct Stream {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Stream {
    fn begin(namespace: &Namespace) -> Self {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (stop, made, namespace) = (Arc::clone(&stop), Arc::clone(&made), namespace.name().to_owned());
            std::thread::spawn(move || flow(&namespace, &stop, &made))
        };
        Self { stop, made, thread: Some(thread) }
    }

    fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Waits until a few more batches have come through.
    fn goes_on(&self, when: &str) {
        let before = self.made();
        eventually(&format!("pods are made {when}"), || {
            (self.made() > before + 3 * BATCH as u64).then_some(())
        });
    }

    /// Faults: what went wrong.
    fn end(mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The test has failed already.
            let _ = thread.join();
        }
    }
}

fn flow(namespace: &str, stop: &AtomicBool, made: &AtomicU64) -> Vec<String> {
    let batch = json!({"apiVersion": "v1", "kind": "List", "items": (0..BATCH).map(pod).collect::<Vec<_>>()});
    let words = ["--namespace", namespace, "create", "--dry-run=server", "--output=name", "--filename=-"];
    let mut wrong = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let told = kubectl_with(&words, &batch.to_string());
        made.fetch_add(told.out.lines().count() as u64, Ordering::Relaxed);
        if !told.done || told.out.lines().count() != BATCH {
            wrong.push(told.err);
        }
    }
    wrong
}

/// Every second one asks by itself, the others by the label of their namespace: these are two entries of the configuration,
/// and the API server has a connection for each. Somebody owns them, who is told of those that are made.
pub(super) fn pod(number: usize) -> Value {
    let asks = if number.is_multiple_of(2) { json!({"tensorlane.dev/inject": "enabled"}) } else { json!({}) };
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "tried", "uid": "tried", "controller": true});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{number}"), "annotations": asks, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": image("workload")}]},
    })
}

/// Makes these the authorities of the webhook, as if the operator had written them.
fn keep(authorities: &[&Authority]) {
    let kept = json!({"authorities": authorities}).to_string();
    let patch = json!({"stringData": {SECRET_KEY: kept}}).to_string();
    let patch = format!("--patch={patch}");
    succeeds(&["kubectl", "--namespace", SYSTEM, "patch", "secret", SECRET, "--type=merge", &patch]);
}

/// Waits until the API server trusts these authorities and no other.
pub(super) fn await_bundle(authorities: &[&Authority]) {
    let wanted: String = authorities.iter().map(|authority| authority.certificate.as_str()).collect();
    let read = "--output=go-template={{range .webhooks}}{{.clientConfig.caBundle | base64decode}}|{{end}}";
    let words = ["kubectl", "get", "mutatingwebhookconfiguration", "tensorlane", read];
    eventually("the bundle is applied", || {
        succeeds(&words).split_terminator('|').all(|bundle| bundle == wanted).then_some(())
    });
}

/// Waits until every replica shows a certificate of this authority.
pub(super) fn await_signer(authority: &Authority) {
    let said = format!("\"authority\":{}", authority.made);
    eventually("every replica has a certificate of the new authority", || {
        let replicas = pods(SYSTEM, REPLICAS);
        let shows = |pod: &String| succeeds(&["kubectl", "--namespace", SYSTEM, "logs", pod]).contains(&said);
        (replicas.len() == 2 && replicas.iter().all(shows)).then_some(())
    });
}

#[test]
fn certificates_rotate_and_the_operator_restarts_and_no_pod_is_refused() {
    install();
    let namespace = Namespace::new();
    namespace.kubectl(&["label", "namespace", namespace.name(), "tensorlane.dev/inject=enabled"]);
    // An authority that has signed for an hour already.
    let old = Authority::make(now() - 2 * SIGN_AFTER_SECONDS).unwrap();
    keep(&[&old]);
    await_bundle(&[&old]);
    await_signer(&old);
    for number in 0..2 {
        eventually("pods are made", || {
            try_create(namespace.name(), &pod(number).to_string()).done.then_some(())
        });
    }
    let stream = Stream::begin(&namespace);
    stream.goes_on("before anything happens");

    let new = Authority::make(now() + RIPENS - SIGN_AFTER_SECONDS).unwrap();
    keep(&[&old, &new]);
    await_bundle(&[&old, &new]);
    await_signer(&new);
    stream.goes_on("under the new authority");
    // A week later in life.
    keep(&[&new]);
    await_bundle(&[&new]);
    stream.goes_on("after the old authority has gone");

    let before = pods(SYSTEM, REPLICAS);
    succeeds(&["kubectl", "--namespace", SYSTEM, "rollout", "restart", OPERATOR]);
    await_operator();
    let replicas = eventually("the former replicas have ended", || {
        let now = pods(SYSTEM, REPLICAS);
        (now.len() == 2 && !now.iter().any(|pod| before.contains(pod))).then_some(now)
    });
    // A connection is told to go away after half a minute, and the next one finds one of both.
    eventually("both replicas answer calls", || {
        let answers = |pod: &String| {
            let text = metrics(SYSTEM, pod);
            let series = "tensorlane_operator_injections_total{";
            text.contains(series)
                && metric(&text, series.trim_end_matches('{'), &["result=\"injected\""]) > 0.0
        };
        replicas.iter().all(answers).then_some(())
    });
    let made = stream.made();
    let wrong = stream.end();
    assert!(wrong.is_empty(), "{} of {made} calls: {}", wrong.len(), wrong.join("\n"));
    let left = namespace.reads(&["get", "tex,txp,events.events.k8s.io", "--output=name"]);
    assert_eq!(left, "", "tries have left something behind");
    println!("{made} pods were made, and none was refused");
}
