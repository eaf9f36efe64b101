//! Connections to the admin port, which whoever reaches the pod may open: how many there are, how long each may say nothing, and
//! how much it may say. Knows HTTP/1.1, and nothing of what is asked.

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
/// How long the head of a request may take, and a connection be idle. It costs whoever scrapes less often than that a new
/// connection each time.
const HEAD_WITHIN: Duration = Duration::from_secs(90);
/// The longest head of a request. It costs each connection as much where it is used up.
const HEAD_MAX: usize = 16 << 10;
/// How long nobody is accepted where there was no descriptor for one: the next try would fail at once.
const REST: Duration = Duration::from_millis(100);

/// Those that are open.
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

/// Answers whoever connects until `stop` is done, and at most `grace` longer those who have asked by then.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    stop: impl Future<Output = ()>,
    grace: Duration,
) {
    let (stopping, stopped) = watch::channel(false);
    let mut connections = Connections::default();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = stop.as_mut() => break,
            Some(_) = connections.tasks.join_next() => {}
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
