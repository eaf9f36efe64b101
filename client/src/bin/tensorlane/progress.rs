//! A bar with a rate, for what takes longer than a second and is watched.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// What is over sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a spinner moves.
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
            bar.set_position(self.done);
            // The bar knows only of the time since it is shown.
            bar.set_message(format!("{}  {tensor}", output::rate(self.done, self.started.elapsed())));
        }
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
