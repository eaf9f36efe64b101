//! Golden pods in a namespace that enforces Pod Security `restricted`: what the API server itself says of each, without
//! and with the sidecar.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use kube::api::PostParams;
use serde_json::{Value, json};
use tensorlane_operator::names::PREFIX;
use tensorlane_operator::plan::Facts;
use tensorlane_operator::{Decision, Deny, plan};

use crate::common::{all, read};
use crate::objects::{api, create, make_namespace, until};

const STRICT: &str = "strict";
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// At least so many golden pods are injected; fewer mean that this test has lost what it is about.
const INJECTED: usize = 20;

/// Violations that the API server finds in a pod: for each rule, everything that its sentence names.
type Violations = BTreeMap<String, BTreeSet<String>>;

/// Every golden pod that is injected
/// - is taken as it is where nothing is enforced, and is as planned with the API server's defaults in it,
/// - breaks no rule of `restricted` that it does not break without its sidecar, and none by a name of ours,
/// - is taken where `restricted` is enforced, once the user's own containers keep the rules.
pub(crate) async fn golden_pods_pass_pod_security(admin: &Client) {
    make_namespace(admin, STRICT, &json!({ENFORCE: "restricted"})).await;
    let loose = pod(&json!({"containers": [{"name": "main", "image": "example.org/main"}]}));
    until("the namespace enforces", || async { (!violations(admin, &loose).await.is_empty()).then_some(()) })
        .await;
    let (mut taken, mut clean, mut refused) = (0, 0, Vec::new());
    for (name, yaml) in all() {
        let (pod, facts) = read(&yaml);
        let Decision::Inject(usual) = plan(&pod, &facts).decision else { continue };
        // A field of a later version is dropped with a warning, and claims need their feature: both are taken.
        let made = create(admin, &placed(&usual.pod, "ml"), true)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        nothing_is_to_be_done(&name, &serde_json::to_value(made).unwrap(), &facts);
        match plan(&pod, &enforced(facts.clone())).decision {
            Decision::Inject(plan) => {
                clean += usize::from(no_rule_is_broken_by_us(admin, &name, &pod, &plan.pod).await);
            }
            Decision::Deny(Deny::HostPathForbidden { .. }) => {
                refused.push(name);
                continue;
            }
            other => panic!("{name}: {other:?}"),
        }
        let Decision::Inject(plan) = plan(&hardened(&pod), &enforced(facts)).decision else {
            panic!("{name}")
        };
        let broken = violations(admin, &plan.pod).await;
        assert!(broken.is_empty(), "{name}: {broken:?}");
        taken += 1;
    }
    assert!(taken >= INJECTED && clean > 0, "{taken} were taken, {clean} of them as they are");
    assert_eq!(refused, ["same-node-host-path"], "the planner knows what cannot be had there");
}

/// An API server that calls again shows the pod with its defaults: a patch would change nothing, and be told as news.
fn nothing_is_to_be_done(name: &str, made: &Value, facts: &Facts) {
    let sidecar = &made["spec"]["initContainers"][0];
    assert_eq!(
        sidecar["terminationMessagePath"], "/dev/termination-log",
        "{name}: it has no defaults: {made}"
    );
    let Decision::Inject(again) = plan(made, facts).decision else { panic!("{name}") };
    assert!(again.patch.0.is_empty(), "{name}: {:#?}", again.patch);
}

/// Gives whether there is nothing against the pod at all.
async fn no_rule_is_broken_by_us(admin: &Client, name: &str, before: &Value, after: &Value) -> bool {
    let (old, new) = (violations(admin, &silent(before)).await, violations(admin, after).await);
    for (rule, names) in &new {
        let known =
            old.get(rule).unwrap_or_else(|| panic!("{name}: {rule} is broken by the sidecar: {names:?}"));
        assert!(names.is_subset(known), "{name}: {rule} is broken by {names:?}, and was by {known:?}");
        assert!(!names.iter().any(|named| named.starts_with("tensorlane")), "{name}: {rule}: {names:?}");
    }
    new.is_empty()
}

/// Facts that are known if `restricted` is enforced.
fn enforced(mut facts: Facts) -> Facts {
    facts.namespace.labels.insert(ENFORCE.to_owned(), "restricted".to_owned());
    facts
}

/// The pod that asks for nothing: one that asks and has no sidecar is refused for that.
fn silent(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let annotations = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    annotations.into_iter().for_each(|all| all.retain(|key, _| !key.starts_with(PREFIX)));
    pod
}

/// The pod with containers that keep the rules.
fn hardened(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let of_pod =
        json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}});
    json_patch::merge(&mut pod["spec"], &of_pod);
    let of_container =
        json!({"securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    for list in ["/spec/initContainers", "/spec/containers"] {
        let containers = pod.pointer_mut(list).and_then(Value::as_array_mut);
        containers.into_iter().flatten().for_each(|one| json_patch::merge(one, &of_container));
    }
    pod
}

fn pod(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

fn placed(pod: &Value, namespace: &str) -> Value {
    let mut pod = pod.clone();
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.insert("namespace".to_owned(), json!(namespace));
    if let Some(Value::String(prefix)) = metadata.remove("generateName") {
        metadata.insert("name".to_owned(), json!(format!("{prefix}x")));
    }
    pod
}

/// Violations of the pod if `restricted` is enforced; nothing if it is taken. It is only tried.
async fn violations(admin: &Client, pod: &Value) -> Violations {
    let pod = placed(pod, STRICT);
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let tried = api(admin, &pod).create(&parameters, &serde_json::from_value(pod.clone()).unwrap()).await;
    match tried {
        Ok(_) => Violations::new(),
        Err(kube::Error::Api(status)) => read_violations(&status.message),
        Err(error) => panic!("{error}"),
    }
}

/// Reads `… violates PodSecurity "restricted:latest": RULE (WHO "NAME" WHAT), RULE (…)`.
fn read_violations(message: &str) -> Violations {
    let (_, all) = message
        .split_once("violates PodSecurity \"restricted:latest\": ")
        .unwrap_or_else(|| panic!("it is refused for something else: {message}"));
    let all = all.strip_suffix(')').unwrap_or_else(|| panic!("the sentence goes on: {message}"));
    let read = |part: &str| {
        let (rule, who) =
            part.split_once(" (").unwrap_or_else(|| panic!("{part:?} names no rule: {message}"));
        (rule.to_owned(), who.split('"').skip(1).step_by(2).map(str::to_owned).collect())
    };
    all.split("), ").map(read).collect()
}

#[test]
fn the_sentence_of_a_refusal_is_read_rule_by_rule() {
    let read = read_violations(
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false \
         (containers \"main\", \"other\" must set securityContext.allowPrivilegeEscalation=false), restricted volume \
         types (volume \"tensorlane-node\" uses restricted volume type \"hostPath\")",
    );
    let names = |rule: &str| read[rule].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(read.len(), 2, "{read:?}");
    assert_eq!(names("allowPrivilegeEscalation != false"), ["main", "other"]);
    assert_eq!(names("restricted volume types"), ["hostPath", "tensorlane-node"]);
}

#[test]
#[should_panic(expected = "refused for something else")]
fn another_refusal_is_not_taken_for_one_of_pod_security() {
    read_violations("pods \"p\" is forbidden: the webhook was not called");
}
