//! Parts that the leader applies to the configuration of the webhook: the bundle, the path with its secret part, and
//! the namespaces of pods with GPUs.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::apply::ApplyError;
use crate::certs::SecretPath;
use crate::manifests::{WEBHOOKS, gpu_webhook};
use crate::names::FIELD_MANAGER;

/// Parts that are applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Webhooks {
    /// The authorities in PEM; none where somebody else sees to the bundle.
    pub bundle: Option<String>,
    /// The path that the API server is to call; none while that is not known.
    pub path: Option<SecretPath>,
    /// The namespaces with an exchange that wants every pod with a GPU, sorted; none while that is not known, as at the
    /// beginning of a term.
    pub gpu_namespaces: Option<Vec<String>>,
}

/// Owner of the entry for pods with GPUs. The bundle is applied before it is known which namespaces want that entry,
/// and what one manager leaves out of what it has applied before is taken away.
pub const GPU_MANAGER: &str = "tensorlane-operator-gpus";

impl Webhooks {
    /// The path of the entries that are always there, and their bundle unless somebody else sees to it. One patch has
    /// both, so that no API server has one without the other.
    pub fn clients(&self, name: &str, encode: impl Fn(&[u8]) -> String) -> Option<Value> {
        let mut client = json!({"service": {"path": self.path.as_ref()?.as_str()}});
        if let Some(bundle) = &self.bundle {
            client["caBundle"] = json!(encode(bundle.as_bytes()));
        }
        let entry = |entry: &&str| json!({"name": entry, "clientConfig": client});
        Some(configuration(name, &WEBHOOKS.iter().map(entry).collect::<Vec<_>>()))
    }

    /// The entry for pods with GPUs, or that there is none; nothing while that is not known.
    pub fn gpus(
        &self,
        name: &str,
        operator_namespace: &str,
        encode: impl Fn(&[u8]) -> String,
    ) -> Option<Value> {
        let namespaces = self.gpu_namespaces.as_ref()?;
        if namespaces.is_empty() {
            return Some(configuration(name, &[]));
        }
        let path = self.path.as_ref()?.as_str();
        let bundle = self.bundle.as_ref().map(|bundle| encode(bundle.as_bytes()));
        let shown = bundle.as_deref().unwrap_or_default();
        let mut entry = gpu_webhook(operator_namespace, shown, path, namespaces);
        if bundle.is_none()
            && let Some(client) = entry["clientConfig"].as_object_mut()
        {
            client.remove("caBundle");
        }
        Some(configuration(name, &[entry]))
    }
}

fn configuration(name: &str, entries: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name}, "webhooks": entries,
    })
}

/// Applies them.
///
/// # Errors
/// The API server refuses, or the configuration is not there: nothing of ours makes it anew after somebody removed it.
pub async fn apply_webhooks(
    client: &Client,
    name: &str,
    operator_namespace: &str,
    webhooks: &Webhooks,
) -> Result<(), ApplyError> {
    let encode = |bytes: &[u8]| {
        let bytes = k8s_openapi::ByteString(bytes.to_vec());
        serde_json::to_value(bytes).ok().and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let all = [
        (FIELD_MANAGER, webhooks.clients(name, encode)),
        (GPU_MANAGER, webhooks.gpus(name, operator_namespace, encode)),
    ];
    for (manager, patch) in all {
        if let Some(patch) = patch {
            api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(patch)).await?;
        }
    }
    Ok(())
}
