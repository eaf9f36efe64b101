//! What the leader applies to the configuration of the webhook: the bundle, and the namespaces of pods with GPUs.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::apply::ApplyError;
use crate::manifests::{WEBHOOKS, gpu_webhook};
use crate::names::FIELD_MANAGER;

/// What is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Webhooks {
    /// The authorities in PEM; none where somebody else sees to the bundle.
    pub bundle: Option<String>,
    /// The namespaces with an exchange that wants every pod with a GPU, sorted.
    pub gpu_namespaces: Vec<String>,
}

impl Webhooks {
    /// What is applied, in base64 where it is bytes. An entry that is not in it any more is taken away by the API
    /// server, because it was ours alone.
    pub fn patch(&self, name: &str, operator_namespace: &str, encode: impl Fn(&[u8]) -> String) -> Value {
        let bundle = self.bundle.as_ref().map(|bundle| encode(bundle.as_bytes()));
        let mut entries: Vec<Value> = Vec::new();
        if let Some(bundle) = &bundle {
            entries.extend(
                WEBHOOKS.iter().map(|entry| json!({"name": entry, "clientConfig": {"caBundle": bundle}})),
            );
        }
        if !self.gpu_namespaces.is_empty() {
            let mut entry =
                gpu_webhook(operator_namespace, bundle.as_deref().unwrap_or_default(), &self.gpu_namespaces);
            if bundle.is_none()
                && let Some(client) = entry["clientConfig"].as_object_mut()
            {
                client.remove("caBundle");
            }
            entries.push(entry);
        }
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name}, "webhooks": entries,
        })
    }
}

/// Applies it.
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
    let patch = webhooks.patch(name, operator_namespace, encode);
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(patch)).await?;
    Ok(())
}
