//! Tests that Kubernetes understands what is generated, and that it is no more than is meant.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;
use crate::annotations::KEYS;

/// Object after it has been read as its type.
fn as_read(object: &Value) -> Value {
    fn again<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
        serde_json::to_value(serde_json::from_value::<T>(object.clone()).unwrap()).unwrap()
    }
    match object["kind"].as_str().unwrap() {
        "MutatingWebhookConfiguration" => again::<MutatingWebhookConfiguration>(object),
        "ValidatingAdmissionPolicy" => again::<ValidatingAdmissionPolicy>(object),
        "ValidatingAdmissionPolicyBinding" => again::<ValidatingAdmissionPolicyBinding>(object),
        "Deployment" => again::<Deployment>(object),
        "Namespace" => again::<Namespace>(object),
        "Secret" => again::<Secret>(object),
        "Lease" => again::<Lease>(object),
        "Service" => again::<Service>(object),
        "ServiceAccount" => again::<ServiceAccount>(object),
        "NetworkPolicy" => again::<NetworkPolicy>(object),
        "PodDisruptionBudget" => again::<PodDisruptionBudget>(object),
        "ClusterRole" => again::<ClusterRole>(object),
        "ClusterRoleBinding" => again::<ClusterRoleBinding>(object),
        "Role" => again::<Role>(object),
        "RoleBinding" => again::<RoleBinding>(object),
        other => panic!("nobody reads a {other}"),
    }
}

#[test]
fn every_field_is_one_that_kubernetes_knows() {
    for object in objects(&Installation::default()) {
        assert_eq!(as_read(&object), object);
    }
}

#[test]
fn nobody_may_do_everything() {
    for rule in CLUSTER_RULES.iter().chain(ROLE_RULES).chain(PEER_RULES) {
        let words = rule.resources.iter().chain(rule.verbs).chain(rule.names);
        assert!(words.clone().all(|word| !word.contains('*')), "{rule:?}");
    }
    let secrets = CLUSTER_RULES.iter().any(|rule| rule.resources.contains(&"secrets"));
    assert!(!secrets, "secrets of others are none of ours");
}

/// Nothing is ever deleted: an API server with OwnerReferencesPermissionEnforcement asks for the permission where an owner
/// changes, and that is what it is for. The suite `apiserver` sees that it is never used.
#[test]
fn what_may_be_deleted_are_the_two_things_whose_owners_change() {
    let all = CLUSTER_RULES.iter().chain(ROLE_RULES).chain(PEER_RULES);
    let deleting = all.filter(|rule| rule.verbs.iter().any(|verb| verb.starts_with("delete")));
    let found: Vec<_> = deleting.map(|rule| (rule.resources, rule.names, rule.verbs)).collect();
    let none: &[&str] = &[];
    let expected: [(&[&str], &[&str], &[&str]); 2] =
        [(&["tensorpeers"], none, &["delete"]), (&["rolebindings"], &["tensorlane-peer"], &["delete"])];
    assert_eq!(found, expected);
}

#[test]
fn the_operator_excludes_itself_and_kube_system_from_every_entry() {
    let installation = Installation::default();
    let all = objects(&installation);
    let webhooks = all.iter().find(|object| object["kind"] == "MutatingWebhookConfiguration").unwrap();
    for entry in webhooks["webhooks"].as_array().unwrap() {
        let outside = &entry["namespaceSelector"]["matchExpressions"][0];
        assert_eq!(outside["operator"], "NotIn");
        assert_eq!(outside["values"], serde_json::json!(["kube-system", "tensorlane-system"]));
        let client = &entry["clientConfig"];
        assert!(
            client.get("caBundle").is_none() && client["service"].get("path").is_none(),
            "the leader applies both"
        );
    }
}

#[test]
fn no_webhook_looks_at_the_namespace_in_its_conditions() {
    let entry = gpu_webhook("tensorlane-system", "", "/", &["ml".to_owned()]);
    let all = objects(&Installation::default());
    let webhooks = all.iter().filter(|object| object["kind"] == "MutatingWebhookConfiguration");
    let entries = webhooks.flat_map(|object| object["webhooks"].as_array().unwrap().clone()).chain([entry]);
    for entry in entries {
        for condition in entry["matchConditions"].as_array().unwrap() {
            assert!(!condition["expression"].as_str().unwrap().contains("namespaceObject"), "{condition}");
        }
    }
}

/// The API server refuses them by itself, in the words of the plan, and so without waiting for an operator.
#[test]
fn a_pod_on_the_network_of_its_node_is_refused_by_the_policy_and_shown_to_no_entry_without_a_claim() {
    let all = objects(&Installation::default());
    let named = |kind: &str, name: &str| {
        all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name).unwrap()
    };
    let own = "!has(object.spec.hostNetwork) || !object.spec.hostNetwork";
    let entries = named("MutatingWebhookConfiguration", "tensorlane")["webhooks"].as_array().unwrap();
    for entry in entries {
        let conditions = entry["matchConditions"].as_array().unwrap();
        assert!(conditions.iter().any(|one| one["expression"] == own), "{entry}");
    }
    let gpus = gpu_webhook("tensorlane-system", "", "/", &["ml".to_owned()]);
    let asks = gpus["matchConditions"][1]["expression"].as_str().unwrap();
    assert!(asks.contains(&format!(" && ({own})) || (has(object.spec.resourceClaims)")), "{asks}");
    let told = format!(
        "(has(object.spec.hostNetwork) && object.spec.hostNetwork) ? '{}' : ",
        crate::plan::Deny::HostNetwork
    );
    for name in ["tensorlane-injected", "tensorlane-injected-gpus"] {
        let check = &named("ValidatingAdmissionPolicy", name)["spec"]["validations"][0];
        let guarded = check["expression"].as_str().unwrap().ends_with(&format!(" && ({own}))"));
        let reason = check["messageExpression"].as_str().unwrap();
        assert!(guarded && reason.starts_with(&told), "{check}");
    }
}

#[test]
fn every_annotation_with_a_closed_form_is_checked_in_templates() {
    let checked = KEYS.iter().filter(|row| row.cel.is_some()).count();
    assert!(checked + 3 >= KEYS.len(), "only names of exchanges and containers cannot be checked there");
}
