//! The chart is the same installation as `manifests/install.yaml`, says what the program understands, and refuses values
//! that make no sense. Needs helm, that of the test cluster: ignored unless asked for, which `cargo xtask test` does where
//! it is there.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::{Value, json};

#[path = "chart/score.rs"]
mod score;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The program. Whoever has it not leaves these tests out: each ignores itself unless it is asked for.
fn helm_program() -> PathBuf {
    let named = std::env::var_os("TENSORLANE_CLUSTER_BIN").map(PathBuf::from);
    let target = Path::new(env!("CARGO_BIN_EXE_tensorlane-manifests")).ancestors().nth(2).unwrap();
    let program = named.unwrap_or_else(|| target.join("cluster/bin")).join("helm");
    assert!(program.is_file(), "there is no {}: `cargo xtask cluster up` gets it", program.display());
    program
}

/// The words of a command, then the chart, then options.
fn helm(program: &Path, words: &[&str], options: &[&str]) -> Output {
    let chart = root().join("charts/tensorlane");
    Command::new(program).args(words).arg(chart).args(options).output().unwrap()
}

/// Objects that helm would install, by kind and name.
fn rendered(program: &Path, settings: &[&str]) -> BTreeMap<String, Value> {
    let words = ["template", "tensorlane", "--namespace", "tensorlane-system", "--kube-version", "1.36.0"];
    let output = helm(program, &words, settings);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    by_name(&String::from_utf8(output.stdout).unwrap())
}

/// Objects without the hooks of `helm test`, which are no part of an installation.
fn installed(program: &Path, settings: &[&str]) -> BTreeMap<String, Value> {
    let mut all = rendered(program, settings);
    all.retain(|_, object| object["metadata"]["annotations"].get("helm.sh/hook").is_none());
    all
}

fn by_name(text: &str) -> BTreeMap<String, Value> {
    let documents = serde_yaml::Deserializer::from_str(text).map(|one| Value::deserialize(one).unwrap());
    let name = |object: &Value| {
        format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    };
    documents.filter(|object| !object.is_null()).map(|object| (name(&object), object)).collect()
}

/// Takes the annotation away by which helm keeps an object; says whether it was there.
fn take_keep(object: &mut Value) -> bool {
    let Some(annotations) = object["metadata"].get_mut("annotations").and_then(Value::as_object_mut) else {
        return false;
    };
    let kept = annotations.remove("helm.sh/resource-policy") == Some(json!("keep"));
    if annotations.is_empty() {
        object["metadata"].as_object_mut().unwrap().remove("annotations");
    }
    kept
}

/// Takes away the labels that say which release an object is of; they must be there.
fn take_labels_of_release(name: &str, object: &mut Value) {
    let labels = object["metadata"]["labels"].as_object_mut().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for (label, value) in [
        ("app.kubernetes.io/instance", "tensorlane".to_owned()),
        ("app.kubernetes.io/version", version.to_owned()),
        ("helm.sh/chart", format!("tensorlane-{version}")),
    ] {
        assert_eq!(labels.remove(label), Some(json!(value)), "{name}");
    }
    if labels.is_empty() {
        object["metadata"].as_object_mut().unwrap().remove("labels");
    }
}

fn args(object: &Value) -> Vec<String> {
    let container = &object["spec"]["template"]["spec"]["containers"][0];
    serde_json::from_value(container["args"].clone()).unwrap()
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn the_chart_with_its_defaults_is_the_installation_without_helm() {
    let program = helm_program();
    let mut chart = installed(&program, &[]);
    let mut install = by_name(&std::fs::read_to_string(root().join("manifests/install.yaml")).unwrap());
    install.remove("Namespace/tensorlane-system").unwrap();
    for object in install.values_mut() {
        take_keep(object);
    }
    for (name, object) in &mut chart {
        let of_peers = name.ends_with("/tensorlane-peer-status") || name == "ClusterRole/tensorlane-peer";
        assert_eq!(take_keep(object), of_peers || name.starts_with("CustomResourceDefinition/"), "{name}");
        take_labels_of_release(name, object);
    }
    // The chart says aloud what the program does by itself.
    let deployment = "Deployment/tensorlane-operator";
    let (said, meant) = (args(&chart[deployment]), args(&install[deployment]));
    assert!(meant.iter().all(|one| said.contains(one)), "not all of {meant:?} are in {said:?}");
    for all in [&mut chart, &mut install] {
        all.get_mut(deployment).unwrap()["spec"]["template"]["spec"]["containers"][0]["args"].take();
    }
    assert_eq!(chart.keys().collect::<Vec<_>>(), install.keys().collect::<Vec<_>>());
    for (name, object) in &chart {
        assert_eq!(object, &install[name], "{name}");
    }
}

#[cfg(feature = "run")]
#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn the_arguments_of_the_chart_are_understood_and_are_the_defaults() {
    use clap::Parser;
    let program = helm_program();
    let parsed = |settings: &[&str]| {
        let said = args(&installed(&program, settings)["Deployment/tensorlane-operator"]);
        let words = ["operator", "--pod-name=a", "--namespace=system"].map(str::to_owned).into_iter();
        tensorlane_operator::app::Args::try_parse_from(words.chain(said)).unwrap()
    };
    let defaults = parsed(&[]).defaults();
    let planned = tensorlane_operator::plan::Defaults { image: defaults.image.clone(), ..Default::default() };
    assert_eq!(defaults, planned);
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!("sidecar.image.digest={digest}");
    let set = [
        "--set",
        &image,
        "--set",
        "sidecar.image.pullPolicy=Never,sidecar.user=0,sidecar.ipv6=true,certManager.enabled=true",
    ];
    let all = parsed(&set);
    let other = all.defaults();
    assert!(other.image.ends_with(&format!("sidecar@{digest}")), "{}", other.image);
    assert_eq!((other.image_pull_policy.as_deref(), other.user, other.ipv6), (Some("Never"), None, true));
    assert_eq!(all.webhook_certificates, Some(PathBuf::from("/certificates")));
    assert!(all.webhook_listen.is_ipv6() && all.admin_listen.is_ipv6(), "{all:?}");
    for (arena, memory, cpu) in [("16Mi", "64Mi", "1m"), ("16Ti", "1Ti", "1000"), ("9999Gi", "999Gi", "0.5")]
    {
        let set = format!("sidecar.arenaSize={arena},sidecar.memory={memory}");
        parsed(&["--set", &set, "--set-string", &format!("sidecar.cpu={cpu}")]);
    }
    for seats in [1, 10_000] {
        let said = parsed(&["--set", &format!("sidecar.peers.max={seats}")]);
        assert_eq!(said.defaults().seats, seats);
    }
    for cpu in ["2", "1000"] {
        // A number, as people write it.
        let said = parsed(&["--set", &format!("sidecar.cpu={cpu}")]);
        let text = parsed(&["--set-string", &format!("sidecar.cpu={cpu}")]);
        assert_eq!(said.defaults(), text.defaults());
    }
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn every_toggle_adds_or_takes_away_its_objects_alone() {
    let program = helm_program();
    let names = |settings: &[&str]| installed(&program, settings).into_keys().collect::<Vec<_>>();
    let usual = names(&[]);
    let toggles: [(&str, &[&str]); 8] = [
        (
            "networkPolicy.exchanges[0].namespace=ml,networkPolicy.exchanges[0].name=a",
            &["NetworkPolicy/tensorlane-exchange-a"],
        ),
        ("sameNode.exchanges[0].namespace=ml,sameNode.exchanges[0].name=a", &["DaemonSet/tensorlane-node"]),
        (
            "sameNode.exchanges[0].namespace=ml,sameNode.exchanges[0].name=a,sameNode.exchanges[0].claim=true",
            &[
                "DaemonSet/tensorlane-node",
                "PersistentVolume/tensorlane-ml-a",
                "PersistentVolumeClaim/tensorlane-a",
            ],
        ),
        ("podMonitor.enabled=true", &["PodMonitor/tensorlane-operator", "PodMonitor/tensorlane-sidecars"]),
        ("prometheusRule.enabled=true", &["PrometheusRule/tensorlane"]),
        ("dashboard.enabled=true", &["ConfigMap/tensorlane-dashboard"]),
        (
            "certManager.enabled=true",
            &[
                "Certificate/tensorlane-webhook",
                "Certificate/tensorlane-webhook-authority",
                "Issuer/tensorlane-webhook-ca",
                "Issuer/tensorlane-webhook-root",
            ],
        ),
        (
            "certManager.enabled=true,certManager.issuerRef.kind=ClusterIssuer,certManager.issuerRef.name=internal",
            &["Certificate/tensorlane-webhook"],
        ),
    ];
    for (toggle, expected) in toggles {
        let with = names(&["--set", toggle]);
        let added: Vec<_> = with.iter().filter(|name| !usual.contains(name)).collect();
        assert_eq!(added, expected, "{toggle}");
        assert_eq!(with.len(), usual.len() + added.len(), "{toggle}");
    }
    for (toggle, missing) in [
        ("podDisruptionBudget.enabled=false", &["PodDisruptionBudget/tensorlane-operator"][..]),
        ("networkPolicy.enabled=false", &["NetworkPolicy/tensorlane-operator"]),
        (
            "crds.install=false",
            &[
                "CustomResourceDefinition/tensorexchanges.tensorlane.dev",
                "CustomResourceDefinition/tensorpeers.tensorlane.dev",
            ],
        ),
    ] {
        let with = names(&["--set", toggle]);
        let gone: Vec<_> = usual.iter().filter(|name| !with.contains(name)).collect();
        assert_eq!(gone, missing, "{toggle}");
    }
}

/// Policy that `kubectl tensorlane check` prints, compared with the one that the chart makes.
#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn the_policy_that_a_check_prints_is_that_of_the_chart() {
    let set = "networkPolicy.exchanges[0].namespace=ml,networkPolicy.exchanges[0].name=a";
    let all = installed(&helm_program(), &["--set", set]);
    let (of_the_chart, told) = (
        &all["NetworkPolicy/tensorlane-exchange-a"],
        tensorlane_operator::inspect::network::policy("ml", "a"),
    );
    assert_eq!(of_the_chart["spec"], told["spec"]);
    for field in ["name", "namespace"] {
        assert_eq!(of_the_chart["metadata"][field], told["metadata"][field]);
    }
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn values_reach_what_they_are_about() {
    let program = helm_program();
    let set = "priorityClassName=high,podMonitor.enabled=true,podMonitor.labels.release=p,podAnnotations.a=b,\
               nodeSelector.pool=x,imagePullSecrets[0].name=s,image.tag=v9,image.pullPolicy=Always,\
               networkPolicy.exchanges[0].namespace=ml,networkPolicy.exchanges[0].name=a,\
               networkPolicy.exchanges[0].otherPorts=false,certManager.enabled=true,\
               certManager.issuerRef.kind=ClusterIssuer,certManager.issuerRef.name=internal";
    let all = installed(&program, &["--set", set]);
    let template = &all["Deployment/tensorlane-operator"]["spec"]["template"];
    let pod = &template["spec"];
    assert_eq!(template["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(pod["priorityClassName"], "high");
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux", "pool": "x"}));
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "s"}]));
    assert_eq!(pod["containers"][0]["image"], "ghcr.io/tensorlane/operator:v9");
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "tensorlane-webhook-tls");
    assert_eq!(pod["containers"][0]["volumeMounts"][0]["mountPath"], "/certificates");
    let policy = &all["NetworkPolicy/tensorlane-exchange-a"];
    assert_eq!(policy["metadata"]["namespace"], "ml");
    assert_eq!(policy["spec"]["ingress"].as_array().unwrap().len(), 1, "no other port");
    assert_eq!(policy["spec"]["ingress"][0]["from"][0]["podSelector"], policy["spec"]["podSelector"]);
    assert_eq!(all["PodMonitor/tensorlane-sidecars"]["metadata"]["labels"]["release"], "p");
    assert_eq!(all["Certificate/tensorlane-webhook"]["spec"]["issuerRef"]["kind"], "ClusterIssuer");
    assert!(!all.contains_key("Issuer/tensorlane-webhook"), "an issuer was named");
    let annotations = &all["MutatingWebhookConfiguration/tensorlane"]["metadata"]["annotations"];
    assert_eq!(annotations["cert-manager.io/inject-ca-from"], "tensorlane-system/tensorlane-webhook");
}

/// Every value that has a default, by its path.
fn paths(values: &Value, above: &str) -> Vec<String> {
    let inner = values.as_object().into_iter().flatten();
    inner
        .flat_map(|(key, value)| {
            [vec![format!("{above}{key}")], paths(value, &format!("{above}{key}."))].concat()
        })
        .collect()
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn a_value_that_is_set_to_null_is_refused_by_its_name() {
    let program = helm_program();
    let values = std::fs::read_to_string(root().join("charts/tensorlane/values.yaml")).unwrap();
    let all = paths(&serde_yaml::from_str(&values).unwrap(), "");
    // Entries of maps that are people's own go away by null: amounts, labels.
    let own = ["resources.requests.", "resources.limits.", "dashboard.labels."];
    let (own, ours): (Vec<_>, Vec<_>) =
        all.iter().partition(|path| own.iter().any(|map| path.starts_with(map)));
    assert!(ours.len() > 50 && own.len() > 4, "{all:?}");
    for path in ours {
        let refused = helm(
            &program,
            &["template", "t"],
            &["--kube-version", "1.36.0", "--set", &format!("{path}=null")],
        );
        let said = String::from_utf8_lossy(&refused.stderr);
        let key = path.rsplit('.').next().unwrap();
        assert!(!refused.status.success() && said.contains(&format!("'{key}'")), "{path}: {said}");
    }
    for path in own {
        rendered(&program, &["--set", &format!("{path}=null")]);
    }
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn the_chart_is_an_optional_part_of_another_one() {
    let program = helm_program();
    let folder = tempfile::tempdir().unwrap();
    let (parent, parts) = (folder.path().join("parent"), folder.path().join("parent/charts"));
    std::fs::create_dir_all(parent.join("templates")).unwrap();
    std::fs::create_dir(&parts).unwrap();
    std::os::unix::fs::symlink(root().join("charts/tensorlane"), parts.join("tensorlane")).unwrap();
    let about = format!(
        "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies: [{{name: tensorlane, version: {}, condition: tensorlane.enabled}}]\n",
        env!("CARGO_PKG_VERSION")
    );
    std::fs::write(parent.join("Chart.yaml"), about).unwrap();
    let objects = |set: &str| {
        let mut command = Command::new(&program);
        command.args(["template", "t", "--kube-version", "1.36.0", "--set", set]).arg(&parent);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{set}: {}", String::from_utf8_lossy(&output.stderr));
        by_name(&String::from_utf8(output.stdout).unwrap()).len()
    };
    assert_eq!(objects("tensorlane.enabled=false,global.a=b"), 0);
    assert!(objects("tensorlane.enabled=true,global.a=b,tensorlane.replicas=3") > 10);
}

/// The pods of everything that is rendered, with all that may be chosen, the pods of `helm test` included.
fn pods(program: &Path, settings: &[&str]) -> Vec<(String, Value)> {
    let all = rendered(program, settings).into_iter();
    all.filter_map(|(name, object)| Some((name, object.pointer("/spec/template/spec")?.clone()))).collect()
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn every_pod_says_its_user_its_disk_and_who_may_reach_it() {
    let program = helm_program();
    let exchanges = "sameNode.exchanges[0].namespace=ml,sameNode.exchanges[0].name=a";
    for (name, pod) in pods(&program, &["--set", exchanges]) {
        for container in pod["containers"].as_array().unwrap() {
            let security = &container["securityContext"];
            let of = |key: &str| security[key].as_u64().unwrap();
            match name.as_str() {
                // It mounts, which nobody else may.
                "DaemonSet/tensorlane-node" => {
                    assert_eq!((of("runAsUser"), &security["privileged"]), (0, &json!(true)));
                }
                _ => assert!(of("runAsUser") > 10_000 && of("runAsGroup") > 10_000, "{name}: {security}"),
            }
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            for list in ["requests", "limits"] {
                let amounts = &container["resources"][list];
                assert!(amounts["ephemeral-storage"].is_string() && amounts["memory"].is_string(), "{name}");
            }
        }
    }
    for platform in ["user=0", "sidecar.user=0"] {
        for (name, pod) in pods(&program, &["--set", platform]) {
            let security = &pod["containers"][0]["securityContext"];
            assert!(security.get("runAsUser").is_none() && security.get("runAsGroup").is_none(), "{name}");
        }
    }
    let all = installed(&program, &[]);
    let policy = &all["NetworkPolicy/tensorlane-operator"]["spec"];
    let labels = &all["Deployment/tensorlane-operator"]["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&policy["podSelector"]["matchLabels"], labels);
    assert_eq!(policy["policyTypes"], json!(["Ingress"]), "policies add up: egress is for others to say");
    assert!(policy.get("egress").is_none());
    let all = installed(&program, &["--set", "ports.webhook=10250"]);
    let ports = &all["NetworkPolicy/tensorlane-operator"]["spec"]["ingress"][0]["ports"];
    assert_eq!((&ports[0]["port"], &ports[1]["port"]), (&json!(10250), &json!(9420)));
    assert!(all["Deployment/tensorlane-operator"]["spec"]["template"]["spec"].get("hostNetwork").is_none());
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn an_operator_that_pods_networks_do_not_reach_runs_in_that_of_its_node() {
    let program = helm_program();
    let set = "hostNetwork=true,ports.webhook=19443,ports.admin=19420";
    let all = installed(&program, &["--set", set]);
    let deployment = &all["Deployment/tensorlane-operator"];
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!((&pod["hostNetwork"], &pod["dnsPolicy"]), (&json!(true), &json!("ClusterFirstWithHostNet")));
    let ports = pod["containers"][0]["ports"].as_array().unwrap();
    let ports: Vec<_> = ports.iter().map(|port| port["containerPort"].as_u64().unwrap()).collect();
    assert_eq!(ports, [19443, 19420]);
    let said = args(deployment);
    for argument in ["--webhook-listen=0.0.0.0:19443", "--admin-listen=0.0.0.0:19420"] {
        assert!(said.iter().any(|one| one == argument), "{said:?}");
    }
    // A node has each port once: nothing may wait for a place beside what is to go.
    assert_eq!(deployment["spec"]["strategy"]["rollingUpdate"], json!({"maxUnavailable": 1, "maxSurge": 0}));
    assert_eq!(all["Service/tensorlane-webhook"]["spec"]["ports"][0]["targetPort"], "webhook");
    let other = &installed(&program, &["--set", "dnsPolicy=Default"])["Deployment/tensorlane-operator"];
    assert_eq!(other["spec"]["template"]["spec"]["dnsPolicy"], "Default");
    assert!(other["spec"]["template"]["spec"].get("hostNetwork").is_none());
}

#[cfg(feature = "run")]
#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn the_arguments_of_the_daemon_on_nodes_are_understood_at_the_bounds_of_the_schema() {
    use tensorlane_operator::directories::{NodeDirectory, bytes};
    let program = helm_program();
    let listed = "sameNode.exchanges[0].namespace=ml,sameNode.exchanges[0].name=a.b";
    for (size, most) in
        [("1Mi", 1_u64 << 20), ("999999Mi", 999_999 << 20), ("999Gi", 999 << 30), ("1Ti", 1 << 40)]
    {
        let all =
            installed(&program, &["--set", &format!("{listed},sameNode.bytes={size},sameNode.files=16")]);
        let said = args(&all["DaemonSet/tensorlane-node"]);
        let [said_bytes, files, exchange] = &said[..] else { panic!("{said:?}") };
        assert_eq!(bytes(said_bytes.strip_prefix("--bytes=").unwrap()), Ok(most));
        assert_eq!(files, "--files=16");
        assert_eq!(exchange.parse::<NodeDirectory>().unwrap().to_string(), "ml/a.b");
    }
}

/// All that the values change, in one file: so a change of a template is seen. TENSORLANE_GOLDEN=write writes it.
#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn all_choices_together_render_what_is_committed() {
    let program = helm_program();
    let folder = root().join("operator/tests/chart");
    let values = folder.join("everything.in.yaml").display().to_string();
    let usual = installed(&program, &[]);
    let mut all = installed(&program, &["--values", &values]);
    all.retain(|name, object| usual.get(name) != Some(object));
    // Its text is a generated file, which is compared already.
    all.get_mut("ConfigMap/tensorlane-dashboard").unwrap()["data"].take();
    let texts: Vec<String> = all.values().map(|object| serde_yaml::to_string(object).unwrap()).collect();
    let (text, golden) = (texts.join("---\n"), folder.join("everything.out.yaml"));
    if std::env::var_os("TENSORLANE_GOLDEN").is_some_and(|word| word == "write") {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&golden).unwrap());
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn helm_finds_nothing_to_complain_about_and_refuses_values_that_make_no_sense() {
    let program = helm_program();
    let good = helm(&program, &["lint", "--strict"], &[]);
    let said = String::from_utf8_lossy(&good.stdout).into_owned();
    assert!(good.status.success() && !said.contains("[WARNING]") && !said.contains("[ERROR]"), "{said}");
    for (bad, at) in [
        ("replicas=0", "replicas"),
        ("replica=2", "replica"),
        ("sidecar.arenaSize=much", "arenaSize"),
        // What the operator would not start with.
        ("sidecar.arenaSize=15Mi", "arenaSize"),
        ("sidecar.arenaSize=17Ti", "arenaSize"),
        ("sidecar.memory=63Mi", "memory"),
        ("sidecar.memory=2Ti", "memory"),
        ("sidecar.peers.max=0", "max"),
        ("sidecar.peers.max=10001", "max"),
        ("sidecar.peers.most=1000", "most"),
        ("sidecar.cpu=0", "cpu"),
        ("sidecar.cpu=0.0", "cpu"),
        ("sidecar.cpu=1001", "cpu"),
        ("sidecar.logLevel=loud", "logLevel"),
        ("image.digest=sha256:12", "digest"),
        ("podMonitor.enabled=maybe", "enabled"),
        ("networkPolicy.exchanges[0].name=a", "namespace"),
        ("dnsPolicy=None", "dnsPolicy"),
        ("ports.webhook=443", "webhook"),
        ("user=-1", "user"),
        ("sameNode.bytes=64Ki", "bytes"),
        ("sameNode.bytes=2Ti", "bytes"),
        ("sameNode.files=1", "files"),
    ] {
        let refused = helm(&program, &["lint"], &["--set", bad]);
        let said = [refused.stdout, refused.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!refused.status.success() && said.contains(at), "{bad}: {said}");
    }
    // Lint alone says this and goes on.
    let same = helm(&program, &["template"], &["--set", "ports.webhook=9420"]);
    let said = String::from_utf8_lossy(&same.stderr);
    assert!(!same.status.success() && said.contains("ports.webhook and ports.admin are the same"), "{said}");
    let claims = "sameNode.exchanges[0].namespace=ml,sameNode.exchanges[0].name=team-a,sameNode.exchanges[0].claim=true,\
                  sameNode.exchanges[1].namespace=ml-team,sameNode.exchanges[1].name=a,sameNode.exchanges[1].claim=true";
    let same = helm(&program, &["template"], &["--set", claims]);
    let said = String::from_utf8_lossy(&same.stderr);
    assert!(!same.status.success() && said.contains("PersistentVolume tensorlane-ml-team-a"), "{said}");
    let old = helm(&program, &["template", "--kube-version", "1.32.0"], &[]);
    assert!(!old.status.success() && String::from_utf8_lossy(&old.stderr).contains("1.33"));
}
