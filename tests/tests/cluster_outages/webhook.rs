//! The webhook, without which no pod that asks is made: packets to it are lost, and the Secret of its authorities is deleted.
//! Needs `cargo xtask cluster up` and the images on the nodes.

use serde_json::{Value, json};
use tensorlane_operator::certs::{Authority, LEAF_LIFE_SECONDS, SECRET_KEY, now};
use tensorlane_tests::asked::{Answer, kubectl_tensorlane};
use tensorlane_tests::cluster::{Namespace, cluster, eventually, succeeds};
use tensorlane_tests::http::metric;
use tensorlane_tests::installed::{Exchange, SYSTEM, await_operator, condition, install};
use tensorlane_tests::kubernetes::{kubectl_with, metrics, pods, try_create};
use tensorlane_tests::outage::LostPackets;
use tensorlane_tests::pod::SIDECAR;

use super::outages::gated;
use super::rolling::{REPLICAS, SECRET, await_bundle, await_signer, pod};

/// Port of the webhook.
const PORT: u16 = 9443;

/// A firewall between the API server and the operator, which is well by itself. Whoever the webhook is called for is refused, so
/// pods that are made have not waited for it.
#[test]
fn packets_to_the_webhook_that_are_lost_refuse_pods_that_ask_with_the_way_out_and_hold_up_no_others() {
    let exchange = Exchange::new();
    await_operator();
    let lost = LostPackets::to(SYSTEM, &pods(SYSTEM, REPLICAS), "operator", PORT);
    let words = ["--namespace", exchange.name(), "create", "--dry-run=server", "--filename=-"];
    let told = kubectl_with(&words, &pod(0).to_string());
    let unreached = "failed calling webhook \"pods.tensorlane.dev\"";
    assert!(told.refusal().contains(unreached), "{}", told.err);
    let silent = pod(1);
    let mut on_host = silent.clone();
    on_host["spec"]["hostNetwork"] = json!(true);
    for pod in [silent, on_host] {
        let made = try_create(exchange.name(), &pod.to_string()).object();
        assert!(made["spec"]["initContainers"].is_null(), "{made}");
    }
    let mut on_host = pod(0);
    on_host["spec"]["hostNetwork"] = json!(true);
    let told = kubectl_with(&words, &on_host.to_string());
    let is_called = told.err.contains("failed calling webhook");
    assert!(told.refusal().contains("set hostNetwork: false") && !is_called, "{}", told.err);

    exchange.apply(&gated(1));
    eventually("whoever makes pods is told", || {
        condition(&exchange.get("replicaset/gated"), "ReplicaFailure").is("True").then_some(())
    });
    let asks = |words: &[&str]| kubectl_tensorlane(exchange.name(), words);
    let well = ["2 of 2 replicas are ready", "2 behind the webhook's Service"];
    Answer::first(|answer| answer.is(0, &well), || asks(&["check"])).says(0, &well);
    let remedies = [unreached, "/mutate/…", "ports.webhook of the chart, 9443", "hostNetwork: true"];
    asks(&["explain", "replicaset/gated"]).says(1, &remedies);

    drop(lost);
    let pod = eventually("it tries again", || exchange.pods("app=gated").pop());
    assert_eq!(pod["spec"]["initContainers"][0]["name"], SIDECAR);
}

/// Authorities of the Secret; none while there is no Secret.
fn authorities() -> Option<Vec<Authority>> {
    let read = format!("--output=go-template={{{{index .data {SECRET_KEY:?} | base64decode}}}}");
    let output = cluster(&["kubectl", "--namespace", SYSTEM, "get", "secret", SECRET, &read]);
    let kept: Value = serde_json::from_slice(&output.stdout).ok()?;
    serde_json::from_value(kept["authorities"].clone()).ok()
}

#[test]
fn a_secret_that_is_deleted_under_two_replicas_is_made_once_and_both_serve_what_callers_trust() {
    install();
    await_operator();
    let namespace = Namespace::new();
    namespace.kubectl(&["label", "namespace", namespace.name(), "tensorlane.dev/inject=enabled"]);
    let before = authorities().unwrap();
    succeeds(&["kubectl", "--namespace", SYSTEM, "delete", "secret", SECRET]);
    let all = eventually("it is made again", || authorities().filter(|all| *all != before));
    let [authority] = &all[..] else { panic!("{} authorities", all.len()) };
    await_bundle(&[authority]);
    await_signer(authority);

    for replica in pods(SYSTEM, REPLICAS) {
        // It is counted beside what is logged.
        eventually(&format!("{replica} tells how long its new certificate lasts"), || {
            let text = metrics(SYSTEM, &replica);
            let until = metric(&text, "tensorlane_operator_certificate_expiry_seconds", &[]) as u64;
            let bounds = (authority.made + LEAF_LIFE_SECONDS)..=(now() + LEAF_LIFE_SECONDS);
            bounds.contains(&until).then_some(())
        });
    }
    let asked = |number: usize| try_create(namespace.name(), &pod(number).to_string());
    for number in 0..2 {
        eventually("pods are made", || asked(number).done.then_some(()));
    }
    for number in 2..8 {
        assert_eq!(asked(number).object()["spec"]["initContainers"][0]["name"], SIDECAR);
    }
    assert_eq!(authorities(), Some(all), "nobody makes another one");
}
