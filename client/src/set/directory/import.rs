//! From a directory into the exchange.

mod class;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::rows::{
    COMMITS_FILE, INTENT_BYTES_MAX, INTENTS_MAX, Intent, JOURNAL_FILE, JOURNAL_HEAD_BYTES, JournalHead,
    RECORD_BYTES, REPEATS_MAX, Record, TORN_FILE, Torn, intent_file,
};
use tensorlane_proto::set::{
    DEPTH_MAX, LEAF_ENDING, Level, LevelEntry, MANIFEST_BYTES_MAX, Names, Node, OwnMeta, TensorMeta, Tree,
    TreeError, TrueTypes, check_batch, file_name, names_of,
};
use tensorlane_proto::{Descriptor, Layout};

use super::{DirectoryError, META, OWN, OWN_META, PIECE_BYTES, at};
use crate::client::Client;
use crate::stamp::Stamp;
use crate::verbs::{Item, PutOptions, Stored};

/// Small tensors that are read and put together: 64 MiB at most.
const BATCH_ITEMS: usize = 1_024;

/// A directory that was read: what the set in it consists of. The tensors' bytes are not read yet.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    root: OwnedFd,
    tree: Tree<LeafFile>,
    stamps: Stamps,
}

/// Every file of a set, from its directory, as it was when the directory was opened. As text: paths are compared part by part.
type Stamps = BTreeMap<OsString, Stamp>;

/// The file of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafFile {
    /// The file, from the directory of the set. None for a tensor without elements, which has no file.
    pub file: Option<PathBuf>,
    /// Meaning of its bytes.
    pub layout: Layout,
}

impl Directory {
    /// Reads every `meta.json` of a directory, and looks at the files of all tensors. Whether they may be read is told by whoever reads
    /// them.
    ///
    /// # Errors
    /// [`DirectoryError`], with the file and what is wrong with it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DirectoryError> {
        let path = path.into();
        let root = open_root(&path)?;
        let stamps = RefCell::new(Stamps::new());
        let own = own_meta(&root, &path, Some(&stamps))?;
        let tree = match Walk::all(&root, &path, &own, Note::Stamps(&stamps))? {
            Node::Tree(tree) => tree,
            value => Tree { entries: vec![("data".to_owned(), value)], ..Tree::default() },
        };
        tree.check()?;
        Ok(Self { path, root, tree, stamps: stamps.into_inner() })
    }

    /// Everything that is wrong with a directory: levels that are not read, files that are missing, too short, too long or no
    /// plain files, and rows that a mutable set has torn, was writing, or has in its journal alone. Empty where it is whole. The
    /// bytes of tensors are not read.
    ///
    /// # Errors
    /// [`DirectoryError`] where the directory itself cannot be opened.
    pub fn faults(path: impl Into<PathBuf>) -> Result<Vec<DirectoryError>, DirectoryError> {
        let path = path.into();
        let root = open_root(&path)?;
        let faults = RefCell::new(Vec::new());
        let own = own_meta(&root, &path, None).unwrap_or_else(|error| {
            faults.borrow_mut().push(error);
            OwnMeta::default()
        });
        faults.borrow_mut().extend(cut_off(&root, &path));
        let tree = Walk::all(&root, &path, &own, Note::Faults(&faults));
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
        self.tree.tensors().iter().fold(0, |sum: u64, (_, leaf)| sum.saturating_add(leaf.layout.bytes()))
    }

    /// Puts every tensor with these options, leased by this session. `read` is told of bytes as they are read, with the keys.
    ///
    /// # Errors
    /// [`DirectoryError`], also where any file is another one at the end than when the directory was opened, and where a mutable set
    /// left rows in it that may be of two commits, or missing. What was put until then is given up.
    pub fn put(
        &self,
        client: &Client,
        options: &PutOptions,
        mut read: impl FnMut(u64, &str),
    ) -> Result<Tree<Stored>, DirectoryError> {
        self.check_cut_off()?;
        let mut small = self.put_small(client, options, &mut read)?.into_iter();
        let mut paths = self.tree.tensors().into_iter().map(|(path, _)| path.join("/"));
        let stored = self.tree.try_map(&mut |leaf| {
            let path = paths.next().unwrap_or_default();
            match small.next().flatten() {
                Some(stored) => Ok(stored),
                None => self.put_one((client, options), leaf, &path, &mut read),
            }
        })?;
        // Of all files at once: each may be whole, and some be of another moment than the rest.
        self.stamps.keys().try_for_each(|name| self.check(Path::new(name)))?;
        Ok(stored)
    }

    /// Fails if a mutable set in the directory was cut off, so that rows may be of two commits, or missing.
    pub(super) fn check_cut_off(&self) -> Result<(), DirectoryError> {
        cut_off(&self.root, &self.path).into_iter().next().map_or(Ok(()), Err)
    }

    /// Fails if a file of the set is another one than when the directory was opened.
    fn check(&self, name: &Path) -> Result<(), DirectoryError> {
        let shown = self.path.join(name);
        let now = match open_file(&self.root, name, || shown.clone()) {
            Ok((_, about)) => Some(Stamp::from(&about)),
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error),
        };
        match self.stamps.get(name.as_os_str()).and_then(|stamp| stamp.until(now)) {
            Some(what) => Err(DirectoryError::Changed { path: shown, what }),
            None => Ok(()),
        }
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
                let mut bytes = vec![0; leaf.layout.bytes() as usize];
                self.read_leaf(leaf, |file, offset, len| {
                    file.read_exact_at(&mut bytes[offset as usize..][..len as usize], offset)?;
                    read(len, &path.join("/"));
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

    /// Has the file of a tensor read, piece by piece, from its beginning: each is an offset and a length.
    fn read_leaf(
        &self,
        leaf: &LeafFile,
        mut read: impl FnMut(&File, u64, u64) -> io::Result<()>,
    ) -> Result<(), DirectoryError> {
        let Some(name) = &leaf.file else { return Ok(()) };
        let shown = self.path.join(name);
        let changed = |what| DirectoryError::Changed { path: shown.clone(), what };
        let (file, _) = open_file(&self.root, name, || shown.clone())
            .map_err(|error| if error.is_missing() { changed("was removed") } else { error })?;
        let total = leaf.layout.bytes();
        let mut offset = 0;
        while offset < total {
            let len = PIECE_BYTES.min(total - offset);
            read(&file, offset, len).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => changed("became shorter"),
                _ => at(&shown)(error),
            })?;
            offset += len;
        }
        // Also at once, so that nothing more is put in vain.
        self.check(name)
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
        self.read_leaf(leaf, |file, offset, len| {
            reservation.read_from(offset, len, file, offset)?;
            read(len, path);
            Ok(())
        })?;
        reservation.seal(options).map_err(failed)
    }
}

/// A walk over the levels of one directory.
struct Walk<'a> {
    types: TrueTypes<'a>,
    root: &'a Path,
    note: Note<'a>,
    /// Bytes of `meta.json` that may still be read.
    left: Cell<u64>,
}

/// Notes of a walk.
enum Note<'a> {
    /// Stamps of all files. The first fault ends the walk.
    Stamps(&'a RefCell<Stamps>),
    /// All faults, behind each of which the walk goes on.
    Faults(&'a RefCell<Vec<DirectoryError>>),
}

/// Place of a walk: an open directory, its path from the root, its keys and its batch shape.
struct Place<'a> {
    dir: &'a OwnedFd,
    inside: &'a Path,
    path: &'a [String],
    batch: &'a [u64],
}

impl<'a> Walk<'a> {
    /// Reads all of a directory.
    fn all(
        dir: &OwnedFd,
        root: &'a Path,
        own: &'a OwnMeta,
        note: Note<'a>,
    ) -> Result<Node<LeafFile>, DirectoryError> {
        let left = Cell::new(MANIFEST_BYTES_MAX as u64);
        let walk = Self { types: own.true_types(), root, note, left };
        walk.level(dir, &mut Vec::new(), Path::new(""), &[])
    }

    /// Reads a level, which stands in one of this batch shape.
    fn level(
        &self,
        dir: &OwnedFd,
        path: &mut Vec<String>,
        inside: &Path,
        above: &[u64],
    ) -> Result<Node<LeafFile>, DirectoryError> {
        if path.len() >= DEPTH_MAX {
            return Err(TreeError::TooDeep { path: path.join("/") }.into());
        }
        let meta = self.root.join(inside).join(META);
        let (file, about) = open_file(dir, Path::new(META), || meta.clone())?;
        self.stamp((&file, &about), inside.join(META))?;
        let bytes = read_small(file, &meta, self.left.get())?;
        self.left.set(self.left.get().saturating_sub(bytes.len() as u64));
        let level =
            Level::read(&bytes).map_err(|source| DirectoryError::Level { path: meta.clone(), source })?;
        let (batch, names, entries) = match level {
            Level::Value(value) => return Ok(Node::Value(value)),
            Level::Class(class) => return self.class(class, (dir, inside), path, above).map(Node::Tree),
            Level::Tree { batch, names, entries } => (batch, names, entries),
        };
        // tensordict lets a tree have fewer batch dimensions than the one that it is in, or none, as the parts of a stack.
        if !above.starts_with(&batch) {
            let refused = |what| DirectoryError::Leaf { path: meta.clone(), what };
            check_batch(&batch, above).map_err(refused)?;
        }
        let depth = path.len();
        let mut taken = Names::default();
        let mut tree = Tree { batch, names, ..Tree::default() };
        tree.entries.reserve(entries.len());
        for (key, entry) in entries {
            path.push(key.clone());
            let node = match entry {
                LevelEntry::Tensor(meta) => {
                    let place = Place { dir, inside, path, batch: &tree.batch };
                    self.leaf(&place, &key, &meta, &mut taken).map(Node::Tensor)
                }
                LevelEntry::Below { .. } => {
                    let opened = found(&key, "", |name| open_below(dir, name, &self.shown(inside, name)));
                    opened.and_then(|(name, opened)| {
                        self.take(&mut taken, inside, &name, &key)?;
                        self.level(&opened, path, &inside.join(&name), &tree.batch)
                    })
                }
            };
            // Where a level failed, its own keys are still there.
            path.truncate(depth);
            match (node, &self.note) {
                (Ok(node), _) => tree.entries.push((key, node)),
                (Err(error), Note::Faults(faults)) => faults.borrow_mut().push(error),
                (Err(error), Note::Stamps(_)) => return Err(error),
            }
        }
        Ok(Node::Tree(tree))
    }

    fn leaf(
        &self,
        place: &Place<'_>,
        key: &str,
        meta: &TensorMeta,
        taken: &mut Names,
    ) -> Result<LeafFile, DirectoryError> {
        let shown = |file: &str| self.shown(place.inside, file);
        let name = file_name(key).ok_or_else(|| DirectoryError::Key { key: key.to_owned() })?;
        // Paths are made where they are told alone: a set may have 65,536 files.
        let meant = || shown(&format!("{name}{LEAF_ENDING}"));
        let refused = |what| DirectoryError::Leaf { path: meant(), what };
        let layout = self.types.layout(place.path, meta).map_err(refused)?;
        check_batch(layout.shape(), place.batch).map_err(refused)?;
        if layout.bytes() == 0 {
            return Ok(LeafFile { file: None, layout });
        }
        let (file, stamp) = found(key, LEAF_ENDING, |name| self.look(place.dir, name, || shown(name)))?;
        self.take(taken, place.inside, &file, key)?;
        let inside = place.inside.join(&file);
        if let Note::Stamps(stamps) = &self.note {
            stamps.borrow_mut().insert(inside.clone().into_os_string(), stamp);
        }
        let bytes = stamp.bytes();
        // A longer file is fine: its first rows are the tensor.
        if bytes < layout.bytes() {
            return Err(DirectoryError::TooShort { path: shown(&file), bytes, wanted: layout.bytes() });
        }
        if let Note::Faults(faults) = &self.note
            && bytes > layout.bytes()
        {
            let fault = DirectoryError::TooLong { path: shown(&file), bytes, wanted: layout.bytes() };
            faults.borrow_mut().push(fault);
        }
        Ok(LeafFile { file: Some(inside), layout })
    }

    /// Looks at the file of a tensor. It is opened only where all faults are told: that it may not be read is one of them.
    fn look(&self, dir: &OwnedFd, name: &str, shown: impl Fn() -> PathBuf) -> Result<Stamp, DirectoryError> {
        match self.note {
            Note::Stamps(_) => Stamp::first_by(|| look_at(dir, name, &shown)),
            Note::Faults(_) => open_file(dir, Path::new(name), shown).map(|(_, about)| Stamp::from(&about)),
        }
    }

    fn shown(&self, inside: &Path, name: &str) -> PathBuf {
        self.root.join(inside).join(name)
    }

    /// Takes a name of a directory for a key. Of two keys of one file, one would be read as the other.
    fn take(&self, taken: &mut Names, inside: &Path, name: &str, key: &str) -> Result<(), DirectoryError> {
        taken.take(name, key).map_err(|first| DirectoryError::OneFile {
            path: self.shown(inside, name),
            keys: [first, key.to_owned()],
        })
    }

    /// Notes the state of a file of the set, by its path from the directory.
    fn stamp(&self, file: (&File, &Metadata), inside: PathBuf) -> Result<(), DirectoryError> {
        match &self.note {
            Note::Stamps(stamps) => stamp(stamps, file, self.root, inside),
            Note::Faults(_) => Ok(()),
        }
    }
}

/// Opens what a key stands for, by the first of its names that is there. An error of the first one where none is.
fn found<T>(
    key: &str,
    ending: &str,
    open: impl Fn(&str) -> Result<T, DirectoryError>,
) -> Result<(String, T), DirectoryError> {
    let mut missing = None;
    for name in names_of(key, ending) {
        match open(&name) {
            Err(error) if error.is_missing() => {
                missing.get_or_insert(error);
            }
            opened => return opened.map(|opened| (name, opened)),
        }
    }
    Err(missing.unwrap_or_else(|| DirectoryError::Key { key: key.to_owned() }))
}

fn stamp(
    stamps: &RefCell<Stamps>,
    (file, about): (&File, &Metadata),
    root: &Path,
    inside: PathBuf,
) -> Result<(), DirectoryError> {
    let stamp = Stamp::first_of(file, about).map_err(|error| at(root.join(&inside))(error))?;
    stamps.borrow_mut().insert(inside.into_os_string(), stamp);
    Ok(())
}

/// Files in which the sidecar of a mutable set keeps what it was doing.
struct OwnFiles<'a> {
    dir: &'a OwnedFd,
    shown: PathBuf,
}

/// Remains of a mutable set that was cut off: torn rows, by leaf, commits that were not ended, and a journal that is not empty. An
/// error where one of these notes cannot be read.
fn cut_off(root: &OwnedFd, shown: &Path) -> Vec<DirectoryError> {
    let shown = shown.join(OWN);
    // A directory that is none is told by whoever reads the types in it.
    let Ok(dir) = open_below(root, OWN, &shown) else { return Vec::new() };
    let own = OwnFiles { dir: &dir, shown };
    [own.torn(), own.unfinished(), own.journaled()]
        .into_iter()
        .flat_map(|faults| faults.unwrap_or_else(|error| vec![error]))
        .collect()
}

impl OwnFiles<'_> {
    /// The first bytes of a file; none where it is not there.
    fn beginning(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, DirectoryError> {
        let path = self.shown.join(name);
        let (file, _) = match open_file(self.dir, Path::new(name), || path.clone()) {
            Err(error) if error.is_missing() => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(at(path))?;
        Ok(Some(bytes))
    }

    fn torn(&self) -> Result<Vec<DirectoryError>, DirectoryError> {
        let Some(bytes) = self.beginning(TORN_FILE, INTENT_BYTES_MAX)? else { return Ok(Vec::new()) };
        let path = self.shown.join(TORN_FILE);
        let Some(torn) = Torn::decode(&bytes) else {
            return Err(DirectoryError::Leaf { path, what: "it cannot be read".to_owned() });
        };
        let fault = |(leaf, first, rows)| DirectoryError::Torn { path: path.clone(), leaf, first, rows };
        Ok(torn.pieces().map(fault).collect())
    }

    fn unfinished(&self) -> Result<Vec<DirectoryError>, DirectoryError> {
        let commits = self.beginning(COMMITS_FILE, (RECORD_BYTES * REPEATS_MAX) as u64)?.unwrap_or_default();
        let records = Record::decode_all(&commits);
        let mut faults = Vec::new();
        for name in (0..INTENTS_MAX).map(intent_file) {
            let bytes = self.beginning(&name, INTENT_BYTES_MAX)?.unwrap_or_default();
            let Some(intent) = Intent::decode(&bytes) else { continue };
            // One that was written, and whose intent was not taken back any more, is whole.
            if records.iter().any(|record| record.committed.version == intent.version) {
                continue;
            }
            faults.push(DirectoryError::Unfinished {
                path: self.shown.join(&name),
                first: intent.pieces.iter().map(|(first, _)| *first).min().unwrap_or(0),
                rows: intent.pieces.iter().fold(0, |rows, (_, count)| rows.saturating_add(*count)),
            });
        }
        Ok(faults)
    }

    fn journaled(&self) -> Result<Vec<DirectoryError>, DirectoryError> {
        let head = self.beginning(JOURNAL_FILE, JOURNAL_HEAD_BYTES as u64)?.unwrap_or_default();
        let fault = |head: JournalHead| DirectoryError::Journaled {
            path: self.shown.join(JOURNAL_FILE),
            version: head.record.committed.version,
        };
        Ok(JournalHead::decode(&head).map(fault).into_iter().collect())
    }
}

fn open_root(path: &Path) -> Result<OwnedFd, DirectoryError> {
    // The user's own word may be a link; what lies below may not.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| at(path)(error.into()))
}

/// Types that tensordict has no name for, of a file that not every set has; its stamp is noted where one is wanted.
fn own_meta(
    root: &OwnedFd,
    shown: &Path,
    stamps: Option<&RefCell<Stamps>>,
) -> Result<OwnMeta, DirectoryError> {
    let path = shown.join(OWN).join(OWN_META);
    let dir = match open_below(root, OWN, &shown.join(OWN)) {
        Err(error) if error.is_missing() => return Ok(OwnMeta::default()),
        opened => opened?,
    };
    let (file, about) = match open_file(&dir, Path::new(OWN_META), || path.clone()) {
        Err(error) if error.is_missing() => return Ok(OwnMeta::default()),
        opened => opened?,
    };
    if let Some(stamps) = stamps {
        stamp(stamps, (&file, &about), shown, Path::new(OWN).join(OWN_META))?;
    }
    let bytes = read_small(file, &path, MANIFEST_BYTES_MAX as u64)?;
    serde_json::from_slice(&bytes).map_err(|error| DirectoryError::Leaf { path, what: error.to_string() })
}

/// Opens a file below a directory, none of whose parts is a link. `shown` is its path for errors.
fn open_file(
    dir: &OwnedFd,
    name: &Path,
    shown: impl Fn() -> PathBuf,
) -> Result<(File, Metadata), DirectoryError> {
    let mut parts: Vec<_> = name.components().collect();
    let last = parts.pop().map(|part| part.as_os_str().to_owned()).unwrap_or_default();
    let mut below: Option<OwnedFd> = None;
    for part in parts {
        below = Some(open_below(below.as_ref().unwrap_or(dir), part.as_os_str(), &shown())?);
    }
    // Not waiting: a FIFO in the place of a file would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let not_plain = || DirectoryError::NotPlain { path: shown(), wanted: "file" };
    match rustix::fs::openat(below.as_ref().unwrap_or(dir), &last, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => Err(not_plain()),
        Err(error) => Err(at(shown())(error.into())),
        Ok(opened) => {
            let file = File::from(opened);
            let about = file.metadata().map_err(|error| at(shown())(error))?;
            if about.is_file() { Ok((file, about)) } else { Err(not_plain()) }
        }
    }
}

/// Looks at what must be a plain file of a directory. It is not opened.
fn look_at(dir: &OwnedFd, name: &str, shown: &impl Fn() -> PathBuf) -> Result<Stamp, DirectoryError> {
    let about = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| at(shown())(error.into()))?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => Ok(Stamp::from(&about)),
        _ => Err(DirectoryError::NotPlain { path: shown(), wanted: "file" }),
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

/// All of a file of metadata, of which so many bytes are left.
fn read_small(file: File, shown: &Path, left: u64) -> Result<Vec<u8>, DirectoryError> {
    let mut bytes = Vec::new();
    file.take(left + 1).read_to_end(&mut bytes).map_err(at(shown))?;
    if bytes.len() as u64 > left {
        let what = format!(
            "it has more than the {left} bytes that are left of {MANIFEST_BYTES_MAX} for the metadata of a set; make several sets"
        );
        return Err(DirectoryError::Leaf { path: shown.to_owned(), what });
    }
    Ok(bytes)
}

impl DirectoryError {
    fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == ErrorKind::NotFound)
    }
}

#[cfg(test)]
mod tests;
