//! Tests of what is refused, and how it says so.

use std::time::Duration;

use crate::metrics::label::PanicScope;
use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId, TensorId};
use tonic::{Code, Request};

use super::world::{
    World, all, data, failed, get, header, info, item, named, pattern, stored, unname, whole,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_calls_fail_with_a_typed_reason() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let require = Some(v1::Require { zero_copy: true, ..v1::Require::default() });

    let items = vec![all(named("w"))];
    let request = v1::AcquireRequest { items: items.clone(), ..v1::AcquireRequest::default() };
    let refused = client.acquire(request.clone()).await.unwrap_err();
    assert_eq!(
        (refused.code(), info(&refused).reason),
        (Code::FailedPrecondition, "SESSION_REQUIRED".into())
    );

    let refused = client.acquire(session.with(v1::AcquireRequest { require, ..request })).await.unwrap_err();
    assert_eq!(
        (refused.code(), info(&refused).reason),
        (Code::FailedPrecondition, "REQUIREMENT_NOT_MET".into())
    );
    let refused = client.get(v1::GetRequest { require, ..get(items) }).await.unwrap_err();
    assert_eq!(info(&refused).reason, "REQUIREMENT_NOT_MET");

    for bad in ["00112233445566778899aabbccddeeff", "7", "", "+0112233445566778899aabbccddeeff"] {
        let refused = client.status(super::world::with_session(bad, v1::StatusRequest {})).await.unwrap_err();
        assert_eq!((refused.code(), info(&refused).reason), (Code::NotFound, "NOT_FOUND".into()), "{bad}");
    }

    let names = vec!["n".to_owned(); 4_097];
    let refused = client.unname(v1::UnnameRequest { names }).await.unwrap_err();
    let info = info(&refused);
    assert_eq!((refused.code(), info.reason.as_str()), (Code::InvalidArgument, "TOO_LARGE"));
    assert_eq!(info.metadata["items"], "4097");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_the_rules_fails_whole() {
    let world = World::new().await;
    let mut client = world.client().await;
    let big = || item(DType::U8, &[3 << 20], "big");
    let too_long =
        vec![header(item(DType::U8, &[1], "a")), data(&[1]), header(big()), data(&vec![0; (1 << 20) + 1])];
    let refused = client.put(tokio_stream::iter(too_long)).await.unwrap_err();
    assert_eq!((refused.code(), info(&refused).reason.as_str()), (Code::InvalidArgument, "TOO_LARGE"));
    world.until_free().await;

    // Not even read: beyond what one message may have.
    let refused =
        client.put(tokio_stream::iter(vec![header(big()), data(&vec![0; 5 << 20])])).await.unwrap_err();
    assert_eq!(info(&refused).reason, "TOO_LARGE");
    let refused = client.put(tokio_stream::iter(vec![data(&[1])])).await.unwrap_err();
    assert_eq!(info(&refused).reason, "INVALID_ARGUMENT");
    let many = (0..4_097).map(|_| header(item(DType::U8, &[0], "")));
    let refused = client.put(tokio_stream::iter(many)).await.unwrap_err();
    assert_eq!(info(&refused).reason, "TOO_LARGE");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_panics_fails_alone_and_is_counted() {
    let world = World::new().await;
    let mut client = world.client().await;
    let put = || vec![header(item(DType::U8, &[1], "w")), data(&[1])];
    let threads = world.exchange.threads();
    threads.fail_at("job");
    let results = client.put(tokio_stream::iter(put())).await.unwrap().into_inner().results;
    assert_eq!(failed(&results[0]).reason, "INTERNAL");
    world.until("it is counted", || threads.panics(PanicScope::Call) == 1).await;
    threads.fail_at("grpc");
    let refused = client.put(tokio_stream::iter(put())).await.unwrap_err();
    assert_eq!((info(&refused).reason.as_str(), threads.panics(PanicScope::Call)), ("INTERNAL", 2));
    threads.fail_at("grpc call");
    let refused = client.put(tokio_stream::iter(put())).await.unwrap_err();
    assert_eq!(info(&refused).reason, "INTERNAL");
    assert_eq!(threads.panics(PanicScope::Call), 3);
    let results = client.put(tokio_stream::iter(put())).await.unwrap().into_inner().results;
    assert!(!stored(&results[0]).reference.is_empty());
    unname(&mut client, "w").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_arena_says_how_full_once_the_deadline_is_over() {
    let world = World::new().await;
    let mut client = world.client().await;
    let bytes = pattern(20 << 20);
    client.put(tokio_stream::iter(whole(item(DType::U8, &[20 << 20], "w"), &bytes))).await.unwrap();
    let mut first = header(item(DType::U8, &[12 << 20], ""));
    first.deadline_ms = 50;
    let chunks = vec![first, header(item(DType::U8, &[1], "small")), data(&[1])];
    let results = client.put(tokio_stream::iter(chunks)).await.unwrap().into_inner().results;
    let full = failed(&results[0]);
    assert_eq!((full.code, full.reason.as_str()), (8, "ARENA_FULL"));
    assert!(full.details.contains_key("free_bytes"), "{full:?}");
    assert!(!stored(&results[1]).reference.is_empty(), "the others of the stream are stored");

    let never = vec![header(item(DType::U8, &[1 << 30], ""))];
    let results = client.put(tokio_stream::iter(never)).await.unwrap().into_inner().results;
    assert_eq!(failed(&results[0]).reason, "NEVER_FITS");
    unname(&mut client, "w").await;
    unname(&mut client, "small").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_waits_for_room_ends_with_its_caller_or_its_deadline() {
    let world = World::new().await;
    let mut client = world.client().await;
    let bytes = pattern(20 << 20);
    client.put(tokio_stream::iter(whole(item(DType::U8, &[20 << 20], "w"), &bytes))).await.unwrap();

    let mut other = world.client().await;
    let waits = tokio::spawn(async move {
        other.put(tokio_stream::iter(vec![header(item(DType::U8, &[12 << 20], ""))])).await
    });
    world.until("it waits", || world.waiting() == 1).await;
    waits.abort();
    world.until("it does not wait any more", || world.waiting() == 0).await;

    let mut request = Request::new(tokio_stream::iter(vec![header(item(DType::U8, &[12 << 20], ""))]));
    request.set_timeout(Duration::from_millis(50));
    let late = client.put(request).await.unwrap_err();
    assert!(matches!(late.code(), Code::Cancelled | Code::DeadlineExceeded), "{late:?}");
    world.until("it does not wait any more", || world.waiting() == 0).await;

    // One that still waits gets the room.
    let mut other = world.client().await;
    let small = whole(item(DType::U8, &[12 << 20], "next"), &bytes[..12 << 20]);
    let waits = tokio::spawn(async move { other.put(tokio_stream::iter(small)).await });
    world.until("it waits", || world.waiting() == 1).await;
    unname(&mut client, "w").await;
    let results = waits.await.unwrap().unwrap().into_inner().results;
    assert!(!stored(&results[0]).reference.is_empty());
    unname(&mut client, "next").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserve_that_waits_for_room_is_cancelled_with_its_caller() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let bytes = pattern(20 << 20);
    client.put(tokio_stream::iter(whole(item(DType::U8, &[20 << 20], "w"), &bytes))).await.unwrap();
    let wish = v1::ReserveItem {
        descriptor: Some(super::world::descriptor(DType::U8, &[12 << 20])),
        ..v1::ReserveItem::default()
    };
    let request = session.with(v1::ReserveRequest { items: vec![wish], deadline_ms: 0 });
    let mut other = client.clone();
    let waits = tokio::spawn(async move { other.reserve(request).await });
    world.until("it waits", || world.waiting() == 1).await;
    waits.abort();
    world.until("it does not wait any more", || world.waiting() == 0).await;
    unname(&mut client, "w").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_in_the_middle_of_a_fill_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let wish = v1::ReserveItem {
        descriptor: Some(super::world::descriptor(DType::U8, &[4])),
        ..v1::ReserveItem::default()
    };
    let request = v1::ReserveRequest { items: vec![wish], deadline_ms: 0 };
    let reserved = client.reserve(session.with(request)).await.unwrap().into_inner().results;
    let Some(v1::reserve_result::Outcome::Reserved(v1::Reserved { id, .. })) = reserved[0].outcome else {
        panic!("{reserved:?}")
    };
    let holder = Some(Holder::Session(SessionId(1 << 32)));
    let tensor = world.exchange.store().reserved(holder, TensorId(id)).unwrap();
    let seal =
        || session.with(v1::SealRequest { items: vec![v1::SealItem { id, ..v1::SealItem::default() }] });

    let filling = tensor.block.landing().unwrap();
    let refused = client.seal(seal()).await.unwrap().into_inner();
    assert_eq!(failed(&refused.results[0]).reason, "NOT_SEALED");
    drop(filling);
    let sealed = client.seal(seal()).await.unwrap().into_inner();
    assert_eq!(stored(&sealed.results[0]).id, id);
    drop(tensor);
    client.release(session.with(v1::ReleaseRequest { ids: vec![id], still_mapped: vec![] })).await.unwrap();
    world.end().await;
}
