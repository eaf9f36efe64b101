//! Many who begin a handshake of QUIC and do not go on, or go on and are nobody: against a real sidecar, over the network, while peers
//! of the exchange go on getting tensors by QUIC. Needs root.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use tensorlane_client::Client;
use tensorlane_proto::Transport;
use tensorlane_sidecar::identity::{Identity, tls};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::until;

use super::TURNS;

const MANY: usize = 4000;
/// Memory that the sidecar's process may have more after it than before: far less than a flood of handshakes that were
/// kept would cost.
const MORE_MAX: u64 = 48 << 20;
const REFUSED: &str = "tensorlane_peer_refused_connections_total";

fn client(identity: &Identity) -> ClientConfig {
    let mut config = tls::client_config(identity).unwrap();
    config.alpn_protocols = vec![b"tensorlane/2".to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// First datagrams of so many connections, none of which has been anywhere.
fn initials(count: usize) -> Vec<Vec<u8>> {
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    sink.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let (runtime, config) = (runtime(), client(&Identity::ephemeral().unwrap()));
    let to = sink.local_addr().unwrap();
    let mut all = Vec::with_capacity(count);
    let endpoint = runtime.block_on(async { Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap() });
    let mut room = [0; 2048];
    // A few at a time: what the socket has no room for is lost.
    until("there are enough", || {
        let begun: Vec<_> = runtime.block_on(async {
            (0..50).map(|_| endpoint.connect_with(config.clone(), to, "peer.tensorlane").unwrap()).collect()
        });
        for _ in 0..50 {
            all.extend(
                sink.recv(&mut room)
                    .ok()
                    .map(|bytes| room[..bytes].to_vec())
                    .filter(|first| first.len() >= 1200),
            );
        }
        drop(begun);
        // What they say last is nothing to keep.
        while all.len() < count && sink.recv(&mut room).is_ok_and(|bytes| bytes < 1200) {}
        all.len() >= count
    });
    all.truncate(count);
    all
}

/// Sends them all from one port, and looks at no answer.
fn throw(at: SocketAddr, datagrams: &[Vec<u8>]) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for datagram in datagrams {
        // Lost where there is no room: the next one is another.
        let _ = socket.send_to(datagram, at);
    }
}

/// Begins so many connections at a time and goes on with each, with keys that nobody lists.
fn knock(at: SocketAddr, count: usize) {
    let (runtime, config) = (runtime(), client(&Identity::ephemeral().unwrap()));
    runtime.block_on(async {
        let endpoint = Endpoint::client("0.0.0.0:0".parse().unwrap()).unwrap();
        let knocking: Vec<_> = (0..count)
            .map(|_| {
                let connecting = endpoint.connect_with(config.clone(), at, "peer.tensorlane").unwrap();
                // Nobody answers for long.
                tokio::spawn(tokio::time::timeout(Duration::from_secs(5), connecting))
            })
            .collect();
        for one in knocking {
            let _ = one.await;
        }
        endpoint.close(0_u32.into(), b"");
    });
}

/// Resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("what it has of its own");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

fn comes_by_quic(writer: &Client, reader: &Client, seed: u64) -> bool {
    let stored = put(writer, seed, 9 * MI);
    let tensor = reader.acquire(stored.reference(), &seconds(25)).unwrap();
    assert!(is(&tensor, seed, 9 * MI));
    tensor.moved().transport == Some(Transport::Quic)
}

#[test]
fn a_flood_of_handshakes_costs_a_bounded_memory_and_no_peer_its_tensors() {
    let _turn = TURNS.alone();
    // The third host knows nobody, and nobody knows it.
    let peers =
        Peers::with_stranger(2, |_, options| options.set("prefer", "quic").set("gc.leaseGrace", "20s"));
    let (owner, reader) = (peers.client(0), peers.client(1));
    let mut seed = 0;
    until("tensors come by QUIC", || {
        seed += 1;
        comes_by_quic(&owner, &reader, seed)
    });
    let at = peers.network.peer_address(0);
    let before = resident(peers.sidecars[0].pid());
    let from_one = || peers.metric(0, REFUSED, &["reason=\"too_many_from_address\""]);
    let unknown = || peers.metric(0, REFUSED, &["reason=\"unknown_key\""]);
    let refused_before = from_one() + unknown();
    let (over, came) = (AtomicBool::new(false), AtomicU64::new(0));
    let largest = std::thread::scope(|scope| {
        let getting = scope.spawn(|| {
            for seed in 1000.. {
                came.fetch_add(u64::from(comes_by_quic(&owner, &reader, seed)), Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let mut largest = 0;
        peers.network.inside(2, || {
            let first = initials(MANY);
            for _ in 0..3 {
                throw(at, &first);
                largest = resident(peers.sidecars[0].pid()).max(largest);
            }
            knock(at, 1000);
            largest = resident(peers.sidecars[0].pid()).max(largest);
        });
        over.store(true, Ordering::SeqCst);
        getting.join().unwrap();
        largest
    });
    assert!(largest < before + MORE_MAX, "{before} bytes before, {largest} at most");
    assert!(came.load(Ordering::SeqCst) > 0, "none came by QUIC meanwhile");
    let refused = from_one() + unknown() - refused_before;
    assert!(from_one() > 0.0 && refused > 100.0, "{refused} were refused");
    until("whoever is known gets tensors by QUIC as before", || {
        seed += 1;
        comes_by_quic(&owner, &reader, seed)
    });
    drop((owner, reader));
    [0, 1].into_iter().for_each(|host| peers.assert_free(host));
}
