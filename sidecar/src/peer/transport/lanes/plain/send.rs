//! The sending half of a plain lane: every wait for the socket ends, and what the kernel sends from files is kept until it has
//! arrived.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::SockRef;

use super::PlainWire;
use crate::peer::full::{self, Full};
use crate::peer::send_error::SendError;
use crate::peer::slowest::Taking;
use crate::peer::source::ContiguousSpan;
use crate::peer::transport::lanes::wire::{LaneEnd, TICK};

/// Slices handed to the kernel in one call.
const SLICES: usize = 64;
/// The first pause between two looks at what has arrived; each is twice as long as the one before.
const LOOK: Duration = Duration::from_millis(1);

/// Outcome of bytes that were to be sent from a file.
enum Filed {
    /// The socket has them.
    Sent,
    /// The kernel does not do it; none was sent.
    Refused,
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
        lying: &ContiguousSpan<'_>,
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

    /// Sends bytes from the segment's file. There is no MSG_NOSIGNAL here: what is sent to an end that is gone is an error
    /// because Rust ignores SIGPIPE.
    fn send_file(&mut self, lying: &ContiguousSpan<'_>, taking: Taking) -> Result<Filed, SendError> {
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
        mut taking: Taking,
        mut step: impl FnMut(&TcpStream, usize) -> io::Result<usize>,
    ) -> Result<(), SendError> {
        let (mut done, mut full) = (0, Full::default());
        while done < bytes {
            taking.goes_on()?;
            match step(&self.socket, done) {
                Ok(0) => return Err(SendError::Closed),
                Ok(sent) => {
                    self.queued.given(sent as u64);
                    done += sent;
                    full.took();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    full.wait(&self.socket, &mut taking)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) fn send(&mut self, parts: &[&[u8]], taking: Taking) -> Result<(), SendError> {
        if parts.len() > SLICES {
            // Short runs: a copy costs less than a call, and a segment, for a few of them.
            return self.send(&[&parts.concat()], taking);
        }
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let bytes = parts.iter().map(|part| part.len()).sum();
        let mut rest = &mut slices[..];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        self.push(bytes, taking, |socket, _| {
            let sent = SockRef::from(socket).send_vectored_with_flags(rest, flags)?;
            IoSlice::advance_slices(&mut rest, sent);
            Ok(sent)
        })
    }

    /// Lets go of what has arrived.
    fn tidy(&mut self) {
        if !self.queued.is_empty() {
            let missing = full::missing(&self.socket);
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::thread;
    use std::time::Instant;

    use super::super::InFlightBuffers;
    use super::*;

    /// Time for which no byte may move, and that is given for a few bytes.
    const PROGRESS: Duration = Duration::from_secs(2);
    /// The reader takes so many bytes a tick: the socket goes on, and is full for longer than that.
    const TICK: Duration = Duration::from_millis(250);
    const TICK_BYTES: usize = 8 << 10;
    const ROOM: usize = 256 << 10;

    /// A socket that nobody has read from, and its other end.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SockRef::from(&listener).set_recv_buffer_size(TICK_BYTES).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        SockRef::from(&socket).set_send_buffer_size(ROOM).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    /// Gives it what it takes.
    fn fill(socket: &TcpStream) -> usize {
        let mut bytes = 0;
        while let Ok(sent) = SockRef::from(socket).send_with_flags(&[0; 4096], libc::MSG_DONTWAIT) {
            bytes += sent;
        }
        bytes
    }

    /// Reads slowly until it is told to stop. Returns the longest time between two reads.
    fn read_slowly(mut socket: TcpStream, stop: &Receiver<()>) -> Duration {
        let (mut room, mut read, mut longest) = ([0; TICK_BYTES], Instant::now(), Duration::ZERO);
        while stop.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            socket.read_exact(&mut room[..1]).unwrap();
            let _ = socket.read(&mut room).unwrap();
            longest = longest.max(read.elapsed());
            read = Instant::now();
        }
        longest.max(read.elapsed())
    }

    /// Says a few bytes behind a full socket that is read slowly. Returns whether they went: where its reader stood still for as long
    /// as nothing may move, they need not.
    fn say_behind_a_full_socket() -> bool {
        let (socket, reader) = connected();
        let stood = fill(&socket);
        assert!(stood > 4 * TICK_BYTES, "{stood}");
        let (stop, stopped) = channel();
        let reading = thread::spawn(move || read_slowly(reader, &stopped));
        let begun = Instant::now();
        let mut wire =
            PlainWire { socket, progress: PROGRESS, nowhere: Vec::new(), queued: InFlightBuffers::default() };
        let said = wire.say_all(b"a few bytes");
        let took = begun.elapsed();
        stop.send(()).unwrap();
        let longest = reading.join().unwrap();
        assert!(said.is_ok() || longest > PROGRESS / 2, "{said:?}: it was read every {longest:?}");
        assert!(
            said.is_err() || took > PROGRESS,
            "it was not full for long enough: {stood} bytes stood before"
        );
        said.is_ok()
    }

    #[test]
    fn a_few_bytes_behind_a_full_socket_wait_for_as_long_as_it_empties() {
        assert!((0..3).any(|_| say_behind_a_full_socket()));
    }

    #[test]
    fn a_few_bytes_behind_a_full_socket_that_nobody_reads_wait_for_the_progress_deadline() {
        let (socket, _reader) = connected();
        fill(&socket);
        let mut wire =
            PlainWire { socket, progress: PROGRESS, nowhere: Vec::new(), queued: InFlightBuffers::default() };
        // The other end's kernel still takes some.
        let full = (0..ROOM).find_map(|_| wire.say_all(b"a few bytes").err());
        assert!(matches!(full, Some(LaneEnd::Progress)), "{full:?}");
    }
}
