//! Sets come and go: in memory, and on files, where they are found again by the next life of this sidecar.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tensorlane_proto::allowed::check_patterns;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::{PlannedFile, SetId, SetLayout, SetReference};

use super::Meant;
use super::files::{
    Directory, DirectoryName, Durability, FileSet, Identity, Root, RootLimits, check_layout, reference, taken,
};
use super::memory::MutableSet;
use crate::exchange::names::tensor_name;
use crate::exchange::{Done, Exchange};
use crate::metrics::SetTotals;

/// Bytes of heap that a pattern takes beside its text.
const PATTERN_HEAP: u64 = 48;

// === impl Exchange ===

impl Exchange {
    /// Makes a mutable set. No row is written.
    pub fn set_create(
        self: &Arc<Self>,
        request: v1::SetCreateRequest,
        done: impl FnOnce(Result<v1::SetCreateResponse, Failure>) + Send + 'static,
    ) {
        let mut spec = request.spec.unwrap_or_default();
        match spec.files.take() {
            None => done(self.create_in_memory(spec)),
            Some(files) => {
                self.on_worker(Box::new(done), move |exchange| exchange.create_on_files(spec, &files));
            }
        }
    }

    fn create_in_memory(&self, spec: v1::SetSpec) -> Result<v1::SetCreateResponse, Failure> {
        let v1::SetSpec { leaves, name, rows, writers, files: _ } = spec;
        let name = tensor_name(&name)?;
        check_patterns(&writers, "the list of writers of a set")?;
        let layout = SetLayout::new(&leaves, rows)?;
        let room = self.store.arena().usage().total;
        if layout.bytes() > room {
            let what = format!(
                "the set has {} bytes and the arena of this sidecar {room}; make it smaller, enlarge the arena, or put the set on files",
                layout.bytes()
            );
            return Err(Failure::new(Reason::NeverFits, what).with("bytes", layout.bytes()));
        }
        let me = self.me();
        let reference = |number| SetReference {
            exchange: me.exchange.clone(),
            peer: me.peer.clone(),
            id: SetId::Memory { incarnation: me.incarnation, number },
        };
        let heap = layout.heap_bytes() + heap_of(&writers);
        let made = |number| MutableSet::new(reference(number), name.clone(), writers, layout);
        let set = self.mutable_sets.table.lock().create(&name, heap, None, made)?;
        self.mutable_set_appeared(&name);
        Ok(v1::SetCreateResponse { set: Some(set.info()) })
    }

    /// Makes or opens a directory. Blocks: for workers.
    fn create_on_files(
        &self,
        spec: v1::SetSpec,
        files: &v1::SetFiles,
    ) -> Result<v1::SetCreateResponse, Failure> {
        let root = self.mutable_sets.root.get().ok_or_else(|| {
            let what = "this sidecar has no directory for sets on files: set sets.root (TENSORLANE_SETS_ROOT) to one, or make the set in \
                        memory";
            Failure::new(Reason::NoStorage, what).with("setting", "sets.root")
        })?;
        let durability = Durability::asked(files.durability)?;
        let directory = DirectoryName::new(&files.directory)?;
        check_patterns(&spec.writers, "the list of writers of a set")?;
        let wanted = if spec.name.is_empty() { directory.as_str() } else { &spec.name };
        let name = tensor_name(wanted)?;
        let _making = root.making.lock();
        let inode = root.inode(&directory)?;
        let opened = |set: &Arc<MutableSet>| {
            // One directory may have two names: where letters are folded, or by a mount.
            let is_it = |files: &FileSet| files.directory == directory || inode == Some(files.inode);
            set.files.as_ref().is_some_and(is_it).then(|| Arc::clone(set))
        };
        let here = self.mutable_sets.table.lock().beginning("").find_map(opened);
        if let Some(set) = here {
            if !files.open {
                return Err(taken(&directory));
            }
            if !spec.name.is_empty() && set.name != name {
                let what = format!(
                    "the directory {} is that of the set {}; open it by that name",
                    files.directory, set.name
                );
                return Err(Failure::new(Reason::NameTaken, what).with("name", &set.name));
            }
            check_layout(&set.layout, &spec.leaves, spec.rows)?;
            return Ok(v1::SetCreateResponse { set: Some(set.info()) });
        }
        let identity =
            |id: u128, writers: Vec<String>| Identity { id, name: name.to_string(), writers, durability };
        if inode.is_some() {
            if !files.open {
                return Err(taken(&directory));
            }
            let found = Directory::read(root, &directory)?;
            check_layout(&found.layout, &spec.leaves, spec.rows)?;
            self.mutable_sets.table.lock().check(&name, heap_on_files(&found.layout, &spec.writers))?;
            let (id, kept) = match &found.identity {
                Some(before) => (before.id, before.writers.clone()),
                None => (rand::random(), Vec::new()),
            };
            let writers = if spec.writers.is_empty() { kept } else { spec.writers };
            let set = self.enter(root, found, &identity(id, writers))?;
            return Ok(v1::SetCreateResponse { set: Some(set.info()) });
        }
        if files.open && spec.leaves.is_empty() {
            let what = format!(
                "no directory {} is below sets.root; give leaves and rows to make it",
                files.directory
            );
            return Err(Failure::new(Reason::NotFound, what).with("directory", &files.directory));
        }
        let layout = SetLayout::new(&spec.leaves, spec.rows)?;
        self.mutable_sets.table.lock().check(&name, heap_on_files(&layout, &spec.writers))?;
        let identity = identity(rand::random(), spec.writers);
        root.create(&directory, &layout, &identity)?;
        let set = self.enter(root, Directory::read(root, &directory)?, &identity)?;
        Ok(v1::SetCreateResponse { set: Some(set.info()) })
    }

    /// Takes a directory as a set of this sidecar.
    fn enter(
        &self,
        root: &Arc<Root>,
        found: Directory,
        identity: &Identity,
    ) -> Result<Arc<MutableSet>, Failure> {
        let name: TensorName = tensor_name(&identity.name)?;
        let (files, commits, layout) = found.adopt(root, identity)?;
        let heap = heap_on_files(&layout, &identity.writers);
        let reference = reference(self.me(), identity.id);
        let writers = identity.writers.clone();
        let made = |_| MutableSet::on_files(reference, name.clone(), writers, layout, (files, commits));
        let set = self.mutable_sets.table.lock().create(&name, heap, Some(identity.id), made)?;
        self.mutable_set_appeared(&name);
        Ok(set)
    }

    /// Gives sets on files a directory, and opens those that are there. What cannot be opened is logged, and stays as it is.
    ///
    /// # Errors
    /// The directory cannot be opened, or another sidecar has it.
    pub fn open_sets(&self, path: &Path, files: usize, journal_bytes: u64) -> io::Result<()> {
        let root = Arc::new(Root::open(path, RootLimits { files, journal_bytes })?);
        let _making = root.making.lock();
        let names = root.names().map_err(|failure| io::Error::other(failure.to_string()))?;
        for name in names {
            let opened = match Directory::is_ours(&root, &name) {
                Ok(true) => Directory::read(&root, &name).and_then(|found| match found.identity.clone() {
                    Some(identity) => self.enter(&root, found, &identity).map(drop),
                    None => Ok(()),
                }),
                Ok(false) => Ok(()),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = opened {
                tracing::warn!(directory = name.as_str(), %failure, "a set on files was not opened");
            }
        }
        // Once, at the start.
        let _ = self.mutable_sets.root.set(Arc::clone(&root));
        Ok(())
    }

    /// Answers with a set as it is; on files, what was committed is brought to the disk first where it is asked for.
    pub(super) fn opened(
        self: &Arc<Self>,
        set: Arc<MutableSet>,
        flush: bool,
        done: Done<v1::SetOpenResponse>,
    ) {
        if flush && set.files.is_some() {
            return self.on_worker(done, move |_| {
                set.files.as_ref().map_or(Ok(()), FileSet::flush)?;
                Ok(v1::SetOpenResponse { set: Some(set.info()) })
            });
        }
        done(Ok(v1::SetOpenResponse { set: Some(set.info()) }));
    }

    /// Takes a set of this peer away. Its memory goes when the last call that reads or writes it has ended; its files stay.
    pub fn set_drop(
        self: &Arc<Self>,
        request: &v1::SetDropRequest,
        done: impl FnOnce(Result<v1::SetDropResponse, Failure>) + Send + 'static,
    ) {
        let set = match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => set,
            Ok(Meant::There(peer, ..)) => {
                let what = format!("the set is of the peer {peer}; drop it there");
                return done(Err(Failure::new(Reason::NotOwned, what).with("peer", peer)));
            }
            Err(failure) => return done(Err(failure)),
        };
        if set.files.is_none() {
            self.mutable_sets.table.lock().remove(set.reference.id);
            return done(Ok(v1::SetDropResponse {}));
        }
        self.on_worker(Box::new(done), move |exchange| {
            let making = exchange.mutable_sets.root.get().map(|root| root.making.lock());
            // Otherwise it would be gone until the next start, and there again then.
            set.forget_files()?;
            exchange.mutable_sets.table.lock().remove(set.reference.id);
            drop(making);
            Ok(v1::SetDropResponse {})
        });
    }

    /// Totals of the mutable sets.
    pub fn set_totals(&self) -> SetTotals {
        let table = self.mutable_sets.table.lock();
        let mut totals = SetTotals::default();
        for set in table.beginning("") {
            totals.sets += 1;
            totals.held_bytes += set.held_bytes();
            if let Some(files) = &set.files {
                totals.file_bytes = totals.file_bytes.saturating_add(set.layout.bytes());
                totals.torn_rows += files.torn_rows();
            }
        }
        let root = self.mutable_sets.root.get();
        totals.open_files = root.map_or(0, |root| root.open_files() as u64);
        totals
    }
}

fn heap_of(writers: &[String]) -> u64 {
    writers.iter().map(|pattern| pattern.len() as u64 + PATTERN_HEAP).sum()
}

/// Bytes of heap of a set on files: names of files are as long as keys, but for what is escaped, and stand beside them.
fn heap_on_files(layout: &SetLayout, writers: &[String]) -> u64 {
    let files = layout.leaves().len() as u64 * size_of::<PlannedFile>() as u64;
    2 * layout.heap_bytes() + files + heap_of(writers)
}
