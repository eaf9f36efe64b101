//! Deadlines of what ends at a certain time, in the order of time.

use std::collections::BTreeSet;

use super::Millis;

/// Deadlines of things of one kind. At one instant, the smaller key comes first.
pub(super) struct Deadlines<K>(BTreeSet<(Millis, K)>);

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    pub(super) fn insert(&mut self, at: Millis, key: K) {
        self.0.insert((at, key));
    }

    pub(super) fn remove(&mut self, at: Millis, key: K) {
        self.0.remove(&(at, key));
    }

    pub(super) fn first(&self) -> Option<(Millis, K)> {
        self.0.first().copied()
    }
}
