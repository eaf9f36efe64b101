//! Mutable sets of one sidecar that are waited for, and what they hold at one moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensorlane_client::set::Set;
use tensorlane_client::set::mutable::{MutableSet, Place, SetFiles, SetSpec};
use tensorlane_client::set::snapshot::{Snapshot, SnapshotOptions};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Tensor};
use tensorlane_proto::set::Node;
use tensorlane_proto::{DType, Range, Reason, Selection};
use tensorlane_tests::tensors::put_pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, failure, failure_in_time, reason, until};

const MINUTE: Duration = Duration::from_secs(60);
/// More than sixteen bands, and more bytes than are read under locks.
const ROWS: u64 = 2_000;
const WIDE: u64 = 10_000;

fn spec() -> SetSpec {
    SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("next/reward", DType::U32, &[])
}

fn rows(list: &[u64]) -> Selection {
    Selection::rows(list.to_vec())
}

/// New rows of both leaves, all of one value.
fn write(set: &MutableSet, list: &[u64], value: u8) {
    let obs = vec![value; list.len() * usize::try_from(WIDE).unwrap()];
    let reward = u32::from(value).to_le_bytes().repeat(list.len());
    let leaves = BTreeMap::from([("obs", &obs[..]), ("next/reward", &reward[..])]);
    set.write(&Place::Rows(rows(list)), list.len() as u64, &leaves, None).unwrap();
}

/// The value of a row, proven to be the same in all bytes of both leaves.
fn value(set: &Set, row: u64) -> u8 {
    let tensor = |path: &[&str]| match set.tree.find(path) {
        Some(Node::Tensor(tensor)) => tensor,
        other => panic!("{path:?} is {other:?}"),
    };
    of_row(tensor(&["obs"]), tensor(&["next", "reward"]), row)
}

fn of_row(obs: &Tensor, reward: &Tensor, row: u64) -> u8 {
    let part = |tensor: &Tensor, bytes: u64| {
        let mut part = vec![0; usize::try_from(bytes).unwrap()];
        tensor.view().unwrap().copy_range_to(row * bytes, &mut part).unwrap();
        part
    };
    let (obs, reward) = (part(obs, WIDE), part(reward, 4));
    assert!(obs.iter().all(|byte| *byte == obs[0]), "half a row");
    assert_eq!(reward, u32::from(obs[0]).to_le_bytes(), "a commit in one leaf alone");
    obs[0]
}

fn keeping(keep: u32) -> SnapshotOptions {
    SnapshotOptions { keep, ..SnapshotOptions::default() }
}

fn got(client: &Client, snapshot: &Snapshot) -> Set {
    client.get_set(&snapshot.reference, &AcquireOptions::new()).unwrap()
}

#[test]
fn a_set_that_is_waited_for_is_opened_when_it_is_made_and_each_wait_ends_in_time() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let waiting = || sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""]);
    std::thread::scope(|scope| {
        let wait = || {
            let client = sidecar.client();
            scope.spawn(move || client.wait_for_mutable_set("replay", MINUTE).unwrap().reference().to_owned())
        };
        let waiters = [wait(), wait(), wait()];
        until("all of them wait", || waiting() >= 3.0);
        let client = sidecar.client();
        let set = client.create_set(&spec()).unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), set.reference());
        }
    });
    let client = sidecar.client();
    assert_eq!(client.wait_for_mutable_set("replay", MINUTE).unwrap().rows(), ROWS, "it is there already");
    let late = failure(client.wait_for_mutable_set("other", Duration::from_millis(50)));
    assert_eq!((late.reason, late.detail("waited_ms")), (Reason::NotFound, Some("50")));
    client.drop_set("replay").unwrap();
    until("nobody waits any more", || waiting() < 1.0);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_snapshot_is_a_sealed_set_that_later_commits_do_not_change() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let set = client.create_set(&spec()).unwrap();
    write(&set, &[0, 999, 1_999], 7);
    let first = set.snapshot(&keeping(2)).unwrap();
    assert_eq!((first.name.as_str(), first.version, first.set_version), ("replay", 1, 1));
    write(&set, &[0, 1_000], 9);
    let named = set.snapshot(&SnapshotOptions { name: Some("other".to_owned()), ..keeping(1) }).unwrap();
    assert_eq!((named.version, named.set_version), (1, 2));
    let second = set.snapshot(&keeping(2)).unwrap();
    assert_eq!((second.version, second.set_version), (2, 2));
    let values = |set: &Set| [0, 1, 999, 1_000, 1_999].map(|row| value(set, row));
    assert_eq!(values(&got(&client, &first)), [7, 0, 7, 0, 7]);
    assert_eq!(values(&client.get_set("replay", &AcquireOptions::new()).unwrap()), [9, 0, 7, 9, 7]);
    let other = client.get_set("other@1", &AcquireOptions::new()).unwrap();
    assert_eq!((values(&other), other.tree.batch.clone()), ([9, 0, 7, 9, 7], vec![ROWS]));
    drop(other);
    client.drop_set("replay").unwrap();
    assert_eq!(values(&got(&client, &second)), [9, 0, 7, 9, 7], "it outlives the set");
    for name in ["replay", "replay@1", "replay@2", "other", "other@1"] {
        assert!(client.unname(&[name]).unwrap().remove(0).is_ok(), "{name}");
    }
    drop((client, set));
    sidecar.assert_all_free();
}

#[test]
fn snapshots_and_reads_of_all_rows_beside_writers_have_all_of_each_commit_or_nothing_of_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let set = client.create_set(&spec()).unwrap();
    // Rows of bands far from one another, written together.
    let together = [0, 700, 1_300, 1_999];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = [1_u8, 2, 3]
            .into_iter()
            .map(|value| {
                let set = sidecar.client().open_mutable_set("replay").unwrap();
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Ordering::Acquire) {
                        write(&set, &together, value);
                    }
                })
            })
            .collect();
        let mut seen = 0;
        for _ in 0..10 {
            let snapshot = set.snapshot(&keeping(1)).unwrap();
            assert!(snapshot.set_version >= seen, "time goes on");
            seen = snapshot.set_version;
            let sealed = got(&client, &snapshot);
            let values = together.map(|row| value(&sealed, row));
            assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            drop(sealed);
            let everything = [Range::FULL, Range::new(0, ROWS)].map(|range| Selection::Ranges(vec![range]));
            for all in [vec![Selection::All], everything.to_vec()].concat() {
                let read = set.read(&[], &all).unwrap();
                let values = together.map(|row| of_row(&read.leaves[0].1, &read.leaves[1].1, row));
                assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            }
            // All of them but the first, whose neighbours are a snapshot, too.
            let read = set.read(&[], &Selection::Ranges(vec![Range::new(1, ROWS)])).unwrap();
            let values = [699, 1_299, 1_998].map(|row| of_row(&read.leaves[0].1, &read.leaves[1].1, row));
            assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        }
        done.store(true, Ordering::Release);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

#[test]
fn snapshots_that_are_refused_leave_nothing() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("arena.size", "64Mi"));
    let client = sidecar.client();
    let set = client.create_set(&spec()).unwrap();
    let taken = put_pattern(&client, 1, 64, &PutOptions::named("weights")).unwrap();
    let named = |name: &str| SnapshotOptions { name: Some(name.to_owned()), ..keeping(1) };
    assert_eq!(reason(set.snapshot(&named("weights"))), Reason::NameTaken);
    assert_eq!(reason(set.snapshot(&named("policy@3"))), Reason::InvalidArgument);
    let wide = client.create_set(&SetSpec::new("wide", 4_000).leaf("obs", DType::U8, &[WIDE])).unwrap();
    assert_eq!(reason(wide.snapshot(&keeping(1))), Reason::TooLarge, "more than half of the arena");
    let flat = SetSpec::new("flat", 4).leaf("a", DType::U8, &[]).leaf("a/b", DType::U8, &[]);
    let flat = client.create_set(&flat).unwrap();
    assert_eq!(reason(flat.snapshot(&keeping(1))), Reason::InvalidArgument, "a leaf below a leaf");
    let held = [24, 16].map(|mib| put_pattern(&client, mib, mib << 20, &PutOptions::new()).unwrap());
    let brief = SnapshotOptions { deadline: Some(Duration::from_millis(200)), ..keeping(1) };
    assert_eq!(failure_in_time(|| set.snapshot(&brief)).reason, Reason::ArenaFull);
    assert!(client.list("").all(|listed| listed.unwrap().name == "weights"), "nothing was published");
    drop(held);
    assert_eq!(set.snapshot(&keeping(1)).unwrap().version, 1, "there is room again");
    for name in ["replay", "replay@1", "weights"] {
        assert!(client.unname(&[name]).unwrap().remove(0).is_ok(), "{name}");
    }
    for name in ["replay", "wide", "flat"] {
        client.drop_set(name).unwrap();
    }
    drop((client, set, wide, flat, taken));
    sidecar.assert_all_free();
}

#[test]
fn a_snapshot_of_a_set_on_files_has_its_rows_and_is_counted() {
    let root = tempfile::tempdir().unwrap();
    let options = SidecarOptions::default().admin().set("sets.root", root.path().display());
    let sidecar = Sidecar::with(options);
    let client = sidecar.client();
    let files = SetFiles { directory: "replay".to_owned(), ..SetFiles::default() };
    let set = client.create_set(&spec().files(&files)).unwrap();
    write(&set, &[3, 1_999], 5);
    let snapshot = set.snapshot(&keeping(1)).unwrap();
    write(&set, &[3], 6);
    assert_eq!([2, 3, 1_999].map(|row| value(&got(&client, &snapshot), row)), [0, 5, 5]);
    for (name, count) in [
        ("set_live_sets", 1.0),
        ("set_commits_total", 2.0),
        ("set_rows_written_total", 3.0),
        ("set_snapshots_total", 1.0),
    ] {
        assert_eq!(sidecar.metric(&format!("tensorlane_{name}"), &[]), count, "{name}");
    }
}
