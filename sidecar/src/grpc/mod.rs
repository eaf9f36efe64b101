//! gRPC: every verb, in any language. Knows HTTP/2 and sessions over it; what a verb does is the exchange's.
//!
//! ```text
//!   Unix socket, loopback port --> service: caller from the metadata --> exchange --> results, or one status
//!                                    |
//!                                    '--> sessions: a stream keeps one alive; its leases end a grace after the stream
//! ```
//!
//! gRPC carries no descriptors of memory, so bytes are copied: Put and Fill write chunks into blocks of the sidecar, Get
//! reads chunks out of them, and Acquire leases without a map.

mod bounds;
mod broken;
mod call;
mod channels;
mod coming;
mod framing;
mod get;
mod guests;
mod kept;
mod lasting;
mod limits;
mod open_calls;
mod outlet;
mod pipes;
mod put;
mod results;
mod service;
mod sessions;
mod sets;
mod status;
mod watching;
mod weighed;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::generated::DESCRIPTORS;
use tensorlane_proto::generated::tensorlane_server::TensorlaneServer;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::server::NamedService;
use tonic::transport::server::Router;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use self::bounds::Bounded;
use self::broken::WholeRequests;
use self::call::Cancelled;
use self::guests::{Comes, Guest, Guests};
use self::open_calls::OpenCalls;
use self::service::Service;
use self::sessions::Sessions;
use self::weighed::Weighed;
use crate::exchange::Exchange;
use crate::metrics::Metrics;
use crate::output_budget::OutputBudget;
use crate::seldom::Seldom;
use crate::session::Requests;
use crate::socket;
use crate::threads::Threads;

/// Time that calls may go on when the server stops. They were told to end at its beginning.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted: without descriptors the next attempt would fail at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Lines of connections that could not be accepted: out of descriptors, each try fails.
static ACCEPT_FAILED: Seldom = Seldom::new();

/// Settings that the server needs to know.
#[derive(Debug, Clone)]
pub struct GrpcSettings {
    /// Path of the Unix socket; replaced atomically where a dead sidecar left one.
    pub socket: PathBuf,
    /// A loopback address to listen on as well. TCP carries no identity: every container of the pod reaches it.
    pub listen: Option<SocketAddr>,
    /// Most sessions at a time, those in their grace included. Each costs a task and about 1 KiB.
    pub sessions_max: usize,
    /// Time for which the leases of a session wait for its client after its stream has ended.
    pub grace: Duration,
    /// Time for which a call may stand still that does not say, and a client may read nothing of what waits for it.
    pub patience: Duration,
    /// The budget of buffers and of answers that wait to be read.
    pub unread: OutputBudget,
    /// Limit of that budget, in bytes.
    pub unread_max: u64,
    /// The budget of requests: what they become while they wait or run.
    pub requests: Requests,
}

/// The listeners, before anything is served.
pub struct GrpcServer {
    settings: GrpcSettings,
    unix: UnixListener,
    tcp: Option<TcpListener>,
}

/// Binds and serves until `stop` is done; see [`GrpcServer`].
///
/// # Errors
/// The socket or the port cannot be had, or the accepting failed.
pub async fn serve(
    settings: GrpcSettings,
    exchange: Arc<Exchange>,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    GrpcServer::bind(settings).await?.serve(exchange, metrics, stop).await
}

// === impl GrpcServer ===

impl GrpcServer {
    /// Binds the Unix socket, and the port where one is asked for.
    ///
    /// # Errors
    /// They cannot be had; or the address is not a loopback one.
    pub async fn bind(settings: GrpcSettings) -> io::Result<Self> {
        let tcp = match settings.listen {
            None => None,
            Some(address) if address.ip().is_loopback() => {
                Some(TcpListener::bind(address).await.map_err(|error| at(&address, &error))?)
            }
            Some(address) => {
                let why = format!("gRPC carries no identity and listens on loopback only, not on {address}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        };
        let unix = socket::bind(&settings.socket).and_then(UnixListener::from_std);
        let unix = unix.map_err(|error| at(&settings.socket.display(), &error))?;
        Ok(Self { settings, unix, tcp })
    }

    /// Address of the port, if there is one.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<Option<SocketAddr>> {
        self.tcp.as_ref().map(TcpListener::local_addr).transpose()
    }

    /// Serves until `stop` is done; unhealthy from the moment that the exchange takes nothing new. Then sessions end, waiting calls are cancelled, and whatever is still open a second
    /// later is left to the end of the runtime.
    ///
    /// # Errors
    /// The accepting failed.
    pub async fn serve(
        self,
        exchange: Arc<Exchange>,
        metrics: Arc<Metrics>,
        stop: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let Self { settings, unix, tcp } = self;
        let sessions =
            Sessions::new(settings.sessions_max, settings.grace, Arc::clone(&exchange), Arc::clone(&metrics));
        let (closed, threads) = (Cancelled::of(exchange.gate().ending()), exchange.threads().clone());
        let service = Service::new(exchange, Arc::clone(&metrics), sessions);
        let (mut health, router) = router(service.clone(), &settings, &threads).await?;
        let (stopping, stopped) = watch::channel(false);
        let guests = Guests::for_sessions(
            settings.sessions_max,
            settings.patience,
            settings.unread.clone(),
            Arc::clone(&metrics),
        );
        let mut serving = pin!(both(router, unix, tcp, Arc::clone(&guests), stopped));
        let unhealthy = async {
            closed.wait().await;
            tell(&health, ServingStatus::NotServing).await;
            std::future::pending::<()>().await;
        };
        let early = tokio::select! {
            served = &mut serving => Some(served),
            () = stop => None,
            () = unhealthy => None,
        };
        tell(&health, ServingStatus::NotServing).await;
        for name in health_names() {
            // Ends the streams of those who watch.
            health.clear_service_status(name).await;
        }
        service.stop();
        // It is the end of the path, whoever made it: nobody answers there any more.
        let _ = std::fs::remove_file(&settings.socket);
        if let Some(served) = early {
            return served;
        }
        stopping.send_replace(true);
        guests.show_out_silent();
        tokio::time::timeout(STOP_GRACE, serving).await.unwrap_or_else(|_| {
            tracing::warn!("some gRPC calls did not end in time; they are cut");
            Ok(())
        })
    }
}

fn health_names() -> [&'static str; 2] {
    ["", TensorlaneServer::<Service>::NAME]
}

/// Tells those who ask how the server is, by every name.
async fn tell(health: &HealthReporter, status: ServingStatus) {
    for name in health_names() {
        health.set_service_status(name, status).await;
    }
}

/// Error with where it was met.
fn at(place: &dyn std::fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

/// The verbs, health and reflection.
async fn router(
    service: Service,
    settings: &GrpcSettings,
    threads: &Threads,
) -> io::Result<(HealthReporter, Router)> {
    let (health, health_service) = tonic_health::server::health_reporter();
    tell(&health, ServingStatus::Serving).await;
    let described = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection = described().build_v1().map_err(io::Error::other)?;
    // Tools that are older than version 1 ask for this one alone.
    let older = described().build_v1alpha().map_err(io::Error::other)?;
    let verbs = TensorlaneServer::new(service).max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
    let GrpcSettings { unread, unread_max, patience, requests, .. } = settings;
    let verbs = Weighed::new(verbs, requests.clone());
    let (open, most) = (OpenCalls::default(), (*unread_max, *patience));
    let verbs = Bounded::new(WholeRequests(verbs), open.clone(), unread.clone(), most, threads.clone());
    let health_service = health_service.max_decoding_message_size(limits::QUESTION_BYTES_MAX);
    let health_service = Bounded::new(health_service, open.clone(), unread.clone(), most, threads.clone());
    let reflection = reflection.max_decoding_message_size(limits::QUESTION_BYTES_MAX);
    let reflection = Bounded::new(reflection, open.clone(), unread.clone(), most, threads.clone());
    let older = older.max_decoding_message_size(limits::QUESTION_BYTES_MAX);
    let older = Bounded::new(older, open, unread.clone(), most, threads.clone());
    let router = limits::server().add_service(verbs).add_service(health_service);
    Ok((health, router.add_service(reflection).add_service(older)))
}

/// Serves both listeners until the signal, and then until their calls have ended.
async fn both(
    router: Router,
    unix: UnixListener,
    tcp: Option<TcpListener>,
    guests: Arc<Guests>,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let incoming = patient(UnixListenerStream::new(unix), Arc::clone(&guests));
    let over_unix = router.clone().serve_with_incoming_shutdown(incoming, is_set(stopped.clone()));
    let over_tcp = async {
        let Some(tcp) = tcp else { return Ok(()) };
        let incoming = TcpListenerStream::new(tcp).map(|socket| socket.and_then(without_delay));
        router.serve_with_incoming_shutdown(patient(incoming, guests), is_set(stopped)).await
    };
    tokio::try_join!(over_unix, over_tcp).map(|_| ()).map_err(io::Error::other)
}

async fn is_set(mut signal: watch::Receiver<bool>) {
    // A sender that is gone says the same.
    let _ = signal.wait_for(|set| *set).await;
}

fn without_delay(socket: tokio::net::TcpStream) -> io::Result<tokio::net::TcpStream> {
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Connections for which there is room, with a pause after each that could not be accepted.
fn patient<S: Comes>(
    incoming: impl Stream<Item = io::Result<S>>,
    guests: Arc<Guests>,
) -> impl Stream<Item = io::Result<Guest<S>>> {
    let accepted = incoming.then(|accepted| async {
        if let Err(error) = &accepted {
            if let Some(times) = ACCEPT_FAILED.times(Instant::now()) {
                tracing::warn!(%error, times, "a gRPC connection could not be accepted");
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
        accepted
    });
    accepted.filter_map(move |accepted| match accepted {
        Ok(connection) => guests.admit(connection).map(Ok),
        Err(error) => Some(Err(error)),
    })
}

#[cfg(test)]
pub(crate) mod tests;
