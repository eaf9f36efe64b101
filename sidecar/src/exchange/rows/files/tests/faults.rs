//! Disks that fail in the midst of a commit.

use std::fs::File;

use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::{SetId, SetReference};

use super::super::descriptors::Which;
use super::*;
use crate::exchange::alone::{allocate, alone};
use crate::exchange::rows::memory::{MutableSet, NewRows};

/// Leaf that has a byte for each row.
const THIN: usize = 1;

/// Has the kernel answer each read and write of a file of a set with EIO: nobody maps the first page of a process.
fn fail(root: &Root, files: &FileSet, which: Which) {
    root.descriptors.close(files.number);
    let broken = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    root.descriptors.get((files.number, which), || Ok(broken)).unwrap();
}

#[test]
fn a_disk_that_fails_refuses_a_commit_before_its_rows_change_or_leaves_them_torn_and_named() {
    let (_folder, root, (files, commits, layout, _)) = fresh(Durability::Process);
    let (exchange, workers, _) = alone();
    let me = exchange.me();
    let reference =
        SetReference { exchange: me.exchange.clone(), peer: me.peer.clone(), id: SetId::Files(7) };
    let name = TensorName::new("replay").unwrap();
    let set = MutableSet::on_files(reference, name, Vec::new(), layout, (files, commits));
    let files = set.files.as_ref().unwrap();
    let commit = |value: u8| {
        let new = allocate(&exchange, 2, MINUTE).unwrap();
        new.landing().unwrap().write(0, &[value; 2]).unwrap();
        new.mark_sealed().unwrap();
        let (parts, terms) = ([NewRows { leaf: THIN, block: &new }], Terms { expects: None, retry: None });
        let until = (Instant::now() + MINUTE, &Cancel::default());
        set.apply(&neighbours(1, 2), &parts, terms, Vec::new(), until).map(|made| made.version)
    };
    let read = |rows: &RowList| {
        let mut to = [allocate(&exchange, rows.len(), MINUTE).unwrap().landing().unwrap()];
        let until = (Instant::now() + MINUTE, &Cancel::default());
        set.gather(rows, &[THIN], &mut to, until).map(|_| to[0].chunk(0..rows.len()).unwrap().to_vec())
    };
    let all = neighbours(0, ROWS);
    assert_eq!(commit(3), Ok(1));

    fail(&root, files, Which::Intent(0));
    let refused = commit(4).unwrap_err();
    assert_eq!(refused.reason, Reason::StorageFailed);
    for part in ["cannot write replay/.tensorlane/intent-00", "Input/output error", "look at that disk"] {
        assert!(refused.message.contains(part), "{part} is not in {refused}");
    }
    assert_eq!((set.info().version, read(&all)), (1, Ok(vec![0, 3, 3, 0, 0, 0])));

    // Its rows are written then, and nobody would know the commit in the next life.
    fail(&root, files, Which::Commits);
    let refused = commit(5).unwrap_err();
    assert_eq!(
        (refused.reason, refused.detail("path")),
        (Reason::StorageFailed, Some("replay/.tensorlane/commits"))
    );
    assert!(refused.message.contains("Input/output error"), "{refused}");
    let torn = read(&all).unwrap_err();
    assert_eq!(
        (torn.reason, torn.detail("first"), torn.detail("last")),
        (Reason::TornRows, Some("1"), Some("2"))
    );
    assert_eq!(read(&neighbours(3, 2)), Ok(vec![0, 0]), "other rows are read");

    // The disk is well again.
    root.descriptors.close(files.number);
    assert_eq!(commit(6), Ok(3));
    assert_eq!((set.info().torn_rows, read(&all)), (0, Ok(vec![0, 6, 6, 0, 0, 0])));
    workers.stop();
}
