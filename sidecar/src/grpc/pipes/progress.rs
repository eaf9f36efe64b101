//! Progress of a stream that is an end of a pipe: what it waits for, and when it is over.

use std::collections::BTreeSet;

use tensorlane_proto::failure::{Failure, Reason};
use tokio::sync::watch;

/// Messages that the client has and has not said to be read, at most; then it gets no more. Each costs some 16 bytes.
const GIVEN_MAX: usize = 1_024;

/// Progress of both directions, for those who wait for it.
pub(super) struct Progress(watch::Sender<State>);

/// See the module. Pure.
#[derive(Debug, Default)]
struct State {
    /// No message comes from the client any more.
    finished: bool,
    /// Nothing comes from the client any more.
    silent: bool,
    /// Messages that were written, and of which the client has not been told.
    writing: usize,
    /// The client was told that the other end has finished.
    ended: bool,
    /// Messages that the client has, and has not said to be read.
    given: BTreeSet<u64>,
    /// Nothing can be written any more.
    stopped: bool,
}

// === impl State ===

impl State {
    /// Returns whether both ends have said and heard all that they will.
    fn is_over(&self) -> bool {
        let all_read = self.ended && self.given.is_empty();
        self.finished && self.writing == 0 && (all_read || self.silent)
    }
}

// === impl Progress ===

impl Default for Progress {
    fn default() -> Self {
        Self(watch::Sender::new(State::default()))
    }
}

impl Progress {
    /// The client writes no more.
    pub(super) fn finish(&self) {
        self.0.send_modify(|state| state.finished = true);
    }

    /// Returns whether it has said so.
    pub(super) fn is_finished(&self) -> bool {
        self.0.borrow().finished
    }

    /// The client has ended its side of the stream.
    pub(super) fn fall_silent(&self) {
        self.0.send_modify(|state| state.silent = true);
    }

    /// A write has begun.
    pub(super) fn write(&self) {
        self.0.send_modify(|state| state.writing += 1);
    }

    /// The client was told how a write ended.
    pub(super) fn told(&self) {
        self.0.send_modify(|state| state.writing -= 1);
    }

    /// The client has a message.
    pub(super) fn give(&self, message: u64) {
        self.0.send_modify(|state| _ = state.given.insert(message));
    }

    /// The client says that it has read a message.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that it does not have, or has said so of.
    pub(super) fn take(&self, message: u64) -> Result<(), Failure> {
        let mut had = false;
        self.0.send_modify(|state| had = state.given.remove(&message));
        if had {
            return Ok(());
        }
        let what = format!(
            "message {message} is not one whose bytes have all been sent and that was not taken yet; say `taken` once, behind its last chunk"
        );
        Err(Failure::new(Reason::InvalidArgument, what).with("message", message))
    }

    /// The client was told that the other end has finished.
    pub(super) fn end(&self) {
        self.0.send_modify(|state| state.ended = true);
    }

    /// Waits until the client may have one message more.
    pub(super) async fn until_room(&self) {
        self.until(|state| state.given.len() < GIVEN_MAX).await;
    }

    /// The pipe is no more: nothing can be written.
    pub(super) fn stop(&self) {
        self.0.send_modify(|state| state.stopped = true);
    }

    /// Returns whether that is so.
    pub(super) fn is_stopped(&self) -> bool {
        self.0.borrow().stopped
    }

    /// Waits for that.
    pub(super) async fn until_stopped(&self) {
        self.until(|state| state.stopped).await;
    }

    /// Waits until the client was told of every write.
    pub(super) async fn until_told(&self) {
        self.until(|state| state.writing == 0).await;
    }

    /// Waits until both ends have said and heard all that they will.
    pub(super) async fn until_over(&self) {
        self.until(State::is_over).await;
    }

    async fn until(&self, is_it: impl Fn(&State) -> bool) {
        // It fails where the sender is gone, which is this.
        let _ = self.0.subscribe().wait_for(|state| is_it(state)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_over_when_both_ends_have_finished_and_all_was_read_and_told() {
        let progress = Progress::default();
        let is_over = || progress.0.borrow().is_over();
        progress.write();
        progress.give(1);
        progress.finish();
        progress.end();
        assert!(!is_over());
        progress.told();
        assert!(!is_over(), "a message of the other end is not read");
        progress.take(1).unwrap();
        assert!(is_over());
    }

    #[test]
    fn a_client_that_says_nothing_more_waits_for_its_own_writes_alone() {
        let progress = Progress::default();
        let is_over = || progress.0.borrow().is_over();
        progress.write();
        progress.give(1);
        progress.finish();
        progress.fall_silent();
        assert!(!is_over());
        progress.told();
        assert!(is_over());
    }

    #[test]
    fn a_message_is_taken_once_and_not_before_it_is_there() {
        let progress = Progress::default();
        assert_eq!(progress.take(1).unwrap_err().reason, Reason::InvalidArgument);
        progress.give(1);
        assert_eq!((progress.take(1), progress.take(1).is_err()), (Ok(()), true));
    }
    #[tokio::test]
    async fn a_client_that_says_nothing_of_what_it_has_gets_no_more_at_some_time() {
        let progress = Progress::default();
        (1..GIVEN_MAX as u64).for_each(|message| progress.give(message));
        progress.until_room().await;
        progress.give(GIVEN_MAX as u64);
        let mut room = std::pin::pin!(progress.until_room());
        assert!(look(room.as_mut()).await.is_pending());
        progress.take(7).unwrap();
        room.await;
    }

    /// Looks once whether something is over.
    async fn look<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context))).await
    }
}
