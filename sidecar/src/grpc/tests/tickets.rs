//! Tests of what a put is kept by that has neither a name nor a session.

use std::time::Duration;

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;

use super::world::{Client, Session, Shape, World, all, collect, data, get, header, id, item, stored};

/// Puts four bytes without a session and without a name; what came of it.
async fn put(client: &mut Client, keep: Option<v1::Keep>) -> v1::Stored {
    let item = v1::PutItem { keep, ..item(DType::U8, &[4], "") };
    let chunks = vec![header(item), data(&[1, 2, 3, 4])];
    let response = client.put(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    stored(&response.results[0]).clone()
}

/// Redeems a ticket: the id of the tensor, or the reason why not.
async fn redeem(client: &mut Client, session: &Session, ticket: &str) -> Result<u64, String> {
    let item = v1::RedeemItem { ticket: ticket.to_owned(), ..v1::RedeemItem::default() };
    let request = v1::RedeemRequest { items: vec![item], deadline_ms: 0 };
    let response = client.redeem(session.with(request)).await.unwrap().into_inner();
    match &response.results[0].outcome {
        Some(v1::acquire_result::Outcome::Acquired(acquired)) => Ok(acquired.id),
        Some(v1::acquire_result::Outcome::Failure(failure)) => Err(failure.reason.clone()),
        None => panic!("{response:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_without_a_name_and_a_session_is_kept_by_a_ticket_that_is_good_once() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let mut client = world.client().await;
    for keep in [None, Some(v1::Keep::default())] {
        let stored = put(&mut client, keep).await;
        assert!(!stored.ticket.is_empty(), "{stored:?}");
        let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!((status.tensors, status.tickets, status.leases, status.names), (1, 1, 0, 0));

        let (mut reader, session) = world.session().await;
        assert_eq!(redeem(&mut reader, &session, &stored.ticket).await, Ok(stored.id));
        assert_eq!((world.totals().tickets, world.totals().leases), (0, 1), "the lease keeps it now");
        let request = get(vec![all(id(stored.id))]);
        let got = collect(reader.get(request).await.unwrap().into_inner()).await.unwrap();
        assert_eq!(got[0].as_ref().unwrap().1, [1, 2, 3, 4]);
        assert_eq!(redeem(&mut reader, &session, &stored.ticket).await, Err("TICKET_SPENT".to_owned()));
        drop(session);
        world.until_free().await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_without_a_name_and_a_session_ends_by_itself_when_nobody_redeems_it() {
    let ticket_ttl = Duration::from_millis(50);
    let world = World::with(Shape { ticket_ttl, ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let stored = put(&mut client, None).await;
    assert!(!stored.ticket.is_empty(), "{stored:?}");
    world.until_free().await;
    assert_eq!(redeem(&mut client, &session, &stored.ticket).await, Err("TICKET_SPENT".to_owned()));
    drop(session);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_a_client_would_not_take_is_refused_and_leaves_no_lease() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let mut told = item(DType::U8, &[4], "a");
    let words = ["b", "c"].map(|key| (key.to_owned(), "x".repeat(4_000)));
    told.descriptor.as_mut().unwrap().metadata.extend(words);
    let put = client.put(tokio_stream::iter(vec![header(told), data(&[1, 2, 3, 4])])).await.unwrap();
    let target = id(stored(&put.into_inner().results[0]).id);
    let too_large = |status: tonic::Status| status.message().contains("ask for fewer items at once");

    let acquire = |count| {
        session.with(v1::AcquireRequest { items: vec![all(target.clone()); count], ..Default::default() })
    };
    assert!(too_large(client.acquire(acquire(600)).await.unwrap_err()));
    assert_eq!(world.totals().leases, 0);
    assert_eq!(client.acquire(acquire(400)).await.unwrap().into_inner().results.len(), 400);
    let describe = v1::DescribeRequest { targets: vec![target.clone(); 600], ..Default::default() };
    assert!(too_large(client.describe(describe).await.unwrap_err()));
    client.unname(v1::UnnameRequest { names: vec!["a".to_owned()] }).await.unwrap();
    drop(session);
    world.end().await;
}
