//! An API server whose etcd was restored from a backup: its versions go back, and watches from later ones are silent.

use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tensorlane_operator::app::History;
use tensorlane_proto::identity::{Fingerprint, Incarnation};
use tensorlane_proto::negotiate::{Offer, Require, VersionRange};
use tensorlane_sidecar::directory::{Directory, PeerEntry, PublishedOffer};

use crate::directory::{follows, has, of_peer_a, prepare, publish};
use crate::objects::{api, apply, create, get, make_namespace, until_by};
use crate::running::{exchange, peer, pod, start, token};
use crate::server::{Server, free_port};

/// Writes that a backup lacks: more than the API server makes when it starts.
const LOST: u32 = 300;

/// Time from when a restored API server answers until all is as it was, as the page on Kubernetes says.
const HEALED: Duration = Duration::from_secs(120);

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
    write_what_is_lost(&admin, &peer("c"), "c").await;
    let mut history = History::default();
    assert!(!history.went_back(&admin).await && !history.went_back(&admin).await);
    assert_eq!(told(&admin).await.as_deref(), Some("0".repeat(31) + "7").as_deref());

    server.restore().await;
    let healed = Instant::now() + HEALED;
    assert!(history.went_back(&admin).await && !history.went_back(&admin).await);
    until_by(healed, "the peers are those of the backup", || async {
        has(&tables, &["a", "b"]).then_some(())
    })
    .await;
    until_by(healed, "this peer has told again who it is", || told(&admin)).await;
}

/// The pod is in the backup. What the operator has made for it since is not.
#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn what_an_operator_has_written_since_the_backup_is_written_again() {
    let mut server = Server::start().await;
    let admin = server.admin();
    make_namespace(&admin, "ml", &json!({})).await;
    // Before there is a webhook; an operator takes it for one that was injected.
    let mut injected = pod("p", &json!({}));
    injected["metadata"]["labels"] = json!({"tensorlane.dev/injected": "true"});
    create(&admin, &injected, false).await.unwrap();
    let (own, webhook) = crate::running::prepare(&admin).await;
    let mut wanted = exchange();
    wanted["spec"] = json!({});
    apply(&admin, &wanted).await.unwrap();
    server.back_up().await;

    start(&mut server, "operator", &own, (webhook, free_port()), &[]);
    let before = written(&admin, Instant::now() + HEALED).await;
    write_what_is_lost(&admin, &wanted, "default").await;
    server.restore().await;
    let again = written(&admin, Instant::now() + HEALED).await;
    assert_ne!(again, before, "the peer is in the backup, and nothing was lost");
}

/// Waits until an operator has made the peer of the pod, counts it, and says of both why they are not ready. Gives the peer's UID.
async fn written(admin: &Client, deadline: Instant) -> Value {
    let says = |object: &Value, reason: &str| {
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|one| one["type"] == "Ready" && one["reason"] == reason)
    };
    until_by(deadline, "counts and conditions are written", || async {
        let (exchange, peer) = (get(admin, &exchange()).await?, get(admin, &peer("p")).await?);
        let counts = (&exchange["status"]["peers"], &exchange["status"]["readyPeers"]);
        let is_so = counts == (&json!(1), &json!(0))
            && says(&exchange, "PeersNotReady")
            && says(&peer, "SidecarNotReady");
        is_so.then(|| peer["metadata"]["uid"].clone())
    })
    .await
}

/// Writes to an object of this name more often than the API server writes when it starts.
async fn write_what_is_lost(admin: &Client, object: &Value, name: &str) {
    for count in 0..LOST {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"count": count.to_string()}}}));
        api(admin, object).patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Reads what the peer `a` has said last.
async fn told(admin: &Client) -> Option<String> {
    let object = get(admin, &peer("a")).await?;
    object["status"]["incarnation"].as_str().map(str::to_owned)
}

fn offer() -> PublishedOffer {
    let entry = PeerEntry {
        name: "a".parse().unwrap(),
        addresses: vec!["10.0.0.9:9421".to_owned()],
        fingerprints: vec![Fingerprint([0xee; 32])],
        node: None,
        awaits_ip: false,
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
