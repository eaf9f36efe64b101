//! Rights of a file or directory that takes the place of another: whoever could not read that one cannot read this one.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// The list of further users and groups that may read, where a file has one.
const ACL: &str = "system.posix_acl_access";

/// Gives a new file or directory mode, group and owner of what is at a path, as far as the process may. A list of further users
/// is not kept.
///
/// # Errors
/// Those of the system, where the mode cannot be set.
pub fn take(file: &File, of: &Path) -> io::Result<()> {
    let (there, now) = (fs::metadata(of)?, file.metadata()?);
    let has_group = now.gid() == there.gid() || fchown(file, None, Some(there.gid())).is_ok();
    // With a list, the bits of the group are the most that anybody on it may do.
    let has_list = rustix::fs::getxattr(of, ACL, &mut [0_u8; 0][..]).is_ok_and(|bytes| bytes > 0);
    let mode = mode(there.mode(), has_group && !has_list);
    if now.mode() & 0o777 != mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    if now.uid() != there.uid() {
        // Last: nobody but the owner sets a mode. Only root gives files away; others own what they wrote.
        let _ = fchown(file, Some(there.uid()), None);
    }
    Ok(())
}

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
}
