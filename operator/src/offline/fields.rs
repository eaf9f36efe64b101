//! Fields of our own objects that an API server does not know: it leaves them out, so what they say has no effect.

use kube::CustomResourceExt;
use serde_json::Value;
use tensorlane_proto::crd::{TensorExchange, TensorPeer};

use crate::nearest::nearest;

/// Fields that every object has, and no schema names.
const OF_EVERY_OBJECT: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Sentences on the fields of a TensorExchange or TensorPeer that are not known, in their order.
pub(super) fn unknown(object: &Value) -> Vec<String> {
    let crd = match object.get("kind").and_then(Value::as_str) {
        Some("TensorExchange") => TensorExchange::crd(),
        _ => TensorPeer::crd(),
    };
    // A schema is always JSON.
    let schemas = serde_json::to_value(&crd.spec.versions).unwrap_or_default();
    let Some(schema) = schemas.pointer("/0/schema/openAPIV3Schema") else { return Vec::new() };
    let mut sentences = Vec::new();
    walk(object, schema, "", &mut sentences);
    sentences
}

/// Goes down where a schema names the fields. Recursion ends with the levels of the schema.
fn walk(value: &Value, schema: &Value, place: &str, sentences: &mut Vec<String>) {
    if let (Value::Array(items), Some(schema)) = (value, schema.get("items")) {
        for (index, item) in items.iter().enumerate() {
            walk(item, schema, &format!("{place}[{index}]"), sentences);
        }
    }
    let known = schema.get("properties").and_then(Value::as_object);
    let (Value::Object(fields), Some(known)) = (value, known) else { return };
    for (name, value) in fields {
        let inner = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        match known.get(name) {
            Some(schema) => walk(value, schema, &inner, sentences),
            None if place.is_empty() && OF_EVERY_OBJECT.contains(&name.as_str()) => {}
            None => {
                let meant = nearest(name, known.keys().map(String::as_str));
                let meant = meant.map(|word| format!("; did you mean {word}?")).unwrap_or_default();
                sentences.push(format!("the field {inner} is not known and has no effect{meant}"));
            }
        }
    }
}
