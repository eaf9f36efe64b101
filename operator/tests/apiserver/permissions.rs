//! Requests of the operator to the API server, by its audit log, against what the operator may ask.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tensorlane_operator::manifests::{CLUSTER_RULES, ROLE_RULES, Rule};

use crate::server::{AUDIT, Server};

const OPERATOR: &str = "system:serviceaccount:tensorlane-system:tensorlane-operator";

/// User that runs a sidecar's directory in the tests.
pub(crate) const TRAINER: &str = "system:serviceaccount:ml:trainer";

/// A permission: group, resource with its subresource, verb.
pub(crate) type Permission = (String, String, String);

/// Permissions that are granted and in no request: the API server asks for it by itself, where a RoleBinding is made,
/// and with `OwnerReferencesPermissionEnforcement`, which runs here, where an owner is changed. That each is needed is
/// tried (`needed`).
pub(crate) const UNSEEN: [(&str, &str, &str); 3] = [
    ("rbac.authorization.k8s.io", "clusterroles", "bind"),
    ("rbac.authorization.k8s.io", "rolebindings", "delete"),
    ("tensorlane.dev", "tensorpeers", "delete"),
];

/// Writes down what the operator and a sidecar's directory ask, and nobody else.
pub(crate) fn policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [OPERATOR, TRAINER]}, {"level": "None"}],
    })
}

/// Requests so far, in the order of the answers.
pub(crate) fn requests(server: &Server) -> Vec<Value> {
    let log = server.log(AUDIT);
    // The last line may be half written.
    let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every permission is used, and whatever was asked for was granted.
pub(crate) fn no_more_is_granted_than_is_used(server: &Server) {
    let lines = requests(server);
    let refused: Vec<&Value> = lines.iter().filter(|line| line["responseStatus"]["code"] == 403).collect();
    assert!(refused.is_empty(), "used and not granted: {refused:#?}");
    let used: BTreeSet<Permission> = lines.iter().flat_map(permissions_of).collect();
    let granted: BTreeSet<Permission> = CLUSTER_RULES.iter().chain(ROLE_RULES).flat_map(granted_by).collect();
    let unseen: BTreeSet<Permission> =
        UNSEEN.iter().map(|(group, resource, verb)| own(group, resource, verb)).collect();
    let idle: BTreeSet<&Permission> = granted.difference(&used).collect();
    assert_eq!(idle, unseen.iter().collect(), "granted and never used, against what cannot be seen here");
    let beyond: BTreeSet<&Permission> = used.difference(&granted).collect();
    assert!(beyond.is_empty(), "used by another grant than ours: {beyond:#?}");
}

pub(crate) fn own(group: &str, resource: &str, verb: &str) -> Permission {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

/// Each permission of a rule.
pub(crate) fn granted_by(rule: &Rule) -> Vec<Permission> {
    let of =
        |resource: &&str| rule.verbs.iter().map(|verb| own(rule.group, resource, verb)).collect::<Vec<_>>();
    rule.resources.iter().flat_map(of).collect()
}

/// Permissions that a request needed. An apply that makes the object needs to be allowed to make it, too.
fn permissions_of(line: &Value) -> Vec<Permission> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &line["objectRef"];
    let (group, mut resource) = (text(&object["apiGroup"]), text(&object["resource"]));
    // Which groups there are may be asked by anybody.
    if resource.is_empty() {
        return Vec::new();
    }
    if let Some(part) = object["subresource"].as_str() {
        resource = format!("{resource}/{part}");
    }
    let made = line["verb"] == "patch" && line["responseStatus"]["code"] == 201;
    let verbs = [text(&line["verb"])].into_iter().chain(made.then(|| "create".to_owned()));
    verbs.map(|verb| (group.clone(), resource.clone(), verb)).collect()
}
