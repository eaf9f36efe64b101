//! Paths that lose packets of full size and let small ones pass, and paths that are merely slow. Needs root.

use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tensorlane_client::channel::{ChannelSpec, ReadOptions};
use tensorlane_client::{PutOptions, Target, Tensor, Way};
use tensorlane_proto::{Reason, Transport};
use tensorlane_tests::channels::{LONG, message};
use tensorlane_tests::far::LongWay;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::u8s;
use tensorlane_tests::transfer::{MI, ROUTES, Route, is, put, seconds};
use tensorlane_tests::{SidecarOptions, reason, until, where_the_machine_runs_on};

/// Bytes of the largest packet that passes: those of QUIC's handshake do, those of TCP on Ethernet do not.
const PASSES: u32 = 1300;
/// Time that no small call may take beside a large one that stands still.
const SMALL: Duration = Duration::from_millis(1000);

fn pair(transports: &str) -> Peers {
    let set = |_, options: SidecarOptions| {
        options.set("transports", transports).set("deadlines.progress", "2s").set("gc.leaseGrace", "20s")
    };
    Peers::start(2, set)
}

/// Gets a tensor over a path that loses large packets, and asks for a name all the while; the longest time that took.
fn get_beside_small_calls(peers: &Peers, route: Route, seed: u64) -> (Tensor, Duration) {
    let (writer, reader) = (peers.client(route.owner), peers.client(route.reader));
    let stored = put(&writer, seed, 12 * MI);
    let small = writer.put(&u8s(1), &[1], &PutOptions::named("small")).unwrap();
    (0..2).for_each(|host| peers.network.only_small(host, PASSES));
    let by_name = || Target::name_at(peers.entry(route.owner).name.parse().unwrap(), "small");
    let mut longest = Duration::ZERO;
    let tensor = std::thread::scope(|scope| {
        let large = peers.client(route.reader);
        let reference = stored.reference();
        let getting = scope.spawn(move || large.acquire(reference, &seconds(60)).unwrap());
        while !getting.is_finished() {
            let begun = Instant::now();
            drop(reader.acquire(by_name(), &seconds(30)).unwrap());
            longest = longest.max(begun.elapsed());
        }
        getting.join().unwrap()
    });
    drop(small);
    writer.unname(&["small"]).unwrap().remove(0).unwrap();
    assert!(is(&tensor, seed, 12 * MI));
    (tensor, longest)
}

/// Output of `tensorlane check` at a host.
fn check(peers: &Peers, host: usize) -> String {
    let mut command = Command::new(bin_dir().join("tensorlane"));
    let output = command.arg("--sockets").arg(peers.sidecars[host].sockets()).arg("check").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_large_tensor_comes_by_tcp_where_large_packets_are_lost_small_calls_do_not_wait_and_peers_and_check_say_so()
 {
    for route in ROUTES {
        where_the_machine_runs_on(|| {
            let peers = pair("tcp");
            let (tensor, longest) = get_beside_small_calls(&peers, route, 51);
            let moved = tensor.moved();
            assert_eq!(moved.transport, Some(Transport::Tcp));
            assert!(moved.paths.iter().all(|path| path.way == Some(Way::Lanes)), "{moved}");
            assert!(longest < SMALL, "a small call took {longest:?}: {moved}");
            let told = peers.seen(route.reader, route.owner).last_error;
            for part in ["nothing moved for 2s on the TCP lanes, 0 of 12582912 bytes had come", "MTU"] {
                assert!(told.contains(part), "{part} is not in {told}");
            }
            let told = check(&peers, route.reader);
            assert!(
                told.contains("is connected, but nothing moved") && told.contains("ping -M do"),
                "{told}"
            );
            // It is the owner that dials for one of the two.
            let asked = peers.seen(route.owner, route.reader).last_error;
            assert!(asked.is_empty() || asked.contains("says the peer"), "{asked}");
        });
    }
}

#[test]
fn tensors_of_a_few_packets_come_where_large_packets_are_lost_and_nobody_gets_a_large_one() {
    for route in ROUTES {
        where_the_machine_runs_on(|| {
            let peers = pair("tcp");
            let (writer, reader) = (peers.client(route.owner), peers.client(route.reader));
            (0..2).for_each(|host| peers.network.only_small(host, PASSES));
            for seed in 70..73 {
                let stored = put(&writer, seed, 32 << 10);
                let tensor = reader.acquire(stored.reference(), &seconds(30)).unwrap();
                assert!(is(&tensor, seed, 32 << 10));
            }
            let told = peers.seen(route.reader, route.owner).last_error;
            assert!(told.contains("on the TCP lanes") && told.contains("MTU"), "{told}");
        });
    }
}

#[test]
fn messages_of_channels_come_where_large_packets_are_lost_and_nobody_gets_a_tensor() {
    for route in ROUTES {
        where_the_machine_runs_on(|| {
            let peers = pair("tcp");
            let spec = ChannelSpec::new("c").slots(4).slot_bytes(1 << 16);
            let mut writer = peers.client(route.owner).channel_writer(&spec).unwrap();
            let name = format!("{}/c", peers.entry(route.owner).name);
            let options = ReadOptions::new().wait(Duration::from_secs(30));
            let mut reader = peers.client(route.reader).channel_reader(&name, &options).unwrap();
            (0..2).for_each(|host| peers.network.only_small(host, PASSES));
            for number in 0..4 {
                let sent = vec![number; 60_000];
                writer.write_bytes(&sent, LONG).unwrap();
                assert!(message(&mut reader).bytes().to_vec() == sent, "message {number} is another one");
            }
        });
    }
}

#[test]
fn many_tiny_tensors_at_once_come_where_large_packets_are_lost_and_nobody_gets_a_large_one() {
    for route in ROUTES {
        where_the_machine_runs_on(|| {
            let peers = pair("tcp");
            let (writer, reader) = (peers.client(route.owner), peers.client(route.reader));
            let stored: Vec<_> = (0..64).map(|seed| put(&writer, seed, 1 << 10)).collect();
            let targets: Vec<Target> = stored.iter().map(|one| one.reference().into()).collect();
            (0..2).for_each(|host| peers.network.only_small(host, PASSES));
            let tensors = reader.acquire_many(&targets, &seconds(60));
            for (seed, tensor) in (0..64).zip(tensors) {
                assert!(is(&tensor.unwrap(), seed, 1 << 10));
            }
        });
    }
}

#[test]
fn transfers_take_quic_where_tcp_stands_still_and_routes_say_so() {
    for route in ROUTES {
        where_the_machine_runs_on(|| {
            let peers = pair("tcp,quic");
            let (_, longest) = get_beside_small_calls(&peers, route, 52);
            assert!(longest < SMALL, "a small call took {longest:?}");
            let (writer, reader) = (peers.client(route.owner), peers.client(route.reader));
            let mut seed = 60;
            until("the next ones come by QUIC", || {
                seed += 1;
                let stored = put(&writer, seed, 9 * MI);
                let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
                assert!(is(&tensor, seed, 9 * MI));
                tensor.moved().transport == Some(Transport::Quic)
            });
            assert_eq!(seed, 61, "the very next one");
            let told = peers.seen(route.reader, route.owner);
            let shown = told.route.map(tensorlane_client::Moved::from).unwrap();
            assert_eq!(shown.transport, Some(Transport::Quic), "{shown}");
        });
    }
}

#[test]
fn a_get_that_does_not_come_says_what_stood_still() {
    where_the_machine_runs_on(|| {
        let peers = pair("tcp");
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 53, 12 * MI);
        // Not even the small segments pass.
        (0..2).for_each(|host| peers.network.only_small(host, 1150));
        let failed = reader.acquire(stored.reference(), &seconds(14)).unwrap_err();
        let told = failed.to_string();
        assert!(told.contains("nothing moved for") && told.contains("MTU"), "{told}");
        assert!([Reason::DeadlineExceeded, Reason::PeerUnreachable].contains(&reason::<Tensor>(Err(failed))));
    });
}

/// A tensor that came on TCP lanes, all of it, between two peers that suspect nothing.
fn came_in_order(peers: &Peers, route: Route, tensor: &Tensor) {
    assert!(by_lanes_alone(tensor), "{}", tensor.moved());
    suspect_nothing(peers, route);
}

/// Returns whether lanes brought all of a tensor.
fn by_lanes_alone(tensor: &Tensor) -> bool {
    let moved = tensor.moved();
    assert_eq!(moved.transport, Some(Transport::Tcp));
    moved.paths.iter().all(|path| path.way == Some(Way::Lanes) && path.left.is_none())
}

/// Neither of two peers says that packets are lost.
fn suspect_nothing(peers: &Peers, route: Route) {
    for (host, other) in [(route.reader, route.owner), (route.owner, route.reader)] {
        let told = peers.seen(host, other).last_error;
        assert!(!told.contains("full size") && !told.contains("lanes"), "{told}");
    }
    let told = check(peers, route.reader);
    assert!(!told.contains("MTU"), "{told}");
}

#[test]
fn a_path_that_is_merely_slow_is_not_said_to_lose_packets_nor_gone_around_also_where_a_get_was_in_a_hurry() {
    const KBIT: u32 = 128;
    // Beside other work lanes may come up too late on so slow a path, and the stream takes over: then it is tried again.
    const TRIES: usize = 3;
    for route in ROUTES {
        let all_by_lanes = Cell::new(false);
        let slow_get = || {
            where_the_machine_runs_on(|| {
                let peers =
                    Peers::start(2, |_, options| options.set("transports", "tcp,quic").set("prefer", "tcp"));
                let (writer, reader) = (peers.client(route.owner), peers.client(route.reader));
                let (first, second) = (put(&writer, 71, 9 * MI), put(&writer, 72, 9 * MI));
                (0..2).for_each(|host| peers.network.crawl(host, KBIT));
                let failed = reader.acquire(first.reference(), &seconds(3)).unwrap_err().to_string();
                assert!(!failed.contains("MTU"), "{failed}");
                let tensor = std::thread::scope(|scope| {
                    let large = peers.client(route.reader);
                    let reference = second.reference();
                    let getting = scope.spawn(move || large.acquire(reference, &seconds(120)).unwrap());
                    let before = peers.network.received(route.reader);
                    until("ten seconds' worth of bytes have come", || {
                        peers.network.received(route.reader) - before > u64::from(KBIT) * 1000 / 8 * 10
                    });
                    (0..2).for_each(|host| peers.network.fast(host));
                    getting.join().unwrap()
                });
                assert!(is(&tensor, 72, 9 * MI));
                all_by_lanes.set(by_lanes_alone(&tensor));
                suspect_nothing(&peers, route);
            });
            all_by_lanes.get()
        };
        assert!((0..TRIES).any(|_| slow_get()), "the stream took over each time");
    }
}

#[test]
fn a_long_way_is_not_said_to_lose_packets_nor_gone_around() {
    for route in ROUTES {
        where_the_machine_runs_on(|| {
            let peers = pair("tcp");
            let _way = LongWay::start(&peers, Duration::from_millis(400));
            let stored = put(&peers.client(route.owner), 73, 12 * MI);
            let tensor = peers.client(route.reader).acquire(stored.reference(), &seconds(60)).unwrap();
            assert!(is(&tensor, 73, 12 * MI));
            came_in_order(&peers, route, &tensor);
        });
    }
}

#[test]
fn an_owner_that_stands_still_for_a_while_is_not_said_to_lose_packets() {
    where_the_machine_runs_on(|| {
        for route in ROUTES {
            let peers = Peers::start(2, |_, options| {
                options.set("transports", "tcp").set("deadlines.progress", "20s").set("gc.leaseGrace", "20s")
            });
            let stored = put(&peers.client(route.owner), 74, 12 * MI);
            let pid = peers.sidecars[route.owner].pid();
            let tensor = std::thread::scope(|scope| {
                let large = peers.client(route.reader);
                let reference = stored.reference();
                stop(pid);
                let getting = scope.spawn(move || large.acquire(reference, &seconds(60)).unwrap());
                let begun = Instant::now();
                until("twice the time that lanes have", || begun.elapsed() > Duration::from_secs(5));
                signal(pid, Signal::CONT);
                getting.join().unwrap()
            });
            assert!(is(&tensor, 74, 12 * MI));
            assert_eq!(peers.seen(route.reader, route.owner).last_error, "");
        }
    });
}
