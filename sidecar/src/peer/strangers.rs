//! Limit to connections of which nobody knows yet whose they are, and how many of them from one place. Plain
//! data: it knows no sockets.
//!
//! A connection that has said nothing yet keeps nobody out: the oldest such one of the origin that has most gives way.
//! Addresses that the table of peers lists have places of their own beyond the others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use tensorlane_admin::Origin;

/// The part of all places that one origin may have, and that listed addresses have beyond all.
const PART: usize = 4;

/// Reason for which there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TooMany {
    /// All places are taken.
    All,
    /// Origin that has its part.
    FromOne,
}

/// The places, and who has them.
#[derive(Debug)]
pub(super) struct Strangers {
    most: usize,
    /// By number, which is the order of coming.
    here: BTreeMap<u64, Stranger>,
    origins: HashMap<Origin, usize>,
}

#[derive(Debug)]
struct Stranger {
    origin: Origin,
    /// Nothing has come of it yet that only a peer would say.
    is_silent: bool,
}

impl TooMany {
    /// The label in metrics: one of `AuthRefusal`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::All => "too_many",
            Self::FromOne => "too_many_from_address",
        }
    }
}

impl Strangers {
    pub(super) fn new(most: usize) -> Self {
        Self { most, here: BTreeMap::new(), origins: HashMap::new() }
    }

    /// A place for one more, silent as yet; to be given back by [`Strangers::leave`]. Returns the number of the one that gave way
    /// for it. `is_listed` says whether the table of peers has its address.
    pub(super) fn admit(
        &mut self,
        number: u64,
        from: IpAddr,
        is_listed: impl FnOnce() -> bool,
    ) -> Result<Option<u64>, TooMany> {
        let origin = Origin::of(from);
        let (part, count) = ((self.most / PART).max(1), self.here.len());
        let gives_way = if self.origins.get(&origin).is_some_and(|has| *has >= part) {
            Some(self.oldest_silent(|other| other == origin).ok_or(TooMany::FromOne)?)
        } else if count < self.most || (count < self.most + part && is_listed()) {
            None
        } else {
            Some(self.oldest_silent(|_| true).ok_or(TooMany::All)?)
        };
        if let Some(gives_way) = gives_way {
            self.leave(gives_way);
        }
        *self.origins.entry(origin).or_default() += 1;
        self.here.insert(number, Stranger { origin, is_silent: true });
        Ok(gives_way)
    }

    /// The oldest silent one of the origin that has most, among the origins that may be taken.
    fn oldest_silent(&self, may_take: impl Fn(Origin) -> bool) -> Option<u64> {
        let silent = self.here.iter().filter(|(_, stranger)| stranger.is_silent && may_take(stranger.origin));
        let has = |stranger: &Stranger| self.origins.get(&stranger.origin).copied().unwrap_or(0);
        silent.max_by_key(|(number, stranger)| (has(stranger), Reverse(**number))).map(|(number, _)| *number)
    }

    /// Notes that one has begun a handshake: from now on it gives way to nobody.
    pub(super) fn heard(&mut self, number: u64) {
        if let Some(stranger) = self.here.get_mut(&number) {
            stranger.is_silent = false;
        }
    }

    /// Notes that one is known, or gone.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(Stranger { origin, .. }) = self.here.remove(&number) else { return };
        let Some(has) = self.origins.get_mut(&origin) else { return };
        *has -= 1;
        if *has == 0 {
            // Addresses are many: nothing is remembered of those that have left.
            self.origins.remove(&origin);
        }
    }

    /// Number of strangers.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.here.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A hall with a count of those who came.
    struct Hall(Strangers, u64);

    impl Hall {
        fn of(most: usize) -> Self {
            Self(Strangers::new(most), 0)
        }

        /// Lets one more come that nobody lists. Returns its number with the one that gave way.
        fn come(&mut self, from: &str) -> Result<(u64, Option<u64>), TooMany> {
            self.1 += 1;
            self.0.admit(self.1, address(from), || false).map(|gave_way| (self.1, gave_way))
        }

        /// Lets one more come that begins a handshake. Returns its number.
        fn speak(&mut self, from: &str) -> Result<u64, TooMany> {
            let (number, _) = self.come(from)?;
            self.0.heard(number);
            Ok(number)
        }

        fn spoken(&mut self, from: &str, tries: usize) -> Vec<u64> {
            (0..tries).filter_map(|_| self.speak(from).ok()).collect()
        }
    }

    #[test]
    fn one_address_has_a_quarter_and_the_others_have_the_rest() {
        let mut hall = Hall::of(64);
        assert_eq!(hall.spoken("192.0.2.1", 99).len(), 16);
        assert_eq!(hall.speak("192.0.2.1"), Err(TooMany::FromOne));
        for other in ["192.0.2.2", "192.0.2.3", "2001:db8::1"] {
            assert_eq!(hall.spoken(other, 99).len(), 16, "{other}");
        }
        assert_eq!(hall.speak("192.0.2.4"), Err(TooMany::All));
    }

    #[test]
    fn silent_ones_of_the_address_that_has_most_make_room_and_the_oldest_first() {
        let mut hall = Hall::of(8);
        let few = hall.come("192.0.2.9").unwrap().0;
        for from in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
            assert_eq!(hall.come(from).unwrap().1, None);
            assert_eq!(hall.come(from).unwrap().1, None);
        }
        assert_eq!(hall.speak("192.0.2.4"), Ok(8));
        // All places are taken. Whoever has one alone keeps it.
        assert_eq!(hall.come("192.0.2.5"), Ok((9, Some(few + 1))));
        assert_eq!(hall.come("192.0.2.6"), Ok((10, Some(few + 3))));
        // One that has its part replaces its own.
        assert_eq!(hall.come("192.0.2.3"), Ok((11, Some(6))));
        assert_eq!(hall.0.count(), 8);
    }

    #[test]
    fn those_that_have_begun_a_handshake_give_way_to_nobody() {
        let mut hall = Hall::of(4);
        let spoken: Vec<u64> = (1..=3).map(|last| hall.speak(&format!("192.0.2.{last}")).unwrap()).collect();
        let silent = hall.come("192.0.2.4").unwrap().0;
        assert_eq!(hall.come("192.0.2.5").unwrap().1, Some(silent));
        hall.0.heard(5);
        assert_eq!(hall.come("192.0.2.6"), Err(TooMany::All));
        assert_eq!(hall.come("192.0.2.1"), Err(TooMany::FromOne));
        spoken.into_iter().for_each(|number| hall.0.leave(number));
        assert_eq!(hall.come("192.0.2.6").unwrap().1, None);
    }

    #[test]
    fn listed_addresses_have_places_beyond_the_others() {
        let mut hall = Hall::of(8);
        for last in 1..=8 {
            hall.speak(&format!("192.0.2.{last}")).unwrap();
        }
        assert_eq!(hall.come("192.0.2.9"), Err(TooMany::All));
        let mut listed = |number, from| hall.0.admit(number, address(from), || true);
        assert_eq!(listed(100, "198.51.100.1"), Ok(None));
        assert_eq!(listed(101, "198.51.100.1"), Ok(None));
        assert_eq!(listed(102, "198.51.100.1"), Ok(Some(100)), "one address has its part of them too");
        hall.0.heard(101);
        hall.0.heard(102);
        assert_eq!(hall.0.admit(103, address("198.51.100.2"), || true), Err(TooMany::All));
    }

    #[test]
    fn a_few_places_are_one_for_each() {
        let mut hall = Hall::of(3);
        for from in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
            assert_eq!(hall.spoken(from, 9).len(), 1, "{from}");
        }
        assert_eq!(hall.speak("192.0.2.4"), Err(TooMany::All));
    }

    #[test]
    fn what_was_left_is_free_again_and_nothing_is_remembered() {
        let mut hall = Hall::of(8);
        for _ in 0..3 {
            let all = hall.spoken("192.0.2.1", 9);
            assert_eq!(all.len(), 2);
            all.into_iter().for_each(|number| hall.0.leave(number));
            assert!(hall.0.count() == 0 && hall.0.origins.is_empty());
        }
    }
}
