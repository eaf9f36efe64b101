//! Rights of a file or directory that takes the place of another: whoever could not read that one cannot read this one.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::io::Errno;

/// The list of further users and groups that may read, where a file has one.
const ACL: &str = "system.posix_acl_access";

/// Gives a new file or directory mode, group and owner of what is at a path, as far as the process may. A directory
/// keeps its setgid bit with its group. Lists of further users are not kept, and one that the new file has of its
/// directory is removed.
///
/// # Errors
/// Errors of the system, where the mode cannot be set or the list not be removed.
pub fn take(file: &File, of: &Path) -> io::Result<()> {
    let (there, now) = (fs::metadata(of)?, file.metadata()?);
    match rustix::fs::fremovexattr(file, ACL) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    let has_group = now.gid() == there.gid() || fchown(file, None, Some(there.gid())).is_ok();
    // With a list, the bits of the group are the most that anybody on it may do.
    let has_list = rustix::fs::getxattr(of, ACL, &mut [0_u8; 0][..]).is_ok_and(|bytes| bytes > 0);
    let setgid = if there.is_dir() && has_group { there.mode() & SETGID } else { 0 };
    let mode = mode(there.mode(), has_group && !has_list) | setgid;
    // Read anew: the list's end, or another group, may have changed it.
    if file.metadata()?.mode() & 0o7777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    if now.uid() != there.uid() {
        // Last: nobody but the owner sets a mode. Only root gives files away; others own what they wrote.
        let _ = fchown(file, Some(there.uid()), None);
    }
    Ok(())
}

/// Bit by which files that are made in a directory get its group.
const SETGID: u32 = 0o2000;

/// The bits to set. Another group may do no more than everybody.
fn mode(there: u32, is_same_group: bool) -> u32 {
    let mode = there & 0o777;
    if is_same_group { mode } else { mode & 0o707 | (mode & 0o007) << 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_group_may_do_no_more_than_everybody() {
        for (there, kept, other) in
            [(0o100_640, 0o640, 0o600), (0o664, 0o664, 0o644), (0o4770, 0o770, 0o700), (0o600, 0o600, 0o600)]
        {
            assert_eq!((mode(there, true), mode(there, false)), (kept, other), "{there:o}");
        }
    }

    #[test]
    fn rights_are_those_of_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        for bits in [0o600, 0o660, 0o755] {
            fs::write(&one, b"").unwrap();
            fs::set_permissions(&one, Permissions::from_mode(bits)).unwrap();
            let file = File::create(&other).unwrap();
            take(&file, &one).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, bits);
        }
    }
    #[test]
    fn a_directory_keeps_its_setgid_bit() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::create_dir(&other).unwrap();
        for bits in [0o2755, 0o700] {
            let _ = fs::create_dir(&one);
            fs::set_permissions(&one, Permissions::from_mode(bits)).unwrap();
            let bits = fs::metadata(&one).unwrap().mode();
            take(&File::open(&other).unwrap(), &one).unwrap();
            assert_eq!(fs::metadata(&other).unwrap().mode(), bits);
        }
    }

    /// A list by which the user 12345 may read, as the kernel takes it: tag, bits and number of each entry.
    fn list() -> Vec<u8> {
        let nobody = u32::MAX;
        let entries: [(u16, u16, u32); 5] =
            [(1, 6, nobody), (2, 4, 12_345), (4, 4, nobody), (16, 4, nobody), (32, 0, nobody)];
        let entry = |(tag, bits, number): (u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &number.to_le_bytes()].concat()
        };
        [2_u32.to_le_bytes().to_vec(), entries.into_iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn a_list_of_the_directory_lets_nobody_read_who_could_not() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&one, b"").unwrap();
        fs::set_permissions(&one, Permissions::from_mode(0o640)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        match rustix::fs::setxattr(directory.path(), "system.posix_acl_default", &list(), flags) {
            // Not every file system has lists.
            Err(Errno::OPNOTSUPP) => return,
            set => set.unwrap(),
        }
        let file = File::create(&other).unwrap();
        let has_list = || rustix::fs::getxattr(&other, ACL, &mut [0_u8; 0][..]).is_ok();
        assert!(has_list());
        take(&file, &one).unwrap();
        assert!(!has_list());
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
    }
}
