//! Schedule: when a namespace is looked at, and which of its objects may be tried then. Plain data: whoever holds it
//! says what time it is.
//!
//! ```text
//!              begins                 done
//!   (nothing) --------> under way ------------> (nothing)
//!                ^          │ failed
//!                │          v
//!                '────── resting, each time twice as long
//! ```
//!
//! An object that cannot be brought to what it should be rests by itself: its namespace is looked at whenever something
//! in it changes, and everything else in it is done. Nothing is remembered of an object that is as it should be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Time that changes are gathered before a namespace is looked at: a thousand pods that start at once are one look each
/// fifth of a second, and nobody waits longer for a peer.
pub(super) const GATHER: Duration = Duration::from_millis(200);

/// Time that an object rests that failed once.
const REST: Duration = Duration::from_secs(1);

/// The longest that an object rests, however often it failed. Longer spares the API server; it costs as much until an
/// object is well after whatever was wrong is mended.
const REST_MAX: Duration = Duration::from_secs(30);

/// An object of a namespace, by its kind and name.
pub(super) type Object = (&'static str, String);

/// Schedule of what is due, and of what is not to be tried.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    due: BTreeMap<String, Instant>,
    objects: BTreeMap<(String, Object), State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Somebody is at it. `again` if it was to be done once more meanwhile.
    UnderWay {
        failures: u32,
        again: bool,
    },
    Resting {
        failures: u32,
        until: Instant,
    },
}

impl Schedule {
    /// The namespace is to be looked at then, or before if it is due before.
    pub(super) fn look_at(&mut self, namespace: &str, at: Instant) {
        let due = self.due.entry(namespace.to_owned()).or_insert(at);
        *due = at.min(*due);
    }

    /// Time at which the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    /// Takes those that are due.
    pub(super) fn take(&mut self, now: Instant) -> Vec<String> {
        let ripe = self.due.iter().filter(|(_, at)| **at <= now);
        let ripe: Vec<String> = ripe.map(|(namespace, _)| namespace.clone()).collect();
        ripe.iter().for_each(|namespace| _ = self.due.remove(namespace));
        ripe
    }

    /// Nothing is to be done about the other objects of a namespace, so none of them has anything to rest from.
    pub(super) fn wanted(&mut self, namespace: &str, objects: &BTreeSet<Object>) {
        let is_wanted = |of: &str, object: &Object| of != namespace || objects.contains(object);
        self.objects
            .retain(|(of, object), state| is_wanted(of, object) || matches!(state, State::UnderWay { .. }));
    }

    /// Returns whether an object may be tried now. If so it is under way; if not its namespace is due when it may be.
    pub(super) fn begins(&mut self, namespace: &str, object: &Object, now: Instant) -> bool {
        let key = (namespace.to_owned(), object.clone());
        let failures = match self.objects.get_mut(&key) {
            Some(State::UnderWay { again, .. }) => {
                *again = true;
                return false;
            }
            Some(State::Resting { until, .. }) if *until > now => {
                let until = *until;
                self.look_at(namespace, until);
                return false;
            }
            Some(State::Resting { failures, .. }) => *failures,
            None => 0,
        };
        self.objects.insert(key, State::UnderWay { failures, again: false });
        true
    }

    /// Ends what was under way.
    pub(super) fn ended(&mut self, namespace: &str, object: Object, done: bool, now: Instant) {
        let key = (namespace.to_owned(), object);
        let Some(State::UnderWay { failures, again }) = self.objects.remove(&key) else { return };
        if done {
            if again {
                self.look_at(namespace, now + GATHER);
            }
            return;
        }
        let until = now + rest(failures);
        self.objects.insert(key, State::Resting { failures: failures.saturating_add(1), until });
        self.look_at(namespace, until);
    }
}

/// Time that an object rests that failed so often before.
fn rest(failures: u32) -> Duration {
    REST.saturating_mul(2_u32.saturating_pow(failures)).min(REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Object {
        ("peer", name.to_owned())
    }

    #[test]
    fn a_change_is_looked_at_soon_also_where_an_object_of_the_namespace_rests() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert!(schedule.begins("ml", &peer("bad"), now));
        schedule.ended("ml", peer("bad"), false, now);
        assert_eq!(schedule.next(), Some(now + REST));
        schedule.look_at("ml", now + GATHER);
        assert_eq!(schedule.next(), Some(now + GATHER));
        assert_eq!(schedule.take(now + GATHER), ["ml"]);
        assert!(schedule.begins("ml", &peer("good"), now + GATHER), "it has nothing to rest from");
        assert!(!schedule.begins("ml", &peer("bad"), now + GATHER), "it rests");
        assert_eq!(schedule.next(), Some(now + REST), "and is tried again all the same");
        assert!(schedule.begins("ml", &peer("bad"), now + REST));
    }

    #[test]
    fn each_object_rests_by_itself_and_longer_each_time() {
        let (mut schedule, mut now) = (Schedule::default(), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..8 {
            assert!(schedule.begins("ml", &peer("bad"), now));
            schedule.ended("ml", peer("bad"), false, now);
            let next = schedule.next().unwrap();
            rests.push((next - now).as_secs());
            assert_eq!(schedule.take(next), ["ml"]);
            now = next;
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert!(schedule.begins("ml", &peer("other"), now));
        schedule.ended("ml", peer("other"), false, now);
        assert_eq!(schedule.next(), Some(now + REST), "it failed for the first time");
        assert!(schedule.begins("ml", &peer("bad"), now));
        schedule.ended("ml", peer("bad"), true, now);
        assert!(schedule.begins("ml", &peer("bad"), now));
        schedule.ended("ml", peer("bad"), false, now);
        assert!(!schedule.begins("ml", &peer("bad"), now) && schedule.begins("ml", &peer("bad"), now + REST));
    }

    #[test]
    fn an_object_that_is_under_way_is_not_begun_twice_and_looked_at_once_more() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        assert!(schedule.begins("ml", &peer("a"), now) && !schedule.begins("ml", &peer("a"), now));
        assert!(schedule.begins("other", &peer("a"), now), "another object of that name");
        assert_eq!(schedule.next(), None);
        schedule.ended("ml", peer("a"), true, now);
        assert_eq!(schedule.next(), Some(now + GATHER));
        schedule.ended("other", peer("a"), true, now);
        assert_eq!((schedule.take(now + GATHER), schedule.next()), (vec!["ml".to_owned()], None));
    }

    #[test]
    fn what_is_wanted_no_more_is_forgotten() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        for (namespace, name) in [("ml", "gone"), ("ml", "bad"), ("other", "bad")] {
            assert!(schedule.begins(namespace, &peer(name), now));
            schedule.ended(namespace, peer(name), false, now);
        }
        schedule.wanted("ml", &BTreeSet::from([peer("bad")]));
        assert!(
            schedule.begins("ml", &peer("gone"), now),
            "a pod of that name that comes again waits for nobody"
        );
        assert!(!schedule.begins("ml", &peer("bad"), now) && !schedule.begins("other", &peer("bad"), now));
    }
}
