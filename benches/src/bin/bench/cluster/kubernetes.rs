//! The test cluster by its command line, and the pods that are measured.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tensorlane_benches::wait;

/// The longest that anything on the cluster may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// The test cluster of this checkout.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    xtask: PathBuf,
}

impl Cluster {
    /// The one whose programs lie there.
    pub(super) fn of(programs: &Path) -> Self {
        Self { xtask: programs.join("xtask") }
    }

    /// Returns whether it runs.
    pub(super) fn is_up(&self) -> bool {
        self.run(&["cluster", "status"], "").is_ok()
    }

    /// Returns whether the programs of Kubernetes are there.
    pub(super) fn is_built(&self) -> bool {
        let target = self.xtask.ancestors().nth(2).unwrap_or(Path::new("/"));
        target.join("cluster/bin/kube-apiserver").is_file()
    }

    /// Takes it away.
    pub(super) fn down(&self) {
        // Whoever brings up the next one takes down what is left.
        let _ = self.run(&["cluster", "down"], "");
    }

    /// Runs xtask; gives its output.
    pub(super) fn xtask(&self, words: &[&str]) -> Result<String> {
        Ok(self.run(words, "")?.0)
    }

    /// Runs kubectl with this input; gives its output.
    pub(super) fn kubectl(&self, words: &[&str], input: &str) -> Result<String> {
        Ok(self.run(&[&["cluster", "kubectl"], words].concat(), input)?.0)
    }

    /// Runs kubectl with this input; gives its output and what it logged.
    pub(super) fn kubectl_logged(&self, words: &[&str], input: &str) -> Result<String> {
        Ok(self.run(&[&["cluster", "kubectl"], words].concat(), input)?.1)
    }

    /// kubectl with these words, to be started.
    pub(super) fn kubectl_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.xtask);
        command.args(["cluster", "kubectl"]).args(words);
        command
    }

    /// Makes an object.
    pub(super) fn create(&self, object: &Value) -> Result<()> {
        self.kubectl(&["create", "--filename=-"], &object.to_string()).map(drop)
    }

    /// Waits until a pod is Ready: by a watch, so that it returns as soon as the API server tells it.
    pub(super) fn await_ready(&self, pod: &str) -> Result<()> {
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), &timeout], "").map(drop)
    }

    /// A metric without labels of a pod's sidecar.
    pub(super) fn metric(&self, pod: &str, name: &str) -> Result<f64> {
        let path = format!("/api/v1/namespaces/default/pods/{pod}:9420/proxy/metrics");
        let text = self.kubectl(&["get", "--raw", &path], "")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        seconds(value.with_context(|| format!("the sidecar of {pod} does not say {name}"))?)
    }

    /// An object of the namespace that the bench works in.
    pub(super) fn get(&self, object: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.kubectl(&["get", object, "--output=json"], "")?)?)
    }

    /// Waits until it holds.
    pub(super) fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
        ensure!(
            wait::until(PATIENCE, || Ok(holds()))?,
            "this did not come about within {PATIENCE:?}: {what}"
        );
        Ok(())
    }

    /// Last words that a pod's container wrote when it ended.
    pub(super) fn last_words(&self, pod: &str) -> Result<String> {
        let mut said = None;
        self.wait(&format!("pod {pod} ends"), || {
            let pod = self.get(&format!("pod/{pod}")).unwrap_or_default();
            let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
            said = ended["message"].as_str().map(str::to_owned);
            ended.is_object()
        })?;
        said.with_context(|| format!("pod {pod} ended without a word: kubectl logs {pod}"))
    }

    fn run(&self, words: &[&str], input: &str) -> Result<(String, String)> {
        let mut command = Command::new(&self.xtask);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.xtask.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that has refused its words reads nothing, and says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        if !output.status.success() {
            bail!("xtask {}: {}", words.join(" "), err.trim());
        }
        Ok((out, err))
    }
}

/// Seconds since the machine started.
pub(super) fn uptime() -> Result<f64> {
    let text = fs::read_to_string("/proc/uptime")?;
    seconds(text.split(' ').next().unwrap_or_default())
}

/// A number as programs print it, seconds for the most part.
pub(super) fn seconds(text: &str) -> Result<f64> {
    text.trim().parse().with_context(|| format!("{text:?} is no number"))
}

/// A pod of a line of shell; on a node where one is given.
pub(super) fn pod(name: &str, asks: bool, node: &str, line: &str) -> Value {
    let annotations = match asks {
        true => json!({"tensorlane.dev/inject": "enabled", "tensorlane.dev/arena-size": "64Mi"}),
        false => json!({}),
    };
    let image = format!("tensorlane.dev/workload:{}", env!("CARGO_PKG_VERSION"));
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "main", "image": image, "command": ["sh", "-c", line]}],
        },
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}
