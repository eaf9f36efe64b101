//! The journal of a set that survives a loss of power: new rows are on the disk there before any row of the set changes.
//!
//! ```text
//!   commit     append ── sync (of all that were appended meanwhile) ── write the rows ── note the commit ── answer
//!   full       wait for commits that write ── sync leaves and commits ── empty ── begin at offset 0 again, as another run
//!   next life  write what whole entries have ── sync ── empty
//! ```
//!
//! An entry whose sync failed is covered by zeros, and no row was changed. Where covering fails, too, or a leaf cannot be synced,
//! nobody knows what is on the disk: the set takes no more commits, and the next life does what the journal has.
//!
//! Appending copies the rows under the lock of the journal, so a small commit waits for the copy of a large one. A commit waits for
//! room until its deadline or a cancel. Once it has an entry it waits for the disk alone: the next life would make it.

#[cfg(test)]
mod power;

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorlane_proto::checksum::{crc32c, crc32c_append};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::rows::{
    Commits, Committed, Intent, JOURNAL_HEAD_BYTES, JournalHead, Record, RowList, SetLayout,
    check_journal_entry,
};

use super::descriptors::Which;
use super::keep::INTENT_BYTES_MAX;
use super::medium::Medium;
use super::rows::NewBytes;
use crate::exchange::rows::locking::{Until, next_look};
use crate::exchange::rows::memory::Terms;

/// Blocks are taken for so many bytes at a time.
const STEP: u64 = 1 << 20;
/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;
/// Bytes that no entry begins with.
const NO_ENTRY: [u8; JOURNAL_HEAD_BYTES] = [0; JOURNAL_HEAD_BYTES];

/// Journal of a set.
pub(super) struct Journal {
    /// Most bytes of the file.
    most: u64,
    log: Mutex<Entries>,
    /// Told when anything of the log changes.
    changed: Condvar,
}

/// Entries since the journal was last empty.
#[derive(Default)]
struct Entries {
    /// Random number of the run, which tells its entries from earlier ones.
    run: u64,
    /// Offset behind the last entry; of the last one that is on the disk; of the blocks that are taken.
    end: u64,
    synced: u64,
    taken: u64,
    /// Number of the last entry of this life, and of the last one that is on the disk.
    last: u64,
    durable: u64,
    /// Entries that did not come to the disk, until their commits have seen it.
    lost: BTreeMap<u64, Failure>,
    /// Commits that have an entry and are not answered.
    applying: usize,
    /// Leaves that were written and not synced.
    dirty: BTreeSet<usize>,
    is_syncing: bool,
    is_emptying: bool,
    /// Failure after which nobody knows what is on the disk.
    broken: Option<Failure>,
}

/// Commit whose entry is in the journal. Until it is dropped the journal keeps the entry.
struct Applying<'a> {
    journal: &'a Journal,
    leaves: Vec<usize>,
    number: u64,
    record: Record,
}

/// Commit as it comes to the journal.
struct Entering<'a> {
    rows: &'a RowList,
    leaves: Vec<usize>,
    plan: Vec<u8>,
    data: Vec<&'a [u8]>,
    terms: Terms,
}

// === impl Journal ===

impl Journal {
    /// A journal of at most so many bytes, whose file has no entry.
    pub(super) fn new(most: u64) -> Self {
        let log = Entries { run: rand::random(), ..Entries::default() };
        Self { most, log: Mutex::new(log), changed: Condvar::new() }
    }

    /// Makes a commit, under the locks of its rows: `apply` writes them when they are on the disk here.
    ///
    /// # Errors
    /// TOO_LARGE, VERSION_CHANGED, STORAGE_FULL, STORAGE_FAILED, DEADLINE_EXCEEDED, CANCELLED and those of `apply`. Nothing was
    /// changed but by `apply`.
    pub(super) fn commit(
        &self,
        on: &dyn Medium,
        commits: &Mutex<Commits>,
        rows: &RowList,
        parts: &[NewBytes<'_>],
        (terms, until): (Terms, Until<'_>),
        apply: impl FnOnce(&Record) -> Result<(), Failure>,
    ) -> Result<Committed, Failure> {
        let leaves: Vec<usize> = parts.iter().map(|(at, ..)| *at).collect();
        // The version stands in the head.
        let plan = Intent::new(0, leaves.clone(), rows).encode();
        let data = parts.iter().map(|(.., bytes)| *bytes).collect();
        let entering = Entering { rows, leaves, plan, data, terms };
        let applying = match self.append(on, commits, entering, until)? {
            Ok(applying) => applying,
            Err(before) => return Ok(before),
        };
        let done = self.bring(on, applying.number).and_then(|()| apply(&applying.record));
        if done.is_err() {
            commits.lock().failed(terms.retry);
        }
        done.map(|()| applying.record.committed)
    }

    /// Brings what was committed to the disk, with all these leaves, and empties the journal, if it `is_ours` when it is its turn.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED, and that of `is_ours`: nothing was done then.
    pub(super) fn flush(
        &self,
        on: &dyn Medium,
        leaves: usize,
        is_ours: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut log = self.log.lock();
        while log.is_emptying {
            self.changed.wait(&mut log);
        }
        is_ours()?;
        log.dirty.extend(0..leaves);
        self.empty(on, &mut log, None)
    }

    /// Appends an entry; or the commit that it repeats.
    fn append(
        &self,
        on: &dyn Medium,
        commits: &Mutex<Commits>,
        entering: Entering<'_>,
        until: Until<'_>,
    ) -> Result<Result<Applying<'_>, Committed>, Failure> {
        let Entering { rows, leaves, plan, data, terms } = entering;
        let (committed, cursor) = (Committed { version: 0, first: 0 }, 0);
        let record = Record { committed, cursor, retry: terms.retry };
        let data_bytes = data.iter().map(|bytes| bytes.len() as u64).sum();
        let draft = JournalHead { run: 0, record, plan_bytes: plan.len() as u64, data_bytes, sum: 0 };
        let bytes = draft.entry_bytes().unwrap_or(u64::MAX);
        let mut log = self.room(on, bytes, until)?;
        let (mut at, mut sum) = (log.end + JOURNAL_HEAD_BYTES as u64, 0);
        // Whoever put the rows may still write them: each byte is read once, so that the sum is that of what is written.
        let mut read = Vec::new();
        for part in std::iter::once(&plan[..]).chain(data).flat_map(|part| part.chunks(CHUNK)) {
            read.clear();
            read.extend_from_slice(part);
            sum = crc32c_append(sum, &read);
            on.write(Which::Journal, at, &read)?;
            at += read.len() as u64;
        }
        let mut commits = commits.lock();
        if let Some(before) = terms.before(&commits)? {
            return Ok(Err(before));
        }
        let (committed, cursor) = commits.next(rows);
        let record = Record { committed, cursor, retry: terms.retry };
        let head = JournalHead { run: log.run, record, sum, ..draft }.encode();
        if let Err(failure) = on.write(Which::Journal, log.end, &head) {
            drop(commits);
            log.cover(on);
            return Err(failure);
        }
        commits.commit(rows, terms.retry);
        drop(commits);
        log.end = at;
        log.last += 1;
        log.applying += 1;
        Ok(Ok(Applying { journal: self, leaves, number: log.last, record }))
    }

    /// Waits until so many bytes may be appended.
    fn room(
        &self,
        on: &dyn Medium,
        bytes: u64,
        until: Until<'_>,
    ) -> Result<MutexGuard<'_, Entries>, Failure> {
        if bytes > self.most {
            let what = format!(
                "a commit of {bytes} bytes does not fit into the journal of {} that its set has; split it, or raise limits.setJournalBytes",
                self.most
            );
            return Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes));
        }
        let mut log = self.log.lock();
        loop {
            log.check()?;
            if log.is_emptying {
                self.wait(&mut log, Some(until))?;
            } else if log.end + bytes > self.most {
                self.empty(on, &mut log, Some(until))?;
            } else {
                break;
            }
        }
        if log.end + bytes > log.taken {
            let until = (log.end + bytes).next_multiple_of(STEP).min(self.most);
            on.reserve(Which::Journal, log.taken, until - log.taken)?;
            log.taken = until;
        }
        Ok(log)
    }

    /// Waits until an entry is on the disk. Those that were appended before the sync begins come with it.
    fn bring(&self, on: &dyn Medium, number: u64) -> Result<(), Failure> {
        let mut log = self.log.lock();
        loop {
            if let Some(failure) = log.lost.remove(&number) {
                return Err(failure);
            }
            if log.durable >= number {
                return Ok(());
            }
            if log.is_syncing {
                self.changed.wait(&mut log);
                continue;
            }
            log.is_syncing = true;
            let (last, end) = (log.last, log.end);
            let synced = MutexGuard::unlocked(&mut log, || on.sync(Which::Journal));
            log.is_syncing = false;
            // A sync that failed is told to one caller alone, which may be another one than this.
            match synced.and_then(|()| log.check()) {
                Ok(()) => (log.durable, log.synced) = (last, end),
                Err(failure) => log.lose(on, &failure),
            }
            self.changed.notify_all();
        }
    }

    /// Waits for a change of the log; where there is somebody who may lose patience, for a while.
    fn wait(&self, log: &mut MutexGuard<'_, Entries>, until: Option<Until<'_>>) -> Result<(), Failure> {
        match until {
            Some(until) => {
                let look = next_look(until, "the journal of the set is full, and is being emptied")?;
                self.changed.wait_until(log, look);
            }
            None => self.changed.wait(log),
        }
        Ok(())
    }

    /// Empties the journal: all that it has is on the disk where it belongs. New entries wait meanwhile.
    fn empty(
        &self,
        on: &dyn Medium,
        log: &mut MutexGuard<'_, Entries>,
        until: Option<Until<'_>>,
    ) -> Result<(), Failure> {
        log.is_emptying = true;
        while log.applying > 0 {
            if let Err(failure) = self.wait(log, until) {
                // Nothing was done: whoever waits for room does it in its place.
                log.is_emptying = false;
                self.changed.notify_all();
                return Err(failure);
            }
        }
        let outcome = log.check().and_then(|()| {
            let dirty = std::mem::take(&mut log.dirty);
            MutexGuard::unlocked(log, || {
                dirty.into_iter().try_for_each(|leaf| on.sync(Which::Leaf(leaf)))?;
                on.sync(Which::Commits)?;
                // On the disk before the next entry is: of an entry whose first page is lost and whose second one is not, the beginning
                // of this run would be done again, over rows of its end.
                clear(on)
            })
        });
        match &outcome {
            Ok(()) => (log.end, log.synced, log.run) = (0, 0, rand::random()),
            Err(failure) => _ = log.broken.get_or_insert_with(|| failure.clone()),
        }
        log.is_emptying = false;
        self.changed.notify_all();
        outcome
    }
}

// === impl Entries ===

impl Entries {
    fn check(&self) -> Result<(), Failure> {
        let Some(failure) = &self.broken else { return Ok(()) };
        let what = format!(
            "the journal of the set failed ({}); what it has is written when the sidecar starts again: look at that disk, then restart it",
            failure.message
        );
        let mut told = Failure::new(failure.reason, what);
        told.details.clone_from(&failure.details);
        Err(told)
    }

    /// Entries behind the last one that is on the disk are none.
    fn lose(&mut self, on: &dyn Medium, failure: &Failure) {
        self.lost.extend((self.durable + 1..=self.last).map(|number| (number, failure.clone())));
        self.end = self.synced;
        self.cover(on);
    }

    /// Makes sure that the next life sees no entry at the end.
    fn cover(&mut self, on: &dyn Medium) {
        let covered = on.write(Which::Journal, self.end, &NO_ENTRY).and_then(|()| on.sync(Which::Journal));
        if let Err(failure) = covered {
            self.broken.get_or_insert(failure);
        }
    }
}

// === impl Applying ===

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        let mut log = self.journal.log.lock();
        log.applying -= 1;
        log.dirty.extend(self.leaves.iter().copied());
        self.journal.changed.notify_all();
    }
}

// === Next life ===

/// Writes the rows of whole entries, in order, each told to `each`; they are on the disk then. Returns how many there were.
///
/// # Errors
/// STORAGE_FULL, STORAGE_FAILED, and UNSUPPORTED_FORMAT for an entry of another layout. The journal stays as it is.
pub(super) fn redo(
    on: &dyn Medium,
    layout: &SetLayout,
    each: &mut dyn FnMut(&Intent),
) -> Result<usize, Failure> {
    let (mut at, mut before, mut count) = (0, None, 0);
    let mut dirty = BTreeSet::new();
    let mut chunk = vec![0; CHUNK];
    while let Some((head, plan)) = entry(on, at, before.as_ref(), &mut chunk)? {
        check_journal_entry(&head, &plan, layout)?;
        let mut from = at + JOURNAL_HEAD_BYTES as u64 + head.plan_bytes;
        for leaf in &plan.leaves {
            let row_bytes = layout.leaves().get(*leaf).map_or(0, |leaf| leaf.row_bytes);
            for (first, count) in &plan.pieces {
                let bytes = count * row_bytes;
                chunks(on, from, bytes, &mut chunk, |done, now| {
                    on.write(Which::Leaf(*leaf), first * row_bytes + done, now)
                })?;
                from += bytes;
            }
            dirty.insert(*leaf);
        }
        on.write(Which::Commits, Record::offset(head.record.committed.version), &head.record.encode())?;
        each(&plan);
        (at, count) = (from, count + 1);
        before = Some(head);
    }
    if count > 0 {
        dirty.into_iter().try_for_each(|leaf| on.sync(Which::Leaf(leaf)))?;
        on.sync(Which::Commits)?;
    }
    Ok(count)
}

/// Empties a journal whose entries are on the disk where they belong.
///
/// # Errors
/// STORAGE_FULL, STORAGE_FAILED.
pub(super) fn clear(on: &dyn Medium) -> Result<(), Failure> {
    on.write(Which::Journal, 0, &NO_ENTRY)?;
    on.sync(Which::Journal)
}

/// The entry at an offset; none where it is not whole, or does not follow the one before.
fn entry(
    on: &dyn Medium,
    at: u64,
    before: Option<&JournalHead>,
    chunk: &mut [u8],
) -> Result<Option<(JournalHead, Intent)>, Failure> {
    let mut head = NO_ENTRY;
    let read = on.read(Which::Journal, at, &mut head)?;
    let head = head.get(..read).and_then(JournalHead::decode).filter(|head| head.follows(before));
    let Some(head) = head.filter(|head| head.plan_bytes <= INTENT_BYTES_MAX) else { return Ok(None) };
    let mut plan = Vec::new();
    let behind = at + JOURNAL_HEAD_BYTES as u64;
    let mut whole = chunks(on, behind, head.plan_bytes, chunk, |_, now| {
        plan.extend_from_slice(now);
        Ok(())
    })?;
    let mut sum = crc32c(&plan);
    whole &= chunks(on, behind + head.plan_bytes, head.data_bytes, chunk, |_, now| {
        sum = crc32c_append(sum, now);
        Ok(())
    })?;
    Ok(Intent::decode(&plan).filter(|_| whole && sum == head.sum).map(|plan| (head, plan)))
}

/// Hands bytes of the journal on, a chunk at a time, each with how many came before. False where the file ends sooner.
fn chunks(
    on: &dyn Medium,
    offset: u64,
    bytes: u64,
    chunk: &mut [u8],
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let mut done = 0;
    while done < bytes {
        let now = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(chunk.len());
        let Some(into) = chunk.get_mut(..now) else { return Ok(false) };
        if on.read(Which::Journal, offset + done, into)? < now {
            return Ok(false);
        }
        each(done, into)?;
        done += now as u64;
    }
    Ok(true)
}
