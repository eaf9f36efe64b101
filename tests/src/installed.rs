//! Tensorlane on the test cluster, installed once for all tests of a suite, and exchanges to test with.
//!
//! Needs `cargo xtask cluster up` and the images `operator`, `sidecar` and `workload` on the nodes. What a test makes is
//! in namespaces of its own, which go with it. The installation stays for the next suite and goes with the cluster.

use std::ops::Deref;
use std::sync::OnceLock;

use serde_json::Value;

use crate::chart::{self, injects};
use crate::cluster::{Namespace, PATIENCE, cluster, eventually, items, show, succeeds};
use crate::http::metric;
use crate::kubernetes::try_metrics;

pub use crate::chart::{OPERATOR, SYSTEM};

/// Amount of a log that is shown when a test has failed.
const TAIL: &str = "--tail=60";

/// A namespace with the exchange `default`, in a cluster where Tensorlane is installed. Where a test fails, it says what
/// its pods, the sidecars and the operator have to say.
#[derive(Debug)]
pub struct Exchange {
    namespace: Namespace,
}

/// Sees to it that Tensorlane is installed and serves.
///
/// # Panics
/// Where the cluster is not up, or the operator does not come up.
pub fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        chart::install(&[], PATIENCE);
    });
}

/// Waits until every replica of the operator is ready and the webhook serves: a pod that is only tried gets a sidecar.
///
/// # Panics
/// Where that does not come about; says what the operator says.
pub fn await_operator() {
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    let rolled = cluster(&["kubectl", "--namespace", SYSTEM, "rollout", "status", OPERATOR, &timeout]);
    if !rolled.status.success() {
        chart::report();
        panic!("the operator does not come up: {}", String::from_utf8_lossy(&rolled.stderr));
    }
    // An endpoint is known a moment after it is ready.
    eventually("the webhook serves", || injects("default").then_some(()));
}

impl Exchange {
    /// A new one, in a new namespace.
    ///
    /// # Panics
    /// Where Tensorlane cannot be installed.
    pub fn new() -> Self {
        Self::with("{}")
    }

    /// A new one with this `spec`, in YAML.
    ///
    /// # Panics
    /// Where Tensorlane cannot be installed, or the API server refuses the exchange.
    pub fn with(spec: &str) -> Self {
        install();
        let exchange = Self { namespace: Namespace::new() };
        exchange.apply(&format!(
            "{{apiVersion: tensorlane.dev/v1alpha1, kind: TensorExchange, metadata: {{name: default}}, spec: {spec}}}"
        ));
        exchange
    }

    /// Peers of the exchange, as `kubectl get txp` has them.
    pub fn peers(&self) -> Vec<Value> {
        items(&self.reads(&["get", "txp", "--output", "json"]))
    }

    /// Waits until a peer is ready; its sidecar knows the others by then.
    ///
    /// # Panics
    /// Where that does not come about.
    pub fn await_peer(&self, name: &str) {
        eventually(&format!("the peer {name} is ready"), || {
            let peer = self.try_kubectl(&["get", &format!("txp/{name}"), "--output", "json"])?;
            let peer = serde_json::from_str(&peer).expect("kubectl writes JSON");
            condition(&peer, "Ready").is("True").then_some(())
        });
    }

    /// Waits until there are so many peers, no more, all are ready, and the sidecar of each knows as many; gives them.
    ///
    /// # Panics
    /// Where that does not come about.
    pub fn await_peers(&self, count: usize) -> Vec<Value> {
        let peers = eventually(&format!("{count} peers are ready"), || {
            let listed = self.try_kubectl(&["get", "txp", "--output", "json"])?;
            let peers = items(&listed);
            let all = peers.len() == count && peers.iter().all(|peer| condition(peer, "Ready").is("True"));
            all.then_some(peers)
        });
        // Who is written down last is known to the others a moment later.
        for name in peers.iter().filter_map(|peer| peer["metadata"]["name"].as_str()) {
            eventually(&format!("{name} knows {count} peers"), || {
                let listed =
                    metric(&try_metrics(self.name(), name)?, "tensorlane_directory_listed_peers", &[]);
                (listed >= count as f64).then_some(())
            });
        }
        peers
    }

    /// The names of the pods with a label such as `app=x`, those that are being deleted left out.
    pub fn pods(&self, label: &str) -> Vec<Value> {
        let mut pods = items(&self.reads(&["get", "pods", "--selector", label, "--output", "json"]));
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Exchange {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if std::thread::panicking() {
            report(self.name());
            chart::report();
        }
    }
}

/// A condition of an object; null where it has none of that type.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition(pub Value);

/// A condition of an object.
pub fn condition(object: &Value, kind: &str) -> Condition {
    let all = object["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|condition| condition["type"] == kind);
    Condition(found.cloned().unwrap_or_default())
}

impl Condition {
    /// Returns whether its status is this.
    pub fn is(&self, status: &str) -> bool {
        self.0["status"] == status
    }

    /// Reason of the condition, empty if there is none.
    pub fn reason(&self) -> &str {
        self.0["reason"].as_str().unwrap_or_default()
    }
}

/// Says what is known of a namespace.
fn report(namespace: &str) {
    let here = ["kubectl", "--namespace", namespace];
    show(&here, &["get", "pods,txp,tex", "--output=wide"]);
    show(&here, &["get", "events", "--sort-by=.lastTimestamp"]);
    let sidecars =
        ["logs", "--selector=tensorlane.dev/injected=true", "--container=tensorlane", "--prefix", TAIL];
    show(&here, &sidecars);
}

/// Scales the operator, and waits until as many replicas are there.
///
/// # Panics
/// Where that does not come about.
pub fn scale_operator(replicas: u32) {
    let wanted = format!("--replicas={replicas}");
    succeeds(&["kubectl", "--namespace", SYSTEM, "scale", OPERATOR, &wanted]);
    eventually(&format!("{replicas} replicas of the operator"), || {
        let pods = items(&succeeds(&["kubectl", "--namespace", SYSTEM, "get", "pods", "--output=json"]));
        (pods.len() == replicas as usize).then_some(())
    });
    if replicas > 0 {
        await_operator();
    }
}
