//! Pods whose exchange is deleted: they keep their permission, and take it with them.

use kube::Client;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::objects::{api, create, get, make_namespace, until};
use crate::running::pod;
use crate::server::Server;

pub(crate) async fn pods_keep_their_permission_without_an_exchange_and_take_it_with_them(
    server: &mut Server,
    admin: &Client,
) {
    make_namespace(admin, "alone", &json!({})).await;
    let exchange = json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"name": "plain", "namespace": "alone"}, "spec": {},
    });
    let exchange_uid = create(admin, &exchange, false).await.unwrap().metadata.uid;
    let mut member =
        pod("p", &json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/exchange": "plain"}));
    member["metadata"]["namespace"] = json!("alone");
    let pod_uid = create(admin, &member, false).await.unwrap().metadata.uid;
    owned_by(admin, "TensorExchange", &json!(exchange_uid)).await;
    api(admin, &exchange).delete("plain", &DeleteParams::default()).await.unwrap();
    owned_by(admin, "Pod", &json!(pod_uid)).await;
    api(admin, &member).delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    server.collect_garbage();
    until("the permission has gone with the last pod", || async {
        get(admin, &binding()).await.is_none().then_some(())
    })
    .await;
}

async fn owned_by(admin: &Client, kind: &str, uid: &Value) {
    until(&format!("the permission belongs to the {kind} alone"), || async {
        let owners = get(admin, &binding()).await?["metadata"]["ownerReferences"].as_array()?.clone();
        let is_it = |owner: &Value| owner["kind"] == kind && owner["uid"] == *uid;
        (owners.len() == 1 && owners.iter().all(is_it)).then_some(())
    })
    .await;
}

fn binding() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tensorlane-peer", "namespace": "alone"},
    })
}
