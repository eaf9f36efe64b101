//! Tensorlane on the test cluster as people have it: installed by helm from this checkout's chart.
//!
//! Needs `cargo xtask cluster up` and the images `operator`, `sidecar` and `workload` on the nodes.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{cluster, eventually, show, within};

/// The name of the release.
pub const RELEASE: &str = "tensorlane";

/// The operator's namespace.
pub const SYSTEM: &str = "tensorlane-system";

/// The Deployment of the operator.
pub const OPERATOR: &str = "deployment/tensorlane-operator";

/// Images have other names here than where they are published.
pub const IMAGES: [&str; 3] = [
    "--set=image.repository=tensorlane.dev/operator",
    "--set=sidecar.image.repository=tensorlane.dev/sidecar",
    "--set=test.image.repository=tensorlane.dev/workload",
];

/// Runs helm in the operator's namespace with these words.
pub fn helm(words: &[&str]) -> Output {
    cluster(&[&["helm", "--namespace", SYSTEM], words].concat())
}

/// Runs helm, which must succeed; gives its output.
///
/// # Panics
/// Where it fails; says what helm and the operator say.
pub fn helm_succeeds(words: &[&str]) -> String {
    let output = helm(words);
    if !output.status.success() {
        report();
        panic!("helm {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Installs the chart, or upgrades what is installed, also what manifests have installed; gives no more than `patience`
/// until every replica is ready and the webhook serves.
///
/// # Panics
/// Where it does not come about; says what the operator says.
pub fn install(settings: &[&str], patience: Duration) {
    install_from(&folder(), settings, patience);
}

/// The chart of this checkout.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../charts/tensorlane")
}

/// Installs the chart of another folder.
///
/// # Panics
/// As [`install`].
pub fn install_from(chart: &Path, settings: &[&str], patience: Duration) {
    let begun = Instant::now();
    let chart = chart.display().to_string();
    let timeout = format!("--timeout={}s", patience.as_secs());
    let words = [
        "upgrade",
        "--install",
        "--create-namespace",
        "--take-ownership",
        "--force-conflicts",
        "--wait",
        &timeout,
        RELEASE,
        &chart,
    ];
    helm_succeeds(&[&words[..], &IMAGES, settings].concat());
    let rest = patience.saturating_sub(begun.elapsed());
    // An endpoint is known a moment after it is ready.
    let serves = within(rest, || injects("default").then_some(()));
    if serves.is_none() {
        report();
        panic!("the webhook does not serve within {patience:?}");
    }
}

/// Takes the release away where there is one, and waits until nothing of the operator runs.
///
/// # Panics
/// Where helm fails, or the operator does not end.
pub fn uninstall() {
    helm_succeeds(&["uninstall", RELEASE, "--ignore-not-found"]);
    eventually("the operator is gone", || {
        let left = cluster(&["kubectl", "--namespace", SYSTEM, "get", "replicasets,pods", "--output=name"]);
        (left.status.success() && left.stdout.is_empty()).then_some(())
    });
}

/// Returns whether a pod that asks, and is only tried, gets a sidecar.
pub fn injects(namespace: &str) -> bool {
    let pod = r#"{"metadata": {"annotations": {"tensorlane.dev/inject": "enabled"}}}"#;
    let overrides = format!("--overrides={pod}");
    let words = ["kubectl", "--namespace", namespace, "run", "tried", "--image=none", &overrides];
    let tried = cluster(&[&words[..], &["--dry-run=server", "--output=json"]].concat());
    let pod: Value = serde_json::from_slice(&tried.stdout).unwrap_or_default();
    tried.status.success() && pod["metadata"]["labels"]["tensorlane.dev/injected"] == "true"
}

/// Says what the operator has to say.
pub fn report() {
    for words in [
        &["get", "all,leases", "--output=wide"][..],
        &["get", "events", "--sort-by=.lastTimestamp"],
        &["logs", "--selector=app.kubernetes.io/component=operator", "--prefix", "--tail=60"],
    ] {
        show(&["kubectl", "--namespace", SYSTEM], words);
    }
}
