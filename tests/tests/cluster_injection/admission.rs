//! Fate of a pod that asks, whoever makes it and wherever: who gets a sidecar, who is refused with what remedy, and
//! who is told. Needs `cargo xtask cluster up` and the images on the nodes.

use serde_json::{Value, json};
use tensorlane_tests::asked::kubectl_tensorlane;
use tensorlane_tests::cluster::{NODES, Namespace, eventually, image};
use tensorlane_tests::installed::{Exchange, install};
use tensorlane_tests::kubernetes::{Told, create, event, try_create};
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR};

/// A pod that asks, which no node is given to: what is asked here is decided before.
fn asking(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "64Mi"}},
        "spec": {"schedulerName": "nobody", "containers": [main()]},
    })
}

fn main() -> Value {
    json!({"name": "main", "image": image("workload"), "command": ["sleep", "3600"]})
}

fn annotate(pod: &mut Value, key: &str, value: &str) {
    pod["metadata"]["annotations"][format!("tensorlane.dev/{key}")] = json!(value);
}

/// The pod that is made, with its sidecar, which comes first.
#[track_caller]
fn injected(told: &Told) -> (Value, Value) {
    let pod = told.object();
    let sidecar = pod["spec"]["initContainers"][0].clone();
    assert_eq!(
        (&sidecar["name"], &sidecar["restartPolicy"]),
        (&json!("tensorlane"), &json!("Always")),
        "{pod}"
    );
    (pod, sidecar)
}

/// Asserts the words with which a pod is refused in a namespace of its own, with these objects in it.
#[track_caller]
fn refused(namespace: &Namespace, pod: &Value, parts: &[&str]) {
    let told = try_create(namespace.name(), &pod.to_string());
    let refusal = told.refusal();
    assert!(parts.iter().all(|part| refusal.contains(part)), "{parts:?} are not in:\n{refusal}");
}

/// Waits until the quota controller has counted: nothing is made in the namespace before.
fn await_quota(namespace: &Namespace) {
    eventually("the quota is counted", || {
        let quota = namespace.get("resourcequota/all");
        (!quota["status"]["hard"].is_null()).then_some(())
    });
}

/// A template of pods that ask, with an annotation that is misspelt.
fn template(app: &str, spec: &Value) -> Value {
    let mut pod = asking("x");
    annotate(&mut pod, "arena-sise", "64Mi");
    let mut whole = pod["spec"].clone();
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"metadata": {"labels": {"app": app}, "annotations": pod["metadata"]["annotations"]}, "spec": whole})
}

fn owner(group: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": group, "kind": kind, "metadata": {"name": kind.to_lowercase()}, "spec": spec})
}

/// Owners: one of each kind that makes pods.
fn owners() -> [Value; 5] {
    let with = |app: &str, mut spec: Value| {
        spec["selector"] = json!({"matchLabels": {"app": app}});
        spec["template"] = template(app, &json!({}));
        spec
    };
    let job = json!({"template": template("job", &json!({"restartPolicy": "Never"}))});
    let yearly = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}});
    [
        owner("apps/v1", "Deployment", with("deployment", json!({"replicas": 1}))),
        owner("apps/v1", "StatefulSet", with("statefulset", json!({"replicas": 1, "serviceName": "x"}))),
        owner("apps/v1", "DaemonSet", with("daemonset", json!({}))),
        owner("batch/v1", "Job", job),
        owner("batch/v1", "CronJob", yearly),
    ]
}

#[test]
fn whoever_makes_pods_is_warned_of_typos_and_its_pods_are_injected_and_it_has_events() {
    install();
    let namespace = Namespace::new();
    for object in owners() {
        let told = create(namespace.name(), &object.to_string());
        assert!(told.done, "{}", told.err);
        let warning = "not known to Tensorlane, and without effect: tensorlane.dev/arena-sise";
        assert!(told.err.contains(warning), "{}: {}", object["kind"], told.err);
    }
    namespace.kubectl(&["create", "job", "--from=cronjob/cronjob", "by-hand"]);
    let owners = [
        ("Deployment", "deployment", "app=deployment"),
        ("StatefulSet", "statefulset", "app=statefulset"),
        ("DaemonSet", "daemonset", "app=daemonset"),
        ("Job", "job", "job-name=job"),
        ("CronJob", "cronjob", "job-name=by-hand"),
    ];
    for (kind, name, label) in owners {
        let pod = eventually(&format!("{kind} {name} has a pod"), || {
            let pods = namespace.kubectl(&["get", "pods", "--selector", label, "--output=json"]);
            let pods: Value = serde_json::from_str(&pods).unwrap();
            pods["items"].as_array()?.first().cloned()
        });
        assert_eq!(pod["spec"]["initContainers"][0]["name"], "tensorlane", "{kind} {name}");
        let what = format!("{kind} {name} has its Events");
        let (injected, warned) = eventually(&what, || {
            let of = |reason| event(namespace.name(), kind, name, reason);
            Some((of("Injected")?, of("InjectionWarning")?))
        });
        assert!(injected.contains("exchange \"default\""), "{injected}");
        assert!(warned.contains("did you mean tensorlane.dev/arena-size?"), "{warned}");
    }
}

#[test]
fn a_pod_with_typos_is_made_and_its_author_warned() {
    install();
    let namespace = Namespace::new();
    let mut pod = asking("typos");
    annotate(&mut pod, "exchnage", "training");
    let told = try_create(namespace.name(), &pod.to_string());
    injected(&told);
    let warning = "Warning: tensorlane: the annotation tensorlane.dev/exchnage is not known and has no effect; did you mean tensorlane.dev/exchange?";
    assert!(told.err.contains(warning), "{}", told.err);
}

#[test]
fn values_that_make_no_sense_are_denied_with_the_remedy_and_the_owner_is_told() {
    install();
    let namespace = Namespace::new();
    let mut pod = asking("wrong");
    annotate(&mut pod, "arena-size", "2GB");
    annotate(&mut pod, "log-level", "loud");
    let remedies = ["tensorlane.dev/arena-size", "2GB", "such as 2Gi", "error, warn, info, debug or trace"];
    refused(&namespace, &pod, &remedies);
    let mut unclear = asking("unclear");
    annotate(&mut unclear, "inject", "yes");
    refused(&namespace, &unclear, &["tensorlane.dev/inject", "enabled or disabled"]);
    let mut lost = asking("lost");
    annotate(&mut lost, "exchange", "nowhere");
    refused(&namespace, &lost, &["there is no TensorExchange \"nowhere\"", "make it, or correct"]);

    let mut wrong = template("wrong", &json!({}));
    wrong["metadata"]["annotations"]["tensorlane.dev/arena-size"] = json!("2GB");
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "wrong"}}, "template": wrong});
    let told = create(namespace.name(), &owner("apps/v1", "Deployment", spec).to_string());
    let warning = "the pods will be refused: tensorlane.dev/arena-size must be bytes from 16Mi to 16Ti";
    assert!(told.done && told.err.contains(warning), "{}", told.err);
    let denied = eventually("the Deployment is told why it has no pods", || {
        event(namespace.name(), "Deployment", "deployment", "InjectionDenied")
    });
    assert!(denied.contains("such as 2Gi"), "{denied}");
}

#[test]
fn an_annotation_in_the_wrong_place_is_warned_of() {
    install();
    let namespace = Namespace::new();
    let mut plain = template("plain", &json!({}));
    plain["metadata"]["annotations"] = json!({});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "plain"}}, "template": plain});
    let mut deployment = owner("apps/v1", "Deployment", spec);
    deployment["metadata"]["annotations"] = json!({"tensorlane.dev/inject": "enabled"});
    let told = try_create(namespace.name(), &deployment.to_string());
    assert!(told.done && told.err.contains("put it on the pods, under template.metadata"), "{}", told.err);
}

#[test]
fn pods_that_cannot_be_served_are_refused_and_pods_that_do_not_ask_are_left_alone() {
    install();
    let namespace = Namespace::new();
    let mut host = asking("host");
    host["spec"]["hostNetwork"] = json!(true);
    refused(
        &namespace,
        &host,
        &["hostNetwork: true", "set hostNetwork: false, or tensorlane.dev/inject: disabled"],
    );
    let mut sets = asking("sets");
    annotate(&mut sets, "sets", "data/sets");
    refused(&namespace, &sets, &["names the volume \"data\"", "add it to spec.volumes, or correct the name"]);
    let mut taken = asking("taken");
    taken["spec"]["volumes"] = json!([{"name": "mine", "emptyDir": {}}]);
    taken["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "mine", "mountPath": "/run/tensorlane"}]);
    let remedies = [
        "\"main\" mounts a volume at \"/run/tensorlane\"",
        "leave the container out with tensorlane.dev/containers",
    ];
    refused(&namespace, &taken, &remedies);
    taken["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "other", "image": image("workload")}));
    annotate(&mut taken, "containers", "other");
    let (pod, _) = injected(&try_create(namespace.name(), &taken.to_string()));
    assert_eq!(
        pod["spec"]["containers"][0]["volumeMounts"][0]["name"], "mine",
        "nothing of the user's is moved"
    );

    for mut pod in [host, asking("silent")] {
        pod["metadata"]["annotations"] = json!({});
        let made = try_create(namespace.name(), &pod.to_string());
        assert!(made.err.is_empty(), "{}", made.err);
        assert!(made.object()["spec"]["initContainers"].is_null());
    }
}

/// As the plugin of a network or of GPUs, in a namespace that somebody has labelled: a node needs it to come up.
#[test]
fn daemons_of_the_nodes_networks_in_a_labelled_namespace_are_told_why_they_are_refused_and_run_once_they_want_none()
 {
    install();
    let namespace = Namespace::new();
    namespace.kubectl(&["label", "namespace", namespace.name(), "tensorlane.dev/inject=enabled"]);
    let labels = json!({"app": "daemon"});
    let spec = json!({"hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [main()]});
    let spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}});
    let told = create(namespace.name(), &owner("apps/v1", "DaemonSet", spec).to_string());
    assert!(told.done, "{}", told.err);
    let refused =
        eventually("it is told", || event(namespace.name(), "DaemonSet", "daemonset", "FailedCreate"));
    assert!(refused.contains("set hostNetwork: false, or tensorlane.dev/inject: disabled"), "{refused}");
    let check = || kubectl_tensorlane(namespace.name(), &["check"]);
    check().says(
        1,
        &["whose pods are refused: daemonset", "tensorlane.dev/inject: disabled in their templates"],
    );

    let said =
        json!({"spec": {"template": {"metadata": {"annotations": {"tensorlane.dev/inject": "disabled"}}}}});
    namespace.kubectl(&["patch", "daemonset", "daemonset", "--patch", &said.to_string()]);
    eventually("it runs on each node", || {
        (namespace.get("daemonset/daemonset")["status"]["numberReady"] == NODES.len()).then_some(())
    });
    let told = check();
    assert!(!told.text.contains("whose pods are refused"), "{}", told.text);
}

/// Neither the webhook nor a policy that needs it is asked there: a cluster must get up without us. A pod that asks is
/// told all the same.
#[test]
fn a_pod_that_asks_in_an_excluded_namespace_is_refused_and_others_are_left_alone() {
    install();
    let told = try_create("kube-system", &asking("asks").to_string());
    let remedy = "namespace \"kube-system\" is excluded from Tensorlane: use another one";
    assert!(told.refusal().contains(remedy), "{}", told.err);
    let mut silent = asking("silent");
    silent["metadata"]["annotations"] = json!({});
    assert!(try_create("kube-system", &silent.to_string()).done);
}

#[test]
fn limit_ranges_are_kept() {
    install();
    let namespace = Namespace::new();
    let range = |spec: &Value| {
        let object = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "all"}, "spec": {"limits": [spec]}});
        namespace.apply(&object);
    };
    range(
        &json!({"type": "Container", "default": {"cpu": "300m", "memory": "32Mi"}, "max": {"cpu": "1", "memory": "512Mi"}}),
    );
    let mut fits = asking("fits");
    fits["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "50m"}});
    let (pod, sidecar) = injected(&try_create(namespace.name(), &fits.to_string()));
    // The default is for those who say nothing: the sidecar says what it needs.
    let limits = json!({"cpu": "300m", "memory": "320Mi"});
    let requests = json!({"cpu": "100m", "ephemeral-storage": "64Mi", "memory": "320Mi"});
    assert_eq!(sidecar["resources"], json!({"limits": limits, "requests": requests}));
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "32Mi");
    let mut large = asking("large");
    annotate(&mut large, "arena-size", "1Gi");
    let numbers = ["1280Mi", "512Mi", "LimitRange \"all\"", "make tensorlane.dev/arena-size smaller"];
    refused(&namespace, &large, &numbers);
    range(&json!({"type": "Pod", "max": {"memory": "384Mi"}}));
    let mut sum = asking("sum");
    sum["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "128Mi"}});
    refused(&namespace, &sum, &["the pod with its sidecar needs 448Mi", "384Mi a pod"]);
}

#[test]
fn resource_quotas_are_kept() {
    install();
    let namespace = Namespace::new();
    let hard =
        json!({"limits.cpu": "1", "limits.memory": "1Gi", "requests.cpu": "1", "requests.memory": "1Gi"});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": hard}});
    namespace.apply(&quota);
    await_quota(&namespace);
    let mut pod = asking("fits");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "200m", "memory": "64Mi"}});
    let (made, sidecar) = injected(&create(namespace.name(), &pod.to_string()));
    // A quota on limits refuses whoever has none.
    let limits = json!({"cpu": "100m", "memory": "320Mi"});
    assert_eq!(sidecar["resources"]["limits"], limits);
    assert_eq!(made["status"]["qosClass"], "Guaranteed", "as it would have been without a sidecar");
    let used = eventually("the pod is counted with its sidecar", || {
        let used = namespace.get("resourcequota/all")["status"]["used"].clone();
        (used["limits.cpu"] == "300m").then_some(used)
    });
    assert_eq!(used["limits.memory"], "384Mi");
    pod["metadata"]["name"] = json!("large");
    annotate(&mut pod, "arena-size", "512Mi");
    let sum =
        ["832Mi of ", "64Mi of its own and 768Mi for the sidecar", "640Mi left of 1Gi", "raise the quota"];
    refused(&namespace, &pod, &sum);
}

#[test]
fn the_resources_of_a_pod_as_a_whole_are_raised_by_what_the_sidecar_takes() {
    install();
    let namespace = Namespace::new();
    let mut pod = asking("whole");
    pod["spec"]["resources"] =
        json!({"limits": {"cpu": "500m", "memory": "128Mi"}, "requests": {"memory": "128Mi"}});
    let (made, sidecar) = injected(&try_create(namespace.name(), &pod.to_string()));
    assert_eq!(made["spec"]["resources"]["limits"], json!({"cpu": "600m", "memory": "448Mi"}));
    assert_eq!(made["spec"]["resources"]["requests"]["memory"], "448Mi");
    assert_eq!(sidecar["resources"]["requests"]["memory"], "320Mi");
}

/// Checks that what the sidecar was promised is there: its arena is filled to the end, and nobody is killed for it.
fn fills_its_arena(pod: &mut Pod<'_>) {
    let filled: u64 = pod.ask("fill 2097152 1", "filled").parse().unwrap();
    assert!(filled >= 28, "{filled} times 2 MiB of 64 MiB");
    assert_eq!(pod.ask("verify", "intact"), filled.to_string());
    assert_eq!((pod.restarts("main"), pod.restarts(SIDECAR)), (0, 0));
}

#[test]
fn pods_under_a_limit_range_or_limited_as_a_whole_run_and_fill_their_arenas() {
    let exchange = Exchange::new();
    let mut whole = Pod::start(&exchange, "whole", &PodOptions::on("node1").limited_as_a_whole("64Mi"));
    let limit = whole.object()["spec"]["resources"]["limits"]["memory"].clone();
    // 64Mi for the user, 64Mi for the arena, and 256Mi, the base of the sidecar.
    assert_eq!(limit, "384Mi");
    fills_its_arena(&mut whole);
    let limits = json!([{
        "type": "Container", "default": {"cpu": "300m", "memory": "48Mi"}, "max": {"cpu": "1", "memory": "384Mi"},
    }]);
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "all"}, "spec": {"limits": limits}});
    exchange.apply(&range);
    // The API server remembers for half a minute that there was none.
    let mut plain = asking("plain");
    annotate(&mut plain, "inject", "disabled");
    eventually("the range is known", || {
        let made = try_create(exchange.name(), &plain.to_string()).object();
        (made["spec"]["containers"][0]["resources"]["limits"]["memory"] == "48Mi").then_some(())
    });
    let mut ranged = Pod::start(&exchange, "ranged", &PodOptions::on("node2"));
    let containers = ranged.object()["spec"]["containers"].clone();
    assert_eq!(containers[0]["resources"]["limits"]["memory"], "48Mi", "the default is the user's");
    fills_its_arena(&mut ranged);
}

/// Nobody of these says anything of Tensorlane. No node has such devices: what is asked here is decided before.
#[test]
fn in_a_namespace_that_wants_it_pods_with_gpus_are_injected_without_being_asked() {
    let exchange = Exchange::with("{inject: {gpuPods: true}}");
    let silent = |extra: Value| {
        let mut pod = asking("gpu");
        pod["metadata"]["annotations"] = json!({});
        let device = extra.as_object().unwrap().clone();
        pod["spec"]["containers"][0].as_object_mut().unwrap().extend(device);
        pod
    };
    let has_sidecar = |told: &Told| told.object()["spec"]["initContainers"][0]["name"] == SIDECAR;
    let is_injected = |pod: &Value| has_sidecar(&try_create(exchange.name(), &pod.to_string()));
    let limited = silent(json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}));
    // Until then such a pod is made without one, or refused because it has none.
    eventually("the entry of the namespace is called", || {
        let told = try_create(exchange.name(), &limited.to_string());
        (told.done && has_sidecar(&told)).then_some(())
    });

    let template = |name: &str, class: &str| {
        let request = json!({"name": "one", "exactly": {"deviceClassName": class}});
        exchange.apply(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }));
        let mut pod = silent(json!({"resources": {"claims": [{"name": "device"}]}}));
        pod["spec"]["resourceClaims"] = json!([{"name": "device", "resourceClaimTemplateName": name}]);
        pod
    };
    assert!(is_injected(&template("one-gpu", "gpu.nvidia.com")));
    assert!(!is_injected(&template("one-nic", "nic.example.com")));
    assert!(!is_injected(&silent(json!({}))), "no device");
    let mut unwilling = limited.clone();
    annotate(&mut unwilling, "inject", "disabled");
    assert!(!is_injected(&unwilling), "the pod wins");
    let elsewhere = Namespace::new();
    let made = try_create(elsewhere.name(), &limited.to_string()).object();
    assert!(made["spec"]["initContainers"].is_null(), "this namespace wants nothing");
}

/// With everything at once that such pods have.
#[test]
fn a_restricted_guaranteed_pod_with_init_containers_of_its_own_runs_and_its_init_containers_put() {
    let exchange = Exchange::new();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    exchange.kubectl(&["label", "namespace", exchange.name(), label]);
    let mut pod = asking("strict");
    let resources = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    let security = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = |name: &str, line: &str| {
        json!({
            "name": name, "image": image("workload"), "command": ["sh", "-c", line],
            "resources": resources, "securityContext": security,
        })
    };
    // A safetensors file: the length of its head, the head, four bytes.
    let head = r#"{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let put = format!(
        "printf '\\{:o}\\0\\0\\0\\0\\0\\0\\0%sabcd' '{head}' > /tmp/f; tensorlane put /tmp/f --name early",
        head.len()
    );
    let get = "tensorlane get early/t --to /tmp/g && exec sleep 3600";
    pod["spec"] = json!({
        "terminationGracePeriodSeconds": 5,
        "initContainers": [container("before", &put)],
        "containers": [container("main", get)],
    });
    let (made, sidecar) = injected(&create(exchange.name(), &pod.to_string()));
    assert_eq!(made["status"]["qosClass"], "Guaranteed");
    assert_eq!(made["spec"]["initContainers"][1]["name"], "before");
    assert_eq!(sidecar["resources"]["limits"]["memory"], json!(format!("{}Mi", 64 + 256)));
    exchange.wait_for("Ready", "pod/strict");
    eventually("the tensor of the init container is read", || {
        let got = exchange.try_kubectl(&["exec", "strict", "--container=main", "--", "cat", "/tmp/g"])?;
        got.ends_with("abcd").then_some(())
    });
    let status = exchange.get("pod/strict")["status"].clone();
    let restarts = ["initContainerStatuses", "containerStatuses"].map(|list| {
        let all = status[list].as_array().unwrap();
        all.iter().map(|one| one["restartCount"].as_u64().unwrap()).sum::<u64>()
    });
    assert_eq!(restarts, [0, 0]);
}
