//! Additions that the schemas of our definitions need besides what comes from the types: a sentence, the rules of types
//! that are not ours, and bounds. Without bounds whoever may write an object, be it its own status, could fill the
//! memory of all who read them, the operator's first.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};
use serde_json::json;

/// The most labels, expressions and values of a selector. Nobody writes as many, and whoever reads it reads all.
const SELECTOR_MAX: i64 = 32;

/// The most bytes of a condition's parts. Kubernetes' own may have sentences of 32 KiB; ours have a few hundred bytes.
const CONDITION_MAX: [(&str, i64); 5] =
    [("type", 316), ("status", 7), ("reason", 1024), ("message", 4096), ("lastTransitionTime", 64)];

/// Completes a definition; `sentence` is what `kubectl explain` says of the whole object.
pub(super) fn complete(definition: &mut CustomResourceDefinition, sentence: &str) {
    for version in &mut definition.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|all| all.open_api_v3_schema.as_mut()) else {
            continue;
        };
        schema.description = Some(sentence.to_owned());
        if let Some(condition) = at(schema, &["status", "conditions"]).and_then(item) {
            bound_condition(condition);
        }
        if let Some(selector) = at(schema, &["spec", "inject", "selector"]) {
            complete_selector(selector);
        }
    }
}

fn bound_condition(condition: &mut JSONSchemaProps) {
    for (name, most) in CONDITION_MAX {
        if let Some(text) = at(condition, &[name]) {
            text.max_length = Some(most);
        }
    }
}

/// The API server does not look into a selector by itself: without this, an operator that it does not know would be taken,
/// and be read in two ways.
fn complete_selector(selector: &mut JSONSchemaProps) {
    if let Some(labels) = at(selector, &["matchLabels"]) {
        labels.max_properties = Some(SELECTOR_MAX);
    }
    let Some(list) = at(selector, &["matchExpressions"]) else { return };
    list.max_items = Some(SELECTOR_MAX);
    let Some(one) = item(list) else { return };
    if let Some(values) = at(one, &["values"]) {
        values.max_items = Some(SELECTOR_MAX);
    }
    if let Some(operator) = at(one, &["operator"]) {
        let words = ["In", "NotIn", "Exists", "DoesNotExist"];
        operator.enum_ = Some(words.iter().map(|word| JSON(json!(word))).collect());
    }
    one.x_kubernetes_validations = Some(vec![ValidationRule {
        rule: "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)".to_owned(),
        message: Some("In and NotIn need values, Exists and DoesNotExist take none".to_owned()),
        ..ValidationRule::default()
    }]);
}

/// The schema of a field.
fn at<'a>(schema: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    path.iter().try_fold(schema, |at, name| at.properties.as_mut()?.get_mut(*name))
}

/// The schema of what a list has.
fn item(list: &mut JSONSchemaProps) -> Option<&mut JSONSchemaProps> {
    match list.items.as_mut()? {
        JSONSchemaPropsOrArray::Schema(one) => Some(one),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}
