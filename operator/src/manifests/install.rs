//! All objects of an installation, in the order in which they are made.

use serde_json::{Value, json};

use super::{crds, deployment, policies, rbac, webhooks};

/// Settings of an installation: where and as what it is made.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The operator's namespace.
    pub namespace: String,
    /// The operator's image.
    pub image: String,
    /// The sidecar's image.
    pub sidecar_image: String,
}

/// The operator's ServiceAccount, Deployment, Lease and roles.
pub(super) const OPERATOR: &str = "tensorlane-operator";
/// The Service of the webhook.
pub(super) const SERVICE: &str = "tensorlane-webhook";
/// The configuration of the webhook.
pub(super) const CONFIGURATION: &str = "tensorlane";
/// The Secret with the authorities of the webhook.
pub(super) const SECRET: &str = "tensorlane-webhook-ca";
/// Role that says what the pods of a namespace may do.
pub(super) const PEER_ROLE: &str = "tensorlane-peer";
/// The policy on the status of peers.
pub const PEER_POLICY: &str = "tensorlane-peer-status";

impl Default for Installation {
    fn default() -> Installation {
        let version = env!("CARGO_PKG_VERSION");
        Installation {
            namespace: "tensorlane-system".to_owned(),
            image: format!("ghcr.io/tensorlane/operator:{version}"),
            sidecar_image: format!("ghcr.io/tensorlane/sidecar:{version}"),
        }
    }
}

impl Installation {
    /// The name of the operator's ServiceAccount as the API server sees it.
    pub(super) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{OPERATOR}", self.namespace)
    }

    /// Namespaces whose pods are never touched: what a cluster needs to get up, and ourselves.
    pub(super) fn excluded(&self) -> Vec<String> {
        vec!["kube-system".to_owned(), self.namespace.clone()]
    }
}

/// The labels of everything.
pub(super) fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": "tensorlane",
        "app.kubernetes.io/component": "operator",
        "app.kubernetes.io/part-of": "tensorlane",
    })
}

/// Objects that the operator fills: its authorities and its lease. It would make them itself; made here, they go with
/// the rest.
pub(super) fn state(installation: &Installation) -> [Value; 2] {
    let metadata =
        |name: &str| json!({"name": name, "namespace": installation.namespace, "labels": labels()});
    [
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(SECRET), "type": "Opaque"}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata(OPERATOR)}),
    ]
}

/// Everything but the definitions of our objects.
pub(super) fn objects(installation: &Installation) -> Vec<Value> {
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": installation.namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    });
    let mut all = vec![namespace];
    // Before the operator runs, or it would serve pods that nobody guards.
    all.extend(policies::all(installation));
    all.extend(rbac::all(installation));
    all.extend(state(installation));
    all.extend(deployment::all(installation));
    all.push(webhooks::configuration(installation));
    all
}

/// Everything.
pub(super) fn all(installation: &Installation) -> Result<Vec<Value>, serde_yaml::Error> {
    let definitions: Result<Vec<Value>, _> = crds::all().iter().map(serde_yaml_value).collect();
    Ok(definitions?.into_iter().chain(objects(installation)).collect())
}

/// Converts a typed object to plain data.
pub(super) fn serde_yaml_value(object: &impl serde::Serialize) -> Result<Value, serde_yaml::Error> {
    serde_yaml::to_value(object).and_then(serde_yaml::from_value)
}
