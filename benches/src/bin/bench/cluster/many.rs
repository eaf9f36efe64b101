//! A thousand peers that are made by hand, and some more: what operator and sidecars take, and how soon a new one is known.

use std::ops::Range;

use anyhow::Result;
use serde_json::{Value, json};
use tensorlane_benches::pairs::{self, Pair};

use super::kubernetes::{Cluster, uptime};
use super::looking::{LOOKERS, Looking};
use super::{alone, at_rest};
use crate::rows::{self, Measured};

/// Peers beside those of pods.
const MANY: usize = 1000;

/// New ones whose way is measured; one more before them does not count.
const NEW: usize = 5;

/// User that may write the status of any peer.
const OPERATOR: &str = "--as=system:serviceaccount:tensorlane-system:tensorlane-operator";

/// Measures all rows. The pods that look are there.
pub(super) fn run(cluster: &Cluster) -> Result<Vec<Measured>> {
    make_peers(cluster, 0..MANY)?;
    write_statuses(cluster, 0..MANY)?;
    for (pod, _) in LOOKERS {
        cluster.wait(&format!("{pod} knows all peers"), || {
            known(cluster, pod).is_ok_and(|known| known >= MANY + LOOKERS.len())
        })?;
    }
    let seen = Measured::new(&rows::MANY_PEER_SEEN, new_ones(cluster)?);
    let most = at_rest::most(cluster)?;
    Ok(vec![
        alone(&rows::MANY_OPERATOR_MEMORY, most.operator.mebibytes),
        alone(&rows::MANY_OPERATOR_CPU, most.operator.percent),
        alone(&rows::MANY_SIDECAR_MEMORY, most.sidecar.mebibytes),
        alone(&rows::MANY_SIDECAR_CPU, most.sidecar.percent),
        seen,
    ])
}

fn new_ones(cluster: &Cluster) -> Result<Vec<Pair>> {
    let mut number = MANY;
    pairs::alone(NEW, 1, || {
        number += 1;
        make_peers(cluster, number..number + 1)?;
        let looking = Looking::begin(cluster, &name(number))?;
        let asked = uptime()?;
        write_statuses(cluster, number..number + 1)?;
        Ok(looking.seen_by_all()? - asked)
    })
}

fn name(number: usize) -> String {
    format!("made-{number}")
}

/// As the operator makes them.
fn make_peers(cluster: &Cluster, numbers: Range<usize>) -> Result<()> {
    let spec = |number| json!({"exchange": "default", "podUID": name(number), "node": "node1"});
    let peers = numbers.map(|number| peer(number, "spec", spec(number)));
    send(cluster, &["create", "--output=name", "--filename=-"], peers)
}

/// As sidecars write them. Nobody listens at the addresses. Fingerprints are spread as real ones are: half of the peers are
/// dialed by any other one.
fn write_statuses(cluster: &Cluster, numbers: Range<usize>) -> Result<()> {
    let status = |number: usize| {
        let digits = format!("{:016x}", (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).repeat(4);
        json!({
            "incarnation": format!("{number:032x}"), "fingerprints": [format!("sha256:{digits}")],
            "addresses": [format!("198.18.{}.{}:9421", 64 + number / 250, number % 250)],
            "offer": {"versionMin": 1, "versionMax": 1, "transports": [{"transport": "tcp"}]},
        })
    };
    let apply = ["apply", "--server-side", "--validate=false", "--subresource=status", "--output=name"];
    let words = [&apply[..], &["--field-manager=bench", OPERATOR, "--filename=-"]].concat();
    send(cluster, &words, numbers.map(|number| peer(number, "status", status(number))))
}

fn peer(number: usize, part: &str, value: Value) -> Value {
    let meta = json!({"name": name(number)});
    let mut peer = json!({"apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": meta});
    peer[part] = value;
    peer
}

fn send(cluster: &Cluster, words: &[&str], peers: impl Iterator<Item = Value>) -> Result<()> {
    let peers: Vec<Value> = peers.collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": peers}).to_string();
    cluster.kubectl(words, &list).map(drop)
}

/// Number of peers that a pod's sidecar knows.
fn known(cluster: &Cluster, pod: &str) -> Result<usize> {
    Ok(cluster.metric(pod, "tensorlane_directory_listed_peers")? as usize)
}
