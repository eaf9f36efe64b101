//! The sidecar of a set on files is killed while it writes rows: nobody ever reads a mixed row, and torn ones are said.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tensorlane_client::set::mutable::{Durability, MutableSet, Place, SetFiles, SetSpec};
use tensorlane_proto::{DType, Reason, Selection};
use tensorlane_tests::{Sidecar, SidecarOptions, Workload, until};

const ROWS: u64 = 24;
/// Elements of a row: four rows are a band.
const WIDE: u64 = 200_000;
const KILLS: u64 = 30;
/// Kills at most, if none of the first ones hit a commit while its rows were written.
const KILLS_AT_MOST: u64 = 300;
const PATIENCE: Duration = Duration::from_secs(60);

/// Value of a row, proven to be one in both leaves; none where it is torn.
fn value(set: &MutableSet, row: u64) -> Option<u8> {
    match set.read(&[], &Selection::rows([row])) {
        Ok(read) => {
            let first = read.leaves[1].1.to_vec()[0];
            let is_whole = |bytes: Vec<u8>| bytes.iter().all(|byte| *byte == first);
            assert!(read.leaves.iter().all(|(_, tensor)| is_whole(tensor.to_vec())), "row {row} is mixed");
            Some(first)
        }
        Err(error) => {
            assert_eq!(error.reason(), Some(Reason::TornRows), "{error}");
            None
        }
    }
}

/// The value of all rows, proven to be one; none where some of them are torn.
fn whole(set: &MutableSet) -> Option<u8> {
    let values: Vec<Option<u8>> = (0..ROWS).map(|row| value(set, row)).collect();
    let first = *values.first()?;
    // All rows are written by every commit: they are torn together, or of one commit.
    assert!(values.iter().all(|value| *value == first), "{values:?}");
    first
}

/// Time until the next commit of a loop of them is made.
fn next_commit(set: &MutableSet) -> Duration {
    let (begun, version) = (Instant::now(), set.now().unwrap().version);
    while set.now().unwrap().version == version {
        assert!(begun.elapsed() < PATIENCE, "no commit after {version}");
    }
    begun.elapsed()
}

/// Waits within a commit of a loop of them, until another part of its time each time.
fn reach_point(set: &MutableSet, kill: u64) {
    next_commit(set);
    // As long as the one before took, whatever this machine does beside it.
    let point = next_commit(set) * u32::try_from(kill * 37 % 100).unwrap() / 100;
    let since = Instant::now();
    while since.elapsed() < point {
        std::hint::spin_loop();
    }
}

fn write(set: &MutableSet, rows: Selection, count: u64, value: u8) {
    let bytes = |of: u64| vec![value; usize::try_from(count * of).unwrap()];
    let (obs, done) = (bytes(WIDE), bytes(1));
    let leaves = BTreeMap::from([("obs", &obs[..]), ("done", &done[..])]);
    set.write(&Place::Rows(rows), count, &leaves, None).unwrap();
}

#[test]
fn rows_that_a_killed_sidecar_was_writing_are_torn_until_they_are_written_again_and_never_mixed() {
    let root = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::with(SidecarOptions::default().set("sets.root", root.path().display()));
    let spec = SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("done", DType::U8, &[1]);
    let files = SetFiles { directory: "replay".to_owned(), ..SetFiles::default() };
    let client = sidecar.client();
    let reference = client.create_set(&spec.files(&files)).unwrap().reference().to_owned();
    drop(client);
    let mut torn = 0;
    let mut kill = 0;
    while kill < KILLS || (torn == 0 && kill < KILLS_AT_MOST) {
        kill += 1;
        let before = {
            let client = sidecar.client();
            let set = client.open_mutable_set(&reference).unwrap();
            let before = set.info().version;
            let mut writer = Workload::start(&sidecar);
            writer.ask(&format!("commit-loop replay {kill}"), "looping");
            until("some commits are made", || set.now().unwrap().version > before + kill % 4);
            reach_point(&set, kill);
            sidecar.kill();
            writer.kill_alone();
            before
        };
        sidecar.start_again();
        let client = sidecar.client();
        let set = client.open_mutable_set("replay").unwrap();
        assert_eq!(set.reference(), reference);
        let info = set.now().unwrap();
        assert!(info.version > before, "{} after {before}", info.version);
        let seen = whole(&set);
        assert_eq!(info.torn_rows, if seen.is_none() { ROWS } else { 0 });
        if seen.is_some() {
            continue;
        }
        torn += 1;
        // One leaf alone does not mend a row, and a row does not mend its neighbours.
        let done = BTreeMap::from([("done", &[7u8][..])]);
        set.write(&Place::Rows(Selection::rows([3])), 1, &done, None).unwrap();
        assert_eq!(value(&set, 3), None);
        write(&set, Selection::rows([3]), 1, 7);
        assert_eq!((value(&set, 3), value(&set, 4)), (Some(7), None));
        assert_eq!(set.now().unwrap().torn_rows, ROWS - 1);
        if kill % 2 == 0 {
            // Known also to the life behind that.
            drop((client, set));
            sidecar.kill();
            sidecar.start_again();
        }
        let client = sidecar.client();
        let set = client.open_mutable_set("replay").unwrap();
        assert_eq!((value(&set, 3), value(&set, 4), set.info().torn_rows), (Some(7), None, ROWS - 1));
        write(&set, Selection::All, ROWS, 9);
        assert_eq!((whole(&set), set.now().unwrap().torn_rows), (Some(9), 0));
    }
    println!("{torn} of {kill} kills hit rows that were being written");
    assert!(torn > 0, "no kill hit a commit while it was applied");
}

#[test]
fn commits_to_a_journal_are_whole_after_any_kill_and_none_that_was_seen_is_lost() {
    let root = tempfile::tempdir().unwrap();
    // Two commits fit: the journal is emptied again and again.
    let options = SidecarOptions::default()
        .set("sets.root", root.path().display())
        .set("limits.setJournalBytes", "12Mi")
        .admin();
    let mut sidecar = Sidecar::with(options);
    let spec = SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("done", DType::U8, &[1]);
    let files = SetFiles {
        directory: "replay".to_owned(),
        durability: Some(Durability::Disk),
        ..SetFiles::default()
    };
    let client = sidecar.client();
    let reference = client.create_set(&spec.files(&files)).unwrap().reference().to_owned();
    drop(client);
    let journal = root.path().join("replay/.tensorlane/journal");
    let mut redone = 0;
    let mut kill = 0;
    while kill < KILLS || (redone == 0 && kill < KILLS_AT_MOST) {
        kill += 1;
        let seen = {
            let client = sidecar.client();
            let set = client.open_mutable_set(&reference).unwrap();
            let before = set.info().version;
            let mut writer = Workload::start(&sidecar);
            writer.ask(&format!("commit-loop replay {kill}"), "looping");
            until("some commits are made", || set.now().unwrap().version > before + kill % 4);
            reach_point(&set, kill);
            let seen = set.now().unwrap().version;
            sidecar.kill();
            writer.kill_alone();
            seen
        };
        assert!(std::fs::metadata(&journal).unwrap().len() <= 12 << 20);
        redone += u64::from(std::fs::read(&journal).unwrap().iter().take(8).any(|byte| *byte != 0));
        sidecar.start_again();
        let client = sidecar.client();
        let set = client.open_mutable_set(&reference).unwrap();
        let info = set.now().unwrap();
        assert!(info.version >= seen, "{} after {seen}", info.version);
        assert_eq!((info.torn_rows, whole(&set).is_some()), (0, true));
    }
    println!("{redone} of {kill} kills left commits in the journal");
    assert!(redone > 0, "no kill left a commit in the journal");
    let client = sidecar.client();
    let set = client.open_mutable_set("replay").unwrap();
    let too_large = SetSpec::new("large", 100).leaf("x", DType::U8, &[1 << 20]);
    let files = SetFiles { directory: "large".to_owned(), ..files };
    let large = client.create_set(&too_large.files(&files)).unwrap();
    let bytes = vec![1; 13 << 20];
    let leaves = BTreeMap::from([("x", &bytes[..])]);
    let refused = large
        .write(&Place::Rows(Selection::rows((0..13).collect::<Vec<u64>>())), 13, &leaves, None)
        .unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::TooLarge));
    assert!(refused.to_string().contains("limits.setJournalBytes"), "{refused}");
    let before = whole(&set);
    set.flush().unwrap();
    client.drop_set("replay").unwrap();
    assert!(!journal.exists(), "what was dropped is a plain directory");
    let opening = SetFiles { directory: "replay".to_owned(), open: true, ..SetFiles::default() };
    let set = client.create_set(&SetSpec::new("", 0).files(&opening)).unwrap();
    assert_eq!(whole(&set), before);
}
