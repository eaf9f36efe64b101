//! Tests of what becomes of a sidecar one of whose threads panics: each thread and task on which all depends, in turn.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::Registry;
use tensorlane_proto::frame::{self, SESSION_VERSION, SessionKind};
use tensorlane_proto::generated as v1;

use super::parts::Parts;
use super::{serve_admin, within};
use crate::admin::{Health, Probe};
use crate::config::{Config, Sources};
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::threads::Threads;
use crate::threads::tests::NAMES;

const PATIENCE: Duration = Duration::from_secs(60);

/// All that a sidecar with a peers file and a directory of the node has; `clock` is within `tl-peer-clock`.
const ESSENTIAL: [&str; 14] = [
    "sessions",
    "keeper",
    "directory",
    "rotation",
    "tl-watcher",
    "tl-populator",
    "tl-reaper",
    "tl-peer-listen",
    "tl-peer-clock",
    "clock",
    "tl-node-listen",
    "tl-node-leases",
    "tl-quic",
    "tl-quic-listen",
];

fn config(directory: &Path) -> Config {
    let at = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    std::fs::write(at("peers.yaml"), "peers: []\n").unwrap();
    std::fs::create_dir(at("node")).unwrap();
    let variables = [
        ("PEER", "here".to_owned()),
        ("ARENA_SIZE", "64Mi".to_owned()),
        ("STATE_DIRECTORY", at("state")),
        ("SOCKETS_DIRECTORY", at("sockets")),
        ("NODE_DIRECTORY", at("node")),
        ("PEERS_LISTEN", "127.0.0.1:0".to_owned()),
        ("PEERS_FILE", at("peers.yaml")),
        ("ADMIN_LISTEN", "off".to_owned()),
    ];
    let variables =
        variables.map(|(name, value)| (format!("TENSORLANE_{name}"), value)).into_iter().collect();
    Sources { variables, ..Sources::default() }.load().unwrap().config
}

/// A running sidecar without its admin port and gRPC.
struct Scene {
    health: Health,
    threads: Threads,
    metrics: Arc<Metrics>,
    parts: Parts,
    directory: tempfile::TempDir,
}

impl Scene {
    fn new(fails_at: Option<&'static str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let health = Health::new();
        let threads = Threads::new(health.clone());
        fails_at.into_iter().for_each(|point| threads.fail_at(point));
        let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
        let parts = Parts::start(&config(directory.path()), &metrics, &threads).unwrap();
        Scene { health, threads, metrics, parts, directory }
    }

    fn session(&self) -> UnixStream {
        let socket = UnixStream::connect(self.directory.path().join("sockets/session.sock")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = v1::SessionHello { version: SESSION_VERSION, ..v1::SessionHello::default() };
        send(&socket, SessionKind::Hello, 1, &hello);
        // The answer brings a descriptor; its bytes are all that matters here.
        assert!((&socket).read(&mut [0; 4096]).unwrap() > 0);
        socket
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < deadline, "waited in vain until {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(self) {
        within(PATIENCE, &self.threads, self.parts.stop()).await.unwrap();
    }
}

fn send(mut socket: &UnixStream, kind: SessionKind, call: u64, message: &impl prost::Message) {
    socket.write_all(&frame::encode(kind.into(), 0, call, message)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_on_which_all_depends_that_panics_is_the_end_of_being_alive_and_is_named() {
    for point in ESSENTIAL {
        let scene = Scene::new(Some(point));
        scene.until(point, |scene| scene.health.ask(Probe::Alive).is_err()).await;
        let name = if point == "clock" { "tl-peer-clock" } else { point };
        assert_eq!(scene.health.ask(Probe::Alive), Err(format!("{name}: its thread has panicked\n")));
        let counted = "tensorlane_sidecar_panics_total{ended=\"process\"} 1";
        assert!(scene.metrics.render().unwrap().contains(counted), "{point}");
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_thread_that_runs_all_the_time_is_among_those_that_are_tried() {
    let scene = Scene::new(None);
    scene.until("all run", |scene| scene.threads.running().len() >= ESSENTIAL.len() - 1).await;
    for (name, count) in scene.threads.running() {
        assert!(ESSENTIAL.contains(&name.as_str()) && count == 1, "{count} {name}");
    }
    assert_eq!(scene.health.ask(Probe::Alive), Ok(()));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_thread_of_waits_which_the_first_one_starts_ends_being_alive_as_well() {
    let scene = Scene::new(Some("waits"));
    let session = scene.session();
    let names = vec!["never".to_owned()];
    send(
        &session,
        SessionKind::Lookup,
        2,
        &v1::LookupRequest { names, wait_ms: 60_000, ..Default::default() },
    );
    scene.until("it is seen", |scene| scene.health.ask(Probe::Alive).is_err()).await;
    assert_eq!(scene.health.ask(Probe::Alive), Err("waits: its thread has panicked\n".to_owned()));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_thread_panics_is_cut_and_the_next_one_is_served() {
    let scene = Scene::new(None);
    let (mut cut, other) = (scene.session(), scene.session());
    scene.threads.fail_at("session");
    send(&cut, SessionKind::Status, 2, &v1::StatusRequest::default());
    let end = cut.read(&mut [0; 4096]);
    assert!(
        matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    );
    scene.until("it is counted", |scene| scene.threads.panics(PanicScope::Connection) == 1).await;
    send(&other, SessionKind::Status, 2, &v1::StatusRequest::default());
    assert!((&other).read(&mut [0; 4096]).unwrap() > 0);
    drop((scene.session(), other));
    assert_eq!(scene.health.ask(Probe::Alive), Ok(()));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_backlog_is_drained_by_nobody_is_cut_and_another_one_is_served() {
    // In what it drains, and before it comes to that.
    for (point, expected) in [("drain of a session", [1_u64, 0]), ("job", [0, 1])] {
        let scene = Scene::new(None);
        let (reads_nothing, other) = (scene.session(), scene.session());
        reads_nothing.set_write_timeout(Some(PATIENCE)).unwrap();
        scene.threads.fail_at(point);
        let asks = frame::encode(SessionKind::Status.into(), 0, 2, &v1::StatusRequest::default());
        let (mut asking, deadline) = (&reads_nothing, Instant::now() + PATIENCE);
        let panics = || [PanicScope::Connection, PanicScope::Call].map(|scope| scene.threads.panics(scope));
        // No further: it would be cut for the length of its backlog.
        while panics() != expected && asking.write_all(&asks).is_ok() {
            assert!(Instant::now() < deadline, "{point}: it has no backlog");
        }
        scene.until("it is counted", |_| panics() == expected).await;
        let cut = asking.read_to_end(&mut Vec::new());
        let is_cut = cut.map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true);
        assert!(is_cut, "{point}: it is cut");
        send(&other, SessionKind::Status, 2, &v1::StatusRequest::default());
        assert!((&other).read(&mut [0; 4096]).unwrap() > 0, "{point}");
        assert_eq!(scene.health.ask(Probe::Alive), Ok(()));
        drop((reads_nothing, other));
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_task_of_the_admin_port_that_panics_is_the_end_of_being_alive() {
    let health = Health::new();
    let threads = Threads::new(health.clone());
    threads.fail_at("admin");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = Arc::new(Metrics::new(&Registry::new()).unwrap());
    let (_stop, stopped) = tokio::sync::watch::channel(());
    let serving = tokio::spawn(serve_admin(listener, &health, &metrics, &threads, stopped));
    assert!(serving.await.is_err_and(|error| error.is_panic()));
    assert_eq!(health.ask(Probe::Alive), Err("admin: its thread has panicked\n".to_owned()));
}

/// Threads and tasks that other tests have panic: those here, in `directory::kubernetes`, `grpc::lasting`, `store::orphans`, `workers`
/// and `waiters`.
const ELSEWHERE: [&str; 12] = [
    "admin",
    "directory-keep",
    "directory-publish",
    "directory-watch",
    "drain",
    "session",
    "tl-grpc-sleep",
    "tl-orphans",
    "waiter",
    "waiter-clock",
    "waits",
    "worker",
];

#[test]
fn every_thread_that_there_is_panics_in_some_test() {
    let essential = ESSENTIAL.into_iter().filter(|point| *point != "clock");
    let tried: BTreeSet<&str> = essential
        .chain(ELSEWHERE)
        .chain(crate::peer::tests::panics::tried())
        .chain(crate::grpc::tests::panics::tried())
        .collect();
    assert_eq!(tried, BTreeSet::from(NAMES));
}

#[tokio::test]
async fn an_end_that_hangs_is_left_behind_with_the_names_of_what_still_runs() {
    let threads = Threads::default();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let stuck = threads.start("stuck", PanicScope::Call, move || released.recv()).unwrap();
    while threads.running().is_empty() {
        tokio::task::yield_now().await;
    }
    let ended = within(Duration::from_millis(10), &threads, std::future::pending()).await.unwrap_err();
    assert!(ended.to_string().contains("1 stuck still run"), "{ended}");
    drop(release);
    assert!(stuck.join().unwrap().is_err());
}
