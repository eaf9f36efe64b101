//! A sidecar takes every variable that the operator's planner gives it, and starts with them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tensorlane_operator::plan::Facts;
use tensorlane_operator::{Decision, plan};
use tensorlane_tests::{Sidecar, SidecarOptions};

/// The variables of an injected sidecar, with the facts of a pod on this machine in them.
fn variables(annotations: &Value, exchange: &Value) -> BTreeMap<String, String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    });
    let mut facts = Facts::default();
    facts.exchanges.insert("training".to_owned(), serde_json::from_value(exchange.clone()).unwrap());
    let Decision::Inject(plan) = plan(&pod, &facts).decision else { panic!("it is injected") };
    let sidecar = &plan.pod["spec"]["initContainers"][0];
    let given = sidecar["env"].as_array().unwrap().iter().map(|one| {
        let value = one["value"].as_str().unwrap_or(match one["name"].as_str().unwrap() {
            "POD_NAME" => "trainer-0",
            "POD_IP" => "127.0.0.1",
            _ => "x",
        });
        (one["name"].as_str().unwrap().to_owned(), value.to_owned())
    });
    let given: BTreeMap<_, _> = given.collect();
    let filled = |value: &String| value.replace("$(POD_NAME)", "trainer-0").replace("$(POD_IP)", "127.0.0.1");
    given.iter().map(|(name, value)| (name.clone(), filled(value))).collect()
}

/// Those variables for a sidecar of this test: in a folder and on ports of its own.
fn options(mut variables: BTreeMap<String, String>) -> SidecarOptions {
    for folder in ["TENSORLANE_SOCKETS_DIRECTORY", "TENSORLANE_STATE_DIRECTORY"] {
        variables.remove(folder).unwrap();
    }
    for port in ["TENSORLANE_PEERS_LISTEN", "TENSORLANE_ADMIN_LISTEN"] {
        *variables.get_mut(port).unwrap() = "127.0.0.1:0".to_owned();
    }
    // There is no API server here; the cluster's own suites have one.
    let directory = variables.insert("TENSORLANE_PEERS_DIRECTORY".to_owned(), "none".to_owned());
    assert_eq!(directory.as_deref(), Some("kubernetes"));
    let words = variables.iter().map(|(name, value)| format!("{name}={value}"));
    SidecarOptions::default().prefix(["env".to_owned()].into_iter().chain(words))
}

#[test]
fn a_sidecar_starts_with_what_the_planner_gives_it() {
    let annotations = json!({
        "tensorlane.dev/inject": "enabled", "tensorlane.dev/exchange": "training",
        "tensorlane.dev/arena-size": "64Mi", "tensorlane.dev/memory": "128Mi", "tensorlane.dev/log-level": "debug",
        "tensorlane.dev/require": "encrypted", "tensorlane.dev/gpu": "none",
    });
    let exchange = json!({
        "transports": ["tcp", "quic"], "gc": {"leaseGrace": "20s", "ticketTtl": "2m"},
        "security": {"encryption": "required"},
    });
    let sidecar = Sidecar::with(options(variables(&annotations, &exchange)));
    let status = sidecar.client().status().unwrap();
    assert_eq!((status.exchange.as_str(), status.peer.as_str()), ("training", "trainer-0"));
    assert_eq!(status.arena.unwrap().total, 64 << 20);
}
