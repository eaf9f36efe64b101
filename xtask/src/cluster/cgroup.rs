//! A tree of cgroups for each node, so that two kubelets on one machine keep out of each other's way. Version 1, version
//! 2 and both at once (hybrid).

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::record::{Made, Record};
use crate::failure::Failure;

/// Directory in which the hierarchies are mounted.
const TOP: &str = "/sys/fs/cgroup";

/// The kernel takes a moment to notice that the last process of a group is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes the tops of a node's trees.
pub(crate) fn make(run: &Path, name: &str) -> Result<(), Failure> {
    for hierarchy in hierarchies(Path::new(TOP))? {
        let path = hierarchy.join(name);
        Record::add(run, &Made::Cgroup(path.clone()))?;
        fs::create_dir_all(&path).map_err(|error| Failure::file("make", &path, &error))?;
        // A new group of cpuset has no processor and no memory, and takes no process before it has.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (hierarchy.join(file), path.join(file));
            if hierarchy != Path::new(TOP) && from.is_file() {
                fs::copy(&from, &to).map_err(|error| Failure::file("write", &to, &error))?;
            }
        }
    }
    Ok(())
}

/// Every hierarchy of version 1, and that of version 2 beside them, in which container runtimes make groups too; else the
/// one of version 2 alone.
fn hierarchies(top: &Path) -> Result<Vec<PathBuf>, Failure> {
    if top.join("cgroup.controllers").is_file() {
        return Ok(vec![top.to_owned()]);
    }
    let entries = fs::read_dir(top).map_err(|error| Failure::file("read", top, &error))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        // Links such as `cpuacct -> cpu,cpuacct` are the same hierarchy again.
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|path| path.join("cgroup.procs").is_file())
        .collect();
    found.sort();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::new(format!("no cgroups are mounted below {}", top.display()))
            .remedy("a container needs them writable: run on the machine itself, or --privileged")),
    }
}

/// Removes a group and all below it. Their processes must be ending.
pub(crate) fn remove(path: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let result = remove_tree(path);
        match result {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                return Err(Failure::file("remove", path, &error)
                    .remedy("its cgroup.procs names the processes that are still in it"));
            }
            Err(_) => thread::park_timeout(Duration::from_millis(50)),
        }
    }
}

/// From the leaves up: the files in a group's directory are the kernel's and go with it.
fn remove_tree(path: &Path) -> std::io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_version_1_has_many_hierarchies_and_one_of_version_2_has_one() {
        let top = std::env::temp_dir().join(format!("xtask-cgroup-{}", std::process::id()));
        for name in ["memory", "cpuset", "unified", "notes"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        assert!(hierarchies(&top).is_err());
        for name in ["memory", "cpuset", "unified"] {
            fs::write(top.join(name).join("cgroup.procs"), "").unwrap();
        }
        assert_eq!(hierarchies(&top).unwrap(), ["cpuset", "memory", "unified"].map(|name| top.join(name)));
        fs::write(top.join("cgroup.controllers"), "cpu").unwrap();
        assert_eq!(hierarchies(&top).unwrap(), std::slice::from_ref(&top));
        fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn what_is_gone_already_is_removed() {
        assert!(remove(Path::new("/no/such/group")).is_ok());
    }
}
