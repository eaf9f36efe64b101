//! `tensorlane routes` among peers that are there: two of one node and one elsewhere. Needs root.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::watching::{self, Watch, up_to};
use tensorlane_tests::{SidecarOptions, until};

/// `a` and `b` of one node, `c` of another.
fn three() -> ([TempDir; 2], Peers) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let at = |dir: &Path, options: SidecarOptions| options.set("node.directory", dir.display());
    let peers = Peers::start(3, |host, options| at(dirs[host / 2].path(), options.steady()));
    (dirs, peers)
}

/// Routes that `a` reports to each other one, as `name: SHM CUDA_IPC TCP QUIC`.
fn matrix(peers: &Peers) -> BTreeMap<String, String> {
    let told = watching::says(&peers.sidecars[0].sockets(), &["routes"]);
    let mut rows = told.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let headings = rows.next().expect("headings");
    assert_eq!(headings, ["PEER", "STATE", "SHM", "CUDA_IPC", "TCP", "QUIC"], "{told}");
    rows.map(|row| (row[0].to_owned(), row[2..].join(" "))).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn every_peer_and_transport_has_a_mark_or_a_reason() {
    let (_dirs, peers) = three();
    let of_node = "taken no_gpu_process fits:better_taken fits:better_taken";
    let elsewhere = "other_node other_node taken fits:not_compared";
    until("each has found out where the others are", || {
        let all = matrix(&peers);
        all.len() == 2 && all["b"] == of_node && all["c"] == elsewhere
    });
    let sockets = peers.sidecars[0].sockets();
    for row in json(&watching::says(&sockets, &["routes", "-o", "json"])).as_array().unwrap() {
        let all = row["candidates"].as_array().unwrap();
        let names: Vec<_> = all.iter().map(|one| one["transport"].as_str().unwrap()).collect();
        assert_eq!(names, ["shm", "cuda_ipc", "tcp", "quic"], "{row}");
        for one in all {
            assert_eq!(one["standing"] == "taken", one["why"].is_null(), "{row}");
            assert_eq!(one["standing"] == "taken", one["transport"] == row["transport"], "{row}");
        }
    }
}

/// Both see it alike, and so does whoever asks for the other one's tensors.
#[test]
fn who_turns_quic_off_does_not_offer_it_to_one_that_prefers_it() {
    let set = |host, options: SidecarOptions| options.steady().set("prefer", ["tcp", "quic"][host]);
    let peers = Peers::start(2, set);
    let sees = |host: usize| {
        let told = watching::says(&peers.sidecars[host].sockets(), &["routes"]);
        told.split_whitespace().skip(6 + 4).collect::<Vec<_>>().join(" ")
    };
    until("each says why", || sees(0) == "taken policy" && sees(1) == "taken not_offered");
    for (owner, reader, why) in [(0, 1, "not_offered"), (1, 0, "policy")] {
        let stored = put(&peers.client(owner), 3, 9 * MI);
        let tensor = peers.client(reader).acquire(stored.reference(), &seconds(60)).unwrap();
        let told = tensor.moved().to_string();
        assert!(is(&tensor, 3, 9 * MI) && told.starts_with("tcp by "), "{told}");
        // It is what the reader prefers that would have been better.
        assert_eq!(told.contains(&format!("not quic: {why}")), reader == 1, "{told}");
    }
    peers.assert_all_free();
}

#[test]
fn what_would_come_in_the_clear_is_told_before_it_does() {
    let peers = Peers::start(3, |host, options| {
        options.steady().set("encryption", ["none", "none", "required"][host]).set("transports", "tcp")
    });
    let sockets = peers.sidecars[0].sockets();
    until("of the pair that lets it, and of no other", || {
        let told = watching::says(&sockets, &["routes"]);
        let ends = |peer: &str, how: &str| {
            let row = told.lines().find(|row| row.starts_with(peer)).unwrap_or_default();
            row.split_whitespace().nth(4) == Some(how)
        };
        ends("b ", "taken:plain") && ends("c ", "taken")
    });
    let rows = json(&watching::says(&sockets, &["routes", "-o", "json"]));
    let of_b = rows.as_array().unwrap().iter().find(|row| row["peer"] == "b").unwrap();
    let plain = of_b["candidates"].as_array().unwrap().iter().filter(|one| one["plain"] == true);
    assert_eq!(plain.map(|one| &one["transport"]).collect::<Vec<_>>(), ["tcp"]);
    peers.assert_all_free();
}

#[test]
fn what_was_measured_stands_beside_the_transport_that_brought_it() {
    let (_dirs, peers) = three();
    {
        let (owner, reader) = (peers.client(2), peers.client(0));
        let sockets = peers.sidecars[0].sockets();
        let mut seed = 0;
        // A large tensor that came in two ways, because the machine was busy, measures nothing.
        until("a rate is shown", || {
            seed += 1;
            let stored = put(&owner, seed, 16 * MI);
            assert!(is(&reader.acquire(stored.reference(), &seconds(60)).unwrap(), seed, 16 * MI));
            let told = json(&watching::says(&sockets, &["routes", "-o", "json"]));
            let of_c = told.as_array().unwrap().iter().find(|row| row["peer"] == "c").unwrap();
            let rates = of_c["candidates"].as_array().unwrap().iter().map(|one| &one["bytes_per_second"]);
            rates.filter_map(Value::as_f64).any(|rate| rate > 0.0)
        });
        let told = watching::says(&sockets, &["routes"]);
        assert!(told.lines().any(|row| row.starts_with("c ") && row.contains("B/s)")), "{told}");
    }
    peers.assert_all_free();
}

#[test]
fn a_watch_tells_the_route_that_changes_and_the_peer_that_goes() {
    let (dirs, mut peers) = three();
    until("each has found out where the others are", || {
        let all = matrix(&peers);
        all["b"].starts_with("taken ") && all["c"].starts_with("other_node ")
    });
    let mut watch = Watch::routes(&peers.sidecars[0].sockets(), &[]);
    let lines = watch.lines();
    let is_of = |peer: &'static str, shm: &'static str, tcp: &'static str| {
        move |line: &str| {
            let row: Vec<&str> = line.split_whitespace().collect();
            row.len() > 4 && row[0] == peer && row[2].starts_with(shm) && row[4] == tcp
        }
    };
    up_to(&lines, "shared memory", is_of("b", "taken", "fits:better_taken"));
    std::fs::rename(dirs[0].path(), dirs[0].path().with_extension("aside")).unwrap();
    up_to(&lines, "the change to tcp", is_of("b", "node_unproven", "taken"));
    std::fs::rename(dirs[0].path().with_extension("aside"), dirs[0].path()).unwrap();
    up_to(&lines, "the change back", is_of("b", "taken", "fits:better_taken"));
    peers.sidecars[2].kill();
    up_to(&lines, "the one that is gone", |line| line.starts_with("c ") && !line.contains("connected"));
    assert!(watch.goes_on());
}
