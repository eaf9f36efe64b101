//! Places of pods in objects: in those of Kubernetes, in those that training and serving are run with, and in unknown ones.

use serde_json::Value;

use super::counts::Count;
use crate::names::PREFIX;

/// Places of the pods of a kind, and how many pods come of each.
type Places = &'static [(&'static str, Count)];

/// Objects that are known, by the group of their API: places of their pods, `*` for every entry of a list or map, and how many
/// pods come of each.
///
/// Sources: the API reference of Kubernetes 1.34, that of Volcano 1.12, and the definitions of KubeRay 1.5, JobSet 0.10, LeaderWorkerSet
/// 0.7, Kubeflow's training operator 1.9 and Kubeflow's trainer 2.1, by which a test tries them.
pub(super) const KNOWN: &[(&str, &str, Places)] = &[
    ("", "Pod", &[("", Count::One)]),
    ("", "PodTemplate", &[("/template", Count::One)]),
    ("", "ReplicationController", &[("/spec/template", Count::Replicas(1))]),
    ("apps", "Deployment", &[("/spec/template", Count::Replicas(1))]),
    ("apps", "StatefulSet", &[("/spec/template", Count::Replicas(1))]),
    ("apps", "DaemonSet", &[("/spec/template", Count::Nodes)]),
    ("apps", "ReplicaSet", &[("/spec/template", Count::Replicas(1))]),
    ("batch", "Job", &[("/spec/template", Count::Job)]),
    ("batch", "CronJob", &[("/spec/jobTemplate/spec/template", Count::Job)]),
    (
        "ray.io",
        "RayCluster",
        &[
            ("/spec/headGroupSpec/template", Count::One),
            ("/spec/workerGroupSpecs/*/template", Count::RayWorkers),
        ],
    ),
    (
        "ray.io",
        "RayJob",
        &[
            ("/spec/rayClusterSpec/headGroupSpec/template", Count::One),
            ("/spec/rayClusterSpec/workerGroupSpecs/*/template", Count::RayWorkers),
            ("/spec/submitterPodTemplate", Count::One),
        ],
    ),
    (
        "ray.io",
        "RayService",
        &[
            ("/spec/rayClusterConfig/headGroupSpec/template", Count::One),
            ("/spec/rayClusterConfig/workerGroupSpecs/*/template", Count::RayWorkers),
        ],
    ),
    ("jobset.x-k8s.io", "JobSet", &[("/spec/replicatedJobs/*/template/spec/template", Count::Jobs)]),
    (
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        &[
            ("/spec/leaderWorkerTemplate/leaderTemplate", Count::Leaders),
            ("/spec/leaderWorkerTemplate/workerTemplate", Count::Workers),
        ],
    ),
    ("kubeflow.org", "PyTorchJob", &[("/spec/pytorchReplicaSpecs/*/template", Count::Replicas(1))]),
    ("kubeflow.org", "TFJob", &[("/spec/tfReplicaSpecs/*/template", Count::Replicas(1))]),
    ("kubeflow.org", "MPIJob", &[("/spec/mpiReplicaSpecs/*/template", Count::Replicas(1))]),
    ("kubeflow.org", "XGBoostJob", &[("/spec/xgbReplicaSpecs/*/template", Count::Replicas(1))]),
    ("kubeflow.org", "PaddleJob", &[("/spec/paddleReplicaSpecs/*/template", Count::Replicas(1))]),
    ("kubeflow.org", "JAXJob", &[("/spec/jaxReplicaSpecs/*/template", Count::Replicas(1))]),
    ("trainer.kubeflow.org", "TrainingRuntime", &[(RUNTIME, Count::Runtime)]),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime", &[(RUNTIME, Count::Runtime)]),
    ("batch.volcano.sh", "Job", &[("/spec/tasks/*/template", Count::Replicas(0))]),
];

/// Place of the pods in a runtime of Kubeflow's trainer, which is a template of a JobSet.
const RUNTIME: &str = "/spec/template/spec/replicatedJobs/*/template/spec/template";

/// Groups that a manifest without an `apiVersion` is taken for.
const OF_KUBERNETES: [&str; 3] = ["", "apps", "batch"];

/// Pod or template of pods in an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Template<'a> {
    /// Place in the object as people write it; empty for a pod itself.
    pub place: String,
    /// Itself.
    pub pod: &'a Value,
    /// Number of pods that the object makes of it; none where the object does not say.
    pub count: Option<u64>,
}

/// Pods and templates of pods in an object: of a kind that is known, or whatever looks like a pod in an unknown one. Empty if the object
/// makes no pods.
pub fn pods(object: &Value) -> Vec<Template<'_>> {
    let counted = |places: Vec<(String, Count)>| {
        let count = |(place, count): (String, Count)| (count.of(object, &place), place);
        places.into_iter().map(count).collect()
    };
    let uncounted = || guessed(object).into_iter().map(|place| (None, place)).collect();
    let places: Vec<(Option<u64>, String)> = known(object).map_or_else(uncounted, counted);
    let template = |(count, place): (Option<u64>, String)| {
        let pod = object.pointer(&place).filter(|pod| pod.is_object())?;
        Some(Template { place: spoken(&place), pod, count })
    };
    places.into_iter().filter_map(template).collect()
}

/// Names of the volumes that a StatefulSet gives its pods besides those of its template; empty for every other object.
pub fn claim_templates(object: &Value) -> Vec<String> {
    let all = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
    let name = |claim: &Value| Some(claim.pointer("/metadata/name")?.as_str()?.to_owned());
    all.into_iter().flatten().filter_map(name).collect()
}

/// Paths of the pods in an object of a known kind, and how they are counted; none where the kind is unknown.
pub(super) fn known(object: &Value) -> Option<Vec<(String, Count)>> {
    let text = |name| object.get(name).and_then(Value::as_str);
    let group = text("apiVersion").map(|version| version.rsplit_once('/').map_or("", |(group, _)| group));
    let is_it = |known: &str| group.map_or(OF_KUBERNETES.contains(&known), |group| group == known);
    let kind = text("kind").unwrap_or_default();
    let (_, _, patterns) = KNOWN.iter().find(|(known, other, _)| *other == kind && is_it(known))?;
    let mut places = Vec::new();
    for (pattern, count) in *patterns {
        let mut found = Vec::new();
        expand(object, String::new(), pattern, &mut found);
        places.extend(found.into_iter().map(|place| (place, *count)));
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
    let lists = lists(object).into_iter();
    lists.filter_map(|place| place.strip_suffix("/spec/containers").map(str::to_owned)).collect()
}

/// Places of the lists of containers that have names and are in no template, such as `predictor.containers` of KServe and
/// `podSpec.containers` of Grove: whoever makes pods of them adds the rest.
pub fn without_template(object: &Value) -> Vec<String> {
    let lists = lists(object).into_iter().filter(|place| !place.ends_with("/spec/containers"));
    lists.map(|place| spoken(&place)).collect()
}

/// Paths of the lists of containers that have names, wherever they are.
fn lists(object: &Value) -> Vec<String> {
    let mut places = Vec::new();
    lists_in(object, "", &mut places);
    places
}

/// Recursion ends with the levels of the document, which its reader bounds.
fn lists_in(value: &Value, place: &str, places: &mut Vec<String>) {
    for (name, child) in children(value) {
        let place = format!("{place}/{}", escaped(&name));
        let containers = child.as_array().filter(|_| name == "containers");
        let is_named = |one: &Value| one.get("name").is_some_and(Value::is_string);
        match containers.is_some_and(|all| all.iter().any(is_named)) {
            true => places.push(place),
            false => lists_in(child, &place, places),
        }
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
