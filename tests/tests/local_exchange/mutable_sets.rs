//! Mutable sets of one sidecar: rows that change, whole commits, and what is refused.

use std::collections::BTreeMap;

use tensorlane_client::set::mutable::{CommitOptions, MutableSet, Place, SetSpec};
use tensorlane_client::{Client, PutOptions, RetryId};
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
fn zeros_take_no_memory_where_nothing_else_was_written() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    let write = |list: &[u64], value| write(&set, &Place::Rows(rows(list)), list.len() as u64, value, None);
    let everything: Vec<u64> = (0..ROWS).collect();
    assert_eq!(write(&everything, 0).unwrap(), 1, "it is a commit all the same");
    assert_eq!(set.now().unwrap().held_bytes, 0);
    write(&[4, 998], 7).unwrap();
    let held = set.now().unwrap().held_bytes;
    write(&[4, 500, 3], 0).unwrap();
    assert_eq!(values(&set, &rows(&[3, 4, 500, 998])), [0, 0, 0, 7], "zeros are written over what was there");
    assert_eq!(set.now().unwrap().held_bytes, held);
    // Of a commit of both leaves one is zero, and of its rows some.
    let (obs, reward) =
        (vec![0; 3 * usize::try_from(WIDE).unwrap()], [0_u32, 9, 0].map(u32::to_le_bytes).concat());
    let leaves = BTreeMap::from([("obs", &obs[..]), ("next/reward", &reward[..])]);
    set.write(&Place::Rows(rows(&[100, 300, 700])), 3, &leaves, None).unwrap();
    let read = set.read(&["next/reward"], &rows(&[100, 300, 700])).unwrap();
    assert_eq!(read.leaves[0].1.to_vec(), reward);
    assert_eq!(set.now().unwrap().held_bytes, held / 2 * 3, "one band more");
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

#[test]
fn a_commit_that_is_repeated_by_its_retry_id_is_made_once() {
    let sidecar = Sidecar::start();
    let (_client, set) = made(&sidecar);
    let reward = 7_u32.to_le_bytes();
    let leaves = BTreeMap::from([("next/reward", &reward[..])]);
    let once = CommitOptions::new().expects(0).retry_id(RetryId([3; 16]));
    let first = set.write(&Place::Extend, 1, &leaves, once).unwrap();
    // By another session, as after the loss of the first one.
    let other = sidecar.client().open_mutable_set(set.reference()).unwrap();
    assert_eq!(other.write(&Place::Extend, 1, &leaves, once).unwrap(), first);
    let now = set.now().unwrap();
    assert_eq!((now.version, now.cursor), (1, 1));
    let another = CommitOptions::new().retry_id(RetryId([4; 16]));
    assert_eq!(other.write(&Place::Extend, 1, &leaves, another).unwrap().first, 1);
}

#[test]
fn parts_of_rows_are_written_and_the_rest_of_them_stays() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let spec = SetSpec::new("parts", 8).leaf("x", DType::U16, &[2, 3]).leaf("y", DType::U8, &[]);
    let set = client.create_set(&spec).unwrap();
    let all = |set: &MutableSet| {
        let bytes = set.read(&["x"], &Selection::All).unwrap().leaves[0].1.to_vec();
        bytes.chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect::<Vec<_>>()
    };
    let bytes = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let mut wanted: Vec<u16> = (0..48).collect();
    let leaves = bytes(&wanted);
    set.write(&Place::Rows(Selection::All), 8, &BTreeMap::from([("x", &leaves[..])]), None).unwrap();
    // `x[[6, 1], 1, ::2]`, of a number each.
    let part = [Range::new(1, 2), Range::FULL.step_by(2)];
    let made = set.write_part("x", &rows(&[6, 1]), &part, &bytes(&[100, 101, 102, 103])).unwrap().unwrap();
    assert_eq!(made.version, 2);
    for (at, value) in [(6 * 6 + 3, 100), (6 * 6 + 5, 101), (6 + 3, 102), (6 + 5, 103)] {
        wanted[at] = value;
    }
    assert_eq!(all(&set), wanted);
    let range = Selection::Ranges(vec![Range::new(2, 4)]);
    set.write_part("x", &range, &[Range::new(0, 1)], &bytes(&[7; 6])).unwrap().unwrap();
    wanted[12..15].fill(7);
    wanted[18..21].fill(7);
    assert_eq!(all(&set), wanted);
    set.write_part("y", &rows(&[5]), &[], &[9]).unwrap().unwrap();
    assert_eq!(set.read(&["y"], &rows(&[5])).unwrap().leaves[0].1.to_vec(), [9]);
    // Without elements nothing is committed, and what is refused writes nothing.
    assert_eq!(set.write_part("x", &range, &[Range::new(1, 1)], &[]).unwrap(), None);
    assert_eq!(
        reason(set.write_part("x", &range, &[Range::new(0, 3)], &[0; 36])),
        Reason::SelectionOutOfRange
    );
    assert_eq!(reason(set.write_part("x", &rows(&[8]), &part, &[0; 4])), Reason::SelectionOutOfRange);
    assert_eq!(reason(set.write_part("z", &range, &part, &[0; 4])), Reason::SetMismatch);
    assert!(set.write_part("x", &range, &part, &[0; 7]).is_err());
    assert_eq!((all(&set), set.now().unwrap().version), (wanted, 4));
}

#[test]
fn writers_of_parts_of_the_same_rows_lose_nothing_of_one_another() {
    const TIMES: u8 = 20;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let set = client.create_set(&SetSpec::new("parts", 4).leaf("x", DType::U8, &[4, 3])).unwrap();
    let two = Selection::Ranges(vec![Range::new(1, 3)]);
    std::thread::scope(|scope| {
        for column in 0..4 {
            let (set, two) = (sidecar.client().open_mutable_set(set.reference()).unwrap(), &two);
            scope.spawn(move || {
                for value in 1..=TIMES {
                    let part = [Range::new(column, column + 1)];
                    set.write_part("x", two, &part, &[value; 6]).unwrap();
                }
            });
        }
    });
    let read = set.read(&["x"], &Selection::All).unwrap().leaves[0].1.to_vec();
    assert_eq!(read, [[0; 12], [TIMES; 12], [TIMES; 12], [0; 12]].concat());
    assert_eq!(set.now().unwrap().version, 4 * u64::from(TIMES));
}
