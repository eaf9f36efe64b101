//! The gRPC server as a part: started, watched, stopped.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::error::{RunError, io as failed_to, remedy};
use crate::config::Config;
use crate::exchange::Exchange;
use crate::grpc::{GrpcServer, GrpcSettings};
use crate::metrics::Metrics;
use crate::output_budget::OutputBudget;
use crate::session::Requests;

/// The running server.
pub(super) struct Verbs {
    stop: watch::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

// === impl Verbs ===

impl Verbs {
    /// Binds the sockets and serves.
    pub(super) async fn start(
        config: &Config,
        exchange: &Arc<Exchange>,
        (unread, requests): (&OutputBudget, &Requests),
        metrics: &Arc<Metrics>,
    ) -> Result<Self, RunError> {
        let settings = GrpcSettings {
            socket: config.sockets.directory.join("grpc.sock"),
            listen: config.grpc.listen,
            sessions_max: config.limits.sessions,
            grace: config.gc.lease_grace,
            patience: config.deadlines.default,
            unread: unread.clone(),
            unread_max: config.limits.unread_bytes,
            requests: requests.clone(),
        };
        let server = GrpcServer::bind(settings).await.map_err(|error| {
            let told = format!("{error}{}", remedy("", &error, "grpc.listen"));
            failed_to("listen for gRPC (grpc.listen, sockets.directory)")(io::Error::new(error.kind(), told))
        })?;
        let (stop, mut stopped) = watch::channel(());
        let until = async move { _ = stopped.changed().await };
        let serving = tokio::spawn(server.serve(Arc::clone(exchange), Arc::clone(metrics), until));
        Ok(Self { stop, serving })
    }

    /// Done only when the server has ended by itself, which it must not.
    pub(super) async fn failed(&mut self) -> RunError {
        let source = match (&mut self.serving).await {
            Ok(Ok(())) => io::Error::other("it ended by itself"),
            Ok(Err(error)) => error,
            Err(panic) => io::Error::other(panic),
        };
        RunError::Io { action: "serve gRPC".into(), source }
    }

    /// Ends the server and waits for it.
    pub(super) async fn stop(self) {
        self.stop.send_replace(());
        if self.serving.is_finished() {
            return;
        }
        match self.serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "gRPC did not end in order"),
            Err(error) => tracing::warn!(%error, "gRPC did not end in order"),
        }
    }
}
