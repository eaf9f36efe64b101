//! The annotation that says what was added to a pod. Names of ours say it for themselves; this is for the rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::asked::Asked;
use super::settle::Settled;

/// What was decided and what was added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The version of the operator.
    pub version: String,
    /// Who asked: `pod`, `namespace` or `gpu`.
    pub asked: String,
    /// Bytes that tensors may take.
    pub arena: String,
    /// How tensors on GPUs are shared.
    pub gpu: String,
    /// What each container got, `mount` or `env`, in their order.
    #[serde(default)]
    pub containers: BTreeMap<String, Vec<Added>>,
    /// What the pod said of its resources as a whole, before they were raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Value>,
    /// The process namespace was shared for us.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_process_namespace: bool,
}

/// What a container got.
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
