//! Bytes that this process keeps for the streams of one connection: each stream has its line, the connection one account.
//!
//! ```text
//!   half of a message, a chunk that HTTP/2 has --> line --dropped--> the account has its bytes back
//!                                                   '--budget spent, and it stands still: its stream is told to end
//!                                                         |--dropped--> the same
//!                                                         '--not in time, or nobody hears: it ends with its connection
//! ```
//!
//! Bytes of a stream that was told to end are counted apart from the budget until they are dropped.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cancel::Cancel;
use crate::output_budget::{Going, OutputBudget, OutputShare};

/// Time without a move after which a stream stands still, as far as the budget is concerned.
const STILL: Duration = Duration::from_secs(2);

/// Time without a byte after which a stream that has only begun may go.
const SILENT: Duration = Duration::from_secs(1);

/// Bytes below which a line goes after those that have more: it frees little.
const SMALL: usize = 4 << 10;

/// All lines of one connection.
pub(super) struct Keeps {
    account: OutputShare,
    lines: Mutex<Lines>,
    /// Ends the connection.
    cut: Box<dyn Fn() + Send + Sync>,
}

/// A line until it is dropped.
pub(super) struct Kept {
    keeps: Arc<Keeps>,
    number: u64,
}

/// Message to a stream that it has to go, and the news that what it waits for is done.
#[derive(Default)]
pub(super) struct Signal {
    is_over: AtomicBool,
    is_done: AtomicBool,
    /// True while somebody would hear.
    is_heard: AtomicBool,
    waiting: Mutex<Waiting>,
    pause: Mutex<Pause>,
}

/// Time in which a stream waits for this process: it does not stand still then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Pause {
    #[default]
    Never,
    Now,
    Until(Instant),
}

/// A pause of a stream until it is dropped.
pub(super) struct Paused(Arc<Signal>);

#[derive(Default)]
struct Waiting {
    waker: Option<Waker>,
    cancel: Option<Cancel>,
}

/// State that a waiter finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The waiter has to go.
    Over,
    /// Work that the waiter waits for is done.
    Done,
}

#[derive(Default)]
struct Lines {
    next: u64,
    of: BTreeMap<u64, Line>,
}

/// Line that was told to go.
struct Told {
    bytes: usize,
    signal: Arc<Signal>,
    must_hear: bool,
}

struct Line {
    bytes: usize,
    /// Last move; none of one that has only begun.
    moved: Option<Instant>,
    /// Place in time of one that has only begun.
    since: Instant,
    /// Last time at which its bytes changed.
    touched: Instant,
    /// Time at which it was told to go.
    told: Option<Instant>,
    signal: Arc<Signal>,
    /// True if it ends only when it hears its signal.
    must_hear: bool,
}

// === impl Keeps ===

impl Keeps {
    /// The lines of a new connection, which `cut` ends.
    pub(super) fn new(unread: &OutputBudget, cut: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new_cyclic(|keeps: &Weak<Self>| {
            let keeps = keeps.clone();
            let end = move |going| keeps.upgrade().is_some_and(|keeps| keeps.end(going));
            Self { account: unread.open_streams(end), lines: Mutex::default(), cut: Box::new(cut) }
        })
    }

    /// Enters bytes that came in: whoever takes them sees at its next look that it has to go.
    pub(super) fn enter_incoming(self: &Arc<Self>, signal: &Arc<Signal>) -> Kept {
        self.enter(0, None, signal, false)
    }

    /// Enters bytes that go out: who has them must hear that it has to go.
    pub(super) fn enter_outgoing(self: &Arc<Self>, bytes: usize, signal: &Arc<Signal>) -> Kept {
        let kept = self.enter(bytes, Some(Instant::now()), signal, true);
        self.account.add(bytes);
        kept
    }

    fn enter(
        self: &Arc<Self>,
        bytes: usize,
        moved: Option<Instant>,
        signal: &Arc<Signal>,
        must_hear: bool,
    ) -> Kept {
        let line = Line::new(bytes, moved, Instant::now(), signal, must_hear);
        let number = self.lines.lock().enter(line);
        Kept { keeps: Arc::clone(self), number }
    }

    /// Ends one of its streams, or all, if there is such a one.
    fn end(&self, going: Going) -> bool {
        let now = Instant::now();
        if let Going::Told(within) = going {
            let is_late = self.lines.lock().is_late(within, now);
            if is_late {
                self.end_whole();
            }
            return is_late;
        }
        let Some(told) = self.lines.lock().tell_one(going, now) else { return false };
        self.account.tell(told.bytes);
        if !told.signal.end() && told.must_hear {
            self.end_whole();
        }
        true
    }

    /// Ends the connection, whose lines are not counted from then on.
    fn end_whole(&self) {
        let lines = std::mem::take(&mut self.lines.lock().of);
        for line in lines.values() {
            self.give_back(line);
        }
        (self.cut)();
    }

    /// Takes the bytes of a line that is no more out of the account.
    fn give_back(&self, line: &Line) {
        match line.told {
            Some(_) => self.account.drop_told(line.bytes),
            None => self.account.take(line.bytes),
        }
    }
}

// === impl Lines ===

impl Lines {
    fn enter(&mut self, line: Line) -> u64 {
        self.next += 1;
        self.of.insert(self.next, line);
        self.next
    }

    /// Notes that one is told to go.
    fn tell_one(&mut self, going: Going, now: Instant) -> Option<Told> {
        let number = self.choose(going, now)?;
        let line = self.of.get_mut(&number)?;
        line.told = Some(now);
        Some(Told { bytes: line.bytes, signal: Arc::clone(&line.signal), must_hear: line.must_hear })
    }

    /// The one that goes. One that was told before is not told again.
    fn choose(&self, going: Going, now: Instant) -> Option<u64> {
        let keeping = self.of.iter().filter(|(_, line)| line.bytes > 0 && line.told.is_none());
        let number = |(number, _): (&u64, &Line)| *number;
        match going {
            Going::Still | Going::Unheard => {
                let hears = going == Going::Still;
                let still = keeping.filter(|(_, line)| line.hears() == hears && line.is_still(now));
                still.min_by_key(|(_, line)| (line.bytes < SMALL, line.last())).map(number)
            }
            Going::Begun => {
                let begun = keeping.filter(|(_, line)| line.has_only_begun(now));
                begun.min_by_key(|(_, line)| (line.bytes < SMALL, line.since)).map(number)
            }
            Going::Any => keeping
                .max_by_key(|(number, line)| (line.hears() && !line.pauses(), line.bytes, Reverse(**number)))
                .map(number),
            Going::Told(_) => None,
        }
    }

    /// Returns whether one that was told to go so long ago is still there.
    fn is_late(&self, within: Duration, now: Instant) -> bool {
        let is_late = |told: Instant| now.saturating_duration_since(told) >= within;
        self.of.values().any(|line| line.told.is_some_and(is_late))
    }
}

// === impl Line ===

impl Line {
    fn new(
        bytes: usize,
        moved: Option<Instant>,
        since: Instant,
        signal: &Arc<Signal>,
        must_hear: bool,
    ) -> Self {
        let signal = Arc::clone(signal);
        Self { bytes, moved, since, touched: since, told: None, signal, must_hear }
    }

    /// Notes that it is to have so many bytes. From none to some is a beginning: nothing stood still before.
    fn begins(&mut self, bytes: usize) {
        if self.bytes == 0 && bytes > 0 {
            let now = Instant::now();
            match &mut self.moved {
                Some(moved) => *moved = now,
                None => self.since = now,
            }
        }
    }

    /// Last move, or end of a pause.
    fn last(&self) -> Instant {
        let moved = self.moved.unwrap_or(self.since);
        match *self.signal.pause.lock() {
            Pause::Until(until) => moved.max(until),
            Pause::Never | Pause::Now => moved,
        }
    }

    fn pauses(&self) -> bool {
        *self.signal.pause.lock() == Pause::Now
    }

    fn is_still(&self, now: Instant) -> bool {
        !self.pauses() && now.saturating_duration_since(self.last()) >= STILL
    }

    /// Returns whether it has never moved, and no byte comes.
    fn has_only_begun(&self, now: Instant) -> bool {
        let is_silent = now.saturating_duration_since(self.touched) >= SILENT;
        self.moved.is_none() && is_silent && !self.pauses()
    }

    /// Returns whether its stream ends when it is told to.
    fn hears(&self) -> bool {
        !self.must_hear || self.signal.is_heard.load(Ordering::Acquire)
    }
}

// === impl Kept ===

impl Kept {
    /// Notes how many bytes it keeps now.
    pub(super) fn set(&self, bytes: usize) {
        let before = {
            let mut lines = self.keeps.lines.lock();
            // One that was told to go is there, as it was, until it is dropped.
            let line = lines.of.get_mut(&self.number).filter(|line| line.told.is_none());
            let Some(line) = line else { return };
            line.begins(bytes);
            if line.bytes != bytes {
                line.touched = Instant::now();
            }
            std::mem::replace(&mut line.bytes, bytes)
        };
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.keeps.account.add(more),
            None => self.keeps.account.take(before - bytes),
        }
    }

    /// Notes that it keeps so many bytes more.
    pub(super) fn add(&self, more: usize) {
        if self.change(|bytes| bytes.saturating_add(more)) {
            self.keeps.account.add(more);
        }
    }

    /// Notes that so many of its bytes were dropped, which moves it.
    pub(super) fn take(&self, fewer: usize) {
        if self.change(|bytes| bytes.saturating_sub(fewer)) {
            self.keeps.account.take(fewer);
            self.moved();
        }
    }

    /// Changes its bytes; true where they are in the account. Those of one that was told to go stay until it is dropped.
    fn change(&self, to: impl FnOnce(usize) -> usize) -> bool {
        let mut lines = self.keeps.lines.lock();
        let line = lines.of.get_mut(&self.number).filter(|line| line.told.is_none());
        line.is_some_and(|line| {
            let bytes = to(line.bytes);
            line.begins(bytes);
            (line.bytes, line.touched) = (bytes, Instant::now());
            true
        })
    }

    /// Notes that it moved.
    pub(super) fn moved(&self) {
        if let Some(line) = self.keeps.lines.lock().of.get_mut(&self.number) {
            line.moved = Some(Instant::now());
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let line = self.keeps.lines.lock().of.remove(&self.number);
        if let Some(line) = line {
            self.keeps.give_back(&line);
        }
    }
}

// === impl Signal ===

impl Signal {
    /// Tells it that it has to go, and whether somebody heard.
    fn end(&self) -> bool {
        self.is_over.store(true, Ordering::Release);
        let Waiting { waker, cancel } = std::mem::take(&mut *self.waiting.lock());
        let is_heard = waker.is_some() || cancel.is_some();
        self.is_heard.store(false, Ordering::Release);
        waker.into_iter().for_each(Waker::wake);
        cancel.iter().for_each(Cancel::cancel);
        is_heard
    }

    /// Tells it that what it waits for is done.
    pub(super) fn done(&self) {
        self.is_done.store(true, Ordering::Release);
        let waker = self.waiting.lock().waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Raises `cancel` when it has to go.
    pub(super) fn cancels(&self, cancel: &Cancel) {
        self.waiting.lock().cancel = Some(cancel.clone());
        self.is_heard.store(true, Ordering::Release);
    }

    /// Notes that its stream waits for this process, until what is returned is dropped.
    pub(super) fn pause(self: &Arc<Self>) -> Paused {
        *self.pause.lock() = Pause::Now;
        Paused(Arc::clone(self))
    }

    /// Returns whether it has to go.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Looks for news, and is woken for them otherwise.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Heard> {
        let mut waiting = self.waiting.lock();
        // Whoever tells raises the flag first and takes the waker then.
        let heard = match (self.is_over(), self.is_done.load(Ordering::Acquire)) {
            (true, _) => Heard::Over,
            (false, true) => Heard::Done,
            (false, false) => {
                waiting.waker = Some(context.waker().clone());
                self.is_heard.store(true, Ordering::Release);
                return Poll::Pending;
            }
        };
        waiting.waker = None;
        Poll::Ready(heard)
    }
}

// === impl Paused ===

impl Drop for Paused {
    fn drop(&mut self) {
        *self.0.pause.lock() = Pause::Until(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn line(bytes: usize, moved: Option<Instant>, since: Instant) -> Line {
        Line::new(bytes, moved, since, &Arc::default(), false)
    }

    /// Lines that go, in their order.
    fn gone(lines: &mut Lines, going: Going, now: Instant) -> Vec<u64> {
        let mut all = Vec::new();
        while let Some(number) = lines.choose(going, now) {
            all.push(number);
            lines.of.remove(&number);
        }
        all
    }

    #[test]
    fn what_kept_nothing_and_keeps_bytes_again_has_not_stood_still() {
        let ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        for moved in [None, Some(ago)] {
            let mut idle = line(0, moved, ago);
            idle.begins(0);
            assert_eq!(idle.last(), ago);
            idle.begins(9);
            assert!(idle.last() > ago);
        }
        let mut keeping = line(1, Some(ago), ago);
        keeping.begins(9);
        assert_eq!(keeping.last(), ago);
    }

    #[test]
    fn the_one_that_has_stood_still_for_longest_goes_and_never_one_that_moves() {
        let now = Instant::now() + Duration::from_secs(60);
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut lines = Lines::default();
        for (bytes, moved, since) in [
            (900, Some(ago(0)), ago(50)),
            (10, Some(ago(9)), ago(30)),
            (0, Some(ago(40)), ago(40)),
            (10, None, ago(20)),
            (10, None, ago(1)),
        ] {
            lines.enter(line(bytes, moved, since));
        }
        let mut gone = |going| gone(&mut lines, going, now);
        assert_eq!(gone(Going::Still), [4, 2]);
        assert_eq!(gone(Going::Begun), [5]);
        assert_eq!(gone(Going::Any), [1]);
    }

    #[test]
    fn those_with_little_go_after_those_with_more_however_long_they_stand_still() {
        let since = Instant::now();
        let now = since + Duration::from_secs(60);
        let mut lines = Lines::default();
        let little = lines.enter(line(SMALL - 1, Some(since), since));
        let much = lines.enter(line(SMALL, Some(since + Duration::from_secs(9)), since));
        assert_eq!(gone(&mut lines, Going::Still, now), [much, little]);
        let little = lines.enter(line(1, None, since));
        let much = lines.enter(line(SMALL, None, since + Duration::from_secs(9)));
        assert_eq!(gone(&mut lines, Going::Begun, now), [much, little]);
    }

    #[test]
    fn small_frames_of_a_stream_share_a_line_until_the_last_is_dropped() {
        let unread = OutputBudget::new(100);
        let cut = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&cut);
        let keeps = Keeps::new(&unread, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let kept = keeps.enter_outgoing(0, &Arc::default());
        kept.add(30);
        kept.add(20);
        kept.take(30);
        assert_eq!((unread.bytes(), keeps.lines.lock().of.len()), (20, 1));
        // A stream that nobody can tell goes with its connection: here at once, since twice the budget is spent.
        kept.add(190);
        assert_eq!((unread.bytes(), cut.load(Ordering::Relaxed)), (0, 1));
        kept.take(190);
        drop(kept);
        assert_eq!(unread.bytes(), 0);
    }

    #[test]
    fn one_that_has_only_begun_stays_while_bytes_come() {
        let since = Instant::now();
        let after = |millis| since + Duration::from_millis(millis);
        let mut lines = Lines::default();
        let number = lines.enter(line(10, None, since));
        lines.of.get_mut(&number).unwrap().touched = after(600);
        assert_eq!(lines.choose(Going::Begun, after(1599)), None);
        assert_eq!(lines.choose(Going::Begun, after(1600)), Some(number));
    }

    #[test]
    fn one_that_waits_for_this_process_does_not_stand_still() {
        let since = Instant::now();
        let late = since + Duration::from_secs(3600);
        let mut lines = Lines::default();
        let signal = Arc::<Signal>::default();
        let waits = lines.enter(Line::new(20, Some(since), since, &signal, false));
        let pause = signal.pause();
        assert_eq!(lines.choose(Going::Still, late), None);
        let other = lines.enter(line(10, Some(late), late));
        assert_eq!(lines.choose(Going::Any, late), Some(other), "it goes last");
        drop(pause);
        let end = match *signal.pause.lock() {
            Pause::Until(end) => end,
            other => panic!("{other:?}"),
        };
        assert_eq!(lines.choose(Going::Still, end + STILL - Duration::from_millis(1)), None);
        assert_eq!(lines.choose(Going::Still, end + STILL), Some(waits));
    }

    #[test]
    fn those_that_hear_nothing_go_last_and_one_that_was_told_is_not_told_again() {
        let since = Instant::now();
        let now = since + Duration::from_secs(60);
        let mut lines = Lines::default();
        let deaf = lines.enter(Line::new(30, Some(since), since, &Arc::default(), true));
        let hears = lines.enter(line(10, Some(now), now));
        assert_eq!(lines.choose(Going::Still, now), None);
        assert_eq!(lines.choose(Going::Unheard, now), Some(deaf));
        assert_eq!(lines.tell_one(Going::Any, now).map(|told| told.bytes), Some(10));
        assert_eq!(lines.choose(Going::Any, now), Some(deaf));
        let late = |seconds| lines.is_late(Duration::from_secs(5), now + Duration::from_secs(seconds));
        assert_eq!([0, 4, 5].map(late), [false, false, true]);
        lines.of.remove(&hears);
        assert!(!lines.is_late(Duration::ZERO, now + Duration::from_secs(60)));
    }

    #[test]
    fn bytes_go_back_once_whether_they_are_dropped_or_ended() {
        let unread = OutputBudget::new(50);
        let cuts = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&cuts);
        let keeps = Keeps::new(&unread, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let (signal, cancel) = (Arc::<Signal>::default(), Cancel::default());
        signal.cancels(&cancel);
        let incoming = keeps.enter_incoming(&signal);
        incoming.set(70);
        let outgoing = keeps.enter_outgoing(40, &Arc::default());
        assert!(cancel.is_cancelled() && signal.is_over());
        assert_eq!((unread.bytes(), cuts.load(Ordering::Relaxed)), (40, 0));
        assert!(!keeps.end(Going::Told(Duration::from_secs(3600))), "it has time to drop them");
        incoming.set(90);
        drop(incoming);
        assert_eq!(unread.bytes(), 40, "what was ended is counted apart");
        assert!(!keeps.end(Going::Told(Duration::ZERO)), "it was dropped");
        drop(outgoing);
        assert_eq!(unread.bytes(), 0);
    }

    #[test]
    fn a_connection_is_cut_where_a_stream_that_was_told_keeps_its_bytes() {
        let unread = OutputBudget::new(50);
        let cuts = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&cuts);
        let keeps = Keeps::new(&unread, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let lines = [keeps.enter_incoming(&Arc::default()), keeps.enter_incoming(&Arc::default())];
        lines[0].set(30);
        lines[1].set(20);
        assert!(keeps.end(Going::Any));
        assert_eq!((unread.bytes(), cuts.load(Ordering::Relaxed)), (20, 0));
        assert!(keeps.end(Going::Told(Duration::ZERO)) && !keeps.end(Going::Told(Duration::ZERO)));
        assert_eq!((unread.bytes(), cuts.load(Ordering::Relaxed)), (0, 1));
        drop(lines);
        assert_eq!(unread.bytes(), 0, "bytes go back once");
    }

    #[test]
    fn a_connection_is_cut_where_nobody_hears() {
        let unread = OutputBudget::new(100);
        let cuts = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&cuts);
        let keeps = Keeps::new(&unread, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let _outgoing = keeps.enter_outgoing(10, &Arc::default());
        assert!(!keeps.end(Going::Unheard) && keeps.end(Going::Any) && !keeps.end(Going::Any));
        assert_eq!((cuts.load(Ordering::Relaxed), unread.bytes()), (1, 0));
    }
}
