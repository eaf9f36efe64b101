//! Explains why a pod has a sidecar or not: by the planner itself, and by what became of the pod.

use serde_json::Value;
use tensorlane_proto::crd::DEFAULT_EXCHANGE;

use super::{Seen, condition, container, is_over, list, memory, name, refusals, text};
use crate::findings::Finding;
use crate::names::{DEFAULT_ACCOUNT, EXCHANGE, INJECT, INJECTED, SIDECAR, STATUS};
use crate::offline::{Template, claim_templates, pods, without_template};
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
    /// The Events that speak of it, and of what it has made, as `v1` has them.
    pub events: Seen,
    /// Ok if it could be read who made what else was refused a pod; else why not.
    pub makers: Result<(), String>,
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
    all.extend(memory::of_pod(pod));
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

fn who(asked: &str) -> &'static str {
    match asked {
        "pod" => "the pod",
        "namespace" => "its namespace",
        _ => "inject.gpuPods of its exchange",
    }
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
    let mut all = match pods.is_empty() {
        true => vec![without_pods(object)],
        false => plans(subject, object, &pods),
    };
    if subject.kind != "Pod" {
        all.extend(refused(subject, object));
    }
    all
}

/// Finding on an object that has no pod and no template, or none that is whole.
fn without_pods(object: &Value) -> Finding {
    let lists = without_template(object);
    if lists.is_empty() {
        return Finding::problem(
            "object",
            "it makes no pods",
            "explain pod/NAME, deployment/NAME, job/NAME …",
        );
    }
    let found = format!(
        "its kind is not known here: the pods that come of {} are seen once they are there",
        lists.join(", ")
    );
    Finding::advice("object", found, "explain one of its pods: pod/NAME")
}

/// Findings on each pod or template of the object.
fn plans(subject: &Subject, object: &Value, pods: &[Template<'_>]) -> Vec<Finding> {
    let facts = match &subject.facts {
        Ok(facts) => Facts { claim_templates: claim_templates(object), ..facts.clone() },
        Err(why) => {
            return vec![Finding::unknown("plan", why.clone(), "ask with an account that may read it")];
        }
    };
    let mut all = Vec::new();
    for template in pods {
        let mut found = planned_pod(subject, object, template, &facts);
        if pods.len() > 1 {
            let place = &template.place;
            found.iter_mut().for_each(|finding| finding.found = format!("{place}: {}", finding.found));
        }
        all.extend(found);
    }
    all
}

/// Findings on one pod or template of the object.
fn planned_pod(subject: &Subject, object: &Value, template: &Template<'_>, facts: &Facts) -> Vec<Finding> {
    let outcome = plan(template.pod, facts);
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
            all.push(requests(&plan, template.count));
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
        Decision::Skip(skip) => skipped(skip, &template.place),
    };
    all.push(found);
    all
}

/// Requests that a queue counts, which reads the template, and those that nodes and quotas count; for so many pods, if that is known.
fn requests(plan: &Plan, count: Option<u64>) -> Finding {
    let said = |of: &Requests, times: u64| {
        let times = Amount::whole(times);
        format!("cpu {} and memory {}", of.cpu.times(times).cpu().0, of.memory.times(times).memory().0)
    };
    let one =
        format!("the template asks for {}, the pod will for {}", said(&plan.own, 1), said(&plan.whole, 1));
    let all = match count {
        None | Some(1) => String::new(),
        Some(0) => "; there are no such pods now".to_owned(),
        Some(pods) => format!("; {pods} pods: {}, and {}", said(&plan.own, pods), said(&plan.whole, pods)),
    };
    Finding::note("requests", format!("{one}{all}"))
}

/// Refusals of pods, and what of them could not be read.
fn refused(subject: &Subject, object: &Value) -> Vec<Finding> {
    let mut all: Vec<Finding> = refusals::finding(object, &subject.events).into_iter().collect();
    let hidden = match (&subject.events, &subject.makers) {
        (Seen::Hidden(why), _) => Some(format!("the Events cannot be read: {why}")),
        (_, Err(why)) => {
            Some(format!("something else was refused pods, and who made it cannot be read: {why}"))
        }
        _ => None,
    };
    all.extend(hidden.map(|why| {
        let found = format!("{why}; so a refusal of its pods may not be told here");
        Finding::unknown("pods", found, "ask with an account that may list Events and what makes pods")
    }));
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
        .filter(|event| text(event, "/reportingComponent").starts_with("tensorlane"))
        .collect();
    ours.sort_unstable_by_key(|event| refusals::time(event));
    let newest = ours.last();
    let sentence = |event: &&Value| format!("{}: {}", text(event, "/reason"), text(event, "/message"));
    newest.map(|event| Finding::note("event", sentence(event))).into_iter().collect()
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
