//! Questions that a suite asks of the cluster besides applying and waiting: what kubectl said to whoever made an
//! object, Events, what a pod may do with its own token, the metrics of a pod, and what its containers take.

use std::time::Instant;

use serde_json::Value;

use crate::cluster::{PATIENCE, cluster, cluster_with, is_for_a_moment, items, reads, succeeds};

mod container;

pub use container::Container;

/// End of a command.
#[derive(Debug, Clone)]
pub struct Told {
    /// Set if it succeeded.
    pub done: bool,
    /// Standard output of the command.
    pub out: String,
    /// Standard error of the command: warnings and refusals.
    pub err: String,
}

impl Told {
    fn of(output: std::process::Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { done: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The object that was printed as JSON.
    ///
    /// # Panics
    /// Where the command failed.
    #[track_caller]
    pub fn object(&self) -> Value {
        assert!(self.done, "{}", self.err);
        serde_json::from_str(&self.out).expect("JSON")
    }

    /// Words of the API server in refusing it.
    ///
    /// # Panics
    /// Where the command succeeded.
    #[track_caller]
    pub fn refusal(&self) -> &str {
        assert!(!self.done, "it was taken: {}", self.out);
        &self.err
    }
}

/// Runs kubectl with this input.
///
/// # Panics
/// Where it does not start.
pub fn kubectl_with(words: &[&str], input: &str) -> Told {
    Told::of(cluster_with(&[&["kubectl"], words].concat(), input.as_bytes()))
}

/// Makes an object, and prints it.
pub fn create(namespace: &str, manifest: &str) -> Told {
    makes(&["--namespace", namespace, "create", "--output=json", "--filename=-"], manifest)
}

/// Tries making an object: everything is asked that would be, and nothing is kept.
pub fn try_create(namespace: &str, manifest: &str) -> Told {
    let words = ["--namespace", namespace, "create", "--dry-run=server", "--output=json", "--filename=-"];
    makes(&words, manifest)
}

/// Runs kubectl with this input, again where an object was refused for want of an answer in time: it was not made then.
fn makes(words: &[&str], manifest: &str) -> Told {
    let mut told = kubectl_with(words, manifest);
    let deadline = Instant::now() + PATIENCE;
    while !told.done && is_for_a_moment(&told.err) && Instant::now() < deadline {
        told = kubectl_with(words, manifest);
    }
    told
}

/// The Events of a namespace.
///
/// # Panics
/// Where they cannot be read.
pub fn events(namespace: &str) -> Vec<Value> {
    let said = reads(&["kubectl", "--namespace", namespace, "get", "events.events.k8s.io", "--output=json"]);
    items(&said)
}

/// The sentence of an Event with this reason about this object.
pub fn event(namespace: &str, kind: &str, name: &str, reason: &str) -> Option<String> {
    let all = events(namespace);
    let found = all.iter().find(|event| {
        event["regarding"]["kind"] == kind
            && event["regarding"]["name"].as_str().is_some_and(|found| found.starts_with(name))
            && event["reason"] == reason
    })?;
    found["note"].as_str().map(str::to_owned)
}

/// A token as a pod gets one: of its service account, and good while this very pod lives.
///
/// # Panics
/// Where the pod is not there.
pub fn token_of_pod(namespace: &str, pod: &str) -> String {
    let bound = ["--bound-object-kind=Pod", &format!("--bound-object-name={pod}")];
    let words = [&["kubectl", "--namespace", namespace, "create", "token", "default"], &bound[..]].concat();
    succeeds(&words).trim().to_owned()
}

/// Runs kubectl with a token and with nothing that makes it an administrator.
///
/// # Panics
/// Where it does not start.
pub fn kubectl_as(token: &str, words: &[&str], input: &str) -> Told {
    let view = |path: &str| {
        let output = format!("--output=jsonpath={{.clusters[0].cluster.{path}}}");
        succeeds(&["kubectl", "config", "view", "--raw", "--minify", &output])
    };
    let nobody = [
        "--kubeconfig=/dev/null".to_owned(),
        format!("--server={}", view("server")),
        format!("--certificate-authority={}", view("certificate-authority")),
        format!("--token={token}"),
    ];
    let nobody: Vec<&str> = nobody.iter().map(String::as_str).collect();
    kubectl_with(&[&nobody[..], words].concat(), input)
}

/// The metrics of a pod at its port 9420, which the API server fetches.
///
/// # Panics
/// Where nobody answers there.
pub fn metrics(namespace: &str, pod: &str) -> String {
    reads(&["kubectl", "get", "--raw", &metrics_of(namespace, pod)])
}

/// The metrics of a pod, if anybody answers there now.
pub fn try_metrics(namespace: &str, pod: &str) -> Option<String> {
    let output = cluster(&["kubectl", "get", "--raw", &metrics_of(namespace, pod)]);
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn metrics_of(namespace: &str, pod: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{pod}:9420/proxy/metrics")
}

/// The metrics of the API server itself.
///
/// # Panics
/// Where it is away.
pub fn metrics_of_the_api_server() -> String {
    reads(&["kubectl", "get", "--raw", "/metrics"])
}

/// The names of the pods that a selector of labels finds, those that are being deleted left out.
///
/// # Panics
/// Where they cannot be listed.
pub fn pods(namespace: &str, selector: &str) -> Vec<String> {
    let words = ["kubectl", "--namespace", namespace, "get", "pods", "--selector", selector, "--output=json"];
    let pods = items(&reads(&words)).into_iter().map(|mut pod| pod["metadata"].take());
    let living = pods.filter(|about| about["deletionTimestamp"].is_null());
    living.filter_map(|about| about["name"].as_str().map(str::to_owned)).collect()
}

/// Returns whether kubectl with these words succeeds.
pub fn works(words: &[&str]) -> bool {
    cluster(&[&["kubectl"], words].concat()).status.success()
}
