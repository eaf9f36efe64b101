//! A set on files in a volume of its pod: it is there again when the sidecar is. Needs the image `python` on the nodes.

use tensorlane_tests::cluster::{NODES, eventually, image};
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::pod::{SIDECAR, container_status, first_process};
use tensorlane_tests::process::Orphan;

use super::TURNS;

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

fn pod() -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: writer
  annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/arena-size: 64Mi, tensorlane.dev/sets: data/sets}}
spec:
  nodeName: {node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  securityContext: {{runAsNonRoot: true}}
  containers:
  - name: main
    image: {image}
    args: [-u, -c, {WRITER:?}]
    securityContext: {{readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
    volumeMounts:
    - {{name: data, mountPath: /data, subPath: sets, readOnly: true}}
  volumes:
  - {{name: data, emptyDir: {{}}}}
",
        node = NODES[0],
        image = image("python"),
    )
}

#[test]
fn a_set_in_a_volume_of_its_pod_is_there_again_when_its_sidecar_is() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    exchange.apply(&pod());
    exchange.wait_for("Ready", "pod/writer");
    let said = eventually("the set is written", || {
        let said = exchange.try_kubectl(&["logs", "writer", "--container", "main"])?;
        said.ends_with('\n').then_some(said)
    });
    let [python, reference] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let read =
        || exchange.try_kubectl(&["exec", "writer", "--container", "main", "--", python, "-c", READER]);
    let expected = format!("{reference} [112, 0, 112] ['.tensorlane', 'meta.json', 'x.memmap']");
    assert_eq!(eventually("the set is read", read).trim_end(), expected);

    let status = || container_status(&exchange.get("pod/writer"), SIDECAR);
    let dead = status();
    let process = eventually("the sidecar runs", || first_process(&status()));
    Orphan::adopt(process).kill();
    eventually("there is another sidecar", || {
        let now = status();
        (now["containerID"] != dead["containerID"] && now["ready"] == true).then_some(())
    });
    let said = eventually("the set is read again", read);
    assert_eq!(said.trim_end(), expected, "the same set, with what was written");
}
