//! Golden pods: manifests in, decision out. `TENSORLANE_GOLDEN=write` writes what comes out instead of comparing it.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{LimitRange as ApiLimitRange, ResourceQuota};
use serde::Deserialize;
use serde_json::{Value, json};
use tensorlane_operator::abilities::Abilities;
use tensorlane_operator::plan::{Facts, LimitRange, Namespace, Quota};
use tensorlane_operator::{Decision, Outcome};

pub(crate) mod pod_security;

/// The folder of golden pods.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Every golden pod: its name, and the manifests.
pub(crate) fn all() -> Vec<(String, String)> {
    let mut names: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".in.yaml").map(str::to_owned))
        .collect();
    names.sort();
    let read = |name: String| {
        let text = fs::read_to_string(folder().join(format!("{name}.in.yaml"))).unwrap();
        (name, text)
    };
    names.into_iter().map(read).collect()
}

/// The pod of a file, and the facts beside it.
pub(crate) fn read(yaml: &str) -> (Value, Facts) {
    let mut facts =
        Facts { namespace: Namespace { name: "ml".to_owned(), ..Namespace::default() }, ..Facts::default() };
    let mut pod = None;
    for document in serde_yaml::Deserializer::from_str(yaml) {
        let document = Value::deserialize(document).unwrap();
        let object = document.clone();
        match document["kind"].as_str().unwrap() {
            "Pod" => pod = Some(document),
            "Namespace" => {
                let name = document["metadata"]["name"].as_str().unwrap().to_owned();
                let map = |key| document["metadata"].get(key).cloned().unwrap_or(json!({}));
                facts.namespace = Namespace {
                    excluded: name == "kube-system",
                    name,
                    labels: serde_json::from_value(map("labels")).unwrap(),
                    annotations: serde_json::from_value(map("annotations")).unwrap(),
                };
            }
            "TensorExchange" => {
                let name = document["metadata"]["name"].as_str().unwrap().to_owned();
                facts.exchanges.insert(name, serde_json::from_value(document["spec"].clone()).unwrap());
            }
            "LimitRange" => {
                facts
                    .limits
                    .extend(LimitRange::of(&serde_json::from_value::<ApiLimitRange>(object).unwrap()));
            }
            "ResourceQuota" => {
                facts.quotas.extend(Quota::of(&serde_json::from_value::<ResourceQuota>(object).unwrap()));
            }
            // What a later release will be able to do is planned already.
            "Abilities" => {
                assert_eq!(document["abilities"], "everything");
                facts.abilities = Abilities::EVERYTHING;
            }
            "Claims" => facts.claims = serde_json::from_value(document["claims"].clone()).unwrap(),
            other => panic!("no golden pod says what {other} is"),
        }
    }
    (pod.expect("a file has a pod"), facts)
}

/// Text of an outcome that is committed.
pub(crate) fn shown(outcome: &Outcome) -> String {
    let decision = match &outcome.decision {
        Decision::Inject(plan) => {
            let steps: Vec<_> = plan.patch.0.iter().map(step).collect();
            json!({"decision": "inject", "asked": plan.asked.as_str(), "exchange": plan.exchange, "patch": steps, "pod": plan.pod})
        }
        Decision::Skip(skip) => {
            json!({"decision": "skip", "reason": skip.label(), "sentence": skip.to_string()})
        }
        Decision::Deny(deny) => {
            json!({"decision": "deny", "reason": deny.label(), "sentence": deny.to_string()})
        }
    };
    let mut all = decision.as_object().unwrap().clone();
    if !outcome.warnings.is_empty() {
        all.insert("warnings".to_owned(), json!(outcome.warnings));
    }
    serde_yaml::to_string(&all).unwrap()
}

fn step(operation: &json_patch::PatchOperation) -> String {
    let value = serde_json::to_value(operation).unwrap();
    format!("{} {}", value["op"].as_str().unwrap(), value["path"].as_str().unwrap())
}

/// Compares with what is committed, or writes it.
pub(crate) fn compare(name: &str, text: &str) -> Result<(), String> {
    let path = folder().join(format!("{name}.out.yaml"));
    if std::env::var_os("TENSORLANE_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(path, text).unwrap();
        return Ok(());
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if committed == text { Ok(()) } else { Err(format!("{name}:\n{text}")) }
}
