//! Definitions and policies.

use kube::Client;
use serde_json::{Value, json};
use tensorlane_operator::manifests::{Installation, objects};

use crate::objects::{apply, create, install_definitions, make_namespace, until, warnings};
use crate::server::Server;

#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn the_api_server_takes_the_installation_and_refuses_what_is_wrong_with_a_sentence() {
    let server = Server::start().await;
    let admin = server.admin();
    install_definitions(&admin).await;
    for object in objects(&Installation::default()) {
        apply(&admin, &object)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", object["metadata"]["name"]));
    }
    make_namespace(&admin, "ml", &json!({})).await;
    crate::rules::every_rule_refuses_with_its_sentence(&server, &admin).await;
    a_pod_that_asks_is_refused_while_nobody_injects(&admin).await;
    templates_are_only_warned_of(&admin).await;
    crate::restricted::golden_pods_pass_pod_security(&admin).await;
    crate::foreign::other_operators_definitions_take_what_the_chart_makes_for_them(&admin).await;
}

/// An API server that does not know exchanges (at the first installation, or just started) must not hold up pods that do
/// not ask.
#[tokio::test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
async fn pods_that_do_not_ask_are_made_where_exchanges_are_not_known() {
    let server = Server::start().await;
    let admin = server.admin();
    make_namespace(&admin, "ml", &json!({})).await;
    for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
        for object in crate::objects::installed(&[kind]) {
            apply(&admin, &object).await.unwrap();
        }
    }
    let asking = pod(&json!({"tensorlane.dev/inject": "enabled"}));
    let refused = until("policies are known", || async { create(&admin, &asking, true).await.err() }).await;
    assert!(refused.contains("the webhook was not called"), "{refused}");
    create(&admin, &pod(&json!({})), true).await.unwrap();
    let mut gpu = pod(&json!({}));
    gpu["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
    create(&admin, &gpu, true).await.unwrap();
}

fn exchange(spec: &Value) -> Value {
    json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"name": "trial", "namespace": "ml"}, "spec": spec,
    })
}

fn pod(annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "example.org/main"}]},
    })
}

/// The webhook's configuration is there, and nobody answers: that pod is refused, others never wait.
async fn a_pod_that_asks_is_refused_while_nobody_injects(admin: &Client) {
    policies_are_known(admin).await;
    let asking = pod(&json!({"tensorlane.dev/inject": "enabled"}));
    let refused = until("the webhook is called", || async { create(admin, &asking, true).await.err() }).await;
    assert!(refused.contains("pods.tensorlane.dev"), "{refused}");
    pods_on_the_network_of_their_node_are_refused_without_a_call(admin).await;
    the_operators_own_pods_are_made_while_nobody_answers(admin).await;
    create(admin, &pod(&json!({})), true).await.unwrap();
    create(admin, &pod(&json!({"tensorlane.dev/inject": "disabled"})), true).await.unwrap();
    // Somebody removes the configuration: the policy holds.
    let configuration = crate::objects::installed(&["MutatingWebhookConfiguration"]).remove(0);
    crate::objects::api(admin, &configuration).delete("tensorlane", &Default::default()).await.unwrap();
    let refused = until("the webhook is called no more", || async {
        let refused = create(admin, &asking, true).await.expect_err("the policy refuses it");
        (!refused.contains("pods.tensorlane.dev")).then_some(refused)
    })
    .await;
    assert!(refused.contains("the webhook was not called"), "{refused}");
    damaged_sidecars_are_told_the_true_reason(admin).await;
    make_namespace(admin, "asks", &json!({"tensorlane.dev/inject": "enabled"})).await;
    let mut silent = pod(&json!({}));
    silent["metadata"]["namespace"] = json!("asks");
    let refused = create(admin, &silent, true).await.unwrap_err();
    assert!(refused.contains("the webhook was not called"), "{refused}");
    a_gpu_pod_is_refused_where_an_exchange_wants_it(admin).await;
}

/// Pods that a node may need to come up. By the label of their namespace some ask that nobody has thought of.
async fn pods_on_the_network_of_their_node_are_refused_without_a_call(admin: &Client) {
    let is_refused = async |pod: &Value| {
        let refused = create(admin, pod, true).await.unwrap_err();
        let told = "set hostNetwork: false, or tensorlane.dev/inject: disabled";
        assert!(refused.contains(told) && !refused.contains("failed calling webhook"), "{refused}");
    };
    let on_host = |annotations: &Value| {
        let mut pod = pod(annotations);
        pod["spec"]["hostNetwork"] = json!(true);
        pod
    };
    let mut asking = on_host(&json!({"tensorlane.dev/inject": "enabled"}));
    is_refused(&asking).await;
    asking["spec"]["initContainers"] =
        json!([{"name": "tensorlane", "image": "example.org/sidecar", "restartPolicy": "Always"}]);
    is_refused(&asking).await;
    create(admin, &on_host(&json!({})), true).await.unwrap();
    for (name, said) in [("labelled", "enabled"), ("misspelt", "yes")] {
        make_namespace(admin, name, &json!({"tensorlane.dev/inject": said})).await;
        let mut silent = on_host(&json!({}));
        silent["metadata"]["namespace"] = json!(name);
        is_refused(&silent).await;
    }
}

/// As after a loss of all nodes, in a namespace that somebody has labelled: an operator that waits for itself never comes.
async fn the_operators_own_pods_are_made_while_nobody_answers(admin: &Client) {
    let mut namespace = crate::objects::installed(&["Namespace"]).remove(0);
    namespace["metadata"]["labels"]["tensorlane.dev/inject"] = json!("enabled");
    apply(admin, &namespace).await.unwrap();
    let template = crate::objects::installed(&["Deployment"]).remove(0)["spec"]["template"].clone();
    let mut own = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    own["metadata"]["name"] = json!("operator");
    own["metadata"]["namespace"] = namespace["metadata"]["name"].clone();
    create(admin, &own, true).await.unwrap();
}

/// Pods as another webhook leaves them that took something of the sidecar away after ours.
async fn damaged_sidecars_are_told_the_true_reason(admin: &Client) {
    let asked = json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/status": "{}"});
    let mut damaged = pod(&asked);
    let refused = create(admin, &damaged, true).await.unwrap_err();
    assert!(refused.contains("another webhook took it out"), "{refused}");
    damaged["spec"]["initContainers"] = json!([{"name": "tensorlane", "image": "example.org/sidecar"}]);
    let refused = create(admin, &damaged, true).await.unwrap_err();
    assert!(refused.contains("has lost restartPolicy: Always"), "{refused}");
    // Without the annotation nobody can know that the webhook was ever called.
    damaged["metadata"]["annotations"].as_object_mut().unwrap().remove("tensorlane.dev/status");
    let refused = create(admin, &damaged, true).await.unwrap_err();
    assert!(
        !refused.contains("has lost") && refused.contains("because the webhook was not called"),
        "{refused}"
    );
    // With its probes it is no valid pod any more, which the API server says before any policy is asked.
    damaged["spec"]["initContainers"][0]["livenessProbe"] = json!({"tcpSocket": {"port": 9420}});
    let refused = create(admin, &damaged, true).await.unwrap_err();
    assert!(refused.contains("initContainers[0].livenessProbe"), "{refused}");
    damaged["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
    create(admin, &damaged, true).await.unwrap();
}

async fn a_gpu_pod_is_refused_where_an_exchange_wants_it(admin: &Client) {
    let mut gpu = pod(&json!({}));
    gpu["metadata"]["labels"] = json!({"team": "vision"});
    gpu["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
    create(admin, &gpu, true).await.unwrap();
    let selector = json!({"matchLabels": {"team": "vision"}, "matchExpressions": [{"key": "off", "operator": "DoesNotExist"}]});
    let wanting = exchange(&json!({"inject": {"gpuPods": true, "selector": selector}}));
    create(admin, &wanting, false).await.unwrap();
    let refused = until("the exchange is seen", || async { create(admin, &gpu, true).await.err() }).await;
    assert!(refused.contains("the webhook was not called"), "{refused}");
    let mut on_host = gpu.clone();
    on_host["spec"]["hostNetwork"] = json!(true);
    let refused = create(admin, &on_host, true).await.unwrap_err();
    assert!(refused.contains("set hostNetwork: false"), "{refused}");
    gpu["metadata"]["labels"] = json!({"team": "language"});
    create(admin, &gpu, true).await.unwrap();
}

/// Waits for the last one that was made: an API server looks for new ones once a second, and takes all that there are.
async fn policies_are_known(admin: &Client) {
    until("policies are known", || async {
        let told = warnings(admin, DEPLOYMENTS, &wrong_template()).await.ok()?;
        told.concat().contains("without effect").then_some(())
    })
    .await;
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/ml/deployments?dryRun=All";

fn wrong_template() -> Value {
    let annotations = json!({"tensorlane.dev/arena-sise": "2Gi", "tensorlane.dev/arena-size": "2GB"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "ml", "annotations": {"tensorlane.dev/inject": "enabled"}},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}, "annotations": annotations},
                "spec": {"containers": [{"name": "main", "image": "example.org/main"}]},
            },
        },
    })
}

/// Warnings are no refusals; the expressions run without a mistake, or nobody would be warned of anything.
async fn templates_are_only_warned_of(admin: &Client) {
    let deployment = wrong_template();
    create(admin, &deployment, true).await.unwrap();
    let text = warnings(admin, DEPLOYMENTS, &deployment).await.unwrap().concat();
    for part in [
        "stands on the object itself",
        "without effect: tensorlane.dev/arena-sise",
        "arena-size must be bytes",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
