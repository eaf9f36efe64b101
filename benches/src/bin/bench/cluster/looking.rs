//! Pods that look all the time whether their sidecars know a peer. One is on each node.

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Stdio};

use anyhow::{Context, Result};
use tensorlane_benches::process::Process;

use super::kubernetes::{Cluster, pod, seconds};

/// The pods that look, and their nodes.
pub(super) const LOOKERS: [(&str, &str); 2] = [("looks-1", "node1"), ("looks-2", "node2")];

/// Makes them, and waits until they are ready.
pub(super) fn make(cluster: &Cluster) -> Result<()> {
    for (name, node) in LOOKERS {
        cluster.create(&pod(name, true, node, "sleep 86400"))?;
    }
    for (name, _) in LOOKERS {
        cluster.await_ready(name)?;
    }
    Ok(())
}

/// One of them, and what it says.
type Look = (Process, Lines<BufReader<ChildStdout>>);

/// All of them while they look for one peer.
pub(super) struct Looking(Vec<Look>);

impl Looking {
    /// They have begun when this returns, and give up after a minute.
    pub(super) fn begin(cluster: &Cluster, peer: &str) -> Result<Self> {
        let line = format!(
            "echo begun; until tensorlane peers | grep -q '{peer} '; do sleep 0.02; done; cut -d' ' -f1 /proc/uptime"
        );
        let one = |(pod, _): (&str, &str)| -> Result<Look> {
            let words = ["exec", pod, "--container=main", "--", "timeout", "60", "sh", "-c", &line];
            let mut command = cluster.kubectl_command(&words);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let process = Process::start(format!("a look from {pod}"), &mut command)?;
            let out = process.with_child(|child| child.stdout.take()).context("its output is a pipe")?;
            let mut lines = BufReader::new(out).lines();
            lines.next().with_context(|| format!("{pod} does not begin to look"))??;
            Ok((process, lines))
        };
        Ok(Self(LOOKERS.into_iter().map(one).collect::<Result<_>>()?))
    }

    /// Time at which the last of them knew it, in seconds since the machine started.
    pub(super) fn seen_by_all(self) -> Result<f64> {
        let mut last = f64::MIN;
        for (process, mut lines) in self.0 {
            let said = lines.next().with_context(|| format!("{} saw nothing", process.what()))??;
            last = last.max(seconds(&said)?);
        }
        Ok(last)
    }
}
