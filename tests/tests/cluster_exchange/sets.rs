//! Sets in volumes of their pods, on a claim that two nodes share, and without one. Needs the image `python` on the nodes.

use tempfile::TempDir;
use tensorlane_tests::cluster::{NODES, cluster, eventually, image};
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::pod::{SIDECAR, container_status, first_process};
use tensorlane_tests::process::Orphan;

use super::TURNS;
use super::exchange::shared_directory;
use super::python;

/// Makes a set and writes two of its rows, says who it is, and stays until it is told to end.
const WRITER: &str = r#"
import signal, sys
import tensorlane

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
client = tensorlane.connect()
frames = client.create_set("frames", 1000, {"x": ("uint8", (16,))}, directory="frames")
frames[[4, 998]] = {"x": 7}
print(sys.executable, frames.reference, flush=True)
signal.sigwait({signal.SIGTERM})
"#;

/// Reads three rows, and what the container itself sees of the set.
const READER: &str = r#"
import os
import tensorlane

frames = tensorlane.connect().open_set("frames")
print(frames.reference, frames[[4, 5, 998]]["x"].numpy().sum(axis=1).tolist(), sorted(os.listdir("/data/frames")))
"#;

/// Makes a set on the claim for another peer to write, says who it is, and stays until it is told to end.
const OWNER: &str = r#"
import signal, sys
import tensorlane

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
client = tensorlane.connect()
frames = client.create_set("frames", 1000, {"x": ("uint8", (16,))}, directory="frames", writers=["friend"])
frames[[4, 998]] = {"x": 7}
print(sys.executable, frames.reference, flush=True)
signal.sigwait({signal.SIGTERM})
"#;

/// Writes a row of the owner's set, makes a set of its own on the same claim, and looks at the claim.
const FRIEND: &str = r#"
import os, sys
import tensorlane

client = tensorlane.connect()
frames = client.open_set("owner/frames", wait=60)
assert frames.reference == sys.argv[1]
frames[[5]] = {"x": 9}
own = client.create_set("own", 10, {"x": ("uint8", (16,))}, directory="own")
own[[1]] = {"x": 3}
read = [rows["x"].numpy().sum(axis=1).tolist() for rows in (frames[[4, 5, 998]], own[[1]])]
print(read, sorted(os.listdir("/data")), sorted(os.listdir("/data/owner/frames")))
"#;

/// Reads the owner's set, and is refused what it may not do there, and what it cannot do without a volume.
const STRANGER: &str = r#"
import tensorlane

client = tensorlane.connect()
frames = client.open_set("owner/frames", wait=60)

def refused(call):
    try:
        call()
    except tensorlane.Error as error:
        return error.reason, error.details.get("peer")

written = refused(lambda: frames.write([4], {"x": 1}))
made = refused(lambda: client.create_set("mine", 10, {"x": ("uint8", (16,))}, directory="mine"))
print(frames[[4, 5, 998]]["x"].numpy().sum(axis=1).tolist(), written, made)
"#;

/// Opens what the owner left, by its name here.
const HEIR: &str = r#"
import tensorlane

frames = tensorlane.connect().open_set("frames")
print(frames[[4, 5, 998]]["x"].numpy().sum(axis=1).tolist(), frames.status().writers)
"#;

/// Makes a set in memory, says who it is, and stays until it is told to end.
const MAKER: &str = r#"
import signal, sys
import tensorlane

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
client = tensorlane.connect()
scratch = client.create_set("scratch", 8, {"x": ("uint8", (16,))}, writers=["guest"])
scratch[[2]] = {"x": 5}
print(sys.executable, scratch.reference, flush=True)
signal.sigwait({signal.SIGTERM})
"#;

/// Writes a row of that set and reads two, and stays until it is told to end.
const GUEST: &str = r#"
import signal, sys
import tensorlane

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
client = tensorlane.connect()
scratch = client.open_set("maker/scratch", wait=60)
assert scratch.reference == sys.argv[1]
scratch[[3]] = {"x": 6}
print(scratch[[2, 3]]["x"].numpy().sum(axis=1).tolist(), flush=True)
signal.sigwait({signal.SIGTERM})
"#;

/// Says of each set why it is not opened.
const ASKED: &str = r#"
import sys
import tensorlane

for target in sys.argv[1:]:
    try:
        tensorlane.connect().open_set(target)
        print("opened", end=" ")
    except tensorlane.Error as error:
        print(error.reason, end=" ")
"#;

/// A volume of a pod with sets in it.
struct SetsIn<'a> {
    /// Kind of the volume, in YAML.
    source: &'a str,
    /// Directory of the sidecar's sets in the volume.
    path: &'a str,
    /// Further fields of the container's own mount, at `/data`.
    mount: &'a str,
}

/// A claim of a volume that both nodes have: a directory of the machine.
struct SharedClaim {
    volume: String,
    directory: TempDir,
}

impl SharedClaim {
    /// Makes the claim `sets` in the namespace of an exchange, and waits until it has its volume.
    fn make(exchange: &Exchange) -> Self {
        let directory = shared_directory();
        let claim = Self { volume: exchange.name().to_owned(), directory };
        exchange.apply(&format!(
            "apiVersion: v1
kind: PersistentVolume
metadata: {{name: {volume}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ''
  hostPath: {{path: {path}, type: Directory}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: sets}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ''
  volumeName: {volume}
  resources: {{requests: {{storage: 1Gi}}}}
",
            volume = claim.volume,
            path = claim.directory.path().display(),
        ));
        eventually("the claim has its volume", || {
            (exchange.get("persistentvolumeclaim/sets")["status"]["phase"] == "Bound").then_some(())
        });
        claim
    }
}

impl Drop for SharedClaim {
    fn drop(&mut self) {
        // If it stays, it goes with the cluster.
        let _ = cluster(&["kubectl", "delete", "persistentvolume", &self.volume, "--wait=false"]);
    }
}

/// A pod with a volume of sets, that runs a program with its word.
fn pod(name: &str, node: &str, sets: &SetsIn<'_>, program: &str, word: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/arena-size: 64Mi, tensorlane.dev/sets: data/{path}}}
spec:
  nodeName: {node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  securityContext: {{runAsNonRoot: true}}
  containers:
  - name: main
    image: {image}
    args: [-u, -c, {program:?}, {word:?}]
    securityContext: {{readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
    volumeMounts:
    - {{name: data, mountPath: /data, readOnly: true{mount}}}
  volumes:
  - {{name: data, {source}}}
",
        path = sets.path,
        image = image("python"),
        mount = sets.mount,
        source = sets.source,
    )
}

/// Line that a pod's program has said.
fn line_of(exchange: &Exchange, pod: &str) -> String {
    eventually(&format!("{pod} has said its line"), || {
        let said = exchange.try_kubectl(&["logs", pod, "--container", "main"])?;
        said.ends_with('\n').then_some(said)
    })
}

/// Output of a program that Python runs in a pod; none if it failed.
fn run(exchange: &Exchange, pod: &str, python: &str, words: &[&str]) -> Option<String> {
    exchange.try_kubectl(&[&["exec", pod, "--container", "main", "--", python, "-c"], words].concat())
}

/// Kills the sidecar of a pod, and waits for the next one.
fn replace_sidecar(exchange: &Exchange, pod: &str) {
    let status = || container_status(&exchange.get(&format!("pod/{pod}")), SIDECAR);
    let dead = status();
    let process = eventually("the sidecar runs", || first_process(&status()));
    Orphan::adopt(process).kill();
    eventually("there is another sidecar", || {
        let now = status();
        (now["containerID"] != dead["containerID"] && now["ready"] == true).then_some(())
    });
}

#[test]
fn a_set_in_a_volume_of_its_pod_is_there_again_when_its_sidecar_is() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let sets = SetsIn { source: "emptyDir: {}", path: "sets", mount: ", subPath: sets" };
    exchange.apply(&pod("writer", NODES[0], &sets, WRITER, ""));
    exchange.wait_for("Ready", "pod/writer");
    let said = line_of(&exchange, "writer");
    let [python, reference] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let read = || run(&exchange, "writer", python, &[READER]);
    let expected = format!("{reference} [112, 0, 112] ['.tensorlane', 'meta.json', 'x.memmap']");
    assert_eq!(eventually("the set is read", read).trim_end(), expected);

    replace_sidecar(&exchange, "writer");
    let said = eventually("the set is read again", read);
    assert_eq!(said.trim_end(), expected, "the same set, with what was written");
}

/// Directories have one sidecar at a time: each pod has a path of its own, and a set goes on elsewhere once its pod is gone.
#[test]
fn a_set_on_a_claim_of_two_nodes_is_written_from_the_other_one_and_outlives_its_pod_there() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let _claim = SharedClaim::make(&exchange);
    let source = "persistentVolumeClaim: {claimName: sets}";
    let at = |path| SetsIn { source, path, mount: "" };
    exchange.apply(&pod("owner", NODES[0], &at("owner"), OWNER, ""));
    let said = line_of(&exchange, "owner");
    let [_, reference] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };

    exchange.apply(&pod("friend", NODES[1], &at("friend"), FRIEND, reference));
    exchange.wait_until_succeeded("friend");
    let files = "['.tensorlane', 'meta.json', 'x.memmap']";
    let expected = format!("[[112, 144, 112], [48]] ['friend', 'owner'] {files}\n");
    assert_eq!(exchange.logs("friend", "main"), expected);

    exchange.apply(&pod("second", NODES[1], &at("owner"), HEIR, ""));
    eventually("a second sidecar says who has the directory", || {
        let said = exchange.try_kubectl(&["logs", "second", "--container", SIDECAR])?;
        said.contains("another sidecar runs with /var/lib/tensorlane-sets").then_some(())
    });
    assert!(container_status(&exchange.get("pod/second"), "main")["state"]["running"].is_null());
    exchange.apply(&python::pod("stranger", NODES[1], STRANGER, ""));
    exchange.wait_until_succeeded("stranger");
    let expected = "[112, 144, 112] ('PERMISSION_DENIED', 'stranger') ('NO_STORAGE', None)\n";
    assert_eq!(exchange.logs("stranger", "main"), expected);

    exchange.kubectl(&["delete", "pod", "second", "owner"]);
    exchange.apply(&pod("heir", NODES[1], &at("owner"), HEIR, ""));
    exchange.wait_until_succeeded("heir");
    assert_eq!(exchange.logs("heir", "main"), "[112, 144, 112] ('friend',)\n");
}

#[test]
fn a_set_without_a_claim_is_written_from_the_other_node_and_ends_with_its_sidecar() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    exchange.apply(&python::pod("maker", NODES[0], MAKER, ""));
    let said = line_of(&exchange, "maker");
    let [python, reference] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };
    exchange.apply(&python::pod("guest", NODES[1], GUEST, reference));
    assert_eq!(line_of(&exchange, "guest"), "[80, 96]\n");

    replace_sidecar(&exchange, "maker");
    let said = run(&exchange, "maker", python, &[ASKED, reference, "scratch"]);
    assert_eq!(said.as_deref(), Some("OWNER_LOST NOT_FOUND "));
    eventually("the other node is told", || {
        let said = run(&exchange, "guest", python, &[ASKED, reference, "maker/scratch"])?;
        (said == "OWNER_LOST NOT_FOUND ").then_some(())
    });
}
