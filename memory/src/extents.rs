//! Free bytes of one segment: an exact best-fit list with coalescing, and nothing else.
//!
//! Pure bookkeeping over offsets: no memory, no clock. Everything is a multiple of [`UNIT`].

use std::collections::{BTreeMap, BTreeSet};

use crate::PAGE;

/// The unit of allocation: a cache line, and the alignment of every block.
pub(crate) const UNIT: u64 = 64;

/// From here on blocks begin on a page, so that they can be advised, mapped and registered on their own.
pub(crate) const PAGE_ALIGNED_FROM: u64 = 2 << 20;

/// The free extents of a segment, by place and by length.
#[derive(Debug, Clone)]
pub(crate) struct Extents {
    by_offset: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Extents {
    /// All of `bytes` free. `bytes` is a multiple of the unit.
    pub(crate) fn new(bytes: u64) -> Self {
        debug_assert_eq!(bytes % UNIT, 0, "segments have whole pages");
        let mut extents = Self { by_offset: BTreeMap::new(), by_len: BTreeSet::new(), free: 0 };
        if bytes > 0 {
            extents.insert(0, bytes);
        }
        extents
    }

    /// Number of bytes that a block of `bytes` takes, or `None` where that overflows.
    pub(crate) const fn charged(bytes: u64) -> Option<u64> {
        match bytes.checked_add(UNIT - 1) {
            Some(sum) => Some(sum / UNIT * UNIT),
            None => None,
        }
    }

    /// Free bytes in all.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// The longest free extent.
    pub(crate) fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// The place a block of `charged` bytes would get and the length of the extent it would be cut from.
    pub(crate) fn best_fit(&self, charged: u64) -> Option<(u64, u64)> {
        let alignment = alignment(charged);
        self.by_len.range((charged, 0)..).find_map(|&(len, offset)| {
            let place = offset.next_multiple_of(alignment);
            (place - offset + charged <= len).then_some((place, len))
        })
    }

    /// Takes `charged` bytes at a place that [`Extents::best_fit`] named.
    pub(crate) fn take(&mut self, place: u64, charged: u64) {
        let (&offset, &len) =
            self.by_offset.range(..=place).next_back().expect("a place of best_fit lies in a free extent");
        assert!(place + charged <= offset + len, "a place of best_fit lies in one free extent");
        self.remove(offset, len);
        if place > offset {
            self.insert(offset, place - offset);
        }
        let end = offset + len;
        if place + charged < end {
            self.insert(place + charged, end - place - charged);
        }
    }

    /// Gives `charged` bytes back, joined with what is free beside them.
    pub(crate) fn give_back(&mut self, place: u64, charged: u64) {
        let (mut offset, mut len) = (place, charged);
        if let Some((&before, &before_len)) = self.by_offset.range(..place).next_back() {
            assert!(before + before_len <= place, "bytes were given back twice");
            if before + before_len == place {
                self.remove(before, before_len);
                offset = before;
                len += before_len;
            }
        }
        if let Some((&after, &after_len)) = self.by_offset.range(place..).next() {
            assert!(place + charged <= after, "bytes were given back twice");
            if place + charged == after {
                self.remove(after, after_len);
                len += after_len;
            }
        }
        self.insert(offset, len);
    }

    fn insert(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
        self.free += len;
    }

    fn remove(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
        self.free -= len;
    }
}

fn alignment(charged: u64) -> u64 {
    if charged >= PAGE_ALIGNED_FROM { PAGE } else { UNIT }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Extents {
        fn allocate(&mut self, bytes: u64) -> Option<u64> {
            let (place, _) = self.best_fit(bytes)?;
            self.take(place, bytes);
            Some(place)
        }
    }

    #[test]
    fn the_smallest_extent_that_fits_is_cut() {
        let mut extents = Extents::new(1024);
        let places: Vec<u64> = (0..16).map(|_| extents.allocate(64).unwrap()).collect();
        extents.give_back(places[0], 64);
        extents.give_back(places[1], 64);
        extents.give_back(places[2], 64);
        extents.give_back(places[5], 64);
        assert_eq!(extents.allocate(64), Some(places[5]));
        assert_eq!(extents.allocate(192), Some(0));
        assert_eq!(extents.allocate(64), None);
    }

    #[test]
    fn a_large_block_begins_on_a_page_and_wastes_nothing_before_it() {
        let mut extents = Extents::new(4 << 20);
        assert_eq!(extents.allocate(64), Some(0));
        assert_eq!(extents.allocate(2 << 20), Some(4096));
        assert_eq!(extents.free(), (4 << 20) - 64 - (2 << 20));
        assert_eq!(extents.allocate(4032), Some(64));
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn bytes_given_back_twice_are_a_bug_that_shouts() {
        let mut extents = Extents::new(4096);
        let place = extents.allocate(128).unwrap();
        extents.give_back(place, 128);
        extents.give_back(place, 128);
    }

    /// A bitmap, a unit a bit: best fit by looking at every run.
    struct Naive(Vec<bool>);

    impl Naive {
        fn runs(&self) -> Vec<(u64, u64)> {
            let mut runs = Vec::new();
            let mut at = 0;
            while at < self.0.len() {
                let len = self.0[at..].iter().take_while(|used| !**used).count();
                if len > 0 {
                    runs.push((at as u64 * UNIT, len as u64 * UNIT));
                }
                at += len.max(1);
            }
            runs
        }

        fn best(&self, bytes: u64) -> Option<u64> {
            let fits = self.runs().into_iter().filter_map(|(offset, len)| {
                let place = offset.next_multiple_of(alignment(bytes));
                (place + bytes <= offset + len).then_some((len, place))
            });
            fits.min().map(|(_, place)| place)
        }

        fn set(&mut self, place: u64, bytes: u64, used: bool) {
            for unit in &mut self.0[(place / UNIT) as usize..((place + bytes) / UNIT) as usize] {
                assert_ne!(*unit, used, "a unit was given twice");
                *unit = used;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn extents_do_what_a_bitmap_does(steps in prop::collection::vec((0u8..3, 1u64..(5 << 19), any::<prop::sample::Index>()), 1..120)) {
            const BYTES: u64 = 5 << 20;
            let mut extents = Extents::new(BYTES);
            let mut naive = Naive(vec![false; (BYTES / UNIT) as usize]);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (kind, size, which) in steps {
                if kind < 2 {
                    let size = if kind == 0 { size % 70_000 + 1 } else { size };
                    let charged = Extents::charged(size).unwrap();
                    let place = extents.allocate(charged);
                    prop_assert_eq!(place, naive.best(charged));
                    if let Some(place) = place {
                        naive.set(place, charged, true);
                        taken.push((place, charged));
                    }
                } else if !taken.is_empty() {
                    let (place, charged) = taken.swap_remove(which.index(taken.len()));
                    naive.set(place, charged, false);
                    extents.give_back(place, charged);
                }
                prop_assert_eq!(extents.by_offset.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>(), naive.runs());
                prop_assert_eq!(extents.by_len.len(), extents.by_offset.len());
                prop_assert_eq!(extents.free(), extents.by_offset.values().sum::<u64>());
            }
        }
    }
}
