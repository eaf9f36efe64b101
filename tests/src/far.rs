//! A long way between two peers: what either sends arrives later, connections and datagrams alike. The kernel of a small machine
//! need not be able to delay packets, so a relay in front of each peer does. It drops nothing and reorders nothing: its sockets keep
//! whatever it has not read yet, and its threads whatever is on its way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::netns::{PORT, Peers};
use crate::proxy::redirect;

/// Port on which relays listen, with connections and with datagrams.
const RELAY_PORT: u16 = PORT + 200;
/// Bytes that the kernel keeps for a relay that the machine lets wait, headers and all. Needs root.
const SOCKET_BUFFER: usize = 256 << 20;
/// Between two looks whether it is over.
const LOOK: Duration = Duration::from_millis(20);

/// Two peers that are far from each other, whoever dials.
pub struct LongWay {
    relays: Vec<Relay>,
}

/// Relay that stands in front of one peer.
struct Relay {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Queue of what is to go, with the time at which it goes.
type Line<T> = (Sender<(Instant, T)>, Receiver<(Instant, T)>);

impl LongWay {
    /// Between the two peers, which are connected over it when this returns. From one to the other and back takes `round_trip`.
    pub fn start(peers: &Peers, round_trip: Duration) -> Self {
        let relays: Vec<_> = (0..2).map(|host| Relay::start(peers, host, round_trip / 2)).collect();
        redirect(peers, [relays[0].address, relays[1].address]);
        Self { relays }
    }
}

impl Drop for LongWay {
    fn drop(&mut self) {
        for relay in &mut self.relays {
            relay.over.store(true, Ordering::Relaxed);
            for thread in relay.threads.drain(..) {
                // What went wrong there has been printed, and the test has said what it meant.
                let _ = thread.join();
            }
        }
    }
}

impl Relay {
    fn start(peers: &Peers, host: usize, delay: Duration) -> Self {
        let address = SocketAddr::from((peers.network.address(host), RELAY_PORT));
        let (to, over) = (peers.network.peer_address(host), Arc::new(AtomicBool::new(false)));
        // Threads that are started inside a namespace stay there.
        let threads = peers.network.inside(host, || {
            let mut threads = datagrams(address, to, delay, &over);
            let listener = TcpListener::bind(address).expect("a free port");
            listener.set_nonblocking(true).expect("a socket");
            let over = Arc::clone(&over);
            threads.push(std::thread::spawn(move || accept(&listener, to, delay, &over)));
            threads
        });
        Self { address, over, threads }
    }
}

/// Carries datagrams between whoever spoke last at `at` and `to`.
fn datagrams(at: SocketAddr, to: SocketAddr, delay: Duration, over: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let near = Arc::new(roomy(at));
    let far = Arc::new(roomy((at.ip(), 0).into()));
    far.connect(to).expect("a datagram socket connects");
    let near_from = Arc::new(Mutex::new(None));
    let heard = Arc::clone(&near_from);
    let out = {
        let (near, far) = (Arc::clone(&near), Arc::clone(&far));
        let note = move |from| *near_from.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
        // Lost where the other end is gone.
        late(delay, over, near, note, move |datagram: &[u8]| drop(far.send(datagram)))
    };
    let back = late(
        delay,
        over,
        far,
        |_| {},
        move |datagram: &[u8]| {
            let client = *heard.lock().unwrap_or_else(PoisonError::into_inner);
            client.into_iter().for_each(|client| drop(near.send_to(datagram, client)));
        },
    );
    out.into_iter().chain(back).collect()
}

/// A socket that overflows only where its relay stands still for seconds.
fn roomy(at: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(at).expect("a free port");
    sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).expect("root may");
    sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BUFFER).expect("root may");
    socket.set_read_timeout(Some(LOOK)).expect("a time");
    socket
}

/// Sends on what comes from a socket, so much later.
fn late(
    delay: Duration,
    over: &Arc<AtomicBool>,
    from: Arc<UdpSocket>,
    note: impl Fn(SocketAddr) + Send + 'static,
    send: impl Fn(&[u8]) + Send + 'static,
) -> [JoinHandle<()>; 2] {
    let ((line, due), over) = (channel() as Line<Vec<u8>>, Arc::clone(over));
    let reading = std::thread::spawn(move || {
        let mut room = vec![0; 64 << 10];
        while !over.load(Ordering::Relaxed) {
            let Ok((bytes, sender)) = from.recv_from(&mut room) else { continue };
            note(sender);
            if line.send((Instant::now() + delay, room[..bytes].to_vec())).is_err() {
                return;
            }
        }
    });
    [reading, std::thread::spawn(move || due.iter().for_each(|(at, datagram)| send(wait(at, &datagram))))]
}

/// Gives what it was given, when it is time.
fn wait(at: Instant, bytes: &[u8]) -> &[u8] {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
    bytes
}

fn accept(listener: &TcpListener, to: SocketAddr, delay: Duration, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let Ok((near, _)) = listener.accept() else {
            std::thread::park_timeout(LOOK);
            continue;
        };
        let Ok(far) = TcpStream::connect(to) else { continue };
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            carry(from, to, delay);
        }
    }
}

/// Carries one direction of a connection, on threads that end with it, which ends with the sidecars.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    // Where it fails the connection has ended.
    let _ = to.set_nodelay(true);
    let (line, due) = channel() as Line<Vec<u8>>;
    std::thread::spawn(move || {
        let mut room = vec![0; 64 << 10];
        while let Ok(bytes @ 1..) = from.read(&mut room) {
            if line.send((Instant::now() + delay, room[..bytes].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (at, bytes) in due {
            if to.write_all(wait(at, &bytes)).is_err() {
                break;
            }
        }
        // Closed already, maybe.
        let _ = to.shutdown(Shutdown::Write);
    });
}
