//! Following: a reader goes on with the next channel of a name, or with the same one where only the way to it was lost.
//!
//! ```text
//!   end ──rest──> attach from the oldest ── another epoch ──> Epoch, from its first message
//!            ^          │        └───────── the same one ───> on behind what was read; a Gap, where that is gone
//!            └─ absent ─┘
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::ring::{Deadline, ReadError};
use tensorlane_proto::Reason;

use super::super::expired;
use super::{Attachment, ChannelReader, End, Read, ReadOptions};
use crate::error::{Error, Result};
use crate::wait::Wait;

/// Time of one attach of a reader that waits for another channel for ever.
const LONG: Duration = Duration::from_secs(3_600);
/// Pause of a reader that follows, after an attach that brought nothing. It doubles with each further one.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);
const FOLLOW_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time after which a pause is looked at again.
const FOLLOW_LOOK: Duration = Duration::from_millis(20);

// === impl ChannelReader ===

impl ChannelReader {
    /// Waits before the next attach, longer with each one that brought nothing.
    fn rest(&self, deadline: Deadline, patience: &Wait) -> Result<()> {
        let pause = follow_pause(self.idle);
        let until = match deadline {
            Deadline::Now => return Ok(()),
            Deadline::At(until) => until.min(Instant::now() + pause),
            Deadline::Never => Instant::now() + pause,
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.closing.closed.is_cancelled() {
                return Err(self.failed(&ReadError::Closed));
            }
            patience.check()?;
            std::thread::park_timeout(left.min(FOLLOW_LOOK));
        }
    }

    /// Waits for a channel of the name, and attaches to that. What is told of it; nothing where the same one is read on.
    pub(super) fn go_on(&mut self, end: End, deadline: Deadline, patience: &Wait) -> Result<Option<Read>> {
        let mut channel = loop {
            self.rest(deadline, patience)?;
            let wait = match deadline {
                Deadline::Now => Duration::ZERO,
                Deadline::At(until) => until.saturating_duration_since(Instant::now()),
                Deadline::Never => LONG,
            };
            let options = ReadOptions { oldest: true, wait, ..self.options.clone() };
            match self.client.join(&self.name, &options, &self.closing.closed) {
                Ok(channel) => break channel,
                Err(_) if self.closing.closed.is_cancelled() => return Err(self.failed(&ReadError::Closed)),
                Err(error) if !is_absent(&error) => return Err(error),
                Err(_) if wait.is_zero() => {
                    let name = &self.name;
                    return Err(expired(format!(
                        "the channel {name:?} has ended, and no other one of its name came in time"
                    )));
                }
                // The rest of the time is waited for, too.
                Err(_) => self.idle = self.idle.saturating_add(1),
            }
        };
        let closer = channel.ring.closer();
        *self.closing.ring.lock() = closer.clone();
        if self.closing.closed.is_cancelled() {
            closer.close();
        }
        let is_same = channel.epoch != 0 && channel.epoch == self.channel.epoch;
        if is_same {
            channel.attachment = channel.attachment.behind(&self.channel.attachment);
        }
        let Attachment { first, missed, .. } = channel.attachment;
        (self.channel, self.ended, self.parts) = (channel, None, (Arc::from([]), Arc::default()));
        if !is_same {
            self.next = first;
            return Ok(Some(Read::Epoch { end, missed }));
        }
        // A way that is lost at once, again and again, is no reason to attach without a pause.
        self.idle = self.idle.saturating_add(1);
        let dropped = self.channel.ring.resume(self.next);
        self.next = self.next.saturating_add(dropped);
        Ok((dropped > 0).then_some(Read::Gap { dropped, next: self.next }))
    }
}

// === impl Attachment ===

impl Attachment {
    /// Attachment of a reader that goes on with the channel that it was attached to `before`, where it began.
    fn behind(self, before: &Self) -> Self {
        Self { first: before.first, missed: before.missed, ..self }
    }
}

/// Pause before an attach behind so many that brought nothing.
fn follow_pause(idle: u32) -> Duration {
    match idle {
        0 => Duration::ZERO,
        idle => FOLLOW_PAUSE.saturating_mul(1 << (idle - 1).min(10)).min(FOLLOW_PAUSE_MAX),
    }
}

/// Returns whether a channel may come that is not there.
fn is_absent(error: &Error) -> bool {
    let absent = [
        Reason::NotFound,
        Reason::ChannelEnded,
        Reason::PeerUnknown,
        Reason::PeerUnreachable,
        Reason::OwnerLost,
        Reason::WriterNotAnswering,
        Reason::DeadlineExceeded,
    ];
    error.reason().is_some_and(|reason| absent.contains(&reason))
}

#[cfg(test)]
mod tests {
    use tensorlane_memory::ring::Policy;

    use super::*;

    #[test]
    fn a_pause_before_the_next_attach_doubles_up_to_a_second() {
        assert_eq!(
            [0, 1, 2, 7, u32::MAX].map(|idle| follow_pause(idle).as_millis()),
            [0, 20, 40, 1_000, 1_000]
        );
    }

    #[test]
    fn a_reader_that_goes_on_with_a_channel_began_where_it_did_and_has_the_way_of_the_last_attach() {
        let attachment = |first, missed, route: &str| Attachment {
            first,
            missed,
            route: route.to_owned(),
            peer: "a".to_owned(),
            writer: "w".to_owned(),
            slots: 4,
            slot_bytes: 64,
            growth: 0,
            policy: Policy::Block,
        };
        let again = attachment(90, 90, "tcp").behind(&attachment(7, 3, "local"));
        assert_eq!(again, attachment(7, 3, "tcp"));
    }
}
