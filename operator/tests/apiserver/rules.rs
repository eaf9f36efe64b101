//! Every rule of the definitions, tried on a real API server: an object that breaks it is refused with the rule's own
//! sentence, and one that keeps them all is taken. A rule that nobody breaks here is found by its name.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{api, create, until};
use crate::server::Server;

/// Trial of an object that is wrong, or right.
enum Trial {
    /// An exchange with this spec.
    Exchange(Value),
    /// The exchange `default` with this spec.
    OfDefault(Value),
    /// An exchange of this name.
    Named(String),
    /// A peer with this spec.
    Peer(Value),
    /// Spec to put over that of a peer.
    Changed(Value),
    /// Status of a peer.
    Status(Value),
}
use Trial::{Changed, Exchange, Named, OfDefault, Peer, Status};

/// A rule in a definition: in which one and where, and what is said where it is broken.
#[derive(Debug, PartialEq)]
struct Rule {
    kind: &'static str,
    place: String,
    message: String,
}

/// For each rule of a definition: where it stands, a part of what it says, and what breaks it.
fn broken() -> Vec<(&'static str, &'static str, Vec<Trial>)> {
    let fingerprints =
        |one: &str| Status(json!({"fingerprints": [format!("sha256:{}", "0".repeat(64)), one]}));
    let incarnation = |text: String| Status(json!({"incarnation": text}));
    let memory = |text: &str| Exchange(json!({"sidecar": {"resources": {"memory": text}}}));
    let cpu = |text: &str| Exchange(json!({"sidecar": {"resources": {"cpu": text}}}));
    let arena = |text: &str| Exchange(json!({"arena": {"size": text}}));
    let grace = |text: &str| Exchange(json!({"gc": {"leaseGrace": text}}));
    let ticket = |text: &str| Exchange(json!({"gc": {"ticketTtl": text}}));
    let plain = json!({"require": ["zero_copy", "encrypted"], "security": {"encryption": "none"}});
    let selects = |one: Value| Exchange(json!({"inject": {"selector": {"matchExpressions": [one]}}}));
    let members = |names: &[&str]| json!({"members": {"serviceAccounts": names}});
    let no_shm = |mode: &str| Exchange(json!({"sameNode": mode, "transports": ["tcp", "quic"]}));
    vec![
        ("TensorExchange", "at most 63 characters", vec![Named("x".repeat(64))]),
        (
            "TensorExchange",
            "the exchange default is open to its namespace",
            vec![OfDefault(members(&["trainer"]))],
        ),
        (
            "TensorExchange spec.members.serviceAccounts",
            "must be names of service accounts of this namespace",
            ["system:serviceaccount:ml:trainer", "ml/trainer", "Trainer", "*"]
                .map(|name| Exchange(members(&[name])))
                .into(),
        ),
        ("TensorExchange spec", "contradict each other", vec![Exchange(plain)]),
        ("TensorExchange spec", "must contain shm", ["claim", "hostPath"].map(no_shm).into()),
        (
            "TensorExchange spec",
            "prefer is a transport that transports leaves out",
            vec![Exchange(json!({"prefer": "quic", "transports": ["shm", "tcp"]}))],
        ),
        (
            "TensorExchange spec.arena.size",
            "such as 2Gi",
            ["2GB", "1Mi", "17Ti", "16777217", ""].map(arena).into(),
        ),
        (
            "TensorExchange spec.gc.leaseGrace",
            "such as 10s",
            ["10", "0s", "1.5s", "25h", ""].map(grace).into(),
        ),
        (
            "TensorExchange spec.inject.selector.matchExpressions[]",
            "In and NotIn need values",
            vec![
                selects(json!({"key": "team", "operator": "In"})),
                selects(json!({"key": "team", "operator": "NotIn", "values": []})),
                selects(json!({"key": "team", "operator": "Exists", "values": ["vision"]})),
            ],
        ),
        ("TensorExchange spec.gc.ticketTtl", "such as 60s", ["60", "0ms", "-1s", "25h"].map(ticket).into()),
        ("TensorExchange spec.sidecar.resources.cpu", "such as 200m", ["0", "1001", "much"].map(cpu).into()),
        (
            "TensorExchange spec.sidecar.resources.memory",
            "such as 256Mi",
            ["1Mi", "2Ti", "67108865"].map(memory).into(),
        ),
        ("TensorPeer spec", "stays in its exchange for life", vec![Changed(json!({"exchange": "other"}))]),
        (
            "TensorPeer status.fingerprints",
            "64 lower-case hexadecimal digits",
            vec![
                fingerprints(""),
                fingerprints("sha256:12"),
                fingerprints(&format!("sha256:{}", "F".repeat(64))),
            ],
        ),
        (
            "TensorPeer status.incarnation",
            "32 lower-case hexadecimal digits",
            [String::new(), "12".to_owned(), "G".repeat(32)].map(incarnation).into(),
        ),
        ("TensorPeer status.offer", "must not be above", vec![Status(json!({"offer": offer(2, 1, &[])}))]),
    ]
}

/// Refusals by types and limits, by the API server's own sentences.
fn beside_the_rules() -> Vec<(&'static str, Trial)> {
    let transports = |names: &[&str]| Status(json!({"offer": offer(1, 1, names)}));
    vec![
        (
            "spec.transports: Invalid value: 0: spec.transports in body should have at least 1 items",
            Exchange(json!({"transports": []})),
        ),
        ("Duplicate value: \"tcp\"", Exchange(json!({"transports": ["tcp", "tcp"]}))),
        (
            "supported values: \"shm\", \"cuda_ipc\", \"tcp\", \"quic\"",
            Exchange(json!({"transports": ["rdma"]})),
        ),
        (
            "supported values: \"zero_copy\", \"same_node\", \"encrypted\"",
            Exchange(json!({"require": ["fast"]})),
        ),
        (
            "supported values: \"In\", \"NotIn\", \"Exists\", \"DoesNotExist\"",
            Exchange(
                json!({"inject": {"selector": {"matchExpressions": [{"key": "a", "operator": "exists"}]}}}),
            ),
        ),
        ("supported values: \"required\", \"none\"", Exchange(json!({"security": {"encryption": "some"}}))),
        ("supported values: \"off\", \"claim\", \"hostPath\"", Exchange(json!({"sameNode": "on"}))),
        (
            "supported values: \"auto\", \"none\", \"broker\", \"legacy_ipc\"",
            Exchange(json!({"gpu": {"mode": "mps"}})),
        ),
        ("supported values: \"measured\", \"tcp\", \"quic\"", Exchange(json!({"prefer": "shm"}))),
        ("supported values: \"error\", \"warn\"", Exchange(json!({"sidecar": {"logLevel": "loud"}}))),
        ("spec.podUID: Required value", Peer(json!({"exchange": "default"}))),
        (
            "spec.exchange in body should be at least 1 chars long",
            Peer(json!({"exchange": "", "podUID": "u"})),
        ),
        (
            "spec.exchange: Too long: may not be more than 63",
            Peer(json!({"exchange": "x".repeat(64), "podUID": "u"})),
        ),
        (
            "spec.podUID: Too long: may not be more than 64",
            Peer(json!({"exchange": "x", "podUID": "u".repeat(65)})),
        ),
        (
            "status.fingerprints: Too many: 3: must have at most 2 items",
            Status(json!({"fingerprints": ["a", "b", "c"]})),
        ),
        (
            "status.addresses: Too many: 9: must have at most 8 items",
            Status(json!({"addresses": vec!["h:1"; 9]})),
        ),
        ("should be greater than or equal to 0", Status(json!({"offer": offer(-1, 1, &[])}))),
        ("should be greater than or equal to 0", Exchange(json!({"fanOut": -1}))),
        ("should have at least 1 items", Exchange(json!({"members": {"serviceAccounts": []}}))),
        ("spec.members.serviceAccounts: Required value", Exchange(json!({"members": {}}))),
        ("should be less than or equal to 8", Exchange(json!({"fanOut": 9}))),
        (
            "spec.peers.max in body should be greater than or equal to 1",
            Exchange(json!({"peers": {"max": 0}})),
        ),
        (
            "spec.peers.max in body should be less than or equal to 10000",
            Exchange(json!({"peers": {"max": 10_001}})),
        ),
        ("supported values: \"shm\", \"cuda_ipc\", \"tcp\", \"quic\"", transports(&["rdma"])),
        ("Duplicate value", transports(&["tcp", "tcp"])),
    ]
}

fn right() -> Vec<Trial> {
    let everything = json!({
        "transports": ["shm", "cuda_ipc", "tcp", "quic"], "prefer": "quic", "require": ["encrypted"], "arena": {"size": "2Gi"},
        "gc": {"leaseGrace": "500ms", "ticketTtl": "24h"}, "security": {"encryption": "required"},
        "members": {"serviceAccounts": ["trainer", "a.b"]}, "sameNode": "claim", "fanOut": 8, "peers": {"max": 10_000}, "gpu": {"mode": "auto"},
        "inject": {"gpuPods": true, "selector": {"matchLabels": {"a": "b"}}},
        "sidecar": {"resources": {"cpu": "200m", "memory": "256Mi"}, "logLevel": "debug"},
    });
    let said = json!({
        "incarnation": "0123456789abcdef".repeat(2), "fingerprints": [format!("sha256:{}", "a".repeat(64))],
        "addresses": ["10.0.0.1:9421"], "offer": offer(1, 2, &["tcp", "quic"]),
    });
    vec![
        Exchange(json!({})),
        Exchange(everything),
        Named("x".repeat(63)),
        Peer(own_peer()),
        Changed(json!({"node": "n2"})),
        // A pod of the same name may come again in another exchange.
        Changed(json!({"exchange": "other", "podUID": "u-2"})),
        Status(said),
    ]
}

fn own_peer() -> Value {
    json!({"exchange": "default", "podUID": "u-1", "node": "n1"})
}

fn offer(least: i32, most: i32, transports: &[&str]) -> Value {
    let one = |name: &&str| json!({"transport": name, "addresses": ["10.0.0.1:9421"], "gpuMemory": false});
    let all: Vec<Value> = transports.iter().map(one).collect();
    json!({"versionMin": least, "versionMax": most, "transports": all})
}

/// The definitions are there, and the permissions of the operator, in whose name a status is written.
pub(crate) async fn every_rule_refuses_with_its_sentence(server: &Server, admin: &Client) {
    let operator = crate::running::token(admin, "tensorlane-system", "tensorlane-operator", None).await;
    let clients = Clients { admin: admin.clone(), operator: server.client(&operator) };
    create(admin, &object("TensorPeer", "kept", &own_peer()), false).await.unwrap();
    until("the operator may write", || async { clients.tries(&Status(json!({}))).await.ok() }).await;
    let rules = rules();
    for (place, part, trials) in broken() {
        let rule = rules.iter().find(|rule| rule.is(place, part)).unwrap();
        for trial in &trials {
            let refused = clients.tries(trial).await.expect_err(place);
            assert!(refused.contains(&rule.message), "{place}: {refused}");
        }
    }
    for (sentence, trial) in beside_the_rules() {
        let refused = clients.tries(&trial).await.expect_err(sentence);
        assert!(refused.contains(sentence), "{sentence} is not in {refused}");
    }
    for (number, trial) in right().iter().enumerate() {
        clients.tries(trial).await.unwrap_or_else(|error| panic!("{number}: {error}"));
    }
}

/// Clients by what they write: people exchanges, the operator the rest. Nothing of it stays.
struct Clients {
    admin: Client,
    operator: Client,
}

impl Clients {
    async fn tries(&self, trial: &Trial) -> Result<(), String> {
        let peers = api(&self.operator, &object("TensorPeer", "kept", &json!({})));
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        let made = match trial {
            Exchange(spec) => create(&self.admin, &object("TensorExchange", "trial", spec), true).await,
            OfDefault(spec) => create(&self.admin, &object("TensorExchange", "default", spec), true).await,
            Named(name) => create(&self.admin, &object("TensorExchange", name, &json!({})), true).await,
            Peer(spec) => create(&self.operator, &object("TensorPeer", "trial", spec), true).await,
            Changed(spec) => {
                let patch = Patch::Merge(json!({"spec": spec}));
                peers.patch("kept", &parameters, &patch).await.map_err(|error| error.to_string())
            }
            Status(status) => {
                let patch = Patch::Merge(json!({"status": status}));
                peers.patch_status("kept", &parameters, &patch).await.map_err(|error| error.to_string())
            }
        };
        made.map(drop)
    }
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "ml"}, "spec": spec,
    })
}

impl Rule {
    /// True if it is the one at this place that says this.
    fn is(&self, place: &str, part: &str) -> bool {
        place == format!("{} {}", self.kind, self.place).trim_end() && self.message.contains(part)
    }
}

/// Every rule of the committed definitions.
fn rules() -> Vec<Rule> {
    let mut found = Vec::new();
    for (kind, file) in [("TensorExchange", "tensorexchanges"), ("TensorPeer", "tensorpeers")] {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../manifests/crds/{file}.yaml"));
        let crd: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap();
        collect(kind, schema, "", &mut found);
    }
    found
}

fn collect(kind: &'static str, schema: &Value, place: &str, found: &mut Vec<Rule>) {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    found.extend(rules.map(|rule| Rule {
        kind,
        place: place.to_owned(),
        message: rule["message"].as_str().unwrap().to_owned(),
    }));
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        collect(kind, inner, format!("{place}.{name}").trim_start_matches('.'), found);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            collect(kind, &schema[key], &format!("{place}{mark}"), found);
        }
    }
}

#[test]
fn every_rule_of_the_definitions_is_broken_by_somebody_here() {
    let (rules, broken) = (rules(), broken());
    assert!(rules.len() >= 12, "rules are not found: {rules:?}");
    for rule in &rules {
        let rows = broken.iter().filter(|(place, part, trials)| rule.is(place, part) && !trials.is_empty());
        assert!(rows.count() == 1, "there is no row, or more than one, for {rule:?}");
    }
    for (place, part, _) in &broken {
        let meant = rules.iter().filter(|rule| rule.is(place, part));
        assert!(meant.count() == 1, "{place}, {part}: there is no such rule, or more than one");
    }
}
