//! Things that a test takes away from the cluster for a while. It comes back when the guard is dropped, also where a
//! test fails.

use std::process::{Command, Output};

use serde_json::Value;

use crate::cluster::{cluster, eventually, reads, succeeds};
use crate::pod::{container_status, first_process};

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

/// A port of pods at which nothing arrives any more, as behind a firewall that drops packets. Their other ports are in reach.
#[derive(Debug)]
pub struct LostPackets {
    /// A process in the network of each pod.
    inside: Vec<u32>,
}

impl Outage {
    /// Kills services, such as `apiserver` or `node2.kubelet`.
    ///
    /// # Panics
    /// Where there is no such service.
    pub fn of(services: &[&str]) -> Self {
        let mut outage = Self { dead: Vec::new() };
        outage.take(services);
        outage
    }

    /// Kills more services.
    ///
    /// # Panics
    /// Where there is no such service.
    pub fn take(&mut self, services: &[&str]) {
        self.dead.extend(services.iter().map(|name| (*name).to_owned()));
        succeeds(&[&["stop"], services].concat());
    }

    /// Starts one of them again, and waits until it does its work.
    ///
    /// # Panics
    /// Where that does not come about.
    pub fn end(&mut self, service: &str) {
        self.dead.retain(|dead| dead != service);
        let before = node_of(service).map(heard_of);
        eventually(&format!("{service} does its work"), || {
            // A kubelet that finds no containerd ends; it is started until one stays.
            succeeds(&["start", service]);
            let answers = cluster(&["kubectl", "get", "--raw", "/readyz"]).status.success();
            let heard = answers && node_of(service).map(heard_of) != before;
            (answers && (heard || before.is_none())).then_some(())
        });
    }
}

/// The node whose kubelet a service is.
fn node_of(service: &str) -> Option<&str> {
    service.strip_suffix(".kubelet")
}

impl Drop for Outage {
    fn drop(&mut self) {
        // In the order in which they need each other. Nothing better can be done here where it fails.
        self.dead.sort_by_key(|service| node_of(service).is_some());
        for service in &self.dead {
            let _ = cluster(&["start", service]);
        }
        if std::thread::panicking() {
            // What the test has to say about itself comes from the API server. This also starts a kubelet again that came
            // before its containerd.
            let _ = cluster(&["up"]);
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

    /// Slows what is sent to the node to so many Mbit/s.
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

/// Table of rules that drop packets.
const LOST: &str = "lost";

impl LostPackets {
    /// Drops what comes to a port of pods by TCP, also of connections that are there already. Each pod has a container of this
    /// name that runs.
    ///
    /// # Panics
    /// Where one does not run, or `nft` refuses.
    pub fn to(namespace: &str, pods: &[String], container: &str, port: u16) -> Self {
        let process = |pod: &String| {
            let words = ["kubectl", "--namespace", namespace, "get", "pod", pod, "--output=json"];
            let pod: Value = serde_json::from_str(&reads(&words)).expect("kubectl writes JSON");
            first_process(&container_status(&pod, container)).expect("the container runs")
        };
        let lost = Self { inside: pods.iter().map(process).collect() };
        let chain = "in { type filter hook input priority 0; }";
        for process in &lost.inside {
            nft(*process, &format!("add table inet {LOST}"));
            nft(*process, &format!("add chain inet {LOST} {chain}"));
            nft(*process, &format!("add rule inet {LOST} in tcp dport {port} drop"));
        }
        lost
    }
}

impl Drop for LostPackets {
    fn drop(&mut self) {
        for process in &self.inside {
            // A pod that is gone has taken its rules with it.
            let _ = nft_inside(*process, &format!("delete table inet {LOST}"));
        }
    }
}

/// Runs `nft` in the network of a process.
fn nft(process: u32, words: &str) {
    let output = nft_inside(process, words).expect("util-linux and nftables are installed");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {words}: {}", told.trim());
}

fn nft_inside(process: u32, words: &str) -> std::io::Result<Output> {
    Command::new("nsenter").args(["--target", &process.to_string(), "--net", "nft", words]).output()
}

/// Time at which a node was last heard of: what its kubelet renews every few seconds.
///
/// # Panics
/// Where the API server does not answer.
pub fn heard_of(node: &str) -> String {
    let lease = reads(&["kubectl", "--namespace=kube-node-lease", "get", "lease", node, "--output=json"]);
    let lease: Value = serde_json::from_str(&lease).expect("kubectl writes JSON");
    lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned()
}
