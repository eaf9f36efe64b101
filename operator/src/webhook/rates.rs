//! Rates by namespace: a bucket of tokens for each, in a table with a bound. Whoever asks says what time it is.
//!
//! A bucket is known by the time at which it is full again; one that is full is not kept.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::dns::Label;

/// The most namespaces with a bucket of their own, 100 bytes each. Where more come at once than that, those share one
/// bucket.
const NAMESPACES_MAX: usize = 1024;

/// Rate of one namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Tokens of a full bucket: so many at once.
    pub(super) burst: u32,
    /// Time after which there is one token more.
    pub(super) every: Duration,
}

/// The buckets of all namespaces.
#[derive(Debug)]
pub(super) struct Rates {
    rate: Rate,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    full_at: BTreeMap<Label, Instant>,
    /// Bucket of those that have no place.
    of_others: Option<Instant>,
}

impl Rates {
    /// Full buckets for everybody.
    pub(super) fn new(rate: Rate) -> Rates {
        Rates { rate, buckets: Mutex::default() }
    }

    /// Takes a token of this namespace; false where there is none.
    pub(super) fn take(&self, namespace: &Label, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if !buckets.full_at.contains_key(namespace) && buckets.full_at.len() >= NAMESPACES_MAX {
            buckets.full_at.retain(|_, full_at| *full_at > now);
        }
        let has_place = buckets.full_at.contains_key(namespace) || buckets.full_at.len() < NAMESPACES_MAX;
        let known = if has_place { buckets.full_at.get(namespace).copied() } else { buckets.of_others };
        let full_at = known.unwrap_or(now).max(now) + self.rate.every;
        if full_at.duration_since(now) > self.rate.every * self.rate.burst {
            return false;
        }
        if has_place {
            buckets.full_at.insert(namespace.clone(), full_at);
        } else {
            buckets.of_others = Some(full_at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(number: usize) -> Label {
        Label::new("namespace", &format!("n{number}")).unwrap()
    }

    fn rates() -> Rates {
        Rates::new(Rate { burst: 3, every: Duration::from_secs(1) })
    }

    #[test]
    fn a_namespace_has_its_burst_and_then_one_token_each_interval() {
        let (rates, now) = (rates(), Instant::now());
        let take = |seconds| rates.take(&namespace(0), now + Duration::from_secs(seconds));
        assert_eq!([0, 0, 0, 0].map(take), [true, true, true, false]);
        assert_eq!([1, 1].map(take), [true, false]);
        assert_eq!([60, 60, 60, 60].map(take), [true, true, true, false], "a bucket does not grow");
        assert!(rates.take(&namespace(1), now), "another namespace has its own");
    }

    #[test]
    fn those_that_have_no_place_in_the_table_share_one_bucket_until_others_are_full_again() {
        let (rates, now) = (rates(), Instant::now());
        assert!((0..NAMESPACES_MAX).all(|number| rates.take(&namespace(number), now)));
        let more = |number: usize| rates.take(&namespace(NAMESPACES_MAX + number), now);
        assert_eq!([0, 1, 2, 3].map(more), [true, true, true, false]);
        assert!(rates.take(&namespace(0), now), "who has a place keeps it");
        let later = now + Duration::from_secs(5);
        assert!((0..4).all(|number| rates.take(&namespace(2 * NAMESPACES_MAX + number), later)));
        assert!(rates.buckets.lock().unwrap().full_at.len() <= 4);
    }
}
