//! Streams of rows that stand still, break or are too large: what ends them, and that nothing is left.

use std::time::Duration;

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::world::{Client, Shape, World, info, item, pattern, unname, whole};

const MIB: u64 = 1 << 20;

fn leaf(key: String, row_shape: &[u64]) -> v1::SetLeaf {
    v1::SetLeaf { key, dtype: DType::U8.code().into(), row_shape: row_shape.to_vec() }
}

/// Makes a set of rows of 1 MiB.
pub(super) async fn create(client: &mut Client, rows: u64) {
    let leaves = vec![leaf("x".to_owned(), &[MIB])];
    let spec = v1::SetSpec { name: "set".to_owned(), rows, leaves, ..v1::SetSpec::default() };
    client.set_create(v1::SetCreateRequest { spec: Some(spec) }).await.unwrap();
}

pub(super) async fn drop_set(client: &mut Client, name: &str) {
    client.set_drop(v1::SetDropRequest { set: name.to_owned() }).await.unwrap();
}

/// The head of a commit of the first rows.
fn head(rows: u64, deadline_ms: u64) -> v1::SetCommitChunk {
    let dimensions = vec![v1::Range { start: None, stop: Some(rows), step: None }];
    let rows = v1::Selection { kind: Some(v1::selection::Kind::Ranges(v1::Ranges { dimensions })) };
    let head = v1::SetCommitHead {
        set: "set".to_owned(),
        rows: Some(rows),
        deadline_ms,
        ..v1::SetCommitHead::default()
    };
    v1::SetCommitChunk { part: Some(v1::set_commit_chunk::Part::Head(head)) }
}

fn bytes(data: &[u8]) -> v1::SetCommitChunk {
    let bytes = v1::SetBytes { leaf: 0, data: bytes::Bytes::copy_from_slice(data) };
    v1::SetCommitChunk { part: Some(v1::set_commit_chunk::Part::Bytes(bytes)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_stands_still_ends_and_says_what_had_come() {
    let world = World::with(Shape { patience: Duration::from_secs(5), ..Shape::default() }).await;
    let mut client = world.client().await;
    create(&mut client, 4).await;
    let (chunks, stream) = mpsc::channel(4);
    chunks.send(head(3, 0)).await.unwrap();
    chunks.send(bytes(&[7; 1000])).await.unwrap();
    let ended = client.set_commit(ReceiverStream::new(stream)).await.unwrap_err();
    let told = info(&ended);
    assert_eq!((ended.code(), told.reason.as_str()), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    let expected = (3 * MIB).to_string();
    assert_eq!(
        (&told.metadata["given_bytes"], &told.metadata["expected_bytes"]),
        (&"1000".to_owned(), &expected)
    );
    drop(chunks);
    let open = v1::SetOpenRequest { set: "set".to_owned(), ..v1::SetOpenRequest::default() };
    let set = client.set_open(open).await.unwrap().into_inner().set.unwrap();
    assert_eq!((set.version, set.held_bytes), (0, 0));
    drop_set(&mut client, "set").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_client_does_not_take_are_given_back() {
    let world = World::with(Shape { patience: Duration::from_secs(5), ..Shape::default() }).await;
    let mut client = world.client().await;
    create(&mut client, 12).await;
    let mut slow = Client::new(world.narrow_channel(64 << 10).await);
    let request = v1::SetReadRequest { set: "set".to_owned(), ..v1::SetReadRequest::default() };
    let mut answer = slow.set_read(request).await.unwrap().into_inner();
    let first = answer.message().await.unwrap().unwrap();
    let Some(v1::set_read_chunk::Part::Head(head)) = first.part else { panic!("the head comes first") };
    assert_eq!((head.version, head.leaves.len()), (0, 1));
    assert_eq!(world.totals().leases, 1);
    world.until("the rows are free though the stream is open", || world.totals().tensors == 0).await;
    // Whoever reads on hears why.
    let failed = loop {
        match answer.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the rows did not all come"),
            Err(status) => break status,
        }
    };
    assert_eq!(info(&failed).reason, "DEADLINE_EXCEEDED");
    drop((answer, slow));
    drop_set(&mut client, "set").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_room_until_its_deadline_and_one_that_is_too_large_does_not() {
    let world = World::new().await;
    let mut client = world.client().await;
    create(&mut client, 24).await;
    let filling = whole(item(DType::U8, &[20 * MIB], "w"), &pattern(20 << 20));
    client.put(tokio_stream::iter(filling)).await.unwrap();
    let refused = client.set_commit(tokio_stream::iter(vec![head(14, 200)])).await.unwrap_err();
    assert_eq!(info(&refused).reason, "ARENA_FULL");
    let refused = client.set_commit(tokio_stream::iter(vec![head(24, 0)])).await.unwrap_err();
    assert_eq!(info(&refused).reason, "TOO_LARGE");
    // One that waits goes on when there is room.
    let (chunks, stream) = mpsc::channel(4);
    chunks.send(head(12, 0)).await.unwrap();
    let mut other = world.client().await;
    let commit = tokio::spawn(async move { other.set_commit(ReceiverStream::new(stream)).await });
    world.until("it waits", || world.waiting() == 1 || commit.is_finished()).await;
    unname(&mut client, "w").await;
    for _ in 0..12 {
        chunks.send(bytes(&[5; 1 << 20])).await.unwrap();
    }
    drop(chunks);
    assert_eq!(commit.await.unwrap().unwrap().into_inner().version, 1);
    drop_set(&mut client, "set").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layouts_of_many_leaves_fit_one_answer_and_those_of_many_sets_are_too_large() {
    let world = World::new().await;
    let mut client = world.client().await;
    let leaves: Vec<_> = (0..4_096).map(|number| leaf(format!("{number:0>255}"), &[])).collect();
    let names = ["wide-1", "wide-2", "wide-3", "wide-4"];
    for name in names {
        let spec =
            v1::SetSpec { name: name.to_owned(), rows: 2, leaves: leaves.clone(), ..v1::SetSpec::default() };
        client.set_create(v1::SetCreateRequest { spec: Some(spec) }).await.unwrap();
    }
    let stat = |prefix: &str| v1::SetStatRequest { prefix: prefix.to_owned() };
    let all = client.set_stat(stat("wide")).await.unwrap_err();
    assert_eq!(info(&all).reason, "TOO_LARGE");
    assert_eq!(client.set_stat(stat("wide-2")).await.unwrap().into_inner().sets.len(), 1);
    let request = v1::SetReadRequest { set: "wide-3".to_owned(), ..v1::SetReadRequest::default() };
    let mut answer = client.set_read(request).await.unwrap().into_inner();
    let mut came = 0;
    while let Some(chunk) = answer.message().await.unwrap() {
        match chunk.part.unwrap() {
            v1::set_read_chunk::Part::Head(head) => {
                let keys = head.leaves.iter().map(|leaf| &leaf.key);
                assert!(keys.eq(leaves.iter().map(|leaf| &leaf.key)));
            }
            v1::set_read_chunk::Part::Bytes(v1::SetBytes { leaf, data }) => {
                assert_eq!((leaf, &data[..]), (came, &[0, 0][..]));
                came += 1;
            }
        }
    }
    assert_eq!(came, 4_096);
    for name in names {
        drop_set(&mut client, name).await;
    }
    world.end().await;
}
