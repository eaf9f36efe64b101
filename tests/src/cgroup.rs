//! A memory limit around processes, as a pod has one. Needs root; version 1 or 2 of cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wait::until;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A cgroup with a memory limit, removed when dropped. Processes in it must have ended by then.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy)]
enum Version {
    One,
    Two,
}

impl MemoryCgroup {
    /// A new one; none for who is not root, for whom the test is void.
    ///
    /// # Panics
    /// Where root may not make one either: a test that is not done must not look like one that passed.
    pub fn limited(bytes: u64) -> Option<Self> {
        let made = parents().into_iter().find_map(|(version, parent)| make(version, &parent, bytes));
        let is_root = rustix::process::geteuid().is_root();
        assert!(made.is_some() || !is_root, "no memory cgroup can be made here, though this is root");
        made
    }

    /// The words to put in front of a command that is to run in it.
    pub fn prefix(&self) -> Vec<String> {
        let enter = format!("echo $$ > '{}/cgroup.procs' && exec \"$0\" \"$@\"", self.path.display());
        vec!["sh".to_owned(), "-c".to_owned(), enter]
    }

    /// Number of times that the kernel killed in it for want of memory.
    ///
    /// # Panics
    /// Where the kernel does not say.
    pub fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).expect("the events of the cgroup");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).expect("a count of kills")
    }

    /// Bytes that are charged to it now.
    ///
    /// # Panics
    /// Where the kernel does not say.
    pub fn usage(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        let text = fs::read_to_string(self.path.join(file)).expect("the usage of the cgroup");
        text.trim().parse().expect("a number")
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // One try: processes may still be in it.
            let _ = fs::remove_dir(&self.path);
            return;
        }
        until("the cgroup is empty and gone", || fs::remove_dir(&self.path).is_ok());
    }
}

fn make(version: Version, parent: &Path, bytes: u64) -> Option<MemoryCgroup> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = parent.join(format!("tensorlane-test-{}-{number}", std::process::id()));
    if matches!(version, Version::Two) {
        // It may be delegated already; whether it worked shows below.
        let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
    }
    fs::create_dir(&path).ok()?;
    let file = match version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    };
    if fs::write(path.join(file), bytes.to_string()).is_err() {
        // It is empty, so it goes.
        let _ = fs::remove_dir(&path);
        return None;
    }
    Some(MemoryCgroup { path, version })
}

/// Places in which a cgroup may be made: below our own, else below the root of the hierarchy.
fn parents() -> Vec<(Version, PathBuf)> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = |wanted: &str| {
        groups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|one| one == wanted).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let mut parents = Vec::new();
    if let Some(own) = own("memory") {
        let top = Path::new("/sys/fs/cgroup/memory");
        parents.extend([(Version::One, top.join(own)), (Version::One, top.to_owned())]);
    }
    if let Some(own) = own("") {
        let top = Path::new("/sys/fs/cgroup");
        parents.extend([(Version::Two, top.join(own)), (Version::Two, top.to_owned())]);
    }
    parents
}
