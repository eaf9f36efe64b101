//! All nodes go down with everything that runs on them, and come back. Needs `cargo xtask cluster up` and the images
//! `operator`, `sidecar` and `workload` on the nodes.

use std::time::{Duration, Instant};

use serde_json::Value;
use tensorlane_tests::asked::{Answer, kubectl_tensorlane, tensorlane_in};
use tensorlane_tests::cluster::{NODES, eventually, items, reads, within};
use tensorlane_tests::installed::{Exchange, await_operator, condition};
use tensorlane_tests::kubernetes::works;
use tensorlane_tests::outage::Outage;
use tensorlane_tests::pod::{Pod, PodOptions};

use super::outages::round;

const MIB: u64 = 1 << 20;

/// Longest time from the return of sidecars and operator until no status tells of what was before.
const HEALED: Duration = Duration::from_secs(120);

/// The object of the peer of a pod.
fn peer(exchange: &Exchange, pod: &Pod<'_>) -> Value {
    exchange.get(&format!("txp/{}", pod.name()))
}

/// Returns whether a peer is told of as it is now: ready, in another incarnation, at the address that its pod has now.
fn is_told_anew(exchange: &Exchange, pod: &Pod<'_>, old: &Value) -> bool {
    let (peer, object) = (peer(exchange, pod), pod.object());
    let (status, ip) = (&peer["status"], &object["status"]["podIP"]);
    let address = status["addresses"][0].as_str().unwrap_or_default();
    let is_there = ip.as_str().is_some_and(|ip| address.starts_with(&format!("{ip}:")));
    is_there && status["incarnation"] != old["status"]["incarnation"] && condition(&peer, "Ready").is("True")
}

/// Waits until Kubernetes has taken every node for lost.
fn await_lost_nodes() {
    eventually("all nodes are taken for lost", || {
        let nodes = items(&reads(&["kubectl", "get", "nodes", "--output=json"]));
        nodes.iter().all(|node| condition(node, "Ready").is("Unknown")).then_some(())
    });
}

/// Kubelets, containerd, sidecars, workloads and the operator end by SIGKILL, with no warning and at the same time. Pods are the
/// same ones afterwards: nobody has made them again.
#[test]
fn an_exchange_whose_nodes_were_all_down_works_again_and_no_status_tells_of_what_was_before() {
    let exchange = Exchange::new();
    let mut one = Pod::start(&exchange, "one", &PodOptions::on(NODES[0]));
    let mut far = Pod::start(&exchange, "far", &PodOptions::on(NODES[1]));
    exchange.await_peers(2);
    round(&mut one, &mut far);
    let reference = far.ask(&format!("store {MIB} 77"), "stored");
    far.put("kept", MIB, 78);
    let [near_before, far_before] = [&one, &far].map(|pod| peer(&exchange, pod));

    let mut dead = Outage::of_nodes(&NODES);
    await_lost_nodes();
    dead.end_all();
    one.await_session();
    far.await_session();
    await_operator();
    let began = Instant::now();
    let healed = within(HEALED, || {
        let is_told =
            is_told_anew(&exchange, &one, &near_before) && is_told_anew(&exchange, &far, &far_before);
        (is_told && exchange.get("tex/default")["status"]["readyPeers"] == 2).then(|| began.elapsed())
    });
    let took = healed.unwrap_or_else(|| {
        let told = [&one, &far].map(|pod| peer(&exchange, pod)["status"].to_string());
        panic!("something old is told after {HEALED:?}: {told:#?}")
    });
    println!("nothing old was told {took:.1?} after sidecars and operator were back");
    exchange.await_peers(2);
    for (pod, before) in [(&one, &near_before), (&far, &far_before)] {
        assert_eq!(peer(&exchange, pod)["spec"]["podUID"], before["spec"]["podUID"]);
    }

    for pod in ["one", "far"] {
        let connected = ["connected"];
        let ask = || tensorlane_in(exchange.name(), pod, &["peers"]);
        Answer::first(|answer| answer.is(0, &connected), ask).says(0, &connected);
    }
    round(&mut one, &mut far);
    for pod in [&mut one, &mut far] {
        assert_eq!(pod.ask(&format!("read 20 {reference}"), "error"), "OWNER_LOST");
        assert_eq!(pod.ask("read 20 kept", "error"), "NOT_FOUND");
    }
    far.put("kept", MIB, 79);
    assert_eq!(one.ask("read 20 kept", "read"), "tcp");
    let mut new = Pod::start(&exchange, "new", &PodOptions::on(NODES[1]));
    exchange.await_peers(3);
    round(&mut one, &mut new);

    let check = || kubectl_tensorlane(exchange.name(), &["check"]);
    Answer::first(|answer| answer.is(0, &[]), check).says(0, &[]);
    // Suites that come after this one ask it.
    let rollout = ["--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=2s"];
    eventually("the name server is back", || works(&rollout).then_some(()));
}
