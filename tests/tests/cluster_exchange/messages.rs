//! Channels, pipes and mutable sets between pods that run Python, on one node and on two. Needs the image `python` on the nodes.

use tensorlane_tests::cluster::{NODES, eventually};
use tensorlane_tests::installed::Exchange;

use super::TURNS;
use super::python::pod;

/// Writes 100 messages to two readers, and then ends as a process that crashes does, or in order.
const WRITER: &str = r#"
import os, signal, sys
import numpy, tensorlane

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
client = tensorlane.connect()
with client.channel_writer("steps", slots=4, slot_bytes=1 << 20, expect_readers=2) as writer:
    for step in range(100):
        writer.write({"step": step, "obs": numpy.full(1000, step, "float32")}, timeout=120)
    print("written", flush=True)
    if sys.argv[1] == "crash":
        signal.sigwait({signal.SIGTERM})
        os._exit(1)
"#;

/// Reads the channel until it has ended in order, from each writer that comes, and says how each one ended. The sidecar of a pod that is
/// deleted may be gone before its word of the writer has come.
const READER: &str = r#"
import tensorlane

client, said = tensorlane.connect(), []
while said[-1:] != ["finished"]:
    with client.channel_reader("writer/steps", wait=180) as reader:
        count = 0
        try:
            for message in reader:
                assert message.value["step"] == count, (message.value["step"], count)
                assert (message.value["obs"].numpy() == count).all()
                count += 1
            said.append("finished")
        except tensorlane.Error as error:
            assert error.reason in ("CHANNEL_ENDED", "PEER_UNREACHABLE"), error
            said.append("lost")
        print(count, said[-1], reader.route, flush=True)
"#;

/// Owns a set, and takes the word that rows are in it from a pipe.
const OWNER: &str = r#"
import tensorlane

client = tensorlane.connect()
replay = client.create_set("replay", 64, {"obs": ("float32", (16,)), "reward": ("float32", ())}, writers=["actor"])
with client.listen("words") as listener, listener.accept(timeout=180) as pipe:
    received = pipe.read(timeout=60)
    rows = replay[:8]
    assert (rows["obs"].numpy() == received.value()["obs"].numpy()).all()
    print(received.value()["words"], replay.version, rows["reward"].numpy().sum(), flush=True)
"#;

/// Writes rows of the set of another pod, reads them back, and says so by a pipe.
const ACTOR: &str = r#"
import numpy, tensorlane

client = tensorlane.connect()
with client.connect_pipe("owner/words", wait=180) as pipe:
    replay = client.open_set("owner/replay")
    obs = numpy.arange(128, dtype="float32").reshape(8, 16)
    first, version = replay.extend({"obs": obs, "reward": numpy.ones(8, "float32")})
    assert (replay[[3, 5]]["obs"].numpy() == obs[[3, 5]]).all()
    pipe.write_value({"words": f"rows from {first}, version {version}", "obs": obs}, timeout=60)
print("read", flush=True)
"#;

#[test]
fn a_channel_is_read_on_both_nodes_and_again_when_the_pod_of_its_writer_was_made_again() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    // Readers come first, and wait for a peer that nobody knows yet.
    exchange.apply(&pod("near", NODES[0], READER, ""));
    exchange.apply(&pod("far", NODES[1], READER, ""));
    exchange.apply(&pod("writer", NODES[0], WRITER, "crash"));
    eventually("all is written", || {
        let said = exchange.try_kubectl(&["logs", "writer", "--container", "main"])?;
        said.contains("written").then_some(())
    });
    exchange.kubectl(&["delete", "pod", "writer"]);

    exchange.apply(&pod("writer", NODES[0], WRITER, "finish"));
    for reader in ["near", "far"] {
        exchange.wait_until_succeeded(reader);
        assert_eq!(exchange.logs(reader, "main"), "100 lost tcp\n100 finished tcp\n", "{reader}");
    }
}

#[test]
fn rows_of_a_set_and_messages_of_a_pipe_go_between_pods_of_two_nodes() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    exchange.apply(&pod("actor", NODES[1], ACTOR, ""));
    exchange.apply(&pod("owner", NODES[0], OWNER, ""));
    exchange.wait_until_succeeded("owner");
    exchange.wait_until_succeeded("actor");
    assert_eq!(exchange.logs("owner", "main"), "rows from 0, version 1 1 8.0\n");
    assert_eq!(exchange.logs("actor", "main"), "read\n");
}
