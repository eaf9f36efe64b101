//! Place of a sidecar's socket: its kernel, its directory and its file, as both ends of a control connection tell them each
//! other. Two sidecars of which these say that they are apart do not try to meet.
//!
//! No one of them proves a node: clones of a machine share a boot id, and numbers of inodes count up, so that whoever makes files
//! can have the one that it wants. A stranger that would stand between two nodes has to forge all of them at once.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::Stat;
use tensorlane_proto::generated as v1;

/// File that says which boot of a kernel this is: a UUID, made when it starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Bytes of a boot id.
const BOOT_BYTES: usize = 16;
/// Digits of a name. Two sidecars of one node that have them in common are refused each other: one in 2⁶⁴.
pub(super) const DIGITS: usize = 16;

/// Identity of a file within one boot of one kernel, for as long as it is open or has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::peer) struct FileId {
    /// Device of the file system that it is on.
    pub(in crate::peer) device: u64,
    /// Inode of the socket there.
    pub(in crate::peer) inode: u64,
}

/// Boot of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::peer) struct BootId([u8; BOOT_BYTES]);

/// A socket in a directory of a kernel: what is told to peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::peer) struct SocketName {
    /// 16 hex digits and `.sock`.
    pub(in crate::peer) name: String,
    /// File under that name.
    pub(in crate::peer) file: FileId,
    /// Directory that the file is in.
    pub(in crate::peer) directory: FileId,
    /// Kernel that has both.
    pub(in crate::peer) boot: BootId,
}

/// Reason for which two sidecars do not try to meet at a node's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::peer) enum Apart {
    /// Peer of an earlier release, which does not tell where its socket is.
    Untold,
    /// Another kernel, or another boot of it.
    OtherKernel,
    /// Another directory, or one of another file system.
    OtherDirectory,
    /// Another node, by the table of peers.
    OtherNode,
}

// === impl FileId ===

/// `device 41, inode 7`
impl std::fmt::Display for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {}, inode {}", self.device, self.inode)
    }
}

impl FileId {
    /// Identity of an open file.
    pub(in crate::peer) fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::shown(&rustix::fs::fstat(file)?))
    }

    /// Identity of what the kernel shows of a file.
    pub(super) fn shown(file: &Stat) -> Self {
        Self { device: file.st_dev, inode: file.st_ino }
    }
}

// === impl BootId ===

impl BootId {
    /// Reads the boot id of this kernel.
    pub(super) fn read() -> io::Result<Self> {
        let text = std::fs::read_to_string(BOOT_ID)?;
        Self::parse(&text).ok_or_else(|| io::Error::other(format!("{BOOT_ID} has no boot id but {text:?}")))
    }

    fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u32> =
            text.trim().chars().filter(|c| *c != '-').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|two| (two[0] << 4 | two[1]) as u8).collect();
        bytes.try_into().ok().filter(|_| digits.len() == 2 * BOOT_BYTES).map(Self)
    }
}

// === impl SocketName ===

impl SocketName {
    /// A name and a place as a peer tells them; none where they cannot be one.
    pub(in crate::peer) fn checked(told: &v1::NodeSocket) -> Option<Self> {
        let boot = BootId(told.boot[..].try_into().ok()?);
        let name = is_name(&told.name).then(|| told.name.clone())?;
        let file = FileId { device: told.device, inode: told.inode };
        let directory = FileId { device: told.directory_device, inode: told.directory_inode };
        Some(Self { name, file, directory, boot })
    }

    /// Message that tells of it, without a key.
    pub(in crate::peer) fn told(self) -> v1::NodeSocket {
        v1::NodeSocket {
            name: self.name,
            inode: self.file.inode,
            key: bytes::Bytes::new(),
            device: self.file.device,
            directory_device: self.directory.device,
            directory_inode: self.directory.inode,
            boot: self.boot.0.to_vec().into(),
        }
    }

    /// Reason for which two places cannot be on one node. Both ends come to the same.
    pub(in crate::peer) fn apart(&self, other: &Self) -> Option<Apart> {
        if self.boot != other.boot {
            Some(Apart::OtherKernel)
        } else if self.directory != other.directory || self.file.device != other.file.device {
            Some(Apart::OtherDirectory)
        } else {
            None
        }
    }
}

/// Returns whether a text is the name of a socket.
pub(super) fn is_name(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.strip_suffix(".sock").is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(hex))
}

/// Identity of a directory, links to it followed.
pub(super) fn directory_id(directory: &Path) -> io::Result<FileId> {
    Ok(FileId::shown(&rustix::fs::stat(directory)?))
}

// === impl Apart ===

impl Apart {
    /// The label in metrics.
    pub(in crate::peer) fn label(self) -> &'static str {
        match self {
            Self::Untold => "untold",
            Self::OtherKernel => "other_kernel",
            Self::OtherDirectory => "other_directory",
            Self::OtherNode => "other_node",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> SocketName {
        SocketName {
            name: format!("{}.sock", "a".repeat(DIGITS)),
            file: FileId { device: 40, inode: 2 },
            directory: FileId { device: 40, inode: 1 },
            boot: BootId([7; BOOT_BYTES]),
        }
    }

    #[test]
    fn two_places_are_apart_where_the_kernel_the_directory_or_the_file_system_differs() {
        let here = place();
        let neighbour = SocketName { file: FileId { inode: 3, ..here.file }, ..here.clone() };
        assert_eq!(here.apart(&neighbour), None);
        let clone = SocketName { directory: FileId { device: 41, inode: 1 }, ..neighbour.clone() };
        assert_eq!(here.apart(&clone), Some(Apart::OtherDirectory), "a boot id alone is not enough");
        let other = SocketName { directory: FileId { device: 40, inode: 9 }, ..neighbour.clone() };
        assert_eq!(here.apart(&other), Some(Apart::OtherDirectory));
        let mounted = SocketName { file: FileId { device: 41, inode: 3 }, ..neighbour.clone() };
        assert_eq!(here.apart(&mounted), Some(Apart::OtherDirectory));
        let forged = SocketName { boot: BootId([8; BOOT_BYTES]), ..neighbour };
        assert_eq!(here.apart(&forged), Some(Apart::OtherKernel), "numbers of files alone are not enough");
    }

    #[test]
    fn a_place_is_read_back_as_it_is_told_and_one_without_a_kernel_is_none() {
        let told = place().told();
        assert_eq!(SocketName::checked(&told), Some(place()));
        let earlier = v1::NodeSocket { boot: bytes::Bytes::new(), ..told.clone() };
        assert_eq!(SocketName::checked(&earlier), None);
        for wrong in
            ["", ".sock", "../../../etc/x.sock", "AAAAAAAAAAAAAAAA.sock", "aaaaaaaaaaaaaaaa.sock.sock"]
        {
            let wrong = v1::NodeSocket { name: wrong.to_owned(), ..told.clone() };
            assert_eq!(SocketName::checked(&wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_boot_id_is_sixteen_bytes_in_hex_digits() {
        assert!(BootId::read().is_ok());
        let id = BootId::parse("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!((id.0[0], id.0[1], id.0[15]), (0, 0x11, 0xff));
        for wrong in
            ["", "0011", "00112233-4455-6677-8899-aabbccddeef", "00112233-4455-6677-8899-aabbccddeeffg"]
        {
            assert_eq!(BootId::parse(wrong), None, "{wrong}");
        }
    }
}
