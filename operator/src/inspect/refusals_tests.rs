use serde_json::json;

use super::*;
use crate::findings::text as shown;

const OPENSHIFT: &str = "Error creating: pods \"x-\" is forbidden: unable to validate against any security context constraint: provider restricted-v2: .initContainers[0].runAsUser: Invalid value: 64646: must be in the ranges: [1000920000, 1000929999]";
const UNREACHED: &str = "Internal error occurred: failed calling webhook \"pods.tensorlane.dev\": failed to call webhook: Post \"https://tensorlane-webhook.tensorlane-system.svc:443/mutate/0123456789abcdef?timeout=5s\": context deadline exceeded";

/// An Event as controllers write it, of a second of one minute.
fn event(kind: &str, name: &str, reason: &str, second: u8, message: &str) -> Value {
    json!({
        "reason": reason, "message": message, "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
        "involvedObject": {"apiVersion": "batch/v1", "kind": kind, "name": name, "uid": format!("of-{name}")},
    })
}

fn told_of(kind: &str, events: &[Value]) -> String {
    let object = json!({"kind": kind, "metadata": {"name": "x", "uid": "of-x"}});
    let found = finding(&object, &Seen::There(json!({"items": events})));
    found.map(|found| shown(&[found])).unwrap_or_default()
}

#[test]
fn a_condition_says_by_whom_and_users_out_of_range_have_an_answer() {
    let mut object = json!({"kind": "Deployment"});
    object["status"] =
        json!({"conditions": [{"type": "ReplicaFailure", "status": "True", "message": OPENSHIFT}]});
    let text = shown(&[finding(&object, &Seen::Missing).unwrap()]);
    assert!(text.contains("its pods are refused") && text.contains("sidecar.user: 0"), "{text}");
    object["status"]["conditions"][0]["message"] = json!(UNREACHED);
    let text = shown(&[finding(&object, &Seen::Missing).unwrap()]);
    assert!(text.contains("hostNetwork: true"), "{text}");
    assert!(text.contains(":443/mutate/…?timeout=5s\": context") && !text.contains("abcdef"), "{text}");
}

#[test]
fn a_controller_that_sets_no_condition_is_heard_by_its_events() {
    for (kind, reason) in [
        ("Job", "FailedCreate"),
        ("StatefulSet", "FailedCreate"),
        ("DaemonSet", "FailedCreate"),
        ("PyTorchJob", "FailedCreatePod"),
        ("RayCluster", "FailedToCreateWorkerPod"),
    ] {
        let text = told_of(kind, &[event(kind, "x", reason, 1, OPENSHIFT)]);
        let found = format!("its pods are refused ({kind} x, last at 2026-01-01T00:00:01Z): Error creating");
        assert!(text.contains(&found) && text.contains("sidecar.user: 0"), "{text}");
        let text = told_of(kind, &[event(kind, "x", reason, 1, UNREACHED)]);
        assert!(text.contains("hostNetwork: true") && !text.contains("abcdef"), "{text}");
    }
    // The one on what the object has made counts as well: what else is in the list, its reader has left out.
    let text = told_of("JobSet", &[event("Job", "x-workers-0", "FailedCreate", 1, OPENSHIFT)]);
    assert!(text.contains("(Job x-workers-0, last at ") && text.contains("sidecar.user: 0"), "{text}");
}

#[test]
fn a_refusal_is_over_once_a_pod_was_made_and_one_of_a_former_object_was_never_there() {
    let (refused, again) = (
        event("Job", "x", "FailedCreate", 1, "exceeded quota"),
        event("Job", "x", "FailedCreate", 9, "exceeded quota again"),
    );
    let made = event("Job", "x", "SuccessfulCreate", 5, "Created pod: x-abcde");
    assert_eq!(told_of("Job", &[refused.clone(), made.clone()]), "");
    assert!(told_of("Job", &[refused.clone(), made.clone(), again]).contains("exceeded quota again"));
    // Of another Job of the set it says nothing.
    let other = event("Job", "x-0", "FailedCreate", 1, "exceeded quota");
    assert!(told_of("JobSet", &[other, made]).contains("exceeded quota"));
    let mut former = refused;
    former["involvedObject"]["uid"] = json!("another");
    assert_eq!(told_of("Job", &[former]), "");
    // The kubelet says so of a pod that is there.
    assert_eq!(told_of("Pod", &[event("Pod", "x", "FailedCreatePodSandBox", 1, "network")]), "");
}

#[test]
fn what_else_was_refused_is_asked_for_who_made_it_once() {
    let events = [
        event("Job", "x", "FailedCreate", 1, ""),
        event("Job", "x-0", "FailedCreate", 1, ""),
        event("Job", "x-0", "FailedCreate", 2, ""),
        event("Job", "y", "SuccessfulCreate", 1, ""),
        event("Pod", "z", "FailedCreatePodSandBox", 1, ""),
    ];
    let others = refused(&Seen::There(json!({"items": events})), "Job", "x");
    assert_eq!(others.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["x-0"]);
    assert_eq!(refused(&Seen::Hidden("no".to_owned()), "Job", "x"), []);
}
