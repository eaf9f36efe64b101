//! TCP proxies between two sidecars that carry their bytes and alter some.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::netns::{Network, PORT, Peers};
use crate::tensors::Numbers;
use crate::wait::until;
use crate::wire::Wire;

/// A proxy in front of each of two peers, so that all that goes between them goes through one, whoever dials.
pub struct Between {
    proxies: [Proxy; 2],
    /// To host 0, and to host 1.
    pub wires: [Arc<Wire>; 2],
}

/// A proxy in a host's namespace.
struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ending: AtomicBool,
    connections: AtomicU64,
    flips_left: AtomicU64,
    /// Bytes between two flips: drawn below this.
    apart: AtomicU64,
    /// Towards whom it dials, and from there.
    ways: [Arc<Wire>; 2],
}

// === impl Between ===

impl Between {
    /// Between the two peers, which are connected through it when this returns.
    pub fn start(peers: &Peers) -> Self {
        let wires = [(); 2].map(|()| Arc::<Wire>::default());
        let proxies = [0, 1].map(|host| {
            let ways = [Arc::clone(&wires[host]), Arc::clone(&wires[1 - host])];
            Proxy::start(&peers.network, host, ways)
        });
        let between = Self { proxies, wires };
        redirect(peers, [0, 1].map(|host| between.proxies[host].address));
        assert!(between.connections() > 0, "they are connected past the proxies");
        between
    }

    /// Connections that were carried.
    pub fn connections(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.shared.connections.load(Ordering::Relaxed)).sum()
    }

    /// Flips one bit at a time, `flips` in all by each proxy, each at a random place in the `apart` bytes after the one before.
    pub fn flip(&self, flips: u64, apart: u64) {
        for Proxy { shared, .. } in &self.proxies {
            shared.apart.store(apart, Ordering::Relaxed);
            shared.flips_left.store(flips, Ordering::Relaxed);
        }
    }

    /// Flips that are still to come, by each proxy.
    pub fn flips_left(&self) -> [u64; 2] {
        self.proxies.each_ref().map(|proxy| proxy.shared.flips_left.load(Ordering::Relaxed))
    }

    /// Accepts nothing more. What is carried goes on until one of its ends closes.
    pub fn end(mut self, peers: &Peers) {
        for (host, proxy) in self.proxies.iter_mut().enumerate() {
            proxy.end(&peers.network, host);
        }
    }
}

/// Has each of two peers be reached at another address, and waits until they are connected over these.
pub(crate) fn redirect(peers: &Peers, addresses: [SocketAddr; 2]) {
    for host in 0..2 {
        let mut everyone = peers.everyone();
        everyone[1 - host].addresses = vec![addresses[1 - host]];
        peers.list(host, &everyone);
    }
    until("the directory is read", || {
        let seen = [0, 1].map(|host| peers.seen(host, 1 - host).addresses);
        (0..2).all(|host| seen[host] == [addresses[1 - host].to_string()])
    });
    // Cut and mended, for the connections there are were made past them.
    peers.network.cut(1);
    until("the cut is noticed", || peers.seen(0, 1).state != "connected");
    peers.network.mend(1);
    peers.await_connected();
}

// === impl Proxy ===

impl Proxy {
    /// Listens in front of the sidecar of a host and carries every connection to it. `ways`: to the host, and from it.
    fn start(network: &Network, host: usize, ways: [Arc<Wire>; 2]) -> Self {
        let address = SocketAddr::from((network.address(host), PORT + 100));
        let (to, seed) = (network.peer_address(host), host as u64 + 1);
        let shared = Arc::new(Shared { ways, ..Shared::default() });
        let on_thread = Arc::clone(&shared);
        // Threads that are started inside a namespace stay there.
        let accepting = network.inside(host, || {
            let listener = TcpListener::bind(address).expect("a free port");
            std::thread::spawn(move || accept(&listener, to, seed, &on_thread))
        });
        Self { address, shared, accepting: Some(accepting) }
    }

    fn end(&mut self, network: &Network, host: usize) {
        self.shared.ending.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts; it may be gone already.
        network.inside(host, || drop(TcpStream::connect(self.address)));
        if let Some(accepting) = self.accepting.take() {
            accepting.join().expect("the proxy does not panic");
        }
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, seed: u64, shared: &Arc<Shared>) {
    for (number, socket) in listener.incoming().enumerate() {
        if shared.ending.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(near), Ok(far)) = (socket, TcpStream::connect(to)) else { continue };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        for (way, from, to) in [(0usize, &near, &far), (1, &far, &near)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            let shared = Arc::clone(shared);
            let numbers = Numbers::of(seed.wrapping_mul(1000) + number as u64 * 2 + way as u64);
            // It ends with the connection, which ends with the sidecars.
            std::thread::spawn(move || carry(from, to, way, numbers, &shared));
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, way: usize, mut numbers: Numbers, shared: &Shared) {
    let mut buffer = vec![0; 64 << 10];
    let mut until_flip = None;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if shared.flips_left.load(Ordering::Relaxed) > 0 {
            let left =
                until_flip.unwrap_or_else(|| numbers.below(shared.apart.load(Ordering::Relaxed)) as usize);
            until_flip = if left >= count {
                Some(left - count)
            } else {
                buffer[left] ^= 1 << numbers.below(8);
                shared
                    .flips_left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .ok();
                None
            };
        }
        let mut bytes = buffer[..count].to_vec();
        let goes_on = shared.ways[way].carry(&mut bytes);
        if to.write_all(&bytes).is_err() || goes_on.is_break() {
            break;
        }
    }
    // Closed already, maybe.
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
