//! Waits for names: whoever waits for one that never comes, here or at a peer, holds nobody up.

use std::path::Path;

use tensorlane_client::PutOptions;
use tensorlane_proto::frame::{FAILED, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::put_pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, until};

/// Longer than any test.
const HOUR_MS: u64 = 3_600_000;
/// Look-ups of one session: more than there were ever threads for.
const WAITS: usize = 2_000;
/// Memory that a wait may take.
const WAIT_BYTES: usize = 4 << 10;

fn waiting(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""])
}

/// Three sidecars that know each other, at an address of the loopback network with this last number.
pub(super) fn three(options: &SidecarOptions, last: u8) -> (tempfile::TempDir, Vec<Sidecar>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.yaml");
    // An address of the loopback network that no other process of these tests has.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let start = |(peer, port): (&str, u16)| {
        let options = options.clone().admin().set("peer", peer).set("peers.file", file.display());
        Sidecar::with(options.set("peers.listen", format!("127.{high}.{low}.{last}:{port}")))
    };
    let all: Vec<_> = [("a", 9431), ("b", 9432), ("c", 9433)].into_iter().map(start).collect();
    introduce(&folder.path().join("new"), &file, &format!("127.{high}.{low}.{last}"), &all);
    (folder, all)
}

fn introduce(draft: &Path, file: &Path, address: &str, all: &[Sidecar]) {
    let mut text = "peers:\n".to_owned();
    for (name, (port, sidecar)) in ["a", "b", "c"].iter().zip((9431..).zip(all)) {
        let key = sidecar.client().status().unwrap().fingerprint;
        text += &format!("  - name: {name}\n    addresses: [\"{address}:{port}\"]\n");
        text += &format!("    fingerprints: [\"{key}\"]\n");
    }
    std::fs::write(draft, text).unwrap();
    std::fs::rename(draft, file).unwrap();
    for sidecar in all {
        let client = sidecar.client();
        let connected =
            || client.peers().unwrap().iter().filter(|peer| peer.state == "connected").count() == 2;
        until("all are connected", connected);
    }
}

/// Bytes of memory that are its own, now.
fn memory(sidecar: &Sidecar) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn look_ups_of_a_name_that_never_comes_hold_up_no_look_up_at_any_sidecar() {
    let (_folder, all) = three(&SidecarOptions::default().set("limits.pendingRequests", WAITS + 1), 10);
    let clients: Vec<_> = all.iter().map(Sidecar::client).collect();
    for (client, name) in clients.iter().zip(["of/a", "of/b", "of/c"]) {
        let kept = PutOptions { no_lease: true, ..PutOptions::named(name) };
        drop(put_pattern(client, 1, 64, &kept).unwrap());
    }
    let before = memory(&all[0]);
    let mut waiter = RawSession::begin(&all[0]);
    for _ in 0..WAITS {
        let names = vec!["never".to_owned()];
        let lookup = v1::LookupRequest { names, wait_ms: HOUR_MS, ..v1::LookupRequest::default() };
        waiter.send(SessionKind::Lookup, &lookup);
    }
    until("all of them wait", || waiting(&all[0]) == WAITS as f64);
    // However many wait, each peer is asked once at a time.
    until("the peers were asked", || all[1..].iter().all(|peer| waiting(peer) == 1.0));
    let grown = memory(&all[0]).saturating_sub(before);
    assert!(grown < WAITS * WAIT_BYTES, "{WAITS} waits take {grown} bytes");
    for sidecar in &all {
        let mut session = RawSession::begin(sidecar);
        for name in ["of/a", "of/b", "of/c"] {
            let lookup = v1::LookupRequest { names: vec![name.to_owned()], ..v1::LookupRequest::default() };
            // A peer has two seconds to say what it has: on a busy machine it is asked again.
            until(&format!("{name} is found"), || {
                let found: v1::LookupResponse = session.call(SessionKind::Lookup, &lookup).unwrap();
                let outcome = found.results[0].outcome.as_ref().expect("an outcome");
                matches!(outcome, v1::describe_result::Outcome::Description(_))
            });
        }
    }
    // It comes after all, at another peer.
    let late = PutOptions { no_lease: true, ..PutOptions::named("never") };
    drop(put_pattern(&clients[2], 1, 64, &late).unwrap());
    for _ in 0..WAITS {
        let (header, _) = waiter.next_frame().expect("an answer");
        assert!(header.is_reply() && header.flags & FAILED == 0);
    }
    until("nobody waits any more", || all.iter().all(|sidecar| waiting(sidecar) == 0.0));
    until("nor are bytes kept", || all[0].metric("tensorlane_sidecar_waiting_bytes", &[]) == 0.0);
    clients[2].unname(&["never"]).unwrap().remove(0).unwrap();
    for (client, name) in clients.iter().zip(["of/a", "of/b", "of/c"]) {
        client.unname(&[name]).unwrap().remove(0).unwrap();
    }
    drop((waiter, clients));
    all.iter().for_each(Sidecar::assert_all_free);
}
