//! The server itself: health, reflection, ports, its end.

use std::time::Duration;

use tensorlane_proto::DType;
use tensorlane_proto::frame::ITEMS_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::tensorlane_client::TensorlaneClient;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::super::{GrpcServer, GrpcSettings};
use super::world::{
    Client, Shape, World, data, failed, header, id, info, item, named, pattern, stored, unname, whole,
};
use crate::session::Requests;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_says_that_it_serves() {
    let world = World::new().await;
    let mut health = HealthClient::new(world.channel().await);
    for service in ["", "tensorlane.v1.Tensorlane"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = health.check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let other = health.check(HealthCheckRequest { service: "other".to_owned() }).await.unwrap_err();
    assert_eq!(other.code(), Code::NotFound);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_names_the_services_and_shows_ours() {
    let world = World::new().await;
    let mut reflection = ServerReflectionClient::new(world.channel().await);
    let ask = |request| ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("tensorlane.v1.Tensorlane".to_owned())),
    ];
    let answers =
        reflection.server_reflection_info(tokio_stream::iter(questions)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(|a| a.unwrap().message_response.unwrap()).collect().await;
    let MessageResponse::ListServicesResponse(list) = &answers[0] else { panic!("{answers:?}") };
    let names: Vec<&str> = list.service.iter().map(|s| s.name.as_str()).collect();
    for expected in ["tensorlane.v1.Tensorlane", "grpc.health.v1.Health"] {
        assert!(names.contains(&expected), "{names:?}");
    }
    let MessageResponse::FileDescriptorResponse(file) = &answers[1] else { panic!("{answers:?}") };
    assert!(!file.file_descriptor_proto.is_empty());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loopback_port_serves_the_same_and_no_other_port_is_opened() {
    let world = World::with(Shape { tcp: true, ..Shape::default() }).await;
    let url = format!("http://{}", world.address.unwrap());
    let mut client = TensorlaneClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap());
    let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.peer.as_str(), status.arena.unwrap().total), ("here", super::world::ARENA_BYTES));
    let peers = client.peers(v1::PeersRequest {}).await.unwrap().into_inner().peers;
    assert_eq!(peers[0].state, "self");

    let settings = GrpcSettings {
        socket: world.socket.with_extension("other"),
        listen: Some("0.0.0.0:0".parse().unwrap()),
        sessions_max: 1,
        grace: Duration::ZERO,
        patience: Duration::ZERO,
        unread: world.unread.clone(),
        unread_max: 0,
        requests: Requests::new(0),
    };
    let refused = GrpcServer::bind(settings).await.err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_given_found_listed_described_and_taken_away() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut waits = client.clone();
    let lookup =
        v1::LookupRequest { names: vec!["b".into()], wait_ms: 20_000, ..v1::LookupRequest::default() };
    let waits = tokio::spawn(async move { waits.lookup(lookup).await });
    let chunks = vec![header(item(DType::U8, &[1], "a")), data(&[1])];
    client.put(tokio_stream::iter(chunks)).await.unwrap();
    let also = v1::NameItem { target: Some(named("a")), name: "b".into(), replaces: String::new() };
    let response =
        client.name(v1::NameRequest { items: vec![also], together: false }).await.unwrap().into_inner();
    assert_eq!(response.results[0].failure, None);
    let found = waits.await.unwrap().unwrap().into_inner();
    let Some(v1::describe_result::Outcome::Description(found)) = &found.results[0].outcome else {
        panic!("{found:?}")
    };
    assert_eq!(found.names, ["a", "b"]);
    let targets = vec![named("a"), named("c")];
    let described =
        client.describe(v1::DescribeRequest { targets, deadline_ms: 0 }).await.unwrap().into_inner();
    assert_eq!(described.results[0].outcome, Some(v1::describe_result::Outcome::Description(found.clone())));
    assert!(matches!(&described.results[1].outcome, Some(v1::describe_result::Outcome::Failure(_))));
    let listed = client.list(v1::ListRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.entries.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    for name in ["a", "b"] {
        unname(&mut client, name).await;
    }
    world.end().await;
}

/// Puts a byte under a name; its reference.
async fn put_named(client: &mut Client, name: &str) -> String {
    let chunks = vec![header(item(DType::U8, &[1], name)), data(&[1])];
    let response = client.put(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    stored(&response.results[0]).reference.clone()
}

async fn list(client: &mut Client) -> Vec<String> {
    let listed = client.list(v1::ListRequest::default()).await.unwrap().into_inner();
    listed.entries.into_iter().map(|entry| entry.name).collect()
}

/// Item that gives the tensor of a name another one, which must be free.
fn also(target: &str, name: &str) -> v1::NameItem {
    v1::NameItem { target: Some(named(target)), name: name.to_owned(), replaces: String::new() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_given_together_all_change_in_one_call_or_none_does_and_it_fails() {
    let world = World::new().await;
    let mut client = world.client().await;
    put_named(&mut client, "a").await;
    let taken = put_named(&mut client, "taken").await;
    let refused = v1::NameRequest { items: vec![also("a", "b"), also("a", "taken")], together: true };
    let refused = client.name(refused).await.unwrap_err();
    let told = info(&refused);
    assert_eq!((refused.code(), told.reason.as_str()), (Code::AlreadyExists, "NAME_TAKEN"));
    assert_eq!(told.metadata.get("name").map(String::as_str), Some("taken"), "{told:?}");
    assert_eq!(list(&mut client).await, ["a", "taken"]);
    // An item without a target takes its name away.
    let away = v1::NameItem { target: None, name: "taken".to_owned(), replaces: taken };
    let request = v1::NameRequest { items: vec![also("a", "b"), away], together: true };
    let response = client.name(request).await.unwrap().into_inner();
    assert_eq!(response.results, vec![v1::DoneResult { failure: None }; 2]);
    assert_eq!(list(&mut client).await, ["a", "b"]);
    assert_eq!(world.totals().tensors, 1);
    for name in ["a", "b"] {
        unname(&mut client, name).await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_listed_and_leased_for_a_session_in_one_step_or_not_at_all() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    for name in ["other", "set/a", "set/b"] {
        put_named(&mut client, name).await;
    }
    let all = |prefix: &str| v1::ListRequest {
        prefix: prefix.to_owned(),
        lease: true,
        ..v1::ListRequest::default()
    };
    let refused = client.list(all("set/")).await.unwrap_err();
    assert_eq!(
        (refused.code(), info(&refused).reason.as_str()),
        (Code::FailedPrecondition, "SESSION_REQUIRED")
    );
    assert_eq!(world.totals().leases, 0);

    let leased = client.list(session.with(all("set/"))).await.unwrap().into_inner();
    assert_eq!(
        leased.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(),
        ["set/a", "set/b"]
    );
    assert!(leased.entries.iter().all(|entry| entry.description.is_none()), "{leased:?}");
    let ids: Vec<u64> = leased.entries.iter().map(|entry| entry.lease.unwrap()).collect();
    assert_eq!((world.totals().leases, leased.next_page_token.as_str()), (2, ""));
    for name in ["set/a", "set/b"] {
        unname(&mut client, name).await;
    }
    let targets = ids.iter().map(|lease| id(*lease)).collect();
    let request = session.with(v1::DescribeRequest { targets, deadline_ms: 0 });
    let described = client.describe(request).await.unwrap().into_inner().results;
    let is_there =
        |one: &v1::DescribeResult| matches!(one.outcome, Some(v1::describe_result::Outcome::Description(_)));
    assert!(described.iter().all(is_there), "{described:?}");
    let release = v1::ReleaseRequest { ids, still_mapped: Vec::new() };
    client.release(session.with(release)).await.unwrap();
    assert_eq!((world.totals().leases, world.totals().tensors), (0, 1));

    let names: Vec<String> = (0..=ITEMS_MAX).map(|n| format!("many/{n:04}")).collect();
    for names in names.chunks(ITEMS_MAX) {
        let items = names.iter().map(|name| also("other", name)).collect();
        client.name(v1::NameRequest { items, together: true }).await.unwrap();
    }
    let refused = client.list(session.with(all("many/"))).await.unwrap_err();
    assert_eq!(info(&refused).reason, "TOO_LARGE", "{refused:?}");
    assert_eq!(world.totals().leases, 0);
    for names in names.chunks(ITEMS_MAX) {
        client.unname(v1::UnnameRequest { names: names.to_vec() }).await.unwrap();
    }
    unname(&mut client, "other").await;
    drop(session);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_ends_streams_sessions_and_waits() {
    let world = World::new().await;
    let (mut client, mut session) = world.session().await;
    let chunks = vec![header(item(DType::U8, &[1], "")), data(&[1])];
    client.put(session.with(tokio_stream::iter(chunks))).await.unwrap();
    let mut health = HealthClient::new(world.channel().await);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    // A put whose client says nothing for long.
    let (silent, stream) = mpsc::channel(1);
    silent.send(header(item(DType::U8, &[1], ""))).await.unwrap();
    let mut other = client.clone();
    let idle = tokio::spawn(async move { other.put(ReceiverStream::new(stream)).await });
    world.until("it has room", || world.exchange.store().arena().usage().reserved > 0).await;
    let full = whole(item(DType::U8, &[20 << 20], ""), &pattern(20 << 20));
    client.put(session.with(tokio_stream::iter(full))).await.unwrap();
    let large = vec![header(item(DType::U8, &[12 << 20], ""))];
    let waits = tokio::spawn(async move { client.put(tokio_stream::iter(large)).await });
    world.until("it waits for room", || world.waiting() == 1).await;

    let socket = world.socket.clone();
    let stopped = world.stop_serving().await;
    assert!(!socket.exists());
    assert_eq!(stopped.exchange.store().totals().1, 0, "no session is left");
    assert_eq!(session.events.message().await.unwrap(), None);
    let results = waits.await.unwrap().unwrap().into_inner().results;
    assert_eq!(failed(&results[0]).reason, "CANCELLED");
    assert_eq!(info(&idle.await.unwrap().unwrap_err()).reason, "DRAINING");
    drop(silent);
    stopped.end().await.unwrap();
}

/// Returns whether one who has just come is answered.
async fn is_served(socket: &std::path::Path) -> bool {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    let Ok(channel) = endpoint.connect().await else { return false };
    TensorlaneClient::new(channel).status(v1::StatusRequest {}).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_are_bounded_and_keep_no_client_out() {
    const SILENT: usize = 300;
    let world = World::with(Shape { sessions_max: 1, ..Shape::default() }).await;
    let mut first = world.client().await;
    first.status(v1::StatusRequest {}).await.unwrap();
    let mut closed = tokio::task::JoinSet::new();
    for _ in 0..SILENT {
        let mut silent = tokio::net::UnixStream::connect(&world.socket).await.unwrap();
        closed.spawn(async move { tokio::io::copy(&mut silent, &mut tokio::io::sink()).await });
    }
    // It is turned away for as long as those who go have not noticed.
    let comes_in = async { while !is_served(&world.socket).await {} };
    tokio::time::timeout(Duration::from_secs(60), comes_in).await.expect("a client is kept out");
    first.status(v1::StatusRequest {}).await.unwrap();
    // 65 may stay, of which two have spoken.
    for _ in 0..SILENT - 65 {
        let gone = tokio::time::timeout(Duration::from_secs(60), closed.join_next()).await;
        gone.expect("too many stay").unwrap().unwrap().unwrap();
    }
    drop(closed);
    world.end().await;
}
