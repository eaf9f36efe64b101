//! `cargo xtask cluster down`: takes away everything that the record names, whole cluster or half, and checks that it is
//! gone.

use std::fs;
use std::path::Path;

use crate::cluster::cgroup;
use crate::cluster::layout::Layout;
use crate::cluster::process::{Process, has_commands};
use crate::cluster::record::{Record, boot_id};
use crate::cluster::tell::told;
use crate::cluster::wait;
use crate::failure::Failure;

/// Takes the cluster down; gives whether there was one.
pub(crate) fn down(layout: &Layout) -> Result<bool, Failure> {
    let run = layout.run();
    let Some(record) = Record::read(&run)? else {
        // Between making the directory and the first line nothing else was made.
        remove_directory(&run)?;
        return Ok(false);
    };
    if record.is_of_boot(&boot_id()) {
        await_commands(&record, layout)?;
        end_processes(&run, layout)?;
    }
    for name in record.namespaces() {
        remove_namespace(name, layout)?;
    }
    for path in record.cgroups() {
        cgroup::remove(path)?;
    }
    remove_directory(&run)?;
    Ok(true)
}

/// Waits for commands. A command that an `up` had begun when it was killed, such as `ip netns add`, goes on to its end
/// and makes what it makes.
fn await_commands(record: &Record, layout: &Layout) -> Result<(), Failure> {
    let begun_by = Process::own().map(|own| own.name);
    let Some(up) = record.processes().find(|process| Some(&process.name) == begun_by.as_ref()) else {
        return Ok(());
    };
    wait::until("the commands of the `up` that was killed end", &layout.log("down"), || !has_commands(up))
}

/// Ends what was started. A node's first process takes with it everything on the node: containers, their shims, and all
/// mounts, which exist in its namespaces only.
fn end_processes(run: &Path, layout: &Layout) -> Result<(), Failure> {
    let log = layout.log("down");
    wait::until("the processes of the cluster end", &log, || {
        // Read again each time: one that was just being started when `up` was killed may add itself.
        let Ok(Some(record)) = Record::read(run) else { return true };
        let living: Vec<Process> = record.processes().filter(|process| process.is_alive()).cloned().collect();
        living.iter().for_each(end_from_below);
        living.is_empty()
    })
}

/// A process goes after what it has started, so that as long as it is there, not everything is gone.
fn end_from_below(process: &Process) {
    let below = process.descendants();
    match below.is_empty() {
        true => process.kill(),
        false => below.iter().for_each(Process::kill),
    }
}

/// Removes a namespace. A process still in it (a `kubectl logs --follow` in another terminal) holds it, so ends with
/// it.
fn remove_namespace(name: &str, layout: &Layout) -> Result<(), Failure> {
    let path = Path::new("/run/netns").join(name);
    if !path.exists() {
        return Ok(());
    }
    wait::until(&format!("nobody uses the namespace {name}"), &layout.log("down"), || {
        let said = told("ip", ["netns", "pids", name]).unwrap_or_default();
        let left: Vec<&str> = said.split_whitespace().collect();
        if !left.is_empty() {
            // One that ended meanwhile makes kill complain.
            let _ = told("kill", ["-KILL"].iter().chain(&left));
        }
        left.is_empty()
    })?;
    match told("ip", ["netns", "delete", name]) {
        // Another `down`, which was killed, had one under way.
        Err(_) if !path.exists() => Ok(()),
        told => told.map(drop),
    }
}

/// Nothing may be mounted below: what is mounted there is not ours to delete.
fn remove_directory(run: &Path) -> Result<(), Failure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(mount) = mounted_below(&mounts, run) {
        return Err(Failure::new(format!("{mount} is still mounted"))
            .remedy(format!("`umount {mount}`, then `down`")));
    }
    Failure::unless_gone(fs::remove_dir_all(run), run)
}

/// The first mount at or below a directory, in the words of /proc/self/mountinfo.
fn mounted_below(mounts: &str, directory: &Path) -> Option<String> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| point.replace("\\040", " ")).find(|point| Path::new(point).starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_below_the_directory_is_found_and_one_beside_it_is_not() {
        let mounts =
            "25 1 8:1 / / rw - ext4 x rw\n26 25 0:5 / /r/target/cluster/run/my\\040disk rw - tmpfs x rw\n";
        let found = mounted_below(mounts, Path::new("/r/target/cluster/run"));
        assert_eq!(found.as_deref(), Some("/r/target/cluster/run/my disk"));
        assert_eq!(mounted_below(mounts, Path::new("/r/target/cluster/ru")), None);
    }
}
