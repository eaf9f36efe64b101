//! A JSON patch that leads from one value to another.
//!
//! `json_patch::diff` compares lists by position, so one element put in front rewrites all others, and a person who reads
//! the patch in an audit log cannot see that nothing else was touched. Here what two lists have in common at both ends
//! stays out of the patch.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Map, Value};

/// Patch that leads from `before` to `after`.
pub fn diff(before: &Value, after: &Value) -> Patch {
    let mut operations = Vec::new();
    values(before, after, &PointerBuf::root(), &mut operations);
    Patch(operations)
}

fn values(before: &Value, after: &Value, path: &PointerBuf, out: &mut Vec<PatchOperation>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => objects(before, after, path, out),
        (Value::Array(before), Value::Array(after)) => lists(before, after, path, out),
        _ => out.push(PatchOperation::Replace(ReplaceOperation { path: path.clone(), value: after.clone() })),
    }
}

fn objects(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    path: &PointerBuf,
    out: &mut Vec<PatchOperation>,
) {
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        out.push(PatchOperation::Remove(RemoveOperation { path: below(path, key) }));
    }
    for (key, value) in after {
        let path = below(path, key);
        match before.get(key) {
            Some(old) => values(old, value, &path, out),
            None => out.push(PatchOperation::Add(AddOperation { path, value: value.clone() })),
        }
    }
}

fn lists(before: &[Value], after: &[Value], path: &PointerBuf, out: &mut Vec<PatchOperation>) {
    let alike = |(a, b): &(&Value, &Value)| same_element(a, b);
    if before.len() == after.len() && before.iter().zip(after).all(|pair| alike(&pair)) {
        for (index, (old, new)) in before.iter().zip(after).enumerate() {
            values(old, new, &below(path, &index.to_string()), out);
        }
        return;
    }
    let shorter = before.len().min(after.len());
    let head = before.iter().zip(after).take_while(alike).count();
    let tail = before.iter().rev().zip(after.iter().rev()).take_while(alike).count().min(shorter - head);
    for index in (head..before.len() - tail).rev() {
        out.push(PatchOperation::Remove(RemoveOperation { path: below(path, &index.to_string()) }));
    }
    for (index, value) in after.iter().enumerate().take(after.len() - tail).skip(head) {
        let path = below(path, &index.to_string());
        out.push(PatchOperation::Add(AddOperation { path, value: value.clone() }));
    }
    for (index, new) in after.iter().enumerate() {
        let old = match index {
            _ if index < head => &before[index],
            _ if index >= after.len() - tail => &before[before.len() + index - after.len()],
            _ => continue,
        };
        values(old, new, &below(path, &index.to_string()), out);
    }
}

/// Returns whether two elements of a list are the same thing, perhaps changed: lists of Kubernetes are keyed by name.
fn same_element(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.get("name"), b.get("name")), (Some(a), Some(b)) if a == b)
}

fn below(path: &PointerBuf, key: &str) -> PointerBuf {
    let mut path = path.clone();
    path.push_back(key);
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn shown(before: &Value, after: &Value) -> Value {
        serde_json::to_value(diff(before, after)).unwrap()
    }

    #[test]
    fn an_element_in_front_is_one_operation() {
        let before = json!({"init": [{"name": "a", "x": 1}, {"name": "b"}]});
        let after = json!({"init": [{"name": "new"}, {"name": "a", "x": 2}, {"name": "b"}]});
        let expected = json!([
            {"op": "add", "path": "/init/0", "value": {"name": "new"}},
            {"op": "replace", "path": "/init/1/x", "value": 2},
        ]);
        assert_eq!(shown(&before, &after), expected);
    }

    #[test]
    fn keys_with_slashes_are_escaped() {
        let after = json!({"labels": {"tensorlane.dev/injected": "true"}});
        let path = shown(&json!({"labels": {}}), &after)[0]["path"].clone();
        assert_eq!(path, "/labels/tensorlane.dev~1injected");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            (0..4_i64).prop_map(|number| json!(number)),
            "[a-c~/]{0,2}".prop_map(Value::String),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::btree_map("(name|x|a/b|m~n)", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_patch_leads_from_any_value_to_any_other(before in any_value(), after in any_value()) {
            let mut changed = before.clone();
            json_patch::patch(&mut changed, &diff(&before, &after)).unwrap();
            prop_assert_eq!(changed, after);
        }
    }
}
