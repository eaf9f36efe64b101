//! Peers with several addresses, some of which lead nowhere or to somebody else. Needs root.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tensorlane_client::{PutOptions, Target};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::u8s;
use tensorlane_tests::transfer::{ROUTES, put, seconds};
use tensorlane_tests::{until, where_the_machine_runs_on};

use super::list_anew;

/// Time in which a peer is found that has another address than the dead one: a quarter of a second, and a slow machine.
const SOON: Duration = Duration::from_millis(1500);

#[test]
fn a_get_by_name_waits_a_moment_for_a_peer_whose_first_address_is_dead() {
    where_the_machine_runs_on(|| {
        let mut peers = Peers::pair();
        for route in ROUTES {
            list_anew(&mut peers, |peers, host, other| {
                let good = peers.network.peer_address(other);
                if host == other { vec![good] } else { vec![peers.network.dead_address(host), good] }
            });
            let begun = Instant::now();
            let (owner, reader) = (peers.client(route.owner), peers.client(route.reader));
            let named = PutOptions { no_lease: true, ..PutOptions::named("late") };
            drop(owner.put(&u8s(1), &[7], &named).unwrap());
            let owner = peers.entry(route.owner).name.parse().unwrap();
            assert_eq!(reader.get(Target::name_at(owner, "late"), &seconds(10)).unwrap().bytes, [7]);
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        }
    });
}

#[test]
fn a_peer_that_is_reached_at_no_address_is_told_of_with_the_reason_of_each() {
    where_the_machine_runs_on(|| {
        let mut peers = Peers::start(2, |_, options| options.set("deadlines.progress", "500ms"));
        let stored = put(&peers.client(1), 3, 4096);
        let reference = stored.reference().clone();
        drop(stored);
        let closed = SocketAddr::new(peers.network.address(1).into(), 9);
        let dead = peers.network.dead_address(0);
        list_anew(&mut peers, |peers, host, other| match (host, other) {
            (0, 1) => vec![dead, closed],
            // Who is not known here cannot come by itself.
            (1, 0) => vec![SocketAddr::new(peers.network.address(1).into(), 9)],
            _ => vec![peers.network.peer_address(other)],
        });
        let failed = peers.client(0).acquire(&reference, &seconds(20)).unwrap_err().to_string();
        for part in [format!("b at {closed}: "), format!("at {dead}: the peer did not answer within ")] {
            assert!(failed.contains(&part), "{part} is not in {failed}");
        }
        until("it is told in the status, too", || peers.seen(0, 1).last_error.contains(&dead.to_string()));
    });
}

#[test]
fn an_address_of_another_peer_that_leads_back_to_the_dialer_is_said_to() {
    where_the_machine_runs_on(|| {
        let mut peers = Peers::pair();
        let stored = put(&peers.client(1), 4, 4096);
        let reference = stored.reference().clone();
        drop(stored);
        list_anew(&mut peers, |peers, host, other| match (host, other) {
            (0, 1) => vec![peers.network.peer_address(0)],
            (1, 0) => vec![SocketAddr::new(peers.network.address(1).into(), 9)],
            _ => vec![peers.network.peer_address(other)],
        });
        let failed = peers.client(0).acquire(&reference, &seconds(20)).unwrap_err().to_string();
        assert!(failed.contains("this peer's own") && failed.contains("peers.advertise"), "{failed}");
    });
}
