//! Writing: done when the other end has read the message, which comes back in any case.

use std::fmt;
use std::sync::Arc;

use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::{End, Message, Pipe, patience};
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
}

impl Pipe {
    /// Writes a message and waits until the other end has read it. Messages are read in the order in which they were written.
    ///
    /// # Errors
    /// The message comes back. DEADLINE_EXCEEDED names who has not read it in time; PIPE_CLOSED, PIPE_LOST where the other end is no
    /// more; LIMIT_EXCEEDED with [`UNREAD_MAX`](super::UNREAD_MAX) messages unread; TOO_LARGE; what a put says.
    pub fn write(
        &self,
        mut message: Message,
        timeout: Timeout,
    ) -> std::result::Result<Message, Box<WriteFailed>> {
        let again = timeout == Timeout::Never;
        loop {
            match self.begin(message, timeout)?.wait() {
                Err(failed) if again && failed.may_wait_on() => message = failed.message,
                outcome => return outcome,
            }
        }
    }

    /// Begins to write a message, so that others can be written behind it. The deadline is that of the whole write.
    ///
    /// # Errors
    /// As [`Self::write`], as far as they are known at once.
    pub fn begin(
        &self,
        mut message: Message,
        timeout: Timeout,
    ) -> std::result::Result<Writing, Box<WriteFailed>> {
        let (wait, _) = patience(&self.end.client, timeout);
        match self.end.ask(&mut message, &wait) {
            Ok(asked) => {
                let end = Arc::clone(&self.end);
                Ok(Writing { end, message: Some(message), asked, wait })
            }
            Err(error) => Err(Box::new(WriteFailed { message, error, delivered: Delivered::No })),
        }
    }
}

impl End {
    fn ask(&self, message: &mut Message, wait: &Wait) -> Result<Asked> {
        if self.connection.is_lost() {
            return Err(Error::lost("the sidecar of this pipe is gone, and the pipe with it; connect again"));
        }
        let encoded = message.prepare(&self.client)?;
        // Held while it is sent: the order of sequences is that on the socket.
        let mut written = self.written.lock();
        let deadline_ms = wait.deadline_ms();
        let request =
            v1::PipeWriteRequest { pipe: self.id, sequence: *written + 1, message: encoded, deadline_ms };
        let asked = self.connection.ask(SessionKind::PipeWrite, &request, wait)?;
        *written += 1;
        Ok(asked)
    }
}

impl Writing {
    /// Waits until the other end has read the message.
    ///
    /// # Errors
    /// As [`Pipe::write`].
    pub fn wait(mut self) -> std::result::Result<Message, Box<WriteFailed>> {
        let message = self.message.take().unwrap_or_default();
        let reply: Result<v1::PipeWriteResponse> =
            self.end.connection.answer(&self.asked, &self.wait, Late::Nothing);
        match reply {
            Ok(v1::PipeWriteResponse {}) => Ok(message),
            Err(error) => {
                let delivered = delivered(&error);
                Err(Box::new(WriteFailed { message, error, delivered }))
            }
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.message.is_some() && !self.end.origin.is_child() {
            self.end.connection.withdraw(&self.asked);
        }
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing").field("message", &self.message).finish_non_exhaustive()
    }
}

/// What is known from the sidecar's word; without it nothing is.
fn delivered(error: &Error) -> Delivered {
    let said = |failure: &Failure| failure.detail("delivered") == Some("no");
    match error {
        Error::Refused(failure) if said(failure) => Delivered::No,
        _ => Delivered::Unknown,
    }
}

impl WriteFailed {
    /// Returns whether it was only the sidecar's longest deadline that was over, and nobody saw the message.
    fn may_wait_on(&self) -> bool {
        self.delivered == Delivered::No && self.error.reason() == Some(Reason::DeadlineExceeded)
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
