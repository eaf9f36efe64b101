//! A sidecar of one process for one test, and what tests say to it.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use prometheus::Registry;
use tempfile::TempDir;
use tensorlane_memory::{Arena, ArenaOptions};
use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::tensorlane_client::TensorlaneClient;
use tensorlane_proto::identity::{ExchangeName, Fingerprint, Incarnation, PeerName};
use tensorlane_proto::ledger::{Limits, Totals};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_types::{ErrorInfo, StatusExt};

use super::super::{GrpcServer, GrpcSettings};
use crate::clock::Clock;
use crate::exchange::{Exchange, ExchangeSettings};
use crate::metrics::Metrics;
use crate::output_budget::OutputBudget;
use crate::session::Requests;
use crate::store::{Keeper, Me, Store, StoreSettings};
use crate::threads::Threads;
use crate::workers::Workers;

pub(super) const ARENA_BYTES: u64 = 32 << 20;
pub(super) const REQUEST_BYTES: u64 = 32 << 20;
/// Longer than any wait of a test that succeeds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) type Client = TensorlaneClient<Channel>;

pub(super) struct World {
    pub(super) exchange: Arc<Exchange>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) unread: OutputBudget,
    pub(super) requests: Requests,
    pub(super) address: Option<std::net::SocketAddr>,
    pub(super) socket: PathBuf,
    arena: Arc<Arena>,
    keeper: Keeper,
    workers: Workers,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
    _directory: TempDir,
}

/// Settings that a test may change.
pub(super) struct Shape {
    pub(super) sessions_max: usize,
    pub(super) grace: Duration,
    pub(super) tcp: bool,
    pub(super) ticket_ttl: Duration,
    pub(super) patience: Duration,
    pub(super) unread_max: u64,
}

impl Default for Shape {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self {
            sessions_max: 8,
            grace: minute,
            tcp: false,
            ticket_ttl: minute,
            patience: minute,
            unread_max: 128 << 20,
        }
    }
}

// === impl World ===

impl World {
    pub(super) async fn new() -> Self {
        Self::with(Shape::default()).await
    }

    pub(super) async fn with(shape: Shape) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (arena, store) = store(shape.ticket_ttl);
        let keeper = Keeper::start(Arc::clone(&store), &Threads::default()).unwrap();
        let (workers, metrics) = (Workers::default(), Arc::new(Metrics::new(&Registry::new()).unwrap()));
        let settings = ExchangeSettings {
            deadline: Duration::from_secs(30),
            deadline_max: Duration::from_secs(60),
            fingerprint: Fingerprint([7; 32]),
            routes: crate::exchange::RoutePolicy::default(),
            fanout: crate::exchange::FanoutSettings::default(),
            waiting_bytes: 32 << 20,
        };
        let exchange = Exchange::new(store, workers.clone(), Arc::clone(&metrics), settings);
        let (unread, requests) = (OutputBudget::new(shape.unread_max), Requests::new(REQUEST_BYTES));
        let socket = directory.path().join("grpc.sock");
        let settings = GrpcSettings {
            socket: socket.clone(),
            listen: shape.tcp.then(|| "127.0.0.1:0".parse().unwrap()),
            sessions_max: shape.sessions_max,
            grace: shape.grace,
            patience: shape.patience,
            unread: unread.clone(),
            unread_max: shape.unread_max,
            requests: requests.clone(),
        };
        let server = GrpcServer::bind(settings).await.unwrap();
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serve = server.serve(Arc::clone(&exchange), Arc::clone(&metrics), async { drop(stopped.await) });
        let serving = tokio::spawn(serve);
        Self {
            exchange,
            metrics,
            address,
            socket,
            arena,
            keeper,
            workers,
            stop,
            serving,
            unread,
            requests,
            _directory: directory,
        }
    }

    pub(super) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket.display())).unwrap();
        endpoint.connect().await.unwrap()
    }

    /// A connection whose windows are so large and no larger.
    pub(super) async fn narrow_channel(&self, window: u32) -> Channel {
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket.display())).unwrap();
        endpoint
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .connect()
            .await
            .unwrap()
    }

    pub(super) async fn client(&self) -> Client {
        TensorlaneClient::new(self.channel().await)
    }

    /// A client with a session, and what keeps it.
    pub(super) async fn session(&self) -> (Client, Session) {
        let mut client = self.client().await;
        let session = Session::open(&mut client, None).await.unwrap();
        (client, session)
    }

    pub(super) fn totals(&self) -> Totals {
        self.exchange.store().totals().0
    }

    pub(super) fn waiting(&self) -> usize {
        self.exchange.waiting_for_room()
    }

    /// The account balances at every instant; this waits until everything in it is free.
    pub(super) async fn until_free(&self) {
        self.until("everything is free", || {
            let usage = self.arena.usage();
            let sum = usage.free + usage.reserved + usage.sealed + usage.held + usage.retired;
            assert_eq!(sum, usage.total, "{usage:?}");
            let totals = self.totals();
            let kept_by = (totals.leases, totals.names, totals.tickets);
            usage.free == usage.total && totals.tensors == 0 && kept_by == (0, 0, 0)
        })
        .await;
    }

    pub(super) async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            let (totals, usage) = (self.totals(), self.arena.usage());
            assert!(Instant::now() < deadline, "waited in vain until {what}: {totals:?} {usage:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops the server; the test goes on.
    pub(super) async fn stop_serving(self) -> Stopped {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.serving).await.expect("the server ends").unwrap();
        Stopped {
            ended,
            exchange: self.exchange,
            arena: self.arena,
            keeper: self.keeper,
            workers: self.workers,
            _directory: self._directory,
        }
    }

    /// The end of every test: all is free, the server ends well, and so does everything that it started.
    pub(super) async fn end(self) {
        self.until_free().await;
        let stopped = self.stop_serving().await;
        stopped.end().await.unwrap();
    }
}

/// A world whose server has ended.
pub(super) struct Stopped {
    ended: std::io::Result<()>,
    pub(super) exchange: Arc<Exchange>,
    arena: Arc<Arena>,
    keeper: Keeper,
    workers: Workers,
    _directory: TempDir,
}

impl Stopped {
    pub(super) async fn end(self) -> std::io::Result<()> {
        tokio::task::spawn_blocking(move || {
            let usage = self.arena.usage();
            assert_eq!(usage.free, usage.total, "{usage:?}");
            self.exchange.stop_waiters();
            self.workers.stop();
            self.keeper.stop();
            self.arena.stop();
            self.ended
        })
        .await
        .unwrap()
    }
}

fn store(ticket_ttl: Duration) -> (Arc<Arena>, Arc<Store>) {
    let told: Arc<OnceLock<Weak<Store>>> = Arc::default();
    let tells = Arc::clone(&told);
    let on_room = Arc::new(move || {
        if let Some(store) = tells.get().and_then(Weak::upgrade) {
            store.notify();
        }
    });
    let options = ArenaOptions { segment_bytes: 4 << 20, ready_bytes: 0, ..ArenaOptions::new(ARENA_BYTES) };
    let arena = Arena::start(options, on_room).unwrap();
    let me = Me {
        exchange: ExchangeName::new("lab").unwrap(),
        peer: PeerName::new("here").unwrap(),
        incarnation: Incarnation(1),
    };
    let settings = StoreSettings {
        limits: Limits::default(),
        ticket_ttl,
        lease_grace: Duration::from_secs(10),
        metadata_bytes: 1 << 20,
    };
    let store = Store::new(me, settings, Arc::clone(&arena), Clock::start());
    told.set(Arc::downgrade(&store)).unwrap();
    (arena, store)
}

/// An open Session stream.
pub(super) struct Session {
    pub(super) id: String,
    pub(super) events: Streaming<v1::SessionEvent>,
}

impl Session {
    pub(super) async fn open(client: &mut Client, again: Option<&str>) -> Result<Self, Status> {
        let mut request = Request::new(v1::SessionRequest {});
        if let Some(id) = again {
            request.metadata_mut().insert(super::super::sessions::KEY, id.parse().unwrap());
        }
        let mut events = client.session(request).await?.into_inner();
        let id = events.message().await?.expect("the first event says the id").session_id;
        Ok(Self { id, events })
    }

    /// A request in this session.
    pub(super) fn with<T>(&self, message: T) -> Request<T> {
        with_session(&self.id, message)
    }
}

pub(super) fn with_session<T>(id: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(super::super::sessions::KEY, id.parse().unwrap());
    request
}

/// A header.
pub(super) fn item(dtype: DType, shape: &[u64], name: &str) -> v1::PutItem {
    v1::PutItem {
        descriptor: Some(descriptor(dtype, shape)),
        keep: Some(v1::Keep { name: name.to_owned(), ..v1::Keep::default() }),
        ..v1::PutItem::default()
    }
}

pub(super) fn descriptor(dtype: DType, shape: &[u64]) -> v1::Descriptor {
    v1::Descriptor { dtype: u32::from(dtype.code()), shape: shape.to_vec(), ..v1::Descriptor::default() }
}

pub(super) fn header(item: v1::PutItem) -> v1::PutChunk {
    v1::PutChunk { part: Some(v1::put_chunk::Part::Item(item)), deadline_ms: 0 }
}

pub(super) fn data(bytes: &[u8]) -> v1::PutChunk {
    let data = bytes::Bytes::copy_from_slice(bytes);
    v1::PutChunk { part: Some(v1::put_chunk::Part::Data(data)), deadline_ms: 0 }
}

/// A whole item in chunks of an odd length.
pub(super) fn whole(item: v1::PutItem, bytes: &[u8]) -> Vec<v1::PutChunk> {
    std::iter::once(header(item)).chain(bytes.chunks(777_777).map(data)).collect()
}

pub(super) fn named(name: &str) -> v1::Target {
    v1::Target { kind: Some(v1::target::Kind::Name(name.to_owned())), peer: String::new() }
}

pub(super) fn id(id: u64) -> v1::Target {
    v1::Target { kind: Some(v1::target::Kind::Id(id)), peer: String::new() }
}

pub(super) fn get(items: Vec<v1::GetItem>) -> v1::GetRequest {
    v1::GetRequest { items, ..v1::GetRequest::default() }
}

pub(super) fn all(target: v1::Target) -> v1::GetItem {
    v1::GetItem { target: Some(target), selection: None }
}

/// Outcome of one item of a Get.
pub(super) type Got = Result<(v1::GetHead, Vec<u8>), v1::Failure>;

/// Reads a Get stream to its end.
pub(super) async fn collect(mut stream: Streaming<v1::GetChunk>) -> Result<Vec<Got>, Status> {
    use v1::get_chunk::Part;
    let mut got: Vec<Got> = Vec::new();
    while let Some(chunk) = stream.message().await? {
        let index = usize::try_from(chunk.item).unwrap();
        match chunk.part.expect("a chunk has a part") {
            Part::Head(head) => got.push(Ok((head, Vec::new()))),
            Part::Failure(failure) => got.push(Err(failure)),
            Part::Data(data) => {
                assert!(!data.is_empty() && data.len() <= 1 << 20, "{}", data.len());
                got[index].as_mut().unwrap().1.extend_from_slice(&data);
            }
        }
        assert_eq!(index, got.len() - 1, "items come in order");
    }
    Ok(got)
}

pub(super) fn stored(result: &v1::StoredResult) -> &v1::Stored {
    match &result.outcome {
        Some(v1::stored_result::Outcome::Stored(stored)) => stored,
        other => panic!("{other:?}"),
    }
}

pub(super) fn failed(result: &v1::StoredResult) -> &v1::Failure {
    match &result.outcome {
        Some(v1::stored_result::Outcome::Failure(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn unname(client: &mut Client, name: &str) {
    let response = client.unname(v1::UnnameRequest { names: vec![name.to_owned()] }).await.unwrap();
    assert_eq!(response.into_inner().results, vec![v1::DoneResult { failure: None }]);
}

/// The reason that a status carries.
pub(super) fn info(status: &Status) -> ErrorInfo {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"));
    assert_eq!(info.domain, "tensorlane.dev");
    info
}

/// Bytes that are the same at no two near places.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
