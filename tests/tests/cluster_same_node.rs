//! Pods of one node that share memory, on a real cluster: the directory comes from a DaemonSet and a claim as the chart makes
//! them. Needs `cargo xtask cluster up` and the images `operator`, `sidecar` and `workload` on the nodes.

use serde_json::Value;
use tensorlane_tests::chart::{RELEASE, folder};
use tensorlane_tests::cluster::{NODES, Namespace, cluster, eventually, image, succeeds, succeeds_with};
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::metrics;
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR};

const MIB: u64 = 1 << 20;

/// Bounds of the file system of an exchange on a node, in whose directory its sidecars find each other.
const BYTES: u64 = MIB;
const FILES: u64 = 32;

/// Path at which a sidecar sees the directory of its node.
const NODE_DIRECTORY: &str = "/run/tensorlane-node";

/// The directory of an exchange on every node, and the volume and the claim that stand for it, as the chart makes them. The
/// volume goes with this.
struct Directories {
    // A release of its own would be in the way of the one that is installed, so its part is made alone, elsewhere: the
    // DaemonSet mounts the host's file system, which the namespace of the exchange need not allow.
    makers: Namespace,
    volume: String,
}

impl Directories {
    fn of(exchange: &Exchange) -> Self {
        let (makers, name) = (Namespace::new(), exchange.name());
        let this = Self { volume: format!("tensorlane-{name}-default"), makers };
        let listed = [("namespace", name), ("name", "default"), ("claim", "true")];
        let listed = listed.map(|(key, value)| format!("--set=sameNode.exchanges[0].{key}={value}"));
        let operator = image("operator");
        let (repository, _) = operator.rsplit_once(':').expect("an image has a tag");
        let from = format!("--set=image.repository={repository}");
        let bounds = format!("--set=sameNode.bytes={}Mi,sameNode.files={FILES}", BYTES / MIB);
        let settings = [&from, &bounds, &listed[0], &listed[1], &listed[2]].map(String::as_str);
        let chart = folder().display().to_string();
        let template = ["helm", "--namespace", this.makers.name(), "template", RELEASE, &chart];
        // The oldest Kubernetes that the chart takes; nothing of this part depends on it.
        let part = ["--show-only=templates/samenode.yaml", "--kube-version=1.33.0"];
        let made = succeeds(&[&template[..], &part, &settings].concat());
        // Each object says where it belongs.
        succeeds_with(&["kubectl", "apply", "--filename=-"], &made);
        this.makers.kubectl(&["rollout", "status", "daemonset/tensorlane-node", "--timeout=120s"]);
        this
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        // The claim keeps it until its namespace is gone; that it is marked is enough.
        let _ = cluster(&["kubectl", "delete", "pv", &self.volume, "--wait=false"]);
    }
}

#[test]
fn two_pods_of_a_node_map_the_same_pages_and_one_of_another_node_gets_bytes() {
    let exchange = Exchange::with("{sameNode: claim}");
    let _directories = Directories::of(&exchange);
    let [mut owner, mut same, mut other] = three_pods(&exchange);
    let sockets = [&owner, &same, &other].map(|pod| pod.listed(SIDECAR, NODE_DIRECTORY));
    assert_eq!((sockets[0].len(), &sockets[0]), (2, &sockets[1]), "the two of one node see each other's");
    assert_eq!(sockets[2].len(), 1, "the third sees its own: {:?}", sockets[2]);
    assert!(!sockets[0].contains(&sockets[2][0]), "{sockets:?}");
    let reference = eventually("the other of the node maps it", || shared(&mut owner, &mut same, 8 * MIB));
    assert_eq!(other.ask(&format!("read 60 {reference}"), "read"), "tcp");
    let mut pages = |pod: &mut Pod<'_>| pod.ask(&format!("pages {reference}"), "pages");
    let mapped = [&mut owner, &mut same, &mut other].map(&mut pages);
    assert!(mapped[0] == mapped[1] && mapped[1] != mapped[2], "the pages that each maps: {mapped:?}");
    assert_eq!(same.ask(&format!("acquire {reference}"), "acquired"), "1");
    let used = |pod: &str| {
        metric(&metrics(exchange.name(), pod), "tensorlane_peer_foreign_bytes", &["state=\"used\""]) as u64
    };
    assert_eq!([used("same"), used("other")], [8 * MIB, 0]);
    let refused = |pod: &str| {
        metric(
            &metrics(exchange.name(), pod),
            "tensorlane_peer_refused_node_connections_total",
            &["reason=\"foreign_socket\""],
        )
    };
    // Whoever is alone on another node has met nobody there, and nobody was refused.
    assert_eq!(met(&exchange, "other"), 0.0);
    assert_eq!(["owner", "same", "other"].map(refused), [0.0; 3]);
    // What is elsewhere comes to the node once; again where a busy machine lets a sidecar not answer in its 500 ms, after which
    // it is not asked for 5 s.
    eventually("what is elsewhere comes to the node once", || {
        let far = other.ask(&format!("store {MIB} 2"), "stored");
        owner.tell(&format!("acquire {far}"));
        let came_once = owner.answer() == "acquired 1" && reads_by_shm(&mut same, &far);
        other.ask("drop", "dropped 1");
        came_once.then_some(())
    });
    let copies = |pod: &str| {
        metric(&metrics(exchange.name(), pod), "tensorlane_transfer_neighbour_tensors_total", &[]) as u64
    };
    assert_eq!([copies("owner"), copies("same")], [0, 1]);
    // What is mapped outlives the sidecar that gave it.
    owner.kill_sidecar();
    assert_eq!(same.ask("verify", "intact"), "1");
}

/// A pod that mounts the claim makes as many files as it can, and writes as many bytes.
#[test]
fn whoever_fills_the_directory_costs_the_exchange_its_shm_alone_and_is_told() {
    let exchange = Exchange::with("{sameNode: claim}");
    let _directories = Directories::of(&exchange);
    exchange.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: filler
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    command: [sh, -c, 'exec sleep 100000']
    volumeMounts: [{{name: node, mountPath: /node}}]
  volumes: [{{name: node, persistentVolumeClaim: {{claimName: tensorlane-default}}}}]
",
        node = NODES[0],
        image = image("workload"),
    ));
    exchange.wait_for("Ready", "pod/filler");
    let fill = "dd if=/dev/zero of=/node/large bs=4096 2>/dev/null; n=0; while touch /node/$n 2>/dev/null; do n=$((n+1)); done; \
                stat -c %s /node/large; ls /node | wc -l";
    let told = exchange.shell("filler", "main", fill);
    let found: Vec<u64> = told.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    // The directory itself is one of the files.
    assert_eq!(found, [BYTES, FILES - 1], "{told}");
    let [mut owner, mut same] =
        ["owner", "same"].map(|name| Pod::start(&exchange, name, &PodOptions::on(NODES[0])));
    exchange.await_peers(2);
    let reference = owner.ask(&format!("store {MIB} 1"), "stored");
    assert_eq!(same.ask(&format!("read 60 {reference}"), "read"), "tcp", "bytes travel");
    eventually("the sidecar has told why", || {
        let log = exchange.try_kubectl(&["logs", "same", "--container=tensorlane"])?;
        let told =
            log.contains("no socket in the node's directory") && log.contains("No space left on device");
        told.then_some(())
    });
    owner.ask("drop", "dropped 1");
    exchange.shell("filler", "main", "rm -f /node/[0-9]*");
    eventually("there is room, and they meet", || shared(&mut owner, &mut same, MIB));
}

#[test]
fn what_an_exchange_requires_of_every_route_holds_for_calls_that_require_nothing() {
    let exchange = Exchange::with("{sameNode: claim, require: [same_node]}");
    let _directories = Directories::of(&exchange);
    let [mut owner, mut same, mut other] = three_pods(&exchange);
    let reference = eventually("the other of the node maps it", || shared(&mut owner, &mut same, MIB));
    other.tell(&format!("read 60 {reference}"));
    assert_eq!(other.answer(), "error REQUIREMENT_NOT_MET");
    let told = exchange.shell("other", "main", "tensorlane routes");
    let line = told.lines().find(|line| line.contains("owner")).unwrap_or_else(|| panic!("{told}"));
    assert!(line.contains("not_same_node"), "what the exchange requires is told as the reason: {told}");
}

#[test]
fn a_restricted_namespace_shares_memory_by_a_claim() {
    let exchange = Exchange::with("{sameNode: claim}");
    let _directories = Directories::of(&exchange);
    exchange.kubectl(&[
        "label",
        "namespace",
        exchange.name(),
        "pod-security.kubernetes.io/enforce=restricted",
    ]);
    for (name, node) in [("one", NODES[0]), ("two", NODES[0]), ("three", NODES[1])] {
        exchange.apply(&format!(
            "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/arena-size: 64Mi}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: main
    image: {image}
    command: [sh, -c, 'exec sleep 100000']
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
",
            image = image("workload"),
        ));
    }
    exchange.await_peers(3);
    // Sidecars are seen before the containers that they are for have begun.
    exchange.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "pod/three", "--timeout=120s"]);
    // The peer in the first column, and the way to it somewhere in its line.
    let route_is = |from: &str, to: &str, is: &dyn Fn(&str) -> bool| {
        let peers = exchange.shell(from, "main", "tensorlane peers");
        let line = peers.lines().find(|line| line.split_whitespace().next().is_some_and(|name| name == to));
        line.is_some_and(|line| line.contains("connected") && is(line)).then_some(())
    };
    for (from, to) in [("one", "two"), ("two", "one")] {
        eventually("its route to the other is shared memory", || {
            route_is(from, to, &|line| line.contains("shm") && !line.contains("not shm"))
        });
    }
    eventually("the third knows that it is elsewhere", || {
        route_is("three", "one", &|line| line.contains("not shm: other_node"))
    });
    moves_by_shared_memory(&exchange, "one", "two");
    comes_by_tcp_alone(&exchange, "three");
    let mapped = ["one", "two", "three"].map(|pod| pages_of_moved(&exchange, pod));
    assert!(mapped[0] == mapped[1] && mapped[1] != mapped[2], "the pages that each maps: {mapped:?}");
}

/// Number of times that a pod's sidecar has met another one in the directory of their node.
fn met(exchange: &Exchange, pod: &str) -> f64 {
    let all = metrics(exchange.name(), pod);
    metric(&all, "tensorlane_peer_node_connections_total", &["event=\"met\""])
}

/// Two of one node, that have met in its directory, and one of another node.
fn three_pods(exchange: &Exchange) -> [Pod<'_>; 3] {
    let placed = [("owner", NODES[0]), ("same", NODES[0]), ("other", NODES[1])];
    let pods = placed.map(|(name, node)| Pod::start(exchange, name, &PodOptions::on(node)));
    exchange.await_peers(pods.len());
    for pod in ["owner", "same"] {
        eventually("the two of one node have met", || (met(exchange, pod) > 0.0).then_some(()));
    }
    pods
}

/// A tensor that one has stored, if the other has mapped it at once: where the machine stood still the two may have to meet again.
fn shared(owner: &mut Pod<'_>, other: &mut Pod<'_>, bytes: u64) -> Option<String> {
    let reference = owner.ask(&format!("store {bytes} 1"), "stored");
    if reads_by_shm(other, &reference) {
        return Some(reference);
    }
    owner.ask("drop", "dropped 1");
    None
}

fn reads_by_shm(pod: &mut Pod<'_>, reference: &str) -> bool {
    pod.tell(&format!("read 60 {reference}"));
    pod.answer() == "read shm"
}

/// Pages that a pod maps the tensor `moved/x` from, as a program in it finds out.
fn pages_of_moved(exchange: &Exchange, pod: &str) -> String {
    let program = exchange.bring(pod, "main", "workload");
    let said = exchange.shell(pod, "main", &format!("echo pages moved/x | {program} /run/tensorlane"));
    let pages = said.lines().find_map(|line| line.strip_prefix("pages "));
    pages.unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// Checks that what another node has is refused if memory of this one is required, and comes if it is not.
fn comes_by_tcp_alone(exchange: &Exchange, reader: &str) {
    let required = "tensorlane get moved/x --require same_node --to /tmp/none 2>&1 && echo taken || true";
    let said = exchange.shell(reader, "main", required);
    assert!(said.contains("other_node") && !said.contains("taken"), "{said}");
    let said =
        exchange.shell(reader, "main", "tensorlane get moved/x --to /tmp/got --output json && rm /tmp/got");
    let got: Value = serde_json::from_str(&said).expect("JSON");
    let moved = &got["tensors"][0]["moved"];
    assert_eq!((&moved["transport"], &moved["bytes"]), (&"tcp".into(), &1_048_576.into()), "{said}");
}

/// A tensor of one pod is got by the other where nothing but memory of the node will do.
fn moves_by_shared_memory(exchange: &Exchange, owner: &str, reader: &str) {
    let header = r#"{"x":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}}"#;
    let sum = |file: &str| format!("tail -c 1048576 {file} | sha256sum");
    // A safetensors file: the length of its head, the head, the bytes.
    let make = format!(
        "{{ printf '\\200\\0\\0\\0\\0\\0\\0\\0%-128s' '{header}'; head -c 1048576 /dev/urandom; }} > /tmp/put"
    );
    let put = format!("{make} && tensorlane put /tmp/put --name moved >&2 && {}", sum("/tmp/put"));
    let expected = exchange.shell(owner, "main", &put);
    let get = "tensorlane get moved/x --require same_node --to /tmp/got --output json";
    let said = exchange.shell(reader, "main", get);
    let got: Value = serde_json::from_str(&said).expect("JSON");
    let moved = &got["tensors"][0]["moved"];
    assert_eq!((&moved["transport"], &moved["bytes"]), (&"shm".into(), &0.into()), "{said}");
    assert_eq!(exchange.shell(reader, "main", &sum("/tmp/got")), expected);
}
