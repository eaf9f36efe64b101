//! The process: reads its arguments, starts its tasks, and ends them.
//!
//! ```text
//!   all replicas:  admin (probes, metrics)   certificates, path ──> webhook ──> events
//!   the leader:    controller (peers, exchanges, permissions)   webhook configurations
//! ```
//!
//! Every task has this module as its owner; one that ends before it is told to ends the process, and Kubernetes starts
//! it again.

mod admin;
mod args;
mod certificates;
mod events;
mod history;
mod leader;
mod lease;
mod logging;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use admin::Readiness;
pub use args::Args;
pub use history::History;
pub use logging::subscriber;

use crate::certs::Current;
use crate::metrics::Metrics;
use crate::webhook::{Bounds, Gate, Handler, KubeFacts, Notes, Server};

/// Reason why the process cannot go on.
#[derive(Debug, Error)]
pub enum AppError {
    /// No API server is configured.
    #[error("the API server cannot be found: {0}; run in a pod, or give a kubeconfig")]
    NoCluster(Box<kube::Error>),
    /// An address is taken or not ours.
    #[error("{address} cannot be listened on: {source}")]
    Listen {
        /// Address that cannot be listened on.
        address: std::net::SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// By the library.
    #[error("metrics cannot be set up: {0}")]
    Metrics(#[from] prometheus::Error),
    /// By the library.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// A task ended that should not have.
    #[error("{0}")]
    Task(String),
}

/// Time that tasks may take to end; the webhook's grace is within it.
const END: Duration = Duration::from_secs(15);

type Task = Result<(), AppError>;

/// Runs until `stop`.
///
/// # Errors
/// It cannot start, or a task ended by itself.
pub async fn run(args: Args, stop: CancellationToken) -> Result<(), AppError> {
    let client = Client::try_default().await.map_err(|error| AppError::NoCluster(Box::new(error)))?;
    let metrics = Arc::new(Metrics::new()?);
    let readiness = Readiness::default();
    let current = Current::default();
    let gate = Gate::default();
    let (announced, announced_seen) = watch::channel(certificates::Announced::default());
    let (written, written_seen) = watch::channel(None);
    let (notes, waiting) = Notes::new();
    let admin = listen(args.admin_listen).await?;
    let webhook = listen(args.webhook_listen).await?;

    let mut tasks: JoinSet<Task> = JoinSet::new();
    tasks.spawn(admin::serve(admin, readiness.clone(), Arc::clone(&metrics), stop.clone()));
    let keeper = certificates::Keeper {
        client: client.clone(),
        args: args.clone(),
        current: current.clone(),
        gate: gate.clone(),
        announced,
        written: written_seen,
        readiness,
        metrics: Arc::clone(&metrics),
    };
    tasks.spawn(keeper.run(stop.clone()));
    let facts = KubeFacts::new(client.clone(), args.defaults(), args.excluded());
    let routes = Handler::new(facts, args.defaults(), gate, notes, Arc::clone(&metrics)).routes();
    let server = Server::new(webhook, current, routes, Bounds::default())?;
    let serving = server.serve(stop.clone());
    tasks
        .spawn(async move { serving.await.map_err(|error| AppError::Task(format!("the webhook: {error}"))) });
    tasks.spawn(events::write(client.clone(), waiting, args.identity(), stop.clone()));
    let configuration = leader::Configuration { announced: announced_seen, written };
    tasks.spawn(leader::run(client, args, configuration, metrics, stop.clone()));
    supervise(tasks, stop).await
}

async fn listen(address: std::net::SocketAddr) -> Result<TcpListener, AppError> {
    TcpListener::bind(address).await.map_err(|source| AppError::Listen { address, source })
}

/// Waits for the end, and says which task brought it about if nobody wanted it.
async fn supervise(mut tasks: JoinSet<Task>, stop: CancellationToken) -> Result<(), AppError> {
    let first = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = tasks.join_next() => match ended {
            Some(Ok(Ok(()))) | None => Err(AppError::Task("a task ended before it was told to".to_owned())),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(panic)) => Err(AppError::Task(panic.to_string())),
        },
    };
    stop.cancel();
    let rest = async {
        let mut worst = Ok(());
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => worst = Err(error),
                Err(panic) => worst = Err(AppError::Task(panic.to_string())),
            }
        }
        worst
    };
    match tokio::time::timeout(END, rest).await {
        Ok(worst) => first.and(worst),
        Err(_) => first.and(Err(AppError::Task("tasks did not end in time".to_owned()))),
    }
}
