//! Metrics and health over plain HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::AppError;
use crate::metrics::Metrics;

/// Readiness of the webhook to answer: it has a certificate. It does not depend on the API server, or a hiccup there
/// would take every replica out of its Service.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on it can.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Known {
    readiness: Readiness,
    stop: CancellationToken,
}

/// Time that requests that are open may go on at the end; a scrape takes milliseconds.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `stop`. Then nobody is answered that it is ready.
pub(super) async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> Result<(), AppError> {
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(Known { readiness, stop: stop.clone() });
    let panicked = |why: &str| tracing::error!(why, "a connection to the admin port has panicked");
    tensorlane_admin::serve(listener, routes, move || scrape(&metrics), panicked, stop.cancelled(), GRACE)
        .await;
    Ok(())
}

async fn ready(State(known): State<Known>) -> Response {
    if known.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the operator is ending\n").into_response();
    }
    if !known.readiness.0.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the webhook has no certificate yet\n").into_response();
    }
    "ok\n".into_response()
}

fn scrape(metrics: &Metrics) -> Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
