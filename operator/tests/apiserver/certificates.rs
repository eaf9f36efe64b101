//! The webhook with certificates that somebody else makes, as cert-manager does: the operator serves what is in its folder,
//! also once it is renewed, and leaves to others whom the API server trusts.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;

use k8s_openapi::ByteString;
use kube::Client;
use kube::api::{Patch, PatchParams};
use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd};
use serde_json::{Value, json};

use crate::metrics::shows;
use crate::objects::{api, create, get, injects, installed, until};
use crate::paused::signal;
use crate::renewal::{calls, path_is_the_operators};
use crate::running::{WEBHOOK_ADDRESS, install, pod, prepare, start};
use crate::server::{Server, free_port};

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn an_operator_serves_certificates_of_somebody_else_and_leaves_the_bundle_to_them() {
    let mut server = Server::start().await;
    let admin = server.admin();
    let folder = tempfile::tempdir().unwrap();
    let first = certificate(2040);
    mount(folder.path(), "first", &first);
    let port = free_port();
    install(&admin, &mut server, port, &[format!("--webhook-certificates={}", folder.path().display())])
        .await;
    let bundle = inject_bundle(&admin, &first).await;

    let asking = pod("p", &json!({"tensorlane.dev/inject": "enabled"}));
    injects(&admin, &asking).await;
    let made = serde_json::to_value(create(&admin, &asking, false).await.unwrap()).unwrap();
    assert_eq!(made["spec"]["initContainers"][0]["name"], "tensorlane");
    // It leads, and so would have written a bundle of its own by now.
    let peer = json!({"apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": "p", "namespace": "ml"}});
    until("the peer is made", || async { get(&admin, &peer).await }).await;
    path_is_the_operators(&admin).await;
    let entries = entries(&admin).await;
    assert!(entries.iter().all(|entry| entry["clientConfig"]["caBundle"] == bundle), "{entries:?}");
    // The year 2040.
    shows(port, "certificate_expiry_seconds", 2_208_988_800).await;

    // As cert-manager writes its bundle, which is no reason to touch the path.
    let called = calls(&admin).await;
    let second = certificate(2041);
    inject_bundle(&admin, &second).await;
    let asking = pod("trial", &json!({"tensorlane.dev/inject": "enabled"}));
    let refused = until("the bundle is seen", || async { create(&admin, &asking, true).await.err() }).await;
    assert!(refused.contains("certificate"), "{refused}");
    mount(folder.path(), "second", &second);
    until("the renewed certificate is served", || async { create(&admin, &asking, true).await.ok() }).await;
    // The year 2041.
    shows(port, "certificate_expiry_seconds", 2_240_611_200).await;
    assert_eq!(calls(&admin).await, called);
}

/// As `helm upgrade` with `certManager.enabled` false, and true again.
#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn certificates_of_somebody_else_are_given_up_and_taken_up_again() {
    let mut server = Server::start().await;
    let admin = server.admin();
    let folder = tempfile::tempdir().unwrap();
    let theirs = certificate(2040);
    mount(folder.path(), "first", &theirs);
    let (own, webhook) = prepare(&admin).await;
    let with = [format!("--webhook-certificates={}", folder.path().display())];
    let asking = pod("p", &json!({"tensorlane.dev/inject": "enabled"}));
    let bundles = async || {
        let entries = entries(&admin).await;
        entries.iter().map(|entry| entry["clientConfig"]["caBundle"].clone()).collect::<Vec<_>>()
    };

    let first = start(&mut server, "first", &own, (webhook, free_port()), &with);
    let bundle = inject_bundle(&admin, &theirs).await;
    injects(&admin, &asking).await;

    signal(first, "TERM");
    let second = replaced(&mut server, "second", &own, webhook, &[]).await;
    until("the bundle is the operator's own", || async {
        bundles().await.iter().all(|one| one.is_string() && *one != bundle).then_some(())
    })
    .await;
    injects(&admin, &asking).await;

    signal(second, "TERM");
    replaced(&mut server, "third", &own, webhook, &with).await;
    until("the operator has taken its own bundle away", || async {
        bundles().await.iter().all(Value::is_null).then_some(())
    })
    .await;
    inject_bundle(&admin, &theirs).await;
    injects(&admin, &asking).await;
    assert!(bundles().await.iter().all(|one| *one == bundle));
}

/// Starts a replica at the port of one that was told to end, once that port is free.
async fn replaced(server: &mut Server, name: &str, token: &str, webhook: u16, more: &[String]) -> u32 {
    until("the replica before has ended", || async {
        TcpListener::bind((WEBHOOK_ADDRESS, webhook)).ok().map(drop)
    })
    .await;
    start(server, name, token, (webhook, free_port()), more)
}

/// A certificate of the webhook until the first day of this year.
fn certificate(until: i32) -> CertifiedKey<KeyPair> {
    let name = "tensorlane-webhook.tensorlane-system.svc".to_owned();
    let mut params = CertificateParams::new(vec![name]).unwrap();
    params.not_after = date_time_ymd(until, 1, 1);
    let signing_key = KeyPair::generate().unwrap();
    CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
}

/// As a kubelet mounts a Secret: what is new is in a folder beside, and one link turns to it.
fn mount(folder: &Path, version: &str, certificate: &CertifiedKey<KeyPair>) {
    let new = folder.join(version);
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("tls.crt"), certificate.cert.pem()).unwrap();
    std::fs::write(new.join("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
    symlink(version, folder.join("..next")).unwrap();
    std::fs::rename(folder.join("..next"), folder.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        if !folder.join(file).exists() {
            symlink(Path::new("..data").join(file), folder.join(file)).unwrap();
        }
    }
}

/// As cert-manager's cainjector: the same bundle for every entry, which comes back.
async fn inject_bundle(admin: &Client, certificate: &CertifiedKey<KeyPair>) -> Value {
    let bundle = json!(ByteString(certificate.cert.pem().into_bytes()));
    let add = |index: usize| json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle});
    let changes: Vec<Value> = (0..entries(admin).await.len()).map(add).collect();
    let patch: json_patch::Patch = serde_json::from_value(json!(changes)).unwrap();
    let configuration = installed(&["MutatingWebhookConfiguration"]).remove(0);
    let patch = Patch::Json::<()>(patch);
    api(admin, &configuration).patch("tensorlane", &PatchParams::default(), &patch).await.unwrap();
    bundle
}

async fn entries(admin: &Client) -> Vec<Value> {
    let configuration = get(admin, &installed(&["MutatingWebhookConfiguration"]).remove(0)).await.unwrap();
    configuration["webhooks"].as_array().unwrap().clone()
}
