//! A bar with a rate, for what takes longer than a second and is watched.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// Time that needs no bar: what is over sooner.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which a spinner moves.
const TICK: Duration = Duration::from_millis(100);

/// Runs a call, and says on standard error what it waits for if that takes longer than a second and is watched.
pub(crate) fn during<T>(what: &'static str, call: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return call();
    }
    let (done, wait) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let form = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
                let spinner = ProgressBar::new_spinner().with_message(what).with_elapsed(PATIENCE);
                spinner.set_style(form.unwrap_or_else(|_| ProgressStyle::default_spinner()));
                spinner.enable_steady_tick(TICK);
                // Until the other end is dropped: nothing is ever sent.
                let _ = wait.recv();
                spinner.finish_and_clear();
            }
        });
        let outcome = call();
        drop(done);
        outcome
    })
}

/// Bytes of a total, shown on standard error where that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    watched: bool,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Self {
        Self { started: Instant::now(), total, done: 0, bar: None, watched: io::stderr().is_terminal() }
    }

    /// So many more bytes are done, of this tensor.
    pub(crate) fn advance(&mut self, bytes: u64, tensor: &str) {
        self.done += bytes;
        if self.bar.is_none() && self.watched && self.started.elapsed() > PATIENCE {
            self.bar = Some(self.show());
        }
        if let Some(bar) = &self.bar {
            self.shown(bar, self.done, tensor);
        }
    }

    /// Runs a call that brings bytes of one tensor or of many, and shows how many have come: `arrived` counts them, from
    /// whatever number on.
    pub(crate) fn arriving<T>(
        &mut self,
        what: &str,
        arrived: impl Fn() -> Option<u64> + Sync,
        call: impl FnOnce() -> T,
    ) -> T {
        if !self.watched {
            return call();
        }
        let (over, wait) = mpsc::channel::<()>();
        let (this, count) = (&*self, &arrived);
        let (outcome, bar) = thread::scope(|scope| {
            let watcher = scope.spawn(move || this.watch(what, &wait, count));
            let outcome = call();
            drop(over);
            (outcome, watcher.join().ok().flatten())
        });
        self.bar = self.bar.take().or(bar);
        outcome
    }

    /// Until the other end of `over` is dropped; the bar, if it took long enough for one.
    fn watch(
        &self,
        what: &str,
        over: &Receiver<()>,
        arrived: &(dyn Fn() -> Option<u64> + Sync),
    ) -> Option<ProgressBar> {
        let before = arrived();
        let mut bar = self.bar.clone();
        while over.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            if self.started.elapsed() <= PATIENCE {
                continue;
            }
            let came = before.zip(arrived()).map_or(0, |(before, now)| now.saturating_sub(before));
            self.shown(bar.get_or_insert_with(|| self.show()), self.done + came, what);
        }
        bar
    }

    /// The bar never goes back: what has come is counted before what is done with it.
    fn shown(&self, bar: &ProgressBar, bytes: u64, what: &str) {
        let bytes = bytes.max(bar.position()).min(self.total);
        bar.set_position(bytes);
        // The bar knows only of the time since it is shown.
        bar.set_message(message(&output::rate(bytes, self.started.elapsed()), what));
    }

    /// Runs a call that may wait, and shows that it does. The bar, if there is one already, shows as much.
    pub(crate) fn during<T>(&self, what: &'static str, call: impl FnOnce() -> T) -> T {
        if self.bar.is_some() { call() } else { during(what, call) }
    }

    fn show(&self) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr());
        let form = "{bar:32} {binary_bytes}/{binary_total_bytes}  {msg}";
        bar.with_style(ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Bytes so far.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Takes the bar away and says how long it took.
    pub(crate) fn finish(self) -> Duration {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        self.started.elapsed()
    }
}

/// Text behind the bar. The name of a tensor is that of a file, which may have been written by anybody.
fn message(rate: &str, what: &str) -> String {
    format!("{rate}  {}", output::printable(what).replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_name_behind_the_bar_stays_in_its_line_and_moves_no_cursor() {
        assert_eq!(message("1 kB/s", "a\x1b[2Jb\nc"), "1 kB/s  a\\u{1b}[2Jb c");
    }

    #[test]
    fn what_comes_in_a_call_is_shown_and_never_taken_back() {
        let started = Instant::now().checked_sub(2 * PATIENCE).unwrap();
        let mut progress = Progress { watched: true, started, ..Progress::new(100) };
        let (arrived, looks) = (AtomicU64::new(1000), AtomicU64::new(0));
        let count = || {
            looks.fetch_add(1, Ordering::SeqCst);
            Some(arrived.load(Ordering::SeqCst))
        };
        let looked = |times| {
            let until = Instant::now() + Duration::from_secs(60);
            while looks.load(Ordering::SeqCst) < times && Instant::now() < until {
                thread::yield_now();
            }
        };
        let outcome = progress.arriving("getting", count, || {
            looked(1);
            arrived.store(1040, Ordering::SeqCst);
            // The look that began before may have seen the old number.
            looked(4);
            7
        });
        assert_eq!(outcome, 7);
        let position = |progress: &Progress| progress.bar.as_ref().map(ProgressBar::position);
        assert_eq!(position(&progress), Some(40));
        progress.advance(10, "x");
        assert_eq!((position(&progress), progress.done()), (Some(40), 10));
        progress.advance(50, "x");
        assert_eq!(position(&progress), Some(60));
    }
}
