//! A bar with a rate, for what takes longer than a second and is watched.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// What is over sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

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
