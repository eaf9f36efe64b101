//! People who may see or change pods in a namespace may do the same with exchanges: our roles become part of the usual
//! ones.

use std::collections::BTreeSet;

use kube::Client;
use serde_json::{Value, json};

use crate::objects::{apply, create, install_definitions, installed, make_namespace, until};
use crate::server::Server;

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn whoever_may_view_or_edit_pods_may_view_or_edit_exchanges_and_only_view_peers() {
    let mut server = Server::start().await;
    let admin = server.admin();
    install_definitions(&admin).await;
    for role in installed(&["ClusterRole"]) {
        apply(&admin, &role).await.unwrap();
    }
    make_namespace(&admin, "ml", &json!({})).await;
    for role in ["view", "edit", "admin"] {
        apply(&admin, &bound(role)).await.unwrap();
    }
    let before = allowed(&admin, "edit", "tensorexchanges").await;
    assert!(before.is_empty(), "nobody has joined the roles yet: {before:?}");
    server.aggregate_roles();

    let everything: BTreeSet<&str> = READ.into_iter().chain(WRITE).collect();
    for (who, exchanges) in [("view", &BTreeSet::from(READ)), ("edit", &everything), ("admin", &everything)] {
        until(&format!("{who} sees exchanges"), || async {
            allowed(&admin, who, "tensorexchanges").await.contains("watch").then_some(())
        })
        .await;
        until(&format!("{who} has all of it"), || async {
            (allowed(&admin, who, "tensorexchanges").await == *exchanges).then_some(())
        })
        .await;
        assert_eq!(allowed(&admin, who, "tensorpeers").await, READ.into(), "{who}: peers are the operator's");
        for part in ["tensorpeers/status", "tensorexchanges/status"] {
            assert_eq!(allowed(&admin, who, part).await, BTreeSet::new(), "{who}: {part}");
        }
    }
    assert_eq!(allowed(&admin, "nobody", "tensorexchanges").await, BTreeSet::new());
}

/// Somebody who is called as the role that they have in the namespace.
fn bound(role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": "ml"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role}],
    })
}

/// The verbs for which `kubectl auth can-i VERB RESOURCE --as WHO` says yes.
async fn allowed(admin: &Client, who: &str, resource: &str) -> BTreeSet<&'static str> {
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let mut all = BTreeSet::new();
    for verb in READ.into_iter().chain(WRITE) {
        let asked = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {"name": ""},
            "spec": {"user": who, "resourceAttributes": {
                "group": "tensorlane.dev", "resource": resource, "subresource": part, "verb": verb, "namespace": "ml",
            }},
        });
        if create(admin, &asked, false).await.unwrap().data["status"]["allowed"] == true {
            all.insert(verb);
        }
    }
    all
}
