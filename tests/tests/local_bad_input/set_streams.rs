//! Streams of mutable sets over gRPC that say what cannot be: each is refused by its reason, nothing is written, and nothing is left.

use prost::Message;
use tensorlane_fuzz::{Target, fuzz};
use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tensorlane_tests::set_streams::{bytes, commit, first, head, leaf, list, range};
use tensorlane_tests::streams::{Grpc, reason_of};
use tensorlane_tests::{Sidecar, SidecarOptions, until};
use tonic::Code;

/// Rows of the set.
const ROWS: u64 = 100;

fn spec() -> v1::SetSpec {
    v1::SetSpec {
        name: "replay".to_owned(),
        rows: ROWS,
        leaves: vec![leaf("obs", DType::U8, &[1000]), leaf("reward", DType::F32, &[])],
        ..v1::SetSpec::default()
    }
}

/// Rows of both leaves, equal in number.
fn both(rows: u64) -> v1::SetCommitHead {
    v1::SetCommitHead { rows: range(0, rows, 1), ..head("replay", &["obs", "reward"]) }
}

#[test]
fn a_commit_that_cannot_be_is_refused_by_its_reason_and_writes_nothing() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    grpc.set_create(spec()).unwrap();
    let (obs, reward) = (vec![1; 3000], vec![1; 12]);
    let begun = |head: v1::SetCommitHead| vec![first(head)];
    let huge = bytes(0, &vec![1; (1 << 20) + 1]);
    let cases: Vec<(&str, Vec<v1::SetCommitChunk>, &str)> = vec![
        ("no message", Vec::new(), "INVALID_ARGUMENT"),
        ("bytes in front of the head", vec![bytes(0, &obs)], "INVALID_ARGUMENT"),
        ("a message of nothing", vec![v1::SetCommitChunk { part: None }], "INVALID_ARGUMENT"),
        ("a second head", vec![first(both(3)), first(both(3))], "INVALID_ARGUMENT"),
        (
            "nothing behind the head",
            vec![first(both(3)), v1::SetCommitChunk { part: None }],
            "INVALID_ARGUMENT",
        ),
        ("a set that is not there", begun(head("none", &[])), "NOT_FOUND"),
        ("a reference that is none", begun(head("ts1:x", &[])), "REFERENCE_MALFORMED"),
        ("a leaf that is not there", begun(head("replay", &["obs", "action"])), "SET_MISMATCH"),
        ("a leaf twice", begun(head("replay", &["obs", "reward", "obs"])), "INVALID_ARGUMENT"),
        (
            "rows that are not there",
            begun(v1::SetCommitHead { rows: list(&[3, ROWS]), ..both(0) }),
            "SELECTION_OUT_OF_RANGE",
        ),
        ("a range that is not there", begun(both(ROWS + 1)), "SELECTION_OUT_OF_RANGE"),
        ("rows of an extension", begun(v1::SetCommitHead { extend: 3, ..both(3) }), "INVALID_ARGUMENT"),
        (
            "more rows than the set has",
            begun(v1::SetCommitHead { rows: None, extend: ROWS + 1, ..both(0) }),
            "TOO_LARGE",
        ),
        ("a leaf beyond the keys", vec![first(both(3)), bytes(2, &[1])], "INVALID_ARGUMENT"),
        ("more bytes than rows", commit(both(3), &[&obs, &[1; 13]]), "INVALID_ARGUMENT"),
        ("too large a chunk", vec![first(both(3)), huge], "TOO_LARGE"),
        ("fewer bytes than rows", commit(both(3), &[&obs, &reward[1..]]), "SET_MISMATCH"),
        (
            "a retry id of three bytes",
            commit(v1::SetCommitHead { retry_id: vec![1; 3].into(), ..both(3) }, &[&obs, &reward]),
            "INVALID_ARGUMENT",
        ),
        (
            "another version",
            commit(v1::SetCommitHead { expects_version: Some(7), ..both(3) }, &[&obs, &reward]),
            "VERSION_CHANGED",
        ),
    ];
    for (what, chunks, reason) in cases {
        let refused = grpc.set_commit(chunks).expect_err(what);
        assert_eq!(reason_of(&refused), reason, "{what}: {refused:?}");
        assert!(!refused.message().is_empty());
    }
    let open = grpc.set_open("replay", 0).unwrap();
    assert_eq!((open.version, open.held_bytes), (0, 0));
    until("nothing is left", || client.status().unwrap().tensors == 0);
    drop((client, grpc));
    sidecar.assert_all_free();
}

#[test]
fn a_read_and_a_set_that_cannot_be_are_refused_by_their_reasons() {
    let sidecar = Sidecar::start();
    let grpc = Grpc::of(&sidecar);
    grpc.set_create(spec()).unwrap();
    let read = |set: &str, keys: &[&str], rows| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let request = v1::SetReadRequest { set: set.to_owned(), keys, rows, ..v1::SetReadRequest::default() };
        reason_of(&grpc.set_read(request).map(drop).unwrap_err())
    };
    assert_eq!(read("none", &[], None), "NOT_FOUND");
    assert_eq!(read("replay", &["action"], None), "SET_MISMATCH");
    assert_eq!(read("replay", &["obs", "obs"], None), "INVALID_ARGUMENT");
    assert_eq!(read("replay", &[], list(&[ROWS])), "SELECTION_OUT_OF_RANGE");
    assert_eq!(read("replay", &[], range(0, ROWS, 0)), "INVALID_ARGUMENT");
    let make = |spec: v1::SetSpec| reason_of(&grpc.set_create(spec).unwrap_err());
    assert_eq!(make(spec()), "NAME_TAKEN");
    let other = || v1::SetSpec { name: "other".to_owned(), ..spec() };
    assert_eq!(make(v1::SetSpec { rows: 0, ..other() }), "INVALID_ARGUMENT");
    assert_eq!(make(v1::SetSpec { leaves: Vec::new(), ..other() }), "INVALID_ARGUMENT");
    assert_eq!(make(v1::SetSpec { rows: 1 << 30, ..other() }), "NEVER_FITS");
    let files = v1::SetFiles { directory: "x".to_owned(), ..v1::SetFiles::default() };
    assert_eq!(make(v1::SetSpec { files: Some(files), ..other() }), "NO_STORAGE");
    let waited = grpc.set_open("other", 50).unwrap_err();
    assert_eq!(reason_of(&waited), "NOT_FOUND");
}

#[test]
fn mutated_streams_of_commits_are_answered_and_leave_nothing_behind() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    grpc.set_create(spec()).unwrap();
    let joined = |chunks: Vec<v1::SetCommitChunk>| -> Vec<u8> {
        chunks.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
    };
    let extension = v1::SetCommitHead { rows: None, extend: 5, ..both(0) };
    let corpus = vec![
        joined(commit(both(3), &[&[1; 3000], &[1; 12]])),
        joined(commit(v1::SetCommitHead { rows: list(&[7, 7, 1]), ..both(0) }, &[&[2; 3000], &[2; 12]])),
        joined(commit(extension, &[&[3; 5000], &[3; 20]])),
    ];
    let parsed = |mut bytes: &[u8]| {
        let mut chunks = Vec::new();
        while let Ok(mut chunk) = v1::SetCommitChunk::decode_length_delimited(&mut bytes) {
            if let Some(v1::set_commit_chunk::Part::Head(head)) = &mut chunk.part {
                head.deadline_ms = 50;
            }
            chunks.push(chunk);
            if bytes.is_empty() {
                break;
            }
        }
        chunks
    };
    // The memory is the sidecar's, and bounded there by its arena.
    let target = Target {
        name: "SetCommitChunk",
        corpus,
        times: 0,
        spare: 0,
        meter: |run| {
            run();
            0
        },
    };
    fuzz(target, move |bytes| match grpc.set_commit(parsed(bytes)) {
        Ok(_) => true,
        Err(status) => {
            assert!(!matches!(status.code(), Code::Internal | Code::Unknown), "{status:?}");
            false
        }
    });
    assert_eq!(sidecar.metric("tensorlane_sidecar_panics_total", &[]), 0.0);
    until("what the streams had is free", || client.status().unwrap().tensors == 0);
}
