//! Policies that the API server sees to by itself, whether the operator is there or not.
//!
//! - A pod that asked and did not get a sidecar is refused, also when somebody has deleted the webhook's configuration.
//! - A pod that asks and uses the network of its node, which the webhook does not see either, is refused with that reason.
//! - A pod that asks in a namespace which the webhook never sees is refused, too, and not left without a word.
//! - Only the pod itself writes the status of its peer: by the UID in its token, because the token of a deleted pod lives
//!   on for a while, and its successor may have the same name.
//! - Whoever makes a Deployment or the like is told at once what its pods would be refused for.

use serde_json::{Value, json};

use super::cel;
use super::install::{Installation, PEER_POLICY, labels};
use crate::annotations::KEYS;
use crate::names::{INJECT, PREFIX};
use crate::plan::Deny;

const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// The policies, each followed by its binding.
pub(super) fn all(installation: &Installation) -> Vec<Value> {
    let mut all = Vec::new();
    all.extend(peer_status(installation));
    all.extend(injected(installation));
    all.extend(injected_for_gpu(installation));
    all.extend(excluded(installation));
    all.extend(templates());
    all
}

/// The guard of an object stays when the operator is removed, like the definition of what it guards. The others go:
/// without an operator they would refuse every pod that asks.
fn metadata(name: &str) -> Value {
    let mut metadata = json!({"name": name, "labels": labels()});
    if name == PEER_POLICY {
        metadata["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    }
    metadata
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(name),
        "spec": spec,
    })
}

fn binding(name: &str, action: &str, more: &Value) -> Value {
    let mut binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(name),
        "spec": {"policyName": name, "validationActions": [action]},
    });
    if let (Some(spec), Some(more)) = (binding["spec"].as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    binding
}

pub(super) fn peer_status(installation: &Installation) -> [Value; 2] {
    let own = format!(
        "has(request.userInfo.extra) && '{POD_UID}' in request.userInfo.extra && oldObject.spec.podUID in request.userInfo.extra['{POD_UID}']"
    );
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["tensorlane.dev"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
            "resources": ["tensorpeers/status"], "scope": "Namespaced",
        }]},
        "matchConditions": [{
            "name": "not-the-operator",
            "expression": format!("request.userInfo.username != '{}'", installation.user()),
        }],
        "validations": [{
            "expression": own,
            "message": "only the pod that this TensorPeer belongs to may write its status: the UID in the caller's token is another one",
            "reason": "Forbidden",
        }],
    });
    [policy(PEER_POLICY, &spec), binding(PEER_POLICY, "Deny", &json!({}))]
}

/// Pods that are made, in the excluded namespaces (`In`) or elsewhere (`NotIn`).
fn pods(operator: &str, installation: &Installation) -> Value {
    json!({
        "namespaceSelector": {"matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": operator, "values": installation.excluded()},
        ]},
        "resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced",
        }],
    })
}

const NO_SIDECAR: &str = "the pod asks for a Tensorlane sidecar and has none, because the webhook was not called: see that the operator runs and that MutatingWebhookConfiguration tensorlane is there, or say tensorlane.dev/inject: disabled";

const NOT_NATIVE: &str = "the init container tensorlane has lost restartPolicy: Always, without which it is no sidecar: another webhook or an old client took the field afterwards, or the webhook was not called; kubectl get mutatingwebhookconfigurations lists who is called: use a release of theirs that knows sidecars, or say tensorlane.dev/inject: disabled";

const TAKEN_AWAY: &str = "the pod was given a Tensorlane sidecar (its annotation tensorlane.dev/status says so) and has none any more: another webhook took it out or moved it afterwards, or the webhook was not called; kubectl get mutatingwebhookconfigurations lists who is called, or say tensorlane.dev/inject: disabled";

/// Expression for the sentence to whoever asked and has no sidecar: the likely reason, by what is left of it. Without the
/// annotation of the webhook nothing says that it was ever called. For pods on the network of their node it is not.
fn reason() -> String {
    format!(
        "({}) ? '{}' : !{} ? '{NO_SIDECAR}' : {} ? '{NOT_NATIVE}' : '{TAKEN_AWAY}'",
        cel::is_on_host(),
        Deny::HostNetwork,
        cel::has_status(),
        cel::has_init_container()
    )
}

/// Expression: the sidecar is there, where one can be.
fn has_what_it_asks_for() -> String {
    format!("(({}) && ({}))", cel::has_sidecar(), cel::has_own_network())
}

fn injected(installation: &Installation) -> [Value; 2] {
    let name = "tensorlane-injected";
    let asks = format!("({}) || (({}) && {})", cel::pod_asks(), cel::pod_is_silent(), cel::namespace_asks());
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": pods("NotIn", installation),
        "matchConditions": [{"name": "no-mirror", "expression": cel::is_no_mirror()}],
        "validations": [{
            "expression": format!("!({asks}) || {}", has_what_it_asks_for()),
            "message": NO_SIDECAR,
            "messageExpression": reason(),
        }],
    });
    [policy(name, &spec), binding(name, "Deny", &json!({}))]
}

/// By GPUs of device plugins only: what a claim asks for, no expression can see.
fn injected_for_gpu(installation: &Installation) -> [Value; 2] {
    let name = "tensorlane-injected-gpus";
    let spec = json!({
        // Whatever keeps the API server from reading exchanges (their definition is not there yet, or not known to a new API
        // server for half a minute) fails before any condition is looked at: with Fail, for every pod of the cluster. What
        // must not be missed is the webhook's, whose entry fails closed.
        "failurePolicy": "Ignore",
        "paramKind": {"apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange"},
        "matchConstraints": pods("NotIn", installation),
        "matchConditions": [
            {"name": "is-silent", "expression": cel::pod_is_silent()},
            {"name": "no-mirror", "expression": cel::is_no_mirror()},
            {"name": "asks-for-a-gpu", "expression": cel::has_gpu()},
        ],
        "validations": [{
            "expression": format!("!({}) || {}", cel::exchange_asks(), has_what_it_asks_for()),
            "message": NO_SIDECAR,
            "messageExpression": reason(),
        }],
    });
    let params = json!({"paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"}});
    [policy(name, &spec), binding(name, "Deny", &params)]
}

/// By the pod's own word only: a label of such a namespace would take everything that a cluster runs on with it.
fn excluded(installation: &Installation) -> [Value; 2] {
    let name = "tensorlane-excluded";
    let spec = json!({
        // What a cluster needs to get up must not wait for us.
        "failurePolicy": "Ignore",
        "matchConstraints": pods("In", installation),
        "matchConditions": [{"name": "no-mirror", "expression": cel::is_no_mirror()}],
        "validations": [{
            "expression": format!("!({})", cel::pod_asks()),
            "message": "the namespace is excluded from Tensorlane: use another one, or take tensorlane.dev/inject off the pod",
            "messageExpression": format!(
                "'namespace \"' + object.metadata.namespace + '\" is excluded from Tensorlane: use another one, or take {INJECT} off the pod'"
            ),
        }],
    });
    [policy(name, &spec), binding(name, "Deny", &json!({}))]
}

fn templates() -> [Value; 2] {
    let name = "tensorlane-templates";
    let rule = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
            "resources": resources, "scope": "Namespaced",
        })
    };
    let spec = json!({
        // A warning that cannot be made must not stop anybody.
        "failurePolicy": "Ignore",
        "matchConstraints": {"resourceRules": [
            rule("apps", &["deployments", "statefulsets", "daemonsets"]),
            rule("batch", &["jobs", "cronjobs"]),
        ]},
        "variables": [
            {"name": "template", "expression": "object.kind == 'CronJob' ? object.spec.jobTemplate.spec.template : object.spec.template"},
            {"name": "said", "expression": "has(variables.template.metadata) && has(variables.template.metadata.annotations) ? variables.template.metadata.annotations : {}"},
            {"name": "unknown", "expression": format!("variables.said.filter(k, k.startsWith('{PREFIX}') && !(k in {}))", cel::known_keys())},
        ],
        "validations": template_checks(),
    });
    [policy(name, &spec), binding(name, "Warn", &json!({}))]
}

fn template_checks() -> Vec<Value> {
    let misplaced = json!({
        "expression": format!("!has(object.metadata.annotations) || !('{INJECT}' in object.metadata.annotations) || '{INJECT}' in variables.said"),
        "message": format!("{INJECT} stands on the object itself, where it has no effect: put it on the pods, under template.metadata.annotations"),
    });
    let unknown = json!({
        "expression": "variables.unknown.size() == 0",
        "message": "an annotation of Tensorlane is not known and has no effect",
        "messageExpression": "'not known to Tensorlane, and without effect: ' + variables.unknown.join(', ')",
    });
    let valid = KEYS.iter().filter_map(|row| {
        let key = format!("{PREFIX}{}", row.name);
        let check = row.cel?.replace("VALUE", &format!("variables.said['{key}']"));
        let message = format!("the pods will be refused: {key} must be {}", row.accepts);
        Some(json!({"expression": format!("!('{key}' in variables.said) || ({check})"), "message": message}))
    });
    [misplaced, unknown].into_iter().chain(valid).collect()
}
