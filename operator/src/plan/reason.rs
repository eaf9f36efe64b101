//! Reasons for which a pod gets no sidecar. Each reason is a label for metrics and a sentence for people; a refusal
//! says what to do.

use std::fmt;

use thiserror::Error;

use crate::abilities::Lack;
use crate::annotations::BadValue;
use crate::names::{ADMIN_PORT, INJECT, PEERS_PORT, SOCKETS_PATH};

/// Reason why a pod that did not ask gets no sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// Neither the pod nor its namespace nor an exchange asks for one.
    NotRequested,
    /// The pod says that it wants none.
    Disabled,
    /// Mirror of a static pod, which the API server cannot change.
    MirrorPod,
}

impl Skip {
    /// Every one.
    pub const ALL: [Skip; 3] = [Skip::NotRequested, Skip::Disabled, Skip::MirrorPod];

    /// The label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Skip::NotRequested => "not_requested",
            Skip::Disabled => "disabled",
            Skip::MirrorPod => "mirror_pod",
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Skip::NotRequested => "neither the pod nor its namespace nor an exchange asks for a sidecar",
            Skip::Disabled => "the pod says tensorlane.dev/inject: disabled",
            Skip::MirrorPod => "it mirrors a static pod, which only its node can change",
        })
    }
}

/// Reason why a pod that asked cannot be served, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Deny {
    /// Annotations with values that make no sense.
    #[error("{}", listed(.0))]
    InvalidValues(Vec<BadValue>),
    /// The label of the namespace makes no sense.
    #[error("the label {INJECT}: {0:?} of the namespace must be enabled or disabled: correct or remove it")]
    InvalidNamespaceLabel(String),
    /// The exchange is not there.
    #[error(
        "there is no TensorExchange {name:?} in namespace {namespace:?}; {}: make it, or correct tensorlane.dev/exchange",
        there_are(.there)
    )]
    ExchangeMissing {
        /// The one that was asked for.
        name: String,
        /// Namespace of the pod.
        namespace: String,
        /// Names of those that are there.
        there: Vec<String>,
    },
    /// The exchange is not open to the pod's service account.
    #[error(
        "the pod's service account is {account:?}, and spec.members of TensorExchange {exchange:?} has only {}: use one of them as serviceAccountName, add {account:?} there, or name another exchange with tensorlane.dev/exchange",
        .members.join(", ")
    )]
    NotAMember {
        /// Name of the exchange.
        exchange: String,
        /// Service account of the pod.
        account: String,
        /// Names of those that the exchange is open to.
        members: Vec<String>,
    },
    /// Several exchanges want the pod.
    #[error(
        "inject.gpuPods of the exchanges {} all want this pod: say which one with tensorlane.dev/exchange",
        .0.join(", ")
    )]
    AmbiguousExchange(Vec<String>),
    /// The exchange says what a sidecar would refuse.
    #[error("{field}: {value:?} of TensorExchange {exchange:?} is {wrong}: correct it")]
    InvalidExchange {
        /// Name of the exchange.
        exchange: String,
        /// Place of the field in it.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Description of what is wrong with it.
        wrong: String,
    },
    /// The exchange, or the pod itself, insists on what this release cannot do.
    #[error("{0}")]
    Unsupported(Box<Unsupported>),
    /// The installation serves no pods there.
    #[error("namespace {0:?} is excluded from Tensorlane: use another one, or take {INJECT} off the pod")]
    ExcludedNamespace(String),
    /// The pod uses the network of its node.
    #[error(
        "a pod with hostNetwork: true shares the ports of its node, so its sidecar would answer for other pods: set hostNetwork: false, or {INJECT}: disabled"
    )]
    HostNetwork,
    /// The pod is not for Linux: the field that says so, with its value.
    #[error(
        "the pod has {0}, and the sidecar runs on Linux only: run the pod on Linux, or set {INJECT}: disabled"
    )]
    NotLinux(String),
    /// A name of ours is taken.
    #[error("the pod has a {what} {name:?}, which is the sidecar's name: give it another one")]
    NameTaken {
        /// Kind of the owner of that name: `container` or `volume`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A mount is where the sockets belong.
    #[error(
        "container {container:?} mounts a volume at {path:?}, where the sidecar's sockets belong ({SOCKETS_PATH}): mount it elsewhere, or leave the container out with tensorlane.dev/containers"
    )]
    MountConflict {
        /// Container of the mount.
        container: String,
        /// Path of the mount.
        path: String,
    },
    /// A container mounts a volume of the sidecar by its name.
    #[error(
        "container {container:?} mounts the volume {volume:?}, which is the sidecar's ({kept}): take the mount out; containers that use Tensorlane get the sockets by themselves"
    )]
    SidecarVolume {
        /// Container of the mount.
        container: String,
        /// Name of the volume.
        volume: String,
        /// Content of the volume.
        kept: &'static str,
    },
    /// The volume for sets on files is not there, or cannot be written.
    #[error("tensorlane.dev/sets names the volume {volume:?}, {wrong}")]
    SetsVolume {
        /// Volume that was asked for.
        volume: String,
        /// Description of what is wrong with it, and what to do.
        wrong: String,
    },
    /// A port of the sidecar is taken.
    #[error(
        "container {container:?} has port {port}; the sidecar needs {PEERS_PORT} and {ADMIN_PORT} in the pod: use another one"
    )]
    PortTaken {
        /// Container of the port.
        container: String,
        /// The port.
        port: i32,
    },
    /// A container is named that is not there.
    #[error(
        "tensorlane.dev/containers names {name:?}, which the pod does not have; it has {}",
        .there.join(", ")
    )]
    UnknownContainer {
        /// The one that was asked for.
        name: String,
        /// Names of those that are there.
        there: Vec<String>,
    },
    /// Contradiction of what the pod wants with itself or with its exchange.
    #[error("{0}")]
    Contradiction(String),
    /// The pod has no GPU.
    #[error(
        "tensorlane.dev/gpu: {0} needs a container with a GPU: ask for nvidia.com/gpu or claim a device, or say gpu: auto"
    )]
    NoGpu(String),
    /// A volume that the namespace forbids.
    #[error(
        "sameNode: hostPath of exchange {exchange:?} needs a namespace whose Pod Security is privileged; {namespace:?} enforces {level}: use sameNode: claim"
    )]
    HostPathForbidden {
        /// Name of the exchange.
        exchange: String,
        /// Name of the namespace.
        namespace: String,
        /// Level that it enforces.
        level: String,
    },
    /// A LimitRange has no room.
    #[error("{0}")]
    LimitRange(Box<OverLimit>),
    /// A ResourceQuota has no room.
    #[error("{0}")]
    Quota(Box<OverQuota>),
    /// Unreadable as a pod.
    #[error("the object is no pod: {0}")]
    NotAPod(String),
}

/// Lacks: what is insisted on and cannot be had; at least one thing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", said(.exchange, .of_exchange, .of_pod))]
pub struct Unsupported {
    /// The exchange of the pod.
    pub exchange: String,
    /// Lacks in what the exchange says.
    pub of_exchange: Vec<Lack>,
    /// Lacks in what the pod says by its annotations.
    pub of_pod: Vec<Lack>,
}

/// A LimitRange has no room.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} needs {needed} of {resource}, and LimitRange {range:?} allows {allowed} {per}: {remedy}")]
pub struct OverLimit {
    /// The sidecar, or the pod with it.
    pub what: &'static str,
    /// Name of the LimitRange.
    pub range: String,
    /// Resource that has a limit: `cpu` or `memory`.
    pub resource: String,
    /// Amount that is needed.
    pub needed: String,
    /// Amount that is allowed.
    pub allowed: String,
    /// A container or a pod.
    pub per: &'static str,
    /// Remedy: what to do.
    pub remedy: &'static str,
}

/// A ResourceQuota has no room.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "with its sidecar the pod needs {needed} of {resource} ({own} of its own and {sidecar} for the sidecar), and ResourceQuota {quota:?} has {left} left of {hard}: raise the quota, free some of it, or make tensorlane.dev/arena-size smaller"
)]
pub struct OverQuota {
    /// Name of the ResourceQuota.
    pub quota: String,
    /// Resource that has a quota, such as `limits.memory`.
    pub resource: String,
    /// Amount that the pod needs with its sidecar.
    pub needed: String,
    /// Without.
    pub own: String,
    /// The sidecar.
    pub sidecar: String,
    /// Amount that is left.
    pub left: String,
    /// Amount that there is.
    pub hard: String,
}

impl Deny {
    /// Every label, for metrics and documentation.
    pub const LABELS: [&str; 22] = [
        "invalid_annotation",
        "invalid_namespace_label",
        "exchange_missing",
        "not_a_member",
        "ambiguous_exchange",
        "invalid_exchange",
        "unsupported",
        "excluded_namespace",
        "host_network",
        "not_linux",
        "name_taken",
        "mount_conflict",
        "sidecar_volume",
        "sets_volume",
        "port_taken",
        "unknown_container",
        "contradiction",
        "no_gpu",
        "host_path_forbidden",
        "limit_range",
        "quota",
        "not_a_pod",
    ];

    /// The label in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Deny::InvalidValues(_) => "invalid_annotation",
            Deny::InvalidNamespaceLabel(_) => "invalid_namespace_label",
            Deny::ExchangeMissing { .. } => "exchange_missing",
            Deny::NotAMember { .. } => "not_a_member",
            Deny::AmbiguousExchange(_) => "ambiguous_exchange",
            Deny::InvalidExchange { .. } => "invalid_exchange",
            Deny::Unsupported(_) => "unsupported",
            Deny::ExcludedNamespace(_) => "excluded_namespace",
            Deny::HostNetwork => "host_network",
            Deny::NotLinux(_) => "not_linux",
            Deny::NameTaken { .. } => "name_taken",
            Deny::MountConflict { .. } => "mount_conflict",
            Deny::SidecarVolume { .. } => "sidecar_volume",
            Deny::SetsVolume { .. } => "sets_volume",
            Deny::PortTaken { .. } => "port_taken",
            Deny::UnknownContainer { .. } => "unknown_container",
            Deny::Contradiction(_) => "contradiction",
            Deny::NoGpu(_) => "no_gpu",
            Deny::HostPathForbidden { .. } => "host_path_forbidden",
            Deny::LimitRange(_) => "limit_range",
            Deny::Quota(_) => "quota",
            Deny::NotAPod(_) => "not_a_pod",
        }
    }
}

fn listed(bad: &[BadValue]) -> String {
    bad.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn said(exchange: &str, of_exchange: &[Lack], of_pod: &[Lack]) -> String {
    let sides = [(format!("TensorExchange {exchange:?}"), of_exchange), ("the pod".to_owned(), of_pod)];
    let said = sides.iter().filter(|(_, lacks)| !lacks.is_empty()).map(|(who, lacks)| {
        let lacks: Vec<String> = lacks.iter().map(ToString::to_string).collect();
        format!("{who} says {}", lacks.join("; "))
    });
    said.collect::<Vec<_>>().join("; ")
}

fn there_are(names: &[String]) -> String {
    if names.is_empty() {
        "there is none at all".to_owned()
    } else {
        format!("there are {}", names.join(", "))
    }
}
