//! The table of who asks for a sidecar, once more: in the language that the API server evaluates by itself.

use crate::annotations::KEYS;
use crate::names::{DEFAULT_ACCOUNT, EXCHANGE, INJECT, PREFIX, SIDECAR, STATUS};

/// The annotation `inject` is there, and does not say that no sidecar is wanted. Other values ask, too, so that the
/// webhook can say what is wrong with them.
pub(super) fn pod_asks() -> String {
    format!(
        "has(object.metadata.annotations) && '{INJECT}' in object.metadata.annotations && object.metadata.annotations['{INJECT}'] != 'disabled'"
    )
}

/// The pod says nothing.
pub(super) fn pod_is_silent() -> String {
    format!("!has(object.metadata.annotations) || !('{INJECT}' in object.metadata.annotations)")
}

/// The pod uses the network of its node, where no sidecar can be.
pub(super) fn is_on_host() -> String {
    "has(object.spec.hostNetwork) && object.spec.hostNetwork".to_owned()
}

/// The pod has a network of its own.
pub(super) fn has_own_network() -> String {
    "!has(object.spec.hostNetwork) || !object.spec.hostNetwork".to_owned()
}

/// Expression: the pod is no mirror of a static pod.
pub(super) fn is_no_mirror() -> String {
    "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)"
        .to_owned()
}

/// A container has a GPU of a device plugin.
pub(super) fn has_gpu() -> String {
    let limits = "has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(name, name.startsWith('nvidia.com/'))";
    format!(
        "object.spec.containers.exists(c, {limits}) || (has(object.spec.initContainers) && object.spec.initContainers.exists(c, {limits}))"
    )
}

/// The pod claims a device.
pub(super) fn has_claims() -> String {
    "has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0".to_owned()
}

/// The label of the namespace asks. Other words than `enabled` do, too, as those of a pod. Only a policy may look at it;
/// a webhook refuses every pod if it does.
pub(super) fn namespace_asks() -> String {
    format!(
        "has(namespaceObject.metadata.labels) && '{INJECT}' in namespaceObject.metadata.labels && namespaceObject.metadata.labels['{INJECT}'] != 'disabled'"
    )
}

/// The exchange `params` wants every pod with a GPU, this one included.
pub(super) fn exchange_asks() -> String {
    let labels = "(has(object.metadata.labels) ? object.metadata.labels : {})";
    let own = format!(
        "!has(object.metadata.annotations) || !('{EXCHANGE}' in object.metadata.annotations) || object.metadata.annotations['{EXCHANGE}'] == params.metadata.name"
    );
    let equal = format!(
        "!has(params.spec.inject.selector.matchLabels) || params.spec.inject.selector.matchLabels.all(k, k in {labels} && {labels}[k] == params.spec.inject.selector.matchLabels[k])"
    );
    let holds = format!(
        "e.operator == 'In' ? (e.key in {labels} && {labels}[e.key] in e.values) : e.operator == 'NotIn' ? !(e.key in {labels} && {labels}[e.key] in e.values) : e.operator == 'Exists' ? e.key in {labels} : e.operator == 'DoesNotExist' && !(e.key in {labels})"
    );
    let expressions = format!(
        "!has(params.spec.inject.selector.matchExpressions) || params.spec.inject.selector.matchExpressions.all(e, {holds})"
    );
    let account = format!(
        "(has(object.spec.serviceAccountName) && object.spec.serviceAccountName != '' ? object.spec.serviceAccountName : '{DEFAULT_ACCOUNT}')"
    );
    let member = format!("!has(params.spec.members) || {account} in params.spec.members.serviceAccounts");
    format!(
        "has(params.spec.inject) && has(params.spec.inject.gpuPods) && params.spec.inject.gpuPods && ({own}) && ({member}) && (!has(params.spec.inject.selector) || (({equal}) && ({expressions})))"
    )
}

/// The sidecar is there.
pub(super) fn has_sidecar() -> String {
    format!(
        "has(object.spec.initContainers) && object.spec.initContainers.exists(c, c.name == '{SIDECAR}' && has(c.restartPolicy) && c.restartPolicy == 'Always')"
    )
}

/// An init container has the sidecar's name, whatever it is.
pub(super) fn has_init_container() -> String {
    format!(
        "(has(object.spec.initContainers) && object.spec.initContainers.exists(c, c.name == '{SIDECAR}'))"
    )
}

/// The annotation that comes with a sidecar is there.
pub(super) fn has_status() -> String {
    format!("(has(object.metadata.annotations) && '{STATUS}' in object.metadata.annotations)")
}

/// The names of all annotations that a pod may have, as a list.
pub(super) fn known_keys() -> String {
    let keys = KEYS.iter().map(|key| format!("'{PREFIX}{}'", key.name)).chain([format!("'{PREFIX}status'")]);
    format!("[{}]", keys.collect::<Vec<_>>().join(", "))
}
