//! From the exchange into a directory, which appears under its name only when it is whole.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use tensorlane_memory::{View, rename};
use tensorlane_proto::Layout;
use tensorlane_proto::set::{
    CLASS_TENSORS, LEAF_ENDING, Level, LevelEntry, Names, Node, OwnMeta, TensorMeta, Tree, file_name,
    names_of,
};

use super::{DirectoryError, META, OWN, OWN_META, PIECE_BYTES, at};
use crate::rights;
use crate::tensor::Tensor;

/// A directory that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Export {
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Keys of tensors whose type tensordict has no name for: it sees their bytes, `torch.uint8`.
    pub as_bytes: Vec<String>,
}

/// Writes a set into a directory, synced, and gives it its name at once: readers see all of it or nothing. With
/// `replace`, a set that is there is swapped for it in one step, where the file system can. `wrote` is told of bytes as they are written.
///
/// # Errors
/// [`DirectoryError`]; nothing is left of what was written then, and what was there stands as it was.
pub fn export(
    tree: &Tree<Tensor>,
    to: &Path,
    replace: bool,
    wrote: impl FnMut(u64, &str),
) -> Result<Export, DirectoryError> {
    tree.check()?;
    let draft = Draft::create(to, replace)?;
    let written = draft.write(tree, wrote)?;
    draft.finish()?;
    Ok(written)
}

/// A set in the making: a directory beside the one that it will be. Dropped before it is finished, it is removed. Who may be ended
/// by a signal meanwhile removes it by its path.
#[derive(Debug)]
pub struct Draft {
    part: Part,
    to: PathBuf,
    replace: bool,
}

impl Draft {
    /// Checks that a set may be made at a path, before there is one.
    ///
    /// # Errors
    /// [`DirectoryError`] of what is there.
    pub fn check(to: &Path, replace: bool) -> Result<(), DirectoryError> {
        check_target(to, replace)
    }

    /// Makes the directory. With `replace`, a set may be where it will be.
    ///
    /// # Errors
    /// [`DirectoryError`]; nothing is left then.
    pub fn create(to: &Path, replace: bool) -> Result<Self, DirectoryError> {
        check_target(to, replace)?;
        Ok(Self { part: Part::create(to, replace)?, to: to.to_owned(), replace })
    }

    /// Directory in the making: `.NAME.tl-PROCESS-NUMBER`.
    pub fn path(&self) -> &Path {
        &self.part.0
    }

    /// Writes a set into it, synced. `wrote` is told of bytes as they are written.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn write(&self, tree: &Tree<Tensor>, wrote: impl FnMut(u64, &str)) -> Result<Export, DirectoryError> {
        let (export, OnDisk) = write_all(tree, self.path(), OnDisk, wrote)?;
        Ok(export)
    }

    /// Gives it its name, in one step.
    ///
    /// # Errors
    /// [`DirectoryError`]; what was there stands as it was.
    pub fn finish(self) -> Result<(), DirectoryError> {
        self.part.finish(&self.to, self.replace)
    }
}

fn check_target(to: &Path, replace: bool) -> Result<(), DirectoryError> {
    match fs::symlink_metadata(to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(to)(error)),
        Ok(_) if !replace => Err(DirectoryError::Exists { path: to.to_owned() }),
        Ok(about) if !about.is_dir() => {
            Err(DirectoryError::NotPlain { path: to.to_owned(), wanted: "directory" })
        }
        Ok(_) if !to.join(META).is_file() => Err(DirectoryError::NotReplaced { path: to.to_owned() }),
        Ok(_) => Ok(()),
    }
}

/// A directory in the making, beside where it will be. Dropped, it is removed.
#[derive(Debug)]
struct Part(PathBuf);

impl Part {
    /// Makes it. For one that may take the place of another, which gives it its rights in the end, nobody else enters it until then.
    fn create(to: &Path, replace: bool) -> Result<Self, DirectoryError> {
        let mode = if replace && to.exists() { 0o700 } else { 0o777 };
        let mut number = 0;
        loop {
            let part = rename::beside(to, ".", &format!(".tl-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(mode).create(&part) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(at(part)(error)),
                Ok(()) => return Ok(Self(part)),
            }
        }
    }

    fn finish(self, to: &Path, replace: bool) -> Result<(), DirectoryError> {
        match rename::directory(CWD, &self.0, to) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists && replace => {
                // Whoever may not enter the old set may not enter this one.
                File::open(&self.0).and_then(|made| rights::take(&made, to)).map_err(at(to))?;
                // The old set is under our name afterwards, and goes with it.
                let aside = rename::beside(&self.0, "", "-old");
                rename::swap(CWD, &self.0, to, &aside).map_err(at(to))?;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(DirectoryError::Exists { path: to.to_owned() });
            }
            Err(error) => return Err(at(to)(error)),
        }
        sync_parent(to).map_err(at(to))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Gone already if it got its name.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Files of a set in the making, by their paths.
pub(super) trait Files {
    /// Makes a directory.
    fn make(&mut self, dir: &Path) -> Result<(), DirectoryError>;

    /// Makes a file of these bytes.
    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<(), DirectoryError>;

    /// Makes the file of a tensor, of so many bytes of a view. `wrote` is told of bytes as they are written.
    fn write_tensor(
        &mut self,
        view: &View,
        total: u64,
        path: &Path,
        wrote: &mut dyn FnMut(u64),
    ) -> Result<(), DirectoryError>;

    /// Brings the names in a directory to the disk.
    fn sync(&mut self, dir: &Path) -> Result<(), DirectoryError>;
}

/// Files on the disk.
struct OnDisk;

impl Files for OnDisk {
    fn make(&mut self, dir: &Path) -> Result<(), DirectoryError> {
        fs::create_dir(dir).map_err(at(dir))
    }

    fn write(&mut self, bytes: &[u8], path: &Path) -> Result<(), DirectoryError> {
        let mut file = File::create_new(path).map_err(at(path))?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(at(path))
    }

    fn write_tensor(
        &mut self,
        view: &View,
        total: u64,
        path: &Path,
        wrote: &mut dyn FnMut(u64),
    ) -> Result<(), DirectoryError> {
        let out = File::create_new(path).map_err(at(path))?;
        let mut offset = 0;
        while offset < total {
            let len = PIECE_BYTES.min(total - offset);
            view.write_to(offset, len, &out).map_err(at(path))?;
            offset += len;
            wrote(len);
        }
        out.sync_all().map_err(at(path))
    }

    fn sync(&mut self, dir: &Path) -> Result<(), DirectoryError> {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
    }
}

/// Writes a set as files below a directory that is there.
pub(super) fn write_all<F: Files>(
    tree: &Tree<Tensor>,
    dir: &Path,
    files: F,
    wrote: impl FnMut(u64, &str),
) -> Result<(Export, F), DirectoryError> {
    tree.check()?;
    let mut writing = Writing { files, wrote, export: Export::default(), own: OwnMeta::default() };
    writing.tree(tree, dir, &mut Vec::new())?;
    writing.own(dir)?;
    writing.files.sync(dir)?;
    Ok((writing.export, writing.files))
}

struct Writing<F, W> {
    files: F,
    wrote: W,
    export: Export,
    own: OwnMeta,
}

impl<F: Files, W: FnMut(u64, &str)> Writing<F, W> {
    /// Writes a tree and tells the name of its class: what is below it first, so that a `meta.json` never names what is not there.
    fn tree(
        &mut self,
        tree: &Tree<Tensor>,
        dir: &Path,
        path: &mut Vec<String>,
    ) -> Result<String, DirectoryError> {
        let classes = Level::classes(&tree.classes)
            .map_err(|source| DirectoryError::Level { path: dir.join(META), source })?;
        let name = classes.first().map_or("TensorDict", |class| class.name.as_str()).to_owned();
        let is_stack = classes.last().is_some_and(|class| class.is_stack);
        let mut inner = dir.to_owned();
        let mut dirs = Vec::with_capacity(classes.len());
        for class in &classes {
            dirs.push(inner.clone());
            if !class.is_stack {
                inner = self.make(inner.join(CLASS_TENSORS))?;
            }
        }
        let told: HashSet<&str> =
            classes.iter().flat_map(|class| &class.values).map(|(key, _)| key.as_str()).collect();
        let entries = self.entries(tree, &told, &inner, path)?;
        if is_stack {
            check_parts(&entries, &inner)?;
        } else {
            let (batch, names) = (tree.batch.clone(), tree.names.clone());
            self.write_meta(&Level::Tree { batch, names, entries }, &inner)?;
        }
        for (class, dir) in classes.into_iter().zip(dirs).rev() {
            self.write_meta(&Level::Class(class), &dir)?;
        }
        Ok(name)
    }

    /// Writes what is in a tree but the values that the `meta.json` of its class tells.
    fn entries(
        &mut self,
        tree: &Tree<Tensor>,
        told: &HashSet<&str>,
        dir: &Path,
        path: &mut Vec<String>,
    ) -> Result<Vec<(String, LevelEntry)>, DirectoryError> {
        let mut entries = Vec::with_capacity(tree.entries.len());
        let mut taken = Names::default();
        for (key, node) in &tree.entries {
            if matches!(node, Node::Value(_)) && told.contains(key.as_str()) {
                continue;
            }
            let name = match node {
                // It has no file, whose name could be too long.
                Node::Tensor(tensor) if tensor.view().is_none() => {
                    file_name(key).map(|name| name + LEAF_ENDING)
                }
                Node::Tensor(_) => names_of(key, LEAF_ENDING).into_iter().next(),
                Node::Value(_) | Node::Tree(_) => names_of(key, "").into_iter().next(),
            };
            let name = name.ok_or_else(|| DirectoryError::Key { key: key.clone() })?;
            let target = dir.join(&name);
            taken.take(&name, key).map_err(|first| DirectoryError::OneFile {
                path: target.clone(),
                keys: [first, key.clone()],
            })?;
            path.push(key.clone());
            let entry = match node {
                Node::Tensor(tensor) => LevelEntry::Tensor(self.leaf(tensor, &target, path, &tree.batch)?),
                Node::Value(value) => {
                    let dir = self.make(target)?;
                    self.write_meta(&Level::Value(value.clone()), &dir)?;
                    LevelEntry::Below { class: "NonTensorData".to_owned() }
                }
                Node::Tree(tree) => {
                    let dir = self.make(target)?;
                    LevelEntry::Below { class: self.tree(tree, &dir, path)? }
                }
            };
            path.pop();
            entries.push((key.clone(), entry));
        }
        Ok(entries)
    }

    fn leaf(
        &mut self,
        tensor: &Tensor,
        file: &Path,
        path: &[String],
        batch: &[u64],
    ) -> Result<TensorMeta, DirectoryError> {
        let layout = &tensor.descriptor().layout;
        let total = layout.bytes();
        // As tensordict does: a tensor without elements has no file.
        if let Some(view) = tensor.view() {
            let (wrote, shown) = (&mut self.wrote, path.join("/"));
            self.files.write_tensor(view, total, file, &mut |len| wrote(len, &shown))?;
        }
        self.export.bytes += total;
        let before = self.own.leaves.len();
        let meta = self.own.described(path, layout, bytes_shape(layout, batch));
        if self.own.leaves.len() > before {
            self.export.as_bytes.push(path.join("/"));
        }
        Ok(meta)
    }

    fn own(&mut self, dir: &Path) -> Result<(), DirectoryError> {
        if self.own.leaves.is_empty() {
            return Ok(());
        }
        let own = self.make(dir.join(OWN))?;
        let path = own.join(OWN_META);
        let bytes = serde_json::to_vec_pretty(&self.own).map_err(|error| at(&path)(error.into()))?;
        self.files.write(&bytes, &path)?;
        self.files.sync(&own)
    }

    fn make(&mut self, dir: PathBuf) -> Result<PathBuf, DirectoryError> {
        self.files.make(&dir)?;
        Ok(dir)
    }

    fn write_meta(&mut self, level: &Level, dir: &Path) -> Result<(), DirectoryError> {
        let path = dir.join(META);
        match level.write() {
            Ok(bytes) => self.files.write(&bytes, &path)?,
            Err(source) => return Err(DirectoryError::Level { path, source }),
        }
        self.files.sync(dir)
    }
}

/// Shape of the bytes of a tensor, for tensordict: they begin with the batch shape, where each item of it is of whole bytes.
fn bytes_shape(layout: &Layout, batch: &[u64]) -> Vec<u64> {
    let bytes = layout.bytes();
    let is_whole = layout.elements() * u64::from(layout.dtype().bits()) == bytes * 8;
    let items = batch.iter().try_fold(1, |items: u64, size| items.checked_mul(*size));
    match items {
        Some(items)
            if is_whole && layout.shape().starts_with(batch) && bytes.checked_rem(items) == Some(0) =>
        {
            batch.iter().copied().chain([bytes / items]).collect()
        }
        _ => vec![bytes],
    }
}

/// Checks that a lazy stack has its parts by their numbers alone: tensordict would lose what is beside them.
fn check_parts(entries: &[(String, LevelEntry)], dir: &Path) -> Result<(), DirectoryError> {
    let is_part = |at: usize, key: &str, entry: &LevelEntry| {
        matches!(entry, LevelEntry::Below { .. }) && key == at.to_string()
    };
    if entries.iter().enumerate().all(|(at, (key, entry))| is_part(at, key, entry)) {
        return Ok(());
    }
    let what = "a lazy stack has parts by their numbers, and nothing beside them".to_owned();
    Err(DirectoryError::Leaf { path: dir.join(META), what })
}

/// Directory that a path is in.
pub fn parent(path: &Path) -> &Path {
    let named = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    named.unwrap_or(Path::new("."))
}

/// Syncs the directory that a path is in, for the name of what is there. One that may be written and not read cannot be synced, and
/// some file systems have no sync of directories.
///
/// # Errors
/// Errors of the storage.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let synced = File::open(parent(path)).and_then(|parent| parent.sync_all());
    synced.or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::{DType, Shape};

    use super::*;

    #[test]
    fn bytes_of_a_type_that_tensordict_does_not_know_begin_with_the_batch_shape_where_they_can() {
        let shape = |shape: &[u64], batch: &[u64]| {
            bytes_shape(&Layout::contiguous(DType::I4, Shape::new(shape).unwrap()).unwrap(), batch)
        };
        assert_eq!(shape(&[4, 6], &[4]), [4, 3]);
        assert_eq!(shape(&[4, 2, 8], &[4, 2]), [4, 2, 4]);
        assert_eq!(shape(&[4, 6], &[]), [12]);
        // Items of half a byte, and those of another batch shape.
        assert_eq!(shape(&[4, 1], &[4]), [2]);
        assert_eq!(shape(&[3, 1], &[3]), [2]);
        assert_eq!(shape(&[4, 6], &[3]), [12]);
        assert_eq!(shape(&[0, 6], &[0]), [0]);
        assert_eq!(shape(&[4, 6], &[u64::MAX, 2]), [12]);
    }
}
