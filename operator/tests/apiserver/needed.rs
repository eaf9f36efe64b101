//! Tests of what the operator may do and is never seen to do, because the API server asks for it by itself; and what it
//! has to know of a namespace. Each is taken away for a while: what needs it is refused, and is done once it is there
//! again.

use kube::Client;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::metrics::injections;
use crate::objects::{api, apply, create, get, injects, installed, make_namespace, until};
use crate::permissions::{Permission, UNSEEN, own, requests};
use crate::running::{belongs_to, exchange, install, peer, pod};
use crate::server::{ADMIN, Server, free_port};

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn what_is_granted_and_never_seen_in_use_is_needed_all_the_same() {
    let mut server = Server::start().await;
    let admin = server.admin();
    let port = free_port();
    let token = install(&admin, &mut server, port, &[]).await;
    let around = Around { operator: server.client(&token), admin: &admin, server: &server };
    let asking = pod("p", &json!({"tensorlane.dev/inject": "enabled"}));
    injects(&admin, &asking).await;
    create(&admin, &asking, false).await.unwrap();
    until("the peer is made", || async { get(&admin, &peer("p")).await }).await;
    belongs_to(&admin, &["default"]).await;

    let tried = [
        around.a_permission_is_given().await,
        around.a_permission_gets_an_owner().await,
        around.a_peer_gets_another_owner(&asking).await,
    ];
    assert_eq!(tried.to_vec(), UNSEEN.map(|(group, resource, verb)| own(group, resource, verb)));
    around.a_pod_waits_where_its_namespace_cannot_be_read(port).await;
}

struct Around<'a> {
    operator: Client,
    admin: &'a Client,
    server: &'a Server,
}

impl Around<'_> {
    async fn a_permission_is_given(&self) -> Permission {
        let permission = own("rbac.authorization.k8s.io", "clusterroles", "bind");
        make_namespace(self.admin, "next", &json!({})).await;
        let mut wanting = exchange();
        wanting["metadata"]["namespace"] = json!("next");
        wanting["spec"] = json!({});
        self.without(&permission).await;
        create(self.admin, &wanting, false).await.unwrap();
        self.is_refused("rolebindings", "next", "attempting to grant RBAC permissions").await;
        self.with_all(&permission).await;
        let given = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "tensorlane-peer", "namespace": "next"},
        });
        until("the permission is given", || async { get(self.admin, &given).await }).await;
        permission
    }

    async fn a_permission_gets_an_owner(&self) -> Permission {
        let permission = own("rbac.authorization.k8s.io", "rolebindings", "delete");
        let mut second = exchange();
        second["metadata"]["name"] = json!("second");
        second["spec"] = json!({});
        self.without(&permission).await;
        create(self.admin, &second, false).await.unwrap();
        self.is_refused("rolebindings", "ml", "cannot set an ownerRef on a resource you can't delete").await;
        self.with_all(&permission).await;
        belongs_to(self.admin, &["default", "second"]).await;
        permission
    }

    async fn a_peer_gets_another_owner(&self, asking: &Value) -> Permission {
        let permission = own("tensorlane.dev", "tensorpeers", "delete");
        self.without(&permission).await;
        api(self.admin, asking).delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
        let made = create(self.admin, asking, false).await.unwrap();
        self.is_refused("tensorpeers", "ml", "cannot set an ownerRef on a resource you can't delete").await;
        self.with_all(&permission).await;
        until("the peer is that of the new pod", || async {
            (get(self.admin, &peer("p")).await?["spec"]["podUID"] == json!(made.metadata.uid)).then_some(())
        })
        .await;
        permission
    }

    /// Controllers that make pods again and again get their pod once the namespace can be read.
    async fn a_pod_waits_where_its_namespace_cannot_be_read(&self, port: u16) {
        let permission = own("", "resourcequotas", "list");
        self.without(&permission).await;
        let asking = pod("waits", &json!({"tensorlane.dev/inject": "enabled"}));
        let before = injections(port, "no_facts");
        let made = serde_json::from_value(asking.clone()).unwrap();
        let once = self.server.client_that_tries_once(ADMIN);
        match api(&once, &asking).create(&Default::default(), &made).await {
            Err(kube::Error::Api(status)) => {
                assert_eq!(status.code, 503, "a code that says that it may be tried again: {status:?}");
                let why = "tensorlane: the quotas of namespace \"ml\" cannot be read: ";
                assert!(
                    status.message.contains(why) && status.message.ends_with("; try again"),
                    "{status:?}"
                );
            }
            other => panic!("it is not refused: {other:?}"),
        }
        assert_eq!(injections(port, "no_facts"), before + 1);
        self.with_all(&permission).await;
        let made = until("the pod is made", || async { create(self.admin, &asking, false).await.ok() }).await;
        assert_eq!(made.data["spec"]["initContainers"][0]["name"], "tensorlane");
    }

    /// Takes a permission away, and waits until the API server knows.
    async fn without(&self, permission: &Permission) {
        self.grants(Some(permission)).await;
        self.until_allowed_is(permission, false).await;
    }

    async fn with_all(&self, permission: &Permission) {
        self.grants(None).await;
        self.until_allowed_is(permission, true).await;
    }

    /// Gives the operator what it has of the installation, all of it or all but one.
    async fn grants(&self, but: Option<&Permission>) {
        let roles = installed(&["ClusterRole"]);
        let is_it = |role: &&Value| role["metadata"]["name"] == "tensorlane-operator";
        let mut role = roles.iter().find(is_it).unwrap().clone();
        if let Some(permission) = but {
            let rules = role["rules"].as_array().unwrap().iter();
            let fewer: Vec<Value> = rules.flat_map(|rule| all_but(rule, permission)).collect();
            role["rules"] = json!(fewer);
        }
        apply(self.admin, &role).await.unwrap();
    }

    async fn until_allowed_is(&self, (group, resource, verb): &Permission, expected: bool) {
        let asked = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {"name": ""},
            "spec": {"resourceAttributes": {
                "group": group, "resource": resource, "verb": verb, "name": "tensorlane-peer", "namespace": "ml",
            }},
        });
        until(&format!("{verb} of {resource} is allowed: {expected}"), || async {
            let answer = create(&self.operator, &asked, false).await.unwrap();
            (answer.data["status"]["allowed"] == expected).then_some(())
        })
        .await;
    }

    /// Waits until the API server has refused the operator something about these objects, with these words.
    async fn is_refused(&self, resource: &str, namespace: &str, words: &str) {
        until(&format!("the operator is refused: {words}"), || async {
            let refused = |line: &Value| {
                let (object, status) = (&line["objectRef"], &line["responseStatus"]);
                object["resource"] == resource
                    && object["namespace"] == namespace
                    && status["code"] == 403
                    && status["message"].as_str().is_some_and(|message| message.contains(words))
            };
            requests(self.server).iter().any(refused).then_some(())
        })
        .await;
    }
}

/// Rules that grant what a rule grants, without this permission.
fn all_but(rule: &Value, (group, resource, verb): &Permission) -> Vec<Value> {
    let listed = |key: &str, word: &str| rule[key].as_array().unwrap().iter().any(|one| one == word);
    if !(listed("apiGroups", group) && listed("resources", resource) && listed("verbs", verb)) {
        return vec![rule.clone()];
    }
    let (mut others, mut same) = (rule.clone(), rule.clone());
    others["resources"].as_array_mut().unwrap().retain(|one| one != resource);
    same["resources"] = json!([resource]);
    same["verbs"].as_array_mut().unwrap().retain(|one| one != verb);
    let is_empty = |rule: &Value| rule["resources"] == json!([]) || rule["verbs"] == json!([]);
    [others, same].into_iter().filter(|rule| !is_empty(rule)).collect()
}
