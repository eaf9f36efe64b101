//! Mutable sets of one sidecar: rows that change, whole commits, and what is refused.

use std::collections::BTreeMap;

use tensorlane_client::set::mutable::{MutableSet, Place, SetSpec};
use tensorlane_client::{Client, PutOptions};
use tensorlane_proto::{DType, Range, Reason, Selection};
use tensorlane_tests::{Sidecar, reason};

const ROWS: u64 = 1_000;
/// Elements of a row of the first leaf: rows lie in many bands.
const WIDE: u64 = 30_000;

fn spec() -> SetSpec {
    SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[WIDE]).leaf("next/reward", DType::U32, &[])
}

fn rows(list: &[u64]) -> Selection {
    Selection::rows(list.to_vec())
}

/// New rows of both leaves, all of one value.
fn write(
    set: &MutableSet,
    place: &Place,
    count: u64,
    value: u8,
    expects: Option<u64>,
) -> tensorlane_client::Result<u64> {
    let obs = vec![value; usize::try_from(count * WIDE).unwrap()];
    let reward = u32::from(value).to_le_bytes().repeat(usize::try_from(count).unwrap());
    let leaves = BTreeMap::from([("obs", &obs[..]), ("next/reward", &reward[..])]);
    set.write(place, count, &leaves, expects).map(|committed| committed.version)
}

/// The value of each row, proven to be the same in all bytes of both leaves.
fn values(set: &MutableSet, selection: &Selection) -> Vec<u8> {
    let read = set.read(&[], selection).unwrap();
    let obs = read.leaves[0].1.to_vec();
    let reward = read.leaves[1].1.to_vec();
    let one = |(obs, reward): (&[u8], &[u8])| {
        assert!(obs.iter().all(|byte| *byte == obs[0]), "half a row");
        assert_eq!(reward, u32::from(obs[0]).to_le_bytes(), "a commit in one leaf alone");
        obs[0]
    };
    obs.chunks(usize::try_from(WIDE).unwrap()).zip(reward.chunks(4)).map(one).collect()
}

fn made(sidecar: &Sidecar) -> (Client, MutableSet) {
    let client = sidecar.client();
    let set = client.create_set(&spec()).unwrap();
    (client, set)
}

#[test]
fn rows_are_zero_at_first_and_what_was_written_later_and_a_new_set_holds_nothing() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    assert_eq!(set.info().held_bytes, 0);
    assert!(set.reference().len() <= 300);
    let other = sidecar.client().open_mutable_set(set.reference()).unwrap();
    assert_eq!(values(&other, &rows(&[0, 999, 5])), [0, 0, 0]);
    assert_eq!(write(&set, &Place::Rows(rows(&[4, 998, 4])), 3, 7, Some(0)).unwrap(), 1);
    assert_eq!(values(&other, &rows(&[998, 3, 4, 4])), [7, 0, 7, 7]);
    let range = Selection::Ranges(vec![Range::new(3, 6)]);
    assert_eq!(write(&other, &Place::Rows(range.clone()), 3, 9, None).unwrap(), 2);
    assert_eq!(values(&set, &Selection::Ranges(vec![Range::new(2, 7)])), [0, 9, 9, 9, 0]);
    let now = set.now().unwrap();
    assert_eq!(now.version, 2);
    assert!(now.held_bytes > 0 && now.held_bytes < now.bytes / 10, "only what was written takes room");
}

#[test]
fn a_set_lives_until_it_is_dropped_and_gives_its_memory_back() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    write(&set, &Place::Rows(rows(&[1])), 1, 1, None).unwrap();
    drop(client);
    let client = sidecar.client();
    assert_eq!(values(&client.open_mutable_set("replay").unwrap(), &rows(&[1])), [1]);
    assert_eq!(client.mutable_sets("rep").unwrap().len(), 1);
    assert_eq!(reason(client.create_set(&spec())), Reason::NameTaken);
    client.drop_set("replay").unwrap();
    assert_eq!(reason(client.open_mutable_set("replay")), Reason::NotFound);
    assert_eq!(reason(set.read(&[], &rows(&[1]))), Reason::NotFound);
    drop((client, set));
    sidecar.assert_all_free();
}

#[test]
fn readers_beside_writers_have_all_of_a_commit_or_nothing_of_it() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    // Rows of bands of their own, written together.
    let together = rows(&[0, 100, 500, 999]);
    std::thread::scope(|scope| {
        let writers: Vec<_> = [1u8, 2, 3]
            .into_iter()
            .map(|value| {
                let (set, together) =
                    (sidecar.client().open_mutable_set(set.reference()).unwrap(), together.clone());
                scope.spawn(move || {
                    for _ in 0..100 {
                        write(&set, &Place::Rows(together.clone()), 4, value, None).unwrap();
                    }
                })
            })
            .collect();
        let reader = sidecar.client().open_mutable_set("replay").unwrap();
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let seen = values(&reader, &together);
            assert!(seen.iter().all(|value| *value == seen[0]), "{seen:?}");
        }
    });
    assert_eq!(set.now().unwrap().version, 300);
}

#[test]
fn of_writers_that_expect_one_version_one_writes() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=8u8)
            .map(|value| {
                let set = sidecar.client().open_mutable_set("replay").unwrap();
                scope.spawn(move || write(&set, &Place::Rows(rows(&[u64::from(value)])), 1, value, Some(0)))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let refused = outcomes.into_iter().filter(Result::is_err);
    refused.for_each(|outcome| assert_eq!(reason(outcome), Reason::VersionChanged));
    assert_eq!(set.now().unwrap().version, 1);
}

#[test]
fn extensions_of_many_writers_go_round_and_none_is_lost() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    std::thread::scope(|scope| {
        for value in 1..=4u8 {
            let set = sidecar.client().open_mutable_set("replay").unwrap();
            scope.spawn(move || {
                for _ in 0..5 {
                    write(&set, &Place::Extend, 3, value, None).unwrap();
                }
            });
        }
    });
    let seen = values(&set, &Selection::Ranges(vec![Range::new(0, 61)]));
    for value in 1..=4u8 {
        assert_eq!(seen.iter().filter(|seen| **seen == value).count(), 15);
    }
    assert_eq!(seen[60], 0);
    assert_eq!(set.now().unwrap().cursor, 60);
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_everything_as_it_was() {
    let sidecar = Sidecar::start();
    let (client, set) = made(&sidecar);
    let rewards = set.descriptor("next/reward", 2).unwrap();
    let at = |selection| Place::Rows(selection);
    let commit = |place: &Place, key: &str| {
        let stored = client.put(&rewards, &[1; 8], &PutOptions::new()).unwrap();
        reason(set.commit(place, &[(key.to_owned(), stored.reference().clone())], None))
    };
    assert_eq!(commit(&at(rows(&[1])), "next/reward"), Reason::SetMismatch);
    assert_eq!(commit(&at(rows(&[1, 2])), "obs"), Reason::SetMismatch);
    assert_eq!(commit(&at(rows(&[1, 2])), "none"), Reason::SetMismatch);
    assert_eq!(commit(&at(rows(&[1, ROWS])), "next/reward"), Reason::SelectionOutOfRange);
    assert_eq!(commit(&at(rows(&[1, 1 << 63])), "next/reward"), Reason::SelectionOutOfRange);
    assert_eq!(reason(set.commit(&at(rows(&[1])), &[], None)), Reason::InvalidArgument);
    assert_eq!(reason(set.read(&["none"], &rows(&[1]))), Reason::SetMismatch);
    assert_eq!(reason(set.read(&[], &rows(&[ROWS]))), Reason::SelectionOutOfRange);
    assert_eq!(reason(client.open_mutable_set("ts1:a/b/c")), Reason::ReferenceMalformed);
    let now = set.now().unwrap();
    assert_eq!((now.version, now.held_bytes), (0, 0));
    client.drop_set("replay").unwrap();
    drop((client, set));
    sidecar.assert_all_free();
}
