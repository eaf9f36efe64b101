//! A sidecar whose memory is lowered in place, through the subresource that people and scalers use: the API server takes it,
//! and whoever asks is told before the kernel ends the sidecar.

use kube::Client;
use serde_json::{Value, json};

use crate::asked::Person;
use crate::objects::create;

/// The pod must be one that the webhook injects. Whatever was lowered is set back.
pub(crate) async fn a_limit_that_is_lowered_in_place_is_told_before_it_kills(
    admin: &Client,
    person: &Person,
) {
    let asking = json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "1Gi"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "resized", "namespace": "ml", "annotations": asking},
        "spec": {"containers": [{"name": "main", "image": "example.org/main"}]},
    });
    let made = serde_json::to_value(create(admin, &pod, false).await.unwrap()).unwrap();
    let sidecar = &made["spec"]["initContainers"][0];
    assert_eq!(sidecar["name"], "tensorlane", "{made}");
    let usual = sidecar["resources"]["limits"]["memory"].as_str().unwrap().to_owned();
    assert!(person.checks("memory").is_empty());
    // More is no fault.
    resize(admin, "2Gi").await;
    assert!(person.checks("memory").is_empty());
    resize(admin, "300Mi").await;
    let told = person.checks("memory");
    let text = told[0]["found"].as_str().unwrap();
    assert!(told[0]["level"] == "problem" && text.ends_with(": resized (300Mi of 1280Mi)"), "{told:?}");
    person.says("check", 1, &["the next put may end the sidecar"]);
    person.says("explain pod/resized", 1, &["limit 300Mi, arena 1Gi and 256Mi beside it"]);
    resize(admin, &usual).await;
    assert!(person.checks("memory").is_empty());
}

/// Asks for another amount of memory of the sidecar, as `kubectl patch --subresource resize` does.
async fn resize(admin: &Client, memory: &str) {
    let resources = json!({"requests": {"memory": memory}, "limits": {"memory": memory}});
    let patch = json!({"spec": {"initContainers": [{"name": "tensorlane", "resources": resources}]}});
    let request = http::Request::patch("/api/v1/namespaces/ml/pods/resized/resize")
        .header("content-type", "application/strategic-merge-patch+json")
        .body(serde_json::to_vec(&patch).unwrap())
        .unwrap();
    let now: Value = admin.request(request).await.unwrap();
    assert_eq!(now["spec"]["initContainers"][0]["resources"]["limits"]["memory"], memory, "{now}");
}
