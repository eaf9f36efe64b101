//! Pods with GPUs, in a namespace whose exchange wants them without being asked.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tensorlane_operator::manifests::{GPU_WEBHOOK, WEBHOOKS};
use tensorlane_operator::reconcile::{GPU_MANAGER, Webhooks};

use crate::objects::{api, create, get, installed, until};
use crate::running::{exchange, pod};

pub(crate) async fn a_namespace_with_gpu_pods_gets_an_entry(admin: &Client, port: u16) {
    let wants = json!({"spec": {"inject": {"gpuPods": true}}});
    let patch = Patch::Merge(&wants);
    api(admin, &exchange()).patch("default", &PatchParams::default(), &patch).await.unwrap();
    let configuration = installed(&["MutatingWebhookConfiguration"]).remove(0);
    let entry = until("the entry is there", || async {
        let webhooks = get(admin, &configuration).await?["webhooks"].as_array()?.clone();
        webhooks.into_iter().find(|entry| entry["name"] == GPU_WEBHOOK)
    })
    .await;
    assert_eq!(entry["namespaceSelector"]["matchExpressions"][0]["values"], json!(["ml"]));
    pods_with_gpus_are_injected_and_others_are_not(admin).await;
    let nic = claiming("resourceClaimTemplateName", "one-nic");
    crate::skipped::whoever_gets_no_sidecar_is_told_why(admin, port, &nic).await;
    let never = json!({"spec": {"inject": null}});
    api(admin, &exchange()).patch("default", &PatchParams::default(), &Patch::Merge(&never)).await.unwrap();
    until("the entry is gone, and the others are not", || async {
        let webhooks = get(admin, &configuration).await?["webhooks"].as_array()?.clone();
        (webhooks.len() == 2 && webhooks.iter().all(|entry| entry["clientConfig"]["caBundle"].is_string()))
            .then_some(())
    })
    .await;
}

/// The answer to whoever asks for a pod with a GPU. The operator applies its entry again every few seconds, and then nobody is there
/// who answers: the entry is led here anew, and it is asked again.
pub(crate) async fn answer<T, F: Future<Output = Result<T, String>>>(
    admin: &Client,
    ask: impl Fn() -> F,
) -> T {
    until("the webhook answers", || async {
        let answer = ask().await;
        if let Err(refused) = &answer {
            println!("asked again after the entry was led here: {refused}");
            the_entry_is_led_here(admin).await;
        }
        answer.ok()
    })
    .await
}

/// The operator's entry calls the port of its Service, 443, where only root may listen; here it calls the port that the
/// other entries call. Applied in the operator's name, so that the entry stays the operator's alone and goes with it.
async fn the_entry_is_led_here(admin: &Client) {
    let configuration = &installed(&["MutatingWebhookConfiguration"]).remove(0);
    let live = get(admin, configuration).await.unwrap()["webhooks"].as_array().unwrap().clone();
    let called = live.iter().find(|entry| entry["name"] == WEBHOOKS[0]).unwrap()["clientConfig"].clone();
    let bundle = called["caBundle"].as_str().unwrap().to_owned();
    let path = crate::renewal::announced(admin).await;
    let webhooks = Webhooks { bundle: Some(bundle), path, gpu_namespaces: Some(vec!["ml".to_owned()]) };
    let name = configuration["metadata"]["name"].as_str().unwrap();
    let is_base64 = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut patch = webhooks.gpus(name, "tensorlane-system", is_base64).unwrap();
    let entries = patch["webhooks"].as_array_mut().unwrap();
    let entry = entries.iter_mut().find(|entry| entry["name"] == GPU_WEBHOOK).unwrap();
    entry["clientConfig"]["service"]["port"] = called["service"]["port"].clone();
    let parameters = PatchParams::apply(GPU_MANAGER).force();
    api(admin, configuration).patch(name, &parameters, &Patch::Apply(&patch)).await.unwrap();
}

/// None of these pods says anything of Tensorlane.
async fn pods_with_gpus_are_injected_and_others_are_not(admin: &Client) {
    claims_are_made(admin).await;
    let mut limited = pod("limited", &json!({}));
    limited["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
    until("the entry is seen", || async {
        answer(admin, || is_injected(admin, &limited)).await.then_some(())
    })
    .await;
    for (what, pod, expected) in [
        ("a template of a GPU", claiming("resourceClaimTemplateName", "one-gpu"), true),
        ("a claim on a GPU", claiming("resourceClaimName", "shared-gpu"), true),
        ("a template of something else", claiming("resourceClaimTemplateName", "one-nic"), false),
        // It may be one: a sidecar too many costs memory, a missing one the whole work.
        ("a claim that is not there yet", claiming("resourceClaimName", "later"), true),
        ("no device", pod("plain", &json!({})), false),
    ] {
        assert_eq!(answer(admin, || is_injected(admin, &pod)).await, expected, "{what}");
    }
    let disabled = json!({"tensorlane.dev/inject": "disabled"});
    limited["metadata"]["annotations"] = disabled;
    assert!(!answer(admin, || is_injected(admin, &limited)).await, "the pod wins");
}

async fn claims_are_made(admin: &Client) {
    let devices = |class: &str| json!({"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": class}}]}});
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name, "namespace": "ml"}, "spec": spec,
        })
    };
    for object in [
        object("ResourceClaimTemplate", "one-gpu", json!({"spec": devices("gpu.nvidia.com")})),
        object("ResourceClaimTemplate", "one-nic", json!({"spec": devices("nic.example.com")})),
        object("ResourceClaim", "shared-gpu", devices("gpu.example.com")),
    ] {
        create(admin, &object, false).await.unwrap();
    }
}

fn claiming(by: &str, object: &str) -> Value {
    let mut pod = pod("claiming", &json!({}));
    pod["spec"]["resourceClaims"] = json!([{"name": "device", by: object}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "device"}]});
    pod
}

/// True if the pod would have a sidecar, which this or another container of its own is not.
async fn is_injected(admin: &Client, pod: &Value) -> Result<bool, String> {
    let made = create(admin, pod, true).await?;
    Ok(made.data["spec"]["initContainers"][0]["name"] == "tensorlane")
}
