//! The operator as a process with its own permissions and nothing more, called by a real API server.

use std::path::Path;

use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{
    api, apply, create, get, injects, install_definitions, installed, let_do, make_namespace, until,
};
use crate::server::{Server, free_port};

/// An address of the range of Services, which is also one of this machine.
pub(crate) const WEBHOOK_ADDRESS: &str = "127.53.0.10";

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn an_operator_with_its_own_permissions_injects_and_keeps_peers() {
    let mut server = Server::start().await;
    let admin = server.admin();
    crate::asked::before_anything_is_installed(&server);
    let port = free_port();
    let operator_token = install(&admin, &mut server, port, &[]).await;
    let asking = pod("p", &json!({"tensorlane.dev/inject": "enabled"}));
    injects(&admin, &asking).await;
    crate::tried::pods_that_are_tried_leave_no_peer_and_no_exchange(&admin).await;

    crate::renewal::the_next_authority_is_added_and_the_one_before_stays(&admin).await;
    a_pod_is_injected_and_its_peer_is_kept(&admin, &asking).await;
    only_the_pod_itself_writes_its_status(&server, &admin).await;
    crate::metrics::the_leader_counts_what_it_does(port).await;
    a_pod_that_comes_again_begins_anew(&admin, &asking).await;
    crate::namesake::the_token_of_a_pod_that_is_gone_writes_nothing_of_its_namesake(&server, &admin, &asking)
        .await;
    refusals_reach_their_owner(&admin).await;
    crate::tried::what_was_tried_has_no_event(&admin).await;
    crate::exchanges::an_exchange_that_cannot_be_had_says_so_until_it_is_corrected(&admin).await;
    crate::exchanges::an_exchange_with_members_takes_no_other_pod(&admin).await;
    crate::guard::a_weakened_policy_is_told_until_it_is_put_back(&admin, port).await;
    crate::gpus::a_namespace_with_gpu_pods_gets_an_entry(&admin, port).await;
    crate::renewal::the_authority_before_is_dropped(&admin).await;
    crate::renewal::a_configuration_that_others_put_back_is_mended(&admin).await;
    crate::renewal::a_chart_that_named_the_path_leaves_it_to_the_operator(&admin).await;
    crate::renewal::the_path_is_that_of_the_secret_and_is_made_again(&admin).await;
    // Whoever asks below does so in the operator's name.
    crate::permissions::no_more_is_granted_than_is_used(&server);
    crate::asked::while_an_operator_runs(&server, &admin, &operator_token).await;
    // Last: whatever has lost its owners goes.
    crate::orphans::pods_keep_their_permission_without_an_exchange_and_take_it_with_them(&mut server, &admin)
        .await;
    let log = server.log("operator.log");
    assert!(!log.to_lowercase().contains("forbidden"), "a permission is missing:\n{log}");
    let path = crate::renewal::announced(&admin).await.unwrap();
    assert!(
        !log.contains(path.as_str().rsplit('/').next().unwrap()),
        "the secret part of the path is in the log"
    );
}

/// Starts an operator with these arguments besides; gives its token.
pub(crate) async fn install(admin: &Client, server: &mut Server, admin_port: u16, more: &[String]) -> String {
    let (own, port) = prepare(admin).await;
    start(server, "operator", &own, (port, admin_port), more);
    own
}

/// Makes everything that an operator needs; gives its token, and the port at which its webhook is called.
pub(crate) async fn prepare(admin: &Client) -> (String, u16) {
    install_definitions(admin).await;
    let port = free_port();
    let kinds = [
        "Namespace",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "Service",
        "MutatingWebhookConfiguration",
    ];
    for mut object in installed(&kinds) {
        if object["kind"] == "Service" {
            object["spec"]["clusterIP"] = json!(WEBHOOK_ADDRESS);
            object["spec"]["ports"][0]["port"] = json!(port);
        }
        for entry in object.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
            entry["clientConfig"]["service"]["port"] = json!(port);
        }
        apply(admin, &object).await.unwrap_or_else(|error| panic!("{}: {error}", object["metadata"]["name"]));
    }
    make_namespace(admin, "ml", &json!({})).await;
    for (what, namespace) in [
        (("tensorlane.dev", "tensorexchanges", "list"), None),
        (("coordination.k8s.io", "leases", "create"), Some("tensorlane-system")),
    ] {
        let_do(admin, "tensorlane-system", what, namespace).await;
    }
    (token(admin, "tensorlane-system", "tensorlane-operator", None).await, port)
}

/// Starts a replica with this token, these ports of its webhook and of its probes, and its name before `.log`; gives the number of
/// its process.
pub(crate) fn start(
    server: &mut Server,
    name: &str,
    token: &str,
    (webhook, admin): (u16, u16),
    more: &[String],
) -> u32 {
    server.write_kubeconfig(token);
    start_as_configured(server, name, (webhook, admin), more)
}

/// Starts a replica with the kubeconfig that is there.
pub(crate) fn start_as_configured(
    server: &mut Server,
    name: &str,
    (webhook, admin): (u16, u16),
    more: &[String],
) -> u32 {
    let arguments = [
        format!("--pod-name={name}"),
        "--namespace=tensorlane-system".to_owned(),
        "--sidecar-image=example.org/sidecar".to_owned(),
        format!("--webhook-listen={WEBHOOK_ADDRESS}:{webhook}"),
        format!("--admin-listen=127.0.0.1:{admin}"),
    ];
    let program = Path::new(env!("CARGO_BIN_EXE_tensorlane-operator"));
    server.spawn(program, &[&arguments[..], more].concat(), &format!("{name}.log"))
}

/// A token of an account, for this pod alone where one is given.
pub(crate) async fn token(admin: &Client, namespace: &str, account: &str, pod: Option<&Value>) -> String {
    let bound = pod.map(|pod| {
        json!({"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]})
    });
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": ["https://kubernetes.default.svc"], "boundObjectRef": bound},
    });
    let request =
        http::Request::post(format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&body).unwrap())
            .unwrap();
    let made: Value = admin.request(request).await.unwrap();
    made["status"]["token"].as_str().unwrap().to_owned()
}

pub(crate) fn pod(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "example.org/main"}]},
    })
}

pub(crate) fn peer(name: &str) -> Value {
    json!({"apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": name, "namespace": "ml"}})
}

pub(crate) fn exchange() -> Value {
    json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"name": "default", "namespace": "ml"},
    })
}

async fn a_pod_is_injected_and_its_peer_is_kept(admin: &Client, asking: &Value) {
    // All pods so far were dry runs, of which nothing stays.
    for object in [peer("p"), exchange()] {
        assert_eq!(get(admin, &object).await, None);
    }
    let made = serde_json::to_value(create(admin, asking, false).await.unwrap()).unwrap();
    assert_eq!(made["spec"]["initContainers"][0]["name"], "tensorlane");
    assert_eq!(made["metadata"]["labels"]["tensorlane.dev/exchange"], "default");
    let found = until("the peer is made", || async { get(admin, &peer("p")).await }).await;
    assert_eq!(
        found["spec"],
        json!({"exchange": "default", "podUID": made["metadata"]["uid"], "node": "n1", "podIPs": []})
    );
    assert_eq!(found["metadata"]["ownerReferences"][0]["uid"], made["metadata"]["uid"]);
    let has_ips = json!({"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
    let pods = api(admin, asking);
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&has_ips)).await.unwrap();
    until("the peer has the addresses of its pod", || async {
        (get(admin, &peer("p")).await?["spec"]["podIPs"] == json!(["10.0.0.1", "fd00::1"])).then_some(())
    })
    .await;
    belongs_to(admin, &["default"]).await;
    until("the exchange counts it", || async {
        (get(admin, &exchange()).await?["status"]["peers"] == 1).then_some(())
    })
    .await;
}

/// Waits until the permission of the namespace's peers belongs to these exchanges and to nobody else.
pub(crate) async fn belongs_to(admin: &Client, exchanges: &[&str]) {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tensorlane-peer", "namespace": "ml"},
    });
    until(&format!("the permission belongs to {exchanges:?}"), || async {
        let mut owners = Vec::new();
        for owner in get(admin, &binding).await?["metadata"]["ownerReferences"].as_array()? {
            let mut object = exchange();
            object["metadata"]["name"] = owner["name"].clone();
            assert_eq!(owner["uid"], get(admin, &object).await?["metadata"]["uid"]);
            owners.push(owner["name"].as_str()?.to_owned());
        }
        owners.sort();
        (owners == exchanges).then_some(())
    })
    .await;
}

async fn only_the_pod_itself_writes_its_status(server: &Server, admin: &Client) {
    let other = create(admin, &pod("q", &json!({"tensorlane.dev/inject": "enabled"})), false).await.unwrap();
    until("the other peer is made", || async { get(admin, &peer("q")).await }).await;
    let own =
        get(admin, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ml"}}))
            .await;
    let pod_of_p = server.client(&token(admin, "ml", "default", own.as_ref()).await);
    let pod_of_q =
        server.client(&token(admin, "ml", "default", Some(&serde_json::to_value(other).unwrap())).await);
    let of_nobody = server.client(&token(admin, "ml", "default", None).await);
    let published = json!({"status": {
        "incarnation": "0".repeat(32), "fingerprints": [format!("sha256:{}", "0".repeat(64))],
        "addresses": ["10.0.0.1:9421"],
    }});
    let write = async |client: &Client| {
        let patch = Patch::Merge(&published);
        api(client, &peer("p"))
            .patch_status("p", &PatchParams::default(), &patch)
            .await
            .map_err(|e| e.to_string())
    };
    // From then on it is the policy that refuses the others.
    until("the role binding is seen", || async { write(&pod_of_p).await.ok() }).await;
    for (who, client) in [("another pod", &pod_of_q), ("no pod", &of_nobody)] {
        let refused = write(client).await.unwrap_err();
        assert!(refused.contains("only the pod that this TensorPeer belongs to"), "{who}: {refused}");
    }
    api(&pod_of_p, &peer("p")).list(&Default::default()).await.unwrap();
    // The API server takes a time that nobody can read; everything below goes on with it in the list.
    let odd = json!({"status": {"conditions": [
        {"type": "Odd", "status": "True", "reason": "Odd", "message": "", "lastTransitionTime": "2026-01-01T00:00:00ZTx"},
    ]}});
    api(&pod_of_p, &peer("p")).patch_status("p", &PatchParams::default(), &Patch::Merge(&odd)).await.unwrap();
    crate::rights::a_pod_may_do_nothing_more(&pod_of_p).await;
    let ready = json!({"status": {"initContainerStatuses": [
        {"name": "tensorlane", "ready": true, "restartCount": 0, "image": "x", "imageID": "x"},
    ]}});
    let pods = api(admin, &pod("p", &json!({})));
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(&ready)).await.unwrap();
    until("the peer is ready, and what it has said is still there", || async {
        let status = get(admin, &peer("p")).await?["status"].clone();
        let ready = status["conditions"]
            .as_array()?
            .iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True");
        (ready && status["addresses"][0] == "10.0.0.1:9421").then_some(())
    })
    .await;
}

async fn a_pod_that_comes_again_begins_anew(admin: &Client, asking: &Value) {
    let old = get(admin, &peer("p")).await.unwrap();
    api(admin, asking).delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    let made = create(admin, asking, false).await.unwrap();
    let status = until("the peer is that of the new pod, and has said nothing", || async {
        let now = get(admin, &peer("p")).await?;
        let is_new = now["spec"]["podUID"] == json!(made.metadata.uid) && now["spec"] != old["spec"];
        (is_new && now["status"]["incarnation"].is_null()).then(|| now["status"].clone())
    })
    .await;
    assert!(status["addresses"].is_null() && status["fingerprints"].is_null(), "{status}");
}

async fn refusals_reach_their_owner(admin: &Client) {
    let mut wrong =
        pod("wrong", &json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "2GB"}));
    let owner =
        json!({"apiVersion": "batch/v1", "kind": "Job", "name": "import", "uid": "u-1", "controller": true});
    wrong["metadata"]["ownerReferences"] = json!([owner]);
    let refused = create(admin, &wrong, false).await.unwrap_err();
    assert!(refused.contains("such as 2Gi"), "{refused}");
    event_of(admin, "InjectionDenied", "Job", "import", |_| true).await;
    let refused = create(admin, &wrong, false).await.unwrap_err();
    assert!(refused.contains("such as 2Gi"), "{refused}");
    event_of(admin, "InjectionDenied", "Job", "import", |event| event["series"].is_object()).await;
    the_owner_of_an_owner_is_told(admin, &wrong).await;
}

/// People look at Deployments and CronJobs, not at what stands between them and their pods.
async fn the_owner_of_an_owner_is_told(admin: &Client, wrong: &Value) {
    let labels = json!({"a": "b"});
    let template = |more: Value| {
        let mut spec = wrong["spec"].clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"metadata": {"labels": labels}, "spec": spec})
    };
    let set = json!({"selector": {"matchLabels": labels}, "template": template(json!({}))});
    let job = json!({"template": template(json!({"restartPolicy": "Never"}))});
    for (group, above, between, spec) in
        [("apps/v1", "Deployment", "ReplicaSet", set), ("batch/v1", "CronJob", "Job", job)]
    {
        let owner =
            json!({"apiVersion": group, "kind": above, "name": "web", "uid": "u-2", "controller": true});
        let middle = json!({
            "apiVersion": group, "kind": between,
            "metadata": {"name": "web-1", "namespace": "ml", "ownerReferences": [owner]},
            "spec": spec,
        });
        let middle = serde_json::to_value(create(admin, &middle, false).await.unwrap()).unwrap();
        let mut pod = wrong.clone();
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": group, "kind": between, "name": "web-1", "uid": middle["metadata"]["uid"], "controller": true,
        }]);
        create(admin, &pod, false).await.unwrap_err();
        event_of(admin, "InjectionDenied", above, "web", |_| true).await;
    }
}

/// Waits for an Event about this owner's pods.
pub(crate) async fn event_of(
    admin: &Client,
    reason: &str,
    kind: &str,
    name: &str,
    is_it: impl Fn(&Value) -> bool,
) {
    let events = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "ml"}});
    until("the owner has an Event", || async {
        let all = api(admin, &events).list(&Default::default()).await.unwrap();
        let is_it = |event: &Value| {
            event["reason"] == reason
                && event["regarding"]["kind"] == kind
                && event["regarding"]["name"] == name
                && is_it(event)
        };
        all.items.iter().any(|event| is_it(&event.data)).then_some(())
    })
    .await;
}
