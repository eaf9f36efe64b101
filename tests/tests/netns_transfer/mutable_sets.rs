//! Mutable sets from another host: only the rows travel, and only named peers write.

use std::collections::BTreeMap;
use std::process::Command;

use tensorlane_client::set::mutable::{MutableSet, Place, SetFiles, SetSpec};
use tensorlane_client::set::snapshot::SnapshotOptions;
use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::{DType, Reason, Selection};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::{failure, reason};

/// Rows as large as those of tensordict's script.
const WIDE: u64 = 640 * 640 * 3;
const ROWS: [u64; 5] = [4, 5, 6, 7, 98];
const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

/// Makes a set, writes rows of it from another host by its reference, and reads them from both; gives it as it is opened there.
fn written_and_read(owner: &Client, other: &Client, spec: &SetSpec) -> MutableSet {
    let reference = owner.create_set(spec).unwrap().reference().to_owned();
    let there = other.open_mutable_set(&reference).unwrap();
    let selection = Selection::rows(ROWS.to_vec());
    let ones = vec![1u8; usize::try_from(WIDE).unwrap() * ROWS.len()];
    let leaves = BTreeMap::from([("memmap", &ones[..])]);
    let committed = there.write(&Place::Rows(selection.clone()), 5, &leaves, Some(0)).unwrap();
    assert_eq!(committed.version, 1);
    for client in [owner, other] {
        let set = client.open_mutable_set(&reference).unwrap();
        let read = set.read(&["memmap"], &selection).unwrap();
        assert_eq!((read.version, read.leaves[0].1.to_vec() == ones), (1, true));
        let beside = set.read(&[], &Selection::rows([3])).unwrap();
        assert!(beside.leaves[0].1.to_vec().iter().all(|byte| *byte == 0));
    }
    let late = there.write(&Place::Rows(selection), 5, &leaves, Some(0));
    assert_eq!(reason(late), Reason::VersionChanged);
    there
}

#[test]
fn rows_of_another_host_are_written_and_read_by_a_reference_alone() {
    let peers = Peers::steady();
    let (owner, other) = (peers.client(0), peers.client(1));
    let spec = SetSpec::new("frames", 100).leaf("memmap", DType::U8, &[640, 640, 3]).writers(&["*"]);
    let there = written_and_read(&owner, &other, &spec);
    owner.drop_set("frames").unwrap();
    assert_eq!(reason(there.now()), Reason::NotFound);
    drop((there, owner, other));
    peers.assert_all_free();
}

#[test]
fn a_peer_that_is_not_named_may_read_and_not_write() {
    let peers = Peers::steady();
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

#[test]
fn a_set_of_another_host_is_waited_for_and_its_snapshot_is_published_at_its_owner() {
    let peers = Peers::steady();
    let (owner, other, waiting) = (peers.client(0), peers.client(1), peers.client(1));
    let spec = SetSpec::new("frames", 10).leaf("label", DType::U8, &[]).writers(&["b"]);
    let there = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.wait_for_mutable_set("a/frames", MINUTE).unwrap());
        // Its wait has come there, or it finds the set.
        owner.create_set(&spec).unwrap();
        waiter.join().unwrap()
    });
    let late = failure(other.wait_for_mutable_set("a/none", std::time::Duration::from_millis(50)));
    assert_eq!((late.reason, late.detail("waited_ms")), (Reason::NotFound, Some("50")));
    let leaves = BTreeMap::from([("label", &[3u8; 10][..])]);
    there.write(&Place::Rows(Selection::All), 10, &leaves, None).unwrap();
    let snapshot = there.snapshot(&SnapshotOptions::default()).unwrap();
    assert_eq!((snapshot.name.as_str(), snapshot.version, snapshot.set_version), ("frames", 1, 1));
    for client in [&owner, &other] {
        let set = client.get_set(&snapshot.reference, &AcquireOptions::new()).unwrap();
        assert_eq!(set.tree.tensors()[0].1.to_vec(), [3; 10]);
    }
    let named = SnapshotOptions { name: Some("policy".to_owned()), ..SnapshotOptions::default() };
    assert_eq!(reason(there.snapshot(&named)), Reason::PermissionDenied, "it is another arena");
    let many = SnapshotOptions { keep: 9, ..SnapshotOptions::default() };
    assert_eq!(reason(there.snapshot(&many)), Reason::LimitExceeded);
    let own = owner.create_set(&SetSpec::new("own", 10).leaf("label", DType::U8, &[])).unwrap();
    let there = other.open_mutable_set(own.reference()).unwrap();
    assert_eq!(reason(there.snapshot(&SnapshotOptions::default())), Reason::PermissionDenied);
}

/// A set of the first host, whose files lie on a disk of so many bytes.
fn on_a_disk(bytes: &str) -> (tempfile::TempDir, Peers) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().display().to_string();
    let mount = format!("mount -t tmpfs -o size={bytes} none {path} && exec \"$0\" \"$@\"");
    let peers = Peers::start(2, |host, options| match host {
        0 => options.steady().set("sets.root", &path).prefix(["unshare", "-m", "sh", "-c", &mount]),
        _ => options.steady(),
    });
    (root, peers)
}

fn files(directory: &str) -> SetFiles {
    SetFiles { directory: directory.to_owned(), ..SetFiles::default() }
}

#[test]
fn rows_of_a_set_on_files_are_written_and_read_from_another_host() {
    let (_root, peers) = on_a_disk("64m");
    let (owner, other) = (peers.client(0), peers.client(1));
    let spec = SetSpec::new("frames", 1_000).leaf("memmap", DType::U8, &[640, 640, 3]).writers(&["*"]);
    let there = written_and_read(&owner, &other, &spec.files(&files("frames")));
    assert_eq!(there.flush().unwrap().version, 1);
    assert_eq!(
        other.open_mutable_set("a/frames").map(|set| set.reference().to_owned()).ok(),
        Some(there.reference().to_owned())
    );
    owner.drop_set("frames").unwrap();
    assert_eq!(reason(there.now()), Reason::NotFound);
    drop((there, owner, other));
    peers.assert_all_free();
}

#[test]
fn a_full_disk_refuses_a_commit_whole_and_the_rows_stay_what_they_were() {
    let (_root, peers) = on_a_disk("8m");
    let (owner, other) = (peers.client(0), peers.client(1));
    let spec =
        SetSpec::new("frames", 100).leaf("memmap", DType::U8, &[640, 640, 3]).leaf("label", DType::U8, &[]);
    let set = owner.create_set(&spec.writers(&["*"]).files(&files("frames"))).unwrap();
    let there = other.open_mutable_set(set.reference()).unwrap();
    let row = |value: u8| vec![value; usize::try_from(WIDE).unwrap()];
    let commit = |rows: &[u64], value: u8| {
        let count = rows.len() as u64;
        let (wide, labels) = (row(value).repeat(rows.len()), vec![value; rows.len()]);
        let leaves = BTreeMap::from([("memmap", &wide[..]), ("label", &labels[..])]);
        there.write(&Place::Rows(Selection::rows(rows.to_vec())), count, &leaves, None)
    };
    commit(&[1, 2], 7).unwrap();
    // Some of it would fit, and rows 1 and 2 have their blocks already.
    let refused = commit(&[1, 2, 10, 11, 12, 13, 14, 15], 8).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::StorageFull), "{refused}");
    assert!(refused.to_string().contains("frames/memmap.memmap"), "{refused}");
    let read = set.read(&[], &Selection::rows([1, 2, 10])).unwrap();
    assert_eq!(read.leaves[1].1.to_vec(), [7, 7, 0]);
    assert_eq!(read.leaves[0].1.to_vec(), [row(7), row(7), row(0)].concat());
    let now = set.now().unwrap();
    assert_eq!((now.version, now.torn_rows), (1, 0));
    // What has its blocks can be written for ever.
    commit(&[1, 2], 9).unwrap();
    // No set, and nothing of one, where there is no room for it.
    let many =
        (0..2_000).fold(SetSpec::new("many", 8), |spec, key| spec.leaf(&format!("{key}"), DType::U8, &[4]));
    let (keys, bytes): (Vec<String>, _) = ((0..2_000).map(|key| key.to_string()).collect(), [1u8; 32]);
    let outcome = owner.create_set(&many.files(&files("many"))).and_then(|set| {
        let leaves = keys.iter().map(|key| (key.as_str(), &bytes[..])).collect();
        set.write(&Place::Rows(Selection::All), 8, &leaves, None)
    });
    assert_eq!(reason(outcome), Reason::StorageFull);
    // A set is dropped on a full disk, too.
    owner.drop_set("frames").unwrap();
    assert_eq!(reason(there.now()), Reason::NotFound);
}

#[test]
fn a_disk_that_is_read_only_refuses_what_would_change_it_and_takes_it_once_it_is_writable() {
    let (root, peers) = on_a_disk("64m");
    let owner = peers.client(0);
    let path = root.path().display().to_string();
    let remount = |how: &str| {
        let process = peers.sidecars[0].pid().to_string();
        let how = format!("remount,{how}");
        let words = ["--target", process.as_str(), "--mount", "mount", "-o", how.as_str(), path.as_str()];
        let ended = Command::new("nsenter").args(words).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    let spec = SetSpec::new("frames", 8).leaf("label", DType::U8, &[]);
    let set = owner.create_set(&spec.clone().files(&files("frames"))).unwrap();
    let write = || {
        let leaves = BTreeMap::from([("label", &[7u8; 2][..])]);
        set.write(&Place::Rows(Selection::rows([3, 4])), 2, &leaves, None)
    };
    // No file of it is open yet: the kernel makes no disk read-only that somebody may write.
    remount("ro");
    let refused = failure(write());
    assert_eq!(refused.reason, Reason::StorageFailed);
    for part in ["frames/label.memmap", "Read-only file system", "let the sidecar write there"] {
        assert!(refused.message.contains(part), "{part} is not in {refused}");
    }
    let other = SetSpec::new("other", 8).leaf("label", DType::U8, &[]).files(&files("other"));
    assert_eq!(reason(owner.create_set(&other)), Reason::StorageFailed);
    assert_eq!(reason(owner.drop_set("frames")), Reason::StorageFailed);
    let now = set.now().unwrap();
    assert_eq!((now.version, now.torn_rows), (0, 0), "it is a set still");
    remount("rw");
    assert_eq!(write().unwrap().version, 1);
    assert_eq!(set.read(&[], &Selection::All).unwrap().leaves[0].1.to_vec(), [0, 0, 0, 7, 7, 0, 0, 0]);
    owner.create_set(&other).unwrap();
    for name in ["frames", "other"] {
        owner.drop_set(name).unwrap();
    }
}
