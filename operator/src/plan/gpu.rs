//! Detection of whether a pod asks for a GPU: by the resource of a device plugin, or by a claim on a device.

use super::View;
use super::facts::Claims;
use super::resources::has_limit;

/// The devices that a pod asks for, as far as they concern us.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// A container has a GPU for sure.
    pub(super) gpu: bool,
    /// Claims of which nobody knows yet what they ask for.
    pub(super) unread: Vec<String>,
}

impl Devices {
    /// True if it has one, or may have one: a sidecar too many costs memory, a missing one costs the whole work.
    pub(super) fn any(&self) -> bool {
        self.gpu || !self.unread.is_empty()
    }
}

/// Devices that the pod asks for.
pub(super) fn devices(view: &View, claims: &Claims) -> Devices {
    let spec = &view.spec;
    let gpu = has_limit(view, |name| name.starts_with("nvidia.com/"));
    let mut devices = Devices { gpu, unread: Vec::new() };
    for claim in spec.resource_claims.iter().flatten() {
        match claims.get(&claim.name) {
            Some(classes) => devices.gpu |= classes.iter().any(|class| is_gpu(class)),
            None => devices.unread.push(claim.name.clone()),
        }
    }
    devices
}

/// Returns whether a device class is one of GPUs: `gpu.nvidia.com`, `mig.nvidia.com`, `gpu.example.com`.
fn is_gpu(class: &str) -> bool {
    class.ends_with(".nvidia.com") || class.split(['.', '-']).any(|word| word == "gpu")
}
