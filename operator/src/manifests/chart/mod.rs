//! The generated part of the chart: everything that has no choices (definitions, policies, permissions, Service,
//! webhook), what may be chosen (`values`), and what people read of it. Templates with choices are written by hand; a
//! test renders all of them and compares with `install.yaml`.

mod dashboard;
mod page;
mod values;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::install::{self, Installation, SERVICE, serde_yaml_value};
use super::{File, HEADER, crds, deployment, policies, rbac, webhooks};

/// Placeholder that helm replaces with the operator's namespace.
const NAMESPACE: &str = "{{ .Release.Namespace }}";

/// Labels of every object of a release beside our own.
const LABELS: [(&str, &str); 3] = [
    ("app.kubernetes.io/instance", "{{ .Release.Name }}"),
    ("app.kubernetes.io/version", "{{ .Chart.AppVersion }}"),
    ("helm.sh/chart", "{{ include \"tensorlane.chart\" . }}"),
];

/// Every generated file of the chart.
pub(super) fn files() -> Result<Vec<File>, serde_yaml::Error> {
    let mut all = templates()?;
    all.push(file("Chart.yaml", format!("{HEADER}{}", serde_yaml::to_string(&about())?)));
    all.push(file("values.yaml", format!("{HEADER}\n{}", page::values_yaml()?)));
    all.push(file("values.schema.json", page::pretty(&values::schema())));
    all.push(file("README.md", page::readme()?));
    all.push(file("files/dashboard.json", page::pretty(&dashboard::dashboard())));
    Ok(all)
}

fn file(path: &str, text: String) -> File {
    File { path: Path::new("charts/tensorlane").join(path), text }
}

fn templates() -> Result<Vec<File>, serde_yaml::Error> {
    let installation = Installation { namespace: NAMESPACE.to_owned(), ..Installation::default() };
    let definitions: Result<Vec<Value>, _> = crds::all().iter().map(serde_yaml_value).collect();
    let definitions = text(definitions?.into_iter().map(kept).collect())?;
    let webhook = text(vec![webhooks::configuration(&installation)])?;
    Ok(vec![
        template("crds", &format!("{{{{- if .Values.crds.install }}}}\n{definitions}{{{{- end }}}}\n")),
        template("policies", &text(policies::all(&installation))?),
        template("rbac", &text(rbac::all(&installation))?),
        template("service", &text(vec![deployment::service(&installation)])?),
        template("state", &text(install::state(&installation).to_vec())?),
        template("webhook", &with_bundle_of_cert_manager(&webhook)),
    ])
}

fn template(name: &str, text: &str) -> File {
    file(
        &PathBuf::from("templates").join(format!("{name}.yaml")).display().to_string(),
        format!("{HEADER}{text}"),
    )
}

fn text(objects: Vec<Value>) -> Result<String, serde_yaml::Error> {
    let texts: Result<Vec<_>, _> =
        objects.into_iter().map(labelled).map(|object| serde_yaml::to_string(&object)).collect();
    Ok(texts?.join("---\n"))
}

fn labelled(mut object: Value) -> Value {
    for (label, value) in LABELS {
        object["metadata"]["labels"][label] = json!(value);
    }
    object
}

/// Object that helm does not delete.
fn kept(mut object: Value) -> Value {
    object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    object
}

/// With cert-manager, the one annotation by which it writes the bundle.
fn with_bundle_of_cert_manager(webhook: &str) -> String {
    let annotation = format!(
        "metadata:\n  {{{{- if .Values.certManager.enabled }}}}\n  annotations: {{cert-manager.io/inject-ca-from: {NAMESPACE}/{SERVICE}}}\n  {{{{- end }}}}\n"
    );
    webhook.replacen("metadata:\n", &annotation, 1)
}

/// `Chart.yaml`. Images are listed because nobody sees that of the sidecar in what helm renders.
fn about() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    let installation = Installation::default();
    let images = [("operator", &installation.image), ("sidecar", &installation.sidecar_image)]
        .map(|(name, image)| format!("- name: {name}\n  image: {image}\n"));
    let crds = ["TensorExchange", "TensorPeer"].map(|kind| {
        format!("- kind: {kind}\n  version: v1alpha1\n  name: {}s.tensorlane.dev\n", kind.to_lowercase())
    });
    json!({
        "apiVersion": "v2",
        "name": "tensorlane",
        "description": "Tensors exchanged between pods, by a sidecar beside each pod that asks for one",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": ">=1.33.0-0",
        "keywords": ["tensors", "gpu", "shared-memory", "sidecar"],
        "annotations": {
            "artifacthub.io/category": "ai-machine-learning",
            "artifacthub.io/license": "Apache-2.0",
            "artifacthub.io/operator": "true",
            "artifacthub.io/images": images.concat(),
            "artifacthub.io/crds": crds.concat(),
        },
    })
}
