//! A proxy on loopback that cuts connections, flips bits and falls silent; for datagrams too, at the port of the same number.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::datagrams::{Datagrams, Taps};

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
    /// Closes every connection that begins now.
    pub(crate) refuse: Arc<AtomicBool>,
    /// Likewise: the byte of which one bit is flipped.
    pub(crate) flip_at: Arc<AtomicU64>,
    /// Likewise: where something else is done to the bytes.
    pub(crate) hurt_at: Arc<Mutex<Option<(u64, Hurt)>>>,
    /// Takes nothing towards the dialing side, as if it were not read.
    pub(crate) stall: Arc<AtomicBool>,
    /// Connections beyond so many are closed at once.
    pub(crate) connections_max: Arc<AtomicUsize>,
    /// So many bytes towards the dialing side are carried on every connection but the first; the rest of it vanishes.
    pub(crate) starve_after: Arc<AtomicUsize>,
    /// Those of QUIC.
    pub(crate) datagrams: Arc<Datagrams>,
    listener: TcpListener,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    threads: Vec<JoinHandle<()>>,
}

/// What is done to the bytes that are carried on at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hurt {
    /// They are carried on twice.
    Repeated,
    /// The second half goes before the first.
    Reordered,
    /// The second half comes again.
    Overlapping,
}

impl Hurt {
    pub(super) fn apply(self, bytes: &[u8]) -> Vec<u8> {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        match self {
            Self::Repeated => [bytes, bytes].concat(),
            Self::Reordered => [second, first].concat(),
            Self::Overlapping => [bytes, second].concat(),
        }
    }
}

impl Proxy {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let connections = Arc::new(AtomicUsize::new(0));
        let cut_after = Arc::new(AtomicU64::new(u64::MAX));
        let flip_at = Arc::new(AtomicU64::new(u64::MAX));
        let sockets = Arc::new(Mutex::new(Vec::new()));
        let (carried, hold) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (stall, connections_max) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(usize::MAX)));
        let hurt_at = Arc::new(Mutex::new(None::<(u64, Hurt)>));
        let starve_after = Arc::new(AtomicUsize::new(usize::MAX));
        let taps = Taps {
            carried: Arc::clone(&carried),
            cut_after: Arc::clone(&cut_after),
            flip_at: Arc::clone(&flip_at),
            hold: Arc::clone(&hold),
            stall: Arc::clone(&stall),
            hurt_at: Arc::clone(&hurt_at),
        };
        let (listener, datagrams, [out, back]) = listen(to, &taps);
        let address = listener.local_addr().unwrap();
        let refuse = Arc::new(AtomicBool::new(false));
        let thread = {
            let refusing = Arc::clone(&refuse);
            let hurting = Arc::clone(&hurt_at);
            let (carried, hold) = (Arc::clone(&carried), Arc::clone(&hold));
            let (stall, most) = (Arc::clone(&stall), Arc::clone(&connections_max));
            let starve_after = Arc::clone(&starve_after);
            let (listener, connections) = (listener.try_clone().unwrap(), Arc::clone(&connections));
            let (cut, flip, sockets) = (Arc::clone(&cut_after), Arc::clone(&flip_at), Arc::clone(&sockets));
            std::thread::spawn(move || {
                let mut pumps = Vec::new();
                while let Ok((near, _)) = listener.accept() {
                    if refusing.load(Ordering::SeqCst) {
                        continue;
                    }
                    let before = connections.fetch_add(1, Ordering::SeqCst);
                    if before >= most.load(Ordering::SeqCst) {
                        continue;
                    }
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
                    let (stalled, hurting) = (Arc::clone(&stall), Arc::clone(&hurting));
                    let (starve, mut own) = (Arc::clone(&starve_after), 0);
                    pumps.push(std::thread::spawn(move || {
                        pump(far2, near2, |bytes| {
                            own += bytes.len();
                            if before > 0 && own > starve.load(Ordering::SeqCst) {
                                return Carry::Drop;
                            }
                            while stalled.load(Ordering::SeqCst) {
                                std::thread::park_timeout(std::time::Duration::from_millis(1));
                            }
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
                            let mut hurting = hurting.lock();
                            match *hurting {
                                Some((at, hurt)) if at < before + bytes.len() as u64 => {
                                    *hurting = None;
                                    Carry::Instead(hurt.apply(bytes))
                                }
                                _ => Carry::On,
                            }
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
            refuse,
            flip_at,
            hurt_at,
            stall,
            connections_max,
            starve_after,
            datagrams,
            listener,
            sockets,
            threads: vec![thread, out, back],
        }
    }

    pub(crate) fn cut(&self) {
        for socket in self.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Any port that is free for connections and for datagrams.
fn listen(to: SocketAddr, taps: &Taps) -> (TcpListener, Arc<Datagrams>, [JoinHandle<()>; 2]) {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        match Datagrams::start(listener.local_addr().unwrap(), to, taps.clone()) {
            Ok((datagrams, threads)) => return (listener, datagrams, threads),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
    }
}

/// What a proxy does with some bytes.
enum Carry {
    On,
    Instead(Vec<u8>),
    Drop,
    Cut,
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut each: impl FnMut(&mut [u8]) -> Carry) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        match each(&mut buffer[..bytes]) {
            Carry::On if to.write_all(&buffer[..bytes]).is_ok() => {}
            Carry::Instead(bytes) if to.write_all(&bytes).is_ok() => {}
            Carry::Drop => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stall.store(false, Ordering::SeqCst);
        let _ = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both);
        self.cut();
        self.datagrams.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
