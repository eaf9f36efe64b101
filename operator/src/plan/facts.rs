//! Facts that the planner is told besides the pod. Whoever calls it has read these from the API server, or from files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange as ApiLimitRange, ResourceQuota};
use tensorlane_proto::crd::{ExchangeSpec, LogLevel};

use crate::abilities::Abilities;
use crate::annotations::SEATS;
use crate::names::INJECT;
use crate::quantity::Amount;

/// Everything that a decision depends on besides the pod.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The namespace of the pod.
    pub namespace: Namespace,
    /// The exchanges of that namespace by name.
    pub exchanges: BTreeMap<String, ExchangeSpec>,
    /// Defaults of the installation, for what nobody else says.
    pub defaults: Defaults,
    /// Abilities of the sidecars of the installation.
    pub abilities: Abilities,
    /// The LimitRanges of the namespace.
    pub limits: Vec<LimitRange>,
    /// The ResourceQuotas of the namespace.
    pub quotas: Vec<Quota>,
    /// The devices that the pod's resource claims ask for.
    pub claims: Claims,
    /// Volumes that a StatefulSet gives its pods besides those of its template; none where a pod is looked at.
    pub claim_templates: Vec<String>,
}

/// The namespace of a pod.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: String,
    /// Labels of the namespace.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the namespace that say whether a mesh injects there, and which ports it leaves alone.
    pub annotations: BTreeMap<String, String>,
    /// The installation serves no pods there: `kube-system` and the operator's own.
    pub excluded: bool,
}

impl Namespace {
    /// Text of its label for pods that say nothing, which may make no sense.
    pub fn inject(&self) -> Option<&str> {
        self.labels.get(INJECT).map(String::as_str)
    }

    /// Level that Pod Security enforces there; `privileged` if nothing is said.
    pub fn pod_security(&self) -> &str {
        self.labels.get("pod-security.kubernetes.io/enforce").map_or("privileged", String::as_str)
    }
}

/// Defaults of the installation, for what neither pod nor exchange says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// The sidecar's image, best with its digest.
    pub image: String,
    /// Pull policy of the image; if absent, that of Kubernetes.
    pub image_pull_policy: Option<String>,
    /// Bytes that tensors may take.
    pub arena: Amount,
    /// Bytes beside them, for up to [`SEATS`] seats.
    pub base: Amount,
    /// Seats for peers, from 1 to [`crate::annotations::SEATS_MAX`].
    pub seats: u32,
    /// Processor time to request.
    pub cpu: Amount,
    /// Level of the log.
    pub log_level: LogLevel,
    /// The user and group that the sidecar runs as; absent where the platform gives one (OpenShift).
    pub user: Option<i64>,
    /// Pods have IPv6 addresses, alone or beside those of IPv4.
    pub ipv6: bool,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            image: format!("ghcr.io/tensorlane/sidecar:{}", env!("CARGO_PKG_VERSION")),
            image_pull_policy: None,
            arena: Amount::whole(1 << 30),
            base: Amount::whole(256 << 20),
            seats: SEATS,
            cpu: Amount::milli(100),
            log_level: LogLevel::Info,
            user: Some(64646),
            ipv6: false,
        }
    }
}

/// The device classes that each of a pod's claims asks for, by the name that the pod gives the claim. A claim that is
/// not here could not be read; most likely it does not exist yet.
pub type Claims = BTreeMap<String, Vec<String>>;

/// A single entry of a LimitRange that a sidecar can run into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitRange {
    /// The name of the object.
    pub name: String,
    /// Set if it speaks of pods as a whole and not of each container.
    pub of_pod: bool,
    /// The most of each resource.
    pub max: BTreeMap<String, Amount>,
    /// The least of each resource.
    pub min: BTreeMap<String, Amount>,
    /// The limit of a container that says none.
    pub default: BTreeMap<String, Amount>,
    /// Greatest ratio of a limit to its request.
    pub ratio: BTreeMap<String, Amount>,
}

impl LimitRange {
    /// Reads what an object says of pods and containers. A quantity that cannot be read counts as absent: the API
    /// server has checked them.
    pub fn of(object: &ApiLimitRange) -> Vec<LimitRange> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let items = object.spec.iter().flat_map(|spec| &spec.limits);
        let relevant = items.filter(|item| item.type_ == "Container" || item.type_ == "Pod");
        let read = |item: &k8s_openapi::api::core::v1::LimitRangeItem| LimitRange {
            name: name.clone(),
            of_pod: item.type_ == "Pod",
            max: amounts(item.max.as_ref()),
            min: amounts(item.min.as_ref()),
            default: amounts(item.default.as_ref()),
            ratio: amounts(item.max_limit_request_ratio.as_ref()),
        };
        relevant.map(read).collect()
    }
}

/// A ResourceQuota, as far as a sidecar can run into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// The name of the object.
    pub name: String,
    /// Set if it counts only some pods, and which ones cannot be said here.
    pub partial: bool,
    /// The most of each resource.
    pub hard: BTreeMap<String, Amount>,
    /// Amounts that are taken.
    pub used: BTreeMap<String, Amount>,
}

impl Quota {
    /// Reads what an object says; none if it counts only pods that have no resources, which a pod with a sidecar has.
    pub fn of(object: &ResourceQuota) -> Option<Quota> {
        let spec = object.spec.as_ref()?;
        let scopes: Vec<&str> = spec.scopes.iter().flatten().map(String::as_str).collect();
        if scopes.contains(&"BestEffort") {
            return None;
        }
        let partial = spec.scope_selector.is_some() || scopes.iter().any(|scope| *scope != "NotBestEffort");
        let status = object.status.as_ref();
        let hard = status.and_then(|status| status.hard.as_ref()).or(spec.hard.as_ref());
        Some(Quota {
            name: object.metadata.name.clone().unwrap_or_default(),
            partial,
            hard: amounts(hard),
            used: amounts(status.and_then(|status| status.used.as_ref())),
        })
    }
}

/// The amounts of a list of resources.
pub(super) fn amounts(
    list: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>,
) -> BTreeMap<String, Amount> {
    let read = |(name, quantity): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
        Some((name.clone(), Amount::parse(&quantity.0).ok()?))
    };
    list.into_iter().flatten().filter_map(read).collect()
}
