//! The test cluster is a real one: two nodes that share nothing, sidecars, names, Services, logs, and services that can be
//! killed and started. Needs `cargo xtask cluster up` and the images `sidecar` and `workload` on the nodes.

use tensorlane_tests::cluster::{NODES, Namespace, cluster, eventually, image, items, reads, succeeds};
use tensorlane_tests::installed::condition;

/// A pod of the image `workload` on a node, running a line of shell; `spec` goes into its spec.
fn pod(name: &str, node: &str, line: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeName: {node}
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    imagePullPolicy: IfNotPresent
    command: [sh, -c, {line:?}]
{spec}",
        image = image("workload"),
    )
}

/// A line of shell that serves what it is told at port 8080, for ever.
fn server(says: &str) -> String {
    format!("mkdir /tmp/www && echo {says} > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www")
}

#[test]
fn both_nodes_are_ready_and_are_kubernetes_1_36() {
    // A kubelet that was started again for another test may say that it is not, at first.
    let nodes = eventually("both are ready", || {
        let nodes = items(&reads(&["kubectl", "get", "nodes", "--output", "json"]));
        nodes.iter().all(|node| condition(node, "Ready").is("True")).then_some(nodes)
    });
    assert_eq!(nodes.len(), NODES.len());
    for node in nodes {
        assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.36.3");
    }
}

#[test]
fn a_native_sidecar_has_started_before_the_users_container_on_each_node() {
    let namespace = Namespace::new();
    for node in NODES {
        let sidecar = format!(
            "  initContainers:
  - name: beside
    image: {}
    restartPolicy: Always
    command: [sh, -c, 'touch /shared/started && sleep 3600']
    startupProbe: {{exec: {{command: [test, -f, /shared/started]}}, periodSeconds: 1}}
    volumeMounts: [{{name: shared, mountPath: /shared}}]
  volumes: [{{name: shared, emptyDir: {{medium: Memory}}}}]
",
            image("workload")
        );
        let line = "test -f /shared/started && echo it was there";
        let mount = "    volumeMounts: [{name: shared, mountPath: /shared}]\n";
        namespace.apply(&pod(node, node, line, &format!("{mount}{sidecar}")));
        namespace.wait_until_succeeded(node);
        assert_eq!(namespace.logs(node, "main"), "it was there\n");
        assert_eq!(namespace.get(&format!("pod/{node}"))["spec"]["nodeName"], node);
    }
}

#[test]
fn pods_reach_pods_of_the_other_node_and_services_by_name() {
    let namespace = Namespace::new();
    for node in NODES {
        namespace.apply(&pod(node, node, &server(node), ""));
        // Not the pod's name: that one is in the pod's own hosts file, and leads past the Service.
        let name = format!("--name=at-{node}");
        namespace.kubectl(&["expose", "pod", node, &name, "--port=80", "--target-port=8080"]);
    }
    for node in NODES {
        namespace.wait_for("Ready", &format!("pod/{node}"));
    }
    let address = |node: &str| {
        let pod = namespace.get(&format!("pod/{node}"));
        pod["status"]["podIP"].as_str().unwrap().to_owned()
    };
    for (from, to) in [("node1", "node2"), ("node2", "node1"), ("node1", "node1")] {
        let service = format!("at-{to}");
        let full = format!("{service}.{}.svc.cluster.local", namespace.name());
        for (host, port) in [(address(to), 8080), (service, 80), (full, 80)] {
            // kube-proxy learns of a Service a moment after the API server has it.
            // (busybox wget 1.35 crashes on `-T` with a name.)
            let line = format!("timeout 5 wget -q -O - http://{host}:{port}/");
            let what = format!("{from} hears {to} at {host}:{port}");
            eventually(&what, || {
                let said = namespace.try_kubectl(&["exec", from, "--", "sh", "-c", &line])?;
                (said.trim() == to).then_some(())
            });
        }
    }
}

#[test]
fn a_job_with_a_native_sidecar_completes() {
    let namespace = Namespace::new();
    let image = image("workload");
    namespace.apply(&format!(
        "apiVersion: batch/v1
kind: Job
metadata: {{name: work}}
spec:
  template:
    spec:
      restartPolicy: Never
      initContainers:
      - {{name: beside, image: '{image}', restartPolicy: Always, command: [sh, -c, 'trap \"exit 0\" TERM; while true; do sleep 1; done']}}
      containers:
      - {{name: main, image: '{image}', command: [sh, -c, 'echo done']}}
"
    ));
    namespace.wait_for("complete", "job/work");
    assert_eq!(namespace.kubectl(&["logs", "job/work", "--container", "main"]), "done\n");
}

#[test]
fn nodes_share_no_host_path_and_no_logs() {
    let namespace = Namespace::new();
    let host = |path: &str| {
        format!(
            "    securityContext: {{runAsUser: 0}}
    volumeMounts: [{{name: host, mountPath: /host}}]
  volumes: [{{name: host, hostPath: {{path: {path}}}}}]
"
        )
    };
    for path in ["/run/tensorlane", "/var/lib/tensorlane"] {
        for node in NODES {
            let name = format!("{}-{node}", path.split('/').nth(1).unwrap());
            let line = format!("echo {name} > /host/{name} && ls /host");
            let with_path = host(path).replace("path: /", "type: DirectoryOrCreate, path: /");
            namespace.apply(&pod(&name, node, &line, &with_path));
            namespace.wait_until_succeeded(&name);
            assert_eq!(namespace.logs(&name, "main"), format!("{name}\n"), "{path} is the node's own");
        }
    }
    namespace.apply(&pod("looks", "node2", "ls /host", &host("/var/log/pods")));
    namespace.wait_until_succeeded("looks");
    let seen = namespace.logs("looks", "main");
    let directory = |pod: &str| format!("{}_{pod}_", namespace.name());
    assert!(seen.contains(&directory("run-node2")), "{seen}");
    assert!(!seen.contains(&directory("run-node1")), "node 1's logs are nobody else's: {seen}");
}

#[test]
fn the_sidecar_image_is_not_root_and_needs_no_writable_root_file_system() {
    let namespace = Namespace::new();
    let (sidecar, workload) = (image("sidecar"), image("workload"));
    namespace.kubectl(&[
        "label",
        "namespace",
        namespace.name(),
        "pod-security.kubernetes.io/enforce=restricted",
    ]);
    let security = "securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}";
    namespace.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: exchange}}
spec:
  terminationGracePeriodSeconds: 5
  initContainers:
  - name: tensorlane
    image: {sidecar}
    restartPolicy: Always
    env: [{{name: TENSORLANE_ARENA_SIZE, value: 64Mi}}, {{name: TENSORLANE_ARENA_BASE, value: 96Mi}}, {{name: TENSORLANE_ADMIN_LISTEN, value: '0.0.0.0:9420'}}]
    startupProbe: {{httpGet: {{path: /startupz, port: 9420}}, periodSeconds: 1, failureThreshold: 60}}
    resources: {{limits: {{memory: 192Mi}}}}
    {security}
    volumeMounts: [{{name: sockets, mountPath: /run/tensorlane}}, {{name: state, mountPath: /var/lib/tensorlane}}]
  containers:
  - name: main
    image: {workload}
    command: [sh, -c, 'sleep 3600']
    {security}
    volumeMounts: [{{name: sockets, mountPath: /run/tensorlane, readOnly: true}}]
  volumes:
  - {{name: sockets, emptyDir: {{medium: Memory}}}}
  - {{name: state, emptyDir: {{medium: Memory}}}}
"
    ));
    namespace.wait_for("Ready", "pod/exchange");
    let status = namespace.shell("exchange", "main", "tensorlane --output json status && id -u");
    assert!(status.trim_end().ends_with("64646") && status.contains("arena"), "{status}");
    let written = namespace.try_kubectl(&["exec", "exchange", "--", "sh", "-c", "echo x > /tmp/x"]);
    assert_eq!(written, None, "nothing outside of volumes can be written");
}

#[test]
fn a_node_whose_kubelet_and_containerd_died_keeps_its_pods() {
    let namespace = Namespace::new();
    namespace.apply(&pod("stays", "node2", "date +%s%N > /dev/termination-log; exec sleep 3600", ""));
    namespace.wait_for("Ready", "pod/stays");
    let before = namespace.get("pod/stays")["status"]["containerStatuses"][0]["containerID"].clone();
    let ready = || condition(&namespace.get("node/node2"), "Ready");
    let heard_before = ready().0["lastHeartbeatTime"].clone();
    assert!(!heard_before.is_null(), "{:?}", ready());
    succeeds(&["stop", "node2.kubelet", "node2.containerd"]);
    let status = cluster(&["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let stopped: Vec<_> = status.lines().filter(|line| line.contains("stopped")).collect();
    assert_eq!(stopped.len(), 2, "{status}");
    // What only a living kubelet, containerd and container can answer. A kubelet ends where containerd is not ready yet,
    // and is started again, as a service manager does.
    eventually("the pod answers again", || {
        succeeds(&["start", "node2.containerd", "node2.kubelet"]);
        namespace.try_kubectl(&["exec", "stays", "--", "true"])
    });
    eventually("the node is ready, and says so itself", || {
        let ready = ready();
        (ready.is("True") && ready.0["lastHeartbeatTime"] != heard_before).then_some(())
    });
    let after = &namespace.get("pod/stays")["status"]["containerStatuses"][0];
    assert_eq!((&after["containerID"], &after["restartCount"]), (&before, &0.into()));
}
