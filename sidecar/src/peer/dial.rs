//! Decisions when a peer is dialed, and which of two connections stays. Pure: time and chance are arguments.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tensorlane_proto::{Fingerprint, Incarnation};

use super::seats::{self, NoSeat};
use crate::backoff::Backoff;

/// The attempts to reach one peer.
#[derive(Debug, Default)]
pub(super) struct Dial {
    /// An attempt is under way.
    pub(super) running: bool,
    /// Attempts that were begun.
    pub(super) begun: u64,
    /// Attempts that had begun when a connection last came up: they say nothing of the peer any more.
    pub(super) reached: u64,
    /// Attempts that failed, since the last connection.
    pub(super) failed: u32,
    /// The number of the last attempt that failed.
    pub(super) last_failed: u64,
    /// Address at which the peer was last reached.
    pub(super) won: Option<SocketAddr>,
    /// Beginning of the last one.
    pub(super) last: Option<Instant>,
    /// Not before this, unless someone waits.
    next: Option<Instant>,
    /// Not before this, although someone waits: it had no seat.
    free: Option<Instant>,
    /// Attempts in a row that found no seat.
    full: u32,
    /// True once the seat went to another peer, or there was none: nobody dials it ahead.
    pub(super) rests: bool,
}

/// Time to begin an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Now.
    Now,
    /// Then.
    At(Instant),
    /// Not before something else happens.
    Never,
}

impl Dial {
    /// Time to dial a peer without a connection. `eager`: it is ours to dial. `needed`: someone waits for it, so the
    /// backoff is cut to its shortest.
    pub(super) fn due(&self, eager: bool, needed: bool, now: Instant, shortest: Duration) -> Due {
        if self.running || !(eager && !self.rests || needed) {
            return Due::Never;
        }
        let soonest = self.last.map_or(now, |last| last + shortest).max(self.free.unwrap_or(now));
        let at = if needed { soonest } else { self.next.unwrap_or(now).max(soonest) };
        if at <= now { Due::Now } else { Due::At(at) }
    }

    pub(super) fn begin(&mut self, now: Instant) -> u64 {
        self.running = true;
        self.begun += 1;
        self.last = Some(now);
        self.begun
    }

    /// The attempt failed; the next one comes after a wait that doubles. `chance` is 0 to 1.
    pub(super) fn fail(&mut self, attempt: u64, now: Instant, backoff: Backoff, chance: f64) {
        self.running = false;
        (self.free, self.full) = (None, 0);
        self.failed = self.failed.saturating_add(1);
        self.last_failed = attempt;
        self.next = Some(now + backoff.jittered(self.failed, chance));
    }

    /// A connection is up, whoever dialed it.
    pub(super) fn connected(&mut self) {
        (self.failed, self.reached) = (0, self.begun);
        (self.next, self.free, self.full, self.rests) = (None, None, 0, false);
    }

    /// The attempt found no seat, and is no failure. `chance` is 0 to 1.
    pub(super) fn no_seat(&mut self, told: NoSeat, now: Instant, chance: f64) {
        self.running = false;
        self.full = self.full.saturating_add(1);
        self.free = Some(now + seats::wait(told, self.full, chance));
        self.rests = true;
    }

    /// Ends the rest, now that there is a seat for everyone: it is dialed ahead as before, unless the other end has no seat.
    pub(super) fn rest_no_more(&mut self) {
        self.rests = false;
    }

    /// Lacks of a seat are of the past: the next one begins with the shortest wait.
    pub(super) fn forget_full(&mut self) {
        self.full = 0;
    }

    /// Returns whether an attempt that nobody waits for would not be put off.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// The attempt is over, because its connection lives or was refused for the sake of another one.
    pub(super) fn end(&mut self) {
        self.running = false;
    }
}

/// A connection, for the choice between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// True if we dialed it.
    pub(super) dialed: bool,
    /// The life of the peer at its other end.
    pub(super) incarnation: Incarnation,
}

/// Returns whether a new connection takes the place of the one we have.
///
/// Two that were dialed at the same time from both ends must be decided alike at both ends: the one dialed by the smaller
/// fingerprint stays. Any other second connection means that the other side has lost the first, even if we have not
/// noticed yet: the new one stays. `young`: the old one is younger than a handshake may take.
pub(super) fn replaces(
    new: Candidate,
    old: Candidate,
    young: bool,
    ours: &Fingerprint,
    theirs: &Fingerprint,
) -> bool {
    if new.incarnation != old.incarnation || new.dialed == old.dialed || !young {
        return true;
    }
    new.dialed == (ours < theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

    #[test]
    fn both_ends_keep_the_same_one_of_two_simultaneous_connections() {
        let (small, large) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let end = |dialed| Candidate { dialed, incarnation: Incarnation(7) };
        for first_by_small in [true, false] {
            // What the smaller sees of "second replaces first", and what the larger sees of the same two.
            let at_small = replaces(end(!first_by_small), end(first_by_small), true, &small, &large);
            let at_large = replaces(end(first_by_small), end(!first_by_small), true, &large, &small);
            assert_eq!(at_small, at_large);
            assert_eq!(at_small, !first_by_small);
        }
    }

    #[test]
    fn a_second_connection_of_a_peer_that_lost_the_first_replaces_it() {
        let (small, large) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let end = |dialed, incarnation| Candidate { dialed, incarnation: Incarnation(incarnation) };
        assert!(replaces(end(false, 2), end(true, 1), true, &small, &large), "another incarnation");
        assert!(replaces(end(false, 1), end(true, 1), false, &small, &large), "an old connection");
        assert!(replaces(end(false, 1), end(false, 1), true, &small, &large), "the same side again");
    }

    #[test]
    fn a_peer_without_a_seat_is_dialed_later_for_those_who_wait_and_for_nobody_else() {
        let (now, told) = (Instant::now(), NoSeat { most: 4, retry: Duration::from_secs(1) });
        let mut dial = Dial::default();
        dial.begin(now);
        dial.no_seat(told, now, 1.0);
        assert_eq!(dial.due(true, false, now, BACKOFF.first), Due::Never, "nobody needs it");
        assert_eq!(dial.due(true, true, now, BACKOFF.first), Due::At(now + told.retry));
        assert_eq!((dial.last_failed, dial.failed), (0, 0), "it did not fail");
        dial.connected();
        assert_eq!(dial.due(true, false, now + BACKOFF.first, BACKOFF.first), Due::Now);
    }

    #[test]
    fn a_peer_that_rests_is_dialed_ahead_once_there_are_seats_for_all_and_not_before_it_is_welcome() {
        let (now, told) = (Instant::now(), NoSeat { most: 4, retry: Duration::from_secs(1) });
        let mut dial = Dial::default();
        dial.begin(now);
        dial.no_seat(told, now, 1.0);
        dial.rest_no_more();
        assert_eq!(dial.due(true, false, now, BACKOFF.first), Due::At(now + told.retry));
        assert_eq!(dial.due(false, false, now, BACKOFF.first), Due::Never, "the other end dials it");
        // It has no seat there all the same.
        dial.begin(now);
        dial.no_seat(told, now, 1.0);
        assert_eq!(dial.due(true, false, now, BACKOFF.first), Due::Never);
    }

    #[test]
    fn the_wait_doubles_up_to_its_limit_and_a_waiting_call_cuts_it() {
        let now = Instant::now();
        let mut dial = Dial::default();
        assert_eq!(dial.due(true, false, now, BACKOFF.first), Due::Now);
        assert_eq!(dial.due(false, false, now, BACKOFF.first), Due::Never);
        for (round, wait) in [100, 200, 400, 800, 1600, 3200, 5000, 5000].into_iter().enumerate() {
            let attempt = dial.begin(now);
            assert_eq!(dial.due(true, true, now, BACKOFF.first), Due::Never, "one at a time");
            dial.fail(attempt, now, BACKOFF, 1.0);
            assert_eq!(
                dial.due(true, false, now, BACKOFF.first),
                Due::At(now + Duration::from_millis(wait)),
                "{round}"
            );
            assert_eq!(dial.due(true, true, now, BACKOFF.first), Due::At(now + BACKOFF.first));
        }
        dial.connected();
        assert_eq!(dial.due(true, false, now + BACKOFF.first, BACKOFF.first), Due::Now);
    }
}
