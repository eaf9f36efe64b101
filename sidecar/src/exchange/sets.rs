//! PublishSet: the next version of a sealed set.

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::SESSION_ITEMS_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Publication, TensorId};

use super::Exchange;
use super::names::tensor_name;

impl Exchange {
    /// Makes a set the next version of its name.
    pub fn publish_set(&self, request: v1::PublishSetRequest) -> Result<v1::PublishSetResponse, Failure> {
        let v1::PublishSetRequest { manifest, leaves, name, version, keep } = request;
        if leaves.len() > SESSION_ITEMS_MAX {
            return Err(Failure::new(
                Reason::TooLarge,
                format!("a set of {} leaves; at most {SESSION_ITEMS_MAX}: make several sets", leaves.len()),
            ));
        }
        let name = tensor_name(&name)?;
        let publication = Publication {
            manifest: TensorId(manifest),
            leaves: leaves.into_iter().map(TensorId).collect(),
            name: name.clone(),
            version,
            keep,
        };
        self.store.publish(publication)?;
        self.versions_kept(&name, keep);
        Ok(v1::PublishSetResponse { version })
    }
}
