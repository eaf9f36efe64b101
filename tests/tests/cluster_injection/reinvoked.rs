//! Somebody else's admission that changes a pod after our webhook: it is asked again, and what comes out has each part once.
//! Needs `cargo xtask cluster up`, Kubernetes 1.36 or later, and the images on the nodes.

use serde_json::{Value, json};
use tensorlane_tests::cluster::{cluster, eventually, image, succeeds, succeeds_with};
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::try_create;
use tensorlane_tests::pod::SIDECAR;

/// A policy that adds a container to every pod of a namespace that has a sidecar already; it goes with this. Policies run
/// before webhooks, so it sees the sidecar only when it is asked a second time, and then our webhook has been there.
struct Adder {
    name: String,
}

impl Adder {
    fn new(namespace: &str) -> Self {
        let adder = Self { name: format!("adder-{namespace}") };
        let is_injected = format!(
            "has(object.spec.initContainers) && object.spec.initContainers.exists(c, c.name == '{SIDECAR}')"
        );
        let expression = format!(
            "{is_injected} && !object.spec.containers.exists(c, c.name == 'late') ? \
             [JSONPatch{{op: 'add', path: '/spec/containers/-', value: Object.spec.containers{{\
             name: 'late', image: '{}', command: ['sleep', '3600']}}}}] : []",
            image("workload")
        );
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": adder.name},
            "spec": {
                "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "resourceRules": [{
                        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
                    }],
                },
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": adder.name}, "spec": {"policyName": adder.name},
        });
        for object in [policy, binding] {
            succeeds_with(&["kubectl", "apply", "--filename=-"], &object.to_string());
        }
        adder
    }
}

impl Drop for Adder {
    fn drop(&mut self) {
        // It is gone already where it could not be made.
        for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
            cluster(&["kubectl", "delete", "--ignore-not-found", kind, &self.name]);
        }
    }
}

fn asking(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "32Mi"}},
        "spec": {
            "nodeName": "node1", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": image("workload"), "command": ["sleep", "3600"]}],
        },
    })
}

/// The names in a list of an object.
fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect()
}

/// Number of entries of a list that have this name.
fn times(list: &Value, name: &str) -> usize {
    names(list).into_iter().filter(|other| *other == name).count()
}

#[test]
fn a_container_that_comes_after_the_sidecar_gets_the_sockets_too_and_nothing_comes_twice() {
    let exchange = Exchange::new();
    let kinds =
        succeeds(&["kubectl", "api-resources", "--api-group=admissionregistration.k8s.io", "--output=name"]);
    assert!(kinds.contains("mutatingadmissionpolicies"), "Kubernetes 1.36 has them: {kinds}");
    let alone = try_create(exchange.name(), &asking("alone").to_string()).object();
    let _adder = Adder::new(exchange.name());
    // Policies are read by the API server a moment after they are written.
    eventually("the policy adds its container", || {
        let tried = try_create(exchange.name(), &asking("tried").to_string());
        (tried.done && names(&tried.object()["spec"]["containers"]).contains(&"late")).then_some(())
    });

    exchange.apply(&asking("pod"));
    let pod = exchange.get("pod/pod");
    let spec = &pod["spec"];
    assert_eq!(names(&spec["containers"]), ["main", "late"], "what the other one did stays");
    assert_eq!(names(&spec["initContainers"]), [SIDECAR]);
    let own = |list: &Value| {
        names(list)
            .into_iter()
            .filter(|name| name.starts_with("tensorlane"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(own(&spec["volumes"]), own(&alone["spec"]["volumes"]), "each volume once");
    for container in spec["containers"].as_array().unwrap() {
        assert_eq!(times(&container["env"], "TENSORLANE_SOCKETS"), 1, "{container}");
        let mounts = container["volumeMounts"].as_array().unwrap();
        let sockets = mounts.iter().filter(|mount| mount["mountPath"] == "/run/tensorlane");
        assert_eq!(sockets.count(), 1, "{container}");
    }
    // The second time it is the same sidecar as the first, and the record names both containers.
    assert_eq!(spec["initContainers"][0]["env"], alone["spec"]["initContainers"][0]["env"]);
    let status = pod["metadata"]["annotations"]["tensorlane.dev/status"].as_str().unwrap();
    assert!(status.contains("main") && status.contains("late"), "{status}");

    exchange.wait_for("Ready", "pod/pod");
    for container in ["main", "late"] {
        let said = exchange.kubectl(&["exec", "pod", "--container", container, "--", "tensorlane", "status"]);
        assert!(said.contains("pod"), "{container}: {said}");
    }
}
