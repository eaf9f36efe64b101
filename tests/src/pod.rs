//! Pods that ask for a sidecar, with a workload in them that a test talks to through two pipes in a directory which the
//! nodes share with the test: it goes on hearing and answering whatever of Kubernetes is dead.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{self, Namespace, eventually, image};
use crate::dialogue::{Dialogue, END};
use crate::kubernetes::try_create;
use crate::process::Orphan;
use crate::sidecar::bin_dir;

/// Options by which a pod is made.
#[derive(Debug, Clone)]
pub struct PodOptions {
    /// The node that it is put on.
    pub node: &'static str,
    /// Annotations beside `inject`, by their last parts.
    pub annotations: Vec<(&'static str, String)>,
    /// The memory limit of the workload's container; none without one.
    pub memory: Option<&'static str>,
    /// The memory limit of the pod as a whole; none without one.
    pub whole: Option<&'static str>,
}

/// A pod with a workload that has a session with its sidecar.
#[derive(Debug)]
pub struct Pod<'a> {
    namespace: &'a Namespace,
    name: String,
    dialogue: Dialogue,
    pipes: TempDir,
}

impl PodOptions {
    /// A pod on a node, with a small arena.
    pub fn on(node: &'static str) -> Self {
        let annotations = vec![("arena-size", "64Mi".to_owned())];
        Self { node, annotations, memory: None, whole: None }
    }

    /// With an annotation, by the last part of its key.
    #[must_use]
    pub fn annotated(mut self, key: &'static str, value: &str) -> Self {
        self.annotations.retain(|(other, _)| *other != key);
        self.annotations.push((key, value.to_owned()));
        self
    }

    /// With a memory limit for the workload's container.
    #[must_use]
    pub fn limited(mut self, memory: &'static str) -> Self {
        self.memory = Some(memory);
        self
    }

    /// With a memory limit for the pod as a whole.
    #[must_use]
    pub fn limited_as_a_whole(mut self, memory: &'static str) -> Self {
        self.whole = Some(memory);
        self
    }

    fn manifest(&self, name: &str, pipes: &Path) -> String {
        let annotations: String = self
            .annotations
            .iter()
            .map(|(key, value)| format!(", tensorlane.dev/{key}: {value:?}"))
            .collect();
        let limits = |memory: Option<&str>| {
            memory.map(|memory| format!("limits: {{memory: {memory}}}")).unwrap_or_default()
        };
        let (limits, whole) = (limits(self.memory), limits(self.whole));
        format!(
            "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{tensorlane.dev/inject: enabled{annotations}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 5
  resources: {{{whole}}}
  containers:
  - name: main
    image: {image}
    command: [sh, -c, 'exec /programs/workload /run/tensorlane < /pipes/in > /pipes/out']
    resources: {{{limits}}}
    volumeMounts:
    - {{name: programs, mountPath: /programs, readOnly: true}}
    - {{name: pipes, mountPath: /pipes}}
  volumes:
  - {{name: programs, hostPath: {{path: {programs}, type: Directory}}}}
  - {{name: pipes, hostPath: {{path: {pipes}, type: Directory}}}}
",
            node = self.node,
            image = image("workload"),
            programs = bin_dir().display(),
            pipes = pipes.display(),
        )
    }
}

impl<'a> Pod<'a> {
    /// Makes one, and waits until its workload has its session.
    ///
    /// # Panics
    /// Where that does not come about.
    pub fn start(namespace: &'a Namespace, name: &str, options: &PodOptions) -> Self {
        let mut pod = Self::make(namespace, name, options);
        pod.await_session();
        pod
    }

    /// Makes one, and does not wait for it.
    ///
    /// # Panics
    /// Where the API server refuses it.
    pub fn make(namespace: &'a Namespace, name: &str, options: &PodOptions) -> Self {
        let (pipes, dialogue) = pipes();
        namespace.apply(&options.manifest(name, pipes.path()));
        Self { namespace, name: name.to_owned(), dialogue, pipes }
    }

    /// Makes one as the webhook would, but with variables for its sidecar that no annotation sets, and does not wait for it.
    /// What is made in the end asks for nothing, so the webhook leaves it as it is.
    ///
    /// # Panics
    /// Where the API server refuses it.
    pub fn make_with(
        namespace: &'a Namespace,
        name: &str,
        options: &PodOptions,
        variables: &[(&str, &str)],
    ) -> Self {
        let (pipes, dialogue) = pipes();
        let tried = try_create(namespace.name(), &options.manifest(name, pipes.path())).object();
        namespace.apply(&configured(&tried, variables));
        Self { namespace, name: name.to_owned(), dialogue, pipes }
    }

    /// Waits until the workload has its session: after the start, and after each restart of its container.
    ///
    /// # Panics
    /// Where that does not come about; says what the pod is like.
    pub fn await_session(&mut self) {
        let answer = self.dialogue.try_answer(cluster::PATIENCE);
        if answer.as_deref() != Some("ready") {
            let pod = format!("pod/{}", self.name);
            panic!("{pod} does not begin, {answer:?}:\n{}", self.namespace.kubectl(&["describe", &pod]));
        }
    }

    /// Name of the pod, which is that of its peer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Itself, as Kubernetes has it.
    pub fn object(&self) -> Value {
        self.namespace.get(&format!("pod/{}", self.name))
    }

    /// Puts so many bytes under a name, and gives their reference.
    pub fn put(&mut self, name: &str, bytes: u64, seed: u64) -> String {
        self.ask(&format!("put {name} {bytes} {seed}"), "put")
    }

    /// The first process of one of its containers, `main` or `tensorlane`. A workload answers before Kubernetes has written down which
    /// container it is in.
    ///
    /// # Panics
    /// Where the container does not run.
    pub fn process(&self, container: &str) -> Orphan {
        Orphan::adopt(self.first_process(container))
    }

    fn first_process(&self, container: &str) -> u32 {
        let what = format!("{container} of {} runs", self.name);
        eventually(&what, || first_process(&container_status(&self.object(), container)))
    }

    /// The names of what a directory of one of its containers holds, sorted.
    ///
    /// # Panics
    /// Where the container does not run, or has no such directory.
    pub fn listed(&self, container: &str, directory: &str) -> Vec<String> {
        let process = self.first_process(container);
        let seen = format!("/proc/{process}/root{directory}");
        let entries =
            fs::read_dir(&seen).unwrap_or_else(|error| panic!("{directory} of {}: {error}", self.name));
        let mut names: Vec<_> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Has the kernel kill the sidecar, as when it runs out of memory, and waits until another one is ready.
    ///
    /// # Panics
    /// Where none comes.
    pub fn kill_sidecar(&self) {
        let sidecar = self.process(SIDECAR);
        let dead = container_status(&self.object(), SIDECAR)["containerID"].clone();
        sidecar.kill();
        eventually("there is another sidecar", || {
            let now = container_status(&self.object(), SIDECAR);
            (now["containerID"] != dead && now["ready"] == true).then_some(())
        });
    }

    /// Number of times that a container was restarted.
    pub fn restarts(&self, container: &str) -> u64 {
        container_status(&self.object(), container)["restartCount"].as_u64().expect("a count")
    }
}

/// Manifest of what was tried, to be made without being asked about again, with more variables for the sidecar.
fn configured(tried: &Value, variables: &[(&str, &str)]) -> Value {
    let (meta, mut spec) = (&tried["metadata"], tried["spec"].clone());
    let containers = spec["initContainers"].as_array_mut().expect("it was injected");
    let sidecar = containers.iter_mut().find(|one| one["name"] == SIDECAR).expect("it was injected");
    let all = sidecar["env"].as_array_mut().expect("a sidecar has variables");
    all.extend(variables.iter().map(|(name, value)| json!({"name": name, "value": value})));
    json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": meta["name"], "labels": meta["labels"]},
    })
}

/// The container of the sidecar.
pub const SIDECAR: &str = "tensorlane";

/// Status of a container of a pod, as Kubernetes says it; null where it says nothing.
pub fn container_status(pod: &Value, container: &str) -> Value {
    let all = ["initContainerStatuses", "containerStatuses"].map(|list| pod["status"][list].as_array());
    let mut all = all.into_iter().flatten().flatten();
    all.find(|one| one["name"] == container).cloned().unwrap_or_default()
}

/// The first process of a container, by what Kubernetes says of it; none where it does not run.
pub fn first_process(status: &Value) -> Option<u32> {
    let id = status["containerID"].as_str().and_then(|id| id.rsplit('/').next())?;
    let is_in_it =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(id));
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(is_in_it).min()
}

/// A folder with two pipes, and who talks through them.
fn pipes() -> (TempDir, Dialogue) {
    let folder = tempfile::Builder::new().prefix("tensorlane-pod-").tempdir().expect("a directory");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our own directory");
    let dialogue = Dialogue::new(pipe(&folder.path().join("in")), pipe(&folder.path().join("out")));
    (folder, dialogue.patient(cluster::PATIENCE))
}

/// A named pipe that stays open while the test holds it, whoever else comes and goes.
fn pipe(path: &Path) -> fs::File {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a named pipe");
    fs::set_permissions(path, Permissions::from_mode(0o666)).expect("our own pipe");
    OpenOptions::new().read(true).write(true).open(path).expect("our own pipe")
}

impl Deref for Pod<'_> {
    type Target = Dialogue;

    fn deref(&self) -> &Dialogue {
        &self.dialogue
    }
}

impl DerefMut for Pod<'_> {
    fn deref_mut(&mut self) -> &mut Dialogue {
        &mut self.dialogue
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // First, for a container that ends before would be started again, and what starts it makes the directory of the pipes anew.
        let _ =
            self.namespace.try_kubectl(&["delete", "pod", &self.name, "--wait=false", "--ignore-not-found"]);
        // The listening thread has its own end of the pipe, so that it hears this.
        let listener = OpenOptions::new().read(true).write(true).open(self.pipes.path().join("out"));
        let _ = listener.and_then(|mut pipe| writeln!(pipe, "\n{END}"));
    }
}
