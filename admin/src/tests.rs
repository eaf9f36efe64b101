//! The server over loopback: what it bounds, and that probes are answered meanwhile.

use std::net::SocketAddr;
use std::time::Instant;

use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;

const GRACE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// More than sockets hold that nobody reads.
const TEXT: usize = 16 << 20;

struct Scene {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
    panics: mpsc::UnboundedReceiver<String>,
}

async fn scene() -> Scene {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ok = get(|| async { "ok\n" });
    let broken = get(|| async {
        if true {
            panic!("part of the test")
        }
    });
    let routes = Router::new().route("/livez", ok).route("/broken", broken);
    let scrape = || "x".repeat(TEXT).into_response();
    let (told, panics) = mpsc::unbounded_channel();
    let panicked = move |why: &str| told.send(why.to_owned()).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = serve(listener, routes, scrape, panicked, async move { stopped.await.unwrap() }, GRACE);
    Scene { address, stop, server: tokio::spawn(serving), panics }
}

impl Scene {
    /// Connects, and says something.
    async fn say(&self, words: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(words.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(&self, path: &str) -> TcpStream {
        self.say(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }

    async fn is_alive(&self) -> bool {
        let reply = all_of(&mut self.ask("/livez").await).await.expect("it is answered");
        reply.starts_with("HTTP/1.1 200") && reply.ends_with("ok\n")
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.server);
        ended.await.expect("the server goes on").unwrap();
    }
}

/// Reads a connection until it is closed. None where it is not, or was reset.
async fn all_of(stream: &mut TcpStream) -> Option<String> {
    let mut all = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut all)).await.ok()?.ok().map(|_| all)
}

/// Reads the status of an answer, and no more of it.
async fn status(stream: &mut TcpStream) -> String {
    let mut head = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head))
        .await
        .expect("an answer")
        .expect("an answer");
    String::from_utf8_lossy(&head[9..]).into_owned()
}

/// Returns whether a connection is closed, with or without an answer.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn a_request_that_is_not_whole_in_time_ends() {
    let scene = scene().await;
    let began = Instant::now();
    let mut silent = scene.say("").await;
    let mut half = scene.say("GET /metrics HTTP/1.1\r\nHost: x\r\n").await;
    assert!(is_closed(&mut half).await && is_closed(&mut silent).await);
    assert!((HEAD_WITHIN..3 * HEAD_WITHIN).contains(&began.elapsed()), "{:?}", began.elapsed());
    scene.end().await;
}

#[tokio::test]
async fn a_connection_has_one_answer() {
    let scene = scene().await;
    let twice = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
    let mut stream = scene.say(&twice).await;
    let mut all = Vec::new();
    // What was said beyond may have the connection reset.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("it is closed");
    let text = String::from_utf8(all).unwrap();
    assert_eq!(
        (text.matches("HTTP/1.1 200").count(), text.contains("connection: close")),
        (1, true),
        "{text}"
    );
    scene.end().await;
}

#[tokio::test]
async fn scrapes_that_nobody_reads_take_no_place_but_their_own_and_end() {
    let scene = scene().await;
    let began = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..SCRAPES {
        let mut stream = scene.ask("/metrics").await;
        assert_eq!(status(&mut stream).await, "200");
        slow.push(stream);
    }
    let refused = all_of(&mut scene.ask("/metrics").await).await.expect("it is answered");
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
    assert!(scene.is_alive().await);
    while status(&mut scene.ask("/metrics").await).await == "503" {
        assert!(began.elapsed() < PATIENCE, "the slow readers stay");
        assert!(scene.is_alive().await);
    }
    assert!(began.elapsed() >= ALL_WITHIN, "{:?}", began.elapsed());
    drop(slow);
    scene.end().await;
}

#[tokio::test]
async fn a_scrape_that_is_read_is_whole_and_leaves_its_place_to_the_next_one() {
    let scene = scene().await;
    for _ in 0..SCRAPES + 1 {
        let all = all_of(&mut scene.ask("/metrics").await).await.expect("it is answered");
        assert!(all.starts_with("HTTP/1.1 200") && all.len() > TEXT);
    }
    scene.end().await;
}

#[tokio::test]
async fn a_route_that_panics_ends_its_connection_and_is_told() {
    let mut scene = scene().await;
    assert!(is_closed(&mut scene.ask("/broken").await).await);
    let told = tokio::time::timeout(PATIENCE, scene.panics.recv()).await;
    assert!(told.expect("it is told").unwrap().contains("panicked"));
    assert!(scene.is_alive().await);
    scene.end().await;
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let scene = scene().await;
    let mut stream = scene.say("GET /metrics HTTP/1.1\r\nHost: x\r\n").await;
    let line = format!("X: {}\r\n", "x".repeat(4000));
    // It may be closed before all of it is written.
    let _ = stream.write_all(line.repeat(90).as_bytes()).await;
    assert!(is_closed(&mut stream).await);
    assert!(scene.is_alive().await);
    scene.end().await;
}

#[tokio::test]
async fn it_stops_although_a_client_never_finishes_its_request() {
    let scene = scene().await;
    let _stuck = scene.say("GET /liv").await;
    assert!(scene.is_alive().await);
    scene.end().await;
}
