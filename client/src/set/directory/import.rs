//! From a directory into the exchange.

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::rows::{TORN_FILE, Torn};
use tensorlane_proto::set::{
    DEPTH_MAX, Level, LevelEntry, MANIFEST_BYTES_MAX, Node, OwnMeta, TensorMeta, Tree,
};
use tensorlane_proto::set::{TreeError, file_name};
use tensorlane_proto::{Descriptor, Layout};

use super::{CHUNK_BYTES, DirectoryError, META, OWN, OWN_META, at};
use crate::client::Client;
use crate::verbs::{Item, PutOptions, Stored};

/// Small tensors that are read and put together: 64 MiB at most.
const BATCH_ITEMS: usize = 1_024;

/// A directory that was read: what the set in it consists of. The tensors' bytes are not read yet.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    root: OwnedFd,
    tree: Tree<LeafFile>,
}

/// The file of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafFile {
    /// The file, from the directory of the set. None for a tensor without elements, which has no file.
    pub file: Option<PathBuf>,
    /// Meaning of its bytes.
    pub layout: Layout,
}

impl Directory {
    /// Reads every `meta.json` of a directory, and looks at the files of all tensors.
    ///
    /// # Errors
    /// [`DirectoryError`], with the file and what is wrong with it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DirectoryError> {
        let path = path.into();
        let root = open_root(&path)?;
        let walk = Walk { own: own_meta(&root, &path)?, root: path.clone(), faults: None };
        let tree = match walk.level(&root, &mut Vec::new(), Path::new(""))? {
            Node::Tree(tree) => tree,
            value => Tree { entries: vec![("data".to_owned(), value)], ..Tree::default() },
        };
        tree.check()?;
        Ok(Self { path, root, tree })
    }

    /// Everything that is wrong with a directory: levels that are not read, files that are missing, too short, too long or no
    /// plain files, and rows that a mutable set has torn. Empty where it is whole. The bytes of tensors are not read.
    ///
    /// # Errors
    /// [`DirectoryError`] where the directory itself cannot be opened.
    pub fn faults(path: impl Into<PathBuf>) -> Result<Vec<DirectoryError>, DirectoryError> {
        let path = path.into();
        let root = open_root(&path)?;
        let faults = RefCell::new(Vec::new());
        let own = own_meta(&root, &path).unwrap_or_else(|error| {
            faults.borrow_mut().push(error);
            OwnMeta::default()
        });
        faults.borrow_mut().extend(torn(&root, &path));
        let walk = Walk { own, root: path, faults: Some(&faults) };
        let tree = walk.level(&root, &mut Vec::new(), Path::new(""));
        let whole = tree.and_then(|node| match node {
            Node::Tree(tree) => tree.check().map_err(DirectoryError::from),
            _ => Ok(()),
        });
        let mut faults = faults.take();
        faults.extend(whole.err());
        Ok(faults)
    }

    /// The keys with the files of their tensors.
    pub fn tree(&self) -> &Tree<LeafFile> {
        &self.tree
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.tree.tensors().iter().map(|(_, leaf)| leaf.layout.bytes()).sum()
    }

    /// Puts every tensor with these options, leased by this session. `read` is told of bytes as they are read, with the keys.
    ///
    /// # Errors
    /// [`DirectoryError`]; what was put until then is given up.
    pub fn put(
        &self,
        client: &Client,
        options: &PutOptions,
        mut read: impl FnMut(u64, &str),
    ) -> Result<Tree<Stored>, DirectoryError> {
        let mut small = self.put_small(client, options, &mut read)?.into_iter();
        let mut paths = self.tree.tensors().into_iter().map(|(path, _)| path.join("/"));
        self.tree.try_map(&mut |leaf| {
            let path = paths.next().unwrap_or_default();
            match small.next().flatten() {
                Some(stored) => Ok(stored),
                None => self.put_one((client, options), leaf, &path, &mut read),
            }
        })
    }

    /// Puts the small tensors, many in one request: alone each would take a segment for as long as it lives. The others are left out.
    fn put_small(
        &self,
        client: &Client,
        options: &PutOptions,
        read: &mut impl FnMut(u64, &str),
    ) -> Result<Vec<Option<Stored>>, DirectoryError> {
        let leaves = self.tree.tensors();
        let mut done: Vec<Option<Stored>> = leaves.iter().map(|_| None).collect();
        let is_small = |index: &usize| leaves[*index].1.layout.bytes() <= INLINE_BYTES_MAX as u64;
        let small: Vec<usize> = (0..leaves.len()).filter(is_small).collect();
        for batch in small.chunks(BATCH_ITEMS) {
            let mut read_ones = Vec::with_capacity(batch.len());
            for &index in batch {
                let (path, leaf) = &leaves[index];
                let mut bytes = Vec::new();
                self.read_leaf(leaf, |_, part| {
                    bytes.extend_from_slice(part);
                    read(part.len() as u64, &path.join("/"));
                    Ok(())
                })?;
                read_ones.push((Descriptor::host(leaf.layout.clone()), bytes));
            }
            let mut items = Vec::with_capacity(batch.len());
            for (descriptor, bytes) in &read_ones {
                items.push(Item { descriptor, bytes, options: options.clone() });
            }
            for (&index, stored) in batch.iter().zip(client.put_many(&items)) {
                let failed = |source| DirectoryError::Tensor { path: leaves[index].0.join("/"), source };
                done[index] = Some(stored.map_err(failed)?);
            }
        }
        Ok(done)
    }

    /// Reads the file of a tensor, chunk by chunk, from its beginning.
    fn read_leaf(
        &self,
        leaf: &LeafFile,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), DirectoryError>,
    ) -> Result<(), DirectoryError> {
        let Some(name) = &leaf.file else { return Ok(()) };
        let shown = self.path.join(name);
        let file = open_file(&self.root, name, &shown)?;
        let before = Stamp::of(&file, &shown)?;
        let total = leaf.layout.bytes();
        let mut chunk = vec![0; chunk_len(total)];
        let mut offset = 0;
        while offset < total {
            let part = &mut chunk[..chunk_len(total - offset)];
            file.read_exact_at(part, offset).map_err(at(&shown))?;
            take(offset, part)?;
            offset += part.len() as u64;
        }
        if Stamp::of(&file, &shown)? != before {
            return Err(DirectoryError::Changed { path: shown });
        }
        Ok(())
    }

    fn put_one(
        &self,
        (client, options): (&Client, &PutOptions),
        leaf: &LeafFile,
        path: &str,
        read: &mut impl FnMut(u64, &str),
    ) -> Result<Stored, DirectoryError> {
        let failed = |source| DirectoryError::Tensor { path: path.to_owned(), source };
        let descriptor = Descriptor::host(leaf.layout.clone());
        let mut reservation = client.reserve(&descriptor).map_err(failed)?;
        self.read_leaf(leaf, |offset, part| {
            reservation.copy_from(offset, part).map_err(failed)?;
            read(part.len() as u64, path);
            Ok(())
        })?;
        reservation.seal(options).map_err(failed)
    }
}

/// Bytes of the next chunk where so many are left.
pub(super) fn chunk_len(left: u64) -> usize {
    usize::try_from(left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES))
}

/// Stamp that tells that a file was written to.
#[derive(PartialEq, Eq)]
struct Stamp([i64; 5]);

impl Stamp {
    fn of(file: &File, shown: &Path) -> Result<Self, DirectoryError> {
        let about = file.metadata().map_err(at(shown))?;
        let bytes = about.len().cast_signed();
        Ok(Self([bytes, about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()]))
    }
}

/// A walk over the levels of one directory.
struct Walk<'a> {
    own: OwnMeta,
    root: PathBuf,
    /// List of all faults, behind each of which the walk goes on; none where it ends at the first one.
    faults: Option<&'a RefCell<Vec<DirectoryError>>>,
}

/// Place of a walk: an open directory, its path from the root, and its keys.
struct Place<'a> {
    dir: &'a OwnedFd,
    inside: &'a Path,
    path: &'a [String],
}

impl Walk<'_> {
    fn level(
        &self,
        dir: &OwnedFd,
        path: &mut Vec<String>,
        inside: &Path,
    ) -> Result<Node<LeafFile>, DirectoryError> {
        if path.len() >= DEPTH_MAX {
            return Err(TreeError::TooDeep { path: path.join("/") }.into());
        }
        let meta = self.root.join(inside).join(META);
        let bytes = read_small(open_file(dir, Path::new(META), &meta)?, &meta)?;
        let level = Level::read(&bytes).map_err(|source| DirectoryError::Level { path: meta, source })?;
        let (batch, names, entries) = match level {
            Level::Value(value) => return Ok(Node::Value(value)),
            Level::Tree { batch, names, entries } => (batch, names, entries),
        };
        let depth = path.len();
        let mut tree = Tree { batch, names, entries: Vec::with_capacity(entries.len()) };
        for (key, entry) in entries {
            let name = file_name(&key).ok_or_else(|| DirectoryError::Key { key: key.clone() })?;
            path.push(key.clone());
            let node = match entry {
                LevelEntry::Tensor(meta) => {
                    self.leaf(&Place { dir, inside, path }, &key, &name, &meta).map(Node::Tensor)
                }
                LevelEntry::Below { .. } => {
                    let below = inside.join(&name);
                    let opened = open_below(dir, &name, &self.root.join(&below));
                    opened.and_then(|opened| self.level(&opened, path, &below))
                }
            };
            // Where a level failed, its own keys are still there.
            path.truncate(depth);
            match (node, self.faults) {
                (Ok(node), _) => tree.entries.push((key, node)),
                (Err(error), Some(faults)) => faults.borrow_mut().push(error),
                (Err(error), None) => return Err(error),
            }
        }
        Ok(Node::Tree(tree))
    }

    fn leaf(
        &self,
        place: &Place<'_>,
        key: &str,
        name: &str,
        meta: &TensorMeta,
    ) -> Result<LeafFile, DirectoryError> {
        let mut file = format!("{name}.memmap");
        let shown = |file: &str| self.root.join(place.inside).join(file);
        let layout = self
            .own
            .layout(place.path, meta)
            .map_err(|what| DirectoryError::Leaf { path: shown(&file), what })?;
        if layout.bytes() == 0 {
            return Ok(LeafFile { file: None, layout });
        }
        let mut opened = open_file(place.dir, Path::new(&file), &shown(&file));
        if key != name && !key.contains('/') && opened.as_ref().is_err_and(DirectoryError::is_missing) {
            // Before tensordict escaped them, keys were names of files as they are.
            let legacy = format!("{key}.memmap");
            if let Ok(found) = open_file(place.dir, Path::new(&legacy), &shown(&legacy)) {
                (file, opened) = (legacy, Ok(found));
            }
        }
        let bytes = opened?.metadata().map_err(at(shown(&file)))?.len();
        // A longer file is fine: its first rows are the tensor.
        if bytes < layout.bytes() {
            return Err(DirectoryError::TooShort { path: shown(&file), bytes, wanted: layout.bytes() });
        }
        if let Some(faults) = self.faults.filter(|_| bytes > layout.bytes()) {
            let fault = DirectoryError::TooLong { path: shown(&file), bytes, wanted: layout.bytes() };
            faults.borrow_mut().push(fault);
        }
        Ok(LeafFile { file: Some(place.inside.join(file)), layout })
    }
}

/// Rows that a mutable set on files has noted as torn, by leaf; and an error where the note cannot be read.
fn torn(root: &OwnedFd, shown: &Path) -> Vec<DirectoryError> {
    let path = shown.join(OWN).join(TORN_FILE);
    let note = open_below(root, OWN, &shown.join(OWN))
        .and_then(|dir| open_file(&dir, Path::new(TORN_FILE), &path))
        .and_then(|file| read_small(file, &path));
    let torn = match note {
        Err(error) if error.is_missing() => return Vec::new(),
        Err(error) => return vec![error],
        Ok(bytes) => Torn::decode(&bytes),
    };
    let unreadable = || DirectoryError::Leaf { path: path.clone(), what: "it cannot be read".to_owned() };
    let Some(torn) = torn else { return vec![unreadable()] };
    torn.pieces()
        .map(|(leaf, first, rows)| DirectoryError::Torn { path: path.clone(), leaf, first, rows })
        .collect()
}

fn open_root(path: &Path) -> Result<OwnedFd, DirectoryError> {
    // The user's own word may be a link; what lies below may not.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| at(path)(error.into()))
}

fn own_meta(root: &OwnedFd, shown: &Path) -> Result<OwnMeta, DirectoryError> {
    let path = shown.join(OWN).join(OWN_META);
    let dir = match open_below(root, OWN, &shown.join(OWN)) {
        Err(error) if error.is_missing() => return Ok(OwnMeta::default()),
        opened => opened?,
    };
    let bytes = match open_file(&dir, Path::new(OWN_META), &path) {
        Err(error) if error.is_missing() => return Ok(OwnMeta::default()),
        opened => read_small(opened?, &path)?,
    };
    serde_json::from_slice(&bytes).map_err(|error| DirectoryError::Leaf { path, what: error.to_string() })
}

/// Opens a file below a directory, none of whose parts is a link.
fn open_file(dir: &OwnedFd, name: &Path, shown: &Path) -> Result<File, DirectoryError> {
    let mut parts: Vec<_> = name.components().collect();
    let last = parts.pop().map(|part| part.as_os_str().to_owned()).unwrap_or_default();
    let mut below: Option<OwnedFd> = None;
    for part in parts {
        below = Some(open_below(below.as_ref().unwrap_or(dir), part.as_os_str(), shown)?);
    }
    // Not waiting: a FIFO in the place of a file would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let not_plain = || DirectoryError::NotPlain { path: shown.to_owned(), wanted: "file" };
    match rustix::fs::openat(below.as_ref().unwrap_or(dir), &last, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => Err(not_plain()),
        Err(error) => Err(at(shown)(error.into())),
        Ok(opened) => {
            let file = File::from(opened);
            let is_file = file.metadata().map_err(at(shown))?.is_file();
            if is_file { Ok(file) } else { Err(not_plain()) }
        }
    }
}

fn open_below(
    dir: &OwnedFd,
    name: impl AsRef<std::ffi::OsStr>,
    shown: &Path,
) -> Result<OwnedFd, DirectoryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name.as_ref(), flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => {
            Err(DirectoryError::NotPlain { path: shown.to_owned(), wanted: "directory" })
        }
        opened => opened.map_err(|error| at(shown)(error.into())),
    }
}

/// All of a file that must be small.
fn read_small(file: File, shown: &Path) -> Result<Vec<u8>, DirectoryError> {
    let mut bytes = Vec::new();
    file.take(MANIFEST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(at(shown))?;
    if bytes.len() > MANIFEST_BYTES_MAX {
        let what = format!("it has more than {MANIFEST_BYTES_MAX} bytes; make several sets");
        return Err(DirectoryError::Leaf { path: shown.to_owned(), what });
    }
    Ok(bytes)
}

impl DirectoryError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}
