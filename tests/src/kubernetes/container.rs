//! A container as the machine sees it: its cgroup and its first process. The nodes of the cluster run on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::succeeds;

/// Directory in which the hierarchies of cgroups are mounted.
const TOP: &str = "/sys/fs/cgroup";

/// A running container of a pod.
#[derive(Debug, Clone)]
pub struct Container {
    memory: PathBuf,
    processors: PathBuf,
}

impl Container {
    /// The container of this name, init containers included.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn of(namespace: &str, pod: &str, name: &str) -> Self {
        let said = succeeds(&["kubectl", "--namespace", namespace, "get", "pod", pod, "--output=json"]);
        let pod: Value = serde_json::from_str(&said).expect("JSON");
        let statuses = ["initContainerStatuses", "containerStatuses"];
        let all = statuses.iter().flat_map(|list| pod["status"][list].as_array().into_iter().flatten());
        let id = all.clone().find(|one| one["name"] == name).and_then(|one| one["containerID"].as_str());
        let id =
            id.and_then(|id| id.split_once("://")).unwrap_or_else(|| panic!("{name} does not run: {pod}")).1;
        let group = |hierarchy: &str| {
            let versioned = Path::new(TOP).join(hierarchy);
            let top = if versioned.is_dir() { versioned } else { PathBuf::from(TOP) };
            below(&top, id).unwrap_or_else(|| panic!("{name} has no cgroup below {}", top.display()))
        };
        Self { memory: group("memory"), processors: group("cpuacct") }
    }

    /// Bytes that it takes and cannot give back at once, as Kubernetes counts them: all that is charged to it but cached
    /// files that nobody has read lately.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn memory(&self) -> u64 {
        let old = self.memory.join("memory.usage_in_bytes");
        let (usage, cache) = match old.is_file() {
            true => (number(&old), "total_inactive_file "),
            false => (number(&self.memory.join("memory.current")), "inactive_file "),
        };
        let stat = fs::read_to_string(self.memory.join("memory.stat")).expect("the container runs");
        let cached = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse().ok());
        usage.saturating_sub(cached.unwrap_or(0))
    }

    /// The time of processors that it has had.
    ///
    /// # Panics
    /// Where it has ended.
    pub fn processor_time(&self) -> Duration {
        let old = self.processors.join("cpuacct.usage");
        if old.is_file() {
            return Duration::from_nanos(number(&old));
        }
        let stat = fs::read_to_string(self.processors.join("cpu.stat")).expect("the container runs");
        let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok());
        Duration::from_micros(used.expect("a number"))
    }

    /// A file as the container's first process sees it.
    ///
    /// # Panics
    /// Where it has ended, or has no such file.
    pub fn read(&self, path: &str) -> String {
        let processes = fs::read_to_string(self.memory.join("cgroup.procs")).expect("the container runs");
        let first = processes.lines().next().expect("a process");
        fs::read_to_string(format!("/proc/{first}/root{path}")).expect("the file")
    }
}

fn number(file: &Path) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).expect("a number")
}

/// The group of a container, in the tree of any node.
fn below(directory: &Path, id: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    let groups = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let groups: Vec<PathBuf> = groups.map(|entry| entry.path()).collect();
    let found = groups.iter().find(|path| path.ends_with(id)).cloned();
    found.or_else(|| groups.iter().find_map(|path| below(path, id)))
}
