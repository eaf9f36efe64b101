//! Checksums of a tensor's packed bytes, granule by granule: made by whoever sends them first, and kept for those who come after,
//! so that a tensor that many read is summed once. Knows no wire. The bytes of a sealed tensor do not change: where a writer breaks
//! that, readers find out.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorlane_proto::checksum::{crc32c_append, crc32c_combine};

/// Bytes of a granule: what lanes ask for is made of whole ones.
pub const GRANULE: u64 = 1 << 20;
/// Stands above the 32 bits of a sum that is known.
const KNOWN: u64 = 1 << 32;

/// The CRC-32C of each granule, as far as somebody has made it. Costs 8 bytes for each granule.
#[derive(Debug)]
pub struct Sums {
    bytes: u64,
    granules: Box<[AtomicU64]>,
}

impl Sums {
    /// Of a tensor of so many packed bytes, none of which are summed yet.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, granules: (0..bytes.div_ceil(GRANULE)).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The checksum of a range; none where it is not made of whole granules, or one of them is not known.
    pub fn of(&self, range: &Range<u64>) -> Option<u32> {
        let is_whole = range.start.is_multiple_of(GRANULE) && self.ends(range.end);
        let mut sum = Some(0).filter(|_| is_whole)?;
        for granule in range.start / GRANULE..range.end.div_ceil(GRANULE) {
            let known = self.granules.get(granule as usize)?.load(Ordering::Relaxed);
            let bytes = GRANULE.min(self.bytes - granule * GRANULE);
            sum = (known & KNOWN != 0).then(|| crc32c_combine(sum, known as u32, bytes))?;
        }
        Some(sum)
    }

    fn learn(&self, granule: u64, sum: u32) {
        if let Some(known) = self.granules.get(granule as usize) {
            known.store(KNOWN | u64::from(sum), Ordering::Relaxed);
        }
    }

    /// Returns whether a granule ends at this byte.
    fn ends(&self, at: u64) -> bool {
        at == self.bytes || (at < self.bytes && at.is_multiple_of(GRANULE))
    }
}

/// Sums bytes on their way. Granules that pass whole are known from then on.
pub struct Summing<'a> {
    sums: Option<&'a Sums>,
    /// Of what came before the granule that is under way.
    before: u32,
    /// Of what has passed of that one.
    granule: u32,
    /// Offset at which that granule, or what is summed of it, begins.
    begun: u64,
    at: u64,
}

impl<'a> Summing<'a> {
    /// From `at` on.
    pub fn new(sums: Option<&'a Sums>, at: u64) -> Self {
        Self { sums, before: 0, granule: 0, begun: at, at }
    }

    /// The next bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = GRANULE - self.at % GRANULE;
            let (now, later) = bytes.split_at(bytes.len().min(left as usize));
            self.granule = crc32c_append(self.granule, now);
            self.at += now.len() as u64;
            bytes = later;
            if self.sums.is_some_and(|sums| sums.ends(self.at)) {
                self.end_granule();
            }
        }
    }

    /// The checksum of all that passed.
    pub fn sum(&self) -> u32 {
        crc32c_combine(self.before, self.granule, self.at - self.begun)
    }

    fn end_granule(&mut self) {
        if let Some(sums) = self.sums.filter(|_| self.begun.is_multiple_of(GRANULE)) {
            sums.learn(self.begun / GRANULE, self.granule);
        }
        self.before = self.sum();
        (self.granule, self.begun) = (0, self.at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensorlane_proto::checksum::crc32c;

    use super::*;

    fn content(bytes: u64) -> Vec<u8> {
        (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    /// Sums a range, handed over in parts of so many bytes.
    fn summed(sums: Option<&Sums>, content: &[u8], range: Range<u64>, part: usize) -> u32 {
        let mut summing = Summing::new(sums, range.start);
        content[range.start as usize..range.end as usize].chunks(part).for_each(|bytes| summing.add(bytes));
        summing.sum()
    }

    #[test]
    fn what_was_sent_whole_is_known_and_nothing_else() {
        let content = content(3 * GRANULE + 5);
        let sums = Sums::new(content.len() as u64);
        let of = |range: Range<u64>| crc32c(&content[range.start as usize..range.end as usize]);
        assert_eq!(sums.of(&(0..GRANULE)), None);
        for range in [GRANULE..2 * GRANULE, 3 * GRANULE..3 * GRANULE + 5] {
            assert_eq!(summed(Some(&sums), &content, range.clone(), 1000), of(range.clone()));
            assert_eq!(sums.of(&range), Some(of(range)));
        }
        // Its end, and no more of it.
        summed(Some(&sums), &content, GRANULE - 7..GRANULE, 100);
        for range in [0..GRANULE, 0..2 * GRANULE, GRANULE..3 * GRANULE, GRANULE + 1..2 * GRANULE] {
            assert_eq!(sums.of(&range), None, "{range:?}");
        }
        assert_eq!(sums.of(&(3 * GRANULE..4 * GRANULE)), None, "beyond the end");
        summed(Some(&sums), &content, 0..content.len() as u64, 256 << 10);
        assert_eq!(sums.of(&(0..content.len() as u64)), Some(crc32c(&content)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn sums_are_those_of_the_bytes_however_they_are_cut(
            bytes in 1..3 * GRANULE, cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..6),
            part in 1usize..300_000,
        ) {
            let content = content(bytes);
            let sums = Sums::new(bytes);
            for (cut, from_start) in cuts {
                let cut = cut.index(bytes as usize + 1) as u64;
                let range = if from_start { 0..cut } else { cut..bytes };
                let expected = crc32c(&content[range.start as usize..range.end as usize]);
                prop_assert_eq!(summed(None, &content, range.clone(), part), expected);
                prop_assert_eq!(summed(Some(&sums), &content, range.clone(), part), expected);
                prop_assert!(sums.of(&range).is_none_or(|known| known == expected));
            }
        }
    }
}
