//! The definitions of our objects.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use tensorlane_proto::crd::{TensorExchange, TensorPeer};

use super::schemas::complete;
use super::{File, file};

/// Both of them.
pub(super) fn all() -> [CustomResourceDefinition; 2] {
    let [mut exchange, mut peer] = [TensorExchange::crd(), TensorPeer::crd()];
    complete(
        &mut exchange,
        "What the pods of an exchange have in common: transports, arena, security, and who gets a sidecar.",
    );
    complete(
        &mut peer,
        "A pod of an exchange, with its sidecar: whose it is (spec) and who that sidecar is (status). Made by the operator.",
    );
    [exchange, peer]
}

pub(super) fn files() -> Result<Vec<File>, serde_yaml::Error> {
    all()
        .iter()
        .map(|crd| file(&format!("crds/{}.yaml", crd.spec.names.plural), std::slice::from_ref(crd)))
        .collect()
}
