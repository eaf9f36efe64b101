//! Processes that write a mutable set are killed while they commit, and so is its sidecar: readers see whole versions only, and nothing
//! is left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tensorlane_client::set::PublishOptions;
use tensorlane_client::set::mutable::{MutableSet, Rows, SetSpec};
use tensorlane_client::{AcquireOptions, PutOptions};
use tensorlane_proto::set::{Node, Tree};
use tensorlane_proto::{DType, Reason, Reference, Selection};
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::{Sidecar, Workload, reason, until};

const ROWS: u64 = 24;
/// Elements of a row: four rows are a band.
const WIDE: u64 = 200_000;
const KILLS: u64 = 30;

fn spec() -> SetSpec {
    SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("done", DType::U8, &[1])
}

/// The value that every byte of rows has, proven to be one.
fn value_of(read: &Rows) -> u8 {
    let first = read.leaves[1].1.to_vec()[0];
    for (key, tensor) in &read.leaves {
        let bytes = tensor.to_vec();
        assert!(bytes.iter().all(|byte| *byte == first), "{key}: half of version {}", read.version);
    }
    first
}

/// The value of all rows, and the version.
fn value(set: &MutableSet) -> (u8, u64) {
    let read = set.read(&[], &Selection::All).unwrap();
    (value_of(&read), read.version)
}

#[test]
fn writers_that_are_killed_while_they_commit_leave_whole_versions_and_nothing_else() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let set = client.create_set(&spec()).unwrap();
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

#[test]
fn rows_in_memory_are_whole_until_their_sidecar_is_killed_while_it_writes_and_are_lost_then() {
    let mut sidecar = Sidecar::start();
    for kill in 0..KILLS {
        let client = sidecar.client();
        let set = client.create_set(&spec()).unwrap();
        let mut writer = Workload::start(&sidecar);
        writer.ask(&format!("commit-loop replay {kill}"), "looping");
        until("some commits are made", || value(&set).1 > kill % 5);
        let reads = AtomicU64::new(0);
        let last = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut last = None;
                // More than there are until the sidecar ends: one that goes on would keep a test that fails from its end.
                for _ in 0..10_000 {
                    let Ok(read) = set.read(&[], &Selection::All) else { break };
                    value_of(&read);
                    last = Some(read);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                last
            });
            until("a reader is beside the writer", || {
                reads.load(Ordering::Relaxed) > 0 || reader.is_finished()
            });
            sidecar.kill();
            writer.kill_alone();
            sidecar.start_again();
            reader.join().unwrap()
        });
        let last = last.expect("some rows were read");
        assert!(last.version > kill % 5);
        // What was read stays, and nothing else does.
        value_of(&last);
        let client = sidecar.client();
        assert_eq!(reason(client.open_mutable_set(set.reference())), Reason::OwnerLost);
        assert_eq!(reason(client.open_mutable_set("replay")), Reason::NotFound);
    }
}

/// A set of these tensors.
fn tree(leaves: &[Reference]) -> Tree<Reference> {
    let leaf = |(at, leaf): (usize, &Reference)| (at.to_string(), Node::Tensor(leaf.clone()));
    Tree { entries: leaves.iter().enumerate().map(leaf).collect(), ..Tree::default() }
}

#[test]
fn a_writer_that_is_killed_between_its_tensors_and_their_manifest_publishes_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let first = put_pattern(&client, 1, 100_000, &PutOptions::new()).unwrap();
    client.publish_set("policy", &tree(&[first.reference().clone()]), &PublishOptions::default()).unwrap();
    drop(first);
    let mut writer = Workload::start(&sidecar);
    let mut store =
        |seed: u64| -> Reference { writer.ask(&format!("store 100000 {seed}"), "stored").parse().unwrap() };
    let leaves = [2, 3, 4].map(&mut store);
    writer.kill_alone();
    until("what it put is gone", || {
        client.flush().unwrap();
        client.status().unwrap().tensors == 2
    });
    let late = client.publish_set("policy", &tree(&leaves), &PublishOptions::default());
    assert_eq!(reason(late), Reason::NotFound);
    let set = client.get_set("policy", &AcquireOptions::new()).unwrap();
    let tensors = set.tree.tensors();
    assert_eq!((set.version, tensors.len(), is_intact(tensors[0].1)), (1, 1, true));
}
