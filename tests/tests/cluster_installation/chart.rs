//! The chart on a real cluster: from `helm install` to a pod with a sidecar, `helm test`, upgrade, rollback, and what
//! stays when it is removed. Needs `cargo xtask cluster up` and the images `operator`, `sidecar` and `workload` on the
//! nodes.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tensorlane_tests::chart::{
    RELEASE, SYSTEM, folder, helm_succeeds, injects, install, install_from, uninstall,
};
use tensorlane_tests::cluster::{NODES, Namespace, PATIENCE, cluster, eventually, image, items, succeeds};

use super::TURNS;

/// Promise of the chart: time until a pod that asks gets a sidecar.
const A_MINUTE: Duration = Duration::from_secs(60);

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/examples")
}

#[test]
fn the_defaults_serve_within_a_minute_and_two_pods_exchange_a_tensor() {
    let _turn = TURNS.alone();
    // A busy machine may take longer once.
    let kept = (0..2).any(|_| {
        uninstall();
        catch_unwind(|| install(&[], A_MINUTE)).is_ok()
    });
    assert!(kept, "twice it took longer than {A_MINUTE:?}");
    let timeout = format!("--timeout={}s", 2 * PATIENCE.as_secs());
    let said = helm_succeeds(&["test", RELEASE, &timeout]);
    assert!(said.contains("Succeeded"), "{said}");
}

#[test]
fn every_example_is_accepted_without_a_warning() {
    let _turn = TURNS.alone();
    install(&[], PATIENCE);
    let namespace = Namespace::new();
    let files: Vec<PathBuf> = fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        let file = file.display().to_string();
        let words =
            ["kubectl", "--namespace", namespace.name(), "apply", "--dry-run=server", "--filename", &file];
        let tried = cluster(&words);
        let told = String::from_utf8_lossy(&tried.stderr);
        assert!(tried.status.success() && told.is_empty(), "{file}: {told}");
    }
}

#[test]
fn the_first_exchange_of_the_examples_works() {
    let _turn = TURNS.alone();
    install(&[], PATIENCE);
    let namespace = Namespace::new();
    let example = fs::read_to_string(examples().join("first-exchange.yaml")).unwrap();
    namespace.apply(&example.replace("ghcr.io/tensorlane/", "tensorlane.dev/"));
    namespace.wait_for("complete", "job/reader");
    let said = namespace.logs("job/reader", "main");
    assert!(said.contains("first/x"), "{said}");
}

#[test]
fn running_pods_go_on_through_upgrade_rollback_and_removal() {
    let _turn = TURNS.alone();
    uninstall();
    install(&[], PATIENCE);
    let pods = Pods::new();
    let own = OwnExchange::new();
    let before = own.state();
    let members = [(&pods.0, "default", &NODES[..]), (&own.0, "training", &["member"][..])];
    pods.exchange("installed");
    let bundle = bundle();

    let policy = "networkPolicy.enabled=true,networkPolicy.exchanges[0].name=default,dashboard.enabled=true";
    let place = format!("networkPolicy.exchanges[0].namespace={}", pods.0.name());
    install(&["--set", "logLevel=debug", "--set", policy, "--set", &place], PATIENCE);
    assert!(arguments().contains(&"--log-level=debug".to_owned()), "{:?}", arguments());
    assert_eq!(self::bundle(), bundle, "an upgrade touches no bundle");
    pods.0.get("networkpolicy/tensorlane-exchange-default");
    pods.exchange("upgraded");

    helm_succeeds(&["rollback", RELEASE, "1", "--wait"]);
    assert!(arguments().contains(&"--log-level=info".to_owned()), "{:?}", arguments());
    eventually("the webhook serves", || injects(pods.0.name()).then_some(()));
    assert_eq!(self::bundle(), bundle, "a rollback touches no bundle");
    pods.exchange("rolled-back");

    uninstall();
    assert_eq!(left_in_its_namespace(), ["configmap/kube-root-ca.crt", "serviceaccount/default"]);
    assert_eq!(left_of_the_release(), STAYS);
    let exchange = pods.0.get("tensorexchange/default");
    let permission = pods.0.get("rolebinding/tensorlane-peer");
    let owner = &permission["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], exchange["metadata"]["uid"], "what stays belongs to an exchange: {permission}");
    assert_eq!(left_of_ours(&[&pods.0, &own.0]), stays(&members));
    assert_eq!(own.state(), before, "a user's own exchange, and what belongs to it, is as it was");
    pods.exchange("removed");
    assert!(!injects(pods.0.name()), "nobody is there to inject");

    install(&[], PATIENCE);
    pods.exchange("installed-again");
    pods.have_never_restarted();
    assert_eq!(own.state(), before, "it is taken over as it is");
}

/// A copy of the chart as its next version would be: with a field that exchanges do not have yet.
fn next_version() -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    let to = copy.path().join("tensorlane");
    let copied = Command::new("cp").arg("-r").args([&folder(), &to]).status().unwrap();
    assert!(copied.success());
    let change = |file: &str, from: &str, into: &str| {
        let path = to.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {file}");
        fs::write(path, text.replace(from, into)).unwrap();
    };
    let version = format!("\nversion: {}", env!("CARGO_PKG_VERSION"));
    change("Chart.yaml", &version, "\nversion: 99.0.0");
    let first = "              arena:\n";
    let more = "              fromTheFuture: {type: string}\n              arena:\n";
    change("templates/crds.yaml", first, more);
    copy
}

/// Returns whether the API server knows what only the next version has.
fn knows_the_future() -> bool {
    cluster(&["kubectl", "explain", "tensorexchange.spec.fromTheFuture"]).status.success()
}

#[test]
fn a_next_version_with_another_definition_is_upgraded_to_and_rolled_back_from_under_running_pods() {
    let _turn = TURNS.alone();
    uninstall();
    install(&[], PATIENCE);
    let (pods, own) = (Pods::new(), OwnExchange::new());
    let (before, bundle) = (own.state(), bundle());
    assert!(!knows_the_future());

    let next = next_version();
    install_from(&next.path().join("tensorlane"), &[], PATIENCE);
    eventually("the new definition is served", || knows_the_future().then_some(()));
    let chart = &own.0.get("crd/tensorexchanges.tensorlane.dev")["metadata"]["labels"]["helm.sh/chart"];
    assert_eq!(chart, "tensorlane-99.0.0");
    assert_eq!(self::bundle(), bundle);
    pods.exchange("the-next-version");

    helm_succeeds(&["rollback", RELEASE, "1", "--wait"]);
    eventually("the former definition is served", || (!knows_the_future()).then_some(()));
    eventually("the webhook serves", || injects(pods.0.name()).then_some(()));
    assert_eq!(self::bundle(), bundle);
    assert_eq!(own.state(), before, "a user's own exchange is as it was");
    pods.exchange("the-former-version");
    pods.have_never_restarted();
}

/// Objects that helm leaves: the definitions, because deleting them would delete what users made, and the permission
/// and the guard of peers, so that running pods go on and change their keys.
const STAYS: [&str; 5] = [
    "clusterrole.rbac.authorization.k8s.io/tensorlane-peer",
    "customresourcedefinition.apiextensions.k8s.io/tensorexchanges.tensorlane.dev",
    "customresourcedefinition.apiextensions.k8s.io/tensorpeers.tensorlane.dev",
    "validatingadmissionpolicy.admissionregistration.k8s.io/tensorlane-peer-status",
    "validatingadmissionpolicybinding.admissionregistration.k8s.io/tensorlane-peer-status",
];

/// RoleBinding that lets the pods of a namespace find each other.
const ROLE_BINDING: &str = "rolebinding.rbac.authorization.k8s.io/tensorlane-peer";

/// All that stays in the whole cluster, labelled or not, as `NAMESPACE KIND/NAME`: what helm leaves, and what Kubernetes makes
/// of definitions; the operator's namespace, for helm deletes none; and of each namespace with pods the exchange, the
/// permission of its peers, the pods and their peers.
fn stays(members: &[(&Namespace, &str, &[&str])]) -> Vec<String> {
    let of_the_cluster = STAYS.iter().map(|object| format!("- {object}"));
    let mut all: Vec<String> = of_the_cluster.collect();
    all.push(format!("- namespace/{SYSTEM}"));
    all.push("- apiservice.apiregistration.k8s.io/v1alpha1.tensorlane.dev".to_owned());
    for (namespace, exchange, pods) in members {
        let mut add = |object: &str| all.push(format!("{} {object}", namespace.name()));
        add(ROLE_BINDING);
        add(&format!("tensorexchange.tensorlane.dev/{exchange}"));
        for pod in *pods {
            add(&format!("pod/{pod}"));
            add(&format!("tensorpeer.tensorlane.dev/{pod}"));
        }
    }
    all.sort();
    all
}

/// Everything in the cluster that is ours by its kind, its name, or its labels and annotations, but for what other tests have
/// in namespaces of their own, which may be going just now.
fn left_of_ours(own: &[&Namespace]) -> Vec<String> {
    let of = |kinds: &str| items(&succeeds(&["kubectl", "get", kinds, "--all-namespaces", "--output=json"]));
    let is_of_another_test = |object: &Value| {
        let place = object["metadata"]["namespace"].as_str().or(object["metadata"]["name"].as_str());
        let place = place.unwrap_or_default();
        place.starts_with("t-") && !own.iter().any(|namespace| namespace.name() == place)
    };
    let all = [of(&kinds(true)), of(&kinds(false))].concat();
    let ours = all.iter().filter(|object| is_ours(object) && !is_of_another_test(object));
    let mut names: Vec<String> = ours.map(shown).collect();
    names.sort();
    names.dedup();
    names
}

fn group(object: &Value) -> Option<&str> {
    object["apiVersion"].as_str()?.split_once('/').map(|(group, _)| group)
}

fn is_ours(object: &Value) -> bool {
    let about = &object["metadata"];
    let says = ["labels", "annotations"].iter().any(|map| {
        let mut entries = about[map].as_object().into_iter().flatten();
        entries.any(|(key, value)| key.contains("tensorlane.dev/") || value == RELEASE)
    });
    says || group(object) == Some("tensorlane.dev") || about["name"].as_str().unwrap().contains("tensorlane")
}

/// As `kubectl get --output=name` has it, after its namespace.
fn shown(object: &Value) -> String {
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let kind = word(&object["kind"]).unwrap().to_lowercase();
    let of = group(object).map(|group| format!(".{group}")).unwrap_or_default();
    let namespace = word(&object["metadata"]["namespace"]).unwrap_or_else(|| "-".to_owned());
    format!("{namespace} {kind}{of}/{}", word(&object["metadata"]["name"]).unwrap())
}

/// The kinds that can be listed, of all namespaces or of none.
fn kinds(namespaced: bool) -> String {
    let namespaced = format!("--namespaced={namespaced}");
    let kinds = succeeds(&["kubectl", "api-resources", "--verbs=list", "--output=name", &namespaced]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    kinds.join(",")
}

fn sorted(names: &str) -> Vec<String> {
    let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// Everything in the cluster that says it is of the release.
fn left_of_the_release() -> Vec<String> {
    let selector = format!("--selector=app.kubernetes.io/instance={RELEASE}");
    let of =
        |kinds: &str| succeeds(&["kubectl", "get", kinds, "--all-namespaces", &selector, "--output=name"]);
    sorted(&(of(&kinds(true)) + &of(&kinds(false))))
}

/// Everything in the operator's namespace, labelled or not, once what controllers made is collected.
fn left_in_its_namespace() -> Vec<String> {
    eventually("the leftovers of pods and Services are collected", || {
        let left =
            sorted(&succeeds(&["kubectl", "--namespace", SYSTEM, "get", &kinds(true), "--output=name"]));
        (!left.iter().any(|name| name.starts_with("endpoint") || name.contains("pod/"))).then_some(left)
    })
}

/// The bundles of all entries of the webhook.
fn bundle() -> Vec<String> {
    let webhook = succeeds(&["kubectl", "get", "mutatingwebhookconfiguration", RELEASE, "--output=json"]);
    let webhook: Value = serde_json::from_str(&webhook).unwrap();
    let entries = webhook["webhooks"].as_array().unwrap();
    entries.iter().map(|entry| entry["clientConfig"]["caBundle"].as_str().unwrap().to_owned()).collect()
}

/// The arguments of the operator.
fn arguments() -> Vec<String> {
    let words = ["kubectl", "--namespace", SYSTEM, "get", "deployment/tensorlane-operator", "--output=json"];
    let deployment: Value = serde_json::from_str(&succeeds(&words)).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    serde_json::from_value(container["args"].clone()).unwrap()
}

/// A pod that asks, and runs on and on.
fn pod(name: &str, node: &str, exchange: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{tensorlane.dev/inject: enabled, tensorlane.dev/exchange: {exchange}, tensorlane.dev/arena-size: 64Mi}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: '{image}'
    command: [sh, -c, 'sleep 86400']
    workingDir: /data
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, emptyDir: {{}}}}]
",
        image = image("workload")
    )
}

/// An exchange that a user has made and named, with one pod in it.
struct OwnExchange(Namespace);

impl OwnExchange {
    fn new() -> Self {
        let namespace = Namespace::new();
        namespace.apply(&serde_json::json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange", "metadata": {"name": "training"},
            "spec": {"arena": {"size": "64Mi"}, "gc": {"leaseGrace": "7s"}},
        }));
        namespace.apply(&pod("member", NODES[0], "training"));
        namespace.wait_for("Ready", "pod/member");
        namespace.wait_for("Ready", "txp/member");
        Self(namespace)
    }

    /// State of these objects: their UIDs, what the user has asked for, and the incarnation that the sidecar has published.
    fn state(&self) -> Vec<Value> {
        let [exchange, binding, peer, pod] =
            ["tex/training", "rolebinding/tensorlane-peer", "txp/member", "pod/member"]
                .map(|object| self.0.get(object));
        let who = [&exchange, &binding, &peer, &pod].map(|object| object["metadata"]["uid"].clone());
        let what = [&exchange["spec"], &peer["spec"], &peer["status"]["incarnation"], &binding["roleRef"]];
        who.into_iter().chain(what.into_iter().cloned()).collect()
    }
}

/// Two pods with sidecars, one on each node.
struct Pods(Namespace);

impl Pods {
    fn new() -> Self {
        let namespace = Namespace::new();
        for node in NODES {
            namespace.apply(&pod(node, node, "default"));
        }
        for node in NODES {
            namespace.wait_for("Ready", &format!("pod/{node}"));
        }
        Self(namespace)
    }

    /// Has each put new bytes and the other get them by reference; the checksums must agree.
    fn exchange(&self, name: &str) {
        let header = r#"{"x":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}}"#;
        let sum = |file: &str| format!("tail -c 65536 {file} | sha256sum | cut -d ' ' -f 1");
        for (owner, reader) in [(NODES[0], NODES[1]), (NODES[1], NODES[0])] {
            let put = self.0.shell(
                owner,
                "main",
                &format!(
                    "{{ printf '\\200\\0\\0\\0\\0\\0\\0\\0%-128s' '{header}'; head -c 65536 /dev/urandom; }} > {name} &&
                     tensorlane put {name} --name {name} --output json | grep -o '\"reference\": *\"[^\"]*\"' | cut -d '\"' -f 4 &&
                     {}",
                    sum(name)
                ),
            );
            let (reference, expected) = put.trim().split_once('\n').expect("a reference and a checksum");
            let line =
                format!("tensorlane get {reference} --to got-{name} >&2 && {}", sum(&format!("got-{name}")));
            let got = eventually(&format!("{reader} gets what {owner} put ({name})"), || {
                self.0.try_kubectl(&["exec", reader, "--container=main", "--", "sh", "-c", &line])
            });
            assert_eq!(got.trim(), expected, "{name}");
        }
    }

    fn have_never_restarted(&self) {
        for node in NODES {
            let status = &self.0.get(&format!("pod/{node}"))["status"];
            for list in ["containerStatuses", "initContainerStatuses"] {
                for container in status[list].as_array().unwrap() {
                    assert_eq!(container["restartCount"], 0, "{container}");
                }
            }
        }
    }
}
