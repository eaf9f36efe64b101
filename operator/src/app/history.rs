//! History of the API server: after a restore from a backup its versions go back. A watch from a version that has yet to come is silent
//! then, and what is known from before is wrong: the leader begins its term anew.

use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, Client};
use tensorlane_proto::crd::TensorExchange;

/// Interval of looks. A restore after which as much was written between two looks as was lost is not seen.
const LOOK: Duration = Duration::from_secs(15);

/// The API server's history, as far as it was seen.
#[derive(Debug, Default)]
pub struct History {
    /// The last version of all that is stored.
    version: u64,
}

impl History {
    /// Looks at the version of all that is stored. Returns whether it is lower than before; false where it cannot be had.
    pub async fn went_back(&mut self, client: &Client) -> bool {
        let exchanges: Api<TensorExchange> = Api::all(client.clone());
        // The version of a list is that of everything, whatever is listed.
        let listed = exchanges.list_metadata(&ListParams::default().limit(1)).await;
        let version = listed.ok().and_then(|list| list.metadata.resource_version?.parse::<u64>().ok());
        let Some(version) = version else { return false };
        let known = std::mem::replace(&mut self.version, version);
        if version < known {
            tracing::warn!(
                known,
                version,
                "the API server's versions went back, as after a restore from a backup: everything is listed anew"
            );
        }
        version < known
    }
}

/// Completes when the API server's versions are lower than they were.
pub(super) async fn went_back(client: &Client) {
    let mut history = History::default();
    while !history.went_back(client).await {
        tokio::time::sleep(LOOK).await;
    }
}
