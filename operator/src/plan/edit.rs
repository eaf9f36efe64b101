//! Puts the sidecar into a pod, as JSON: what is not ours stays as it is, known to us or not.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::facts::Facts;
use super::resources::Budget;
use super::settle::Settled;
use super::status::{Added, Raised, Status};
use super::{sidecar, volumes};
use crate::names::{EXCHANGE, INJECTED, SOCKETS_PATH, SOCKETS_VARIABLE, STATUS};

/// Everything that is put into a pod.
pub(super) struct Edit<'a> {
    pub(super) facts: &'a Facts,
    pub(super) settled: &'a Settled,
    pub(super) budget: &'a Budget,
    /// Names of the containers that see the sockets.
    pub(super) chosen: &'a [String],
    /// Number of init containers before the sidecar.
    pub(super) place: usize,
}

impl Edit<'_> {
    /// Makes the pod with its sidecar.
    pub(super) fn apply(&self, mut pod: Value, mut status: Status) -> Value {
        member(&mut pod, "spec", |spec| self.spec(spec, &mut status));
        let text = json_of(&status).to_string();
        member(&mut pod, "metadata", |metadata| {
            let mut own = Value::Object(std::mem::take(metadata));
            member(&mut own, "labels", |labels| {
                labels.insert(INJECTED.to_owned(), json!("true"));
                labels.insert(EXCHANGE.to_owned(), json!(self.settled.exchange));
            });
            member(&mut own, "annotations", |all| {
                all.insert(STATUS.to_owned(), Value::String(text));
                let written = status.annotations.iter();
                all.extend(written.map(|(key, written)| (key.clone(), json!(written.now))));
            });
            *metadata = map_of(own);
        });
        pod
    }

    fn spec(&self, spec: &mut Map<String, Value>, status: &mut Status) {
        let Edit { facts, settled, budget, .. } = self;
        add_to_containers(spec, self.chosen, status);
        let container = json_of(&sidecar::container(settled, budget, &facts.defaults));
        list(spec, "initContainers", |list| list.insert(self.place.min(list.len()), container));
        let own = volumes::volumes(settled, &facts.namespace.name);
        list(spec, "volumes", |list| list.extend(own.iter().map(json_of)));
        if let Some(raised) = &budget.pod_level {
            status.raised = raise(spec, &json_of(raised));
        }
        if settled.share_process_namespace {
            status.shared_process_namespace = true;
            spec.insert("shareProcessNamespace".to_owned(), Value::Bool(true));
        }
    }
}

/// The sockets and where they are, for every chosen container. A variable that its author has set stays.
fn add_to_containers(spec: &mut Map<String, Value>, chosen: &[String], status: &mut Status) {
    for kind in ["initContainers", "containers"] {
        for container in spec.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            if chosen.contains(&name) {
                status.containers.insert(name, add_to_container(container));
            }
        }
    }
}

fn add_to_container(container: &mut Map<String, Value>) -> Vec<Added> {
    list(container, "volumeMounts", |list| list.push(json_of(&volumes::workload_mount())));
    let is_set = |one: &Value| one.get("name").and_then(Value::as_str) == Some(SOCKETS_VARIABLE);
    let env = container.get("env").and_then(Value::as_array);
    if env.is_some_and(|env| env.iter().any(is_set)) {
        return vec![Added::Mount];
    }
    // First: a variable may name those before it alone, as $(TENSORLANE_SOCKETS).
    list(container, "env", |list| list.insert(0, json_of(&sidecar::text(SOCKETS_VARIABLE, SOCKETS_PATH))));
    vec![Added::Mount, Added::Env]
}

/// Writes raised amounts over those that are there, and nothing else; says which, and what they were.
fn raise(spec: &mut Map<String, Value>, raised: &Value) -> BTreeMap<String, BTreeMap<String, Raised>> {
    let mut all: BTreeMap<String, BTreeMap<String, Raised>> = BTreeMap::new();
    for list in ["limits", "requests"] {
        let place = spec.get_mut("resources").and_then(|resources| resources.get_mut(list));
        let Some(Value::Object(amounts)) = place else { continue };
        for (name, amount) in amounts.iter_mut() {
            let more = raised.get(list).and_then(|list| list.get(name)).and_then(Value::as_str);
            let was = match &*amount {
                Value::String(text) => text.clone(),
                // As people write it; an API server has made it a text.
                Value::Number(number) => number.to_string(),
                _ => continue,
            };
            if let Some(more) = more.filter(|more| *more != was) {
                *amount = Value::String(more.to_owned());
                let raised = Raised { was, now: more.to_owned() };
                all.entry(list.to_owned()).or_default().insert(name.clone(), raised);
            }
        }
    }
    all
}

/// Changes a member that is an object, and makes it where it is none (absent or null).
fn member(value: &mut Value, key: &str, change: impl FnOnce(&mut Map<String, Value>)) {
    let mut whole = map_of(value.take());
    let mut inner = map_of(whole.remove(key).unwrap_or(Value::Null));
    change(&mut inner);
    whole.insert(key.to_owned(), Value::Object(inner));
    *value = Value::Object(whole);
}

/// Changes a member that is a list, and makes it where it is none (absent or null).
fn list(map: &mut Map<String, Value>, key: &str, change: impl FnOnce(&mut Vec<Value>)) {
    let mut inner = match map.remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    change(&mut inner);
    map.insert(key.to_owned(), Value::Array(inner));
}

fn map_of(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Types of Kubernetes are always JSON.
fn json_of(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}
