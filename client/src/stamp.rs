//! Stamps of files: what tells that somebody wrote to a file, or put another in its place, while it was read.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::Stat;

/// Clocks of file systems go in steps of the kernel's tick, which has 10 ms at most. Two changes in one step look alike.
const STEP: Duration = Duration::from_millis(20);

/// Stamp that tells two states of a file apart. Writing through a map leaves it alone until the pages are written, on
/// tmpfs for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    /// Of the last writing, in seconds and nanoseconds.
    written: (i64, i64),
    /// Of the last change of any kind, which nobody can set back.
    changed: (i64, i64),
}

impl From<&Metadata> for Stamp {
    fn from(of: &Metadata) -> Self {
        Self {
            inode: (of.dev(), of.ino()),
            bytes: of.size(),
            written: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        }
    }
}

impl From<&Stat> for Stamp {
    fn from(of: &Stat) -> Self {
        let fraction = |nanoseconds: u64| i64::try_from(nanoseconds).unwrap_or(0);
        Self {
            inode: (of.st_dev, of.st_ino),
            bytes: u64::try_from(of.st_size).unwrap_or(0),
            written: (of.st_mtime, fraction(of.st_mtime_nsec)),
            changed: (of.st_ctime, fraction(of.st_ctime_nsec)),
        }
    }
}

impl Stamp {
    /// Stamp of a file that is read from now on. One that has just changed is looked at again a moment later: the next
    /// change must show.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn first(file: &File) -> io::Result<Self> {
        Self::first_of(file, &file.metadata()?)
    }

    /// Stamp of a file that is read from now on, and that was looked at just now.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn first_of(file: &File, now: &Metadata) -> io::Result<Self> {
        let now = Self::from(now);
        if !now.is_fresh() {
            return Ok(now);
        }
        thread::sleep(STEP);
        Self::of(file)
    }

    /// Stamp of a file that is read from now on, by looks at it. One that has just changed is looked at again a moment later.
    ///
    /// # Errors
    /// Errors of a look.
    pub fn first_by<E>(look: impl Fn() -> Result<Self, E>) -> Result<Self, E> {
        let now = look()?;
        if !now.is_fresh() {
            return Ok(now);
        }
        thread::sleep(STEP);
        look()
    }

    /// Stamp of a file as it is now.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from(&file.metadata()?))
    }

    /// Length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Difference from a later look at the same path, in words; none where it is the same file, unchanged. No later stamp
    /// stands for a file that is gone.
    pub fn until(&self, now: Option<Self>) -> Option<&'static str> {
        match now {
            Some(now) if now == *self => None,
            Some(now) if now.inode != self.inode => Some("was replaced"),
            Some(now) if now.bytes < self.bytes => Some("became shorter"),
            Some(_) => Some("was written to"),
            None => Some("was removed"),
        }
    }

    /// Returns whether the file changed so lately that the next change may carry the same time.
    fn is_fresh(&self) -> bool {
        let (seconds, nanoseconds) = self.changed;
        let seconds = u64::try_from(seconds).unwrap_or(0);
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds.try_into().unwrap_or(0));
        changed.elapsed().map_or(true, |age| age < STEP)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, statat};

    use super::*;

    /// Returns what a later look says after a file of 8 bytes has been treated so.
    fn looked(treat: impl FnOnce(&Path)) -> Option<&'static str> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, b"12345678").unwrap();
        let file = File::open(&path).unwrap();
        let stamp = Stamp::first(&file).unwrap();
        assert_eq!((stamp.bytes(), stamp.until(Some(Stamp::of(&file).unwrap()))), (8, None));
        treat(&path);
        stamp.until(fs::metadata(&path).ok().as_ref().map(Stamp::from))
    }

    fn write(path: &Path) -> File {
        let mut file = File::options().write(true).open(path).unwrap();
        file.write_all(b"abcdefgh").unwrap();
        file
    }

    #[test]
    fn a_file_that_nobody_touches_is_the_same() {
        assert_eq!(looked(|_| ()), None);
        assert_eq!(looked(|path| drop(fs::read(path).unwrap())), None);
    }

    #[test]
    fn a_stamp_is_the_same_whether_the_file_was_opened_or_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, b"12345678").unwrap();
        let look = || statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).map(|of| Stamp::from(&of));
        let stamp = Stamp::first_by(look).unwrap();
        assert_eq!(stamp, Stamp::of(&File::open(&path).unwrap()).unwrap());
        drop(write(&path));
        assert_eq!(stamp.until(Some(look().unwrap())), Some("was written to"));
    }

    #[test]
    fn a_file_that_is_written_in_place_is_another_at_once_and_with_its_old_time() {
        assert_eq!(looked(|path| drop(write(path))), Some("was written to"));
        let set_back = |path: &Path| {
            let written = fs::metadata(path).unwrap().modified().unwrap();
            write(path).set_modified(written).unwrap();
        };
        assert_eq!(looked(set_back), Some("was written to"));
    }

    #[test]
    fn a_file_that_was_replaced_removed_or_cut_is_another() {
        let replace = |path: &Path| {
            fs::write(path.with_extension("new"), b"abcdefgh").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        };
        assert_eq!(looked(replace), Some("was replaced"));
        assert_eq!(looked(|path| fs::remove_file(path).unwrap()), Some("was removed"));
        let cut = |path: &Path| File::options().write(true).open(path).unwrap().set_len(4).unwrap();
        assert_eq!(looked(cut), Some("became shorter"));
    }
}
