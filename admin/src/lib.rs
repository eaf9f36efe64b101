//! The server behind the admin ports of sidecars and operators, where probes and metrics are asked for over HTTP/1.1.
//!
//! Whoever reaches the pod may connect: this crate bounds how many connections there are, how long each may say nothing, and how
//! much it may say. It knows nothing of what is asked; the routes are the caller's.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Connections at once. Probes and scrapes take milliseconds and are few; each connection takes a descriptor, some KiB and an
/// answer that nobody reads. One more takes the place of the oldest: whoever holds all of them, silent or slow, keeps no probe out;
/// only as many new ones as that in the moment of a probe do.
const CONNECTIONS_MAX: usize = 64;
/// Time that the head of a request may take, and that a connection may be idle. It costs whoever scrapes less often
/// than that a new connection each time.
const HEAD_WITHIN: Duration = Duration::from_secs(90);
/// The longest head of a request. It costs each connection as much where it is used up.
const HEAD_MAX: usize = 16 << 10;
/// Time that nobody is accepted where there was no descriptor for one: the next try would fail at once.
const REST: Duration = Duration::from_millis(100);

/// Open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// The oldest first.
    open: VecDeque<AbortHandle>,
}

impl Connections {
    fn begin(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.open.retain(|other| !other.is_finished());
        if self.open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = self.open.pop_front()
        {
            oldest.abort();
        }
        self.open.push_back(self.tasks.spawn(connection));
    }
}

/// Answers whoever connects, 64 connections at a time, until `stop` is done, and at most `grace` longer those who have asked by then.
/// A panic in a route ends its connection, and `panicked` is told why.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    panicked: impl Fn(&str),
    stop: impl Future<Output = ()>,
    grace: Duration,
) {
    let (stopping, stopped) = watch::channel(false);
    let mut connections = Connections::default();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = stop.as_mut() => break,
            Some(ended) = connections.tasks.join_next() => if let Err(error) = ended && error.is_panic() {
                panicked(&error.to_string());
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.begin(one(stream, routes.clone(), stopped.clone())),
                Err(error) => {
                    tracing::debug!(%error, "a connection to the admin port cannot be accepted");
                    tokio::time::sleep(REST).await;
                }
            },
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let all = async { while connections.tasks.join_next().await.is_some() {} };
    // Whoever is left is cut with the set of tasks.
    let _ = tokio::time::timeout(grace, all).await;
}

async fn one(stream: TcpStream, routes: Router, mut stopped: watch::Receiver<bool>) {
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { _ = stopped.wait_for(|stopped| *stopped).await.is_ok() } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the admin port was cut");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::JoinHandle;

    use super::*;

    const GRACE: Duration = Duration::from_secs(1);

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
        let (told, panics) = mpsc::unbounded_channel();
        let panicked = move |why: &str| told.send(why.to_owned()).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(listener, routes, panicked, async move { stopped.await.unwrap() }, GRACE);
        Scene { address, stop, server: tokio::spawn(serving), panics }
    }

    impl Scene {
        async fn is_alive(&self) -> bool {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.unwrap();
            reply.starts_with("HTTP/1.1 200") && reply.ends_with("ok\n")
        }

        async fn end(self) {
            self.stop.send(()).unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(10), self.server);
            ended.await.expect("the server goes on").unwrap();
        }
    }

    /// Returns whether a connection is closed, with or without an answer.
    async fn is_closed(stream: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.is_ok()
    }

    #[tokio::test]
    async fn those_who_never_finish_a_request_make_room_for_probes() {
        let scene = scene().await;
        let mut silent = Vec::new();
        for _ in 0..200 {
            let mut stream = TcpStream::connect(scene.address).await.unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n").await.unwrap();
            silent.push(stream);
        }
        assert!(scene.is_alive().await);
        assert!(is_closed(&mut silent[0]).await, "the oldest has gone");
        drop(silent);
        scene.end().await;
    }

    #[tokio::test]
    async fn a_route_that_panics_ends_its_connection_and_is_told() {
        let mut scene = scene().await;
        let mut stream = TcpStream::connect(scene.address).await.unwrap();
        stream.write_all(b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert!(is_closed(&mut stream).await);
        let told = tokio::time::timeout(Duration::from_secs(10), scene.panics.recv()).await;
        assert!(told.expect("it is told").unwrap().contains("panicked"));
        assert!(scene.is_alive().await);
        scene.end().await;
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let scene = scene().await;
        let mut stream = TcpStream::connect(scene.address).await.unwrap();
        let line = format!("X: {}\r\n", "x".repeat(4000));
        let head = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{}", line.repeat(90));
        // It may be closed before all of it is written.
        let _ = stream.write_all(head.as_bytes()).await;
        assert!(is_closed(&mut stream).await);
        assert!(scene.is_alive().await);
        scene.end().await;
    }

    #[tokio::test]
    async fn it_stops_although_a_client_never_finishes_its_request() {
        let scene = scene().await;
        let mut stuck = TcpStream::connect(scene.address).await.unwrap();
        stuck.write_all(b"GET /liv").await.unwrap();
        assert!(scene.is_alive().await);
        scene.end().await;
    }
}
