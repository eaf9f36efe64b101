//! The session socket without a client: frames, and what is none, byte by byte.
//!
//! Descriptors that come along are never taken, so the kernel closes them.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use prost::Message;
use tensorlane_memory::passing;
use tensorlane_proto::frame::{self, FAILED, HEADER_BYTES, Header, SESSION_BODY_MAX, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, wire};

use crate::sidecar::Sidecar;
use crate::wait::PATIENCE;

/// A connection to the session socket.
#[derive(Debug)]
pub struct RawSession {
    socket: UnixStream,
    calls: u64,
}

impl RawSession {
    /// Connects and says nothing.
    ///
    /// # Panics
    /// Where nobody listens.
    pub fn connect(sidecar: &Sidecar) -> Self {
        let socket = UnixStream::connect(sidecar.sockets().join("session.sock")).expect("the session socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { socket, calls: 0 }
    }

    /// Connects and says Hello.
    ///
    /// # Panics
    /// Where the sidecar does not welcome it.
    pub fn begin(sidecar: &Sidecar) -> Self {
        let mut session = Self::connect(sidecar);
        let hello = v1::SessionHello { version: 1, client: "raw".to_owned() };
        let welcome: v1::SessionWelcome = session.call(SessionKind::Hello, &hello).expect("a welcome");
        assert_eq!(welcome.version, 1);
        session
    }

    /// Sends bytes as they are. The other side may have hung up: that is no failure of the test.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // The cut itself is what tests look for.
        let _ = self.socket.write_all(bytes);
    }

    /// Sends one frame and gives the number of its call.
    pub fn send(&mut self, kind: SessionKind, message: &impl Message) -> u64 {
        self.calls += 1;
        self.send_bytes(&frame::encode(kind.into(), 0, self.calls, message));
        self.calls
    }

    /// Connects and says Hello in a version that the sidecar speaks.
    ///
    /// # Panics
    /// Where the sidecar does not welcome it so.
    pub fn begin_in(sidecar: &Sidecar, version: u32) -> Self {
        let mut session = Self::connect(sidecar);
        let hello = v1::SessionHello { version, client: "raw".to_owned() };
        let welcome: v1::SessionWelcome = session.call(SessionKind::Hello, &hello).expect("a welcome");
        assert_eq!(welcome.version, version);
        session
    }

    /// Sends one frame with descriptors on its first byte, and gives the number of its call. The other side may have hung up.
    ///
    /// # Panics
    /// Where the socket does not take it at once.
    pub fn send_with(
        &mut self,
        kind: SessionKind,
        message: &impl Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> u64 {
        self.calls += 1;
        let frame = frame::encode(kind.into(), 0, self.calls, message);
        if let Ok(sent) = passing::send(self.socket.as_fd(), &[IoSlice::new(&frame)], descriptors) {
            assert_eq!(sent, frame.len(), "a small frame goes at once");
        }
        self.calls
    }

    /// Makes one call whose body is given as bytes; the body of the reply.
    ///
    /// # Errors
    /// The failure of the whole call.
    pub fn call_raw(&mut self, kind: SessionKind, body: &[u8]) -> Result<Vec<u8>, Failure> {
        self.calls += 1;
        let length = u32::try_from(body.len()).expect("a body that fits a frame");
        let header = Header { length, kind: kind.into(), flags: 0, call: self.calls };
        self.send_bytes(&[&header.encode(), body].concat());
        self.reply_body()
    }

    /// The next frame; nothing at the end of the connection.
    ///
    /// # Panics
    /// Where nothing comes, or what comes is no frame.
    pub fn next_frame(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        match self.socket.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if is_end(&e) => return None,
            Err(e) => panic!("neither a frame nor the end of the connection came: {e}"),
        }
        let header = Header::decode(&head, SESSION_BODY_MAX).expect("a header");
        let mut body = vec![0; header.length as usize];
        self.socket.read_exact(&mut body).expect("the body of a frame");
        Some((header, body))
    }

    /// The reply to the last call. Announcements of segments are passed over.
    ///
    /// # Errors
    /// The failure of the whole call.
    ///
    /// # Panics
    /// Where the connection ends before it.
    pub fn reply<R: Message + Default>(&mut self) -> Result<R, Failure> {
        Ok(R::decode(&*self.reply_body()?).expect("a reply"))
    }

    fn reply_body(&mut self) -> Result<Vec<u8>, Failure> {
        loop {
            let (header, body) = self.next_frame().expect("the session was cut before the reply");
            if header.call != self.calls || !header.is_reply() {
                continue;
            }
            if header.flags & FAILED != 0 {
                return Err(wire::failure(v1::Failure::decode(&*body).expect("a failure")));
            }
            return Ok(body);
        }
    }

    /// Makes one call.
    ///
    /// # Errors
    /// The failure of the whole call.
    pub fn call<R: Message + Default>(
        &mut self,
        kind: SessionKind,
        message: &impl Message,
    ) -> Result<R, Failure> {
        self.send(kind, message);
        self.reply()
    }

    /// Waits until the sidecar has cut the connection. What it said before is passed over.
    ///
    /// # Panics
    /// Where it does not.
    pub fn wait_until_cut(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if is_end(&e) => return,
                Err(e) => panic!("the session was not cut: {e}"),
            }
        }
    }

    /// Says that nothing more will be sent.
    pub fn finish_sending(&self) {
        // The other side may have hung up already.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
