//! A row or more for each kind that is known: its specification, and how many pods it makes of each template.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::kinds::{KNOWN, pods};

/// Version, kind, specification, and the pods of each template.
type Row = (&'static str, &'static str, &'static str, &'static [Option<u64>]);

/// Specifications as people write them. `T` stands for a template of a pod.
const ROWS: &[Row] = &[
    ("v1", "PodTemplate", "", &[Some(1)]),
    ("v1", "ReplicationController", "{replicas: 3, template: T}", &[Some(3)]),
    ("apps/v1", "Deployment", "{template: T}", &[Some(1)]),
    ("apps/v1", "Deployment", "{replicas: 0, template: T}", &[Some(0)]),
    ("apps/v1", "StatefulSet", "{replicas: 5, template: T}", &[Some(5)]),
    ("apps/v1", "ReplicaSet", "{replicas: 2, template: T}", &[Some(2)]),
    // Without a status nobody knows the nodes.
    ("apps/v1", "DaemonSet", "{template: T}", &[None]),
    ("batch/v1", "Job", "{template: T}", &[Some(1)]),
    ("batch/v1", "Job", "{parallelism: 4, template: T}", &[Some(4)]),
    ("batch/v1", "Job", "{parallelism: 8, completions: 3, template: T}", &[Some(3)]),
    ("batch/v1", "Job", "{completions: 3, template: T}", &[Some(1)]),
    ("batch/v1", "CronJob", "{jobTemplate: {spec: {parallelism: 6, template: T}}}", &[Some(6)]),
    ("ray.io/v1", "RayCluster", RAY, &[Some(1), Some(4), Some(6), Some(2), Some(0), Some(0)]),
    (
        "ray.io/v1",
        "RayJob",
        "{rayClusterSpec: {headGroupSpec: {template: T}, workerGroupSpecs: [{replicas: 7, template: T}]}, submitterPodTemplate: T}",
        &[Some(1), Some(7), Some(1)],
    ),
    (
        "ray.io/v1",
        "RayService",
        "{rayClusterConfig: {headGroupSpec: {template: T}, workerGroupSpecs: [{replicas: 7, maxReplicas: 5, template: T}]}}",
        &[Some(1), Some(5)],
    ),
    (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        "{replicatedJobs: [{name: driver, template: {spec: {template: T}}}, \
          {name: workers, replicas: 3, template: {spec: {parallelism: 4, completions: 4, template: T}}}]}",
        &[Some(1), Some(12)],
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "{replicas: 2, leaderWorkerTemplate: {size: 4, leaderTemplate: T, workerTemplate: T}}",
        &[Some(2), Some(6)],
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "{replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: T}}",
        &[Some(8)],
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        "{leaderWorkerTemplate: {leaderTemplate: T, workerTemplate: T}}",
        &[Some(1), Some(0)],
    ),
    (
        "kubeflow.org/v1",
        "PyTorchJob",
        "{pytorchReplicaSpecs: {Master: {template: T}, Worker: {replicas: 8, template: T}}}",
        &[Some(1), Some(8)],
    ),
    (
        "kubeflow.org/v1",
        "TFJob",
        "{tfReplicaSpecs: {Chief: {replicas: 1, template: T}, PS: {replicas: 2, template: T}}}",
        &[Some(1), Some(2)],
    ),
    (
        "kubeflow.org/v1",
        "MPIJob",
        "{mpiReplicaSpecs: {Launcher: {template: T}, Worker: {replicas: 9, template: T}}}",
        &[Some(1), Some(9)],
    ),
    ("kubeflow.org/v1", "XGBoostJob", "{xgbReplicaSpecs: {Worker: {replicas: 2, template: T}}}", &[Some(2)]),
    (
        "kubeflow.org/v1",
        "PaddleJob",
        "{paddleReplicaSpecs: {Worker: {replicas: 3, template: T}}}",
        &[Some(3)],
    ),
    ("kubeflow.org/v1", "JAXJob", "{jaxReplicaSpecs: {Worker: {replicas: 4, template: T}}}", &[Some(4)]),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", RUNTIME, &[Some(1), Some(16)]),
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", RUNTIME, &[Some(1), Some(16)]),
    (
        "batch.volcano.sh/v1alpha1",
        "Job",
        "{minAvailable: 1, tasks: [{replicas: 1, template: T}, {replicas: 6, template: T}]}",
        &[Some(1), Some(6)],
    ),
    // What nobody knows here says nothing.
    ("example.org/v1", "Fleet", "{replicas: 3, template: T}", &[None]),
];

const RAY: &str = "{headGroupSpec: {template: T}, workerGroupSpecs: [{replicas: 4, template: T}, {replicas: 3, numOfHosts: 2, template: T}, \
    {minReplicas: 2, maxReplicas: 9, template: T}, {replicas: 5, suspend: true, template: T}, {template: T}]}";

const RUNTIME: &str = "{mlPolicy: {numNodes: 16}, template: {spec: {replicatedJobs: [\
    {name: dataset-initializer, template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}, spec: {template: T}}}, \
    {name: node, template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}, spec: {template: T}}}]}}}";

fn object(version: &str, kind: &str, spec: &str) -> Value {
    let template = "{metadata: {}, spec: {containers: [{name: main}]}}";
    let spec: Value = serde_yaml::from_str(&spec.replace(": T", &format!(": {template}"))).unwrap();
    let template: Value = serde_yaml::from_str(template).unwrap();
    json!({"apiVersion": version, "kind": kind, "spec": spec, "template": template})
}

fn counts(object: &Value) -> Vec<Option<u64>> {
    pods(object).into_iter().map(|template| template.count).collect()
}

#[test]
fn every_kind_says_how_many_pods_it_makes_of_each_template() {
    for (version, kind, spec, right) in ROWS {
        let mut object = object(version, kind, spec);
        if *kind != "PodTemplate" {
            object.as_object_mut().unwrap().remove("template");
        }
        assert_eq!(counts(&object), *right, "{kind} {spec}");
    }
    let group = |version: &str| version.rsplit_once('/').map_or("", |(group, _)| group).to_owned();
    let tried: BTreeSet<_> = ROWS.iter().map(|(version, kind, ..)| (group(version), *kind)).collect();
    let untried = |(of, kind, _): &&(&str, &'static str, _)| !tried.contains(&((*of).to_owned(), *kind));
    let untried: Vec<_> = KNOWN.iter().filter(untried).map(|(_, kind, _)| *kind).collect();
    assert_eq!(untried, ["Pod"], "a pod is one, and has no template");
}

#[test]
fn a_pod_is_one_and_the_nodes_of_a_daemon_set_are_in_its_status() {
    let pod = json!({"kind": "Pod", "spec": {"containers": []}});
    assert_eq!(counts(&pod), [Some(1)]);
    let mut daemons = object("apps/v1", "DaemonSet", "{template: T}");
    daemons["status"] = json!({"desiredNumberScheduled": 40});
    assert_eq!(counts(&daemons), [Some(40)]);
}

#[test]
fn numbers_beyond_every_cluster_are_held_at_their_end() {
    let most = i64::MAX;
    let set = format!("{{replicas: {most}, leaderWorkerTemplate: {{size: {most}, workerTemplate: T}}}}");
    assert_eq!(counts(&object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", &set)), [Some(u64::MAX)]);
}
