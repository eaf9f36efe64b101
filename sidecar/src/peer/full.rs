//! A socket that takes nothing more. It takes none before a third of what it can hold has gone, which on a slow link may take
//! longer than the progress deadline: so what has arrived at the other end is looked at, and a send timeout alone would not do.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tensorlane_memory::passing;

use super::send_error::SendError;
use super::slowest::Taking;

/// Since when a socket has been full, and how much of what it holds has arrived meanwhile.
#[derive(Debug, Default)]
pub(super) struct Full {
    seen: Option<Seen>,
}

/// State of what was missing at the other end when something last arrived there.
#[derive(Debug)]
struct Seen {
    missing: u64,
    since: Instant,
}

impl Full {
    /// Notes that the other end took something.
    pub(super) fn took(&mut self) {
        self.seen = None;
    }

    /// Waits until the socket has plenty of room, and for as long as no byte may move at most: then it should be tried again.
    /// What it holds has time of its own to go.
    ///
    /// # Errors
    /// Nothing has arrived at the other end for that long.
    pub(super) fn wait(&mut self, socket: &TcpStream, taking: &mut Taking) -> Result<(), SendError> {
        let left = passing::unacknowledged(socket.as_fd()).map_err(SendError::Socket)?;
        if !self.goes_on(left, taking.progress) {
            return Err(SendError::Progress);
        }
        taking.stands_behind(left);
        let patience = Timespec::try_from(taking.progress).ok();
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// So many bytes are missing at the other end now. Whether any of them has gone within that time.
    fn goes_on(&mut self, missing: u64, progress: Duration) -> bool {
        match &self.seen {
            Some(seen) if missing >= seen.missing => seen.since.elapsed() < progress,
            _ => {
                self.seen = Some(Seen { missing, since: Instant::now() });
                true
            }
        }
    }
}

/// Bytes that the other end's kernel has not acknowledged. Where ours does not say, the connection has failed: all.
pub(super) fn missing(socket: &TcpStream) -> u64 {
    passing::unacknowledged(socket.as_fd()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn it_goes_on_while_something_arrives_however_late_that_is_seen() {
        let mut full = Full::default();
        assert!((1..10).rev().all(|missing| full.goes_on(missing, Duration::ZERO)));
    }

    #[test]
    fn it_is_over_where_nothing_has_arrived_in_time() {
        let mut full = Full::default();
        assert!(full.goes_on(7, SOON) && full.goes_on(7, SOON));
        assert!(!full.goes_on(7, Duration::ZERO));
        assert!(!full.goes_on(8, Duration::ZERO));
    }

    #[test]
    fn what_it_took_begins_another_wait() {
        let mut full = Full::default();
        assert!(full.goes_on(7, Duration::ZERO));
        full.took();
        assert!(full.goes_on(9, Duration::ZERO));
    }
}
