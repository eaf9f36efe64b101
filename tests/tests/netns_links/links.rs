//! Links that are bad rather than gone: cut in one direction again and again, losing packets, closed to new connections by a
//! firewall; and what is wrong at an end of them: restarts in turn, another clock, ten thousand strangers. Needs root.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensorlane_client::{AcquireOptions, Client, Error, Path, Tensor, Way};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::{Reason, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{
    LARGE, MI, ROUTES, Route, in_the_middle, in_the_middle_of, is, put, seconds,
};
use tensorlane_tests::wait::PATIENCE;
use tensorlane_tests::weather::Closed;
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until, where_the_machine_runs_on};

/// Bytes that take some sixteen seconds on the links of these tests.
const FLAPPING: u64 = 2 * LARGE;

/// Two peers that only speak TCP, by two lanes where they can.
fn by_tcp(_: usize, options: SidecarOptions) -> SidecarOptions {
    options.set("transports", "tcp").set("peers.lanes", "2").set("gc.leaseGrace", "20s")
}

#[test]
fn a_link_that_flaps_in_one_direction_costs_time_and_no_byte() {
    where_the_machine_runs_on(|| {
        over_a_flapping_link(by_tcp);
    });
}

#[test]
fn a_link_that_flaps_in_one_direction_costs_time_and_no_byte_of_quic() {
    where_the_machine_runs_on(|| {
        over_a_flapping_link(|_, options| options.set("prefer", "quic").set("gc.leaseGrace", "20s"));
    });
}

/// Four times in the middle of one transfer, each direction twice; what has come is not asked for again.
fn over_a_flapping_link(options: impl Fn(usize, SidecarOptions) -> SidecarOptions) {
    let peers = Peers::start(2, options);
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

/// Two peers with four lanes, and the deadlines that a sidecar has where nobody says anything.
fn as_usual(_: usize, options: SidecarOptions) -> SidecarOptions {
    let options = options.set("transports", "tcp").set("deadlines.progress", "2s");
    options.set("peers.lanes", "4").set("gc.leaseGrace", "10s")
}

#[test]
fn a_large_tensor_comes_on_lanes_with_the_usual_deadlines_over_a_link_that_drops_one_packet_of_a_hundred() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(2, as_usual);
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 36, 32 * MI);
        (0..2).for_each(|host| peers.network.lossy(host, 1));
        let tensor = reader.acquire(stored.reference(), &seconds(100)).unwrap();
        assert!(is(&tensor, 36, 32 * MI));
        assert_eq!(tensor.moved().transport, Some(Transport::Tcp));
        assert_eq!(peers.metric(1, "tensorlane_peer_pulls_total", &["way=\"lanes\""]), 1.0);
        drop((tensor, stored, writer, reader));
        peers.assert_free(1);
    });
}

/// No connection need survive that for longer than the progress deadline. What is asked for comes right or fails in time, and
/// whatever was left half done is over once the link is well.
#[test]
fn a_large_tensor_comes_or_fails_in_time_over_a_link_that_drops_one_packet_of_five_and_comes_once_it_is_well()
{
    const DEADLINE: u64 = 30;
    let peers = Peers::start(2, as_usual);
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 37, 32 * MI);
        (0..2).for_each(|host| peers.network.lossy(host, 20));
        let begun = Instant::now();
        let outcome = reader.acquire(stored.reference(), &seconds(DEADLINE));
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(DEADLINE) + PATIENCE, "{took:?}");
        match outcome {
            Ok(tensor) => assert!(is(&tensor, 37, 32 * MI)),
            failed => {
                let reason = reason(failed);
                let in_time = [Reason::DeadlineExceeded, Reason::PeerUnreachable];
                assert!(in_time.contains(&reason), "{reason:?} after {took:?}");
            }
        }
        (0..2).for_each(|host| peers.network.sunny(host));
        peers.await_connected();
        assert!(is(&reader.acquire(stored.reference(), &seconds(100)).unwrap(), 37, 32 * MI));
    }
    peers.assert_all_free();
}

/// Each of them has 150 KiB a second, of which no end knows how many there are.
#[test]
fn eight_lanes_on_a_link_of_ten_megabits_are_slow_and_none_of_them_is_cut() {
    where_the_machine_runs_on(|| {
        slow_lanes_stay("required", get_slowly);
    });
}

#[test]
fn eight_plain_lanes_on_a_link_of_ten_megabits_are_slow_and_none_of_them_is_cut() {
    where_the_machine_runs_on(|| {
        slow_lanes_stay("none", get_slowly);
    });
}

/// Bytes that wait in their sockets then are what a link had room for that was ten times as fast. What waits for the
/// cable takes less than half a second: behind more than two a lane may rightly count as dead.
#[test]
fn plain_lanes_on_a_link_that_becomes_slow_in_the_middle_are_not_cut() {
    where_the_machine_runs_on(|| {
        slow_lanes_stay("none", |peers, reader, reference| {
            let before = peers.seen(1, 0).bytes_in;
            peers.network.slow_behind(0, 100, MI / 2);
            std::thread::scope(|scope| {
                let getting = scope.spawn(|| reader.acquire(reference, &seconds(100)).unwrap());
                until("some bytes have come", || peers.seen(1, 0).bytes_in - before > 3 * MI);
                peers.network.slow_behind(0, 10, MI / 2);
                getting.join().unwrap()
            })
        });
    });
}

/// Over a link that is slow from the first byte on.
fn get_slowly(peers: &Peers, reader: &Client, reference: &Reference) -> Tensor {
    peers.network.slow(0, 10);
    reader.acquire(reference, &seconds(100)).unwrap()
}

/// Eight lanes bring 12 MiB over a link that is slow, and each of them lives on.
fn slow_lanes_stay(encryption: &str, get: impl FnOnce(&Peers, &Client, &Reference) -> Tensor) {
    let peers = Peers::start(2, |host, options| {
        as_usual(host, options).set("peers.lanes", "8").set("encryption", encryption)
    });
    let (writer, reader) = (peers.client(0), peers.client(1));
    let stored = put(&writer, 38, 12 * MI);
    let tensor = get(&peers, &reader, stored.reference());
    assert!(is(&tensor, 38, 12 * MI));
    let ended = |host, why: &str| {
        peers.metric(host, "tensorlane_peer_ended_lanes_total", &[&format!("reason=\"{why}\"")])
    };
    // The kernel may be the first to give one up, which counts as lost.
    let cut = [(0, "slow"), (0, "progress"), (0, "lost"), (1, "progress"), (1, "lost")];
    assert_eq!(cut.map(|(host, why)| ended(host, why)), [0.0; 5], "{cut:?}");
    drop((tensor, stored, writer, reader));
    peers.assert_free(1);
}

#[test]
fn both_ends_that_restart_in_turn_lose_what_they_owned_and_nothing_else() {
    where_the_machine_runs_on(|| {
        let mut peers = Peers::pair();
        for turn in 0..4 {
            let (host, other) = (turn % 2, 1 - turn % 2);
            let gone = peers.client(host);
            let mourned = put(&gone, 33, MI);
            let lost = mourned.reference().clone();
            let kept = peers.client(other);
            let stored = put(&kept, 34, MI);
            // Of two that restart one is the owner of what is under way, and one the reader.
            let route = ROUTES[if turn < 2 { host } else { other }];
            restart_in_the_middle(&mut peers, host, route);
            drop((mourned, gone));
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
    });
}

/// Kills a host and starts it again while a tensor is on its way: it comes whole or with a typed error.
fn restart_in_the_middle(peers: &mut Peers, host: usize, route: Route) {
    let (writer, reader) = (peers.client(route.owner), peers.client(route.reader));
    let stored = put(&writer, 36, LARGE);
    let (reference, options) = (stored.reference().clone(), seconds(20));
    let outcome = std::thread::scope(|scope| {
        let getting = in_the_middle_of(scope, peers, route, (&reader, &reference, &options));
        peers.sidecars[host].kill();
        peers.sidecars[host].start_again();
        peers.network.fast(route.owner);
        getting.join().unwrap()
    });
    let is_told = |error: &Error| match host == route.reader {
        true => matches!(error, Error::SessionLost { .. }),
        false => matches!(error.reason(), Some(Reason::OwnerLost | Reason::PeerUnreachable)),
    };
    match outcome {
        Ok(tensor) => assert!(is(&tensor, 36, LARGE), "{route:?}"),
        Err(error) => assert!(is_told(&error), "{host} was restarted, {route:?}: {error}"),
    }
}

/// The clock that runs since the machine started, an hour ahead at one end: nothing that is sent says when, only how long.
#[test]
fn a_peer_whose_clock_is_off_by_an_hour_is_as_good_as_any_other() {
    where_the_machine_runs_on(|| {
        let prefix = ["unshare", "--time", "--monotonic=3600", "--boottime=3600"].map(str::to_owned);
        let peers = with_another_clock(&prefix);
        assert_ne!(time_of(peers.sidecars[0].pid()), time_of(peers.sidecars[1].pid()), "they have one clock");
        is_as_good_as_any_other(peers);
    });
}

/// The clock of the calendar, an hour ahead at one end, so that the other one is an hour behind: keys are pinned, and dates
/// of certificates are not looked at. Each end makes its certificate and the age of its key by its own clock.
#[test]
fn a_peer_whose_calendar_is_off_by_an_hour_is_as_good_as_any_other() {
    where_the_machine_runs_on(|| {
        const HOUR: i64 = 3600;
        let prefix = [
            "env".to_owned(),
            format!("LD_PRELOAD={}", libfaketime().display()),
            format!("FAKETIME=+{HOUR}"),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
        ];
        let peers = with_another_clock(&prefix);
        let ahead = second_of_day(&peers.sidecars[1]) - second_of_day(&peers.sidecars[0]);
        // They started one after the other; over midnight the difference is of another day.
        assert!((0..=120).contains(&(ahead - HOUR).rem_euclid(24 * HOUR)), "{ahead} s ahead");
        is_as_good_as_any_other(peers);
    });
}

/// Two connected peers, of which the second one runs behind these words.
fn with_another_clock(prefix: &[String]) -> Peers {
    Peers::start(2, |host, options| {
        // Longer than a busy machine takes to look whether the lease is still there.
        let options = options.set("gc.leaseGrace", "10s");
        if host == 1 { options.prefix(prefix.iter().cloned()) } else { options }
    })
}

/// Library that makes the calendar of a process another one, for all of its threads.
fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut found = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    found.find(|file| file.exists()).expect("Debian's package `faketime`, which `cargo xtask test` installs")
}

/// Time at which a sidecar says that it started, by its own calendar: the second of the day.
fn second_of_day(sidecar: &Sidecar) -> i64 {
    let line = sidecar.logged("metrics and health are served").expect("it is up");
    let time = line["timestamp"].as_str().and_then(|stamp| stamp.split_once('T')).expect("a time").1;
    let numbers = time[..8].split(':').map(|part| part.parse::<i64>().expect("a number"));
    numbers.fold(0, |sum, number| sum * 60 + number)
}

/// Connection, certificates, gets and waits both ways, and the grace of the leases of one that is lost.
fn is_as_good_as_any_other(mut peers: Peers) {
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
            assert!(waited >= wait && waited < Duration::from_secs(60), "{waited:?}");
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
fn time_of(pid: u32) -> PathBuf {
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
        where_the_machine_runs_on(|| {
            let peers = Peers::start(2, by_tcp);
            let (writer, reader) = (peers.client(0), peers.client(1));
            // No larger than what is just not small: the next one must come within 5 s of what this one found out.
            let stored = put(&writer, 38, 9 * MI);
            let next = put(&writer, 39, 9 * MI);
            (0..2).for_each(|host| peers.network.no_new_connections(host, closed));
            let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
            // Whoever comes next need not find out again; that is forgotten after 5 s.
            let second = reader.acquire(next.reference(), &seconds(20)).unwrap();
            assert!(is(&tensor, 38, 9 * MI), "{closed:?}");
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
        });
    }
}

/// Costs of a process.
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
/// Memory that they may cost together: 16 places of a mebibyte (a quarter of `limits.strangers`), and half as much to
/// be safe.
const STRANGERS_COST: u64 = 24 << 20;
/// Bound on what is left of them: fewer than this, which is half of their places.
const LEFT: usize = 8;

#[test]
fn ten_thousand_connections_from_one_address_cost_what_sixteen_do_and_keep_no_peer_out() {
    let needed = STRANGERS as u64 + 2_000;
    let most = getrlimit(Resource::Nofile).maximum.map(|most| most.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })
        .expect("12,000 descriptors, which root may have");
    // The third host is the stranger. A peer that stands still for some seconds beside so many is not left.
    let mut peers = Peers::start(3, |_, options| options.set("deadlines.progress", "10s"));
    peers.sidecars[2].kill();
    // Of two peers the one with the smaller fingerprint dials: whoever is to be kept out must be the one who comes.
    let is_dialed = peers.identity(0).fingerprint > peers.identity(1).fingerprint;
    let (host, other) = if is_dialed { (0, 1) } else { (1, 0) };
    let pid = peers.sidecars[host].pid();
    let refused = |why: &str| {
        let reason = format!("reason=\"{why}\"");
        peers.metric(host, "tensorlane_peer_refused_connections_total", &[&reason])
    };
    {
        let (writer, reader) = (peers.client(host), peers.client(other));
        let stored = put(&writer, 1, 100_000);
        assert!(is(&reader.acquire(stored.reference(), &seconds(60)).unwrap(), 1, 100_000));
        drop(stored);
        let before = Costs::of(pid);
        let to = peers.network.peer_address(host);
        let mut most = 0;
        let mut held: Vec<TcpStream> = Vec::with_capacity(STRANGERS);
        while held.len() < STRANGERS {
            held.extend(peers.network.inside(2, || dial(to, 500)));
            let stored = put(&writer, held.len() as u64, 100_000);
            let began = Instant::now();
            let tensor = reader.acquire(stored.reference(), &seconds(100)).unwrap();
            assert!(is(&tensor, held.len() as u64, 100_000));
            assert!(began.elapsed() < Duration::from_secs(90), "{:?} at {}", began.elapsed(), held.len());
            let now = Costs::of(pid);
            most = most.max(now.resident);
            assert!(now.resident < before.resident + STRANGERS_COST, "{before:?}, then {now:?}");
            assert!(now.threads < before.threads + 100, "{before:?}, then {now:?}");
            assert!(now.descriptors < before.descriptors + 500, "{before:?}, then {now:?}");
        }
        // A peer that comes while they go on coming has its place.
        peers.network.cut(other);
        until("the cut is noticed", || peers.seen(host, other).state != "connected");
        let full = refused("gave_way");
        peers.network.mend(other);
        until("it is back while they go on coming", || {
            held.retain_mut(|stream| !has_ended(stream));
            held.extend(peers.network.inside(2, || dial(to, 100)));
            // They have all places that they may have, which the metrics may tell a moment later.
            peers.seen(host, other).state == "connected" && refused("gave_way") > full
        });
        assert_eq!(refused("too_many"), 0.0, "and no others");
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
        let stored = put(&writer, 40, MI);
        assert!(is(&reader.acquire(stored.reference(), &seconds(60)).unwrap(), 40, MI));
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

/// Returns whether the other side has ended it.
fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
