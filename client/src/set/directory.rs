//! Sets in directories, byte for byte as tensordict's `memmap` writes them, so that `TensorDict.load_memmap` opens them.
//!
//! ```text
//! set/ meta.json            one level: batch shape, and for each key shape and type, or that it is a directory
//!      obs.memmap           the bytes of a tensor, row-major and little-endian, without a header
//!      next/ meta.json ..   a tree below it; a value that is no tensor is a directory with a meta.json alone
//!      .tensorlane/set.json types that tensordict has no name for; their files hold bytes, `torch.uint8` to it
//! ```
//!
//! Links are not followed inside of a directory. Pickled values are never read.

pub mod archive;
mod export;
mod import;

use std::io;
use std::path::PathBuf;

use tensorlane_proto::set::{LEVEL_META as META, LevelError, OWN_DIRECTORY as OWN, OWN_META, TreeError};
use thiserror::Error;

use crate::error::Error;

pub use export::{Draft, Export, export, parent, sync_parent};
pub use import::{Directory, LeafFile};

/// Bytes that are read or written at once.
const PIECE_BYTES: u64 = 8 << 20;

/// Reason why a directory cannot be read or written as a set.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A `meta.json` that is not read.
    #[error("{}: {source}", path.display())]
    Level {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong with it.
        source: LevelError,
    },
    /// The file of a tensor has fewer bytes than its shape and type.
    #[error("{} has {bytes} bytes and its tensor {wanted}; save the set again", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// Length of the file in bytes.
        bytes: u64,
        /// Bytes of its tensor.
        wanted: u64,
    },
    /// The file of a tensor has more bytes than its shape and type. It can be read: its first bytes are the tensor.
    #[error("{} has {bytes} bytes and its tensor {wanted}; what is behind them is read by nobody", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Length of the file in bytes.
        bytes: u64,
        /// Bytes of its tensor.
        wanted: u64,
    },
    /// Rows that a sidecar was writing when it ended, or its disk failed.
    #[error("{}: {rows} rows from {first} on of leaf {leaf} may be of two commits; open the set in its sidecar and write them again", path.display())]
    Torn {
        /// The note of it.
        path: PathBuf,
        /// The leaf, by its place in the layout, from 0.
        leaf: usize,
        /// The first row.
        first: u64,
        /// Number of rows.
        rows: u64,
    },
    /// A commit that the sidecar of a mutable set began and did not end.
    #[error("{}: a commit to {rows} rows from {first} on was begun and not ended; open the set in its sidecar and write them again", path.display())]
    Unfinished {
        /// The note of it.
        path: PathBuf,
        /// The first row.
        first: u64,
        /// Number of rows.
        rows: u64,
    },
    /// Commits of a mutable set that a loss of power may have kept from the files of its leaves.
    #[error("{}: commits from version {version} on are in it, and may be missing in the files; open the set in its sidecar, or flush it", path.display())]
    Journaled {
        /// The journal.
        path: PathBuf,
        /// Version that the first one made.
        version: u64,
    },
    /// A file or directory is something else: a link, a device, ...
    #[error("{} is no plain {wanted} (links are not followed); copy what it stands for", path.display())]
    NotPlain {
        /// The file or directory.
        path: PathBuf,
        /// Kind that it should be.
        wanted: &'static str,
    },
    /// Somebody wrote to a file while the set was read: what was read may be of two states.
    #[error("{} {what} while the set was read; nothing was published, put it when nobody writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Change in words, such as `was written to` or `became shorter`.
        what: &'static str,
    },
    /// A type or shape that no tensor has.
    #[error("{}: {what}", path.display())]
    Leaf {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong with it.
        what: String,
    },
    /// Two keys of one level, whose file or directory is one: each would be read as the other.
    #[error("{} is that of the key {:?} and of the key {:?}; rename one, and save the set again by tensordict 0.15", path.display(), keys[0], keys[1])]
    OneFile {
        /// The file or directory.
        path: PathBuf,
        /// Keys that it is meant by.
        keys: [String; 2],
    },
    /// A key whose file would have a longer name than file systems take.
    #[error("the key {key:?} is too long for the name of a file (255 bytes)")]
    Key {
        /// The key.
        key: String,
    },
    /// Something is there already.
    #[error("{} exists; name another directory, or replace it (--replace)", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// Refused to replace it: what is there is no set.
    #[error("{} exists and is no set (it has no meta.json), so it is not replaced", path.display())]
    NotReplaced {
        /// The directory.
        path: PathBuf,
    },
    /// An archive that is none, or not whole.
    #[error("{} is damaged, or no archive of tensordict: {what}; save it again by tensordict", path.display())]
    Damaged {
        /// The archive.
        path: PathBuf,
        /// Description of what is wrong with it.
        what: String,
    },
    /// An entry of an archive that is no file of a set. Nothing was unpacked.
    #[error("{entry:?} in {} {what}; save it again by tensordict", path.display())]
    Entry {
        /// The archive.
        path: PathBuf,
        /// Name of the entry.
        entry: String,
        /// Description of what it is.
        what: &'static str,
    },
    /// An archive of more bytes than there is room for. Nothing was unpacked.
    #[error("{} has {bytes} bytes when it is unpacked, and {most} are the most that the sidecar has room for; raise arena.size, or put parts of it", path.display())]
    TooLarge {
        /// The archive.
        path: PathBuf,
        /// Bytes of its files.
        bytes: u64,
        /// Bytes of tensors that there is room for.
        most: u64,
    },
    /// The tree is none of a set.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A tensor could not be put or got.
    #[error("{path}: {source}")]
    Tensor {
        /// Path of the tensor's keys in the set.
        path: String,
        /// Error of the call.
        source: Error,
    },
}

fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.into();
    move |source| DirectoryError::Io { path, source }
}

#[cfg(test)]
mod tests;
