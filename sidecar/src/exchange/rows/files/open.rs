//! A directory of tensordict is read: every `meta.json`, and the length of every file. No row is read.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::rows::{Commits, Found, SetLayout, SetReference};
use tensorlane_proto::set::{
    DEPTH_MAX, LEAF_ENDING, LEVEL_META, Level, LevelEntry, MANIFEST_BYTES_MAX, Names, OWN_DIRECTORY, OwnMeta,
    TensorMeta, TrueTypes, check_batch, file_name, names_of,
};

use super::Durability;
use super::failure::{storage, unsupported};
use super::journal::{Journal, clear, redo};
use super::keep::{
    Identity, JOURNAL, Kept, digest, has_notes, keep_journal, missing_is_none, read_at_most, read_meta,
    recover, write_meta, write_torn,
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
        let found = {
            let (types, left) = (meta.true_types(), MANIFEST_BYTES_MAX as u64);
            let mut walk = Walk { types, found: Found::default(), left, linked: HashMap::new() };
            walk.level(&set, &mut Vec::new(), &mut vec![name.as_str().to_owned()], &[])?;
            walk.found
        };
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
    /// UNSUPPORTED_FORMAT for notes of another layout, STORAGE_FULL, STORAGE_FAILED.
    pub(in crate::exchange::rows) fn adopt(
        self,
        root: &Arc<Root>,
        identity: &Identity,
    ) -> Result<(FileSet, Commits, SetLayout), Failure> {
        // Before anything is written: a note that is read by another layout is lost.
        self.check_notes()?;
        let meta = OwnMeta { mutable: Some(identity.own(&self.name, &self.layout)), ..self.meta.clone() };
        if self.identity.is_none() {
            // A copy has the state of another set: it begins anew, and what was torn there, and is noted by this, is torn here.
            if self.meta.mutable.is_some() {
                self.revive(&self.files(root, Durability::Process))?;
                super::keep::forget(root, &self.name)?;
            }
            write_meta(&self.set, &self.name, &meta)?;
        }
        let mut files = self.files(root, identity.durability);
        let kept = self.revive(&files)?;
        if self.identity.is_some() && meta != self.meta {
            // When no note is left that may be of another layout: where it had no digest, a journal can still have been refused.
            match write_meta(&self.set, &self.name, &meta) {
                // The set of an earlier release needs no room to be opened: without a digest its notes are read as before.
                Err(failure) if self.identity.as_ref() == Some(identity) && self.noted_layout().is_none() => {
                    tracing::warn!(directory = self.name.as_str(), %failure, "the layout of a set could not be noted");
                }
                noted => noted?,
            }
        }
        keep_journal(&self.set, &self.name, files.journal.is_some())?;
        files.torn_rows = AtomicU64::new(kept.torn.rows());
        files.notes.get_mut().torn = kept.torn;
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
            notes: Mutex::default(),
            is_unnoted: AtomicBool::new(false),
            noting: Mutex::default(),
            dropped: AtomicBool::new(false),
        }
    }

    /// Digest of the layout that notes of earlier lives are of; none where their release noted none.
    fn noted_layout(&self) -> Option<&String> {
        self.meta.mutable.as_ref().and_then(|own| own.layout.as_ref())
    }

    /// Checks that notes of earlier lives, which name leaves and rows by their numbers, are of the layout that is here. Where their
    /// release noted no digest, they are taken for it.
    fn check_notes(&self) -> Result<(), Failure> {
        let here = digest(&self.layout);
        let Some(noted) = self.noted_layout().filter(|noted| **noted != here) else { return Ok(()) };
        if !has_notes(&self.set, &self.name)? {
            return Ok(());
        }
        let what = format!(
            "its journal, torn rows or intents are of the layout {noted}, and it has the layout {here}; put every meta.json back as it was, \
             or remove journal, torn and intent-* from its {OWN_DIRECTORY}: what they say is lost then"
        );
        Err(unsupported(self.name.as_str(), what).with("layout", noted))
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
            is_mended |= torn.remove_commit(&plan.leaves, &plan.pieces);
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
    types: TrueTypes<'a>,
    found: Found,
    /// Bytes of `meta.json` that may still be read.
    left: u64,
    /// Files that have several names, by device and inode, each with the leaf that has it.
    linked: HashMap<(u64, u64), String>,
}

/// Place of a leaf: its directory, its keys from the root, names of its directories from `sets.root`, and the batch shape of its tree.
struct Place<'a> {
    directory: &'a OwnedFd,
    keys: &'a [String],
    names: &'a [String],
    batch: &'a [u64],
}

impl Walk<'_> {
    /// Reads a level, which stands in one of this batch shape: its keys from the root, and names from `sets.root`.
    fn level(
        &mut self,
        directory: &OwnedFd,
        keys: &mut Vec<String>,
        names: &mut Vec<String>,
        above: &[u64],
    ) -> Result<(), Failure> {
        let shown = |name: &str| format!("{}/{name}", names.join("/"));
        if keys.len() >= DEPTH_MAX {
            return Err(unsupported(&shown(""), format_args!("it lies deeper than {DEPTH_MAX} directories")));
        }
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                unsupported(&shown(LEVEL_META), "it is not there, so this is no directory of tensordict")
            }
            // More than may be read.
            io::ErrorKind::Other => {
                let what = format!(
                    "{error}, which are left of {MANIFEST_BYTES_MAX} for the metadata of a set; make several sets"
                );
                unsupported(&shown(LEVEL_META), what)
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
            Level::Class(class) => {
                let what = format!(
                    "it is of the class {}, which is published and has no rows here; open what `.to_tensordict()` of it saves",
                    class.name
                );
                return Err(unsupported(&shown(LEVEL_META), what));
            }
        };
        if keys.is_empty() {
            self.found.root(&batch).map_err(|failure| unsupported(&shown(LEVEL_META), failure.message))?;
        }
        // tensordict lets a tree have fewer batch dimensions than the one that it is in, or none.
        if !above.starts_with(&batch) {
            check_batch(&batch, above).map_err(|what| unsupported(&shown(LEVEL_META), what))?;
        }
        let mut taken = Names::default();
        for (key, entry) in entries {
            match entry {
                LevelEntry::Tensor(meta) => {
                    keys.push(key);
                    let (path, inside) = (keys.as_slice(), names.as_slice());
                    let place = Place { directory, keys: path, names: inside, batch: &batch };
                    self.leaf(&place, &meta, &mut taken)?;
                }
                LevelEntry::Below { .. } => {
                    let (name, opened) = found(names, &key, "", |name| below(directory, name))?;
                    take(&mut taken, names, &name, &key)?;
                    keys.push(key);
                    names.push(name);
                    self.level(&opened, keys, names, &batch)?;
                    names.pop();
                }
            }
            keys.pop();
        }
        Ok(())
    }

    /// Looks at the file of a leaf.
    fn leaf(&mut self, place: &Place<'_>, meta: &TensorMeta, taken: &mut Names) -> Result<(), Failure> {
        let &Place { directory, keys, names, batch } = place;
        let shown = |name: &str| format!("{}/{name}", names.join("/"));
        let key = keys.last().map_or("", String::as_str);
        let name = file_name(key).ok_or_else(|| too_long(names, key))?;
        let mut name = format!("{name}{LEAF_ENDING}");
        let layout = self.types.layout(keys, meta).map_err(|what| unsupported(&shown(&name), what))?;
        check_batch(layout.shape(), batch).map_err(|what| unsupported(&shown(&name), what))?;
        if layout.bytes() > 0 {
            let open = |name: &str| file(directory, name, OFlags::RDWR);
            let (there, opened) = found(names, key, LEAF_ENDING, open)?;
            name = there;
            take(taken, names, &name, key)?;
            let about = opened.metadata().map_err(|error| storage(&shown(&name), "open", &error))?;
            if about.len() < layout.bytes() {
                let (bytes, wanted) = (about.len(), layout.bytes());
                let what = format!("it has {bytes} bytes, and its leaf {wanted}; save the set again");
                return Err(unsupported(&shown(&name), what));
            }
            self.take_inode(&about, || shown(&name))?;
        }
        // From the directory of the set itself.
        let path = names.iter().skip(1).cloned().chain([name.clone()]).collect();
        self.found.leaf(keys, path, &layout).map_err(|failure| unsupported(&shown(&name), failure.message))
    }

    /// Takes a file for a leaf. Of two names of one file, rows of one leaf would be written into the other.
    fn take_inode(&mut self, about: &Metadata, shown: impl FnOnce() -> String) -> Result<(), Failure> {
        if about.nlink() < 2 {
            return Ok(());
        }
        let shown = shown();
        match self.linked.entry((about.dev(), about.ino())) {
            Entry::Occupied(first) => {
                let what = format!(
                    "it is the same file as {} (a hard link); put a copy in the place of one",
                    first.get()
                );
                Err(unsupported(&shown, what))
            }
            Entry::Vacant(free) => {
                free.insert(shown);
                Ok(())
            }
        }
    }
}

/// Opens what a key stands for, by the first of its names that is there. An error of the first one where none is.
fn found<T>(
    names: &[String],
    key: &str,
    ending: &str,
    open: impl Fn(&str) -> io::Result<T>,
) -> Result<(String, T), Failure> {
    let mut missing = None;
    for name in names_of(key, ending) {
        let failed = |error: &io::Error| storage(&format!("{}/{name}", names.join("/")), "open", error);
        match open(&name) {
            Ok(opened) => return Ok((name, opened)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.get_or_insert_with(|| failed(&error));
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    Err(missing.unwrap_or_else(|| too_long(names, key)))
}

/// Takes a name of a directory for a key. Of two keys of one file, one would be written as the other.
fn take(taken: &mut Names, names: &[String], name: &str, key: &str) -> Result<(), Failure> {
    taken.take(name, key).map_err(|first| {
        let what = format!(
            "it is that of the key {first:?} and of the key {key:?}; rename one, and save the set again by tensordict 0.15"
        );
        unsupported(&format!("{}/{name}", names.join("/")), what)
    })
}

fn too_long(names: &[String], key: &str) -> Failure {
    let what = format!("the key {key:?} is too long for the name of a file (255 bytes); rename it");
    unsupported(&names.join("/"), what)
}

/// The reference of a set on files.
pub(in crate::exchange::rows) fn reference(me: &crate::store::Me, id: u128) -> SetReference {
    let id = tensorlane_proto::rows::SetId::Files(id);
    SetReference { exchange: me.exchange.clone(), peer: me.peer.clone(), id }
}

/// Checks that a durability and writers that were asked for are those of the set in a directory. Nothing asked for is any.
///
/// # Errors
/// SET_MISMATCH with what was asked for and what is there.
pub(in crate::exchange::rows) fn check_terms(
    directory: &DirectoryName,
    (durability, writers): (Durability, &[String]),
    (asked, wanted): (Option<Durability>, &[String]),
) -> Result<(), Failure> {
    let directory = directory.as_str();
    if let Some(asked) = asked.filter(|asked| *asked != durability) {
        let (there, asked) = (durability.as_str(), asked.as_str());
        let what = format!(
            "the set in {directory} has the durability {there}, not {asked}; open it without one, or drop it and open it with {asked}"
        );
        return Err(Failure::new(Reason::SetMismatch, what).with("durability", there));
    }
    let [named, there] = [wanted, writers].map(|patterns| patterns.iter().collect::<BTreeSet<_>>());
    if wanted.is_empty() || named == there {
        return Ok(());
    }
    let what = format!(
        "the set in {directory} has the writers {writers:?}, not {wanted:?}; open it without any, or drop it and open it with those"
    );
    Err(Failure::new(Reason::SetMismatch, what).with("writers", writers.join(",")))
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

#[cfg(test)]
mod tests;
