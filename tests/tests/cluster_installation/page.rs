//! The commands of docs/kubernetes.md, word by word, on a cluster that knows nothing of Tensorlane: by helm, and without it.
//! Only images have other names here than where they are published. Needs `cargo xtask cluster up` and the images
//! `operator` and `sidecar` on the nodes.

use std::path::{Path, PathBuf};

use tensorlane_tests::chart::{IMAGES, injects, install, uninstall};
use tensorlane_tests::cluster::{Namespace, PATIENCE, cluster, eventually, succeeds, succeeds_with};
use tensorlane_tests::installed::await_operator;

use super::TURNS;

const PAGE: &str = include_str!("../../../docs/kubernetes.md");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The commands of the page's first block that has one of this beginning, each as its words.
fn block_with(beginning: &str) -> Vec<Vec<String>> {
    let blocks = PAGE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut commands = blocks.map(|block| {
        let lines = block.replace("\\\n", " ");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        lines.lines().map(words).collect::<Vec<_>>()
    });
    let has = |block: &Vec<Vec<String>>| block.iter().any(|words| words.join(" ").starts_with(beginning));
    commands.find(has).unwrap_or_else(|| panic!("the page has no command {beginning}"))
}

/// The command of the page with this beginning.
fn command(beginning: &str) -> Vec<String> {
    let block = block_with(beginning);
    block.into_iter().find(|words| words.join(" ").starts_with(beginning)).unwrap()
}

/// Runs a command of the page, with more words, from the root of the checkout.
fn run(words: &[String], more: &[&str]) {
    let chart = root().join("charts/tensorlane").display().to_string();
    let place = |word: &String| if word == "charts/tensorlane" { chart.clone() } else { word.clone() };
    let words: Vec<String> =
        words.iter().map(place).chain(more.iter().map(|word| (*word).to_owned())).collect();
    succeeds(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Takes everything away, as the page says.
fn forget() {
    uninstall();
    for words in block_with("kubectl delete crd") {
        run(&words, &["--ignore-not-found"]);
    }
}

/// Applies what the manifest without helm makes.
fn apply_manifest() {
    assert!(PAGE.contains("`kubectl apply --server-side -f manifests/install.yaml`"));
    let manifest = std::fs::read_to_string(root().join("manifests/install.yaml")).unwrap();
    let manifest = manifest.replace("ghcr.io/tensorlane/", "tensorlane.dev/");
    succeeds_with(&["kubectl", "apply", "--server-side", "-f", "-"], &manifest);
    await_operator();
}

fn serves() {
    eventually("a pod that asks gets a sidecar", || injects("default").then_some(()));
}

/// Returns whether a pod of these limits, which does not ask, is taken.
fn is_taken(namespace: &Namespace, limits: &str) -> Result<(), String> {
    let container = format!(r#"{{"name": "main", "image": "none", "resources": {{"limits": {limits}}}}}"#);
    let overrides = format!(r#"--overrides={{"spec": {{"containers": [{container}]}}}}"#);
    let words =
        ["kubectl", "--namespace", namespace.name(), "run", "main", "--image=none", "--dry-run=server"];
    let tried = cluster(&[&words[..], &[&overrides]].concat());
    if tried.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&tried.stderr).into_owned()) }
}

#[test]
fn what_the_page_says_installs_upgrades_and_rolls_back_where_nothing_was_before() {
    let _turn = TURNS.alone();
    forget();
    let namespace = Namespace::new();
    run(&command("helm install"), &IMAGES);
    // From the first moment on, when the API server itself does not know exchanges yet.
    assert_eq!(is_taken(&namespace, "{}"), Ok(()));
    assert_eq!(is_taken(&namespace, r#"{"nvidia.com/gpu": "1"}"#), Ok(()));
    serves();
    for words in block_with("helm upgrade") {
        run(&words, &[]);
        serves();
    }
}

/// Names of what is left of Tensorlane, of the kinds that hold pods up or let them do something.
fn left() -> Vec<String> {
    let kinds = "crd,clusterrole,clusterrolebinding,mutatingwebhookconfiguration,\
                 validatingadmissionpolicy,validatingadmissionpolicybinding,namespace";
    let all = succeeds(&["kubectl", "get", kinds, "--output=name"]);
    all.lines().filter(|name| name.contains("tensorlane")).map(str::to_owned).collect()
}

#[test]
fn without_helm_the_manifest_installs_the_same_and_goes_as_the_page_says_and_helm_takes_it_over() {
    let _turn = TURNS.alone();
    forget();
    eventually("nothing is left", || left().is_empty().then_some(()));
    apply_manifest();
    serves();
    for words in block_with("kubectl delete mutatingwebhookconfiguration") {
        run(&words, &[]);
    }
    let stays = [
        "customresourcedefinition.apiextensions.k8s.io/tensorexchanges.tensorlane.dev",
        "customresourcedefinition.apiextensions.k8s.io/tensorpeers.tensorlane.dev",
        "clusterrole.rbac.authorization.k8s.io/tensorlane-peer",
        "validatingadmissionpolicy.admissionregistration.k8s.io/tensorlane-peer-status",
        "validatingadmissionpolicybinding.admissionregistration.k8s.io/tensorlane-peer-status",
    ];
    assert_eq!(left(), stays);
    apply_manifest();
    install(&[], PATIENCE);
    serves();
}
