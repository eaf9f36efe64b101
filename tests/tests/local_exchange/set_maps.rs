//! Maps of rows: nothing is copied, commits to the rows wait, and what cannot be mapped is a copy.

use std::collections::BTreeMap;
use std::time::Duration;

use tensorlane_client::set::mutable::{MutableSet, Place, Rows, SetFiles, SetSpec};
use tensorlane_client::set::snapshot::SnapshotOptions;
use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Range, Reason, Selection};
use tensorlane_tests::set_streams::{self, commit, head, leaf};
use tensorlane_tests::streams::Grpc;
use tensorlane_tests::{Sidecar, SidecarOptions, failure_in_time, reason, until};

const ROWS: u64 = 200;
/// Elements of a row of the first leaf: 32 rows are a band.
const WIDE: u64 = 30_000;
/// Time after which a commit to mapped rows gives up.
const SHORT: Duration = Duration::from_millis(300);

fn spec() -> SetSpec {
    SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("next/reward", DType::U32, &[])
}

fn made(sidecar: &Sidecar) -> (Client, MutableSet) {
    let client = sidecar.client();
    let set = client.create_set(&spec().contiguous()).unwrap();
    (client, set)
}

fn range(first: u64, stop: u64) -> Selection {
    Selection::Ranges(vec![Range::new(first, stop)])
}

/// New rows of both leaves, all of one value.
fn write(set: &MutableSet, rows: &Selection, count: u64, value: u8) -> tensorlane_client::Result<u64> {
    let obs = vec![value; usize::try_from(count * WIDE).unwrap()];
    let reward = u32::from(value).to_le_bytes().repeat(usize::try_from(count).unwrap());
    let leaves = BTreeMap::from([("obs", &obs[..]), ("next/reward", &reward[..])]);
    set.write(&Place::Rows(rows.clone()), count, &leaves, None).map(|committed| committed.version)
}

/// The value of each row, proven to be the same in all bytes of both leaves.
fn values(rows: &Rows) -> Vec<u8> {
    let (obs, reward) = (rows.leaves[0].1.to_vec(), rows.leaves[1].1.to_vec());
    let one = |(obs, reward): (&[u8], &[u8])| {
        assert!(obs.iter().all(|byte| *byte == obs[0]), "half a row");
        assert_eq!(reward, u32::from(obs[0]).to_le_bytes(), "a commit in one leaf alone");
        obs[0]
    };
    obs.chunks(usize::try_from(WIDE).unwrap()).zip(reward.chunks(4)).map(one).collect()
}

/// Bytes of the arena that are in use.
fn used(client: &Client) -> u64 {
    client.flush().unwrap();
    let arena = client.status().unwrap().arena.unwrap();
    arena.reserved + arena.sealed + arena.retired
}

#[test]
fn rows_are_mapped_where_they_lie_and_take_no_memory() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    let info = set.now().unwrap();
    assert!(info.spec.unwrap().contiguous && info.held_bytes == info.bytes, "its room is taken");
    let before = used(&client);
    assert_eq!(write(&set, &range(30, 70), 40, 7).unwrap(), 1);
    until("what was staged is gone", || used(&client) == before);
    let rows = set.map(&[], &range(31, 71)).unwrap();
    let same = sidecar.client().open_mutable_set("replay").unwrap().map(&[], &range(31, 71)).unwrap();
    assert!(rows.is_mapped() && same.is_mapped());
    assert_eq!(used(&client), before, "no byte is copied");
    let mut wanted = vec![7; 39];
    wanted.push(0);
    assert_eq!((rows.version, values(&rows), values(&same)), (1, wanted.clone(), wanted.clone()));
    let everything = set.map(&["obs"], &Selection::All).unwrap();
    assert!(everything.is_mapped() && everything.leaves.len() == 1);
    assert_eq!(used(&client), before);
    assert_eq!(values(&set.read(&[], &range(31, 71)).unwrap()), wanted, "they are read beside it");
    let snapshot = set.snapshot(&SnapshotOptions::default()).unwrap();
    assert_eq!(snapshot.set_version, 1);
}

#[test]
fn a_commit_to_mapped_rows_waits_and_names_their_holder_and_others_go_on() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    write(&set, &range(0, 100), 100, 1).unwrap();
    let other = sidecar.client().open_mutable_set("replay").unwrap();
    // For what is refused alone: what succeeds may take longer on a busy machine.
    let hasty = sidecar.client().with_deadline(SHORT).mutable_set(set.info());
    let rows = set.map(&["obs"], &range(10, 20)).unwrap();
    let refused = failure_in_time(|| write(&hasty, &Selection::rows([5, 19]), 2, 9));
    assert_eq!(refused.reason, Reason::DeadlineExceeded);
    assert!(refused.message.starts_with("rows 10 to 19 have been mapped by session "), "{refused}");
    assert!(refused.message.contains(&format!("process {}", std::process::id())), "{refused}");
    assert!(refused.detail("holder").is_some() && refused.detail("held_ms").is_some(), "{refused}");
    assert_eq!(values(&set.read(&[], &Selection::rows([5, 19])).unwrap()), [1, 1], "none of it was written");
    // Beside the rows, in the same band; and another leaf of the same rows.
    assert_eq!(write(&other, &Selection::rows([9, 20]), 2, 2).unwrap(), 2);
    let reward = 1_u32.to_le_bytes();
    let leaves = BTreeMap::from([("next/reward", &reward[..])]);
    other.write(&Place::Rows(range(15, 16)), 1, &leaves, None).unwrap();
    assert!(rows.leaves[0].1.to_vec().iter().all(|byte| *byte == 1), "the map is what it was");
    let obs = vec![5; 15 * 30_000];
    let obs = BTreeMap::from([("obs", &obs[..])]);
    let refused = failure_in_time(|| hasty.write(&Place::Extend, 15, &obs, None));
    assert_eq!(refused.reason, Reason::DeadlineExceeded, "an extension waits, too");
    drop(rows);
    assert_eq!(write(&set, &range(10, 20), 10, 4).unwrap(), 4);
    let extended = set.write(&Place::Extend, 15, &obs, None).unwrap();
    assert_eq!((extended.first, extended.version), (0, 5), "the rows of the one that failed are given back");
}

#[test]
fn a_map_beside_a_commit_that_waits_is_a_copy_and_the_commit_goes_on_when_the_rows_are_released() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    write(&set, &range(0, 40), 40, 1).unwrap();
    let rows = set.map(&[], &range(0, 40)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&set, &range(20, 60), 40, 2));
        until("the commit waits", || !set.map(&[], &range(30, 50)).unwrap().is_mapped());
        let copy = set.map(&[], &range(0, 60)).unwrap();
        assert!(!copy.is_mapped());
        assert_eq!(values(&copy), [vec![1; 40], vec![0; 20]].concat());
        assert!(set.map(&[], &range(0, 20)).unwrap().is_mapped(), "it waits for other rows");
        assert_eq!(values(&rows), [1; 40]);
        drop(rows);
        assert_eq!(writer.join().unwrap().unwrap(), 2);
    });
    let rows = set.map(&[], &range(0, 60)).unwrap();
    assert!(rows.is_mapped());
    assert_eq!(values(&rows), [vec![1; 20], vec![2; 40]].concat());
}

#[test]
fn what_cannot_be_mapped_is_a_copy_for_which_no_commit_waits() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    let bands = client.create_set(&SetSpec::new("bands", ROWS).leaf("obs", DType::U8, &[4])).unwrap();
    let every_other = Selection::Ranges(vec![Range::new(0, 9).step_by(2)]);
    for (set, selection) in [
        (&set, Selection::rows([3, 4])),
        (&set, every_other),
        (&set, range(7, 7)),
        (&bands, range(0, 9)),
        (&bands, Selection::All),
    ] {
        assert!(!set.map(&[], &selection).unwrap().is_mapped(), "{selection:?}");
    }
    let held = [set.map(&[], &Selection::rows([3, 4])).unwrap(), bands.map(&[], &range(0, 9)).unwrap()];
    assert_eq!(write(&set, &range(3, 5), 2, 9).unwrap(), 1);
    assert_eq!(values(&held[0]), [0, 0]);
    assert_eq!(reason(set.map(&["no"], &range(0, 1))), Reason::SetMismatch);
    assert_eq!(reason(set.map(&[], &range(0, ROWS + 1))), Reason::SelectionOutOfRange);
}

#[test]
fn a_set_that_has_no_room_in_one_piece_is_refused_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let large = SetSpec::new("large", 1 << 30).leaf("obs", DType::U8, &[1 << 16]).contiguous();
    assert_eq!(reason(client.create_set(&large)), Reason::NeverFits);
    let files = SetFiles { directory: "replay".to_owned(), ..SetFiles::default() };
    assert_eq!(reason(client.create_set(&spec().contiguous().files(&files))), Reason::InvalidArgument);
    let set = client.create_set(&spec().contiguous()).unwrap();
    assert_eq!(reason(client.create_set(&spec().contiguous())), Reason::NameTaken);
    let empty = SetSpec::new("empty", 5).leaf("obs", DType::U8, &[0]).leaf("done", DType::U8, &[]);
    let empty = client.create_set(&empty.contiguous()).unwrap();
    let rows = empty.map(&[], &range(1, 4)).unwrap();
    assert_eq!((rows.is_mapped(), rows.leaves[1].1.to_vec()), (true, vec![0; 3]));
    drop((rows, empty));
    client.drop_set("empty").unwrap();
    client.drop_set(set.reference()).unwrap();
    drop((client, set));
    sidecar.assert_all_free();
}

#[test]
fn rows_of_a_set_that_was_dropped_stay_while_they_are_mapped_and_its_room_comes_back_then() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    write(&set, &range(0, 100), 100, 6).unwrap();
    let rows = set.map(&[], &range(90, 110)).unwrap();
    client.drop_set("replay").unwrap();
    // Of the same size, in other memory.
    let next = client.create_set(&spec().contiguous()).unwrap();
    write(&next, &range(0, ROWS), ROWS, 9).unwrap();
    assert_eq!(values(&rows), [vec![6; 10], vec![0; 10]].concat());
    client.drop_set("replay").unwrap();
    drop((rows, next, set, client));
    sidecar.assert_all_free();
}

#[test]
fn maps_beside_writers_never_show_half_a_row_or_half_a_commit() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    const TOGETHER: u64 = 40;
    std::thread::scope(|scope| {
        let writers: Vec<_> = [1u8, 2]
            .map(|seed| {
                let set = sidecar.client().open_mutable_set(set.reference()).unwrap();
                scope.spawn(move || {
                    for round in 0..30u8 {
                        write(&set, &range(10, 10 + TOGETHER), TOGETHER, seed + 2 * round).unwrap();
                    }
                })
            })
            .into_iter()
            .collect();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let set = sidecar.client().open_mutable_set(set.reference()).unwrap();
                scope.spawn(move || {
                    let (mut mapped, mut version) = (0, 0);
                    while version < 60 {
                        let rows = set.map(&[], &range(10, 10 + TOGETHER)).unwrap();
                        let first = values(&rows);
                        assert!(
                            first.iter().all(|value| *value == first[0]),
                            "half of version {}",
                            rows.version
                        );
                        assert_eq!(values(&rows), first, "it changed while it was held");
                        assert!(rows.version >= version, "it is never older than the one before");
                        (mapped, version) = (mapped + u32::from(rows.is_mapped()), rows.version);
                    }
                    mapped
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let mapped: u32 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(mapped > 0, "some of them were no copies");
    });
    assert_eq!(set.now().unwrap().version, 60);
}

#[test]
fn a_repeat_of_a_commit_waits_for_nobody_and_over_grpc_nothing_is_held() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let leaves = vec![leaf("done", DType::U8, &[])];
    let made = v1::SetSpec {
        name: "replay".to_owned(),
        rows: 8,
        leaves,
        contiguous: true,
        ..v1::SetSpec::default()
    };
    assert!(grpc.set_create(made).unwrap().spec.unwrap().contiguous);
    let set = client.open_mutable_set("replay").unwrap();
    let one = || {
        let rows = set_streams::range(0, 2, 1);
        let one = v1::SetCommitHead { rows, retry_id: vec![7; 16].into(), ..head("replay", &[]) };
        grpc.set_commit(commit(one, &[&[1, 2]])).map(|committed| committed.version)
    };
    assert_eq!(one().unwrap(), 1);
    let rows = set.map(&[], &range(0, 8)).unwrap();
    assert_eq!(one().unwrap(), 1, "it was made before");
    drop(rows);
    let request = v1::SetReadRequest { set: "replay".to_owned(), map: true, ..v1::SetReadRequest::default() };
    let read = grpc.set_read(request).unwrap();
    assert_eq!((read.head.version, &read.leaves[0][..2]), (1, &[1, 2][..]));
}

#[test]
fn mapped_rows_are_kept_by_nobody_but_whoever_mapped_them() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    let rows = set.map(&["obs"], &range(0, 10)).unwrap();
    let reference = client.reference_of(&rows.leaves[0].1).unwrap().unwrap();
    assert_eq!(reason(client.name(&reference, "kept", None)), Reason::Unsupported);
    assert_eq!(reason(client.ticket(&reference, None, 1)), Reason::Unsupported);
    let other = sidecar.client();
    let got = other.acquire(&reference, &AcquireOptions::new());
    assert_eq!(reason(got.map(drop)), Reason::Unsupported);
    assert_eq!(client.acquire(&reference, &AcquireOptions::new()).unwrap().to_vec().len(), 300_000);
    drop(rows);
    client.flush().unwrap();
    assert_eq!(write(&set, &range(0, 10), 10, 3).unwrap(), 1);
}

#[test]
fn maps_are_counted() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (_client, set) = made(&sidecar);
    let held = [range(0, 5), range(3, 9)].map(|rows| set.map(&[], &rows).unwrap());
    drop(set.map(&[], &Selection::rows([1])).unwrap());
    let metric = |name: &str| sidecar.metric(&format!("tensorlane_set_{name}"), &[]);
    assert_eq!((metric("maps_total"), metric("live_maps")), (2.0, 2.0));
    assert_eq!(metric("rows_read_total"), 12.0);
    drop(held);
    until("they are over", || metric("live_maps") == 0.0);
}
