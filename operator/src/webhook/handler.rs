//! A single call: read, ask for facts, plan, answer, count.
//!
//! A call without the secret part of the path costs an API server nothing, writes nothing, and takes no room of those
//! that have it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::connections::Activity;
use super::facts::FactSource;
use super::gate::Gate;
use super::notes::Notes;
use super::rates::{Rate, Rates};
use super::review::{BadReview, Question};
use super::stranger;
use crate::metrics::Metrics;
use crate::plan::{Defaults, plan};

/// The most bytes of a call. The API server takes objects of up to 3 MiB; an object stands in a review once.
const BODY_BYTES_MAX: usize = 4 << 20;

/// The most bytes of all calls that are read and answered at once. A call that is understood takes several times its bytes, so
/// more could cost the operator its life; less makes large pods wait for each other.
const BODIES_BYTES_MAX: usize = 16 << 20;

/// Room for calls without the secret part of the path: as large as the largest one.
const STRANGERS_BYTES_MAX: usize = BODY_BYTES_MAX;

/// Calls without the secret part of the path that are answered for a namespace: a plan costs a fraction of a
/// millisecond of one core.
const STRANGERS: Rate = Rate { burst: 10, every: Duration::from_millis(500) };

/// Unit in which room for bodies is counted. Most calls take one.
const BODY_UNIT: usize = 64 << 10;

/// Time that a call waits for room.
const ROOM_DEADLINE: Duration = Duration::from_secs(1);

/// Time that a body may take once it has room. API servers send it in one go.
const BODY_DEADLINE: Duration = Duration::from_secs(2);

/// Time from the call to its answer, within which all look-ups have to end. The API server waits 5 seconds, and then the
/// pod is refused without a reason.
const CALL_DEADLINE: Duration = Duration::from_secs(4);

/// Answers calls.
pub struct Handler<F> {
    facts: F,
    defaults: Defaults,
    gate: Gate,
    notes: Notes,
    metrics: Arc<Metrics>,
    room: Semaphore,
    room_of_strangers: Semaphore,
    rates_of_strangers: Rates,
}

/// A call that was not read: what becomes of it as the metric has it, and what the caller is told.
struct Unread {
    label: &'static str,
    code: StatusCode,
    why: String,
}

impl<F: FactSource> Handler<F> {
    /// Plans by the facts of `source` for whoever `gate` knows, else by the pod and the defaults; tells owners by
    /// `notes`.
    pub fn new(source: F, defaults: Defaults, gate: Gate, notes: Notes, metrics: Arc<Metrics>) -> Handler<F> {
        Handler {
            facts: source,
            defaults,
            gate,
            notes,
            metrics,
            room: Semaphore::new(BODIES_BYTES_MAX / BODY_UNIT),
            room_of_strangers: Semaphore::new(STRANGERS_BYTES_MAX / BODY_UNIT),
            rates_of_strangers: Rates::new(STRANGERS),
        }
    }

    /// The routes of the webhook: every path, because an API server that was told no path calls `/`.
    pub fn routes(self) -> Router {
        let call = post(|State(handler): State<Arc<Handler<F>>>, request: Request| async move {
            let is_known = handler.gate.knows(request.uri().path());
            // Whoever is not known keeps no place by calling.
            let activity = request.extensions().get::<Activity>().filter(|_| is_known).cloned();
            let began = Instant::now();
            let room = if is_known { &handler.room } else { &handler.room_of_strangers };
            let (body, _room) = match handler.read(request.into_body(), room).await {
                Ok(read) => read,
                Err(Unread { label, code, why }) => {
                    handler.metrics.injection(label, began.elapsed());
                    return (code, format!("{why}\n")).into_response();
                }
            };
            // Before the body is here whole its connection is idle.
            let _busy = activity.map(Activity::begins);
            let question = match Question::read(&body) {
                Ok(question) => question,
                Err(error) => return handler.unreadable(&error, began),
            };
            if is_known { handler.call(&question, began).await } else { handler.stranger(&question, began) }
        });
        Router::new().route("/", call.clone()).route("/{*path}", call).with_state(Arc::new(self))
    }

    /// The body of a call, with the room that it takes until it is answered.
    async fn read<'a>(
        &self,
        body: Body,
        room: &'a Semaphore,
    ) -> Result<(Bytes, SemaphorePermit<'a>), Unread> {
        let wrong = |code, why: String| Unread { label: "bad_review", code, why };
        let said = body.size_hint().exact().unwrap_or(BODY_BYTES_MAX as u64);
        let Some(bytes) = usize::try_from(said).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX) else {
            let why = format!("{said} bytes are no review of a pod; the most is {BODY_BYTES_MAX}");
            return Err(wrong(StatusCode::PAYLOAD_TOO_LARGE, why));
        };
        let units = u32::try_from(bytes.div_ceil(BODY_UNIT)).unwrap_or(u32::MAX);
        let Ok(Ok(room)) = timeout(ROOM_DEADLINE, room.acquire_many(units)).await else {
            tracing::warn!(bytes, "a call is refused: others have all the memory that calls may take");
            let why = "too many calls at once; try again".to_owned();
            return Err(Unread { label: "busy", code: StatusCode::SERVICE_UNAVAILABLE, why });
        };
        match timeout(BODY_DEADLINE, to_bytes(body, bytes)).await {
            Ok(Ok(body)) => Ok((body, room)),
            Ok(Err(error)) => {
                Err(wrong(StatusCode::BAD_REQUEST, format!("the call cannot be read: {error}")))
            }
            Err(_) => {
                Err(wrong(StatusCode::REQUEST_TIMEOUT, "the call did not come whole in time".to_owned()))
            }
        }
    }

    fn unreadable(&self, error: &BadReview, began: Instant) -> Response {
        tracing::debug!(%error, "a call that is no question about a pod");
        self.metrics.injection("bad_review", began.elapsed());
        (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response()
    }

    /// Answers the API server.
    async fn call(&self, question: &Question, began: Instant) -> Response {
        let (label, review) = self.decide(question, began + CALL_DEADLINE).await;
        self.metrics.injection(label, began.elapsed());
        written(&review)
    }

    /// Answers anybody else.
    fn stranger(&self, question: &Question, began: Instant) -> Response {
        let review = if self.rates_of_strangers.take(&question.namespace, began.into_std()) {
            stranger::answer(question, &self.defaults)
        } else {
            stranger::too_many(question)
        };
        self.metrics.injection("plain_path", began.elapsed());
        written(&review)
    }

    async fn decide(
        &self,
        question: &Question,
        until: Instant,
    ) -> (&'static str, impl serde::Serialize + use<F>) {
        let namespace = question.namespace.as_str();
        let look_ups = match question.look_ups() {
            Ok(look_ups) => look_ups,
            Err(error) => {
                tracing::warn!(namespace, %error, "a pod names what cannot be looked up");
                return ("bad_review", question.refuse(422, &error.to_string()));
            }
        };
        let facts = match timeout_at(until, self.facts.facts(&look_ups)).await {
            Ok(Ok(facts)) => facts,
            Ok(Err(error)) => {
                tracing::warn!(namespace, %error, "facts cannot be read");
                return ("no_facts", question.refuse(503, &error.to_string()));
            }
            Err(_) => {
                let why = "the API server does not tell the operator of the namespace in time; try again";
                tracing::warn!(namespace, why);
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

fn written(review: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(review) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
