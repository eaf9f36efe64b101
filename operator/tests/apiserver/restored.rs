//! An API server whose etcd was restored from a backup: its versions go back, and watches from later ones are silent.

use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tensorlane_operator::app::History;
use tensorlane_proto::identity::{Fingerprint, Incarnation};
use tensorlane_proto::negotiate::{Offer, Require, VersionRange};
use tensorlane_sidecar::directory::{Directory, PeerEntry, PublishedOffer};

use crate::directory::{follows, of_peer_a, prepare, publish};
use crate::objects::{api, create, get, until};
use crate::running::{peer, token};
use crate::server::Server;

/// Writes that a backup lacks: more than the API server makes when it starts.
const LOST: u32 = 300;

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn what_a_restored_api_server_has_lost_is_told_again_and_what_it_has_is_listed() {
    let mut server = Server::start().await;
    let admin = server.admin();
    prepare(&admin).await;
    let mut own = peer("a");
    own["spec"] = json!({"exchange": "default", "podUID": "uid-of-a"});
    create(&admin, &own, false).await.unwrap();
    publish(&admin, "b", 'b').await;
    // The token is of an account that is in the backup.
    let token = token(&admin, "ml", "trainer", None).await;
    server.back_up().await;

    let directory = of_peer_a(&server.kubeconfig(&token, "directory.kubeconfig")).await;
    let tables = directory.watch();
    directory.publish(offer());
    follows(&tables, &["a", "b"]).await;
    publish(&admin, "c", 'c').await;
    api(&admin, &peer("b")).delete("b", &DeleteParams::default()).await.unwrap();
    follows(&tables, &["a", "c"]).await;
    for count in 0..LOST {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"count": count.to_string()}}}));
        api(&admin, &peer("c")).patch("c", &PatchParams::default(), &patch).await.unwrap();
    }
    let mut history = History::default();
    assert!(!history.went_back(&admin).await && !history.went_back(&admin).await);
    assert_eq!(told(&admin).await.as_deref(), Some("0".repeat(31) + "7").as_deref());

    server.restore().await;
    assert!(history.went_back(&admin).await && !history.went_back(&admin).await);
    follows(&tables, &["a", "b"]).await;
    until("this peer has told again who it is", || told(&admin)).await;
}

/// Reads what the peer `a` has said last.
async fn told(admin: &kube::Client) -> Option<String> {
    let object = get(admin, &peer("a")).await?;
    object["status"]["incarnation"].as_str().map(str::to_owned)
}

fn offer() -> PublishedOffer {
    let entry = PeerEntry {
        name: "a".parse().unwrap(),
        addresses: vec!["10.0.0.9:9421".to_owned()],
        fingerprints: vec![Fingerprint([0xee; 32])],
        node: None,
    };
    let offer = Offer {
        peer: entry.name.clone(),
        incarnation: Incarnation(7),
        versions: VersionRange { min: 1, max: 1 },
        transports: Vec::new(),
        node: None,
        gpus: Vec::new(),
        require: Require::NONE,
    };
    PublishedOffer { entry, offer }
}
