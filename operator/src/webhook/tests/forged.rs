//! Tests of reviews that no API server sends: they name what the webhook must not look at.

use std::sync::Mutex;

use http::Response;
use kube::Client;
use kube::client::Body;

use super::*;
use crate::plan::Defaults;

/// Paths that were asked for at an API server that has nothing but one Secret.
type Asked = Arc<Mutex<Vec<String>>>;

fn api_server() -> (Client, Asked) {
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        seen.lock().unwrap().push(request.uri().to_string());
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}});
        let path = request.uri().path().to_owned();
        let answer = if path.ends_with("/namespaces/ml") || path.ends_with("/namespaces/other") {
            namespace
        } else {
            list
        };
        let answer = Response::new(Body::from(serde_json::to_vec(&answer).unwrap()));
        async move { Ok::<_, kube::Error>(answer) }
    });
    (Client::new(service, "ml"), asked)
}

/// A review of a pod in this namespace, with this in its metadata and this in its spec.
fn forged(namespace: &str, metadata: &Value, spec: &Value) -> Vec<u8> {
    let mut review: Value = serde_json::from_slice(&review(&[ENABLED].into(), false)).unwrap();
    let request = &mut review["request"];
    request["namespace"] = json!(namespace);
    for (part, more) in [("metadata", metadata), ("spec", spec)] {
        let part = request["object"][part].as_object_mut().unwrap();
        part.extend(more.as_object().unwrap().clone());
    }
    serde_json::to_vec(&review).unwrap()
}

async fn of_the_api_server() -> (Scene, Asked) {
    let (client, asked) = api_server();
    let facts = KubeFacts::new(client, Defaults::default(), Vec::new());
    (scene_of(facts, Bounds::default()).await, asked)
}

#[tokio::test]
async fn a_review_whose_namespace_leads_elsewhere_is_refused_and_nothing_is_read() {
    let (scene, asked) = of_the_api_server().await;
    let (mut sender, _connection) = scene.connect().await;
    let others = [
        "tensorlane-system/secrets/tensorlane-webhook-ca",
        "ml/../../../../api/v1/secrets",
        "ml?watch=true",
        "",
    ];
    for namespace in others {
        let (status, why) = post(&mut sender, forged(namespace, &json!({}), &json!({}))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{namespace}");
        let why = String::from_utf8(why).unwrap();
        assert!(why.contains("the namespace of the review"), "{why}");
    }
    assert_eq!(*asked.lock().unwrap(), [""; 0]);
    scene.end().await;
}

#[tokio::test]
async fn a_review_whose_claims_lead_elsewhere_or_are_without_number_is_refused_and_nothing_is_read() {
    let (scene, asked) = of_the_api_server().await;
    let (mut sender, _connection) = scene.connect().await;
    let claim = |name: &str, of: &str| json!({"name": name, "resourceClaimName": of});
    let many: Vec<Value> = (0..10_000).map(|number| claim(&format!("c{number}"), "x")).collect();
    for (claims, why) in [
        (json!([claim("a", "../../../../api/v1/namespaces/x/secrets/y")]), "is no name of Kubernetes"),
        (json!(many), "10000 resource claims"),
    ] {
        let (status, body) =
            post(&mut sender, forged("ml", &json!({}), &json!({"resourceClaims": claims}))).await;
        let review: Value = serde_json::from_slice(&body).unwrap();
        let response = &review["response"];
        assert_eq!((status, &response["allowed"]), (StatusCode::OK, &json!(false)), "{response}");
        let said = response["status"]["message"].as_str().unwrap();
        assert!(response["status"]["code"] == 422 && said.contains(why), "{said}");
    }
    assert_eq!(*asked.lock().unwrap(), [""; 0]);
    scene.end().await;
}

#[tokio::test]
async fn a_review_costs_at_most_two_calls_a_claim_and_four_besides() {
    let (scene, asked) = of_the_api_server().await;
    let (mut sender, _connection) = scene.connect().await;
    let claim = |number| json!({"name": format!("c{number}"), "resourceClaimName": "x"});
    let claims: Vec<Value> = (0..CLAIMS_MAX).map(claim).collect();
    let (status, _) = post(&mut sender, forged("ml", &json!({}), &json!({"resourceClaims": claims}))).await;
    assert_eq!(status, StatusCode::OK);
    let asked = asked.lock().unwrap().clone();
    assert!(asked.len() <= 4 + 2 * CLAIMS_MAX, "{asked:?}");
    assert!(asked.iter().all(|path| path.contains("/namespaces/ml")), "{asked:?}");
    scene.end().await;
}

#[tokio::test]
async fn an_owner_whose_name_leads_elsewhere_is_left_no_note() {
    let (mut scene, _asked) = of_the_api_server().await;
    let (mut sender, _connection) = scene.connect().await;
    let owner = |name: &str| {
        json!({"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": "u", "controller": true},
        ]})
    };
    for name in ["../../../../api/v1/namespaces/x/secrets/y", "r"] {
        let (status, _) = post(&mut sender, forged("ml", &owner(name), &json!({}))).await;
        assert_eq!(status, StatusCode::OK);
    }
    let note = within(scene.notes.recv()).await.unwrap();
    assert_eq!(note.owner.name.as_str(), "r", "the first note is of the second pod");
    scene.end().await;
}

/// Pods that are made without end in one namespace take no Events of others.
#[tokio::test]
async fn notes_have_a_rate_for_each_namespace() {
    let (mut scene, _asked) = of_the_api_server().await;
    let (mut sender, _connection) = scene.connect().await;
    let owner = json!({"ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true},
    ]});
    for _ in 0..200 {
        let (status, _) = post(&mut sender, forged("ml", &owner, &json!({}))).await;
        assert_eq!(status, StatusCode::OK);
    }
    let (status, _) = post(&mut sender, forged("other", &owner, &json!({}))).await;
    assert_eq!(status, StatusCode::OK);
    let mut namespaces = Vec::new();
    while let Ok(note) = scene.notes.try_recv() {
        namespaces.push(note.namespace.to_string());
    }
    assert!((64..200).contains(&namespaces.len()), "{}", namespaces.len());
    assert_eq!(namespaces.last().map(String::as_str), Some("other"));
    let dropped = format!("tensorlane_operator_events_dropped_total {}", 201 - namespaces.len());
    assert!(scene.metrics.render().unwrap().contains(&dropped), "{dropped}");
    scene.end().await;
}
