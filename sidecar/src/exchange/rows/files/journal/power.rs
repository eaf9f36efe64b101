//! A disk that loses power: of what was not synced, any part is there afterwards.
//!
//! A life of a journal is recorded as a list of writes and syncs. Every prefix of it is a moment at which power may go; the next
//! life then begins with files of which each unsynced sector, or page, is there or not, by chance.

use std::collections::BTreeMap;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};
use tensorlane_proto::DType;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::rows::{RECORD_BYTES, REPEATS_MAX};

use super::super::medium::{each_span, write_rows};
use super::*;
use crate::cancel::Cancel;
use crate::exchange::alone::MINUTE;

/// Bytes that are there or not as a whole: few, so that records, heads and rows are cut.
const SECTOR: usize = 16;
/// Bytes of a page, of which all unsynced writes are there or none: a small entry fits, and a large one lies in several.
const PAGE: u64 = 256;
const ROWS: u64 = 8;
/// Two to five small commits.
const JOURNAL_BYTES: u64 = 700;

type Image = BTreeMap<Which, Vec<u8>>;
/// Writes of a file that may be lost: number of the step, offset and bytes.
type Unsynced<'a> = Vec<(usize, u64, &'a [u8])>;

/// A disk with the files of a set.
#[derive(Default)]
struct Twin(Mutex<Disk>);

#[derive(Default)]
struct Disk {
    /// Files when it began, and as they are read now.
    base: Image,
    files: Image,
    steps: Vec<Step>,
    /// Number of the call that fails, and of those behind it that fail, too.
    fails: Option<(usize, usize)>,
    calls: usize,
}

#[derive(Clone)]
enum Step {
    Write(Which, u64, Vec<u8>),
    /// Sync of what was written before this step.
    Sync(Which, usize),
    /// Rows that may be there if power goes behind this step: one of these.
    Allowed(Vec<Vec<u8>>),
    /// A commit of this writer was answered, with this value in its row.
    Answered(u64, u8),
}

// === impl Twin ===

impl Twin {
    fn of(base: Image) -> Self {
        Self(Mutex::new(Disk { files: base.clone(), base, ..Disk::default() }))
    }

    fn note(&self, step: Step) {
        self.0.lock().steps.push(step);
    }

    fn rows(&self) -> Vec<u8> {
        let disk = self.0.lock();
        [0, 1]
            .iter()
            .flat_map(|leaf| disk.files.get(&Which::Leaf(*leaf)).cloned().unwrap_or_default())
            .collect()
    }

    fn steps(&self) -> usize {
        self.0.lock().steps.len()
    }

    /// Files after a loss of power behind so many steps.
    fn after(&self, steps: usize, chance: &mut StdRng) -> Image {
        let disk = self.0.lock();
        let mut image = disk.base.clone();
        let mut unsynced: BTreeMap<Which, Unsynced<'_>> = BTreeMap::new();
        for (at, step) in disk.steps[..steps].iter().enumerate() {
            match step {
                Step::Write(which, offset, bytes) => {
                    unsynced.entry(*which).or_default().push((at, *offset, bytes));
                }
                Step::Sync(which, since) => {
                    let writes = unsynced.entry(*which).or_default();
                    let later = writes.partition_point(|(at, ..)| at < since);
                    for (_, offset, bytes) in writes.drain(..later) {
                        put(image.entry(*which).or_default(), offset, bytes);
                    }
                }
                Step::Allowed(_) | Step::Answered(..) => {}
            }
        }
        // None, some or all of it, also of one write.
        let kept = [0.0, 0.5, 0.9, 1.0][chance.random_range(0..4)];
        let by_page = chance.random_bool(0.5);
        let mut pages: BTreeMap<(Which, u64), bool> = BTreeMap::new();
        for (which, writes) in unsynced {
            for (_, offset, bytes) in writes {
                for (at, sector) in (offset..).step_by(SECTOR).zip(bytes.chunks(SECTOR)) {
                    let is_there = match by_page {
                        // A sector over the end of a page goes with the page that it begins in.
                        true => *pages.entry((which, at / PAGE)).or_insert_with(|| chance.random_bool(kept)),
                        false => chance.random_bool(kept),
                    };
                    if is_there {
                        put(image.entry(which).or_default(), at, sector);
                    }
                }
            }
        }
        image
    }

    fn fails(&self) -> Result<(), Failure> {
        let mut disk = self.0.lock();
        disk.calls += 1;
        match disk.fails {
            Some((first, more)) if (first..=first + more).contains(&disk.calls) => {
                let reason = if first % 2 == 0 { Reason::StorageFull } else { Reason::StorageFailed };
                Err(Failure::new(reason, "as the test wants it"))
            }
            _ => Ok(()),
        }
    }
}

impl Medium for Twin {
    fn reserve(&self, _: Which, _: u64, _: u64) -> Result<(), Failure> {
        self.fails()
    }

    fn write(&self, which: Which, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        // Rows that cannot be written are torn, which is the set's own to note.
        let failed = if which == Which::Journal { self.fails() } else { Ok(()) };
        let bytes = if failed.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let mut disk = self.0.lock();
        put(disk.files.entry(which).or_default(), offset, bytes);
        disk.steps.push(Step::Write(which, offset, bytes.to_vec()));
        failed
    }

    fn write_leaf(&self, rows: &RowList, part: &NewBytes<'_>) -> Result<(), Failure> {
        each_span(rows, part, |offset, bytes| self.write(Which::Leaf(part.0), offset, bytes))
    }

    fn read(&self, which: Which, offset: u64, into: &mut [u8]) -> Result<usize, Failure> {
        let disk = self.0.lock();
        let there = disk.files.get(&which).and_then(|file| file.get(offset as usize..)).unwrap_or_default();
        let len = there.len().min(into.len());
        into[..len].copy_from_slice(&there[..len]);
        Ok(len)
    }

    fn sync(&self, which: Which) -> Result<(), Failure> {
        let since = self.steps();
        // What others write meanwhile need not come with it.
        std::thread::yield_now();
        self.fails()?;
        self.note(Step::Sync(which, since));
        Ok(())
    }
}

fn put(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (from, until) = (offset as usize, offset as usize + bytes.len());
    file.resize(file.len().max(until), 0);
    file[from..until].copy_from_slice(bytes);
}

// === Lives ===

fn layout() -> SetLayout {
    let leaf = |key: &str, row_shape: &[u64]| v1::SetLeaf {
        key: key.to_owned(),
        dtype: DType::U8.code().into(),
        row_shape: row_shape.to_vec(),
    };
    SetLayout::new(&[leaf("wide", &[20]), leaf("thin", &[3])], ROWS).unwrap()
}

/// A deadline that no test comes to.
fn far() -> Instant {
    Instant::now() + MINUTE
}

fn empty_set() -> Image {
    let leaves = [20, 3].map(|row| vec![0; (ROWS * row) as usize]);
    let [wide, thin] = leaves;
    [(Which::Leaf(0), wide), (Which::Leaf(1), thin), (Which::Commits, vec![0; RECORD_BYTES * REPEATS_MAX])]
        .into()
}

/// Commits of the value to rows of leaves.
fn commit(
    twin: &Twin,
    journal: &Journal,
    commits: &Mutex<Commits>,
    (rows, leaves, value): (&RowList, &[usize], u8),
) -> Result<Committed, Failure> {
    let layout = layout();
    let bytes = vec![value; (rows.len() * 20) as usize];
    let part = |at: &usize| {
        let leaf = &layout.leaves()[*at];
        (*at, leaf, &bytes[..(rows.len() * leaf.row_bytes) as usize])
    };
    let parts: Vec<NewBytes<'_>> = leaves.iter().map(part).collect();
    let terms = Terms { expects: None, retry: None };
    journal.commit(twin, commits, rows, &parts, (terms, (far(), &Cancel::default())), |record| {
        write_rows(twin, rows, &parts)?;
        twin.write(Which::Commits, Record::offset(record.committed.version), &record.encode())
    })
}

/// A life: what earlier ones left is done again, then so many commits are made. The twin has all of it.
fn life(base: Image, count: usize, fails: Option<(usize, usize)>, chance: &mut StdRng) -> Twin {
    let twin = Twin::of(base);
    redo(&twin, &layout(), &mut |_| {}).unwrap();
    clear(&twin).unwrap();
    let mut now = twin.rows();
    twin.note(Step::Allowed(vec![now.clone()]));
    let records = Record::decode_all(&twin.0.lock().files[&Which::Commits]);
    let version = records.last().map_or(0, |record| record.committed.version);
    let commits = Mutex::new(Commits::restored(version, 0, []));
    let journal = Journal::new(JOURNAL_BYTES);
    {
        let mut disk = twin.0.lock();
        disk.fails = fails.map(|(first, more)| (disk.calls + first, more));
    }
    for _ in 0..count {
        let first = chance.random_range(0..ROWS);
        let rows = match chance.random_bool(0.5) {
            true => RowList::Range { first, count: chance.random_range(0..=ROWS - first), step: 1 },
            false => RowList::List([first, (first + 3) % ROWS, (first + 5) % ROWS].into()),
        };
        let leaves = [&[0, 1][..], &[1, 0], &[0], &[1]][chance.random_range(0..4)];
        let value = chance.random();
        let with = changed(&now, &rows, leaves, value);
        twin.note(Step::Allowed(vec![now.clone(), with.clone()]));
        match commit(&twin, &journal, &commits, (&rows, leaves, value)) {
            Ok(_) => now = with.clone(),
            Err(failure) => {
                let is_typed = [Reason::StorageFull, Reason::StorageFailed].contains(&failure.reason);
                assert!(is_typed && fails.is_some(), "{failure}");
                assert_eq!(twin.rows(), now, "a commit that was refused has changed something");
            }
        }
        let is_broken = journal.log.lock().broken.is_some();
        twin.note(Step::Allowed(if is_broken { vec![now.clone(), with] } else { vec![now.clone()] }));
        if is_broken {
            let refused = commit(&twin, &journal, &commits, (&rows, leaves, value)).unwrap_err();
            assert!(refused.message.contains("starts again"), "{refused}");
            break;
        }
    }
    twin
}

fn changed(rows_now: &[u8], rows: &RowList, leaves: &[usize], value: u8) -> Vec<u8> {
    let mut changed = rows_now.to_vec();
    for leaf in leaves {
        let (base, row) = [(0, 20), (ROWS * 20, 3)][*leaf];
        for (first, count) in rows.spans() {
            changed[(base + first * row) as usize..(base + (first + count) * row) as usize].fill(value);
        }
    }
    changed
}

/// Rows of one of the states that a loss of power may leave behind so many steps; none before the first one is known.
fn check(twin: &Twin, steps: usize, image: &Image) {
    let next = Twin::of(image.clone());
    redo(&next, &layout(), &mut |_| {}).unwrap();
    let disk = twin.0.lock();
    let allowed = disk.steps[..steps].iter().rev().find_map(|step| match step {
        Step::Allowed(states) => Some(states),
        _ => None,
    });
    let rows = next.rows();
    let Some(allowed) = allowed.or_else(|| {
        disk.steps.iter().find_map(|step| match step {
            Step::Allowed(states) => Some(states),
            _ => None,
        })
    }) else {
        return;
    };
    assert!(
        allowed.contains(&rows),
        "after {steps} of {} steps: {rows:?}, not {allowed:?}",
        disk.steps.len()
    );
}

#[test]
fn commits_survive_a_loss_of_power_at_any_moment_of_three_lives() {
    for seed in 0..40 {
        let chance = &mut StdRng::seed_from_u64(seed);
        let first = life(empty_set(), 12, None, chance);
        for steps in 0..=first.steps() {
            let image = first.after(steps, chance);
            check(&first, steps, &image);
            let second = life(image, 4, None, chance);
            let steps = chance.random_range(0..=second.steps());
            let image = second.after(steps, chance);
            check(&second, steps, &image);
            let third = life(image, 3, None, chance);
            let steps = chance.random_range(0..=third.steps());
            check(&third, steps, &third.after(steps, chance));
        }
    }
}

#[test]
fn a_full_or_failing_disk_leaves_no_commit_half_and_brings_none_back_that_was_refused() {
    for seed in 0..600 {
        let chance = &mut StdRng::seed_from_u64(seed);
        let fails = (chance.random_range(1..60), [0, 0, 1, 2, 1_000][chance.random_range(0..5)]);
        let life = life(empty_set(), 10, Some(fails), chance);
        for steps in 0..=life.steps() {
            check(&life, steps, &life.after(steps, chance));
        }
    }
}

#[test]
fn writers_beside_one_another_share_syncs_and_what_each_was_answered_survives() {
    let twin = Twin::of(empty_set());
    let (journal, commits) = (Journal::new(JOURNAL_BYTES), Mutex::new(Commits::default()));
    let rounds = 40;
    std::thread::scope(|scope| {
        for row in 0..ROWS {
            let (twin, journal, commits) = (&twin, &journal, &commits);
            scope.spawn(move || {
                for value in 1..=rounds {
                    let rows = RowList::Range { first: row, count: 1, step: 1 };
                    commit(twin, journal, commits, (&rows, &[0, 1], value)).unwrap();
                    twin.note(Step::Answered(row, value));
                    if value % 16 == 0 {
                        journal.flush(twin, 2, || Ok(())).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(commits.lock().version(), ROWS * u64::from(rounds));
    let chance = &mut StdRng::seed_from_u64(3);
    for _ in 0..400 {
        let steps = chance.random_range(0..=twin.steps());
        let next = Twin::of(twin.after(steps, chance));
        redo(&next, &layout(), &mut |_| {}).unwrap();
        let found = next.rows();
        let mut answered = [0; ROWS as usize];
        for step in &twin.0.lock().steps[..steps] {
            if let Step::Answered(row, value) = step {
                answered[*row as usize] = *value;
            }
        }
        for (row, least) in answered.into_iter().enumerate() {
            let whole = found[row * 20..][..20].iter().chain(&found[160 + row * 3..][..3]);
            let values: BTreeSet<u8> = whole.copied().collect();
            assert!(
                values.len() == 1 && values.first() >= Some(&least),
                "row {row}: {values:?} after {least}"
            );
        }
    }
}

/// A disk whose failed sync is told to another caller: that of the journal says that all is well.
struct Deaf<'a> {
    twin: Twin,
    journal: &'a Journal,
}

impl Medium for Deaf<'_> {
    fn reserve(&self, which: Which, offset: u64, bytes: u64) -> Result<(), Failure> {
        self.twin.reserve(which, offset, bytes)
    }

    fn write(&self, which: Which, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.twin.write(which, offset, bytes)
    }

    fn write_leaf(&self, rows: &RowList, part: &NewBytes<'_>) -> Result<(), Failure> {
        self.twin.write_leaf(rows, part)
    }

    fn read(&self, which: Which, offset: u64, into: &mut [u8]) -> Result<usize, Failure> {
        self.twin.read(which, offset, into)
    }

    fn sync(&self, which: Which) -> Result<(), Failure> {
        if let Some(mut log) = self.journal.log.try_lock() {
            let failure = Failure::new(Reason::StorageFailed, "as the test wants it");
            log.broken.get_or_insert(failure);
        }
        self.twin.sync(which)
    }
}

#[test]
fn a_commit_is_refused_where_another_caller_was_told_that_the_sync_failed() {
    let journal = Journal::new(JOURNAL_BYTES);
    let disk = Deaf { twin: Twin::of(empty_set()), journal: &journal };
    let commits = Mutex::new(Commits::default());
    let rows = RowList::Range { first: 0, count: 1, step: 1 };
    let layout = layout();
    let parts = [(1, &layout.leaves()[1], &[7; 3][..])];
    let terms = Terms { expects: None, retry: None };
    let terms = (terms, (far(), &Cancel::default()));
    let refused = journal.commit(&disk, &commits, &rows, &parts, terms, |_| unreachable!()).unwrap_err();
    assert!(refused.message.contains("starts again"), "{refused}");
}

/// A disk that takes no bytes from where their writer may still change them.
struct Apart<'a> {
    twin: Twin,
    rows: &'a [u8],
}

impl Medium for Apart<'_> {
    fn reserve(&self, which: Which, offset: u64, bytes: u64) -> Result<(), Failure> {
        self.twin.reserve(which, offset, bytes)
    }

    fn write(&self, which: Which, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        assert!(!self.rows.as_ptr_range().contains(&bytes.as_ptr()), "they are read a second time");
        self.twin.write(which, offset, bytes)
    }

    fn write_leaf(&self, rows: &RowList, part: &NewBytes<'_>) -> Result<(), Failure> {
        self.twin.write_leaf(rows, part)
    }

    fn read(&self, which: Which, offset: u64, into: &mut [u8]) -> Result<usize, Failure> {
        self.twin.read(which, offset, into)
    }

    fn sync(&self, which: Which) -> Result<(), Failure> {
        self.twin.sync(which)
    }
}

#[test]
fn rows_are_read_once_for_the_journal_so_that_their_sum_is_that_of_what_is_written() {
    let rows_of_a_client = [7; 3];
    let (journal, layout) = (Journal::new(JOURNAL_BYTES), layout());
    let disk = Apart { twin: Twin::of(empty_set()), rows: &rows_of_a_client };
    let rows = RowList::Range { first: 0, count: 1, step: 1 };
    let parts = [(1, &layout.leaves()[1], &rows_of_a_client[..])];
    let terms = Terms { expects: None, retry: None };
    let terms = (terms, (far(), &Cancel::default()));
    let committed = journal.commit(&disk, &Mutex::new(Commits::default()), &rows, &parts, terms, |_| Ok(()));
    assert_eq!(committed.unwrap().version, 1);
}

#[test]
fn a_flush_that_comes_late_leaves_the_journal_of_another_set_alone() {
    let twin = Twin::of(empty_set());
    let gone = || Err(Failure::new(Reason::NotFound, "it was dropped"));
    let refused = Journal::new(JOURNAL_BYTES).flush(&twin, 2, gone).unwrap_err();
    assert_eq!((refused.reason, twin.steps()), (Reason::NotFound, 0));
}

#[test]
fn a_commit_that_waits_for_room_ends_at_its_deadline_or_a_cancel_and_the_next_one_has_the_room() {
    let (twin, journal) = (Twin::of(empty_set()), Journal::new(JOURNAL_BYTES));
    let (commits, layout) = (Mutex::new(Commits::default()), layout());
    // It is full, and a commit that has an entry does not come to its end.
    {
        let mut log = journal.log.lock();
        (log.end, log.applying) = (JOURNAL_BYTES, 1);
    }
    let rows = RowList::Range { first: 0, count: 1, step: 1 };
    let parts = [(1, &layout.leaves()[1], &[7; 3][..])];
    let terms = Terms { expects: None, retry: None };
    let commit = |until| journal.commit(&twin, &commits, &rows, &parts, (terms, until), |_| Ok(()));
    let (cancel, gone) = (Cancel::default(), Cancel::default());
    gone.cancel();
    let late = commit((Instant::now(), &cancel)).unwrap_err();
    let withdrawn = commit((far(), &gone)).unwrap_err();
    assert_eq!((late.reason, withdrawn.reason), (Reason::DeadlineExceeded, Reason::Cancelled));
    assert_eq!((commits.lock().version(), twin.steps()), (0, 0));
    journal.log.lock().applying = 0;
    assert_eq!(commit((far(), &cancel)).unwrap().version, 1);
}
