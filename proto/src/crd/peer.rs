//! `TensorPeer`: one sidecar of an exchange.

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::words::TransportKind;

/// Sidecar of an exchange. It has the name of its pod, belongs to it and goes with it. The operator writes the spec;
/// the sidecar writes the status, and nobody else can.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "tensorlane.dev",
    version = "v1alpha1",
    kind = "TensorPeer",
    plural = "tensorpeers",
    shortname = "txp",
    category = "tensorlane",
    namespaced,
    status = "PeerStatus",
    derive = "PartialEq",
    selectable = ".spec.exchange",
    selectable = ".spec.node",
    printcolumn = r#"{"name": "Exchange", "type": "string", "jsonPath": ".spec.exchange"}"#,
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".spec.node"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Addresses", "type": "string", "priority": 1, "jsonPath": ".status.addresses"}"#,
    printcolumn = r#"{"name": "Incarnation", "type": "string", "priority": 1, "jsonPath": ".status.incarnation"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.podUID != oldSelf.podUID || self.exchange == oldSelf.exchange")
    .message("a pod stays in its exchange for life: delete the pod and make another one"))]
pub struct PeerSpec {
    /// The exchange that the peer belongs to.
    #[schemars(length(min = 1, max = 63))]
    pub exchange: String,
    /// The UID of the pod. Only a token that was made for this very pod may write the status.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 64))]
    pub pod_uid: String,
    /// The node that the pod runs on, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// The IP addresses of the pod, as Kubernetes has them. Of the status's addresses others dial these alone; all of
    /// them where this is absent, as an operator of an earlier release leaves it.
    #[serde(rename = "podIPs", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), inner(length(min = 2, max = 64)), extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_ips: Option<Vec<String>>,
}

/// The most IP addresses of a pod that its peer's spec has. Kubernetes gives a pod one for each family.
pub const POD_IPS_MAX: usize = 8;

/// Returns whether an address `IP:PORT`, which a pod says of itself, is at one of the pod's own IP addresses. An operator of an
/// earlier release writes none of these, and then each passes.
pub fn is_at_pod(address: &str, pod_ips: Option<&[impl AsRef<str>]>) -> bool {
    let Some(pod_ips) = pod_ips else { return true };
    let ip = |text: &str| text.parse().ok().map(|ip: IpAddr| ip.to_canonical());
    let said = match address.parse() {
        // An interface of whoever reads it.
        Ok(SocketAddr::V6(said)) if said.scope_id() != 0 => return false,
        Ok(said) => said.ip().to_canonical(),
        Err(_) => return false,
    };
    pod_ips.iter().any(|own| ip(own.as_ref()) == Some(said))
}

/// Status that the sidecar reports of itself.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeerStatus {
    /// Incarnation, which names this life of the sidecar: 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9a-f]{32}$')")
        .message("status.incarnation must be 32 lower-case hexadecimal digits"))]
    pub incarnation: Option<String>,
    /// Addresses at which other peers reach it, `HOST:PORT`, to be tried in this order; none if it only calls others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 3, max = 300)), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// The SHA-256 fingerprints of its public key; two while a key is rotated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(max = 71)), extend("x-kubernetes-list-type" = "atomic"))]
    #[x_kube(validation = Rule::new("self.all(f, f.matches('^sha256:[0-9a-f]{64}$'))")
        .message("each of status.fingerprints must be 'sha256:' and 64 lower-case hexadecimal digits"))]
    pub fingerprints: Vec<String>,
    /// Offer of what it can speak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<PeerOffer>,
    /// The generation of the object that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: other peers can reach it.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::crd::readable::conditions"
    )]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Offer of what a peer can speak, each part of it tried on its side.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.versionMin <= self.versionMax")
    .message("status.offer.versionMin must not be above versionMax"))]
pub struct PeerOffer {
    /// The oldest version of the protocol.
    #[schemars(range(min = 0, max = 65535))]
    pub version_min: i32,
    /// The newest version of the protocol.
    #[schemars(range(min = 0, max = 65535))]
    pub version_max: i32,
    /// The transports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["transport"]))]
    pub transports: Vec<OfferedTransport>,
    /// A hint of the node that other peers compare with theirs; proof of nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub node_token: Option<String>,
    /// The UUIDs of the GPUs that it or its workloads reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 64)), extend("x-kubernetes-list-type" = "set"))]
    pub gpus: Vec<String>,
}

/// Transport of an offer.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OfferedTransport {
    /// Kind of the transport.
    pub transport: TransportKind,
    /// Addresses at which it is reached, `HOST:PORT`; empty if this peer only calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 3, max = 300)), extend("x-kubernetes-list-type" = "atomic"))]
    pub addresses: Vec<String>,
    /// True if it takes bytes from and to the memory of GPUs by itself.
    #[serde(default)]
    pub gpu_memory: bool,
    /// Words of the transport's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_pods_own_by_its_ip_in_either_form_and_whatever_its_port() {
        let both = ["10.0.0.7", "fd00:0::7"];
        for own in ["10.0.0.7:9421", "10.0.0.7:1", "[fd00::7]:9421", "[::ffff:10.0.0.7]:9421"] {
            assert!(is_at_pod(own, Some(&both)), "{own}");
        }
        for other in ["10.0.0.8:9421", "[fd00::8]:9421", "10.0.0.7", "trainer-0:9421", "", "[fd00::7%2]:9421"]
        {
            assert!(!is_at_pod(other, Some(&both)), "{other}");
        }
        assert!(!is_at_pod("10.0.0.7:9421", Some(&[] as &[&str])), "the pod has no address yet");
        assert!(!is_at_pod("10.0.0.7:9421", Some(&["", "x"])), "no address of Kubernetes is that");
        assert!(is_at_pod("10.0.0.8:9421", None::<&[&str]>), "an earlier operator says nothing of it");
    }
}
