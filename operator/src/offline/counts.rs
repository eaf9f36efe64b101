//! Numbers of pods that objects make of their templates, as far as the objects say so themselves.

use serde_json::Value;

/// Way in which an object says how many pods it makes of a template.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    /// A single pod.
    One,
    /// Nodes that a DaemonSet's status counts.
    Nodes,
    /// `replicas` beside the template, or this many where it says nothing.
    Replicas(u64),
    /// Pods of a Job that run at a time; its specification has the template.
    Job,
    /// Jobs of an entry of a JobSet, times the pods of each.
    Jobs,
    /// Nodes of a training runtime, which its policy counts for the entry that trains; else as in a JobSet.
    Runtime,
    /// Workers of a group of Ray's, within its bounds, times the hosts of each.
    RayWorkers,
    /// Leaders of a LeaderWorkerSet: one a group.
    Leaders,
    /// All other pods of the groups of a LeaderWorkerSet; its leaders, too, where they have no template.
    Workers,
}

/// Label of the entry of a training runtime that trains.
const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";

impl Count {
    /// Number of pods of the template at this path; none where only the cluster knows.
    pub(super) fn of(self, object: &Value, place: &str) -> Option<u64> {
        let beside = above(object, place, 1)?;
        let count = match self {
            Count::One => 1,
            Count::Nodes => number(object.get("status")?, "desiredNumberScheduled")?,
            Count::Replicas(default) => number(beside, "replicas").unwrap_or(default),
            Count::Job => of_job(beside),
            Count::Jobs => of_jobs(beside, above(object, place, 3)?),
            Count::Runtime => {
                let entry = above(object, place, 3)?;
                let step = entry.pointer("/template/metadata/labels").and_then(|labels| labels.get(STEP));
                let nodes = object.pointer("/spec/mlPolicy").and_then(|policy| number(policy, "numNodes"));
                nodes.filter(|_| step.is_some_and(|step| step == "trainer")).unwrap_or(of_jobs(beside, entry))
            }
            Count::RayWorkers => of_ray(beside),
            Count::Leaders => groups(object),
            Count::Workers => {
                let leaders = u64::from(beside.get("leaderTemplate").is_some_and(Value::is_object));
                let size = number(beside, "size").unwrap_or(1);
                groups(object).saturating_mul(size.saturating_sub(leaders))
            }
        };
        Some(count)
    }
}

/// Value that encloses the one at a path, this many steps up.
fn above<'a>(object: &'a Value, place: &str, steps: usize) -> Option<&'a Value> {
    let outer = (0..steps).fold(place, |place, _| place.rsplit_once('/').map_or("", |(outer, _)| outer));
    object.pointer(outer)
}

fn number(map: &Value, name: &str) -> Option<u64> {
    map.get(name).and_then(Value::as_u64)
}

/// Pods of a Job at a time: never more than it has left to complete.
fn of_job(spec: &Value) -> u64 {
    let parallelism = number(spec, "parallelism").unwrap_or(1);
    number(spec, "completions").map_or(parallelism, |completions| parallelism.min(completions))
}

fn of_jobs(spec: &Value, entry: &Value) -> u64 {
    number(entry, "replicas").unwrap_or(1).saturating_mul(of_job(spec))
}

fn of_ray(group: &Value) -> u64 {
    if group.get("suspend") == Some(&Value::Bool(true)) {
        return 0;
    }
    let least = number(group, "minReplicas").unwrap_or(0);
    let most = number(group, "maxReplicas").unwrap_or(u64::MAX);
    let replicas = number(group, "replicas").unwrap_or(0).max(least).min(most);
    replicas.saturating_mul(number(group, "numOfHosts").unwrap_or(1))
}

fn groups(object: &Value) -> u64 {
    object.get("spec").and_then(|spec| number(spec, "replicas")).unwrap_or(1)
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
