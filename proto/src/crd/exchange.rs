//! `TensorExchange`: the pods of a namespace that may exchange tensors, and how.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::words::{Encryption, GpuMode, LogLevel, Neighbours, Prefer, Requirement, SameNode, TransportKind};

/// An exchange: the pods of this namespace that may exchange tensors, and how they do. The one named `default` is that
/// of every pod that names none.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "tensorlane.dev",
    version = "v1alpha1",
    kind = "TensorExchange",
    plural = "tensorexchanges",
    shortname = "tex",
    category = "tensorlane",
    namespaced,
    status = "ExchangeStatus",
    derive = "PartialEq",
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name of an exchange may have at most 63 characters, because pods carry it as a label"),
    validation = Rule::new("self.metadata.name != 'default' || !has(self.spec) || !has(self.spec.members)")
        .message("the exchange default is open to its namespace: make one of another name for spec.members, and have its pods name it with tensorlane.dev/exchange"),
    printcolumn = r#"{"name": "Peers", "type": "integer", "jsonPath": ".status.peers", "description": "Injected pods that belong to the exchange"}"#,
    printcolumn = r#"{"name": "Ready", "type": "integer", "jsonPath": ".status.readyPeers", "description": "Those of them that other peers can reach"}"#,
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].reason"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.require) || !('encrypted' in self.require) || !has(self.security) || !has(self.security.encryption) || self.security.encryption == 'required'")
    .message("require: encrypted and security.encryption: none contradict each other: take one away"))]
#[x_kube(validation = Rule::new("!has(self.sameNode) || self.sameNode == 'off' || !has(self.transports) || 'shm' in self.transports")
    .message("sameNode lets pods of a node share memory, so transports must contain shm: add it, or set sameNode to off"))]
#[x_kube(validation = Rule::new("!has(self.prefer) || self.prefer == 'measured' || !has(self.transports) || self.prefer in self.transports")
    .message("prefer is a transport that transports leaves out: add it there, or set prefer to measured"))]
pub struct ExchangeSpec {
    /// The transports that may be used, all of them if not given: a set, whose order says nothing. What is best among them is
    /// found out by the peers; `prefer` chooses between `tcp` and `quic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4), extend("x-kubernetes-list-type" = "set"))]
    pub transports: Option<Vec<TransportKind>>,
    /// Choice between `tcp` and `quic` for large tensors if both may be used: `measured` unless given, which takes the one
    /// that brings more. One that cannot be used between two peers is replaced by the other. `tcp` turns QUIC off at its
    /// sidecars altogether: no UDP port is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer: Option<Prefer>,
    /// Requirements for every route; a transfer fails, with the reasons, if there is no such route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "set"))]
    pub require: Option<Vec<Requirement>>,
    /// The memory of each sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arena: Option<Arena>,
    /// When what nobody keeps goes away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc: Option<Gc>,
    /// Protection of bytes against others on the network and the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
    /// Pods that may belong to the exchange: all of the namespace unless given. `default` is always open to all. It is looked at
    /// when a pod is made, and when its peer is: who belongs to the exchange by then stays until the pod ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// Way in which pods of one node share memory: `off` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_node: Option<SameNode>,
    /// Readers of a large tensor that one peer serves at a time while others that have it, or are getting it, can: 1 unless
    /// given, which makes chains. 0 lets the owner of a tensor serve all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 8))]
    pub fan_out: Option<i32>,
    /// Connections of each sidecar with other peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeerSettings>,
    /// Tensors on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Pods that get a sidecar without asking for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inject: Option<Inject>,
    /// The sidecars themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<SidecarSettings>,
}

/// Pods that may belong to the exchange.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    /// Pods with one of these service accounts of the namespace.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = Rule::new("self.all(name, name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$'))")
        .message("members.serviceAccounts must be names of service accounts of this namespace, such as trainer: no namespace, no system:serviceaccount:"))]
    pub service_accounts: Vec<String>,
}

impl ExchangeSpec {
    /// Returns whether pods of this service account may belong to the exchange.
    pub fn admits(&self, account: &str) -> bool {
        self.members
            .as_ref()
            .is_none_or(|members| members.service_accounts.iter().any(|name| name == account))
    }
}

/// The memory of each sidecar.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Arena {
    /// Bytes that tensors may take in each sidecar, such as `2Gi`. They are requested for the sidecar's container, so
    /// the scheduler counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('16Mi')) >= 0 && quantity(self).compareTo(quantity('16Ti')) <= 0 && quantity(self).asInteger() % 4096 == 0")
        .message("arena.size must be bytes from 16Mi to 16Ti in multiples of 4Ki, such as 2Gi"))]
    pub size: Option<String>,
}

/// When what nobody keeps goes away.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gc {
    /// Time that the leases of a lost peer stay, so that it may come back: `10s` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,8}(ms|s|m|h)$') && duration(self) <= duration('24h')")
        .message("gc.leaseGrace must be a whole number with ms, s, m or h, above zero and up to a day, such as 10s"))]
    pub lease_grace: Option<String>,
    /// The life of a ticket that was not given one: `60s` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,8}(ms|s|m|h)$') && duration(self) <= duration('24h')")
        .message("gc.ticketTtl must be a whole number with ms, s, m or h, above zero and up to a day, such as 60s"))]
    pub ticket_ttl: Option<String>,
}

/// Protection of bytes against others on the network.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// Encryption of bytes between nodes: `required` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Copies that other pods of the node have of a third pod's tensors: mapped unless `off`. Those pods are trusted with their bytes.
    /// `off` brings a copy to each pod, which takes its time and room. What a pod owns is mapped either way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbours: Option<Neighbours>,
}

/// Connections of each sidecar with other peers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PeerSettings {
    /// Seats: peers that each sidecar has connected at once, 256 unless given. Where an exchange has more peers, those that are
    /// not needed give way. Each seat above 256 adds a mebibyte to the memory of each sidecar, and two threads while it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max: Option<i32>,
}

/// Tensors on GPUs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Way in which tensors on GPUs are shared: `auto` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<GpuMode>,
}

/// Pods that get a sidecar without asking for one.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Inject {
    /// Every pod of the namespace that asks for a GPU, by `nvidia.com/*` or a claim on a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_pods: Option<bool>,
    /// Only those of them that match; all if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// The sidecars themselves.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSettings {
    /// Resources that each sidecar needs beside its arena.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<SidecarResources>,
    /// Level of each sidecar's log: `info` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
}

/// Resources that each sidecar needs beside its arena.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SidecarResources {
    /// The processor time to request, such as `200m`; it is a limit only where the pod or the namespace needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).compareTo(quantity('1m')) >= 0 && quantity(self).compareTo(quantity('1k')) <= 0")
        .message("sidecar.resources.cpu must be processors from 1m to 1k, such as 200m"))]
    pub cpu: Option<String>,
    /// Bytes beside the arena, such as `256Mi`, for up to 256 seats for peers; `peers.max` adds those of more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isInteger() && quantity(self).compareTo(quantity('64Mi')) >= 0 && quantity(self).compareTo(quantity('1Ti')) <= 0 && quantity(self).asInteger() % 4096 == 0")
        .message("sidecar.resources.memory must be bytes from 64Mi to 1Ti in multiples of 4Ki, such as 256Mi"))]
    pub memory: Option<String>,
}

/// Status of an exchange, as the operator sees it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExchangeStatus {
    /// Injected pods that belong to the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<i32>,
    /// Injected pods of the exchange that other peers can reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_peers: Option<i32>,
    /// The generation of the object that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`: the exchange can be had as it is asked for. `Ready`: its peers can talk to each other.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "crate::crd::readable::conditions"
    )]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
