//! A TCP proxy between two sidecars that carries their bytes and alters some.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::netns::Network;
use crate::tensors::Numbers;

/// A proxy in a host's namespace. Dropping it closes what it carries.
pub struct Proxy {
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
}

// === impl Proxy ===

impl Proxy {
    /// Listens on `port` of a host and carries every connection to `to`.
    ///
    /// # Panics
    /// Where it cannot listen.
    pub fn start(network: &Network, host: usize, port: u16, to: SocketAddr, seed: u64) -> Self {
        let address = SocketAddr::from((network.address(host), port));
        let shared = Arc::new(Shared::default());
        let on_thread = Arc::clone(&shared);
        // Threads that are started inside a namespace stay there.
        let accepting = network.inside(host, || {
            let listener = TcpListener::bind(address).expect("a free port");
            std::thread::spawn(move || accept(&listener, to, seed, &on_thread))
        });
        Self { address, shared, accepting: Some(accepting) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Flips one bit at a time, `flips` in all, each at a random place in the `apart` bytes after the one before.
    pub fn flip(&self, flips: u64, apart: u64) {
        self.shared.apart.store(apart, Ordering::Relaxed);
        self.shared.flips_left.store(flips, Ordering::Relaxed);
    }

    /// Flips that are still to come.
    pub fn flips_left(&self) -> u64 {
        self.shared.flips_left.load(Ordering::Relaxed)
    }

    /// Connections that it has carried.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Accepts nothing more. What is carried goes on until one of its ends closes.
    pub fn end(&mut self, network: &Network, host: usize) {
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
        for (way, from, to) in [(0, &near, &far), (1, &far, &near)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            let shared = Arc::clone(shared);
            let numbers = Numbers::of(seed.wrapping_mul(1000) + number as u64 * 2 + way);
            // It ends with the connection, which ends with the sidecars.
            std::thread::spawn(move || carry(from, to, numbers, &shared));
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, mut numbers: Numbers, shared: &Shared) {
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
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Closed already, maybe.
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
