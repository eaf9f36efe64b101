//! Content of a namespace, as plain data.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use tensorlane_proto::crd::{DEFAULT_EXCHANGE, POD_IPS_MAX, TensorExchange, TensorPeer};

use crate::manifests::Gap;
use crate::names::{DEFAULT_ACCOUNT, EXCHANGE, INJECTED, SIDECAR};

/// A single namespace.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// Name of the namespace.
    pub namespace: String,
    /// Exchanges of the namespace.
    pub exchanges: Vec<TensorExchange>,
    /// Pods of the namespace that have a sidecar by injection.
    pub pods: Vec<PodFacts>,
    /// Peers of the namespace.
    pub peers: Vec<TensorPeer>,
    /// Gap in what guards the status of peers; none where they are guarded.
    pub gap: Option<Gap>,
}

/// Facts that are needed of an injected pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Name of the pod, which is that of its peer.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// The exchange that it belongs to.
    pub exchange: String,
    /// Service account of the pod.
    pub account: String,
    /// The node, once it is known.
    pub node: Option<String>,
    /// The IP addresses of the pod, as its kubelet says them; none until it does.
    pub ips: Vec<String>,
    /// Set if its containers have ended for good.
    pub ended: bool,
    /// Set if it is being deleted.
    pub ending: bool,
    /// The sidecar's container is ready.
    pub sidecar_ready: bool,
    /// The node does not answer, so that what the containers last said says nothing.
    pub node_lost: bool,
}

impl PodFacts {
    /// Facts that are needed of a pod; none if it was not injected.
    pub fn of(pod: &Pod) -> Option<PodFacts> {
        let labels = pod.metadata.labels.as_ref()?;
        if labels.get(INJECTED).map(String::as_str) != Some("true") {
            return None;
        }
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let sidecars = status.and_then(|status| status.init_container_statuses.as_ref());
        Some(PodFacts {
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            exchange: labels.get(EXCHANGE).cloned().unwrap_or_else(|| DEFAULT_EXCHANGE.to_owned()),
            account: account(pod).to_owned(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            ips: ips(pod),
            ended: matches!(phase, Some("Succeeded" | "Failed")),
            ending: pod.metadata.deletion_timestamp.is_some(),
            sidecar_ready: sidecars.into_iter().flatten().any(|one| one.name == SIDECAR && one.ready),
            node_lost: node_lost(pod),
        })
    }
}

fn ips(pod: &Pod) -> Vec<String> {
    let said = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    said.into_iter().flatten().map(|one| one.ip.clone()).take(POD_IPS_MAX).collect()
}

fn account(pod: &Pod) -> &str {
    let said = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    said.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_ACCOUNT)
}

/// Kubernetes marks the pods of a node that does not answer as not ready, and leaves what their containers last said.
fn node_lost(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let status = |kind: &str| {
        let found =
            conditions.into_iter().flatten().find(|condition: &&PodCondition| condition.type_ == kind);
        found.map(|condition| condition.status.as_str())
    };
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    let gates_met = gates.into_iter().flatten().all(|gate| status(&gate.condition_type) == Some("True"));
    gates_met
        && status("ContainersReady") == Some("True")
        && status("Ready").is_some_and(|ready| ready != "True")
}
