//! Watch: one state after the other on standard output, until somebody has seen enough. Knows nothing of what it shows.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tensorlane_client::{Cancel, Client};

/// The longest time between two looks, each of which costs a system call.
const LOOK_MAX: Duration = Duration::from_secs(3600);

/// State that is seen at one look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// News: what has to be another for the state to be another one.
    pub(crate) news: Vec<u8>,
    /// Text that is written.
    pub(crate) shown: Vec<u8>,
}

/// Flow of the states, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Each takes the place of the one before, changed or not: on a terminal.
    InPlace,
    /// Each that is another one below the one before, with an empty line between them.
    Blocks,
    /// Each that is another one in a line.
    Lines,
}

impl Flow {
    /// Text that is written of a state after the one before; nothing if it is the same and need not be written again.
    fn next(self, before: Option<&State>, now: &State) -> Vec<u8> {
        match self {
            // From the upper left corner; what was there is taken away.
            Flow::InPlace => [b"\x1b[H\x1b[2J", &now.shown[..]].concat(),
            _ if before.is_some_and(|before| before.news == now.news) => Vec::new(),
            Flow::Blocks if before.is_some() => [b"\n", &now.shown[..]].concat(),
            Flow::Blocks | Flow::Lines => now.shown.clone(),
        }
    }
}

/// Writes what `look` sees, now and after every interval. Ends when nobody reads any more, which is no failure, or when
/// looking fails.
///
/// # Errors
/// Those of `look`, and of writing.
pub(crate) fn watch(flow: Flow, interval: Duration, mut look: impl FnMut() -> Result<State>) -> Result<()> {
    let mut before: Option<State> = None;
    loop {
        let now = look()?;
        let mut out = io::stdout().lock();
        out.write_all(&flow.next(before.as_ref(), &now))?;
        out.flush()?;
        before = Some(now);
        if left_within(interval)? {
            return Ok(());
        }
    }
}

/// Runs what waits for one thing after the other and writes it. Calls of its client end when whoever reads standard
/// output has gone: that is no failure.
///
/// # Errors
/// Those of `run`.
pub(crate) fn while_read(client: &Client, run: impl FnOnce(&Client) -> Result<()>) -> Result<()> {
    let cancel = Cancel::new();
    let told = cancel.clone();
    let wait = move || {
        let left = loop {
            match left_within(LOOK_MAX) {
                Ok(false) => {}
                // Where nothing can be seen, the next write tells.
                seen => break seen.is_ok(),
            }
        };
        if left {
            told.cancel();
        }
    };
    // It ends with the process.
    thread::Builder::new().name("readers".into()).spawn(wait).context("cannot wait for readers")?;
    match run(&client.with_cancel(cancel.clone())) {
        Err(_) if cancel.is_cancelled() => Ok(()),
        done => done,
    }
}

/// Waits, and says whether whoever reads standard output has gone meanwhile: without a change nothing is written that
/// would tell.
fn left_within(interval: Duration) -> io::Result<bool> {
    let stdout = io::stdout();
    // The end of a reader is told without being asked for.
    let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
    let timeout = Timespec {
        tv_sec: i64::try_from(interval.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: interval.subsec_nanos().into(),
    };
    match poll(&mut ends, Some(&timeout)) {
        // Whoever stopped us for a while and lets us go on may look a little early.
        Err(rustix::io::Errno::INTR) => Ok(false),
        polled => Ok(polled? > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(news: &str, shown: &str) -> State {
        State { news: news.into(), shown: shown.into() }
    }

    #[test]
    fn a_state_that_is_the_same_is_written_again_on_a_terminal_alone() {
        // The second differs from the first in what is no news.
        let [first, same, other] = [state("a", "a 1\n"), state("a", "a 2\n"), state("b", "b 2\n")];
        for (flow, expected) in [
            (Flow::Blocks, ["a 1\n", "", "\nb 2\n"]),
            (Flow::Lines, ["a 1\n", "", "b 2\n"]),
            (Flow::InPlace, ["\x1b[H\x1b[2Ja 1\n", "\x1b[H\x1b[2Ja 2\n", "\x1b[H\x1b[2Jb 2\n"]),
        ] {
            let next =
                |before: Option<&State>, now: &State| String::from_utf8(flow.next(before, now)).unwrap();
            let told = [next(None, &first), next(Some(&first), &same), next(Some(&same), &other)];
            assert_eq!(told, expected, "{flow:?}");
        }
    }
}
