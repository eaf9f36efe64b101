//! The directory of all sets on files, and names below it, none of which is a link.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tensorlane_proto::failure::{Failure, Reason};

use super::descriptors::Descriptors;
use super::failure::storage;

/// Longest name of a directory: that of its draft is longer, and at most 255.
const NAME_BYTES_MAX: usize = 200;
/// Ending of a directory in the making. Those of dead lives are removed.
const DRAFT: &str = ".tl-set";

/// `sets.root`. This sidecar alone makes sets there.
pub(in crate::exchange) struct Root {
    pub(super) directory: OwnedFd,
    pub(super) descriptors: Descriptors,
    /// Held while sets are made, opened and dropped, one at a time.
    pub(in crate::exchange::rows) making: Mutex<()>,
    /// Most bytes of the journal of a set.
    pub(super) journal_max: u64,
    last: AtomicU64,
}

/// Limits of sets on files.
#[derive(Clone, Copy, Debug)]
pub(in crate::exchange) struct RootLimits {
    /// Most files that are kept open.
    pub(in crate::exchange) files: usize,
    /// Most bytes of the journal of a set, and so of a commit that survives a loss of power.
    pub(in crate::exchange) journal_bytes: u64,
}

/// Name of a directory below the root: one part, and not hidden.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::exchange::rows) struct DirectoryName(String);

/// A directory or file that stays the same: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exchange::rows) struct Inode(u64, u64);

// === impl Root ===

impl Root {
    /// Opens the directory, for one sidecar at a time.
    ///
    /// # Errors
    /// Error of the kernel; [`io::ErrorKind::ResourceBusy`] where another sidecar has it.
    pub(in crate::exchange) fn open(path: &Path, limits: RootLimits) -> io::Result<Self> {
        // The operator's own word may be a link; what lies below may not.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::ResourceBusy.into()),
            locked => locked?,
        }
        Ok(Self {
            directory,
            descriptors: Descriptors::new(limits.files),
            making: Mutex::default(),
            journal_max: limits.journal_bytes,
            last: AtomicU64::new(0),
        })
    }

    /// Number of files that are kept open.
    pub(in crate::exchange) fn open_files(&self) -> usize {
        self.descriptors.open()
    }

    /// A number that no other set of this life has.
    pub(super) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    /// Directories below it that may be sets. Drafts that dead lives left are removed.
    pub(in crate::exchange::rows) fn names(&self) -> Result<Vec<DirectoryName>, Failure> {
        let failed = |error: Errno| storage(".", "list", &error.into());
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name.starts_with('.') && name.ends_with(DRAFT) {
                self.remove_all(name)?;
            } else if let Ok(name) = DirectoryName::new(name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The inode at a name; none where nothing is.
    pub(in crate::exchange::rows) fn inode(&self, name: &DirectoryName) -> Result<Option<Inode>, Failure> {
        match rustix::fs::statat(&self.directory, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Inode(stat.st_dev, stat.st_ino))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(storage(name.as_str(), "look at", &error.into())),
        }
    }

    /// Opens the directory of a set.
    pub(super) fn set(&self, name: &DirectoryName) -> Result<(OwnedFd, Inode), Failure> {
        let failed = |error: io::Error| storage(name.as_str(), "open", &error);
        let directory = below(&self.directory, name.as_str()).map_err(failed)?;
        let stat = rustix::fs::fstat(&directory).map_err(|error| failed(error.into()))?;
        Ok((directory, Inode(stat.st_dev, stat.st_ino)))
    }

    /// Removes a directory and all in it. Nothing that is there no more is missed.
    pub(super) fn remove_all(&self, name: &str) -> Result<(), Failure> {
        match remove(&self.directory, name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(storage(name, "remove", &error)),
            _ => Ok(()),
        }
    }
}

// === impl DirectoryName ===

impl DirectoryName {
    /// Takes a name.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with what it may be.
    pub(in crate::exchange::rows) fn new(name: &str) -> Result<Self, Failure> {
        let is_plain = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.');
        if is_plain && !name.contains(['/', '\0']) {
            return Ok(Self(name.to_owned()));
        }
        let shown: String = name.chars().take(64).collect();
        let what = format!(
            "{shown:?} is no directory of a set: give a name below sets.root of 1 to {NAME_BYTES_MAX} bytes, without /, and not beginning with a dot"
        );
        Err(Failure::new(Reason::InvalidArgument, what).with("directory", shown))
    }

    pub(in crate::exchange::rows) fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the directory while it is made.
    pub(super) fn draft(&self) -> String {
        format!(".{}{DRAFT}", self.0)
    }
}

// === Files ===

impl Inode {
    /// The inode of an open file, which must be a plain one; its links and its length.
    pub(super) fn plain(file: &File) -> io::Result<(u64, u64)> {
        let about = file.metadata()?;
        if about.is_file() { Ok((about.nlink(), about.len())) } else { Err(Errno::NXIO.into()) }
    }
}

/// Opens a directory in another one. A link is none.
pub(super) fn below(directory: &impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

/// Opens a plain file in a directory: no link, no FIFO, no device.
pub(super) fn file(directory: &impl AsFd, name: &str, flags: OFlags) -> io::Result<File> {
    // Not waiting: a FIFO in the place of a file would wait for its other end.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o644))?);
    Inode::plain(&file)?;
    Ok(file)
}

/// Opens a plain file behind directories, none of which is a link.
pub(super) fn file_at(directory: &OwnedFd, path: &[String], flags: OFlags) -> io::Result<File> {
    let Some((last, parents)) = path.split_last() else { return Err(Errno::NOENT.into()) };
    let inner = walk(directory, parents)?;
    file(inner.as_ref().unwrap_or(directory), last, flags)
}

/// Opens the directory behind others, none of which is a link; none for the first one itself.
pub(super) fn walk(directory: &OwnedFd, path: &[String]) -> io::Result<Option<OwnedFd>> {
    let mut inner: Option<OwnedFd> = None;
    for name in path {
        inner = Some(below(inner.as_ref().unwrap_or(directory), name)?);
    }
    Ok(inner)
}

fn remove(directory: &impl AsFd, name: &str) -> io::Result<()> {
    let inner = match below(directory, name) {
        Ok(inner) => inner,
        Err(error) if error.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) => {
            return Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?);
        }
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&inner)? {
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.iter().try_for_each(|name| remove(&inner, name))?;
    Ok(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        for name in ["", ".", "..", "../x", "/x", "a/b", "a/../b", ".hidden", "a\0b", &"x".repeat(201)] {
            assert_eq!(DirectoryName::new(name).unwrap_err().reason, Reason::InvalidArgument, "{name:?}");
        }
        assert!(
            ["replay", "a b", "Größe", "x.y", &"x".repeat(200)]
                .iter()
                .all(|name| DirectoryName::new(name).is_ok())
        );
    }

    #[test]
    fn one_sidecar_has_a_root_at_a_time_and_drafts_of_dead_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let limits = RootLimits { files: 4, journal_bytes: 1 << 20 };
        let root = Root::open(folder.path(), limits).unwrap();
        let second = Root::open(folder.path(), limits).map(drop).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
        std::fs::create_dir_all(folder.path().join(".replay.tl-set/next")).unwrap();
        std::fs::write(folder.path().join(".replay.tl-set/next/x.memmap"), "x").unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("link")).unwrap();
        let names: Vec<_> = root.names().unwrap().iter().map(|name| name.as_str().to_owned()).collect();
        assert_eq!(names.len(), 2);
        assert!(!folder.path().join(".replay.tl-set").exists());
        let link = root.set(&DirectoryName::new("link").unwrap()).unwrap_err();
        assert_eq!(link.reason, Reason::StorageFailed, "{link}");
    }
}
