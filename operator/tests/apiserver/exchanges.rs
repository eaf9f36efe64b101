//! An exchange that insists on what this release cannot do, and one that does no more.

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{api, create, get, until};
use crate::running::{belongs_to, pod};

pub(crate) async fn an_exchange_that_cannot_be_had_says_so_until_it_is_corrected(admin: &Client) {
    let exchange = json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"name": "broker", "namespace": "ml"},
        "spec": {"gpu": {"mode": "broker"}, "transports": ["cuda_ipc"]},
    });
    create(admin, &exchange, false).await.unwrap();
    let message = accepted(admin, &exchange, "False", "Unsupported").await;
    for part in ["gpu.mode: broker", "say auto or none", "transports: [cuda_ipc]", "add shm, tcp"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    reported(admin, "Unsupported", "Warning", &message).await;
    let member =
        pod("of-broker", &json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/exchange": "broker"}));
    let refused = create(admin, &member, true).await.unwrap_err();
    for part in
        ["TensorExchange \"broker\" says transports: [cuda_ipc]", "gpu.mode: broker", "say auto or none"]
    {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    belongs_to(admin, &["broker", "default"]).await;
    let corrected = json!({"spec": {"gpu": null, "transports": null}});
    let patch = Patch::Merge(&corrected);
    api(admin, &exchange).patch("broker", &PatchParams::default(), &patch).await.unwrap();
    let message = accepted(admin, &exchange, "True", "Accepted").await;
    reported(admin, "Accepted", "Normal", &message).await;
    create(admin, &member, true).await.unwrap();
    api(admin, &exchange).delete("broker", &DeleteParams::default()).await.unwrap();
    belongs_to(admin, &["default"]).await;
}

/// The message of the condition, once it says this.
async fn accepted(admin: &Client, exchange: &Value, status: &str, reason: &str) -> String {
    until("the condition is there", || async {
        let conditions = get(admin, exchange).await?["status"]["conditions"].as_array()?.clone();
        let is_it =
            |one: &&Value| one["type"] == "Accepted" && one["status"] == status && one["reason"] == reason;
        Some(conditions.iter().find(is_it)?["message"].as_str()?.to_owned())
    })
    .await
}

async fn reported(admin: &Client, reason: &str, kind: &str, message: &str) {
    let events = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "ml"}});
    until("the exchange has an Event", || async {
        let all = api(admin, &events).list(&Default::default()).await.unwrap();
        let is_it = |event: &Value| {
            event["regarding"]["kind"] == "TensorExchange"
                && event["regarding"]["name"] == "broker"
                && event["reason"] == reason
                && event["type"] == kind
                && event["note"] == message
        };
        all.items.iter().any(|event| is_it(&event.data)).then_some(())
    })
    .await;
}
