//! Check of whether a history keeps to what holds at all times. Pure: it sees the events and nothing else.
//!
//! Each of the eight lines has a file. What no history between processes can show (who may write pages, what the kernel
//! refuses) is tested elsewhere; each file says what it takes as its line.

use std::fmt;

use super::history::Event;

mod books;
mod bytes;
mod excuse;
mod held;
mod membership;
mod repeats;
mod sealed;
mod strangers;
mod timeline;
mod visible;

pub use timeline::Timeline;

/// The lines, by their numbers from 1.
pub const LINES: [&str; 8] = [
    "a tensor is invisible until sealed, and never changed afterwards",
    "a get gives exactly the sealed bytes of that tensor, or an error that has a cause",
    "what is leased is not freed, what is mapped is not reused, and what a gone holder had is",
    "the books of the arena balance, and after all holders are gone all is free",
    "a retried put is safe: whole or not there, and once",
    "nobody outside the exchange reads, writes, names or learns of its tensors",
    "losing the directory stops changes of membership, nothing else",
    "every path worse than the best one is visible",
];

/// A line that was not kept to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the line in [`LINES`], from 1.
    pub line: usize,
    /// Description of what was wrong.
    pub what: String,
    /// The events that show it: lines of the history, from 1.
    pub events: Vec<usize>,
}

impl Violation {
    /// Of events by their index from 0.
    pub(crate) fn new(line: usize, events: impl IntoIterator<Item = usize>, what: String) -> Self {
        let mut events: Vec<usize> = events.into_iter().map(|index| index + 1).collect();
        events.sort_unstable();
        events.dedup();
        Self { line, what, events }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, what, events } = self;
        write!(f, "line {line} ({}): {what}; see lines {events:?} of the history", LINES[line - 1])
    }
}

/// Every violation, by line.
pub fn check(events: &[Event]) -> Vec<Violation> {
    let timeline = Timeline::of(events);
    let lines = [
        sealed::check,
        bytes::check,
        held::check,
        books::check,
        repeats::check,
        strangers::check,
        membership::check,
        visible::check,
    ];
    lines.iter().flat_map(|line| line(&timeline)).collect()
}

#[cfg(test)]
mod tests;
