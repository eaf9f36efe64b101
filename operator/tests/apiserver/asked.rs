//! Tests of what `kubectl tensorlane` says of a real API server, before anything is installed and while an operator
//! runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::objects::{api, apply, create, get, installed, until};
use crate::server::{ADMIN, Server};

/// Person that asks: a kubeconfig.
pub(crate) struct Person(PathBuf);

/// Answer to the question.
struct Answer {
    code: i32,
    text: String,
}

impl Person {
    fn with(server: &Server, token: &str, name: &str) -> Person {
        Person(server.kubeconfig(token, name))
    }

    fn asks(&self, words: &str) -> Answer {
        let program = Path::new(env!("CARGO_BIN_EXE_kubectl-tensorlane"));
        let mut command = Command::new(program);
        let output =
            command.args(words.split(' ')).args(["-n", "ml"]).env("KUBECONFIG", &self.0).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        Answer { code: output.status.code().unwrap(), text: String::from_utf8(text).unwrap() }
    }

    /// The lines about one thing.
    pub(crate) fn checks(&self, about: &str) -> Vec<Value> {
        let answer = self.asks("check -o json");
        let all: Value =
            serde_json::from_str(&answer.text).unwrap_or_else(|error| panic!("{error}: {}", answer.text));
        let findings = all["findings"].as_array().unwrap().iter();
        findings.filter(|finding| finding["about"] == about).cloned().collect()
    }

    pub(crate) fn says(&self, words: &str, code: i32, parts: &[&str]) {
        let answer = self.asks(words);
        assert_eq!(answer.code, code, "{words}: {}", answer.text);
        for part in parts {
            assert!(answer.text.contains(part), "{words}: {part} is not in {}", answer.text);
        }
    }
}

/// Nothing is there, and that is told in one sentence, with what becomes of pods.
pub(crate) fn before_anything_is_installed(server: &Server) {
    let admin = Person::with(server, ADMIN, "admin.kubeconfig");
    let parts = [
        "no operator in namespace tensorlane-system, no webhook",
        "pods that ask run without a sidecar",
        "install the chart",
    ];
    admin.says("check", 1, &parts);
    assert_eq!(admin.checks("installation").len(), 1);
    assert!(admin.checks("webhook").is_empty() && admin.checks("peers").is_empty());
}

/// An operator runs here as a process; its Deployment and endpoints, which nobody else makes, are made by hand.
pub(crate) async fn while_an_operator_runs(server: &Server, admin: &Client, operator_token: &str) {
    let person = Person::with(server, ADMIN, "admin.kubeconfig");
    for (about, level) in [
        ("definitions", "ok"),
        ("policies", "ok"),
        ("operator", "problem"),
        ("webhook", "ok"),
        ("endpoints", "problem"),
        ("namespace", "ok"),
    ] {
        let found = person.checks(about);
        assert!(!found.is_empty() && found.iter().all(|one| one["level"] == level), "{about}: {found:?}");
    }
    // One that stood still has given its lease back, and has it again in some seconds.
    until("there is a leader", || async { (person.checks("leader")[0]["level"] == "ok").then_some(()) })
        .await;
    until("the pods of the namespace may find their peers", || async {
        (person.checks("permissions")[0]["level"] == "ok").then_some(())
    })
    .await;
    the_rest_of_an_installation_is_made(admin).await;
    for about in ["operator", "endpoints"] {
        assert_eq!(person.checks(about)[0]["level"], "ok", "{about}");
    }
    pods_are_explained(admin, &person).await;
    crate::resized::a_limit_that_is_lowered_in_place_is_told_before_it_kills(admin, &person).await;
    peers_and_routes_are_shown(server, operator_token, &person).await;
    who_may_not_read_is_told_what(server, admin).await;
}

async fn the_rest_of_an_installation_is_made(admin: &Client) {
    let deployment = installed(&["Deployment"]).remove(0);
    apply(admin, &deployment).await.unwrap();
    let ready =
        json!({"status": {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2, "updatedReplicas": 2}});
    let name = deployment["metadata"]["name"].as_str().unwrap();
    let deployments = api(admin, &deployment);
    deployments.patch_status(name, &PatchParams::default(), &Patch::Merge(&ready)).await.unwrap();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "webhook-1", "namespace": "tensorlane-system",
            "labels": {"kubernetes.io/service-name": "tensorlane-webhook"},
        },
        "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": 9443}],
    });
    create(admin, &slice, false).await.unwrap();
}

async fn pods_are_explained(admin: &Client, person: &Person) {
    person.says("explain pod/p", 1, &["the pod asked; exchange default", "sidecar"]);
    person.says("explain pod/nobody", 1, &["there is no Pod nobody", "explain what makes it"]);
    person.says("explain service/x", 1, &["there is no Service x"]);
    let template = |annotations: Value| {
        json!({
            "metadata": {"labels": {"a": "b"}, "annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.org/main"}]},
        })
    };
    let job = |name: &str, annotations: Value| {
        json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "ml"},
            "spec": {"template": template(annotations)},
        })
    };
    create(admin, &job("silent", json!({})), false).await.unwrap();
    create(admin, &job("right", json!({"tensorlane.dev/inject": "enabled"})), false).await.unwrap();
    // The pods of a Job of this name were refused before, and its owner was told.
    let wrong = json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "2GB"});
    create(admin, &job("import", wrong), false).await.unwrap();
    person.says(
        "explain job/silent",
        0,
        &["no sidecar: neither the pod", "spec.template.metadata.annotations"],
    );
    person.says("explain job/right", 0, &["its pods get a sidecar of exchange default"]);
    person.says("explain job/import", 1, &["invalid_annotation", "such as 2Gi", "event", "InjectionDenied"]);
}

async fn peers_and_routes_are_shown(server: &Server, operator_token: &str, person: &Person) {
    person.says("peers", 0, &["PEER", "p ", "q ", "default"]);
    person.says("peers --exchange other", 0, &["PEER"]);
    person.says("routes", 0, &["has not published"]);
    person.says("routes --exchange other", 1, &["there is no TensorExchange other"]);
    let operator = server.client(operator_token);
    for (name, key) in [("p", "1"), ("q", "2")] {
        let offer = json!({"versionMin": 1, "versionMax": 1, "transports": [
            {"transport": "tcp", "addresses": ["10.0.0.1:9421"], "gpuMemory": false},
        ]});
        let status = json!({"status": {
            "incarnation": key.repeat(32), "fingerprints": [format!("sha256:{}", key.repeat(64))], "offer": offer,
        }});
        let peer = json!({"apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"namespace": "ml"}});
        let patch = Patch::Merge(&status);
        api(&operator, &peer).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }
    person.says("routes", 0, &["1 x tcp, not shm: no_socket_dir"]);
    let json: Value = serde_json::from_str(&person.asks("peers -o json").text).unwrap();
    // The member of an exchange of its own is shown, too.
    let shown = json.as_array().unwrap().iter().find(|peer| peer["name"] == "p").unwrap();
    assert_eq!(shown["transports"], json!(["tcp"]));
}

/// An account of the namespace reads its peers and nothing of the installation.
async fn who_may_not_read_is_told_what(server: &Server, admin: &Client) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}});
    assert!(get(admin, &namespace).await.is_some());
    let token = crate::running::token(admin, "ml", "trainer", None).await;
    let person = Person::with(server, &token, "trainer.kubeconfig");
    for about in ["definitions", "operator", "webhook", "namespace", "permissions"] {
        let found = person.checks(about);
        assert!(found.iter().all(|one| one["level"] == "unknown"), "{about}: {found:?}");
        assert!(found[0]["found"].as_str().unwrap().contains("cannot be read"), "{found:?}");
    }
    person.says("peers", 0, &["p ", "q "]);
}
