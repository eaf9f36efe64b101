//! Pods that run Python: what one puts, another gets on the other node, and in the same pod without a copy. Needs the image `python` on
//! the nodes.

use tensorlane_tests::cluster::{NODES, eventually, image};
use tensorlane_tests::installed::Exchange;

use super::TURNS;

/// Puts an array, looks at it as another client of the pod, says how it came, and stays until it is told to end.
const WRITER: &str = r#"
import pickle, signal, sys
import numpy, tensorlane

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
client, other = tensorlane.connect(), tensorlane.connect()
array = numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024)
stored = client.put(array, name="python/x")
here = other.get("python/x")
assert (here.numpy() == array).all() and not here.numpy().flags.writeable
print(here.route, pickle.dumps(stored.reference).hex(), flush=True)
signal.sigwait({signal.SIGTERM})
"#;

/// Gets by the name and by the reference, whole and in part, and publishes what it made of it.
const READER: &str = r#"
import pickle, sys
import numpy, tensorlane

client = tensorlane.connect()
array = numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024)
named = client.get("python/x", peer="writer", wait=60)
assert (named.numpy() == array).all()
reference = pickle.loads(bytes.fromhex(sys.argv[1]))
part = client.get(reference[3:10, ::2])
assert (part.numpy() == array[3:10, ::2]).all()
version = client.publish({"mean": numpy.array(named.numpy().mean())}, "python/result").version
print(named.route, "part of", part.numpy().nbytes, "version", version)
"#;

/// A pod that runs a program with its word, in the image with Python.
pub(super) fn pod(name: &str, node: &str, program: &str, word: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/arena-size: 64Mi}}
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
",
        image = image("python"),
    )
}

#[test]
fn an_array_that_python_puts_in_a_pod_is_got_by_python_on_the_other_node() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    exchange.apply(&pod("writer", NODES[0], WRITER, ""));
    exchange.wait_for("Ready", "pod/writer");
    let said = eventually("the writer has put it", || {
        let said = exchange.try_kubectl(&["logs", "writer", "--container", "main"])?;
        said.ends_with('\n').then_some(said)
    });
    let [route, reference] = said.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(route, "local", "mapped, not moved");

    exchange.apply(&pod("reader", NODES[1], READER, reference));
    exchange.wait_until_succeeded("reader");
    let said = exchange.logs("reader", "main");
    assert!(said.starts_with("tcp") && said.ends_with(" part of 14336 version 1\n"), "{said}");
}
