//! Sets on real files: what a journal, an intent, a record and a note of torn rows are worth that the next life finds.

mod faults;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tempfile::TempDir;
use tensorlane_proto::DType;
use tensorlane_proto::failure::Reason;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::rows::{Commits, Committed, Intent, REPEATS_MAX, Record, RowList, SetLayout};

use super::*;
use crate::cancel::Cancel;
use crate::exchange::alone::MINUTE;
use crate::exchange::rows::memory::Terms;

const ROWS: u64 = 6;

/// A set in a directory of its own, which is gone with the first of these.
fn fresh(durability: Durability) -> (TempDir, Arc<Root>, (FileSet, Commits, SetLayout, Identity)) {
    let folder = tempfile::tempdir().unwrap();
    let limits = RootLimits { files: 8, journal_bytes: 64 << 10 };
    let root = Arc::new(Root::open(folder.path(), limits).unwrap());
    let leaf = |key: &str, row_shape: &[u64]| v1::SetLeaf {
        key: key.to_owned(),
        dtype: DType::U8.code().into(),
        row_shape: row_shape.to_vec(),
    };
    let layout = SetLayout::new(&[leaf("wide", &[5]), leaf("thin", &[])], ROWS).unwrap();
    let identity = Identity { id: 7, name: "replay".to_owned(), writers: Vec::new(), durability };
    let name = DirectoryName::new("replay").unwrap();
    root.create(&name, &layout, &identity).unwrap();
    let (files, commits, layout) = Directory::read(&root, &name).unwrap().adopt(&root, &identity).unwrap();
    (folder, root, (files, commits, layout, identity))
}

/// Torn rows and version of a set in the next life of its sidecar.
fn next_life(files: FileSet, root: &Arc<Root>, identity: &Identity) -> (u64, u64) {
    drop(files);
    let (files, commits) = again(root, identity).unwrap();
    (files.torn_rows(), commits.version())
}

/// The set of the directory in another life of its sidecar.
fn again(root: &Arc<Root>, identity: &Identity) -> Result<(FileSet, Commits), Failure> {
    let found = Directory::read(root, &DirectoryName::new("replay").unwrap())?;
    found.adopt(root, identity).map(|(files, commits, _)| (files, commits))
}

fn write(files: &FileSet, commits: &Mutex<Commits>, layout: &SetLayout, first: u64, value: u8) {
    let rows = RowList::Round { first, count: 2, of: ROWS };
    let bytes = [value; 10];
    let part = |(at, leaf): (usize, _)| (at, leaf, &bytes[..(2 * layout.leaves()[at].row_bytes) as usize]);
    let parts: Vec<NewBytes<'_>> = layout.leaves().iter().enumerate().map(part).collect();
    let terms = Terms { expects: None, retry: Some(RetryId([value; 16])) };
    let until = (Instant::now() + MINUTE, &Cancel::default());
    files.commit(commits, 0, &rows, &parts, (terms, until)).unwrap().unwrap();
}

/// Rows one behind the other.
fn neighbours(first: u64, count: u64) -> RowList {
    RowList::Range { first, count, step: 1 }
}

/// The leaf `wide` as a part of a commit, for what looks at no bytes.
fn wide(layout: &SetLayout) -> [NewBytes<'_>; 1] {
    [(0, &layout.leaves()[0], b"".as_slice())]
}

fn record(version: u64) -> Record {
    let retry = Some(RetryId(u128::from(version).to_le_bytes()));
    Record { committed: Committed { version, first: 0 }, cursor: version % ROWS, retry }
}

/// Puts a directory in the place of a file of the set, so that it cannot be written.
fn block(root: &Root, files: &FileSet, path: &Path) {
    fs::rename(path, path.with_extension("aside")).unwrap();
    fs::create_dir(path).unwrap();
    root.descriptors.close(files.number);
}

/// Puts a file back that was blocked.
fn unblock(path: &Path) {
    fs::remove_dir(path).unwrap();
    fs::rename(path.with_extension("aside"), path).unwrap();
}

#[test]
fn a_journal_that_is_cut_at_any_byte_is_done_again_up_to_its_last_whole_commit() {
    let (folder, root, (files, commits, layout, identity)) = fresh(Durability::Disk);
    let at = |name: &str| folder.path().join("replay").join(name);
    let paths = ["wide.memmap", "thin.memmap", ".tensorlane/commits"].map(at);
    let before = paths.clone().map(|path| fs::read(path).unwrap());
    let commits = Mutex::new(commits);
    let mut states = vec![before[0].clone()];
    for (first, value) in [(0, 1), (4, 2), (5, 3)] {
        write(&files, &commits, &layout, first, value);
        states.push(fs::read(&paths[0]).unwrap());
    }
    drop(files);
    let journal = fs::read(at(".tensorlane/journal")).unwrap();
    let len = journal.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut seen = Vec::new();
    for cut in 0..=len {
        // Nothing but the journal came to the disk.
        for (path, bytes) in paths.iter().zip(&before) {
            fs::write(path, bytes).unwrap();
        }
        fs::write(at(".tensorlane/journal"), &journal[..cut]).unwrap();
        let (files, commits) = again(&root, &identity).unwrap();
        let version = commits.version();
        assert_eq!(fs::read(&paths[0]).unwrap(), states[version as usize], "cut at {cut} of {len}");
        let repeated = commits.repeated(Some(RetryId([version as u8; 16])));
        assert_eq!(repeated.map(|made| made.version), (version > 0).then_some(version));
        assert_eq!((commits.cursor(), files.torn_rows()), ([0, 2, 0, 1][version as usize], 0));
        seen.push(version);
        drop(files);
        // Done again once, and then no more.
        assert_eq!(again(&root, &identity).unwrap().1.version(), version);
    }
    assert!(seen.is_sorted() && seen.first() == Some(&0) && seen.last() == Some(&3), "{seen:?}");
}

#[test]
fn rows_that_were_torn_are_mended_by_the_journal_and_another_durability_takes_its_commits() {
    let (folder, root, (files, commits, layout, identity)) = fresh(Durability::Disk);
    let commits = Mutex::new(commits);
    write(&files, &commits, &layout, 2, 9);
    // As if a leaf could not be written: its rows are torn, and the commit is in the journal.
    let bytes = [0; 10];
    files.tear(0, &RowList::Round { first: 1, count: 2, of: ROWS }, &[(0, &layout.leaves()[0], &bytes)]);
    assert_eq!(files.torn_rows(), 2);
    drop(files);
    let journal = folder.path().join("replay/.tensorlane/journal");
    assert!(journal.is_file());
    let other = Identity { durability: Durability::Process, ..identity };
    let (files, commits) = again(&root, &other).unwrap();
    assert_eq!((files.torn_rows(), commits.version()), (1, 1), "row 1 was not of that commit");
    assert!(!journal.exists());
    assert_eq!(fs::read(folder.path().join("replay/thin.memmap")).unwrap(), [0, 0, 9, 9, 0, 0]);
}

#[test]
fn a_journal_of_another_layout_is_no_set_and_stays() {
    let (folder, root, (files, commits, layout, identity)) = fresh(Durability::Disk);
    write(&files, &Mutex::new(commits), &layout, 4, 9);
    drop(files);
    without_digest(folder.path());
    let meta = folder.path().join("replay/meta.json");
    let was = fs::read_to_string(&meta).unwrap();
    fs::write(&meta, was.replace("[6", "[5")).unwrap();
    for name in ["replay", "another"] {
        let identity = Identity { name: name.to_owned(), ..identity.clone() };
        let refused = again(&root, &identity).map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    }
    let journal = fs::read(folder.path().join("replay/.tensorlane/journal")).unwrap();
    assert!(journal.iter().any(|byte| *byte != 0));
    // What was refused has left no digest that would keep the journal from its own layout.
    fs::write(&meta, was).unwrap();
    assert_eq!(again(&root, &identity).unwrap().1.version(), 1);
}

/// Takes the digest of the layout away, as a release that noted none left it.
fn without_digest(folder: &Path) {
    let path = folder.join("replay/.tensorlane/set.json");
    let mut own: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    own["mutable"].as_object_mut().unwrap().remove("layout").unwrap();
    fs::write(&path, own.to_string()).unwrap();
}

/// Gives leaves of the set another type whose elements are as long; or their own one again.
fn change_types(folder: &Path, from: &str, to: &str) {
    let path = folder.join("replay/meta.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&path, text.replace(from, to)).unwrap();
}

#[test]
fn notes_of_rows_that_are_of_another_layout_of_equal_sizes_are_refused_with_both_and_stay() {
    let name = DirectoryName::new("replay").unwrap();
    for (durability, note, left) in [
        (Durability::Disk, "journal", (0, 1)),
        (Durability::Process, "intent-00", (2, 1)),
        (Durability::Process, "torn", (2, 0)),
    ] {
        let (folder, root, (files, commits, layout, identity)) = fresh(durability);
        match note {
            "journal" => write(&files, &Mutex::new(commits), &layout, 4, 9),
            "torn" => files.tear(0, &neighbours(1, 2), &wide(&layout)),
            _ => files.intend(0, &Intent::new(1, vec![0], &neighbours(1, 2))).unwrap(),
        }
        drop(files);
        let path = folder.path().join("replay/.tensorlane").join(note);
        let before = fs::read(&path).unwrap();
        change_types(folder.path(), "torch.uint8", "torch.int8");
        let there = Directory::read(&root, &name).unwrap().layout;
        let refused = again(&root, &identity).map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::UnsupportedFormat, "{note}: {refused}");
        for told in [keep::digest(&layout), keep::digest(&there), "meta.json".to_owned()] {
            assert!(refused.message.contains(&told), "{note}: {told} is not in {refused}");
        }
        assert_eq!(fs::read(&path).unwrap(), before, "{note}");
        change_types(folder.path(), "torch.int8", "torch.uint8");
        let (files, commits) = again(&root, &identity).unwrap();
        assert_eq!((files.torn_rows(), commits.version()), left, "{note}");
    }
}

#[test]
fn a_directory_without_notes_takes_another_layout_and_its_notes_are_of_that_one() {
    let (folder, root, (files, commits, layout, identity)) = fresh(Durability::Disk);
    // It is in the journal, which is emptied.
    write(&files, &Mutex::new(commits), &layout, 4, 9);
    files.flush().unwrap();
    drop(files);
    change_types(folder.path(), "torch.uint8", "torch.int8");
    let (files, commits) = again(&root, &identity).unwrap();
    write(&files, &Mutex::new(commits), &layout, 0, 7);
    drop(files);
    assert_eq!(again(&root, &identity).unwrap().1.version(), 2);
    let (files, commits) = again(&root, &identity).unwrap();
    write(&files, &Mutex::new(commits), &layout, 0, 8);
    drop(files);
    change_types(folder.path(), "torch.int8", "torch.uint8");
    assert_eq!(again(&root, &identity).map(drop).unwrap_err().reason, Reason::UnsupportedFormat);
}

#[test]
fn notes_of_a_release_without_digests_are_taken_and_later_ones_have_a_digest() {
    let (folder, root, (files, _, _, identity)) = fresh(Durability::Process);
    files.intend(0, &Intent::new(1, vec![0], &neighbours(1, 2))).unwrap();
    drop(files);
    without_digest(folder.path());
    assert_eq!(again(&root, &identity).unwrap().0.torn_rows(), 2);
    change_types(folder.path(), "torch.uint8", "torch.int8");
    assert_eq!(again(&root, &identity).map(drop).unwrap_err().reason, Reason::UnsupportedFormat);
}

#[test]
fn a_set_that_cannot_be_dropped_is_a_set_still_and_can_be_once_its_disk_lets_it() {
    let (folder, root, (files, commits, layout, _)) = fresh(Durability::Disk);
    write(&files, &Mutex::new(commits), &layout, 0, 1);
    let at = |name: &str| folder.path().join("replay").join(name);
    // What is committed cannot be brought to the disk, so that its journal must stay.
    fs::rename(at("wide.memmap"), at("elsewhere")).unwrap();
    root.descriptors.close(files.number);
    let refused = files.forget().unwrap_err();
    assert_eq!(refused.reason, Reason::StorageFailed, "{refused}");
    assert!(at(".tensorlane/journal").is_file() && at(".tensorlane/set.json").is_file());
    assert_eq!(files.check(), Ok(()));
    // The next life has all that it needs.
    drop(files);
    fs::rename(at("elsewhere"), at("wide.memmap")).unwrap();
    let name = DirectoryName::new("replay").unwrap();
    let found = Directory::read(&root, &name).unwrap();
    let identity = found.identity.clone().unwrap();
    let (files, commits, _) = found.adopt(&root, &identity).unwrap();
    assert_eq!(commits.version(), 1);
    files.forget().unwrap();
    assert!(!at(".tensorlane").exists());
    let twice = files.forget().unwrap_err();
    assert_eq!(twice.reason, Reason::NotFound, "{twice}");
}

#[test]
fn rows_that_are_torn_stay_so_when_their_set_is_dropped_and_opened_again() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let bytes = [0; 10];
    files.tear(0, &RowList::Round { first: 1, count: 2, of: ROWS }, &[(0, &layout.leaves()[0], &bytes)]);
    files.forget().unwrap();
    drop(files);
    let at = |name: &str| folder.path().join("replay/.tensorlane").join(name);
    assert!(at("torn").is_file() && !at("set.json").exists() && !at("commits").exists());
    // Another set of the same directory, and a copy of it, have them, too.
    let other = Identity { id: 8, durability: Durability::Disk, ..identity };
    let (files, commits) = again(&root, &other).unwrap();
    assert_eq!((files.torn_rows(), commits.version()), (2, 0));
    drop(files);
    fs::rename(folder.path().join("replay"), folder.path().join("copy")).unwrap();
    let found = Directory::read(&root, &DirectoryName::new("copy").unwrap()).unwrap();
    assert_eq!(found.identity, None);
    let (files, commits, layout) = found.adopt(&root, &Identity { id: 9, ..other }).unwrap();
    assert_eq!(files.torn_rows(), 2);
    // Written again they are whole, and nothing of the set is left behind it.
    write(&files, &Mutex::new(commits), &layout, 1, 5);
    assert_eq!(files.torn_rows(), 0);
    files.forget().unwrap();
    assert!(!folder.path().join("copy/.tensorlane").exists());
}

#[test]
fn terms_that_a_set_does_not_have_are_refused_with_both_and_none_are_any() {
    let directory = DirectoryName::new("replay").unwrap();
    let patterns = |list: &[&str]| list.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>();
    let there = patterns(&["a", "b-*"]);
    let check = |asked: Option<Durability>, writers: &[&str]| {
        check_terms(&directory, (Durability::Disk, &there[..]), (asked, &patterns(writers)[..]))
    };
    assert_eq!(check(None, &[]), Ok(()));
    assert_eq!(check(Some(Durability::Disk), &["b-*", "a"]), Ok(()));
    for (asked, writers, told) in [
        (Some(Durability::Process), &[][..], ["durability disk, not process", "drop it"]),
        (None, &["a"][..], [r#"writers ["a", "b-*"], not ["a"]"#, "drop it"]),
    ] {
        let refused = check(asked, writers).unwrap_err();
        assert_eq!(refused.reason, Reason::SetMismatch);
        assert!(told.iter().all(|part| refused.to_string().contains(part)), "{refused}");
    }
}

#[test]
fn a_slow_commit_leaves_the_record_of_a_later_one_that_has_its_place() {
    let (_folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let (rows, later) = (neighbours(0, 1), 1 + REPEATS_MAX as u64);
    assert_eq!(Record::offset(later), Record::offset(1));
    for version in [later, 1] {
        files.settle(0, &record(version), &rows, &wide(&layout)).unwrap();
    }
    drop(files);
    let (files, commits) = again(&root, &identity).unwrap();
    assert_eq!((commits.version(), commits.cursor()), (later, later % ROWS));
    let repeated = |version| commits.repeated(record(version).retry).map(|made| made.version);
    assert_eq!((repeated(later), repeated(1)), (Some(later), None));
    // A later one takes the place of an earlier one.
    let last = later + REPEATS_MAX as u64;
    files.settle(0, &record(last), &rows, &wide(&layout)).unwrap();
    drop(files);
    assert_eq!(again(&root, &identity).unwrap().1.version(), last);
}

#[test]
fn a_commit_of_no_rows_takes_no_intent_of_another_one_back() {
    let (_folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let (rows, none) = (neighbours(2, 2), neighbours(0, 0));
    files.intend(0, &Intent::new(1, vec![0], &rows)).unwrap();
    files.intend(0, &Intent::new(2, vec![0], &none)).unwrap();
    files.settle(0, &record(2), &none, &wide(&layout)).unwrap();
    files.tear(0, &none, &wide(&layout));
    assert_eq!(files.torn_rows(), 0);
    // The sidecar ends while the other one writes.
    assert_eq!(next_life(files, &root, &identity), (2, 2));
}

#[test]
fn a_commit_is_made_although_the_rows_that_it_mended_cannot_be_noted_and_the_next_one_notes_them() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let (rows, other) = (neighbours(1, 2), neighbours(5, 1));
    files.tear(0, &rows, &wide(&layout));
    assert_eq!(files.torn_rows(), 2);
    files.intend(0, &Intent::new(1, vec![0], &rows)).unwrap();
    // The note is written under this name first.
    let draft = folder.path().join("replay/.tensorlane/torn.new");
    fs::create_dir(&draft).unwrap();
    assert_eq!(files.settle(0, &record(1), &rows, &wide(&layout)), Ok(()));
    assert_eq!(files.check_torn(0, &layout.leaves()[0], 0, ROWS), Ok(()));
    fs::remove_dir(&draft).unwrap();
    files.intend(0, &Intent::new(2, vec![0], &other)).unwrap();
    files.settle(0, &record(2), &other, &wide(&layout)).unwrap();
    assert_eq!(next_life(files, &root, &identity), (0, 2));
}

#[test]
fn a_commit_is_made_although_its_intent_cannot_be_taken_back_and_the_next_one_takes_it_back() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let rows = neighbours(1, 2);
    files.intend(3, &Intent::new(1, vec![0], &rows)).unwrap();
    let intent = folder.path().join("replay/.tensorlane/intent-03");
    block(&root, &files, &intent);
    assert_eq!(files.settle(3, &record(1), &rows, &wide(&layout)), Ok(()));
    assert_eq!(files.torn_rows(), 0);
    unblock(&intent);
    assert!(Intent::decode(&fs::read(&intent).unwrap()).is_some());
    // The record that says that it was made is gone then, as its place is another one's.
    let later = 1 + REPEATS_MAX as u64;
    files.intend(0, &Intent::new(later, vec![0], &neighbours(5, 1))).unwrap();
    files.settle(0, &record(later), &neighbours(5, 1), &wide(&layout)).unwrap();
    assert_eq!(next_life(files, &root, &identity), (0, later));
}

#[test]
fn an_intent_that_is_left_makes_no_rows_torn_that_were_written_whole_under_another_lock() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let (rows, all) = (neighbours(3, 2), neighbours(0, ROWS));
    files.intend(3, &Intent::new(1, vec![0], &rows)).unwrap();
    let intent = folder.path().join("replay/.tensorlane/intent-03");
    block(&root, &files, &intent);
    // Its rows could not be written, and are noted as torn; the intent stays.
    files.tear(3, &rows, &wide(&layout));
    assert_eq!(files.torn_rows(), 2);
    unblock(&intent);
    files.intend(0, &Intent::new(2, vec![0], &all)).unwrap();
    files.settle(0, &record(2), &all, &wide(&layout)).unwrap();
    assert_eq!(files.torn_rows(), 0);
    assert_eq!(next_life(files, &root, &identity), (0, 2));
}

#[test]
fn a_leaf_that_cannot_be_written_is_named_and_its_rows_are_torn_until_they_are_written() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let (rows, leaf, bytes) = (neighbours(1, 2), &layout.leaves()[0], [7_u8; 10]);
    let parts = [(0, leaf, bytes.as_slice())];
    files.intend(0, &Intent::new(1, vec![0], &rows)).unwrap();
    let path = folder.path().join("replay/wide.memmap");
    block(&root, &files, &path);
    let failed = files.write(&rows, &parts).unwrap_err();
    assert_eq!((failed.reason, failed.detail("path")), (Reason::StorageFailed, Some("replay/wide.memmap")));
    files.tear(0, &rows, &parts);
    unblock(&path);
    assert_eq!(files.check_torn(0, leaf, 0, ROWS).unwrap_err().reason, Reason::TornRows);
    // It is known in the next life, too.
    drop(files);
    let (files, _) = again(&root, &identity).unwrap();
    assert_eq!(files.torn_rows(), 2);
    files.intend(0, &Intent::new(2, vec![0], &rows)).unwrap();
    files.write(&rows, &parts).unwrap();
    files.settle(0, &record(2), &rows, &parts).unwrap();
    assert_eq!(files.check_torn(0, leaf, 0, ROWS), Ok(()));
    assert_eq!(fs::read(&path).unwrap()[5..15], bytes);
}

#[test]
fn a_set_without_a_digest_is_opened_although_none_can_be_noted_and_one_of_another_layout_is_not() {
    let (folder, root, (files, _, _, identity)) = fresh(Durability::Process);
    files.intend(0, &Intent::new(1, vec![0], &neighbours(1, 2))).unwrap();
    drop(files);
    without_digest(folder.path());
    // The file is written under this name first.
    let draft = folder.path().join("replay/.tensorlane/set.json.new");
    fs::create_dir(&draft).unwrap();
    assert_eq!(again(&root, &identity).unwrap().0.torn_rows(), 2);
    let another = Identity { name: "another".to_owned(), ..identity.clone() };
    assert_eq!(again(&root, &another).map(drop).unwrap_err().reason, Reason::StorageFailed);
    fs::remove_dir(&draft).unwrap();
    drop(again(&root, &another).unwrap());
    let name = DirectoryName::new("replay").unwrap();
    assert_eq!(Directory::read(&root, &name).unwrap().identity, Some(another.clone()));
    // Notes of this life would be refused beside the digest of the layout before.
    fs::remove_file(folder.path().join("replay/.tensorlane/torn")).unwrap();
    change_types(folder.path(), "torch.uint8", "torch.int8");
    fs::create_dir(&draft).unwrap();
    assert_eq!(again(&root, &another).map(drop).unwrap_err().reason, Reason::StorageFailed);
}

#[test]
fn a_version_that_a_commit_had_which_was_cut_off_or_failed_is_no_other_ones_in_any_later_life() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::Process);
    let lives = |due: (u64, u64, u64)| {
        for life in 0..3 {
            let (files, commits) = again(&root, &identity).unwrap();
            assert_eq!((commits.version(), commits.cursor(), files.torn_rows()), due, "life {life}");
        }
    };
    // Its sidecar was killed, and its rows are the next ones again.
    let extension = RowList::Round { first: 4, count: 2, of: ROWS };
    files.intend(0, &Intent::new(1, vec![0], &extension)).unwrap();
    drop(files);
    lives((1, 4, 2));
    // Its rows could not be written.
    let (files, _) = again(&root, &identity).unwrap();
    files.intend(0, &Intent::new(2, vec![0], &neighbours(0, 1))).unwrap();
    files.tear(0, &neighbours(0, 1), &wide(&layout));
    files.note_failed(0, &Record { retry: None, ..record(2) });
    drop(files);
    lives((2, 2, 3));
    // Its intent stays, and says that its rows are torn, whatever is noted.
    let (files, _) = again(&root, &identity).unwrap();
    files.intend(0, &Intent::new(3, vec![0], &neighbours(1, 1))).unwrap();
    let intent = folder.path().join("replay/.tensorlane/intent-00");
    block(&root, &files, &intent);
    files.tear(0, &neighbours(1, 1), &wide(&layout));
    files.note_failed(0, &Record { retry: None, ..record(3) });
    drop(files);
    unblock(&intent);
    fs::remove_file(folder.path().join("replay/.tensorlane/torn")).unwrap();
    lives((3, 2, 1));
}

#[test]
fn a_set_of_the_durability_none_has_its_commits_again_and_knows_of_no_torn_rows() {
    let (folder, root, (files, _, layout, identity)) = fresh(Durability::None);
    let rows = neighbours(1, 2);
    files.intend(0, &Intent::new(1, vec![0], &rows)).unwrap();
    files.settle(0, &record(1), &rows, &wide(&layout)).unwrap();
    // The sidecar ends while it writes the next one.
    files.intend(0, &Intent::new(2, vec![0], &rows)).unwrap();
    drop(files);
    let at = |name: &str| folder.path().join("replay/.tensorlane").join(name);
    assert!(!at("intent-00").exists() && !at("journal").exists());
    let (files, commits) = again(&root, &identity).unwrap();
    assert_eq!((files.torn_rows(), commits.version(), commits.cursor()), (0, 1, record(1).cursor));
}

/// Files that a commit writes under the lowest lock.
const WRITTEN: [&str; 4] = [".tensorlane/intent-00", "wide.memmap", "thin.memmap", ".tensorlane/commits"];

/// Bytes of each of them.
type Written = [Vec<u8>; 4];

fn written(set: &Path) -> Written {
    WRITTEN.map(|name| fs::read(set.join(name)).unwrap_or_default())
}

fn restore(set: &Path, state: &Written) {
    WRITTEN.iter().zip(state).for_each(|(name, bytes)| fs::write(set.join(name), bytes).unwrap());
    let _ = fs::remove_file(set.join(".tensorlane/torn"));
}

/// States that a sidecar leaves which ends in the midst of writing a file: before each byte of it that changes.
fn ends(before: &Written, after: &Written, file: usize) -> Vec<Written> {
    let (old, new) = (&before[file], &after[file]);
    let differs = |at: &usize| old.get(*at) != new.get(*at);
    let (first, last) = ((0..new.len()).find(differs).unwrap(), (0..new.len()).rfind(differs).unwrap());
    let end = |cut: usize| {
        let mut state = before.clone();
        state[file] = [&new[..cut], old.get(cut..).unwrap_or_default()].concat();
        state
    };
    (first..=last).map(end).collect()
}

#[test]
fn a_sidecar_that_ends_at_any_of_a_thousand_points_of_commits_leaves_rows_whole_or_known_as_torn() {
    let (folder, root, (mut files, _, layout, identity)) = fresh(Durability::Process);
    let set = folder.path().join("replay");
    let mut points = 0;
    for version in 1_u64.. {
        if points >= 1_000 {
            break;
        }
        let touched = version % 4..version % 4 + 3;
        let rows = neighbours(touched.start, 3);
        let bytes = [version as u8; 15];
        let part =
            |(at, leaf): (usize, _)| (at, leaf, &bytes[..(3 * layout.leaves()[at].row_bytes) as usize]);
        let parts: Vec<NewBytes<'_>> = layout.leaves().iter().enumerate().map(part).collect();
        let before = written(&set);
        files.intend(0, &Intent::new(version, vec![0, 1], &rows)).unwrap();
        let intended = written(&set);
        files.write(&rows, &parts).unwrap();
        let changed = written(&set);
        files.settle(0, &record(version), &rows, &parts).unwrap();
        let settled = written(&set);
        drop(files);
        let (mut half, mut noted) = (intended.clone(), changed.clone());
        half[1].clone_from(&changed[1]);
        noted[3].clone_from(&settled[3]);
        let writes = [
            ends(&before, &intended, 0),
            ends(&intended, &changed, 1),
            ends(&half, &changed, 2),
            ends(&changed, &settled, 3),
            ends(&noted, &settled, 0),
        ];
        let mut seen = Vec::new();
        for state in writes.iter().flatten() {
            restore(&set, state);
            let (next, commits) = again(&root, &identity).unwrap();
            let (found, torn) = (written(&set), next.torn_rows());
            let known = match torn {
                0 if found[1..3] == before[1..3] => "old",
                0 if found[1..3] == settled[1..3] => "new",
                3 => "torn",
                _ => panic!("point {points}: {torn} rows are torn, and {:?} is neither", &found[1..3]),
            };
            for (at, leaf) in layout.leaves().iter().enumerate() {
                let is_torn = |row: u64| next.check_torn(at, leaf, row, 1).is_err();
                assert!(
                    (0..ROWS).all(|row| is_torn(row) == (torn > 0 && touched.contains(&row))),
                    "{points}"
                );
            }
            // No two lives give one version to two commits.
            assert_eq!(commits.version(), version - u64::from(known == "old"), "point {points}: {known}");
            seen.push(known);
            points += 1;
        }
        seen.dedup();
        assert_eq!(seen, ["old", "torn", "new"], "version {version}");
        restore(&set, &settled);
        files = again(&root, &identity).unwrap().0;
    }
}
