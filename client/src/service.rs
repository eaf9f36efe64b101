//! The one thread that a connection has: it does what no caller is there to do.
//!
//! - It listens on the event pipe: segments to unmap, segments with other pages, readers of channels, GPU memory that nobody keeps,
//!   and the end of the sidecar.
//! - It sends leases that ended where no request comes to take them along.
//! - It reads replies that nobody waits for any more.
//!
//! It sleeps while nothing of that is due. It holds the connection only for moments and ends when that is gone.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tensorlane_proto::frame::{HEADER_BYTES, Header, SessionKind};
use tensorlane_proto::generated::{GpuFreed, SegmentFrame, SegmentRetired};

use crate::connection::{Connection, timespec};
use crate::error::{Error, Result};
use crate::wire;

/// Time that an ended lease waits for a request that would take it along.
const FLUSH_AFTER: Duration = Duration::from_micros(1000);
/// So many windows without a new one, and the thread sleeps until it is woken.
const QUIET_WINDOWS: u32 = 5;
/// Interval at which the thread looks for a late reply, or for a segment that is announced again.
const TICK: Duration = Duration::from_millis(10);
/// Longest frame on the event pipe; all kinds that there are have a few bytes.
const EVENT_BODY_MAX: u32 = 1 << 10;

/// Starts the thread of `connection`.
pub(crate) fn start(connection: &Arc<Connection>, events: OwnedFd) -> Result<()> {
    // Its own copy, so that polling needs no hold on the connection.
    let wake = connection
        .releases()
        .wake_fd()
        .try_clone_to_owned()
        .map_err(|error| Error::resources("no descriptor for the service thread", error))?;
    let service = Service {
        connection: Arc::downgrade(connection),
        events: File::from(events),
        wake,
        bytes: Vec::new(),
        flush: Flush::Asleep,
        ticking: false,
    };
    thread::Builder::new()
        .name("tensorlane-service".into())
        .spawn(move || service.run())
        .map(drop)
        .map_err(|error| Error::resources("the service thread cannot be started", error))
}

/// State of the watch over ended leases.
#[derive(Clone, Copy, Debug)]
enum Flush {
    /// The next one wakes the thread.
    Asleep,
    /// At `at` what gathered is sent; nothing new came for `quiet` windows, since `pushed` had this value.
    Armed { at: Instant, quiet: u32, pushed: u64 },
}

struct Service {
    connection: Weak<Connection>,
    events: File,
    wake: OwnedFd,
    /// Bytes of the event pipe that are no whole frame yet.
    bytes: Vec<u8>,
    flush: Flush,
    /// Set while frames are due that nobody reads: the thread looks for them every tick.
    ticking: bool,
}

impl Service {
    fn run(mut self) {
        loop {
            let (readable, woken) = self.sleep();
            let Some(connection) = self.connection.upgrade() else { return };
            if readable && let Err(error) = self.read_events(&connection) {
                connection.lose(&error);
                return;
            }
            if woken {
                connection.releases().woken();
                self.arm(&connection);
            }
            self.flush(&connection);
            connection.segments().sweep();
            self.ticking = connection.calls().needs_a_reader()
                || connection.segments().needs_a_reader()
                || connection.channels().needs_a_reader();
            if self.ticking {
                connection.read_unwanted();
            }
            if connection.is_lost() {
                return;
            }
        }
    }

    /// Sleeps until something happens or is due. Returns whether events can be read and whether it was woken.
    fn sleep(&self) -> (bool, bool) {
        let timeout = match (self.flush, self.ticking) {
            (Flush::Armed { at, .. }, _) => Some(at.saturating_duration_since(Instant::now())),
            (Flush::Asleep, true) => Some(TICK),
            (Flush::Asleep, false) => None,
        };
        let (events, wake) = (self.events.as_fd(), self.wake.as_fd());
        let mut ready =
            [PollFd::from_borrowed_fd(events, PollFlags::IN), PollFd::from_borrowed_fd(wake, PollFlags::IN)];
        // An interrupted poll has nothing ready, which is right.
        if poll(&mut ready, timeout.map(timespec).as_ref()).is_err() {
            return (false, false);
        }
        (!ready[0].revents().is_empty(), !ready[1].revents().is_empty())
    }

    fn arm(&mut self, connection: &Connection) {
        if matches!(self.flush, Flush::Asleep) {
            let pushed = connection.releases().pushes();
            self.flush = Flush::Armed { at: Instant::now() + FLUSH_AFTER, quiet: 0, pushed };
        }
    }

    /// Sends ended leases whose time has come, and goes to sleep after a quiet while.
    fn flush(&mut self, connection: &Connection) {
        let Flush::Armed { at, quiet, pushed } = self.flush else { return };
        if Instant::now() < at {
            return;
        }
        // A failure has ended the connection, which is seen at the end of the round.
        let _ = connection.flush();
        let now = connection.releases().pushes();
        let quiet = if now == pushed { quiet + 1 } else { 0 };
        self.flush = if quiet >= QUIET_WINDOWS && connection.releases().disarm() {
            Flush::Asleep
        } else {
            Flush::Armed { at: Instant::now() + FLUSH_AFTER, quiet, pushed: now }
        };
    }

    fn read_events(&mut self, connection: &Connection) -> Result<()> {
        let mut part = [0; 4096];
        match self.events.read(&mut part) {
            Ok(0) => return Err(Error::lost("the sidecar is gone (its event pipe ended)")),
            Ok(bytes) => self.bytes.extend_from_slice(&part[..bytes]),
            Err(error) => return Err(Error::lost(format!("reading the event pipe failed: {error}"))),
        }
        let mut taken = 0;
        while let Some((head, rest)) = self.bytes[taken..].split_first_chunk::<HEADER_BYTES>() {
            let header =
                Header::decode(head, EVENT_BODY_MAX).map_err(|error| Error::protocol(error.to_string()))?;
            let Some(body) = rest.get(..header.length as usize) else { break };
            handle(connection, &header, body)?;
            taken += HEADER_BYTES + body.len();
        }
        self.bytes.drain(..taken);
        Ok(())
    }
}

fn handle(connection: &Connection, header: &Header, body: &[u8]) -> Result<()> {
    match SessionKind::try_from(header.kind) {
        Ok(SessionKind::SegmentRetired) => {
            let retired: SegmentRetired = wire::decode(SessionKind::SegmentRetired, body)?;
            connection.segments().retire(retired.segment);
            Ok(())
        }
        Ok(SessionKind::SegmentExchanged) => {
            let exchanged: SegmentFrame = wire::decode(SessionKind::SegmentExchanged, body)?;
            connection.segments().awaits(exchanged.segment);
            Ok(())
        }
        Ok(SessionKind::ChannelReader) => {
            connection.channels().awaits(header.call);
            Ok(())
        }
        Ok(SessionKind::GpuFreed) => {
            let freed: GpuFreed = wire::decode(SessionKind::GpuFreed, body)?;
            #[cfg(feature = "gpu")]
            connection.owned().freed(freed.allocation, freed.reusable);
            // Without that feature nothing was put there.
            #[cfg(not(feature = "gpu"))]
            let _ = freed;
            Ok(())
        }
        _ => Err(Error::protocol(format!("a frame of kind {} came on the event pipe", header.kind))),
    }
}
