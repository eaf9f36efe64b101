//! The guard of peers while an operator runs: weakened, and put back.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::metrics::shows;
use crate::objects::{api, get, until};
use crate::running::exchange;

/// Content of policy and binding as an API server has them is compared, so what it adds by itself is no difference: before
/// this the exchange was accepted.
pub(crate) async fn a_weakened_policy_is_told_until_it_is_put_back(admin: &Client, port: u16) {
    says(admin, "Accepted").await;
    shows(port, "peers_guarded", 1).await;
    let changes = [
        ("ValidatingAdmissionPolicyBinding", "validationActions", json!(["Audit"]), json!(["Deny"])),
        ("ValidatingAdmissionPolicy", "failurePolicy", json!("Ignore"), json!("Fail")),
    ];
    for (kind, field, weak, whole) in changes {
        set(admin, kind, field, &weak).await;
        let message = says(admin, "PolicyChanged").await;
        assert!(
            message.starts_with(&format!("{field} of {kind} tensorlane-peer-status is {weak}")),
            "{message}"
        );
        shows(port, "peers_guarded", 0).await;
        set(admin, kind, field, &whole).await;
        says(admin, "Accepted").await;
    }
}

async fn set(admin: &Client, kind: &str, field: &str, to: &Value) {
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "tensorlane-peer-status"},
    });
    let patch = Patch::Merge(json!({"spec": {field: to}}));
    api(admin, &object).patch("tensorlane-peer-status", &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the exchange says so; gives its sentence.
async fn says(admin: &Client, reason: &str) -> String {
    until(&format!("the exchange says {reason}"), || async {
        let found = get(admin, &exchange()).await?;
        let conditions = found["status"]["conditions"].as_array()?.clone();
        let accepted = conditions.into_iter().find(|condition| condition["type"] == "Accepted")?;
        (accepted["reason"] == reason).then(|| accepted["message"].as_str().unwrap_or_default().to_owned())
    })
    .await
}
