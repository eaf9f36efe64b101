//! Bounds of calls that stand still: buffers share one budget, and clients that stop are let go of.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::Streaming;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Channel;

use super::world::{Client, Shape, World, all, get, header, item, named, pattern, unname, whole};
use crate::metrics::label::GrpcCut;

const MIB: usize = 1 << 20;

/// A body that begins and does not end.
struct Half(VecDeque<Bytes>);

impl http_body::Body for Half {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.pop_front().map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(Frame::data(data)))))
    }
}

/// Sends so many bytes of a message of Put that has more; gives the status of the call when it ends.
async fn half_a_message(channel: Channel, bytes: usize) -> String {
    half_of("/tensorlane.v1.Tensorlane/Put", channel, bytes).await
}

/// Sends so many bytes of a message of any call that has more; gives the status of the call when it ends.
async fn half_of(path: &str, mut channel: Channel, bytes: usize) -> String {
    let prefix = [&[0][..], &u32::try_from(bytes + 1).unwrap().to_be_bytes()].concat();
    let body = Half([prefix.into(), vec![10; bytes].into()].into());
    let request = http::Request::post(path).header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(Body::new(body)).unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let answer = channel.call(request).await.unwrap();
    let (head, mut body) = answer.into_parts();
    let mut told = head.headers.get("grpc-status").cloned();
    while told.is_none() {
        let next = std::future::poll_fn(|context| http_body::Body::poll_frame(Pin::new(&mut body), context));
        let frame = next.await.expect("a status").unwrap();
        told = frame.trailers_ref().map(|trailers| trailers["grpc-status"].clone());
    }
    told.unwrap().to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_sent_messages_of_two_hundred_streams_stay_within_the_budget() {
    let limit = 16 << 20;
    let world = World::with(Shape { unread_max: limit, ..Shape::default() }).await;
    let channels = [world.channel().await, world.channel().await];
    let calls: Vec<_> =
        (0..200).map(|n| tokio::spawn(half_a_message(channels[n % 2].clone(), MIB))).collect();
    // Bytes come, so only twice the budget ends some, with the reason and the limit; the rest wait for their deadline.
    world
        .until("all that are too many were refused", || {
            // Each of the two threads may have booked a message and not let go of one yet.
            let booked = world.unread.bytes();
            assert!(booked <= 2 * (limit + MIB as u64 + 5), "{booked}");
            calls.iter().filter(|call| call.is_finished()).count() >= 200 - 32
        })
        .await;
    let (ended, open): (Vec<_>, Vec<_>) = calls.into_iter().partition(tokio::task::JoinHandle::is_finished);
    for call in ended {
        assert_eq!(call.await.unwrap(), "8", "RESOURCE_EXHAUSTED");
    }
    assert!(!open.is_empty());
    open.iter().for_each(tokio::task::JoinHandle::abort);
    drop(channels);
    world.until("the budget is whole again", || world.unread.bytes() == 0).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_stands_still_is_ended_after_the_patience_of_the_sidecar() {
    let patience = Duration::from_millis(300);
    let world = World::with(Shape { patience, ..Shape::default() }).await;
    assert_eq!(half_a_message(world.channel().await, MIB).await, "4", "DEADLINE_EXCEEDED");
    world.until("its buffer is gone", || world.unread.bytes() == 0).await;
    world.end().await;
}

/// Puts `slow` in a hundred chunks, over ten seconds. Returns whether it is stored.
async fn is_put_slowly(client: &mut Client) -> bool {
    const CHUNKS: usize = 100;
    let (send, receive) = tokio::sync::mpsc::channel(1);
    let bytes = pattern(CHUNKS);
    tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_millis(100));
        for chunk in std::iter::once(header(item(DType::U8, &[CHUNKS as u64], "slow")))
            .chain(bytes.iter().map(|byte| super::world::data(&[*byte])))
        {
            pace.tick().await;
            // Nobody takes it any more where the put was ended.
            if send.send(chunk).await.is_err() {
                return;
            }
        }
    });
    let stored = client.put(tokio_stream::wrappers::ReceiverStream::new(receive)).await;
    stored.is_ok_and(|stored| {
        let outcome = &stored.get_ref().results[0].outcome;
        matches!(outcome, Some(v1::stored_result::Outcome::Stored(_)))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_that_go_on_are_not_ended_however_long_they_take_together() {
    // Each chunk comes long before that is over, and all of them do not.
    let patience = Duration::from_secs(8);
    let world = World::with(Shape { patience, ..Shape::default() }).await;
    let mut client = world.client().await;
    // Where the machine stood still for as long, a put is ended, and done again.
    let mut tries = 1;
    while !is_put_slowly(&mut client).await {
        assert!(tries < 3, "it is ended, however often it is tried");
        tries += 1;
    }
    unname(&mut client, "slow").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_about_health_and_services_are_within_the_bounds() {
    let patience = Duration::from_millis(300);
    let world = World::with(Shape { patience, ..Shape::default() }).await;
    // The service of reflection ends its answers in silence.
    for (path, idle, large) in [
        ("/grpc.health.v1.Health/Check", "4", "11"),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "0", "0"),
    ] {
        for (bytes, status) in [(8 << 10, idle), (MIB, large)] {
            let ended = half_of(path, world.channel().await, bytes);
            let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
            assert_eq!(ended.expect(path), status, "{path} of {bytes} bytes");
        }
    }
    world.end().await;
}

/// Begins a get of `w` by a client that opens its window for so many bytes and reads nothing.
async fn unread_get(world: &World, window: u32) -> (Streaming<v1::GetChunk>, Client) {
    let mut client = Client::new(world.narrow_channel(window).await);
    let stream = client.get(get(vec![all(named("w"))])).await.unwrap();
    (stream.into_inner(), client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_http_has_are_in_the_budget_until_they_are_dropped_though_their_calls_have_ended() {
    const GETS: usize = 12;
    let world = World::new().await;
    let mut client = world.client().await;
    // One frame each, the whole answer; the end of the small one goes out with it.
    for size in [32 << 10, MIB - 4096] {
        let chunks = whole(item(DType::U8, &[size as u64], "w"), &pattern(size));
        client.put(tokio_stream::iter(chunks)).await.unwrap();
        let mut unread = Vec::new();
        for _ in 0..GETS {
            unread.push(unread_get(&world, 1024).await);
        }
        let expected = (GETS * size) as u64;
        world.until("all of them are counted", || world.unread.bytes() >= expected).await;
        drop(unread);
        world.until("the budget is whole again", || world.unread.bytes() == 0).await;
        unname(&mut client, "w").await;
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_that_stand_still_make_room_for_those_that_are_read_and_keep_their_connections() {
    const IDLE: usize = 40;
    let limit = 4 << 20;
    let world = World::with(Shape { unread_max: limit, ..Shape::default() }).await;
    let mut client = world.client().await;
    let size = 2 * MIB;
    let chunks = whole(item(DType::U8, &[size as u64], "w"), &pattern(size));
    client.put(tokio_stream::iter(chunks)).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(unread_get(&world, 60_000).await);
    }
    let began = Instant::now();
    // All of them moved a moment ago, and none is ended for the others.
    world.until("they have spent the budget", || world.unread.bytes() > limit).await;
    world.until("they stand still", || began.elapsed() > Duration::from_secs(3)).await;
    let mut stream = client.get(get(vec![all(named("w"))])).await.unwrap().into_inner();
    let mut bytes = 0;
    while let Some(chunk) = stream.message().await.expect("one who reads is not ended") {
        if let Some(v1::get_chunk::Part::Data(data)) = chunk.part {
            bytes += data.len();
        }
    }
    assert_eq!(bytes, size);
    world.until("the budget holds", || world.unread.bytes() <= limit).await;
    let mut ended = 0;
    for (mut stream, mut client) in idle {
        ended += loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => break 0,
                Err(_) => break 1,
            }
        };
        client.status(v1::StatusRequest {}).await.expect("a stream was ended, not its connection");
    }
    assert!((1..IDLE).contains(&ended), "{ended} of {IDLE} were ended");
    unname(&mut client, "w").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_nobody_takes_is_dropped_after_its_stream_has_ended() {
    let patience = Duration::from_secs(5);
    let world = World::with(Shape { patience, ..Shape::default() }).await;
    let mut client = world.client().await;
    let chunks = whole(item(DType::U8, &[2 * MIB as u64], "w"), &pattern(2 * MIB));
    client.put(tokio_stream::iter(chunks)).await.unwrap();
    let (stream, mut idle) = unread_get(&world, 60_000).await;
    world.until("its chunk is counted", || world.unread.bytes() > 0).await;
    world.until("its lease went back", || world.totals().leases == 0).await;
    world.until("its chunk is dropped", || world.unread.bytes() == 0).await;
    idle.status(v1::StatusRequest {}).await.expect("its stream was ended, not its connection");
    drop(stream);
    unname(&mut client, "w").await;
    world.end().await;
}

/// Frames of HTTP/2 that begin a connection and get a tensor, and then nothing is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_client_takes_no_byte_is_closed_with_all_that_it_asked_for() {
    let patience = Duration::from_secs(5);
    let world = World::with(Shape { patience, ..Shape::default() }).await;
    let mut client = world.client().await;
    let chunks = whole(item(DType::U8, &[8 << 20], "w"), &pattern(8 * MIB));
    client.put(tokio_stream::iter(chunks)).await.unwrap();
    // A client in between passes on what is sent, and stops to take what comes.
    let (mut through, path) =
        (UnixStream::connect(&world.socket).await.unwrap(), world.socket.with_extension("between"));
    let between = tokio::net::UnixListener::bind(&path).unwrap();
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix:{}", path.display()))
        .unwrap()
        .initial_stream_window_size(32 << 20)
        .initial_connection_window_size(32 << 20);
    let passing = tokio::spawn(async move {
        let (mut socket, _) = between.accept().await.unwrap();
        let mut buffer = vec![0; 64 << 10];
        let mut taken = 0;
        loop {
            tokio::select! {
                sent = socket.read(&mut buffer) => match sent {
                    Ok(0) | Err(_) => return,
                    Ok(n) => if through.write_all(&buffer[..n]).await.is_err() { return },
                },
                came = through.readable(), if taken < 4096 => {
                    came.unwrap();
                    let mut little = [0; 512];
                    if let Ok(n) = through.try_read(&mut little) {
                        taken += n;
                        socket.write_all(&little[..n]).await.unwrap();
                    }
                }
            }
        }
    });
    let mut reader = tensorlane_proto::generated::tensorlane_client::TensorlaneClient::new(
        endpoint.connect().await.unwrap(),
    );
    let getting = tokio::spawn(async move {
        let stream = reader.get(get(vec![all(named("w"))])).await;
        std::future::pending::<()>().await;
        drop(stream);
    });
    let cut = || world.metrics.sessions.cut_connections.at((GrpcCut::Stalled,)).get();
    world.until("the connection is cut", || cut() == 1).await;
    world.until("its leases went back", || world.totals().leases == 0).await;
    getting.abort();
    passing.abort();
    unname(&mut client, "w").await;
    world.end().await;
}
