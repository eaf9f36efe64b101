//! Rows of leaves that may be of two commits at once: their writer ended while it wrote them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Most ranges that are told apart; beyond it a leaf has one from its first torn row to its last one.
const TORN_RANGES_MAX: usize = 1 << 20;
/// Name of the file in `.tensorlane` that has them.
pub const TORN_FILE: &str = "torn";

/// Torn rows, by leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Torn(BTreeMap<usize, Rows>);

/// Rows as ranges that neither overlap nor touch: first row, and the one behind the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows(BTreeMap<u64, u64>);

impl Torn {
    /// Returns whether no row is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of rows of which any leaf is torn.
    pub fn rows(&self) -> u64 {
        let mut all = Rows::default();
        for (_, first, count) in self.pieces() {
            all.add(first, first + count);
        }
        all.0.iter().map(|(first, end)| end - first).sum()
    }

    /// Adds the rows that a commit was writing in leaves: first row and number of each piece.
    pub fn add_commit(&mut self, leaves: &[usize], pieces: &[(u64, u64)]) {
        let ranges: usize = self.0.values().map(|rows| rows.0.len()).sum();
        if ranges.saturating_add(leaves.len().saturating_mul(pieces.len())) <= TORN_RANGES_MAX {
            for leaf in leaves {
                pieces.iter().for_each(|(first, count)| self.add(*leaf, *first, *count));
            }
            return;
        }
        let first = pieces.iter().map(|(first, _)| *first).min().unwrap_or(0);
        let end = pieces.iter().map(|(first, count)| first.saturating_add(*count)).max().unwrap_or(0);
        leaves.iter().for_each(|leaf| self.add(*leaf, first, end.saturating_sub(first)));
        self.bound();
    }

    /// Takes rows away that a commit wrote anew in leaves. Returns whether any of them was torn. Where more ranges would be left than
    /// are told apart, rows between torn ones stay torn.
    pub fn remove_commit(&mut self, leaves: &[usize], pieces: &[(u64, u64)]) -> bool {
        let mut removed = false;
        for leaf in leaves {
            for (first, count) in pieces {
                removed |= self.remove(*leaf, *first, *count);
            }
            self.bound();
        }
        removed
    }

    /// Brings the ranges down to those that are told apart: first the leaf with the most of them has one.
    fn bound(&mut self) {
        let mut ranges: usize = self.0.values().map(|rows| rows.0.len()).sum();
        while ranges > TORN_RANGES_MAX {
            let most = self.0.values_mut().max_by_key(|rows| rows.0.len());
            let Some(most) = most.filter(|rows| rows.0.len() > 1) else { return };
            ranges -= most.0.len() - 1;
            most.cover();
        }
    }

    /// Adds rows of a leaf: first row and number.
    pub fn add(&mut self, leaf: usize, first: u64, count: u64) {
        let end = first.saturating_add(count);
        if end > first {
            self.0.entry(leaf).or_default().add(first, end);
        }
    }

    /// Takes rows of a leaf away, which were written anew. Returns whether any of them was torn.
    pub fn remove(&mut self, leaf: usize, first: u64, count: u64) -> bool {
        let Some(rows) = self.0.get_mut(&leaf) else { return false };
        let removed = rows.remove(first, first.saturating_add(count));
        if rows.0.is_empty() {
            self.0.remove(&leaf);
        }
        removed
    }

    /// The torn rows that a set of so many leaves and rows has.
    #[must_use]
    pub fn within(mut self, leaves: usize, rows: u64) -> Self {
        self.0.retain(|leaf, torn| {
            torn.remove(rows, u64::MAX);
            *leaf < leaves && !torn.0.is_empty()
        });
        self
    }

    /// The first torn rows of a leaf among these.
    pub fn among(&self, leaf: usize, first: u64, count: u64) -> Option<Range<u64>> {
        self.0.get(&leaf)?.among(first, first.saturating_add(count))
    }

    /// Pieces of all leaves: leaf, first row and number.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        self.0.iter().flat_map(|(leaf, rows)| rows.0.iter().map(|(first, end)| (*leaf, *first, end - first)))
    }
}

impl Rows {
    /// Leaves one range, from the first row to the last one.
    fn cover(&mut self) {
        let ends = (self.0.first_key_value(), self.0.last_key_value());
        if let (Some((first, _)), Some((_, end))) = ends {
            self.0 = BTreeMap::from([(*first, *end)]);
        }
    }

    fn among(&self, first: u64, end: u64) -> Option<Range<u64>> {
        let before = self.0.range(..=first).next_back().filter(|(_, until)| **until > first);
        let (from, until) = before.or_else(|| self.0.range(first..end).next())?;
        (first < end).then(|| (*from).max(first)..(*until).min(end))
    }

    fn add(&mut self, mut first: u64, mut end: u64) {
        // Those that overlap or touch become one with it.
        while let Some((from, until)) =
            self.0.range(..=end).next_back().map(|(from, until)| (*from, *until)).filter(|(_, u)| *u >= first)
        {
            self.0.remove(&from);
            first = first.min(from);
            end = end.max(until);
        }
        self.0.insert(first, end);
    }

    fn remove(&mut self, first: u64, end: u64) -> bool {
        let mut removed = false;
        while let Some(Range { start, .. }) = self.among(first, end) {
            let Some((from, until)) = self.0.range(..=start).next_back().map(|(f, u)| (*f, *u)) else {
                break;
            };
            self.0.remove(&from);
            if from < first {
                self.0.insert(from, first);
            }
            if until > end {
                self.0.insert(end, until);
            }
            removed = true;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn more_ranges_than_are_told_apart_become_one_a_leaf() {
        let mut torn = Torn::default();
        let pieces: Vec<(u64, u64)> = (0..1_000).map(|at| (at * 2, 1)).collect();
        torn.add_commit(&[0, 1], &pieces);
        assert_eq!((torn.pieces().count(), torn.among(1, 1, 1)), (2_000, None));
        let leaves: Vec<usize> = (0..TORN_RANGES_MAX / 1_000).collect();
        torn.add_commit(&leaves, &pieces);
        assert_eq!((torn.pieces().count(), torn.among(1, 1, 1)), (leaves.len(), Some(1..2)));
    }

    #[test]
    fn rows_and_leaves_that_a_set_does_not_have_are_not_torn_in_it() {
        let mut torn = Torn::default();
        [(0, 2, 5), (1, 8, 3), (2, 0, 1)]
            .into_iter()
            .for_each(|(leaf, first, count)| torn.add(leaf, first, count));
        let pieces = |torn: &Torn| torn.pieces().collect::<Vec<_>>();
        assert_eq!(pieces(&torn.clone().within(2, 4)), [(0, 2, 2)]);
        assert_eq!(torn.clone().within(3, 11), torn);
    }

    #[test]
    fn ranges_are_never_more_than_are_told_apart_and_their_note_is_read_again() {
        let is_read_again = |torn: &Torn| {
            let bytes = torn.encode();
            torn.pieces().count() <= TORN_RANGES_MAX
                && bytes.len() as u64 <= super::super::INTENT_BYTES_MAX
                && Torn::decode(&bytes).as_ref() == Some(torn)
        };
        let every_second =
            |rows: usize| (0..rows as u64).map(|row| (row * 2 + 1, 1)).collect::<Vec<(u64, u64)>>();
        let rows = TORN_RANGES_MAX / 2 - 10;
        let mut torn = Torn::default();
        (0..3).for_each(|leaf| torn.add(leaf, 0, u64::from(u32::MAX)));
        assert!(torn.remove_commit(&[0, 1, 2], &every_second(rows)));
        assert!(is_read_again(&torn), "rows that are written anew leave ranges behind");
        assert_eq!(torn.among(0, 0, 1), Some(0..1));
        let mut torn = Torn::default();
        torn.add_commit(&[0], &every_second(TORN_RANGES_MAX));
        assert_eq!(torn.pieces().count(), TORN_RANGES_MAX);
        for more in 1..4 {
            torn.add_commit(&[0], &[(u64::from(u32::MAX) + 2 * more, 1)]);
            assert!(is_read_again(&torn), "a commit adds to as many as there may be");
        }
    }

    #[test]
    fn rows_behind_the_last_number_are_none() {
        let mut torn = Torn::default();
        torn.add(0, u64::MAX, 5);
        assert!(torn.is_empty(), "{torn:?}");
        assert_eq!(Torn::decode(&torn.encode()), Some(Torn::default()), "a note of no rows is one");
        torn.add(0, u64::MAX - 1, 5);
        assert_eq!(Torn::decode(&torn.encode()), Some(torn));
    }

    proptest! {
        #[test]
        fn torn_rows_are_those_of_a_plain_list(
            steps in prop::collection::vec((any::<bool>(), 0..2usize, 0..40u64, 0..12u64), 1..40),
        ) {
            let mut torn = Torn::default();
            let mut plain: BTreeSet<(usize, u64)> = BTreeSet::new();
            for (is_added, leaf, first, count) in steps {
                let rows = (first..first + count).map(|row| (leaf, row));
                let due = plain.iter().find(|(l, row)| *l == leaf && (first..first + count).contains(row));
                prop_assert_eq!(torn.among(leaf, first, count).map(|range| range.start), due.map(|(_, row)| *row));
                if is_added {
                    torn.add(leaf, first, count);
                    plain.extend(rows);
                } else {
                    prop_assert_eq!(torn.remove(leaf, first, count), due.is_some());
                    rows.for_each(|row| _ = plain.remove(&row));
                }
                let all: BTreeSet<_> = torn.pieces().flat_map(|(l, f, c)| (f..f + c).map(move |r| (l, r))).collect();
                prop_assert_eq!(&all, &plain);
                prop_assert_eq!(torn.is_empty(), plain.is_empty());
                prop_assert_eq!(torn.rows(), plain.iter().map(|(_, row)| row).collect::<BTreeSet<_>>().len() as u64);
            }
        }
    }
}
