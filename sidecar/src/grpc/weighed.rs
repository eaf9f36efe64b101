//! Requests count by what they become: each takes its part of the budget of requests before it is decoded.
//!
//! ```text
//!   request --> body whole --> weighed --> room in the budget --> decoded --> verb --> answer begins: the part goes back
//!                                             '-- none now: the call is refused, and nothing was decoded
//! ```
//! Of a call that sends tensor bytes each message counts until the next one, without those bytes: [`super::bounds`] bounds them.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tensorlane_proto::codec::{MessageRoom, ROOM};
use tokio::task::futures::TaskLocalFuture;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;

use super::status::status;
use crate::session::{Admitted, COUNTED_FROM, Requests};

/// Calls whose messages carry bytes of tensors, or of messages of channels and pipes.
const SEND_DATA: [&str; 5] = ["Put", "Fill", "SetCommit", "ChannelWrite", "Pipe"];

/// A service whose requests are in a budget.
#[derive(Clone)]
pub(super) struct Weighed<S> {
    inner: S,
    requests: Requests,
}

/// Part of the budget that one call has.
struct CallRoom {
    requests: Requests,
    sends_data: bool,
    admitted: Mutex<Option<Admitted>>,
}

// === impl Weighed ===

impl<S> Weighed<S> {
    pub(super) fn new(inner: S, requests: Requests) -> Self {
        Self { inner, requests }
    }
}

impl<S: NamedService> NamedService for Weighed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Weighed<S>
where
    S: Service<http::Request<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = TaskLocalFuture<Arc<dyn MessageRoom>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let room = CallRoom {
            requests: self.requests.clone(),
            sends_data: SEND_DATA.contains(&method),
            admitted: Mutex::default(),
        };
        ROOM.scope(Arc::new(room), self.inner.call(request))
    }
}

// === impl CallRoom ===

impl MessageRoom for CallRoom {
    fn admit(&self, body: usize, decoded: usize) -> Result<(), Status> {
        let bytes = if self.sends_data { decoded } else { decoded.max(body) };
        let mut admitted = self.admitted.lock();
        *admitted = None;
        if bytes >= COUNTED_FROM {
            *admitted = Some(self.requests.admit_now(bytes as u64).map_err(|failure| status(&failure))?);
        }
        Ok(())
    }
}
