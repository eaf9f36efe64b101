//! The definitions of our objects.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::json;
use tensorlane_proto::crd::{TensorExchange, TensorPeer};

use super::{File, file};

/// Both of them.
pub(super) fn all() -> [CustomResourceDefinition; 2] {
    let [mut exchange, mut peer] = [TensorExchange::crd(), TensorPeer::crd()];
    describe(
        &mut exchange,
        "What the pods of an exchange have in common: transports, arena, security, and who gets a sidecar.",
    );
    describe(
        &mut peer,
        "A pod of an exchange, with its sidecar: whose it is (spec) and who that sidecar is (status). Made by the operator.",
    );
    complete_selectors(&mut exchange);
    [exchange, peer]
}

/// What `kubectl explain` says of the whole object.
fn describe(definition: &mut CustomResourceDefinition, sentence: &str) {
    for schema in schemas(definition) {
        schema.description = Some(sentence.to_owned());
    }
}

/// The API server does not look into a selector by itself: without this, an operator that it does not know would be taken,
/// and be read in two ways.
fn complete_selectors(definition: &mut CustomResourceDefinition) {
    for schema in schemas(definition) {
        let path = ["spec", "inject", "selector", "matchExpressions"];
        let list = path.iter().try_fold(schema, |at, name| at.properties.as_mut()?.get_mut(*name));
        let Some(JSONSchemaPropsOrArray::Schema(one)) = list.and_then(|list| list.items.as_mut()) else {
            continue;
        };
        let operators = ["In", "NotIn", "Exists", "DoesNotExist"];
        if let Some(operator) = one.properties.as_mut().and_then(|all| all.get_mut("operator")) {
            operator.enum_ = Some(operators.iter().map(|word| JSON(json!(word))).collect());
        }
        one.x_kubernetes_validations = Some(vec![ValidationRule {
            rule: "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)"
                .to_owned(),
            message: Some("In and NotIn need values, Exists and DoesNotExist take none".to_owned()),
            ..ValidationRule::default()
        }]);
    }
}

fn schemas(definition: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    definition
        .spec
        .versions
        .iter_mut()
        .filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

pub(super) fn files() -> Result<Vec<File>, serde_yaml::Error> {
    all()
        .iter()
        .map(|crd| file(&format!("crds/{}.yaml", crd.spec.names.plural), std::slice::from_ref(crd)))
        .collect()
}
