//! Pods that the webhook is called for and that get no sidecar: whoever makes them is told why.

use kube::Client;
use serde_json::{Value, json};

use crate::gpus::answer;
use crate::metrics::{injections, scrape};
use crate::objects::warnings;
use crate::running::{event_of, pod};

/// In a namespace whose pods with GPUs are served. The others are never shown to the webhook, and so counted nowhere.
pub(crate) async fn whoever_gets_no_sidecar_is_told_why(admin: &Client, port: u16, nic: &Value) {
    let mut mirror = pod("mirror", &json!({"kubernetes.io/config.mirror": "x"}));
    mirror["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
    for (kind, name, mut pod, result, why) in [
        (
            "Job",
            "with-a-nic",
            nic.clone(),
            "not_requested",
            "neither the pod nor its namespace nor an exchange asks for a sidecar",
        ),
        ("Node", "n1", mirror, "mirror_pod", "it mirrors a static pod, which only its node can change"),
    ] {
        let version = if kind == "Job" { "batch/v1" } else { "v1" };
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": name, "uid": "u-3", "controller": true}]);
        // What is tried again is counted again.
        let (before, told) = answer(admin, || async {
            let before = injections(port, result);
            Ok((before, warnings(admin, "/api/v1/namespaces/ml/pods", &pod).await?))
        })
        .await;
        assert_eq!(told, [format!("299 - \"tensorlane: no sidecar: {why}\"")], "{result}");
        assert_eq!(injections(port, result), before + 1, "{result}");
        event_of(admin, "InjectionSkipped", kind, name, |event| event["note"] == why).await;
    }
    let all = scrape(port);
    assert!(
        !all.contains("result=\"disabled\""),
        "the webhook was called for a pod that says disabled: {all}"
    );
}
