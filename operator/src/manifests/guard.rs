//! Guard of the status of peers, as it is in a cluster: whether the policy and its binding still do what was installed.
//!
//! Pods may write that status by a permission of their namespace, and only the policy tells one pod from another. A policy
//! that is there by name and lets everything through is none. So its content is compared: what an API server adds by
//! itself and what makes the policy stricter is no difference, anything else is.

use serde_json::{Map, Value, json};

use super::Installation;
use super::install::PEER_POLICY;
use super::policies;

/// Gap in the guard: a word for conditions, and a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// `PolicyMissing` or `PolicyChanged`.
    pub reason: &'static str,
    /// Fault, as a part of a sentence.
    pub what: String,
    /// Remedy, as the end of a sentence.
    pub remedy: &'static str,
}

/// Remedy for policies that are missing or changed. The manifests speak of one namespace alone: elsewhere they would refuse what the
/// operator itself writes.
pub fn remedy(namespace: &str) -> &'static str {
    if namespace == Installation::default().namespace {
        "kubectl apply --server-side -f manifests/policies.yaml, or install the chart again"
    } else {
        "install the chart again (helm upgrade)"
    }
}

impl Gap {
    /// Sentence with what is wrong, what that means, and the remedy.
    pub fn message(&self) -> String {
        format!("{}, so that any pod that may write could speak for another one: {}", self.what, self.remedy)
    }
}

/// Finds the gap in a policy and its binding, as an API server has them; none where peers are guarded.
pub fn gap(policy: Option<&Value>, binding: Option<&Value>, installation: &Installation) -> Option<Gap> {
    let remedy = remedy(&installation.namespace);
    let [wanted_policy, wanted_binding] = policies::peer_status(installation);
    for (kind, found) in [("", policy), ("Binding", binding)] {
        if found.is_none() {
            let what = format!("ValidatingAdmissionPolicy{kind} {PEER_POLICY} is missing");
            return Some(Gap { reason: "PolicyMissing", what, remedy });
        }
    }
    let spec = |object: Option<&Value>| object.map_or(Value::Null, |object| object["spec"].clone());
    let wrong = in_policy(&spec(policy), &wanted_policy["spec"]).map(|field| ("", field));
    let wrong =
        wrong.or_else(|| in_binding(&spec(binding), &wanted_binding["spec"]).map(|field| ("Binding", field)));
    let (kind, (field, found)) = wrong?;
    let found: String = found.to_string().chars().take(SHOWN_MAX).collect();
    let what = format!(
        "{field} of ValidatingAdmissionPolicy{kind} {PEER_POLICY} is {found}, and not what was installed"
    );
    Some(Gap { reason: "PolicyChanged", what, remedy })
}

/// The most letters of a value that are shown.
const SHOWN_MAX: usize = 200;

/// Field that differs, and its value.
type Difference = (&'static str, Value);

fn in_policy(found: &Value, wanted: &Value) -> Option<Difference> {
    let differs = |field: &'static str, same: bool| (!same).then(|| (field, found[field].clone()));
    // What is absent is `Fail`.
    let fails = found["failurePolicy"].is_null() || found["failurePolicy"] == wanted["failurePolicy"];
    let rules = constraints(&found["matchConstraints"]) == constraints(&wanted["matchConstraints"]);
    let conditions = meant(&found["matchConditions"]) == meant(&wanted["matchConditions"]);
    differs("failurePolicy", fails)
        .or_else(|| differs("paramKind", found["paramKind"].is_null()))
        .or_else(|| differs("matchConstraints", rules))
        .or_else(|| differs("matchConditions", conditions))
        .or_else(|| differs("validations", holds_all(&found["validations"], &wanted["validations"])))
}

fn in_binding(found: &Value, wanted: &Value) -> Option<Difference> {
    let differs = |field: &'static str, same: bool| (!same).then(|| (field, found[field].clone()));
    let denies = found["validationActions"].as_array().is_some_and(|all| all.contains(&json!("Deny")));
    let everywhere = constraints(&found["matchResources"]) == constraints(&Value::Null);
    differs("policyName", found["policyName"] == wanted["policyName"])
        .or_else(|| differs("validationActions", denies))
        .or_else(|| differs("matchResources", everywhere))
        .or_else(|| differs("paramRef", found["paramRef"].is_null()))
}

/// Rules for what is looked at, without what says nothing: what is absent, empty, or the default of an API server.
fn constraints(rules: &Value) -> Map<String, Value> {
    let mut rules = meant(rules).as_object().cloned().unwrap_or_default();
    if rules.get("matchPolicy").is_some_and(|policy| policy == "Equivalent") {
        rules.remove("matchPolicy");
    }
    rules
}

/// Value without members that are null or empty.
fn meant(value: &Value) -> Value {
    let says_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(list) => Value::Array(list.iter().map(meant).collect()),
        Value::Object(map) => {
            let members = map.iter().map(|(key, value)| (key.clone(), meant(value)));
            Value::Object(members.filter(|(_, value)| !says_nothing(value)).collect())
        }
        other => other.clone(),
    }
}

/// Returns whether each expression that is wanted is there. More of them refuse more.
fn holds_all(found: &Value, wanted: &Value) -> bool {
    let expressions = |list: &Value| -> Vec<Value> {
        list.as_array().into_iter().flatten().map(|one| one["expression"].clone()).collect()
    };
    let found = expressions(found);
    expressions(wanted).iter().all(|expression| found.contains(expression))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed() -> [Value; 2] {
        policies::peer_status(&Installation::default())
    }

    fn found(policy: &Value, binding: &Value) -> Option<Gap> {
        gap(Some(policy), Some(binding), &Installation::default())
    }

    #[test]
    fn what_was_installed_is_a_guard_also_with_the_defaults_of_an_api_server() {
        let [mut policy, mut binding] = installed();
        assert_eq!(found(&policy, &binding), None);
        let rules = policy["spec"]["matchConstraints"].as_object_mut().unwrap();
        rules.extend(
            json!({"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}})
                .as_object()
                .unwrap()
                .clone(),
        );
        binding["spec"]["validationActions"] = json!(["Audit", "Deny"]);
        policy["spec"]["validations"].as_array_mut().unwrap().push(json!({"expression": "false"}));
        policy["status"] = json!({"observedGeneration": 1});
        assert_eq!(found(&policy, &binding), None, "stricter is no gap");
    }

    #[test]
    fn the_manifests_are_a_remedy_in_their_own_namespace_alone() {
        let remedy = |namespace: &str| {
            let installation = Installation { namespace: namespace.to_owned(), ..Installation::default() };
            gap(None, None, &installation).unwrap().message()
        };
        assert!(remedy("tensorlane-system").contains("manifests/policies.yaml"));
        assert!(remedy("infra").ends_with("install the chart again (helm upgrade)"));
    }

    #[test]
    fn whatever_is_missing_is_named_with_the_remedy() {
        let [policy, binding] = installed();
        for (policy, binding, named) in [
            (None, Some(&binding), "ValidatingAdmissionPolicy tensorlane-peer-status is missing"),
            (Some(&policy), None, "ValidatingAdmissionPolicyBinding tensorlane-peer-status is missing"),
        ] {
            let gap = gap(policy, binding, &Installation::default()).unwrap();
            assert!(gap.reason == "PolicyMissing" && gap.message().starts_with(named), "{gap:?}");
            assert!(gap.message().contains(gap.remedy), "{gap:?}");
        }
    }

    #[test]
    fn whatever_weakens_the_guard_is_named() {
        let of_policy = [
            ("/failurePolicy", json!("Ignore")),
            ("/paramKind", json!({"apiVersion": "v1", "kind": "ConfigMap"})),
            ("/matchConstraints/resourceRules/0/operations", json!(["CREATE"])),
            ("/matchConstraints/resourceRules/0/resourceNames", json!(["a"])),
            ("/matchConstraints/excludeResourceRules", json!([{"resources": ["*"]}])),
            ("/matchConstraints/namespaceSelector", json!({"matchLabels": {"guarded": "yes"}})),
            ("/matchConstraints/objectSelector", json!({"matchLabels": {"guarded": "yes"}})),
            ("/matchConstraints/matchPolicy", json!("Exact")),
            ("/matchConditions/0/expression", json!("false")),
            ("/matchConditions/1", json!({"name": "never", "expression": "false"})),
            ("/validations/0/expression", json!("true")),
            ("/validations", json!([])),
        ];
        let of_binding = [
            ("/policyName", json!("another")),
            ("/validationActions", json!(["Audit"])),
            ("/validationActions", json!(["Warn", "Audit"])),
            ("/matchResources", json!({"namespaceSelector": {"matchLabels": {"guarded": "yes"}}})),
            ("/paramRef", json!({"name": "x"})),
        ];
        let all = of_policy.into_iter().map(|one| (0, one)).chain(of_binding.into_iter().map(|one| (1, one)));
        for (which, (path, value)) in all {
            let mut objects = installed();
            let (parent, last) = path.rsplit_once('/').unwrap();
            match objects[which].pointer_mut(&format!("/spec{parent}")).unwrap() {
                Value::Array(list) => {
                    let at: usize = last.parse().unwrap();
                    list.truncate(at);
                    list.push(value.clone());
                }
                parent => parent[last] = value.clone(),
            }
            let [policy, binding] = &objects;
            let gap = found(policy, binding).unwrap_or_else(|| panic!("{path}: {value}"));
            let field = path.split('/').nth(1).unwrap();
            assert!(gap.reason == "PolicyChanged" && gap.message().starts_with(field), "{path}: {gap:?}");
        }
    }

    #[test]
    fn the_policy_of_an_operator_elsewhere_is_another_one() {
        let [policy, binding] = installed();
        let elsewhere = Installation { namespace: "elsewhere".to_owned(), ..Installation::default() };
        let gap = gap(Some(&policy), Some(&binding), &elsewhere).unwrap();
        assert!(gap.message().starts_with("matchConditions of ValidatingAdmissionPolicy "), "{gap:?}");
        assert!(gap.message().len() < 700, "an Event takes a kibibyte");
    }
}
