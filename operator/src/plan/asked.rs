//! Askers for a sidecar: the pod, its namespace, or an exchange that wants every pod with a GPU. The pod wins.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;
use tensorlane_proto::crd::{DEFAULT_EXCHANGE, ExchangeSpec};

use super::facts::Facts;
use super::reason::{Deny, Skip};
use super::{View, gpu};
use crate::annotations;
use crate::names::{EXCHANGE, INJECT};

/// Asker for the sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The pod's own annotation.
    Pod,
    /// The label of its namespace.
    Namespace,
    /// `inject.gpuPods` of this exchange.
    Exchange(String),
}

impl Asked {
    /// The word in the status of a pod.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Asked::Pod => "pod",
            Asked::Namespace => "namespace",
            Asked::Exchange(_) => "gpu",
        }
    }
}

/// Finds who asks for this pod, or why nobody does.
pub(super) fn asked(
    view: &View,
    said: &BTreeMap<String, String>,
    facts: &Facts,
    warnings: &mut Vec<String>,
) -> Result<Result<Asked, Skip>, Deny> {
    if said.contains_key("kubernetes.io/config.mirror") {
        return Ok(Err(Skip::MirrorPod));
    }
    match annotations::inject(said) {
        Some(true) => return Ok(Ok(Asked::Pod)),
        Some(false) => return Ok(Err(Skip::Disabled)),
        None if said.contains_key(INJECT) => {
            // A value that makes no sense asks for something; what, is for its author to say.
            if let Err(bad) = annotations::read(said) {
                return Err(Deny::InvalidValues(bad));
            }
        }
        None => {}
    }
    match facts.namespace.inject() {
        Some("enabled") => return Ok(Ok(Asked::Namespace)),
        None | Some("disabled") => {}
        Some(other) => return Err(Deny::InvalidNamespaceLabel(other.chars().take(80).collect())),
    }
    by_gpu(view, said, facts, warnings).map(|asked| asked.ok_or(Skip::NotRequested))
}

/// Returns whether a pod that cannot be read as one asks for a sidecar, or its namespace does.
pub(super) fn asks_unread(pod: &Value, facts: &Facts) -> bool {
    let said = pod.pointer("/metadata/annotations").and_then(|all| all.get(INJECT));
    match said {
        Some(said) => said.as_str() != Some("disabled"),
        None => facts.namespace.inject().is_some_and(|label| label != "disabled"),
    }
}

/// The exchange that wants this pod because it has a GPU.
fn by_gpu(
    view: &View,
    said: &BTreeMap<String, String>,
    facts: &Facts,
    warnings: &mut Vec<String>,
) -> Result<Option<Asked>, Deny> {
    let labels = view.metadata.labels.clone().unwrap_or_default();
    let wants = |spec: &ExchangeSpec| {
        let inject = spec.inject.as_ref();
        inject.is_some_and(|inject| {
            inject.gpu_pods == Some(true)
                && inject.selector.as_ref().is_none_or(|s| matches(s, &labels))
                && spec.admits(view.account())
        })
    };
    let named = said.get(EXCHANGE);
    let wanting =
        facts.exchanges.iter().filter(|(name, spec)| wants(spec) && named.is_none_or(|named| named == *name));
    let names: Vec<String> = wanting.map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let devices = gpu::devices(view, &facts.claims);
    if !devices.any() {
        return Ok(None);
    }
    warnings.extend(devices.unread.iter().map(|claim| {
        format!(
            "the resource claim {claim:?} cannot be read yet; the pod is treated as one that asks for a GPU"
        )
    }));
    let default = names.iter().find(|name| *name == DEFAULT_EXCHANGE);
    match (default, names.as_slice()) {
        (Some(name), _) => Ok(Some(Asked::Exchange(name.clone()))),
        (None, [name]) => Ok(Some(Asked::Exchange(name.clone()))),
        (None, _) => Err(Deny::AmbiguousExchange(names)),
    }
}

/// Returns whether a selector matches labels, as Kubernetes sees it.
pub(crate) fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let holds = |requirement: &LabelSelectorRequirement| {
        let value = labels.get(&requirement.key);
        let listed =
            value.is_some_and(|value| requirement.values.iter().flatten().any(|other| other == value));
        match requirement.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    equal && selector.match_expressions.iter().flatten().all(holds)
}
