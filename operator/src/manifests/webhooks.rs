//! Conditions on which the API server calls the webhook: only for pods that ask, so that nobody else ever waits for it.
//!
//! Pods on the network of their node get no sidecar. They are what a node needs to come up, so policies refuse those that
//! ask, at once. Those with claims alone are shown for their GPUs: no policy sees what a claim is on.

use serde_json::{Value, json};

use super::cel;
use super::install::{CONFIGURATION, Installation, SERVICE, labels};

/// The entries that stand in the installation. Their bundle and the path that they call are applied by the leader.
pub const WEBHOOKS: [&str; 2] = ["pods.tensorlane.dev", "namespaces.tensorlane.dev"];

/// The entry for pods with GPUs, which the leader applies where an exchange wants them.
pub const GPU_WEBHOOK: &str = "gpus.tensorlane.dev";

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The configuration as it is installed: without a bundle and without a path, so that tools that compare see no drift.
pub(super) fn configuration(installation: &Installation) -> Value {
    let outside = json!({"key": NAME_LABEL, "operator": "NotIn", "values": installation.excluded()});
    let asks = json!({"matchExpressions": [outside]});
    // A label with another value must be refused with a reason, so it is not left out here.
    let labelled = json!({"key": crate::names::INJECT, "operator": "Exists"});
    let not_off = json!({"key": crate::names::INJECT, "operator": "NotIn", "values": ["disabled"]});
    let inherits = json!({"matchExpressions": [outside, labelled, not_off]});
    let [pods, namespaces] = WEBHOOKS;
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "labels": labels()},
        "webhooks": [
            entry(pods, &installation.namespace, &asks, &[("asks", cel::pod_asks()), own_network()]),
            entry(
                namespaces,
                &installation.namespace,
                &inherits,
                &[("is-silent", cel::pod_is_silent()), own_network()],
            ),
        ],
    })
}

/// Condition of entries that are always there.
fn own_network() -> (&'static str, String) {
    ("has-own-network", cel::has_own_network())
}

/// The entry for pods with GPUs in these namespaces, with its bundle and its path.
pub fn gpu_webhook(operator_namespace: &str, bundle: &str, path: &str, namespaces: &[String]) -> Value {
    let chosen = json!({"matchExpressions": [{"key": NAME_LABEL, "operator": "In", "values": namespaces}]});
    let limits = format!("({}) && ({})", cel::has_gpu(), cel::has_own_network());
    let asks = format!("({limits}) || ({})", cel::has_claims());
    let conditions = [("is-silent", cel::pod_is_silent()), ("asks-for-a-gpu", asks)];
    let mut entry = entry(GPU_WEBHOOK, operator_namespace, &chosen, &conditions);
    entry["clientConfig"]["caBundle"] = json!(bundle);
    entry["clientConfig"]["service"]["path"] = json!(path);
    entry
}

fn entry(name: &str, namespace: &str, selector: &Value, conditions: &[(&str, String)]) -> Value {
    let conditions: Vec<Value> =
        conditions.iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect();
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": SERVICE, "namespace": namespace, "port": 443}},
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        // Events are left out of dry runs.
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 5,
        "namespaceSelector": selector,
        "objectSelector": {},
        "matchConditions": conditions,
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced",
        }],
    })
}
