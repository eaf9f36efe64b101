//! Manifests in, manifests with sidecars out: what the webhook would do, without a cluster.
//!
//! Pods and the templates of what makes pods are planned; everything else passes through. Namespaces and
//! TensorExchanges among the documents are facts for the others. What is only in a cluster (quotas, limit ranges,
//! claims) is not known here, so an API server may still say no.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tensorlane_proto::crd::ExchangeSpec;
use thiserror::Error;

use crate::plan::{Decision, Defaults, Facts, Namespace, plan};

/// The most bytes of manifests; YAML can grow when it is read.
pub const BYTES_MAX: usize = 16 << 20;

/// Manifests with sidecars.
#[derive(Clone, Debug, PartialEq)]
pub struct Injected {
    /// All documents, in their order.
    pub yaml: String,
    /// Notes on each pod or template.
    pub notes: Vec<Note>,
}

/// Note on what happened to one pod or template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which one: `Deployment ml/trainer`.
    pub object: String,
    /// A sentence.
    pub text: String,
    /// Set if it asked and cannot be served.
    pub denied: bool,
}

/// Manifests that cannot be read.
#[derive(Debug, Error)]
pub enum OfflineError {
    /// Too many bytes.
    #[error("the manifests have {0} bytes, more than {BYTES_MAX}: inject them file by file")]
    TooLarge(usize),
    /// Not YAML.
    #[error("document {number} is not YAML: {source}: correct it there")]
    NotYaml {
        /// Counted from 1.
        number: usize,
        /// Error from the parser.
        source: serde_yaml::Error,
    },
    /// YAML, and no manifest.
    #[error("document {0} is no object of Kubernetes, it has no kind: leave it out, or say what it is")]
    NoObject(usize),
    /// Nothing at all, which nobody pipes on purpose.
    #[error("there is no manifest: name a file with -f FILE, or pipe manifests into -f -")]
    Nothing,
    /// An exchange that cannot be read.
    #[error("TensorExchange {name:?} cannot be read: {source}: correct its spec")]
    Exchange {
        /// Its name.
        name: String,
        /// Error of the parser: what is wrong.
        source: serde_json::Error,
    },
    /// Output that cannot be written.
    #[error("the result cannot be written as YAML: {0}")]
    NotWritten(serde_yaml::Error),
}

/// Plans every pod and template of a YAML stream. Those without a namespace belong to `namespace`.
///
/// # Errors
/// The stream cannot be read. A pod that cannot be served is a note.
pub fn inject(yaml: &str, namespace: &str, defaults: &Defaults) -> Result<Injected, OfflineError> {
    let mut documents = read(yaml)?;
    let mut scene = Scene::default();
    documents.iter().try_for_each(|document| scene.learn(document, namespace))?;
    let mut notes = Vec::new();
    for document in &mut documents {
        scene.inject(document, namespace, defaults, &mut notes);
    }
    let texts: Result<Vec<_>, _> = documents.iter().map(serde_yaml::to_string).collect();
    Ok(Injected { yaml: texts.map_err(OfflineError::NotWritten)?.join("---\n"), notes })
}

fn read(yaml: &str) -> Result<Vec<Value>, OfflineError> {
    if yaml.len() > BYTES_MAX {
        return Err(OfflineError::TooLarge(yaml.len()));
    }
    let mut objects = Vec::new();
    for (number, document) in (1..).zip(serde_yaml::Deserializer::from_str(yaml)) {
        let document =
            Value::deserialize(document).map_err(|source| OfflineError::NotYaml { number, source })?;
        match document {
            Value::Null => {}
            document if kind(&document).is_empty() => return Err(OfflineError::NoObject(number)),
            document => objects.push(document),
        }
    }
    if objects.is_empty() { Err(OfflineError::Nothing) } else { Ok(objects) }
}

/// Scene: what the documents say about namespaces.
#[derive(Default)]
struct Scene {
    labels: BTreeMap<String, BTreeMap<String, String>>,
    exchanges: BTreeMap<String, BTreeMap<String, ExchangeSpec>>,
}

impl Scene {
    fn learn(&mut self, document: &Value, default: &str) -> Result<(), OfflineError> {
        let name = text(document, "/metadata/name").unwrap_or_default().to_owned();
        match kind(document) {
            "List" => items(document).iter().try_for_each(|item| self.learn(item, default))?,
            "Namespace" => {
                let labels = document.pointer("/metadata/labels").and_then(Value::as_object);
                let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
                self.labels.insert(name, labels.into_iter().flatten().filter_map(text).collect());
            }
            "TensorExchange" => {
                let namespace = text(document, "/metadata/namespace").unwrap_or(default).to_owned();
                let spec =
                    document.get("spec").cloned().unwrap_or_else(|| Value::Object(serde_json::Map::new()));
                let spec = serde_json::from_value(spec)
                    .map_err(|source| OfflineError::Exchange { name: name.clone(), source })?;
                self.exchanges.entry(namespace).or_default().insert(name, spec);
            }
            _ => {}
        }
        Ok(())
    }

    fn inject(&self, document: &mut Value, default: &str, defaults: &Defaults, notes: &mut Vec<Note>) {
        if kind(document) == "List" {
            let items = document.get_mut("items").and_then(Value::as_array_mut);
            for item in items.into_iter().flatten() {
                self.inject(item, default, defaults, notes);
            }
            return;
        }
        let namespace = text(document, "/metadata/namespace").unwrap_or(default).to_owned();
        let name = text(document, "/metadata/name").or_else(|| text(document, "/metadata/generateName"));
        let object = format!("{} {namespace}/{}", kind(document), name.unwrap_or_default());
        let Some(pod) = template(kind(document)).and_then(|place| document.pointer_mut(place)) else {
            return;
        };
        let outcome = plan(pod, &self.facts(namespace, defaults));
        let mut note = |text: String, denied| notes.push(Note { object: object.clone(), text, denied });
        outcome.warnings.into_iter().for_each(|warning| note(warning, false));
        match outcome.decision {
            Decision::Inject(plan) => {
                note(format!("injected, in exchange {}", plan.exchange), false);
                *pod = plan.pod;
            }
            Decision::Skip(skip) => note(format!("not injected: {skip}"), false),
            Decision::Deny(deny) => note(format!("cannot be injected: {deny}"), true),
        }
    }

    fn facts(&self, namespace: String, defaults: &Defaults) -> Facts {
        Facts {
            exchanges: self.exchanges.get(&namespace).cloned().unwrap_or_default(),
            namespace: Namespace {
                labels: self.labels.get(&namespace).cloned().unwrap_or_default(),
                excluded: namespace == "kube-system",
                name: namespace,
            },
            defaults: defaults.clone(),
            ..Facts::default()
        }
    }
}

/// Path of the pod in an object of this kind.
pub(crate) fn template(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some(""),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            Some("/spec/template")
        }
        "PodTemplate" => Some("/template"),
        "CronJob" => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

fn kind(document: &Value) -> &str {
    text(document, "/kind").unwrap_or_default()
}

fn text<'a>(document: &'a Value, place: &str) -> Option<&'a str> {
    document.pointer(place).and_then(Value::as_str)
}

fn items(document: &Value) -> &[Value] {
    document.get("items").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injected(yaml: &str) -> Injected {
        inject(yaml, "ml", &Defaults::default()).unwrap()
    }

    const TEMPLATE: &str =
        "{metadata: {annotations: {tensorlane.dev/inject: enabled}}, spec: {containers: [{name: a}]}}";

    #[test]
    fn every_kind_that_makes_pods_gets_its_template_injected() {
        for kind in ["Deployment", "StatefulSet", "DaemonSet", "Job"] {
            let done =
                injected(&format!("kind: {kind}\nmetadata: {{name: x}}\nspec: {{template: {TEMPLATE}}}\n"));
            assert!(done.yaml.contains("name: tensorlane\n"), "{kind}: {}", done.yaml);
            assert_eq!(done.notes[0].object, format!("{kind} ml/x"));
        }
        let cron = format!("kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {TEMPLATE}}}}}}}\n");
        assert!(injected(&cron).yaml.contains("name: tensorlane\n"));
        let list = format!("kind: List\nitems: [{{kind: Job, spec: {{template: {TEMPLATE}}}}}]\n");
        assert!(injected(&list).yaml.contains("name: tensorlane\n"));
    }

    #[test]
    fn what_makes_no_pods_passes_through() {
        let yaml = "apiVersion: v1\ndata:\n  a: b\nkind: ConfigMap\n";
        assert_eq!(injected(yaml), Injected { yaml: yaml.to_owned(), notes: Vec::new() });
    }

    #[test]
    fn namespaces_and_exchanges_of_the_stream_are_facts() {
        let yaml = "kind: Namespace\nmetadata: {name: ml, labels: {tensorlane.dev/inject: enabled}}\n---\n\
             kind: TensorExchange\nmetadata: {name: big}\nspec: {arena: {size: 4Gi}}\n---\n\
             kind: Pod\nmetadata: {name: p, annotations: {tensorlane.dev/exchange: big}}\nspec: {containers: [{name: a}]}\n---\n\
             kind: Deployment\nmetadata: {name: d, namespace: other}\nspec: {template: {spec: {containers: [{name: a}]}}}\n";
        let done = injected(yaml);
        let texts: Vec<_> = done.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "injected, in exchange big",
                "not injected: neither the pod nor its namespace nor an exchange asks for a sidecar"
            ]
        );
        assert!(done.yaml.contains("value: 4Gi"));
    }

    #[test]
    fn a_pod_that_cannot_be_served_is_a_note_and_stays_as_it_was() {
        let done = injected(&format!(
            "kind: Job\nspec: {{template: {}}}\n",
            TEMPLATE.replace("[{name: a}]", "[{name: tensorlane}]")
        ));
        assert!(done.notes[0].denied && done.notes[0].text.contains("another one"), "{:?}", done.notes);
        assert!(!done.yaml.contains("initContainers"));
    }

    #[test]
    fn what_is_no_yaml_is_named_by_its_document() {
        let error = inject("kind: Pod\n---\na: [\n", "ml", &Defaults::default()).unwrap_err().to_string();
        assert!(error.starts_with("document 2 is not YAML"), "{error}");
    }

    #[test]
    fn what_is_no_manifest_is_refused_and_empty_documents_are_left_out() {
        let refused = |yaml| inject(yaml, "ml", &Defaults::default()).unwrap_err();
        assert!(matches!(refused("kind: Job\n---\n# a page\nhello\n"), OfflineError::NoObject(2)));
        assert!(matches!(refused("{metadata: {name: a}}"), OfflineError::NoObject(1)));
        for nothing in ["", "---\n---\n", "# a comment\n"] {
            assert!(matches!(refused(nothing), OfflineError::Nothing), "{nothing:?}");
        }
        assert_eq!(injected("---\nkind: Secret\n---\n").yaml, "kind: Secret\n");
    }
}
