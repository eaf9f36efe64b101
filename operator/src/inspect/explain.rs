//! Explains why a pod has a sidecar or not: by the planner itself, and by what became of the pod.

use serde_json::Value;

use super::{Seen, condition, list, name, text};
use crate::findings::Finding;
use crate::names::{EXCHANGE, INJECT, INJECTED, SIDECAR, STATUS};
use crate::offline::template;
use crate::plan::{Decision, Facts, Skip, Status, plan};

/// Subject that is asked about, and what was read of it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// `Pod`, `Deployment` and so on.
    pub kind: &'static str,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Itself.
    pub object: Seen,
    /// Facts that the planner has to know, or why they could not be read.
    pub facts: Result<Facts, String>,
    /// Ok if the operator's own settings are among the facts; else why not, and the defaults of this release are.
    pub settings: Result<(), String>,
    /// The Events that speak of it.
    pub events: Seen,
    /// The peer of a pod.
    pub peer: Seen,
}

/// Findings on the subject.
pub fn findings(subject: &Subject) -> Vec<Finding> {
    let object = match &subject.object {
        Seen::There(object) => object,
        Seen::Hidden(why) => {
            return vec![Finding::unknown(
                "object",
                format!("it cannot be read: {why}"),
                "ask with an account that may",
            )];
        }
        Seen::Missing => return vec![missing(subject)],
    };
    let mut all = match subject.kind {
        "Pod" if is_injected(object) => injected(subject, object),
        _ => planned(subject, object),
    };
    if let Err(why) = &subject.settings {
        all.push(Finding::unknown(
            "settings",
            format!("planned with the settings of this release, because those of the operator cannot be read: {why}"),
            "ask with an account that may read its Deployment, or say --operator-namespace",
        ));
    }
    all.extend(told(&subject.events));
    all
}

fn missing(subject: &Subject) -> Finding {
    let Subject { kind, name, namespace, .. } = subject;
    let remedy = match *kind {
        "Pod" => {
            "a pod that was refused is never there: explain what makes it, such as deployment/NAME or job/NAME"
        }
        _ => "-n NAMESPACE names another one",
    };
    Finding::problem("object", format!("there is no {kind} {name} in namespace {namespace}"), remedy)
}

fn is_injected(pod: &Value) -> bool {
    let label = pod.pointer("/metadata/labels").and_then(|labels| labels.get(INJECTED));
    label.and_then(Value::as_str) == Some("true")
        && list(pod, "/spec/initContainers").iter().any(|container| text(container, "/name") == SIDECAR)
}

// === with a sidecar ===

fn injected(subject: &Subject, pod: &Value) -> Vec<Finding> {
    let read =
        |place: &str, key: &str| pod.pointer(place).and_then(|map| map.get(key)).and_then(Value::as_str);
    let exchange = read("/metadata/labels", EXCHANGE).unwrap_or_default();
    let mut all = match read("/metadata/annotations", STATUS).and_then(Status::read) {
        None => vec![Finding::note(
            "injected",
            format!("it has a sidecar of exchange {exchange}, and no word of how"),
        )],
        Some(status) => vec![Finding::ok(
            "injected",
            format!(
                "{} asked; exchange {exchange}, arena {}, by release {}",
                who(&status.asked),
                status.arena,
                status.version
            ),
        )],
    };
    all.push(sidecar(&subject.name, pod));
    all.push(peer(subject));
    all
}

fn who(asked: &str) -> &'static str {
    match asked {
        "pod" => "the pod",
        "namespace" => "its namespace",
        _ => "inject.gpuPods of its exchange",
    }
}

fn sidecar(name: &str, pod: &Value) -> Finding {
    let about = "sidecar";
    let statuses = list(pod, "/status/initContainerStatuses");
    let Some(status) = statuses.iter().find(|status| text(status, "/name") == SIDECAR) else {
        let scheduled = condition(pod, "PodScheduled").filter(|one| one["status"] != "True");
        let found = scheduled.map_or("it has not been started yet", |one| text(one, "/message"));
        return Finding::problem(about, found, format!("kubectl describe pod {name}"));
    };
    if status["ready"] == true {
        let restarts = status["restartCount"].as_i64().unwrap_or(0);
        return match restarts {
            0 => Finding::ok(about, "it is ready"),
            _ => Finding::note(
                about,
                format!("it is ready, after {restarts} restarts: {}", last_words(status)),
            ),
        };
    }
    let logs = format!("kubectl logs {name} -c {SIDECAR}");
    if text(status, "/lastState/terminated/reason") == "OOMKilled" {
        let remedy =
            "raise tensorlane.dev/memory: what it needs beside the arena, about 1Mi a connected peer";
        return Finding::problem(about, "the kernel ended it for memory (OOMKilled)", remedy);
    }
    match text(status, "/state/waiting/reason") {
        "" => Finding::problem(about, format!("it is not ready: {}", last_words(status)), logs),
        "CrashLoopBackOff" => Finding::problem(
            about,
            format!("it ends again and again: {}", last_words(status)),
            format!("{logs} --previous"),
        ),
        reason => {
            let found = format!("{reason}: {}", text(status, "/state/waiting/message"));
            Finding::problem(about, found, format!("kubectl describe pod {name}"))
        }
    }
}

/// Last words of the container: the end of its log, by its termination message policy.
fn last_words(status: &Value) -> String {
    let places = ["/state/terminated", "/lastState/terminated"];
    let said = places.iter().find_map(|place| status.pointer(place));
    let Some(said) = said else { return "it has said nothing yet".to_owned() };
    match text(said, "/message").trim() {
        "" => format!("exit code {}", said["exitCode"]),
        message => message.chars().take(1000).collect(),
    }
}

fn peer(subject: &Subject) -> Finding {
    let about = "peer";
    let peer = match &subject.peer {
        Seen::There(peer) => peer,
        Seen::Hidden(why) => {
            return Finding::unknown(
                about,
                format!("its TensorPeer cannot be read: {why}"),
                "ask with an account that may",
            );
        }
        Seen::Missing => {
            let found = "it has no TensorPeer: others cannot find it";
            return Finding::problem(
                about,
                found,
                "the leader of the operator makes it: kubectl tensorlane check",
            );
        }
    };
    match condition(peer, "Ready") {
        Some(ready) if ready["status"] == "True" => Finding::ok(about, text(ready, "/message")),
        Some(ready) => Finding::problem(
            about,
            format!("{} ({})", text(ready, "/message"), text(ready, "/reason")),
            format!("kubectl describe txp {}; kubectl logs {} -c {SIDECAR}", name(peer), name(peer)),
        ),
        None => {
            Finding::problem(about, "nobody has said yet whether others reach it", "kubectl tensorlane check")
        }
    }
}

// === without one ===

fn planned(subject: &Subject, object: &Value) -> Vec<Finding> {
    let Some(pod) = template(subject.kind).and_then(|place| object.pointer(place)) else {
        return vec![Finding::problem(
            "object",
            "it makes no pods",
            "explain pod/NAME, deployment/NAME, job/NAME …",
        )];
    };
    let facts = match &subject.facts {
        Ok(facts) => facts,
        Err(why) => {
            return vec![Finding::unknown("plan", why.clone(), "ask with an account that may read it")];
        }
    };
    let outcome = plan(pod, facts);
    let mut all: Vec<Finding> =
        outcome.warnings.iter().map(|warning| Finding::note("annotations", warning.clone())).collect();
    all.push(match outcome.decision {
        Decision::Inject(plan) if subject.kind == "Pod" => Finding::problem(
            "plan",
            format!("it asks for a sidecar of exchange {} and has none: it is older than the asking, or than Tensorlane", plan.exchange),
            made_again(&subject.name, object),
        ),
        Decision::Inject(plan) => Finding::ok(
            "plan",
            format!("its pods get a sidecar of exchange {}: {} asked", plan.exchange, who(plan.asked.as_str())),
        ),
        Decision::Deny(deny) => {
            Finding::problem("plan", format!("it asked and cannot be served ({})", deny.label()), deny.to_string())
        }
        Decision::Skip(skip) => skipped(skip, subject.kind),
    });
    all
}

/// Way in which a pod comes to be made anew.
fn made_again(name: &str, pod: &Value) -> String {
    if list(pod, "/metadata/ownerReferences").is_empty() {
        return format!(
            "nothing made it but somebody: delete it and apply its manifest again (kubectl delete pod {name})"
        );
    }
    format!("kubectl delete pod {name}: what made it makes another one, with a sidecar")
}

fn skipped(skip: Skip, kind: &str) -> Finding {
    let place = match kind {
        "Pod" => "metadata.annotations of the pod, before it is made",
        "CronJob" => "spec.jobTemplate.spec.template.metadata.annotations",
        _ => "spec.template.metadata.annotations",
    };
    let remedy = match skip {
        Skip::MirrorPod => None,
        Skip::NotRequested | Skip::Disabled => Some(format!("to ask for one: {INJECT}: enabled in {place}")),
    };
    Finding { remedy, ..Finding::note("plan", format!("no sidecar: {skip}")) }
}

/// Findings that the operator has told the owner: the newest of each kind.
fn told(events: &Seen) -> Vec<Finding> {
    let mut ours: Vec<&Value> = events
        .items()
        .iter()
        .filter(|event| text(event, "/reportingController").starts_with("tensorlane"))
        .collect();
    ours.sort_unstable_by_key(|event| {
        let series = text(event, "/series/lastObservedTime");
        if series.is_empty() { text(event, "/eventTime") } else { series }
    });
    let newest = ours.last();
    let sentence = |event: &&Value| format!("{}: {}", text(event, "/reason"), text(event, "/note"));
    newest.map(|event| Finding::note("event", sentence(event))).into_iter().collect()
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
