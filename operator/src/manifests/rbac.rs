//! Permissions: the operator no more than it uses, and a pod no more than to read its peers and to write its own
//! status.

use serde_json::{Value, json};

use super::install::{CONFIGURATION, Installation, OPERATOR, PEER_POLICY, PEER_ROLE, SECRET, labels};

/// A single permission.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The group of the resources.
    pub group: &'static str,
    /// The resources.
    pub resources: &'static [&'static str],
    /// Names of the objects; all if empty.
    pub names: &'static [&'static str],
    /// Verbs that are permitted.
    pub verbs: &'static [&'static str],
    /// Reason for which it is needed.
    pub why: &'static str,
}

const OURS: &str = "tensorlane.dev";

/// The operator deletes nothing.
const OWNERS: &str = "where OwnerReferencesPermissionEnforcement is on (OpenShift), only who may delete an object may say whose it is: the peer of a pod that comes again under its name, the permission of another exchange";

/// Rules for what the operator may do everywhere.
pub const CLUSTER_RULES: &[Rule] = &[
    Rule {
        group: "",
        resources: &["namespaces"],
        names: &[],
        verbs: &["get"],
        why: "the webhook reads the labels of a pod's namespace",
    },
    Rule {
        group: "",
        resources: &["limitranges", "resourcequotas"],
        names: &[],
        verbs: &["list"],
        why: "the webhook plans for what the namespace allows",
    },
    Rule {
        group: "resource.k8s.io",
        resources: &["resourceclaims", "resourceclaimtemplates"],
        names: &[],
        verbs: &["get"],
        why: "the webhook finds out whether a pod's claims are on GPUs",
    },
    Rule {
        group: "apps",
        resources: &["replicasets"],
        names: &[],
        verbs: &["get"],
        why: "an Event belongs on the Deployment behind a ReplicaSet",
    },
    Rule {
        group: "batch",
        resources: &["jobs"],
        names: &[],
        verbs: &["get"],
        why: "an Event belongs on the CronJob behind a Job",
    },
    Rule {
        group: "",
        resources: &["pods"],
        names: &[],
        verbs: &["list", "watch"],
        why: "each injected pod gets its peer, and is watched for its end",
    },
    Rule {
        group: OURS,
        resources: &["tensorexchanges"],
        names: &[],
        verbs: &["list", "watch", "create"],
        why: "the default exchange is made, and all are counted",
    },
    Rule {
        group: OURS,
        resources: &["tensorexchanges/status"],
        names: &[],
        verbs: &["patch"],
        why: "counts and conditions of exchanges",
    },
    Rule {
        group: OURS,
        resources: &["tensorpeers"],
        names: &[],
        verbs: &["list", "watch", "create", "patch"],
        why: "each injected pod has one",
    },
    Rule { group: OURS, resources: &["tensorpeers"], names: &[], verbs: &["delete"], why: OWNERS },
    Rule {
        group: OURS,
        resources: &["tensorpeers/status"],
        names: &[],
        verbs: &["patch"],
        why: "a pod of the same name begins anew, and the pod's node may be lost",
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resources: &["rolebindings"],
        names: &[],
        verbs: &["create", "patch"],
        why: "the pods of a namespace with an exchange may read its peers",
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resources: &["rolebindings"],
        names: &[PEER_ROLE],
        verbs: &["delete"],
        why: OWNERS,
    },
    Rule {
        group: "rbac.authorization.k8s.io",
        resources: &["clusterroles"],
        names: &[PEER_ROLE],
        verbs: &["bind"],
        why: "that one role is all that it may give",
    },
    Rule {
        group: "events.k8s.io",
        resources: &["events"],
        names: &[],
        verbs: &["create", "patch"],
        why: "the owner of a pod is told why it has a sidecar or not",
    },
    Rule {
        group: "admissionregistration.k8s.io",
        resources: &["mutatingwebhookconfigurations"],
        names: &[CONFIGURATION],
        verbs: &["patch"],
        why: "the bundle of authorities, the path, and the namespaces whose pods with GPUs are served",
    },
    Rule {
        group: "admissionregistration.k8s.io",
        resources: &["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        names: &[PEER_POLICY],
        verbs: &["get"],
        why: "no pod may write the status of peers while nobody guards whose",
    },
];

/// Rules for what the operator may do in its own namespace.
pub const ROLE_RULES: &[Rule] = &[
    Rule {
        group: "",
        resources: &["secrets"],
        names: &[SECRET],
        verbs: &["get", "update"],
        why: "the authorities of the webhook, and the secret part of its path",
    },
    Rule {
        group: "",
        resources: &["secrets"],
        names: &[],
        verbs: &["create"],
        why: "the first of them; a name cannot be asked for when something is made",
    },
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[OPERATOR],
        verbs: &["get", "patch"],
        why: "one replica leads",
    },
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        names: &[],
        verbs: &["create"],
        why: "the first lease",
    },
];

/// Rules for what the pods of a namespace with an exchange may do there.
pub const PEER_RULES: &[Rule] = &[
    Rule {
        group: OURS,
        resources: &["tensorpeers"],
        names: &[],
        verbs: &["get", "list", "watch"],
        why: "a sidecar finds its peers",
    },
    Rule {
        group: OURS,
        resources: &["tensorpeers/status"],
        names: &[],
        verbs: &["patch"],
        why: "a sidecar says who it is; a policy sees to it that it speaks of itself",
    },
];

const VIEW: &str = "tensorlane-view";
const EDIT: &str = "tensorlane-edit";

/// Rules for what people may read who may read pods.
const VIEW_RULES: &[Rule] = &[Rule {
    group: OURS,
    resources: &["tensorexchanges", "tensorpeers"],
    names: &[],
    verbs: &["get", "list", "watch"],
    why: "people look at exchanges and peers",
}];

/// Rules for what people may change who may change pods. Peers are the operator's.
const EDIT_RULES: &[Rule] = &[Rule {
    group: OURS,
    resources: &["tensorexchanges"],
    names: &[],
    verbs: &["create", "update", "patch", "delete", "deletecollection"],
    why: "people make exchanges for their pods",
}];

/// The roles, the account and what binds them.
pub(super) fn all(installation: &Installation) -> Vec<Value> {
    let namespace = &installation.namespace;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": OPERATOR, "namespace": namespace, "labels": labels()},
    });
    vec![
        account,
        role("ClusterRole", OPERATOR, None, CLUSTER_RULES),
        binding("ClusterRoleBinding", "ClusterRole", None, namespace),
        role("Role", OPERATOR, Some(namespace), ROLE_RULES),
        binding("RoleBinding", "Role", Some(namespace), namespace),
        kept(role("ClusterRole", PEER_ROLE, None, PEER_RULES)),
        people(VIEW, &["view", "edit", "admin"], VIEW_RULES),
        people(EDIT, &["edit", "admin"], EDIT_RULES),
    ]
}

/// A role that Kubernetes adds to the usual ones of people, so that whoever may see or change pods in a namespace may do the
/// same with exchanges.
fn people(name: &str, added_to: &[&str], rules: &[Rule]) -> Value {
    let mut role = role("ClusterRole", name, None, rules);
    for usual in added_to {
        role["metadata"]["labels"][format!("rbac.authorization.k8s.io/aggregate-to-{usual}")] = json!("true");
    }
    role
}

/// The RoleBindings of exchanges, which stay, are of this role: a pod that goes on without an operator has to publish its
/// next key.
fn kept(mut role: Value) -> Value {
    role["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    role
}

fn role(kind: &str, name: &str, namespace: Option<&str>, rules: &[Rule]) -> Value {
    let rules: Vec<Value> = rules.iter().map(Rule::json).collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": metadata(name, namespace),
        "rules": rules,
    })
}

fn binding(kind: &str, role: &str, namespace: Option<&str>, of: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
        "metadata": metadata(OPERATOR, namespace),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": OPERATOR},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": of}],
    })
}

fn metadata(name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = json!({"name": name, "labels": labels()});
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    metadata
}

impl Rule {
    fn json(&self) -> Value {
        let mut rule = json!({"apiGroups": [self.group], "resources": self.resources, "verbs": self.verbs});
        if !self.names.is_empty() {
            rule["resourceNames"] = json!(self.names);
        }
        rule
    }
}
