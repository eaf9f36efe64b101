//! Questions of a person about a cluster: what is wrong with it, why a pod has a sidecar or not, which way bytes would
//! go. Everything here is a function of objects that somebody has read; nothing here reads.

pub mod cluster;
pub mod explain;
mod memory;
pub mod namespace;
pub mod network;
pub mod peers;
pub mod refusals;
pub mod routes;
pub mod shared_memory;

use serde_json::Value;

use crate::findings::Finding;
use crate::names::SIDECAR;

/// An object, as far as it could be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Present.
    There(Value),
    /// Absent.
    Missing,
    /// Hidden: whether it is there could not be found out; holds the words of the API server.
    Hidden(String),
}

impl Seen {
    /// The object, where it is there.
    pub fn object(&self) -> Option<&Value> {
        match self {
            Seen::There(object) => Some(object),
            Seen::Missing | Seen::Hidden(_) => None,
        }
    }

    /// The objects of a list; none where it could not be read.
    pub fn items(&self) -> &[Value] {
        let items = self.object().and_then(|list| list.get("items")).and_then(Value::as_array);
        items.map_or(&[], Vec::as_slice)
    }
}

/// A text in an object; empty where there is none.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// A list in an object; empty where there is none.
fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A condition of an object.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|one| one["type"] == kind)
}

/// The sidecar's container.
fn container(pod: &Value) -> Option<&Value> {
    list(pod, "/spec/initContainers").iter().find(|container| text(container, "/name") == SIDECAR)
}

/// Returns whether a pod has ended well or is being deleted, so that its sidecar has nothing more to do.
fn is_over(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Succeeded" || pod.pointer("/metadata/deletionTimestamp").is_some()
}

/// Something that could not be read.
fn hidden(about: &'static str, what: &str, why: &str) -> Finding {
    let remedy = "ask with an account that may read it, or whoever manages the cluster";
    Finding::unknown(about, format!("{what} cannot be read: {why}"), remedy)
}
