//! Mutable sets over gRPC from another host: only the rows travel, and only named peers write.

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::set_streams::{commit, head, leaf, list, range};
use tensorlane_tests::streams::{Grpc, reason_of};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::where_the_machine_runs_on;

/// Bytes of a row, as many as those of tensordict's script.
const WIDE: usize = 640 * 640 * 3;

fn spec(name: &str, writers: &[&str]) -> v1::SetSpec {
    v1::SetSpec {
        name: name.to_owned(),
        rows: 100,
        leaves: vec![leaf("memmap", DType::U8, &[640, 640, 3]), leaf("label", DType::I32, &[])],
        writers: writers.iter().map(|pattern| (*pattern).to_owned()).collect(),
        ..v1::SetSpec::default()
    }
}

#[test]
fn rows_of_another_host_are_written_and_read_by_streams_there() {
    let peers = Peers::steady();
    let (here, there) = (Grpc::of(&peers.sidecars[0]), Grpc::of(&peers.sidecars[1]));
    // It is waited for before it is made.
    let opened = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| there.set_open("a/frames", 60_000).unwrap());
        here.set_create(spec("frames", &["b"])).unwrap();
        waiter.join().unwrap()
    });
    let (frames, labels) = (pattern(1, 5 * WIDE), pattern(2, 5 * 4));
    let at = |expects| v1::SetCommitHead {
        rows: list(&[4, 5, 6, 7, 98]),
        expects_version: Some(expects),
        ..head("a/frames", &[])
    };
    let written = there.set_commit(commit(at(0), &[&frames, &labels])).unwrap();
    assert_eq!((written.version, written.first), (1, 4));
    for (grpc, transport) in [(&here, v1::Transport::Local), (&there, v1::Transport::Tcp)] {
        let request = v1::SetReadRequest {
            set: opened.reference.clone(),
            rows: range(5, 8, 2),
            ..v1::SetReadRequest::default()
        };
        let rows = grpc.set_read(request).unwrap();
        assert_eq!((rows.head.version, rows.head.leaves[1].key.as_str()), (1, "label"));
        let moved = rows.head.leaves[0].moved.as_ref().unwrap();
        assert_eq!((moved.transport(), moved.bytes), (transport, 2 * WIDE as u64));
        assert!(rows.leaves[0] == [&frames[WIDE..2 * WIDE], &frames[3 * WIDE..4 * WIDE]].concat());
        assert_eq!(rows.leaves[1], [&labels[4..8], &labels[12..16]].concat());
    }
    let late = there.set_commit(commit(at(0), &[&frames, &labels])).unwrap_err();
    assert_eq!(reason_of(&late), "VERSION_CHANGED");
    let request = v1::SetSnapshotRequest { set: "a/frames".to_owned(), ..v1::SetSnapshotRequest::default() };
    let snapshot = there.wait(there.client().set_snapshot(request)).unwrap().into_inner();
    assert_eq!((snapshot.version, snapshot.set_version), (1, 1));
    let drop_it = || v1::SetDropRequest { set: opened.reference.clone() };
    let not_here = there.wait(there.client().set_drop(drop_it())).unwrap_err();
    assert_eq!(reason_of(&not_here), "NOT_OWNED");
    here.wait(here.client().set_drop(drop_it())).unwrap();
    peers.client(0).unname(&["frames", "frames@1"]).unwrap();
    drop((here, there));
    peers.assert_all_free();
}

#[test]
fn a_peer_that_is_not_named_reads_by_a_stream_and_does_not_write_and_a_cut_link_is_told() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        let (here, there) = (Grpc::of(&peers.sidecars[0]), Grpc::of(&peers.sidecars[1]));
        here.set_create(spec("frames", &["c"])).unwrap();
        let request = |deadline_ms| v1::SetReadRequest {
            set: "a/frames".to_owned(),
            keys: vec!["label".to_owned()],
            deadline_ms,
            ..v1::SetReadRequest::default()
        };
        assert_eq!(there.set_read(request(30_000)).unwrap().leaves, [vec![0; 400]]);
        let all = head("a/frames", &["label"]);
        let refused = there.set_commit(commit(all, &[&[1; 400]])).unwrap_err();
        assert_eq!(reason_of(&refused), "PERMISSION_DENIED");
        assert_eq!(here.set_open("frames", 0).unwrap().version, 0);
        peers.network.cut(1);
        let failed = reason_of(&there.set_read(request(3_000)).unwrap_err());
        assert!(
            ["DEADLINE_EXCEEDED", "PEER_UNREACHABLE", "OWNER_LOST"].contains(&failed.as_str()),
            "{failed}"
        );
        here.wait(here.client().set_drop(v1::SetDropRequest { set: "frames".to_owned() })).unwrap();
        drop((here, there));
        peers.assert_all_free();
    });
}
