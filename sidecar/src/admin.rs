//! Metrics and health over HTTP/1.1, on a listener of their own: nothing that a workload does can starve them of a socket.
//! What strangers can do there is bounded by `tensorlane_admin`.
//!
//! `/metrics` is Prometheus text. `/livez`, `/readyz` and `/startupz` answer 200 `ok`, or 503 and the obstacles, one a
//! line. Health depends on local things only; who watches over what says so with [`Health::block`] and [`Health::clear`].

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Time that open requests may still take when the server stops; a scrape takes milliseconds.
pub const GRACE: Duration = Duration::from_secs(1);

/// Probe, named by the question that it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Does the process work at all? A `no` has the container restarted.
    Alive,
    /// Has it begun? Until then nobody asks the other two.
    Started,
    /// Can it serve now? Implies `Started`.
    Ready,
}

/// Obstacles in the way of each probe. Clones are the same health.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Obstacles>>);

#[derive(Debug, Default)]
struct Obstacles {
    alive: BTreeMap<String, String>,
    started: BTreeMap<String, String>,
    ready: BTreeMap<String, String>,
}

impl Obstacles {
    fn of(&mut self, probe: Probe) -> &mut BTreeMap<String, String> {
        match probe {
            Probe::Alive => &mut self.alive,
            Probe::Started => &mut self.started,
            Probe::Ready => &mut self.ready,
        }
    }
}

/// The obstacle that every sidecar has until [`Health::started`].
const START: &str = "start";

impl Health {
    /// Alive, and not started.
    pub fn new() -> Health {
        let health = Health(Arc::default());
        health.block(Probe::Started, START, "the sidecar is starting");
        health
    }

    /// The start is over.
    pub fn started(&self) {
        self.clear(Probe::Started, START);
    }

    /// `what` stands in the way of `probe`; a later `why` replaces an earlier one.
    pub fn block(&self, probe: Probe, what: &str, why: impl Into<String>) {
        self.0.lock().of(probe).insert(what.to_owned(), why.into());
    }

    /// `what` no longer stands in the way.
    pub fn clear(&self, probe: Probe, what: &str) {
        self.0.lock().of(probe).remove(what);
    }

    /// Yes, or the obstacles, one a line.
    ///
    /// # Errors
    /// The obstacles.
    pub fn ask(&self, probe: Probe) -> Result<(), String> {
        let mut obstacles = self.0.lock();
        let mut lines: Vec<_> = obstacles.of(probe).iter().map(line).collect();
        if probe == Probe::Ready {
            lines.extend(obstacles.started.iter().map(line));
        }
        if lines.is_empty() { Ok(()) } else { Err(lines.concat()) }
    }
}

fn line((what, why): (&String, &String)) -> String {
    format!("{what}: {why}\n")
}

impl Default for Health {
    fn default() -> Self {
        Health::new()
    }
}

/// Serves until `stop` is done, and at most [`GRACE`] longer for requests that are open then.
pub async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: Arc<Metrics>,
    threads: Threads,
    stop: impl Future<Output = ()>,
) {
    let panicked = |why: &str| threads.panicked("admin", PanicScope::Connection, why);
    tensorlane_admin::serve(listener, probes(health), move || scrape(&metrics), panicked, stop, GRACE).await;
}

fn probes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(|State(health): State<Health>| async move { answer(&health, Probe::Alive) }))
        .route(
            "/startupz",
            get(|State(health): State<Health>| async move { answer(&health, Probe::Started) }),
        )
        .route("/readyz", get(|State(health): State<Health>| async move { answer(&health, Probe::Ready) }))
        .with_state(health)
}

fn answer(health: &Health, probe: Probe) -> Response {
    match health.ask(probe) {
        Ok(()) => "ok\n".into_response(),
        Err(obstacles) => (StatusCode::SERVICE_UNAVAILABLE, obstacles).into_response(),
    }
}

fn scrape(metrics: &Metrics) -> Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use prometheus::Registry;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    struct Scene {
        address: SocketAddr,
        health: Health,
        stop: oneshot::Sender<()>,
        server: JoinHandle<()>,
    }

    async fn scene() -> Scene {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Health::new();
        let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
        let (stop, stopped) = oneshot::channel();
        let serving =
            serve(
                listener,
                health.clone(),
                metrics,
                Threads::default(),
                async move { stopped.await.unwrap() },
            );
        Scene { address, health, stop, server: tokio::spawn(serving) }
    }

    impl Scene {
        async fn ask(&self, path: &str) -> (u16, String) {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).await.unwrap();
            let (head, body) = reply.split_once("\r\n\r\n").unwrap();
            (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
        }

        async fn end(self) {
            self.stop.send(()).unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(10), self.server);
            ended.await.expect("the server goes on").unwrap();
        }
    }

    #[tokio::test]
    async fn probes_answer_with_what_stands_in_the_way() {
        let scene = scene().await;
        assert_eq!(scene.ask("/livez").await, (200, "ok\n".to_owned()));
        assert_eq!(scene.ask("/startupz").await.0, 503);
        assert_eq!(scene.ask("/readyz").await.0, 503);
        scene.health.block(Probe::Ready, "arena", "being populated");
        scene.health.started();
        assert_eq!(scene.ask("/startupz").await.0, 200);
        assert_eq!(scene.ask("/readyz").await, (503, "arena: being populated\n".to_owned()));
        scene.health.clear(Probe::Ready, "arena");
        assert_eq!(scene.ask("/readyz").await.0, 200);
        let panics = || panic!("part of the test");
        let thread = Threads::new(scene.health.clone()).start("clock", PanicScope::Process, panics);
        assert!(thread.unwrap().join().is_err());
        assert_eq!(scene.ask("/livez").await, (503, "clock: its thread has panicked\n".to_owned()));
        scene.end().await;
    }

    #[tokio::test]
    async fn metrics_are_served_and_other_paths_are_not() {
        let scene = scene().await;
        let (status, body) = scene.ask("/metrics").await;
        assert!(status == 200 && body.contains("tensorlane_sidecar_build_info"), "{status} {body}");
        assert_eq!(scene.ask("/").await.0, 404);
        scene.end().await;
    }

    #[tokio::test]
    async fn it_stops_although_a_client_never_finishes_its_request() {
        let scene = scene().await;
        let mut stuck = TcpStream::connect(scene.address).await.unwrap();
        stuck.write_all(b"GET /metr").await.unwrap();
        assert_eq!(scene.ask("/livez").await.0, 200);
        scene.end().await;
    }
}
