//! Resources that operator and sidecars take while nothing happens, as the kubelets of their nodes count it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::alone;
use super::kubernetes::Cluster;
use super::looking::LOOKERS;
use crate::rows::{self, Measured};

/// Time that they have to come to rest. What they do until then is not measured.
const SETTLE: Duration = Duration::from_secs(20);

/// The kubelet looks at containers each ten to fifteen seconds.
const WINDOW: Duration = Duration::from_secs(30);

const MIB: f64 = (1u64 << 20) as f64;

/// Most that is taken over the window, by the one of its kind that takes most.
pub(super) struct Most {
    pub(super) operator: Taken,
    /// Resources of a sidecar; the memory is that beside the arena.
    pub(super) sidecar: Taken,
}

/// Resources that a container takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Taken {
    pub(super) mebibytes: f64,
    /// Of one processor.
    pub(super) percent: f64,
}

/// A container whose kubelet is asked.
struct Watched {
    pod: Value,
    container: &'static str,
}

/// Figures of the kubelet for a container.
struct Seen {
    processor_seconds: f64,
    at: String,
    bytes: f64,
}

/// Measures the rows of both. The pods that look idle by now.
pub(super) fn run(cluster: &Cluster) -> Result<[Measured; 4]> {
    let most = most(cluster)?;
    Ok([
        alone(&rows::OPERATOR_MEMORY, most.operator.mebibytes),
        alone(&rows::OPERATOR_CPU, most.operator.percent),
        alone(&rows::SIDECAR_MEMORY, most.sidecar.mebibytes),
        alone(&rows::SIDECAR_CPU, most.sidecar.percent),
    ])
}

/// Lets them come to rest, and looks at every replica of the operator and at the sidecars of the pods that look.
pub(super) fn most(cluster: &Cluster) -> Result<Most> {
    let operators = "app.kubernetes.io/component=operator";
    let words = ["--namespace=tensorlane-system", "get", "pods", "--selector", operators, "--output=json"];
    let pods: Value = serde_json::from_str(&cluster.kubectl(&words, "")?)?;
    let pods = pods["items"].as_array().context("a list")?.clone();
    let mut all: Vec<Watched> = pods.into_iter().map(|pod| Watched { pod, container: "operator" }).collect();
    let operators = all.len();
    for (name, _) in LOOKERS {
        all.push(Watched { pod: cluster.get(&format!("pod/{name}"))?, container: "tensorlane" });
    }
    // The time itself is what they need.
    std::thread::sleep(SETTLE);
    let mut taken = taken(cluster, &all)?;
    let mut sidecars = taken.split_off(operators);
    for (sidecar, (name, _)) in sidecars.iter_mut().zip(LOOKERS) {
        sidecar.mebibytes -= cluster.metric(name, "tensorlane_arena_populated_bytes")? / MIB;
    }
    Ok(Most { operator: of_most(&taken), sidecar: of_most(&sidecars) })
}

fn of_most(all: &[Taken]) -> Taken {
    let most = |of: fn(&Taken) -> f64| all.iter().map(of).fold(f64::MIN, f64::max);
    Taken { mebibytes: most(|one| one.mebibytes), percent: most(|one| one.percent) }
}

fn taken(cluster: &Cluster, all: &[Watched]) -> Result<Vec<Taken>> {
    let look = || all.iter().map(|watched| watched.seen(cluster)).collect::<Result<Vec<Seen>>>();
    let first = look()?;
    // The time itself is what is measured.
    std::thread::sleep(WINDOW);
    let mut last = Vec::new();
    cluster.wait("the kubelets look again", || {
        last = look().unwrap_or_default();
        last.len() == first.len() && last.iter().zip(&first).all(|(last, first)| last.at != first.at)
    })?;
    let one = |(first, last): (&Seen, &Seen)| -> Result<Taken> {
        Ok(Taken { mebibytes: last.bytes / MIB, percent: percent(first, last)? })
    };
    first.iter().zip(&last).map(one).collect()
}

impl Watched {
    fn seen(&self, cluster: &Cluster) -> Result<Seen> {
        let Self { pod, container } = self;
        let node = pod["spec"]["nodeName"].as_str().context("the pod is on no node")?;
        let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
        let summary: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path], "")?)?;
        let uid = &pod["metadata"]["uid"];
        let of_it = |one: &&Value| one["podRef"]["uid"] == *uid;
        let pods = summary["pods"].as_array().into_iter().flatten().filter(of_it);
        let mut containers = pods.flat_map(|one| one["containers"].as_array().into_iter().flatten());
        let found = containers
            .find(|one| one["name"] == *container)
            .with_context(|| format!("the kubelet of {node} does not know {container}"))?;
        let number =
            |of: &Value| of.as_f64().with_context(|| format!("the kubelet of {node} has no figures yet"));
        Ok(Seen {
            processor_seconds: number(&found["cpu"]["usageCoreNanoSeconds"])? / 1e9,
            at: found["cpu"]["time"].as_str().unwrap_or_default().to_owned(),
            bytes: number(&found["memory"]["workingSetBytes"])?,
        })
    }
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

    #[test]
    fn the_one_that_takes_most_counts_for_memory_and_processor_alike() {
        let all = [Taken { mebibytes: 9.0, percent: 1.0 }, Taken { mebibytes: 7.0, percent: 2.0 }];
        assert_eq!(of_most(&all), Taken { mebibytes: 9.0, percent: 2.0 });
    }
}
