//! The writing half of a session socket: one write for each request, and no thread that waits for another's reply.
//!
//! A thread that reads must sometimes send too (it acknowledges segments). It must never wait for a thread that is
//! stuck in a write, because that one may be stuck until somebody reads. So it leaves its frame in the outbox, and
//! whoever holds the writing lock takes it along.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};

use crate::error::{Error, Result};

/// Memory that the writing buffer keeps between requests; what a large put needed beyond it is given back.
const BUFFER_KEPT: usize = 256 << 10;

/// Time after which a caller that waits for another one's write looks whether it still wants to.
const LOOK: Duration = Duration::from_millis(100);

/// The writing half.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    buffer: Mutex<Vec<u8>>,
    outbox: Mutex<Vec<u8>>,
    mail: AtomicBool,
}

impl Sender {
    /// Builds frames with `fill` and writes them, after what lies in the outbox. `stuck` is called whenever the
    /// socket has no room; it waits for some, and may read meanwhile. It is told whether bytes were written since it was called
    /// before. What `heed` says ends the wait for others' writes. No call's deadline, cancel or signal may end a write: half a frame ends the session of all, and a lock is held.
    pub(crate) fn send(
        &self,
        socket: impl AsFd,
        fill: impl FnOnce(&mut Vec<u8>),
        heed: &dyn Fn() -> Result<()>,
        mut stuck: impl FnMut(bool) -> Result<()>,
    ) -> Result<()> {
        {
            let mut buffer = self.buffer(heed)?;
            self.take_mail(&mut buffer);
            fill(&mut buffer);
            write_and_clear(&socket, &mut buffer, None, &mut stuck)?;
        }
        self.send_mail(socket, stuck)
    }

    /// The buffer, once nobody else writes. What `heed` says meanwhile ends the wait.
    fn buffer(&self, heed: &dyn Fn() -> Result<()>) -> Result<MutexGuard<'_, Vec<u8>>> {
        loop {
            if let Some(buffer) = self.buffer.try_lock_for(LOOK) {
                return Ok(buffer);
            }
            heed()?;
        }
    }

    /// Sends one frame, on whose first byte a descriptor travels.
    pub(crate) fn send_with(
        &self,
        socket: impl AsFd,
        fill: impl FnOnce(&mut Vec<u8>),
        descriptor: BorrowedFd<'_>,
        heed: &dyn Fn() -> Result<()>,
        mut stuck: impl FnMut(bool) -> Result<()>,
    ) -> Result<()> {
        {
            let mut buffer = self.buffer(heed)?;
            self.take_mail(&mut buffer);
            write_and_clear(&socket, &mut buffer, None, &mut stuck)?;
            fill(&mut buffer);
            write_and_clear(&socket, &mut buffer, Some(descriptor), &mut stuck)?;
        }
        self.send_mail(socket, stuck)
    }

    /// Puts a frame into the outbox. [`Sender::send_mail`] must follow.
    pub(crate) fn post(&self, frame: &[u8]) {
        self.outbox.lock().extend_from_slice(frame);
        self.mail.store(true, Ordering::SeqCst);
    }

    /// Writes the outbox, unless another thread is writing: that one does it when it is done.
    pub(crate) fn send_mail(
        &self,
        socket: impl AsFd,
        mut stuck: impl FnMut(bool) -> Result<()>,
    ) -> Result<()> {
        while self.mail.load(Ordering::SeqCst) {
            let Some(mut buffer) = self.buffer.try_lock() else { return Ok(()) };
            self.take_mail(&mut buffer);
            write_and_clear(&socket, &mut buffer, None, &mut stuck)?;
        }
        Ok(())
    }

    fn take_mail(&self, buffer: &mut Vec<u8>) {
        if self.mail.load(Ordering::SeqCst) {
            let mut outbox = self.outbox.lock();
            self.mail.store(false, Ordering::SeqCst);
            buffer.append(&mut outbox);
        }
    }
}

/// Writes all of `buffer`, with a descriptor on its first byte if there is one. What fails halfway cannot be taken up again: the connection is lost.
fn write_and_clear(
    socket: &impl AsFd,
    buffer: &mut Vec<u8>,
    mut descriptor: Option<BorrowedFd<'_>>,
    stuck: &mut impl FnMut(bool) -> Result<()>,
) -> Result<()> {
    let (mut written, mut moved) = (0, true);
    let outcome = loop {
        if written == buffer.len() {
            break Ok(());
        }
        let (rest, flags) = (&buffer[written..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        let sent = match descriptor {
            Some(descriptor) => with_descriptor(socket, rest, descriptor, flags),
            None => send(socket, rest, flags),
        };
        match sent {
            Ok(bytes) => {
                written += bytes;
                descriptor = None;
                moved = true;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match stuck(std::mem::take(&mut moved)) {
                Ok(()) => {}
                Err(error) => break Err(error),
            },
            Err(error) => break Err(Error::lost(format!("writing to the session socket failed: {error}"))),
        }
    };
    buffer.clear();
    buffer.shrink_to(BUFFER_KEPT);
    outcome
}

fn with_descriptor(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
    flags: SendFlags,
) -> std::result::Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn read(socket: &mut UnixStream, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        socket.read_exact(&mut all).unwrap();
        all
    }

    #[test]
    fn the_outbox_leaves_before_the_next_request_in_the_same_write() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let sender = Sender::default();
        sender.post(b"mail ");
        sender.send(&near, |out| out.extend_from_slice(b"request"), &|| Ok(()), |_| unreachable!()).unwrap();
        assert_eq!(read(&mut far, 12), b"mail request");
    }

    #[test]
    fn mail_that_comes_during_a_write_is_sent_by_the_thread_that_writes() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let sender = Sender::default();
        let fill = |out: &mut Vec<u8>| {
            out.extend_from_slice(b"request ");
            sender.post(b"mail");
            // As a thread that reads would: the lock is taken, so it goes on at once.
            sender.send_mail(&near, |_| unreachable!()).unwrap();
        };
        sender.send(&near, fill, &|| Ok(()), |_| unreachable!()).unwrap();
        assert_eq!(read(&mut far, 12), b"request mail");
    }

    #[test]
    fn a_full_socket_asks_what_to_do_and_goes_on() {
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| i as u8).collect();
        let received = std::cell::RefCell::new(Vec::new());
        let drain = |_| {
            let mut part = [0; 65_536];
            while let Ok(bytes) = (&far).read(&mut part) {
                received.borrow_mut().extend_from_slice(&part[..bytes]);
            }
            Ok(())
        };
        Sender::default().send(&near, |out| out.extend_from_slice(&sent), &|| Ok(()), drain).unwrap();
        drain(false).unwrap();
        assert!(*received.borrow() == sent);
    }

    #[test]
    fn a_closed_socket_is_a_lost_session_and_no_signal() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let sent = Sender::default().send(&near, |out| out.push(1), &|| Ok(()), |_| unreachable!());
        assert!(matches!(sent, Err(Error::SessionLost { .. })));
    }
}
