//! Reads objects, and tells what is not there from what may not be read.

use std::error::Error;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::core::{
    ApiResource, DynamicObject, GroupVersionKind, NamespaceResourceScope, ObjectList, PartialObjectMeta,
};
use kube::discovery::{ApiGroup, Discovery, Scope};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tensorlane_operator::dns::Label;
use tensorlane_operator::inspect::Seen;
use tensorlane_operator::inspect::cluster::{Cluster, Namespaces, PEER_ROLE};
use tensorlane_operator::inspect::explain::Subject;
use tensorlane_operator::inspect::namespace::{self, Namespace};
use tensorlane_operator::inspect::routes::PodSaid;
use tensorlane_operator::inspect::shared_memory::NODE_DAEMON;
use tensorlane_operator::manifests::{Installation, objects};
use tensorlane_operator::names::{INJECT, INJECTED};
use tensorlane_operator::offline::pods;
use tensorlane_operator::plan::Facts;
use tensorlane_operator::webhook::{FactSource, KubeFacts, LookUps};
use tensorlane_proto::crd::{TensorExchange, TensorPeer};

use crate::args::{Kind, Object};
use crate::settings::Settings;
use crate::trouble::Trouble;

/// Number of objects that are read at a time.
const PAGE: u32 = 500;

const OURS: &str = "tensorlane.dev/v1alpha1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const RBAC: &str = "rbac.authorization.k8s.io/v1";

pub(crate) struct Reader {
    client: Client,
    /// The namespace that is asked about, unless all are.
    namespace: String,
    every: bool,
    operator_namespace: String,
}

impl Reader {
    pub(crate) fn new(client: Client, namespace: String, every: bool, operator_namespace: String) -> Reader {
        Reader { client, namespace, every, operator_namespace }
    }

    /// Namespace that is asked about where one is.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Namespace in which lists are read; none for everywhere.
    fn scope(&self) -> Option<&str> {
        (!self.every).then_some(self.namespace.as_str())
    }

    fn place(&self) -> String {
        self.scope().map_or_else(|| "all namespaces".to_owned(), |name| format!("namespace {name}"))
    }

    /// Asks who is there at all: a wrong address must not read as a cluster in which everything is missing, nor as one whose
    /// objects this account may not read.
    async fn reach(&self) -> Result<(), Trouble> {
        match self.client.apiserver_version().await {
            // Whoever is forbidden this may read other things.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            version => version
                .map(drop)
                .map_err(|error| Trouble::of_reading("the version of the API server", &error)),
        }
    }

    /// Everything that a check looks at.
    pub(crate) async fn cluster(&self) -> Result<Cluster, Box<dyn Error>> {
        self.reach().await?;
        let system = Some(self.operator_namespace.as_str());
        let slices = "kubernetes.io/service-name=tensorlane-webhook";
        Ok(Cluster {
            operator_namespace: self.operator_namespace.clone(),
            definitions: self.definitions().await,
            policies: self.policies().await,
            operator: self.get("apps/v1", "Deployment", system, "tensorlane-operator").await,
            lease: self.get("coordination.k8s.io/v1", "Lease", system, "tensorlane-operator").await,
            webhook: self.get(ADMISSION, "MutatingWebhookConfiguration", None, "tensorlane").await,
            endpoints: self.list("discovery.k8s.io/v1", "EndpointSlice", system, slices).await,
            role: self.get(RBAC, "ClusterRole", None, PEER_ROLE).await,
            node_daemon: self.get("apps/v1", "DaemonSet", system, NODE_DAEMON).await,
            namespaces: match self.every {
                true => self.every_namespace().await,
                false => Namespaces::One(Box::new(self.of_namespace(&self.namespace).await)),
            },
        })
    }

    /// Every namespace that has something of ours.
    async fn every_namespace(&self) -> Namespaces {
        let labelled = self.list("v1", "Namespace", None, INJECT).await;
        let ours = [
            self.list(OURS, "TensorExchange", None, "").await,
            self.list(OURS, "TensorPeer", None, "").await,
        ];
        let names = match namespace::names(&labelled, &ours) {
            Ok(names) => names,
            Err(why) => return Namespaces::Hidden(why),
        };
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            all.push(self.of_namespace(&name).await);
        }
        Namespaces::All(all)
    }

    async fn of_namespace(&self, name: &str) -> Namespace {
        let own = Some(name);
        Namespace {
            name: name.to_owned(),
            object: self.get("v1", "Namespace", None, name).await,
            exchanges: self.list(OURS, "TensorExchange", own, "").await,
            peers: self.list(OURS, "TensorPeer", own, "").await,
            pods: self.list("v1", "Pod", own, &format!("{INJECTED}=true")).await,
            policies: self.list("networking.k8s.io/v1", "NetworkPolicy", own, "").await,
            daemons: self.list("apps/v1", "DaemonSet", own, "").await,
            binding: self.get(RBAC, "RoleBinding", own, PEER_ROLE).await,
            access: vec![
                ("list tensorpeers", self.may(name, "list", "").await),
                ("write the status of tensorpeers", self.may(name, "patch", "status").await),
            ],
        }
    }

    async fn definitions(&self) -> Vec<(String, Seen)> {
        let mut all = Vec::new();
        for name in ["tensorexchanges.tensorlane.dev", "tensorpeers.tensorlane.dev"] {
            let seen = self.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", None, name).await;
            all.push((name.to_owned(), seen));
        }
        all
    }

    /// Reads the policies of an installation.
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

    /// Asks whether the pods of the namespace may do something with peers.
    async fn may(&self, namespace: &str, verb: &str, subresource: &str) -> Seen {
        let attributes = json!({
            "namespace": namespace, "verb": verb, "group": "tensorlane.dev", "resource": "tensorpeers",
            "subresource": subresource,
        });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {
                "user": format!("system:serviceaccount:{namespace}:default"),
                "groups": [format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
                "resourceAttributes": attributes,
            },
        });
        let api = self.api("authorization.k8s.io/v1", "SubjectAccessReview", None);
        match serde_json::from_value::<DynamicObject>(review) {
            Ok(review) => seen(api.create(&PostParams::default(), &review).await.map(Some)),
            Err(error) => Seen::Hidden(error.to_string()),
        }
    }

    /// Reads everything that is needed to explain an object.
    pub(crate) async fn subject(&self, of: &Object) -> Result<Subject, Box<dyn Error>> {
        self.reach().await?;
        let (version, kind) = match &of.kind {
            Kind::OfKubernetes(kind, version) => ((*version).to_owned(), (*kind).to_owned()),
            Kind::Other(word) => self.kind(word).await?,
        };
        let own = Some(self.namespace.as_str());
        let object = self.get(&version, &kind, own, &of.name).await;
        let (settings, settings_read) = self.settings().await;
        let facts = self.facts(object.object(), settings).await;
        let told = self.told(&kind, &of.name, object.object()).await;
        Ok(Subject {
            name: of.name.clone(),
            namespace: self.namespace.clone(),
            facts,
            settings: settings_read,
            events: told.events,
            makers: told.makers,
            peer: self.get(OURS, "TensorPeer", own, &of.name).await,
            object,
            kind,
        })
    }

    /// Version and name of a kind that is named by a word, as the API server knows them.
    async fn kind(&self, word: &str) -> Result<(String, String), Box<dyn Error>> {
        let reading = |error| Trouble::of_reading("the kinds of the API server", &error);
        let known = Discovery::new(self.client.clone()).run_aggregated().await.map_err(reading)?;
        let mut kinds = known.groups_alphabetical().into_iter().flat_map(ApiGroup::recommended_resources);
        let is_it = |resource: &ApiResource| {
            let names = [&resource.plural, &resource.kind.to_lowercase()];
            names.iter().any(|name| word == **name || word == format!("{name}.{}", resource.group))
        };
        let found = kinds.find(|(resource, able)| able.scope == Scope::Namespaced && is_it(resource));
        let (resource, _) = found.ok_or_else(|| {
            Trouble::new(
                format!("the API server knows no kind {word:?} of objects in namespaces"),
                "`kubectl api-resources --namespaced` lists them: say one of the names there, and not a short one",
            )
        })?;
        Ok((resource.api_version, resource.kind))
    }

    /// Settings that the operator was given on its command line; if they cannot be read, the defaults of this release,
    /// and why.
    async fn settings(&self) -> (Settings, Result<(), String>) {
        let system = Some(self.operator_namespace.as_str());
        let seen = self.get("apps/v1", "Deployment", system, "tensorlane-operator").await;
        match Settings::of(&seen, &self.operator_namespace) {
            Ok(settings) => (settings, Ok(())),
            Err(why) => (Settings::usual(&self.operator_namespace), Err(why)),
        }
    }

    /// As the webhook reads them, for all pods of the object.
    async fn facts(&self, object: Option<&Value>, settings: Settings) -> Result<Facts, String> {
        let Settings { defaults, excluded } = settings;
        let source = KubeFacts::new(self.client.clone(), defaults, excluded);
        let pods = object.map(pods).unwrap_or_default();
        let claims = pods.iter().filter_map(|one| one.pod.pointer("/spec/resourceClaims")?.as_array());
        let claims: Vec<&Value> = claims.flatten().collect();
        let all = json!({"spec": {"resourceClaims": claims}});
        let namespace = Label::new("namespace", &self.namespace).map_err(|error| error.to_string())?;
        let look_ups = LookUps::of(namespace, &all).map_err(|error| error.to_string())?;
        source.facts(&look_ups).await.map_err(|error| error.to_string())
    }

    /// The peers.
    pub(crate) async fn peers(&self) -> Result<Vec<Value>, Box<dyn Error>> {
        let api = self.api(OURS, "TensorPeer", self.scope());
        let peers = pages(ListParams::default(), async |page| api.list(page).await).await;
        let peers =
            peers.map_err(|error| Trouble::of_reading(&format!("the peers of {}", self.place()), &error))?;
        Ok(peers.iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
    }

    /// The exchanges, or those of a name, of which there must be one.
    pub(crate) async fn exchanges(&self, name: Option<&str>) -> Result<Vec<TensorExchange>, Box<dyn Error>> {
        let named = name.map(|name| format!("metadata.name={name}")).unwrap_or_default();
        let all: Vec<TensorExchange> = self.typed("exchanges", &named).await?;
        if let Some(name) = name.filter(|_| all.is_empty()) {
            let lists = self.scope().map_or_else(|| "-A".to_owned(), |namespace| format!("-n {namespace}"));
            return Err(Trouble::new(
                format!("there is no TensorExchange {name} in {}", self.place()),
                format!(
                    "`kubectl get tensorexchanges {lists}` lists those that there are; --exchange names one"
                ),
            )
            .into());
        }
        Ok(all)
    }

    /// The peers as what they are.
    pub(crate) async fn typed_peers(&self) -> Result<Vec<TensorPeer>, Trouble> {
        self.typed("peers", "").await
    }

    /// Objects as what they are, those that a field selects; what people call them.
    async fn typed<K>(&self, what: &str, fields: &str) -> Result<Vec<K>, Trouble>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = match self.scope() {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let all = pages(ListParams::default().fields(fields), async |page| api.list(page).await).await;
        all.map_err(|error| Trouble::of_reading(&format!("the {what} of {}", self.place()), &error))
    }

    /// Reads the words of those pods that have a sidecar.
    pub(crate) async fn pods(&self) -> Result<Vec<PodSaid>, Trouble> {
        let api: Api<Pod> = match self.scope() {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let ours = ListParams::default().labels(&format!("{INJECTED}=true"));
        let pods = pages(ours, async |page| api.list_metadata(page).await).await;
        let pods =
            pods.map_err(|error| Trouble::of_reading(&format!("the pods of {}", self.place()), &error))?;
        let said = |pod: PartialObjectMeta<Pod>| PodSaid {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            annotations: pod.metadata.annotations.unwrap_or_default(),
        };
        Ok(pods.into_iter().map(said).collect())
    }

    fn api(&self, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    pub(crate) async fn get(&self, version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Seen {
        seen(self.api(version, kind, namespace).get_opt(name).await)
    }

    pub(crate) async fn list(
        &self,
        version: &str,
        kind: &str,
        namespace: Option<&str>,
        labels: &str,
    ) -> Seen {
        let api = self.api(version, kind, namespace);
        listed(pages(ListParams::default().labels(labels), async |page| api.list(page).await).await)
    }
}

fn listed<K: Serialize>(items: kube::Result<Vec<K>>) -> Seen {
    match items {
        Ok(items) => Seen::There(json!({"items": items})),
        // The kind is not defined.
        Err(kube::Error::Api(status)) if status.code == 404 => Seen::Missing,
        Err(error) => Seen::Hidden(error.to_string()),
    }
}

/// All pages of a list: whole, or not at all.
async fn pages<K: Clone>(
    which: ListParams,
    list: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
) -> kube::Result<Vec<K>> {
    let mut page = which.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let mut some = list(&page).await?;
        all.append(&mut some.items);
        match some.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(all),
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
