//! Wires between a sidecar and the socket of another one at their node: they stand still and fail as the proxy of connections does,
//! at the same bytes. No sidecar takes a stranger for the socket of its peer, so they are put behind the connecting and not into the
//! directory.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_memory::passing;

use super::datagrams::Taps;
use super::meter::Wire;
use crate::peer::transport::shm::Between;

/// Bytes that are read at a time. With more the end of one message could be read together with the beginning of the next, and the
/// descriptors of that one would go with bytes that have none.
const AT_ONCE: usize = 1;

/// All wires of one pair.
pub(crate) struct NodeWires {
    taps: Taps,
    sockets: Mutex<Vec<UnixStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl NodeWires {
    pub(super) fn new(taps: Taps) -> Arc<Self> {
        Arc::new(Self { taps, sockets: Mutex::default(), threads: Mutex::default() })
    }

    /// Wire that is put between a sidecar and every socket that it calls at.
    pub(crate) fn between(self: &Arc<Self>) -> Between {
        let this = Arc::clone(self);
        Arc::new(move |far| this.put_before(far))
    }

    fn put_before(self: &Arc<Self>, far: UnixStream) -> UnixStream {
        let (given, near) = UnixStream::pair().unwrap();
        let copy = |socket: &UnixStream| socket.try_clone().unwrap();
        let (out, back) = ((copy(&near), copy(&far)), (copy(&far), copy(&near)));
        self.sockets.lock().extend([near, far]);
        let [there, here] = [Arc::clone(self), Arc::clone(self)];
        self.threads.lock().extend([
            std::thread::spawn(move || pump(&out.0, &out.1, &there.taps.out, || false)),
            std::thread::spawn(move || {
                pump(&back.0, &back.1, &here.taps.back, || here.taps.stall.load(Ordering::SeqCst));
            }),
        ]);
        given
    }

    /// Cuts all of them. The wires must carry nothing any more, or go on.
    pub(super) fn end(&self) {
        for socket in self.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let threads: Vec<_> = self.threads.lock().drain(..).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn pump(from: &UnixStream, to: &UnixStream, wire: &Wire, stalls: impl Fn() -> bool) {
    let (mut bytes, mut fds) = ([0; AT_ONCE], Vec::new());
    while let Ok(read @ 1..) = passing::receive(from.as_fd(), &mut bytes, &mut fds) {
        while stalls() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        if !wire.await_turn(read as u64) {
            break;
        }
        let fails = wire.all.take(read as u64, false).1;
        let carried = fails.map_or(read, |left| left as usize);
        if send(to, &bytes[..carried], &fds).is_err() || fails.is_some() {
            break;
        }
        fds.clear();
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Descriptors go with the first of the bytes.
fn send(to: &UnixStream, mut bytes: &[u8], fds: &[OwnedFd]) -> std::io::Result<()> {
    let mut fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    while !bytes.is_empty() {
        let sent = passing::send(to.as_fd(), &[std::io::IoSlice::new(bytes)], &fds)?;
        bytes = &bytes[sent..];
        fds.clear();
    }
    Ok(())
}
