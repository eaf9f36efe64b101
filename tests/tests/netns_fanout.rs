//! Many hosts that want one tensor: what its owner sends, what a reader that dies costs the others, and what comes of one that
//! has other bytes. What happens at every granule is in the sidecar's own tests. Needs root.

use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt;
use std::thread::{Scope, ScopedJoinHandle};

use rustix::process::Signal;
use tensorlane_client::{Client, Result, Tensor};
use tensorlane_proto::Reference;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::transfer::{LARGE, MI, await_counted, came, is, put, seconds, sent};
use tensorlane_tests::{until, where_the_machine_runs_on};

/// Slow enough to be in the middle for two seconds.
const MBIT: u32 = 200;
/// Bytes that may be under way when a holder dies, on both lanes, and what a cable carries besides tensors, of a
/// thousand.
const UNDER_WAY: u64 = 8 * MI;
const HEADERS: u64 = 1_080;

/// Hosts that pass tensors on in a chain, over slow cables.
fn start(hosts: usize) -> Peers {
    start_with(hosts, 1)
}

/// Hosts of which each serves so many readers at a time.
fn start_with(hosts: usize, fan_out: u64) -> Peers {
    let peers = Peers::start(hosts, |_, options| {
        options
            .set("peers.fanOut", fan_out)
            .set("peers.fanOutFrom", "8Mi")
            .set("peers.lanes", "2")
            .set("transports", "tcp")
            // One that stands still for a second on a busy machine is no holder to be left.
            .default_of("deadlines.progress")
    });
    (0..hosts).for_each(|host| peers.network.slow(host, MBIT));
    peers
}

type Getting<'scope> = ScopedJoinHandle<'scope, Result<Tensor>>;

/// Hosts 1, 2, ... get a tensor of host 0, each as soon as some of it is at the one before: so they are a chain.
fn chain<'scope>(
    scope: &'scope Scope<'scope, '_>,
    peers: &Peers,
    readers: &'scope [Client],
    reference: &'scope Reference,
) -> Vec<Getting<'scope>> {
    let one = |(at, reader): (usize, &'scope Client)| {
        let getting = scope.spawn(move || reader.acquire(reference, &seconds(60)));
        until("some of it is there", || came(peers, at + 1) > 0);
        getting
    };
    readers.iter().enumerate().map(one).collect()
}

fn senders(tensor: &Tensor) -> Vec<&str> {
    tensor.moved().senders.iter().map(|(peer, _)| peer.as_str()).collect()
}

/// All of them at once.
fn get_together(readers: &[Client], reference: &Reference) -> Vec<Tensor> {
    std::thread::scope(|scope| {
        let get = |reader| scope.spawn(move || Client::acquire(reader, reference, &seconds(120)));
        let getting: Vec<Getting<'_>> = readers.iter().map(get).collect();
        getting.into_iter().map(|getting| getting.join().unwrap().unwrap()).collect()
    })
}

#[test]
fn eight_hosts_that_come_together_take_a_tensor_once_from_its_owner_and_late_ones_not_at_all() {
    where_the_machine_runs_on(|| {
        let peers = start(11);
        let writer = peers.client(0);
        let stored = put(&writer, 3, LARGE);
        let readers: Vec<Client> = (1..11).map(|host| peers.client(host)).collect();
        let (together, late) = readers.split_at(8);
        let tensors = get_together(together, stored.reference());
        assert!(tensors.iter().all(|tensor| is(tensor, 3, LARGE)));
        assert_eq!(
            tensors.iter().filter(|tensor| senders(tensor).is_empty()).count(),
            1,
            "one had it of the owner"
        );
        await_counted(&peers);
        let by_owner = sent(&peers, 0);
        assert!(by_owner <= LARGE + LARGE / 5, "the owner sent {by_owner} bytes of a tensor of {LARGE}");
        for host in 1..9 {
            assert_eq!(came(&peers, host), LARGE, "host {host} got every byte once");
        }

        // Two that come late are given to whoever has it, each to another one.
        let late = get_together(late, stored.reference());
        assert!(late.iter().all(|tensor| is(tensor, 3, LARGE)));
        await_counted(&peers);
        let told: Vec<String> = late.iter().map(|tensor| tensor.moved().to_string()).collect();
        assert_eq!(sent(&peers, 0), by_owner, "{told:?}");
        let from: Vec<_> = late.iter().map(senders).collect();
        assert!(from.iter().all(|senders| senders.len() == 1) && from[0] != from[1], "{told:?}");
        drop((late, tensors, stored, readers, writer));
        peers.assert_all_free();
    });
}

/// A tree of two branches: six readers of one owner.
#[test]
fn where_each_serves_two_no_host_sends_more_than_twice_and_every_reader_gets_all() {
    where_the_machine_runs_on(|| {
        const READERS: usize = 6;
        let peers = start_with(1 + READERS, 2);
        let writer = peers.client(0);
        let stored = put(&writer, 8, LARGE);
        let readers: Vec<Client> = (1..=READERS).map(|host| peers.client(host)).collect();
        let tensors = get_together(&readers, stored.reference());
        assert!(tensors.iter().all(|tensor| is(tensor, 8, LARGE)));
        let of_owner = tensors.iter().filter(|tensor| senders(tensor).is_empty()).count();
        assert_eq!(of_owner, 2, "so many had it of the owner alone");
        for host in 0..=READERS {
            let by_host = sent(&peers, host);
            assert!(
                by_host <= 2 * LARGE + UNDER_WAY,
                "host {host} sent {by_host} bytes of a tensor of {LARGE}"
            );
        }
        drop((tensors, stored, readers, writer));
        peers.assert_all_free();
    });
}

#[test]
fn a_reader_that_is_killed_at_any_tenth_costs_its_readers_what_was_under_way() {
    for tenth in 1..10 {
        // Near the end it may be over before the kill; then nothing was shown, and it is done again.
        where_the_machine_runs_on(|| {
            assert!((0..5).any(|_| is_killed_at(tenth)), "it was never in the middle at {tenth} tenths");
        });
    }
}

/// True if the first reader of a chain was killed in the middle, before it had passed on everything; then all that
/// follows from it holds.
fn is_killed_at(tenth: u64) -> bool {
    let mut peers = start(4);
    let writer = peers.client(0);
    let stored = put(&writer, tenth, LARGE);
    let readers: Vec<Client> = (1..4).map(|host| peers.client(host)).collect();
    let (killed, tensors): (bool, Vec<Tensor>) = std::thread::scope(|scope| {
        let mut getting = chain(scope, &peers, &readers, stored.reference());
        until("it is in the middle", || came(&peers, 2) >= LARGE / 10 * tenth);
        peers.sidecars[1].kill();
        let killed = getting.remove(0).join().unwrap().is_err();
        (killed, getting.into_iter().map(|getting| getting.join().unwrap().unwrap()).collect())
    });
    assert!(tensors.iter().all(|tensor| is(tensor, tenth, LARGE)), "killed at {tenth} tenths");
    // On a busy machine the second one may have stood still for so long that the third one left it: that shows nothing, too.
    if !killed || senders(&tensors[0]) == ["b"] || lost(&peers, 3, "stalled") > 0.0 {
        return false;
    }
    assert_eq!(senders(&tensors[0]), ["b", "a"], "{}", tensors[0].moved());
    assert_eq!(senders(&tensors[1]), ["c"], "further down nobody noticed: {}", tensors[1].moved());
    for host in [2, 3] {
        let cable = peers.network.received(host);
        let most = (LARGE + UNDER_WAY) / 1_000 * HEADERS;
        assert!(cable <= most, "host {host} received {cable} bytes, {most} at most, at {tenth} tenths");
    }
    // The owner sends again what the killed one had and had not passed on, which may be much on a busy machine.
    let passed_on = tensors[0].moved().senders[0].1;
    let lead = peers.network.received(1).saturating_sub(passed_on);
    let (by_owner, most) = (sent(&peers, 0), LARGE + lead + UNDER_WAY);
    assert!(by_owner <= most, "the owner sent {by_owner} bytes, {most} at most, at {tenth} tenths");
    true
}

#[test]
fn a_reader_that_stands_still_is_left_by_its_reader() {
    where_the_machine_runs_on(|| {
        let peers = start(3);
        let writer = peers.client(0);
        let stored = put(&writer, 5, LARGE);
        let readers: Vec<Client> = (1..3).map(|host| peers.client(host)).collect();
        std::thread::scope(|scope| {
            let mut getting = chain(scope, &peers, &readers, stored.reference());
            until("it is in the middle", || came(&peers, 2) >= LARGE / 2);
            stop(peers.sidecars[1].pid());
            let tensor = getting.pop().unwrap().join().unwrap().unwrap();
            assert!(is(&tensor, 5, LARGE), "{}", tensor.moved());
            assert_eq!(senders(&tensor), ["b", "a"]);
            signal(peers.sidecars[1].pid(), Signal::CONT);
            let tensor = getting.pop().unwrap().join().unwrap().unwrap();
            assert!(is(&tensor, 5, LARGE), "{}", tensor.moved());
        });
    });
}

/// Holders that a host did not go on from, for a reason.
fn lost(peers: &Peers, host: usize, reason: &str) -> f64 {
    peers.metric(host, "tensorlane_peer_lost_holders_total", &[&format!("reason=\"{reason}\"")])
}

#[test]
fn a_reader_behind_a_slow_one_keeps_its_deadline() {
    where_the_machine_runs_on(|| {
        let peers = start(3);
        // It takes forty seconds for what the owner sends in two.
        peers.network.slow(1, 10);
        let writer = peers.client(0);
        let stored = put(&writer, 7, LARGE);
        let (slow, quick) = (peers.client(1), peers.client(2));
        std::thread::scope(|scope| {
            let getting = scope.spawn(|| slow.acquire(stored.reference(), &seconds(120)));
            until("some of it is there", || came(&peers, 1) > 0);
            let tensor = quick.acquire(stored.reference(), &seconds(15)).unwrap();
            assert!(is(&tensor, 7, LARGE));
            assert_eq!(senders(&tensor), ["b", "a"], "{}", tensor.moved());
            assert_eq!(lost(&peers, 2, "slow"), 1.0);
            let tensor = getting.join().unwrap().unwrap();
            assert!(is(&tensor, 7, LARGE) && senders(&tensor).is_empty(), "{}", tensor.moved());
        });
    });
}

#[test]
fn a_reader_that_reaches_nobody_but_the_owner_waits_for_others_once() {
    where_the_machine_runs_on(others_that_are_not_reached_are_waited_for_once);
}

fn others_that_are_not_reached_are_waited_for_once() {
    // Three of them come within the 30 s in which a holder that was not reached is left alone.
    const COUNT: u64 = 16 * MI;
    let peers = start(3);
    let writer = peers.client(0);
    let (holder, alone) = (peers.client(1), peers.client(2));
    peers.network.lose(1, 2);
    peers.network.lose(2, 1);
    for seed in 1..4 {
        let stored = put(&writer, seed, COUNT);
        let held = holder.acquire(stored.reference(), &seconds(60)).unwrap();
        let tensor = alone.acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(is(&tensor, seed, COUNT) && senders(&tensor).is_empty(), "{}", tensor.moved());
        let waited = lost(&peers, 2, "unreachable") + lost(&peers, 2, "stalled");
        assert_eq!((waited, lost(&peers, 2, "cooldown")), (1.0, (seed - 1) as f64), "{}", tensor.moved());
        drop((held, tensor, stored));
    }
}

/// Changes one byte of what follows from `seed` in the memory of a process, as nobody but root can.
fn spoil(pid: u32, seed: u64) {
    let wanted = pattern(seed, 64);
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
    let maps = read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut spoiled = 0;
    for line in maps.lines().filter(|line| line.contains("memfd:") && line.contains(" rw-s ")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        // Blocks begin where pages do.
        for at in (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(&wanted)) {
            memory.write_all_at(&[bytes[at + 77] ^ 1], start + at as u64 + 77).unwrap();
            spoiled += 1;
        }
    }
    assert_eq!(spoiled, 1, "the copy was found");
}

#[test]
fn what_a_holder_changed_is_found_and_comes_from_elsewhere_and_from_that_holder_to_nobody_again() {
    where_the_machine_runs_on(|| {
        let peers = start(4);
        let writer = peers.client(0);
        let stored = put(&writer, 6, LARGE);
        let readers: Vec<Client> = (1..4).map(|host| peers.client(host)).collect();
        let copy = readers[0].acquire(stored.reference(), &seconds(60)).unwrap();
        spoil(peers.sidecars[1].pid(), 6);
        let tensor = readers[1].acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(is(&tensor, 6, LARGE));
        assert_eq!(peers.metric(2, "tensorlane_peer_forged_granules_total", &[]), 1.0);
        assert_eq!(lost(&peers, 2, "altered"), 1.0);
        assert_eq!(senders(&tensor).len(), 2, "the holder was tried: {}", tensor.moved());
        // Who found it has what is proven, and passes it on; nobody is given to the other one again.
        let other = readers[2].acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(is(&other, 6, LARGE) && senders(&other).len() == 1, "{}", other.moved());
        assert_eq!(peers.metric(3, "tensorlane_peer_forged_granules_total", &[]), 0.0);
        drop((other, tensor, copy, stored, readers, writer));
        peers.assert_all_free();
    });
}
