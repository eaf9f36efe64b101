//! Processes of the cluster: started so that they record themselves, known by id and start time, ended by these alone.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::deadline::{family, parents};
use crate::failure::Failure;

/// A process. Ids are used again; an id and a start time are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// Name in the cluster.
    pub(crate) name: String,
    /// Id of the process on the machine.
    pub(crate) id: u32,
    /// Start, in ticks of the kernel since the machine started.
    pub(crate) start: u64,
}

/// Writes the process into the record and then becomes the command: whoever is killed in between, there is no process
/// without a line. Arguments: its name, the record, the command.
const RECORDED: &str = r#"
start_of() { shift 19; echo "$1"; }
read -r stat < /proc/$$/stat
echo "process $1 $$ $(start_of ${stat##*) })" >> "$2"
shift 2
exec env --unset=TENSORLANE_CLUSTER_BY "$@"
"#;

impl Process {
    /// Returns this program.
    pub(crate) fn own() -> Option<Self> {
        let id = std::process::id();
        Some(Self { name: "xtask".to_owned(), id, start: started(id)? })
    }

    fn marker(&self) -> String {
        format!("{} {}", self.id, self.start)
    }

    /// Returns whether it still runs. Dead and not yet collected counts as dead.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.id) == Some(self.start)
    }

    /// Descendants: what it has started, without itself.
    pub(crate) fn descendants(&self) -> Vec<Self> {
        if !self.is_alive() {
            return Vec::new();
        }
        let family = family(self.id, &parents());
        let named = |&id: &u32| Some(Self { name: self.name.clone(), id, start: started(id)? });
        family[1..].iter().filter_map(named).collect()
    }

    /// Kills it.
    pub(crate) fn kill(&self) {
        if self.is_alive() {
            // It may end by itself meanwhile, and then there is nothing to kill.
            let _ = Command::new("kill").args(["-KILL", &self.id.to_string()]).stderr(Stdio::null()).status();
        }
    }
}

/// Starts a program away from this terminal, with its output in a log and a line in the record.
pub(crate) fn start(name: &str, command: &[String], record: &Path, log: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(format!("cannot start {name}: {error}"));
    let output = File::create(log).map_err(|error| Failure::file("write", log, &error))?;
    let errors = output.try_clone().map_err(failed)?;
    let mut recorded = Command::new("setsid");
    recorded.args(["sh", "-c", RECORDED, "sh", name]).arg(record).args(command);
    recorded.env(BY, marker());
    recorded.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir("/");
    // Nobody waits for it: it outlives this program, and the record knows it.
    recorded.spawn().map(drop).map_err(failed)
}

/// Variable that a command of ours carries in its environment while it may still make things: which program started it.
pub(crate) const BY: &str = "TENSORLANE_CLUSTER_BY";

/// The value of [`BY`] for what this program starts.
pub(crate) fn marker() -> String {
    Process::own().map(|own| own.marker()).unwrap_or_default()
}

/// Returns whether something that a program started is still at work, although that program may be dead.
pub(crate) fn has_commands(by: &Process) -> bool {
    let wanted = format!("{BY}={}", by.marker());
    parents().iter().any(|(id, _)| {
        let variables = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    })
}

/// Start of a living process.
fn started(id: u32) -> Option<u64> {
    start_in(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// The start time in a line of /proc/ID/stat, unless the process is dead.
fn start_in(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    if rest.starts_with(['Z', 'X']) {
        return None;
    }
    rest.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::Record;
    use std::time::{Duration, Instant};

    #[test]
    fn the_start_time_is_found_behind_a_name_with_brackets() {
        let stat = "7 (a) (b c) S 1 7 7 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 4711 1 2";
        assert_eq!(start_in(stat), Some(4711));
        assert_eq!(start_in(&stat.replace(" S ", " Z ")), None);
    }

    #[test]
    fn a_command_is_known_by_who_started_it() {
        let other = Process { start: 1, ..Process::own().unwrap() };
        assert!(!has_commands(&other));
        let mut command = Command::new("cat").env(BY, other.marker()).stdin(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !has_commands(&other) {
            // Between fork and exec it still looks like this program.
            assert!(Instant::now() < deadline, "it is never seen");
            std::thread::yield_now();
        }
        drop(command.stdin.take());
        command.wait().unwrap();
        assert!(!has_commands(&other));
    }

    #[test]
    fn a_started_process_is_in_the_record_and_is_ended_by_it() {
        let run = std::env::temp_dir().join(format!("xtask-process-{}", std::process::id()));
        fs::create_dir_all(&run).unwrap();
        let command = ["sh", "-c", "sleep 600 & wait"].map(str::to_owned);
        start("sleeper", &command, &Record::path(&run), &run.join("log")).unwrap();
        let until = |what: &str, condition: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(30);
            while !condition() {
                assert!(Instant::now() < deadline, "{what}");
                std::thread::yield_now();
            }
        };
        let found = || Record::read(&run).unwrap()?.process("sleeper").cloned();
        until("it is recorded", &|| found().is_some());
        let process = found().unwrap();
        until("it has a child", &|| !process.descendants().is_empty());
        let family = [process.descendants(), vec![process.clone()]].concat();
        let other = Process { start: process.start + 1, ..process.clone() };
        other.kill();
        assert!(process.is_alive() && !other.is_alive(), "another start time is another process");
        family.iter().for_each(Process::kill);
        until("all have ended", &|| !family.iter().any(Process::is_alive));
        fs::remove_dir_all(&run).unwrap();
    }
}
