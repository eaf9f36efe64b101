//! Tests of what the chart makes for other operators, by their own published definitions: certificates of cert-manager,
//! monitors and rules of the Prometheus operator. Those operators do not run here; that a field exists and has the
//! right type is what an API server can say.

use std::path::{Path, PathBuf};
use std::process::Command;

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::objects::{api, apply, establish};
use crate::server::programs;

/// Values with which every such object is made, in each form that there is.
const SETTINGS: [&str; 2] = [
    "certManager.enabled=true,podMonitor.enabled=true,prometheusRule.enabled=true",
    "certManager.enabled=true,certManager.issuerRef.kind=ClusterIssuer,certManager.issuerRef.name=internal,\
     podMonitor.enabled=true,podMonitor.interval=10s,podMonitor.labels.release=p,prometheusRule.enabled=true,\
     prometheusRule.labels.release=p",
];

const GROUPS: [&str; 2] = ["cert-manager.io/", "monitoring.coreos.com/"];

pub(crate) async fn other_operators_definitions_take_what_the_chart_makes_for_them(admin: &Client) {
    let helm = needed();
    let all = apply_definitions(admin, &["cert-manager", "prometheus-operator"]).await;
    assert_eq!(all.len(), 4, "certificates, issuers, pod monitors and rules");
    let mut tried = Vec::new();
    for settings in SETTINGS {
        for object in rendered(&helm, settings) {
            tries(admin, &object).await.unwrap_or_else(|error| panic!("{settings}: {object}: {error}"));
            misspelt_is_refused(admin, &object).await;
            tried.push(object["kind"].as_str().unwrap().to_owned());
        }
    }
    tried.sort();
    let expected = [
        "Certificate",
        "Certificate",
        "Certificate",
        "Issuer",
        "Issuer",
        "PodMonitor",
        "PodMonitor",
        "PodMonitor",
        "PodMonitor",
        "PrometheusRule",
        "PrometheusRule",
    ];
    assert_eq!(tried, expected);
}

/// Helm, where the programs of Kubernetes are.
fn needed() -> PathBuf {
    let helm = folder().with_file_name("helm");
    assert!(helm.is_file(), "there is no {}: `cargo xtask cluster up` gets it", helm.display());
    helm
}

/// The folder of what other projects define.
pub(crate) fn folder() -> PathBuf {
    let Some(programs) = programs() else { panic!("they were there when the server was started") };
    let folder = programs.join("definitions");
    assert!(folder.is_dir(), "there is no {}: `cargo xtask cluster up` gets it", folder.display());
    folder
}

/// The definitions of these projects, established.
pub(crate) async fn apply_definitions(admin: &Client, projects: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    for project in projects {
        let folder = folder().join(project);
        let files =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for file in files {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let documents =
                serde_yaml::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap());
            all.extend(documents.filter(|object| object["kind"] == "CustomResourceDefinition"));
        }
    }
    for definition in &all {
        apply(admin, definition)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", definition["metadata"]["name"]));
    }
    for definition in &all {
        establish(admin, definition).await;
    }
    all
}

/// The objects of other operators that the chart makes with these values.
fn rendered(helm: &Path, settings: &str) -> Vec<Value> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/tensorlane");
    let words = [
        "template",
        "tensorlane",
        "--namespace",
        "tensorlane-system",
        "--kube-version",
        "1.36.0",
        "--set",
        settings,
    ];
    let output = Command::new(helm).args(words).arg(chart).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let all = serde_yaml::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap());
    let foreign = |object: &Value| {
        let version = object["apiVersion"].as_str().unwrap_or_default();
        GROUPS.iter().any(|group| version.starts_with(group))
    };
    all.filter(foreign).collect()
}

/// A field that the definition does not know is an error, as for `kubectl apply --validate=strict`.
pub(crate) async fn tries(admin: &Client, object: &Value) -> Result<Value, String> {
    let parameters = PatchParams { dry_run: true, ..PatchParams::apply("test").validation_strict() };
    let name = object["metadata"]["name"].as_str().unwrap();
    let applied = api(admin, object).patch(name, &parameters, &Patch::Apply(object)).await;
    applied.map(|made| serde_json::to_value(made).unwrap()).map_err(|error| error.to_string())
}

/// Or the definition would say nothing.
pub(crate) async fn misspelt_is_refused(admin: &Client, object: &Value) {
    let mut wrong = object.clone();
    wrong["spec"]["misspelt"] = json!("x");
    let refused = tries(admin, &wrong).await.expect_err("there is no such field");
    assert!(refused.contains("misspelt"), "{refused}");
}
