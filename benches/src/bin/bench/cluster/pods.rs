//! From a pod that is asked for to its first tensor, and to its being known by the others. The clock is that of the
//! machine since it started, which nodes and pods share.

use std::fs;

use anyhow::{Context, Result};
use tensorlane_benches::pairs::{self, Pair};

use super::kubernetes::{Cluster, pod};
use crate::rows::{self, Measured};

/// Pairs of pods; one more before them does not count.
const PAIRS: usize = 5;

/// Says when it is, in seconds, as the last word of a container.
const NOW: &str = "cut -d' ' -f1 /proc/uptime > /dev/termination-log";

/// A safetensors file of four bytes: the length of its head, the head, the bytes.
const FILE: &str =
    r#"printf '\65\0\0\0\0\0\0\0%sabcd' '{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}' > /tmp/f"#;

/// Measures both rows.
pub(super) fn run(cluster: &Cluster) -> Result<[Measured; 2]> {
    let puts = format!("{FILE}; tensorlane put /tmp/f --name t && {NOW}");
    let mut number = 0;
    let mut time = |asks: bool, line: &str| {
        number += 1;
        until_its_words(cluster, &format!("once-{number}"), asks, line)
    };
    let mut pair =
        || -> Result<Pair> { Ok(Pair { limit: Some(time(false, NOW)?), value: time(true, &puts)? }) };
    pair()?;
    let first_put = (0..PAIRS).map(|_| pair()).collect::<Result<_>>()?;
    Ok([Measured::new(&rows::FIRST_PUT, first_put), Measured::new(&rows::PEER_SEEN, peer_seen(cluster)?)])
}

/// Seconds from asking for the pod to what it says at its end.
fn until_its_words(cluster: &Cluster, name: &str, asks: bool, line: &str) -> Result<f64> {
    let began = uptime()?;
    cluster.kubectl(&["create", "--filename=-"], &pod(name, asks, "node1", line).to_string())?;
    let ended = cluster.last_words(name)?;
    cluster.kubectl(&["delete", "pod", name, "--wait=false"], "")?;
    Ok(seconds(&ended)? - began)
}

/// Seconds from the start of a pod's own container to its being a peer that another pod is told of. One pod looks all the
/// time; others come. Where it is known before its container has started, this is below zero.
fn peer_seen(cluster: &Cluster) -> Result<Vec<Pair>> {
    cluster.kubectl(&["create", "--filename=-"], &pod("looks", true, "node1", "sleep 3600").to_string())?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/looks", "--timeout=120s"], "")?;
    let mut number = 0;
    pairs::alone(PAIRS, 1, || {
        number += 1;
        let name = format!("comes-{number}");
        cluster.kubectl(
            &["create", "--filename=-"],
            &pod(&name, true, "node2", &format!("{NOW}; sleep 2")).to_string(),
        )?;
        let look = format!("until tensorlane peers | grep -q {name}; do :; done; cut -d' ' -f1 /proc/uptime");
        let words = ["exec", "looks", "--container=main", "--", "timeout", "60", "sh", "-c", &look];
        let seen = seconds(&cluster.kubectl(&words, "")?)?;
        let started = seconds(&cluster.last_words(&name)?)?;
        cluster.kubectl(&["delete", "pod", &name, "--wait=false"], "")?;
        Ok(seen - started)
    })
}

/// Seconds since the machine started.
fn uptime() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime")?;
    seconds(text.split(' ').next().unwrap_or_default())
}

fn seconds(text: &str) -> Result<f64> {
    text.trim().parse().with_context(|| format!("{text:?} is no time"))
}
