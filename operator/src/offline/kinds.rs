//! Places of pods in objects: in those of Kubernetes, in those that training and serving are run with, and in unknown ones.

use serde_json::Value;

use crate::names::PREFIX;

/// Objects that are known, by the group of their API: places of their pods, `*` for every entry of a list or map.
///
/// Sources: the API references of Kubernetes 1.34, KubeRay 1.4, JobSet 0.10, LeaderWorkerSet 0.7, Kubeflow's training
/// operator 1.9, Kubeflow's trainer 2.1 and Volcano 1.12.
const KNOWN: &[(&str, &str, &[&str])] = &[
    ("", "Pod", &[""]),
    ("", "PodTemplate", &["/template"]),
    ("", "ReplicationController", &["/spec/template"]),
    ("apps", "Deployment", &["/spec/template"]),
    ("apps", "StatefulSet", &["/spec/template"]),
    ("apps", "DaemonSet", &["/spec/template"]),
    ("apps", "ReplicaSet", &["/spec/template"]),
    ("batch", "Job", &["/spec/template"]),
    ("batch", "CronJob", &["/spec/jobTemplate/spec/template"]),
    ("ray.io", "RayCluster", &["/spec/headGroupSpec/template", "/spec/workerGroupSpecs/*/template"]),
    (
        "ray.io",
        "RayJob",
        &[
            "/spec/rayClusterSpec/headGroupSpec/template",
            "/spec/rayClusterSpec/workerGroupSpecs/*/template",
            "/spec/submitterPodTemplate",
        ],
    ),
    (
        "ray.io",
        "RayService",
        &[
            "/spec/rayClusterConfig/headGroupSpec/template",
            "/spec/rayClusterConfig/workerGroupSpecs/*/template",
        ],
    ),
    ("jobset.x-k8s.io", "JobSet", &["/spec/replicatedJobs/*/template/spec/template"]),
    (
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        &["/spec/leaderWorkerTemplate/leaderTemplate", "/spec/leaderWorkerTemplate/workerTemplate"],
    ),
    ("kubeflow.org", "PyTorchJob", &["/spec/pytorchReplicaSpecs/*/template"]),
    ("kubeflow.org", "TFJob", &["/spec/tfReplicaSpecs/*/template"]),
    ("kubeflow.org", "MPIJob", &["/spec/mpiReplicaSpecs/*/template"]),
    ("kubeflow.org", "XGBoostJob", &["/spec/xgbReplicaSpecs/*/template"]),
    ("kubeflow.org", "PaddleJob", &["/spec/paddleReplicaSpecs/*/template"]),
    ("kubeflow.org", "JAXJob", &["/spec/jaxReplicaSpecs/*/template"]),
    ("trainer.kubeflow.org", "TrainingRuntime", &[RUNTIME]),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime", &[RUNTIME]),
    ("batch.volcano.sh", "Job", &["/spec/tasks/*/template"]),
];

/// Place of the pods in a runtime of Kubeflow's trainer, which is a template of a JobSet.
const RUNTIME: &str = "/spec/template/spec/replicatedJobs/*/template/spec/template";

/// Groups that a manifest without an `apiVersion` is taken for.
const OF_KUBERNETES: [&str; 3] = ["", "apps", "batch"];

/// Pods and templates of pods in an object, each with its place as people write it: of a kind that is known, or whatever looks like a
/// pod in an unknown one. Empty if the object makes no pods.
pub fn pods(object: &Value) -> Vec<(String, &Value)> {
    let places = known(object).unwrap_or_else(|| guessed(object));
    let pod = |place: String| Some((spoken(&place), object.pointer(&place).filter(|pod| pod.is_object())?));
    places.into_iter().filter_map(pod).collect()
}

/// Names of the volumes that a StatefulSet gives its pods besides those of its template; empty for every other object.
pub fn claim_templates(object: &Value) -> Vec<String> {
    let all = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let name = |claim: &Value| Some(claim.pointer("/metadata/name")?.as_str()?.to_owned());
    all.into_iter().flatten().filter_map(name).collect()
}

/// Paths of the pods in an object of a known kind; none where the kind is unknown.
pub(super) fn known(object: &Value) -> Option<Vec<String>> {
    let text = |name| object.get(name).and_then(Value::as_str);
    let group = text("apiVersion").map(|version| version.rsplit_once('/').map_or("", |(group, _)| group));
    let is_it = |known: &str| group.map_or(OF_KUBERNETES.contains(&known), |group| group == known);
    let kind = text("kind").unwrap_or_default();
    let (_, _, patterns) = KNOWN.iter().find(|(known, other, _)| *other == kind && is_it(known))?;
    let mut places = Vec::new();
    for pattern in *patterns {
        expand(object, String::new(), pattern, &mut places);
    }
    Some(places)
}

/// Paths of a pattern that lead somewhere.
fn expand(value: &Value, place: String, pattern: &str, places: &mut Vec<String>) {
    let Some((step, rest)) = pattern.strip_prefix('/').map(|steps| match steps.split_once('/') {
        Some((step, _)) => (step, &steps[step.len()..]),
        None => (steps, ""),
    }) else {
        places.push(place);
        return;
    };
    for (name, child) in children(value) {
        if step == "*" || step == name {
            expand(child, format!("{place}/{}", escaped(&name)), rest, places);
        }
    }
}

/// Paths of whatever looks like a pod: a `spec` with a list of containers that have names.
pub(super) fn guessed(object: &Value) -> Vec<String> {
    let mut places = Vec::new();
    guess(object, String::new(), &mut places);
    places
}

/// Recursion ends with the levels of the document, which its reader bounds.
fn guess(value: &Value, place: String, places: &mut Vec<String>) {
    let containers = value.pointer("/spec/containers").and_then(Value::as_array);
    let is_pod = containers
        .is_some_and(|list| list.iter().any(|container| container.get("name").is_some_and(Value::is_string)));
    if is_pod {
        places.push(place);
        return;
    }
    for (name, child) in children(value) {
        guess(child, format!("{place}/{}", escaped(&name)), places);
    }
}

/// Paths of the maps of annotations, wherever they are, that have one of ours: `annotations`, or `podAnnotations` and its
/// like.
pub(super) fn annotated(object: &Value) -> Vec<String> {
    let mut places = Vec::new();
    annotated_in(object, "", &mut places);
    places
}

/// Recursion ends with the levels of the document, which its reader bounds.
fn annotated_in(value: &Value, place: &str, places: &mut Vec<String>) {
    for (name, child) in children(value) {
        let place = format!("{place}/{}", escaped(&name));
        let is_map = name.to_ascii_lowercase().ends_with("annotations");
        match child.as_object() {
            Some(map) if is_map && map.keys().any(|key| key.starts_with(PREFIX)) => places.push(place),
            _ => annotated_in(child, &place, places),
        }
    }
}

fn children(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Object(map) => map.iter().map(|(name, child)| (name.clone(), child)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(number, child)| (number.to_string(), child)).collect()
        }
        _ => Vec::new(),
    }
}

/// A step of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A path as people write it: `spec.workerGroupSpecs[0].template`.
pub(super) fn spoken(place: &str) -> String {
    let mut out = String::new();
    for step in place.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        match step.parse::<usize>() {
            Ok(number) => out.push_str(&format!("[{number}]")),
            Err(_) if out.is_empty() => out.push_str(&step),
            Err(_) => out.push_str(&format!(".{step}")),
        }
    }
    out
}
