//! Bounds of one call in time and in bytes: a client that stands still ends its call, and buffers share one budget.
//!
//! ```text
//!   request --> Intake --> decoder --> verb      nothing comes for the call's patience: the call ends
//!                 '- bytes of a message that is not whole: in the budget; when it is spent and this has the most, the
//!                    call ends
//!   verb --> Outlet --> HTTP/2 --> client        bytes that HTTP/2 has and the client has not taken: in the budget; when it
//!                                                is spent and this has the most, the connection is closed
//! ```
//!
//! The budget is the one of answers that nobody reads (`limits.unreadBytes`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

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
use super::status::status;
use crate::cancel::Cancel;
use crate::unread::{Account, Unread};

/// The longest time that a call may stand still, whatever it asks for.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);

/// Bytes of an answer from which on they are booked: smaller ones are bounded by the number of calls.
const BOOKED_FROM: usize = 4 << 10;

/// A service whose calls have bounds.
#[derive(Clone)]
pub(super) struct Bounded<S> {
    inner: S,
    unread: Unread,
    limit: u64,
    patience: Duration,
}

/// Bounds of one call, for its verb: an extension of the request.
#[derive(Clone)]
pub(super) struct Bounds(Arc<Shared>);

struct Shared {
    unread: Unread,
    limit: u64,
    /// Milliseconds that it may stand still.
    patience: AtomicU64,
    /// Time that the client said in `grpc-timeout`.
    timeout: Option<Duration>,
    account: Mutex<Option<Account>>,
    /// Set once the budget was spent, and this call had the most of it.
    spent: AtomicBool,
    waiting: Mutex<Waiting>,
}

/// Parties that are told when the budget is spent.
#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    cancel: Option<Cancel>,
}

/// Bytes that are booked for a call until this is dropped.
pub(super) struct Booked {
    bounds: Bounds,
    bytes: usize,
}

/// The body of a request.
struct Intake {
    body: Body,
    bounds: Bounds,
    framing: Framing,
    booked: usize,
    still: Option<Pin<Box<Sleep>>>,
}

/// The body of an answer.
struct Outlet {
    body: Body,
    unread: Unread,
    connection: Option<Arc<Connection>>,
    account: Option<Account>,
    booked: usize,
}

// === impl Bounded ===

impl<S> Bounded<S> {
    /// Bounds for the calls of a service: the budget, its limit, and how long a call may stand still that does not say.
    pub(super) fn new(inner: S, unread: Unread, limit: u64, patience: Duration) -> Self {
        Self { inner, unread, limit, patience }
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
        let timeout = request.headers().get("grpc-timeout").and_then(|value| timeout(value.as_bytes()));
        let bounds = Bounds::new(self.unread.clone(), self.limit, timeout, self.patience);
        request.extensions_mut().insert(bounds.clone());
        let connection = request.extensions().get::<Arc<Connection>>().cloned();
        let intake = |body| Intake { body, bounds, framing: Framing::default(), booked: 0, still: None };
        let answer = self.inner.call(request.map(|body| Body::new(intake(body))));
        let unread = self.unread.clone();
        Box::pin(async move {
            let outlet = |body| Outlet { body, unread, connection, account: None, booked: 0 };
            answer.await.map(|response| response.map(|body| Body::new(outlet(body))))
        })
    }
}

// === impl Bounds ===

impl Bounds {
    fn new(unread: Unread, limit: u64, timeout: Option<Duration>, patience: Duration) -> Self {
        let patience = AtomicU64::new(millis(timeout.unwrap_or(patience)));
        let (account, waiting, spent) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Shared { unread, limit, patience, timeout, account, spent, waiting }))
    }

    /// Bounds of a call; those of one that has none of its own are as wide as can be.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Self {
        let bounds = request.extensions().get::<Self>().cloned();
        bounds.unwrap_or_else(|| Self::new(Unread::new(u64::MAX), u64::MAX, None, PATIENCE_MAX))
    }

    /// Time that the call may stand still.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.0.patience.load(Ordering::Relaxed))
    }

    /// Limit of the budget, in bytes.
    pub(super) fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Time that its client said in the metadata.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.0.timeout
    }

    /// Lets it stand still for so long: it has a deadline of its own.
    pub(super) fn bear(&self, patience: Duration) {
        self.0.patience.store(millis(patience), Ordering::Relaxed);
    }

    /// Raises `cancel` when the budget is spent and this call has to go.
    pub(super) fn cancels(&self, cancel: &Cancel) {
        self.0.waiting.lock().cancel = Some(cancel.clone());
    }

    /// Books bytes that HTTP/2 may take in while nobody reads them.
    pub(super) fn book(&self, bytes: usize) -> Booked {
        self.add(bytes);
        Booked { bounds: self.clone(), bytes }
    }

    /// Failure of a call that has to go for the budget, if it has to.
    pub(super) fn spent(&self) -> Option<Failure> {
        self.0.spent.load(Ordering::Acquire).then(|| {
            let limit = self.0.limit;
            let why = format!(
                "what calls have begun to send and not finished took more than {limit} bytes (limits.unreadBytes), and this \
                 call had the most of it: send whole messages without a pause, begin fewer calls at once, or raise it"
            );
            Failure::new(Reason::LimitExceeded, why).with("limit_bytes", limit)
        })
    }

    fn add(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let weak = Arc::downgrade(&self.0);
        let mut account = self.0.account.lock();
        let account = account.get_or_insert_with(|| {
            self.0.unread.open(move || {
                if let Some(shared) = weak.upgrade() {
                    shared.end();
                }
            })
        });
        account.add(bytes);
    }

    fn take(&self, bytes: usize) {
        if let Some(account) = &*self.0.account.lock() {
            account.take(bytes);
        }
    }
}

// === impl Shared ===

impl Shared {
    fn end(&self) {
        self.spent.store(true, Ordering::Release);
        let Waiting { waker, cancel } = std::mem::take(&mut *self.waiting.lock());
        waker.into_iter().for_each(Waker::wake);
        cancel.iter().for_each(Cancel::cancel);
    }
}

// === impl Booked ===

impl Drop for Booked {
    fn drop(&mut self) {
        self.bounds.take(self.bytes);
    }
}

// === impl Intake ===

impl Intake {
    /// Books what the decoder keeps.
    fn book(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.booked, bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.bounds.add(more),
            None => self.bounds.take(before - bytes),
        }
    }

    /// True once nothing has come for too long.
    fn stands_still(&mut self, context: &mut Context<'_>) -> bool {
        let patience = self.bounds.patience();
        let still = self.still.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        still.as_mut().poll(context).is_ready()
    }

    fn idle(&self) -> Status {
        let patience = self.bounds.patience();
        let why = format!(
            "no message of this call became whole within {patience:?}, and its end did not come either ({} bytes of the \
             next message are there): send on, end the call, or give it a deadline",
            self.framing.partial()
        );
        status(&Failure::new(Reason::DeadlineExceeded, why).with("still_ms", millis(patience)))
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
                if let Some(data) = frame.data_ref()
                    && self.framing.take(data)
                {
                    // A message counts as a move, not a byte: nobody lives for ever by sending one now and then.
                    self.still = None;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => {
                self.bounds.0.waiting.lock().waker = Some(context.waker().clone());
                let partial = self.framing.partial();
                self.book(partial);
                // It may have been this call that spent the budget.
                if let Some(failure) = self.bounds.spent() {
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

impl Drop for Intake {
    fn drop(&mut self) {
        self.book(0);
    }
}

// === impl Outlet ===

impl Outlet {
    fn book(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.booked, bytes);
        if before == bytes {
            return;
        }
        if self.account.is_none() {
            let connection = self.connection.clone();
            let close = move || connection.iter().for_each(|connection| connection.cut());
            self.account = Some(self.unread.open(close));
        }
        if let Some(account) = &self.account {
            account.take(before);
            account.add(bytes);
        }
    }
}

impl http_body::Body for Outlet {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // Asked again, HTTP/2 has room: what it was given before is on its way.
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        self.book(if bytes >= BOOKED_FROM { bytes } else { 0 });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
    fn a_call_that_has_the_most_is_told_the_limit_and_its_part_goes_back() {
        let unread = Unread::new(10);
        let bounds = || Bounds::new(unread.clone(), 10, None, Duration::from_secs(1));
        let (small, large) = (bounds(), bounds());
        let cancel = Cancel::default();
        large.cancels(&cancel);
        let kept = small.book(4);
        let booked = large.book(7);
        assert!(cancel.is_cancelled() && small.spent().is_none());
        let failure = large.spent().unwrap();
        assert_eq!((failure.reason, failure.detail("limit_bytes")), (Reason::LimitExceeded, Some("10")));
        drop((booked, kept));
        assert_eq!(unread.bytes(), 0);
    }
}
