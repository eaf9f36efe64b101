//! Identity keys that are changed while tensors travel between pods: the directory is the API server's, and so is its delay.
//! Needs `cargo xtask cluster up` and the images on the nodes.

use std::collections::BTreeSet;

use serde_json::Value;
use tensorlane_tests::cluster::eventually;
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::metrics;
use tensorlane_tests::pod::{Pod, PodOptions};

use super::KI;

/// Long enough for one look between two changes on a busy machine, and short enough for a test.
const RESTLESS: [(&str, &str); 2] =
    [("TENSORLANE_IDENTITY_ROTATE_EVERY", "30s"), ("TENSORLANE_IDENTITY_OVERLAP", "15s")];

type Keys = BTreeSet<String>;

/// The keys that a peer has in its status.
fn keys(exchange: &Exchange, peer: &str) -> Keys {
    let object = exchange.get(&format!("txp/{peer}"));
    let listed = object["status"]["fingerprints"].as_array().into_iter().flatten();
    listed.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The sum of the series of a metric of a pod that have this label.
fn count(exchange: &Exchange, pod: &str, name: &str, label: &str) -> f64 {
    let text = metrics(exchange.name(), pod);
    let series = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Returns whether one key was followed by two, and these by the other one of them alone.
fn has_changed(seen: &[Keys]) -> bool {
    let alone = |keys: &Keys| (keys.len() == 1).then(|| keys.first().cloned()).flatten();
    seen.windows(3).any(|three| match (alone(&three[0]), alone(&three[2])) {
        (Some(old), Some(new)) => old != new && three[1] == Keys::from([old, new]),
        _ => false,
    })
}

#[test]
fn a_key_is_changed_in_front_of_the_api_server_without_a_get_that_fails() {
    let exchange = Exchange::new();
    let mut owner = Pod::make_with(&exchange, "owner", &PodOptions::on("node1"), &RESTLESS);
    let mut reader = Pod::make(&exchange, "reader", &PodOptions::on("node2"));
    owner.await_session();
    reader.await_session();
    exchange.await_peers(2);
    // Who comes first may be told of the other too late by a second, before anything is changed.
    let refused = |pod, reason: &str| {
        let label = format!("reason=\"{reason}\"");
        count(&exchange, pod, "tensorlane_peer_refused_connections_total", &label)
    };
    let strange = || ["unknown_key", "other_peer"].map(|why| [refused("owner", why), refused("reader", why)]);
    let before = strange();
    let steady = keys(&exchange, "reader");

    let (mut seen, mut round) = (Vec::new(), 0);
    eventually("its peer has one key, then two, then the other one", || {
        round += 1;
        let reference = owner.put(&format!("round/{round}"), 32 * KI, round);
        assert_eq!(reader.ask(&format!("read 20 {reference}"), "read"), "tcp");
        let now = keys(&exchange, "owner");
        assert!((1..=2).contains(&now.len()), "{now:?}");
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        has_changed(&seen).then_some(())
    });
    // With the last key alone in the directory, it is the one that both speak with.
    eventually("the connection is made with a key that is listed", || {
        (count(&exchange, "reader", "tensorlane_peer_known_peers", "state=\"connected\"") == 1.0)
            .then_some(())
    });
    let reference = owner.put("after", 32 * KI, 7);
    assert_eq!(reader.ask(&format!("read 20 {reference}"), "read"), "tcp");

    let acquired = |label: &str| count(&exchange, "reader", "tensorlane_call_items_total", label);
    let all = acquired("verb=\"acquire\"");
    assert!(all >= round as f64, "{all} after {round} rounds");
    assert_eq!(acquired("result=\"OK\",verb=\"acquire\""), all, "every get went well");
    assert_eq!(strange(), before, "a key that is changed is never a stranger's, nor another peer's");
    let cut = |pod| count(&exchange, pod, "tensorlane_peer_cut_connections_total", "reason=\"revoked\"");
    assert_eq!(
        (cut("owner"), cut("reader")),
        (0.0, 0.0),
        "connections move before their key leaves the directory"
    );
    let written = count(&exchange, "owner", "tensorlane_directory_writes_total", "result=\"done\"");
    assert!(written >= 3.0, "a start, an announcement and a retirement are three writes: {written}");
    let said = exchange.kubectl(&["logs", "owner", "--container=tensorlane"]);
    assert!(said.contains("the identity key was changed"), "{said}");
    assert_eq!(keys(&exchange, "reader"), steady, "the other one keeps its key for a day");
    assert_eq!((owner.restarts("tensorlane"), reader.restarts("tensorlane")), (0, 0));
}
