//! The test cluster, as a suite sees it: kubectl, a namespace of its own for each test, pods on a chosen node.
//!
//! `cargo xtask test --only cluster` builds it, brings it up and down. With `cargo xtask cluster up` before, and
//! `cargo xtask cluster load` for the images, suites run alone too.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sidecar::bin_dir;

/// The longest that anything on the cluster may take: images are there, but the machine may have two busy cores.
pub const PATIENCE: Duration = Duration::from_secs(180);

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The names of the nodes.
pub const NODES: [&str; 2] = ["node1", "node2"];

/// The full name of an image of `cargo xtask images`, which has been brought to every node.
pub fn image(name: &str) -> String {
    format!("tensorlane.dev/{name}:{}", env!("CARGO_PKG_VERSION"))
}

/// The program that runs the cluster: it lies where the other programs do.
///
/// # Panics
/// Where the test's own program has no path.
pub fn xtask() -> Command {
    let programs = std::env::var_os("TENSORLANE_BIN_DIR").map_or_else(
        // target/release/deps/cluster_x-0123
        || std::env::current_exe().expect("a path").ancestors().nth(2).expect("target/release").to_owned(),
        PathBuf::from,
    );
    Command::new(programs.join("xtask"))
}

/// Runs `xtask cluster` with these words.
///
/// # Panics
/// Where it does not start.
pub fn cluster(words: &[&str]) -> Output {
    cluster_with(words, b"")
}

/// Runs `xtask cluster` with these words, which only look, until it succeeds; gives its output. An API server may be slow for once.
///
/// # Panics
/// Where it fails all the time; says what it said last.
pub fn reads(words: &[&str]) -> String {
    let mut told = String::new();
    let read = within(PATIENCE, || {
        let output = cluster(words);
        told = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    read.unwrap_or_else(|| panic!("xtask cluster {}: {told}", words.join(" ")))
}

/// Runs `xtask cluster` with these words and this input.
///
/// # Panics
/// Where it does not start.
pub fn cluster_with(words: &[&str], input: &[u8]) -> Output {
    let mut command = xtask();
    command.arg("cluster").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("xtask is built");
    let mut pipe = child.stdin.take().expect("it is a pipe");
    // Who does not read to the end has failed, and says why.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().expect("it ends")
}

/// Runs `xtask cluster` with these words, which must succeed; gives its output.
///
/// # Panics
/// Where it fails.
pub fn succeeds(words: &[&str]) -> String {
    let output = cluster(words);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "xtask cluster {}: {told}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `xtask cluster` with these words and this input, which must succeed.
///
/// # Panics
/// Where it fails.
pub fn succeeds_with(words: &[&str], input: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = cluster_with(words, input.as_bytes());
        let told = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return;
        }
        let again = is_for_a_moment(&told) && Instant::now() < deadline;
        assert!(again, "xtask cluster {}: {told}\n{input}", words.join(" "));
    }
}

/// Returns whether the API server refused something because it had no answer in time, of a webhook within its five
/// seconds or of its own memory of a quota. Whoever makes pods tries again then.
pub(crate) fn is_for_a_moment(refusal: &str) -> bool {
    let is_late = refusal.contains("failed calling webhook") && refusal.contains("deadline exceeded");
    is_late || refusal.contains("status unknown for quota")
}

/// Prints what a command says, for a person who looks at a test that has failed.
pub(crate) fn show(here: &[&str], words: &[&str]) {
    let output = cluster(&[here, words].concat());
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    eprintln!("--- kubectl {}\n{}", words.join(" "), texts.concat());
}

/// Waits until `look` gives something.
///
/// # Panics
/// Says what was waited for, where it does not come about within [`PATIENCE`].
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, look).unwrap_or_else(|| panic!("this did not come about within {PATIENCE:?}: {what}"))
}

/// Waits until `look` gives something; none where it does not in that time. It looks once at least.
pub fn within<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// The objects of a list.
///
/// # Panics
/// Where it is none.
pub fn items(list: &str) -> Vec<Value> {
    let mut list: Value = serde_json::from_str(list).expect("kubectl writes JSON");
    list["items"].as_array_mut().map(std::mem::take).expect("a list")
}

/// A namespace of Kubernetes for one test. It is deleted when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one.
    ///
    /// # Panics
    /// Where the cluster is not up.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let namespace = Self { name };
        succeeds(&["kubectl", "create", "namespace", &namespace.name]);
        // Pods are refused until it is there.
        eventually("the namespace has its service account", || {
            namespace.try_kubectl(&["get", "serviceaccount", "default"])
        });
        namespace
    }

    /// Name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs kubectl here, which must succeed; gives its output.
    ///
    /// # Panics
    /// Where it fails.
    pub fn kubectl(&self, words: &[&str]) -> String {
        succeeds(&[&["kubectl", "--namespace", &self.name], words].concat())
    }

    /// Runs kubectl here; gives its output where it succeeds.
    pub fn try_kubectl(&self, words: &[&str]) -> Option<String> {
        let output = cluster(&[&["kubectl", "--namespace", &self.name], words].concat());
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs kubectl here, which only looks, until it succeeds; gives its output.
    ///
    /// # Panics
    /// As [`reads`].
    pub fn reads(&self, words: &[&str]) -> String {
        reads(&[&["kubectl", "--namespace", &self.name], words].concat())
    }

    /// Applies a manifest.
    ///
    /// # Panics
    /// Where the API server refuses it.
    pub fn apply(&self, manifest: &impl Display) {
        let words = ["kubectl", "--namespace", &self.name, "apply", "--filename=-"];
        succeeds_with(&words, &manifest.to_string());
    }

    /// An object, such as `pod/a`.
    ///
    /// # Panics
    /// Where it is not there.
    pub fn get(&self, object: &str) -> Value {
        serde_json::from_str(&self.reads(&["get", object, "--output", "json"])).expect("JSON")
    }

    /// Waits for a condition of an object, such as `Ready` of `pod/a`; on failure says what the object is like.
    ///
    /// # Panics
    /// Where it does not come about.
    pub fn wait_for(&self, condition: &str, object: &str) {
        // kubectl waits for no object that is not there.
        eventually(&format!("{object} is there"), || self.try_kubectl(&["get", object, "--output=name"]));
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        let wait = ["wait", &format!("--for=condition={condition}"), object, &timeout];
        if self.try_kubectl(&wait).is_none() {
            let logs = self.try_kubectl(&["logs", object, "--all-containers"]).unwrap_or_default();
            panic!("{object} is not {condition}:\n{}\n{logs}", self.kubectl(&["describe", object]));
        }
    }

    /// Waits until a pod has ended well.
    ///
    /// # Panics
    /// Where it does not, or ends badly.
    pub fn wait_until_succeeded(&self, pod: &str) {
        let phase = eventually(&format!("pod {pod} ends"), || {
            let phase = self.get(&format!("pod/{pod}"))["status"]["phase"].as_str()?.to_owned();
            ["Succeeded", "Failed"].contains(&phase.as_str()).then_some(phase)
        });
        assert_eq!(phase, "Succeeded", "{}", self.kubectl(&["logs", pod, "--all-containers"]));
    }

    /// Log that a container of a pod has written.
    pub fn logs(&self, pod: &str, container: &str) -> String {
        self.kubectl(&["logs", pod, "--container", container])
    }

    /// Runs a line of shell in a container of a pod; gives its output.
    pub fn shell(&self, pod: &str, container: &str, line: &str) -> String {
        self.kubectl(&["exec", pod, "--container", container, "--", "sh", "-c", line])
    }

    /// Brings a program into a container of a pod, as `/tmp/NAME`, which is its answer: for pods that may mount nothing of the
    /// host.
    ///
    /// # Panics
    /// Where it is not built, or does not arrive.
    pub fn bring(&self, pod: &str, container: &str, program: &str) -> String {
        let bytes = std::fs::read(bin_dir().join(program)).expect("it is built");
        let there = format!("/tmp/{program}");
        let line = format!("cat > {there} && chmod +x {there}");
        let exec = ["kubectl", "--namespace", &self.name, "exec", "--stdin", pod, "--container", container];
        let output = cluster_with(&[&exec[..], &["--", "sh", "-c", &line]].concat(), &bytes);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        there
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // If it stays, it goes with the cluster.
        let _ = cluster(&["kubectl", "delete", "namespace", &self.name, "--wait=false"]);
    }
}
