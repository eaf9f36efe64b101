//! Attachment of another peer to a channel of ours, on one connection after the other. Pure.
//!
//! ```text
//!   on, turn 1 ──lost──> away ──resume──> on, turn 2 ── ..        over <── left, close, or away for the grace
//!        └─────────────────resume──────────┘                                or an end that is not confirmed for the grace
//! ```
//! Each connection is a *turn*. The other end may come back before this one has noticed that it was away: then the turn before is over,
//! and whatever is still said in it is nothing.

use std::time::Instant;

use tensorlane_proto::generated as v1;

use super::credit::Window;
use crate::peer::Misuse;

/// See the module.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) window: Window,
    /// The other end can come back.
    resumes: bool,
    turn: u64,
    standing: Standing,
    /// Moment until which the end that was sent in this turn is to be confirmed; none where none was sent.
    confirmed_by: Option<Instant>,
}

/// State of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// On the connection of this turn.
    On(u64),
    /// Waits for another connection until then.
    Away(Instant),
    /// Ended.
    Over,
}

// === impl Attachment ===

impl Attachment {
    /// An attachment in its first turn.
    pub(super) fn new(window: Window, resumes: bool) -> Self {
        Self { window, resumes, turn: 1, standing: Standing::On(1), confirmed_by: None }
    }

    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns whether a turn goes on.
    pub(super) fn is_on(&self, turn: u64) -> bool {
        self.standing == Standing::On(turn)
    }

    /// Takes a credit of a turn.
    ///
    /// # Errors
    /// As [`Window::credit`].
    pub(super) fn credit(&mut self, turn: u64, credit: &v1::PeerChannelCredit) -> Result<(), Misuse> {
        if self.turn == turn { self.window.credit(credit) } else { Ok(()) }
    }

    /// The connection of a turn is lost; it is waited for until then.
    pub(super) fn lost(&mut self, turn: u64, until: Instant) {
        if self.is_on(turn) {
            self.standing = if self.resumes { Standing::Away(until) } else { Standing::Over };
        }
    }

    /// The other end has left in a turn.
    pub(super) fn left(&mut self, turn: u64) {
        if self.is_on(turn) {
            self.standing = Standing::Over;
        }
    }

    /// Ends it, in whatever turn.
    pub(super) fn close(&mut self) {
        self.standing = Standing::Over;
    }

    /// The end was sent in a turn: the other end leaves once it has that, until then.
    pub(super) fn finished(&mut self, turn: u64, until: Instant) {
        if self.is_on(turn) {
            self.confirmed_by = Some(until);
        }
    }

    /// Moment at which it ends by itself, if nothing is heard of the other end.
    pub(super) fn expires(&self) -> Option<Instant> {
        match self.standing {
            Standing::Away(until) => Some(until),
            Standing::On(_) => self.confirmed_by,
            Standing::Over => None,
        }
    }

    /// Ends it if it is waited for no longer. Returns whether it ended so.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let expired = self.expires().is_some_and(|until| until <= now);
        if expired {
            self.standing = Standing::Over;
        }
        expired
    }

    /// The other end is back on another connection, and goes on with that sequence. Returns the turn.
    ///
    /// # Errors
    /// It has ended, or the sequence cannot be.
    pub(super) fn resume(&mut self, next: u64, now: Instant) -> Result<u64, Misuse> {
        self.expire(now);
        if self.standing == Standing::Over || !self.resumes {
            return Err(Misuse);
        }
        self.window.resume(next)?;
        self.turn += 1;
        (self.standing, self.confirmed_by) = (Standing::On(self.turn), None);
        Ok(self.turn)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tensorlane_memory::ring::Policy;

    use super::*;

    fn attachment(resumes: bool) -> Attachment {
        let mut attachment = Attachment::new(Window::new(Policy::Block, 4, 0), resumes);
        attachment.credit(1, &credit(0, 0)).unwrap();
        (0..3).for_each(|sequence| attachment.window.begin(sequence, false, false));
        attachment
    }

    fn credit(next: u64, received: u64) -> v1::PeerChannelCredit {
        v1::PeerChannelCredit { next, landed: 0, received }
    }

    #[test]
    fn an_attachment_goes_on_in_another_turn_where_it_is_back_in_time() {
        let (mut attachment, now) = (attachment(true), Instant::now());
        let until = now + Duration::from_secs(10);
        attachment.lost(1, until);
        assert_eq!(attachment.standing(), Standing::Away(until));
        assert!(!attachment.expire(now));
        assert_eq!(attachment.resume(2, now), Ok(2));
        assert!(attachment.is_on(2) && !attachment.is_on(1) && !attachment.window.may_begin(false));
        attachment.lost(2, until);
        assert_eq!(attachment.resume(2, until), Err(Misuse), "its time is over");
        assert_eq!(attachment.standing(), Standing::Over);
    }

    #[test]
    fn whatever_is_said_in_a_turn_before_is_nothing() {
        let (mut attachment, now) = (attachment(true), Instant::now());
        assert_eq!(attachment.resume(1, now), Ok(2), "this end has not noticed yet");
        attachment.lost(1, now);
        attachment.left(1);
        assert_eq!(attachment.credit(1, &credit(9, 9)), Ok(()));
        assert!(attachment.is_on(2) && !attachment.window.may_begin(false));
        attachment.credit(2, &credit(1, 1)).unwrap();
        assert!(attachment.window.may_begin(false));
        attachment.left(2);
        assert_eq!(attachment.resume(1, now), Err(Misuse));
    }

    #[test]
    fn an_end_that_is_not_confirmed_is_waited_for_until_its_time_is_over() {
        let (mut attachment, now) = (attachment(true), Instant::now());
        let until = now + Duration::from_secs(10);
        assert_eq!(attachment.expires(), None, "messages may take any time");
        attachment.finished(2, now);
        assert_eq!(attachment.expires(), None, "another turn");
        attachment.finished(1, until);
        assert!(!attachment.expire(now) && attachment.is_on(1));
        // Another turn has its own end.
        assert_eq!(attachment.resume(2, now), Ok(2));
        assert_eq!(attachment.expires(), None);
        attachment.finished(2, until);
        assert!(attachment.expire(until));
        assert_eq!((attachment.standing(), attachment.expires()), (Standing::Over, None));
        assert_eq!(attachment.resume(2, until), Err(Misuse));
    }

    #[test]
    fn an_attachment_of_a_peer_that_does_not_come_back_ends_with_its_connection() {
        let (mut attachment, now) = (attachment(false), Instant::now());
        attachment.lost(1, now + Duration::from_secs(10));
        assert_eq!(attachment.standing(), Standing::Over);
        assert_eq!(attachment.resume(0, now), Err(Misuse));
    }

    #[test]
    fn an_attachment_that_goes_on_with_what_cannot_be_stays_away() {
        let (mut attachment, now) = (attachment(true), Instant::now());
        attachment.credit(1, &credit(2, 2)).unwrap();
        let until = now + Duration::from_secs(10);
        attachment.lost(1, until);
        assert_eq!([0, 1, 4, u64::MAX].map(|next| attachment.resume(next, now)), [Err(Misuse); 4]);
        assert_eq!(attachment.standing(), Standing::Away(until));
        attachment.close();
        assert_eq!(attachment.standing(), Standing::Over);
    }
}
