//! Refusals of pods: where a controller is not let make them, a condition of its object says so, or an Event alone.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Seen, condition, text};
use crate::findings::Finding;
use crate::names::MUTATE_PATH;

/// The most objects of others that are looked at for who made them.
const INVOLVED_MAX: usize = 64;

/// Object that an Event speaks of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Involved {
    /// Version of its API, such as `batch/v1`.
    pub version: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
}

impl Involved {
    /// Object that this Event speaks of.
    pub fn of(event: &Value) -> Involved {
        let said = |field: &str| text(event, &format!("/involvedObject/{field}")).to_owned();
        Involved { version: said("apiVersion"), kind: said("kind"), name: said("name") }
    }
}

/// Objects besides this one that were refused a pod, and may be of its making.
pub fn refused(events: &Seen, kind: &str, name: &str) -> Vec<Involved> {
    let refusals = events.items().iter().filter(|event| is_refusal(event)).map(Involved::of);
    let others: BTreeSet<Involved> =
        refusals.filter(|involved| involved.kind != kind || involved.name != name).collect();
    others.into_iter().take(INVOLVED_MAX).collect()
}

/// Refusal that keeps the object from making pods, whoever refuses: of a Deployment by its condition, of others by the Events
/// on it and on what it has made.
pub(super) fn finding(object: &Value, events: &Seen) -> Option<Finding> {
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|one| one["status"] == "True") {
        return Some(told("its pods are refused", text(failure, "/message")));
    }
    // Its condition says all: a ReplicaSet of an earlier template may have been refused, and nobody waits for that one.
    if text(object, "/kind") == "Deployment" {
        return None;
    }
    let own = text(object, "/metadata/uid");
    let is_former = |event: &&Value| {
        let uid = text(event, "/involvedObject/uid");
        Involved::of(event).name == text(object, "/metadata/name")
            && Involved::of(event).kind == text(object, "/kind")
            && !own.is_empty()
            && !uid.is_empty()
            && own != uid
    };
    let all: Vec<&Value> = events.items().iter().filter(|event| !is_former(event)).collect();
    let stands = |refusal: &&Value| {
        let later = |event: &&Value| {
            is_success(event)
                && event.pointer("/involvedObject/uid") == refusal.pointer("/involvedObject/uid")
                && time(event) > time(refusal)
        };
        is_refusal(refusal) && !all.iter().any(later)
    };
    let newest = all.iter().copied().filter(stands).max_by_key(|event| time(event))?;
    let Involved { kind, name, .. } = Involved::of(newest);
    let found = format!("its pods are refused ({kind} {name}, last at {})", time(newest));
    Some(told(&found, text(newest, "/message")))
}

/// Time at which an Event was seen last.
pub(super) fn time(event: &Value) -> &str {
    let places = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/firstTimestamp"];
    places.iter().map(|place| text(event, place)).find(|time| !time.is_empty()).unwrap_or_default()
}

/// Returns whether an Event says that no pod was made: `FailedCreate` of controllers of Kubernetes, `FailedCreatePod` of Kubeflow's,
/// `FailedToCreateWorkerPod` of KubeRay. Of a pod itself it says something else.
fn is_refusal(event: &Value) -> bool {
    let reason = text(event, "/reason");
    let is_so = reason.starts_with("FailedCreate") || reason.starts_with("FailedToCreate");
    is_so && text(event, "/involvedObject/kind") != "Pod"
}

/// Returns whether an Event says that one was made: the same controllers' `SuccessfulCreate`, `SuccessfulCreatePod`,
/// `CreatedWorkerPod`.
fn is_success(event: &Value) -> bool {
    let reason = text(event, "/reason");
    reason.starts_with("SuccessfulCreate") || (reason.starts_with("Created") && reason.ends_with("Pod"))
}

fn told(found: &str, message: &str) -> Finding {
    let remedy = match message {
        said if said.contains("must be in the ranges") => RANGES,
        said if said.contains("failed calling webhook") && said.contains(".tensorlane.dev") => OUT_OF_REACH,
        _ => "the message says by whom, and mostly what to do",
    };
    Finding::problem("pods", format!("{found}: {}", without_secret_part(message)), remedy)
}

/// A message of an API server without the secret part of the webhook's path, which it names where it cannot call it.
/// Findings are shown to others.
fn without_secret_part(message: &str) -> String {
    let mark = format!("{MUTATE_PATH}/");
    let mut parts = message.split(mark.as_str());
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |told, rest| {
        let rest = rest.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric());
        format!("{told}{mark}…{rest}")
    })
}

/// Remedy for the refusal of an API server that does not reach the operator.
const OUT_OF_REACH: &str = "kubectl tensorlane check says whether the operator runs; where it does, the API server does not reach it: open the way to the port of the operator's pods (ports.webhook of the chart, 9443 unless set), or install the chart with hostNetwork: true (docs/kubernetes.md, A webhook out of reach)";

/// Remedy for the refusal of OpenShift, which chooses users by the project.
const RANGES: &str = "OpenShift chooses the users of a project: install the chart with sidecar.user: 0, so that the sidecar gets one of them, too (docs/kubernetes.md, OpenShift)";

#[cfg(test)]
#[path = "refusals_tests.rs"]
mod tests;
