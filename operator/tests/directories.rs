//! `tensorlane-node` as a process in a mount namespace of its own: what it mounts has a size and a number of files, and who comes later
//! changes nothing. Needs root; void for others.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::io::Errno;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tensorlane-node");

/// Process that ends with the test.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Running { child, lines }
    }

    /// The next line that it says.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node: a mount namespace, which lives for as long as the first process in it.
struct Node {
    first: Running,
    root: TempDir,
}

impl Node {
    /// Starts the program with these words in a namespace of its own; none for who is not root.
    fn start(words: &[&str]) -> Option<Node> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", PROGRAM, "--root"]);
        let first = Running::start(command.arg(root.path()).args(words));
        Some(Node { first, root })
    }

    /// Starts it once more on the same node.
    fn again(&self, words: &[&str]) -> Running {
        let mut command = Command::new("nsenter");
        let target = format!("--target={}", self.first.child.id());
        command.args([&target, "--mount", PROGRAM, "--root"]);
        Running::start(command.arg(self.root.path()).args(words))
    }

    /// A directory as it is on the node.
    fn directory(&self, of: &str) -> PathBuf {
        let below = self.root.path().strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.first.child.id())).join(below).join(of)
    }

    /// Lines of the node's table of mounts that are of ours.
    fn mounts(&self) -> Vec<String> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.first.child.id())).unwrap();
        let ours = self.root.path().to_str().unwrap().to_owned();
        table.lines().filter(|line| line.contains(&ours)).map(str::to_owned).collect()
    }
}

const WORDS: [&str; 4] = ["--bytes=64Ki", "--files=16", "ml/default", "rl/rollouts"];

#[test]
fn each_exchange_has_a_file_system_that_is_full_at_its_bounds_and_leaves_others_theirs() {
    let Some(mut node) = Node::start(&WORDS) else { return };
    assert_eq!(node.first.says(), "ml/default: mounted, 65536 bytes and 16 files");
    assert_eq!(node.first.says(), "rl/rollouts: mounted, 65536 bytes and 16 files");
    let [full, other] = ["ml/default", "rl/rollouts"].map(|of| node.directory(of));
    assert_eq!(fs::metadata(&full).unwrap().permissions().mode() & 0o7777, 0o1777);
    let mounts = node.mounts();
    assert_eq!(mounts.len(), 2, "{mounts:?}");
    for flag in ["nosuid", "nodev", "noexec", "tensorlane"] {
        assert!(mounts.iter().all(|line| line.contains(flag)), "{flag}: {mounts:?}");
    }

    // Bytes: not one more than said.
    let mut large = fs::File::create(full.join("large")).unwrap();
    let mut written = 0;
    let error = loop {
        match large.write(&[7; 4096]) {
            Ok(more) => written += more,
            Err(error) => break error,
        }
    };
    assert_eq!((written, error.raw_os_error()), (65_536, Some(Errno::NOSPC.raw_os_error())));
    // Files: the directory itself is one, and the large one another. A socket takes no bytes.
    let sockets: Vec<_> = (0..14)
        .map(|number| std::os::unix::net::UnixListener::bind(full.join(number.to_string())).unwrap())
        .collect();
    let one_more = fs::File::create(full.join("one more")).unwrap_err();
    assert_eq!(one_more.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(sockets);

    fs::write(other.join("x"), [7; 4096]).unwrap();
    fs::write(node.directory("of the node"), "has room").unwrap();
}

#[test]
fn a_second_run_changes_nothing_and_another_size_takes_away_nothing() {
    let Some(mut node) = Node::start(&WORDS) else { return };
    for _ in 0..2 {
        node.first.says();
    }
    let directory = node.directory("ml/default");
    fs::write(directory.join("kept"), "bytes").unwrap();
    let before = node.mounts();
    let mut second = node.again(&WORDS);
    assert_eq!(second.says(), "ml/default: as wanted, 65536 bytes and 16 files");
    assert_eq!(second.says(), "rl/rollouts: as wanted, 65536 bytes and 16 files");
    assert_eq!(node.mounts(), before);
    drop(second);

    let mut larger = node.again(&["--bytes=128Ki", "--files=32", "ml/default"]);
    assert_eq!(larger.says(), "ml/default: resized, 131072 bytes and 32 files");
    assert_eq!(fs::read_to_string(directory.join("kept")).unwrap(), "bytes");
    assert_eq!(node.mounts().len(), 2);
    fs::write(directory.join("more"), [7; 100_000]).unwrap();
    drop(larger);

    // What does not fit is refused, and stays; others have theirs all the same.
    let mut smaller = node.again(&["--bytes=64Ki", "--files=32", "ml/default", "rl/rollouts", "rl/new"]);
    assert_eq!(smaller.says(), "rl/rollouts: resized, 65536 bytes and 32 files");
    assert_eq!(smaller.says(), "rl/new: mounted, 65536 bytes and 32 files");
    assert!(!smaller.child.wait().unwrap().success());
    assert_eq!(fs::metadata(directory.join("more")).unwrap().len(), 100_000);
}

#[test]
fn a_directory_that_was_there_before_is_closed_below_what_is_mounted() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let old = root.path().join("ml/default");
    fs::create_dir_all(&old).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o1777)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", PROGRAM, "--root"]);
    let mut first = Running::start(command.arg(root.path()).args(WORDS));
    assert!(first.says().starts_with("ml/default: mounted"));
    // Seen from outside of the namespace: what a pod has that mounted it too early.
    assert_eq!(fs::metadata(&old).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn words_that_name_no_exchange_or_no_size_are_refused() {
    for wrong in [&["ml"][..], &["ml/.."], &["--bytes=1", "ml/default"], &["--files=3", "ml/default"], &[]] {
        let output = Command::new(PROGRAM).args(wrong).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
    }
}
