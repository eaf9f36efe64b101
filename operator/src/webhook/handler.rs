//! One call: read, ask for facts, plan, answer, count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;

use super::facts::FactSource;
use super::notes::Notes;
use super::review::Question;
use crate::metrics::Metrics;
use crate::plan::plan;

/// Where the API server calls.
pub const MUTATE_PATH: &str = "/mutate";

/// The most bytes of a call. The API server takes objects of up to 3 MiB; an object stands in a review once.
const BODY_BYTES_MAX: usize = 4 << 20;

/// How long facts may take. The API server waits 5 seconds, and then the pod is refused without a reason.
const FACTS_DEADLINE: Duration = Duration::from_secs(4);

/// Answers calls.
pub struct Handler<F> {
    facts: F,
    notes: Notes,
    metrics: Arc<Metrics>,
}

impl<F: FactSource> Handler<F> {
    /// Plans by these facts; tells owners by `notes`.
    pub fn new(facts: F, notes: Notes, metrics: Arc<Metrics>) -> Handler<F> {
        Handler { facts, notes, metrics }
    }

    /// The routes of the webhook.
    pub fn routes(self) -> Router {
        let call = post(|State(handler): State<Arc<Handler<F>>>, body: Bytes| async move {
            handler.call(&body).await
        });
        Router::new()
            .route(MUTATE_PATH, call)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(Arc::new(self))
    }

    async fn call(&self, body: &[u8]) -> Response {
        let began = Instant::now();
        let question = match Question::read(body) {
            Ok(question) => question,
            Err(error) => {
                tracing::warn!(%error, "a call that is no question about a pod");
                self.metrics.injection("bad_review", began.elapsed());
                return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
            }
        };
        let (label, review) = self.decide(&question).await;
        self.metrics.injection(label, began.elapsed());
        match serde_json::to_vec(&review) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        }
    }

    async fn decide(&self, question: &Question) -> (&'static str, impl serde::Serialize + use<F>) {
        let facts = self.facts.facts(&question.namespace, &question.pod);
        let facts = match tokio::time::timeout(FACTS_DEADLINE, facts).await {
            Ok(Ok(facts)) => facts,
            Ok(Err(error)) => {
                tracing::warn!(namespace = question.namespace, %error, "facts cannot be read");
                return ("no_facts", question.refuse(503, &error.to_string()));
            }
            Err(_) => {
                let why = "the API server does not tell the operator of the namespace in time; try again";
                tracing::warn!(namespace = question.namespace, why);
                return ("no_facts", question.refuse(503, why));
            }
        };
        let outcome = plan(&question.pod, &facts);
        if !question.dry_run && !self.notes.leave(&question.namespace, &question.pod, &outcome) {
            self.metrics.notes_dropped.inc();
        }
        (outcome.decision.label(), question.answer(&outcome))
    }
}
