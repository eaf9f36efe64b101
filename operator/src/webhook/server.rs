//! TLS and HTTP for the webhook.
//!
//! An API server keeps a connection and sends all calls through it, so one replica would get all of them: a connection is
//! told to go away after a while and the next one may find another replica. Calls that are open are finished. Everything
//! that a caller can send has a bound.
//!
//! API servers call webhooks by HTTP/1.1, which has no word for "go away" but a header of an answer. A connection that is
//! closed while it is idle may be closed under a call that is on its way, and that call fails: so an old connection gets
//! its next answer with `Connection: close`, and whoever closes idle ones first is the client. HTTP/2 has GOAWAY.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rand::RngExt;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connections::{Connections, Place};
use crate::certs::Current;

/// Bounds on what a caller can take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once. An API server has one for each call that is open, and keeps a few; each takes a few tens of
    /// KiB. One more takes the place of the one that has been idle longest, and waits where none is idle.
    pub connections: usize,
    /// Connections at once of one address, so that nobody takes the places of all others. It costs an API server that
    /// has as many calls open that the next one waits; API servers that come through one proxy share it.
    pub of_one_source: usize,
    /// Time that a connection is not idle yet that has not called, because it is about to. It costs as long until those
    /// who never call make room for the next one of their source.
    pub fresh: Duration,
    /// Time that a new connection waits for a place. An API server waits 5 seconds for its answer.
    pub wait: Duration,
    /// Time that a handshake may take.
    pub handshake: Duration,
    /// Longest time that a connection may be idle, or the head of a request may take, by HTTP/1.1. API servers close
    /// what is idle for 90 seconds, and must come first. By HTTP/2 the age is enough: what is idle then is closed.
    pub idle: Duration,
    /// Age at which a connection is told to go away, up to a quarter earlier. Shorter spreads calls better, and costs a
    /// handshake (a millisecond of one core) each time.
    pub connection_age: Duration,
    /// Time in which calls that are on their way still find us at the end, in new connections and in idle ones. Each
    /// end takes that long.
    pub linger: Duration,
    /// Time that calls that are open may go on at the end.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 256,
            of_one_source: 192,
            fresh: Duration::from_secs(5),
            wait: Duration::from_secs(3),
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            connection_age: Duration::from_secs(30),
            linger: Duration::from_secs(3),
            grace: Duration::from_secs(10),
        }
    }
}

/// Time that a connection that was idle, and whose place somebody else has by now, may take to end: its caller is told,
/// and a call that came in the same moment is cut after that. Callers that keep others out have no more than that, either.
const CLOSING: Duration = Duration::from_secs(1);

/// Calls at once on a connection of HTTP/2. API servers open one connection for each call; it costs whoever does not that
/// more calls wait for each other.
const STREAMS_MAX: u32 = 8;

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    routes: Router,
    bounds: Bounds,
}

impl Server {
    /// Serves `routes` with whatever certificate is current.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(
        listener: TcpListener,
        current: Current,
        routes: Router,
        bounds: Bounds,
    ) -> Result<Server, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_no_client_auth().with_cert_resolver(Arc::new(current));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Server { listener, acceptor: TlsAcceptor::from(Arc::new(config)), routes, bounds })
    }

    /// Serves until `stop` and a while longer: for calls that are on their way, and at most the grace for those that are
    /// open then.
    ///
    /// # Errors
    /// The listener fails for good.
    pub async fn serve(self, stop: CancellationToken) -> io::Result<()> {
        let connections = TaskTracker::new();
        let places = Connections::new(self.bounds.connections, self.bounds.of_one_source, self.bounds.fresh);
        let mut end = pin!(lingering(&stop, self.bounds));
        loop {
            let (stream, source) = tokio::select! {
                () = end.as_mut() => break,
                accepted = self.listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) if is_passing(&error) => {
                        // Without descriptors the next try fails at once, too.
                        tracing::warn!(%error, "a connection cannot be accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            let (places, stop) = (Arc::clone(&places), stop.clone());
            let (acceptor, routes, bounds) = (self.acceptor.clone(), self.routes.clone(), self.bounds);
            connections.spawn(async move {
                match timeout(bounds.wait, places.enter(source.ip())).await {
                    Ok(Some(place)) => connection(stream, place, acceptor, routes, bounds, stop).await,
                    Ok(None) | Err(_) => {
                        tracing::warn!(source = %source.ip(), "no connection is idle and there are too many; one is closed");
                    }
                }
            });
        }
        drop(self.listener);
        connections.close();
        if timeout(self.bounds.grace, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "calls were cut off at the end");
        }
        Ok(())
    }
}

/// Returns whether accepting may work again later.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, OutOfMemory};
    let descriptors = [23, 24]; // ENFILE, EMFILE
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | OutOfMemory)
        || error.raw_os_error().is_some_and(|number| descriptors.contains(&number))
}

async fn connection(
    stream: TcpStream,
    place: Place,
    acceptor: TlsAcceptor,
    routes: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let accepted = tokio::select! {
        () = place.close.cancelled() => return,
        accepted = timeout(bounds.handshake, acceptor.accept(stream)) => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => serve_one(stream, &place, routes, bounds, &stop).await,
        Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
        Err(_) => tracing::debug!("a handshake took too long"),
    }
}

async fn serve_one(
    stream: TlsStream<TcpStream>,
    place: &Place,
    routes: Router,
    bounds: Bounds,
    stop: &CancellationToken,
) {
    let goes_away = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let old = Arc::new(AtomicBool::new(false));
    let routes = routes.layer(Extension(place.activity()));
    let routes = if goes_away { routes } else { closing_when(&old, routes) };
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(bounds.connection_age);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    let age = bounds.connection_age.mul_f64(rand::rng().random_range(0.75..=1.0));
    let mut in_the_way = pin!(place.close.cancelled());
    let mut replaced = false;
    tokio::select! {
        ended = serving.as_mut() => return tell(ended),
        () = in_the_way.as_mut() => replaced = true,
        () = tokio::time::sleep(age) => {}
        () = stop.cancelled() => {}
    }
    old.store(true, Ordering::Relaxed);
    if !goes_away && !replaced {
        tokio::select! {
            ended = serving.as_mut() => return tell(ended),
            () = in_the_way.as_mut() => replaced = true,
            () = lingering(stop, bounds) => {}
        }
    }
    serving.as_mut().graceful_shutdown();
    // Calls that are open take seconds at most; one that does not end is cut.
    let grace = if replaced { CLOSING } else { bounds.grace };
    tell(timeout(grace, serving).await.unwrap_or(Ok(())));
}

/// Until the end has come, and whoever has not heard of it has had time to.
async fn lingering(stop: &CancellationToken, bounds: Bounds) {
    stop.cancelled().await;
    tokio::time::sleep(bounds.linger).await;
}

/// Routes that say in an answer, once the connection is old, that it is the last one.
fn closing_when(old: &Arc<AtomicBool>, routes: Router) -> Router {
    let old = Arc::clone(old);
    routes.layer(map_response(move |mut answer: Response| {
        let is_last = old.load(Ordering::Relaxed);
        async move {
            if is_last {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        }
    }))
}

fn tell(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(error, "a connection broke");
    }
}
