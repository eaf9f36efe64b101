//! QUIC between two processes on two hosts, in weather that it is made for: lost and altered packets, flows that go on from another port,
//! and networks that carry no datagrams at all. Needs root.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensorlane_client::{AcquireOptions, Client, Target, Tensor};
use tensorlane_proto::Transport;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{LARGE, MI, in_the_middle, is, put, seconds};
use tensorlane_tests::{until, where_the_machine_runs_on};

use super::{WINDOW, two};

const PULLS: &str = "tensorlane_peer_pulls_total";
const CONNECTIONS: &str = "tensorlane_peer_quic_connections_total";
const MIGRATIONS: &str = "tensorlane_peer_quic_migrations_total";
const DATAGRAM: &str = "tensorlane_peer_quic_datagram_bytes";
const ROUTES: &str = "tensorlane_route_fallbacks_total";
const FALLBACKS: &str = "tensorlane_peer_fallbacks_total";

pub(super) fn by_quic(tensor: &Tensor) -> bool {
    tensor.moved().transport == Some(Transport::Quic)
}

/// Until a tensor has come by QUIC: the first one need not, where the connection is slow to come up.
pub(super) fn warm_up(writer: &Client, reader: &Client) {
    let mut seed = 100;
    until("a tensor comes by QUIC", || {
        seed += 1;
        let warm = put(writer, seed, 9 * MI);
        by_quic(&reader.acquire(warm.reference(), &seconds(20)).unwrap())
    });
}

#[test]
fn every_byte_comes_over_a_link_that_loses_one_packet_of_a_hundred_and_one_of_five() {
    for percent in [1, 20] {
        where_the_machine_runs_on(|| {
            let peers = two();
            let (writer, reader) = (peers.client(0), peers.client(1));
            warm_up(&writer, &reader);
            let stored = put(&writer, 3, 12 * MI);
            (0..2).for_each(|host| peers.network.lossy(host, percent));
            let options = AcquireOptions::new().deadline(Duration::from_secs(120));
            let tensor = reader.acquire(stored.reference(), &options).unwrap();
            assert!(is(&tensor, 3, 12 * MI), "{percent} %");
            // Where one of five is lost, QUIC need not be there in time, and the next best way goes on.
            assert!(by_quic(&tensor) || percent == 20, "{percent} %: {}", tensor.moved());
            drop((tensor, stored, writer, reader));
            peers.assert_free(1);
        });
    }
}

#[test]
fn small_tensors_come_by_tcp_beside_large_ones_by_quic_over_a_link_that_loses_packets() {
    where_the_machine_runs_on(|| {
        let peers = two();
        let (writer, reader) = (peers.client(0), peers.client(1));
        warm_up(&writer, &reader);
        (0..2).for_each(|host| peers.network.lossy(host, 1));
        let stored: Vec<_> = (200..700).map(|seed| (seed, put(&writer, seed, 4000 + seed))).collect();
        let targets: Vec<_> = stored.iter().map(|(_, stored)| Target::from(stored.reference())).collect();
        let tensors = reader.acquire_many(&targets, &seconds(20));
        for ((seed, _), tensor) in stored.iter().zip(tensors) {
            let tensor = tensor.unwrap();
            assert!(is(&tensor, *seed, 4000 + seed), "tensor {seed}");
            assert_eq!(tensor.moved().transport, Some(Transport::Tcp), "tensor {seed}: {}", tensor.moved());
        }
        drop((stored, writer, reader));
        peers.assert_free(1);
    });
}

#[test]
fn datagrams_that_are_altered_on_the_way_cost_time_and_no_byte() {
    where_the_machine_runs_on(|| {
        let peers = two();
        let (writer, reader) = (peers.client(0), peers.client(1));
        warm_up(&writer, &reader);
        let stored = put(&writer, 6, 12 * MI);
        let dialed = || {
            let by = |host| peers.metric(host, CONNECTIONS, &["dialed=\"us\""]);
            by(0) + by(1)
        };
        let before = dialed();
        (0..2).for_each(|host| peers.network.altering(host, 2));
        let tensor = reader.acquire(stored.reference(), &seconds(28)).unwrap();
        assert!(is(&tensor, 6, 12 * MI) && by_quic(&tensor), "{}", tensor.moved());
        // Nobody else's datagram can end a connection: an altered one is as good as lost.
        assert_eq!(dialed(), before, "{}", tensor.moved());
        assert!(peers.network.altered(1) > 0, "none was altered");
        drop((tensor, stored, writer, reader));
        peers.assert_free(1);
    });
}

#[test]
fn a_flow_goes_on_from_another_port_without_a_new_connection() {
    where_the_machine_runs_on(|| {
        let peers = two();
        let clients = [peers.client(0), peers.client(1)];
        warm_up(&clients[0], &clients[1]);
        let dialed = |host: usize, by: &str| peers.metric(host, CONNECTIONS, &[&format!("dialed=\"{by}\"")]);
        // Who dials is decided by the keys.
        let dials = if dialed(0, "us") > 0.0 { 0 } else { 1 };
        let counts = || (dialed(dials, "us"), dialed(1 - dials, "them"));
        let fallbacks = || peers.metric(1, FALLBACKS, &["reason=\"no_lane\""]);
        let before = (counts(), fallbacks());
        let stored = put(&clients[0], 2, LARGE);
        let options = seconds(28);
        let tensor = std::thread::scope(|scope| {
            let pulling = in_the_middle(scope, &peers, &clients[1], stored.reference(), &options);
            peers.network.rebind(dials, 40_001);
            until("the other one saw it move", || peers.metric(1 - dials, MIGRATIONS, &[]) > 0.0);
            peers.network.rebind(dials, 40_002);
            peers.network.fast(0);
            pulling.join().unwrap().unwrap()
        });
        assert!(is(&tensor, 2, LARGE) && by_quic(&tensor), "{}", tensor.moved());
        assert_eq!((counts(), fallbacks()), before, "{}", tensor.moved());
    });
}

/// Between two processes, as the suites inside the sidecar do it at every byte.
#[test]
fn datagrams_that_stop_in_the_middle_cost_time_and_no_byte_that_came() {
    where_the_machine_runs_on(|| {
        let peers = two();
        let (writer, reader) = (peers.client(0), peers.client(1));
        warm_up(&writer, &reader);
        let stored = put(&writer, 8, LARGE);
        let before = peers.seen(1, 0).bytes_in;
        let options = seconds(28);
        let tensor = std::thread::scope(|scope| {
            let pulling = in_the_middle(scope, &peers, &reader, stored.reference(), &options);
            (0..2).for_each(|host| peers.network.no_datagrams(host));
            peers.network.fast(0);
            pulling.join().unwrap().unwrap()
        });
        assert!(is(&tensor, 8, LARGE), "{}", tensor.moved());
        let told = tensor.moved().to_string();
        assert!(tensor.moved().paths.len() > 1 && told.contains("quic"), "{told}");
        let came = peers.seen(1, 0).bytes_in - before;
        assert!(came < LARGE + 8 * MI, "{came} bytes came: it began anew");
    });
}

#[test]
fn where_datagrams_are_not_carried_large_tensors_come_by_tcp_and_the_reply_says_what_failed() {
    where_the_machine_runs_on(|| {
        let peers = two();
        (0..2).for_each(|host| peers.network.no_datagrams(host));
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 4, 9 * MI);
        let next = put(&writer, 5, 9 * MI);
        let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
        // The next one is told before it tries; that is forgotten after 5 s.
        let second = reader.acquire(next.reference(), &seconds(20)).unwrap();
        assert!(is(&tensor, 4, 9 * MI) && is(&second, 5, 9 * MI));
        let told = tensor.moved().to_string();
        assert!(told.starts_with("tcp") && told.contains("not quic: cooldown"), "{told}");
        let told = second.moved().to_string();
        assert!(told.starts_with("tcp") && told.contains("not quic: cooldown"), "{told}");
        // The handshake has more time than a pull waits for it.
        until("whoever dials says why", || {
            let told = [peers.seen(0, 1), peers.seen(1, 0)].map(|seen| seen.last_error).concat();
            told.contains("quic to 198.") && told.contains("does not come up: no answer within")
        });
        assert_eq!(peers.metric(1, FALLBACKS, &["reason=\"no_lane\""]), 1.0);
        assert_eq!(peers.metric(1, PULLS, &["way=\"lanes\""]), 2.0);
        assert!(peers.metric(1, ROUTES, &["from=\"quic\"", "to=\"tcp\""]) >= 1.0);
    });
}

/// Bytes that a connection may fill if the way is short: all that its two lanes ask for at a time.
const FLOOR: f64 = (2 * (8 * MI + (64 << 10))) as f64;

/// The largest that a metric of a host is while host 1 gets a tensor of host 0.
fn largest(peers: &Peers, seed: u64, bytes: u64, host: usize, metric: &str, labels: &[&str]) -> f64 {
    let (writer, reader) = (peers.client(0), peers.client(1));
    let stored = put(&writer, seed, bytes);
    let (is_over, options) = (AtomicBool::new(false), seconds(100));
    let look = || peers.metric(host, metric, labels);
    let (tensor, largest) = std::thread::scope(|scope| {
        let pulling = scope.spawn(|| {
            let pulled = reader.acquire(stored.reference(), &options);
            is_over.store(true, Ordering::SeqCst);
            pulled
        });
        let mut largest = look();
        while !is_over.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(20));
            largest = look().max(largest);
        }
        (pulling.join().unwrap().unwrap(), largest)
    });
    assert!(is(&tensor, seed, bytes) && by_quic(&tensor), "{}", tensor.moved());
    largest
}

#[test]
fn what_may_be_under_way_does_not_grow_where_the_way_is_short() {
    where_the_machine_runs_on(|| {
        let widest = largest(&two(), 6, 80 * MI, 1, WINDOW, &["direction=\"in\""]);
        assert_eq!(widest, FLOOR);
    });
}

/// A kernel counts a call as one datagram, however many there are in it, and the frames on the cable are of 1500 bytes.
#[test]
fn several_datagrams_are_given_to_the_kernel_and_taken_from_it_in_one_call() {
    where_the_machine_runs_on(|| {
        let peers = two();
        peers.network.frames(1500);
        let (writer, reader) = (peers.client(0), peers.client(1));
        warm_up(&writer, &reader);
        let bytes = 64 * MI;
        let stored = put(&writer, 6, bytes);
        let ([_, sent], [taken, _]) = (peers.network.datagram_calls(0), peers.network.datagram_calls(1));
        let tensor = reader.acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(is(&tensor, 6, bytes) && by_quic(&tensor), "{}", tensor.moved());
        let ([_, sent_by], [taken_by, _]) =
            (peers.network.datagram_calls(0), peers.network.datagram_calls(1));
        for (what, calls) in [("gives", sent_by - sent), ("takes", taken_by - taken)] {
            assert!(bytes / calls > 3 * 1500, "{calls} calls in which it {what} {bytes} bytes");
        }
    });
}

#[test]
fn datagrams_are_as_large_as_the_frames_of_the_path() {
    where_the_machine_runs_on(|| {
        for (frame, more_than, most) in [(1500, 1400.0, 1472.0), (9000, 1500.0, 6550.0)] {
            let peers = two();
            peers.network.frames(frame);
            let (mut found, mut seed) = (0.0_f64, 8);
            // Datagrams that are too large are found out while others come.
            until("the path was probed", || {
                seed += 1;
                found = largest(&peers, seed, 24 * MI, 0, DATAGRAM, &[]).max(found);
                found > more_than
            });
            assert!(found <= most, "{found} in frames of {frame}");
        }
    });
}
