//! Links that are bad rather than gone: cut in one direction again and again, losing packets, closed to new connections by a
//! firewall; and what is wrong at an end of them: restarts in turn, another clock, ten thousand strangers. Needs root.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensorlane_client::{AcquireOptions, Path, Tensor, Way};
use tensorlane_proto::{Reason, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{LARGE, MI, in_the_middle, is, put, seconds};
use tensorlane_tests::wait::PATIENCE;
use tensorlane_tests::weather::Closed;
use tensorlane_tests::{SidecarOptions, reason, until};

/// What takes some eight seconds on the links of these tests.
const FLAPPING: u64 = 2 * LARGE;

/// Two peers that only speak TCP, by two lanes where they can.
fn by_tcp(_: usize, options: SidecarOptions) -> SidecarOptions {
    options.set("transports", "tcp").set("peers.lanes", "2").set("gc.leaseGrace", "20s")
}

/// Four times in the middle of one transfer, each direction twice; what has come is not asked for again.
#[test]
fn a_link_that_flaps_in_one_direction_costs_time_and_no_byte() {
    let peers = Peers::start(2, by_tcp);
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 31, FLAPPING);
        let (reference, options) = (stored.reference().clone(), seconds(100));
        let came = || peers.seen(1, 0).bytes_in;
        let tensor = std::thread::scope(|scope| {
            let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
            until("enough of it has come to be missed", || came() > FLAPPING / 3);
            for (from, to) in [(0, 1), (1, 0), (0, 1), (1, 0)] {
                let before = came();
                peers.network.lose(from, to);
                until("both have noticed", || {
                    peers.seen(0, 1).state != "connected" && peers.seen(1, 0).state != "connected"
                });
                peers.network.find(from, to);
                until("it goes on", || came() > before + 2 * MI || pulling.is_finished());
                assert!(!pulling.is_finished(), "it was over before the link was: {}", came());
            }
            peers.network.fast(0);
            pulling.join().unwrap().unwrap()
        });
        assert!(is(&tensor, 31, FLAPPING));
        // Of what was under way when the link went, some comes twice. To begin anew would bring a third twice, at least.
        assert!(came() < FLAPPING + FLAPPING / 4, "{} bytes came: it began anew", came());
    }
    peers.assert_all_free();
}

#[test]
fn every_byte_comes_by_tcp_over_a_link_that_drops_one_packet_of_a_hundred_and_one_of_five() {
    let patient = |host, options| by_tcp(host, options).set("deadlines.progress", "20s");
    for (percent, count) in [(1, 12 * MI), (20, MI / 4)] {
        let peers = Peers::start(2, patient);
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 32, count);
        (0..2).for_each(|host| peers.network.lossy(host, percent));
        let options = AcquireOptions::new().deadline(Duration::from_secs(120));
        let tensor = reader.acquire(stored.reference(), &options).unwrap();
        assert!(is(&tensor, 32, count), "{percent} %");
        assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
        drop((tensor, stored, writer, reader));
        peers.assert_free(1);
    }
}

#[test]
fn both_ends_that_restart_in_turn_lose_what_they_owned_and_nothing_else() {
    let mut peers = Peers::pair();
    for turn in 0..4 {
        let (host, other) = (turn % 2, 1 - turn % 2);
        let gone = peers.client(host);
        let mourned = put(&gone, 33, MI);
        let lost = mourned.reference().clone();
        let kept = peers.client(other);
        let stored = put(&kept, 34, MI);
        peers.sidecars[host].kill();
        drop((mourned, gone));
        peers.sidecars[host].start_again();
        until("they are connected", || {
            peers.seen(0, 1).state == "connected" && peers.seen(1, 0).state == "connected"
        });
        let restarted = peers.client(host);
        assert_eq!(reason(kept.acquire(&lost, &seconds(9))), Reason::OwnerLost, "turn {turn}");
        assert!(is(&restarted.acquire(stored.reference(), &seconds(9)).unwrap(), 34, MI), "turn {turn}");
        let new = put(&restarted, 35, MI);
        assert!(is(&kept.acquire(new.reference(), &seconds(9)).unwrap(), 35, MI), "turn {turn}");
    }
    peers.assert_all_free();
}

/// The clock that runs since the machine started, an hour ahead at one end: nothing that is sent says when, only how long.
/// (The clock of the calendar decides nothing between peers: keys are pinned, and dates of certificates are not looked at.)
#[test]
fn a_peer_whose_clock_is_off_by_an_hour_is_as_good_as_any_other() {
    let mut peers = Peers::start(2, |host, options| match host {
        1 => options.prefix(["unshare", "--time", "--monotonic=3600", "--boottime=3600"]),
        _ => options,
    });
    assert_ne!(time_of(peers.sidecars[0].pid()), time_of(peers.sidecars[1].pid()), "they have one clock");
    {
        let clients = [peers.client(0), peers.client(1)];
        for (owner, other) in [(0, 1), (1, 0)] {
            let stored = put(&clients[owner], 36, 9 * MI);
            assert!(is(&clients[other].acquire(stored.reference(), &seconds(20)).unwrap(), 36, 9 * MI));
            let began = Instant::now();
            let wait = Duration::from_secs(1);
            let found = clients[other].lookup(&["nothing"], None, wait).unwrap().remove(0);
            assert_eq!(reason(found), Reason::NotFound);
            let waited = began.elapsed();
            assert!(waited >= wait && waited < Duration::from_secs(10), "{waited:?}");
        }
    }
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 37, LARGE);
        let (reference, options) = (stored.reference().clone(), seconds(20));
        std::thread::scope(|scope| {
            let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
            peers.sidecars[1].kill();
            assert!(pulling.join().unwrap().is_err());
        });
        let leases = || peers.client(0).status().unwrap().leases;
        assert_eq!(leases(), 2, "the grace of the lost peer is not over because its clock is ahead");
        until("it is over in its time", || leases() == 1);
        peers.network.fast(0);
        peers.sidecars[1].start_again();
    }
    peers.assert_all_free();
}

/// The clocks that a process has.
fn time_of(pid: u32) -> std::path::PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/time")).expect("the kernel has namespaces of time")
}

/// The way that the bytes of a tensor went, and why the better one was left.
fn ways(tensor: &Tensor) -> Vec<(Option<Way>, Option<&str>)> {
    tensor.moved().paths.iter().map(|Path { way, left, .. }| (*way, left.as_deref())).collect()
}

/// The control connection lives, and the firewall lets no other through.
#[test]
fn where_a_firewall_allows_one_connection_large_tensors_come_on_it_and_the_reply_says_why() {
    for closed in [Closed::Drops, Closed::Rejects] {
        let peers = Peers::start(2, by_tcp);
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 38, 20 * MI);
        let next = put(&writer, 39, 9 * MI);
        (0..2).for_each(|host| peers.network.no_new_connections(host, closed));
        let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
        // Whoever comes next need not find out again; that is forgotten after 5 s.
        let second = reader.acquire(next.reference(), &seconds(20)).unwrap();
        assert!(is(&tensor, 38, 20 * MI), "{closed:?}");
        assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
        let told = tensor.moved().to_string();
        let expected = [(Some(Way::Lanes), Some("no_lane")), (Some(Way::Stream), None)];
        assert_eq!(ways(&tensor), expected, "{closed:?}: {told}");
        assert!(told.contains("no_lane"), "{closed:?}: {told}");
        assert_eq!(peers.metric(1, "tensorlane_peer_fallbacks_total", &["reason=\"no_lane\""]), 1.0);
        assert!(is(&second, 39, 9 * MI));
        assert_eq!(ways(&second)[0].1, Some("lanes_cooldown"), "{closed:?}: {}", second.moved());
        drop((tensor, second, next, stored, writer, reader));
        peers.assert_all_free();
    }
}

/// What a process costs.
#[derive(Clone, Copy, Debug)]
struct Costs {
    resident: u64,
    threads: u64,
    descriptors: usize,
}

impl Costs {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
        };
        Self {
            resident: field("VmRSS:") << 10,
            threads: field("Threads:"),
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count(),
        }
    }
}

const STRANGERS: usize = 10_000;
/// What they may cost together: 64 places of a mebibyte (`limits.strangers`), and half as much to be safe.
const STRANGERS_COST: u64 = 96 << 20;
/// What is left of them may be fewer than this, which is less than half of their places.
const LEFT: usize = 24;

#[test]
fn ten_thousand_connections_from_one_address_cost_what_sixty_four_do_and_keep_no_peer_from_its_bytes() {
    let needed = STRANGERS as u64 + 2_000;
    let most = getrlimit(Resource::Nofile).maximum.map(|most| most.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })
        .expect("12,000 descriptors, which root may have");
    // The third host is the stranger.
    let mut peers = Peers::start(3, |_, options| options);
    peers.sidecars[2].kill();
    let pid = peers.sidecars[0].pid();
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 1, 100_000);
        assert!(is(&reader.acquire(stored.reference(), &seconds(9)).unwrap(), 1, 100_000));
        drop(stored);
        let before = Costs::of(pid);
        let to = peers.network.peer_address(0);
        let mut most = 0;
        let mut held: Vec<TcpStream> = Vec::with_capacity(STRANGERS);
        while held.len() < STRANGERS {
            held.extend(peers.network.inside(2, || dial(to, 500)));
            let stored = put(&writer, held.len() as u64, 100_000);
            let began = Instant::now();
            let tensor = reader.acquire(stored.reference(), &seconds(9)).unwrap();
            assert!(is(&tensor, held.len() as u64, 100_000));
            assert!(began.elapsed() < Duration::from_secs(5), "{:?} at {}", began.elapsed(), held.len());
            let now = Costs::of(pid);
            most = most.max(now.resident);
            assert!(now.resident < before.resident + STRANGERS_COST, "{before:?}, then {now:?}");
            assert!(now.threads < before.threads + 100, "{before:?}, then {now:?}");
            assert!(now.descriptors < before.descriptors + 500, "{before:?}, then {now:?}");
        }
        until("every one of them is ended", || {
            held.retain_mut(|stream| !has_ended(stream));
            held.is_empty()
        });
        // Threads that work for sessions come and go by themselves.
        let mut now = Costs::of(pid);
        let given_back = |now: &Costs| {
            now.descriptors < before.descriptors + LEFT && now.threads < before.threads + LEFT as u64
        };
        let deadline = Instant::now() + PATIENCE;
        while !given_back(&now) && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(10));
            now = Costs::of(pid);
        }
        assert!(given_back(&now), "{before:?}, and when all had ended {now:?}");
        eprintln!("{before:?}; at most {most:?}; then {now:?}");
        // A peer that comes now has its place.
        peers.network.cut(1);
        until("the cut is noticed", || peers.seen(0, 1).state != "connected");
        peers.network.mend(1);
        until("it is back", || peers.seen(0, 1).state == "connected");
        let stored = put(&writer, 40, MI);
        assert!(is(&reader.acquire(stored.reference(), &seconds(9)).unwrap(), 40, MI));
    }
    (0..2).for_each(|host| peers.assert_free(host));
}

/// Connections on which nothing is said.
fn dial(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let one = || TcpStream::connect_timeout(&to, Duration::from_secs(20)).expect("it listens");
    let all: Vec<TcpStream> = (0..count).map(|_| one()).collect();
    all.iter().for_each(|stream| stream.set_nonblocking(true).expect("a socket"));
    all
}

/// Whether the other side has ended it.
fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
