//! Manifests in, manifests with sidecars out: a filter that does what the webhook would do, without a cluster.
//!
//! ```text
//!   stream ──cut──> pieces ──read as kubectl reads──> JSON ──plan each pod in it──> written again
//!                      └────────────────── nothing in it is injected ──────────────> byte for byte
//! ```
//!
//! Pods and the templates of what makes pods are planned. Everything else passes as it is, comments, anchors and line
//! ends included; what seems to make pods and is of no known kind is named in a note. Namespaces and TensorExchanges
//! among the documents are facts for the others. What is only in a cluster (quotas, limit ranges, claims) is not known
//! here, so an API server may still say no.

mod counts;
mod dialect;
mod fields;
#[cfg(test)]
mod forms_tests;
mod kinds;
mod reading;
mod scalar;
mod stream;
#[cfg(test)]
mod tests;
mod writing;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tensorlane_proto::crd::ExchangeSpec;
use thiserror::Error;

use crate::annotations;
use crate::names::{INJECT, PREFIX};
use crate::plan::{Decision, Defaults, Deny, Facts, Namespace, Skip, plan};

pub use kinds::{Template, claim_templates, pods, without_template};

/// The most bytes of manifests; YAML can grow when it is read.
pub const BYTES_MAX: usize = 16 << 20;

/// Manifests with sidecars.
#[derive(Clone, Debug, PartialEq)]
pub struct Injected {
    /// All documents, in their order.
    pub yaml: String,
    /// Objects of all documents, those of lists one by one, as kubectl reads them.
    pub objects: Vec<Value>,
    /// Notes on each pod or template.
    pub notes: Vec<Note>,
}

/// Note on what happened to one pod or template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Object that the note is about, such as `Deployment ml/trainer`.
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
    /// Not YAML, or not as kubectl takes it.
    #[error("document {number} is not YAML, at line {line}: {fault}: correct it there")]
    NotYaml {
        /// Counted from 1.
        number: usize,
        /// Line of the stream, counted from 1.
        line: usize,
        /// Sentence of the parser, without its end.
        fault: String,
    },
    /// A document behind another one, which kubectl would leave out.
    #[error(
        "document {0} holds another one that kubectl does not read: begin that with a line of three dashes alone"
    )]
    Hidden(usize),
    /// A line that kubectl refuses as a separator. As YAML it would be a key with dashes before it.
    #[error(
        "line {line} begins with three dashes and goes on with {rest:?}, which separates no documents: end the line behind the dashes"
    )]
    NoSeparator {
        /// Line of the stream, counted from 1.
        line: usize,
        /// Beginning of what follows the dashes.
        rest: String,
    },
    /// YAML, and no manifest.
    #[error("document {0} is no object of Kubernetes, it has no kind: leave it out, or say what it is")]
    NoObject(usize),
    /// An object of a `List` that does not say what it is.
    #[error("item {item} of the List in document {number} has no kind: say what it is")]
    NoItem {
        /// Counted from 1.
        number: usize,
        /// Counted from 0, as its place is written.
        item: usize,
    },
    /// Nothing at all, which nobody pipes on purpose.
    #[error("there is no manifest: name a file with -f FILE, or pipe manifests into -f -")]
    Nothing,
    /// An exchange that cannot be read.
    #[error("TensorExchange {name:?} cannot be read: {source}: correct its spec")]
    Exchange {
        /// Name of the exchange.
        name: String,
        /// Error of the parser: what is wrong.
        source: serde_json::Error,
    },
}

/// Plans every pod and template of a YAML stream. Those without a namespace belong to `namespace`.
///
/// # Errors
/// The stream cannot be read. A pod that cannot be served is a note.
pub fn inject(yaml: &str, namespace: &str, defaults: &Defaults) -> Result<Injected, OfflineError> {
    if yaml.len() > BYTES_MAX {
        return Err(OfflineError::TooLarge(yaml.len()));
    }
    if let Some((line, rest)) = stream::no_separator(yaml) {
        return Err(OfflineError::NoSeparator { line, rest });
    }
    let pieces = stream::cut(yaml);
    let mut documents = read(&pieces)?;
    let mut scene = Scene::default();
    documents.iter().try_for_each(|document| scene.learn(&document.value, namespace))?;
    let mut notes = Vec::new();
    let mut out = String::with_capacity(yaml.len());
    for (piece, document) in pieces.iter().zip(&mut documents) {
        out.push_str(piece.separator);
        if !scene.inject(&mut document.value, namespace, defaults, &mut notes) {
            out.push_str(piece.body);
            continue;
        }
        if document.more {
            return Err(OfflineError::Hidden(document.number));
        }
        if piece.of_json {
            // The documents beside it are JSON, too, and one reader has to read them all.
            out.push_str(&document.value.to_string());
            out.push_str(piece.tail());
            continue;
        }
        out.push_str(piece.head());
        out.push_str(&writing::write(&document.value));
    }
    let mut objects = Vec::new();
    documents.into_iter().for_each(|document| gather(document.value, &mut objects));
    Ok(Injected { yaml: out, objects, notes })
}

/// Gathers the objects of a document: those of a list one by one, and none of an empty one.
fn gather(mut value: Value, objects: &mut Vec<Value>) {
    // Other items are those of an object whose kind only ends so.
    if !is_list(&value) || !items(&value).iter().all(Value::is_object) {
        objects.extend(Some(value).filter(|value| !value.is_null()));
        return;
    }
    if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        std::mem::take(items).into_iter().for_each(|item| gather(item, objects));
    }
}

/// A document of the stream.
struct Document {
    /// Counted from 1, empty ones between lines of dashes included.
    number: usize,
    /// Null where the piece is empty.
    value: Value,
    /// Set if the piece holds another document behind this one.
    more: bool,
}

/// Reads every piece, each as one document.
fn read(pieces: &[stream::Piece<'_>]) -> Result<Vec<Document>, OfflineError> {
    // What stands before the first line of dashes is a document if there is anything.
    let skipped = usize::from(pieces.len() > 1 && pieces.first().is_some_and(|piece| piece.body.is_empty()));
    let mut documents = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let number = (index + 1).saturating_sub(skipped);
        let text = piece.body.strip_prefix('\u{feff}').unwrap_or(piece.body);
        let mut read = reading::read(text).map_err(|fault| OfflineError::NotYaml {
            number,
            line: piece.line + fault.line.saturating_sub(1),
            fault: fault.text,
        })?;
        if !read.value.is_null() && kind(&read.value).is_empty() {
            return Err(OfflineError::NoObject(number));
        }
        complete_items(&mut read.value).map_err(|item| OfflineError::NoItem { number, item })?;
        documents.push(Document { number, value: read.value, more: read.more });
    }
    match documents.iter().all(|document| document.value.is_null()) {
        true => Err(OfflineError::Nothing),
        false => Ok(documents),
    }
}

/// Scene: what the documents say about namespaces.
#[derive(Default)]
struct Scene {
    labels: BTreeMap<String, BTreeMap<String, String>>,
    annotations: BTreeMap<String, BTreeMap<String, String>>,
    exchanges: BTreeMap<String, BTreeMap<String, ExchangeSpec>>,
}

impl Scene {
    fn learn(&mut self, document: &Value, default: &str) -> Result<(), OfflineError> {
        let name = text(document, "/metadata/name").unwrap_or_default().to_owned();
        match kind(document) {
            _ if is_list(document) => {
                items(document).iter().try_for_each(|item| self.learn(item, default))?;
            }
            "Namespace" => {
                let labels = document.pointer("/metadata/labels").and_then(Value::as_object);
                let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
                self.annotations.insert(name.clone(), annotations_of(document).unwrap_or_default());
                self.labels.insert(name, labels.into_iter().flatten().filter_map(text).collect());
            }
            "TensorExchange" => {
                let namespace = text(document, "/metadata/namespace").unwrap_or(default).to_owned();
                let spec = document.get("spec").cloned().unwrap_or_else(|| Value::Object(Map::new()));
                let spec = serde_json::from_value(spec)
                    .map_err(|source| OfflineError::Exchange { name: name.clone(), source })?;
                self.exchanges.entry(namespace).or_default().insert(name, spec);
            }
            _ => {}
        }
        Ok(())
    }

    /// Plans the pods of an object. Returns whether the object has changed.
    fn inject(
        &self,
        document: &mut Value,
        default: &str,
        defaults: &Defaults,
        notes: &mut Vec<Note>,
    ) -> bool {
        if is_list(document) {
            let items = document.get_mut("items").and_then(Value::as_array_mut);
            let each = |changed, item| self.inject(item, default, defaults, notes) || changed;
            return items.into_iter().flatten().fold(false, each);
        }
        let namespace = text(document, "/metadata/namespace").unwrap_or(default).to_owned();
        let name = text(document, "/metadata/name").or_else(|| text(document, "/metadata/generateName"));
        let object = format!("{} {namespace}/{}", kind(document), name.unwrap_or_default());
        let Some(known) = kinds::known(document) else {
            let note = |text| Note { object: object.clone(), text, denied: false };
            let said = if is_ours(document) { fields::unknown(document) } else { unknown(document) };
            notes.extend(said.into_iter().map(note));
            return false;
        };
        let places: Vec<String> = known.into_iter().map(|(place, _)| place).collect();
        notes.extend(misplaced(document, &places).map(|text| Note {
            object: object.clone(),
            text,
            denied: false,
        }));
        let claim_templates = claim_templates(document);
        let is_known = self.labels.contains_key(&namespace);
        let facts = Facts { claim_templates, ..self.facts(namespace, defaults) };
        let mut changed = false;
        for place in &places {
            let Some(pod) = document.pointer_mut(place).filter(|pod| pod.is_object()) else { continue };
            let object = match places.len() {
                1 => object.clone(),
                _ => format!("{object} {}", kinds::spoken(place)),
            };
            changed |= inject_pod(pod, &facts, is_known, |text, denied| {
                notes.push(Note { object: object.clone(), text, denied });
            });
        }
        changed
    }

    fn facts(&self, namespace: String, defaults: &Defaults) -> Facts {
        Facts {
            exchanges: self.exchanges.get(&namespace).cloned().unwrap_or_default(),
            namespace: Namespace {
                labels: self.labels.get(&namespace).cloned().unwrap_or_default(),
                annotations: self.annotations.get(&namespace).cloned().unwrap_or_default(),
                excluded: namespace == "kube-system",
                name: namespace,
            },
            defaults: defaults.clone(),
            ..Facts::default()
        }
    }
}

/// Plans one pod or template, in its place. Returns whether it has changed. `is_known`: its namespace is among the manifests.
fn inject_pod(pod: &mut Value, facts: &Facts, is_known: bool, mut note: impl FnMut(String, bool)) -> bool {
    let outcome = plan(pod, facts);
    outcome.warnings.into_iter().for_each(|warning| note(warning, false));
    match outcome.decision {
        Decision::Inject(plan) => {
            note(format!("injected, in exchange {}", plan.exchange), false);
            let changed = *pod != plan.pod;
            *pod = plan.pod;
            return changed;
        }
        // Namespaces and exchanges of the cluster are not seen here: what is not among the manifests may be there.
        Decision::Skip(Skip::NotRequested) if !is_known => {
            note(format!("not injected: {}, as far as these manifests say", Skip::NotRequested), false);
        }
        Decision::Deny(Deny::ExchangeMissing { name, there, .. }) if there.is_empty() => note(
            format!(
                "not injected: its TensorExchange {name} is not among these manifests. The webhook adds the sidecar if it is in the \
                 cluster; to have it added here, add the exchange to them"
            ),
            false,
        ),
        Decision::Skip(skip) => note(format!("not injected: {skip}"), false),
        Decision::Deny(deny) => note(format!("cannot be injected: {deny}"), true),
    }
    false
}

/// Sentences on an object of an unknown kind; none where nothing in it looks like a pod or speaks of a sidecar.
fn unknown(object: &Value) -> Vec<String> {
    let templates = kinds::guessed(object);
    let spoken =
        templates.iter().map(|place| if place.is_empty() { "spec".to_owned() } else { kinds::spoken(place) });
    let spoken: Vec<String> = spoken.chain(without_template(object)).collect();
    let version = text(object, "/apiVersion").unwrap_or("no apiVersion");
    if spoken.is_empty() {
        return annotated(object, version);
    }
    let mut sentences = vec![format!(
        "the kind is not known here ({version}), so {} stays as it is: its pods get their sidecars from the webhook when they are made",
        spoken.join(", ")
    )];
    sentences.extend(misplaced(object, &templates));
    sentences.extend(misspelt(object));
    sentences
}

/// Sentences on annotations of ours that nobody knows, wherever they are.
fn misspelt(object: &Value) -> Vec<String> {
    let said = |place: &String| Some(texts(object.pointer(place)?.as_object()?));
    let all = kinds::annotated(object);
    all.iter().filter_map(said).flat_map(|said| annotations::unknown(&said)).collect()
}

/// Sentences on annotations of ours in an object of which nothing looks like a pod. Its controller may give them to pods.
fn annotated(object: &Value, version: &str) -> Vec<String> {
    let places = kinds::annotated(object);
    let Some(place) = places.first() else { return Vec::new() };
    if kind(object) == "Namespace" {
        return vec![format!(
            "annotations of {PREFIX} have no effect on a Namespace: its pods ask by its label {INJECT}: enabled, under metadata.labels"
        )];
    }
    let mut sentences = vec![format!(
        "the kind is not known here ({version}), so it stays as it is, with annotations of {PREFIX} at {}: pods that get them get their sidecars from the webhook when they are made",
        kinds::spoken(place)
    )];
    sentences.extend(misspelt(object));
    sentences
}

/// Sentence on annotations of ours at the object itself, where its pods do not have them.
fn misplaced(object: &Value, places: &[String]) -> Option<String> {
    let is_pod = places.iter().any(String::is_empty);
    let said = annotations_of(object).filter(|_| !is_pod && !places.is_empty())?;
    let key =
        said.keys().find(|key| *key == INJECT).or_else(|| said.keys().find(|key| key.starts_with(PREFIX)))?;
    let place = kinds::spoken(places.first()?);
    Some(format!(
        "{key} stands on the object itself, where it has no effect: put it on the pods, under {place}.metadata.annotations"
    ))
}

fn annotations_of(object: &Value) -> Option<BTreeMap<String, String>> {
    Some(texts(object.pointer("/metadata/annotations")?.as_object()?))
}

/// Entries of a map that are texts.
fn texts(map: &Map<String, Value>) -> BTreeMap<String, String> {
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    map.iter().filter_map(text).collect()
}

/// Returns whether an object is a TensorExchange or TensorPeer.
fn is_ours(object: &Value) -> bool {
    text(object, "/apiVersion").is_none_or(|version| version.starts_with(PREFIX))
        && ["TensorExchange", "TensorPeer"].contains(&kind(object))
}

/// Says of each item of a list what it is, where the list alone says it: `kubectl get --raw` has lists of that form.
///
/// # Errors
/// An item of a `List` does not say what it is: its index.
fn complete_items(document: &mut Value) -> Result<(), usize> {
    if !is_list(document) {
        return Ok(());
    }
    let kind = kind(document).strip_suffix("List").unwrap_or_default().to_owned();
    let version = document.get("apiVersion").cloned();
    let items = document.get_mut("items").and_then(Value::as_array_mut);
    for (index, item) in items.into_iter().flatten().enumerate() {
        complete_items(item)?;
        let Some(item) = item.as_object_mut() else { continue };
        let missing = |item: &Map<String, Value>, key: &str| item.get(key).is_none_or(|said| *said == "");
        if !missing(item, "kind") {
            continue;
        }
        if kind.is_empty() {
            return Err(index);
        }
        item.insert("kind".to_owned(), Value::String(kind.clone()));
        if let Some(version) = version.clone().filter(|_| missing(item, "apiVersion")) {
            item.insert("apiVersion".to_owned(), version);
        }
    }
    Ok(())
}

/// Returns whether an object is a list of others, such as a `List` or a `PodList`.
fn is_list(document: &Value) -> bool {
    kind(document).ends_with("List") && document.get("items").is_some_and(Value::is_array)
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
