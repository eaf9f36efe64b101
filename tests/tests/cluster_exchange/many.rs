//! A thousand peers: what sidecar and operator take then, and how soon one more is seen by all. Needs `cargo xtask cluster
//! up` and the images on the nodes.

use std::cell::Cell;
use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorlane_tests::cluster::eventually;
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::{Exchange, SYSTEM};
use tensorlane_tests::kubernetes::{Container, kubectl_with, metrics, pods};
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR};
use tensorlane_tests::standstill::where_the_machine_runs_on;

use super::TURNS;

const MI: u64 = 1 << 20;

/// Peers that are made by hand.
const MANY: usize = 1000;

/// The most bytes of a sidecar beside its arena.
const SIDECAR_MOST: u64 = 64 * MI;

/// The most bytes of the operator.
const OPERATOR_MOST: u64 = 200 * MI;

/// The most of one processor that either takes once nothing changes any more.
const PROCESSOR_MOST: f64 = 0.05;

/// Time for which that is looked at: long enough for every timer of either to come round.
const WINDOW: Duration = Duration::from_secs(20);

/// Longest time until a further peer is known to all, in seconds, from the moment that kubectl is told to write it.
const SEEN_WITHIN: f64 = 2.0;

/// Number of further ones that are made to find that out. A machine that is busy with something else delays some of
/// them, never all; one that stands still does that, too, and they are made again.
const MORE: usize = 5;

/// Length of each look until they have come to rest.
const GLANCE: Duration = Duration::from_secs(4);

/// User that may write the status of any peer.
const OPERATOR: &str = "--as=system:serviceaccount:tensorlane-system:tensorlane-operator";

fn peer(number: usize) -> Value {
    json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": format!("made-{number}")},
        "spec": {"exchange": "default", "podUID": format!("made-{number}"), "node": "node1"},
    })
}

/// Status that a sidecar would write there. Nobody listens at the address, and fingerprints are spread as real ones
/// are: half of the peers are dialed by any other one.
fn status(number: usize) -> Value {
    let mut peer = peer(number);
    peer.as_object_mut().unwrap().remove("spec");
    let digits = format!("{:016x}", (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).repeat(4);
    peer["status"] = json!({
        "incarnation": format!("{number:032x}"), "fingerprints": [format!("sha256:{digits}")],
        "addresses": [format!("198.18.{}.{}:9421", 64 + number / 250, number % 250)],
        "offer": {"versionMin": 1, "versionMax": 1, "transports": [{"transport": "tcp"}]},
    });
    peer
}

/// Does this with many objects, with a few kubectls at the same time.
fn send(namespace: &str, words: &[&str], objects: &[Value]) {
    std::thread::scope(|scope| {
        for chunk in objects.chunks(objects.len().div_ceil(4)) {
            scope.spawn(move || {
                let list = json!({"apiVersion": "v1", "kind": "List", "items": chunk}).to_string();
                let told =
                    kubectl_with(&[&["--namespace", namespace, "--output=name"], words].concat(), &list);
                assert!(told.done, "{}", told.err);
            });
        }
    });
}

fn make(exchange: &Exchange, numbers: Range<usize>) {
    let objects: Vec<_> = numbers.map(peer).collect();
    send(exchange.name(), &["create", "--filename=-"], &objects);
}

/// Writes what their sidecars would say; from then on they are listed.
fn publish(exchange: &Exchange, numbers: Range<usize>) {
    let statuses: Vec<_> = numbers.map(status).collect();
    let apply = [
        "apply",
        "--server-side",
        "--validate=false",
        "--subresource=status",
        "--field-manager=test",
        OPERATOR,
        "--filename=-",
    ];
    send(exchange.name(), &apply, &statuses);
}

/// Seconds since the machine started, by the clock that its pods have as well.
fn uptime(said: &str) -> f64 {
    said.split_whitespace().next().and_then(|word| word.parse().ok()).expect("seconds")
}

/// Seconds from telling kubectl to write what one more peer says until the last of these pods knows it. They look all the
/// time; who begins to look late sees it late.
fn seen_by_all(exchange: &Exchange, pods: &[&str], number: usize) -> f64 {
    make(exchange, number..number + 1);
    let look = format!(
        "timeout 60 sh -c 'until tensorlane peers | grep -q \"^made-{number} \"; do sleep 0.1; done; cat /proc/uptime'"
    );
    std::thread::scope(|scope| {
        let look = &look;
        let looks: Vec<_> =
            pods.iter().map(|pod| scope.spawn(move || uptime(&exchange.shell(pod, "main", look)))).collect();
        let asked = uptime(&fs::read_to_string("/proc/uptime").unwrap());
        publish(exchange, number..number + 1);
        looks.into_iter().map(|look| look.join().unwrap() - asked).fold(f64::MIN, f64::max)
    })
}

/// Number of peers that a pod's sidecar knows.
fn known(exchange: &Exchange, pod: &str) -> usize {
    metric(&metrics(exchange.name(), pod), "tensorlane_directory_listed_peers", &[]) as usize
}

fn all_know(exchange: &Exchange, pods: &[Pod<'_>], count: usize) {
    for pod in pods {
        let what = format!("{} knows {count} peers", pod.name());
        eventually(&what, || (known(exchange, pod.name()) == count).then_some(()));
    }
}

/// Bytes of a sidecar beside its arena.
fn beside_the_arena(exchange: &Exchange, pod: &str, container: &Container) -> u64 {
    let populated = metric(&metrics(exchange.name(), pod), "tensorlane_arena_populated_bytes", &[]) as u64;
    container.memory().saturating_sub(populated)
}

/// The part of one processor that each of these takes over a window: processor time by the time that passed, so that a
/// machine which is busy with something else changes little.
fn taken(containers: &[&Container], window: Duration) -> Vec<f64> {
    let before: Vec<_> = containers.iter().map(|container| container.processor_time()).collect();
    let began = Instant::now();
    // The time itself is what is measured.
    std::thread::sleep(window);
    let over = began.elapsed().as_secs_f64();
    let took = containers.iter().zip(before).map(|(container, before)| container.processor_time() - before);
    took.map(|took| took.as_secs_f64() / over).collect()
}

/// Waits until they come to rest, and then looks: what they take in that window is what they take at rest. Up to three times, for whoever
/// takes the processor away takes it out of caches, too, and that is counted as theirs.
fn settled(containers: &[&Container]) -> Vec<f64> {
    let is_rest = |parts: &[f64]| parts.iter().all(|part| *part < PROCESSOR_MOST);
    eventually("they come to rest", || {
        let parts = taken(containers, GLANCE);
        println!("of a processor: {parts:.3?}");
        is_rest(&parts).then_some(())
    });
    let mut parts = taken(containers, WINDOW);
    for _ in 0..2 {
        if !is_rest(&parts) {
            println!("of a processor, and once more: {parts:.3?}");
            parts = taken(containers, WINDOW);
        }
    }
    parts
}

#[test]
fn a_thousand_peers_cost_little_and_one_more_is_seen_by_all_in_two_seconds() {
    let _turn = TURNS.alone();
    let exchange = Exchange::new();
    let options = |node| PodOptions::on(node).annotated("arena-size", "32Mi");
    let mut members = ["node1", "node2"].map(|node| Pod::make(&exchange, node, &options(node)));
    members.iter_mut().for_each(Pod::await_session);
    exchange.await_peers(members.len());
    let sidecars = members.each_ref().map(|pod| Container::of(exchange.name(), pod.name(), SIDECAR));
    let replicas = pods(SYSTEM, "app.kubernetes.io/component=operator");
    let operators: Vec<_> = replicas.iter().map(|pod| Container::of(SYSTEM, pod, "operator")).collect();
    let (first, began) = (beside_the_arena(&exchange, members[0].name(), &sidecars[0]), Instant::now());

    make(&exchange, 0..MANY);
    publish(&exchange, 0..MANY);
    all_know(&exchange, &members, MANY + members.len());
    println!("{MANY} peers are made and known after {:.1} s", began.elapsed().as_secs_f64());

    let names = members.each_ref().map(Pod::name);
    let made = Cell::new(MANY);
    where_the_machine_runs_on(|| {
        let seen = [(); MORE].map(|()| seen_by_all(&exchange, &names, made.replace(made.get() + 1)));
        println!("one more is seen by all after these seconds: {seen:.2?}");
        assert!(seen.iter().any(|seconds| *seconds < SEEN_WITHIN), "{seen:.2?}");
    });
    all_know(&exchange, &members, made.get() + members.len());

    let all: Vec<&Container> = sidecars.iter().chain(&operators).collect();
    let parts = settled(&all);
    assert!(parts.iter().all(|part| *part < PROCESSOR_MOST), "at rest they take {parts:.3?} of a processor");
    for (member, (sidecar, part)) in members.iter().zip(sidecars.iter().zip(&parts)) {
        let bytes = beside_the_arena(&exchange, member.name(), sidecar);
        println!(
            "sidecar: {} MiB beside its arena ({} before), {:.1} % of a processor",
            bytes / MI,
            first / MI,
            part * 100.0
        );
        assert!(bytes <= SIDECAR_MOST, "{bytes} bytes beside the arena");
    }
    for (operator, part) in operators.iter().zip(&parts[sidecars.len()..]) {
        let bytes = operator.memory();
        println!("operator: {} MiB, {:.1} % of a processor", bytes / MI, part * 100.0);
        assert!(bytes <= OPERATOR_MOST, "{bytes} bytes");
    }
}
