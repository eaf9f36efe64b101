//! Refusals of strangers, who get nothing of an exchange, whatever they say of themselves: each attempt is refused, and
//! counted. Needs `cargo xtask cluster up` and the images on the nodes.

use serde_json::{Value, json};
use tensorlane_tests::cluster::{Namespace, eventually, image, items};
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::{
    Container, Told, kubectl_as, metrics, metrics_of_the_api_server, token_of_pod,
};
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR};

use super::KI;

/// The sum of the series of a metric that have these labels; zero where there is none yet.
fn count(text: &str, name: &str, labels: &[&str]) -> f64 {
    let series = text.lines().filter(|line| line.starts_with(name));
    let having = series.filter(|line| labels.iter().all(|label| line.contains(label)));
    having.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Number of connections that a peer has refused for this reason.
fn refusals(namespace: &Namespace, peer: &str, reason: &str) -> f64 {
    let label = format!("reason=\"{reason}\"");
    count(&metrics(namespace.name(), peer), "tensorlane_peer_refused_connections_total", &[&label])
}

/// A sidecar that nobody has injected, in a pod beside a shell. It knows where `victim` is and what its key is, as
/// everybody may who can read `TensorPeer` objects; `key` is the key that it has, one of its own without.
fn stranger(namespace: &Namespace, name: &str, victim: &Value, key: Option<&str>) {
    let peers = json!({"peers": [{
        "name": victim["metadata"]["name"], "addresses": victim["status"]["addresses"],
        "fingerprints": victim["status"]["fingerprints"],
    }]});
    let files = json!({"peers.yaml": peers.to_string(), "identity.pem": key.unwrap_or_default()});
    let meta = json!({"name": name});
    namespace.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": files}));
    let variable = |name: &str, value: &str| json!({"name": format!("TENSORLANE_{name}"), "value": value});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let copy =
        "if [ -s /files/identity.pem ]; then (umask 077; cp /files/identity.pem /var/lib/tensorlane); fi";
    let memory = json!({"medium": "Memory"});
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": meta,
        "spec": {
            "nodeName": "node2", "terminationGracePeriodSeconds": 2,
            "volumes": [
                {"name": "files", "secret": {"secretName": name}},
                {"name": "sockets", "emptyDir": memory}, {"name": "state", "emptyDir": memory},
            ],
            "initContainers": [{
                "name": "copy", "image": image("workload"), "command": ["sh", "-c", copy],
                "volumeMounts": [mount("files", "/files"), mount("state", "/var/lib/tensorlane")],
            }, {
                "name": "stranger", "image": image("sidecar"), "restartPolicy": "Always",
                "env": [
                    variable("ARENA_SIZE", "16Mi"), variable("ARENA_BASE", "64Mi"), variable("PEER", name),
                    variable("PEERS_LISTEN", "0.0.0.0:9421"), variable("PEERS_FILE", "/files/peers.yaml"),
                    variable("ADMIN_LISTEN", "0.0.0.0:9420"),
                ],
                "startupProbe": {"httpGet": {"path": "/startupz", "port": 9420}, "periodSeconds": 1, "failureThreshold": 60},
                "volumeMounts": [
                    mount("files", "/files"), mount("state", "/var/lib/tensorlane"), mount("sockets", "/run/tensorlane"),
                ],
            }],
            "containers": [{
                "name": "main", "image": image("workload"), "command": ["sleep", "3600"],
                "volumeMounts": [mount("sockets", "/run/tensorlane")],
            }],
        },
    }));
    namespace.wait_for("Ready", &format!("pod/{name}"));
}

/// Asserts that a shell in a pod does not get this tensor.
#[track_caller]
fn gets_nothing(namespace: &Namespace, pod: &str, reference: &str) {
    let line = format!("tensorlane get '{reference}' --deadline 5s");
    let got = namespace.try_kubectl(&["exec", pod, "--container=main", "--", "sh", "-c", &line]);
    assert_eq!(got, None, "{pod} has what is none of its business");
}

/// Writes into the status of a peer with a token, in one call that asks for nothing else.
fn write_status(token: &str, namespace: &Namespace, peer: &str, fingerprint: &Value) -> Told {
    let status = json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": peer},
        "status": {
            "incarnation": "0".repeat(32), "addresses": ["198.18.2.200:9421"], "fingerprints": [fingerprint],
        },
    });
    let apply = ["apply", "--server-side", "--force-conflicts", "--subresource=status", "--validate=false"];
    let words =
        [&["--namespace", namespace.name()], &apply[..], &["--field-manager=liar", "--filename=-"]].concat();
    kubectl_as(token, &words, &status.to_string())
}

/// Gate that refuses a call at the API server. Each counts for itself.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gate {
    /// Check that the token is good, and its pod still there.
    Authentication,
    /// Check that the RoleBinding of the namespace lets the caller.
    Authorization,
    /// The policy on the status of peers.
    Policy,
}

impl Gate {
    const ALL: [Gate; 3] = [Gate::Authentication, Gate::Authorization, Gate::Policy];

    /// Numbers of calls that each has refused, whosoever they were.
    fn counts() -> [f64; 3] {
        let text = metrics_of_the_api_server();
        let sum = |name: &str, labels: &[&str]| -> f64 {
            labels.iter().map(|label| count(&text, name, &label.split(' ').collect::<Vec<_>>())).sum()
        };
        Self::ALL.map(|gate| match gate {
            Gate::Authentication => {
                sum("authentication_attempts{", &["result=\"failure\"", "result=\"error\""])
            }
            Gate::Authorization => {
                sum("authorization_attempts_total{", &["result=\"denied\"", "result=\"no-opinion\""])
            }
            Gate::Policy => sum(
                "apiserver_validating_admission_policy_check_total{",
                &["policy=\"tensorlane-peer-status\" enforcement_action=\"deny\""],
            ),
        })
    }

    /// Finds the gate by the words of the refusal.
    #[track_caller]
    fn of(refusal: &str) -> Gate {
        // The sentence of the policy comes with the word `forbidden`, too.
        let words = [
            ("only the pod that this TensorPeer belongs to", Gate::Policy),
            ("orbidden", Gate::Authorization),
            ("Unauthorized", Gate::Authentication),
        ];
        let found = words.into_iter().find(|(words, _)| refusal.contains(words));
        found.unwrap_or_else(|| panic!("nobody refuses so: {refusal}")).1
    }
}

/// Calls the API server, which must refuse it, and count it where it says that it was refused.
#[track_caller]
fn refused_and_counted(call: impl FnOnce() -> Told) -> Gate {
    let before = Gate::counts();
    let told = call();
    let after = Gate::counts();
    let gate = Gate::of(told.refusal());
    let counted = after[gate as usize] > before[gate as usize];
    assert!(counted, "{gate:?} has refused it and counts {after:?} after {before:?}: {}", told.err);
    gate
}

/// An exchange of two pods, one tensor in the first, and its peers.
struct Scene<'a> {
    a: Pod<'a>,
    b: Pod<'a>,
    reference: String,
    peers: Vec<Value>,
    rounds: u64,
}

impl<'a> Scene<'a> {
    fn of(exchange: &'a Exchange) -> Self {
        let options = |node| PodOptions::on(node).annotated("arena-size", "32Mi").annotated("memory", "64Mi");
        let mut a = Pod::make(exchange, "a", &options("node1"));
        let mut b = Pod::make(exchange, "b", &options("node2"));
        a.await_session();
        b.await_session();
        let peers = exchange.await_peers(2);
        let reference = a.put("t", 64 * KI, 1);
        let mut scene = Self { a, b, reference, peers, rounds: 0 };
        scene.works();
        scene
    }

    fn peer(&self, name: &str) -> &Value {
        self.peers.iter().find(|peer| peer["metadata"]["name"] == name).unwrap()
    }

    /// Asserts that those who belong to it go on exchanging.
    fn works(&mut self) {
        self.rounds += 1;
        let reference = self.a.put(&format!("again/{}", self.rounds), 64 * KI, self.rounds);
        assert_eq!(self.b.ask(&format!("read 20 {reference}"), "read"), "tcp");
    }
}

#[test]
fn pods_outside_of_an_exchange_get_nothing_and_are_counted() {
    let (exchange, elsewhere) = (Exchange::new(), Exchange::new());
    let mut scene = Scene::of(&exchange);
    let victim = scene.peer("a").clone();

    // A pod of another namespace with a sidecar of its own: it knows nobody here, and may not look.
    let mut other = Pod::start(&elsewhere, "other", &PodOptions::on("node2").annotated("arena-size", "32Mi"));
    assert_eq!(other.ask(&format!("read 3 {}", scene.reference), "error"), "PEER_UNKNOWN");
    let said = ["verb=\"acquire\"", "result=\"PEER_UNKNOWN\""];
    let counted = count(&metrics(elsewhere.name(), "other"), "tensorlane_call_items_total", &said);
    assert_eq!(counted, 1.0, "its own sidecar counts it");
    let token = token_of_pod(elsewhere.name(), "other");
    let look = || kubectl_as(&token, &["--namespace", exchange.name(), "get", "txp"], "");
    assert_eq!(refused_and_counted(look), Gate::Authorization);
    let write = || write_status(&token, &exchange, "a", &victim["status"]["fingerprints"][0]);
    assert_eq!(refused_and_counted(write), Gate::Authorization);

    // Pods without the annotation that bring a sidecar themselves: of that other namespace, and of this one.
    for (namespace, name) in [(&elsewhere, "stranger"), (&exchange, "uninvited")] {
        let before = refusals(&exchange, "a", "unknown_key");
        stranger(namespace, name, &victim, None);
        gets_nothing(namespace, name, &scene.reference);
        eventually(&format!("{name} is counted"), || {
            (refusals(&exchange, "a", "unknown_key") > before).then_some(())
        });
    }

    // With the key of a member, but not as this member.
    let state = Container::of(exchange.name(), "b", SIDECAR);
    let key = state.read("/var/lib/tensorlane/identity.pem");
    let before = refusals(&exchange, "a", "other_peer");
    stranger(&exchange, "thief", &victim, Some(&key));
    gets_nothing(&exchange, "thief", &scene.reference);
    eventually("the thief is counted", || (refusals(&exchange, "a", "other_peer") > before).then_some(()));
    scene.works();
}

#[test]
fn a_pod_speaks_for_itself_alone_and_not_for_its_namesake() {
    let exchange = Exchange::new();
    let mut scene = Scene::of(&exchange);
    let victim = scene.peer("a")["status"]["fingerprints"][0].clone();
    // It claims to be injected, so it has a peer, and what it says of itself is its own.
    let liar = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "liar", "labels": {"tensorlane.dev/injected": "true"}},
        "spec": {
            "nodeName": "node2", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image("workload"), "command": ["sleep", "3600"]}],
        },
    });
    let uid = |of: &str| exchange.get(of)["metadata"]["uid"].clone();
    let begin = || {
        exchange.apply(&liar);
        let uid = uid("pod/liar");
        eventually("the operator has made its peer", || {
            let peer = exchange.try_kubectl(&["get", "txp", "liar", "--output=jsonpath={.spec.podUID}"])?;
            (uid == peer).then_some(())
        });
    };
    begin();
    exchange.wait_for("Ready", "pod/liar");
    let token = token_of_pod(exchange.name(), "liar");

    assert_eq!(refused_and_counted(|| write_status(&token, &exchange, "a", &victim)), Gate::Policy);
    assert_eq!(exchange.get("txp/a")["status"]["fingerprints"][0], victim);

    // The key of another one, which it may claim and cannot prove: it gets nothing, and nobody loses anything.
    let claimed = write_status(&token, &exchange, "liar", &victim);
    assert!(claimed.done, "{}", claimed.err);
    eventually("the claim is seen, and counted", || {
        let text = metrics(exchange.name(), "b");
        (count(&text, "tensorlane_directory_contested_keys", &[]) == 1.0).then_some(())
    });
    scene.works();
    // Also to a sidecar that knows of nothing: it has not seen whose key it was first.
    let mut late = Pod::start(&exchange, "late", &PodOptions::on("node2").annotated("arena-size", "32Mi"));
    exchange.await_peer("late");
    assert_eq!(late.ask(&format!("read 20 {}", scene.reference), "read"), "tcp");
    drop(late);

    // Another pod of this name. For some seconds the API server still takes the token of the first one, and the policy refuses
    // it, by its UID; after that nobody knows the token any more.
    exchange.kubectl(&["delete", "pod", "liar", "--force", "--grace-period=0"]);
    begin();
    eventually("the token of the pod that was deleted is no longer known", || {
        let gate = refused_and_counted(|| write_status(&token, &exchange, "liar", &victim));
        assert_ne!(gate, Gate::Authorization, "its namespace may write; it is the pod that may not");
        (gate == Gate::Authentication).then_some(())
    });
    assert!(exchange.get("txp/liar")["status"]["fingerprints"].is_null(), "it begins anew");
    scene.works();
}

/// Leftovers of an installation are what users' exchanges own; so the permission has to be among them.
#[test]
fn the_permission_of_peers_belongs_to_the_exchanges_and_goes_with_the_last_of_them() {
    let exchange = Exchange::new();
    let second = json!({"apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange", "metadata": {"name": "second"}, "spec": {}});
    exchange.apply(&second);
    let belongs_to = |expected: &[&str]| {
        eventually(&format!("the permission belongs to {expected:?}"), || {
            let bindings = items(&exchange.try_kubectl(&["get", "rolebindings", "--output=json"])?);
            let owners =
                bindings.iter().flat_map(|one| one["metadata"]["ownerReferences"].as_array()).flatten();
            let mut owners: Vec<&str> = owners.map(|owner| owner["name"].as_str().unwrap()).collect();
            owners.sort_unstable();
            (bindings.len() == usize::from(!expected.is_empty()) && owners == expected).then_some(())
        });
    };
    belongs_to(&["default", "second"]);
    exchange.kubectl(&["delete", "tensorexchange/default"]);
    belongs_to(&["second"]);
    exchange.kubectl(&["delete", "tensorexchange/second"]);
    belongs_to(&[]);
}
