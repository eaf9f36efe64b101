//! `tensorlane routes` from outside: one look, and a watch that tells each change and ends with whoever reads it.

use std::io::BufRead;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tensorlane_tests::process::signal;
use tensorlane_tests::watching::{self, Watch, up_to};
use tensorlane_tests::{Sidecar, SidecarOptions, until};

/// A sidecar whose peers file lists others that are not there.
struct Alone {
    sidecar: Sidecar,
    folder: TempDir,
}

impl Alone {
    fn new(others: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(&folder, others);
        let options = SidecarOptions::default()
            .set("peer", "a")
            .set("transports", "tcp")
            .set("peers.listen", "127.0.0.1:0")
            .set("peers.file", folder.path().join("peers.yaml").display());
        Self { sidecar: Sidecar::with(options), folder }
    }

    fn lists(&self, others: &[&str]) {
        write(&self.folder, others);
    }

    fn says(&self, words: &[&str]) -> String {
        watching::says(&self.sidecar.sockets(), words)
    }

    fn watch(&self, words: &[&str]) -> Watch {
        Watch::routes(&self.sidecar.sockets(), words)
    }
}

/// Port 9 of loopback refuses.
fn write(folder: &TempDir, others: &[&str]) {
    let mut text = String::from("peers:\n");
    for (number, name) in (1..).zip(others) {
        let key = format!("{number:064x}");
        text.push_str(&format!(
            "  - name: {name}\n    addresses: [\"127.0.0.1:9\"]\n    fingerprints: [\"sha256:{key}\"]\n"
        ));
    }
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    std::fs::write(file("new"), text).unwrap();
    std::fs::rename(file("new"), file("peers.yaml")).unwrap();
}

#[test]
fn routes_are_a_matrix_of_peers_and_transports_with_the_reason_at_every_refusal() {
    let alone = Alone::new(&["b"]);
    until("it is in the table", || alone.says(&["routes"]).lines().count() == 2);
    let told = alone.says(&["routes"]);
    let rows: Vec<Vec<&str>> = told.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["PEER", "STATE", "SHM", "CUDA_IPC", "TCP", "QUIC"], "{told}");
    // Whether it is idle, connecting or unreachable is a matter of the moment.
    let [tcp, others] = [rows[1][4], rows[1][5]];
    assert_eq!((rows[1][0], rows[1][2], rows[1][3], others), ("b", "policy", "policy", "policy"), "{told}");
    assert_eq!(tcp, if rows[1][1] == "idle" { "taken" } else { "if_reached" }, "{told}");
    let json: Value = serde_json::from_str(&alone.says(&["routes", "-o", "json"])).unwrap();
    assert_eq!(json[0]["peer"], "b");
    let refused = json[0]["refusals"].as_array().unwrap();
    assert!(refused.contains(&json!({"transport": "shm", "why": "policy"})), "{json}");
    assert_eq!(json[0]["transport"], "tcp", "{json}");
    let standings = json[0]["candidates"].as_array().unwrap().iter().map(|one| one["standing"].as_str());
    assert!(standings.eq(["refused", "refused", "taken", "refused"].map(Some)), "{json}");
    alone.sidecar.assert_all_free();
}

#[test]
fn a_watch_into_a_pipe_prints_a_block_for_each_change_and_nothing_between() {
    let alone = Alone::new(&["b"]);
    until("it is in the table", || alone.says(&["routes"]).lines().count() == 2);
    let mut watch = alone.watch(&[]);
    let lines = watch.lines();
    assert!(up_to(&lines, "the heading", |_| true)[0].starts_with("PEER"));
    up_to(&lines, "the peer", |line| line.starts_with("b "));
    alone.lists(&["b", "c"]);
    let seen = up_to(&lines, "the new peer", |line| line.starts_with("c "));
    let blocks: Vec<&[String]> = seen.split(String::is_empty).collect();
    assert!(blocks.len() >= 2, "an empty line stands between two blocks: {seen:?}");
    for block in blocks.iter().filter(|block| !block.is_empty()) {
        assert!(block[0].starts_with("PEER"), "{seen:?}");
    }
    assert!(blocks.windows(2).all(|two| two[0] != two[1]), "the same was told twice: {seen:?}");
    assert!(!seen.iter().any(|line| line.contains('\u{1b}')), "{seen:?}");
    // Not INT: whoever was started in the background by a shell leaves it ignored.
    signal(watch.id(), Signal::TERM);
    watch.ended();
    alone.sidecar.assert_all_free();
}

#[test]
fn a_watch_in_json_prints_one_document_a_line() {
    let alone = Alone::new(&["b"]);
    until("it is in the table", || alone.says(&["routes"]).lines().count() == 2);
    let mut watch = alone.watch(&["-o", "json"]);
    let lines = watch.lines();
    let parsed = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    up_to(&lines, "the first", |line| parsed(line)[0]["peer"] == "b");
    alone.lists(&["b", "c"]);
    up_to(&lines, "the next", |line| parsed(line)[1]["peer"] == "c");
}

/// Nothing changes any more, so that nothing is written that would tell it.
#[test]
fn a_watch_ends_with_whoever_reads_it() {
    let alone = Alone::new(&[]);
    let mut watch = alone.watch(&[]);
    let mut out = watch.out();
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    assert!(first.starts_with("PEER"), "{first}");
    assert!(watch.goes_on(), "it goes on while somebody reads");
    let began = Instant::now();
    drop(out);
    assert!(watch.ended().success());
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    alone.sidecar.assert_all_free();
}
