//! Tasks of streams that panic: their clients are told INTERNAL, each is counted once, and nothing of them is left.

use std::time::{Duration, Instant};

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Response, Status, Streaming};
use v1::channel_write_request::Step as Write;
use v1::pipe_request::Step as Pipe;

use super::sets::{create, drop_set};
use super::world::{
    Client, PATIENCE, Session, Shape, World, all, data, descriptor, get, header, info, item, named, pattern,
    stored, unname, whole,
};
use crate::metrics::label::PanicScope;

/// Tasks, and the points at which they panic.
const TASKS: [(&str, &str); 9] = [
    ("grpc-watch", "grpc-watch"),
    ("grpc-channel", "grpc-channel"),
    ("grpc-channel", "message written"),
    ("grpc-channel", "message read"),
    ("grpc-pipe", "grpc-pipe"),
    ("grpc-pipe", "pipe opened"),
    ("grpc-get", "grpc-get"),
    ("grpc-session", "session stream"),
    ("blocking", "blocking"),
];

/// Names of the tasks that panic in these tests.
pub(crate) fn tried() -> impl Iterator<Item = &'static str> {
    TASKS.iter().map(|(task, _)| *task)
}

/// Reason in which a stream ends; none where it ends well.
async fn reason<T>(stream: Result<Response<Streaming<T>>, Status>) -> String {
    let mut stream = match stream {
        Ok(stream) => stream.into_inner(),
        Err(status) => return info(&status).reason,
    };
    loop {
        match tokio::time::timeout(PATIENCE, stream.message()).await.expect("an answer comes") {
            Ok(Some(_)) => {}
            Ok(None) => return String::new(),
            Err(status) => return info(&status).reason,
        }
    }
}

/// Checks that a stream ends in INTERNAL, with a sentence.
async fn ends_in_internal<T>(mut stream: Streaming<T>) {
    let ended = loop {
        match tokio::time::timeout(PATIENCE, stream.message()).await.expect("an answer comes") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends well"),
            Err(status) => break status,
        }
    };
    assert_eq!((ended.code(), info(&ended).reason.as_str()), (Code::Internal, "INTERNAL"));
    assert!(ended.message().contains("broke off"), "{}", ended.message());
}

/// Messages of a client that goes on.
fn on<T>(messages: Vec<T>) -> impl Stream<Item = T> {
    tokio_stream::iter(messages).chain(tokio_stream::pending())
}

/// Opens a channel and writes a message. The stream goes on until the sender is dropped.
fn writes() -> (mpsc::Sender<v1::ChannelWriteRequest>, impl Stream<Item = v1::ChannelWriteRequest>) {
    let spec = v1::ChannelSpec { name: "c".to_owned(), slots: 4, slot_bytes: 4096, ..Default::default() };
    let open = Write::Open(v1::ChannelOpen { spec: Some(spec), ..Default::default() });
    let part = v1::ChannelPart { bytes: 1, data: vec![7_u8].into(), ..Default::default() };
    let message = Write::Message(v1::ChannelWriteMessage { parts: vec![part], wait_ms: None });
    let steps = [open, message].map(|step| v1::ChannelWriteRequest { step: Some(step) });
    let (goes_on, more) = mpsc::channel(1);
    (goes_on, tokio_stream::iter(steps).chain(ReceiverStream::new(more)))
}

fn reads() -> v1::ChannelReadRequest {
    let from = v1::ChannelFrom::Oldest.into();
    v1::ChannelReadRequest { name: "c".to_owned(), from, wait_ms: 20_000, ..Default::default() }
}

fn pipe(step: Pipe) -> impl Stream<Item = v1::PipeRequest> {
    on(vec![v1::PipeRequest { step: Some(step) }])
}

fn accepts() -> impl Stream<Item = v1::PipeRequest> {
    pipe(Pipe::Accept(v1::PipeAccept { name: "p".to_owned(), ..Default::default() }))
}

fn connects() -> impl Stream<Item = v1::PipeRequest> {
    pipe(Pipe::Connect(v1::PipeConnect { name: "p".to_owned(), wait_ms: 20_000, ..Default::default() }))
}

/// Opens a session, once there is room for it.
async fn session(client: &mut Client) -> Session {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Session::open(client, None).await {
            Ok(session) => return session,
            Err(status) => assert!(Instant::now() < deadline, "{status}"),
        }
        tokio::task::yield_now().await;
    }
}

/// Reason in which the call of a task ends that panics at a point.
async fn end(world: &World, point: &'static str) -> String {
    let threads = world.exchange.threads();
    let mut client = world.client().await;
    match point {
        "grpc-watch" => {
            threads.fail_at(point);
            reason(client.watch(v1::WatchRequest::default()).await).await
        }
        "grpc-channel" => {
            threads.fail_at(point);
            reason(client.channel_read(reads()).await).await
        }
        "message written" => {
            threads.fail_at(point);
            let (_goes_on, steps) = writes();
            reason(client.channel_write(steps).await).await
        }
        "message read" => {
            threads.fail_at(point);
            let (goes_on, steps) = writes();
            let writer = client.channel_write(steps).await.unwrap();
            let read = reason(client.channel_read(reads()).await).await;
            drop((goes_on, writer));
            read
        }
        "grpc-pipe" => {
            threads.fail_at(point);
            reason(client.pipe(accepts()).await).await
        }
        "pipe opened" => {
            threads.fail_at(point);
            let mut other = client.clone();
            let accepting = async { reason(client.pipe(accepts()).await).await };
            let connecting = async { reason(other.pipe(connects()).await).await };
            // Whichever was told first that it is opened.
            let ends = tokio::join!(accepting, connecting);
            if ends.0 == "INTERNAL" { ends.0 } else { ends.1 }
        }
        "grpc-get" => {
            let large = 8 << 20;
            let chunks = whole(item(DType::U8, &[large as u64], "w"), &pattern(large));
            client.put(tokio_stream::iter(chunks)).await.unwrap();
            // It is in the middle for as long as nobody reads.
            let mut narrow = Client::new(world.narrow_channel(64 << 10).await);
            threads.fail_at(point);
            let stream = narrow.get(get(vec![all(named("w"))])).await;
            world.until("its watch panics", || threads.panics(PanicScope::Call) == 1).await;
            world.until("its chunks go back", || world.exchange.store().streams().count() == 0).await;
            let got = reason(stream).await;
            unname(&mut client, "w").await;
            got
        }
        "session stream" => {
            threads.fail_at(point);
            reason(client.session(v1::SessionRequest {}).await).await
        }
        "blocking" => {
            let session = session(&mut client).await;
            let wish = v1::ReserveItem {
                descriptor: Some(descriptor(DType::U8, &[4])),
                ..v1::ReserveItem::default()
            };
            let request = v1::ReserveRequest { items: vec![wish], deadline_ms: 0 };
            let reserved = client.reserve(session.with(request)).await.unwrap().into_inner();
            let Some(v1::reserve_result::Outcome::Reserved(room)) = &reserved.results[0].outcome else {
                panic!("there is room")
            };
            threads.fail_at(point);
            let seal = v1::SealItem { id: room.id, crc32c: Some(0), ..v1::SealItem::default() };
            let sealed = client.seal(session.with(v1::SealRequest { items: vec![seal] })).await;
            info(&sealed.unwrap_err()).reason
        }
        other => panic!("{other} is no point of a task"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_in_the_middle_of_which_a_panic_comes_ends_in_internal_and_gives_back_what_it_leased() {
    let world = World::new().await;
    let mut client = world.client().await;
    let large = 4 << 20;
    let chunks = whole(item(DType::U8, &[large as u64], "w"), &pattern(large));
    client.put(tokio_stream::iter(chunks)).await.unwrap();
    create(&mut client, 4).await;
    let threads = world.exchange.threads();
    let rows = || v1::SetReadRequest { set: "set".to_owned(), ..v1::SetReadRequest::default() };
    // Most of it is still to be made once the first message is there.
    let mut narrow = Client::new(world.narrow_channel(64 << 10).await);
    let mut stream = narrow.get(get(vec![all(named("w"))])).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    threads.fail_at("grpc answer");
    ends_in_internal(stream).await;
    let mut stream = narrow.set_read(rows()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    threads.fail_at("grpc answer");
    ends_in_internal(stream).await;
    assert_eq!(threads.panics(PanicScope::Call), 2);
    let given_back = || world.exchange.store().streams().count() == 0 && world.totals().leases == 0;
    world.until("all is given back", given_back).await;
    // Before the first message, and of a call with one answer.
    threads.fail_at("grpc");
    assert_eq!(reason(client.get(get(vec![all(named("w"))])).await).await, "INTERNAL");
    threads.fail_at("grpc");
    assert_eq!(reason(client.set_read(rows()).await).await, "INTERNAL");
    threads.fail_at("grpc answer");
    let refused = client.status(v1::StatusRequest::default()).await.unwrap_err();
    assert_eq!((info(&refused).reason.as_str(), threads.panics(PanicScope::Call)), ("INTERNAL", 5));
    assert_eq!(reason(narrow.get(get(vec![all(named("w"))])).await).await, "", "the next one comes");
    unname(&mut client, "w").await;
    drop_set(&mut client, "set").await;
    drop(narrow);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_which_one_part_does_not_end_gives_back_the_others() {
    let world = World::with(Shape { grace: Duration::from_millis(1), ..Shape::default() }).await;
    let (mut client, session) = world.session().await;
    let chunks = vec![header(item(DType::U8, &[1], "")), data(&[1])];
    client.put(session.with(tokio_stream::iter(chunks))).await.unwrap();
    assert_eq!(world.totals().leases, 1);
    let threads = world.exchange.threads();
    threads.fail_at("session ends");
    drop(session);
    world.until("it is counted", || threads.panics(PanicScope::Connection) == 1).await;
    world.until("nothing is leased", || world.totals().leases == 0).await;
    drop(client);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_a_stream_that_panics_ends_it_in_internal_is_counted_once_and_leaves_nothing() {
    for (task, point) in TASKS {
        let shape = Shape { sessions_max: 1, grace: Duration::from_millis(1), ..Shape::default() };
        let world = World::with(shape).await;
        assert_eq!(end(&world, point).await, "INTERNAL", "{task} at {point}");
        let threads = world.exchange.threads();
        let scopes = [PanicScope::Process, PanicScope::Connection, PanicScope::Call];
        let panics = || scopes.map(|scope| threads.panics(scope));
        let expected: [u64; 3] = if task == "grpc-session" { [0, 1, 0] } else { [0, 0, 1] };
        world.until(&format!("{task} is counted at {point}"), || panics() == expected).await;
        let mut client = world.client().await;
        let chunks = vec![header(item(DType::U8, &[1], "next")), data(&[1])];
        let results = client.put(tokio_stream::iter(chunks)).await.unwrap().into_inner().results;
        assert!(!stored(&results[0]).reference.is_empty(), "{point}");
        unname(&mut client, "next").await;
        drop(session(&mut client).await);
        assert_eq!(panics(), expected, "{point}");
        drop(client);
        world.end().await;
    }
}
