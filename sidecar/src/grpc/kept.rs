//! Bytes that this process keeps for the streams of one connection: each stream has its line, the connection one account.
//!
//! ```text
//!   half of a message, a chunk that HTTP/2 has --> line --dropped--> the account has its bytes back
//!                                                   '--budget spent, and it stands still: its stream is told to end, and its
//!                                                      bytes are not counted any more; one that hears nothing ends with its
//!                                                      connection
//! ```

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cancel::Cancel;
use crate::unread::{Account, Going, Unread};

/// Time without a move after which a stream stands still, as far as the budget is concerned.
const STILL: Duration = Duration::from_secs(2);

/// All lines of one connection.
pub(super) struct Keeps {
    account: Account,
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
    waiting: Mutex<Waiting>,
}

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

struct Line {
    bytes: usize,
    /// Last move; none of one that has only begun.
    moved: Option<Instant>,
    /// Place in time of one that has only begun.
    since: Instant,
    signal: Arc<Signal>,
    /// True if it ends only when it hears its signal.
    must_hear: bool,
}

// === impl Keeps ===

impl Keeps {
    /// The lines of a new connection, which `cut` ends.
    pub(super) fn new(unread: &Unread, cut: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
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
        let line = Line { bytes, moved, since: Instant::now(), signal: Arc::clone(signal), must_hear };
        let number = self.lines.lock().enter(line);
        Kept { keeps: Arc::clone(self), number }
    }

    /// Ends one of its streams, if there is such a one.
    fn end(&self, going: Going) -> bool {
        let Some(line) = self.lines.lock().remove_one(going, Instant::now()) else { return false };
        self.account.take(line.bytes);
        if !line.signal.end() && line.must_hear {
            (self.cut)();
        }
        true
    }
}

// === impl Lines ===

impl Lines {
    fn enter(&mut self, line: Line) -> u64 {
        self.next += 1;
        self.of.insert(self.next, line);
        self.next
    }

    fn remove_one(&mut self, going: Going, now: Instant) -> Option<Line> {
        let number = self.choose(going, now)?;
        self.of.remove(&number)
    }

    fn choose(&self, going: Going, now: Instant) -> Option<u64> {
        let keeping = self.of.iter().filter(|(_, line)| line.bytes > 0);
        let last = |line: &Line| line.moved.unwrap_or(line.since);
        match going {
            Going::Still => {
                let still = keeping.filter(|(_, line)| now.saturating_duration_since(last(line)) >= STILL);
                still.min_by_key(|(_, line)| last(line)).map(|(number, _)| *number)
            }
            Going::Begun => {
                let begun = keeping.filter(|(_, line)| line.moved.is_none());
                begun.min_by_key(|(_, line)| line.since).map(|(number, _)| *number)
            }
            Going::Any => keeping
                .max_by_key(|(number, line)| (line.bytes, Reverse(**number)))
                .map(|(number, _)| *number),
        }
    }
}

// === impl Kept ===

impl Kept {
    /// Notes how many bytes it keeps now.
    pub(super) fn set(&self, bytes: usize) {
        let before = {
            let mut lines = self.keeps.lines.lock();
            // One that was ended is not counted any more.
            let Some(line) = lines.of.get_mut(&self.number) else { return };
            std::mem::replace(&mut line.bytes, bytes)
        };
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.keeps.account.add(more),
            None => self.keeps.account.take(before - bytes),
        }
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
            self.keeps.account.take(line.bytes);
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
                return Poll::Pending;
            }
        };
        waiting.waker = None;
        Poll::Ready(heard)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn line(bytes: usize, moved: Option<Instant>, since: Instant) -> Line {
        Line { bytes, moved, since, signal: Arc::default(), must_hear: true }
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
        let mut gone = |going| {
            let mut all = Vec::new();
            while let Some(number) = lines.choose(going, now) {
                all.push(number);
                lines.of.remove(&number);
            }
            all
        };
        assert_eq!(gone(Going::Still), [4, 2]);
        assert_eq!(gone(Going::Begun), [5]);
        assert_eq!(gone(Going::Any), [1]);
    }

    #[test]
    fn bytes_go_back_once_whether_they_are_dropped_or_ended() {
        let unread = Unread::new(100);
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
        incoming.set(90);
        drop(incoming);
        assert_eq!(unread.bytes(), 40, "what was ended is not counted");
        drop(outgoing);
        assert_eq!(unread.bytes(), 0);
    }

    #[test]
    fn a_connection_is_cut_where_nobody_hears() {
        let unread = Unread::new(100);
        let cuts = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&cuts);
        let keeps = Keeps::new(&unread, move || _ = count.fetch_add(1, Ordering::Relaxed));
        let _outgoing = keeps.enter_outgoing(10, &Arc::default());
        assert!(!keeps.end(Going::Still) && keeps.end(Going::Any) && !keeps.end(Going::Any));
        assert_eq!((cuts.load(Ordering::Relaxed), unread.bytes()), (1, 0));
    }
}
