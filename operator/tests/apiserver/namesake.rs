//! A pod that is gone, and another one that has its name.

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{api, create, get, until};
use crate::running::{peer, token};
use crate::server::Server;

/// The API server takes a token for up to ten seconds after its pod is gone. What stands against it then is the policy
/// alone, which compares UIDs; only a token that is refused by it proves that, and one that has run out is tried again
/// with the next pod.
pub(crate) async fn the_token_of_a_pod_that_is_gone_writes_nothing_of_its_namesake(
    server: &Server,
    admin: &Client,
    asking: &Value,
) {
    let refused = until("the policy refuses the token of the pod before", || async {
        let old = get(admin, asking).await.unwrap();
        let of_old = server.client(&token(admin, "ml", "default", Some(&old)).await);
        // From here on the API server knows the token.
        match says(&of_old, "10.0.0.1:9421").await {
            // It has not yet heard of the pod.
            Err(refused) if refused.contains("Unauthorized") => return None,
            said => said.unwrap(),
        }
        api(admin, asking).delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
        let made = create(admin, asking, false).await.unwrap();
        until("the peer is that of the new pod", || async {
            (get(admin, &peer("p")).await?["spec"]["podUID"] == json!(made.metadata.uid)).then_some(())
        })
        .await;
        let refused = says(&of_old, "10.0.0.66:9421").await.unwrap_err();
        (!refused.contains("Unauthorized")).then_some(refused)
    })
    .await;
    assert!(refused.contains("only the pod that this TensorPeer belongs to"), "{refused}");
    let status = get(admin, &peer("p")).await.unwrap()["status"].clone();
    assert!(!status.to_string().contains("10.0.0.66"), "{status}");
}

/// Says where `p` is.
async fn says(client: &Client, address: &str) -> Result<(), String> {
    let status = json!({"status": {"addresses": [address]}});
    let patch = Patch::Merge(&status);
    let written = api(client, &peer("p")).patch_status("p", &PatchParams::default(), &patch).await;
    written.map(drop).map_err(|error| error.to_string())
}
