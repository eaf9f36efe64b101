//! Answers that nobody reads: how many bytes of them may wait in this process, and who goes when they are too many. Knows
//! nothing of what a connection is.
//!
//! Each connection bounds what waits for it; that bound alone would let a crowd that never reads have a multiple of it.
//! So all of them share a budget. When it is spent, whoever reads is not troubled by those who do not:
//!
//! ```text
//!   spent --> connections of many streams: streams that stand still go, of the connection with the most first
//!         --> the same: streams that have only begun, then those that cannot hear that they have to go
//!         --> the connection with the most: closed, where such ones have more than half of the budget together; of many
//!             streams that all move it is one that goes, from twice the budget on
//! ```
//!
//! A stream that was told to go has its bytes until it drops them. They are counted apart, so that nobody else goes for them;
//! one that does not drop them in time loses its connection.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time in which nobody is asked again to let go of bytes, where the last time freed none.
const REST: Duration = Duration::from_millis(10);

/// Time in which a stream that was told to go has to drop its bytes.
const DROPS_WITHIN: Duration = Duration::from_secs(5);

/// Time in which it has to drop them while such bytes alone are more than the budget.
const DROPS_WITHIN_SPENT: Duration = Duration::from_secs(1);

/// The budget of the process; clones are the same one.
#[derive(Clone)]
pub struct OutputBudget(Arc<Mutex<Shared>>);

/// Part of the budget that one connection has; dropping it gives it back.
pub struct OutputShare {
    budget: OutputBudget,
    number: u64,
}

/// Streams of a connection of which one is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Going {
    /// The one that has stood still for longest.
    Still,
    /// The one that has begun first, of those that have never moved.
    Begun,
    /// The one that has stood still for longest, of those that end only with their connection.
    Unheard,
    /// The one with the most bytes.
    Any,
    /// All of the connection, if one that was told to go so long ago has its bytes yet.
    Told(Duration),
}

/// Action that ends a stream of a connection, if there is such a one.
type End = Arc<dyn Fn(Going) -> bool + Send + Sync>;

/// Action that frees bytes of a connection.
#[derive(Clone)]
enum Close {
    /// Ends the connection.
    Whole(Arc<dyn Fn() + Send + Sync>),
    /// Ends one stream of it and counts its bytes no more, or apart; tells whether there was one.
    Stream(End),
}

struct Shared {
    totals: Totals,
    /// Time until which nobody is asked again.
    rests: Option<Instant>,
    next: u64,
    close: HashMap<u64, Close>,
}

/// Bytes that wait for each connection, with their sum and its limit.
#[derive(Debug)]
struct Totals {
    limit: i64,
    total: i64,
    /// Bytes of streams that were told to go and have not dropped them. Not in the sum.
    told: i64,
    /// Signed: what a thread takes out may be told of before what another one put in.
    of: HashMap<u64, i64>,
}

// === impl OutputBudget ===

impl OutputBudget {
    /// A budget of `limit` bytes. Costs as much memory, when it is spent.
    pub fn new(limit: u64) -> Self {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let totals = Totals { limit, total: 0, told: 0, of: HashMap::new() };
        Self(Arc::new(Mutex::new(Shared { totals, rests: None, next: 0, close: HashMap::new() })))
    }

    /// A part for one connection. `close` is called at most once, on whatever thread spent the budget, and must wait for
    /// nothing.
    pub fn open(&self, close: impl Fn() + Send + Sync + 'static) -> OutputShare {
        self.enter(Close::Whole(Arc::new(close)))
    }

    /// A part for one connection of many streams. `end` ends one of those that it is asked for, takes its bytes out of the
    /// account, or has them counted apart, and tells whether there was one. Called on whatever thread spent the budget; must wait for nothing.
    pub fn open_streams(&self, end: impl Fn(Going) -> bool + Send + Sync + 'static) -> OutputShare {
        self.enter(Close::Stream(Arc::new(end)))
    }

    fn enter(&self, close: Close) -> OutputShare {
        let mut shared = self.0.lock();
        let number = shared.next;
        shared.next += 1;
        shared.totals.of.insert(number, 0);
        shared.close.insert(number, close);
        OutputShare { budget: self.clone(), number }
    }

    /// Bytes that wait now, of those that were not closed for it.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.0.lock().totals.total).unwrap_or(0)
    }

    /// Bytes that may wait.
    pub fn limit(&self) -> u64 {
        u64::try_from(self.0.lock().totals.limit).unwrap_or(0)
    }

    /// Lets go of as much as it takes. Nobody is called under the lock.
    fn reclaim(&self) {
        let mut is_freed = self.end_told();
        for going in [Going::Still, Going::Begun, Going::Unheard] {
            let streams = self.0.lock().streams();
            for end in streams {
                while self.0.lock().totals.is_over() && end(going) {
                    is_freed = true;
                }
            }
        }
        loop {
            let close = self.0.lock().close_most();
            match close {
                Some(Close::Whole(close)) => close(),
                Some(Close::Stream(end)) if end(Going::Any) => {}
                Some(Close::Stream(_)) | None => break,
            }
            is_freed = true;
        }
        if !is_freed {
            self.0.lock().rests = Some(Instant::now() + REST);
        }
    }

    /// Ends connections of streams that were told to go and have not dropped their bytes in time.
    fn end_told(&self) -> bool {
        let (within, streams) = {
            let shared = self.0.lock();
            let Some(within) = shared.totals.drops_within() else { return false };
            (within, shared.all_streams())
        };
        let ended = streams.into_iter().filter(|end| end(Going::Told(within))).count();
        ended > 0
    }
}

impl fmt::Debug for OutputBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().totals.fmt(f)
    }
}

// === impl OutputShare ===

impl OutputShare {
    /// So many more bytes wait.
    pub fn add(&self, bytes: usize) {
        self.change(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// So many bytes wait no longer.
    pub fn take(&self, bytes: usize) {
        self.change(-i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// So many of its bytes are of a stream that was told to go: they are counted apart until it drops them.
    pub fn tell(&self, bytes: usize) {
        self.take(bytes);
        self.budget.0.lock().totals.tell(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// So many bytes were dropped of a stream that was told to go.
    pub fn drop_told(&self, bytes: usize) {
        self.budget.0.lock().totals.tell(-i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    fn change(&self, delta: i64) {
        let has_to_go = {
            let mut shared = self.budget.0.lock();
            shared.totals.change(self.number, delta) && delta > 0 && shared.has_to_go()
        };
        if has_to_go {
            self.budget.reclaim();
        }
    }
}

impl Drop for OutputShare {
    fn drop(&mut self) {
        let close = {
            let mut shared = self.budget.0.lock();
            shared.totals.remove(self.number);
            shared.close.remove(&self.number)
        };
        drop(close);
    }
}

// === impl Close ===

impl Close {
    /// The end of a stream, for a connection of many.
    fn stream(&self) -> Option<End> {
        match self {
            Self::Stream(end) => Some(Arc::clone(end)),
            Self::Whole(_) => None,
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Returns whether somebody may have to go, and is to be asked now.
    fn has_to_go(&self) -> bool {
        let totals = &self.totals;
        let is_some = totals.is_over() || totals.drops_within().is_some();
        is_some && (totals.is_far_over() || self.rests.is_none_or(|until| Instant::now() >= until))
    }

    /// Connections of many streams.
    fn all_streams(&self) -> Vec<End> {
        self.close.values().filter_map(Close::stream).collect()
    }

    /// Connections of many streams that have bytes while the budget is spent, the one with the most first.
    fn streams(&self) -> Vec<End> {
        if !self.totals.is_over() {
            return Vec::new();
        }
        let mut order: Vec<(Reverse<i64>, u64)> = self.totals.with_bytes().collect();
        order.sort_unstable();
        order.into_iter().filter_map(|(_, who)| self.close.get(&who)?.stream()).collect()
    }

    /// The connection with the most, while the budget is spent. One that is closed is not counted from then on. Below twice the
    /// budget none is closed where those that can be have a smaller part of it than streams that move.
    fn close_most(&mut self) -> Option<Close> {
        let (_, most) = self.totals.with_bytes().min().filter(|_| self.totals.is_over())?;
        match self.close.get(&most)? {
            Close::Whole(_) => {
                if !self.totals.is_far_over() && !self.totals.is_most(self.whole_bytes()) {
                    return None;
                }
                self.totals.remove(most);
                self.close.remove(&most)
            }
            streams @ Close::Stream(_) => self.totals.is_far_over().then(|| streams.clone()),
        }
    }

    /// Bytes of all connections that are closed whole.
    fn whole_bytes(&self) -> i64 {
        let is_whole = |who: &u64| matches!(self.close.get(who), Some(Close::Whole(_)));
        let whole = self.totals.with_bytes().filter(|(_, who)| is_whole(who));
        whole.fold(0, |sum: i64, (Reverse(bytes), _)| sum.saturating_add(bytes))
    }
}

// === impl Totals ===

impl Totals {
    /// Counts. Tells whether the connection is counted at all.
    fn change(&mut self, who: u64, delta: i64) -> bool {
        let Some(bytes) = self.of.get_mut(&who) else { return false };
        *bytes = bytes.saturating_add(delta);
        self.total = self.total.saturating_add(delta);
        true
    }

    /// Counts bytes of streams that were told to go.
    fn tell(&mut self, delta: i64) {
        self.told = self.told.saturating_add(delta);
    }

    /// Time in which streams that were told to go have to drop their bytes, where there are some.
    fn drops_within(&self) -> Option<Duration> {
        let within = if self.told > self.limit { DROPS_WITHIN_SPENT } else { DROPS_WITHIN };
        (self.told > 0).then_some(within)
    }

    /// Returns whether so many bytes are more than half of the budget.
    fn is_most(&self, bytes: i64) -> bool {
        bytes > self.limit / 2
    }

    fn is_over(&self) -> bool {
        self.total > self.limit
    }

    /// Returns whether even streams that move have too much.
    fn is_far_over(&self) -> bool {
        self.total > self.limit.saturating_mul(2)
    }

    /// Connections that have bytes; of those with as many the oldest is the smallest.
    fn with_bytes(&self) -> impl Iterator<Item = (Reverse<i64>, u64)> + '_ {
        self.of.iter().filter(|(_, bytes)| **bytes > 0).map(|(who, bytes)| (Reverse(*bytes), *who))
    }

    fn remove(&mut self, who: u64) {
        self.total -= self.of.remove(&who).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Budget with connections that count how often they were closed.
    fn counted(limit: u64, connections: usize) -> (OutputBudget, Vec<(OutputShare, Arc<AtomicU32>)>) {
        let budget = OutputBudget::new(limit);
        let one = || {
            let closed = Arc::new(AtomicU32::new(0));
            let count = Arc::clone(&closed);
            (budget.open(move || _ = count.fetch_add(1, Ordering::Relaxed)), closed)
        };
        let all = (0..connections).map(|_| one()).collect();
        (budget, all)
    }

    fn closed(all: &[(OutputShare, Arc<AtomicU32>)]) -> Vec<u32> {
        all.iter().map(|(_, closed)| closed.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn the_one_with_the_most_goes_and_not_the_one_that_spent_the_last_byte() {
        let (budget, all) = counted(100, 3);
        all[0].0.add(60);
        all[1].0.add(40);
        all[2].0.add(1);
        assert_eq!((closed(&all), budget.bytes()), (vec![1, 0, 0], 41));
        all[0].0.add(1000);
        assert_eq!(budget.bytes(), 41, "what is gone is not counted");
        all[2].0.add(100);
        assert_eq!((closed(&all), budget.bytes()), (vec![1, 0, 1], 40));
    }

    #[test]
    fn of_those_with_as_much_the_oldest_goes() {
        let (_budget, all) = counted(100, 3);
        all.iter().for_each(|(account, _)| account.add(40));
        assert_eq!(closed(&all), [1, 0, 0]);
    }

    #[test]
    fn nobody_goes_while_bytes_are_read() {
        let (budget, all) = counted(100, 2);
        for _ in 0..1000 {
            all[0].0.add(90);
            all[0].0.take(90);
        }
        // Told in the other order.
        all[1].0.take(50);
        all[1].0.add(50);
        assert_eq!((closed(&all), budget.bytes()), (vec![0, 0], 0));
    }

    #[test]
    fn a_connection_is_closed_once_and_gives_its_part_back() {
        let (budget, mut all) = counted(10, 2);
        all[1].0.add(4);
        all[0].0.add(7);
        all[0].0.add(7);
        assert_eq!((closed(&all), budget.bytes()), (vec![1, 0], 4));
        drop(all.remove(0));
        all[0].0.take(4);
        assert_eq!(budget.bytes(), 0);
    }

    /// A connection of many streams, each of ten bytes; those that stand still, have begun, and move. None is told to go and stays.
    fn streams(budget: &OutputBudget, counts: [usize; 3]) -> (Arc<OutputShare>, Arc<Mutex<[usize; 3]>>) {
        let left = Arc::new(Mutex::new(counts));
        let (kept, account) = (Arc::clone(&left), Arc::new(Mutex::new(None::<Arc<OutputShare>>)));
        let own = Arc::clone(&account);
        let opened = Arc::new(budget.open_streams(move |going| {
            let mut left = kept.lock();
            let place = match going {
                Going::Still => 0,
                Going::Begun => 1,
                Going::Any => 2,
                Going::Unheard | Going::Told(_) => return false,
            };
            let is_one = left[place] > 0;
            left[place] -= usize::from(is_one);
            drop(left);
            own.lock().iter().filter(|_| is_one).for_each(|account| account.take(10));
            is_one
        }));
        *account.lock() = Some(Arc::clone(&opened));
        opened.add(10 * counts.iter().sum::<usize>());
        (opened, left)
    }

    #[test]
    fn streams_that_stand_still_go_before_those_that_move_whichever_connection_has_the_most() {
        let (budget, whole) = counted(100, 1);
        let (moving, moves) = streams(&budget, [0, 0, 6]);
        let (_idle, stays) = streams(&budget, [2, 1, 1]);
        whole[0].0.add(10);
        assert_eq!((*stays.lock(), *moves.lock(), budget.bytes()), ([1, 1, 1], [0, 0, 6], 100));
        moving.add(20);
        assert_eq!((*stays.lock(), budget.bytes()), ([0, 0, 1], 100));
        assert_eq!((*moves.lock(), closed(&whole)), ([0, 0, 6], vec![0]));
    }

    #[test]
    fn streams_that_all_move_are_ended_only_beyond_twice_the_budget() {
        let budget = OutputBudget::new(100);
        let (account, left) = streams(&budget, [0, 0, 20]);
        assert_eq!((*left.lock(), budget.bytes()), ([0, 0, 20], 200));
        account.add(10);
        assert_eq!((*left.lock(), budget.bytes()), ([0, 0, 19], 200));
    }

    #[test]
    fn sessions_are_not_closed_for_streams_that_have_more_and_move() {
        let (budget, whole) = counted(100, 1);
        let (_moving, left) = streams(&budget, [0, 0, 12]);
        whole[0].0.add(30);
        assert_eq!((closed(&whole), *left.lock()), (vec![0], [0, 0, 12]));
    }

    #[test]
    fn sessions_are_not_closed_below_twice_the_budget_while_all_of_them_have_at_most_half_of_it() {
        let (budget, whole) = counted(100, 2);
        // Each connection has less than the largest session; together the streams have more.
        let moving: Vec<_> = (0..10).map(|_| streams(&budget, [0, 0, 1])).collect();
        whole[0].0.add(30);
        whole[1].0.add(20);
        assert_eq!((closed(&whole), budget.bytes()), (vec![0, 0], 150));
        budget.0.lock().rests = None;
        whole[1].0.add(1);
        assert_eq!((closed(&whole), budget.bytes()), (vec![1, 0], 121), "more than half of it is theirs");
        whole[1].0.add(80);
        assert_eq!((closed(&whole), budget.bytes()), (vec![1, 1], 100), "twice the budget");
        assert!(moving.iter().all(|(_, left)| *left.lock() == [0, 0, 1]));
    }

    #[test]
    fn bytes_of_streams_that_were_told_to_go_are_counted_apart_and_shorten_their_time() {
        let budget = OutputBudget::new(100);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        let account = budget.open_streams(move |going| {
            told.lock().push(going);
            false
        });
        account.add(90);
        account.tell(60);
        assert_eq!((budget.bytes(), asked.lock().len()), (30, 0));
        account.add(10);
        assert_eq!(std::mem::take(&mut *asked.lock()), [Going::Told(DROPS_WITHIN)]);
        budget.0.lock().rests = Some(Instant::now() + Duration::from_secs(3600));
        account.add(10);
        assert!(asked.lock().is_empty(), "nothing was freed a moment ago");
        budget.0.lock().rests = None;
        account.tell(41);
        account.add(10);
        assert_eq!(std::mem::take(&mut *asked.lock()), [Going::Told(DROPS_WITHIN_SPENT)]);
        account.drop_told(101);
        budget.0.lock().rests = None;
        account.add(10);
        assert!(asked.lock().is_empty());
    }

    #[test]
    fn nobody_is_asked_again_at_once_where_nothing_was_freed_but_beyond_twice_the_budget() {
        let budget = OutputBudget::new(100);
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let account = budget.open_streams(move |going| {
            count.fetch_add(u32::from(going == Going::Still), Ordering::Relaxed);
            false
        });
        account.add(101);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // The rest does not end in the time of this test.
        budget.0.lock().rests = Some(Instant::now() + Duration::from_secs(3600));
        account.add(99);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        account.add(1);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
