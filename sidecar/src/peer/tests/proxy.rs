//! A proxy on loopback that cuts connections, flips bits and falls silent; for datagrams too, at the port of the same number.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::datagrams::{Datagrams, Taps};
use super::meter::Wire;
use super::node_wire::NodeWires;

/// Carries bytes between whoever connects and `to`; can cut, and flip bits.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    controls: Controls,
    /// Datagrams of QUIC.
    pub(crate) datagrams: Arc<Datagrams>,
    /// Wires of what the dialing side says at the other one's socket on their node, if it is put between.
    pub(crate) node: Arc<NodeWires>,
    listener: TcpListener,
    threads: Vec<JoinHandle<()>>,
}

/// Controls that a test turns and looks at, shared with the threads.
#[derive(Clone)]
pub(crate) struct Controls {
    pub(crate) connections: Arc<AtomicUsize>,
    /// Wire of what goes towards the dialing side, and where it fails.
    pub(crate) back: Arc<Wire>,
    /// Wire of what comes from the dialing side, likewise.
    pub(crate) out: Arc<Wire>,
    /// Set if all connections fail as soon as one but the first does, and none comes after them: no byte comes through a lane
    /// from then on, however late the other lanes' threads run.
    pub(crate) break_together: Arc<AtomicBool>,
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
    /// Both ends of every connection, those of the first one first.
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

/// Harm that is done to the bytes that are carried on at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hurt {
    /// Bytes that are carried on twice.
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
        let controls = Controls::idle();
        let (listener, datagrams, [out, back]) = listen(to, &controls.taps());
        let address = listener.local_addr().unwrap();
        let (accepting, shared) = (listener.try_clone().unwrap(), controls.clone());
        let thread = std::thread::spawn(move || shared.accept(&accepting, to));
        let node = NodeWires::new(controls.taps());
        Self { address, controls, datagrams, node, listener, threads: vec![thread, out, back] }
    }

    pub(crate) fn cut(&self) {
        for socket in self.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Deref for Proxy {
    type Target = Controls;

    fn deref(&self) -> &Controls {
        &self.controls
    }
}

impl Controls {
    /// Everything is carried as it comes.
    fn idle() -> Self {
        let never = || Arc::new(AtomicU64::new(u64::MAX));
        let no = || Arc::new(AtomicBool::new(false));
        let unbounded = || Arc::new(AtomicUsize::new(usize::MAX));
        Self {
            connections: Arc::default(),
            back: Arc::default(),
            out: Arc::default(),
            break_together: no(),
            hold: no(),
            refuse: no(),
            flip_at: never(),
            hurt_at: Arc::default(),
            stall: no(),
            connections_max: unbounded(),
            starve_after: unbounded(),
            sockets: Arc::default(),
        }
    }

    /// Controls that hold for datagrams, too.
    fn taps(&self) -> Taps {
        Taps {
            back: Arc::clone(&self.back),
            out: Arc::clone(&self.out),
            flip_at: Arc::clone(&self.flip_at),
            hold: Arc::clone(&self.hold),
            stall: Arc::clone(&self.stall),
            hurt_at: Arc::clone(&self.hurt_at),
        }
    }

    /// Until the listener is shut down, and whatever was carried is over.
    fn accept(&self, listener: &TcpListener, to: SocketAddr) {
        let mut pumps = Vec::new();
        while let Ok((near, _)) = listener.accept() {
            if self.refuse.load(Ordering::SeqCst) {
                continue;
            }
            let before = self.connections.fetch_add(1, Ordering::SeqCst);
            if before >= self.connections_max.load(Ordering::SeqCst) {
                continue;
            }
            let Ok(far) = TcpStream::connect(to) else { continue };
            pumps.extend(self.carry(&near, &far, before == 0));
        }
        for pump in pumps {
            pump.join().unwrap();
        }
    }

    /// A thread for each direction of a connection. `first`: none came before it.
    fn carry(&self, near: &TcpStream, far: &TcpStream, first: bool) -> [JoinHandle<()>; 2] {
        let copy = |socket: &TcpStream| socket.try_clone().unwrap();
        {
            let mut sockets = self.sockets.lock();
            sockets.extend([copy(near), copy(far)]);
            // It began before all were broken together, and was not among them.
            if !first && self.connections_max.load(Ordering::SeqCst) == 0 {
                let _ = near.shutdown(Shutdown::Both);
                let _ = far.shutdown(Shutdown::Both);
            }
        }
        let (from, to, controls) = (copy(near), copy(far), self.clone());
        let out = std::thread::spawn(move || {
            pump(from, to, |bytes| match controls.hold.load(Ordering::SeqCst) {
                true => Carry::Drop,
                false if !controls.out.await_turn(bytes.len() as u64) => Carry::Drop,
                false => controls.fail(&controls.out, bytes.len() as u64, first).1.unwrap_or(Carry::On),
            });
        });
        let (from, to, controls, mut own) = (copy(far), copy(near), self.clone(), 0);
        let back = std::thread::spawn(move || {
            pump(from, to, |bytes| {
                own += bytes.len();
                match !first && own > controls.starve_after.load(Ordering::SeqCst) {
                    true => Carry::Drop,
                    false => controls.meddle(bytes, first),
                }
            });
        });
        [out, back]
    }

    /// Counts bytes: how many there were before them, and what is done where the wire fails in them.
    fn fail(&self, wire: &Wire, bytes: u64, first: bool) -> (u64, Option<Carry>) {
        let together = self.break_together.load(Ordering::SeqCst);
        let on_lanes = if first { None } else { wire.lanes.take(bytes, together).1 };
        let (before, fails) = wire.all.take(bytes, false);
        if on_lanes.is_some() && together {
            self.break_all_but_the_first();
        }
        (before, on_lanes.or(fails).map(Carry::Cut))
    }

    fn break_all_but_the_first(&self) {
        let mut sockets = self.sockets.lock();
        self.connections_max.store(0, Ordering::SeqCst);
        for socket in sockets.drain(2..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Decides what is done with bytes towards the dialing side.
    fn meddle(&self, bytes: &mut [u8], first: bool) -> Carry {
        while self.stall.load(Ordering::SeqCst) {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        if self.hold.load(Ordering::SeqCst) || !self.back.await_turn(bytes.len() as u64) {
            return Carry::Drop;
        }
        let (before, fails) = self.fail(&self.back, bytes.len() as u64, first);
        let after = before + bytes.len() as u64;
        let at = self.flip_at.load(Ordering::SeqCst);
        if (before..after).contains(&at) {
            bytes[(at - before) as usize] ^= 4;
        }
        if let Some(cut) = fails {
            return cut;
        }
        match self.hurt_at.lock().take_if(|(at, _)| *at < after) {
            Some((_, hurt)) => Carry::Instead(hurt.apply(bytes)),
            None => Carry::On,
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

/// Decision of a proxy on some bytes.
enum Carry {
    On,
    Instead(Vec<u8>),
    Drop,
    /// So many of them come through.
    Cut(u64),
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut each: impl FnMut(&mut [u8]) -> Carry) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        match each(&mut buffer[..bytes]) {
            Carry::On if to.write_all(&buffer[..bytes]).is_ok() => {}
            Carry::Instead(bytes) if to.write_all(&bytes).is_ok() => {}
            Carry::Drop => {}
            Carry::Cut(left) => {
                let _ = to.write_all(&buffer[..left as usize]);
                break;
            }
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stall.store(false, Ordering::SeqCst);
        [&self.back, &self.out].into_iter().for_each(|wire| wire.end());
        self.node.end();
        let _ = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both);
        self.cut();
        self.datagrams.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
