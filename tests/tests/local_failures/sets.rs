//! Processes that write a mutable set are killed while they commit: readers see whole versions only, and nothing is left.

use tensorlane_client::set::mutable::{MutableSet, SetSpec};
use tensorlane_proto::{DType, Selection};
use tensorlane_tests::{Sidecar, Workload, until};

const ROWS: u64 = 24;
/// Elements of a row: four rows are a band.
const WIDE: u64 = 200_000;
const KILLS: u64 = 30;

/// The value that every byte of every row has, proven to be one, and the version.
fn value(set: &MutableSet) -> (u8, u64) {
    let read = set.read(&[], &Selection::All).unwrap();
    let first = read.leaves[1].1.to_vec()[0];
    for (key, tensor) in &read.leaves {
        let bytes = tensor.to_vec();
        assert!(bytes.iter().all(|byte| *byte == first), "{key}: half of version {}", read.version);
    }
    (first, read.version)
}

#[test]
fn writers_that_are_killed_while_they_commit_leave_whole_versions_and_nothing_else() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let spec = SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("done", DType::U8, &[1]);
    let set = client.create_set(&spec).unwrap();
    // One that lives makes all bands, so that there is a level to come back to.
    let mut first = Workload::start(&sidecar);
    first.ask("commit-loop replay 0", "looping");
    first.expect("round 10");
    first.kill();
    let level = || {
        client.flush().unwrap();
        let status = client.status().unwrap();
        let arena = status.arena.unwrap();
        ((status.tensors, arena.retired), arena.reserved + arena.sealed + arena.retired)
    };
    // Memory goes a moment after its tensor.
    until("what the first one staged is gone", || level().0 == (0, 0));
    let (_, taken) = level();
    let mut version = value(&set).1;
    for kill in 1..=KILLS {
        let mut writers = [kill, kill + 100].map(|seed| {
            let mut writer = Workload::start(&sidecar);
            writer.ask(&format!("commit-loop replay {seed}"), "looping");
            writer
        });
        // In the midst of it, at another point each time.
        until("more commits are made", || value(&set).1 > version + kill % 5);
        let [one, other] = &mut writers;
        one.kill_alone();
        other.expect("round 10");
        other.kill_alone();
        let (seen, now) = value(&set);
        assert!(seen > 0 && now > version);
        version = now;
    }
    until("what they staged is gone", || level() == ((0, 0), taken));
    let info = set.now().unwrap();
    assert!(info.held_bytes >= info.bytes && info.version >= version);
    // It is as usable as before.
    let mut last = Workload::start(&sidecar);
    last.ask("commit-loop replay 7", "looping");
    last.expect("round 10");
    last.kill();
    assert!(value(&set).1 >= info.version + 10);
    client.drop_set("replay").unwrap();
    drop((client, set));
    sidecar.assert_all_free();
}
