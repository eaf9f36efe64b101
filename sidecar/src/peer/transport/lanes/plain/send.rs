//! The sending half of a plain lane: every wait for the socket ends, and what the kernel sends from files is kept until it has
//! arrived.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::SockRef;
use tensorlane_memory::passing;

use super::PlainWire;
use crate::peer::pipe::SendError;
use crate::peer::slowest::Taking;
use crate::peer::source::Lying;
use crate::peer::transport::lanes::wire::{LaneEnd, TICK};

/// Slices handed to the kernel in one call.
const SLICES: usize = 64;
/// The first pause between two looks at what has arrived; each is twice as long as the one before.
const LOOK: Duration = Duration::from_millis(1);

/// What became of bytes that were to be sent from a file.
enum Filed {
    /// The socket has them.
    Sent,
    /// The kernel does not do it; none was sent.
    Refused,
}

/// A socket that takes nothing more. It takes none before a third of what it can hold has gone, which on a slow link may take
/// longer than the progress deadline: so what goes is looked at, too.
struct Waiting {
    missing: u64,
    since: Instant,
}

impl Waiting {
    fn since_now(missing: u64) -> Self {
        Self { missing, since: Instant::now() }
    }

    /// So many bytes are missing at the other end now. Whether any of them has gone within that time.
    fn goes_on(&mut self, missing: u64, progress: Duration) -> bool {
        if missing < self.missing {
            *self = Self::since_now(missing);
        }
        self.since.elapsed() < progress
    }
}

fn is_refused(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::NOMEM]
        .iter()
        .any(|no| error.raw_os_error() == Some(no.raw_os_error()))
}

impl PlainWire {
    pub(super) fn say_all(&mut self, frame: &[u8]) -> Result<(), LaneEnd> {
        Ok(self.send(&[frame], Taking::begin(frame.len() as u64, self.progress))?)
    }

    /// A head, and what lies in a file behind it.
    pub(super) fn send_lying(
        &mut self,
        head: &[u8],
        lying: &Lying<'_>,
        taking: Taking,
    ) -> Result<(), SendError> {
        // sendfile goes on inside of the kernel for as long as a byte is taken now and then, where nobody could look at the clock.
        self.socket.set_nonblocking(true)?;
        let sent = self.send_head(head, taking).and_then(|()| self.send_file(lying, taking));
        self.socket.set_nonblocking(false)?;
        match sent? {
            Filed::Sent => Ok(()),
            Filed::Refused => self.send(&[lying.bytes], taking),
        }
    }

    fn send_head(&mut self, head: &[u8], taking: Taking) -> Result<(), SendError> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_MORE;
        self.push(head.len(), taking, |socket, done| {
            SockRef::from(socket).send_with_flags(&head[done..], flags)
        })
    }

    /// There is no MSG_NOSIGNAL here: what is sent to an end that is gone is an error because Rust ignores SIGPIPE.
    fn send_file(&mut self, lying: &Lying<'_>, taking: Taking) -> Result<Filed, SendError> {
        let mut begun = false;
        let pushed = self.push(lying.bytes.len(), taking, |socket, done| {
            let (mut at, left) = (lying.offset + done as u64, lying.bytes.len() - done);
            let sent = rustix::fs::sendfile(socket, lying.segment.reader_fd(), Some(&mut at), left)?;
            begun = true;
            Ok(sent)
        });
        match pushed {
            // The kernel has no pipe for it, or its filters do not let it.
            Err(SendError::Socket(error)) if !begun && is_refused(&error) => Ok(Filed::Refused),
            pushed => pushed.map(|()| Filed::Sent),
        }
    }

    /// So many bytes, by a step that is told how many are done and does not wait.
    fn push(
        &mut self,
        bytes: usize,
        taking: Taking,
        mut step: impl FnMut(&TcpStream, usize) -> io::Result<usize>,
    ) -> Result<(), SendError> {
        let (mut done, mut waiting) = (0, None::<Waiting>);
        while done < bytes {
            taking.goes_on()?;
            match step(&self.socket, done) {
                Ok(0) => return Err(SendError::Closed),
                Ok(sent) => {
                    self.queued.given(sent as u64);
                    (done, waiting) = (done + sent, None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let missing = self.missing();
                    let waiting = waiting.get_or_insert_with(|| Waiting::since_now(missing));
                    if !waiting.goes_on(missing, self.progress) {
                        return Err(SendError::Progress);
                    }
                    self.wait_for_room()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Bytes that the other end's kernel has not acknowledged. Where ours does not say, the lane has failed: all.
    fn missing(&self) -> u64 {
        passing::unacknowledged(self.socket.as_fd()).unwrap_or(u64::MAX)
    }

    /// Until the socket has plenty of room, or the progress deadline is over.
    fn wait_for_room(&self) -> Result<(), SendError> {
        let patience = Timespec::try_from(self.progress).ok();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    pub(super) fn send(&mut self, parts: &[&[u8]], taking: Taking) -> Result<(), SendError> {
        if parts.len() > SLICES {
            // Short runs: a copy costs less than a call, and a segment, for a few of them.
            return self.send(&[&parts.concat()], taking);
        }
        let socket = SockRef::from(&self.socket);
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            taking.goes_on()?;
            let now = rest.len().min(SLICES);
            match socket.send_vectored_with_flags(&rest[..now], libc::MSG_NOSIGNAL) {
                Ok(0) => return Err(SendError::Closed),
                Ok(sent) => {
                    self.queued.given(sent as u64);
                    IoSlice::advance_slices(&mut rest, sent);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Lets go of what has arrived.
    fn tidy(&mut self) {
        if !self.queued.is_empty() {
            let missing = self.missing();
            self.queued.acknowledged_but(missing);
        }
    }

    /// Until the other end says something, or has all that it was sent from files.
    pub(super) fn wait_until_sent(&mut self) {
        let mut pause = LOOK;
        self.tidy();
        while !self.queued.is_empty() {
            let patience = Timespec::try_from(pause).ok();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], patience.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                _ => return,
            }
            pause = (2 * pause).min(TICK);
            self.tidy();
        }
    }
}

impl Drop for PlainWire {
    fn drop(&mut self) {
        self.tidy();
        if !self.queued.is_empty() {
            // The kernel would go on sending pages whose blocks are let go of now. It forgets them.
            let _ = rustix::net::connect_unspec(&self.socket);
        }
    }
}
