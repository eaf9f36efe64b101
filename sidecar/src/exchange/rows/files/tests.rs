//! Sets on real files whose commits survive a loss of power: what a journal is worth that the next life finds.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_proto::DType;
use tensorlane_proto::failure::Reason;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::rows::{Commits, RowList, SetLayout};

use super::*;
use crate::exchange::rows::memory::Terms;

const ROWS: u64 = 6;

fn opened(folder: &Path) -> Arc<Root> {
    Arc::new(Root::open(folder, RootLimits { files: 8, journal_bytes: 64 << 10 }).unwrap())
}

fn made(root: &Arc<Root>, durability: Durability) -> (FileSet, Commits, SetLayout, Identity) {
    let leaf = |key: &str, row_shape: &[u64]| v1::SetLeaf {
        key: key.to_owned(),
        dtype: DType::U8.code().into(),
        row_shape: row_shape.to_vec(),
    };
    let layout = SetLayout::new(&[leaf("wide", &[5]), leaf("thin", &[])], ROWS).unwrap();
    let identity = Identity { id: 7, name: "replay".to_owned(), writers: Vec::new(), durability };
    let name = DirectoryName::new("replay").unwrap();
    root.create(&name, &layout, &identity).unwrap();
    let (files, commits, layout) = Directory::read(root, &name).unwrap().adopt(root, &identity).unwrap();
    (files, commits, layout, identity)
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
    files.commit(commits, 0, &rows, &parts, terms).unwrap().unwrap();
}

#[test]
fn a_journal_that_is_cut_at_any_byte_is_done_again_up_to_its_last_whole_commit() {
    let folder = tempfile::tempdir().unwrap();
    let root = opened(folder.path());
    let (files, commits, layout, identity) = made(&root, Durability::Disk);
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
    let folder = tempfile::tempdir().unwrap();
    let root = opened(folder.path());
    let (files, commits, layout, identity) = made(&root, Durability::Disk);
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
    let folder = tempfile::tempdir().unwrap();
    let root = opened(folder.path());
    let (files, commits, layout, identity) = made(&root, Durability::Disk);
    write(&files, &Mutex::new(commits), &layout, 4, 9);
    drop(files);
    let meta = folder.path().join("replay/meta.json");
    let text = fs::read_to_string(&meta).unwrap().replace("[6", "[5");
    fs::write(&meta, text).unwrap();
    let refused = again(&root, &identity).map(drop).unwrap_err();
    assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    let journal = fs::read(folder.path().join("replay/.tensorlane/journal")).unwrap();
    assert!(journal.iter().any(|byte| *byte != 0));
}

#[test]
fn a_set_that_cannot_be_dropped_is_a_set_still_and_can_be_once_its_disk_lets_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = opened(folder.path());
    let (files, commits, layout, _) = made(&root, Durability::Disk);
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
