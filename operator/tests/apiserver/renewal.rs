//! The webhook's authorities grow old: the operator adds the next one, and later drops the one before.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tensorlane_operator::certs::rotation::{AUTHORITY_LIFE_SECONDS, SIGN_AFTER_SECONDS};
use tensorlane_operator::certs::{Authority, LEAF_LIFE_SECONDS, SECRET_KEY, now};

use crate::objects::{api, create, get, installed, until};
use crate::running::pod;

/// The age at which the next one is made.
const RENEWED_SECONDS: u64 = AUTHORITY_LIFE_SECONDS / 3 * 2;

/// The age of a signer at which nothing that others have signed is in use any more, and a minute.
const SETTLED_SECONDS: u64 = LEAF_LIFE_SECONDS + 2 * SIGN_AFTER_SECONDS + 60;

/// As it is eight months later.
pub(crate) async fn the_next_authority_is_added_and_the_one_before_stays(admin: &Client) {
    let old = Authority::make(now() - RENEWED_SECONDS).unwrap();
    write(admin, std::slice::from_ref(&old)).await;
    let both = until("there are two authorities", || async {
        Some(authorities(admin).await).filter(|all| all.len() == 2)
    })
    .await;
    assert_eq!(both[0], old);
    let age = now() - both[1].made;
    assert!(age < SIGN_AFTER_SECONDS, "it is {age} s old, and signs");
    bundle_is(admin, &both).await;
    until("what is served is trusted", || async { create(admin, &trial(), true).await.ok() }).await;
}

/// As it is nine days later: the next one has signed for longer than what the old one had signed lasts.
pub(crate) async fn the_authority_before_is_dropped(admin: &Client) {
    let old = authorities(admin).await.remove(0);
    let next = Authority::make(now() - SETTLED_SECONDS).unwrap();
    write(admin, &[old, next.clone()]).await;
    until("the next one is alone", || async { (authorities(admin).await == [next.clone()]).then_some(()) })
        .await;
    bundle_is(admin, &[next]).await;
    until("what the next one has signed is served", || async { create(admin, &trial(), true).await.ok() })
        .await;
}

/// As where a controller of GitOps puts what the chart has into the place of what the operator has made of it: an authority that is none
/// is told, and soon the operator's own is again.
pub(crate) async fn a_configuration_that_others_put_back_is_mended(admin: &Client) {
    let all = authorities(admin).await;
    let configuration = installed(&["MutatingWebhookConfiguration"]).remove(0);
    let mut emptied = get(admin, &configuration).await.unwrap();
    for entry in emptied["webhooks"].as_array_mut().unwrap() {
        entry["clientConfig"].as_object_mut().unwrap().remove("caBundle");
    }
    let name = emptied["metadata"]["name"].as_str().unwrap().to_owned();
    let patch = Patch::Merge(json!({"webhooks": emptied["webhooks"]}));
    let patched = api(admin, &configuration).patch(&name, &PatchParams::default(), &patch).await.unwrap();
    assert!(patched.data["webhooks"][0]["clientConfig"]["caBundle"].is_null(), "{:?}", patched.data);
    bundle_is(admin, &all).await;
    until("it injects again", || async { create(admin, &trial(), true).await.ok() }).await;
}

/// Waits until callers of every entry trust these, and nobody else.
async fn bundle_is(admin: &Client, authorities: &[Authority]) {
    let certificates: String = authorities.iter().map(|authority| authority.certificate.as_str()).collect();
    let bundle = json!(k8s_openapi::ByteString(certificates.into_bytes()));
    let configuration = installed(&["MutatingWebhookConfiguration"]).remove(0);
    until("the bundle is that of the Secret", || async {
        let entries = get(admin, &configuration).await?["webhooks"].as_array()?.clone();
        entries.iter().all(|entry| entry["clientConfig"]["caBundle"] == bundle).then_some(())
    })
    .await;
}

fn trial() -> Value {
    pod("trial", &json!({"tensorlane.dev/inject": "enabled"}))
}

fn secret(authorities: &[Authority]) -> Value {
    let kept = json!({"authorities": authorities});
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "tensorlane-webhook-ca", "namespace": "tensorlane-system"},
        "data": {SECRET_KEY: k8s_openapi::ByteString(serde_json::to_vec(&kept).unwrap())},
    })
}

/// Writes what time would have brought about.
async fn write(admin: &Client, authorities: &[Authority]) {
    let secret = secret(authorities);
    let patch = Patch::Merge(&secret);
    api(admin, &secret).patch("tensorlane-webhook-ca", &PatchParams::default(), &patch).await.unwrap();
}

async fn authorities(admin: &Client) -> Vec<Authority> {
    let found = get(admin, &secret(&[])).await.unwrap();
    let bytes: k8s_openapi::ByteString = serde_json::from_value(found["data"][SECRET_KEY].clone()).unwrap();
    let kept: Value = serde_json::from_slice(&bytes.0).unwrap();
    serde_json::from_value(kept["authorities"].clone()).unwrap()
}
