//! Tests of objects of the training and serving world by their own published definitions: what `tensorlane inject` makes of
//! them is taken whole, and every template that a definition has is known. Those projects do not run here.

use std::collections::BTreeSet;

use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tensorlane_operator::offline::{inject, pods};
use tensorlane_operator::plan::Defaults;

use crate::foreign::{apply_definitions, misspelt_is_refused, tries};
use crate::objects::make_namespace;
use crate::server::Server;

/// Projects whose kinds `tensorlane inject` knows, and whose definitions can be had.
const PROJECTS: [&str; 5] = ["jobset", "kuberay", "lws", "trainer", "training-operator"];

const OBJECTS: &str = include_str!("../foreign/training.yaml");

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn injected_objects_of_the_training_world_are_taken_whole_by_their_definitions() {
    let server = Server::start().await;
    let admin = server.admin();
    make_namespace(&admin, "ml", &json!({})).await;
    let definitions = apply_definitions(&admin, &PROJECTS).await;
    let given = documents(OBJECTS);
    let kinds = |all: &[Value], at: &str| -> BTreeSet<String> {
        all.iter().map(|one| one.pointer(at).and_then(Value::as_str).unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&given, "/kind"), kinds(&definitions, "/spec/names/kind"), "each of them is tried");
    for object in &given {
        tries(&admin, object).await.unwrap_or_else(|error| panic!("{}: {error}", object["kind"]));
        misspelt_is_refused(&admin, object).await;
    }
    let injected = documents(&inject(OBJECTS, "ml", &Defaults::default()).unwrap().yaml);
    for object in &injected {
        is_taken_whole(&admin, object).await;
    }
    for definition in &definitions {
        every_template_of_it_is_known(definition);
    }
    a_queue_keeps_the_sidecar(&admin, &injected).await;
}

fn documents(yaml: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(yaml).map(|one| Value::deserialize(one).unwrap());
    all.filter(|one| !one.is_null()).collect()
}

/// The object is taken, and no field of a sidecar is lost on the way, as one is that a definition does not know.
async fn is_taken_whole(admin: &Client, object: &Value) {
    let kind = &object["kind"];
    let made = tries(admin, object).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
    let (sent, kept) = (pods(object), pods(&made));
    assert!(!sent.is_empty() && sent.len() == kept.len(), "{kind}: {made}");
    for (sent, kept) in sent.iter().zip(&kept) {
        assert_eq!(sent.pod["spec"]["initContainers"][0]["name"], "tensorlane", "{kind} {}", sent.place);
        is_within(sent.pod, kept.pod, &format!("{kind} {}", sent.place));
    }
}

/// Everything of one value is in the other one, which may have more: defaults.
fn is_within(part: &Value, whole: &Value, place: &str) {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            for (key, value) in part {
                let other = whole.get(key).unwrap_or_else(|| panic!("{place}: {key} is lost"));
                is_within(value, other, &format!("{place}.{key}"));
            }
        }
        (Value::Array(part), Value::Array(whole)) => {
            assert_eq!(part.len(), whole.len(), "{place}");
            part.iter().zip(whole).for_each(|(one, other)| is_within(one, other, place));
        }
        (one, other) => assert_eq!(one, other, "{place}"),
    }
}

/// An object with a pod at every place where the definition has a template of pods.
fn every_template_of_it_is_known(definition: &Value) {
    let (group, kind) = (&definition["spec"]["group"], &definition["spec"]["names"]["kind"]);
    for version in definition["spec"]["versions"].as_array().unwrap() {
        let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let (spec, templates) = filled(schema).unwrap_or_else(|| panic!("{kind} has no template of pods"));
        let object = json!({
            "apiVersion": format!("{}/{}", group.as_str().unwrap(), version["name"].as_str().unwrap()),
            "kind": kind, "metadata": {"name": "x"}, "spec": spec,
        });
        let known: Vec<String> = pods(&object).into_iter().map(|template| template.place).collect();
        assert_eq!(known.len(), templates, "{object} has a template besides {known:?}");
    }
}

/// Value of a schema that has a pod wherever one may be, and their number; none where no pod may be.
fn filled(schema: &Value) -> Option<(Value, usize)> {
    if schema.pointer("/properties/spec/properties/containers/items").is_some() {
        return Some((json!({"spec": {"containers": [{"name": "a"}]}}), 1));
    }
    if let Some(entry) = schema.get("items") {
        return filled(entry).map(|(value, count)| (json!([value]), count));
    }
    if let Some(entry) = schema.get("additionalProperties").filter(|entry| entry.is_object()) {
        return filled(entry).map(|(value, count)| (json!({"Worker": value}), count));
    }
    let properties = schema.get("properties")?.as_object()?;
    let inner: Vec<_> = properties.iter().filter_map(|(name, inner)| Some((name, filled(inner)?))).collect();
    let count = inner.iter().map(|(_, (_, count))| count).sum();
    let value: serde_json::Map<String, Value> =
        inner.into_iter().map(|(name, (value, _))| (name.clone(), value)).collect();
    (!value.is_empty()).then_some((Value::Object(value), count))
}

/// Kueue makes a Workload of the templates that it sees: it keeps what makes a sidecar of a container.
async fn a_queue_keeps_the_sidecar(admin: &Client, injected: &[Value]) {
    apply_definitions(admin, &["kueue"]).await;
    let object = injected.iter().find(|one| one["kind"] == "JobSet").unwrap();
    let sets: Vec<Value> = pods(object)
        .into_iter()
        .enumerate()
        .map(|(number, template)| json!({"name": format!("s{number}"), "count": 2, "template": template.pod}))
        .collect();
    for version in ["v1beta1", "v1beta2"] {
        let workload = json!({
            "apiVersion": format!("kueue.x-k8s.io/{version}"), "kind": "Workload",
            "metadata": {"name": "w", "namespace": "ml"}, "spec": {"queueName": "q", "podSets": sets},
        });
        let made = tries(admin, &workload).await.unwrap_or_else(|error| panic!("{version}: {error}"));
        is_within(&workload["spec"], &made["spec"], version);
    }
}
