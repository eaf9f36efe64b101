//! The file that is put. Nothing keeps others from writing to it meanwhile, so it is looked at again after each read.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};

/// Clocks of file systems go in steps of the kernel's tick, which has 10 ms at most. Two changes in one step look alike.
const STEP: Duration = Duration::from_millis(20);

/// An open file, as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    file: File,
    path: &'a Path,
    stamp: Stamp,
}

/// Stamp that tells two states of a file apart. Writing through a map leaves it alone until the pages are written, on
/// tmpfs for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    /// Of the last writing, in seconds and nanoseconds.
    written: (i64, i64),
    /// Of the last change of any kind, which nobody can set back.
    changed: (i64, i64),
}

impl From<&fs::Metadata> for Stamp {
    fn from(of: &fs::Metadata) -> Self {
        Self {
            inode: (of.dev(), of.ino()),
            bytes: of.size(),
            written: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        }
    }
}

impl<'a> Source<'a> {
    /// Opens a file that is to be put. Nothing but a plain file can be one: of a pipe the end would be waited for.
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        let cannot = || format!("cannot open {}", path.display());
        let kind = fs::metadata(path).with_context(cannot)?;
        ensure!(
            !kind.is_dir(),
            "{} is a directory; put takes one safetensors file: name one that is in it",
            path.display()
        );
        ensure!(
            kind.is_file(),
            "{} is no plain file; write what it brings into one, and put that",
            path.display()
        );
        let file = File::open(path).with_context(cannot)?;
        let mut now = file.metadata().with_context(cannot)?;
        if is_fresh(&now) {
            // The next change must show.
            thread::sleep(STEP);
            now = file.metadata().with_context(cannot)?;
        }
        Ok(Self { file, path, stamp: Stamp::from(&now) })
    }

    /// Path at which the file was found.
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Length of the file when it was opened, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.stamp.bytes
    }

    /// Reads bytes from an offset.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.changed("became shorter"),
            _ => anyhow!(error).context(format!("cannot read {}", self.path.display())),
        })
    }

    /// Fails if what was read so far may be of two states of the file.
    pub(crate) fn check(&self) -> Result<()> {
        let now = Stamp::from(&self.file.metadata()?);
        if now != self.stamp {
            bail!(self.changed("was written to"));
        }
        match fs::metadata(self.path) {
            Ok(there) if Stamp::from(&there).inode == self.stamp.inode => Ok(()),
            _ => bail!(self.changed("was replaced or removed")),
        }
    }

    fn changed(&self, what: &str) -> anyhow::Error {
        anyhow!(
            "{} {what} while it was put; put it again when whoever writes it is done",
            self.path.display()
        )
    }
}

/// Returns whether a file changed so lately that the next change may carry the same time.
fn is_fresh(of: &fs::Metadata) -> bool {
    let changed = u64::try_from(of.ctime()).unwrap_or(0);
    let changed = SystemTime::UNIX_EPOCH + Duration::new(changed, of.ctime_nsec().try_into().unwrap_or(0));
    changed.elapsed().map_or(true, |age| age < STEP)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Returns what a check says after a file of 8 bytes has been treated so.
    fn checked(treat: impl FnOnce(&Path)) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, b"12345678").unwrap();
        let source = Source::open(&path).unwrap();
        source.check().unwrap();
        treat(&path);
        source.check().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_file_that_nobody_touches_is_the_same() {
        assert_eq!(checked(|_| ()), "");
        assert_eq!(checked(|path| drop(fs::read(path).unwrap())), "");
    }

    #[test]
    fn a_file_that_is_written_in_place_is_another_at_once_and_with_its_old_time() {
        let write = |path: &Path| {
            let mut file = File::options().write(true).open(path).unwrap();
            file.write_all(b"abcdefgh").unwrap();
            file
        };
        assert!(checked(|path| drop(write(path))).contains("was written to while it was put"));
        let set_back = |path: &Path| {
            let written = fs::metadata(path).unwrap().modified().unwrap();
            write(path).set_modified(written).unwrap();
        };
        assert!(checked(set_back).contains("was written to while it was put"));
    }

    #[test]
    fn a_file_that_was_replaced_removed_or_cut_is_another() {
        assert!(checked(|path| fs::remove_file(path).unwrap()).contains("while it was put"));
        let replace = |path: &Path| {
            fs::write(path.with_extension("new"), b"abcdefgh").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        };
        assert!(checked(replace).contains("while it was put"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, b"12345678").unwrap();
        let source = Source::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let told = source.read(&mut [0; 8], 0).unwrap_err().to_string();
        assert!(told.contains("became shorter while it was put"), "{told}");
    }
}
