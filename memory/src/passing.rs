//! Descriptors over Unix sockets, and who is at the other end.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The most descriptors one message carries: what a segment and its witness need, twice.
pub const DESCRIPTORS_MAX: usize = 4;

/// Credentials of the process that made the connection at the other end, as the kernel recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Process id in our namespace; 0 where the process lives in another one, as containers do.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Sends bytes and up to [`DESCRIPTORS_MAX`] descriptors in one message; descriptors need at least one byte with
/// them. Returns how many bytes went; the descriptors went with the first of them.
///
/// # Errors
/// `InvalidInput` for too many descriptors or descriptors without bytes; else what the kernel says, `WouldBlock`
/// included. A closed socket is an error, never a signal.
pub fn send(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(fd, parts, fds, SendFlags::NOSIGNAL)
}

/// As [`send`], without waiting for room in the socket.
///
/// # Errors
/// As [`send`]; `WouldBlock` where there is no room.
pub fn send_now(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(fd, parts, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    fd: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let invalid = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
    if fds.len() > DESCRIPTORS_MAX {
        return invalid("a message carries at most 4 descriptors");
    }
    if !fds.is_empty() && parts.iter().all(|part| part.is_empty()) {
        return invalid("descriptors need at least one byte to travel with");
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return invalid("the descriptors do not fit");
    }
    loop {
        match rustix::net::sendmsg(fd, parts, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Receives bytes into `bytes` and appends the descriptors that came with them, close-on-exec. 0 bytes: the end.
///
/// # Errors
/// `InvalidData` where more than [`DESCRIPTORS_MAX`] descriptors came, all of which are then closed; else what the
/// kernel says, `WouldBlock` included.
pub fn receive(fd: BorrowedFd<'_>, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = loop {
        match rustix::net::recvmsg(fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let before = fds.len();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    // The kernel closes what did not fit and says so; the buffer may have had room for one more by alignment.
    if message.flags.contains(ReturnFlags::CTRUNC) || fds.len() - before > DESCRIPTORS_MAX {
        fds.truncate(before);
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more than 4 descriptors in one message"));
    }
    Ok(message.bytes)
}

/// Credentials of the process that connected the socket `fd` at its other end.
///
/// # Errors
/// What the kernel says: `ENOTSOCK`, or no such option where it is not a Unix socket.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option(fd, libc::SO_PEERCRED, &mut peer)?;
    Ok(Credentials { pid: peer.pid, uid: peer.uid, gid: peer.gid })
}

/// A descriptor of the process that connected the socket, readable when it ends. `None` where the kernel cannot
/// (before 6.5) or the process is gone and reaped.
///
/// # Errors
/// What the kernel says otherwise.
pub fn peer_pidfd(fd: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut pidfd: libc::c_int = -1;
    match option(fd, libc::SO_PEERPIDFD, &mut pidfd) {
        // SAFETY: the kernel just made this descriptor for us (close-on-exec), and nobody else has it.
        Ok(()) if pidfd >= 0 => Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd) })),
        Ok(()) => Ok(None),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::ENODATA | libc::ESRCH | libc::EINVAL) => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// Bytes that a TCP socket was given and whose receipt the other end's kernel has not said. The pages of what it was given from a
/// file (sendfile) are its own until then.
///
/// # Errors
/// What the kernel says: `EINVAL` where it listens, `ENOTTY` where it is no socket.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int, and `bytes` is one.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done == 0 { Ok(u64::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Puts what `by` is open on behind the number of `of`, and closes what was there before. In one step: whoever uses the number
/// meets the one or the other, never a closed one.
pub(crate) fn replace(of: &OwnedFd, by: BorrowedFd<'_>) {
    // SAFETY: both numbers are open for the length of the call, and `of` is its owner's, so that nobody else has a say in what
    // is behind it. Two open numbers that differ, and a flag that exists, are all that the kernel asks: it cannot refuse.
    let _ = unsafe { libc::dup3(by.as_raw_fd(), of.as_raw_fd(), libc::O_CLOEXEC) };
}

/// Returns whether nobody has the reading end of a pipe any more, of which `writing` is a writing end.
pub(crate) fn has_no_reader(writing: BorrowedFd<'_>) -> bool {
    let mut ends = [PollFd::from_borrowed_fd(writing, PollFlags::empty())];
    // Without patience, so that no signal comes in between.
    poll(&mut ends, Some(&Timespec::default())).is_ok() && ends[0].revents().contains(PollFlags::ERR)
}

/// A pipe, close-on-exec: the reading end, then the writing one.
///
/// # Errors
/// Where no descriptors are to be had.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

fn option<T: Copy>(fd: BorrowedFd<'_>, name: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writing `len` bytes and every caller's T is plain integers.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_mut(value).cast(),
            &raw mut len,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_and_descriptors_arrive_together_and_close_on_exec() {
        let (a, b) = UnixStream::pair().unwrap();
        let (read, write) = pipe().unwrap();
        let sent = send(a.as_fd(), &[IoSlice::new(b"se"), IoSlice::new(b"gment")], &[write.as_fd()]).unwrap();
        assert_eq!(sent, 7);
        drop(write);
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        assert_eq!(receive(b.as_fd(), &mut bytes, &mut fds).unwrap(), 7);
        assert_eq!(&bytes[..7], b"segment");
        let write = fds.pop().unwrap();
        assert!(rustix::io::fcntl_getfd(&write).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        std::fs::File::from(write).write_all(b"through").unwrap();
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn more_descriptors_than_allowed_are_closed_and_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        let (read, write) = pipe().unwrap();
        let five = [write.as_raw_fd(); 5];
        assert!(send(a.as_fd(), &[IoSlice::new(b"x")], &[write.as_fd(); 5]).is_err());
        raw_send(&a, &five);
        drop(write);
        let mut fds = Vec::new();
        let error = receive(b.as_fd(), &mut [0; 4], &mut fds).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(fds.is_empty());
        // All copies are closed: the pipe is at its end.
        assert_eq!(std::fs::File::from(read).read(&mut [0; 4]).unwrap(), 0);
    }

    /// Sends one byte with descriptors, as a client that does not use `send` can.
    fn raw_send(socket: &UnixStream, fds: &[i32]) {
        let mut byte = [7u8];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = [0u64; 16];
        // SAFETY: one byte and one control message inside buffers that outlive the call.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of_val(fds) as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of_val(fds) as u32) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(header).cast::<i32>(), fds.len());
            assert_eq!(libc::sendmsg(socket.as_raw_fd(), &raw const message, 0), 1);
        }
    }

    #[test]
    fn descriptors_without_a_byte_are_refused() {
        let (a, _b) = UnixStream::pair().unwrap();
        let error = send(a.as_fd(), &[], &[a.as_fd()]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_closed_socket_is_an_error_and_an_end_is_no_bytes() {
        let _no_copies = crate::testing::without_children();
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        assert_eq!(
            send(a.as_fd(), &[IoSlice::new(b"x")], &[]).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        assert_eq!(receive(a.as_fd(), &mut [0; 4], &mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = peer_credentials(a.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        if let Some(pidfd) = peer_pidfd(a.as_fd()).unwrap() {
            // It is a pidfd of a living process: signal 0 reaches it.
            // SAFETY: no memory is involved.
            let alive = unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, std::ptr::null::<u8>(), 0)
            };
            assert_eq!(alive, 0);
        }
    }
}
