//! The templates of the chart that have no choices: definitions, policies, permissions, Service and webhook. The others
//! are written by hand, and a test compares all of them with `install.yaml`.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::install::{Installation, serde_yaml_value};
use super::{File, HEADER, crds, deployment, policies, rbac, webhooks};

/// What helm puts the operator's namespace in place of.
const NAMESPACE: &str = "{{ .Release.Namespace }}";

/// The generated templates.
pub(super) fn files() -> Result<Vec<File>, serde_yaml::Error> {
    let installation = Installation { namespace: NAMESPACE.to_owned(), ..Installation::default() };
    let definitions: Result<Vec<Value>, _> = crds::all().iter().map(serde_yaml_value).collect();
    let crds = template("crds", &kept(definitions?))?;
    let text = format!("{{{{- if .Values.crds.install }}}}\n{}{{{{- end }}}}\n", crds.text);
    Ok(vec![
        File { text, ..crds },
        template("policies", &policies::all(&installation))?,
        template("rbac", &rbac::all(&installation))?,
        template("service", &[deployment::service(&installation)])?,
        template("webhook", &[webhooks::configuration(&installation)])?,
    ])
}

/// These objects, such that helm does not delete them.
fn kept(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    }
    objects
}

fn template(name: &str, objects: &[Value]) -> Result<File, serde_yaml::Error> {
    let texts: Result<Vec<_>, _> = objects.iter().map(serde_yaml::to_string).collect();
    Ok(File {
        path: PathBuf::from(format!("charts/tensorlane/templates/{name}.yaml")),
        text: format!("{HEADER}{}", texts?.join("---\n")),
    })
}
