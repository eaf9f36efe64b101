//! Sessions: what a stream keeps, and for how long.

use std::time::Duration;

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;

use super::world::{
    Client, Session, Shape, World, data, header, id, info, item, named, stored, with_session,
};
use crate::metrics::label::Carrier;

async fn put(client: &mut Client, session: &Session) -> u64 {
    let chunks = vec![header(item(DType::U8, &[4], "")), data(&[1, 2, 3, 4])];
    let response = client.put(session.with(tokio_stream::iter(chunks))).await.unwrap().into_inner();
    stored(&response.results[0]).id
}

fn acquire(id: u64) -> v1::AcquireRequest {
    v1::AcquireRequest {
        items: vec![v1::GetItem { target: Some(super::world::id(id)), selection: None }],
        ..v1::AcquireRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_reservations_end_after_the_stream() {
    let world = World::with(Shape { grace: Duration::from_millis(50), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let tensor = put(&mut client, &session).await;
    let wish = v1::ReserveItem {
        descriptor: Some(super::world::descriptor(DType::U8, &[9])),
        ..v1::ReserveItem::default()
    };
    client.reserve(session.with(v1::ReserveRequest { items: vec![wish], deadline_ms: 0 })).await.unwrap();
    assert_eq!((world.totals().tensors, world.totals().leases), (2, 1));
    let gone = session.id.clone();
    drop(session);
    world.until_free().await;
    let refused = client.acquire(with_session(&gone, acquire(tensor))).await.unwrap_err();
    assert_eq!((refused.code(), info(&refused).reason.as_str()), (tonic::Code::NotFound, "NOT_FOUND"));
    let refused = Session::open(&mut client, Some(&gone)).await.err().unwrap();
    assert_eq!(info(&refused).reason, "NOT_FOUND");
    world.end().await;
}

/// More puts than tokio has threads for what blocks.
const WAITS: usize = 600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_that_wait_for_what_a_session_keeps_do_not_keep_its_end_from_it() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let wish = v1::ReserveItem {
        descriptor: Some(super::world::descriptor(DType::U8, &[28 << 20])),
        ..v1::ReserveItem::default()
    };
    // Nearly all that puts may take, in one segment. The puts are cut from it once it is free: no memory is made for them.
    client.reserve(session.with(v1::ReserveRequest { items: vec![wish], deadline_ms: 0 })).await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..WAITS / 50 {
        let other = world.client().await;
        waits.extend((0..50).map(|_| {
            let mut client = other.clone();
            let mut first = header(item(DType::U8, &[4 << 20], ""));
            first.deadline_ms = 60_000;
            // None of its bytes come.
            tokio::spawn(async move { client.put(tokio_stream::iter([first])).await })
        }));
    }
    world.until("all of them wait", || world.waiting() == WAITS).await;
    drop(session);
    world.until("all of them had room", || world.waiting() == 0).await;
    for put in waits {
        let results = put.await.unwrap().unwrap().into_inner().results;
        assert_eq!(super::world::failed(&results[0]).reason, "LAYOUT_MISMATCH");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_gone_with_its_connection_ends_its_session() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    put(&mut client, &session).await;
    drop((client, session));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_back_within_the_grace_finds_its_leases() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let open = || world.metrics.sessions.open.at((Carrier::Grpc,)).get();
    let tensor = put(&mut client, &session).await;
    let id = session.id.clone();
    assert_eq!(open(), 1);
    drop((client, session));
    world.until("the stream is gone", || open() == 0).await;
    assert_eq!(world.totals().leases, 1, "the grace has begun");
    let mut client = world.client().await;
    let back = Session::open(&mut client, Some(&id)).await.unwrap();
    assert_eq!((back.id.as_str(), open()), (id.as_str(), 1));
    assert_eq!(world.metrics.sessions.opened.at((Carrier::Grpc,)).get(), 1);
    let release = v1::ReleaseRequest { ids: vec![tensor], still_mapped: Vec::new() };
    let released = client.release(back.with(release)).await.unwrap().into_inner();
    assert!(released.results[0].failure.is_none());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_stream_takes_the_session_over_and_the_first_one_ends() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let (mut client, mut first) = world.session().await;
    put(&mut client, &first).await;
    let second = Session::open(&mut client, Some(&first.id)).await.unwrap();
    assert_eq!(first.events.message().await.unwrap(), None);
    // The end of the first stream is not the end of the session, though its grace is short.
    let tensor = put(&mut client, &second).await;
    assert_eq!(world.totals().leases, 2);
    client.acquire(second.with(acquire(tensor))).await.unwrap();
    drop(second);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_limited_and_their_ids_are_no_numbers_to_count() {
    let world = World::with(Shape { sessions_max: 2, ..Shape::default() }).await;
    let (mut client, one) = world.session().await;
    let two = Session::open(&mut client, None).await.unwrap();
    assert_ne!(one.id, two.id);
    assert!(one.id.len() == 32 && one.id.bytes().all(|b| b.is_ascii_hexdigit()), "{}", one.id);
    let refused = Session::open(&mut client, None).await.err().unwrap();
    assert_eq!(
        (refused.code(), info(&refused).reason.as_str()),
        (tonic::Code::ResourceExhausted, "SESSION_LIMIT")
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_keeps_what_its_name_has_let_go() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let chunks = vec![header(item(DType::U8, &[2, 3], "n")), data(&[1, 2, 3, 4, 5, 6])];
    client.put(tokio_stream::iter(chunks)).await.unwrap();
    let columns = v1::Ranges {
        dimensions: vec![v1::Range::default(), v1::Range { start: Some(1), stop: Some(2), step: None }],
    };
    let selection = v1::Selection { kind: Some(v1::selection::Kind::Ranges(columns)) };
    let request = v1::AcquireRequest {
        items: vec![v1::GetItem { target: Some(named("n")), selection: Some(selection) }],
        ..v1::AcquireRequest::default()
    };
    let response = client.acquire(session.with(request)).await.unwrap().into_inner();
    let Some(v1::acquire_result::Outcome::Acquired(acquired)) = &response.results[0].outcome else {
        panic!("{response:?}")
    };
    assert_eq!(acquired.location, None);
    let view = acquired.descriptor.as_ref().unwrap();
    assert_eq!((view.shape.as_slice(), view.strides.as_slice()), ([2, 1].as_slice(), [3, 1].as_slice()));
    super::world::unname(&mut client, "n").await;
    assert_eq!(world.totals().tensors, 1);

    let ticket = v1::TicketItem { target: Some(id(acquired.id)), ttl_ms: 0, uses: 0 };
    let made = client.ticket(v1::TicketRequest { items: vec![ticket] }).await.unwrap().into_inner();
    let Some(v1::ticket_result::Outcome::Ticket(ticket)) = made.results[0].outcome.clone() else {
        panic!("{made:?}")
    };
    let redeem = v1::RedeemItem { ticket, ..v1::RedeemItem::default() };
    let request = v1::RedeemRequest { items: vec![redeem.clone(), redeem], deadline_ms: 0 };
    let redeemed = client.redeem(session.with(request)).await.unwrap().into_inner();
    assert!(matches!(redeemed.results[0].outcome, Some(v1::acquire_result::Outcome::Acquired(_))));
    let Some(v1::acquire_result::Outcome::Failure(spent)) = &redeemed.results[1].outcome else {
        panic!("{redeemed:?}")
    };
    assert_eq!(spent.reason, "TICKET_SPENT");
    drop(session);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grace_that_was_interrupted_ends_nothing() {
    // Long enough to come back within it on a busy machine.
    let world = World::with(Shape { grace: Duration::from_secs(12), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let open = || world.metrics.sessions.open.at((Carrier::Grpc,)).get();
    put(&mut client, &session).await;
    let id = session.id.clone();
    drop(session);
    world.until("the stream is gone", || open() == 0).await;
    let back = Session::open(&mut client, Some(&id)).await.unwrap();
    // Another session, whose grace begins later: once it is over, the first one would be too.
    let later = Session::open(&mut client, None).await.unwrap();
    put(&mut client, &later).await;
    drop(later);
    world.until("the later grace is over", || world.totals().tensors < 2).await;
    assert_eq!(world.totals().tensors, 1);
    put(&mut client, &back).await;
    drop(back);
    world.end().await;
}
