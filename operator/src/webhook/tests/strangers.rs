//! Tests of calls without the secret part of the path, which anybody may send.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::plan::{LimitRange, Quota};
use crate::quantity::Amount;

/// A namespace in which there is something to tell.
fn secrets() -> Facts {
    let spec =
        json!({"arena": {"size": "8Gi"}, "security": {"encryption": "none"}, "inject": {"gpuPods": true}});
    let spec: tensorlane_proto::crd::ExchangeSpec = serde_json::from_value(spec).unwrap();
    let most = || [("limits.memory".to_owned(), Amount::whole(1 << 30))].into();
    let namespace = Namespace {
        labels: [("tensorlane.dev/inject".to_owned(), "enabled".to_owned())].into(),
        ..Namespace::default()
    };
    Facts {
        namespace,
        exchanges: [("default".to_owned(), spec.clone()), ("hidden".to_owned(), spec)].into(),
        limits: vec![LimitRange { name: "l".to_owned(), max: most(), ..LimitRange::default() }],
        quotas: vec![Quota { name: "q".to_owned(), hard: most(), ..Quota::default() }],
        ..Facts::default()
    }
}

/// Paths that are not the secret one: also what an API server calls that was told none, and one that is almost right.
fn plain(scene: &Scene) -> Vec<String> {
    let mut wrong = scene.path.as_str().to_owned();
    let last = if wrong.pop() == Some('0') { '1' } else { '0' };
    wrong.push(last);
    vec![MUTATE_PATH.to_owned(), "/".to_owned(), wrong]
}

#[tokio::test]
async fn a_stranger_is_told_what_is_wrong_with_the_pod_and_gets_no_patch_and_leaves_nothing() {
    let mut scene = scene_knowing(secrets(), Bounds::default()).await;
    for path in plain(&scene) {
        let (mut stranger, _connection) = scene.connect_for(&path).await;
        let planned = ask(&mut stranger, &[ENABLED], false).await;
        assert_eq!((&planned["allowed"], &planned["status"]["code"]), (&json!(false), &json!(503)), "{path}");
        let said = planned["status"]["message"].as_str().unwrap();
        assert!(said.contains("secret part of the webhook's path") && said.contains("try again"), "{said}");
        assert!(planned["patch"].is_null() && planned["warnings"].is_null(), "{planned}");
        let wrong = ask(&mut stranger, &[ENABLED, ("tensorlane.dev/arena-size", "2GB")], false).await;
        assert!(wrong["status"]["message"].as_str().unwrap().contains("such as 2Gi"), "{wrong}");
        let unwilling = ask(&mut stranger, &[("tensorlane.dev/inject", "disabled")], false).await;
        assert_eq!((&unwilling["allowed"], &unwilling["patch"]), (&json!(true), &Value::Null), "{path}");
        assert_eq!(post(&mut stranger, b"no review".to_vec()).await.0, StatusCode::BAD_REQUEST);
    }
    assert!(scene.entered.try_recv().is_err(), "something of the namespace was looked at");
    assert!(scene.notes.try_recv().is_err(), "somebody was left a note");
    let metrics = scene.metrics.render().unwrap();
    assert!(metrics.contains("tensorlane_operator_injections_total{result=\"plain_path\"} 9"), "{metrics}");
    assert!(!metrics.contains(scene.path.as_str()));
    let (mut api_server, _connection) = scene.connect().await;
    let known = ask(&mut api_server, &[ENABLED], false).await;
    assert_eq!(known["status"]["code"], 403, "the same pod has no room in the quota: {known}");
    assert_eq!(within(scene.notes.recv()).await.unwrap().reason, "InjectionDenied");
    scene.end().await;
}

#[tokio::test]
async fn what_a_stranger_is_told_is_the_same_whatever_is_in_the_namespace() {
    let pods: [&[(&str, &str)]; 7] = [
        &[],
        &[ENABLED],
        &[ENABLED, ("tensorlane.dev/exchange", "hidden")],
        &[ENABLED, ("tensorlane.dev/exchange", "none-of-that-name")],
        &[ENABLED, ("tensorlane.dev/arena-size", "16Ti")],
        &[ENABLED, ("tensorlane.dev/containers", "other")],
        &[("tensorlane.dev/inject", "perhaps")],
    ];
    let mut told = Vec::new();
    for facts in [Facts::default(), secrets()] {
        let scene = scene_knowing(facts, Bounds::default()).await;
        let (mut stranger, _connection) = scene.connect_for(MUTATE_PATH).await;
        let mut answers = Vec::new();
        for pod in pods {
            answers.push(ask(&mut stranger, pod, true).await);
        }
        told.push(answers);
        scene.end().await;
    }
    assert_eq!(told[0], told[1]);
    let hidden = |answer: usize| told[0][answer]["status"]["message"].clone();
    assert_eq!(hidden(2), hidden(3), "which exchanges there are");
}

#[tokio::test]
async fn strangers_have_a_rate_for_each_namespace_and_the_api_server_has_none() {
    let scene = scene(Bounds::default()).await;
    let (mut stranger, _connection) = scene.connect_for(MUTATE_PATH).await;
    let mut codes = Vec::new();
    for _ in 0..30 {
        codes.push(ask(&mut stranger, &[ENABLED], true).await["status"]["code"].clone());
    }
    assert!(codes[..10].iter().all(|code| *code == 503) && codes.contains(&json!(429)), "{codes:?}");
    let mut of_others: Value = serde_json::from_slice(&review(&[ENABLED].into(), true)).unwrap();
    of_others["request"]["namespace"] = json!("other");
    let (_, body) = post(&mut stranger, serde_json::to_vec(&of_others).unwrap()).await;
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["response"]["status"]["code"], 503, "{answer}");
    let (mut api_server, _connection) = scene.connect().await;
    for _ in 0..30 {
        assert_eq!(ask(&mut api_server, &[ENABLED], true).await["allowed"], true);
    }
    scene.end().await;
}

#[tokio::test]
async fn strangers_have_no_room_and_no_place_of_the_api_server() {
    let scene = scene(Bounds { connections: 3, fresh: Duration::ZERO, ..Bounds::default() }).await;
    let (mut api_server, connection) = scene.connect().await;
    assert_eq!(ask(&mut api_server, &[ENABLED], true).await["allowed"], true);
    let head = format!("POST {MUTATE_PATH} HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: 4194304\r\n\r\n{{");
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let mut half = scene.handshake(&["http/1.1"]).await;
        half.write_all(head.as_bytes()).await.unwrap();
        strangers.push(half);
        assert_eq!(ask(&mut api_server, &[ENABLED], true).await["allowed"], true, "it has room meanwhile");
    }
    assert!(!connection.is_finished(), "its place was taken");
    for mut stranger in strangers {
        // With an end, a reset or a refusal.
        let _ = within(stranger.read_to_end(&mut Vec::new())).await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_path_that_is_accepted_no_more_is_a_plain_one() {
    let scene = scene(Bounds::default()).await;
    let (mut caller, _connection) = scene.connect().await;
    assert_eq!(ask(&mut caller, &[ENABLED], true).await["allowed"], true);
    let next = SecretPaths::default().after(now(), None).unwrap();
    scene.gate.set(next.accepted());
    assert_eq!(ask(&mut caller, &[ENABLED], true).await["status"]["code"], 503);
    caller.path = next.announced(now()).unwrap().as_str().to_owned();
    assert_eq!(ask(&mut caller, &[ENABLED], true).await["allowed"], true);
    scene.end().await;
}
