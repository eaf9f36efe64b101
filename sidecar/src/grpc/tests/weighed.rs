//! Requests that become much are weighed before they are decoded, and count while their calls last.

use tensorlane_proto::generated as v1;
use tonic::{Code, Status};

use super::world::{Client, REQUEST_BYTES, World, info};

fn refused(status: &Status) -> (Code, String, Option<String>) {
    let info = info(status);
    (status.code(), info.reason, info.metadata.get("limit_bytes").cloned())
}

/// Waits for so many names that do not come.
async fn waits(mut client: Client, names: usize) -> Result<(), Status> {
    let names = (0..names).map(|n| format!("never/{n}")).collect();
    client.lookup(v1::LookupRequest { names, wait_ms: 60_000, ..Default::default() }).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_becomes_many_times_its_bytes_is_refused_before_it_is_decoded() {
    let world = World::new().await;
    let mut client = world.client().await;
    // Whatever else there is: long ones have three quarters, and beyond all of it nobody has room.
    let too_large = |most: u64| (Code::InvalidArgument, "TOO_LARGE".to_owned(), Some(most.to_string()));
    let described = v1::DescribeRequest { targets: vec![v1::Target::default(); 600_000], deadline_ms: 0 };
    let status = client.describe(described).await.unwrap_err();
    assert_eq!(refused(&status), too_large(REQUEST_BYTES));
    let seals = v1::SealRequest { items: vec![v1::SealItem::default(); 600_000] };
    let status = client.seal(seals).await.unwrap_err();
    assert_eq!(refused(&status), too_large(REQUEST_BYTES));
    // In a stream, the same.
    let descriptor = v1::Descriptor { shape: vec![1; 4_000_000], ..Default::default() };
    let part = v1::put_chunk::Part::Item(v1::PutItem { descriptor: Some(descriptor), ..Default::default() });
    let chunks = [v1::PutChunk { part: Some(part), deadline_ms: 0 }];
    let status = client.put(tokio_stream::iter(chunks)).await.unwrap_err();
    assert_eq!(refused(&status), too_large(REQUEST_BYTES / 4 * 3));
    // The status comes before what was weighed is given back.
    world.until("nothing counts any more", || world.requests.bytes().0 == 0).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_counts_while_its_call_lasts_and_one_without_room_is_refused() {
    const NAMES: usize = 4_000;
    let world = World::new().await;
    let call = tokio::spawn(waits(world.client().await, NAMES));
    world.until("it counts", || world.requests.bytes().0 >= NAMES as u64 * 32).await;
    let others: Vec<_> = std::iter::from_fn(|| world.requests.admit_now(100 << 10).ok()).collect();
    let status = waits(world.client().await, NAMES).await.unwrap_err();
    let limit = Some(REQUEST_BYTES.to_string());
    assert_eq!(refused(&status), (Code::ResourceExhausted, "LIMIT_EXCEEDED".to_owned(), limit));
    // Short ones are served meanwhile.
    world.client().await.status(v1::StatusRequest {}).await.unwrap();
    drop(others);
    call.abort();
    world.until("all of it is back", || world.requests.bytes().0 == 0).await;
    world.end().await;
}
