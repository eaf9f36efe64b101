//! From a pod that is asked for to its first tensor, and from one that is ready to its being known by the others. The clock
//! is that of the machine since it started, which nodes and pods share.

use anyhow::Result;
use tensorlane_benches::pairs::{self, Pair};

use super::kubernetes::{Cluster, pod, seconds, uptime};
use super::looking::{self, Looking};
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
    cluster.create(&pod(name, asks, "node1", line))?;
    let ended = cluster.last_words(name)?;
    cluster.kubectl(&["delete", "pod", name, "--wait=false"], "")?;
    Ok(seconds(&ended)? - began)
}

/// Seconds from a pod that is Ready, as a watch tells it, to the last pod that is told of its peer; below zero where that
/// comes first. One pod on each node looks all the time; others come. (The time in the condition itself is to whole seconds.)
fn peer_seen(cluster: &Cluster) -> Result<Vec<Pair>> {
    looking::make(cluster)?;
    let mut number = 0;
    pairs::alone(PAIRS, 1, || {
        number += 1;
        let name = format!("comes-{number}");
        let looking = Looking::begin(cluster, &name)?;
        cluster.create(&pod(&name, true, "node2", "sleep 3600"))?;
        cluster.await_ready(&name)?;
        let ready = uptime()?;
        let seen = looking.seen_by_all()?;
        cluster.kubectl(&["delete", "pod", &name, "--wait=false"], "")?;
        Ok(seen - ready)
    })
}
