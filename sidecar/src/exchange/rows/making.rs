//! Sets come and go: in memory, and on files, where they are found again by the next life of this sidecar.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tensorlane_memory::Purpose;
use tensorlane_proto::allowed::check_patterns;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::{PlannedFile, SetId, SetLayout, SetReference};

use super::Meant;
use super::files::{
    Directory, DirectoryName, Durability, FileSet, Identity, Root, RootLimits, check_layout, check_terms,
    reference, taken,
};
use super::locking::check_patience;
use super::mapping::LeafFields;
use super::memory::MutableSet;
use super::table::repeats_among;
use crate::cancel::Cancel;
use crate::exchange::names::tensor_name;
use crate::exchange::{Caller, Done, Exchange, Queueing};
use crate::metrics::SetTotals;
use crate::store::AllocRequest;

/// Bytes of heap that a pattern takes beside its text.
const PATTERN_HEAP: u64 = 48;

// === impl Exchange ===

impl Exchange {
    /// Makes a mutable set. No row is written.
    pub fn set_create(
        self: &Arc<Self>,
        caller: &Caller,
        request: v1::SetCreateRequest,
        done: impl FnOnce(Result<v1::SetCreateResponse, Failure>) + Send + 'static,
    ) {
        let mut spec = request.spec.unwrap_or_default();
        match spec.files.take() {
            None if spec.contiguous => {
                let (caller, deadline) = (caller.clone(), self.deadline(0));
                let queueing = caller.queueing(Purpose::Put, deadline);
                self.on_waiter(queueing, Box::new(done), move |exchange| {
                    exchange.create_in_memory(spec, |sizes| {
                        let claimant = &caller.claimant();
                        let (purpose, cancel) = (Purpose::Put, &caller.cancel);
                        let alloc =
                            AllocRequest { writer: None, claimant, purpose, bytes: 0, deadline, cancel };
                        LeafFields::new(&exchange.store.allocate_all(sizes, &alloc)?).map(Some)
                    })
                });
            }
            None => done(self.create_in_memory(spec, |_| Ok(None))),
            Some(_) if spec.contiguous => {
                let what = "a set on files lies in its files, which nobody maps; leave `contiguous` out, and `map` copies rows once, or make the set in memory";
                done(Err(Failure::new(Reason::InvalidArgument, what)));
            }
            Some(files) => {
                let queueing = caller.queueing(Purpose::Put, self.deadline(0));
                self.on_disk(queueing, Box::new(done), move |exchange| {
                    exchange.create_on_files(spec, &files)
                });
            }
        }
    }

    /// Makes a set in bands, or in the pieces that `room` gives for the bytes of each leaf.
    fn create_in_memory(
        &self,
        spec: v1::SetSpec,
        room: impl FnOnce(&[u64]) -> Result<Option<LeafFields>, Failure>,
    ) -> Result<v1::SetCreateResponse, Failure> {
        let v1::SetSpec { leaves, name, rows, writers, files: _, contiguous } = spec;
        let name = tensor_name(&name)?;
        check_patterns(&writers, "the list of writers of a set")?;
        let layout = SetLayout::new(&leaves, rows)?;
        let total = match contiguous {
            true => self.store.arena().most(Purpose::Put),
            false => self.store.arena().usage().total,
        };
        if layout.bytes() > total {
            let what = format!(
                "the set has {} bytes and the arena of this sidecar has room for {total}; make it smaller, enlarge the arena, or put the set on files",
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
        self.mutable_sets.table.lock().check(&name, heap)?;
        let sizes: Vec<u64> = layout.leaves().iter().map(|leaf| leaf.row_bytes * rows).collect();
        let made: Box<dyn FnOnce(u64) -> MutableSet> = match room(&sizes)? {
            None => Box::new(|number| MutableSet::new(reference(number), name.clone(), writers, layout)),
            Some(pieces) => Box::new(|number| {
                MutableSet::contiguous(reference(number), name.clone(), writers, layout, pieces)
            }),
        };
        let set = self.mutable_sets.table.lock().create(&name, heap, None, made)?;
        self.entered(&set);
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
        let asked = Durability::asked(files.durability)?;
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
            if let Some(there) = &set.files {
                check_terms(
                    &directory,
                    (there.durability, set.writers.as_slice()),
                    (asked, spec.writers.as_slice()),
                )?;
            }
            return Ok(v1::SetCreateResponse { set: Some(set.info()) });
        }
        let identity = |id: u128, writers: Vec<String>, durability: Durability| Identity {
            id,
            name: name.to_string(),
            writers,
            durability,
        };
        if inode.is_some() {
            if !files.open {
                return Err(taken(&directory));
            }
            let found = Directory::read(root, &directory)?;
            check_layout(&found.layout, &spec.leaves, spec.rows)?;
            let identity = match &found.identity {
                Some(before) => {
                    let there = (before.durability, before.writers.as_slice());
                    check_terms(&directory, there, (asked, spec.writers.as_slice()))?;
                    identity(before.id, before.writers.clone(), before.durability)
                }
                None => identity(rand::random(), spec.writers, asked.unwrap_or_default()),
            };
            let heap = heap_on_files(&found.layout, &identity.writers);
            self.mutable_sets.table.lock().check(&name, heap)?;
            let set = self.enter(root, found, &identity)?;
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
        let identity = identity(rand::random(), spec.writers, asked.unwrap_or_default());
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
        self.entered(&set);
        self.mutable_set_appeared(&name);
        Ok(set)
    }

    /// Notes of a set that was entered how many commits it remembers, and how many versions of its name this pod keeps.
    fn entered(&self, set: &MutableSet) {
        let sets = self.mutable_sets.table.lock().count();
        set.commits.lock().remember_at_most(repeats_among(sets));
        self.keep_versions(set);
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

    /// Answers with a set as it is; on files, what was committed is brought to the disk first where somebody queues for it.
    pub(super) fn opened(
        self: &Arc<Self>,
        set: Arc<MutableSet>,
        flushing: Option<Queueing>,
        done: Done<v1::SetOpenResponse>,
    ) {
        let Some(queueing) = flushing.filter(|_| set.files.is_some()) else {
            return done(Ok(v1::SetOpenResponse { set: Some(set.info()) }));
        };
        self.on_disk(queueing, done, move |_| {
            set.files.as_ref().map_or(Ok(()), FileSet::flush)?;
            Ok(v1::SetOpenResponse { set: Some(set.info()) })
        });
    }

    /// Runs what waits for a disk, or for others who do, on a thread of its caller's share, so that nobody takes the threads of all.
    /// Work that has no turn by its deadline is not begun.
    fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        queueing: Queueing,
        done: Done<T>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, Failure> + Send + 'static,
    ) {
        let (deadline, cancel) = (queueing.deadline, queueing.cancel.clone());
        self.on_waiter(queueing, done, move |exchange| {
            check_patience((deadline, &cancel.unwrap_or_default()), || {
                "other calls of this caller were at the disk until the deadline; make fewer at a time, or give a longer one"
                    .to_owned()
            })?;
            work(exchange)
        });
    }

    /// Takes a set of this peer away. Its memory goes when the last call that reads or writes it has ended; its files stay.
    pub fn set_drop(
        self: &Arc<Self>,
        caller: &Caller,
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
        let queueing = caller.queueing(Purpose::Put, self.deadline(0));
        self.on_disk(queueing, Box::new(done), move |exchange| {
            let making = exchange.mutable_sets.root.get().map(|root| root.making.lock());
            // Otherwise it would be gone until the next start, and there again then.
            set.forget_files((exchange.deadline(0), &Cancel::default()))?;
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
            totals.maps += set.pieces.as_ref().map_or(0, LeafFields::maps);
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
