//! The directory of a sidecar against an API server that forgets what was: after an outage its version is compacted away
//! (410), and the only way on is to list.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tensorlane_sidecar::directory::kubernetes::connect;
use tensorlane_sidecar::directory::{Directory, KubernetesDirectory, KubernetesSettings, PeerTable};
use tensorlane_sidecar::metrics::Metrics;
use tokio::sync::watch;

use crate::objects::{api, apply, create, install_definitions, installed, let_do, make_namespace, until};
use crate::permissions::requests;
use crate::proxy::Proxy;
use crate::running::{peer, token};
use crate::server::Server;

/// Options by which what is changed is forgotten after one to two times this, and not between a list and the watch that
/// follows it. Nothing is answered from memory, which would know longer.
const FORGETFUL: [&str; 2] = ["--etcd-compaction-interval=4s", "--watch-cache=false"];

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn a_compacted_watch_and_an_empty_list_leave_no_hole_in_the_table() {
    let server = Server::start_with(&FORGETFUL).await;
    let admin = server.admin();
    prepare(&admin).await;
    for (name, key) in [("a", 'a'), ("b", 'b'), ("c", 'c')] {
        publish(&admin, name, key).await;
    }
    let proxy = Proxy::start(server.address()).await;
    let directory = start(&server, &admin, &proxy).await;
    let tables = directory.watch();
    follows(&tables, &["a", "b", "c"]).await;
    asked(&server, &["list", "watch"]).await;
    a_forged_address_stands_in_the_status_and_in_nobodys_table(&admin, &tables).await;
    let everything_seen = remember(directory.watch());

    proxy.close();
    let version = version(&admin).await;
    api(&admin, &peer("b")).delete("b", &DeleteParams::default()).await.unwrap();
    publish(&admin, "d", 'd').await;
    forgotten(&admin, &version).await;
    assert_eq!(names(&tables.borrow()), names_of(&["a", "b", "c"]), "what is known stays");
    proxy.open();
    follows(&tables, &["a", "c", "d"]).await;
    // The watch goes on where it was, is told that this is gone, and only then is there a list: one.
    asked(&server, &["list", "watch", "watch", "list", "watch"]).await;
    let seen = everything_seen.await.unwrap();
    assert!(seen.iter().all(|table| table.is_superset(&names_of(&["a", "c"]))), "{seen:?}");

    proxy.close();
    let version = self::version(&admin).await;
    for name in ["a", "c", "d"] {
        api(&admin, &peer(name)).delete(name, &DeleteParams::default()).await.unwrap();
    }
    forgotten(&admin, &version).await;
    assert_eq!(tables.borrow().len(), 3, "nobody has said yet that they are gone");
    proxy.open();
    follows(&tables, &[]).await;
    asked(&server, &["list", "watch", "watch", "list", "watch", "watch", "list", "watch"]).await;
    // And back again, by the watch that began at the empty list.
    publish(&admin, "e", 'e').await;
    follows(&tables, &["e"]).await;
}

/// Makes what an operator makes for the pods of a namespace.
pub(crate) async fn prepare(admin: &Client) {
    install_definitions(admin).await;
    make_namespace(admin, "ml", &json!({})).await;
    for role in installed(&["ClusterRole"]) {
        apply(admin, &role).await.unwrap();
    }
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tensorlane-peer", "namespace": "ml"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tensorlane-peer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:ml"}],
    });
    apply(admin, &binding).await.unwrap();
    let_do(admin, "ml", ("tensorlane.dev", "tensorpeers", "list"), Some("ml")).await;
}

/// A peer that has said who it is.
pub(crate) async fn publish(admin: &Client, name: &str, key: char) {
    publish_key(admin, name, &key.to_string().repeat(64)).await;
}

/// Publishes a peer with all digits of its key.
pub(crate) async fn publish_key(admin: &Client, name: &str, digits: &str) {
    let mut object = peer(name);
    object["spec"] = json!({"exchange": "default", "podUID": format!("uid-of-{name}")});
    create(admin, &object, false).await.unwrap();
    let fingerprint = format!("sha256:{digits}");
    let status = json!({"status": {"fingerprints": [fingerprint], "addresses": ["10.0.0.1:9421"]}});
    let patch = Patch::Merge(&status);
    api(admin, &object).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// The directory as a sidecar starts it, behind the proxy.
async fn start(server: &Server, admin: &Client, proxy: &Proxy) -> KubernetesDirectory {
    let token = token(admin, "ml", "trainer", None).await;
    let kubeconfig = server.kubeconfig(&token, "directory.kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let (direct, through) = (server.address().to_string(), proxy.address.to_string());
    assert!(text.contains(&direct), "{text}");
    std::fs::write(&kubeconfig, text.replace(&direct, &through)).unwrap();
    of_peer_a(&kubeconfig).await
}

/// The directory as a sidecar of the peer `a` starts it.
pub(crate) async fn of_peer_a(kubeconfig: &Path) -> KubernetesDirectory {
    counted(kubeconfig).await.0
}

/// Directory of the peer a, and what it counts.
pub(crate) async fn counted(kubeconfig: &Path) -> (KubernetesDirectory, Arc<Metrics>) {
    let (client, _) = connect(Some(kubeconfig)).await.unwrap();
    let settings = KubernetesSettings {
        namespace: "ml".to_owned(),
        exchange: "default".parse().unwrap(),
        peer: "a".parse().unwrap(),
        keep: None,
    };
    let metrics = Arc::new(Metrics::new(&prometheus::Registry::new()).unwrap());
    let directory = KubernetesDirectory::start(client, &settings, Arc::clone(&metrics), &Default::default());
    (directory, metrics)
}

/// Waits until the table has these peers, and no others.
pub(crate) async fn follows(tables: &watch::Receiver<Arc<PeerTable>>, expected: &[&str]) {
    until(&format!("the peers are {expected:?}"), || async { has(tables, expected).then_some(()) }).await;
}

/// Returns whether the table has these peers, and no others.
pub(crate) fn has(tables: &watch::Receiver<Arc<PeerTable>>, expected: &[&str]) -> bool {
    names(&tables.borrow()) == names_of(expected)
}

/// Every table until one has `d`.
fn remember(mut tables: watch::Receiver<Arc<PeerTable>>) -> tokio::task::JoinHandle<Vec<BTreeSet<String>>> {
    tokio::spawn(async move {
        let mut seen = Vec::new();
        while tables.changed().await.is_ok() {
            let now = names(&tables.borrow_and_update());
            let last = now.contains("d");
            seen.push(now);
            if last {
                break;
            }
        }
        seen
    })
}

fn names(table: &PeerTable) -> BTreeSet<String> {
    table.iter().map(|entry| entry.name.to_string()).collect()
}

fn names_of(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Waits until the directory has asked this, and nothing else.
async fn asked(server: &Server, expected: &[&str]) {
    let verbs = || {
        let mut known = BTreeSet::new();
        let lines = requests(server);
        // A watch is in the log when it begins and when it ends.
        let first = lines.into_iter().filter(|line| known.insert(line["auditID"].to_string()));
        first.map(|line| line["verb"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    until(&format!("it has asked {expected:?}"), || async {
        (verbs().len() >= expected.len()).then_some(())
    })
    .await;
    assert_eq!(verbs(), expected);
}

/// The version of all that there is now.
async fn version(admin: &Client) -> String {
    let all = api(admin, &peer("a")).list(&Default::default()).await.unwrap();
    all.metadata.resource_version.unwrap()
}

/// Waits until nobody can watch from this version on.
async fn forgotten(admin: &Client, version: &str) {
    let path = format!(
        "/apis/tensorlane.dev/v1alpha1/namespaces/ml/tensorpeers?watch=1&timeoutSeconds=1&resourceVersion={version}"
    );
    until("the version is compacted away", || async {
        let request = http::Request::get(&path).body(Vec::new()).unwrap();
        let told = match admin.request_text(request).await {
            Ok(text) => text.lines().any(|line| {
                serde_json::from_str::<Value>(line).is_ok_and(|event| event["object"]["code"] == 410)
            }),
            Err(kube::Error::Api(status)) => status.code == 410,
            Err(_) => false,
        };
        told.then_some(())
    })
    .await;
}

/// Addresses that a pod says of itself are taken where the operator has written the same of the pod. Before, everybody dialed them.
async fn a_forged_address_stands_in_the_status_and_in_nobodys_table(
    admin: &Client,
    tables: &watch::Receiver<Arc<PeerTable>>,
) {
    let liar = peer("liar");
    let mut object = liar.clone();
    object["spec"] =
        json!({"exchange": "default", "podUID": "uid-of-liar", "podIPs": ["10.0.0.7", "fd00::7"]});
    create(admin, &object, false).await.unwrap();
    let addresses = ["10.96.0.1:443", "[fd00::7]:9421", "10.0.0.7:9421"];
    let fingerprint = format!("sha256:{}", "9".repeat(64));
    let status = json!({"status": {"fingerprints": [fingerprint], "addresses": addresses}});
    api(admin, &liar).patch_status("liar", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    let taken = || {
        let table = tables.borrow().clone();
        table.iter().find(|entry| entry.name.as_str() == "liar").map(|entry| entry.addresses.clone())
    };
    until("the peer is dialed at its pod's own addresses alone", || async {
        (taken()? == addresses[1..]).then_some(())
    })
    .await;
    api(admin, &liar).delete("liar", &DeleteParams::default()).await.unwrap();
    until("it is gone", || async { taken().is_none().then_some(()) }).await;
}
