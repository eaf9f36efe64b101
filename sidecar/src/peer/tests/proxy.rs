//! A proxy on loopback that cuts connections, flips bits and falls silent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Carries bytes between whoever connects and `to`; can cut, and flip bits.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    /// Bytes towards the dialing side, over all connections, after which the connection is cut.
    pub(crate) cut_after: Arc<AtomicU64>,
    /// Bytes that were carried towards the dialing side.
    pub(crate) carried: Arc<AtomicU64>,
    /// Takes bytes and carries nothing on.
    pub(crate) hold: Arc<AtomicBool>,
    /// Likewise: the byte of which one bit is flipped.
    pub(crate) flip_at: Arc<AtomicU64>,
    listener: TcpListener,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let cut_after = Arc::new(AtomicU64::new(u64::MAX));
        let flip_at = Arc::new(AtomicU64::new(u64::MAX));
        let sockets = Arc::new(Mutex::new(Vec::new()));
        let (carried, hold) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (carried, hold) = (Arc::clone(&carried), Arc::clone(&hold));
            let (listener, connections) = (listener.try_clone().unwrap(), Arc::clone(&connections));
            let (cut, flip, sockets) = (Arc::clone(&cut_after), Arc::clone(&flip_at), Arc::clone(&sockets));
            std::thread::spawn(move || {
                let mut pumps = Vec::new();
                while let Ok((near, _)) = listener.accept() {
                    connections.fetch_add(1, Ordering::SeqCst);
                    let Ok(far) = TcpStream::connect(to) else { continue };
                    let copies = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                    sockets.lock().extend(copies);
                    let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                    let holding = Arc::clone(&hold);
                    pumps.push(std::thread::spawn(move || {
                        pump(
                            near,
                            far,
                            |_| if holding.load(Ordering::SeqCst) { Carry::Drop } else { Carry::On },
                        );
                    }));
                    let (cut, flip, total) = (Arc::clone(&cut), Arc::clone(&flip), Arc::clone(&carried));
                    let holding = Arc::clone(&hold);
                    pumps.push(std::thread::spawn(move || {
                        pump(far2, near2, |bytes| {
                            if holding.load(Ordering::SeqCst) {
                                return Carry::Drop;
                            }
                            let before = total.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                            let at = flip.load(Ordering::SeqCst);
                            if at >= before && at - before < bytes.len() as u64 {
                                bytes[(at - before) as usize] ^= 4;
                            }
                            let cut_at = cut.load(Ordering::SeqCst);
                            if before + bytes.len() as u64 > cut_at {
                                cut.store(u64::MAX, Ordering::SeqCst);
                                return Carry::Cut;
                            }
                            Carry::On
                        });
                    }));
                }
                for pump in pumps {
                    pump.join().unwrap();
                }
            })
        };
        Self {
            address,
            connections,
            cut_after,
            carried,
            hold,
            flip_at,
            listener,
            sockets,
            thread: Some(thread),
        }
    }

    pub(crate) fn cut(&self) {
        for socket in self.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// What a proxy does with some bytes.
enum Carry {
    On,
    Drop,
    Cut,
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut each: impl FnMut(&mut [u8]) -> Carry) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        match each(&mut buffer[..bytes]) {
            Carry::On if to.write_all(&buffer[..bytes]).is_ok() => {}
            Carry::Drop => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both);
        self.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
