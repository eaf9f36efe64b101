//! `kubectl tensorlane routes --watch`: it tells each change once, and ends with whoever reads it.

use std::io::{BufRead, BufReader};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::two_namespaces;
use crate::served::{Served, list};

const PATIENCE: Duration = Duration::from_secs(60);

/// A command that goes on. It ends with the test.
struct Watch(Child);

impl Watch {
    fn start(served: &Served, line: &str) -> Watch {
        let mut command = served.command(line);
        Watch(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Returns the lines of its output, as they come.
    fn lines(&mut self) -> Receiver<String> {
        let out = self.0.stdout.take().unwrap();
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        lines
    }

    fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it goes on although nobody reads it");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The peers of `ml` are these and no others from now on.
fn only(served: &Served, names: &[&str]) {
    let peer = |name: &&str| {
        json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer",
            "metadata": {"namespace": "ml", "name": name},
            "spec": {"exchange": "default", "podUID": "u", "node": "n1"},
        })
    };
    let peers: Vec<Value> = names.iter().map(peer).collect();
    served.has("/apis/tensorlane.dev/v1alpha1/namespaces/ml/tensorpeers", list(&peers));
}

#[test]
fn a_watch_of_routes_tells_each_change_once() {
    let served = two_namespaces();
    let mut watch = Watch::start(&served, "routes -n ml --watch --interval 100ms");
    let lines = watch.lines();
    let next = || lines.recv_timeout(PATIENCE).unwrap();
    let block = |count: usize| (0..count).map(|_| next()).collect::<Vec<_>>();
    let first = block(4);
    assert!(first[0].starts_with("PEER  a") && first[3].starts_with("1 x tcp, not shm: "), "{first:?}");
    only(&served, &["a", "x"]);
    let second = block(5);
    assert!(second[0].is_empty() && second[1].starts_with("PEER  a"), "{second:?}");
    assert!(second[3].starts_with("x ") && second[4].starts_with("1 x none, "), "{second:?}");
    only(&served, &["a"]);
    // What was the same meanwhile was not told again.
    assert_eq!(block(2), ["", "PEER"]);
}

#[test]
fn a_watch_of_routes_in_json_is_a_line_for_each_state_and_ends_with_whoever_reads_it() {
    let served = two_namespaces();
    let mut watch = Watch::start(&served, "routes -n ml -w --interval 100ms -o json");
    {
        let mut out = BufReader::new(watch.0.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&told[0]["a"], &told[0]["b"]), (&json!("a"), &json!("b")));
    }
    assert_eq!(watch.ended().code(), Some(0), "nothing changed, and nobody reads");
}
