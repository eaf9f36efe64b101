//! Writes state after state to standard output, until somebody has seen enough. Knows nothing of what it shows.

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Manner in which the states follow one another.
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
    /// Flow of states on this standard output. `lines`: each state is one.
    pub(crate) fn here(lines: bool) -> Flow {
        match lines {
            true => Flow::Lines,
            false if io::stdout().is_terminal() => Flow::InPlace,
            false => Flow::Blocks,
        }
    }

    /// Text to write of a state after the one before; nothing if it is the same and need not be written again.
    fn next(self, before: Option<&str>, now: &str) -> String {
        match self {
            // From the upper left corner; what was there is taken away.
            Flow::InPlace => format!("\x1b[H\x1b[2J{now}"),
            _ if before == Some(now) => String::new(),
            Flow::Blocks if before.is_some() => format!("\n{now}"),
            Flow::Blocks | Flow::Lines => now.to_owned(),
        }
    }
}

/// Writes what `look` sees, now and after every interval. Ends when nobody reads any more, which is no failure, or when
/// looking fails.
pub(crate) async fn watch(
    flow: Flow,
    interval: Duration,
    mut look: impl AsyncFnMut() -> Result<String, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut before: Option<String> = None;
    loop {
        let now = look().await?;
        let mut out = io::stdout();
        let written = out.write_all(flow.next(before.as_deref(), &now).as_bytes()).and_then(|()| out.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        before = Some(now);
        // On a thread of its own: connections to the API server end in order meanwhile.
        if tokio::task::spawn_blocking(move || left_within(interval)).await?? {
            return Ok(());
        }
    }
}

/// Waits, and says whether whoever reads standard output has gone meanwhile: without a change nothing is written that would
/// tell.
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

    #[test]
    fn a_state_that_is_the_same_is_written_again_on_a_terminal_alone() {
        for (flow, first, same, other) in [
            (Flow::Blocks, "a\n", "", "\nb\n"),
            (Flow::Lines, "a\n", "", "b\n"),
            (Flow::InPlace, "\x1b[H\x1b[2Ja\n", "\x1b[H\x1b[2Ja\n", "\x1b[H\x1b[2Jb\n"),
        ] {
            let told = [flow.next(None, "a\n"), flow.next(Some("a\n"), "a\n"), flow.next(Some("a\n"), "b\n")];
            assert_eq!(told, [first, same, other], "{flow:?}");
        }
    }
}
