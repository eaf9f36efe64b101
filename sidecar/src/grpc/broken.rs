//! Tells a request stream that has ended from one that was given up.
//!
//! tonic reports both as the end: a client that cancels in the middle of a Put would have its first half stored. Here the
//! body of a request that ends without END_STREAM ends in an error instead.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

/// A service whose requests are whole or broken, never silently short.
#[derive(Clone)]
pub(super) struct WholeRequests<S>(pub(super) S);

/// The body of a request.
struct Whole(Body);

// === impl WholeRequests ===

impl<S: NamedService> NamedService for WholeRequests<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for WholeRequests<S>
where
    S: Service<http::Request<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        self.0.call(request.map(|body| Body::new(Whole(body))))
    }
}

// === impl Whole ===

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.0).poll_frame(context));
        Poll::Ready(match frame {
            None if !self.0.is_end_stream() => Some(Err(given_up())),
            // tonic would take this for the end.
            Some(Err(status)) if status.code() == Code::Cancelled => Some(Err(given_up())),
            frame => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

fn given_up() -> Status {
    Status::aborted("the client gave the stream up before its end")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame, and then an end that is one or is none.
    struct Request {
        frames: Vec<Result<Frame<Bytes>, Status>>,
        ended: bool,
    }

    impl http_body::Body for Request {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.frames.pop())
        }

        fn is_end_stream(&self) -> bool {
            self.ended && self.frames.is_empty()
        }
    }

    async fn last(ended: bool, then: Option<Status>) -> Option<Code> {
        let first = Ok(Frame::data(Bytes::from_static(b"half")));
        let frames = then.map(Err).into_iter().chain([first]).collect();
        let mut body = Whole(Body::new(Request { frames, ended }));
        let mut next =
            async || std::future::poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut body), cx)).await;
        assert!(next().await.unwrap().unwrap().is_data());
        next().await.map(|frame| frame.unwrap_err().code())
    }

    #[tokio::test]
    async fn only_an_end_that_the_client_meant_is_one() {
        assert_eq!(last(true, None).await, None);
        assert_eq!(last(false, None).await, Some(Code::Aborted));
        assert_eq!(last(false, Some(Status::cancelled("reset"))).await, Some(Code::Aborted));
        assert_eq!(last(false, Some(Status::internal("bad frame"))).await, Some(Code::Internal));
    }
}
