//! The annotation that says what was added to a pod. Names of ours say it for themselves; this is for the rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::resources::MEMORY;
use super::settle::Settled;
use crate::quantity::Amount;

/// Status: what was decided and what was added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of the operator.
    pub version: String,
    /// Asker: `pod`, `namespace` or `gpu`.
    pub asked: String,
    /// Bytes that tensors may take.
    pub arena: String,
    /// Mode of sharing tensors on GPUs.
    pub gpu: String,
    /// Additions to each container, `mount` or `env`, in their order.
    #[serde(default)]
    pub containers: BTreeMap<String, Vec<Added>>,
    /// The amounts of the pod as a whole that were raised, by list (`limits`, `requests`) and resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub raised: BTreeMap<String, BTreeMap<String, Raised>>,
    /// The process namespace was shared for us.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_process_namespace: bool,
    /// Names of the init containers behind the sidecar, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<String>,
    /// Annotations of others that ports of ours were written into.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, Written>,
}

/// An annotation of somebody else that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Value that the pod said; absent where it said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// Value that was written over it.
    pub now: String,
}

/// An amount of the pod as a whole that was raised by what the sidecar takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Raised {
    /// Value that the pod said.
    pub was: String,
    /// Value that was written over it.
    pub now: String,
}

impl Raised {
    /// The amount of `resource` without ours in it, where it says `current` by now; none where nothing of it is ours.
    ///
    /// Whoever has raised it since has raised it with ours in it. Whoever has written less has written an amount of
    /// their own: that ours is in it cannot be known, and a pod with too much room is better than one that is killed.
    pub(super) fn without_ours(&self, resource: &str, current: &str) -> Option<String> {
        let read = |text: &str| Amount::parse(text).ok();
        let (was, now, current) = (read(&self.was)?, read(&self.now)?, read(current)?);
        if was > now || current < now {
            return None;
        }
        if current == now {
            return Some(self.was.clone());
        }
        let own = current - (now - was);
        Some(if resource == MEMORY { own.memory().0 } else { own.cpu().0 })
    }
}

/// Addition to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Added {
    /// The mount of the sockets.
    Mount,
    /// The variable that says where they are.
    Env,
}

impl Status {
    pub(super) fn new(asked: &Asked, settled: &Settled) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            asked: asked.as_str().to_owned(),
            arena: settled.arena.memory().0,
            gpu: settled.gpu.to_string(),
            ..Status::default()
        }
    }

    /// Reads the annotation; none where it is no status, so that a pod cannot break the planner with one.
    pub fn read(annotation: &str) -> Option<Status> {
        serde_json::from_str(annotation).ok()
    }
}
