//! Promises that the schemas make to people.

use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::*;

fn schema(crd: &impl serde::Serialize) -> Value {
    let crd = serde_json::to_value(crd).unwrap();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

#[test]
fn the_words_of_transports_are_those_of_the_protocol() {
    for kind in TransportKind::ALL {
        assert_eq!(kind.as_str().parse::<crate::Transport>().unwrap().as_str(), kind.as_str());
    }
    assert_eq!(TransportKind::ALL.len() + 1, crate::Transport::ALL.len(), "local is never switched off");
}

#[test]
fn a_wrong_word_is_answered_with_the_right_ones() {
    let error = "rdma".parse::<TransportKind>().unwrap_err().to_string();
    assert_eq!(error, r#""rdma" is not one of shm, cuda_ipc, tcp, quic"#);
}

#[test]
fn an_exchange_says_only_what_was_said() {
    let spec: ExchangeSpec =
        serde_json::from_value(json!({"sameNode": "hostPath", "transports": ["tcp", "cuda_ipc", "shm"]}))
            .unwrap();
    assert_eq!(spec.same_node, Some(SameNode::HostPath));
    let back = serde_json::to_value(&spec).unwrap();
    assert_eq!(back, json!({"sameNode": "hostPath", "transports": ["tcp", "cuda_ipc", "shm"]}));
}

#[test]
fn conditions_are_merged_by_type_and_status_is_a_subresource() {
    for crd in [TensorExchange::crd(), TensorPeer::crd()] {
        let conditions = schema(&crd).pointer("/properties/status/properties/conditions").cloned().unwrap();
        assert_eq!(conditions["x-kubernetes-list-type"], "map");
        assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
        assert!(crd.spec.versions[0].subresources.as_ref().unwrap().status.is_some());
        assert_eq!(crd.spec.names.categories, Some(vec!["tensorlane".to_owned()]));
    }
}

/// Every rule in a schema, with where it stands.
fn rules(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                if key == "x-kubernetes-validations" {
                    found
                        .extend(inner.as_array().unwrap().iter().map(|rule| (path.to_owned(), rule.clone())));
                }
                rules(inner, &format!("{path}/{key}"), found);
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| rules(inner, path, found)),
        _ => {}
    }
}

#[test]
fn every_rule_says_what_to_do() {
    let mut found = Vec::new();
    rules(&schema(&TensorExchange::crd()), "", &mut found);
    rules(&schema(&TensorPeer::crd()), "", &mut found);
    assert!(found.len() >= 12, "rules get lost: {found:#?}");
    for (path, rule) in found {
        assert!(rule["message"].as_str().is_some_and(|text| text.len() > 20), "{path}: {rule}");
    }
}

/// The cost of a rule is bounded only where everything it can see is.
#[test]
fn every_text_and_list_of_ours_is_bounded() {
    fn unbounded(value: &Value, path: &str, found: &mut Vec<String>) {
        if path.ends_with("/conditions") || path.ends_with("/selector") {
            return;
        }
        let Value::Object(map) = value else { return };
        let kind = map.get("type").and_then(Value::as_str);
        if kind == Some("string") && !map.contains_key("maxLength") && !map.contains_key("enum") {
            found.push(path.to_owned());
        }
        if kind == Some("array") && !map.contains_key("maxItems") {
            found.push(path.to_owned());
        }
        for (key, inner) in map {
            unbounded(inner, &format!("{path}/{key}"), found);
        }
    }
    for crd in [TensorExchange::crd(), TensorPeer::crd()] {
        let mut found = Vec::new();
        for part in ["spec", "status"] {
            unbounded(&schema(&crd)["properties"][part], part, &mut found);
        }
        assert!(found.is_empty(), "{found:#?}");
    }
}
