//! Bytes of a pull that landed ahead of others, when it goes on on the control connection: they are not sent again. Plain data, the
//! same at both ends, so that both skip the same bytes.

use std::collections::VecDeque;
use std::ops::Range;

use tensorlane_proto::generated as v1;

/// The first version of the protocol in which a pull says what landed ahead.
pub(super) const AHEAD_SINCE: u32 = 4;
/// Most ranges that are told. What lies behind them comes again; a pull of less than 2 GiB has no more.
const AHEAD_MAX: usize = 1024;

/// Ranges of packed bytes behind the first that is missing: in order, none empty, none touching another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReceivedRanges(VecDeque<Range<u64>>);

impl ReceivedRanges {
    /// Of ranges in order, as many as can be told.
    pub(super) fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        Self(ranges.into_iter().take(AHEAD_MAX).collect())
    }

    /// The spans that a peer tells of a pull of `bytes` bytes that goes on from byte `from`; none where that makes no
    /// sense.
    pub(super) fn told(spans: &[v1::Span], from: u64, bytes: u64) -> Option<Self> {
        let mut behind = from;
        let mut ranges = VecDeque::new();
        for span in Some(spans).filter(|spans| spans.len() <= AHEAD_MAX)? {
            let end = span.offset.checked_add(span.length).filter(|end| *end <= bytes)?;
            if span.offset <= behind || span.length == 0 {
                return None;
            }
            ranges.push_back(span.offset..end);
            behind = end;
        }
        Some(Self(ranges))
    }

    /// As the wire has it.
    pub(super) fn spans(&self) -> Vec<v1::Span> {
        let span = |range: &Range<u64>| v1::Span { offset: range.start, length: range.end - range.start };
        self.0.iter().map(span).collect()
    }

    /// End of the bytes that are missing next, of a pull of `bytes` bytes.
    pub(super) fn gap_end(&self, bytes: u64) -> u64 {
        self.0.front().map_or(bytes, |range| range.start)
    }

    /// Returns whether nothing is missing behind `at`, of a pull of `bytes` bytes.
    pub(super) fn is_end(&self, at: u64, bytes: u64) -> bool {
        at == bytes || self.0.front().is_some_and(|range| *range == (at..bytes))
    }

    /// All before `at` has come: the next byte that is missing.
    pub(super) fn pass(&mut self, at: u64) -> u64 {
        match self.0.front() {
            Some(range) if range.start == at => self.0.pop_front().map_or(at, |range| range.end),
            _ => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(offset: u64, length: u64) -> v1::Span {
        v1::Span { offset, length }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let told = |spans: &[v1::Span]| ReceivedRanges::told(spans, 10, 100).is_some();
        assert!(told(&[]) && told(&[span(11, 5), span(17, 83)]));
        for wrong in [
            &[span(10, 5)][..],
            &[span(11, 0)],
            &[span(90, 11)],
            &[span(u64::MAX, 2)],
            &[span(11, 5), span(16, 5)],
            &[span(40, 5), span(20, 5)],
        ] {
            assert!(!told(wrong), "{wrong:?}");
        }
        let many: Vec<_> = (0..=AHEAD_MAX as u64).map(|n| span(11 + 2 * n, 1)).collect();
        assert!(ReceivedRanges::told(&many, 10, u64::MAX).is_none());
        assert!(ReceivedRanges::told(&many[1..], 10, u64::MAX).is_some());
    }

    proptest! {
        #[test]
        fn both_ends_walk_the_missing_bytes_once_and_agree_on_the_last(
            here in prop::collection::vec(any::<bool>(), 1..40), unit in 1u64..5, quantum in 1u64..12,
        ) {
            let bytes = here.len() as u64 * unit;
            let byte = |at: u64| here[(at / unit) as usize];
            let from = (0..bytes).find(|at| !byte(*at)).unwrap_or(bytes);
            let mut ranges: Vec<Range<u64>> = Vec::new();
            for at in (from..bytes).filter(|at| byte(*at)) {
                match ranges.last_mut().filter(|range| range.end == at) {
                    Some(range) => range.end += 1,
                    None => ranges.push(at..at + 1),
                }
            }
            let mut reader = ReceivedRanges::new(ranges);
            let mut owner = ReceivedRanges::told(&reader.spans(), from, bytes).unwrap();
            prop_assert_eq!(&owner, &reader);
            let (mut sent, mut at) = (Vec::new(), from);
            loop {
                let end = owner.gap_end(bytes).min(at + quantum);
                let last = owner.is_end(end, bytes);
                prop_assert!(end <= reader.gap_end(bytes) && (end > at || last));
                prop_assert_eq!(reader.is_end(end, bytes), last);
                sent.extend(at..end);
                at = owner.pass(end);
                prop_assert_eq!(reader.pass(end), at);
                if last {
                    break;
                }
            }
            prop_assert_eq!(at, bytes);
            prop_assert_eq!(sent, (0..bytes).filter(|at| !byte(*at)).collect::<Vec<_>>());
        }
    }
}
