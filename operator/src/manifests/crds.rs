//! The definitions of our objects.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use tensorlane_proto::crd::{TensorExchange, TensorPeer};

use super::{File, file};

/// Both of them.
pub(super) fn all() -> [CustomResourceDefinition; 2] {
    [TensorExchange::crd(), TensorPeer::crd()]
}

pub(super) fn files() -> Result<Vec<File>, serde_yaml::Error> {
    all()
        .iter()
        .map(|crd| file(&format!("crds/{}.yaml", crd.spec.names.plural), std::slice::from_ref(crd)))
        .collect()
}
