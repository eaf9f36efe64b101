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

/// Line of shell that puts a tensor `t` of four bytes under a name, whatever stood there before.
fn puts(name: &str) -> String {
    let head = r#"{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let length = format!("\\{:o}\\0\\0\\0\\0\\0\\0\\0", head.len());
    format!("printf '{length}%sabcd' '{head}' > /tmp/f && tensorlane put /tmp/f --name {name} --replace")
}

/// A pod that asks, of which one container runs a line of shell behind an init container that runs another.
fn pod(name: &str, grace: u32, before: &str, line: &str) -> Value {
    let container = |name: &str, line: &str| json!({"name": name, "image": image("workload"), "command": ["sh", "-c", line]});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "annotations": {"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "32Mi"},
        },
        "spec": {
            "terminationGracePeriodSeconds": grace, "initContainers": [container("before", before)],
            "containers": [container("main", line)],
        },
    })
}

fn delete(exchange: &Exchange, pod: &str) {
    exchange.kubectl(&["delete", "pod", pod, "--wait=false"]);
}

/// Waits until pods are gone, and their peers with them.
fn await_gone(exchange: &Exchange, names: &[&str]) {
    let is_of = |name: &str| names.iter().any(|pod| name.ends_with(&format!("/{pod}")));
    eventually(&format!("{names:?} are gone with their peers"), || {
        let there = exchange.reads(&["get", "pods,txp", "--output=name"]);
        (!there.lines().any(is_of)).then_some(())
    });
}

#[test]
fn pods_that_live_for_a_second_end_in_order_and_leave_no_peer_behind() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let template = job("refresh", &json!({}), "OnFailure", &puts("fresh"))["spec"].clone();
    // Only by hand: what a schedule makes is the same.
    let spec = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": template}});
    exchange.apply(
        &json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "refresh"}, "spec": spec}),
    );
    let refreshes = ["first", "second"];
    for name in refreshes {
        exchange.kubectl(&["create", "job", "--from=cronjob/refresh", name]);
    }
    // Deleted before anything of them runs.
    let brief = ["brief-1", "brief-2"];
    for name in brief {
        exchange.apply(&pod(name, 1, "exit 0", "exec sleep 3600"));
        delete(&exchange, name);
    }
    // Deleted while an init container behind the sidecar has not ended. By itself it would have ten minutes.
    let waits = "trap 'exit 0' TERM; sleep 3600 & wait";
    exchange.apply(&pod("never-ready", 600, waits, "exec sleep 3600"));
    eventually("the init container runs", || {
        let status = container_status(&exchange.get("pod/never-ready"), "before");
        (!status["state"]["running"].is_null()).then_some(())
    });
    delete(&exchange, "never-ready");

    await_gone(&exchange, &[&brief[..], &["never-ready"]].concat());
    for name in refreshes {
        exchange.wait_for("Complete", &format!("job/{name}"));
        let made = pods(&exchange, name);
        let sidecar = container_status(&made[0], SIDECAR);
        let code = &sidecar["state"]["terminated"]["exitCode"];
        assert_eq!((made.len(), code, &sidecar["restartCount"]), (1, &json!(0), &json!(0)), "{sidecar}");
    }
    // Its jobs are its own, and go with it.
    exchange.kubectl(&["delete", "cronjob/refresh"]);
    eventually("no peer is left", || exchange.peers().is_empty().then_some(()));
}

#[test]
fn a_pod_that_takes_long_to_end_has_its_sidecar_and_is_read_until_its_last_container_has_ended() {
    let _turn = TURNS.beside_others();
    let exchange = Exchange::new();
    let get = "tensorlane get last/t --to /tmp/g > /tmp/said";
    let ends = format!("until [ -e /tmp/go ]; do {get} && echo got || echo LOST; sleep 0.2; done; exit 0");
    let line = format!("trap '{ends}' TERM; {} -o json; while :; do sleep 1; done", puts("last"));
    exchange.apply(&pod("slow-end", 300, "exit 0", &line));
    exchange.apply(&pod("reader", 1, "exit 0", "exec sleep 3600"));
    exchange.await_peers(2);
    for name in ["slow-end", "reader"] {
        exchange.wait_for("Ready", &format!("pod/{name}"));
    }
    let log = || exchange.logs("slow-end", "main");
    let reference = eventually("the tensor is put", || {
        let put: Value = serde_json::from_str(&log()).ok()?;
        put["tensors"][0]["reference"].as_str().map(str::to_owned)
    });

    delete(&exchange, "slow-end");
    let got = || log().lines().filter(|line| *line == "got").count();
    eventually("it reads while it ends", || (got() > 3).then_some(()));
    let elsewhere = format!("tensorlane get '{reference}' --to /tmp/g > /tmp/said && tail -c 4 /tmp/g");
    assert_eq!(exchange.shell("reader", "main", &elsewhere), "abcd");
    let before = got();
    eventually("it goes on reading", || (got() > before + 3).then_some(()));
    let said = log();
    assert!(!said.contains("LOST"), "{said}");
    let sidecar = container_status(&exchange.get("pod/slow-end"), SIDECAR);
    assert_eq!(sidecar["restartCount"], 0, "{sidecar}");
    // The container may be gone before kubectl has its answer.
    let _ = exchange.try_kubectl(&["exec", "slow-end", "--container=main", "--", "touch", "/tmp/go"]);
    await_gone(&exchange, &["slow-end"]);
}
