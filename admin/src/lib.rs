//! The server behind the admin ports of sidecars and operators, where probes and metrics are asked for over HTTP/1.1.
//!
//! Whoever reaches the pod may connect, and a probe that fails costs a pod its tensors. Nobody is told from the kubelet by
//! an address, so no place is held by whoever waits:
//!
//! ```text
//!   connection ──> a place, among 512 ── its request ──> of anything else: answered at once, and closed
//!                    | none is free: the oldest of        of /metrics: one of 8 places for scrapes instead,
//!                    | the address that has most goes     or 503 with Retry-After
//!                    └ says nothing for 2 s: goes
//! ```
//! A probe says all that it wants when it comes, and its answer fits into the socket: so only as many newcomers as there
//! are places, within the moment that it takes to speak, would cost it its own.
//!
//! This crate knows nothing of what is asked but for `/metrics`; the routes are the caller's.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

pub use self::origin::Origin;
use self::places::Places;

mod origin;
mod places;

/// Connections at once that have asked nothing yet. Each takes a descriptor, and of memory some KiB and what it has said of its
/// request: 8 MiB in all at worst.
const PLACES: usize = 512;
/// Connections that may come while all places are taken, between two moments in which everybody is heard who has said something.
/// One that has just come is cut only behind so many of these moments as this goes into the places.
const BATCH: usize = 64;
/// Answers to scrapes at once. Each takes a descriptor and the text of all metrics until it is read, some hundred KiB.
const SCRAPES: usize = 8;
/// Time that the head of a request may take.
const HEAD_WITHIN: Duration = Duration::from_secs(2);
/// Time that a connection may last, with its answer. It is the time that Prometheus waits for one unless told otherwise.
const ALL_WITHIN: Duration = Duration::from_secs(10);
/// Seconds after which a scrape that found no place may come back.
const RETRY_AFTER: &str = "1";
/// The longest head of a request: the least that HTTP is read with. It costs each connection as much where it is used up.
const HEAD_MAX: usize = 8 << 10;
/// Time that nobody is accepted where there was no descriptor for one: the next try would fail at once.
const REST: Duration = Duration::from_millis(100);

/// State that all connections share.
struct Shared {
    places: Mutex<Places<AbortHandle>>,
    scrapes: Arc<Semaphore>,
    /// Held while metrics are rendered: that takes milliseconds of a thread, and one is enough.
    rendering: tokio::sync::Mutex<()>,
    routes: TowerToHyperService<Router>,
    scrape: Box<dyn Fn() -> Response + Send + Sync>,
}

/// A place, from the moment at which a connection comes until it ends.
struct Place {
    shared: Arc<Shared>,
    number: u64,
    /// Place among the scrapes, once the connection has it instead.
    scrape: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.places.lock().leave(self.number);
    }
}

impl Place {
    /// Answers a request.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response, Infallible> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if request.uri().path() != "/metrics" || !is_read {
            return self.shared.routes.call(request).await;
        }
        if !self.begin_scrape() {
            let why = format!("{SCRAPES} others read metrics now\n");
            let later = [(header::RETRY_AFTER, RETRY_AFTER)];
            return Ok((StatusCode::SERVICE_UNAVAILABLE, later, why).into_response());
        }
        let _turn = self.shared.rendering.lock().await;
        Ok((self.shared.scrape)())
    }

    /// Gives the place up for one among the scrapes, if there is one. From then on it gives way to nobody.
    fn begin_scrape(&self) -> bool {
        let Ok(permit) = Arc::clone(&self.shared.scrapes).try_acquire_owned() else { return false };
        *self.scrape.lock() = Some(permit);
        self.shared.places.lock().leave(self.number);
        true
    }
}

/// Answers whoever connects, one request a connection, until `stop` is done, and at most `grace` longer those who have asked by
/// then: `/metrics` with what `scrape` gives, everything else by `routes`, which answer at once and in some bytes. A panic in either
/// ends its connection, and `panicked` is told why.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    scrape: impl Fn() -> Response + Send + Sync + 'static,
    panicked: impl Fn(&str),
    stop: impl Future<Output = ()>,
    grace: Duration,
) {
    let shared = Arc::new(Shared {
        places: Mutex::new(Places::new(PLACES)),
        scrapes: Arc::new(Semaphore::new(SCRAPES)),
        rendering: tokio::sync::Mutex::default(),
        routes: TowerToHyperService::new(routes),
        scrape: Box::new(scrape),
    });
    let (stopping, stopped) = watch::channel(false);
    let (mut tasks, mut numbers, mut unheard) = (JoinSet::new(), 0.., 0);
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = stop.as_mut() => break,
            Some(ended) = tasks.join_next() => if let Err(error) = ended && error.is_panic() {
                panicked(&error.to_string());
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    if unheard >= BATCH || unheard == 0 && shared.places.lock().is_full() {
                        // Everybody is heard who has said something by now.
                        unheard = 0;
                        tokio::task::yield_now().await;
                    }
                    let Some(number) = numbers.next() else { break };
                    let place = Place { shared: Arc::clone(&shared), number, scrape: Mutex::default() };
                    // Locked before it runs: it may end at once.
                    let gave_way = {
                        let mut places = shared.places.lock();
                        let connection = tasks.spawn(one(stream, place, stopped.clone()));
                        places.take(number, from.ip(), connection)
                    };
                    if let Some(gave_way) = gave_way {
                        unheard += 1;
                        gave_way.abort();
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection to the admin port cannot be accepted");
                    tokio::time::sleep(REST).await;
                }
            },
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let all = async { while tasks.join_next().await.is_some() {} };
    // Whoever is left is cut with the set of tasks.
    let _ = tokio::time::timeout(grace, all).await;
}

async fn one(stream: TcpStream, place: Place, mut stopped: watch::Receiver<bool>) {
    // What was written and is not read is held by the kernel, after the connection's end too. Where it refuses, for longer.
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(ALL_WITHIN));
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_MAX);
    builder.http1().keep_alive(false);
    let place = Arc::new(place);
    let answer = service_fn(move |request| {
        let place = Arc::clone(&place);
        async move { place.answer(request).await }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    let ended = tokio::time::timeout(ALL_WITHIN, async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = async { _ = stopped.wait_for(|stopped| *stopped).await.is_ok() } => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    });
    match ended.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the admin port was cut"),
        Err(_) => tracing::debug!("a connection to the admin port was cut: nobody has read its answer"),
    }
}

#[cfg(test)]
mod tests;
