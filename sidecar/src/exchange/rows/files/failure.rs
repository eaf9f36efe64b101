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
        Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => (
            Reason::StorageFailed,
            format!(
                "cannot {doing} {path} below sets.root: it is gone, or is a link or no plain file; put it back, or drop the set"
            ),
        ),
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => (
            Reason::StorageFailed,
            format!("cannot {doing} {path} below sets.root: {error}; let the sidecar write there"),
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
