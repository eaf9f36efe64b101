//! Renames that replace nothing, and swaps, also where the file system has no call for them: NFS, CephFS, many of FUSE.
//!
//! There a file gets its new name as a second one, which replaces nothing either. A directory cannot have two: somebody who makes one
//! of its name between look and rename may lose an empty one. A swap is three renames there, and for a moment nothing has the name.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, RenameFlags, linkat, renameat, renameat_with, statat, unlinkat};
use rustix::io::Errno;

/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Rename with flags, of paths at a directory.
type Flagged = fn(BorrowedFd<'_>, &Path, &Path, RenameFlags) -> Result<(), Errno>;

/// Renames a file, from and to a path at a directory, and replaces nothing.
///
/// # Errors
/// `AlreadyExists` where something is there, and those of the system. Nothing has changed then.
pub fn file(at: impl AsFd, from: &Path, to: &Path) -> io::Result<()> {
    Ok(file_by(flagged, at.as_fd(), from, to)?)
}

/// Renames a directory, from and to a path at a directory, and replaces nothing.
///
/// # Errors
/// `AlreadyExists` where something is there, and those of the system. Nothing has changed then.
pub fn directory(at: impl AsFd, from: &Path, to: &Path) -> io::Result<()> {
    Ok(directory_by(flagged, at.as_fd(), from, to)?)
}

/// Swaps the names of two directories. `aside` is a name beside them that nothing has; one of them has it meanwhile where the file
/// system cannot swap.
///
/// # Errors
/// Errors of the system. Both have their old names then, unless the last of three renames failed.
pub fn swap(at: impl AsFd, one: &Path, other: &Path, aside: &Path) -> io::Result<()> {
    Ok(swap_by(flagged, at.as_fd(), one, other, aside)?)
}

/// Path beside another, of its name between two words. The name is cut where the whole would be longer than file systems take.
#[must_use]
pub fn beside(path: &Path, before: &str, after: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let mut end = name.len().min(NAME_BYTES_MAX.saturating_sub(before.len() + after.len()));
    // Not inside of a character.
    while end > 0 && name.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    let mut beside = OsString::from(before);
    beside.push(OsStr::from_bytes(&name[..end]));
    beside.push(after);
    path.with_file_name(beside)
}

fn flagged(at: BorrowedFd<'_>, from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
    renameat_with(at, from, at, to, flags)
}

/// Returns whether an error says that the file system, or the kernel, has no such call.
fn is_lacking(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

fn file_by(rename: Flagged, at: BorrowedFd<'_>, from: &Path, to: &Path) -> Result<(), Errno> {
    match rename(at, from, to, RenameFlags::NOREPLACE) {
        Err(error) if is_lacking(error) => {}
        done => return done,
    }
    match linkat(at, from, at, to, AtFlags::empty()) {
        // It has no second names.
        Err(error) if is_lacking(error) || error == Errno::PERM => plainly(at, from, to),
        Err(error) => Err(error),
        // It has its name. Where the other one cannot be taken away, that is all that is left.
        Ok(()) => {
            let _ = unlinkat(at, from, AtFlags::empty());
            Ok(())
        }
    }
}

fn directory_by(rename: Flagged, at: BorrowedFd<'_>, from: &Path, to: &Path) -> Result<(), Errno> {
    match rename(at, from, to, RenameFlags::NOREPLACE) {
        Err(error) if is_lacking(error) => plainly(at, from, to),
        done => done,
    }
}

/// Renames what nothing is in the way of.
fn plainly(at: BorrowedFd<'_>, from: &Path, to: &Path) -> Result<(), Errno> {
    match statat(at, to, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Err(Errno::EXIST),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    match renameat(at, from, at, to) {
        // It came since.
        Err(Errno::NOTEMPTY | Errno::NOTDIR) => Err(Errno::EXIST),
        done => done,
    }
}

fn swap_by(rename: Flagged, at: BorrowedFd<'_>, one: &Path, other: &Path, aside: &Path) -> Result<(), Errno> {
    match rename(at, one, other, RenameFlags::EXCHANGE) {
        Err(error) if is_lacking(error) => {}
        done => return done,
    }
    directory_by(rename, at, other, aside)?;
    if let Err(error) = directory_by(rename, at, one, other) {
        renameat(at, aside, at, other)?;
        return Err(error);
    }
    renameat(at, aside, at, one)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::CWD;

    use super::*;

    /// The call of a file system that has no flags.
    fn lacking(at: BorrowedFd<'_>, from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
        if flags.is_empty() { renameat(at, from, at, to) } else { Err(Errno::INVAL) }
    }

    const WAYS: [Flagged; 2] = [flagged, lacking];

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_renamed_and_replaces_nothing_with_flags_and_without() {
        for rename in WAYS {
            let folder = tempfile::tempdir().unwrap();
            let (from, to) = (folder.path().join("from"), folder.path().join("to"));
            fs::write(&from, "ours").unwrap();
            fs::write(&to, "theirs").unwrap();
            assert_eq!(file_by(rename, CWD, &from, &to), Err(Errno::EXIST));
            assert_eq!(
                (fs::read(&from).unwrap(), fs::read(&to).unwrap()),
                (b"ours".into(), b"theirs".into())
            );
            fs::remove_file(&to).unwrap();
            assert_eq!(file_by(rename, CWD, &from, &to), Ok(()));
            assert_eq!(
                (names(folder.path()), fs::read(&to).unwrap()),
                (vec!["to".to_owned()], b"ours".into())
            );
        }
    }

    #[test]
    fn a_directory_is_renamed_and_replaces_nothing_with_flags_and_without() {
        for rename in WAYS {
            let folder = tempfile::tempdir().unwrap();
            let (from, to) = (folder.path().join("from"), folder.path().join("to"));
            fs::create_dir(&from).unwrap();
            fs::create_dir(&to).unwrap();
            assert_eq!(directory_by(rename, CWD, &from, &to), Err(Errno::EXIST));
            fs::remove_dir(&to).unwrap();
            assert_eq!(directory_by(rename, CWD, &from, &to), Ok(()));
            assert_eq!(names(folder.path()), ["to"]);
        }
    }

    #[test]
    fn two_directories_swap_their_names_with_flags_and_without() {
        for rename in WAYS {
            let folder = tempfile::tempdir().unwrap();
            let [one, other, aside] = ["one", "other", "aside"].map(|name| folder.path().join(name));
            for (path, file) in [(&one, "a"), (&other, "b")] {
                fs::create_dir(path).unwrap();
                fs::write(path.join(file), "").unwrap();
            }
            assert_eq!(swap_by(rename, CWD, &one, &other, &aside), Ok(()));
            assert_eq!((names(&one), names(&other)), (vec!["b".to_owned()], vec!["a".to_owned()]));
            assert_eq!(names(folder.path()), ["one", "other"]);
            // Where the new one cannot get the name, the old one has it again.
            let absent = folder.path().join("absent");
            assert_eq!(swap_by(rename, CWD, &absent, &other, &aside), Err(Errno::NOENT));
            assert_eq!(names(folder.path()), ["one", "other"]);
        }
    }

    #[test]
    fn a_name_beside_another_is_cut_between_characters_where_it_would_be_too_long() {
        let beside = |name: &str| beside(&Path::new("d").join(name), ".", ".part");
        assert_eq!(beside("x"), Path::new("d/.x.part"));
        assert_eq!(beside(&"x".repeat(250)), Path::new(&format!("d/.{}.part", "x".repeat(249))));
        assert_eq!(beside(&"ä".repeat(127)), Path::new(&format!("d/.{}.part", "ä".repeat(124))));
    }
}
