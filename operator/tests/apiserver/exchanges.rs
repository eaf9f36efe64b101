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

/// Neither by its annotation, which the webhook refuses, nor by its labels alone, of which the leader makes nothing.
pub(crate) async fn an_exchange_with_members_takes_no_other_pod(admin: &Client) {
    let exchange = json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"name": "closed", "namespace": "ml"}, "spec": {"members": {"serviceAccounts": ["trainer"]}},
    });
    create(admin, &exchange, false).await.unwrap();
    let asks = json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/exchange": "closed"});
    let refused = create(admin, &pod("stranger", &asks), false).await.unwrap_err();
    for part in
        ["service account is \"default\"", "has only trainer", "use one of them as serviceAccountName"]
    {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    let mut labelled = pod("labelled", &json!({}));
    labelled["metadata"]["labels"] =
        json!({"tensorlane.dev/injected": "true", "tensorlane.dev/exchange": "closed"});
    create(admin, &labelled, false).await.unwrap();
    let mut member = pod("member", &asks);
    member["spec"]["serviceAccountName"] = json!("trainer");
    create(admin, &member, false).await.unwrap();
    // It was made after the other one, and is seen.
    until("the member has a peer", || async { get(admin, &crate::running::peer("member")).await }).await;
    assert_eq!(get(admin, &crate::running::peer("labelled")).await, None);
    until("the exchange counts its member alone", || async {
        (get(admin, &exchange).await?["status"]["peers"] == 1).then_some(())
    })
    .await;
    for made in [&labelled, &member] {
        let name = made["metadata"]["name"].as_str().unwrap();
        api(admin, made).delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    api(admin, &exchange).delete("closed", &DeleteParams::default()).await.unwrap();
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
