//! What an operator and a sidecar take while nothing happens, as the kubelet of their node counts it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::alone;
use super::kubernetes::Cluster;
use crate::rows::{self, Measured};

/// The kubelet looks at containers each ten to fifteen seconds.
const WINDOW: Duration = Duration::from_secs(30);

const MIB: f64 = (1u64 << 20) as f64;

/// What the kubelet says of a container.
struct Seen {
    processor_seconds: f64,
    at: String,
    bytes: f64,
}

/// Measures the rows of both. The sidecar is the one of the pod `looks`, which idles by now.
pub(super) fn run(cluster: &Cluster) -> Result<[Measured; 4]> {
    let operators = "app.kubernetes.io/component=operator";
    let words = ["--namespace=tensorlane-system", "get", "pods", "--selector", operators, "--output=json"];
    let pods: Value = serde_json::from_str(&cluster.kubectl(&words, "")?)?;
    let operator = &pods["items"][0];
    let sidecar = cluster.get("pod/looks")?;
    let both = [(operator, "operator"), (&sidecar, "tensorlane")];
    let look = || both.map(|(pod, container)| seen(cluster, pod, container));
    let [first_operator, first_sidecar] = look();
    let (first_operator, first_sidecar) = (first_operator?, first_sidecar?);
    // The time itself is what is measured.
    std::thread::sleep(WINDOW);
    let (mut last_operator, mut last_sidecar) = (None, None);
    cluster.wait("the kubelet looks again", || {
        let [operator, sidecar] = look();
        (last_operator, last_sidecar) = (operator.ok(), sidecar.ok());
        let is_new =
            |last: &Option<Seen>, first: &Seen| last.as_ref().is_some_and(|last| last.at != first.at);
        is_new(&last_operator, &first_operator) && is_new(&last_sidecar, &first_sidecar)
    })?;
    let (operator, sidecar) = last_operator.zip(last_sidecar).context("the kubelet says nothing")?;
    let arena = populated(cluster)?;
    Ok([
        alone(&rows::OPERATOR_MEMORY, operator.bytes / MIB),
        alone(&rows::OPERATOR_CPU, percent(&first_operator, &operator)?),
        alone(&rows::SIDECAR_MEMORY, (sidecar.bytes - arena) / MIB),
        alone(&rows::SIDECAR_CPU, percent(&first_sidecar, &sidecar)?),
    ])
}

fn seen(cluster: &Cluster, pod: &Value, container: &str) -> Result<Seen> {
    let node = pod["spec"]["nodeName"].as_str().context("the pod is on no node")?;
    let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
    let summary: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path], "")?)?;
    let uid = &pod["metadata"]["uid"];
    let pods = summary["pods"].as_array().into_iter().flatten();
    let found = pods
        .filter(|one| one["podRef"]["uid"] == *uid)
        .find_map(|one| one["containers"].as_array()?.iter().find(|one| one["name"] == container).cloned());
    let found = found.with_context(|| format!("the kubelet of {node} does not know {container}"))?;
    let number =
        |of: &Value| of.as_f64().with_context(|| format!("the kubelet of {node} has no figures yet"));
    Ok(Seen {
        processor_seconds: number(&found["cpu"]["usageCoreNanoSeconds"])? / 1e9,
        at: found["cpu"]["time"].as_str().unwrap_or_default().to_owned(),
        bytes: number(&found["memory"]["workingSetBytes"])?,
    })
}

/// Bytes of the arena of the pod `looks` whose pages exist.
fn populated(cluster: &Cluster) -> Result<f64> {
    let text =
        cluster.kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/looks:9420/proxy/metrics"], "")?;
    let line = text.lines().find_map(|line| line.strip_prefix("tensorlane_arena_populated_bytes "));
    line.context("the sidecar does not say how much it has populated")?.trim().parse().map_err(Into::into)
}

/// The part of a processor between two looks.
fn percent(first: &Seen, last: &Seen) -> Result<f64> {
    let over = seconds_of_day(&last.at)? - seconds_of_day(&first.at)?;
    // Midnight may lie between them.
    let over = if over < 0.0 { over + 86_400.0 } else { over };
    Ok((last.processor_seconds - first.processor_seconds) / over * 100.0)
}

/// Of a time such as `2026-11-21T16:11:17Z`.
fn seconds_of_day(time: &str) -> Result<f64> {
    let clock = time.split_once('T').map(|(_, clock)| clock.trim_end_matches('Z')).context("a time")?;
    let parts: Vec<f64> = clock.split(':').map(str::parse).collect::<Result<_, _>>()?;
    let [hours, minutes, seconds] = parts[..] else { anyhow::bail!("{time:?} is no time") };
    Ok((hours * 60.0 + minutes) * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_processor_is_that_between_two_looks_also_over_midnight() {
        let seen = |at: &str, processor_seconds| Seen { processor_seconds, at: at.to_owned(), bytes: 0.0 };
        let part = |first, last| percent(&seen(first, 10.0), &seen(last, 10.5)).unwrap();
        assert!((part("2026-11-21T16:11:07Z", "2026-11-21T16:11:17Z") - 5.0).abs() < 1e-9);
        assert!((part("2026-11-21T23:59:55Z", "2026-11-22T00:00:05Z") - 5.0).abs() < 1e-9);
    }
}
