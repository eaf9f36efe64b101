//! Tests of who is let in when all places are taken, and of who has to go.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Binds to an address of loopback, to be another source.
async fn from(source: &str, address: std::net::SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
    socket.connect(address).await.unwrap()
}

/// So few places; nobody is given time to call, and nobody waits.
fn tight(connections: usize, of_one_source: usize) -> Bounds {
    Bounds { connections, of_one_source, fresh: Duration::ZERO, wait: Duration::ZERO, ..Bounds::default() }
}

#[tokio::test]
async fn one_that_comes_in_a_burst_waits_for_those_who_are_about_to_call() {
    let patient = Duration::from_secs(3600);
    let scene = scene(Bounds { fresh: patient, wait: patient, ..tight(2, 2) }).await;
    let (mut first, _first) = scene.connect().await;
    let (mut second, _second) = scene.connect().await;
    let mut third = Box::pin(scene.handshake(&["h2"]));
    assert!(tokio::time::timeout(Duration::from_millis(100), third.as_mut()).await.is_err(), "it was let in");
    assert_eq!(ask(&mut first, &[ENABLED], true).await["allowed"], true);
    within(third).await;
    assert_eq!(ask(&mut second, &[ENABLED], true).await["allowed"], true, "it was not pushed out");
    scene.end().await;
}

#[tokio::test]
async fn a_new_connection_takes_the_place_of_the_one_that_has_been_idle_longest() {
    let scene = scene(tight(2, 2)).await;
    let (mut first, _first) = scene.connect().await;
    let (mut second, ended) = scene.connect().await;
    for sender in [&mut second, &mut first] {
        assert_eq!(ask(sender, &[ENABLED], true).await["allowed"], true);
    }
    let (mut third, _third) = scene.connect().await;
    within(ended).await.unwrap().unwrap();
    assert!(second.sender.ready().await.is_err(), "it has been told to go away");
    for sender in [&mut first, &mut third] {
        assert_eq!(ask(sender, &[ENABLED], true).await["allowed"], true);
    }
    scene.end().await;
}

#[tokio::test]
async fn whoever_says_nothing_or_half_a_call_keeps_nobody_out() {
    let scene = scene(tight(2, 2)).await;
    let mut silent = TcpStream::connect(scene.address).await.unwrap();
    let mut half = scene.handshake(&["http/1.1"]).await;
    let path = scene.path.as_str();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: 1000\r\n\r\n{{");
    half.write_all(head.as_bytes()).await.unwrap();
    let (mut one, _one) = scene.connect().await;
    let (mut other, _other) = scene.connect().await;
    for sender in [&mut one, &mut other] {
        assert_eq!(ask(sender, &[ENABLED], true).await["allowed"], true);
    }
    let mut rest = Vec::new();
    // With an end or a reset, whichever comes first.
    let _ = within(silent.read_to_end(&mut rest)).await;
    let _ = within(half.read_to_end(&mut rest)).await;
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    scene.end().await;
}

/// Else callers that say nothing more would have the operator's memory, whoever they are.
#[tokio::test]
async fn half_a_call_is_given_up_and_what_all_calls_take_has_a_bound() {
    let scene = scene(Bounds::default()).await;
    let path = scene.path.as_str();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {NAME}\r\ncontent-length: 4194304\r\n\r\n{{");
    let mut halves = Vec::new();
    for _ in 0..40 {
        let mut half = scene.handshake(&["http/1.1"]).await;
        half.write_all(head.as_bytes()).await.unwrap();
        halves.push(half);
    }
    let mut answers = Vec::new();
    for mut half in halves {
        let mut answer = Vec::new();
        // With an end or a reset after it, whichever comes first.
        let _ = within(half.read_to_end(&mut answer)).await;
        answers.push(String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or_default().to_owned());
    }
    assert!(answers.iter().all(|code| ["408", "503"].contains(&code.as_str())), "{answers:?}");
    assert!(answers.contains(&"408".to_owned()) && answers.contains(&"503".to_owned()), "{answers:?}");
    let (mut sender, _connection) = scene.connect().await;
    assert_eq!(ask(&mut sender, &[ENABLED], true).await["allowed"], true);
    scene.end().await;
}

#[tokio::test]
async fn one_source_takes_no_place_of_another() {
    let scene = scene(tight(3, 2)).await;
    let stream = scene.secured(from("127.0.0.9", scene.address).await, &["h2"]).await;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut other = Caller { sender, path: scene.path.as_str().to_owned() };
    let _connection = tokio::spawn(connection);
    let (mut own, first) = scene.connect().await;
    assert_eq!(ask(&mut own, &[ENABLED], true).await["allowed"], true);
    let mut more = Vec::new();
    for _ in 0..3 {
        more.push(scene.connect().await);
    }
    for (_, ended) in more.drain(..2) {
        // With an end or a reset, whichever comes first.
        let _ = within(ended).await.unwrap();
    }
    assert!(!first.is_finished(), "whoever has called goes after those who have not");
    for caller in [&mut own, &mut other] {
        assert_eq!(ask(caller, &[ENABLED], true).await["allowed"], true, "the oldest of all is not theirs");
    }
    scene.end().await;
}

#[tokio::test]
async fn a_call_that_is_open_keeps_its_connection_and_the_next_one_is_closed() {
    let mut scene = scene(tight(1, 1)).await;
    let (mut sender, _connection) = scene.connect().await;
    let shut = Arc::clone(&scene.door).acquire_many_owned(100).await.unwrap();
    let call = tokio::spawn(async move { ask(&mut sender, &[ENABLED], true).await });
    within(scene.entered.recv()).await.unwrap();
    let mut refused = TcpStream::connect(scene.address).await.unwrap();
    let end = within(refused.read(&mut [0])).await;
    assert!(end.is_err() || matches!(end, Ok(0)), "{end:?}");
    drop(shut);
    assert_eq!(within(call).await.unwrap()["allowed"], true);
    let (mut next, _next) = scene.connect().await;
    assert_eq!(ask(&mut next, &[ENABLED], true).await["allowed"], true);
    scene.end().await;
}

#[tokio::test]
async fn a_connection_that_stays_idle_is_closed() {
    let scene = scene(Bounds { idle: Duration::from_secs(5), ..Bounds::default() }).await;
    let stream = scene.handshake(&["http/1.1"]).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(MUTATE_PATH).header("host", NAME).body(Full::new(Bytes::from("no review")));
    let reply = within(sender.send_request(request.unwrap())).await.unwrap();
    assert_eq!(reply.status(), StatusCode::BAD_REQUEST);
    within(reply.into_body().collect()).await.unwrap();
    // With an end or an answer to nobody, which a client may take for a mistake.
    let _ = within(connection).await.unwrap();
    assert!(sender.ready().await.is_err());
    scene.end().await;
}
