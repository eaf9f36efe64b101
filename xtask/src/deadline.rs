//! A limit on how long a child process may run, and signs of life while it does.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Interval at which a job that is still running says so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

/// End of a child.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit status of the child.
    pub(crate) status: ExitStatus,
    /// Set if it was killed, with everything it had started, because it ran past its limit.
    pub(crate) timed_out: bool,
}

/// Sign of life of a job that takes long, now and then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sign {
    /// None: the job shows its own output, so nothing is added.
    Silent,
    /// Line each minute, as the output of the job goes elsewhere; the line begins with this name.
    EachMinute(String),
}

/// Waits for a child. After `limit` it is killed together with its descendants.
pub(crate) fn wait(mut child: Child, limit: Duration, sign: &Sign) -> Result<Ended, Failure> {
    let id = child.id();
    let (finished, watched) = mpsc::channel();
    let sign = sign.clone();
    let watchdog = thread::spawn(move || watch(id, limit, &sign, &watched));
    let status = child.wait();
    // The watchdog may be gone already, which is what a timeout looks like from here.
    let _ = finished.send(());
    let timed_out = watchdog.join().map_err(|_| Failure::new("the watchdog of a job panicked"))?;
    let status = status.map_err(|error| Failure::new(format!("cannot wait for process {id}: {error}")))?;
    Ok(Ended { status, timed_out })
}

/// Gives true if it had to kill.
fn watch(id: u32, limit: Duration, sign: &Sign, finished: &Receiver<()>) -> bool {
    let started = Instant::now();
    loop {
        let left = limit.saturating_sub(started.elapsed());
        match finished.recv_timeout(left.min(SIGN_OF_LIFE)) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) if started.elapsed() >= limit => {
                kill_with_descendants(id);
                return true;
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Sign::EachMinute(speaker) = sign {
                    println!("    {speaker}: still running after {} min", started.elapsed().as_secs() / 60);
                }
            }
        }
    }
}

fn kill_with_descendants(id: u32) {
    let doomed = family(id, &parents());
    let ids = doomed.iter().map(u32::to_string);
    // A process of the family that ended meanwhile makes kill complain; the others die all the same.
    let _ = Command::new("kill").arg("-KILL").args(ids).stderr(Stdio::null()).status();
}

/// (process, parent) of every process that can be seen.
pub(crate) fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            Some((id, parent_in(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect()
}

/// The parent in a line of /proc/ID/stat. The program's name may hold blanks and brackets.
fn parent_in(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// A process and all that descend from it, ancestors first.
pub(crate) fn family(id: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for &(child, parent) in parents {
        children.entry(parent).or_default().push(child);
    }
    let mut family = vec![id];
    let mut next = 0;
    while let Some(member) = family.get(next) {
        family.extend(children.remove(member).unwrap_or_default());
        next += 1;
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_everything_below_and_nothing_beside() {
        let parents = [(1, 0), (10, 1), (11, 10), (12, 10), (13, 11), (20, 1), (21, 20)];
        assert_eq!(family(10, &parents), [10, 11, 12, 13]);
        assert_eq!(family(21, &parents), [21]);
    }

    #[test]
    fn a_strange_program_name_does_not_hide_the_parent() {
        assert_eq!(parent_in("42 (a) b (c) S 7 42 42 0"), Some(7));
        assert_eq!(parent_in("nonsense"), None);
    }

    #[test]
    fn a_job_past_its_limit_dies_with_its_children() {
        let child = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let id = child.id();
        let deadline = Instant::now() + Duration::from_secs(20);
        let offspring = loop {
            let found = family(id, &parents());
            if let [_, offspring] = found[..] {
                break offspring;
            }
            assert!(Instant::now() < deadline, "sh never started its child: {found:?}");
            thread::yield_now();
        };
        let ended = wait(child, Duration::from_millis(1), &Sign::Silent).unwrap();
        assert!(ended.timed_out);
        assert!(!ended.status.success());
        while is_alive(offspring) {
            assert!(Instant::now() < deadline, "process {offspring} outlived its parent");
            thread::yield_now();
        }
    }

    /// Dead and not yet collected counts as dead.
    fn is_alive(id: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[test]
    fn a_job_inside_its_limit_keeps_its_exit_code() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let ended = wait(child, Duration::from_secs(60), &Sign::Silent).unwrap();
        assert_eq!((ended.status.code(), ended.timed_out), (Some(3), false));
    }
}
