//! Order and pace of the attempts at the addresses of one peer, after RFC 8305: families take turns, the next attempt
//! begins a quarter of a second after the last one or as soon as one fails. Plain data: the time is an argument.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time between the beginnings of two attempts, unless one fails before.
pub(super) const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Attempts of one dial, at most: a peer lists up to 8 addresses, and a name may stand for any number.
pub(super) const ATTEMPTS_MAX: usize = 8;

/// Step that an attempt to reach a peer takes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// An attempt at this address begins now.
    Begin(SocketAddr),
    /// Nothing begins before then, unless an attempt fails.
    At(Instant),
    /// Nothing begins before an attempt or a lookup ends.
    Wait,
    /// Every address was tried, or as many as may be, and nothing is under way.
    Over,
}

/// Attempts of one dial.
#[derive(Debug, Default)]
pub(super) struct Race {
    waiting: VecDeque<SocketAddr>,
    /// Every address that was ever added.
    known: Vec<SocketAddr>,
    /// Address that did last time.
    won: Option<SocketAddr>,
    /// Address of the last attempt.
    last: Option<SocketAddr>,
    begun: usize,
    under_way: usize,
    lookups: usize,
    not_before: Option<Instant>,
}

impl Race {
    /// No address yet, and so many names that are looked up. `won`: the address at which the peer was last reached.
    pub(super) fn new(lookups: usize, won: Option<SocketAddr>) -> Self {
        Self { lookups, won, ..Self::default() }
    }

    /// Adds addresses in the order in which they are listed. Those that are known already are no others.
    pub(super) fn add(&mut self, addresses: &[SocketAddr]) {
        let mut waiting = Vec::from(std::mem::take(&mut self.waiting));
        for address in addresses {
            if !self.known.contains(address) {
                self.known.push(*address);
                waiting.push(*address);
            }
        }
        self.waiting = in_turn(&waiting, self.won, self.last).into();
    }

    /// A name was looked up, and stands for these.
    pub(super) fn looked_up(&mut self, addresses: &[SocketAddr]) {
        self.lookups = self.lookups.saturating_sub(1);
        self.add(addresses);
    }

    /// Decides what to do now.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        let is_left = self.begun < ATTEMPTS_MAX && !self.waiting.is_empty();
        if let Some(at) = self.not_before.filter(|at| is_left && self.under_way > 0 && now < *at) {
            return Next::At(at);
        }
        let first = if is_left { self.waiting.pop_front() } else { None };
        match first {
            Some(address) => {
                self.begun += 1;
                self.under_way += 1;
                self.last = Some(address);
                self.not_before = Some(now + NEXT_AFTER);
                Next::Begin(address)
            }
            None if self.under_way > 0 || self.lookups > 0 && self.begun < ATTEMPTS_MAX => Next::Wait,
            None => Next::Over,
        }
    }

    /// An attempt failed: the next one need not wait.
    pub(super) fn failed(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.not_before = None;
    }

    /// Number of addresses that no attempt was made at.
    pub(super) fn untried(&self) -> usize {
        self.known.len().saturating_sub(self.begun)
    }
}

/// Returns addresses in the order in which they are tried: first the one that did last time, then one of each family in
/// turn. `last`: the one that was tried before them, whose family comes second.
pub(super) fn in_turn(
    listed: &[SocketAddr],
    won: Option<SocketAddr>,
    last: Option<SocketAddr>,
) -> Vec<SocketAddr> {
    let mut ordered: Vec<SocketAddr> = won.filter(|won| listed.contains(won)).into_iter().collect();
    let rest: Vec<SocketAddr> = listed.iter().copied().filter(|one| !ordered.contains(one)).collect();
    let before = ordered.first().copied().or(last);
    let is_first = |one: &SocketAddr| match (before, rest.first()) {
        (Some(before), _) => one.is_ipv6() != before.is_ipv6(),
        (None, first) => first.is_some_and(|first| one.is_ipv6() == first.is_ipv6()),
    };
    let (mut first, mut second): (VecDeque<_>, VecDeque<_>) = rest.iter().copied().partition(is_first);
    while !(first.is_empty() && second.is_empty()) {
        ordered.extend(first.pop_front());
        ordered.extend(second.pop_front());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 9421).into()
    }

    fn six(number: u16) -> SocketAddr {
        ([0xfd00, 0, 0, 0, 0, 0, 0, number], 9421).into()
    }

    #[test]
    fn families_take_turns_beginning_with_the_first_that_is_listed() {
        let listed = [four(1), four(2), six(1), four(3), six(2)];
        assert_eq!(in_turn(&listed, None, None), [four(1), six(1), four(2), six(2), four(3)]);
        assert_eq!(in_turn(&[six(1), six(2), four(1)], None, None), [six(1), four(1), six(2)]);
        assert_eq!(in_turn(&[four(1), four(2)], None, None), [four(1), four(2)]);
        assert!(in_turn(&[], None, None).is_empty());
    }

    #[test]
    fn the_address_that_did_last_time_is_the_first_and_the_other_family_the_second() {
        let listed = [four(1), four(2), six(1)];
        assert_eq!(in_turn(&listed, Some(four(2)), None), [four(2), six(1), four(1)]);
        assert_eq!(in_turn(&listed, Some(four(9)), None), [four(1), six(1), four(2)], "it is listed no more");
        assert_eq!(in_turn(&listed, None, Some(four(7))), [six(1), four(1), four(2)], "one was tried before");
    }

    #[test]
    fn the_next_attempt_begins_after_a_quarter_of_a_second_or_when_one_fails() {
        let now = Instant::now();
        let mut race = Race::new(0, None);
        race.add(&[four(1), four(2), six(1), four(1)]);
        assert_eq!(race.next(now), Next::Begin(four(1)));
        assert_eq!(race.next(now), Next::At(now + NEXT_AFTER));
        assert_eq!(race.next(now + NEXT_AFTER), Next::Begin(six(1)));
        race.failed();
        assert_eq!(race.next(now + NEXT_AFTER), Next::Begin(four(2)), "one has failed");
        assert_eq!(race.next(now + NEXT_AFTER), Next::Wait, "each address is tried once");
        race.failed();
        assert_eq!(race.next(now + NEXT_AFTER), Next::Wait);
        race.failed();
        assert_eq!((race.next(now), race.untried()), (Next::Over, 0));
    }

    #[test]
    fn attempts_wait_for_no_lookup_and_a_lookup_without_an_answer_is_waited_for() {
        let now = Instant::now();
        let mut race = Race::new(2, None);
        assert_eq!(race.next(now), Next::Wait);
        race.looked_up(&[four(1)]);
        assert_eq!(race.next(now), Next::Begin(four(1)));
        race.failed();
        assert_eq!(race.next(now), Next::Wait, "a name may still stand for one that does");
        race.looked_up(&[]);
        assert_eq!(race.next(now), Next::Over);
    }

    #[test]
    fn attempts_end_at_their_bound_and_tell_how_many_addresses_are_left() {
        let now = Instant::now();
        let mut race = Race::new(1, None);
        race.add(&(1..=12).map(four).collect::<Vec<_>>());
        for _ in 0..ATTEMPTS_MAX {
            assert!(matches!(race.next(now), Next::Begin(_)));
            race.failed();
        }
        assert_eq!((race.next(now), race.untried()), (Next::Over, 4));
    }
}
