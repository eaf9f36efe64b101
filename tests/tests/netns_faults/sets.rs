//! Calls about mutable sets whose connection is cut at any byte: rows are whole, a commit is made once, and nothing is left.

use tensorlane_client::PutOptions;
use tensorlane_client::set::mutable::SetSpec;
use tensorlane_proto::frame::{MUTABLE_SETS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Selection};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::proxy::Between;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::until;
use tensorlane_tests::wire::Hurt;

/// Bytes of a row: more than travel inside a message.
const WIDE: u64 = 200_000;
const ROWS: [u64; 3] = [1, 5, 8];
/// Places of cuts, in bytes of what is carried towards a host: inside of requests, answers and rows.
const PLACES: [u64; 8] = [0, 60, 150, 300, 700, 2_000, 40_000, 400_000];

#[test]
fn rows_are_read_whole_and_commits_are_made_once_wherever_the_connection_is_cut() {
    // So that what a lost connection was bringing is there when the next one is.
    let peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "20s"));
    let between = Between::start(&peers);
    {
        let (owner, other) = (peers.client(0), peers.client(1));
        let spec = SetSpec::new("frames", 10)
            .leaf("frame", DType::U8, &[WIDE])
            .leaf("label", DType::U8, &[])
            .writers(&["*"]);
        let reference = owner.create_set(&spec).unwrap().reference().to_owned();
        let there = other.open_mutable_set(&reference).unwrap();
        let rows = Selection::rows(ROWS.to_vec());
        let mut session = RawSession::begin_in(&peers.sidecars[1], MUTABLE_SETS_SINCE);
        let mut version = 0;
        for (host, after) in [0, 1].into_iter().flat_map(|host| PLACES.map(|after| (host, after))) {
            let (wire, what) = (&between.wires[host], format!("{after} bytes to {host}"));
            let value = (version + 1) as u8;
            let stored = ["frame", "label"].map(|key| {
                let descriptor = there.descriptor(key, 3).unwrap();
                let bytes = vec![value; usize::try_from(descriptor.layout.bytes()).unwrap()];
                (key.to_owned(), other.put(&descriptor, &bytes, &PutOptions::new()).unwrap())
            });
            let part = |(key, stored): &(String, tensorlane_client::Stored)| v1::SetPart {
                key: key.clone(),
                reference: stored.reference().encode(),
            };
            // A caller that gives no retry id: its sidecar makes one.
            let commit = v1::SetCommitRequest {
                parts: stored.iter().map(part).collect(),
                set: reference.clone(),
                rows: Some((&rows).into()),
                deadline_ms: 25_000,
                ..v1::SetCommitRequest::default()
            };
            wire.hurt_after(after, Hurt::Cut);
            let made: v1::SetCommitResponse = session.call(SessionKind::SetCommit, &commit).unwrap();
            wire.mend();
            version += 1;
            assert_eq!(made.version, version, "{what}");
            assert_eq!(owner.mutable_sets("").unwrap()[0].version, version, "{what}: it is made once");
            peers.await_connected();
            wire.hurt_after(after, Hurt::Cut);
            let read = there.read(&[], &rows).unwrap();
            wire.mend();
            assert_eq!(read.version, version);
            for (key, tensor) in &read.leaves {
                assert!(tensor.to_vec().iter().all(|byte| *byte == value), "{what}: {key}");
            }
            peers.await_connected();
        }
        // Nobody has them: neither the rows of lost answers nor what was committed.
        until("rows that were packed are gone while both peers live on", || {
            owner.flush().unwrap();
            owner.status().unwrap().tensors == 0
        });
        owner.drop_set("frames").unwrap();
    }
    peers.assert_all_free();
    between.end(&peers);
}
