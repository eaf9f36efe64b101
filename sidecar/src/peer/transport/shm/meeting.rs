//! State of a meeting: whether two ends have met at the node's socket, and when to try again. Plain data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::negotiate::SameNode;

use crate::backoff::Backoff;

/// First and longest wait between two calls at a peer's socket. The peer may be on another node for good.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Shortest time between two looks at time, whoever asks.
const LOOK: Duration = Duration::from_millis(100);
/// Time after the connection came up for which it counts as about to be known: who asks for a tensor meanwhile waits
/// for it.
const FRESH: Duration = Duration::from_secs(1);

/// State between two ends, with their socket while they have one.
#[derive(Debug)]
pub(super) struct Meeting<S> {
    since: Instant,
    socket: Option<Arc<S>>,
    /// A thread calls now.
    calling: bool,
    /// Nothing was tried yet.
    untried: bool,
    due: Instant,
    failures: u32,
    looked: Option<Instant>,
    /// The peer has no socket in this node's directory.
    elsewhere: bool,
    over: bool,
}

impl<S> Meeting<S> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            socket: None,
            calling: false,
            untried: true,
            due: now,
            failures: 0,
            looked: None,
            elsewhere: false,
            over: false,
        }
    }

    pub(super) fn same_node(&self) -> SameNode {
        match (&self.socket, self.elsewhere) {
            (Some(_), _) => SameNode::Proven,
            (None, true) => SameNode::Refuted,
            (None, false) => SameNode::Unknown,
        }
    }

    /// Returns whether the first try is not over.
    pub(super) fn is_pending(&self, now: Instant) -> bool {
        self.socket.is_none() && self.untried && !self.elsewhere && !self.over && now < self.since + FRESH
    }

    pub(super) fn socket(&self) -> Option<Arc<S>> {
        self.socket.clone()
    }

    /// Returns whether time is to be looked at now; counts as done.
    pub(super) fn is_time(&mut self, now: Instant) -> bool {
        let is_time = !self.over && self.looked.is_none_or(|looked| now >= looked + LOOK);
        if is_time {
            self.looked = Some(now);
        }
        is_time
    }

    /// Returns whether to call now; counts as begun.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.socket.is_none() && !self.calling && !self.over && now >= self.due;
        self.calling |= is_due;
        is_due
    }

    /// Notes whether the peer's file is there, which was looked at.
    pub(super) fn looked(&mut self, is_listed: bool) {
        self.elsewhere = !is_listed;
    }

    /// A call came to nothing.
    pub(super) fn failed(&mut self, now: Instant, elsewhere: bool) {
        (self.calling, self.untried, self.elsewhere) = (false, false, elsewhere);
        self.failures = self.failures.saturating_add(1);
        self.due = now + BACKOFF.wait(self.failures);
    }

    /// Notes that they have met; false where there is no place for another meeting.
    pub(super) fn begin(&mut self, socket: &Arc<S>) -> bool {
        self.calling = false;
        if self.over || self.socket.is_some() {
            return false;
        }
        self.socket = Some(Arc::clone(socket));
        (self.untried, self.elsewhere, self.failures) = (false, false, 0);
        true
    }

    /// Notes that they have parted.
    pub(super) fn end(&mut self, now: Instant) {
        self.socket = None;
        self.due = now + BACKOFF.wait(self.failures);
    }

    /// The connection has ended: they do not meet any more.
    pub(super) fn over(&mut self) {
        self.over = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> Arc<()> {
        Arc::new(())
    }

    #[test]
    fn calls_are_repeated_ever_more_rarely_until_one_is_taken() {
        let now = Instant::now();
        let mut meeting = Meeting::new(now);
        assert!(meeting.is_pending(now) && meeting.is_due(now) && !meeting.is_due(now));
        let mut waits = Vec::new();
        let mut at = now;
        for _ in 0..9 {
            meeting.failed(at, true);
            waits.push((meeting.due - at).as_secs());
            at = meeting.due;
            assert!(meeting.is_due(at));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!((meeting.same_node(), meeting.is_pending(now)), (SameNode::Refuted, false));
        assert!(meeting.begin(&socket()));
        assert_eq!((meeting.same_node(), meeting.is_due(at)), (SameNode::Proven, false));
        assert!(!meeting.begin(&socket()), "there is one already");
        meeting.end(at);
        assert_eq!((meeting.same_node(), meeting.due - at), (SameNode::Unknown, BACKOFF.first));
    }

    #[test]
    fn whoever_does_not_call_says_what_it_sees_and_waits_for_a_moment() {
        let now = Instant::now();
        let mut meeting = Meeting::new(now);
        assert_eq!((meeting.same_node(), meeting.is_pending(now)), (SameNode::Unknown, true));
        assert!(!meeting.is_pending(now + FRESH));
        assert!(meeting.is_time(now) && !meeting.is_time(now) && meeting.is_time(now + LOOK));
        meeting.looked(false);
        assert_eq!((meeting.same_node(), meeting.is_pending(now)), (SameNode::Refuted, false));
        meeting.looked(true);
        assert_eq!(meeting.same_node(), SameNode::Unknown);
        meeting.over();
        assert!(!meeting.begin(&socket()) && !meeting.is_due(now) && !meeting.is_time(now + FRESH));
    }
}
