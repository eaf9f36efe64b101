//! Values by which an administrator may configure an installation by helm. `values.yaml`, its schema and the table of
//! the chart's page come from these types, so a value that is not here is refused, and none is without a word about it.
//!
//! The first words of a field's comment are what people read.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};
use tensorlane_proto::crd::LogLevel;

use crate::annotations::SEATS_MAX;
use crate::manifests::deployment::{ADMIN_PORT, USER, WEBHOOK_PORT};
use crate::plan::Defaults;

/// The schema, in the draft that every helm understands, without references.
pub(super) fn schema() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let schema: Schema = settings.into_generator().into_root_schema_for::<Values>();
    let mut schema = schema.to_value();
    name_words(&mut schema);
    require(&mut schema, &json!(Values::default()));
    schema
}

/// Requires every value that has a default. Helm merges defaults before it validates, and takes those away that are set to
/// null: what is missing then is refused by its name, and not rendered as another setting. Items of lists have no defaults.
fn require(schema: &mut Value, defaults: &Value) {
    let (Some(properties), Some(defaults)) = (schema.get_mut("properties"), defaults.as_object()) else {
        return;
    };
    for (name, value) in defaults {
        if let Some(inner) = properties.get_mut(name) {
            require(inner, value);
        }
    }
    let names: Vec<&String> = defaults.keys().collect();
    schema["required"] = json!(names);
}

/// Writes a choice of documented words as a plain list of them: of the other form, helm says only that the first word
/// is missing.
fn name_words(schema: &mut Value) {
    let children: Vec<&mut Value> = match schema {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => {
            let words: Option<Vec<Value>> = fields
                .get("oneOf")
                .and_then(Value::as_array)
                .and_then(|choices| choices.iter().map(|choice| choice.get("const").cloned()).collect());
            if let Some(words) = words {
                fields.remove("oneOf");
                fields.insert("enum".to_owned(), Value::Array(words));
            }
            fields.values_mut().collect()
        }
        _ => Vec::new(),
    };
    children.into_iter().for_each(name_words);
}

/// Settings of an installation of Tensorlane.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Values {
    /// The operator's image.
    image: Image,
    /// Names of Secrets with which the operator's image is pulled. Those of sidecars belong to the pods' own accounts.
    image_pull_secrets: Vec<Named>,
    /// Replicas of the operator. All serve the webhook and one of them leads; with one alone, pods that ask for a
    /// sidecar are refused while it restarts.
    #[schemars(range(min = 1, max = 10))]
    replicas: u8,
    /// Level of the operator's log: `error`, `warn`, `info`, `debug` or `trace`.
    log_level: LogLevel,
    /// Resources of the operator. The memory grows with the number of peers.
    resources: Resources,
    /// The user and group that the operator runs as, above 10000 because no node has such a user; 0 leaves it to the
    /// platform, and so does `sidecar.user: 0` (OpenShift).
    #[schemars(range(min = 0, max = 4_294_967_295_u32))]
    user: i64,
    /// The operator uses the network of its node: for clusters whose API server does not reach pods. Its namespace must
    /// then be privileged, and no `networkPolicy` applies to it. `replicas` must not be more than the nodes that it may
    /// run on, or no upgrade ends. `ports` must be free on them.
    host_network: bool,
    /// The operator's `dnsPolicy`; empty for Kubernetes' own choice, and for `ClusterFirstWithHostNet` with
    /// `hostNetwork`.
    #[schemars(extend("enum" = ["", "ClusterFirst", "ClusterFirstWithHostNet", "Default"]))]
    dns_policy: String,
    /// The ports at which the operator listens, two different ones. Where a firewall lets the API server reach only some
    /// ports (private GKE: 443 and 10250), `webhook: 10250` without `hostNetwork`. With `hostNetwork` ports that nobody
    /// uses on nodes, such as 19443; 10250 is the kubelet's there.
    ports: Ports,
    /// The PriorityClass of the operator, such as `system-cluster-critical`; empty for the cluster's default.
    priority_class_name: String,
    /// Labels that nodes must have, besides `kubernetes.io/os: linux`.
    node_selector: BTreeMap<String, String>,
    /// Taints that the operator tolerates.
    tolerations: Vec<BTreeMap<String, Value>>,
    /// Annotations of the operator's pods.
    pod_annotations: BTreeMap<String, String>,
    /// Settings of sidecars, used if neither their pod nor their exchange says anything.
    sidecar: Sidecar,
    /// The certificate of the webhook. The operator makes its own unless this is enabled.
    cert_manager: CertManager,
    /// The definitions of TensorExchange and TensorPeer.
    crds: Crds,
    /// Keeps one replica running while nodes are drained.
    pod_disruption_budget: Enabled,
    /// Directories on the nodes in which sidecars find each other, for exchanges that share memory (`sameNode`).
    same_node: SameNode,
    /// Policies on who may reach the operator and the sidecars. The cluster's network must enforce them, which was never
    /// tried: that of our test cluster does not.
    network_policy: NetworkPolicy,
    /// Has the Prometheus operator scrape operator and sidecars; its definitions must be there.
    pod_monitor: PodMonitor,
    /// Alerts, for the Prometheus operator; its definitions must be there.
    prometheus_rule: PrometheusRule,
    /// A dashboard for Grafana, as a ConfigMap that its sidecar loads.
    dashboard: Dashboard,
    /// The pods of `helm test`.
    test: Test,
    /// Global values, which helm gives to every chart; nothing here reads them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    global: BTreeMap<String, Value>,
    /// Condition of a chart that this one is a part of (`condition: tensorlane.enabled`), which helm alone reads; nothing
    /// here does.
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Image {
    /// Repository of the image, with its registry.
    #[schemars(length(min = 1))]
    repository: String,
    /// Tag of the image; empty for the version of the chart's app.
    tag: String,
    /// Digest of the image, such as `sha256:0123…`, which beats the tag.
    #[schemars(regex(pattern = "^(sha256:[0-9a-f]{64})?$"))]
    digest: String,
    /// `Always`, `IfNotPresent` or `Never`; empty for Kubernetes' own choice.
    #[schemars(extend("enum" = ["", "Always", "IfNotPresent", "Never"]))]
    pull_policy: String,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    name: String,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Resources {
    /// Amounts that a node must have free for the operator.
    requests: BTreeMap<String, Value>,
    /// Amounts that the operator may use at most.
    limits: BTreeMap<String, Value>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Ports {
    /// For calls of the webhook.
    #[schemars(range(min = 1024))]
    webhook: u16,
    /// For metrics and probes.
    #[schemars(range(min = 1024))]
    admin: u16,
}

impl Default for Ports {
    fn default() -> Self {
        Self { webhook: WEBHOOK_PORT, admin: ADMIN_PORT }
    }
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Sidecar {
    /// The sidecar's image.
    image: Image,
    /// Bytes that tensors may take: from `16Mi` to `16Ti`.
    #[schemars(regex(pattern = ARENA_SIZE))]
    arena_size: String,
    /// Bytes beside them: from `64Mi` to `1Ti`. They are for up to 256 seats; `peers.max` adds those of more.
    #[schemars(regex(pattern = BASE_SIZE))]
    memory: String,
    /// Connections with other peers.
    peers: Peers,
    /// Processor time to request, such as `250m` or `2`; more than nothing. A fraction is in quotes: `"0.5"`.
    #[schemars(regex(pattern = CPU), extend("type" = ["string", "integer"], "minimum" = 1, "maximum" = 1000))]
    cpu: String,
    /// Level of the sidecars' log: `error`, `warn`, `info`, `debug` or `trace`.
    log_level: LogLevel,
    /// The user and group that sidecars run as; 0 leaves it to the platform (OpenShift).
    #[schemars(range(min = 0, max = 4_294_967_295_u32))]
    user: i64,
    /// Pods have IPv6 addresses, alone or beside those of IPv4. The operator then listens on those, too.
    ipv6: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Peers {
    /// Seats: peers that a sidecar has connected at once. Those that are not needed give way where an exchange has more. Each
    /// seat above 256 adds `1Mi` to the memory of each sidecar.
    #[schemars(range(min = 1, max = SEATS_MAX))]
    max: u32,
}

impl Default for Peers {
    fn default() -> Self {
        Self { max: Defaults::default().seats }
    }
}

/// Pattern of sizes. What the operator would not start with must not pass the schema, so the patterns have its bounds:
/// 16Mi to 16Ti.
const ARENA_SIZE: &str = "^((1[6-9]|[2-9][0-9]|[1-9][0-9]{2,6})Mi|[1-9][0-9]{0,3}Gi|([1-9]|1[0-6])Ti)$";
/// 64Mi to 1Ti.
const BASE_SIZE: &str = "^((6[4-9]|[7-9][0-9]|[1-9][0-9]{2,5})Mi|[1-9][0-9]{0,2}Gi|1Ti)$";
/// 1Mi to 1Ti.
const NODE_BYTES: &str = "^([1-9][0-9]{0,5}Mi|[1-9][0-9]{0,2}Gi|1Ti)$";
const CPU: &str = "^([1-9][0-9]{0,5}m|[1-9][0-9]{0,2}(\\.[0-9]{1,3})?|1000|0\\.[0-9]{0,2}[1-9])$";

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct CertManager {
    /// cert-manager makes the certificate and writes the bundle.
    enabled: bool,
    /// Issuer of the certificate, such as `{kind: ClusterIssuer, name: internal}`; empty for an authority
    /// of the chart's own.
    issuer_ref: BTreeMap<String, String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Crds {
    /// Install and upgrade them with the chart. They stay when it is removed, and so do the exchanges.
    install: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Enabled {
    /// Make the budget. It needs two replicas, or no node can be drained.
    enabled: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct SameNode {
    /// The exchanges, such as `[{namespace: ml, name: default, claim: true}]`; none unless given. A privileged DaemonSet
    /// mounts a file system in memory for each below `/run/tensorlane` of the node, so its namespace must be privileged.
    exchanges: Vec<NodeExchange>,
    /// Bytes of the files of an exchange on each node, from `1Mi` to `1Ti`. Sockets take none, so they are for who does
    /// otherwise.
    #[schemars(regex(pattern = NODE_BYTES))]
    bytes: String,
    /// Files of an exchange on each node: one for each pod of it there, one more while a sidecar starts, and the directory.
    /// Whoever makes as many costs the exchange its `shm`, and nothing else of the node.
    #[schemars(range(min = 16, max = 1_000_000))]
    files: u32,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeExchange {
    /// The namespace of the exchange.
    #[schemars(length(min = 1, max = 63))]
    namespace: String,
    /// Name of the exchange.
    #[schemars(length(min = 1, max = 63))]
    name: String,
    /// Make the volume and the claim of `sameNode: claim` too.
    #[serde(default)]
    claim: bool,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct NetworkPolicy {
    /// Let nothing reach the operator but calls of the webhook, metrics and probes. Policies add up: say false where one
    /// of your own says who may reach it. What the operator itself may reach is left to other policies.
    enabled: bool,
    /// Exchanges whose pods accept connections of peers only from pods with the labels of the exchange, such as
    /// `[{namespace: ml, name: default}]`. Whoever makes pods in the namespace can give them these labels. With
    /// `otherPorts: false` all other ports of these pods are closed to others; they stay open unless that is said.
    exchanges: Vec<Exchange>,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Exchange {
    /// The namespace of the exchange.
    #[schemars(length(min = 1, max = 63))]
    namespace: String,
    /// Name of the exchange.
    #[schemars(length(min = 1, max = 63))]
    name: String,
    /// Set if all other ports of these pods stay open, as without a policy: true unless given. Say false if other
    /// policies say who may reach them, because policies add up.
    #[serde(default)]
    other_ports: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PodMonitor {
    /// Make them.
    enabled: bool,
    /// Labels by which your Prometheus selects them.
    labels: BTreeMap<String, String>,
    /// Interval between two scrapes, such as `30s` or `1m`.
    #[schemars(regex(pattern = "^[1-9][0-9]*(ms|s|m|h)$"))]
    interval: String,
}

#[derive(Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PrometheusRule {
    /// Make it.
    enabled: bool,
    /// Labels by which your Prometheus selects it.
    labels: BTreeMap<String, String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Dashboard {
    /// Make it.
    enabled: bool,
    /// Labels by which Grafana finds it.
    labels: BTreeMap<String, String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Test {
    /// An image with the command `tensorlane` and a shell.
    image: Image,
}

fn image(name: &str) -> Image {
    Image { repository: format!("ghcr.io/tensorlane/{name}"), ..Image::default() }
}

fn quantities(all: &[(&str, &str)]) -> BTreeMap<String, Value> {
    all.iter().map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect()
}

impl Default for Values {
    fn default() -> Self {
        Self {
            image: image("operator"),
            image_pull_secrets: Vec::new(),
            replicas: 2,
            log_level: LogLevel::Info,
            resources: Resources {
                requests: quantities(&[("cpu", "50m"), ("memory", "64Mi"), ("ephemeral-storage", "64Mi")]),
                limits: quantities(&[("memory", "256Mi"), ("ephemeral-storage", "1Gi")]),
            },
            user: USER,
            host_network: false,
            dns_policy: String::new(),
            ports: Ports::default(),
            priority_class_name: String::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            pod_annotations: BTreeMap::new(),
            sidecar: Sidecar::default(),
            cert_manager: CertManager::default(),
            crds: Crds::default(),
            pod_disruption_budget: Enabled::default(),
            same_node: SameNode::default(),
            network_policy: NetworkPolicy::default(),
            pod_monitor: PodMonitor::default(),
            prometheus_rule: PrometheusRule::default(),
            dashboard: Dashboard::default(),
            test: Test::default(),
            global: BTreeMap::new(),
            enabled: None,
        }
    }
}

impl Default for Sidecar {
    fn default() -> Self {
        let defaults = Defaults::default();
        Self {
            image: image("sidecar"),
            arena_size: defaults.arena.memory().0,
            memory: defaults.base.memory().0,
            peers: Peers::default(),
            cpu: defaults.cpu.cpu().0,
            log_level: defaults.log_level,
            user: defaults.user.unwrap_or_default(),
            ipv6: defaults.ipv6,
        }
    }
}

impl Default for SameNode {
    fn default() -> Self {
        Self { exchanges: Vec::new(), bytes: "1Mi".to_owned(), files: 4096 }
    }
}

impl Default for Crds {
    fn default() -> Self {
        Self { install: true }
    }
}

impl Default for Enabled {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { enabled: true, exchanges: Vec::new() }
    }
}

impl Default for PodMonitor {
    fn default() -> Self {
        Self { enabled: false, labels: BTreeMap::new(), interval: "30s".to_owned() }
    }
}

impl Default for Dashboard {
    fn default() -> Self {
        Self { enabled: false, labels: [("grafana_dashboard".to_owned(), "1".to_owned())].into() }
    }
}

impl Default for Test {
    fn default() -> Self {
        Self { image: image("workload") }
    }
}
