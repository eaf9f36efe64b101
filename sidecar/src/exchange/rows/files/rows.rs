//! The rows of one set on files: read and written by offsets, under the locks of the set.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use tensorlane_memory::Landing;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::rows::{
    Commits, Committed, Intent, Leaf, NO_INTENT, PlannedFile, RECORD_BYTES, Record, RowList, Torn,
};
use tensorlane_proto::set::OWN_DIRECTORY;

use super::Durability;
use super::descriptors::Which;
use super::failure::storage;
use super::journal::Journal;
use super::keep::{COMMITS, JOURNAL, intent_name, write_torn};
use super::medium::{Medium, each_span, write_rows};
use super::root::{DirectoryName, Inode, Root, below, file, file_at};
use crate::exchange::rows::locking::Until;
use crate::exchange::rows::memory::{Terms, internal};

/// Rows of a set that lie in files.
pub(in crate::exchange::rows) struct FileSet {
    pub(in crate::exchange::rows) root: Arc<Root>,
    pub(in crate::exchange::rows) directory: DirectoryName,
    /// Of the directory, when it was opened.
    pub(in crate::exchange::rows) inode: Inode,
    /// Number among the sets that were opened in this life.
    pub(super) number: u64,
    /// Files of the leaves, in order.
    pub(super) files: Vec<PlannedFile>,
    pub(in crate::exchange::rows) durability: Durability,
    /// Journal of a set whose commits survive a loss of power.
    pub(super) journal: Option<Journal>,
    pub(super) notes: Mutex<Notes>,
    /// Number of torn rows, for who must not wait for a disk.
    pub(super) torn_rows: AtomicU64,
    /// Set while the disk lacks some of the notes.
    pub(super) is_unnoted: AtomicBool,
    /// Held while a commit is noted: a later one may want the same place.
    pub(super) noting: Mutex<()>,
    /// Raised when the set is dropped: its directory is tensordict's alone from then on.
    pub(super) dropped: AtomicBool,
}

/// Notes for the next life, of commits that failed.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) torn: Torn,
    /// Locks whose intents are those of commits that are over, and may be on the disk still.
    left: BTreeSet<usize>,
}

/// New rows of a leaf: its index, itself and the packed bytes.
pub(in crate::exchange::rows) type NewBytes<'a> = (usize, &'a Leaf, &'a [u8]);

// === impl FileSet ===

impl FileSet {
    /// Storage of the set, as a message.
    pub(in crate::exchange::rows) fn message(&self) -> v1::SetFiles {
        let directory = self.directory.as_str().to_owned();
        v1::SetFiles { directory, open: false, durability: self.durability.message().into() }
    }

    /// Number of rows of which a leaf is torn.
    pub(in crate::exchange::rows) fn torn_rows(&self) -> u64 {
        self.torn_rows.load(Ordering::Relaxed)
    }

    /// Checks that the directory is the one that was opened, and that the set was not dropped.
    ///
    /// # Errors
    /// STORAGE_FAILED, NOT_FOUND.
    pub(in crate::exchange::rows) fn check(&self) -> Result<(), Failure> {
        let name = self.directory.as_str();
        if self.dropped.load(Ordering::Acquire) {
            let what = format!("the set in {name} below sets.root was dropped; open its directory again");
            return Err(Failure::new(Reason::NotFound, what).with("path", name));
        }
        match self.root.inode(&self.directory)? {
            Some(inode) if inode == self.inode => Ok(()),
            found => {
                let became = if found.is_some() { "replaced by another one" } else { "removed" };
                let what = format!(
                    "the directory {name} below sets.root was {became}; put it back, or drop the set and open what is there"
                );
                Err(Failure::new(Reason::StorageFailed, what).with("path", name))
            }
        }
    }

    /// Reads rows of a leaf into a landing, in order.
    ///
    /// # Errors
    /// TORN_ROWS, STORAGE_FAILED.
    pub(in crate::exchange::rows) fn read(
        &self,
        at: usize,
        leaf: &Leaf,
        rows: &RowList,
        to: &mut Landing,
    ) -> Result<(), Failure> {
        let is_torn = !self.notes.lock().torn.is_empty();
        if is_torn {
            rows.spans().try_for_each(|(first, count)| self.check_torn(at, leaf, first, count))?;
        }
        let Some(file) = self.leaf(at)? else { return Ok(()) };
        let mut done = 0;
        for (first, count) in rows.spans() {
            let bytes = count * leaf.row_bytes;
            let into = to.chunk_mut(done..done + bytes).map_err(|error| internal(&error))?;
            file.read_exact_at(into, first * leaf.row_bytes)
                .map_err(|error| self.failed(at, "read", &error))?;
            done += bytes;
        }
        Ok(())
    }

    /// Reads bytes of a leaf from an offset, whether their rows are torn or not.
    ///
    /// # Errors
    /// STORAGE_FAILED.
    pub(in crate::exchange::rows) fn read_span(
        &self,
        at: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Failure> {
        let Some(file) = self.leaf(at)? else { return Ok(()) };
        file.read_exact_at(into, offset).map_err(|error| self.failed(at, "read", &error))
    }

    /// Checks that none of these neighbouring rows of a leaf is torn.
    ///
    /// # Errors
    /// TORN_ROWS.
    pub(in crate::exchange::rows) fn check_torn(
        &self,
        at: usize,
        leaf: &Leaf,
        first: u64,
        count: u64,
    ) -> Result<(), Failure> {
        let Some(range) = self.notes.lock().torn.among(at, first, count) else { return Ok(()) };
        let (first, last) = (range.start, range.end - 1);
        let what = format!(
            "rows {first} to {last} of {:?} were being written when the sidecar ended or its disk failed, and may be of two commits; write them again",
            leaf.key
        );
        Err(Failure::new(Reason::TornRows, what)
            .with("key", &leaf.key)
            .with("first", first)
            .with("last", last))
    }

    /// Takes the blocks of rows that will be written, so that a full disk is noticed before any of them changes.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED.
    pub(in crate::exchange::rows) fn reserve(
        &self,
        rows: &RowList,
        parts: &[NewBytes<'_>],
    ) -> Result<(), Failure> {
        for (at, leaf, _) in parts {
            let Some(file) = self.leaf(*at)? else { continue };
            for (first, count) in rows.spans() {
                let (offset, bytes) = (first * leaf.row_bytes, count * leaf.row_bytes);
                match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, offset, bytes) {
                    Ok(()) => {}
                    // There the write itself takes them, and may fail in the midst: then these rows are torn.
                    Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                    Err(error) => return Err(self.failed(*at, "take room for", &error.into())),
                }
            }
        }
        Ok(())
    }

    /// Notes the rows that are about to be written. `lock` is the lowest one that the commit holds.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: nothing is noted then.
    pub(in crate::exchange::rows) fn intend(&self, lock: usize, intent: &Intent) -> Result<(), Failure> {
        // The next intent takes the place of the one that has them.
        self.note_left()?;
        if self.durability != Durability::Process || intent.pieces.is_empty() {
            return Ok(());
        }
        // From here on the intent of this lock is that of a commit that is under way.
        self.notes.lock().left.remove(&lock);
        self.write_intent(lock, &intent.encode()).inspect_err(|_| self.leave_intent(lock))
    }

    fn write_intent(&self, lock: usize, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.own(Which::Intent(lock))?.write_all_at(bytes, 0);
        written.map_err(|error| self.failed_own(&intent_name(lock), "write", &error))
    }

    /// Has a later commit take an intent back, whose own one is over.
    fn leave_intent(&self, lock: usize) {
        self.notes.lock().left.insert(lock);
        self.is_unnoted.store(true, Ordering::Release);
    }

    /// Writes rows of leaves.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: some may be written then.
    pub(in crate::exchange::rows) fn write(
        &self,
        rows: &RowList,
        parts: &[NewBytes<'_>],
    ) -> Result<(), Failure> {
        write_rows(self, rows, parts)
    }

    /// Makes a commit whose rows are in the journal before they are written; none where there is no journal.
    ///
    /// # Errors
    /// VERSION_CHANGED, TOO_LARGE, STORAGE_FULL, STORAGE_FAILED, DEADLINE_EXCEEDED, CANCELLED.
    pub(in crate::exchange::rows) fn commit(
        &self,
        commits: &Mutex<Commits>,
        lock: usize,
        rows: &RowList,
        parts: &[NewBytes<'_>],
        (terms, until): (Terms, Until<'_>),
    ) -> Option<Result<Committed, Failure>> {
        let journal = self.journal.as_ref()?;
        let apply = |record: &Record| {
            let written = self.write(rows, parts).and_then(|()| self.settle(lock, record, rows, parts));
            written.inspect_err(|_| self.tear(lock, rows, parts))
        };
        Some(
            self.note_left().and_then(|()| journal.commit(self, commits, rows, parts, (terms, until), apply)),
        )
    }

    /// Notes what the disk took no note of before.
    fn note_left(&self) -> Result<(), Failure> {
        if self.is_unnoted.load(Ordering::Acquire) {
            self.note(&mut self.notes.lock())?;
        }
        Ok(())
    }

    /// Notes that rows are written: the commit, that they are not torn any more, and that nothing is being written. Once the commit is
    /// noted it is made: what of the rest cannot be noted now is noted by a later one.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: the commit is not noted.
    pub(in crate::exchange::rows) fn settle(
        &self,
        lock: usize,
        record: &Record,
        rows: &RowList,
        parts: &[NewBytes<'_>],
    ) -> Result<(), Failure> {
        self.note_commit(record)?;
        let mended = {
            let mut notes = self.notes.lock();
            let leaves = || parts.iter().map(|(at, ..)| *at).collect::<Vec<_>>();
            let spans = || rows.spans().collect::<Vec<_>>();
            match !notes.torn.is_empty() && notes.torn.remove_commit(&leaves(), &spans()) {
                true => self.note(&mut notes),
                false => Ok(()),
            }
        };
        if let Err(failure) = mended {
            tracing::warn!(directory = self.directory.as_str(), %failure, "mended rows could not be noted");
        }
        // A commit of no rows holds no lock: the intent there is another one's.
        if !rows.is_empty()
            && self.durability == Durability::Process
            && let Err(failure) = self.write_intent(lock, &NO_INTENT)
        {
            self.leave_intent(lock);
            tracing::warn!(directory = self.directory.as_str(), %failure, "an intent could not be taken back");
        }
        Ok(())
    }

    /// Notes a commit in its place in the ring, unless a later one has that place: a slow commit takes none of a faster one.
    fn note_commit(&self, record: &Record) -> Result<(), Failure> {
        let offset = Record::offset(record.committed.version);
        let _noting = self.noting.lock();
        let mut there = [0; RECORD_BYTES];
        Medium::read(self, Which::Commits, offset, &mut there)?;
        let there = Record::decode_all(&there);
        if there.iter().any(|there| there.committed.version > record.committed.version) {
            return Ok(());
        }
        Medium::write(self, Which::Commits, offset, &record.encode())
    }

    /// Notes that rows may be of two commits, because writing them failed.
    pub(in crate::exchange::rows) fn tear(&self, lock: usize, rows: &RowList, parts: &[NewBytes<'_>]) {
        if rows.is_empty() {
            // It holds no lock: the intent there is another one's.
            return;
        }
        let mut notes = self.notes.lock();
        let leaves: Vec<usize> = parts.iter().map(|(at, ..)| *at).collect();
        notes.torn.add_commit(&leaves, &rows.spans().collect::<Vec<_>>());
        if self.durability == Durability::Process {
            notes.left.insert(lock);
        }
        // Rows that cannot be noted now are still in the intent of the commit, which the next commit leaves as it is until they can be.
        if let Err(failure) = self.note(&mut notes) {
            tracing::warn!(directory = self.directory.as_str(), %failure, "torn rows could not be noted");
        }
    }

    /// Notes the version of a commit that failed, with `retry` none, so that the next life gives it to no other one. Where its intent could
    /// not be taken back, that has the version.
    pub(in crate::exchange::rows) fn note_failed(&self, lock: usize, record: &Record) {
        // Beside its intent the record would say that the rows are whole.
        if self.notes.lock().left.contains(&lock) {
            return;
        }
        if let Err(failure) = self.note_commit(record) {
            tracing::warn!(directory = self.directory.as_str(), %failure, "the version of a failed commit could not be noted");
        }
    }

    /// Brings everything that was committed to the disk: rows first, then what is known of them.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED.
    pub(in crate::exchange::rows) fn flush(&self) -> Result<(), Failure> {
        self.check()?;
        // Where it was dropped meanwhile, the directory may have the journal of another set.
        self.bring(|| self.check())
    }

    fn bring(&self, is_ours: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if let Some(journal) = &self.journal {
            // The journal has them no more then.
            self.note_left()?;
            return journal.flush(self, self.files.len(), is_ours);
        }
        (0..self.files.len()).try_for_each(|at| self.sync(Which::Leaf(at)))?;
        self.sync(Which::Commits)
    }

    /// Files of the set that lie in its directory are tensordict's alone from now on. Called with all locks held.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: it is a set still, and may be dropped again. NOT_FOUND: it was dropped before.
    pub(in crate::exchange::rows) fn forget(&self) -> Result<(), Failure> {
        if self.dropped.swap(true, Ordering::AcqRel) {
            let what = format!("the set in {} below sets.root was dropped already", self.directory.as_str());
            return Err(Failure::new(Reason::NotFound, what).with("path", self.directory.as_str()));
        }
        self.leave().inspect_err(|_| self.dropped.store(false, Ordering::Release))
    }

    fn leave(&self) -> Result<(), Failure> {
        match self.root.inode(&self.directory)? {
            Some(inode) if inode == self.inode => {
                // The journal goes: what was committed then lies where it belongs.
                self.journal.as_ref().map_or(Ok(()), |_| self.bring(|| Ok(())))?;
                self.note_left()?;
                self.root.descriptors.close(self.number);
                super::keep::forget(&self.root, &self.directory)
            }
            // Another directory is not this set's.
            _ => {
                self.root.descriptors.close(self.number);
                Ok(())
            }
        }
    }

    /// The file of a leaf, as long as its rows need; none for a leaf without bytes.
    fn leaf(&self, at: usize) -> Result<Option<Arc<File>>, Failure> {
        let planned = self.files.get(at).ok_or_else(|| internal(&"no such leaf"))?;
        if planned.bytes == 0 {
            return Ok(None);
        }
        let opened = self.root.descriptors.get((self.number, Which::Leaf(at)), || {
            let (directory, _) = self.root.set(&self.directory)?;
            file_at(&directory, &planned.path, OFlags::RDWR).map_err(|error| self.failed(at, "open", &error))
        })?;
        let (links, bytes) = Inode::plain(&opened).map_err(|error| self.failed(at, "look at", &error))?;
        if links == 0 {
            return Err(self.failed(at, "use", &Errno::NOENT.into()));
        }
        if bytes < planned.bytes {
            let path = self.path(at);
            let what = format!(
                "{path} below sets.root was cut to {bytes} bytes, and its rows have {}; put it back, or drop the set",
                planned.bytes
            );
            return Err(Failure::new(Reason::StorageFailed, what).with("path", path));
        }
        Ok(Some(opened))
    }

    /// A file of what is known of the set.
    fn own(&self, which: Which) -> Result<Arc<File>, Failure> {
        self.root.descriptors.get((self.number, which), || {
            let name = own_name(which);
            let failed = |error: io::Error| self.failed_own(&name, "open", &error);
            let (directory, _) = self.root.set(&self.directory)?;
            let own = below(&directory, OWN_DIRECTORY).map_err(failed)?;
            file(&own, &name, OFlags::RDWR | OFlags::CREATE).map_err(failed)
        })
    }

    /// Notes the torn rows as they are now. Then the intents that are left are taken back: the rows of one may be written whole
    /// meanwhile under another lock, and the next life would tell them as torn.
    fn note(&self, notes: &mut Notes) -> Result<(), Failure> {
        self.torn_rows.store(notes.torn.rows(), Ordering::Relaxed);
        let directory = self.root.set(&self.directory);
        let noted = directory.and_then(|(directory, _)| write_torn(&directory, &self.directory, &notes.torn));
        if noted.is_ok() {
            notes.left.retain(|lock| self.write_intent(*lock, &NO_INTENT).is_err());
        }
        // Last: whoever sees it lowered may write an intent anew.
        self.is_unnoted.store(noted.is_err() || !notes.left.is_empty(), Ordering::Release);
        noted
    }

    fn path(&self, at: usize) -> String {
        let path = self.files.get(at).map(|planned| planned.path.join("/")).unwrap_or_default();
        format!("{}/{path}", self.directory.as_str())
    }

    fn failed(&self, at: usize, doing: &str, error: &io::Error) -> Failure {
        storage(&self.path(at), doing, error)
    }

    fn failed_own(&self, name: &str, doing: &str, error: &io::Error) -> Failure {
        storage(&format!("{}/{OWN_DIRECTORY}/{name}", self.directory.as_str()), doing, error)
    }
}

impl FileSet {
    /// A file of the set, if it has bytes, and a way to say how it failed.
    fn any(&self, which: Which) -> Result<Option<Arc<File>>, Failure> {
        match which {
            Which::Leaf(at) => self.leaf(at),
            _ => self.own(which).map(Some),
        }
    }

    fn failed_any(&self, which: Which, doing: &str, error: &io::Error) -> Failure {
        match which {
            Which::Leaf(at) => self.failed(at, doing, error),
            _ => self.failed_own(&own_name(which), doing, error),
        }
    }
}

impl Medium for FileSet {
    fn reserve(&self, which: Which, offset: u64, bytes: u64) -> Result<(), Failure> {
        let Some(file) = self.any(which)? else { return Ok(()) };
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), offset, bytes) {
            // There the write itself takes them.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(self.failed_any(which, "take room for", &error.into())),
        }
    }

    fn write(&self, which: Which, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let Some(file) = self.any(which)? else { return Ok(()) };
        file.write_all_at(bytes, offset).map_err(|error| self.failed_any(which, "write", &error))
    }

    fn read(&self, which: Which, offset: u64, into: &mut [u8]) -> Result<usize, Failure> {
        let Some(file) = self.any(which)? else { return Ok(0) };
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed_any(which, "read", &error)),
            }
        }
        Ok(done)
    }

    fn write_leaf(&self, rows: &RowList, part: &NewBytes<'_>) -> Result<(), Failure> {
        let Some(file) = self.leaf(part.0)? else { return Ok(()) };
        each_span(rows, part, |offset, bytes| {
            file.write_all_at(bytes, offset).map_err(|error| self.failed(part.0, "write", &error))
        })
    }

    fn sync(&self, which: Which) -> Result<(), Failure> {
        let Some(file) = self.any(which)? else { return Ok(()) };
        if which == Which::Journal {
            // What is synced into a file that is removed is nowhere.
            let (links, _) =
                Inode::plain(&file).map_err(|error| self.failed_any(which, "look at", &error))?;
            if links == 0 {
                return Err(self.failed_any(which, "use", &Errno::NOENT.into()));
            }
        }
        file.sync_data().map_err(|error| self.failed_any(which, "sync", &error))
    }
}

/// Name of a file of what is known of the set.
fn own_name(which: Which) -> String {
    match which {
        Which::Intent(lock) => intent_name(lock),
        Which::Journal => JOURNAL.to_owned(),
        Which::Commits | Which::Leaf(_) => COMMITS.to_owned(),
    }
}

impl Drop for FileSet {
    fn drop(&mut self) {
        self.root.descriptors.close(self.number);
    }
}
