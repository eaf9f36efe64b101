//! Places of connections, and who gives way where there is none. Plain data: it knows no sockets.
//!
//! Probes are not told from others by their address, and not by what they say before they have said it. So a place is
//! nobody's for long: each is for one request, and whoever has not asked yet makes room for whoever comes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::origin::Origin;

/// The places, and who has them. `T` is what ends a connection.
#[derive(Debug)]
pub(crate) struct Places<T> {
    most: usize,
    /// By number, which is the order of coming.
    taken: HashMap<u64, Origin>,
    /// None of them is empty: addresses are many, and nothing is remembered of those that have left.
    origins: HashMap<Origin, BTreeMap<u64, T>>,
}

impl<T> Places<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: HashMap::new(), origins: HashMap::new() }
    }

    /// Returns whether the next one costs another its place.
    pub(crate) fn is_full(&self) -> bool {
        self.taken.len() >= self.most
    }

    /// Takes a place for one more, whose number is larger than any before. Returns the one that gave way for it: the oldest of
    /// the origin that has most.
    pub(crate) fn take(&mut self, number: u64, from: IpAddr, connection: T) -> Option<T> {
        let gives_way = if self.is_full() { self.next_to_go() } else { None };
        let gave_way = gives_way.and_then(|number| self.leave(number));
        let origin = Origin::of(from);
        self.origins.entry(origin).or_default().insert(number, connection);
        self.taken.insert(number, origin);
        gave_way
    }

    fn next_to_go(&self) -> Option<u64> {
        let oldest = |all: &BTreeMap<u64, T>| all.first_key_value().map(|(number, _)| *number);
        let most = self.origins.values().max_by_key(|all| (all.len(), Reverse(oldest(all))));
        most.and_then(oldest)
    }

    /// Gives a place back, if it was not given away.
    pub(crate) fn leave(&mut self, number: u64) -> Option<T> {
        let origin = self.taken.remove(&number)?;
        let all = self.origins.get_mut(&origin)?;
        let connection = all.remove(&number);
        if all.is_empty() {
            self.origins.remove(&origin);
        }
        connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Places, each taken by the number of who took it.
    fn filled(most: usize, from: impl IntoIterator<Item = u8>) -> Places<u64> {
        let mut places = Places::new(most);
        for (number, last) in (0..).zip(from) {
            assert_eq!(places.take(number, address(last), number), None);
        }
        places
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_gives_way() {
        let mut places = filled(5, [1, 2, 2, 3, 2]);
        assert!(places.is_full());
        assert_eq!(places.take(10, address(2), 10), Some(1));
        assert_eq!(places.take(11, address(4), 11), Some(2));
        // Two have as many now: the oldest of both.
        assert_eq!(places.take(12, address(3), 12), Some(4));
        assert_eq!(places.take(13, address(3), 13), Some(3));
    }

    #[test]
    fn whoever_has_one_place_keeps_it_whatever_one_address_takes() {
        let mut places = filled(8, [1, 2]);
        for number in 10..1000 {
            assert!(!matches!(places.take(number, address(2), number), Some(0)));
        }
        assert_eq!(places.leave(0), Some(0));
    }

    #[test]
    fn what_was_left_is_free_again_and_nothing_is_remembered() {
        let mut places = filled(3, [1, 1, 2]);
        for number in 0..3 {
            assert_eq!(places.leave(number), Some(number));
        }
        assert_eq!(places.leave(0), None, "it was left");
        assert!(places.origins.is_empty() && places.taken.is_empty() && !places.is_full());
    }
}
