//! Facts that the planner has to know besides the pod, read when it is asked.
//!
//! There is no cache: an exchange that was made a moment before the pod must be seen, and a refusal by old news would be
//! a lie. The API server answers these lists from its own memory.

use std::collections::BTreeMap;
use std::future::Future;

use k8s_openapi::api::core::v1::{LimitRange as ApiLimitRange, Namespace as ApiNamespace, ResourceQuota};
use kube::api::{ListParams, ObjectList};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tensorlane_proto::crd::TensorExchange;
use thiserror::Error;

use super::lookups::LookUps;
use crate::abilities::Abilities;
use crate::dns::{Label, Subdomain};
use crate::plan::{Claims, Defaults, Facts, LimitRange, Namespace, OF_NAMESPACE, Quota};

/// Objects of a page of a list.
const PAGE: u32 = 50;

/// The versions of resource claims, the newest first.
const CLAIM_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Failure to read something.
#[derive(Debug, Error)]
#[error("the {what} of namespace {namespace:?} cannot be read: {source}; try again")]
pub struct FactsError {
    what: &'static str,
    namespace: String,
    source: Box<kube::Error>,
}

/// Source of facts.
pub trait FactSource: Send + Sync + 'static {
    /// Everything that a decision about a pod depends on.
    fn facts(&self, look_ups: &LookUps) -> impl Future<Output = Result<Facts, FactsError>> + Send;
}

/// An API server.
#[derive(Clone)]
pub struct KubeFacts {
    client: Client,
    defaults: Defaults,
    excluded: Vec<String>,
}

impl KubeFacts {
    /// Asks by this client; serves no pods in `excluded`.
    pub fn new(client: Client, defaults: Defaults, excluded: Vec<String>) -> KubeFacts {
        KubeFacts { client, defaults, excluded }
    }

    async fn namespace(&self, name: &Label) -> Result<Namespace, FactsError> {
        let api: Api<ApiNamespace> = Api::all(self.client.clone());
        let found = api.get(name.as_str()).await.map_err(|source| wrong("labels", name, source))?;
        let mut annotations = found.metadata.annotations.unwrap_or_default();
        annotations.retain(|key, _| OF_NAMESPACE.contains(&key.as_str()));
        Ok(Namespace {
            name: name.to_string(),
            annotations,
            labels: found.metadata.labels.unwrap_or_default(),
            excluded: self.excluded.iter().any(|excluded| excluded == name.as_str()),
        })
    }

    async fn list<K>(&self, what: &'static str, namespace: &Label) -> Result<ObjectList<K>, FactsError>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace.as_str());
        let mut page = ListParams::default().limit(PAGE);
        // What people write beside an object may be larger than the object, and says nothing here.
        let bare = |mut objects: ObjectList<K>| {
            for object in &mut objects.items {
                object.meta_mut().annotations = None;
                object.meta_mut().managed_fields = None;
            }
            objects
        };
        let mut all = bare(api.list(&page).await.map_err(|source| wrong(what, namespace, source))?);
        // Whole or not at all: what is on the last page may be the exchange that is asked for.
        while let Some(token) = all.metadata.continue_.take().filter(|token| !token.is_empty()) {
            page.continue_token = Some(token);
            let more = bare(api.list(&page).await.map_err(|source| wrong(what, namespace, source))?);
            all.items.extend(more.items);
            all.metadata = more.metadata;
        }
        Ok(all)
    }

    /// The device classes of each of the pod's claims. A claim that is not there yet is not in the result.
    async fn claims(&self, look_ups: &LookUps) -> Result<Claims, FactsError> {
        let mut classes = Claims::new();
        for claim in &look_ups.claims {
            if let Some(found) = self.claim(&look_ups.namespace, claim.kind, &claim.object).await? {
                classes.insert(claim.name.clone(), device_classes(&found));
            }
        }
        Ok(classes)
    }

    async fn claim(
        &self,
        namespace: &Label,
        kind: &str,
        name: &Subdomain,
    ) -> Result<Option<Value>, FactsError> {
        for version in CLAIM_VERSIONS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", version, kind));
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), namespace.as_str(), &resource);
            match api.get_opt(name.as_str()).await {
                Ok(Some(found)) => return Ok(Some(found.data)),
                // Either the object or the version is not there.
                Ok(None) => {}
                Err(source) => return Err(wrong("resource claims", namespace, source)),
            }
        }
        Ok(None)
    }
}

fn wrong(what: &'static str, namespace: &Label, source: kube::Error) -> FactsError {
    FactsError { what, namespace: namespace.to_string(), source: Box::new(source) }
}

impl FactSource for KubeFacts {
    async fn facts(&self, look_ups: &LookUps) -> Result<Facts, FactsError> {
        let namespace = &look_ups.namespace;
        let (labels, exchanges, limits, quotas, claims) = tokio::try_join!(
            self.namespace(namespace),
            self.list::<TensorExchange>("exchanges", namespace),
            self.list::<ApiLimitRange>("limit ranges", namespace),
            self.list::<ResourceQuota>("quotas", namespace),
            self.claims(look_ups),
        )?;
        let named = |exchange: TensorExchange| Some((exchange.metadata.name?, exchange.spec));
        Ok(Facts {
            namespace: labels,
            exchanges: exchanges.into_iter().filter_map(named).collect::<BTreeMap<_, _>>(),
            defaults: self.defaults.clone(),
            // Operator and sidecars are of one release.
            abilities: Abilities::THIS_RELEASE,
            limits: limits.iter().flat_map(LimitRange::of).collect(),
            quotas: quotas.iter().filter_map(Quota::of).collect(),
            claims,
            claim_templates: Vec::new(),
        })
    }
}

/// The device classes of a claim or a template, in either version.
fn device_classes(object: &Value) -> Vec<String> {
    let spec = object.pointer("/spec/spec").or_else(|| object.get("spec"));
    let requests = spec.and_then(|spec| spec.pointer("/devices/requests")).and_then(Value::as_array);
    let of = |request: &Value| {
        let own = request.get("deviceClassName");
        let exactly = request.pointer("/exactly/deviceClassName");
        let several = request.get("firstAvailable").and_then(Value::as_array).into_iter().flatten();
        let several = several.filter_map(|one| one.get("deviceClassName"));
        let all = own.into_iter().chain(exactly).chain(several);
        all.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    requests.into_iter().flatten().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn device_classes_are_found_in_every_version() {
        let old = json!({"spec": {"devices": {"requests": [{"deviceClassName": "gpu.nvidia.com"}]}}});
        let new = json!({"spec": {"spec": {"devices": {"requests": [
            {"exactly": {"deviceClassName": "gpu.nvidia.com"}},
            {"firstAvailable": [{"deviceClassName": "a"}, {"deviceClassName": "b"}]},
        ]}}}});
        assert_eq!(device_classes(&old), ["gpu.nvidia.com"]);
        assert_eq!(device_classes(&new), ["gpu.nvidia.com", "a", "b"]);
    }
}
