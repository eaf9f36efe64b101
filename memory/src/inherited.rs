//! Memory that a dead incarnation left mapped.
//!
//! Its segments live as long as a client maps them, charged to the same pod. A new incarnation that populated its
//! whole arena beside them would overflow the pod's limit, and the kernel would kill the user's container. So each
//! witness is a named pipe whose name says what it stands for, and a new incarnation opens their reading ends:
//! where there is no writer, nobody maps the segment; else the end of file will say when.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, OFlags};

/// Content of the name of a witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WitnessName {
    /// Random, one for each arena that was started.
    pub(crate) run: u64,
    pub(crate) segment: u32,
    pub(crate) serial: u64,
    pub(crate) bytes: u64,
    pub(crate) session: u64,
}

impl std::fmt::Display for WitnessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { run, segment, serial, bytes, session } = self;
        write!(f, "witness-{run:016x}-{segment}-{serial}-{bytes}-{session}")
    }
}

impl FromStr for WitnessName {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let mut parts = name.strip_prefix("witness-").ok_or(())?.split('-');
        let mut next = || parts.next().ok_or(());
        let run = u64::from_str_radix(next()?, 16).map_err(|_| ())?;
        let segment = next()?.parse().map_err(|_| ())?;
        let serial = next()?.parse().map_err(|_| ())?;
        let bytes = next()?.parse().map_err(|_| ())?;
        let session = next()?.parse().map_err(|_| ())?;
        let parsed = Self { run, segment, serial, bytes, session };
        if parsed.to_string() == name { Ok(parsed) } else { Err(()) }
    }
}

/// A witness that somebody still holds.
#[derive(Debug)]
pub struct InheritedWitness {
    /// Hangs up when the last holder is gone.
    pub read_end: OwnedFd,
    /// To be removed then.
    pub path: PathBuf,
}

/// A segment of a dead incarnation that somebody still maps.
#[derive(Debug)]
pub struct Inherited {
    /// Size of the segment in bytes; counted once, however many sessions map it.
    pub bytes: u64,
    /// Witnesses, one for each that maps it.
    pub witnesses: Vec<InheritedWitness>,
}

/// Looks through a witness directory, which is made where it is missing. Names without a holder are removed.
///
/// # Errors
/// Where the directory cannot be made or read, or one of its pipes cannot be opened.
pub fn scan(dir: &Path) -> io::Result<Vec<Inherited>> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mut segments: BTreeMap<(u64, u32), Inherited> = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_str().and_then(|name| name.parse::<WitnessName>().ok());
        let Some(name) = name.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_fifo())) else {
            continue;
        };
        let path = entry.path();
        let read_end = open_end(&path, OFlags::RDONLY)?;
        if has_writer(&read_end)? {
            let segment = segments.entry((name.run, name.segment));
            let inherited = segment.or_insert(Inherited { bytes: name.bytes, witnesses: Vec::new() });
            inherited.witnesses.push(InheritedWitness { read_end, path });
        } else {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(segments.into_values().collect())
}

/// Opens one end of a named pipe without waiting for the other.
pub(crate) fn open_end(path: &Path, access: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// A pipe without writer reads as ended; with one, as empty for now or as whatever was written into it.
fn has_writer(read_end: &OwnedFd) -> io::Result<bool> {
    match rustix::io::read(read_end, &mut [0u8; 1]) {
        Ok(0) => Ok(false),
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo(dir: &Path, name: WitnessName) -> (OwnedFd, OwnedFd) {
        let path = dir.join(name.to_string());
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let read = open_end(&path, OFlags::RDONLY).unwrap();
        let write = open_end(&path, OFlags::WRONLY).unwrap();
        (read, write)
    }

    fn name(segment: u32, session: u64) -> WitnessName {
        WitnessName { run: 0xfeed, segment, serial: session, bytes: 8192, session }
    }

    #[test]
    fn a_name_survives_being_written_and_anything_else_is_not_one() {
        let name = name(3, 7);
        assert_eq!(name.to_string().parse(), Ok(name));
        for other in
            ["", "witness-", "witness-1-2-3-4-5", "witness-000000000000feed-3-7-8192-7-9", "notes.txt"]
        {
            assert_eq!(other.parse::<WitnessName>(), Err(()), "{other}");
        }
    }

    #[test]
    fn a_segment_counts_once_though_two_sessions_map_it_and_names_without_holder_are_removed() {
        let _no_copies = crate::testing::without_children();
        let dir = tempfile::tempdir().unwrap();
        let (_, first) = fifo(dir.path(), name(1, 1));
        let (_, mut second) = fifo(dir.path(), name(1, 2));
        rustix::io::write(&mut second, b"noise").unwrap_err(); // nobody reads: EPIPE
        drop(fifo(dir.path(), name(2, 1)));
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        let found = scan(dir.path()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].bytes, found[0].witnesses.len()), (8192, 2));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        drop((first, second));
        assert!(scan(dir.path()).unwrap().is_empty());
    }

    #[test]
    fn bytes_in_the_pipe_do_not_hide_its_holder() {
        let _no_copies = crate::testing::without_children();
        let dir = tempfile::tempdir().unwrap();
        let (read, write) = fifo(dir.path(), name(1, 1));
        rustix::io::write(&write, b"noise").unwrap();
        drop(read);
        assert_eq!(scan(dir.path()).unwrap().len(), 1);
    }
}
