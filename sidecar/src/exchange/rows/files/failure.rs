//! Errors of the file system, as failures with a path below `sets.root`, and what to do.

use std::io;

use rustix::io::Errno;
use tensorlane_proto::failure::{Failure, Reason};

/// Failure of a file system: the path from `sets.root`, and what was being done to it.
pub(super) fn storage(path: &str, doing: &str, error: &io::Error) -> Failure {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    let (reason, what) = match errno {
        Some(Errno::NOSPC | Errno::DQUOT) => (
            Reason::StorageFull,
            format!(
                "cannot {doing} {path} below sets.root: {error}; free room on that disk, or raise the quota"
            ),
        ),
        Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::NXIO) => (
            Reason::StorageFailed,
            format!(
                "cannot {doing} {path} below sets.root: it is gone, or is a link or no plain file; put it back, or drop the set"
            ),
        ),
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => (
            Reason::StorageFailed,
            format!("cannot {doing} {path} below sets.root: {error}; let the sidecar write there"),
        ),
        None if error.kind() == io::ErrorKind::UnexpectedEof => (
            Reason::StorageFailed,
            format!(
                "cannot {doing} {path} below sets.root: it was cut meanwhile, and ends before its rows do; put it back, or drop the set"
            ),
        ),
        _ => (
            Reason::StorageFailed,
            format!(
                "cannot {doing} {path} below sets.root: {error}; look at that disk, then write the rows again"
            ),
        ),
    };
    Failure::new(reason, what).with("path", path)
}

/// A directory that is none that this release takes, with what is wrong with it.
pub(super) fn unsupported(path: &str, what: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::UnsupportedFormat, format!("{path} below sets.root: {what}")).with("path", path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn errors_of_a_disk_have_a_reason_a_path_and_a_remedy() {
        for (errno, reason, remedy) in [
            (Errno::NOSPC, Reason::StorageFull, "free room on that disk"),
            (Errno::DQUOT, Reason::StorageFull, "raise the quota"),
            (Errno::IO, Reason::StorageFailed, "look at that disk"),
            (Errno::ROFS, Reason::StorageFailed, "let the sidecar write there"),
            (Errno::ACCESS, Reason::StorageFailed, "let the sidecar write there"),
            (Errno::NOENT, Reason::StorageFailed, "put it back"),
            (Errno::LOOP, Reason::StorageFailed, "is a link"),
        ] {
            let told = storage("replay/observation.memmap", "write", &errno.into());
            assert_eq!((told.reason, told.detail("path")), (reason, Some("replay/observation.memmap")));
            assert!(told.to_string().contains(remedy), "{errno:?}: {told}");
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_named_with_what_happened_and_what_to_do() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3).unwrap();
        let error = file.read_exact_at(&mut [0; 4], 0).unwrap_err();
        let told = storage("replay/observation.memmap", "read", &error);
        assert_eq!(told.reason, Reason::StorageFailed);
        let told = told.to_string();
        for part in
            ["cannot read replay/observation.memmap", "it was cut meanwhile", "put it back, or drop the set"]
        {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert!(!told.contains("whole buffer"), "{told}");
    }
}
