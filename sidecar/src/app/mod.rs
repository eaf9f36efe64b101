//! The process: what is started, in which order, and how it ends. Sees everything; decides nothing that a verb decides.
//!
//! ```text
//!   start:  logs, limits --> arena --> store, keeper --> exchange --> peers --> session socket --> gRPC --> ready
//!           a signal comes: the start has deadlines.drain, then it is left behind --> exit 1
//!   end:    not ready, nothing new --> transfers finish, or deadlines.drain is over, or a second signal comes
//!           --> gRPC --> session socket --> peers --> waiters --> workers --> keeper --> arena --> admin --> exit 0
//!           whatever hangs on the way is left behind after END_WITHIN --> exit 1
//! ```

mod drain;
mod entry;
mod error;
#[cfg(test)]
mod panics;
mod parts;
mod peering;
mod rotating;
mod scrape;
mod verbs;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::entry::peers_file_line;
pub use self::error::RunError;
use self::error::io as failed_to;
use self::parts::Parts;
use self::verbs::Verbs;
use crate::admin::{self, Health, Probe};
use crate::config::Config;
use crate::logging;
use crate::metrics::Metrics;
use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Time that the parts may take to end after the drain. In order it is a moment, or some seconds where other ends of
/// connections do not hear of it; more means that something hangs, and costs nothing but what it would have said last.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Runs the sidecar until SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// It could not start, or a part that it cannot do without has failed.
pub fn run(config: &Config) -> Result<(), RunError> {
    logging::start(&config.log)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed_to("start tokio"))?;
    let ended = runtime.block_on(serve(config));
    // Not dropped: that waits for what hangs, such as a name that a library has the system look up.
    runtime.shutdown_background();
    match &ended {
        Ok(signal) => tracing::info!(reason = signal, "sidecar ended"),
        Err(error) => tracing::error!(%error, "sidecar failed"),
    }
    ended.map(drop)
}

async fn serve(config: &Config) -> Result<&'static str, RunError> {
    // A limit on the size of files is an error of the call that meets it, and not the end of all tensors. tokio's handler stays.
    drop(signal(SignalKind::from_raw(libc::SIGXFSZ)).map_err(failed_to("take SIGXFSZ"))?);
    // From the first moment, so that a signal during the start is heard.
    let mut signals = Signals::listen()?;
    let metrics = Arc::new(Metrics::new(&Registry::new())?);
    let health = Health::new();
    let threads = Threads::new(health.clone());
    let (stop, _) = watch::channel(());
    let mut serving = tokio::task::JoinSet::new();
    if let Some(address) = config.admin.listen {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| RunError::AdminListen { address, source })?;
        let address = listener.local_addr().map_err(failed_to("ask for the admin address"))?;
        tracing::info!(%address, "metrics and health are served");
        serving.spawn(serve_admin(listener, &health, &metrics, &threads, stop.subscribe()));
    }
    let mut starting = pin!(start(config, &metrics, &threads));
    let (started, asked) = tokio::select! {
        started = &mut starting => (started, None),
        signal = signals.next() => {
            tracing::info!(reason = signal, most = ?config.deadlines.drain, "the start is waited for, and ended");
            let until = Instant::now() + config.deadlines.drain;
            let started = tokio::select! {
                started = tokio::time::timeout_at(until, &mut starting) => started.ok(),
                _ = signals.next() => None,
            };
            (started.ok_or(RunError::StartHangs { signal })?, Some((signal, until)))
        }
    };
    let (parts, mut verbs) = started?;
    health.started();
    tracing::info!(
        exchange = %config.exchange, peer = %config.peer, incarnation = %parts.incarnation(),
        fingerprint = %parts.fingerprint(), sockets = %config.sockets.directory.display(), "sidecar started"
    );
    let (reason, most) = match asked {
        Some((signal, until)) => (Ok(signal), until.saturating_duration_since(Instant::now())),
        None => {
            let reason = tokio::select! {
                signal = signals.next() => Ok(signal),
                failed = verbs.failed() => Err(failed),
            };
            (reason, config.deadlines.drain)
        }
    };
    health.block(Probe::Ready, "end", "the sidecar is ending");
    if reason.is_ok() {
        drain::drain(&parts, most, signals.next()).await;
    }
    let end = async {
        verbs.stop().await;
        let ended = parts.stop().await;
        stop.send_replace(());
        while let Some(joined) = serving.join_next().await {
            joined.map_err(io::Error::other).map_err(failed_to("serve metrics and health"))?;
        }
        ended
    };
    within(END_WITHIN, &threads, end).await.and(reason)
}

/// Serves metrics and health until it is stopped.
fn serve_admin(
    listener: TcpListener,
    health: &Health,
    metrics: &Arc<Metrics>,
    threads: &Threads,
    mut stopped: watch::Receiver<()>,
) -> impl Future<Output = ()> + Send + use<> {
    let until = async move { _ = stopped.changed().await };
    let serving = admin::serve(listener, health.clone(), Arc::clone(metrics), threads.clone(), until);
    threads.clone().task("admin", PanicScope::Process, serving)
}

/// Starts all parts, on a thread of their own: what hangs there, such as a file system, keeps nobody from hearing a signal.
async fn start(
    config: &Config,
    metrics: &Arc<Metrics>,
    threads: &Threads,
) -> Result<(Parts, Verbs), RunError> {
    let (settings, counts, starts) = (config.clone(), Arc::clone(metrics), threads.clone());
    let parts = tokio::task::spawn_blocking(move || Parts::start(&settings, &counts, &starts));
    let parts = parts.await.map_err(io::Error::other).map_err(failed_to("start"))??;
    let verbs = Verbs::start(config, parts.exchange(), parts.budgets(), metrics).await?;
    Ok((parts, verbs))
}

/// The end, or that it did not come in time, because of which threads.
async fn within(
    most: Duration,
    threads: &Threads,
    end: impl Future<Output = Result<(), RunError>>,
) -> Result<(), RunError> {
    tokio::time::timeout(most, end).await.unwrap_or_else(|_| {
        let running: Vec<_> =
            threads.running().iter().map(|(name, count)| format!("{count} {name}")).collect();
        Err(RunError::Stuck { within: most, threads: running.join(", ") })
    })
}

/// The signals that end a sidecar.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal has gone. Nothing is read anew on it: the peers file is watched.
    hangup: Signal,
}

// === impl Signals ===

impl Signals {
    fn listen() -> Result<Self, RunError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed_to("listen for SIGTERM"))?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed_to("listen for SIGINT"))?,
            hangup: signal(SignalKind::hangup()).map_err(failed_to("listen for SIGHUP"))?,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
