//! The sidecar of a set on files is killed while it writes rows: nobody ever reads a mixed row, and torn ones are said.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tensorlane_client::set::mutable::{MutableSet, Place, SetFiles, SetSpec};
use tensorlane_proto::{DType, Reason, Selection};
use tensorlane_tests::{Sidecar, SidecarOptions, Workload, until};

const ROWS: u64 = 24;
/// Elements of a row: four rows are a band.
const WIDE: u64 = 200_000;
const KILLS: u64 = 30;

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
    for kill in 1..=KILLS {
        let before = {
            let client = sidecar.client();
            let set = client.open_mutable_set(&reference).unwrap();
            let before = set.info().version;
            let mut writer = Workload::start(&sidecar);
            writer.ask(&format!("commit-loop replay {kill}"), "looping");
            until("some commits are made", || set.now().unwrap().version > before + kill % 4);
            // At another point of a commit each time: it takes some milliseconds.
            let point = Duration::from_micros(kill * 977 % 9_000);
            let since = Instant::now();
            while since.elapsed() < point {
                std::hint::spin_loop();
            }
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
    println!("{torn} of {KILLS} kills hit rows that were being written");
    assert!(torn > 0, "no kill hit a commit while it was applied");
}
