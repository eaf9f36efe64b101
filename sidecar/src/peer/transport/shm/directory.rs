//! The directory that the sidecars of a node share, and our socket in it. Knows file names and inodes, and no peer.
//!
//! Anybody who may write there can put a file under any name. So a socket is found by its name *and* by the device and inode of
//! its file and of the directory, as its owner has told them on the control connection. It is opened without following links, and
//! connected through the descriptor that was looked at.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tensorlane_proto::Fingerprint;

use super::place::{BootId, DIGITS, FileId, SocketName, directory_id, is_name};

/// Files that are looked at for sockets that the dead left. More are left to the next sidecar that starts.
const SWEPT_MAX: usize = 4096;

/// Reason for which a peer's socket was not connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotThere {
    /// Socket that is not in this directory, or nobody listens on it: the peer is on another node.
    #[error("it has no socket in this node's directory")]
    OtherNode,
    /// Something else has its name.
    #[error("what has its name in the node's directory is not its socket")]
    Foreign,
    /// The kernel says no.
    #[error("{0}")]
    Socket(#[from] io::Error),
}

/// Socket of ours in the directory. The file goes with it.
#[derive(Debug)]
pub(super) struct Bound {
    path: PathBuf,
    pub(super) listener: UnixListener,
    pub(super) socket: SocketName,
}

/// The name of the socket of whoever has a key.
pub(super) fn name_of(fingerprint: &Fingerprint) -> String {
    let digits = fingerprint.to_string();
    let digits = digits.rsplit(':').next().unwrap_or_default();
    format!("{}.sock", &digits[..DIGITS])
}

impl Bound {
    /// Listens in `directory` under `name`. The file appears there when it is listened on, so that nobody takes it for one
    /// of the dead.
    pub(super) fn bind(directory: &Path, name: &str) -> io::Result<Self> {
        // A name that nobody can take before.
        let coming = directory.join(format!(".{name}.{:016x}", rand::random::<u64>()));
        let path = directory.join(name);
        let boot = BootId::read()?;
        let listener = UnixListener::bind(&coming)?;
        let listening = || {
            let file = open_to_all(&coming)?;
            std::fs::rename(&coming, &path)?;
            let name = name.to_owned();
            Ok(SocketName { name, file, directory: directory_id(directory)?, boot })
        };
        match listening() {
            Ok(socket) => {
                if is_local(directory) {
                    sweep(directory, &socket);
                }
                Ok(Self { path, listener, socket })
            }
            Err(error) => {
                let _ = std::fs::remove_file(&coming);
                Err(error)
            }
        }
    }

    /// Returns whether the file is still there.
    pub(super) fn is_there(&self) -> bool {
        let file = self.socket.file;
        std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (file.device, file.inode))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.is_there() {
            // Gone meanwhile is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Lets any sidecar call, whatever its user; it still has to prove who it is. Gives the file's identity. By the file and not by its name,
/// which anybody who may write to the directory as this user can give to a link.
fn open_to_all(path: &Path) -> io::Result<FileId> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::other("something else has taken the place of our socket"));
    }
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::set_permissions(by_descriptor, std::fs::Permissions::from_mode(0o666))?;
    Ok(FileId::shown(&found))
}

/// Returns whether a directory is on this machine for certain. In one that machines share, a socket on which nobody
/// listens here may be that of another kernel.
fn is_local(directory: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const OVERLAY: i64 = 0x794c_7630;
    let kind = rustix::fs::statfs(directory).map(|found| found.f_type);
    kind.is_ok_and(|kind| [TMPFS, EXT, XFS, BTRFS, OVERLAY].contains(&kind))
}

/// A peer's socket, looked at.
fn find(directory: &Path, socket: &SocketName) -> Result<OwnedFd, NotThere> {
    let opened = |opened: Result<OwnedFd, Errno>| match opened {
        Err(Errno::NOENT) => Err(NotThere::OtherNode),
        opened => opened.map_err(|error| io::Error::from(error).into()),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let at = opened(rustix::fs::open(directory, flags | OFlags::DIRECTORY, Mode::empty()))?;
    if FileId::of(&at)? != socket.directory {
        return Err(NotThere::OtherNode);
    }
    let found = opened(rustix::fs::openat(&at, &socket.name, flags | OFlags::NOFOLLOW, Mode::empty()))?;
    let file = rustix::fs::fstat(&found).map_err(io::Error::from)?;
    let is_socket = FileType::from_raw_mode(file.st_mode) == FileType::Socket;
    if is_socket && FileId::shown(&file) == socket.file { Ok(found) } else { Err(NotThere::Foreign) }
}

/// Returns whether the file of a peer's socket is in the directory. Proves nothing; that it is not is reason enough not
/// to try.
pub(super) fn is_listed(directory: &Path, socket: &SocketName) -> bool {
    find(directory, socket).is_ok()
}

/// Connects to a peer's socket, without waiting for it.
pub(super) fn connect(directory: &Path, socket: &SocketName) -> Result<UnixStream, NotThere> {
    let found = find(directory, socket)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", found.as_raw_fd()));
    let address = address.map_err(io::Error::from)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let stream = stream.map_err(io::Error::from)?;
    match rustix::net::connect(&stream, &address) {
        Ok(()) => {}
        // Its file is here and its listener is not: dead, or in the kernel of another node that shares the directory.
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(NotThere::OtherNode),
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Removes sockets on which nobody listens any more, as far as we may. `ours` is in the same directory.
fn sweep(directory: &Path, ours: &SocketName) {
    let Ok(files) = std::fs::read_dir(directory) else { return };
    for entry in files.take(SWEPT_MAX).flatten() {
        let Some(name) = entry.file_name().to_str().filter(|name| is_name(name)).map(str::to_owned) else {
            continue;
        };
        let Some(found) = entry.metadata().ok().filter(|found| found.file_type().is_socket()) else {
            continue;
        };
        let file = FileId { device: found.dev(), inode: found.ino() };
        let socket = SocketName { name, file, ..ours.clone() };
        if matches!(connect(directory, &socket), Err(NotThere::OtherNode)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(digit: char) -> String {
        format!("{}.sock", String::from(digit).repeat(DIGITS))
    }

    #[test]
    fn a_socket_is_found_by_name_and_inode_and_by_nothing_less() {
        let dir = tempfile::tempdir().unwrap();
        let bound = Bound::bind(dir.path(), &name('a')).unwrap();
        assert!(connect(dir.path(), &bound.socket).is_ok() && is_listed(dir.path(), &bound.socket));
        let (file, directory) = (bound.socket.file, bound.socket.directory);
        for file in [FileId { inode: file.inode + 1, ..file }, FileId { device: file.device + 1, ..file }] {
            let other = SocketName { file, ..bound.socket.clone() };
            assert!(matches!(connect(dir.path(), &other), Err(NotThere::Foreign)));
        }
        let directory = FileId { device: directory.device + 1, ..directory };
        let elsewhere = SocketName { directory, ..bound.socket.clone() };
        assert!(matches!(connect(dir.path(), &elsewhere), Err(NotThere::OtherNode)));
        let absent = SocketName { name: name('b'), ..bound.socket.clone() };
        assert!(matches!(connect(dir.path(), &absent), Err(NotThere::OtherNode)));
        let link = SocketName { name: name('c'), ..bound.socket.clone() };
        std::os::unix::fs::symlink(dir.path().join(name('a')), dir.path().join(name('c'))).unwrap();
        assert!(matches!(connect(dir.path(), &link), Err(NotThere::Foreign)));
        let inode = std::fs::symlink_metadata(dir.path().join(name('c'))).unwrap().ino();
        let file = FileId { inode, ..link.file };
        assert!(matches!(connect(dir.path(), &SocketName { file, ..link }), Err(NotThere::Foreign)));
    }

    #[test]
    fn the_file_is_there_while_it_is_listened_on_and_a_stranger_in_its_place_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let bound = Bound::bind(dir.path(), &name('a')).unwrap();
        assert!(bound.is_there());
        std::fs::remove_file(dir.path().join(name('a'))).unwrap();
        std::fs::write(dir.path().join(name('a')), "mine").unwrap();
        assert!(!bound.is_there());
        drop(bound);
        assert!(dir.path().join(name('a')).exists());
        drop(Bound::bind(dir.path(), &name('b')).unwrap());
        assert!(!dir.path().join(name('b')).exists());
    }

    #[test]
    fn sockets_of_the_dead_are_removed_and_those_of_the_living_are_not() {
        let dir = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(dir.path().join(name('a'))).unwrap());
        let living = Bound::bind(dir.path(), &name('b')).unwrap();
        assert!(!dir.path().join(name('a')).exists());
        let mine = Bound::bind(dir.path(), &name('c')).unwrap();
        assert!(living.is_there() && mine.is_there());
        let again = Bound::bind(dir.path(), &name('b')).unwrap();
        assert!(again.is_there() && !living.is_there(), "a restarted sidecar takes its own name over");
    }
}
