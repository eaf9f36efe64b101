//! Rows that are mapped, and commits that wait for them.
//!
//! ```text
//!   map     hold(rows)  ── nobody waits for one of them ──> held until release      else it is a copy
//!   commit  wait(rows)  ── blocker? ── none: it writes ──> leave
//!                            '── who holds some of them the longest: ask again when a hold was released
//! ```
//!
//! A commit that waits keeps later maps from its rows, until it has written: so maps that follow one another never keep it waiting
//! for ever. What is refused is no wait: whoever maps rows and wants more waits for nobody, and nobody waits in a circle.

use std::collections::BTreeMap;

use super::list::RowList;

/// Most maps of one set at a time.
pub const HOLDS_MAX: usize = 1_024;

/// The holds of a set, each by some `B`, and its commits that wait.
#[derive(Clone, Debug)]
pub struct Holds<B> {
    held: BTreeMap<HoldId, HeldRows<B>>,
    waiting: BTreeMap<WaitId, Touched>,
    last: u64,
}

/// A hold. Earlier ones have lower numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(u64);

/// A commit that waits, or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitId(u64);

/// Rows of leaves that are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRows<B> {
    /// The first row.
    pub first: u64,
    /// Number of rows.
    pub count: u64,
    /// Holder of them.
    pub by: B,
    /// The leaves, in order.
    leaves: Vec<usize>,
}

/// Rows of leaves that a commit writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Neighbouring rows in order, none of which meet: first row, and the one behind the last.
    spans: Vec<(u64, u64)>,
    leaves: Vec<usize>,
}

// === impl Holds ===

impl<B> Default for Holds<B> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), waiting: BTreeMap::new(), last: 0 }
    }
}

impl<B> Holds<B> {
    /// Holds neighbouring rows of leaves, the first one and their number. None where a commit waits for some of them, or too many
    /// are held.
    pub fn hold(&mut self, (first, count): (u64, u64), leaves: &[usize], by: B) -> Option<HoldId> {
        let held = HeldRows { first, count, by, leaves: sorted(leaves) };
        if self.held.len() >= HOLDS_MAX || self.waiting.values().any(|commit| commit.meets(&held)) {
            return None;
        }
        self.last += 1;
        self.held.insert(HoldId(self.last), held);
        Some(HoldId(self.last))
    }

    /// Ends a hold.
    pub fn release(&mut self, hold: HoldId) {
        self.held.remove(&hold);
    }

    /// Has a commit wait for its rows. From now on nobody begins to hold one of them.
    pub fn wait(&mut self, commit: Touched) -> WaitId {
        self.last += 1;
        self.waiting.insert(WaitId(self.last), commit);
        WaitId(self.last)
    }

    /// The longest hold of rows that a commit waits for; none where it may write.
    pub fn blocker(&self, wait: WaitId) -> Option<&HeldRows<B>> {
        let commit = self.waiting.get(&wait)?;
        self.held.values().find(|held| commit.meets(held))
    }

    /// A commit has written its rows, or given up.
    pub fn leave(&mut self, wait: WaitId) {
        self.waiting.remove(&wait);
    }

    /// Number of holds.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

// === impl Touched ===

impl Touched {
    /// Rows that a commit writes in these leaves.
    pub fn new(rows: &RowList, leaves: &[usize]) -> Self {
        let mut pieces: Vec<(u64, u64)> = rows.spans().map(|(first, count)| (first, first + count)).collect();
        pieces.sort_unstable();
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for (first, end) in pieces {
            match spans.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                _ => spans.push((first, end)),
            }
        }
        Self { spans, leaves: sorted(leaves) }
    }

    fn meets<B>(&self, held: &HeldRows<B>) -> bool {
        let end = held.first.saturating_add(held.count);
        // Spans are in order, so the one that ends first behind the first row is the first that may have it.
        let at = self.spans.partition_point(|(_, until)| *until <= held.first);
        self.spans.get(at).is_some_and(|(first, _)| *first < end)
            && held.leaves.iter().any(|leaf| self.leaves.binary_search(leaf).is_ok())
    }
}

fn sorted(leaves: &[usize]) -> Vec<usize> {
    let mut leaves = leaves.to_vec();
    leaves.sort_unstable();
    leaves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(rows: &[u64]) -> RowList {
        RowList::List(rows.into())
    }

    #[test]
    fn a_commit_waits_for_the_longest_hold_of_its_rows_and_for_no_other() {
        let mut holds = Holds::default();
        let first = holds.hold((10, 5), &[0, 1], "a").unwrap();
        let second = holds.hold((12, 1), &[0], "b").unwrap();
        holds.hold((20, 9), &[0], "c").unwrap();
        let other = holds.wait(Touched::new(&list(&[9, 15, 19]), &[0, 1]));
        assert!(holds.blocker(other).is_none(), "rows between are nobody's");
        let leaf = holds.wait(Touched::new(&list(&[22]), &[1]));
        assert!(holds.blocker(leaf).is_none(), "another leaf of the same rows is nobody's");
        let commit = holds.wait(Touched::new(&list(&[12, 3]), &[0]));
        assert_eq!(holds.blocker(commit).map(|held| held.by), Some("a"));
        holds.release(first);
        assert_eq!(holds.blocker(commit).map(|held| (held.by, held.first, held.count)), Some(("b", 12, 1)));
        holds.release(second);
        assert!(holds.blocker(commit).is_none());
    }

    #[test]
    fn rows_that_a_commit_waits_for_are_held_by_nobody_new_until_it_has_left() {
        let mut holds = Holds::default();
        let hold = holds.hold((0, 4), &[0], ()).unwrap();
        let commit = holds.wait(Touched::new(&list(&[3, 8]), &[0]));
        assert!(holds.hold((2, 2), &[0], ()).is_none() && holds.hold((8, 1), &[0], ()).is_none());
        assert!(holds.hold((4, 4), &[0], ()).is_some() && holds.hold((3, 1), &[1], ()).is_some());
        holds.release(hold);
        assert!(holds.blocker(commit).is_none());
        assert!(holds.hold((3, 1), &[0], ()).is_none(), "it writes now");
        holds.leave(commit);
        assert!(holds.hold((3, 1), &[0], ()).is_some());
    }

    #[test]
    fn holds_beyond_the_limit_are_refused_until_one_is_released() {
        let mut holds = Holds::default();
        let first = holds.hold((0, 1), &[0], ()).unwrap();
        (1..HOLDS_MAX).for_each(|_| assert!(holds.hold((0, 1), &[0], ()).is_some()));
        assert!(holds.hold((7, 1), &[0], ()).is_none());
        holds.release(first);
        assert!(holds.hold((7, 1), &[0], ()).is_some());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Hold(u64, u64, Vec<usize>),
        Release(prop::sample::Index),
        Wait(Vec<u64>, Vec<usize>),
        Leave(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let leaves = || prop::sample::subsequence(vec![0, 1, 2], 1..3);
        let step = prop_oneof![
            (0u64..12, 1u64..6, leaves()).prop_map(|(first, count, leaves)| Step::Hold(first, count, leaves)),
            any::<prop::sample::Index>().prop_map(Step::Release),
            (prop::collection::vec(0u64..18, 0..6), leaves())
                .prop_map(|(rows, leaves)| Step::Wait(rows, leaves)),
            any::<prop::sample::Index>().prop_map(Step::Leave),
        ];
        prop::collection::vec(step, 0..40)
    }

    fn meet(held: &(u64, u64, Vec<usize>), commit: &(Vec<u64>, Vec<usize>)) -> bool {
        let (first, count, leaves) = held;
        commit.0.iter().any(|row| (*first..first + count).contains(row))
            && leaves.iter().any(|leaf| commit.1.contains(leaf))
    }

    proptest! {
        #[test]
        fn holds_and_commits_meet_where_a_plain_look_at_each_row_says_so(steps in steps()) {
            let mut holds: Holds<HoldId> = Holds::default();
            let (mut held, mut waiting) = (BTreeMap::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Hold(first, count, leaves) => {
                        let plain = (first, count, leaves.clone());
                        let is_free = !waiting.values().any(|commit| meet(&plain, commit));
                        let hold = holds.hold((first, count), &leaves, HoldId(holds.last + 1));
                        prop_assert_eq!(hold.is_some(), is_free);
                        held.extend(hold.map(|hold| (hold, plain)));
                    }
                    Step::Release(which) if !held.is_empty() => {
                        let hold = *which.get(&held.keys().copied().collect::<Vec<_>>());
                        held.remove(&hold);
                        holds.release(hold);
                    }
                    Step::Wait(rows, leaves) => {
                        let wait = holds.wait(Touched::new(&list(&rows), &leaves));
                        waiting.insert(wait, (rows, leaves));
                    }
                    Step::Leave(which) if !waiting.is_empty() => {
                        let wait = *which.get(&waiting.keys().copied().collect::<Vec<_>>());
                        waiting.remove(&wait);
                        holds.leave(wait);
                    }
                    Step::Release(_) | Step::Leave(_) => {}
                }
                for (wait, commit) in &waiting {
                    let longest = held.iter().find(|(_, held)| meet(held, commit)).map(|(hold, _)| *hold);
                    prop_assert_eq!(holds.blocker(*wait).map(|held| held.by), longest);
                }
                prop_assert_eq!(holds.len(), held.len());
            }
        }
    }
}
