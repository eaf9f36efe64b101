//! `cluster down` leaves nothing behind, wherever `cluster up` was killed. A cluster of its own, beside the one that the
//! other suites use: it takes over that one's built components. Needs root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tensorlane_tests::cluster::{eventually, image, xtask};

/// A checkout's target directory of its own, and so a cluster of its own.
struct Elsewhere {
    target: TempDir,
}

impl Elsewhere {
    fn new() -> Self {
        let target = tempfile::Builder::new().prefix("tensorlane-down-").tempdir().unwrap();
        let programs = PathBuf::from(xtask().get_program()).canonicalize().expect("xtask is built");
        let built = programs.ancestors().nth(2).unwrap();
        fs::create_dir(target.path().join("cluster")).unwrap();
        symlink(built.join("cluster/bin"), target.path().join("cluster/bin")).unwrap();
        symlink(built.join("images"), target.path().join("images")).unwrap();
        Self { target }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = xtask();
        command.arg("cluster").args(words).env("CARGO_TARGET_DIR", self.target.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn succeeds(&self, words: &[&str]) {
        assert!(self.command(words).status().unwrap().success(), "{words:?}");
    }

    fn run(&self) -> PathBuf {
        self.target.path().join("cluster/run")
    }

    fn record(&self) -> String {
        fs::read_to_string(self.run().join("record")).unwrap_or_default()
    }

    /// Brings it up until the record has a line that starts so, then kills the program that does it.
    fn up_until(&self, line: &str) {
        let mut up = self.command(&["up"]).spawn().unwrap();
        let reached = || self.record().lines().any(|one| one.starts_with(line)).then_some(());
        eventually(line, || ended(&mut up).or_else(reached));
        up.kill().unwrap();
        up.wait().unwrap();
    }

    /// Takes it down until something is gone, then kills the program that does it. Where that one is faster, it has done all.
    fn down_until(&self, gone: impl Fn() -> bool) {
        let mut down = self.command(&["down"]).spawn().unwrap();
        eventually("something is gone", || ended(&mut down).or_else(|| gone().then_some(())));
        // It may have ended by itself.
        let _ = down.kill();
        down.wait().unwrap();
    }

    /// Prefix of the names of this cluster.
    fn prefix(&self) -> String {
        let record = self.record();
        let name = record.lines().find_map(|line| line.strip_prefix("namespace ")).expect("a namespace");
        name.rsplit_once('-').unwrap().0.to_owned()
    }

    /// Everything on this machine that belongs to the cluster.
    fn left(&self, prefix: &str) -> Vec<String> {
        let mut left: Vec<String> = processes_that_mention(self.target.path());
        left.extend(names_below(Path::new("/run/netns"), prefix, 1));
        left.extend(names_below(Path::new("/sys/fs/cgroup"), prefix, 3));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(prefix)).map(str::to_owned));
        if self.run().exists() {
            left.push("run".to_owned());
        }
        left
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // After a test that passed there is nothing to do.
        let _ = self.command(&["down"]).status();
    }
}

/// Whether a program has ended before it was killed; fails where it ended badly.
fn ended(program: &mut Child) -> Option<()> {
    let status = program.try_wait().unwrap();
    assert!(status.is_none_or(|status| status.success()), "it failed by itself");
    status.map(drop)
}

/// Processes that are told of a directory, or live where something below it is mounted: nodes and their containers.
fn processes_that_mention(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mentions = |id: &u32| {
        ["cmdline", "mountinfo"].iter().any(|file| {
            let text = fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(directory)
        })
    };
    ids.filter(mentions)
        .map(|id| {
            format!("process {id}: {}", fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default())
        })
        .collect()
}

fn names_below(directory: &Path, prefix: &str, depth: usize) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            found.push(path.display().to_string());
        } else if depth > 1 && path.is_dir() && !path.is_symlink() {
            found.extend(names_below(&path, prefix, depth - 1));
        }
    }
    found
}

#[test]
fn down_leaves_nothing_wherever_up_was_killed() {
    let elsewhere = Elsewhere::new();
    for line in ["namespace", "cgroup", "process node1.init", "process apiserver", "process node2.kubelet"] {
        elsewhere.up_until(line);
        let prefix = elsewhere.prefix();
        assert_ne!(elsewhere.left(&prefix), [""; 0], "killed at `{line}`, there is something to take away");
        elsewhere.succeeds(&["down"]);
        assert_eq!(elsewhere.left(&prefix), [""; 0], "killed at `{line}`");
    }
}

/// `down` goes by the same record as long as there is something to take away, so another one ends what it had begun.
#[test]
fn down_leaves_nothing_wherever_another_down_was_killed() {
    let elsewhere = Elsewhere::new();
    elsewhere.up_until("process node2.kubelet");
    let prefix = elsewhere.prefix();
    let namespaces = || names_below(Path::new("/run/netns"), &prefix, 1).len();
    let (processes, all) = (processes_that_mention(elsewhere.target.path()).len(), namespaces());
    assert!(processes > 0 && all > 0, "there is something to take away");
    elsewhere.down_until(|| processes_that_mention(elsewhere.target.path()).len() < processes);
    elsewhere.down_until(|| namespaces() < all);
    elsewhere.succeeds(&["down"]);
    assert_eq!(elsewhere.left(&prefix), [""; 0]);
}

#[test]
fn down_leaves_nothing_of_running_pods_and_of_nodes_whose_services_were_killed() {
    let elsewhere = Elsewhere::new();
    // Half a cluster is no hindrance to a whole one, and a whole one none to itself.
    elsewhere.up_until("process node1.init");
    elsewhere.succeeds(&["up"]);
    let prefix = elsewhere.prefix();
    elsewhere.succeeds(&["up"]);
    assert_eq!(elsewhere.prefix(), prefix);
    let pod = image("pause");
    elsewhere.succeeds(&["kubectl", "create", "deployment", "pods", "--image", &pod, "--replicas", "4"]);
    elsewhere.succeeds(&["kubectl", "rollout", "status", "deployment/pods", "--timeout=180s"]);
    elsewhere.succeeds(&["stop", "node1.kubelet", "node1.containerd", "node2.containerd", "etcd"]);
    assert_ne!(processes_that_mention(elsewhere.target.path()), [""; 0]);
    elsewhere.succeeds(&["down"]);
    assert_eq!(elsewhere.left(&prefix), [""; 0]);
    elsewhere.succeeds(&["down"]);
}
