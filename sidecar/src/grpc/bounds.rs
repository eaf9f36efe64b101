//! Bounds of one call in time and in bytes: a client that stands still ends its call, and buffers share one budget.
//!
//! ```text
//!   request --> Intake --> decoder --> verb      nothing comes for the call's patience: the call ends
//!                 '- the buffer of its messages: in the budget while it waits for more
//!   verb --> Outlet --> HTTP/2 --> client        see there
//! ```
//!
//! The budget is the one of answers that nobody reads (`limits.unreadBytes`). When it is spent, streams that stand still go.
//!
//! A panic ends its call here, whatever the verb: the client is told INTERNAL, and not by a reset.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::framing::Framing;
use super::guests::Connection;
use super::kept::{Heard, Keeps, Kept, Paused, Signal};
use super::open_calls::{OpenCall, OpenCalls};
use super::outlet::Outlet;
use super::sessions::KEY;
use super::status::{broke_off, status};
use crate::cancel::Cancel;
use crate::metrics::label::PanicScope;
use crate::output_budget::OutputBudget;
use crate::threads::Threads;

/// The longest time that a call may stand still, whatever it asks for.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// Time for which a stream may stand still though its deadline has passed: one that moves, however slowly, is not ended by it.
const PAST_DEADLINE: Duration = Duration::from_secs(10);

/// Part of a buffer that has to come until its stream has moved, as far as the budget is concerned: the buffer by this.
const MOVE_PART: usize = 16;

/// Bytes that are a move whatever the buffer.
const MOVE_BYTES: usize = 64 << 10;

/// Metadata that calls have a use for. All else is dropped at once: a call may wait for an hour, and would keep it.
const USED: [&str; 5] = ["grpc-accept-encoding", "grpc-encoding", "grpc-timeout", "user-agent", KEY];

/// Longest value of these, in bytes; the rest is cut.
const VALUE_BYTES_MAX: usize = 256;

/// A service whose calls have bounds.
#[derive(Clone)]
pub(super) struct Bounded<S> {
    inner: S,
    open: OpenCalls,
    unread: OutputBudget,
    limit: u64,
    patience: Duration,
    threads: Threads,
}

/// Bounds of one call, for its verb: an extension of the request.
#[derive(Clone)]
pub(super) struct Bounds(Arc<Shared>);

struct Shared {
    limit: u64,
    /// Milliseconds that it may stand still.
    patience: AtomicU64,
    /// Time until which it may stand still whatever its patience, where its client said one.
    until: Mutex<Option<Instant>>,
    /// Signal that its request stream hears.
    signal: Arc<Signal>,
    /// Place among all calls; none of one without bounds.
    _open: Option<OpenCall>,
}

/// The body of a request.
struct Intake {
    body: Body,
    bounds: Bounds,
    framing: Framing,
    kept: Kept,
    /// Bytes since the last move.
    came: usize,
    still: Option<Pin<Box<Sleep>>>,
}

/// Bytes that are in the budget until this is dropped.
struct Booked {
    bytes: Vec<u8>,
    _kept: Kept,
}

impl AsRef<[u8]> for Booked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

// === impl Bounded ===

impl<S> Bounded<S> {
    /// Bounds for the calls of a service: those that are open, the budget, its limit, and how long a call may stand still that does not say.
    pub(super) fn new(
        inner: S,
        open: OpenCalls,
        unread: OutputBudget,
        (limit, patience): (u64, Duration),
        threads: Threads,
    ) -> Self {
        Self { inner, open, unread, limit, patience, threads }
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let own = connection.as_ref().map_or_else(Arc::default, |connection| Arc::clone(&connection.calls));
        let open = match self.open.enter(own) {
            Ok(open) => open,
            Err(failure) => {
                let refused = status(&failure).into_http();
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        trim(&mut request);
        let bounds = Bounds::new(self.limit, self.patience, Some(open));
        if let Some(timeout) =
            request.headers().get("grpc-timeout").and_then(|value| timeout(value.as_bytes()))
        {
            bounds.bear_until(Instant::now() + timeout.min(PATIENCE_MAX));
        }
        request.extensions_mut().insert(bounds.clone());
        let keeps = connection.map_or_else(|| Keeps::new(&self.unread, || {}), |c| Arc::clone(&c.keeps));
        let (kept, of_answer) = (keeps.enter_incoming(&bounds.0.signal), bounds.clone());
        let intake = |body| Intake { body, bounds, framing: Framing::default(), kept, came: 0, still: None };
        let answer = self.inner.call(request.map(|body| Body::new(intake(body))));
        let threads = self.threads.clone();
        Box::pin(async move {
            let answered = threads.caught_future("grpc", PanicScope::Call, pin!(answer)).await;
            match answered {
                Some(Ok(response)) => {
                    Ok(response.map(|body| Body::new(Outlet::new(body, keeps, of_answer, threads))))
                }
                None => Ok(status(&broke_off()).into_http()),
            }
        })
    }
}

// === impl Bounds ===

impl Bounds {
    fn new(limit: u64, patience: Duration, open: Option<OpenCall>) -> Self {
        let (patience, until, signal) = (AtomicU64::new(millis(patience)), Mutex::default(), Arc::default());
        Self(Arc::new(Shared { limit, patience, until, signal, _open: open }))
    }

    /// Bounds of a call; those of one that has none of its own are as wide as can be.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Self {
        let bounds = request.extensions().get::<Self>().cloned();
        bounds.unwrap_or_else(|| Self::new(u64::MAX, PATIENCE_MAX, None))
    }

    /// Time that the call may stand still.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.0.patience.load(Ordering::Relaxed))
    }

    /// Limit of the budget, in bytes.
    pub(super) fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Deadline that its client said, if it did.
    pub(super) fn until(&self) -> Option<Instant> {
        *self.0.until.lock()
    }

    /// Lets it stand still until then, and no longer once it has stood still for a while: its client has said when to give up. The
    /// earliest holds.
    pub(super) fn bear_until(&self, deadline: Instant) {
        let mut until = self.0.until.lock();
        *until = Some(until.map_or(deadline, |before| before.min(deadline)));
    }

    /// Lets it stand still for as long as can be.
    pub(super) fn bear(&self) {
        self.0.patience.store(millis(PATIENCE_MAX), Ordering::Relaxed);
    }

    /// Time at which one that moved last at `moved` has stood still for too long.
    pub(super) fn due(&self, moved: Instant) -> Instant {
        match self.until() {
            Some(until) => until.max(moved + PAST_DEADLINE),
            None => moved + self.patience(),
        }
    }

    /// Raises `cancel` when the budget is spent and this call has to go.
    pub(super) fn cancels(&self, cancel: &Cancel) {
        self.0.signal.cancels(cancel);
    }

    /// Notes that the call waits for this process, until what is returned is dropped: it does not stand still for the budget.
    pub(super) fn pause(&self) -> Paused {
        self.0.signal.pause()
    }

    /// Books bytes of an answer that waits here for its turn, until they are dropped. A call that has to go for them is cancelled.
    pub(super) fn book(&self, keeps: &Arc<Keeps>, bytes: Vec<u8>) -> Bytes {
        let _kept = keeps.enter_outgoing(bytes.len(), &self.0.signal);
        Bytes::from_owner(Booked { bytes, _kept })
    }

    /// Failure of a call that has to go for the budget, if it has to.
    pub(super) fn spent(&self) -> Option<Failure> {
        self.0.signal.is_over().then(|| {
            let limit = self.0.limit;
            let why = format!(
                "what calls have begun to send and not finished took more than {limit} bytes (limits.unreadBytes), and this \
                 call stood still: send whole messages without a pause, begin fewer calls at once, or raise it"
            );
            Failure::new(Reason::LimitExceeded, why).with("limit_bytes", limit)
        })
    }
}

// === impl Intake ===

impl Intake {
    /// True once nothing has come for too long.
    fn stands_still(&mut self, context: &mut Context<'_>) -> bool {
        let bounds = &self.bounds;
        let sleep = || Box::pin(tokio::time::sleep_until(bounds.due(Instant::now()).into()));
        self.still.get_or_insert_with(sleep).as_mut().poll(context).is_ready()
    }

    fn idle(&self) -> Status {
        let within = match self.bounds.until() {
            Some(_) => format!(
                "the deadline of this call passed, and for {PAST_DEADLINE:?} no message of it became whole"
            ),
            None => format!("no message of this call became whole within {:?}", self.bounds.patience()),
        };
        let why = format!(
            "{within}, and its end did not come either ({} bytes of the next message are there): send on, end the call, or \
             give it a longer deadline",
            self.framing.partial()
        );
        status(&Failure::new(Reason::DeadlineExceeded, why))
    }
}

impl http_body::Body for Intake {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(failure) = self.bounds.spent() {
            return Poll::Ready(Some(Err(status(&failure))));
        }
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.came = self.came.saturating_add(data.len());
                    // A message counts, not a byte: nobody lives for ever by sending one now and then.
                    if self.framing.take(data) {
                        self.still = None;
                        if is_move(self.came, self.framing.buffer()) {
                            self.came = 0;
                            self.kept.moved();
                        }
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => {
                let buffer = self.framing.buffer();
                self.kept.set(buffer);
                // It may have been this call that spent the budget.
                if self.bounds.0.signal.poll(context) == Poll::Ready(Heard::Over)
                    && let Some(failure) = self.bounds.spent()
                {
                    return Poll::Ready(Some(Err(status(&failure))));
                }
                if self.stands_still(context) {
                    return Poll::Ready(Some(Err(self.idle())));
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Drops what nobody asks of a request: metadata beyond those of use, and what its address has beside the path. What stays is a copy, since
/// a part of a block of headers keeps all of that.
fn trim<B>(request: &mut http::Request<B>) {
    let mut used = http::HeaderMap::new();
    for name in USED {
        let Some(value) = request.headers().get(name).map(http::HeaderValue::as_bytes) else { continue };
        if let Ok(value) = http::HeaderValue::from_bytes(&value[..value.len().min(VALUE_BYTES_MAX)]) {
            used.insert(name, value);
        }
    }
    *request.headers_mut() = used;
    *request.uri_mut() = request.uri().path().parse().unwrap_or_default();
}

/// Returns whether a message that became whole is a move for the budget, where so much came since the last one: small messages
/// do not keep a large buffer.
fn is_move(came: usize, buffer: usize) -> bool {
    came >= (buffer / MOVE_PART).min(MOVE_BYTES)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.min(PATIENCE_MAX).as_millis()).unwrap_or(u64::MAX)
}

/// Reads a `grpc-timeout`: at most eight digits and a unit.
fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        assert_eq!(timeout(b"250m"), Some(Duration::from_millis(250)));
        assert_eq!(timeout(b"2H"), Some(Duration::from_secs(7200)));
        for wrong in [&b""[..], b"m", b"1", b"-1S", b"123456789S", b"1x", b"1.5S"] {
            assert_eq!(timeout(wrong), None);
        }
    }

    #[test]
    fn a_deadline_ends_only_what_stands_still_and_the_earliest_holds() {
        let bounds = Bounds::new(10, Duration::from_secs(30), None);
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!((bounds.due(now), bounds.due(after(5))), (after(30), after(35)));
        bounds.bear_until(after(60));
        assert_eq!((bounds.due(now), bounds.due(after(5))), (after(60), after(60)));
        bounds.bear_until(after(90));
        let moves: Vec<_> = (1..=5).map(|n| bounds.due(after(60 + 9 * n))).collect();
        let dues: Vec<_> = (1..=5).map(|n| after(70 + 9 * n)).collect();
        assert_eq!(moves, dues, "one that moves every nine seconds goes on");
        assert_eq!(bounds.due(now), after(60));
    }

    #[test]
    fn metadata_that_nobody_uses_and_what_stands_behind_a_path_are_dropped() {
        let long = "x".repeat(8 << 10);
        let mut request = http::Request::builder()
            .uri(format!("http://{}/tensorlane.v1.Tensorlane/Put?{long}", "h".repeat(4 << 10)))
            .header("x-anything", &long)
            .header("user-agent", &long)
            .header("grpc-timeout", "2S")
            .header(KEY, "0".repeat(32))
            .body(())
            .unwrap();
        trim(&mut request);
        assert_eq!(request.uri(), "/tensorlane.v1.Tensorlane/Put");
        let kept: usize = request.headers().iter().map(|(_, value)| value.len()).sum();
        assert_eq!((request.headers().len(), kept), (3, VALUE_BYTES_MAX + 2 + 32));
        assert_eq!(request.headers()["grpc-timeout"], "2S");
    }

    #[test]
    fn small_messages_do_not_keep_a_large_buffer() {
        const MIB: usize = 1 << 20;
        assert!(is_move(5, 5) && is_move(MIB, MIB) && is_move(MOVE_BYTES, 64 * MIB));
        assert!(!is_move(5, MIB) && !is_move(MIB / 16 - 1, MIB) && is_move(MIB / 16, MIB));
        assert!(!is_move(0, 8 << 10) && !is_move(5, 8 << 10) && is_move(512, 8 << 10));
    }

    #[test]
    fn a_call_that_has_to_go_is_told_the_limit() {
        let unread = OutputBudget::new(10);
        let keeps = Keeps::new(&unread, || {});
        let bounds = Bounds::new(10, Duration::from_secs(1), None);
        let cancel = Cancel::default();
        bounds.cancels(&cancel);
        let kept = keeps.enter_incoming(&bounds.0.signal);
        kept.set(7);
        assert!(!cancel.is_cancelled() && bounds.spent().is_none());
        kept.set(21);
        let failure = bounds.spent().unwrap();
        assert_eq!((failure.reason, failure.detail("limit_bytes")), (Reason::LimitExceeded, Some("10")));
        assert_eq!((cancel.is_cancelled(), unread.bytes()), (true, 0));
    }
}
