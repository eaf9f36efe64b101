//! Writing: done when the other end has read the message, which comes back in any case.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::{End, Message, Patience, Pipe};
use crate::channel::Timeout;
use crate::connection::Asked;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::wait::Wait;

/// Fate of a message whose write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The other end has not seen it, and will not.
    No,
    /// The other end has its descriptor, and may have read it.
    Unknown,
}

/// A write that failed.
pub struct WriteFailed {
    /// The message, to be written again.
    pub message: Message,
    /// Cause of the failure.
    pub error: Error,
    /// Fate of the message.
    pub delivered: Delivered,
}

/// A write under way. Dropped before it is over it is withdrawn.
#[must_use = "dropping it withdraws the message"]
pub struct Writing {
    end: Arc<End>,
    /// Taken by whatever ends it.
    message: Option<Message>,
    asked: Asked,
    wait: Wait,
    /// Set where there was no room for the message.
    refused: bool,
}

/// Time after which a write that waits for room asks for it again, though no other write was seen to end.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Writes of one end that are under way.
#[derive(Default)]
pub(super) struct Window {
    state: Mutex<UnderWay>,
    ended: Condvar,
}

#[derive(Clone, Copy, Default)]
struct UnderWay {
    writes: usize,
    ended: u64,
}

impl Window {
    fn begin(&self) {
        self.state.lock().writes += 1;
    }

    /// Ends a write. One that was refused has made no room.
    fn end(&self, refused: bool) {
        {
            let mut state = self.state.lock();
            state.writes -= 1;
            state.ended += u64::from(!refused);
        }
        self.ended.notify_all();
    }

    fn ended(&self) -> u64 {
        self.state.lock().ended
    }

    /// Waits until a write has ended beside those before, or might have: of one that nobody waits for only the sidecar knows that it
    /// was read. False where none is under way, or it is too late.
    ///
    /// # Errors
    /// [`Error::Withdrawn`].
    fn wait(&self, before: u64, wait: &Wait) -> Result<bool> {
        let ask_again = Instant::now() + ASK_AGAIN;
        while Instant::now() < ask_again {
            // Before the lock is taken: a signal's handler may write to this very pipe.
            match wait.check() {
                Err(Error::Withdrawn) => return Err(Error::Withdrawn),
                Ok(()) if !wait.left().is_zero() => {}
                _ => return Ok(false),
            }
            let mut state = self.state.lock();
            if state.ended != before {
                break;
            }
            if state.writes == 0 {
                return Ok(false);
            }
            self.ended.wait_for(&mut state, wait.slice().min(wait.left()));
        }
        Ok(true)
    }
}

impl Pipe {
    /// Writes a message and waits until the other end has read it. Messages are read in the order in which they were written. With
    /// [`UNREAD_MAX`](super::UNREAD_MAX) of them unread it waits for one to be read first.
    ///
    /// # Errors
    /// The message comes back. DEADLINE_EXCEEDED names who has not read it in time; PIPE_CLOSED, PIPE_LOST where the other end is no
    /// more; LIMIT_EXCEEDED where so many stay unread; TOO_LARGE; what a put says.
    pub fn write(
        &self,
        mut message: Message,
        timeout: Timeout,
    ) -> std::result::Result<Message, Box<WriteFailed>> {
        if self.end.origin.is_child() {
            return Err(Box::new(WriteFailed { message, error: Error::Forked, delivered: Delivered::No }));
        }
        let mut patience = Patience::of(&self.end.client, timeout);
        loop {
            let before = self.end.window.ended();
            match self.begin_within(message, patience.wait.part())?.wait() {
                Err(mut failed) if failed.is_refused() => {
                    match self.end.window.wait(before, &patience.wait) {
                        Ok(true) => {
                            patience.wait.looked_until_now();
                            message = failed.message;
                        }
                        // That it was refused says more than that its time is over.
                        Ok(false) => return Err(failed),
                        Err(withdrawn) => {
                            failed.error = withdrawn;
                            return Err(failed);
                        }
                    }
                }
                // Where nobody saw it.
                Err(failed) if failed.delivered == Delivered::No && patience.goes_on(&failed.error) => {
                    message = failed.message;
                }
                outcome => return outcome,
            }
        }
    }

    /// Begins to write a message, so that others can be written behind it. The deadline is that of the whole write.
    ///
    /// # Errors
    /// As [`Self::write`], as far as they are known at once. With [`UNREAD_MAX`](super::UNREAD_MAX) messages unread the write is refused.
    pub fn begin(
        &self,
        message: Message,
        timeout: Timeout,
    ) -> std::result::Result<Writing, Box<WriteFailed>> {
        self.begin_within(message, Patience::of(&self.end.client, timeout).wait)
    }

    fn begin_within(
        &self,
        mut message: Message,
        wait: Wait,
    ) -> std::result::Result<Writing, Box<WriteFailed>> {
        match self.end.ask(&mut message, &wait) {
            Ok(asked) => {
                self.end.window.begin();
                let end = Arc::clone(&self.end);
                Ok(Writing { end, message: Some(message), asked, wait, refused: false })
            }
            Err(error) => Err(Box::new(WriteFailed { message, error, delivered: Delivered::No })),
        }
    }
}

impl End {
    fn ask(&self, message: &mut Message, wait: &Wait) -> Result<Asked> {
        if self.origin.is_child() {
            return Err(Error::Forked);
        }
        if self.connection.is_lost() {
            return Err(Error::lost("the sidecar of this pipe is gone, and the pipe with it; connect again"));
        }
        // Room for all parts together is waited for as long as for the rest.
        let encoded = message.prepare(&|| self.client.with_deadline(wait.left()))?;
        // Held while it is sent: the order of sequences is that on the socket.
        let mut written = self.written.lock();
        let deadline_ms = wait.deadline_ms();
        let request =
            v1::PipeWriteRequest { pipe: self.id, sequence: *written + 1, message: encoded, deadline_ms };
        let asked = self.connection.ask(SessionKind::PipeWrite, &request, None)?;
        *written += 1;
        Ok(asked)
    }
}

impl Writing {
    /// Waits until the other end has read the message.
    ///
    /// # Errors
    /// As [`Pipe::write`]; [`Error::Forked`] in a child of the process.
    pub fn wait(mut self) -> std::result::Result<Message, Box<WriteFailed>> {
        let message = self.message.take().unwrap_or_default();
        if self.end.origin.is_child() {
            // The answer is the parent's, and so is the socket that it comes by.
            let (error, delivered) = (Error::Forked, Delivered::Unknown);
            return Err(Box::new(WriteFailed { message, error, delivered }));
        }
        let reply: Result<v1::PipeWriteResponse> =
            self.end.connection.answer(&self.asked, &self.wait, Late::Nothing);
        match reply {
            Ok(v1::PipeWriteResponse {}) => Ok(message),
            Err(error) => {
                let failed = Box::new(WriteFailed { message, delivered: delivered(&error), error });
                self.refused = failed.is_refused();
                Err(failed)
            }
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.end.origin.is_child() {
            // Its parent ends it; another thread of that may have held the lock when the child was made.
            return;
        }
        if self.message.is_some() {
            self.end.connection.withdraw(&self.asked);
        }
        self.end.window.end(self.refused);
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("message", &self.message).finish_non_exhaustive()
    }
}

/// Tells from the sidecar's word whether the message was delivered; without that word it is unknown.
fn delivered(error: &Error) -> Delivered {
    let said = |failure: &Failure| failure.detail("delivered") == Some("no");
    match error {
        Error::Refused(failure) if said(failure) => Delivered::No,
        _ => Delivered::Unknown,
    }
}

impl WriteFailed {
    /// Returns whether there was no room for it among what is unread.
    fn is_refused(&self) -> bool {
        self.delivered == Delivered::No && self.error.reason() == Some(Reason::LimitExceeded)
    }
}

impl fmt::Debug for WriteFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteFailed")
            .field("error", &self.error)
            .field("delivered", &self.delivered)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for WriteFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match self.delivered {
            Delivered::No => "it was not delivered",
            Delivered::Unknown => "it may have been read",
        };
        write!(f, "the message could not be written, {fate}: {}", self.error)
    }
}

impl std::error::Error for WriteFailed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::Cancel;

    #[test]
    fn a_wait_for_others_to_be_read_is_withdrawn_and_is_over_with_its_time() {
        let (window, cancel) = (Window::default(), Cancel::new());
        window.begin();
        let wait = |time| Wait::new(time, None, Some(cancel.clone()));
        assert!(matches!(window.wait(window.ended(), &wait(Duration::ZERO)), Ok(false)));
        assert!(matches!(window.wait(window.ended() + 1, &wait(Duration::MAX)), Ok(true)), "one has ended");
        cancel.cancel();
        for time in [Duration::MAX, Duration::ZERO] {
            assert!(matches!(window.wait(window.ended(), &wait(time)), Err(Error::Withdrawn)));
        }
    }
}
