//! Draining: after the signal nothing new begins, and what moves bytes may finish, for a bounded time.
//!
//! In Kubernetes the signal comes when the pod's own containers have ended, so what is left is mostly what other pods read
//! from here. Waits for names and for room end at once: nothing will come to them any more. A pull that a lost connection
//! interrupts may go on over the next one, so it is waited for as long as its lease waits (`gc.leaseGrace`): a reader that
//! has died costs the end that much, and never more than `deadlines.drain`.

use std::time::Duration;

use tokio::time::Instant;

use super::parts::Parts;

/// Time after which it is looked again whether all has finished: the most that this adds to the end of a sidecar with
/// nothing to do.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Work that has begun and not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    /// Calls of clients.
    pub(super) calls: usize,
    /// Pulls of other peers: also those whose connection was lost, while they may still be taken up again.
    pub(super) pulls: usize,
    /// Bytes of answers that were made and not read.
    pub(super) unread: u64,
}

// === impl Left ===

impl Left {
    const NOTHING: Self = Self { calls: 0, pulls: 0, unread: 0 };
}

/// Closes the gate and waits: until nothing is under way, or `most` is over, or there is a second signal.
pub(super) async fn drain(parts: &Parts, most: Duration, second: impl Future<Output = &'static str>) {
    parts.exchange().close();
    let began = Instant::now();
    let before = parts.left();
    if before != Left::NOTHING {
        tracing::info!(calls = before.calls, pulls = before.pulls, unread = before.unread, most = ?most, "draining");
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
            unread = left.unread,
            seconds = began.elapsed().as_secs_f64(),
            signal,
            "cut: not everything that was under way has finished"
        );
    }
}

/// Twice nothing: between being let in and being counted, a pull is in neither number for a moment.
async fn finished(parts: &Parts, until: Instant) {
    let mut quiet = 0;
    while quiet < 2 && Instant::now() < until {
        quiet = if parts.left() == Left::NOTHING { quiet + 1 } else { 0 };
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
