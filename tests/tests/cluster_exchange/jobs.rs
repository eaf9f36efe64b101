//! Jobs whose pods have a sidecar end as their own containers do: by a policy on exit codes, by their deadline, and after a restart.

use serde_json::{Value, json};
use tensorlane_tests::cluster::{eventually, image};
use tensorlane_tests::installed::{Exchange, condition};
use tensorlane_tests::pod::{SIDECAR, container_status};

use super::TURNS;

/// A Job with these words, of which one container runs a line of shell.
fn job(name: &str, words: &Value, restart: &str, line: &str) -> Value {
    let mut spec = json!({
        "backoffLimit": 2,
        "template": {
            "metadata": {"annotations": {"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "32Mi"}},
            "spec": {
                "restartPolicy": restart, "terminationGracePeriodSeconds": 5,
                "containers": [{
                    "name": "main", "image": image("workload"), "command": ["sh", "-c", line],
                    "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
                }],
                "volumes": [{"name": "kept", "emptyDir": {}}],
            },
        },
    });
    spec.as_object_mut().expect("an object").extend(words.as_object().expect("an object").clone());
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
}

/// The pods that a Job has made and that are there.
fn pods(exchange: &Exchange, name: &str) -> Vec<Value> {
    exchange.pods(&format!("job-name={name}"))
}

#[test]
fn jobs_with_a_sidecar_end_as_their_own_containers_do() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let codes = json!({"containerName": "main", "operator": "In", "values": [3]});
    let policy = json!({"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]}});
    exchange.apply(&job("fails", &policy, "Never", "exit 3"));
    exchange.apply(&job("hangs", &json!({"activeDeadlineSeconds": 20}), "OnFailure", "sleep 3600"));
    exchange.apply(&job(
        "again",
        &json!({}),
        "OnFailure",
        "test -e /kept/once || { touch /kept/once; exit 1; }",
    ));

    exchange.wait_for("Failed", "job/fails");
    assert_eq!(condition(&exchange.get("job/fails"), "Failed").reason(), "PodFailurePolicy");
    assert_eq!(exchange.get("job/fails")["status"]["failed"], 1, "it is not tried again");

    exchange.wait_for("Complete", "job/again");
    let again = pods(&exchange, "again");
    let restarts = |name| container_status(&again[0], name)["restartCount"].clone();
    assert_eq!((again.len(), restarts("main"), restarts(SIDECAR)), (1, json!(1), json!(0)));

    exchange.wait_for("Failed", "job/hangs");
    assert_eq!(condition(&exchange.get("job/hangs"), "Failed").reason(), "DeadlineExceeded");
    eventually("the sidecar has ended with it", || pods(&exchange, "hangs").is_empty().then_some(()));
}
