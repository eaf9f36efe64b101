//! Limit of this process's memory: the smallest one of its cgroup and of the cgroups above it.
//!
//! Beyond it the kernel kills; it never answers an allocation with an error. So an arena above the limit is refused
//! before the first page is touched.

use std::fs;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the largest multiple of a page below 2^63.
const NO_LIMIT_FROM: u64 = 1 << 62;

/// A limit, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// In bytes.
    pub bytes: u64,
    /// The file that says so.
    pub path: PathBuf,
}

/// The smallest memory limit that holds for this process; `None` where there is none, or none is to be seen.
#[must_use]
pub fn memory_limit() -> Option<MemoryLimit> {
    memory_limit_under(Path::new("/"))
}

/// As [`memory_limit`], with another directory in the place of `/`.
#[must_use]
pub fn memory_limit_under(root: &Path) -> Option<MemoryLimit> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    mounts
        .lines()
        .filter_map(Mount::parse)
        .filter_map(|mount| smallest_in(root, &mount, &groups))
        .min_by_key(|limit| limit.bytes)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }
}

/// A mounted hierarchy that can limit memory.
struct Mount<'a> {
    version: Version,
    /// Group of the hierarchy that is mounted: not the topmost one in a container without a namespace of its own.
    group: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// `id parent dev GROUP POINT options [tags] - TYPE source SUPER_OPTIONS`
    fn parse(line: &'a str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (group, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if right.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Self { version, group, point })
    }
}

/// Group of this process in the hierarchy: `0::PATH` in version 2, `N:...memory...:PATH` in version 1.
fn own_group(version: Version, groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = match version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        ours.then_some(path)
    })
}

fn smallest_in(root: &Path, mount: &Mount<'_>, groups: &str) -> Option<MemoryLimit> {
    let own = own_group(mount.version, groups)?;
    // A group outside of what is mounted is not to be seen; then what is mounted is ours.
    let below = Path::new(own).strip_prefix(mount.group).unwrap_or(Path::new(""));
    let top = root.join(mount.point.trim_start_matches('/'));
    let deepest = top.join(below);
    let levels = deepest.ancestors().take_while(|level| level.starts_with(&top));
    levels.filter_map(|level| read(&level.join(mount.version.file()))).min_by_key(|limit| limit.bytes)
}

fn read(path: &Path) -> Option<MemoryLimit> {
    // "max" in version 2 is no number, and no limit.
    let bytes = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (bytes < NO_LIMIT_FROM).then(|| MemoryLimit { bytes, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new(files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = dir.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(dir)
        }

        fn limit(&self) -> Option<(u64, PathBuf)> {
            let limit = memory_limit_under(self.0.path())?;
            Some((limit.bytes, limit.path.strip_prefix(self.0.path()).unwrap().to_owned()))
        }
    }

    const TWO: &str = "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_smallest_limit_of_the_group_and_its_parents_holds() {
        let fake = Fake::new(&[
            ("proc/self/cgroup", "0::/pods/pod1/sidecar\n"),
            ("proc/self/mountinfo", TWO),
            ("sys/fs/cgroup/pods/pod1/sidecar/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/pod1/memory.max", "1000000\n"),
            ("sys/fs/cgroup/pods/memory.max", "5000000\n"),
        ]);
        assert_eq!(fake.limit(), Some((1_000_000, "sys/fs/cgroup/pods/pod1/memory.max".into())));
    }

    #[test]
    fn a_container_that_sees_only_its_own_group_finds_its_limit_there() {
        let fake = Fake::new(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", TWO),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
        ]);
        assert_eq!(fake.limit(), Some((536_870_912, "sys/fs/cgroup/memory.max".into())));
    }

    #[test]
    fn version_one_with_the_hosts_path_and_a_bound_mount_is_understood() {
        let fake = Fake::new(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/pods/p\n4:memory:/pods/p/c\n0::/\n"),
            (
                "proc/self/mountinfo",
                "41 1 0:9 /pods/p/c /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 42 1 0:8 /pods/p/c /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n"),
        ]);
        assert_eq!(fake.limit(), Some((268_435_456, "sys/fs/cgroup/memory/memory.limit_in_bytes".into())));
    }

    #[test]
    fn no_limit_is_none_in_both_versions() {
        let two = Fake::new(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", TWO),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
        ]);
        assert_eq!(two.limit(), None);
        let one = Fake::new(&[
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("proc/self/mountinfo", "41 1 0:9 / /cg rw - cgroup cgroup rw,memory\n"),
            ("cg/a/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(one.limit(), None);
        assert_eq!(Fake::new(&[]).limit(), None);
    }
}
