//! Fate of those who read from an owner that is gone, or that one of them does not reach: the tensor comes whole, from
//! whoever has it, or the get fails with a reason and in its time; and nothing is left of what failed. Needs root.

use std::time::{Duration, Instant};

use tensorlane_client::{AcquireOptions, Client, PutOptions, Result, Target, Tensor};
use tensorlane_proto::Reason;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::sidecar::SidecarOptions;
use tensorlane_tests::tensors::{pattern, put_pattern, u8s};
use tensorlane_tests::transfer::{LARGE, came, is, put, seconds};
use tensorlane_tests::{reason, until, where_the_machine_runs_on};

/// Slow enough to be in the middle for two seconds.
const MBIT: u32 = 200;
/// So slow that those behind go on for longer than anybody waits for an owner.
const SLOWER_MBIT: u32 = 50;
const GRACE: &str = "1500ms";
/// Deadline of a get here, and what a busy machine may add to it.
const DEADLINE: u64 = 30;
const LATE: Duration = Duration::from_secs(5);

/// Hosts that pass tensors on in a chain, over slow cables.
fn start(hosts: usize) -> Peers {
    start_with(hosts, |options| options)
}

/// Hosts with other options, too.
fn start_with(hosts: usize, more: fn(SidecarOptions) -> SidecarOptions) -> Peers {
    let peers = Peers::start(hosts, |_, options| {
        let options = options.set("peers.fanOut", 1).set("peers.fanOutFrom", "8Mi").set("transports", "tcp");
        // One that stands still for a second on a busy machine is no holder to be left.
        more(options.default_of("deadlines.progress"))
    });
    (0..hosts).for_each(|host| peers.network.slow(host, MBIT));
    peers
}

/// Way in which a host goes.
type Going = fn(&mut Peers);

fn is_killed(peers: &mut Peers) {
    peers.sidecars[0].kill();
}

fn is_cut_off(peers: &mut Peers) {
    peers.network.cut(0);
}

fn starts_again(peers: &mut Peers) {
    is_killed(peers);
    peers.sidecars[0].start_again();
}

/// The right bytes, or a reason that says that the owner cannot be reached. Whether it came.
fn came_or_says_why(outcome: Result<Tensor>, seed: u64) -> bool {
    match outcome {
        Ok(tensor) => {
            assert!(is(&tensor, seed, LARGE), "{}", tensor.moved());
            true
        }
        Err(error) => {
            println!("it did not come: {error}");
            let reason = reason::<Tensor>(Err(error.clone()));
            assert!(matches!(reason, Reason::PeerUnreachable | Reason::OwnerLost), "{error}");
            false
        }
    }
}

/// Three readers in a chain; the owner goes when the last of them has half. `holder`: the first one has all of it by then. So the
/// second one gets it from that one, and the last one from the owner, which has a place.
/// How many of them get it.
fn readers_whose_owner_goes(goes: Going, holder: bool, checksum: bool) -> usize {
    const SEED: u64 = 11;
    let mut peers = start(4);
    let writer = peers.client(0);
    let options = PutOptions { checksum, ..PutOptions::new() };
    let stored = writer.put(&u8s(LARGE), &pattern(SEED, LARGE as usize), &options).unwrap();
    let readers: Vec<Client> = (1..4).map(|host| peers.client(host)).collect();
    let options = seconds(DEADLINE);
    let get = |reader: &Client| reader.acquire(stored.reference(), &options);
    let held = holder.then(|| get(&readers[0]).unwrap());
    let outcomes: Vec<bool> = std::thread::scope(|scope| {
        let mut getting = Vec::new();
        for host in 1..4 {
            let reader = &readers[host - 1];
            getting.push(scope.spawn(move || get(reader)));
            until("some of it is there", || came(&peers, host) > 0);
        }
        until("it is in the middle", || came(&peers, 3) >= LARGE / 2);
        goes(&mut peers);
        let gone = Instant::now();
        let outcomes = getting.into_iter().map(|getting| getting.join().unwrap());
        let came = outcomes.map(|outcome| came_or_says_why(outcome, SEED)).collect();
        assert!(gone.elapsed() < Duration::from_secs(DEADLINE) + LATE, "{:?}", gone.elapsed());
        came
    });
    drop((held, readers));
    (1..4).for_each(|host| peers.assert_free(host));
    outcomes.into_iter().filter(|came| *came).count()
}

#[test]
fn readers_whose_owner_is_killed_get_all_of_the_tensor_or_a_reason_in_time() {
    readers_whose_owner_goes(is_killed, false, true);
}

#[test]
fn readers_whose_owner_is_cut_off_get_all_of_the_tensor_or_a_reason_in_time() {
    readers_whose_owner_goes(is_cut_off, false, false);
}

#[test]
fn all_readers_get_a_tensor_that_one_of_them_has_though_its_owner_is_killed() {
    for checksum in [true, false] {
        where_the_machine_runs_on(|| {
            assert_eq!(readers_whose_owner_goes(is_killed, true, checksum), 3, "checksum: {checksum}");
        });
    }
}

#[test]
fn all_readers_get_a_tensor_that_one_of_them_has_though_its_owner_is_cut_off() {
    for checksum in [true, false] {
        where_the_machine_runs_on(|| {
            assert_eq!(readers_whose_owner_goes(is_cut_off, true, checksum), 3, "checksum: {checksum}");
        });
    }
}

/// The first of a chain has all, and sends it on slowly, when the owner goes for good, or begins another life.
fn a_chain_whose_owner_goes(goes: Going) {
    const SEED: u64 = 12;
    let mut peers = start_with(4, |options| options.set("gc.leaseGrace", GRACE));
    let writer = peers.client(0);
    let checked = PutOptions { checksum: true, ..PutOptions::new() };
    let stored = writer.put(&u8s(LARGE), &pattern(SEED, LARGE as usize), &checked).unwrap();
    let readers: Vec<Client> = (1..4).map(|host| peers.client(host)).collect();
    let options = seconds(DEADLINE);
    let held = readers[0].acquire(stored.reference(), &options).unwrap();
    peers.network.slow(1, SLOWER_MBIT);
    std::thread::scope(|scope| {
        let mut getting = Vec::new();
        for host in 2..4 {
            let (reader, stored, options) = (&readers[host - 1], &stored, &options);
            getting.push(scope.spawn(move || reader.acquire(stored.reference(), options)));
            until("some of it is there", || came(&peers, host) > 0);
        }
        assert!(came(&peers, 2) < LARGE / 2, "those behind are in the middle");
        goes(&mut peers);
        for getting in getting {
            assert!(came_or_says_why(getting.join().unwrap(), SEED), "it came all the same");
        }
    });
    drop((held, readers));
    (1..4).for_each(|host| peers.assert_free(host));
}

#[test]
fn those_behind_one_that_has_all_get_it_though_the_owner_is_killed_or_begins_another_life() {
    for goes in [is_killed as Going, starts_again] {
        where_the_machine_runs_on(|| a_chain_whose_owner_goes(goes));
    }
}

/// A name that two peers have is never taken for one: who reaches one of them gets that one's, and who reaches both is told.
#[test]
fn a_reader_that_does_not_reach_the_owner_gets_what_another_has_or_a_reason_and_all_is_well_after() {
    where_the_machine_runs_on(|| {
        let peers = start(3);
        let (owner, other, reader) = (peers.client(0), peers.client(1), peers.client(2));
        let stored = put(&owner, 21, LARGE);
        let named = |client, seed| put_pattern(client, seed, 100, &PutOptions::named("step")).unwrap();
        let names = [named(&owner, 1), named(&other, 2)];
        let held = other.acquire(stored.reference(), &seconds(DEADLINE)).unwrap();

        peers.network.lose(0, 2);
        peers.network.lose(2, 0);
        until("the reader has noticed", || peers.seen(2, 0).state != "connected");
        let begun = Instant::now();
        came_or_says_why(reader.acquire(stored.reference(), &seconds(DEADLINE)), 21);
        assert!(begun.elapsed() < Duration::from_secs(DEADLINE) + LATE, "{:?}", begun.elapsed());
        let found = reader.acquire(Target::name("step"), &AcquireOptions::new()).unwrap();
        assert!(is(&found, 2, 100), "that of the one it reaches");

        peers.network.find(0, 2);
        peers.network.find(2, 0);
        peers.await_connected();
        let tensor = reader.acquire(stored.reference(), &seconds(DEADLINE)).unwrap();
        assert!(is(&tensor, 21, LARGE), "{}", tensor.moved());
        let both = reader.acquire(Target::name("step"), &AcquireOptions::new());
        assert_eq!(reason(both), Reason::AmbiguousName);
        for client in [&owner, &other] {
            client.unname(&["step"]).unwrap();
        }
        drop((tensor, found, held, names, stored, reader, other, owner));
        peers.assert_all_free();
    });
}
