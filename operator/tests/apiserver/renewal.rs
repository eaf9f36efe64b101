//! The webhook's authorities grow old: the operator adds the next one, and later drops the one before.

use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tensorlane_operator::certs::rotation::{AUTHORITY_LIFE_SECONDS, SIGN_AFTER_SECONDS};
use tensorlane_operator::certs::{
    Authority, LEAF_LIFE_SECONDS, PATHS_KEY, SECRET_KEY, SecretPath, SecretPaths, now,
};
use tensorlane_operator::manifests::WEBHOOKS;
use tensorlane_operator::reconcile::GPU_MANAGER;

use crate::objects::{api, create, get, installed, until};
use crate::running::pod;

/// The age at which the next one is made.
const RENEWED_SECONDS: u64 = AUTHORITY_LIFE_SECONDS / 3 * 2;

/// The age of a signer at which nothing that others have signed is in use any more, and a minute.
const SETTLED_SECONDS: u64 = LEAF_LIFE_SECONDS + 2 * SIGN_AFTER_SECONDS + 60;

/// Time in which a configuration is mended that is looked at every 10 s, on a machine with much else to do.
const MENDED: Duration = Duration::from_secs(90);

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
/// is told, and soon the operator's own is again, with its path.
pub(crate) async fn a_configuration_that_others_put_back_is_mended(admin: &Client) {
    let all = authorities(admin).await;
    let configuration = installed(&["MutatingWebhookConfiguration"]).remove(0);
    let mut emptied = get(admin, &configuration).await.unwrap();
    for entry in emptied["webhooks"].as_array_mut().unwrap() {
        entry["clientConfig"].as_object_mut().unwrap().remove("caBundle");
        entry["clientConfig"]["service"].as_object_mut().unwrap().remove("path");
    }
    let name = emptied["metadata"]["name"].as_str().unwrap().to_owned();
    let patch = Patch::Merge(json!({"webhooks": emptied["webhooks"]}));
    let patched = api(admin, &configuration).patch(&name, &PatchParams::default(), &patch).await.unwrap();
    let put_back = Instant::now();
    let client = &patched.data["webhooks"][0]["clientConfig"];
    assert!(client["caBundle"].is_null() && client["service"]["path"].is_null(), "{:?}", patched.data);
    bundle_is(admin, &all).await;
    path_is_the_operators(admin).await;
    let took = put_back.elapsed();
    assert!(took < MENDED, "it was mended after {took:?}");
    until("it injects again", || async { create(admin, &trial(), true).await.ok() }).await;
}

/// Charts before this one named the path `/mutate`. What helm applies next names none: with that the path is gone,
/// unless the operator has its own there already.
pub(crate) async fn a_chart_that_named_the_path_leaves_it_to_the_operator(admin: &Client) {
    let configuration = installed(&["MutatingWebhookConfiguration"]).remove(0);
    let live = get(admin, &configuration).await.unwrap();
    let port = live["webhooks"][0]["clientConfig"]["service"]["port"].clone();
    let applied = |path: Option<&str>| {
        let mut chart = configuration.clone();
        for entry in chart["webhooks"].as_array_mut().unwrap() {
            entry["clientConfig"]["service"]["port"] = port.clone();
            if let Some(path) = path {
                entry["clientConfig"]["service"]["path"] = json!(path);
            }
        }
        chart
    };
    let before = calls(admin).await;
    crate::objects::apply(admin, &applied(None)).await.unwrap();
    assert_eq!(calls(admin).await, before, "an upgrade takes nothing of the operator's away");
    // By force, as a rollback needs.
    crate::objects::apply(admin, &applied(Some("/mutate"))).await.unwrap();
    path_is_the_operators(admin).await;
    crate::objects::apply(admin, &applied(None)).await.unwrap();
    assert_eq!(calls(admin).await, before, "it is the operator's again");
    until("it injects", || async { create(admin, &trial(), true).await.ok() }).await;
}

/// The path has a secret part, is that of the Secret, and whoever deletes the secret part gets another one.
pub(crate) async fn the_path_is_that_of_the_secret_and_is_made_again(admin: &Client) {
    path_is_the_operators(admin).await;
    let before = announced(admin).await.unwrap();
    let patch = Patch::Merge(json!({"data": {PATHS_KEY: null}}));
    let about = secret(&[]);
    api(admin, &about).patch("tensorlane-webhook-ca", &PatchParams::default(), &patch).await.unwrap();
    until("there is another path", || async { announced(admin).await.filter(|path| *path != before) }).await;
    path_is_the_operators(admin).await;
    until("it injects", || async { create(admin, &trial(), true).await.ok() }).await;
}

/// Paths that the entries of the installation call.
pub(crate) async fn calls(admin: &Client) -> Vec<Value> {
    let configuration = get(admin, &installed(&["MutatingWebhookConfiguration"]).remove(0)).await.unwrap();
    let entries = configuration["webhooks"].as_array().unwrap().clone();
    let ours = entries.iter().filter(|entry| WEBHOOKS.iter().any(|name| entry["name"] == *name));
    ours.map(|entry| entry["clientConfig"]["service"]["path"].clone()).collect()
}

/// Path that the Secret says is to be called.
pub(crate) async fn announced(admin: &Client) -> Option<SecretPath> {
    let secret = get(admin, &secret(&[])).await?;
    // While the key is away its bytes are none.
    let paths: k8s_openapi::ByteString = serde_json::from_value(secret["data"][PATHS_KEY].clone()).ok()?;
    SecretPaths::read(&paths.0).ok()?.announced(now())
}

/// Waits until every entry calls the path that the Secret says, and the operator alone owns that field.
pub(crate) async fn path_is_the_operators(admin: &Client) {
    until("every entry calls the secret path", || async {
        let wanted = json!(announced(admin).await?.as_str());
        let called = calls(admin).await;
        (called.len() == WEBHOOKS.len() && called.iter().all(|path| *path == wanted)).then_some(())
    })
    .await;
    let configuration = get(admin, &installed(&["MutatingWebhookConfiguration"]).remove(0)).await.unwrap();
    let managers = configuration["metadata"]["managedFields"].as_array().unwrap();
    let of_path = managers.iter().filter(|one| one["fieldsV1"].to_string().contains("f:path"));
    let owners: Vec<&Value> = of_path.map(|one| &one["manager"]).collect();
    assert!(
        !owners.is_empty()
            && owners.iter().all(|owner| *owner == "tensorlane-operator" || *owner == GPU_MANAGER),
        "{owners:?}"
    );
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
