//! Pods of one node that share memory, on a real cluster: the directory comes from a DaemonSet and a claim as the chart makes
//! them. Needs `cargo xtask cluster up` and the images `operator`, `sidecar` and `workload` on the nodes.

use tensorlane_tests::cluster::{NODES, Namespace, cluster, eventually, image};
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::metrics;
use tensorlane_tests::pod::{Pod, PodOptions};

const MIB: u64 = 1 << 20;

/// The directory of an exchange on every node, and the volume that stands for it. The volume goes with it.
struct Directories {
    // The DaemonSet mounts the host's file system, which the namespace of the exchange need not allow.
    _makers: Namespace,
    volume: String,
}

impl Directories {
    fn of(exchange: &Exchange) -> Self {
        let (makers, name) = (Namespace::new(), exchange.name());
        let volume = format!("tensorlane-{name}-default");
        makers.apply(&format!(
            "apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: directories}}
spec:
  selector: {{matchLabels: {{app: directories}}}}
  template:
    metadata: {{labels: {{app: directories}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: {image}
        command: [sh, -c, 'mkdir -p /node/{name}/default && chmod 1777 /node/{name}/default && exec sleep 100000']
        securityContext: {{runAsUser: 0}}
        volumeMounts: [{{name: node, mountPath: /node}}]
      volumes:
      - {{name: node, hostPath: {{path: /run/tensorlane, type: DirectoryOrCreate}}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {volume}}}
spec:
  capacity: {{storage: 1Mi}}
  accessModes: [ReadWriteMany]
  storageClassName: ''
  claimRef: {{namespace: {name}, name: tensorlane-default}}
  hostPath: {{path: /run/tensorlane/{name}/default, type: Directory}}
",
            image = image("workload"),
        ));
        exchange.apply(&format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: tensorlane-default}}, spec: {{
              accessModes: [ReadWriteMany], storageClassName: '', volumeName: {volume},
              resources: {{requests: {{storage: 1Mi}}}}}}}}"
        ));
        makers.kubectl(&["rollout", "status", "daemonset/directories", "--timeout=120s"]);
        Self { _makers: makers, volume }
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
    let mut owner = Pod::start(&exchange, "owner", &PodOptions::on(NODES[0]));
    let mut same = Pod::start(&exchange, "same", &PodOptions::on(NODES[0]));
    let mut other = Pod::start(&exchange, "other", &PodOptions::on(NODES[1]));
    exchange.await_peers(3);
    for pod in ["owner", "same"] {
        eventually("the two of one node have met", || {
            let met = metrics(exchange.name(), pod);
            let met = metric(&met, "tensorlane_peer_node_connections_total", &["event=\"met\""]);
            (met > 0.0).then_some(())
        });
    }
    let reference = owner.ask(&format!("store {} 1", 8 * MIB), "stored");
    assert_eq!(same.ask(&format!("read 60 {reference}"), "read"), "shm");
    assert_eq!(other.ask(&format!("read 60 {reference}"), "read"), "tcp");
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
    assert_eq!(["owner", "same", "other"].map(refused), [0.0; 3]);
    // What is mapped outlives the sidecar that gave it.
    owner.kill_sidecar();
    assert_eq!(same.ask("verify", "intact"), "1");
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
    for name in ["one", "two"] {
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
            node = NODES[0],
            image = image("workload"),
        ));
    }
    exchange.await_peers(2);
    for name in ["one", "two"] {
        eventually("its route to the other is shared memory", || {
            let peers = exchange.shell(name, "main", "tensorlane peers");
            peers
                .lines()
                .any(|line| line.contains("connected") && line.contains("shm") && !line.contains("not shm"))
                .then_some(())
        });
    }
}
