//! Words of `kubectl tensorlane` and `tensorlane check` of a real cluster. What they say while something is down stands
//! in `cluster_outages`. Needs `cargo xtask cluster up`, the images on the nodes, and the program `kubectl-tensorlane`.

use serde_json::{Value, json};
use tensorlane_operator::plan::{Decision, Defaults, Facts, plan};
use tensorlane_tests::asked::{Answer, kubectl_tensorlane, tensorlane_in};
use tensorlane_tests::cluster::{NODES, eventually, image};
use tensorlane_tests::installed::Exchange;
use tensorlane_tests::kubernetes::{create, event, kubectl_with};
use tensorlane_tests::pod::{Pod, PodOptions, SIDECAR, container_status};

#[test]
fn a_cluster_in_order_is_told_so_and_who_is_there_and_which_way_bytes_go() {
    let exchange = Exchange::new();
    let pods = NODES.map(|node| Pod::start(&exchange, node, &PodOptions::on(node)));
    exchange.await_peers(pods.len());
    let asks = |words: &[&str]| kubectl_tensorlane(exchange.name(), words);
    let in_order = [
        "tensorexchanges.tensorlane.dev is served",
        "tensorpeers.tensorlane.dev is served",
        "2 of 2 replicas are ready",
        "pods.tensorlane.dev has its bundle",
        "2 behind the webhook's Service",
        "pods that say tensorlane.dev/inject: enabled get a sidecar",
        "default: all 2 peers can be reached",
        "pods may find their peers",
        "all 2 are ready",
        "port 9421 of its pods is open to everyone: no NetworkPolicy selects them",
    ];
    Answer::first(|answer| answer.is(0, &in_order), || asks(&["check"])).says(0, &in_order);
    let told = Answer::first(|answer| answer.is(0, &[]), || asks(&["check", "--output=json"])).json();
    assert_eq!((&told["problems"], &told["unknown"]), (&json!(0), &json!(0)), "{told:#}");
    let found = told["findings"].as_array().unwrap();
    // A namespace that is just made has no policy.
    let (network, others): (Vec<_>, Vec<_>) = found.iter().partition(|one| one["about"] == "network");
    assert!(others.iter().all(|one| one["level"] == "ok"), "{told:#}");
    assert_eq!(network[0]["level"], "note", "{told:#}");

    for pod in &pods {
        let words = ["explain", &format!("pod/{}", pod.name())];
        asks(&words).says(0, &["the pod asked; exchange default, arena 64Mi", "it is ready"]);
    }
    asks(&["peers"]).says(0, &["PEER", "node1", "node2", "True", "tcp", ":9421"]);
    let peers = asks(&["peers", "--output=json"]).json();
    for (peer, pod) in peers.as_array().unwrap().iter().zip(&pods) {
        let object = pod.object();
        assert_eq!(
            (&peer["name"], &peer["node"]),
            (&object["metadata"]["name"], &object["spec"]["nodeName"])
        );
        let address = format!("{}:9421", object["status"]["podIP"].as_str().unwrap());
        assert_eq!(peer["addresses"], json!([address]));
    }
    asks(&["routes"]).says(0, &["1 x tcp, not shm: no_socket_dir"]);
    asks(&["routes", "--exchange=other"]).says(1, &["there is no TensorExchange other"]);

    for node in NODES {
        let connected = [
            "a sidecar answers in /run/tensorlane",
            "free",
            "1 of 1 connected",
            "none refused",
            "1 by tcp, not shm: ",
        ];
        let check = || tensorlane_in(exchange.name(), node, &["check"]);
        Answer::first(|answer| answer.is(0, &connected), check).says(0, &connected);
    }
}

/// A Deployment whose pods say this of themselves.
fn deployment(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": annotations},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": image("workload"), "command": ["sleep", "3600"]}],
                },
            },
        },
    })
}

#[test]
fn why_something_has_no_sidecar_is_told_with_what_to_do() {
    let exchange = Exchange::new();
    let asks = |words: &[&str]| kubectl_tensorlane(exchange.name(), words);
    let wrong = json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "2GB"});
    for (name, annotations) in [("silent", json!({})), ("wrong", wrong)] {
        let told = create(exchange.name(), &deployment(name, &annotations).to_string());
        assert!(told.done, "{}", told.err);
    }
    asks(&["explain", "deployment/silent"]).says(
        0,
        &["no sidecar: neither the pod", "to ask for one: tensorlane.dev/inject: enabled in spec.template"],
    );
    let pod = eventually("the Deployment that says nothing has its pod", || {
        exchange.pods("app=silent").first().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
    });
    exchange.wait_for("Ready", &format!("pod/{pod}"));
    asks(&["explain", &format!("pod/{pod}")]).says(0, &["no sidecar: neither the pod", "before it is made"]);
    let has = ["there is no directory /run/tensorlane", "`kubectl tensorlane explain pod/NAME` says why"];
    tensorlane_in(exchange.name(), &pod, &["check"]).says(1, &has);

    eventually("the Deployment is told why it has no pods", || {
        event(exchange.name(), "Deployment", "wrong", "InjectionDenied")
    });
    let parts =
        ["it asked and cannot be served (invalid_annotation", "such as 2Gi", "event", "InjectionDenied: "];
    asks(&["explain", "deployment/wrong"]).says(1, &parts);
    asks(&["explain", "pod/nobody"]).says(1, &["there is no Pod nobody", "explain what makes it"]);
    asks(&["explain", "configmap/kube-root-ca.crt"]).says(1, &["it makes no pods"]);
    asks(&["explain", "service/x"]).says(1, &["there is no Service x"]);
    asks(&["explain", "thing/x"]).says(1, &["knows no kind \"thing\"", "kubectl api-resources"]);
}

/// Asks for another amount of memory of a container, as people and scalers do, and waits until the kubelet has given it.
fn resize(exchange: &Exchange, pod: &Pod<'_>, (list, name): (&str, &str), memory: &str) {
    let resources = json!({"requests": {"memory": memory}, "limits": {"memory": memory}});
    let patch = json!({"spec": {list: [{"name": name, "resources": resources}]}}).to_string();
    exchange.kubectl(&["patch", "pod", pod.name(), "--subresource=resize", "--patch", &patch]);
    eventually(&format!("{name} has {memory}"), || {
        let now = container_status(&pod.object(), name)["resources"]["limits"]["memory"].clone();
        (now == memory).then_some(())
    });
}

#[test]
fn a_sidecar_that_was_made_smaller_in_place_goes_on_and_says_so_and_containers_beside_it_are_no_matter() {
    let exchange = Exchange::new();
    let mut pod = Pod::start(&exchange, "resized", &PodOptions::on("node1").limited("64Mi"));
    exchange.await_peer("resized");
    pod.put("kept", 1 << 20, 1);
    assert_eq!(pod.ask("acquire kept", "acquired"), "1");
    let looks = ["--namespace", exchange.name(), "exec", "resized", "--container=tensorlane", "--"];
    let check = || kubectl_with(&[&looks[..], &["tensorlane", "check"]].concat(), "");
    let kills = "beside it: the next put may end the sidecar";
    resize(&exchange, &pod, ("containers", "main"), "96Mi");
    let told = check();
    let number = "limit 320.0 MiB, arena 64.0 MiB and 256.0 MiB beside it";
    assert!(told.out.contains(number) && !told.out.contains(kills), "{}{}", told.out, told.err);
    resize(&exchange, &pod, ("initContainers", SIDECAR), "200Mi");
    let told = check();
    assert!(told.out.contains("limit 200.0 MiB") && told.out.contains(kills), "{}{}", told.out, told.err);
    assert!(!told.done, "{}", told.out);
    kubectl_tensorlane(exchange.name(), &["check"]).says(1, &["resized (200Mi of 320Mi)"]);
    assert_eq!(pod.ask("verify", "intact"), "1");
    assert_eq!((pod.restarts("main"), pod.restarts(SIDECAR)), (0, 0));
}

/// A pod in words that readers of YAML take differently: octal modes, merge keys, anchors, quoted words, numbers with underscores.
const ODD: &str = r#"# Source: trainer
apiVersion: v1
kind: Pod
metadata:
  name: odd
  annotations: {tensorlane.dev/inject: enabled, note: "0400", when: 2001-01-01, answer: 'on'}
spec:
  terminationGracePeriodSeconds: 1_0
  hostIPC: off
  volumes:
  - {name: s, secret: {secretName: s, defaultMode: 0400}}
  containers:
  - &main
    name: main
    image: registry.example.org/x:1
    command: [sh, -c, "set -e\n# on a line\n\techo 'yes: no'  \n"]
    env: [{name: A, value: "yes"}, {name: B, value: "0x10"}, {name: C, value: "\x85é\U0001F600"}]
    readinessProbe: {tcpSocket: {port: 0x50}, periodSeconds: 010}
  - {<<: *main, name: other}
"#;

#[test]
fn what_inject_prints_is_to_kubectl_the_input_with_the_plan_and_nothing_else() {
    let read = |yaml: &str| {
        let words = ["annotate", "--local", "--filename=-", "--output=json", "read=true"];
        kubectl_with(&words, yaml).object()
    };
    let before = read(ODD);
    assert_eq!(before.pointer("/spec/volumes/0/secret/defaultMode"), Some(&json!(256)), "{before:#}");
    let injected = tensorlane_operator::offline::inject(ODD, "default", &Defaults::default()).unwrap();
    assert!(injected.yaml.starts_with("# Source: trainer\n"), "{}", injected.yaml);
    let Decision::Inject(planned) = plan(&before, &Facts::default()).decision else {
        panic!("it asks: {before:#}")
    };
    assert_eq!(read(&injected.yaml), read(&planned.pod.to_string()), "{}", injected.yaml);
}
