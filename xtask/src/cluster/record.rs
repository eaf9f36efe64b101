//! Record of what a cluster has made on this machine, one line each, written before it is made. `down` goes by this
//! file alone, so a cluster whose `up` was killed half-way can be taken away whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cluster::process::Process;
use crate::failure::Failure;

/// Thing that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Made {
    /// The machine's boot, by its id. Process ids of another boot mean nothing.
    Boot(String),
    /// A network namespace, by its name.
    Namespace(String),
    /// A cgroup and what is below it, by its directory.
    Cgroup(PathBuf),
    /// A process. It wrote this line itself, before it became what it is.
    Process(Process),
    /// The cluster has been ready.
    Complete,
}

/// The lines of a record, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record(Vec<Made>);

impl Made {
    fn line(&self) -> String {
        match self {
            Self::Boot(id) => format!("boot {id}"),
            Self::Namespace(name) => format!("namespace {name}"),
            Self::Cgroup(path) => format!("cgroup {}", path.display()),
            Self::Process(process) => format!("process {} {} {}", process.name, process.id, process.start),
            Self::Complete => "complete".to_owned(),
        }
    }

    fn of_line(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "boot" => Some(Self::Boot(rest.to_owned())),
            "namespace" if !rest.is_empty() => Some(Self::Namespace(rest.to_owned())),
            "cgroup" if rest.starts_with('/') => Some(Self::Cgroup(rest.into())),
            "process" => {
                let mut words = rest.split(' ');
                let name = words.next()?.to_owned();
                let (id, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Some(Self::Process(Process { name, id, start }))
            }
            "complete" => Some(Self::Complete),
            _ => None,
        }
    }
}

impl Record {
    /// Path at which the record of a cluster lies, below its `run` directory.
    pub(crate) fn path(run: &Path) -> PathBuf {
        run.join("record")
    }

    /// The record of a cluster; none where nothing was begun. A line that was cut short is not one: what it would have
    /// named was not made.
    pub(crate) fn read(run: &Path) -> Result<Option<Self>, Failure> {
        let path = Self::path(run);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(Self::parse(&text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::file("read", &path, &error)),
        }
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(Made::of_line).collect())
    }

    /// Adds a line.
    pub(crate) fn add(run: &Path, made: &Made) -> Result<(), Failure> {
        let path = Self::path(run);
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{}\n", made.line()).as_bytes()));
        written.map_err(|error| Failure::file("write", &path, &error))
    }

    /// Returns whether the cluster has been ready.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.contains(&Made::Complete)
    }

    /// Returns whether it was made since the machine started.
    pub(crate) fn is_of_boot(&self, boot: &str) -> bool {
        self.0.iter().any(|made| matches!(made, Made::Boot(id) if id == boot))
    }

    /// Every process that was ever started, in order.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &Process> {
        self.0.iter().filter_map(|made| match made {
            Made::Process(process) => Some(process),
            _ => None,
        })
    }

    /// The last process of a name: the earlier ones have been stopped.
    pub(crate) fn process(&self, name: &str) -> Option<&Process> {
        self.processes().filter(|process| process.name == name).last()
    }

    /// Every network namespace.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|made| match made {
            Made::Namespace(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Every cgroup.
    pub(crate) fn cgroups(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|made| match made {
            Made::Cgroup(path) => Some(path.as_path()),
            _ => None,
        })
    }
}

/// The id of the machine's boot.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str, id: u32) -> Process {
        Process { name: name.to_owned(), id, start: 77 }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let run = std::env::temp_dir().join(format!("xtask-record-{}", std::process::id()));
        fs::create_dir_all(&run).unwrap();
        assert_eq!(Record::read(&run).unwrap(), None);
        let made = [
            Made::Boot("b-1".into()),
            Made::Namespace("tlc-1-node1".into()),
            Made::Cgroup("/sys/fs/cgroup/memory/with blank".into()),
            Made::Process(process("node1.init", 12)),
            Made::Complete,
        ];
        made.iter().for_each(|made| Record::add(&run, made).unwrap());
        let record = Record::read(&run).unwrap().unwrap();
        fs::remove_dir_all(&run).unwrap();
        assert_eq!(record.0, made);
        assert!(record.is_complete() && record.is_of_boot("b-1") && !record.is_of_boot("b-2"));
    }

    #[test]
    fn a_line_that_was_cut_short_is_not_believed() {
        let record = Record::parse("namespace a\nprocess node1.init 12\nproc");
        assert_eq!(record.0, [Made::Namespace("a".into())]);
        assert!(!record.is_complete());
    }

    #[test]
    fn a_restarted_process_is_the_last_of_its_name() {
        let record = Record::parse("process a 1 5\nprocess b 2 5\nprocess a 3 9\n");
        assert_eq!(record.process("a").map(|process| process.id), Some(3));
        assert_eq!(record.processes().count(), 3);
        assert_eq!(record.process("c"), None);
    }
}
