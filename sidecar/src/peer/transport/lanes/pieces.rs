//! Bytes of a pull that nobody has asked for yet, and those that landed. Plain data: it knows no lane and no clock.
//!
//! The packed bytes are cut into granules. A piece is some of them that lie together; it is taken by one lane, and then
//! landed or given back. What has landed stays so, whatever becomes of the lane it came on.

use std::ops::Range;

/// Unit of what is counted: small enough that the last lane is not waited for, large enough that two bits each are
/// nothing.
pub(in crate::peer) const GRANULE: u64 = crate::sums::GRANULE;

/// A set of numbers below a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bits(Vec<u64>);

impl Bits {
    fn none_of(count: u64) -> Self {
        Self(vec![0; count.div_ceil(64) as usize])
    }

    fn has(&self, number: u64) -> bool {
        self.0[(number / 64) as usize] & 1 << (number % 64) != 0
    }

    fn set(&mut self, number: u64, to: bool) {
        let bit = 1 << (number % 64);
        let word = &mut self.0[(number / 64) as usize];
        *word = if to { *word | bit } else { *word & !bit };
    }
}

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::peer) struct Pieces {
    bytes: u64,
    /// Granules that a lane has asked for, or that have landed.
    taken: Bits,
    landed: Bits,
    /// Bytes that are not taken.
    untaken: u64,
    /// Bytes that have not landed.
    missing: u64,
    /// No granule before this one is untaken.
    from: u64,
}

impl Pieces {
    /// A pull of `bytes` bytes, of which the first `landed` are here. Those of a granule that is not whole come again.
    pub(in crate::peer) fn new(bytes: u64, landed: u64) -> Self {
        let count = bytes.div_ceil(GRANULE);
        let mut pieces = Self {
            bytes,
            taken: Bits::none_of(count),
            landed: Bits::none_of(count),
            untaken: bytes,
            missing: bytes,
            from: 0,
        };
        let whole = if landed >= bytes { bytes } else { landed / GRANULE * GRANULE };
        pieces.mark(&(0..whole), |pieces, granule| pieces.taken.set(granule, true));
        pieces.untaken -= whole;
        pieces.land(&(0..whole));
        pieces
    }

    /// The first piece that nobody has, of at most `granules` granules; it is the asker's now.
    pub(in crate::peer) fn take(&mut self, granules: u64) -> Option<Range<u64>> {
        let count = self.granules();
        while self.from < count && self.taken.has(self.from) {
            self.from += 1;
        }
        let mut end = self.from;
        while end < count && end - self.from < granules.max(1) && !self.taken.has(end) {
            self.taken.set(end, true);
            end += 1;
        }
        let piece = self.from * GRANULE..(end * GRANULE).min(self.bytes);
        if piece.is_empty() {
            return None;
        }
        self.from = end;
        self.untaken -= piece.end - piece.start;
        Some(piece)
    }

    /// A piece that was taken is here.
    pub(in crate::peer) fn land(&mut self, piece: &Range<u64>) {
        self.mark(piece, |pieces, granule| pieces.landed.set(granule, true));
        self.missing -= piece.end - piece.start;
    }

    /// A piece that was taken will not come the way that it was asked for.
    pub(in crate::peer) fn give_back(&mut self, piece: &Range<u64>) {
        self.mark(piece, |pieces, granule| pieces.taken.set(granule, false));
        self.untaken += piece.end - piece.start;
        self.from = self.from.min(piece.start / GRANULE);
    }

    /// Bytes that nobody has asked for.
    pub(in crate::peer) fn untaken(&self) -> u64 {
        self.untaken
    }

    /// All bytes.
    pub(in crate::peer) fn all(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are not here.
    pub(in crate::peer) fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns whether all bytes are here.
    pub(in crate::peer) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Returns whether these bytes are here.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        range.end <= self.bytes
            && (range.start / GRANULE..range.end.div_ceil(GRANULE)).all(|granule| self.landed.has(granule))
    }

    /// Number of bytes that are here without a gap before them.
    pub(in crate::peer) fn prefix(&self) -> u64 {
        let gap = (0..self.granules()).find(|granule| !self.landed.has(*granule));
        gap.map_or(self.bytes, |granule| granule * GRANULE)
    }

    /// Returns the ranges of bytes that are here behind the first gap: in order, none touching another.
    pub(in crate::peer) fn ahead(&self) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = Vec::new();
        let first = self.prefix().div_ceil(GRANULE);
        for granule in (first..self.granules()).filter(|granule| self.landed.has(*granule)) {
            let (start, end) = (granule * GRANULE, ((granule + 1) * GRANULE).min(self.bytes));
            match all.last_mut().filter(|range| range.end == start) {
                Some(range) => range.end = end,
                None => all.push(start..end),
            }
        }
        all
    }

    fn granules(&self) -> u64 {
        self.bytes.div_ceil(GRANULE)
    }

    fn mark(&mut self, piece: &Range<u64>, mut with: impl FnMut(&mut Self, u64)) {
        for granule in piece.start / GRANULE..piece.end.div_ceil(GRANULE) {
            with(self, granule);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_bytes_are_whole_at_once() {
        let mut none = Pieces::new(0, 0);
        assert!(none.is_whole() && none.take(4).is_none());
        assert_eq!(none.prefix(), 0);
    }

    #[test]
    fn what_landed_before_is_not_asked_for_again_but_half_a_granule_is() {
        let mut pieces = Pieces::new(5 * GRANULE + 7, 2 * GRANULE + 5);
        assert_eq!(pieces.prefix(), 2 * GRANULE);
        assert_eq!(pieces.take(2), Some(2 * GRANULE..4 * GRANULE));
        assert_eq!(pieces.take(9), Some(4 * GRANULE..5 * GRANULE + 7));
        assert!(Pieces::new(7, 7).is_whole());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(u64),
        Land(usize),
        GiveBack(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..6).prop_map(Step::Take),
            any::<usize>().prop_map(Step::Land),
            any::<usize>().prop_map(Step::GiveBack),
        ]
    }

    /// State of each granule.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Naive {
        Free,
        Out,
        Here,
    }

    proptest! {
        #[test]
        fn every_byte_is_asked_for_once_and_counted_once(
            bytes in 0u64..200 * GRANULE,
            landed in 0u64..20 * GRANULE,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let landed = landed.min(bytes);
            let mut pieces = Pieces::new(bytes, landed);
            let count = bytes.div_ceil(GRANULE);
            let here = if landed == bytes { count } else { landed / GRANULE };
            let mut naive: Vec<Naive> = (0..count).map(|g| if g < here { Naive::Here } else { Naive::Free }).collect();
            let mut out: Vec<Range<u64>> = Vec::new();
            let span = |piece: &Range<u64>| (piece.start / GRANULE) as usize..piece.end.div_ceil(GRANULE) as usize;
            for step in steps {
                match step {
                    Step::Take(most) => {
                        let first = naive.iter().position(|n| *n == Naive::Free);
                        let piece = pieces.take(most);
                        prop_assert_eq!(piece.as_ref().map(|p| p.start), first.map(|g| g as u64 * GRANULE));
                        let Some(piece) = piece else { continue };
                        prop_assert!(piece.end <= bytes && piece.end - piece.start <= most.max(1) * GRANULE);
                        for granule in &mut naive[span(&piece)] {
                            prop_assert!(*granule == Naive::Free);
                            *granule = Naive::Out;
                        }
                        out.push(piece);
                    }
                    Step::Land(which) if !out.is_empty() => {
                        let piece = out.swap_remove(which % out.len());
                        naive[span(&piece)].fill(Naive::Here);
                        pieces.land(&piece);
                    }
                    Step::GiveBack(which) if !out.is_empty() => {
                        let piece = out.swap_remove(which % out.len());
                        naive[span(&piece)].fill(Naive::Free);
                        pieces.give_back(&piece);
                    }
                    _ => {}
                }
                let size = |g: usize| (bytes - g as u64 * GRANULE).min(GRANULE);
                let sum = |which: Naive| (0..naive.len()).filter(|g| naive[*g] == which).map(size).sum::<u64>();
                prop_assert_eq!(pieces.untaken(), sum(Naive::Free));
                prop_assert_eq!(pieces.missing(), bytes - sum(Naive::Here));
                prop_assert_eq!(pieces.is_whole(), sum(Naive::Here) == bytes);
                let gap = naive.iter().position(|n| *n != Naive::Here);
                prop_assert_eq!(pieces.prefix(), gap.map_or(bytes, |g| g as u64 * GRANULE));
                let ahead = pieces.ahead();
                prop_assert!(ahead.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert!(ahead.first().is_none_or(|first| first.start > pieces.prefix()));
                let told = |at: u64| at < pieces.prefix() || ahead.iter().any(|range| range.contains(&at));
                let starts = (0..naive.len()).map(|granule| told(granule as u64 * GRANULE)).collect::<Vec<_>>();
                prop_assert_eq!(starts, naive.iter().map(|n| *n == Naive::Here).collect::<Vec<_>>());
                prop_assert!(ahead.last().is_none_or(|last| last.end <= bytes));
                let asked = bytes / 3..bytes - bytes / 5;
                let all = naive[span(&asked)].iter().all(|n| *n == Naive::Here);
                prop_assert_eq!(pieces.has(&asked), all);
            }
        }
    }
}
