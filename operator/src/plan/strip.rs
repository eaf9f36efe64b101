//! Takes away what an earlier call added, so that planning starts from the pod as its author wrote it.
//!
//! A pod counts as injected by our status annotation. Without it, a container or volume with one of our names is its
//! author's, and a conflict; but for one case: a copy of an injected pod whose annotations were left behind (`kubectl debug
//! --copy-to`). Its sidecar is known by what only ours has, and the rest of what was added by name. What others have
//! changed since stays: an amount of the pod as a whole loses what we added to it, and no more.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::alike::text;
use super::resources::{CPU, MEMORY};
use super::status::{Added, Raised, Status};
use super::volumes::is_ours;
use crate::names::{
    EXCHANGE, INJECTED, SIDECAR, SOCKETS_PATH, SOCKETS_VARIABLE, SOCKETS_VOLUME, STATE_PATH, STATE_VOLUME,
    STATUS,
};
use crate::quantity::Amount;

/// A pod without what was added.
pub(super) struct Stripped {
    /// The pod as its author wrote it.
    pub(super) pod: Value,
    /// Addition of an earlier call; none where there was none.
    pub(super) earlier: Option<Earlier>,
}

/// Traces of an earlier call.
pub(super) struct Earlier {
    /// Additions of an earlier call.
    pub(super) status: Status,
    /// Number of init containers before the sidecar; none where it is gone.
    pub(super) ahead: Option<usize>,
    /// Sentences on what others have done to the sidecar since.
    pub(super) warnings: Vec<String>,
}

/// The pod without what was added.
pub(super) fn strip(pod: &Value) -> Stripped {
    let annotation =
        pod.pointer("/metadata/annotations").and_then(|all| all.get(STATUS)).and_then(Value::as_str);
    let told = annotation.and_then(Status::read);
    let copied = told.is_none().then(|| copied(pod)).flatten();
    let warnings = match &copied {
        Some(_) => vec![COPIED.to_owned()],
        None => damage(pod).into_iter().collect(),
    };
    let mut pod = pod.clone();
    let Some(status) = told.or(copied) else { return Stripped { pod, earlier: None } };
    for (place, keys) in [("labels", &[INJECTED, EXCHANGE][..]), ("annotations", &[STATUS][..])] {
        if let Some(map) = pod.pointer_mut(&format!("/metadata/{place}")).and_then(Value::as_object_mut) {
            keys.iter().for_each(|key| _ = map.remove(*key));
        }
    }
    strip_annotations(&mut pod, &status);
    let ahead = list(&pod, "initContainers").iter().position(|one| name(one) == SIDECAR);
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        strip_spec(spec, &status);
    }
    Stripped { pod, earlier: Some(Earlier { status, ahead, warnings }) }
}

const COPIED: &str = "the pod has a sidecar without the annotations that came with it, like a copy by kubectl debug: it gets a new one, by what the pod says now; kubectl debug --keep-annotations keeps what it said";

/// Sentences on what another webhook has done to the sidecar, which is made good again here.
fn damage(pod: &Value) -> Option<String> {
    let done = match list(pod, "initContainers").iter().find(|one| name(one) == SIDECAR) {
        Some(sidecar) if is_native(sidecar) => return None,
        Some(_) => "took restartPolicy: Always from the sidecar",
        None if list(pod, "containers").iter().any(|one| name(one) == SIDECAR) => {
            "moved the sidecar among the containers"
        }
        None => "took the sidecar out of the pod",
    };
    Some(format!(
        "somebody {done} after it was added; it is put back, and the pod is refused if that is done once more"
    ))
}

/// Returns whether a container is a sidecar to Kubernetes.
fn is_native(container: &Value) -> bool {
    container.get("restartPolicy").and_then(Value::as_str) == Some("Always")
}

/// Status of a copy of an injected pod that has lost its annotations; none where the pod is no such thing.
fn copied(pod: &Value) -> Option<Status> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array)?;
    let in_memory = |wanted: &str| {
        let ours = |volume: &&Value| name(volume) == wanted && volume["emptyDir"]["medium"] == "Memory";
        volumes.iter().any(|volume| ours(&volume))
    };
    let mut all = ["initContainers", "containers"].into_iter().flat_map(|kind| list(pod, kind));
    let found = all.find(|one| name(one) == SIDECAR);
    let is_ours = match found {
        Some(sidecar) => is_sidecar(sidecar),
        // A copy may leave the init containers behind.
        None => in_memory(SOCKETS_VOLUME),
    };
    if !is_ours || !in_memory(STATE_VOLUME) {
        return None;
    }
    let mut status = Status { raised: raised(pod, found), ..Status::default() };
    for container in ["initContainers", "containers"].into_iter().flat_map(|kind| list(pod, kind)) {
        let variable = |one: &Value| name(one) == SOCKETS_VARIABLE && text(one, "value") == SOCKETS_PATH;
        if of(container, "volumeMounts").iter().any(|mount| name(mount) == SOCKETS_VOLUME) {
            let env = of(container, "env").iter().any(variable).then_some(Added::Env);
            let added = [Added::Mount].into_iter().chain(env).collect();
            status.containers.insert(name(container).to_owned(), added);
        }
    }
    Some(status)
}

/// The amounts of the pod as a whole that a sidecar is in, by what it says itself; none where it was left behind.
fn raised(pod: &Value, sidecar: Option<&Value>) -> BTreeMap<String, BTreeMap<String, Raised>> {
    let amount = |one: &Value, list: &str, resource: &str| {
        let text = one.get("resources")?.get(list)?.get(resource)?.as_str()?;
        Some((text.to_owned(), Amount::parse(text).ok()?))
    };
    let mut all: BTreeMap<String, BTreeMap<String, Raised>> = BTreeMap::new();
    for (list, resource) in ["limits", "requests"].into_iter().flat_map(|list| [(list, CPU), (list, MEMORY)])
    {
        let whole = pod.get("spec").and_then(|spec| amount(spec, list, resource));
        // A sidecar without a limit on processors raised that of the pod by its request.
        let ours =
            sidecar.and_then(|one| amount(one, list, resource).or_else(|| amount(one, "requests", resource)));
        let (Some((now, whole)), Some((_, ours))) = (whole, ours) else { continue };
        if ours <= whole {
            let own = whole - ours;
            let was = if resource == MEMORY { own.memory().0 } else { own.cpu().0 };
            all.entry(list.to_owned()).or_default().insert(resource.to_owned(), Raised { was, now });
        }
    }
    all
}

/// Returns whether a container keeps its state where only ours does.
fn is_sidecar(container: &Value) -> bool {
    let state = |mount: &Value| name(mount) == STATE_VOLUME && text(mount, "mountPath") == STATE_PATH;
    let variable =
        |one: &Value| name(one) == "TENSORLANE_STATE_DIRECTORY" && text(one, "value") == STATE_PATH;
    of(container, "volumeMounts").iter().any(state) && of(container, "env").iter().any(variable)
}

/// Annotations of others as they were, where nobody has changed them since.
fn strip_annotations(pod: &mut Value, status: &Status) {
    let Some(all) = pod.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    for (key, written) in &status.annotations {
        if all.get(key).and_then(Value::as_str) != Some(&written.now) {
            continue;
        }
        match &written.was {
            Some(was) => _ = all.insert(key.clone(), Value::String(was.clone())),
            None => _ = all.remove(key),
        }
    }
}

fn list<'a>(pod: &'a Value, kind: &str) -> &'a [Value] {
    pod.get("spec").map_or(&[], |spec| of(spec, kind))
}

fn of<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn name(value: &Value) -> &str {
    text(value, "name")
}

fn strip_spec(spec: &mut Map<String, Value>, status: &Status) {
    // Whoever has moved the sidecar has moved ours.
    for list in ["initContainers", "containers"] {
        retain(spec.get_mut(list), |name| name != SIDECAR);
    }
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
