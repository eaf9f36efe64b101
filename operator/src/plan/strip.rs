//! Takes away what an earlier call added, so that planning starts from the pod as its author wrote it.
//!
//! A pod counts as injected only with our status annotation: without it, a container or volume with one of our names is
//! its author's, and a conflict. What others have changed since stays: an amount of the pod as a whole loses what we
//! added to it, and no more.

use serde_json::{Map, Value};

use super::status::{Added, Status};
use super::volumes::is_ours;
use crate::names::{EXCHANGE, INJECTED, SIDECAR, SOCKETS_VARIABLE, SOCKETS_VOLUME, STATUS};

/// The pod without what was added.
pub(super) fn strip(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let annotation =
        pod.pointer("/metadata/annotations").and_then(|all| all.get(STATUS)).and_then(Value::as_str);
    let Some(status) = annotation.and_then(Status::read) else { return pod };
    for (place, keys) in [("labels", &[INJECTED, EXCHANGE][..]), ("annotations", &[STATUS][..])] {
        if let Some(map) = pod.pointer_mut(&format!("/metadata/{place}")).and_then(Value::as_object_mut) {
            keys.iter().for_each(|key| _ = map.remove(*key));
        }
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        strip_spec(spec, &status);
    }
    pod
}

fn strip_spec(spec: &mut Map<String, Value>, status: &Status) {
    retain(spec.get_mut("initContainers"), |name| name != SIDECAR);
    retain(spec.get_mut("volumes"), |name| !is_ours(name));
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let added = status.containers.get(name).cloned().unwrap_or_default();
            strip_container(container, &added);
        }
    }
    for (list, amounts) in &status.raised {
        for (resource, raised) in amounts {
            let amount = spec.get_mut("resources").and_then(|all| all.get_mut(list)?.get_mut(resource));
            if let Some(Value::String(text)) = amount
                && let Some(own) = raised.without_ours(resource, text)
            {
                *text = own;
            }
        }
    }
    if status.shared_process_namespace {
        spec.remove("shareProcessNamespace");
    }
}

fn strip_container(container: &mut Value, added: &[Added]) {
    retain(container.get_mut("volumeMounts"), |name| name != SOCKETS_VOLUME);
    if added.contains(&Added::Env) {
        retain(container.get_mut("env"), |name| name != SOCKETS_VARIABLE);
    }
}

/// Keeps the elements of a list whose name is wanted.
fn retain(list: Option<&mut Value>, wanted: impl Fn(&str) -> bool) {
    if let Some(list) = list.and_then(Value::as_array_mut) {
        list.retain(|one| one.get("name").and_then(Value::as_str).is_none_or(&wanted));
    }
}
