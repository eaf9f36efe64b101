//! Draining: after the signal nothing new begins, and what moves bytes may finish, for a bounded time.
//!
//! In Kubernetes the signal comes when the pod's own containers have ended, so what is left is mostly what other pods read
//! from here. Waits for names and for room end at once: nothing will come to them any more.

use std::time::Duration;

use tokio::time::Instant;

use super::parts::Parts;

/// How often it is looked whether all has finished: the most that this adds to the end of a sidecar with nothing to do.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What has begun and not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    /// Calls of clients.
    pub(super) calls: usize,
    /// Pulls of other peers, on connections that are up.
    pub(super) pulls: usize,
}

// === impl Left ===

impl Left {
    const NOTHING: Self = Self { calls: 0, pulls: 0 };
}

/// Closes the gate and waits: until nothing is under way, or `most` is over, or there is a second signal.
pub(super) async fn drain(parts: &Parts, most: Duration, second: impl Future<Output = &'static str>) {
    parts.exchange().close();
    let began = Instant::now();
    let before = parts.left();
    if before != Left::NOTHING {
        tracing::info!(calls = before.calls, pulls = before.pulls, most = ?most, "draining");
    }
    let signal = tokio::select! {
        () = finished(parts, began + most) => None,
        signal = second => Some(signal),
    };
    let left = parts.left();
    if left != Left::NOTHING {
        tracing::warn!(
            calls = left.calls,
            pulls = left.pulls,
            seconds = began.elapsed().as_secs_f64(),
            signal,
            "cut: not everything that was under way has finished"
        );
    }
}

async fn finished(parts: &Parts, until: Instant) {
    while parts.left() != Left::NOTHING && Instant::now() < until {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
