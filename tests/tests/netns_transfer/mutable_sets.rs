//! Mutable sets from another host: only the rows travel, and only named peers write.

use std::collections::BTreeMap;

use tensorlane_client::set::mutable::{Place, SetSpec};
use tensorlane_proto::{DType, Reason, Selection};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::reason;

/// Rows as large as those of tensordict's script.
const WIDE: u64 = 640 * 640 * 3;
const ROWS: [u64; 5] = [4, 5, 6, 7, 98];

#[test]
fn rows_of_another_host_are_written_and_read_by_a_reference_alone() {
    let peers = Peers::pair();
    let (owner, other) = (peers.client(0), peers.client(1));
    let spec = SetSpec::new("frames", 100).leaf("memmap", DType::U8, &[640, 640, 3]).writers(&["*"]);
    let reference = owner.create_set(&spec).unwrap().reference().to_owned();
    let there = other.open_mutable_set(&reference).unwrap();
    let selection = Selection::rows(ROWS.to_vec());
    let ones = vec![1u8; usize::try_from(WIDE).unwrap() * ROWS.len()];
    let leaves = BTreeMap::from([("memmap", &ones[..])]);
    let committed = there.write(&Place::Rows(selection.clone()), 5, &leaves, Some(0)).unwrap();
    assert_eq!(committed.version, 1);
    for client in [&owner, &other] {
        let set = client.open_mutable_set(&reference).unwrap();
        let read = set.read(&["memmap"], &selection).unwrap();
        assert_eq!((read.version, read.leaves[0].1.to_vec() == ones), (1, true));
        let beside = set.read(&[], &Selection::rows([3])).unwrap();
        assert!(beside.leaves[0].1.to_vec().iter().all(|byte| *byte == 0));
    }
    let late = there.write(&Place::Rows(selection), 5, &leaves, Some(0));
    assert_eq!(reason(late), Reason::VersionChanged);
    owner.drop_set("frames").unwrap();
    assert_eq!(reason(there.now()), Reason::NotFound);
    drop((there, owner, other));
    peers.assert_all_free();
}

#[test]
fn a_peer_that_is_not_named_may_read_and_not_write() {
    let peers = Peers::pair();
    let (owner, other) = (peers.client(0), peers.client(1));
    let spec = SetSpec::new("frames", 10).leaf("label", DType::U8, &[]);
    let reference = owner.create_set(&spec).unwrap().reference().to_owned();
    let there = other.open_mutable_set(&reference).unwrap();
    assert_eq!(there.read(&[], &Selection::All).unwrap().leaves[0].1.to_vec(), [0; 10]);
    let leaves = BTreeMap::from([("label", &[1u8; 10][..])]);
    let refused = there.write(&Place::Rows(Selection::All), 10, &leaves, None);
    assert_eq!(reason(refused), Reason::PermissionDenied);
    assert_eq!(owner.mutable_sets("").unwrap()[0].version, 0);
}
