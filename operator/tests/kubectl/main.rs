//! `kubectl tensorlane` as a process, against an API server that has what a test gives it: what is asked where, what is
//! printed, and with which exit code. What a real API server says is in `apiserver`.

// A test may unwrap: the panic is its verdict.
#![allow(clippy::unwrap_used)]

mod served;
mod watching;

use serde_json::{Value, json};

use crate::served::{Served, forbidden, list};

/// Two namespaces with an exchange of the same name, and one that only has our label.
fn two_namespaces() -> Served {
    let peer = |namespace: &str, name: &str| {
        json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"exchange": "default", "podUID": "u", "node": "n1"},
            "status": {
                "incarnation": format!("{:032x}", 7),
                "offer": {"versionMin": 1, "versionMax": 1, "transports": [
                    {"transport": "tcp", "addresses": ["10.0.0.1:9421"], "gpuMemory": false},
                ]},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Published",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        })
    };
    let exchange = |namespace: &str| {
        json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
            "metadata": {"namespace": namespace, "name": "default", "generation": 1}, "spec": {},
        })
    };
    let pod = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"namespace": "rl", "name": "a", "annotations": {"tensorlane.dev/require": "same_node, encrypted"}},
    });
    let ours = "/apis/tensorlane.dev/v1alpha1";
    let served = Served::start();
    let (ml, rl) = (vec![peer("ml", "a"), peer("ml", "b")], vec![peer("rl", "a"), peer("rl", "c")]);
    served.has(&format!("{ours}/tensorpeers"), list(&[ml.clone(), rl.clone()].concat()));
    served.has(&format!("{ours}/namespaces/ml/tensorpeers"), list(&ml));
    served.has(&format!("{ours}/namespaces/rl/tensorpeers"), list(&rl));
    served.has(&format!("{ours}/tensorexchanges"), list(&[exchange("ml"), exchange("rl")]));
    served.has(&format!("{ours}/namespaces/ml/tensorexchanges"), list(&[exchange("ml")]));
    served.has(&format!("{ours}/namespaces/rl/tensorexchanges"), list(&[exchange("rl")]));
    served.has("/api/v1/pods", list(std::slice::from_ref(&pod)));
    served.has("/api/v1/namespaces/ml/pods", list(&[]));
    let labelled = json!({"metadata": {"name": "new", "labels": {"tensorlane.dev/inject": "enabled"}}});
    served.has("/api/v1/namespaces", list(std::slice::from_ref(&labelled)));
    served.has("/api/v1/namespaces/new", labelled);
    for namespace in ["ml", "rl"] {
        served.has(&format!("/api/v1/namespaces/{namespace}"), json!({"metadata": {"name": namespace}}));
    }
    served.has(
        "/apis/apps/v1/namespaces/tensorlane-system/deployments/tensorlane-operator",
        json!({"spec": {}}),
    );
    served.has(
        "/version",
        json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "",
        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
    );
    served
}

#[test]
fn peers_of_all_namespaces_say_of_which() {
    let served = two_namespaces();
    for line in ["peers -A", "peers --all-namespaces -n nowhere", "-A peers"] {
        let told = served.says(line, 0);
        let rows: Vec<Vec<&str>> = told.lines().map(|row| row.split_whitespace().take(2).collect()).collect();
        assert_eq!(
            rows,
            [["NAMESPACE", "PEER"], ["ml", "a"], ["ml", "b"], ["rl", "a"], ["rl", "c"]],
            "{told}"
        );
    }
    let told = served.says("peers -n ml", 0);
    assert!(told.starts_with("PEER  EXCHANGE") && told.lines().count() == 3, "{told}");
    let rows: Value = serde_json::from_str(&served.says("peers -A -o json", 0)).unwrap();
    assert_eq!((&rows[3]["namespace"], &rows[3]["name"]), (&json!("rl"), &json!("c")));
}

#[test]
fn routes_of_all_namespaces_are_one_matrix_for_each_exchange_with_what_its_own_pods_require() {
    let served = two_namespaces();
    let told = served.says("routes -A", 0);
    let (ml, rl) = told.split_once("\n\n").unwrap_or_else(|| panic!("{told}"));
    assert!(
        ml.starts_with("exchange default of namespace ml\n") && ml.contains("1 x tcp, not shm: "),
        "{ml}"
    );
    assert!(
        rl.starts_with("exchange default of namespace rl\n") && rl.contains("not tcp: not_same_node"),
        "{rl}"
    );
    let rows: Value = serde_json::from_str(&served.says("routes -A -o json", 0)).unwrap();
    let shown: Vec<[&str; 4]> = (rows.as_array().unwrap().iter())
        .map(|row| ["namespace", "exchange", "a", "b"].map(|key| row[key].as_str().unwrap()))
        .collect();
    assert_eq!(shown, [["ml", "default", "a", "b"], ["rl", "default", "a", "c"]]);
    assert!(
        served.says("routes -A --exchange x", 1).contains("there is no TensorExchange x in all namespaces")
    );
    assert!(served.says("routes -n ml", 0).starts_with("PEER  a"));
}

#[test]
fn an_exchange_is_asked_for_by_its_name() {
    let served = two_namespaces();
    let other = json!({
        "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorExchange",
        "metadata": {"namespace": "ml", "name": "other", "generation": 1}, "spec": {},
    });
    let path = "/apis/tensorlane.dev/v1alpha1/namespaces/ml/tensorexchanges";
    served.has(path, list(std::slice::from_ref(&other)));
    assert_eq!(served.says("routes -n ml --exchange other", 0), "PEER\n");
    let told = served.says("routes -n ml", 1);
    assert!(told.contains("there is no TensorExchange default in namespace ml"), "{told}");
    assert!(told.contains("-> `kubectl get tensorexchanges -n ml` lists"), "{told}");
}

#[test]
fn an_error_says_what_to_do() {
    let served = Served::start();
    for (line, remedy) in [
        ("peers", "`kubectl tensorlane check`"),
        ("routes", "`kubectl tensorlane check`"),
        ("check", "`kubectl tensorlane check`"),
        ("routes --context nowhere", "`kubectl config get-contexts`"),
        ("routes --kubeconfig /nowhere", "`kubectl config get-contexts`"),
    ] {
        let told = served.says(line, 1);
        assert!(
            told.starts_with("error: ") && told.contains("\n  -> ") && told.contains(remedy),
            "{line}: {told}"
        );
    }
}

#[test]
fn an_api_server_out_of_reach_has_the_same_remedy_for_every_command() {
    let served = two_namespaces();
    let gone = served.kubeconfig_of_nobody();
    for line in ["peers", "routes", "check", "explain pod/a"] {
        let told = served.says(&format!("{line} --kubeconfig {gone}"), 1);
        assert!(
            told.starts_with("error: ") && told.contains("\n  -> `kubectl version` says"),
            "{line}: {told}"
        );
        assert!(!told.contains("ask with an account"), "{line}: {told}");
    }
}

#[test]
fn files_of_kubeconfig_that_are_not_there_are_passed_over_unless_all_are() {
    let served = two_namespaces();
    let says = |list: &str| {
        let output = served.command("peers -n ml").env("KUBECONFIG", list).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    let real = served.kubeconfig().display().to_string();
    for list in [format!("/nowhere:{real}"), format!("{real}:/nowhere"), format!(":{real}:")] {
        let (code, told) = says(&list);
        assert!(code == Some(0) && told.starts_with("PEER"), "{list}: {told}");
    }
    let (code, told) = says("/nowhere:/nor-here");
    assert!(code == Some(1) && told.contains("no cluster to ask"), "{told}");
}

#[test]
fn a_check_of_all_namespaces_looks_at_each_that_uses_tensorlane() {
    let served = two_namespaces();
    let told: Value = serde_json::from_str(&served.says("check -A -o json", 1)).unwrap();
    let of = |namespace: &str, about: &str| {
        let found = told["findings"].as_array().unwrap().iter();
        found.filter(|one| one["namespace"] == namespace && one["about"] == about).count()
    };
    for namespace in ["ml", "new", "rl"] {
        assert_eq!(of(namespace, "namespace"), 1, "{told:#}");
    }
    let of_none = |one: &&Value| one["namespace"].is_null();
    let once =
        told["findings"].as_array().unwrap().iter().filter(of_none).filter(|one| one["about"] == "operator");
    assert_eq!(once.count(), 1);
    assert!(served.says("check -A", 1).contains("ml/exchanges"));
    assert!(served.says("explain pod/a -A", 2).contains("explain is about one object"));
}

/// A scaler has lowered the limit of one sidecar in place; nothing has ended it yet.
#[test]
fn a_check_names_the_pods_whose_sidecar_was_made_smaller_than_its_arena() {
    let served = two_namespaces();
    let pod = |name: &str, limit: &str| {
        let env = json!([{"name": "TENSORLANE_ARENA_SIZE", "value": "1Gi"}, {"name": "TENSORLANE_ARENA_BASE", "value": "256Mi"}]);
        let sidecar = json!({"name": "tensorlane", "image": "i", "env": env, "resources": {"limits": {"memory": limit}}});
        let labels = json!({"tensorlane.dev/injected": "true", "tensorlane.dev/exchange": "default"});
        json!({"metadata": {"name": name, "namespace": "ml", "labels": labels}, "spec": {"initContainers": [sidecar], "containers": []}})
    };
    let path = "/api/v1/namespaces/ml/pods";
    served.has(path, list(&[pod("a", "1280Mi"), pod("b", "300Mi")]));
    let told = served.says("check -n ml", 1);
    assert!(
        told.contains("what is beside it: b (300Mi of 1280Mi)\n") && told.contains("docs/scalers.md"),
        "{told}"
    );
    served.has(path, list(&[pod("a", "1280Mi"), pod("b", "1280Mi")]));
    assert!(!served.says("check -n ml", 1).contains("docs/scalers.md"));
}

/// The policy that closes the port is printed such that a shell applies it, and once it is there nothing is said of it.
#[test]
fn a_check_prints_the_policy_that_closes_the_port_for_peers_and_sees_it_once_it_is_there() {
    let served = two_namespaces();
    let told = served.says("check -n ml", 1);
    let (found, rest) = told.split_once("kubectl apply -f - <<'END'\n").unwrap_or_else(|| panic!("{told}"));
    assert!(
        found.contains("default: port 9421 of its pods is open to everyone: no NetworkPolicy selects"),
        "{told}"
    );
    let (policy, _) = rest.split_once("\nEND\n").unwrap_or_else(|| panic!("{told}"));
    let policy: Value = serde_yaml::from_str(policy).unwrap();
    assert_eq!((&policy["kind"], &policy["metadata"]["namespace"]), (&json!("NetworkPolicy"), &json!("ml")));

    let path = "/apis/networking.k8s.io/v1/namespaces/ml/networkpolicies";
    served.has(path, list(std::slice::from_ref(&policy)));
    let told = served.says("check -n ml", 1);
    assert!(told.contains("default: port 9421 is open to those alone that NetworkPolicies name"), "{told}");
    assert!(!told.contains("kubectl apply -f -"), "{told}");
}

/// A word for each kind that the API server has; objects of these have their pods in several places.
#[test]
fn an_object_of_any_kind_that_makes_pods_is_explained_pod_by_pod() {
    let served = two_namespaces();
    let resource = |plural: &str, kind: &str| {
        let response = json!({"group": "ray.io", "version": "v1", "kind": kind});
        json!({"resource": plural, "responseKind": response, "scope": "Namespaced", "singularResource": "", "verbs": ["get", "list"]})
    };
    let resources = [resource("rayclusters", "RayCluster"), resource("raythings", "RayThing")];
    let versions = json!([{"version": "v1", "resources": resources, "freshness": "Current"}]);
    let groups = |items: Value| json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
    served.has("/apis", groups(json!([{"metadata": {"name": "ray.io"}, "versions": versions}])));
    served.has("/api", groups(json!([])));
    let pod = |annotations: Value| json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "ray", "image": "i"}]}});
    let asks = json!({"tensorlane.dev/inject": "enabled"});
    let cluster = json!({
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "rollouts", "namespace": "ml"},
        "spec": {"headGroupSpec": {"template": pod(json!({}))}, "workerGroupSpecs": [{"template": pod(asks.clone())}]},
    });
    served.has("/apis/ray.io/v1/namespaces/ml/rayclusters/rollouts", cluster);
    let thing = json!({
        "apiVersion": "ray.io/v1", "kind": "RayThing", "metadata": {"name": "x", "namespace": "ml"},
        "spec": {"deep": [{"inside": pod(asks)}]},
    });
    served.has("/apis/ray.io/v1/namespaces/ml/raythings/x", thing);
    for facts in ["limitranges", "resourcequotas"] {
        served.has(&format!("/api/v1/namespaces/ml/{facts}"), list(&[]));
    }
    for word in ["raycluster", "RayClusters", "rayclusters.ray.io"] {
        let told = served.says(&format!("explain {word}/rollouts -n ml"), 3);
        assert!(told.contains("spec.headGroupSpec.template: no sidecar"), "{told}");
        assert!(told.contains("enabled in spec.headGroupSpec.template.metadata.annotations"), "{told}");
        assert!(told.contains("spec.workerGroupSpecs[0].template: its pods get a sidecar"), "{told}");
    }
    let told = served.says("explain raything/x -n ml", 3);
    assert!(told.contains("its pods get a sidecar of exchange default"), "{told}");
    let told = served.says("explain service/x -n ml", 1);
    assert!(told.contains("knows no kind \"service\"") && told.contains("kubectl api-resources"), "{told}");
}

/// A Job of a CronJob is refused its pod: the Event is on the Job, and the one of somebody else's Job is not ours.
#[test]
fn refusals_are_told_of_what_an_object_has_made_and_missing_rights_are_said() {
    let served = two_namespaces();
    for facts in ["limitranges", "resourcequotas"] {
        served.has(&format!("/api/v1/namespaces/ml/{facts}"), list(&[]));
    }
    let template = json!({"metadata": {"annotations": {"tensorlane.dev/inject": "enabled"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}});
    served.has(
        "/apis/batch/v1/namespaces/ml/cronjobs/nightly",
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "ml", "uid": "c"},
            "spec": {"jobTemplate": {"spec": {"parallelism": 3, "template": template}}},
        }),
    );
    let job = |name: &str, owner: &str| {
        let owners = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": owner, "uid": &owner[..1], "controller": true}]);
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "ml", "ownerReferences": owners}})
    };
    served.has("/apis/batch/v1/namespaces/ml/jobs/nightly-1", job("nightly-1", "cronjob"));
    served.has("/apis/batch/v1/namespaces/ml/jobs/weekly-1", job("weekly-1", "weekly"));
    let event = |job: &str, message: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": job, "namespace": "ml"}, "reason": "FailedCreate", "message": message,
            "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job}, "lastTimestamp": "2026-01-01T00:00:00Z",
        })
    };
    let events = "/api/v1/namespaces/ml/events";
    let range = "Error creating: pods \"nightly-1-\" is forbidden: runAsUser: Invalid value: 64646: must be in the ranges: [1000920000, 1000929999]";
    served.has(events, list(&[event("weekly-1", "exceeded quota"), event("nightly-1", range)]));
    let told = served.says("explain cronjob/nightly -n ml", 1);
    assert!(told.contains("its pods are refused (Job nightly-1, last at 2026-01-01T00:00:00Z)"), "{told}");
    assert!(told.contains("sidecar.user: 0") && !told.contains("exceeded quota"), "{told}");
    assert!(told.contains("3 pods: "), "{told}");

    served.has("/apis/batch/v1/namespaces/ml/jobs/nightly-1", forbidden("jobs.batch"));
    let told = served.says("explain cronjob/nightly -n ml", 3);
    assert!(
        told.contains("who made it cannot be read: Job nightly-1: ")
            && told.contains("jobs.batch is forbidden"),
        "{told}"
    );
    served.has(events, forbidden("events"));
    let told = served.says("explain cronjob/nightly -n ml", 3);
    assert!(
        told.contains("the Events cannot be read: ") && told.contains("its pods get a sidecar"),
        "{told}"
    );
}
