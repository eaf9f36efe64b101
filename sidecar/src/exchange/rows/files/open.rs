//! A directory of tensordict is read: every `meta.json`, and the length of every file. No row is read.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::rows::{Commits, Found, SetLayout, SetReference, Torn};
use tensorlane_proto::set::{
    DEPTH_MAX, LEVEL_META, Level, LevelEntry, MANIFEST_BYTES_MAX, OWN_DIRECTORY, OwnMeta, TensorMeta,
    file_name,
};

use super::Durability;
use super::failure::{storage, unsupported};
use super::journal::{Journal, clear, redo};
use super::keep::{
    Identity, JOURNAL, Kept, keep_journal, missing_is_none, read_at_most, read_meta, recover, write_meta,
    write_torn,
};
use super::root::{DirectoryName, Inode, Root, below, file};
use super::rows::FileSet;

/// A directory that is a set, as it was found.
pub(in crate::exchange::rows) struct Directory {
    name: DirectoryName,
    set: OwnedFd,
    inode: Inode,
    meta: OwnMeta,
    found: Found,
    /// Layout of its rows.
    pub(in crate::exchange::rows) layout: SetLayout,
    /// The set of ours that it is; none for a copy, or a directory of another program.
    pub(in crate::exchange::rows) identity: Option<Identity>,
}

// === impl Directory ===

impl Directory {
    /// Reads a directory.
    ///
    /// # Errors
    /// UNSUPPORTED_FORMAT with the file and what is wrong with it, STORAGE_FAILED.
    pub(in crate::exchange::rows) fn read(root: &Root, name: &DirectoryName) -> Result<Self, Failure> {
        let (set, inode) = root.set(name)?;
        let meta = read_meta(&set, name)?;
        let mut walk = Walk { meta: &meta, found: Found::default(), left: MANIFEST_BYTES_MAX as u64 };
        walk.level(&set, &mut Vec::new(), &mut vec![name.as_str().to_owned()])?;
        let found = walk.found;
        let layout = SetLayout::new(&found.leaves, found.rows.unwrap_or(0));
        let layout = layout.map_err(|failure| unsupported(name.as_str(), failure.message))?;
        let identity = Identity::of(&meta, name)?;
        Ok(Self { name: name.clone(), set, inode, meta, found, layout, identity })
    }

    /// Returns whether a directory says that it is a set of ours, so that it is opened by itself.
    pub(in crate::exchange::rows) fn is_ours(root: &Root, name: &DirectoryName) -> Result<bool, Failure> {
        let (set, _) = root.set(name)?;
        if below(&set, OWN_DIRECTORY).is_err() {
            return Ok(false);
        }
        Ok(Identity::of(&read_meta(&set, name)?, name)?.is_some())
    }

    /// Makes the set that lies in it one of this sidecar, with this identity.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED.
    pub(in crate::exchange::rows) fn adopt(
        self,
        root: &Arc<Root>,
        identity: &Identity,
    ) -> Result<(FileSet, Commits, SetLayout), Failure> {
        let mut torn = Torn::default();
        if self.identity.as_ref() != Some(identity) {
            // A copy has the state of another set: it begins anew, and what was torn there is torn here.
            if self.identity.is_none() && self.meta.mutable.is_some() {
                torn = self.revive(&self.files(root, Durability::Process))?.torn;
                super::keep::forget(root, &self.name)?;
            }
            let meta = OwnMeta { mutable: Some(identity.own(&self.name)), ..self.meta.clone() };
            write_meta(&self.set, &self.name, &meta)?;
        }
        let mut files = self.files(root, identity.durability);
        let mut kept = self.revive(&files)?;
        keep_journal(&self.set, &self.name, files.journal.is_some())?;
        if !torn.is_empty() {
            write_torn(&self.set, &self.name, &torn)?;
            kept.torn = torn;
        }
        files.torn_rows = AtomicU64::new(kept.torn.rows());
        files.torn = Mutex::new(kept.torn);
        Ok((files, kept.commits, self.layout))
    }

    fn files(&self, root: &Arc<Root>, durability: Durability) -> FileSet {
        FileSet {
            root: Arc::clone(root),
            directory: self.name.clone(),
            inode: self.inode,
            number: root.number(),
            files: self.found.files.clone(),
            durability,
            journal: (durability == Durability::Disk).then(|| Journal::new(root.journal_max)),
            torn_rows: AtomicU64::new(0),
            torn: Mutex::default(),
            is_unnoted: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
        }
    }

    /// Takes what earlier lives left: rows that they were writing, and commits in their journal, which are made again.
    fn revive(&self, files: &FileSet) -> Result<Kept, Failure> {
        let kept = recover(&self.set, &self.name, &self.layout)?;
        let own = below(&self.set, OWN_DIRECTORY).and_then(|own| file(&own, JOURNAL, OFlags::RDONLY));
        let journal = missing_is_none(own).map_err(|error| storage(self.name.as_str(), "open", &error))?;
        if journal.is_none() {
            return Ok(kept);
        }
        let (mut torn, mut is_mended) = (kept.torn.clone(), false);
        let redone = redo(files, &self.layout, &mut |plan| {
            for leaf in &plan.leaves {
                plan.pieces.iter().for_each(|(first, count)| is_mended |= torn.remove(*leaf, *first, *count));
            }
        })?;
        if redone == 0 {
            return Ok(kept);
        }
        if is_mended {
            write_torn(&self.set, &self.name, &torn)?;
        }
        clear(files)?;
        let directory = self.name.as_str();
        tracing::info!(directory, commits = redone, "commits in the journal were written where they belong");
        recover(&self.set, &self.name, &self.layout)
    }
}

/// A walk over the levels of a directory.
struct Walk<'a> {
    meta: &'a OwnMeta,
    found: Found,
    /// Bytes of `meta.json` that may still be read.
    left: u64,
}

impl Walk<'_> {
    /// Reads a level: its keys from the root, and names from `sets.root`.
    fn level(
        &mut self,
        directory: &OwnedFd,
        keys: &mut Vec<String>,
        names: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let shown = |name: &str| format!("{}/{name}", names.join("/"));
        if keys.len() >= DEPTH_MAX {
            return Err(unsupported(&shown(""), format_args!("it lies deeper than {DEPTH_MAX} directories")));
        }
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                unsupported(&shown(LEVEL_META), "it is not there, so this is no directory of tensordict")
            }
            _ => storage(&shown(LEVEL_META), "read", &error),
        };
        let bytes = file(directory, LEVEL_META, OFlags::RDONLY)
            .and_then(|opened| read_at_most(opened, self.left))
            .map_err(failed)?;
        self.left -= bytes.len() as u64;
        let level = Level::read(&bytes).map_err(|error| unsupported(&shown(LEVEL_META), error))?;
        let (batch, entries) = match level {
            Level::Tree { batch, entries, .. } => (batch, entries),
            Level::Value(_) if keys.is_empty() => {
                return Err(unsupported(&shown(LEVEL_META), "it is a value, and has no rows"));
            }
            // A value that is no tensor stays beside the rows.
            Level::Value(_) => return Ok(()),
        };
        if keys.is_empty() {
            self.found.root(&batch).map_err(|failure| unsupported(&shown(LEVEL_META), failure.message))?;
        }
        for (key, entry) in entries {
            let name = file_name(&key)
                .ok_or_else(|| unsupported(&names.join("/"), format_args!("the key {key:?} is too long")))?;
            keys.push(key);
            match entry {
                LevelEntry::Tensor(meta) => self.leaf(directory, &name, &meta, keys, names)?,
                LevelEntry::Below { .. } => {
                    names.push(name.clone());
                    let opened =
                        below(directory, &name).map_err(|error| storage(&names.join("/"), "open", &error))?;
                    self.level(&opened, keys, names)?;
                    names.pop();
                }
            }
            keys.pop();
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        directory: &OwnedFd,
        name: &str,
        meta: &TensorMeta,
        keys: &[String],
        names: &[String],
    ) -> Result<(), Failure> {
        let shown = |name: &str| format!("{}/{name}", names.join("/"));
        let mut name = format!("{name}.memmap");
        let layout = self.meta.layout(keys, meta).map_err(|what| unsupported(&shown(&name), what))?;
        if layout.bytes() > 0 {
            let opened = match file(directory, &name, OFlags::RDWR) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    // Before tensordict escaped them, keys were names of files as they are.
                    name = keys
                        .last()
                        .filter(|key| !key.contains('/'))
                        .map_or(name, |key| format!("{key}.memmap"));
                    file(directory, &name, OFlags::RDWR)
                }
                opened => opened,
            };
            let length = |file: File| file.metadata().map(|about| about.len());
            let bytes = opened.and_then(length).map_err(|error| storage(&shown(&name), "open", &error))?;
            if bytes < layout.bytes() {
                let what =
                    format!("it has {bytes} bytes, and its leaf {}; save the set again", layout.bytes());
                return Err(unsupported(&shown(&name), what));
            }
        }
        // From the directory of the set itself.
        let path = names.iter().skip(1).cloned().chain([name.clone()]).collect();
        self.found.leaf(keys, path, &layout).map_err(|failure| unsupported(&shown(&name), failure.message))
    }
}

/// The reference of a set on files.
pub(in crate::exchange::rows) fn reference(me: &crate::store::Me, id: u128) -> SetReference {
    let id = tensorlane_proto::rows::SetId::Files(id);
    SetReference { exchange: me.exchange.clone(), peer: me.peer.clone(), id }
}

/// Checks that a layout that was asked for is the one that was found. Nothing asked for is any.
///
/// # Errors
/// SET_MISMATCH with what is there.
pub(in crate::exchange::rows) fn check_layout(
    found: &SetLayout,
    leaves: &[tensorlane_proto::generated::SetLeaf],
    rows: u64,
) -> Result<(), Failure> {
    let mismatch = |what: String| Err(Failure::new(Reason::SetMismatch, what));
    if rows != 0 && rows != found.rows() {
        return mismatch(format!(
            "the directory has {} rows, not {rows}; open it without a number",
            found.rows()
        ));
    }
    if leaves.is_empty() {
        return Ok(());
    }
    if leaves.len() != found.leaves().len() {
        let what = format!(
            "the directory has {} leaves, not {}; open it without leaves",
            found.leaves().len(),
            leaves.len()
        );
        return mismatch(what);
    }
    for leaf in leaves {
        let there = found.leaf(&leaf.key)?;
        let there = found.leaves().get(there).map(tensorlane_proto::rows::Leaf::message);
        if there.as_ref() != Some(leaf) {
            return mismatch(format!(
                "the leaf {:?} has another type or shape in the directory; open it without leaves",
                leaf.key
            ));
        }
    }
    Ok(())
}
