//! Limit to connections of which nobody knows yet whose they are, and how many of them from one place. Plain
//! data: it knows no sockets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// The part of all places that one origin may have: whoever fills it leaves room for three others like it, and the peers.
const PART: usize = 4;

/// Origin of a connection: an address, or of IPv6 the network of 64 bits, of which one machine may have every
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Origin(IpAddr);

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
    count: usize,
    origins: HashMap<Origin, usize>,
}

impl Origin {
    fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address => address,
        })
    }
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
        Self { most, count: 0, origins: HashMap::new() }
    }

    /// A place for one more; to be given back by [`Strangers::leave`].
    pub(super) fn admit(&mut self, from: IpAddr) -> Result<Origin, TooMany> {
        if self.count >= self.most {
            return Err(TooMany::All);
        }
        let origin = Origin::of(from);
        let has = self.origins.get(&origin).copied().unwrap_or(0);
        if has >= (self.most / PART).max(1) {
            return Err(TooMany::FromOne);
        }
        self.count += 1;
        self.origins.insert(origin, has + 1);
        Ok(origin)
    }

    /// Notes that one is known, or gone.
    pub(super) fn leave(&mut self, origin: Origin) {
        let Some(has) = self.origins.get_mut(&origin) else { return };
        self.count -= 1;
        *has -= 1;
        if *has == 0 {
            // Addresses are many: nothing is remembered of those that have left.
            self.origins.remove(&origin);
        }
    }

    /// Number of strangers.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn admitted(strangers: &mut Strangers, from: &str, tries: usize) -> Vec<Origin> {
        (0..tries).filter_map(|_| strangers.admit(address(from)).ok()).collect()
    }

    #[test]
    fn one_address_has_a_quarter_and_the_others_have_the_rest() {
        let mut strangers = Strangers::new(64);
        assert_eq!(admitted(&mut strangers, "192.0.2.1", 99).len(), 16);
        assert_eq!(strangers.admit(address("192.0.2.1")), Err(TooMany::FromOne));
        for other in ["192.0.2.2", "192.0.2.3", "2001:db8::1"] {
            assert_eq!(admitted(&mut strangers, other, 99).len(), 16, "{other}");
        }
        assert_eq!(strangers.admit(address("192.0.2.4")), Err(TooMany::All));
    }

    #[test]
    fn a_few_places_are_one_for_each() {
        let mut strangers = Strangers::new(3);
        for from in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
            assert_eq!(admitted(&mut strangers, from, 9).len(), 1, "{from}");
        }
        assert_eq!(strangers.admit(address("192.0.2.4")), Err(TooMany::All));
    }

    #[test]
    fn what_was_left_is_free_again_and_nothing_is_remembered() {
        let mut strangers = Strangers::new(8);
        for _ in 0..3 {
            let all = admitted(&mut strangers, "192.0.2.1", 9);
            assert_eq!(all.len(), 2);
            all.into_iter().for_each(|origin| strangers.leave(origin));
            assert!(strangers.count() == 0 && strangers.origins.is_empty());
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_origin_and_an_address_is_the_same_in_both_forms() {
        let of = |text| Origin::of(address(text));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
