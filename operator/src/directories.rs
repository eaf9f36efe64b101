//! Directories of a node in which the sidecars of an exchange find each other. Each is a file system in memory of its own, with a size
//! and a number of files: whoever fills one fills nothing else of the node.
//!
//! ```text
//!   Standing (what is there) + FileSystem (what is wanted) ──change──> mount, resize, or nothing
//! ```
//!
//! Nothing is unmounted: sidecars may have their sockets there. What is mounted outlives the process, and a restart of the node does
//! not.

use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};
use rustix::mount::{MountFlags, mount, mount_remount};
use thiserror::Error;

use crate::annotations::memory;
use crate::dns::{BadName, Label, Subdomain};
use crate::quantity::Amount;

/// Source by which these file systems are known in tables of mounts.
pub const SOURCE: &str = "tensorlane";

/// Least and most bytes of a file system.
const BYTES: [Amount; 2] = [Amount::whole(64 << 10), Amount::whole(1 << 40)];

/// Sockets are neither run nor devices.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Modes of a directory: of one to mount at, where no sidecar may write, and of the file system, where everybody may and removes
/// nothing of others.
const BELOW: u32 = 0o755;
const ABOVE: u32 = 0o1777;

/// Bounds of a file system in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes of all files, whole pages. A socket takes none.
    pub bytes: u64,
    /// Files, the directory itself included. Each costs about a kilobyte of the kernel's memory while it is there.
    pub files: u64,
}

/// Exchange that has a directory on each node, such as `ml/default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDirectory {
    namespace: Label,
    exchange: Subdomain,
}

/// File system that stands at a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// File system of the directory above it.
    None,
    /// File system in memory, of this size.
    InMemory(FileSystem),
}

/// Change of what stands at a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A file system is mounted there.
    Mount,
    /// The one that is there gets another size. What is in it stays.
    Resize,
}

/// Failure to prepare a directory.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// Text that is no namespace and name.
    #[error("{0:?} names no exchange: write NAMESPACE/NAME, such as ml/default")]
    NoExchange(String),
    /// Name that Kubernetes does not know.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The kernel says no.
    #[error("{path} cannot be {what}: {source}{hint}")]
    Kernel {
        /// The directory.
        path: PathBuf,
        /// Attempt that failed.
        what: &'static str,
        /// Cause.
        source: io::Error,
        /// Remedy, after a colon.
        hint: &'static str,
    },
}

/// Reads the bytes of a file system.
///
/// # Errors
/// The text is no amount of whole pages within the bounds.
pub fn bytes(text: &str) -> Result<u64, String> {
    let amount = memory(text, BYTES[0], BYTES[1])?;
    amount.units().ok_or_else(|| "more than a machine counts".to_owned())
}

/// Makes the directory of an exchange below `root` and sees to it that a file system of this size is there. Returns what was changed.
///
/// # Errors
/// The kernel refuses, for want of privileges or because more is in use than the new size has room for.
pub fn prepare(
    root: &Path,
    of: &NodeDirectory,
    wanted: FileSystem,
) -> Result<Option<Change>, DirectoryError> {
    let path = root.join(of.namespace.as_str()).join(of.exchange.as_str());
    let failed = |what, hint| {
        let path = path.clone();
        move |source: io::Error| DirectoryError::Kernel { path, what, source, hint }
    };
    let made = DirBuilder::new().recursive(true).mode(BELOW).create(&path);
    made.map_err(failed("made", ""))?;
    let change = change(standing(&path).map_err(failed("looked at", ""))?, wanted);
    let FileSystem { bytes, files } = wanted;
    let size = format!("size={bytes},nr_inodes={files}");
    match change {
        Some(Change::Mount) => {
            // A pod that comes before the file system is there mounts what is below, and must fill nothing of the node.
            let closed = std::fs::set_permissions(&path, Permissions::from_mode(BELOW));
            closed.map_err(failed("closed to others", ""))?;
            let options = std::ffi::CString::new(format!("{size},mode={ABOVE:o}")).map_err(io::Error::from);
            let options = options.map_err(failed("mounted", ""))?;
            let mounted = mount(SOURCE, &path, "tmpfs", FLAGS, Some(options.as_c_str()));
            let hint = ": the container must be privileged";
            mounted.map_err(|error| failed("mounted", hint)(error.into()))?;
        }
        Some(Change::Resize) => {
            let resized = mount_remount(&path, FLAGS, &size);
            let hint = ": more may be in use than the new size has room for";
            resized.map_err(|error| failed("given another size", hint)(error.into()))?;
        }
        None => {}
    }
    Ok(change)
}

/// Change that makes what is wanted of what stands there.
fn change(standing: Standing, wanted: FileSystem) -> Option<Change> {
    match standing {
        Standing::None => Some(Change::Mount),
        Standing::InMemory(there) => (there != wanted).then_some(Change::Resize),
    }
}

fn standing(path: &Path) -> io::Result<Standing> {
    const TMPFS: i64 = 0x0102_1994;
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty())?;
    if !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(io::Error::other("the kernel does not say what is mounted where: Linux 5.8 or later"));
    }
    if !found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(Standing::None);
    }
    let there = statfs(path)?;
    if there.f_type != TMPFS {
        let error =
            "somebody has mounted another kind of file system there: unmount it, or leave the exchange out";
        return Err(io::Error::other(error));
    }
    let page = u64::try_from(there.f_bsize).unwrap_or_default();
    Ok(Standing::InMemory(FileSystem { bytes: there.f_blocks.saturating_mul(page), files: there.f_files }))
}

// === impl NodeDirectory ===

impl FromStr for NodeDirectory {
    type Err = DirectoryError;

    fn from_str(text: &str) -> Result<Self, DirectoryError> {
        let (namespace, exchange) =
            text.split_once('/').ok_or_else(|| DirectoryError::NoExchange(text.to_owned()))?;
        let namespace = Label::new("namespace", namespace)?;
        Ok(Self { namespace, exchange: Subdomain::new("exchange", exchange)? })
    }
}

impl fmt::Display for NodeDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.exchange)
    }
}

// === impl Change ===

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Mount => "mounted",
            Change::Resize => "resized",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: FileSystem = FileSystem { bytes: 1 << 20, files: 4096 };

    #[test]
    fn a_file_system_is_mounted_once_and_follows_what_is_wanted() {
        assert_eq!(change(Standing::None, WANTED), Some(Change::Mount));
        assert_eq!(change(Standing::InMemory(WANTED), WANTED), None);
        for other in [FileSystem { bytes: 2 << 20, ..WANTED }, FileSystem { files: 8, ..WANTED }] {
            assert_eq!(change(Standing::InMemory(other), WANTED), Some(Change::Resize));
        }
    }

    #[test]
    fn an_exchange_is_two_names_of_kubernetes_and_no_way_out_of_the_root() {
        let parsed = |text: &str| text.parse::<NodeDirectory>();
        assert_eq!(parsed("ml/default").unwrap().to_string(), "ml/default");
        for wrong in ["", "ml", "ml/", "/default", "../default", "ml/..", "ml/a/b", "ML/default"] {
            let refused = parsed(wrong).map(|one| one.to_string());
            assert!(refused.is_err(), "{wrong}: {refused:?}");
        }
    }

    #[test]
    fn bytes_are_whole_pages_within_the_bounds() {
        assert_eq!((bytes("64Ki"), bytes("1Mi")), (Ok(64 << 10), Ok(1 << 20)));
        for wrong in ["32Ki", "65537", "2Ti", "much"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_is_told_from_a_mount_and_a_mount_of_another_kind_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(standing(folder.path()).unwrap(), Standing::None);
        let refused = standing(Path::new("/proc")).unwrap_err().to_string();
        assert!(refused.contains("another kind of file system"), "{refused}");
    }
}
