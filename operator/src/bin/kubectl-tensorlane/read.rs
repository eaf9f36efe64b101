//! Reads objects, and tells what is not there from what may not be read.

use std::collections::BTreeMap;
use std::error::Error;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tensorlane_operator::inspect::Seen;
use tensorlane_operator::inspect::cluster::{Cluster, PEER_ROLE};
use tensorlane_operator::inspect::explain::Subject;
use tensorlane_operator::manifests::{Installation, objects};
use tensorlane_operator::names::INJECTED;
use tensorlane_operator::plan::Facts;
use tensorlane_operator::webhook::{FactSource, KubeFacts};
use tensorlane_proto::crd::{ExchangeSpec, TensorExchange, TensorPeer};

use crate::args::Object;
use crate::settings::Settings;

/// The most objects of a kind that are read: an exchange has fewer peers.
const LIST_MAX: u32 = 10_000;

const OURS: &str = "tensorlane.dev/v1alpha1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

pub(crate) struct Reader {
    client: Client,
    namespace: String,
    operator_namespace: String,
}

impl Reader {
    pub(crate) fn new(client: Client, namespace: String, operator_namespace: String) -> Reader {
        Reader { client, namespace, operator_namespace }
    }

    /// Everything that a check looks at.
    pub(crate) async fn cluster(&self) -> Result<Cluster, Box<dyn Error>> {
        // Who is there at all: a wrong address must not read as a cluster in which everything is missing.
        self.client.apiserver_version().await?;
        let system = Some(self.operator_namespace.as_str());
        let own = Some(self.namespace.as_str());
        let slices = "kubernetes.io/service-name=tensorlane-webhook";
        Ok(Cluster {
            operator_namespace: self.operator_namespace.clone(),
            definitions: self.definitions().await,
            policies: self.policies().await,
            operator: self.get("apps/v1", "Deployment", system, "tensorlane-operator").await,
            lease: self.get("coordination.k8s.io/v1", "Lease", system, "tensorlane-operator").await,
            webhook: self.get(ADMISSION, "MutatingWebhookConfiguration", None, "tensorlane").await,
            endpoints: self.list("discovery.k8s.io/v1", "EndpointSlice", system, slices).await,
            namespace: self.get("v1", "Namespace", None, &self.namespace).await,
            exchanges: self.list(OURS, "TensorExchange", own, "").await,
            peers: self.list(OURS, "TensorPeer", own, "").await,
            role: self.get(RBAC, "ClusterRole", None, PEER_ROLE).await,
            binding: self.get(RBAC, "RoleBinding", own, PEER_ROLE).await,
            access: vec![
                ("list tensorpeers", self.may("list", "").await),
                ("write the status of tensorpeers", self.may("patch", "status").await),
            ],
        })
    }

    async fn definitions(&self) -> Vec<(String, Seen)> {
        let mut all = Vec::new();
        for name in ["tensorexchanges.tensorlane.dev", "tensorpeers.tensorlane.dev"] {
            let seen = self.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name).await;
            all.push((name.to_owned(), seen));
        }
        all
    }

    /// Those that an installation has.
    async fn policies(&self) -> Vec<(String, Seen)> {
        let mut all = Vec::new();
        for object in objects(&Installation::default()) {
            let kind = object["kind"].as_str().unwrap_or_default();
            if kind.starts_with("ValidatingAdmissionPolicy") {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                all.push((format!("{kind} {name}"), self.get(ADMISSION, kind, None, name).await));
            }
        }
        all
    }

    /// Whether the pods of the namespace may do something with peers.
    async fn may(&self, verb: &str, subresource: &str) -> Seen {
        let attributes = json!({
            "namespace": self.namespace, "verb": verb, "group": "tensorlane.dev", "resource": "tensorpeers",
            "subresource": subresource,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": format!("system:serviceaccount:{}:default", self.namespace),
                "groups": [format!("system:serviceaccounts:{}", self.namespace), "system:authenticated"],
                "resourceAttributes": attributes,
            },
        });
        let api = self.api("authorization.k8s.io/v1", "SubjectAccessReview", None);
        match serde_json::from_value::<DynamicObject>(review) {
            Ok(review) => seen(api.create(&PostParams::default(), &review).await.map(Some)),
            Err(error) => Seen::Hidden(error.to_string()),
        }
    }

    /// What is needed to explain an object.
    pub(crate) async fn subject(&self, of: &Object) -> Subject {
        let version = if of.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", of.group) };
        let own = Some(self.namespace.as_str());
        let object = self.get(&version, of.kind, own, &of.name).await;
        let (settings, told) = self.settings().await;
        let facts = self.facts(of, object.object(), settings).await;
        let events = self.list("events.k8s.io/v1", "Event", own, "").await;
        Subject {
            kind: of.kind,
            name: of.name.clone(),
            namespace: self.namespace.clone(),
            facts,
            settings: told,
            events: about(events, of),
            peer: self.get(OURS, "TensorPeer", own, &of.name).await,
            object,
        }
    }

    /// What the operator was told on its command line; where that cannot be read, the defaults of this release, and why.
    async fn settings(&self) -> (Settings, Result<(), String>) {
        let system = Some(self.operator_namespace.as_str());
        let seen = self.get("apps/v1", "Deployment", system, "tensorlane-operator").await;
        match Settings::of(&seen, &self.operator_namespace) {
            Ok(settings) => (settings, Ok(())),
            Err(why) => (Settings::usual(&self.operator_namespace), Err(why)),
        }
    }

    /// As the webhook reads them.
    async fn facts(&self, of: &Object, object: Option<&Value>, settings: Settings) -> Result<Facts, String> {
        let Settings { defaults, excluded } = settings;
        let source = KubeFacts::new(self.client.clone(), defaults, excluded);
        let nothing = Value::Null;
        let object = object.unwrap_or(&nothing);
        let pod = match of.kind {
            "Pod" => Some(object),
            "CronJob" => object.pointer("/spec/jobTemplate/spec/template"),
            _ => object.pointer("/spec/template"),
        };
        source.facts(&self.namespace, pod.unwrap_or(&nothing)).await.map_err(|error| error.to_string())
    }

    /// The peers of the namespace.
    pub(crate) async fn peers(&self) -> Result<Vec<Value>, Box<dyn Error>> {
        match self.list(OURS, "TensorPeer", Some(&self.namespace), "").await {
            Seen::Hidden(why) => Err(format!("the peers of {} cannot be read: {why}", self.namespace).into()),
            seen => Ok(seen.items().to_vec()),
        }
    }

    /// An exchange and its peers.
    pub(crate) async fn exchange(
        &self,
        name: &str,
    ) -> Result<(Vec<TensorPeer>, ExchangeSpec), Box<dyn Error>> {
        let api: Api<TensorExchange> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(name).await?;
        let missing = || format!("there is no TensorExchange {name} in namespace {}", self.namespace);
        let spec = found.ok_or_else(missing)?.spec;
        let peers: Api<TensorPeer> = Api::namespaced(self.client.clone(), &self.namespace);
        let listed = peers.list(&ListParams::default().limit(LIST_MAX)).await?;
        Ok((listed.into_iter().filter(|peer| peer.spec.exchange == name).collect(), spec))
    }

    /// The annotations of the pods of the namespace that have a sidecar, by their names.
    pub(crate) async fn annotations(&self) -> kube::Result<BTreeMap<String, BTreeMap<String, String>>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let labels = format!("{INJECTED}=true");
        let pods = api.list_metadata(&ListParams::default().labels(&labels).limit(LIST_MAX)).await?;
        Ok(pods.into_iter().map(|pod| (pod.name_any(), pod.annotations().clone())).collect())
    }

    fn api(&self, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    async fn get(&self, version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Seen {
        seen(self.api(version, kind, namespace).get_opt(name).await)
    }

    async fn list(&self, version: &str, kind: &str, namespace: Option<&str>, labels: &str) -> Seen {
        let parameters = ListParams::default().labels(labels).limit(LIST_MAX);
        match self.api(version, kind, namespace).list(&parameters).await {
            Ok(list) => Seen::There(json!({"items": list.items})),
            // The kind is not defined.
            Err(kube::Error::Api(status)) if status.code == 404 => Seen::Missing,
            Err(error) => Seen::Hidden(error.to_string()),
        }
    }
}

fn seen(found: kube::Result<Option<DynamicObject>>) -> Seen {
    match found.map(|object| object.map(serde_json::to_value)) {
        Ok(None) => Seen::Missing,
        Ok(Some(Ok(object))) => Seen::There(object),
        Ok(Some(Err(error))) => Seen::Hidden(error.to_string()),
        Err(error) => Seen::Hidden(error.to_string()),
    }
}

/// The Events that speak of this object.
fn about(events: Seen, of: &Object) -> Seen {
    let is_it = |event: &&Value| {
        let regarding = &event["regarding"];
        regarding["kind"] == of.kind && regarding["name"] == of.name.as_str()
    };
    match events {
        Seen::There(list) => {
            let all = list["items"].as_array();
            let ours: Vec<&Value> = all.into_iter().flatten().filter(is_it).collect();
            Seen::There(json!({"items": ours}))
        }
        other => other,
    }
}
