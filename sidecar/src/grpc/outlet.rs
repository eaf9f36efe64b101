//! Bodies of answers: bytes that HTTP/2 has are in the budget until it drops them, and a client that takes none ends its stream.
//!
//! ```text
//!   verb --> frame --> HTTP/2 --written, or the stream is reset--> dropped: the next frame
//!                        '-- its client takes nothing: reset after the call's patience, or before, when the budget is spent
//! ```
//!
//! hyper asks for the next frame before there is room for it, and keeps one that it has until there is. A stream that it keeps a frame
//! of cannot be ended from here. So a large frame is handed out when the one before was dropped: a stream has one in memory, waits
//! here, and hears that it has to go.
//!
//! A body whose frame is not made, because what makes it panics, ends in a status as any other: its client is told INTERNAL.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tensorlane_proto::failure::{Failure, Reason};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;

use super::bounds::Bounds;
use super::kept::{Heard, Keeps, Kept, Signal};
use super::status::{broke_off, status};
use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Bytes of a frame from which on the next one waits for it. The end of a smaller answer goes out with its bytes.
const WAITED_FROM: usize = 64 << 10;

/// Bytes below which a frame has no line of its own.
const SMALL_BELOW: usize = 4 << 10;

/// Bytes that a frame costs beside its own: what this process and HTTP/2 keep for each.
const FRAME_COSTS: usize = 256;

/// Time beyond the patience of a call after which what its client has not taken is dropped. Until then it may read on, and hears why
/// its stream was ended.
const GRACE: Duration = Duration::from_secs(5);

/// The body of an answer.
pub(super) struct Outlet {
    body: Body,
    keeps: Arc<Keeps>,
    bounds: Bounds,
    threads: Threads,
    /// Frame that HTTP/2 has, while the next one waits for it.
    before: Option<Before>,
    /// Line of small frames, from the first one on.
    small: Option<Arc<Kept>>,
}

/// Frame that the next one waits for.
struct Before {
    signal: Arc<Signal>,
    /// Time at which it is dropped.
    due: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

/// Small frame, in the budget until it is dropped. All of a stream have one line: an own one would cost more than the frame.
struct Small {
    bytes: Bytes,
    kept: Arc<Kept>,
}

/// Bytes that are in the budget until this is dropped, by whoever has them.
struct Counted {
    bytes: Bytes,
    signal: Arc<Signal>,
    kept: Option<Kept>,
}

// === impl Outlet ===

impl Outlet {
    /// Body within its bounds.
    pub(super) fn new(body: Body, keeps: Arc<Keeps>, bounds: Bounds, threads: Threads) -> Self {
        Self { body, keeps, bounds, threads, before: None, small: None }
    }

    /// Has the next frame made. A panic there is the end, of which the trailers tell.
    fn make(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, threads, .. } = self;
        let made = threads.caught("grpc answer", PanicScope::Call, || {
            threads.point("grpc answer");
            http_body::Body::poll_frame(Pin::new(&mut *body), context)
        });
        made.unwrap_or_else(|| {
            // What it leased goes back with it.
            *body = Body::empty();
            let mut trailers = HeaderMap::new();
            let told = status(&broke_off()).add_header(&mut trailers);
            Poll::Ready(Some(told.map(|()| Frame::trailers(trailers))))
        })
    }

    /// Books a frame until it is dropped.
    fn hand_out(&mut self, bytes: Bytes) -> Bytes {
        let length = bytes.len();
        if length < SMALL_BELOW {
            return self.hand_out_small(bytes);
        }
        // Nobody hears for one that the next does not wait for: such ones go last, with their connection.
        let signal = Arc::<Signal>::default();
        if length >= WAITED_FROM {
            let due = self.bounds.due(Instant::now()) + GRACE;
            self.before = Some(Before { signal: Arc::clone(&signal), due, sleep: None });
        }
        let kept = Some(self.keeps.enter_outgoing(length, &signal));
        Bytes::from_owner(Counted { bytes, signal, kept })
    }

    /// Books a small frame until it is dropped. Nobody hears for it: its stream goes with its connection.
    fn hand_out_small(&mut self, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        let enter = || Arc::new(self.keeps.enter_outgoing(0, &Arc::default()));
        let kept = Arc::clone(self.small.get_or_insert_with(enter));
        kept.add(bytes.len() + FRAME_COSTS);
        Bytes::from_owner(Small { bytes, kept })
    }
}

impl http_body::Body for Outlet {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(before) = &mut self.before {
            if let Err(failure) = ready!(before.poll(context)) {
                return Poll::Ready(Some(Err(status(&failure))));
            }
            self.before = None;
        }
        let frame = ready!(self.make(context));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.hand_out(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === impl Before ===

impl Before {
    /// Done once it was dropped; fails once its stream has to end, which is a reset: its client reads no reason.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let ended = |why| Poll::Ready(Err(Failure::new(Reason::Cancelled, why)));
        match self.signal.poll(context) {
            Poll::Ready(Heard::Done) => return Poll::Ready(Ok(())),
            Poll::Ready(Heard::Over) => return ended("unread answers took more than limits.unreadBytes"),
            Poll::Pending => {}
        }
        let due = self.due;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due.into())));
        match sleep.as_mut().poll(context) {
            Poll::Ready(()) => ended("the client did not read on"),
            Poll::Pending => Poll::Pending,
        }
    }
}

// === impl Counted ===

impl AsRef<[u8]> for Small {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        self.kept.take(self.bytes.len() + FRAME_COSTS);
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // In the budget until they are dropped, and not any more when the next one is made.
        drop(std::mem::take(&mut self.bytes));
        drop(self.kept.take());
        self.signal.done();
    }
}
