//! Explains why a pod has a sidecar or not: by the planner itself, and by what became of the pod.

use serde_json::Value;
use tensorlane_proto::crd::DEFAULT_EXCHANGE;

use super::{Seen, condition, list, name, text};
use crate::findings::Finding;
use crate::names::{DEFAULT_ACCOUNT, EXCHANGE, INJECT, INJECTED, MUTATE_PATH, SIDECAR, STATUS};
use crate::offline::{claim_templates, pods};
use crate::plan::{Decision, Facts, Plan, Requests, Skip, Status, plan};
use crate::quantity::Amount;

/// Subject that is asked about, and what was read of it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// `Pod`, `Deployment` and so on.
    pub kind: String,
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
    let mut all = match subject.kind.as_str() {
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
    let remedy = match kind.as_str() {
        "Pod" => {
            "a pod that was refused is never there: explain what makes it, such as deployment/NAME or job/NAME"
        }
        _ => "-n NAMESPACE names another one",
    };
    Finding::problem("object", format!("there is no {kind} {name} in namespace {namespace}"), remedy)
}

fn is_injected(pod: &Value) -> bool {
    let label = pod.pointer("/metadata/labels").and_then(|labels| labels.get(INJECTED));
    label.and_then(Value::as_str) == Some("true") && container(pod).is_some()
}

/// The sidecar's container.
fn container(pod: &Value) -> Option<&Value> {
    list(pod, "/spec/initContainers").iter().find(|container| text(container, "/name") == SIDECAR)
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
    all.extend(container(pod).and_then(not_native));
    all.push(sidecar(&subject.name, pod));
    all.extend(memory(pod));
    all.push(no_member(subject, pod, exchange).unwrap_or_else(|| peer(subject)));
    all
}

/// Fault of a pod whose exchange is not open to it: its label says so, and the webhook was not asked.
fn no_member(subject: &Subject, pod: &Value, exchange: &str) -> Option<Finding> {
    let account = Some(text(pod, "/spec/serviceAccountName")).filter(|name| !name.is_empty());
    let account = account.unwrap_or(DEFAULT_ACCOUNT);
    let spec = subject.facts.as_ref().ok()?.exchanges.get(exchange)?;
    let is_alone = matches!(subject.peer, Seen::Missing) && exchange != DEFAULT_EXCHANGE;
    (is_alone && !spec.admits(account)).then(|| {
        Finding::problem(
            "peer",
            format!(
                "it has no TensorPeer: spec.members of exchange {exchange} has no service account {account}"
            ),
            "add it there, or make the pod with one of them as serviceAccountName",
        )
    })
}

/// Fault of a sidecar that is none to Kubernetes: the pod waits in it for ever.
fn not_native(container: &Value) -> Option<Finding> {
    (text(container, "/restartPolicy") != "Always").then(|| {
        Finding::problem(
            "sidecar",
            "its container has lost restartPolicy: Always, so the pod waits for it to end: the webhook was called, and another webhook took the field afterwards",
            "kubectl get mutatingwebhookconfigurations lists who is called: use a release of theirs that knows sidecars",
        )
    })
}

/// Fault of a limit that was lowered in place, by people or by a scaler, below what the arena takes.
fn memory(pod: &Value) -> Option<Finding> {
    let container = container(pod)?;
    let env = |name: &str| {
        let variable = list(container, "/env").iter().find(|one| text(one, "/name") == name)?;
        Amount::parse(text(variable, "/value")).ok()
    };
    let (arena, base) = (env("TENSORLANE_ARENA_SIZE")?, env("TENSORLANE_ARENA_BASE")?);
    let statuses = list(pod, "/status/initContainerStatuses");
    let actual = statuses.iter().find(|status| text(status, "/name") == SIDECAR);
    let limits =
        [actual, Some(container)].into_iter().flatten().map(|one| text(one, "/resources/limits/memory"));
    let limit = limits.filter_map(|limit| Amount::parse(limit).ok()).min()?;
    (limit < arena + base).then(|| {
        let [limit, arena, base] = [limit, arena, base].map(|amount| amount.memory().0);
        Finding::problem(
            "memory",
            format!("limit {limit}, arena {arena} and {base} beside it: the next put may end the sidecar, with all tensors"),
            "somebody made the sidecar smaller in place: set its limit back, and leave container tensorlane out of scalers (docs/scalers.md)",
        )
    })
}

fn who(asked: &str) -> &'static str {
    match asked {
        "pod" => "the pod",
        "namespace" => "its namespace",
        _ => "inject.gpuPods of its exchange",
    }
}

/// Returns whether a pod has ended well or is being deleted, so that its sidecar has nothing more to do.
fn is_over(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Succeeded" || pod.pointer("/metadata/deletionTimestamp").is_some()
}

fn sidecar(name: &str, pod: &Value) -> Finding {
    let about = "sidecar";
    if is_over(pod) {
        return Finding::note(about, "the pod is over");
    }
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
        Some(ready) if ["PodEnded", "PodEnding"].contains(&text(ready, "/reason")) => {
            Finding::note(about, format!("{}, so others do not use it any more", text(ready, "/message")))
        }
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
    let pods = pods(object);
    if pods.is_empty() {
        return vec![Finding::problem(
            "object",
            "it makes no pods",
            "explain pod/NAME, deployment/NAME, job/NAME …",
        )];
    }
    let facts = match &subject.facts {
        Ok(facts) => Facts { claim_templates: claim_templates(object), ..facts.clone() },
        Err(why) => {
            return vec![Finding::unknown("plan", why.clone(), "ask with an account that may read it")];
        }
    };
    let mut all = Vec::new();
    for (place, pod) in &pods {
        let mut found = planned_pod(subject, object, (place, pod), &facts);
        if pods.len() > 1 {
            found.iter_mut().for_each(|finding| finding.found = format!("{place}: {}", finding.found));
        }
        all.extend(found);
    }
    all.extend(failing(object));
    all
}

/// Findings on one pod or template of the object, by its place.
fn planned_pod(
    subject: &Subject,
    object: &Value,
    (place, pod): (&str, &Value),
    facts: &Facts,
) -> Vec<Finding> {
    let outcome = plan(pod, facts);
    let mut all: Vec<Finding> =
        outcome.warnings.iter().map(|warning| Finding::note("annotations", warning.clone())).collect();
    let found = match outcome.decision {
        Decision::Inject(plan) if subject.kind == "Pod" => Finding::problem(
            "plan",
            format!(
                "it asks for a sidecar of exchange {} and has none: it is older than the asking, or than Tensorlane",
                plan.exchange
            ),
            made_again(&subject.name, object),
        ),
        Decision::Inject(plan) => {
            all.push(requests(&plan, object));
            Finding::ok(
                "plan",
                format!(
                    "its pods get a sidecar of exchange {}: {} asked",
                    plan.exchange,
                    who(plan.asked.as_str())
                ),
            )
        }
        Decision::Deny(deny) => Finding::problem(
            "plan",
            format!("it asked and cannot be served ({})", deny.label()),
            deny.to_string(),
        ),
        Decision::Skip(_) if subject.kind == "Pod" && container(object).is_some() => Finding::note(
            "plan",
            "it has a container of the sidecar's name and not our labels, like a copy by kubectl debug: its sidecar belongs to no exchange, so no peer finds it",
        ),
        Decision::Skip(skip) => skipped(skip, place),
    };
    all.push(found);
    all
}

/// Requests that a queue counts, which reads the template, and those that nodes and quotas count.
fn requests(plan: &Plan, object: &Value) -> Finding {
    let number = |place: &str| object.pointer(place).and_then(Value::as_u64);
    let pods = number("/spec/parallelism").or_else(|| number("/spec/replicas"));
    let pods = pods.or_else(|| number("/spec/jobTemplate/spec/parallelism")).unwrap_or(1);
    let said = |of: &Requests, times: u64| {
        let times = Amount::whole(times);
        format!("cpu {} and memory {}", of.cpu.times(times).cpu().0, of.memory.times(times).memory().0)
    };
    let one =
        format!("the template asks for {}, the pod will for {}", said(&plan.own, 1), said(&plan.whole, 1));
    let all = match pods {
        0 | 1 => String::new(),
        pods => format!("; {pods} pods: {}, and {}", said(&plan.own, pods), said(&plan.whole, pods)),
    };
    Finding::note("requests", format!("{one}{all}"))
}

/// Refusal that keeps the object from making pods, whoever refuses.
fn failing(object: &Value) -> Option<Finding> {
    let failure = condition(object, "ReplicaFailure").filter(|one| one["status"] == "True")?;
    let found = format!("its pods are refused: {}", without_secret_part(text(failure, "/message")));
    let remedy = match text(failure, "/message") {
        said if said.contains("must be in the ranges") => RANGES,
        said if said.contains("failed calling webhook") && said.contains(".tensorlane.dev") => OUT_OF_REACH,
        _ => "the message says by whom, and mostly what to do",
    };
    Some(Finding::problem("pods", found, remedy))
}

/// A message of an API server without the secret part of the webhook's path, which it names where it cannot call it.
/// What is told here is shown to others.
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

/// Way in which a pod comes to be made anew.
fn made_again(name: &str, pod: &Value) -> String {
    if list(pod, "/metadata/ownerReferences").is_empty() {
        return format!(
            "nothing made it but somebody: delete it and apply its manifest again (kubectl delete pod {name})"
        );
    }
    format!("kubectl delete pod {name}: what made it makes another one, with a sidecar")
}

fn skipped(skip: Skip, place: &str) -> Finding {
    let place = match place {
        "" => "metadata.annotations of the pod, before it is made".to_owned(),
        place => format!("{place}.metadata.annotations"),
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
