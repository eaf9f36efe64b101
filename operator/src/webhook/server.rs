//! TLS and HTTP for the webhook.
//!
//! An API server keeps one HTTP/2 connection and sends all calls through it, so one replica would get all of them: a
//! connection is told to go away after a while (GOAWAY, or `Connection: close`) and the next one may find another
//! replica. Calls that are open are finished. Everything that a caller can send has a bound.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rand::RngExt;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certs::Current;

/// What a caller can take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once. An API server has one or two; each takes a few tens of KiB.
    pub connections: usize,
    /// How long a handshake, or the head of a request, may take.
    pub handshake: Duration,
    /// When a connection is told to go away, up to a quarter earlier. Shorter spreads calls better, and costs a
    /// handshake (a millisecond of one core) each time.
    pub connection_age: Duration,
    /// How long calls that are open may go on at the end.
    pub grace: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 256,
            handshake: Duration::from_secs(5),
            connection_age: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

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

    /// Serves until `stop`, and at most the grace longer for calls that are open then.
    ///
    /// # Errors
    /// The listener fails for good.
    pub async fn serve(self, stop: CancellationToken) -> io::Result<()> {
        let connections = TaskTracker::new();
        let room = Arc::new(Semaphore::new(self.bounds.connections));
        loop {
            let (stream, _) = tokio::select! {
                () = stop.cancelled() => break,
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
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                tracing::warn!(most = self.bounds.connections, "too many connections; one is closed");
                continue;
            };
            let (acceptor, routes, bounds) = (self.acceptor.clone(), self.routes.clone(), self.bounds);
            let stop = stop.clone();
            connections.spawn(async move {
                connection(stream, acceptor, routes, bounds, stop).await;
                drop(permit);
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

/// Whether accepting may work again later.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, OutOfMemory};
    let descriptors = [23, 24]; // ENFILE, EMFILE
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | OutOfMemory)
        || error.raw_os_error().is_some_and(|number| descriptors.contains(&number))
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    routes: Router,
    bounds: Bounds,
    stop: CancellationToken,
) {
    let stream = match timeout(bounds.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a handshake failed"),
        Err(_) => return tracing::debug!("a handshake took too long"),
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.handshake);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(250)
        .keep_alive_interval(bounds.connection_age);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    tokio::pin!(serving);
    let age = bounds.connection_age.mul_f64(rand::rng().random_range(0.75..=1.0));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = tokio::time::sleep(age) => {
            serving.as_mut().graceful_shutdown();
            // Calls that are open take seconds at most; one that does not end is cut.
            timeout(bounds.grace, serving.as_mut()).await.unwrap_or(Ok(()))
        }
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            timeout(bounds.grace, serving.as_mut()).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection broke");
    }
}
