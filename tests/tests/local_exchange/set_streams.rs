//! Mutable sets over gRPC beside programs that map: the same rows, versions and references, whoever wrote them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Value, json};
use tensorlane_client::AcquireOptions;
use tensorlane_client::set::mutable::{Place, SetSpec};
use tensorlane_proto::generated as v1;
use tensorlane_proto::set::Node;
use tensorlane_proto::{DType, Selection};
use tensorlane_tests::set_streams::{self, commit, first, head, leaf, list, range};
use tensorlane_tests::streams::{Grpc, reason_of};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, until};
use tonic::Request;

/// Bytes of a row of the wide leaf: chunks end in the midst of rows.
const WIDE: usize = 30_000;
/// Rows of the set.
const ROWS: u64 = 1_000;

fn spec(name: &str) -> v1::SetSpec {
    v1::SetSpec {
        name: name.to_owned(),
        rows: ROWS,
        leaves: vec![leaf("obs", DType::U8, &[WIDE as u64]), leaf("next/reward", DType::F32, &[])],
        ..v1::SetSpec::default()
    }
}

fn read(set: &str, keys: &[&str], rows: Option<v1::Selection>) -> v1::SetReadRequest {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    v1::SetReadRequest { set: set.to_owned(), keys, rows, ..v1::SetReadRequest::default() }
}

/// Rows of a packed leaf.
fn rows_of(packed: &[u8], row: usize, rows: &[usize]) -> Vec<u8> {
    rows.iter().flat_map(|at| packed[at * row..(at + 1) * row].iter().copied()).collect()
}

#[test]
fn rows_that_a_stream_wrote_are_read_by_streams_and_by_programs_and_the_reverse() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let made = grpc.set_create(spec("replay")).unwrap();
    assert_eq!((made.version, made.spec.as_ref().unwrap().leaves.len()), (0, 2));
    let native = client.open_mutable_set(&made.reference).unwrap();

    // A stream writes rows 100 to 139, a program reads them.
    let (obs, reward) = (pattern(1, 40 * WIDE), pattern(2, 40 * 4));
    let at = v1::SetCommitHead { rows: range(100, 140, 1), expects_version: Some(0), ..head("replay", &[]) };
    let written = grpc.set_commit(commit(at, &[&obs, &reward])).unwrap();
    assert_eq!((written.version, written.first), (1, 100));
    let came = native.read(&[], &Selection::rows((100..140).collect::<Vec<_>>())).unwrap();
    assert_eq!(came.version, 1);
    assert!(came.leaves[0].1.to_vec() == obs && came.leaves[1].1.to_vec() == reward);

    // Streams read them by a step, by a list, and one leaf of them; by a reference and by the name.
    let stepped = grpc.set_read(read(&made.reference, &[], range(100, 140, 13))).unwrap();
    assert_eq!(stepped.head.version, 1);
    let heads = stepped.head.leaves.iter().map(|leaf| {
        let descriptor = leaf.descriptor.as_ref().unwrap();
        let moved = leaf.moved.as_ref().unwrap();
        assert_eq!(moved.transport(), v1::Transport::Local);
        (leaf.key.as_str(), descriptor.dtype, descriptor.shape.clone())
    });
    let expected = [
        ("obs", u32::from(DType::U8.code()), vec![4, WIDE as u64]),
        ("next/reward", u32::from(DType::F32.code()), vec![4]),
    ];
    assert_eq!(heads.collect::<Vec<_>>(), expected);
    let stepped_rows = [0, 13, 26, 39];
    assert!(stepped.leaves[0] == rows_of(&obs, WIDE, &stepped_rows));
    assert_eq!(stepped.leaves[1], rows_of(&reward, 4, &stepped_rows));
    let listed = grpc.set_read(read("replay", &["next/reward"], list(&[139, 100, 0, 139]))).unwrap();
    let expected = [rows_of(&reward, 4, &[39, 0]), vec![0; 4], rows_of(&reward, 4, &[39])].concat();
    assert_eq!((listed.leaves.len(), &listed.leaves[0]), (1, &expected));

    // A program writes, a stream reads all rows: a snapshot of some MiB in many chunks.
    let ones = vec![1u8; 2 * WIDE];
    let leaves = BTreeMap::from([("obs", &ones[..])]);
    native.write(&Place::Rows(Selection::rows([0, 999])), 2, &leaves, None).unwrap();
    let all = grpc.set_read(read("replay", &["obs"], None)).unwrap();
    assert_eq!((all.head.version, all.leaves[0].len()), (2, ROWS as usize * WIDE));
    assert!(all.leaves[0][..WIDE] == ones[..WIDE] && all.leaves[0][999 * WIDE..] == ones[..WIDE]);
    assert!(all.leaves[0][100 * WIDE..140 * WIDE] == obs);
    let ranged = grpc.set_read(read("replay", &["obs"], range(0, ROWS, 1))).unwrap();
    assert!(ranged.leaves == all.leaves, "a range of all rows is all rows");
    let none = grpc.set_read(read("replay", &[], range(7, 7, 1))).unwrap();
    assert!(none.leaves.iter().all(Vec::is_empty));

    let mut verbs = grpc.client();
    grpc.wait(verbs.set_drop(v1::SetDropRequest { set: "replay".to_owned() })).unwrap();
    assert_eq!(reason_of(&grpc.set_open("replay", 0).unwrap_err()), "NOT_FOUND");
    drop((came, native, client));
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn a_commit_of_a_stream_says_its_place_its_version_and_its_retry_as_any_other() {
    let sidecar = Sidecar::start();
    let grpc = Grpc::of(&sidecar);
    grpc.set_create(spec("replay")).unwrap();
    let reward = |value: u8, rows: usize| vec![value; rows * 4];
    let extend = |count: u64| v1::SetCommitHead { extend: count, ..head("replay", &["next/reward"]) };
    // Round robin, behind the extension before.
    let begun = grpc.set_commit(commit(extend(990), &[&reward(1, 990)])).unwrap();
    let around = grpc.set_commit(commit(extend(20), &[&reward(2, 20)])).unwrap();
    assert_eq!(((begun.version, begun.first), (around.version, around.first)), ((1, 0), (2, 990)));
    let ends = grpc.set_read(read("replay", &["next/reward"], list(&[9, 10, 989, 990]))).unwrap();
    assert_eq!(ends.leaves[0], [reward(2, 1), reward(1, 2), reward(2, 1)].concat());
    assert_eq!(grpc.set_open("replay", 0).unwrap().cursor, 10);
    // Another version: nothing is written.
    let late = v1::SetCommitHead { expects_version: Some(1), ..extend(1) };
    let late = grpc.set_commit(commit(late, &[&reward(9, 1)])).unwrap_err();
    assert_eq!(reason_of(&late), "VERSION_CHANGED");
    // A repeat is answered with what the first one made.
    let once = || v1::SetCommitHead {
        rows: list(&[5]),
        retry_id: vec![7; 16].into(),
        expects_version: Some(2),
        ..head("replay", &["next/reward"])
    };
    let made = grpc.set_commit(commit(once(), &[&reward(3, 1)])).unwrap();
    let again = grpc.set_commit(commit(once(), &[&reward(3, 1)])).unwrap();
    assert_eq!((made.version, again), (3, made));
    let stat = grpc.wait(grpc.client().set_stat(v1::SetStatRequest { prefix: "re".to_owned() })).unwrap();
    let sets = stat.into_inner().sets;
    assert_eq!((sets.len(), sets[0].version, sets[0].cursor), (1, 3, 10));
}

#[test]
fn a_commit_that_is_given_up_half_way_leaves_nothing_and_one_that_goes_on_is_whole() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    grpc.set_create(spec("replay")).unwrap();
    let rows = || v1::SetCommitHead { rows: range(0, 100, 1), ..head("replay", &["obs"]) };
    let small = || v1::SetCommitHead { rows: list(&[3]), ..head("replay", &["next/reward"]) };
    assert_eq!(grpc.set_commit(commit(small(), &[&[1; 4]])).unwrap().version, 1);
    let free = || client.status().unwrap().arena.unwrap().free;
    let before = free();
    let half = vec![first(rows()), set_streams::bytes(0, &vec![7; 1 << 20])];
    let given_up = grpc.half_commit(half);
    until("its rows have room", || free() + 100 * WIDE as u64 <= before);
    // Nobody waits for it.
    assert_eq!(grpc.set_commit(commit(small(), &[&[1; 4]])).unwrap().version, 2);
    drop(given_up);
    until("what had come of it is free", || free() == before);
    let open = grpc.set_open("replay", 0).unwrap();
    assert_eq!(open.version, 2, "it was no commit");
    let untouched = grpc.set_read(read("replay", &["obs"], range(0, 100, 1))).unwrap();
    assert!(untouched.leaves[0].iter().all(|byte| *byte == 0));
    // What it left would be a tensor; what was read is one for a moment.
    until("it left nothing", || client.status().unwrap().tensors == 0);
    let whole = grpc.half_commit(commit(rows(), &[&vec![7; 100 * WIDE]]));
    assert_eq!(whole.finish().unwrap().version, 3);
    grpc.wait(grpc.client().set_drop(v1::SetDropRequest { set: "replay".to_owned() })).unwrap();
    drop((client, grpc));
    sidecar.assert_all_free();
}

#[test]
fn a_set_on_files_is_made_flushed_and_read_over_grpc_and_a_snapshot_of_it_is_a_sealed_set() {
    let root = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::with(SidecarOptions::default().set("sets.root", root.path().display()));
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let waiting = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| Grpc::of(&sidecar).set_open("frames", 60_000).unwrap());
        let files = v1::SetFiles {
            directory: "frames".to_owned(),
            durability: v1::SetDurability::Disk.into(),
            ..v1::SetFiles::default()
        };
        grpc.set_create(v1::SetSpec { files: Some(files), ..spec("frames") }).unwrap();
        waiter.join().unwrap()
    });
    let files = waiting.spec.as_ref().unwrap().files.as_ref().unwrap();
    assert_eq!((files.durability(), waiting.torn_rows), (v1::SetDurability::Disk, 0));
    let obs = pattern(3, 2 * WIDE);
    let at = v1::SetCommitHead { rows: list(&[998, 4]), ..head("frames", &["obs"]) };
    assert_eq!(grpc.set_commit(commit(at, &[&obs])).unwrap().version, 1);
    let flush = v1::SetOpenRequest { set: "frames".to_owned(), flush: true, ..v1::SetOpenRequest::default() };
    grpc.wait(grpc.client().set_open(flush)).unwrap();
    let file = std::fs::read(root.path().join("frames/obs.memmap")).unwrap();
    assert!(file[4 * WIDE..5 * WIDE] == obs[WIDE..] && file[998 * WIDE..999 * WIDE] == obs[..WIDE]);
    let request = v1::SetSnapshotRequest { set: "frames".to_owned(), ..v1::SetSnapshotRequest::default() };
    let snapshot = grpc.wait(grpc.client().set_snapshot(request)).unwrap().into_inner();
    assert_eq!((snapshot.version, snapshot.set_version), (1, 1));
    let sealed = client.get_set("frames@1", &AcquireOptions::new()).unwrap();
    let Some(Node::Tensor(sealed_obs)) = sealed.tree.find(&["obs"]) else { panic!("the leaf is a tensor") };
    assert!(sealed_obs.to_vec() == file);
}

#[test]
fn what_a_stream_reads_is_given_back_when_it_goes_away() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let native = client.create_set(&SetSpec::new("wide", 64).leaf("x", DType::U8, &[1 << 20])).unwrap();
    let mut verbs = grpc.client();
    let mut answer = grpc.wait(verbs.set_read(read("wide", &[], range(0, 40, 1)))).unwrap().into_inner();
    grpc.wait(answer.message()).unwrap();
    assert_eq!(client.status().unwrap().leases, 1, "the rest of the rows waits for the reader");
    drop(answer);
    until("the rows are free", || client.status().unwrap().tensors == 0);
    drop((native, verbs));
    client.drop_set("wide").unwrap();
    drop((client, grpc));
    sidecar.assert_all_free();
}

/// A request within a session.
fn within<T>(session: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("tensorlane-session", session.parse().unwrap());
    request
}

/// Stores a tensor of bytes for a session: its id and reference.
fn put(grpc: &Grpc, session: &str, data: &[u8], metadata: &[(&str, &str)]) -> v1::Stored {
    let descriptor = v1::Descriptor {
        dtype: DType::U8.code().into(),
        shape: vec![data.len() as u64],
        metadata: metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..v1::Descriptor::default()
    };
    let item = v1::PutItem {
        descriptor: Some(descriptor),
        data: Bytes::copy_from_slice(data),
        ..v1::PutItem::default()
    };
    let chunk = v1::PutChunk { part: Some(v1::put_chunk::Part::Item(item)), deadline_ms: 0 };
    let stored = grpc.wait(grpc.client().put(within(session, tokio_stream::iter([chunk])))).unwrap();
    match stored.into_inner().results.remove(0).outcome.unwrap() {
        v1::stored_result::Outcome::Stored(stored) => stored,
        v1::stored_result::Outcome::Failure(failure) => panic!("{failure:?}"),
    }
}

/// Bytes of a whole tensor.
fn got(grpc: &Grpc, kind: v1::target::Kind) -> Vec<u8> {
    let target = Some(v1::Target { kind: Some(kind), peer: String::new() });
    let item = v1::GetItem { target, selection: None };
    let mut client = grpc.client();
    grpc.wait(async move {
        let request = v1::GetRequest { items: vec![item], ..v1::GetRequest::default() };
        let (mut answer, mut bytes) = (client.get(request).await.unwrap().into_inner(), Vec::new());
        while let Some(chunk) = answer.message().await.unwrap() {
            match chunk.part.unwrap() {
                v1::get_chunk::Part::Data(data) => bytes.extend_from_slice(&data),
                v1::get_chunk::Part::Head(_) => {}
                v1::get_chunk::Part::Failure(failure) => panic!("{failure:?}"),
            }
        }
        bytes
    })
}

#[test]
fn a_sealed_set_is_published_and_got_over_grpc_by_its_manifest() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let mut events = grpc.wait(grpc.client().session(v1::SessionRequest {})).unwrap().into_inner();
    let session = grpc.wait(events.message()).unwrap().unwrap().session_id;
    let obs = pattern(5, 300_000);
    let leaf = put(&grpc, &session, &obs, &[]);
    let manifest = json!({"tensorlane_set": 1, "version": 1, "nodes": [
        {"path": [], "tree": {"batch": []}},
        {"path": ["obs"], "tensor": leaf.reference},
        {"path": ["label"], "value": "hello"},
    ]});
    let manifest = put(&grpc, &session, manifest.to_string().as_bytes(), &[("tensorlane.set", "1")]);
    let publish = |version| v1::PublishSetRequest {
        manifest: manifest.id,
        leaves: vec![leaf.id],
        name: "policy".to_owned(),
        version,
        keep: 1,
    };
    let other = grpc.wait(grpc.client().publish_set(within(&session, publish(7)))).unwrap_err();
    assert_eq!(reason_of(&other), "VERSION_CHANGED");
    grpc.wait(grpc.client().publish_set(within(&session, publish(1)))).unwrap();
    // Its session has ended: the name keeps all of it.
    let ids = vec![leaf.id, manifest.id];
    let release = v1::ReleaseRequest { ids, still_mapped: Vec::new() };
    grpc.wait(grpc.client().release(within(&session, release))).unwrap();
    drop(events);
    let native = client.get_set("policy", &AcquireOptions::new()).unwrap();
    let Some(Node::Tensor(tensor)) = native.tree.find(&["obs"]) else { panic!("the leaf is a tensor") };
    assert!(native.version == 1 && tensor.to_vec() == obs);
    let read: Value =
        serde_json::from_slice(&got(&grpc, v1::target::Kind::Name("policy".to_owned()))).unwrap();
    assert_eq!(read["nodes"][2]["value"], "hello");
    let reference = read["nodes"][1]["tensor"].as_str().unwrap().to_owned();
    assert!(got(&grpc, v1::target::Kind::Reference(reference)) == obs);
}
