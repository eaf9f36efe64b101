//! The chart is the same installation as `manifests/install.yaml`, and refuses values that make no sense. Needs helm:
//! that of the test cluster, or the one that TENSORLANE_HELM names; without it there is nothing to compare with.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use serde_json::{Value, json};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A helm that is named must be there.
fn helm_program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TENSORLANE_HELM") {
        return Some(PathBuf::from(named));
    }
    // target/release/deps/chart-0123
    let program = std::env::current_exe().unwrap();
    let built = program.ancestors().nth(3).unwrap().join("cluster/bin/helm");
    built.exists().then_some(built)
}

fn helm(program: &Path, words: &[&str]) -> Output {
    let chart = root().join("charts/tensorlane");
    let (verb, options) = words.split_first().unwrap();
    let mut command = Command::new(program);
    command.arg(verb);
    if *verb == "template" {
        command.args(["tensorlane", "--namespace", "tensorlane-system", "--kube-version", "1.36.0"]);
    }
    command.arg(chart).args(options).output().unwrap()
}

/// What helm would install, by kind and name.
fn rendered(program: &Path, settings: &[&str]) -> BTreeMap<String, Value> {
    let output = helm(program, &[&["template"], settings].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    by_name(&String::from_utf8(output.stdout).unwrap())
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

#[test]
fn the_chart_with_its_defaults_is_the_installation_without_helm() {
    let Some(program) = helm_program() else { return eprintln!("no helm: not compared") };
    let mut chart = rendered(&program, &[]);
    let mut install = by_name(&std::fs::read_to_string(root().join("manifests/install.yaml")).unwrap());
    install.remove("Namespace/tensorlane-system").unwrap();
    for object in install.values_mut() {
        take_keep(object);
    }
    for (name, object) in &mut chart {
        let stays =
            name.starts_with("CustomResourceDefinition/") || name.starts_with("ValidatingAdmissionPolicy");
        assert_eq!(take_keep(object), stays, "{name}");
    }
    // The chart says aloud what the program does by itself.
    let pod = |object: &mut Value| object["spec"]["template"]["spec"]["containers"][0].take();
    let mut said = chart.get_mut("Deployment/tensorlane-operator").map(pod).unwrap();
    let mut meant = install.get_mut("Deployment/tensorlane-operator").map(pod).unwrap();
    let (said_args, meant_args) = (said["args"].take(), meant["args"].take());
    for one in meant_args.as_array().unwrap() {
        assert!(said_args.as_array().unwrap().contains(one), "{one} is not in {said_args}");
    }
    assert_eq!(said.as_object_mut().unwrap().remove("imagePullPolicy"), Some(json!("IfNotPresent")));
    assert_eq!(said, meant);
    assert_eq!(chart.keys().collect::<Vec<_>>(), install.keys().collect::<Vec<_>>());
    for (name, object) in &chart {
        assert_eq!(object, &install[name], "{name}");
    }
}

#[cfg(feature = "run")]
#[test]
fn the_arguments_of_the_chart_are_understood_and_are_the_defaults() {
    use clap::Parser;
    let Some(program) = helm_program() else { return eprintln!("no helm: not compared") };
    let parsed = |settings: &[&str]| {
        let chart = rendered(&program, settings);
        let container = &chart["Deployment/tensorlane-operator"]["spec"]["template"]["spec"]["containers"][0];
        let args: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
        let words =
            ["operator", "--pod-name=a", "--namespace=system"].map(str::to_owned).into_iter().chain(args);
        tensorlane_operator::app::Args::try_parse_from(words).unwrap().defaults()
    };
    let defaults = parsed(&[]);
    let planned = tensorlane_operator::plan::Defaults { image: defaults.image.clone(), ..Default::default() };
    assert_eq!(defaults, planned);
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!("sidecar.image.digest={digest}");
    let set = ["--set", &image, "--set", "sidecar.image.pullPolicy=Never,sidecar.user=0,sidecar.ipv6=true"];
    let other = parsed(&set);
    assert!(other.image.ends_with(&format!("sidecar@{digest}")), "{}", other.image);
    assert_eq!((other.image_pull_policy.as_deref(), other.user, other.ipv6), (Some("Never"), None, true));
}

#[test]
fn every_toggle_adds_or_takes_away_its_object_alone() {
    let Some(program) = helm_program() else { return eprintln!("no helm: not compared") };
    let names = |settings: &[&str]| rendered(&program, settings).into_keys().collect::<Vec<_>>();
    let usual = names(&[]);
    for (toggle, kind) in [
        ("networkPolicy", "NetworkPolicy"),
        ("podMonitor", "PodMonitor"),
        ("prometheusRule", "PrometheusRule"),
    ] {
        let with = names(&["--set", &format!("{toggle}.enabled=true")]);
        let added: Vec<_> = with.iter().filter(|name| !usual.contains(name)).collect();
        assert_eq!((added.len(), with.len()), (1, usual.len() + 1));
        assert_eq!(added[0], &format!("{kind}/tensorlane-operator"));
    }
    assert_eq!(names(&["--set", "podDisruptionBudget.enabled=false"]).len(), usual.len() - 1);
    assert_eq!(names(&["--set", "crds.install=false"]).len(), usual.len() - 2);
}

#[test]
fn helm_finds_nothing_to_complain_about_and_refuses_values_that_make_no_sense() {
    let Some(program) = helm_program() else { return eprintln!("no helm: not compared") };
    let good = helm(&program, &["lint", "--strict"]);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stdout));
    for (bad, at) in [
        ("replicas=0", "replicas"),
        ("replica=2", "replica"),
        ("sidecar.arenaSize=much", "arenaSize"),
        ("sidecar.logLevel=loud", "logLevel"),
        ("image.digest=sha256:12", "digest"),
        ("podMonitor.enabled=maybe", "enabled"),
    ] {
        let refused = helm(&program, &["lint", "--set", bad]);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&refused.stdout),
            String::from_utf8_lossy(&refused.stderr)
        );
        assert!(!refused.status.success() && said.contains(at), "{bad}: {said}");
    }
}
