//! Knowledge that the reader has of the owner's segments: those that are here, those that calls wait for, and those to
//! be asked for. Plain data, behind the lock of whoever has it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Time for which a segment without a tensor in use stays mapped. Mapping it again costs a round trip and, in every
/// client, the faults of its pages: some tens of milliseconds for a gigabyte. Until it is unmapped everywhere its owner
/// can use none of it again, so an owner whose arena is full of what was mapped waits that long.
pub(super) const IDLE: Duration = Duration::from_secs(2);

/// The segments of one owner.
#[derive(Debug)]
pub(super) struct Maps<F> {
    /// Segments can be had: both ends have met.
    up: bool,
    here: HashMap<u32, Here<F>>,
    /// Calls by the segment that they wait for.
    waiting: HashMap<u32, Vec<u64>>,
    to_ask: Vec<u32>,
    /// Calls that wait for the descriptor of their GPU memory, each for its own.
    on_gpu: HashSet<u64>,
    gpus_to_ask: Vec<u64>,
}

#[derive(Debug)]
struct Here<F> {
    segment: F,
    /// Nothing in it is in use, since then.
    idle: Option<Instant>,
}

/// Outcome of a wish for a segment.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::peer) enum Found<F> {
    /// Segment that is here.
    Here(F),
    /// Segment that will be asked for; the call hears of it.
    Later,
    /// None can be had.
    Never,
}

impl<F> Default for Maps<F> {
    fn default() -> Self {
        Self {
            up: false,
            here: HashMap::new(),
            waiting: HashMap::new(),
            to_ask: Vec::new(),
            on_gpu: HashSet::new(),
            gpus_to_ask: Vec::new(),
        }
    }
}

impl<F: Clone> Maps<F> {
    /// Both ends have met.
    pub(super) fn open(&mut self) {
        self.up = true;
    }

    /// Ends what is here, as they have parted: returns what was here, and the calls that wait.
    pub(super) fn close(&mut self) -> (Vec<F>, Vec<u64>) {
        self.up = false;
        self.to_ask.clear();
        self.gpus_to_ask.clear();
        let here = self.here.drain().map(|(_, here)| here.segment).collect();
        let waiting = self.waiting.drain().flat_map(|(_, calls)| calls);
        (here, waiting.chain(self.on_gpu.drain()).collect())
    }

    /// A call needs a segment.
    pub(super) fn find(&mut self, call: u64, segment: u32) -> Found<F> {
        if !self.up {
            return Found::Never;
        }
        if let Some(here) = self.here.get_mut(&segment) {
            here.idle = None;
            return Found::Here(here.segment.clone());
        }
        let waiting = self.waiting.entry(segment).or_default();
        if waiting.is_empty() {
            self.to_ask.push(segment);
        }
        waiting.push(call);
        Found::Later
    }

    /// Segments to be asked for now.
    pub(super) fn asks(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.to_ask)
    }

    /// Notes that one of them could not be asked for.
    pub(super) fn ask_again(&mut self, segment: u32) {
        if self.is_wanted(segment) && !self.to_ask.contains(&segment) {
            self.to_ask.push(segment);
        }
    }

    /// A call needs the descriptor of its GPU memory. False where none can be had.
    pub(super) fn want_gpu(&mut self, call: u64) -> bool {
        if self.up && self.on_gpu.insert(call) {
            self.gpus_to_ask.push(call);
        }
        self.up
    }

    /// Calls whose descriptors are to be asked for now.
    pub(super) fn asks_of_gpus(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.gpus_to_ask)
    }

    /// Notes that one of them could not be asked for.
    pub(super) fn ask_gpu_again(&mut self, call: u64) {
        if self.on_gpu.contains(&call) {
            self.gpus_to_ask.push(call);
        }
    }

    /// A descriptor has come, or will not. False where nobody asked for it.
    pub(super) fn gpu_answered(&mut self, call: u64) -> bool {
        self.on_gpu.remove(&call)
    }

    /// Returns whether somebody waits for a segment.
    pub(super) fn is_wanted(&self, segment: u32) -> bool {
        self.waiting.contains_key(&segment)
    }

    /// A segment has come: the calls that waited for it.
    pub(super) fn came(&mut self, segment: u32, mapped: F) -> Vec<u64> {
        if self.up {
            self.here.insert(segment, Here { segment: mapped, idle: None });
        }
        self.waiting.remove(&segment).unwrap_or_default()
    }

    /// A segment is not to be had: the calls that waited for it.
    pub(super) fn gone(&mut self, segment: u32) -> Vec<u64> {
        self.waiting.remove(&segment).unwrap_or_default()
    }

    /// Forgets segments of which nothing was in use for a while.
    pub(super) fn tidy(&mut self, now: Instant, is_idle: impl Fn(&F) -> bool) -> Vec<F> {
        for here in self.here.values_mut() {
            here.idle = is_idle(&here.segment).then(|| here.idle.unwrap_or(now));
        }
        let over = |_: &u32, here: &mut Here<F>| here.idle.is_some_and(|since| now >= since + IDLE);
        self.here.extract_if(over).map(|(_, here)| here.segment).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_asked_for_once_and_all_who_wait_hear_of_it() {
        let mut maps = Maps::default();
        assert_eq!(maps.find(1, 7), Found::Never);
        maps.open();
        assert_eq!(
            [maps.find(1, 7), maps.find(2, 7), maps.find(3, 8)],
            [Found::Later, Found::Later, Found::Later]
        );
        assert_eq!((maps.asks(), maps.asks()), (vec![7, 8], vec![]));
        assert!(maps.is_wanted(7) && !maps.is_wanted(9));
        assert_eq!((maps.came(7, 'a'), maps.find(4, 7)), (vec![1, 2], Found::Here('a')));
        assert_eq!((maps.gone(8), maps.gone(8)), (vec![3], vec![]));
        // Nobody waits for it any more.
        maps.ask_again(8);
        assert!(maps.asks().is_empty());
        // It may be there the next time.
        assert_eq!((maps.find(5, 8), maps.asks()), (Found::Later, vec![8]));
        maps.ask_again(8);
        maps.ask_again(8);
        assert_eq!(maps.asks(), vec![8]);
    }

    #[test]
    fn a_descriptor_is_asked_for_once_a_call_and_no_other_is_taken() {
        let mut maps = Maps::<char>::default();
        assert!(!maps.want_gpu(1) && maps.asks_of_gpus().is_empty(), "they have not met");
        maps.open();
        assert!(maps.want_gpu(1) && maps.want_gpu(1) && maps.want_gpu(2));
        assert_eq!((maps.asks_of_gpus(), maps.asks_of_gpus()), (vec![1, 2], vec![]));
        maps.ask_gpu_again(2);
        maps.ask_gpu_again(3);
        assert_eq!(maps.asks_of_gpus(), [2]);
        assert!(maps.gpu_answered(1) && !maps.gpu_answered(1) && !maps.gpu_answered(3));
        assert_eq!(maps.close().1, [2], "who waits hears of the end");
        assert!(!maps.gpu_answered(2));
    }

    #[test]
    fn whoever_waits_hears_of_the_end() {
        let mut maps = Maps::default();
        maps.open();
        maps.find(1, 7);
        maps.came(7, 'a');
        maps.find(2, 8);
        assert_eq!(maps.close(), (vec!['a'], vec![2]));
        assert_eq!((maps.find(3, 7), maps.asks()), (Found::Never, vec![]));
        assert!(maps.came(9, 'b').is_empty());
        maps.open();
        assert_eq!(maps.find(4, 9), Found::Later, "what came when nobody was there to take it is gone");
    }

    #[test]
    fn a_segment_is_forgotten_when_nothing_of_it_was_used_for_a_while() {
        let (mut maps, now) = (Maps::default(), Instant::now());
        maps.open();
        maps.came(7, 'a');
        assert!(maps.tidy(now, |_| false).is_empty());
        assert!(maps.tidy(now, |_| true).is_empty());
        assert_eq!(maps.find(1, 7), Found::Here('a'));
        assert!(maps.tidy(now + IDLE, |_| true).is_empty());
        assert_eq!(maps.tidy(now + 2 * IDLE, |_| true), ['a']);
        assert_eq!(maps.find(2, 7), Found::Later);
    }
}
