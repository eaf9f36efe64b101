//! What a test takes away from the cluster for a while. It comes back when the guard is dropped, also where a test fails.

use crate::cluster::{cluster, eventually, items, succeeds};

/// Services of the cluster that are dead.
#[derive(Debug)]
pub struct Outage {
    dead: Vec<String>,
}

/// A link that is cut or slow.
#[derive(Debug)]
pub struct BadLink {
    node: String,
}

impl Outage {
    /// Kills services, such as `apiserver` or `node2.kubelet`.
    ///
    /// # Panics
    /// Where there is no such service.
    pub fn of(services: &[&str]) -> Self {
        let outage = Self { dead: services.iter().map(|name| (*name).to_owned()).collect() };
        succeeds(&[&["stop"], services].concat());
        outage
    }

    /// Starts one of them again, and waits until Kubernetes answers.
    ///
    /// # Panics
    /// Where that does not come about.
    pub fn end(&mut self, service: &str) {
        self.dead.retain(|dead| dead != service);
        succeeds(&["start", service]);
        eventually("the API server is ready", || {
            cluster(&["kubectl", "get", "--raw", "/readyz"]).status.success().then_some(())
        });
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        for service in std::mem::take(&mut self.dead) {
            // Nothing better can be done here; a test that needs it will say so.
            let _ = cluster(&["start", &service]);
        }
        if std::thread::panicking() {
            // What the test has to say about itself comes from the API server. It may be back or not.
            let _ = cluster(&["kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s"]);
        }
    }
}

impl BadLink {
    /// Nothing reaches the node and nothing leaves it, and its interface does not know.
    ///
    /// # Panics
    /// Where there is no such node.
    pub fn cut(node: &str) -> Self {
        let link = Self { node: node.to_owned() };
        succeeds(&["cut", node]);
        link
    }

    /// What is sent to the node comes at so many Mbit/s.
    ///
    /// # Panics
    /// Where there is no such node.
    pub fn slow(node: &str, mbit: u32) -> Self {
        let link = Self { node: node.to_owned() };
        succeeds(&["slow", node, &mbit.to_string()]);
        link
    }
}

impl Drop for BadLink {
    fn drop(&mut self) {
        // Nothing better can be done here; a test that needs it will say so.
        let _ = cluster(&["mend", &self.node]);
    }
}

/// When each node was last heard of: what its kubelet renews every few seconds.
///
/// # Panics
/// Where the API server does not answer.
pub fn heard_of_nodes() -> Vec<String> {
    let leases = succeeds(&["kubectl", "--namespace", "kube-node-lease", "get", "leases", "--output=json"]);
    let time = |lease: &serde_json::Value| lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned();
    items(&leases).iter().map(time).collect()
}
